"""Python's containers other than plain lists, tuples and dicts, and a trainer's own subclasses.

A checkpoint has the items that the base class of a container stores; they are restored with the
base class's own methods: ``OrderedDict.__setitem__``, not ``dict.update``; ``deque.extend``, not a
subclass's ``append``. No code of a subclass runs. A subclass's attributes and slots are saved and
restored too. A container that the program already holds is changed in place.

An object of one of the trainer's classes needs a live object of that class to be restored into,
unless it is plain data: a namedtuple, a dataclass (see outlast.loop.classes).
"""

import array
import json
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from outlast.loop import classes, state
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import MISSING, Blobs, Node, kind_of

_BASES: dict[str, type] = {
    cls.__name__: cls
    for cls in (OrderedDict, defaultdict, Counter, dict, list, deque, set, frozenset)
}
"""Kinds that hold items; a subclass comes before its base."""
_DICTS = (OrderedDict, defaultdict, Counter, dict)
_OBJECTS: dict[str, type] = {
    classes.name_of(cls): cls for cls in (types.SimpleNamespace, ChainMap, UserDict, UserList)
}
"""Kinds that consist of their attributes only."""
_NEEDED = {
    classes.name_of(ChainMap): {"maps"},
    classes.name_of(UserDict): {"data"},
    classes.name_of(UserList): {"data"},
}
"""The attributes that each must have."""
_FACTORIES: dict[str, Callable[..., Any]] = {
    cls.__name__: cls
    for cls in (int, float, bool, complex, str, bytes, list, dict, set, frozenset, tuple, deque)
} | {cls.__name__: cls for cls in (OrderedDict, Counter)}
_LIVE = {"live": True}
"""Replaces the name of a default that only the program knows."""


def capture(value: Any, path: str, blobs: Blobs) -> Node:
    """A node for the standard library's own kinds; MISSING for all others."""
    cls = type(value)
    if cls in _BASES.values():
        return _capture_items(value, cls, path, blobs)
    if cls is bytearray:
        raw = state.capture(bytes(value), path, blobs)
        return {"$object": "containers.bytearray", "raw": raw}
    if cls is array.array:
        raw = state.capture(value.tobytes(), path, blobs)
        return {"$object": "containers.array", "type": value.typecode, "raw": raw}
    if classes.name_of(cls) in _OBJECTS:
        return _capture_object(value, path, blobs)
    return MISSING


def capture_own(value: Any, path: str, blobs: Blobs) -> Node:
    """A node for an object of a trainer's class of these kinds, or MISSING."""
    cls = type(value)
    if classes.is_namedtuple(cls):
        return _capture_namedtuple(value, path, blobs)
    base = next((base for base in _BASES.values() if isinstance(value, base)), None)
    if base is frozenset:
        return MISSING
    if base is not None:
        return _capture_items(value, base, path, blobs)
    if classes.is_dataclass(cls) or isinstance(value, tuple(_OBJECTS.values())):
        return _capture_object(value, path, blobs)
    return MISSING


def describe(value: Any) -> str | None:
    """The kind of a container and the properties that a restore cannot change."""
    if isinstance(value, deque):
        return f"{kind_of(value)} with maxlen={value.maxlen}"
    return f"array of type {value.typecode!r}" if type(value) is array.array else None


def is_immutable(value: Any) -> bool:
    """Whether a restore must make another object."""
    return isinstance(value, frozenset) or (
        classes.is_dataclass(type(value)) and classes.is_frozen(type(value))
    )


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    match node["$object"].partition(".")[2]:
        case "items":
            return _restore_items(target, node, path, blobs)
        case "namedtuple":
            return _restore_namedtuple(target, node, path, blobs)
        case "object":
            return _restore_object(target, node, path, blobs)
        case "bytearray":
            return _refill(target, bytearray(), _raw(node, path, blobs))
        case "array":
            if type(target) is array.array and target.typecode != node["type"]:
                raise DoesNotFit(
                    f"{path} is an array of type {target.typecode!r}: the checkpoint's is of "
                    f"{node['type']!r}"
                )
            news = array.array(node["type"])
            news.frombytes(_raw(node, path, blobs))
            return _refill(target, news[:0], news)
    raise DoesNotFit(f"{path}: the checkpoint holds {node['$object']}, unknown here")


def _raw(node: Any, path: str, blobs: Blobs) -> bytes:
    found = state.restore(MISSING, node["raw"], path, blobs)
    if type(found) is not bytes:
        raise DoesNotFit(f"{path}: the checkpoint holds {kind_of(found)} where bytes must be")
    return found


