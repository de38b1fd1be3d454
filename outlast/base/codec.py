"""The strict JSON codec of the bucket's records.

An unknown or missing field, or a value of another type, raises a `ValueError` that names the
record, the field and the value found; so does a text or number that its field's type in
`outlast.base.names` or `outlast.base.numbers` does not allow. Times are RFC 3339 in UTC. Standard
library only.
"""

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Self

FORMAT = 1
"""Format of the records that this version reads and writes."""
FORMATS = 1_000_000
"""No version will give a record so high a number."""

_WHOLE_MAX = (1 << 63) - 1
_LEVELS_MAX = 100
"""Type of a field that may hold any JSON."""

# ---------------------------------------------------------------------------------------------
# Times


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC, `2026-11-27T23:59:59Z`, with milliseconds if there are any."""
    if moment.tzinfo is None:
        raise ValueError(f"time {moment.isoformat()}: has no time zone; give it UTC")
    utc = moment.astimezone(UTC)
    spec = "milliseconds" if utc.microsecond // 1000 else "seconds"
    return utc.replace(tzinfo=None).isoformat(timespec=spec) + "Z"


def parse_time(text: str) -> datetime:
    """Parses what `format_time` wrote, or any RFC 3339 time with a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"time {text!r}: must be RFC 3339, such as 2026-11-27T23:59:59Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r}: must end in Z or an offset")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"time {text!r}: is outside the years 1 to 9999") from None


# ---------------------------------------------------------------------------------------------
# Records


def canonical_json(value: Any) -> bytes:
    """The canonical JSON of a value: sorted keys, no spaces, ASCII, no NaN.

    ASCII, so that any text can be written, even half a surrogate pair in a file name.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


class OtherFormat(ValueError):
    """What another version of Outlast wrote. It is whole, so that nothing may repair, replace or
    pass over it."""


def check_format(what: str, found: Any, reads: int = FORMAT) -> None:
    """OtherFormat if another version wrote `what`; ValueError if no version gives this number."""
    if type(found) is not int or not 1 <= found < FORMATS:
        raise ValueError(f"{what}.format {ascii(found)[:100]}: must be {reads}")
    if found != reads:
        then = "upgrade Outlast" if found > reads else "use the version of Outlast that wrote it"
        raise OtherFormat(
            f"{what}: has format {found}, this version of Outlast reads format {reads}; {then}"
        )


class Record:
    """Base of frozen dataclasses that are stored as one JSON object each."""

    def to_json(self) -> bytes:
        """Canonical JSON with the format's number and a final line break."""
        return canonical_json({"format": FORMAT, **_plain(self)}) + b"\n"

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Reads what `to_json` wrote; anything else is a ValueError that says what is wrong,
        OtherFormat if another version may have written it."""
        name = cls.__name__
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}: is not JSON ({error})") from None
        if not isinstance(value, dict):
            raise ValueError(f"{name}: must be a JSON object, found {type(value).__name__}")
        form = value.pop("format", None)
        check_format(name, form)
        return typing.cast(Self, _decoded_record(cls, value, name))


# ---------------------------------------------------------------------------------------------
# The strict codec behind Record


def _plain(value: Any) -> Any:
    """JSON's own types for a record's value."""
    kind = type(value)
    if kind in _JSON_LEAVES:
        return value
    if kind is tuple or kind is list:
        return [_plain(entry) for entry in value]
    if kind is dict:
        return {key: _plain(entry) for key, entry in value.items()}
    if kind is datetime:
        return format_time(value)
    if isinstance(value, Enum):
        return value.value
    if not dataclasses.is_dataclass(kind):
        return value
    found = {}
    for field in _fields(kind):
        entry = getattr(value, field.name)
        if not (field.omitted and entry == field.default):
            found[field.key] = _plain(entry)
    return found


_JSON_LEAVES = frozenset({str, int, float, bool, type(None)})


class _Field(typing.NamedTuple):
    """A field of a record, as the codec needs it."""

    name: str
    key: str
    """Its name in JSON: `from_step` is stored as `from`, which is a keyword in Python."""
    omitted: bool
    """Whether the JSON leaves it out if it has its default."""
    default: Any
    decode: "_Decode"


@functools.cache
def _fields(kind: type) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(
        _Field(
            field.name,
            field.metadata.get("json", field.name),
            bool(field.metadata.get("omit")),
            field.default,
            _decoder(hints[field.name]),
        )
        for field in dataclasses.fields(kind)
    )


_Decode = Callable[[Any, str], Any]
"""Converts a JSON value to a field's type. Raises ValueError with the place and the value."""


