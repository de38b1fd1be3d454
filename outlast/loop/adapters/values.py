"""Python's immutable values: complex numbers, dates, decimals, paths, enum members.

Each is a ``$value`` node, ``[kind, …]``, with a kind from a closed list.
"""

import datetime
import decimal
import enum
import fractions
import pathlib
import re
import sys
import uuid
from collections.abc import Callable
from typing import Any

from outlast.loop import classes
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.nodes import shown
from outlast.loop.state import MISSING, Blobs, Node

_TYPES = {cls.__name__: cls for cls in (bool, bytes, complex, float, int, object, str)}
"""Types that are values themselves, such as an estimator's dtype."""
_PATHS = {
    cls.__name__: cls for cls in (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)
}
_CONSTANTS = {"Ellipsis": ..., "NotImplemented": NotImplemented}


def capture(value: Any, path: str, blobs: Blobs) -> Node:
    kind = type(value)
    write = _WRITERS.get(kind)
    if write is not None:
        return {"$value": [kind.__name__, *write(value)]}
    if isinstance(value, enum.Enum):
        return {"$value": _capture_enum(value, path, blobs)}
    if kind is slice:
        return {"$value": ["slice", *_bounds(value, path)]}
    if kind in (datetime.datetime, datetime.time):
        return {
            "$value": [
                kind.__name__,
                value.replace(tzinfo=None).isoformat(),
                value.fold,
                _capture_zone(value.tzinfo, path),
            ]
        }
    if kind is type and value in _TYPES.values():
        return {"$value": ["type", value.__name__]}
    if kind in _PATHS.values():
        return {"$value": ["path", kind.__name__, str(value)]}
    for name, constant in _CONSTANTS.items():
        if value is constant:
            return {"$value": ["constant", name]}
    return MISSING


def is_immutable(value: Any) -> bool:
    """Whether the value is of one of these kinds; none of them can change."""
    return type(value) in _WRITERS or isinstance(value, enum.Enum | slice | datetime.datetime)


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    kind, *parts = node["$value"]
    if not _are_typed(kind, parts):
        raise DoesNotFit(f"{path}: the checkpoint holds a {kind[:100]} of {shown(parts)[:100]}")
    if kind == "enum":
        return _restore_enum(target, parts, path, blobs)
    try:
        return _READERS[kind](*parts)
    except (ValueError, TypeError, KeyError, ArithmeticError, OSError) as error:
        raise DoesNotFit(f"{path}: the checkpoint holds a {kind} that is none ({error})") from None


def _are_typed(kind: str, parts: list[Any]) -> bool:
    """Whether the parts have the types that this kind of value needs."""
    wanted = _PARTS.get(kind)
    return (
        wanted is not None
        and len(wanted) == len(parts)
        and all(type(part) in kinds for part, kinds in zip(parts, wanted, strict=True))
        and all(_is_zone(part) for part in parts if type(part) is list)
    )


def _is_zone(part: list[Any]) -> bool:
    """Whether a list is an offset (days, seconds, microseconds), with or without a name."""
    if len(part) == 2 and type(part[0]) is list and type(part[1]) in (str, type(None)):
        part = part[0]
    return len(part) == 3 and all(type(item) is int for item in part)


_TEXT, _NUMBER, _LIST = (str,), (int,), (list,)
_BOUND, _ZONE = (int, type(None)), (str, list, type(None))
_PARTS: dict[str, tuple[tuple[type, ...], ...]] = {
    "int": (_TEXT,),
    "complex": (_TEXT, _TEXT),
    "Decimal": (_TEXT,),
    "Fraction": (_TEXT, _TEXT),
    "date": (_TEXT,),
    "datetime": (_TEXT, _NUMBER, _ZONE),
    "time": (_TEXT, _NUMBER, _ZONE),
    "timedelta": (_NUMBER, _NUMBER, _NUMBER),
    "timezone": (_LIST, (str, type(None))),
    "range": (_TEXT, _TEXT, _TEXT),
    "slice": (_BOUND, _BOUND, _BOUND),
    "UUID": (_TEXT,),
    "type": (_TEXT,),
    "path": (_TEXT, _TEXT),
    "constant": (_TEXT,),
    "enum": (_TEXT, _TEXT),
}
"""The types of the parts of each kind of value."""
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")