def parts(target: Any, node: Node, path: str) -> Iterator[tuple[Any, Node, str]]:
    """The parts of a live container that the node has: target, node and path of each."""
    kind = node["$object"].partition(".")[2]
    for name, item in node.get("attributes", {}).items():
        yield classes.attributes(target).get(name, MISSING), item, f"{path}.{name}"
    if kind == "items" and "pairs" in node and isinstance(target, dict):
        for key, item in _keyed(node, path):
            yield dict.get(target, key, MISSING), item, state.at_key(path, key)
    elif kind in ("items", "namedtuple") and "items" in node:
        olds = _listed(target)
        for i, item in enumerate(node["items"]):
            place = f"{path}.{node['fields'][i]}" if "fields" in node else f"{path}[{i}]"
            yield olds[i] if i < len(olds) else MISSING, item, place


# Containers with items


def _capture_items(value: Any, base: Any, path: str, blobs: Blobs) -> Node:
    cls = type(value)
    node: dict[str, Any] = {"$object": "containers.items", "base": base.__name__}
    if cls is not base:
        node["class"] = classes.name_of(cls)
        blobs.need_target(value, path, kind_of(value))
    if base in _DICTS:
        node["pairs"] = [
            [
                state.capture_key(key, path, blobs),
                state.capture(dict.__getitem__(value, key), state.at_key(path, key), blobs),
            ]
            for key in base.__iter__(value)
        ]
    elif base in (set, frozenset):
        keys = [state.capture_key(item, path, blobs) for item in base.__iter__(value)]
        node["members"] = sorted(keys, key=lambda key: json.dumps(key, sort_keys=True))
    else:
        node["items"] = [
            state.capture(item, f"{path}[{i}]", blobs)
            for i, item in enumerate(base.__iter__(value))
        ]
    if base is deque:
        node["maxlen"] = value.maxlen
    if base is defaultdict:
        node["default"] = _capture_default(value, path, blobs)
    _capture_attributes(value, node, path, blobs)
    return node


def _capture_default(value: Any, path: str, blobs: Blobs) -> Any:
    factory = value.default_factory
    name = getattr(factory, "__name__", None)
    if factory is None or _FACTORIES.get(str(name)) is factory:
        return name
    blobs.need_target(
        value,
        path,
        f"{kind_of(value)} with the default {name or kind_of(factory)}",
        "use int, list or another type of Python's as its default, or",
    )
    return _LIVE


