"""Keras 3, with any backend: layers and models, optimisers, metrics, seed generators, variables.

An object is saved as its variables in order, each with its path. A compiled model includes its
optimiser and its metrics. Keras makes the variables of an optimiser and of compiled metrics when it
first needs them, so a resumed program does not have them yet: a restore makes the optimiser's at
once and the metrics' with the first batch. Everything else must already be built. The plain
attributes of the program's own classes are saved too (outlast.loop.adapters.attributes).

The module ``keras.random`` represents the global seed generator, from which its functions draw if
they get no seed. With the torch backend some of them draw from torch's generator, so put
``torch.random`` into the state too.
"""

# The project's environment may lack Keras; a type checker would then resolve it to this file.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

import re
import zlib
from collections.abc import Iterable
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.random import seed_generator

from outlast.loop import state
from outlast.loop.adapters import attributes, keras_attributes
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.state import MISSING, Blobs, Node, foreign, kind_of

_KINDS = {
    "Layer": keras.Layer,
    "Optimizer": keras.optimizers.Optimizer,
    "Metric": keras.metrics.Metric,
    "SeedGenerator": keras.random.SeedGenerator,
    "Variable": keras.Variable,
}


def capture(value: Any, path: str, blobs: Blobs) -> Node:
    if value is keras.random:
        # Made here if it is missing: otherwise the first draw makes it with a seed from Python's
        # generator, so that a step would draw from that.
        generator = seed_generator.global_seed_generator()
        inner = state.capture_part(array_of(generator.state), f"{path}.state", blobs)
        return {"$object": "keras.random", "state": inner}
    kind = next((name for name, cls in _KINDS.items() if isinstance(value, cls)), None)
    if kind is None:
        return MISSING
    variables, held = _of(value, path), _attributes_of(value)
    if not variables and not attributes.are_any(held) and blobs.survey is not None:
        raise StateError(
            f"{path} is {kind_of(value)}, which has no variables, so nothing of it would be saved; "
            "leave it out of the state"
        )
    shapes = zlib.crc32(repr([tuple(item.shape) for item in variables]).encode())
    blobs.need_target(
        value, path, f"{kind_of(value)} of {len(variables)} variables (shapes {shapes:08x})"
    )
    node = {"$object": f"keras.{kind}", "variables": _capture_all(variables, path, blobs)}
    if _is_compiled(value):
        model_optimizer = value.optimizer
        _build(model_optimizer, value)
        node["optimizer"] = state.capture(model_optimizer, f"{path}.optimizer", blobs)
        node["metrics"] = _capture_all(value.metrics_variables, f"{path}.metrics", blobs)
    return node | attributes.capture(held, path, blobs, keras_attributes.framework())


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    kind = node["$object"].partition(".")[2]
    if kind == "random":
        return _restore_global(target, node, path, blobs)
    if not isinstance(target, _KINDS[kind]):
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a Keras {kind}")
    if ("optimizer" in node) != _is_compiled(target):
        ours, theirs = ("not ", "") if "optimizer" in node else ("", "not ")
        raise DoesNotFit(f"{path} is {ours}compiled: the checkpoint's is {theirs}compiled")
    _restore_all(_of(target, path), node["variables"], path, blobs)
    if "optimizer" in node:
        _build(target.optimizer, target)
        if state.restore(target.optimizer, node["optimizer"], f"{path}.optimizer", blobs) is not (
            target.optimizer
        ):
            raise DoesNotFit(f"{path}.optimizer: is another object in the checkpoint")
        _restore_metrics(target, node["metrics"], f"{path}.metrics", blobs)
    attributes.restore(_attributes_of(target, wrapped=False), node, path, blobs)
    return target


def global_generator() -> Any:
    """The seed generator for calls without a seed; None until the first draw."""
    return global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)


def _restore_global(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if target is not MISSING and target is not keras.random:
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds keras.random")
    value = state.restore(MISSING, node["state"], f"{path}.state", blobs)
    # Without a seed and a name it would draw from Python's generator and use up one of Keras's
    # names.
    generator = global_generator() or keras.random.SeedGenerator(0, name="global_seed_generator")
    generator.state.assign(value)
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)
    return keras.random