_WRITERS: dict[type, Callable[[Any], list[Any]]] = {
    int: lambda value: [hex(value)],  # only numbers that are too long for JSON
    complex: lambda value: [repr(value.real), repr(value.imag)],
    decimal.Decimal: lambda value: [str(value)],
    fractions.Fraction: lambda value: [hex(value.numerator), hex(value.denominator)],
    datetime.date: lambda value: [value.isoformat()],
    datetime.timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    datetime.timezone: lambda value: [_offset(value), value.tzname(None)],
    range: lambda value: [hex(value.start), hex(value.stop), hex(value.step)],
    uuid.UUID: lambda value: [value.hex],
}
_READERS: dict[str, Callable[..., Any]] = {
    "int": lambda text: int(text, 16),
    "complex": lambda real, imag: complex(float(real), float(imag)),
    "Decimal": decimal.Decimal,
    "Fraction": lambda one, two: fractions.Fraction(int(one, 16), int(two, 16)),
    "date": datetime.date.fromisoformat,
    "datetime": lambda text, fold, zone: datetime.datetime.fromisoformat(text).replace(
        fold=fold, tzinfo=_restore_zone(zone)
    ),
    "time": lambda text, fold, zone: datetime.time.fromisoformat(text).replace(
        fold=fold, tzinfo=_restore_zone(zone)
    ),
    "timedelta": datetime.timedelta,
    "timezone": lambda offset, name: _restore_zone([offset, name]),
    "range": lambda *bounds: range(*(int(bound, 16) for bound in bounds)),
    "slice": slice,
    "UUID": uuid.UUID,
    "type": lambda name: _TYPES[name],
    "path": lambda name, text: _PATHS[name](text),
    "constant": lambda name: _CONSTANTS[name],
}


def _bounds(value: slice, path: str) -> list[int | None]:
    bounds = [value.start, value.stop, value.step]
    if any(bound is not None and type(bound) is not int for bound in bounds):
        raise StateError(f"{path} is {value!r}: only slices of whole numbers can be saved")
    return bounds


def _offset(zone: datetime.timezone) -> list[int]:
    offset = zone.utcoffset(None)
    return [offset.days, offset.seconds, offset.microseconds]


def _capture_zone(zone: datetime.tzinfo | None, path: str) -> Any:
    if zone is None:
        return None
    if type(zone) is datetime.timezone:
        return [_offset(zone), zone.tzname(None)]
    zoneinfo = sys.modules.get("zoneinfo")
    key = getattr(zone, "key", None)
    if zoneinfo is not None and type(zone) is zoneinfo.ZoneInfo and key:
        return key
    raise StateError(
        f"{path} has the time zone {zone!r}, which cannot be saved; use datetime.timezone or "
        "zoneinfo.ZoneInfo"
    )


def _restore_zone(zone: Any) -> datetime.tzinfo | None:
    if zone is None:
        return None
    if isinstance(zone, str):
        import zoneinfo

        if not _ZONE_NAME.fullmatch(zone):
            raise ValueError(f"time zone {zone[:100]!r}")
        return zoneinfo.ZoneInfo(zone)
    offset, name = zone
    plain = datetime.timezone(datetime.timedelta(*offset))
    return plain if plain.tzname(None) == name else datetime.timezone(plain.utcoffset(None), name)


def _capture_enum(value: enum.Enum, path: str, blobs: Blobs) -> list[Any]:
    cls = type(value)
    if not blobs.finds(cls):
        blobs.need_target(value, path, f"a member of {classes.name_of(cls)}")
    if isinstance(value, enum.Flag):
        return ["enum", classes.name_of(cls), hex(value.value)]
    return ["enum", classes.name_of(cls), value.name]


def _restore_enum(target: Any, parts: list[str], path: str, blobs: Blobs) -> Any:
    name, member = parts
    cls: Any = type(target) if classes.name_of(type(target)) == name else blobs.find(name)
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise DoesNotFit(
            f"{path}: the checkpoint holds a member of {name}, a class that this program does not "
            "have"
        )
    try:
        return _flags(cls, int(member, 16)) if issubclass(cls, enum.Flag) else cls[member]
    except (KeyError, ValueError):
        raise DoesNotFit(f"{path}: the checkpoint holds {name} {member}, unknown here") from None


def _flags(cls: Any, value: int) -> Any:
    """The member with a value, or a combination of members; a class's own ``_missing_`` does not
    run."""
    known = cls._value2member_map_.get(value)
    if known is not None or cls._missing_.__func__ is enum.Flag._missing_.__func__:
        return cls(value) if known is None else known
    raise KeyError(value)
