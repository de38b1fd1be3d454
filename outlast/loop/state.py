"""The state of a training as plain data, and back into the living objects.

``capture`` turns an object into a *node*, a JSON value in which arrays are references into a list
of raw blobs; ``restore`` puts a node back, in place wherever the target can be changed in place,
so that references between objects (an optimiser's to its parameters) survive. No pickle: only
what is listed here and in the adapters can be saved, and everything else is refused by name.

Nodes: null, booleans, integers, finite floats, strings, lists and objects with plain keys are
themselves; anything else is an object with one ``$`` key: ``$float``, ``$bytes``, ``$tuple``,
``$dict``, ``$array`` and ``$scalar`` (numpy), ``$object`` (something with a state of its own).
"""

import base64
import importlib
import math
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from outlast.loop.errors import DoesNotFit, StateError

Node = Any  # a JSON value; the type checker has no recursive alias worth its reading


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""The target of a restore where there is nothing to restore into."""


class Blob(NamedTuple):
    """The raw bytes of one array in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview | bytes


@dataclass
class Blobs:
    """Arrays met by a capture; an array met twice is stored once and restored as one."""

    items: list[Blob] = field(default_factory=list)
    _seen: dict[int, int] = field(default_factory=dict)
    _alive: list[object] = field(default_factory=list)  # an id is unique only while it lives
    _restored: dict[int, Any] = field(default_factory=dict)

    def add(self, owner: object, make: Callable[[], Blob]) -> int:
        """Index of ``owner``'s blob."""
        index = self._seen.get(id(owner))
        if index is None:
            index = len(self.items)
            self.items.append(make())
            self._seen[id(owner)] = index
            self._alive.append(owner)
        return index

    def once(self, index: int, make: Callable[[Blob], Any]) -> Any:
        """The one new object that all references to ``index`` share."""
        if index not in self._restored:
            self._restored[index] = make(self.items[index])
        return self._restored[index]


class Adapter(Protocol):
    """How one framework's objects are captured and restored (a module of outlast.loop.adapters)."""

    def capture(self, value: object, path: str, blobs: Blobs) -> Node:
        """A node, or MISSING if the object is not this framework's."""

    def restore(self, target: Any, node: Node, path: str, blobs: Blobs) -> Any:
        """The restored object, or MISSING if the node is not this framework's."""


# An object can only be a framework's if that framework is imported already.
_ADAPTERS = {
    "numpy": "outlast.loop.adapters.numpy",
    "sklearn": "outlast.loop.adapters.sklearn",
}


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
    """The nodes of every named object, and their arrays."""
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
    for name, target in state.items():
        path = f"state[{name!r}]"
        if restore(target, nodes[name], path, blobs) is not target:
            raise DoesNotFit(f"{path} is {_kind(target)}: the checkpoint holds something else")


