"""Looks up a trainer's classes by their names in a checkpoint, without importing or calling them.

A checkpoint names the class of a namedtuple, a dataclass or an enum member. Such a name only finds
a class that the running program itself defines, outside all installed packages and the standard
library, that is already loaded and that is plain data; its object is then filled in without running
any code of the class. Everything else must be a live object in the trainer's state, into which a
restore puts the saved values.
"""

import abc
import contextlib
import dataclasses
import enum
import sys
import sysconfig
import types
from collections.abc import Collection
from pathlib import PurePath
from typing import Any

_INSTALLED = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_METACLASSES = (type, abc.ABCMeta, enum.EnumMeta)
"""Metaclasses that run no code of the program when a class is inspected."""
_PACKAGES = frozenset({"site-packages", "dist-packages"})


def name_of(cls: type) -> str:
    """The name of a class in a checkpoint."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find(name: str) -> type | None:
    """The program's own loaded class of that name if it is plain data, else None."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for step in path.split("."):
        # Not getattr: a module's __getattr__ may import, an object's may compute.
        if type(found) in _METACLASSES:
            found = type.__dict__["__dict__"].__get__(found).get(step)
        elif issubclass(type(found), types.ModuleType):
            found = object.__getattribute__(found, "__dict__").get(step)
        else:
            return None
    # One of the program's metaclasses could give any answer here.
    known = type(found) in _METACLASSES and name_of(found) == name and is_own(found)
    return found if known and is_plain(found) and not hasattr(found, "__del__") else None


def is_own(cls: type) -> bool:
    """Whether a class belongs to the program and not to an installed package."""
    module, _, _ = cls.__module__.partition(".")
    if module == "outlast" or module in sys.builtin_module_names:
        return False
    home = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return home is None or not is_installed(home)


def is_installed(path: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    return path.startswith(_INSTALLED) or not _PACKAGES.isdisjoint(PurePath(path).parts)


def is_findable(cls: type, modules: Collection[str] | None = None) -> bool:
    """Whether a program that has loaded ``modules`` (None: the modules loaded now) finds the
    class."""
    if modules is not None and cls.__module__ not in modules:
        return False
    return find(name_of(cls)) is cls


def is_plain(cls: type) -> bool:
    """Whether objects of a class consist of their fields only: namedtuples, dataclasses, enums."""
    return is_namedtuple(cls) or issubclass(cls, enum.Enum) or is_dataclass(cls)


def is_namedtuple(cls: type) -> bool:
    """Whether a class is a namedtuple, as typing and collections make them."""
    fields = getattr(cls, "_fields", None)
    return (
        issubclass(cls, tuple)
        and isinstance(fields, tuple)
        and all(isinstance(field, str) for field in fields)
    )


def is_dataclass(cls: type) -> bool:
    """Whether a class is a dataclass and nothing else, such as a subclass of dict."""
    return dataclasses.is_dataclass(cls) and cls.__new__ is object.__new__


def is_frozen(cls: type) -> bool:
    """Whether objects of a dataclass refuse changes."""
    return bool(getattr(cls, "__dataclass_params__", None) and cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def attributes(value: object) -> dict[str, Any]:
    """The contents of an object's slots and ``__dict__``, without running its code."""
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
            except AttributeError:  # an empty slot
                continue
    with contextlib.suppress(AttributeError):
        found.update(object.__getattribute__(value, "__dict__"))
    return found


def set_attributes(value: object, news: dict[str, Any]) -> None:
    """Give an object these attributes, in this order, and no others; ValueError for a name that is
    code of its class."""
    for name in news:
        if is_code(type(value), name):
            raise ValueError(
                f"{name} is not an attribute that objects of {name_of(type(value))} keep"
            )
    for name in attributes(value):
        object.__delattr__(value, name)
    for name, item in news.items():
        object.__setattr__(value, name, item)


def is_code(cls: type, name: str) -> bool:
    """Whether setting the attribute would run code such as a property, replace a method, or change
    the class."""
    for each in cls.__mro__:
        if name in each.__dict__:
            found = each.__dict__[name]
            if isinstance(found, types.FunctionType):
                return True
            return hasattr(type(found), "__set__") and not isinstance(
                found, types.MemberDescriptorType
            )
    return False
