"""Finds attributes that a program's own ``state_dict()`` leaves out.

An object with ``state_dict`` and ``load_state_dict`` defines its own saved state. If that lacks
something that training changes, saving and restoring raise no error, but a resumed run ends with
another result. So the loop remembers the attributes of such an object before the first step. If
attributes have changed since then and are not found in the saved state, the loop makes a stand-in
with the attributes from the start and restores the saved state into it. An attribute that then
differs from the live object's was left out.

A library's object in an attribute of a module cannot be saved either, so changes of its numbers
count too. Objects that only display, log or measure time are ignored, and so are readings of a
clock.
"""

import re
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.loop import classes, leaves, state, usage
from outlast.loop.classes import is_own
from outlast.loop.state import MISSING

_PLACES_MAX = 10_000
_DEPTH_MAX = 20
_LENGTH = " (its length)"
_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (dict, list, tuple, deque, set, frozenset)
_CODE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    weakref.ReferenceType,
)
_SHOWN_BY = (
    *("tqdm", "rich", "logging", "wandb", "mlflow", "tensorboard", "tensorboardX", "aim"),
    *("comet_ml", "clearml", "neptune", "matplotlib", "PIL", "IPython", "click", "argparse"),
    *("threading", "_thread", "io", "socket", "ssl", "concurrent", "multiprocessing", "queue"),
    *("subprocess", "asyncio", "selectors", "datetime", "time", "psutil", "weakref", "contextlib"),
)
"""Libraries whose objects change without affecting a result."""
LEFT_OUT = "which state_dict() or load_state_dict() leaves out"
LOOSE = "which is in an object that cannot be saved"
_CLOCKS = (time.time, time.monotonic, time.perf_counter, time.process_time)

Keep = Callable[[Any], bool]
"""Whether to skip an object, because it is checked or saved elsewhere."""


@dataclass
class _Owner:
    """One of the program's objects with a state_dict, and its contents at the start."""

    place: str
    kind: str
    """Why its contents may not be saved."""
    get: Callable[[], Any]
    start: dict[str, Any]
    """Texts of scalars, samples of arrays, sizes of containers, by place."""
    scalars: dict[str, Any]
    decided: set[str] = field(default_factory=set)
    reported: set[str] = field(default_factory=set)


