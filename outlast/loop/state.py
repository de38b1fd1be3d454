"""The state of a training as plain data, and back into the living objects.

``capture`` turns an object into a *node*, a JSON value in which arrays are references into a list
of raw blobs; ``restore`` puts a node back, in place wherever the target can be changed in place,
so that references between objects (an optimiser's to its parameters) survive. No pickle: only
what is listed here and in the adapters can be saved, and everything else is refused by name.

Nodes: null, booleans, integers, finite floats, strings, lists and objects with plain keys are
themselves; anything else is an object with one ``$`` key: ``$float``, ``$bytes``, ``$tuple``,
``$dict``, ``$same`` (an object met before, by its path), ``$array`` and ``$scalar`` (numpy),
``$tensor`` (torch), ``$object`` (something with a state of its own, named by its framework).

One object in two places is saved once and comes back as one object. Arrays are one where they
are the same memory seen in the same way; arrays that overlap in any other way are refused.
"""

import base64
import bisect
import importlib
import math
import random
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from outlast.loop.errors import DoesNotFit, StateError

Node = Any  # a JSON value; the type checker has no recursive alias worth its reading

INLINE_BYTES = 256
"""``bytes`` longer than this stand among the arrays and not in the JSON."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""The target of a restore where there is nothing to restore into."""


@dataclass(frozen=True, slots=True)
class Blob:
    """The raw bytes of one array, in the order in which they lie in memory."""

    dtype: str
    """As the framework that wrote it names it: numpy's ``<f4``, torch's ``bfloat16``."""
    shape: tuple[int, ...]
    source: memoryview | bytes | Callable[[], memoryview]
    """The bytes, or what fetches them from a device when they are written."""
    nbytes: int
    order: tuple[int, ...] | None = None
    """Dimensions from the outermost in memory to the innermost; None for C order."""

    @property
    def data(self) -> memoryview | bytes:
        """The bytes themselves, in this machine's memory."""
        return self.source() if callable(self.source) else self.source


@dataclass(frozen=True, slots=True)
class Memory:
    """Where an array lies: what tells one array from another."""

    device: str
    start: int
    end: int
    layout: tuple[Any, ...]
    """dtype, shape and strides: equal memory of equal layout is one array."""


class Blobs:
    """The arrays and objects that one capture has met, or that one restore has put back."""

    def __init__(self, items: list[Blob] | None = None) -> None:
        self.items: list[Blob] = [] if items is None else items
        self.adapters: list[Adapter] = _adapters()
        self.keep: list[object] = []
        """An id or an address is unique only while its owner lives."""
        # while capturing
        self.seen: dict[int, str] = {}
        self.open: set[int] = set()
        self._index: dict[Memory, int] = {}
        self._extents: list[tuple[str, int, int, str]] = []
        # while restoring
        self.places: dict[str, Any] = {}
        """Restored objects by their path, for ``$same``."""
        self.restored: dict[int, Any] = {}
        """Restored arrays by their blob."""
        self._taken: set[int] = set()

    def add(self, owner: object, memory: Memory | None, path: str, make: Callable[[], Blob]) -> int:
        """Index of the blob of the array at ``memory`` (None: of no other array's)."""
        if memory is not None:
            index = self._index.get(memory)
            if index is not None:
                return index
            self._refuse_overlap(memory, path)
            self._index[memory] = len(self.items)
        self.items.append(make())
        self.keep.append(owner)
        return len(self.items) - 1

    def take(self, target: Any) -> Any:
        """``target``, or MISSING where something else was restored into it already."""
        if target is MISSING or id(target) in self._taken:
            return MISSING
        self._taken.add(id(target))
        self.keep.append(target)
        return target

    def _refuse_overlap(self, memory: Memory, path: str) -> None:
        extent = (memory.device, memory.start, memory.end, path)
        at = bisect.bisect(self._extents, extent)
        for device, start, end, other in self._extents[max(at - 1, 0) : at + 1]:
            if device == memory.device and start < memory.end and memory.start < end:
                raise StateError(
                    f"{path} shares a part of its memory with {other}, which cannot be saved as "
                    "two; keep only the array that both look into, or a copy of one"
                )
        self._extents.insert(at, extent)