def capture(value: object, path: str, blobs: Blobs) -> Node:
    """The node of one value; StateError naming ``path`` if it cannot be saved."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}  # type: ignore[arg-type]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if kind is list:
        return [capture(item, f"{path}[{i}]", blobs) for i, item in enumerate(value)]  # type: ignore[arg-type]
    if kind is tuple:
        return {"$tuple": [capture(item, f"{path}[{i}]", blobs) for i, item in enumerate(value)]}  # type: ignore[arg-type]
    if isinstance(value, dict):
        return _capture_dict(value, path, blobs)
    for adapter in _adapters():
        node = adapter.capture(value, path, blobs)
        if node is not MISSING:
            return node
    if _is_python_random(value):
        return _object("random", capture(value.getstate(), path, blobs))  # type: ignore[union-attr]
    if _has(value, "state_dict", "load_state_dict"):
        return _object("state_dict", capture(value.state_dict(), path, blobs))  # type: ignore[union-attr]
    raise StateError(
        f"{path} is {_kind(value)}, which cannot be saved; give it state_dict() and "
        "load_state_dict(), or put what matters of it into a dict of numbers, strings and arrays"
    )


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    """Put ``node`` into ``target`` (or MISSING) and return what stands there now."""
    if isinstance(node, list):
        return _restore_list(target, node, path, blobs)
    if not isinstance(node, dict):
        return node
    if "$float" in node:
        return float(node["$float"])
    if "$bytes" in node:
        return base64.b64decode(node["$bytes"])
    if "$tuple" in node:
        olds = target if isinstance(target, tuple) and len(target) == len(node["$tuple"]) else ()
        return tuple(
            restore(olds[i] if olds else MISSING, item, f"{path}[{i}]", blobs)
            for i, item in enumerate(node["$tuple"])
        )
    if "$object" in node and node["$object"] in ("random", "state_dict"):
        return _restore_object(target, node, path, blobs)
    for adapter in _adapters():
        value = adapter.restore(target, node, path, blobs)
        if value is not MISSING:
            return value
    if any(key.startswith("$") and key != "$dict" for key in node):
        raise DoesNotFit(
            f"{path}: the checkpoint holds {', '.join(node)}, which needs a framework that this "
            "program has not imported"
        )
    return _restore_dict(target, node, path, blobs)


def difference(
    before: tuple[Mapping[str, Node], Blobs], after: tuple[Mapping[str, Node], Blobs]
) -> str | None:
    """Path of the first place where two captures differ, or None."""
    for name, node in before[0].items():
        found = _difference(node, after[0].get(name, MISSING), before[1], after[1], f"[{name!r}]")
        if found:
            return f"state{found}"
    return None


def _difference(one: Node, two: Node, ones: Blobs, twos: Blobs, path: str) -> str | None:
    if isinstance(one, dict) and "$array" in one and isinstance(two, dict) and "$array" in two:
        a, b = ones.items[one["$array"]], twos.items[two["$array"]]
        same = (a.dtype, tuple(a.shape)) == (b.dtype, tuple(b.shape)) and bytes(a.data) == bytes(
            b.data
        )
        return None if same else path
    if isinstance(one, dict) and isinstance(two, dict) and list(one) == list(two):
        pairs = [(f"[{key!r}]", one[key], two[key]) for key in one]
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = [(f"[{i}]", a, b) for i, (a, b) in enumerate(zip(one, two, strict=True))]
    else:
        # repr, not ==: 1, 1.0 and True are equal, and 0.0 equals -0.0
        return None if repr(one) == repr(two) else path
    inside = isinstance(one, dict) and any(key.startswith("$") for key in one)
    for suffix, a, b in pairs:
        step = "" if inside else suffix  # people know the object, not the parts of its node
        if found := _difference(a, b, ones, twos, path + step):
            return found
    return None


def _capture_dict(value: dict, path: str, blobs: Blobs) -> Node:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: capture(item, f"{path}[{key!r}]", blobs) for key, item in value.items()}
    pairs = []
    for key, item in value.items():
        if not isinstance(key, str | int | float | bool | tuple | None):
            raise StateError(f"{path}: key {key!r} is {_kind(key)}, must be a string or a number")
        pairs.append([capture(key, path, blobs), capture(item, f"{path}[{key!r}]", blobs)])
    return {"$dict": pairs}


def _restore_dict(target: Any, node: dict, path: str, blobs: Blobs) -> Any:
    if "$dict" in node:
        pairs = [(restore(MISSING, key, path, blobs), item) for key, item in node["$dict"]]
    else:
        pairs = list(node.items())
    if target is not MISSING and not isinstance(target, dict):
        if target is None or isinstance(target, bool | int | float | str | tuple):
            target = MISSING
        else:
            raise DoesNotFit(f"{path} is {_kind(target)}: the checkpoint holds a dict")
    olds = {} if target is MISSING else dict(target)
    news = {
        key: restore(olds.get(key, MISSING), item, f"{path}[{key!r}]", blobs) for key, item in pairs
    }
    if target is MISSING:
        return news
    target.clear()  # not update alone: the order of keys is part of the state
    target.update(news)
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
    value = restore(MISSING, node["state"], path, blobs)
    if node["$object"] == "random":
        if not _is_python_random(target):
            raise DoesNotFit(f"{path} is {_kind(target)}: the checkpoint holds a random.Random")
        target.setstate(value)
        return target
    if not _has(target, "state_dict", "load_state_dict"):
        raise DoesNotFit(f"{path} is {_kind(target)}: the checkpoint holds a state_dict")
    try:
        target.load_state_dict(value)
    except Exception as error:  # whatever a foreign load_state_dict raises means the same
        raise DoesNotFit(f"{path}.load_state_dict: {error}") from error
    return target


def _object(kind: str, state: Node) -> Node:
    return {"$object": kind, "state": state}


def _is_python_random(value: object) -> bool:
    return isinstance(value, random.Random) or value is random


def _has(value: object, *names: str) -> bool:
    return all(callable(getattr(value, name, None)) for name in names)


def _kind(value: object) -> str:
    if value is MISSING:
        return "absent"
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"
