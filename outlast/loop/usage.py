"""How a program holds what is in its state: does it still use the object that the state names?

Two signs that it does not. Its references: when training began the program had one to the object
besides the state's, and now it has none; or it never had any, nor one to the state, so that it
cannot change what is there. And its variables: one that is called as the entry was this object, and
is another of the same type now; or had the same number, text or flag, and goes on while that in
the state stands still.
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
"""Different numbers that a variable has had: one that counts on, not one that was set once."""
_TEXTS_SEEN = 2
"""A text or a flag counts on nothing: another one is enough."""
_FRAMEWORKS = ("numpy", "torch", "jax", "jaxlib")

_Home = tuple[CodeType, str]
"""A variable: the code that it belongs to, and its name; ``self.`` before an attribute's."""


@dataclass
class Use:
    """What the program had of one place when training began."""

    keys: tuple[Any, ...]
    is_value: bool
    """Whether it is a number, a text or a flag, which has no place."""
    held: int
    """References besides the container's."""
    homes: frozenset[_Home]
    """Variables of its name that were it, or had its value."""
    seen: list[Any]
    """Values that these have had."""

    def follow(self) -> None:
        """Look at the variables of a value, which ``evidence`` does for any place."""
        if self.is_value and self.homes and len(self.seen) < self._enough:
            news = [item for item in self._variables() if item not in self.seen]
            self.seen += news[:1]

    def evidence(self, values: Mapping[str, object], *, inline: bool) -> str:
        """Why the program does not use what is there, or nothing; KeyError, IndexError or TypeError
        if nothing is there. ``inline``: the program has no reference to ``values``."""
        if self.is_value:
            self.follow()
            return MOVED if len(self.seen) >= self._enough else ""
        if self.is_let_go(values) or self.others(values):
            return REBOUND
        out_of_reach = inline and not (self.held or _held(values, self.keys))
        return UNREACHABLE if out_of_reach and len(self.keys) == 1 else ""

    def is_let_go(self, values: Mapping[str, object]) -> bool:
        """Whether the program has no reference any more to what is there."""
        return bool(self.held) and not _held(values, self.keys)

    def others(self, values: Mapping[str, object]) -> list[Any]:
        """What the variables are now, where that is another object of the same type."""
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
    """How the program holds the place ``keys`` of ``values`` now."""
    held = _held(values, keys)  # before we hold it ourselves
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
    ``outlast.train``. To be asked in the constructor that ``train`` calls, once it keeps them."""
    return type(values) is dict and sys.getrefcount(values) <= _INLINE


def is_array(value: object) -> bool:
    """Whether this is a numpy array, a tensor or a JAX array: its values and nothing else."""
    kind = type(value)
    return (
        any(base.__module__.partition(".")[0] in _FRAMEWORKS for base in kind.__mro__)
        and all(hasattr(kind, name) for name in ("dtype", "shape", "ndim", "reshape"))
        and not is_number(value)
    )


def is_number(value: object) -> bool:
    """Whether this is a number, numpy's among them; a boolean is a flag."""
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
    """What is in ``values`` below ``keys``."""
    for key in keys:
        values = values[key]
    return values


def _held(values: Mapping[str, object], keys: tuple[Any, ...]) -> int:
    """References to a place besides its container's; 0 if a container makes its values."""
    container = at(values, keys[:-1])
    return _count(container, keys[-1]) - _ALONE if type(container) in (dict, list) else 0


def _count(container: Any, key: Any) -> int:
    return sys.getrefcount(container[key])


_ALONE = _count({"x": object()}, "x")


class _LikeTraining:
    """Holds and counts as the loop's class does."""

    def __init__(self, values: Mapping[str, object], *, name: str) -> None:
        self.values, self.name = values, name
        self.count = _as_is_inline(values)


def _as_train(values: Mapping[str, object]) -> int:
    return _LikeTraining(values, name="").count


def _as_is_inline(values: Mapping[str, object]) -> int:
    return sys.getrefcount(values)


_INLINE = _as_train({})


def names(keys: tuple[Any, ...]) -> set[str]:
    """What a variable of a place may be called: as the entry, or as the innermost key."""
    return {key for key in (keys[0], keys[-1]) if isinstance(key, str)}


def _variables(names: Collection[str]) -> Iterator[tuple[_Home, Any]]:
    """The variables of these names in the functions at work outside of the loop, and of the
    attributes of their ``self``; the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith("outlast.loop"):
            yield from _variables_in(frame, names)
        frame = frame.f_back


def _variables_in(frame: FrameType, names: Collection[str]) -> list[tuple[_Home, Any]]:
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a module: its variables themselves, no copy
        return [((code, name), frame.f_locals[name]) for name in names if name in frame.f_locals]
    held = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    if held.isdisjoint((*names, "self")):
        return []
    locals_ = frame.f_locals
    found = [((code, name), locals_[name]) for name in names if name in locals_]
    attributes = getattr(locals_.get("self"), "__dict__", {})
    found += [((code, f"self.{name}"), attributes[name]) for name in names if name in attributes]
    if type(locals_) is dict:  # a copy, which would keep alive what the program lets go of
        locals_.clear()
    return found