class Omissions:
    """Attributes that the objects of one training leave out. For the thread of the loop, while no
    capture is alive."""

    def __init__(self) -> None:
        self._owners: list[_Owner] = []
        self._clocks = [clock() for clock in _CLOCKS]

    def first_step(self, owned: Mapping[str, Any], loose: Mapping[str, Any], skip: Keep) -> None:
        """Remember the objects at the start. ``owned``: objects with a state_dict by path;
        ``loose``: contents of modules' attributes that cannot be saved, by path. ``skip``: whether
        not to look into an object."""
        for path, value in owned.items():
            if _is_looked_at(value):
                self._add(path, LEFT_OUT, value, skip)
        for path, value in loose.items():
            if not (isinstance(value, _CODE) or skip(value)):
                self._add(path, LOOSE, value, skip)

    def _add(self, path: str, kind: str, value: Any, skip: Keep) -> None:
        look = _look(value, skip)
        try:
            get: Callable[[], Any] = weakref.ref(value)
        except TypeError:  # a container, or a class whose slots allow no weak reference
            if kind == LEFT_OUT:
                return
            get = lambda: value  # noqa: E731
        scalars = {at: item for at, item in look.held.items() if isinstance(item, _SCALARS)}
        self._owners.append(_Owner(place_of(path), kind, get, look.marks, scalars))

    def look(self, skip: Keep, saved: Callable[[], Collection[str]]) -> Iterator[tuple[str, str]]:
        """Places that have changed and were left out, each once, with the reason. ``saved`` returns
        all saved values, as in outlast.loop.leaves."""
        for owner in self._owners:
            value = owner.get()
            if value is None:
                continue
            now = _look(value, skip)
            changed = [
                at
                for at in {**now.marks, **owner.start}
                if now.marks.get(at) != owner.start.get(at) and at not in owner.decided
            ]
            owner.decided.update(changed)
            if changed:
                tried = owner.kind == LEFT_OUT
                texts = (leaves.of(value) if tried else None) or set()
                asked = [at for at in changed if not self._is_found(at, now, texts, saved)]
                if asked and tried:
                    asked = _left_out(value, owner, asked, skip)
                for place in self._new(owner, asked):
                    yield place, owner.kind

    def _new(self, owner: _Owner, places: list[str]) -> Iterator[str]:
        """The places not reported yet; a list as a whole, and so a dict that grows."""
        grown = [at.removesuffix(_LENGTH) for at in places if at.endswith(_LENGTH)]
        for at in places:
            shown = re.sub(r"\[\d+\].*", "", at.removesuffix(_LENGTH))
            shown = next((each for each in grown if shown.startswith(each)), shown)
            if not any(shown.startswith(each) for each in owner.reported):
                owner.reported.add(shown)
                yield f"{owner.place}{shown}"

    def _is_found(
        self, at: str, now: "_Look", texts: Collection[str], saved: Callable[[], Collection[str]]
    ) -> bool:
        """Whether a value is saved under its own name, or an array anywhere."""
        value, mark = now.held.get(at, MISSING), now.marks.get(at)
        if value is MISSING or mark is None:
            return False
        if isinstance(value, _SCALARS):
            name = re.split(r"[.\[]", at)[-1].strip("'\"]")
            return _leaf(name, value) in texts or self._is_clock(value)
        return mark in saved()

    def _is_clock(self, value: Any) -> bool:
        """Whether a number is a reading of a clock since the start."""
        return type(value) is float and any(
            began <= value <= clock() for began, clock in zip(self._clocks, _CLOCKS, strict=True)
        )


def place_of(path: str) -> str:
    """The short name of a place in the state: ``ema`` for ``state['ema']``."""
    return re.sub(r"^state\['([^']*)'\]", r"\1", path)


def _is_looked_at(value: Any) -> bool:
    cls = type(value)
    return is_own(cls) and not cls.__module__.startswith("outlast.loop")


def _is_inherited(cls: type) -> bool:
    """Whether a library's class defines the saved state, and so handles its own private
    attributes."""
    owner = next((base for base in cls.__mro__ if "load_state_dict" in vars(base)), cls)
    return not is_own(owner)


# The contents of an object


@dataclass
class _Look:
    marks: dict[str, Any] = field(default_factory=dict)
    held: dict[str, Any] = field(default_factory=dict)


def _look(value: Any, skip: Keep) -> _Look:
    found = _Look()
    inherited = _is_inherited(type(value))
    seen: dict[int, Any] = {id(value): value}
    for name, item in classes.attributes(value).items():
        if not (inherited and name.startswith("_")):
            _add(item, f".{name}", found, seen, skip, 0)
    return found


def _add(value: Any, at: str, found: _Look, seen: dict[int, Any], skip: Keep, depth: int) -> None:
    if len(found.marks) >= _PLACES_MAX or depth > _DEPTH_MAX or isinstance(value, _CODE):
        return
    if type(value) in _SCALARS:
        found.marks[at], found.held[at] = repr(value), value
        return
    if id(value) in seen:
        return
    seen[id(value)] = value
    if (mark := _mark_of_array(value)) is not None:
        found.marks[at], found.held[at] = mark, value
    elif not skip(value):
        for end, item in _inside(value):
            _add(item, f"{at}{end}", found, seen, skip, depth + 1)
        if isinstance(value, _CONTAINERS):
            at = f"{at}{_LENGTH}"
            found.marks[at], found.held[at] = str(len(value)), value


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in dict.items(value):
            yield f"[{str(key)[:80]!r}]", item
    elif isinstance(value, set | frozenset):
        if all(type(item) in _SCALARS for item in value):
            yield "", repr(sorted(map(repr, value)))
    elif isinstance(value, list | tuple | deque):
        for i, item in enumerate(value):
            yield f"[{i}]", item
    if not _only_shows(type(value)):
        for name, item in classes.attributes(value).items():
            yield f".{name}", item