class Adapter(Protocol):
    """How one framework's objects are captured and restored (a module of outlast.loop.adapters)."""

    def capture(self, value: object, path: str, blobs: Blobs) -> Node:
        """A node, or MISSING if the object is not this framework's."""

    def restore(self, target: Any, node: Node, path: str, blobs: Blobs) -> Any:
        """The restored object; DoesNotFit if the target is another kind of object."""


# An object can only be a framework's if that framework is imported already. The order matters:
# with its backend torch, Keras' layers are torch modules too.
_FRAMEWORKS = ("numpy", "keras", "xgboost", "torch", "sklearn")
_ADAPTERS = {name: f"outlast.loop.adapters.{name}" for name in _FRAMEWORKS}
_LEAVES = {"$array": "numpy", "$scalar": "numpy", "$tensor": "torch"}
_DICTS: dict[str, type[dict]] = {"OrderedDict": OrderedDict, "Counter": Counter}


def _adapters() -> list[Adapter]:
    return [
        importlib.import_module(home)  # type: ignore[misc]
        for framework, home in _ADAPTERS.items()
        if framework in sys.modules
    ]


def check_top(state: Mapping[str, object]) -> None:
    """Refuse what could be saved but never restored: values that cannot be changed in place."""
    if not state:
        raise StateError("state is empty: name the objects to save, such as {'model': model}")
    for name, value in state.items():
        if not isinstance(name, str) or not name:
            raise StateError(f"state key {name!r}: must be a non-empty string")
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | tuple):
            raise StateError(
                f"state[{name!r}] is {value!r}, which cannot be restored in place; "
                f"put it into a dict, such as state={{{name!r}: {{'value': {value!r}}}}}"
            )


def capture_all(state: Mapping[str, object]) -> tuple[dict[str, Node], Blobs]:
    """The nodes of every named object, and their arrays.

    The arrays are not copied: they must not change before the blobs are written.
    """
    blobs = Blobs()
    return {name: capture(value, f"state[{name!r}]", blobs) for name, value in state.items()}, blobs


def restore_all(state: Mapping[str, object], nodes: Mapping[str, Node], blobs: Blobs) -> None:
    """Put every node into the object of its name; DoesNotFit if the names differ."""
    if missing := sorted(set(nodes) - set(state)):
        raise DoesNotFit(
            f"the checkpoint holds {', '.join(missing)}, which this program's state does not have"
        )
    if missing := sorted(set(state) - set(nodes)):
        raise DoesNotFit(
            f"state has {', '.join(missing)}, which the checkpoint does not hold; "
            "a changed program is a new run"
        )
    restore_named(state, nodes, blobs, nodes)


def restore_named(
    state: Mapping[str, object], nodes: Mapping[str, Node], blobs: Blobs, names: Collection[str]
) -> None:
    """Put the nodes of these names into the objects; DoesNotFit if one is not in the checkpoint."""
    if missing := sorted(set(names) - set(nodes)):
        raise DoesNotFit(
            f"state has {', '.join(missing)}, which the checkpoint does not hold; it holds "
            f"{', '.join(sorted(nodes))}"
        )
    for name, node in nodes.items():  # the checkpoint's order: $same looks back
        if name not in names:
            continue
        path, target = f"state[{name!r}]", state[name]
        if restore(target, node, path, blobs) is not target:
            raise DoesNotFit(
                f"{path} is {kind_of(target)}: the checkpoint holds something else, or one object "
                "under several names that are several objects here, or the other way round"
            )


