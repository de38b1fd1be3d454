"""Flax: nnx modules, optimisers, metrics, random numbers and their variables.

An object is saved as its variables by their paths, its arrays and its plain attributes (numbers,
strings); they are changed in place, so that an optimiser and its model stay connected. A variable
in two places is saved once. ``nnx.Intermediate``, the leftovers of a call, is not saved. Plain
attributes must be equal when the program starts; changes by training (``model.eval()``) are
restored.

``TrainState``, ``FrozenDict``, ``nnx.State`` and the rest of Flax are pytrees: see the JAX adapter.
Needs Flax 0.12.
"""

# The project's environment may lack Flax; a type checker would then resolve it to this file.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

import importlib
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from outlast.loop import classes, state
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.state import MISSING, Blobs, Node, foreign, kind_of

_PLAIN = (type(None), bool, int, float, str)


def capture(value: Any, path: str, blobs: Blobs) -> Node:
    nnx: Any = sys.modules.get("flax.nnx")  # no object can be Flax's before Flax is imported
    if nnx is None:
        return MISSING
    if isinstance(value, nnx.Variable):
        blobs.need_target(value, path, kind_of(value))
        inner = state.capture(value.get_raw_value(), f"{path}.value", blobs)
        return {"$object": "flax.Variable", "class": kind_of(value), "value": inner}
    if isinstance(value, nnx.Pytree):
        return _capture_module(nnx, value, path, blobs)
    return MISSING


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    nnx: Any = importlib.import_module("flax.nnx")
    if node["$object"] == "flax.Variable":
        if not isinstance(target, nnx.Variable) or kind_of(target) != node["class"]:
            raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds {node['class']}")
        old = target.get_raw_value()
        new = state.restore(old, node["value"], f"{path}.value", blobs)
        if new is not old:
            target.set_raw_value(new)
        return target
    if not isinstance(target, nnx.Pytree):
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a module of Flax")
    _restore_parts(nnx, target, node["parts"], path, blobs)
    _restore_plain(nnx, target, node, path)
    return target


def parts(target: Any, node: Any, path: str) -> Iterator[tuple[Any, Node, str]]:
    """The live variables of a module."""
    nnx: Any = importlib.import_module("flax.nnx")
    if node["$object"] == "flax.Variable" and isinstance(target, nnx.Variable):
        yield target.get_raw_value(), node["value"], f"{path}.value"
    elif node["$object"] == "flax.Module" and isinstance(target, nnx.Pytree):
        for name, (_, item) in _parts(_graph(nnx, target)).items():
            if name in node["parts"]:
                yield item, node["parts"][name], f"{path}.{name}"


_Graph = dict[tuple[Any, ...], Any]


def _graph(nnx: Any, module: Any) -> _Graph:
    """The contents of a module by path, each object once."""
    found = dict(nnx.iter_graph(module, graph=True))
    return {key: item for key, item in found.items() if not isinstance(item, nnx.Intermediate)}


def _name(key: tuple[Any, ...]) -> str:
    return ".".join(map(str, key))


def _parts(graph: _Graph) -> dict[str, tuple[tuple[Any, ...], Any]]:
    """The variables and arrays of a module by name."""
    nnx = sys.modules["flax.nnx"]
    kinds = (nnx.Variable, jax.Array, np.ndarray)
    return {_name(key): (key, item) for key, item in graph.items() if isinstance(item, kinds)}


def _plain(nnx: Any, graph: _Graph) -> dict[str, Any]:
    """The numbers and strings among the attributes of a module and of the modules inside it."""
    return {
        _name(key): item
        for key, item in graph.items()
        if type(item) in _PLAIN and isinstance(graph.get(key[:-1]), nnx.Pytree)
    }


def _capture_module(nnx: Any, value: Any, path: str, blobs: Blobs) -> Node:
    graph = foreign(path, _graph, nnx, value)
    found = _parts(graph)
    shapes = [f"{name} {getattr(item, 'shape', '')}" for name, (_, item) in found.items()]
    digest = zlib.crc32("\n".join(shapes).encode())
    blobs.need_target(
        value, path, f"{kind_of(value)} of {len(found)} variables (shapes {digest:08x})"
    )
    for name, (key, item) in found.items():
        if not isinstance(item, nnx.Variable) and isinstance(graph.get(key[:-1]), tuple):
            raise StateError(
                f"{path}.{name} is an array in a tuple, which cannot be restored in place; make it "
                "an nnx.Variable"
            )
    node = {
        "$object": "flax.Module",
        "parts": {
            name: state.capture(item, f"{path}.{name}", blobs) for name, (_, item) in found.items()
        },
        "plain": state.capture_part(_plain(nnx, graph), path, blobs),
    }
    shown = {name: repr(item) for name, item in _plain(nnx, graph).items()}
    before = blobs.noted(path, shown)
    changed = {name: text for name, text in before.items() if shown.get(name) != text}
    return {**node, "began": changed} if changed else node


def _restore_parts(nnx: Any, target: Any, nodes: dict[str, Node], path: str, blobs: Blobs) -> None:
    graph = _graph(nnx, target)
    held = _parts(graph)
    if held.keys() != nodes.keys():
        few = sorted(held.keys() ^ nodes.keys())[:3]
        raise DoesNotFit(
            f"{path}: {', '.join(few)} {'is' if len(few) == 1 else 'are'} only in this program's "
            "or only in the checkpoint's module; a changed model is a new run"
        )
    for name, (key, item) in held.items():
        place = f"{path}.{name}"
        new = state.restore(item, nodes[name], place, blobs)
        if new is item:
            continue
        if isinstance(item, nnx.Variable):
            raise DoesNotFit(
                f"{place} is a separate variable: the checkpoint holds it tied to another; "
                "a changed model is a new run"
            )
        parent = graph[key[:-1]]
        if isinstance(parent, nnx.Pytree):
            setattr(parent, key[-1], new)
        else:
            parent[key[-1]] = new


def _restore_plain(nnx: Any, target: Any, node: Node, path: str) -> None:
    graph = _graph(nnx, target)
    held, objects = _plain(nnx, graph), {_name(key): item for key, item in graph.items()}
    saved = state.restore(MISSING, node["plain"], path, Blobs())
    if type(saved) is not dict or not all(type(item) in _PLAIN for item in saved.values()):
        raise DoesNotFit(f"{path}: the checkpoint holds attributes that are not plain")
    for name, value in saved.items():
        if name in held and repr(held[name]) == repr(value):
            continue
        if name in held and repr(held[name]) != node.get("began", {}).get(name):
            raise DoesNotFit(
                f"{path} has {name}={held[name]!r}: the checkpoint's is {value!r}; a changed "
                "model is a new run"
            )
        owner, _, last = name.rpartition(".")
        if not isinstance(objects.get(owner), nnx.Pytree):
            raise DoesNotFit(f"{path} has no {owner}: the checkpoint holds {name}={value!r}")
        if classes.is_code(type(objects[owner]), last):
            raise DoesNotFit(f"{path}: the checkpoint holds {name}, which belongs to the class")
        setattr(objects[owner], last, value)
