"""Walks over the objects that a program holds in its variables, besides the state of its training.

The walk starts from the variables of the program's modules and of its running functions, and
continues into containers, closures, iterators and the attributes of objects of the program's own
classes. It looks into objects of only a few libraries, those that hold random generators for their
users. It runs no code of an object.
"""

import contextlib
import functools
import gc
import inspect
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from outlast.loop import classes, usage
from outlast.loop.blobs import MISSING
from outlast.loop.classes import is_installed, is_own

TRAINERS = "outlast.trainers."
"""Prefix of modules that count as the program's, even if they are installed."""
OBJECTS_MAX = 20_000
"""The most objects to visit in one walk."""
_DEPTH_MAX = 12
_ITEMS_MAX = 64
"""The most items of one container to visit."""
_LIBRARIES = ("torch", "torchvision", "torchdata", "sklearn", "gymnasium", "gym", "datasets")
"""Libraries whose objects draw random numbers for the program from generators that they hold."""
_OF_MODULES = ("_modules", "_parameters", "_buffers")
"""Attributes of a torch module that are not visited one by one."""
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, types.ModuleType)
_ITERATORS = (
    zip,
    map,
    filter,
    enumerate,
    reversed,
    *(kind for kind in vars(__import__("itertools")).values() if isinstance(kind, type)),
    type(iter([])),
    type(iter(())),
    type(iter({}.values())),
    type(iter({}.items())),
)


@dataclass(frozen=True)
class Place:
    """A variable of the program, or a place reached from one."""

    scope: CodeType | str
    """The variable's function, or the name of its module."""
    name: str
    way: tuple[tuple[int, str], ...] = ()
    """Index and text of each step from the variable, such as ``.sampler`` or ``[3]``."""

    def __str__(self) -> str:
        return self.name + "".join(end for _, end in self.way)

    def below(self, number: int, end: str) -> "Place":
        return Place(self.scope, self.name, (*self.way, (number, end)))

    def now(self) -> Any:
        """The object at this place now; MISSING if there is none."""
        value = _variable(self.scope, self.name)
        with contextlib.suppress(Exception):  # objects that cannot be inspected are skipped
            for number, end in self.way:
                items = [*_inside(value)]
                if not (number < len(items) and items[number][0] == end):
                    number = [each for each, _ in items].index(end)
                value = items[number][1]
            return value
        return MISSING


Found = tuple[Place, Any]


def names() -> set[str]:
    """The names of the program's variables."""
    return {place.name for place, _ in _variables()}


def walk(values: Mapping[str, object], iterator: object = None) -> Iterator[tuple[str, Any]]:
    """The objects that the program holds, with their places: first those in the state ``values``,
    then those in variables. Other iterators that contain ``iterator``, such as a ``zip``, are
    visited too.

    A place looks like ``loader.sampler.generator``; each object comes once.
    """
    roots = [*_of_state(values), *_variables(), *_beside(iterator)]
    for place, value, is_new in _places(values, roots):
        if is_new:
            yield str(place), value


def places_of(values: Mapping[str, object], wanted: Mapping[int, object]) -> Iterator[Found]:
    """Each place where the program itself, and not a container of the state ``values``, refers to
    one of the objects ``wanted``, which are given by their ids."""
    kept = [item for _, item, is_new in _places(values, _of_state(values)) if is_new]
    containers = [item for item in kept if isinstance(item, _CONTAINERS)]
    for place, value, _ in _places(values, _variables(), containers):
        if wanted.get(id(value), MISSING) is value:
            yield place, value


def is_in(values: Mapping[str, object], wanted: object) -> bool:
    """Whether the state ``values`` holds an object at any visited place."""
    return any(value is wanted for _, value, _ in _places(values, _of_state(values)))


def _of_state(values: Mapping[str, object]) -> Iterator[Found]:
    yield from ((Place("", name), item) for name, item in values.items())