def _attributes_of(value: Any, *, wrapped: bool = True) -> dict[str, attributes.Owner]:
    plain = isinstance(value, keras.Variable | keras.random.SeedGenerator)
    return {} if plain else keras_attributes.of(value, wrapped=wrapped)


def _is_compiled(value: object) -> bool:
    return isinstance(value, keras.Model) and bool(value.compiled) and value.optimizer is not None


def _of(value: Any, path: str) -> list[Any]:
    """The variables of an object; StateError if they do not exist yet."""
    if isinstance(value, keras.Variable):
        return [value]
    if isinstance(value, keras.random.SeedGenerator):
        return [value.state]
    if isinstance(value, keras.Layer) and not value.built:
        raise StateError(
            f"{path} is not built and has no variables yet; give the model an Input, or call "
            "build(input_shape) before outlast.train"
        )
    if isinstance(value, keras.optimizers.Optimizer) and not value.built:
        raise StateError(
            f"{path} is not built and has no variables yet; call "
            "build(model.trainable_variables) before outlast.train"
        )
    if isinstance(value, keras.Layer):
        metrics = [] if _is_compiled(value) else value.metrics_variables
        return _once([*value.variables, *metrics])
    return list(value.variables)


def _once(variables: Iterable[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())


def _build(optimizer: Any, model: Any) -> None:
    if not optimizer.built:
        optimizer.build(model.trainable_variables)


def _capture_all(variables: Iterable[Any], path: str, blobs: Blobs) -> Node:
    return [
        {"path": item.path, "value": state.capture_part(_raw(item), f"{path}.{item.path}", blobs)}
        for item in variables
    ]


def _raw(variable: Any) -> Any:
    """The backend's own array if an adapter knows it, else a numpy array of the same dtype."""
    if keras.backend.backend() == "torch":
        return variable.value.detach()
    return keras.ops.convert_to_numpy(variable.value)


def array_of(variable: Any) -> Any:
    """A variable's value as a numpy array."""
    raw = _raw(variable)
    return raw.cpu().numpy() if keras.backend.backend() == "torch" else raw


def _restore_all(variables: list[Any], nodes: list[Any], path: str, blobs: Blobs) -> None:
    if len(variables) != len(nodes):
        raise DoesNotFit(
            f"{path} has {len(variables)} variables: the checkpoint's has {len(nodes)}; "
            "a changed model is a new run"
        )
    for variable, node in zip(variables, nodes, strict=True):
        value = state.restore(MISSING, node["value"], f"{path}.{variable.path}", blobs)
        ours = (tuple(variable.shape), keras.backend.standardize_dtype(variable.dtype))
        theirs = (tuple(value.shape), keras.backend.standardize_dtype(value.dtype))
        if ours != theirs or _role(variable.path) != _role(node["path"]):
            raise DoesNotFit(
                f"{path}.{variable.path} is {ours[0]} of {ours[1]}: the checkpoint holds "
                f"{node['path']}, {theirs[0]} of {theirs[1]}; a changed model is a new run"
            )
        variable.assign(value)


def _role(path: str) -> str:
    """The last part of a path, without the numbers that Keras gives to a process's layers."""
    return re.sub(r"_\d+", "", path.rpartition("/")[2])


def _restore_metrics(model: Any, nodes: list[Any], path: str, blobs: Blobs) -> None:
    if len(nodes) == len(model.metrics_variables):
        _restore_all(model.metrics_variables, nodes, path, blobs)
        return

    # The program's first call makes the metrics' variables, from the shapes of its first batch.
    def put_back(name: str) -> None:
        method = getattr(model, name)

        def first(x: Any, y: Any = None, sample_weight: Any = None, **more: Any) -> Any:
            for each in ("train_on_batch", "test_on_batch"):
                vars(model).pop(each, None)
            foreign(path, lambda: model._symbolic_build(data_batch=(x, y, sample_weight)))
            _restore_all(model.metrics_variables, nodes, path, blobs)
            return method(x, y, sample_weight, **more)

        vars(model)[name] = first

    for name in ("train_on_batch", "test_on_batch"):
        put_back(name)