def _restore_items(target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    base: Any = _BASES.get(node["base"])
    if base is None:
        raise DoesNotFit(f"{path}: the checkpoint holds a {node['base']}, unknown here")
    cls = _class_for(target, node, path, base, blobs)
    if target is not MISSING and type(target) is not cls:
        raise DoesNotFit(
            f"{path} is {kind_of(target)}: the checkpoint holds {_named(node.get('class'), base)}"
        )
    if base is deque and target is not MISSING and target.maxlen != node["maxlen"]:
        raise DoesNotFit(
            f"{path} is a deque with maxlen={target.maxlen}: the checkpoint's has "
            f"maxlen={node['maxlen']}"
        )
    if base is defaultdict and node["default"] == _LIVE and target is MISSING:
        raise DoesNotFit(
            f"{path} is absent: the checkpoint holds a defaultdict, whose default only the program "
            "knows"
        )
    value = _restored(target, base, node, path, blobs)
    if base is defaultdict and node["default"] != _LIVE:
        name = node["default"]
        if name is not None and name not in _FACTORIES:
            raise DoesNotFit(f"{path}: the checkpoint has the default {name}, unknown here")
        value.default_factory = None if name is None else _FACTORIES[name]
    _restore_attributes(value, node, path, blobs)
    return value


def _restored(target: Any, base: Any, node: Any, path: str, blobs: Blobs) -> Any:
    """``target`` (or a new object of the base class) with the node's items."""
    if "members" in node:
        keys = [state.restore_key(item, path) for item in node["members"]]
        if base is frozenset:
            return frozenset(keys)
        return _refill(target, set(), keys, set)
    if "pairs" in node:
        olds = target if target is not MISSING else {}
        news = [
            (key, state.restore(dict.get(olds, key, MISSING), item, state.at_key(path, key), blobs))
            for key, item in _keyed(node, path)
        ]
        value = base() if target is MISSING else target
        base.clear(value)
        for key, item in news:
            base.__setitem__(value, key, item)
        return value
    olds = _listed(target)
    news = [
        state.restore(olds[i] if i < len(olds) else MISSING, item, f"{path}[{i}]", blobs)
        for i, item in enumerate(node["items"])
    ]
    empty = deque(maxlen=node["maxlen"]) if base is deque else []
    return _refill(target, empty, news, base)


def _refill(target: Any, empty: Any, news: Iterable[Any], base: Any = None) -> Any:
    """``target``, or ``empty`` if there is none, with these items and no others."""
    value = empty if target is MISSING else target
    base = base or type(empty)
    if type(value) is not type(empty) and not isinstance(value, base):
        raise DoesNotFit(f"{kind_of(value)}: the checkpoint holds a {base.__name__}")
    if base in (bytearray, array.array):
        value[:] = news
    elif base is set:
        set.clear(value)
        set.update(value, news)
    else:
        base.clear(value)
        base.extend(value, news)
    return value


def _keyed(node: Any, path: str) -> list[tuple[Any, Node]]:
    return [(state.restore_key(key, path), item) for key, item in node["pairs"]]


def _listed(target: Any) -> list[Any]:
    base: Any = next((base for base in (list, deque, tuple) if isinstance(target, base)), None)
    return [] if base is None else list(base.__iter__(target))


# Objects with named fields


def _capture_namedtuple(value: Any, path: str, blobs: Blobs) -> Node:
    cls = type(value)
    if not blobs.finds(cls):
        blobs.need_target(value, path, kind_of(value))
    node: dict[str, Any] = {
        "$object": "containers.namedtuple",
        "class": classes.name_of(cls),
        "fields": list(cls._fields),
        "items": [
            state.capture(item, f"{path}.{name}", blobs)
            for name, item in zip(cls._fields, tuple.__iter__(value), strict=True)
        ],
    }
    _capture_attributes(value, node, path, blobs)
    return node


def _restore_namedtuple(target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    cls: Any = _class_for(target, node, path, None, blobs)
    if not classes.is_namedtuple(cls) or list(cls._fields) != node["fields"]:
        raise DoesNotFit(
            f"{path}: the checkpoint holds {node['class']} with the fields "
            f"{', '.join(node['fields'])}; here it has {', '.join(getattr(cls, '_fields', ()))}"
        )
    olds = _listed(target) if type(target) is cls else []
    news = [
        state.restore(olds[i] if olds else MISSING, item, f"{path}.{node['fields'][i]}", blobs)
        for i, item in enumerate(node["items"])
    ]
    if olds and all(new is old for new, old in zip(news, olds, strict=True)):
        return target
    value = tuple.__new__(cls, news)
    _restore_attributes(value, node, path, blobs)
    return value


def _capture_object(value: Any, path: str, blobs: Blobs) -> Node:
    cls = type(value)
    if classes.name_of(cls) not in _OBJECTS and not (
        classes.is_dataclass(cls) and blobs.finds(cls)
    ):
        blobs.need_target(value, path, kind_of(value))
    node: dict[str, Any] = {"$object": "containers.object", "class": classes.name_of(cls)}
    _capture_attributes(value, node, path, blobs)
    return node


def _restore_object(target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    cls: Any = _class_for(target, node, path, None, blobs)
    frozen = classes.is_dataclass(cls) and classes.is_frozen(cls)
    if target is not MISSING and type(target) is not cls:
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds {node['class']}")
    olds = {} if target is MISSING else classes.attributes(target)
    news = _restored_attributes(olds, node, path, blobs)
    if frozen and target is not MISSING:
        same = news.keys() == olds.keys() and all(news[name] is olds[name] for name in news)
        if same:
            return target
    if target is MISSING and not classes.is_dataclass(cls) and node["class"] not in _OBJECTS:
        raise DoesNotFit(
            f"{path}: the checkpoint holds {node['class']} as a dataclass, which it is not"
        )
    value = _empty(cls) if target is MISSING or frozen else target
    classes.set_attributes(value, news)
    return value


def _empty(cls: Any) -> Any:
    """A new object of a dataclass, without running its constructors, or of one of Python's
    classes."""
    return object.__new__(cls) if classes.is_dataclass(cls) else cls.__new__(cls)


def _capture_attributes(value: Any, node: dict[str, Any], path: str, blobs: Blobs) -> None:
    held = classes.attributes(value)
    if held:
        node["attributes"] = {
            name: state.capture(item, f"{path}.{name}", blobs) for name, item in held.items()
        }


def _restored_attributes(olds: Any, node: Any, path: str, blobs: Blobs) -> dict[str, Any]:
    return {
        name: state.restore(olds.get(name, MISSING), item, f"{path}.{name}", blobs)
        for name, item in node.get("attributes", {}).items()
    }


def _restore_attributes(value: Any, node: Any, path: str, blobs: Blobs) -> None:
    olds = classes.attributes(value)
    if olds or "attributes" in node:
        classes.set_attributes(value, _restored_attributes(olds, node, path, blobs))


def _class_for(target: Any, node: Any, path: str, base: type | None, blobs: Blobs) -> type:
    """The class that a node names: the live target's, one of Python's, or a plain-data class that
    the program itself defines."""
    name = node.get("class")
    if name is None:
        return base or object
    if target is not MISSING and classes.name_of(type(target)) == name:
        return type(target)
    if base is None and name in _OBJECTS:
        if needed := _NEEDED.get(name, set()) - node.get("attributes", {}).keys():
            raise DoesNotFit(f"{path}: the checkpoint holds {name} without {', '.join(needed)}")
        return _OBJECTS[name]
    found = blobs.find(name) if base is None else None
    if found is None:
        raise DoesNotFit(
            f"{path} is {kind_of(target)}: the checkpoint holds {name}, which only a live object "
            "of that class in the state can take"
        )
    return found


def _named(name: str | None, base: type) -> str:
    return name or f"a {base.__name__}"
