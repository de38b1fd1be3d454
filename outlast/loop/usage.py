"""Checks whether a program still uses the objects that its state names.

Two things show that it does not. First, references: the program had one to the object besides the
state's when training began and has none now, or it never had one to the object or to the state and
so cannot change the object. Second, variables: one with the entry's name was this object and is now
another one of the same type, or it had the same number, text or flag and changes while the state's
value does not.
"""

import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

REBOUND = "your program has bound the name to another object"
UNREACHABLE = "your program holds no reference to it"
MOVED = "your program's variable of that name no longer refers to it"

_NUMBERS_SEEN = 3
"""Different numbers of a variable that show that it counts and was not just set once."""
_TEXTS_SEEN = 2
"""The same for a text or a flag, for which another value is enough."""
_FRAMEWORKS = ("numpy", "torch", "jax", "jaxlib")

_Home = tuple[CodeType, str]
"""A variable: its code, and its name, with ``self.`` before an attribute."""


@dataclass
class Use:
    """How the program referred to one place when training began."""

    keys: tuple[Any, ...]
    is_value: bool
    """Whether it is a number, a text or a flag, whose identity has no meaning."""
    held: int
    """Number of references besides the container's."""
    homes: frozenset[_Home]
    """Variables with its name that were the object or had its value."""
    seen: list[Any]
    """Values that these variables have had."""

    def follow(self) -> None:
        """Note the current values of a value's variables; ``evidence`` does so too."""
        if self.is_value and self.homes and len(self.seen) < self._enough:
            news = [item for item in self._variables() if item not in self.seen]
            self.seen += news[:1]

    def evidence(self, values: Mapping[str, object], *, inline: bool) -> str:
        """Why the program does not use the object at the place, or empty text. KeyError, IndexError
        or TypeError if the place does not exist. ``inline``: the program has no reference to
        ``values``."""
        if self.is_value:
            self.follow()
            return MOVED if len(self.seen) >= self._enough else ""
        if self.is_let_go(values) or self.others(values):
            return REBOUND
        out_of_reach = inline and not (self.held or _held(values, self.keys))
        return UNREACHABLE if out_of_reach and len(self.keys) == 1 else ""

    def is_let_go(self, values: Mapping[str, object]) -> bool:
        """Whether the program has lost its references to the object at the place."""
        return bool(self.held) and not _held(values, self.keys)

    def others(self, values: Mapping[str, object]) -> list[Any]:
        """Current objects of the variables that are different ones of the same type."""
        if not self.homes or self.is_value:
            return []
        now = at(values, self.keys)
        return [each for each in self._variables() if each is not now and type(each) is type(now)]

    @property
    def _enough(self) -> int:
        return _NUMBERS_SEEN if is_number(self.seen[0]) else _TEXTS_SEEN

    def _variables(self) -> list[Any]:
        found = [item for home, item in _variables(names(self.keys)) if home in self.homes]
        return [item for item in found if is_value(item)] if self.is_value else found


def begin(values: Mapping[str, object], keys: tuple[Any, ...]) -> Use:
    """How the program now refers to the place ``keys`` of ``values``."""
    held = _held(values, keys)  # before our own reference
    now = at(values, keys)
    plain = is_value(now)
    homes = frozenset(
        home
        for home, item in _variables(names(keys))
        if item is now or (plain and type(item) is type(now) and item == now)
    )
    return Use(keys, plain, held, homes, [now] if plain else [])


def is_inline(values: Mapping[str, object]) -> bool:
    """Whether the program has no reference to ``values``, because they are written in the call of
    ``outlast.train``. Call it only in the constructor that ``train`` calls, once that has stored
    them."""
    return type(values) is dict and sys.getrefcount(values) <= _INLINE


def is_array(value: object) -> bool:
    """Whether this is a numpy array, a tensor or a JAX array."""
    kind = type(value)
    return (
        any(base.__module__.partition(".")[0] in _FRAMEWORKS for base in kind.__mro__)
        and all(hasattr(kind, name) for name in ("dtype", "shape", "ndim", "reshape"))
        and not is_number(value)
    )


def is_number(value: object) -> bool:
    """Whether this is a number, also one of numpy's; a boolean is a flag."""
    kind = type(value)
    return kind in (int, float, complex) or (
        kind.__module__ == "numpy"
        and hasattr(kind, "item")
        and not hasattr(kind, "__array_finalize__")
    )


def is_value(value: object) -> bool:
    """Whether this is a number, a text or a flag."""
    return type(value) in (str, bool) or is_number(value)


def at(values: Any, keys: tuple[Any, ...]) -> Any:
    """The object in ``values`` at ``keys``."""
    for key in keys:
        values = values[key]
    return values


def _held(values: Mapping[str, object], keys: tuple[Any, ...]) -> int:
    """Number of references to the object at a place besides its container's; 0 if the container is
    not a plain dict or list."""
    container = at(values, keys[:-1])
    return _count(container, keys[-1]) - _ALONE if type(container) in (dict, list) else 0


def _count(container: Any, key: Any) -> int:
    return sys.getrefcount(container[key])


_ALONE = _count({"x": object()}, "x")


class _LikeTraining:
    """Holds and counts references like the loop's class."""

    def __init__(self, values: Mapping[str, object], *, name: str) -> None:
        self.values, self.name = values, name
        self.count = _as_is_inline(values)


def _as_train(values: Mapping[str, object]) -> int:
    return _LikeTraining(values, name="").count


def _as_is_inline(values: Mapping[str, object]) -> int:
    return sys.getrefcount(values)


_INLINE = _as_train({})


def names(keys: tuple[Any, ...]) -> set[str]:
    """Possible names of a variable for a place: the entry's name or the innermost key."""
    return {key for key in (keys[0], keys[-1]) if isinstance(key, str)}


def _variables(names: Collection[str]) -> Iterator[tuple[_Home, Any]]:
    """The variables with these names in running functions outside the loop, and such attributes of
    their ``self``; innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith("outlast.loop"):
            yield from _variables_in(frame, names)
        frame = frame.f_back


def _variables_in(frame: FrameType, names: Collection[str]) -> list[tuple[_Home, Any]]:
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a module: its own variables, not a copy
        return [((code, name), frame.f_locals[name]) for name in names if name in frame.f_locals]
    held = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    if held.isdisjoint((*names, "self")):
        return []
    locals_ = frame.f_locals
    found = [((code, name), locals_[name]) for name in names if name in locals_]
    attributes = getattr(locals_.get("self"), "__dict__", {})
    found += [((code, f"self.{name}"), attributes[name]) for name in names if name in attributes]
    if type(locals_) is dict:  # a copy, which would keep the program's objects alive
        locals_.clear()
    return found
