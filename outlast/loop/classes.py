"""Classes of a trainer by their name in a checkpoint: looked up, never imported, never called.

A checkpoint names the class of a namedtuple, a dataclass or an enum member. Such a name only ever
finds a class that the running program has loaded already and that is plain data; an object of it
is then filled in without running any code of the class. Everything else must be a live object of
the trainer's state, into which a restore puts what was saved.
"""

import contextlib
import dataclasses
import enum
import sys
from collections.abc import Collection
from typing import Any


def name_of(cls: type) -> str:
    """How a checkpoint names a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find(name: str) -> type | None:
    """The loaded class of that name if it is plain data, else None."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for step in path.split("."):
        # Not getattr: a module's __getattr__ imports, a class's own computes.
        found = getattr(found, "__dict__", {}).get(step)
    return found if isinstance(found, type) and is_plain(found) else None


def is_findable(cls: type, modules: Collection[str] | None = None) -> bool:
    """Whether a program that has loaded ``modules`` (None: what is loaded now) finds the class."""
    if modules is not None and cls.__module__ not in modules:
        return False
    return find(name_of(cls)) is cls


def is_plain(cls: type) -> bool:
    """Whether objects of a class are only their fields: namedtuples, dataclasses, enums."""
    return is_namedtuple(cls) or issubclass(cls, enum.Enum) or is_dataclass(cls)


def is_namedtuple(cls: type) -> bool:
    """Whether a class is a tuple with names, as typing and collections make them."""
    fields = getattr(cls, "_fields", None)
    return (
        issubclass(cls, tuple)
        and isinstance(fields, tuple)
        and all(isinstance(field, str) for field in fields)
    )


def is_dataclass(cls: type) -> bool:
    """Whether a class is a dataclass and nothing besides: no subclass of dict, say."""
    return dataclasses.is_dataclass(cls) and cls.__new__ is object.__new__


def is_frozen(cls: type) -> bool:
    """Whether objects of a dataclass refuse changes."""
    return bool(getattr(cls, "__dataclass_params__", None) and cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def attributes(value: object) -> dict[str, Any]:
    """What an object holds in its slots and in its ``__dict__``, without running its code."""
    found = {}
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{cls.__name__.lstrip('_')}{name}"
            try:
                found[name] = object.__getattribute__(value, name)
            except AttributeError:  # a slot that nothing was put into
                continue
    with contextlib.suppress(AttributeError):
        found.update(object.__getattribute__(value, "__dict__"))
    return found


def set_attributes(value: object, news: dict[str, Any]) -> None:
    """Give an object these attributes, in this order, and no others."""
    for name in attributes(value):
        object.__delattr__(value, name)
    for name, item in news.items():
        object.__setattr__(value, name, item)