def capture(value: object, path: str, blobs: Blobs) -> Node:
    """The node of one value; StateError naming ``path`` if it cannot be saved."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}  # type: ignore[arg-type]
    if kind is bytes:
        return _capture_bytes(value, path, blobs)  # type: ignore[arg-type]
    if kind is tuple:
        return {"$tuple": [capture(item, f"{path}[{i}]", blobs) for i, item in enumerate(value)]}  # type: ignore[arg-type]
    me = id(value)
    if me in blobs.seen:
        if me in blobs.open:
            raise StateError(f"{path} is {blobs.seen[me]} again, which contains it; cut the circle")
        return {"$same": blobs.seen[me]}
    blobs.seen[me] = path
    blobs.open.add(me)
    node = _capture_object(value, path, blobs)
    blobs.open.discard(me)
    if isinstance(node, dict) and not _LEAVES.keys().isdisjoint(node):
        del blobs.seen[me]  # arrays are told apart by their memory
    else:
        blobs.keep.append(value)
    return node


def _capture_object(value: Any, path: str, blobs: Blobs) -> Node:
    if type(value) is list:
        return [capture(item, f"{path}[{i}]", blobs) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return _capture_dict(value, path, blobs)
    for adapter in blobs.adapters:
        node = adapter.capture(value, path, blobs)
        if node is not MISSING:
            return node
    if _is_python_random(value):
        return {"$object": "random", "state": capture(value.getstate(), path, blobs)}
    if not isinstance(value, type) and _has(value, "state_dict", "load_state_dict"):
        inner = foreign(f"{path}.state_dict()", value.state_dict)
        return {"$object": "state_dict", "state": capture(inner, f"{path}.state_dict()", blobs)}
    raise StateError(
        f"{path} is {kind_of(value)}, which cannot be saved; give it state_dict() and "
        "load_state_dict(), or put what matters of it into a dict of numbers, strings and arrays"
    )


def foreign(what: str, call: Callable[..., Any], *args: Any, fits: bool = False) -> Any:
    """``call(*args)``, whose failure is the user's: StateError, or DoesNotFit for ``fits``."""
    try:
        return call(*args)
    except StateError:
        raise
    except Exception as error:  # whatever foreign code raises means the same
        kind = DoesNotFit if fits else StateError
        raise kind(f"{what}: {error or type(error).__name__}") from error


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    """Put ``node`` into ``target`` (or MISSING) and return what stands there now."""
    if isinstance(node, list):
        value = _restore_list(blobs.take(target), node, path, blobs)
    elif not isinstance(node, dict):
        return node
    elif "$float" in node:
        return float(node["$float"])
    elif "$bytes" in node:
        return _restore_bytes(node["$bytes"], blobs)
    elif "$tuple" in node:
        olds = target if isinstance(target, tuple) and len(target) == len(node["$tuple"]) else ()
        return tuple(
            restore(olds[i] if olds else MISSING, item, f"{path}[{i}]", blobs)
            for i, item in enumerate(node["$tuple"])
        )
    elif "$same" in node:
        if node["$same"] not in blobs.places:
            raise DoesNotFit(f"{path}: the checkpoint has it from {node['$same']}, which it lacks")
        return blobs.places[node["$same"]]
    elif leaf := next((key for key in _LEAVES if key in node), None):
        return _adapter(_LEAVES[leaf], path).restore(target, node, path, blobs)
    elif "$object" in node:
        value = _restore_object(blobs.take(target), node, path, blobs)
    else:
        value = _restore_dict(blobs.take(target), node, path, blobs)
    blobs.places[path] = value
    return value


def _capture_bytes(value: bytes, path: str, blobs: Blobs) -> Node:
    if len(value) <= INLINE_BYTES:
        return {"$bytes": base64.b64encode(value).decode()}
    size = len(value)
    index = blobs.add(value, None, path, lambda: Blob("bytes", (size,), value, size))
    return {"$bytes": {"$blob": index}}


def _restore_bytes(node: Node, blobs: Blobs) -> bytes:
    if isinstance(node, str):
        return base64.b64decode(node)
    return bytes(blobs.items[node["$blob"]].data)