def _places(
    values: Mapping[str, object], roots: Iterable[Found], closed: Iterable[Any] = ()
) -> Iterator[tuple[Place, Any, bool]]:
    """All places, nearest first, with their objects and whether the object is new and may contain
    others. Objects in ``closed`` are not entered."""
    found = deque((place, item) for place, item in roots)
    seen: dict[int, Any] = {id(item): item for item in (values, *closed)}
    while found and len(seen) < OBJECTS_MAX:
        place, value = found.popleft()
        # By its type, because isinstance would run foreign code of a proxy.
        is_new = not (issubclass(type(value), _PLAIN) or id(value) in seen or usage.is_array(value))
        yield place, value, is_new
        if not is_new:
            continue
        seen[id(value)] = value
        if len(place.way) < _DEPTH_MAX:
            with contextlib.suppress(Exception):  # objects that cannot be inspected are skipped
                found.extend(
                    [(place.below(i, end), item) for i, (end, item) in enumerate(_inside(value))]
                )


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in [*dict.keys(value)][:_ITEMS_MAX]:
            yield f"[{str(key)[:80]!r}]", dict.__getitem__(value, key)
    elif isinstance(value, _CONTAINERS):
        kind: Any = next(kind for kind in _CONTAINERS if isinstance(value, kind))
        for i, item in zip(range(_ITEMS_MAX), kind.__iter__(value), strict=False):
            yield f"[{i}]", item
    elif isinstance(value, types.FunctionType):
        yield from _inside_function(value)
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield from (("", item) for item in (value.func, *value.args))
        yield from ((f".{name}", item) for name, item in value.keywords.items())
    elif isinstance(value, types.GeneratorType):
        if value.gi_frame is not None and _is_programs(value.gi_frame):
            yield from ((f".{name}", item) for name, item in _locals(value.gi_frame))
    elif isinstance(value, _ITERATORS):
        yield from (("", item) for item in gc.get_referents(value))
    elif isinstance(value, type):
        if is_own(value) and _is_programs_module(value.__module__):
            yield from ((f".{name}", item) for name, item in vars(value).items())
    elif _is_looked_into(type(value)):
        for name, item in classes.attributes(value).items():
            if name not in _OF_MODULES:
                yield f".{name}", item


def _inside_function(value: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if not _is_programs_module(value.__module__):
        return
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # an unassigned variable
            continue
    yield from (("", item) for item in value.__defaults__ or ())
    yield from ((f".{name}", item) for name, item in (value.__kwdefaults__ or {}).items())


def _is_looked_into(cls: type) -> bool:
    module = str(cls.__module__)
    if is_own(cls):
        return _is_programs_module(module)
    return module.partition(".")[0] in _LIBRARIES and not _is_saved_whole(cls)


def _is_saved_whole(cls: type) -> bool:
    """Whether an object of a library is saved as a whole, so that its contents are not visited."""
    return any(
        base.__module__.startswith(("torch.nn.", "torch.optim.")) for base in cls.__mro__
    ) and not is_own(cls)


# Variables


def _variables() -> Iterator[Found]:
    for frame in _frames():
        yield from ((Place(frame.f_code, name), item) for name, item in _locals(frame))
    modules = [m for name, m in sys.modules.copy().items() if _is_programs_module(name)]
    main = sys.modules.get("__main__")
    for module in sorted(modules, key=lambda module: module is not main):
        for name, item in [*vars(module).items()]:
            if not name.startswith("__"):
                yield Place(module.__name__, name), item


def _variable(scope: CodeType | str, name: str) -> Any:
    if isinstance(scope, str):
        return getattr(sys.modules.get(scope), "__dict__", {}).get(name, MISSING)
    frame = next((frame for frame in _frames() if frame.f_code is scope), None)
    return MISSING if frame is None else dict(_locals(frame)).get(name, MISSING)


def _frames() -> Iterator[FrameType]:
    """The frames of the program's running functions and modules, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_programs(frame):
            yield frame
        frame = frame.f_back


def _locals(frame: FrameType) -> list[tuple[str, Any]]:
    held = frame.f_locals
    found = [(name, item) for name, item in held.items() if not name.startswith("__")]
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(held) is dict:
        held.clear()  # a copy, which would keep the program's objects alive
    return found


def _beside(iterator: object) -> Iterator[Found]:
    """Iterators such as ``zip`` that contain an iterator and that no variable refers to."""
    if iterator is None:
        return
    for pair in gc.get_referrers(iterator):
        if type(pair) is not tuple:
            continue
        for each in gc.get_referrers(pair):
            if isinstance(each, zip | map):
                yield Place("", type(each).__name__), each


def _is_programs(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    if name.startswith(TRAINERS):
        return True
    return _is_programs_module(name) and not is_installed(frame.f_code.co_filename)


@functools.lru_cache(4096)
def _is_programs_module(name: str) -> bool:
    """Whether a module is the program's: not installed, and not a part of Outlast other than a
    trainer."""
    if name.partition(".")[0] == "outlast":
        return name.startswith(TRAINERS)
    module = sys.modules.get(name)
    home = getattr(module, "__file__", None)
    if name == "__main__":
        return home is None or not is_installed(home)
    return isinstance(home, str) and not is_installed(home)