@functools.cache
def _decoder(kind: Any) -> _Decode:
    """Decodes values as `kind`; cached for each type, because HEAD is read with each heartbeat."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return checked_json
    if origin is typing.Annotated:
        return _decoder_with_rules(_decoder(args[0]), args[1:])
    if origin in (typing.Union, types.UnionType):
        options = [option for option in args if option is not type(None)]
        return _decoder_of_optional(_decoder(options[0]), optional=len(options) < len(args))
    if dataclasses.is_dataclass(kind):
        return functools.partial(_decoded_record, typing.cast(type, kind))
    if origin is tuple:
        return functools.partial(_decoded_tuple, _decoder(args[0]))
    if origin is dict:
        return functools.partial(_decoded_dict, _decoder(args[1]))
    if kind is datetime:
        return _decoded_time
    if isinstance(kind, type) and issubclass(kind, Enum):
        return functools.partial(_decoded_enum, kind)
    return {int: _decoded_int, float: _decoded_float}.get(kind) or functools.partial(
        _expected, kind
    )


def _decoder_with_rules(decode: _Decode, rules: Sequence[Any]) -> _Decode:
    def decoded(value: Any, where: str) -> Any:
        value = decode(value, where)
        for rule in rules:
            rule.check(value, where)
        return value

    return decoded


def _decoder_of_optional(decode: _Decode, *, optional: bool) -> _Decode:
    def decoded(value: Any, where: str) -> Any:
        if value is not None:
            return decode(value, where)
        if not optional:
            raise ValueError(f"{where}: must not be null")
        return None

    return decoded


def _decoded_tuple(decode: _Decode, value: Any, where: str) -> tuple[Any, ...]:
    _expected(list, value, where)
    return tuple(decode(entry, f"{where}[{i}]") for i, entry in enumerate(value))


def _decoded_dict(decode: _Decode, value: Any, where: str) -> dict[str, Any]:
    _expected(dict, value, where)
    return {key: decode(entry, f"{where}.{key}") for key, entry in value.items()}


def _decoded_time(value: Any, where: str) -> datetime:
    _expected(str, value, where)
    try:
        return parse_time(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _decoded_enum(kind: type[Enum], value: Any, where: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(entry.value) for entry in kind)
        raise ValueError(f"{where} {value!r}: must be one of {known}") from None


def _decoded_int(value: Any, where: str) -> int:
    return _bounded(_expected(int, value, where), where)


def _decoded_float(value: Any, where: str) -> float:
    if type(value) is int:
        value = float(_bounded(value, where))
    _expected(float, value, where)
    if not math.isfinite(value):
        raise ValueError(f"{where} {value!r}: must be finite")
    return value


def checked_json(value: Any, where: str) -> Any:
    """Any JSON value whose numbers are finite and that can be written again."""
    level, depth = [value], 0
    while level:
        if depth > _LEVELS_MAX:
            raise ValueError(f"{where}: must not be nested deeper than {_LEVELS_MAX} levels")
        below: list[Any] = []
        for each in level:
            if isinstance(each, float) and not math.isfinite(each):
                raise ValueError(f"{where} {each!r}: must be finite")
            if isinstance(each, list):
                below += each
            elif isinstance(each, dict):
                below += each.values()
        level, depth = below, depth + 1
    return value


def _bounded(value: int, where: str) -> int:
    if not -_WHOLE_MAX <= value <= _WHOLE_MAX:
        raise ValueError(f"{where}: must be a number below 2**63")
    return value


def _decoded_record(kind: type, value: Any, where: str) -> Any:
    _expected(dict, value, where)
    fields = _fields(kind)
    unknown = sorted(set(value) - {field.key for field in fields})
    if unknown:
        name = unknown[0] if unknown[0].isidentifier() else ascii(unknown[0])
        raise ValueError(f"{where}.{name[:100]}: unknown field; upgrade outlast to read it")
    missing = sorted(f.key for f in fields if not f.omitted and f.key not in value)
    if missing:
        raise ValueError(f"{where}.{missing[0]}: is missing")
    return kind(
        **{
            field.name: field.decode(value[field.key], f"{where}.{field.key}")
            for field in fields
            if field.key in value
        }
    )


def _expected(kind: type, value: Any, where: str) -> Any:
    """The value if it has exactly this type: True is not a number here."""
    if type(value) is not kind:
        raise ValueError(
            f"{where} {value!r}: must be {kind.__name__}, found {type(value).__name__}"
        )
    return value