def _only_shows(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in _SHOWN_BY or cls.__module__.startswith(
        ("torch.utils.", "outlast.loop")
    )


def _mark_of_array(value: Any) -> str | None:
    if not usage.is_array(value):
        return None
    found = leaves.of(value)
    return min(found) if found else None


def _leaf(name: str, value: Any) -> str:
    return min(leaves.of({name: value}) or {""})


# The trial


def _left_out(value: Any, owner: _Owner, asked: list[str], skip: Keep) -> list[str]:
    """The places among those ``asked`` at which a stand-in differs from the live object after the
    saved state was restored into it."""
    live = _look(value, skip).marks
    try:
        saved = _again(value.state_dict())
        other = _stand_in(value, set(asked), owner.scalars, skip)
        other.load_state_dict(saved)
    except Exception:  # foreign code, with an incomplete object
        return asked
    theirs = _look(other, skip).marks
    return [at for at in asked if theirs.get(at) != live.get(at)]


def _again(saved: Any) -> Any:
    """The value that a resumed program would get for a ``state_dict()``."""
    nodes, blobs = state.capture_all({"it": {"saved": saved}})
    return state.restore(MISSING, nodes["it"], "it", blobs)["saved"]


def _stand_in(value: Any, changed: set[str], scalars: Mapping[str, Any], skip: Keep) -> Any:
    """A copy of an object with the start's values at the changed places. Both share the objects to
    ``skip``."""
    made: dict[int, Any] = {}

    def copied(item: Any, at: str) -> Any:
        if type(item) in _SCALARS:
            return scalars.get(at) if at in changed else item
        if isinstance(item, _CODE):
            return item
        if id(item) in made:
            return made[id(item)]
        if usage.is_array(item):
            made[id(item)] = item * 0 if at in changed else item
        elif skip(item):
            return item
        elif isinstance(item, _CONTAINERS):
            made[id(item)] = contents(item, at)
        elif any(each.startswith(at) for each in changed) and hasattr(item, "__dict__"):
            made[id(item)] = whole(item, at)
        else:
            return item
        return made[id(item)]

    def contents(item: Any, at: str) -> Any:
        if f"{at}{_LENGTH}" in changed:
            # The start's contents are unknown.
            return type(item)() if len(item) and type(item) is not tuple else type(item)((None,))
        if isinstance(item, dict):
            news = {
                key: copied(dict.__getitem__(item, key), f"{at}[{str(key)[:80]!r}]") for key in item
            }
            return _like(item, news)
        if isinstance(item, set | frozenset):
            return _like(item, [])
        return _like(item, [copied(each, f"{at}[{i}]") for i, each in enumerate(item)])

    def whole(item: Any, at: str) -> Any:
        other = object.__new__(type(item))
        made[id(item)] = other
        for name, each in classes.attributes(item).items():
            here = f"{at}.{name}"
            if here in changed and type(each) in _SCALARS and here not in scalars:
                continue  # absent at the start
            object.__setattr__(other, name, copied(each, here))
        return other

    return whole(value, "")


def _like(item: Any, news: Any) -> Any:
    """A container of the same class with other contents."""
    cls: Any = type(item)
    if cls in (dict, list, tuple, set, frozenset):
        return cls(news)
    if cls is deque:
        return deque(news, item.maxlen)
    if issubclass(cls, dict):
        other: Any = cls.__new__(cls)
        for key, value in news.items():
            cls.__setitem__(other, key, value)
        if hasattr(item, "default_factory"):
            other.default_factory = item.default_factory
        return other
    if hasattr(cls, "_fields"):
        return tuple.__new__(cls, list(news))
    other = cls.__new__(cls)
    other.extend(news)
    return other
