"""What a program holds in its variables, beside what is in the state of its training.

The functions at work outside of the loop have variables, and so have the program's modules; what
stands in them is looked at through containers, closures, iterators and the attributes of objects of
the program's own classes. Inside a library's object only a few libraries are looked into, whose
objects hold random generators for their users. No code of an object runs.
"""

import contextlib
import functools
import gc
import inspect
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from outlast.loop import classes, usage
from outlast.loop.classes import is_installed, is_own

OBJECTS_MAX = 20_000
"""Objects that are looked at in one walk; more are not."""
_DEPTH_MAX = 12
_ITEMS_MAX = 64
"""Items of one container that are looked at."""
_LIBRARIES = ("torch", "torchvision", "torchdata", "sklearn", "gymnasium", "gym", "datasets")
"""Libraries whose objects draw random numbers for the program from generators that they hold."""
_OF_MODULES = ("_modules", "_parameters", "_buffers")
"""Of a torch module: what is looked at as a whole."""
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


def names() -> set[str]:
    """What the program's variables are called."""
    return {name for name, _ in _variables()}


def walk(values: Mapping[str, object], iterator: object = None) -> Iterator[tuple[str, Any]]:
    """What the program holds, with the place of each: first what the state ``values`` names, then
    variables. ``iterator`` is looked for inside of others, such as a ``zip`` with its neighbours.

    Places are as in ``loader.sampler.generator``; each object comes once.
    """
    found = deque(((name, item, 0) for name, item in values.items()))
    found.extend((name, item, 0) for name, item in _variables())
    found.extend((name, item, 0) for name, item in _beside(iterator))
    seen: dict[int, Any] = {id(values): values}
    while found and len(seen) < OBJECTS_MAX:
        place, value, depth = found.popleft()
        # By its type: a proxy may run foreign code to say what it is.
        if issubclass(type(value), _PLAIN) or id(value) in seen or usage.is_array(value):
            continue
        seen[id(value)] = value
        yield place, value
        if depth < _DEPTH_MAX:
            with contextlib.suppress(Exception):  # what cannot be looked into is left alone
                found.extend([(f"{place}{end}", item, depth + 1) for end, item in _inside(value)])


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
        except ValueError:  # a variable that nothing was put into
            continue
    yield from (("", item) for item in value.__defaults__ or ())
    yield from ((f".{name}", item) for name, item in (value.__kwdefaults__ or {}).items())


def _is_looked_into(cls: type) -> bool:
    module = str(cls.__module__)
    if is_own(cls):
        return _is_programs_module(module)
    return module.partition(".")[0] in _LIBRARIES and not _is_saved_whole(cls)


def _is_saved_whole(cls: type) -> bool:
    """Whether what an object holds is its own, and it is looked at as one."""
    return any(
        base.__module__.startswith(("torch.nn.", "torch.optim.")) for base in cls.__mro__
    ) and not is_own(cls)


# Variables


def _variables() -> Iterator[tuple[str, Any]]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_programs(frame):
            yield from _locals(frame)
        frame = frame.f_back
    modules = [m for name, m in sys.modules.copy().items() if _is_programs_module(name)]
    main = sys.modules.get("__main__")
    for module in sorted(modules, key=lambda module: module is not main):
        for name, item in [*vars(module).items()]:
            if not name.startswith("__"):
                yield name, item


def _locals(frame: FrameType) -> list[tuple[str, Any]]:
    held = frame.f_locals
    found = [(name, item) for name, item in held.items() if not name.startswith("__")]
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(held) is dict:
        held.clear()  # a copy, which would keep alive what the program lets go of
    return found


def _beside(iterator: object) -> Iterator[tuple[str, Any]]:
    """What is taken from together with an iterator, as by ``zip``: no variable names it."""
    if iterator is None:
        return
    for pair in gc.get_referrers(iterator):
        if type(pair) is not tuple:
            continue
        for each in gc.get_referrers(pair):
            if isinstance(each, zip | map):
                yield type(each).__name__, each


def _is_programs(frame: FrameType) -> bool:
    return _is_programs_module(str(frame.f_globals.get("__name__", ""))) and not is_installed(
        frame.f_code.co_filename
    )


@functools.lru_cache(4096)
def _is_programs_module(name: str) -> bool:
    """Whether a module is the program's: no installed one, and no part of Outlast but a trainer."""
    if name.partition(".")[0] == "outlast":
        return name.startswith("outlast.trainers.")
    module = sys.modules.get(name)
    home = getattr(module, "__file__", None)
    if name == "__main__":
        return home is None or not is_installed(home)
    return isinstance(home, str) and not is_installed(home)