def _capture_dict(value: dict, path: str, blobs: Blobs) -> Node:
    kind = type(value)
    if kind is dict and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: capture(item, f"{path}[{key!r}]", blobs) for key, item in value.items()}
    if kind not in (dict, defaultdict, *_DICTS.values()):
        raise StateError(
            f"{path} is {kind_of(value)}, a dict of its own kind, which cannot be saved; "
            "give it state_dict() and load_state_dict(), or use a plain dict"
        )
    pairs = []
    for key, item in value.items():
        if type(key) not in (str, int, float, bool, tuple, type(None)):
            raise StateError(f"{path}: key {key!r} is {kind_of(key)}, must be a string or a number")
        pairs.append([capture(key, path, blobs), capture(item, f"{path}[{key!r}]", blobs)])
    return {"$dict": pairs} if kind is dict else {"$dict": pairs, "type": kind.__name__}


def _restore_dict(target: Any, node: dict, path: str, blobs: Blobs) -> Any:
    cls: Any = dict
    if "$dict" in node:
        pairs = [(restore(MISSING, key, path, blobs), item) for key, item in node["$dict"]]
        name = node.get("type", "dict")
        cls = _DICTS.get(name, dict)
        if name == "defaultdict":
            if type(target) is not defaultdict:
                raise DoesNotFit(
                    f"{path} is {kind_of(target)}: the checkpoint holds a defaultdict, "
                    "whose default is known to the program only"
                )
            cls = defaultdict
    else:
        pairs = list(node.items())
    if target is not MISSING and type(target) is not cls:
        if target is None or isinstance(target, bool | int | float | str | tuple):
            target = MISSING
        else:
            raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a {cls.__name__}")
    olds = {} if target is MISSING else dict(target)
    news = {
        key: restore(olds.get(key, MISSING), item, f"{path}[{key!r}]", blobs) for key, item in pairs
    }
    if target is MISSING:
        return news if cls is dict else cls(news)
    target.clear()  # not update alone: the order of keys is part of the state
    dict.update(target, news)
    return target


def _restore_list(target: Any, node: list, path: str, blobs: Blobs) -> Any:
    olds = target if isinstance(target, list) else []
    news = [
        restore(olds[i] if i < len(olds) else MISSING, item, f"{path}[{i}]", blobs)
        for i, item in enumerate(node)
    ]
    if not isinstance(target, list):
        return news
    target[:] = news
    return target


def _restore_object(target: Any, node: dict, path: str, blobs: Blobs) -> Any:
    kind = node["$object"]
    if kind not in ("random", "state_dict"):
        return _adapter(kind.partition(".")[0], path).restore(target, node, path, blobs)
    if kind == "random":
        value = restore(MISSING, node["state"], path, blobs)
        if not _is_python_random(target):
            raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a random.Random")
        target.setstate(value)
        return target
    if not _has(target, "state_dict", "load_state_dict"):
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a state_dict")
    value = restore(MISSING, node["state"], f"{path}.state_dict()", blobs)
    foreign(f"{path}.load_state_dict", target.load_state_dict, value, fits=True)
    return target


def _adapter(framework: str, path: str) -> Adapter:
    """The adapter that a node names; its framework is imported if it is not yet."""
    if framework not in _ADAPTERS:
        raise DoesNotFit(f"{path}: the checkpoint holds something of {framework}, unknown here")
    try:
        return importlib.import_module(_ADAPTERS[framework])  # type: ignore[return-value]
    except ImportError as error:
        raise DoesNotFit(f"{path}: the checkpoint needs {framework} ({error})") from None


def _is_python_random(value: object) -> bool:
    return isinstance(value, random.Random) or value is random


def _has(value: object, *names: str) -> bool:
    return all(callable(getattr(value, name, None)) for name in names)


def kind_of(value: object) -> str:
    """How a sentence names the kind of a value."""
    if value is MISSING:
        return "absent"
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"
