"""Keras: the plain attributes of layers, models and other objects of the program's own classes.

Keras's own classes keep everything that training changes in variables. See
outlast.loop.adapters.attributes for which attributes are saved and which are refused.
"""

# The project's environment may lack Keras; a type checker would then resolve it to this file.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

import functools
import sys
from typing import Any

import keras

from outlast.loop.adapters.attributes import Framework, Owner
from outlast.loop.classes import is_own
from outlast.loop.state import MISSING

_SAVED = (
    keras.Variable,
    keras.Layer,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.random.SeedGenerator,
)
"""Kinds whose values are in variables, which are saved with the object."""


def of(value: Any, *, wrapped: bool = True) -> dict[str, Owner]:
    """The attributes that the program's own classes have added to an object and to the layers in
    it. ``wrapped``: with the containers that Keras wraps, as copies."""
    found: dict[str, Owner] = {}
    objects = value._flatten_layers() if isinstance(value, keras.Layer) else [value]
    for number, each in enumerate(objects):
        if is_own(type(each)):
            name = f"{type(each).__name__}[{number}]" if number else ""
            found[name] = _owner(each, wrapped)
    return found


def framework() -> Framework:
    """How to distinguish Keras's own objects and a backend's tensors from plain values."""

    def is_kept(value: Any) -> bool | None:
        if isinstance(value, _SAVED):
            return False
        return True if _is_tensor(value) else None

    def digest(value: Any) -> str | None:
        return type(value).__name__ if isinstance(value, _SAVED) else None

    return Framework(is_kept, digest)


def _owner(each: Any, wrapped: bool) -> Owner:
    ours = _of_keras(_base(each))
    names = sorted(vars(each).keys() - ours)
    items = {name: vars(each)[name] for name in names}
    # Keras wraps the containers of a layer to find layers in them.
    held = {name: _plain(item) for name, item in items.items() if wrapped or not _is_tracked(item)}
    return Owner(held, lambda name, value: _put(vars(each), name, value), ours)


def _plain(value: Any) -> Any:
    if not _is_tracked(value):
        return value
    base = next(kind for kind in (dict, set, list) if isinstance(value, kind))
    return base(value)


def _is_tracked(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, list | dict | set) and kind.__module__.startswith("keras.")


def _put(held: dict[str, Any], name: str, value: Any) -> None:
    # Not setattr: a built layer refuses new parts, and a property would run.
    old = held.get(name)
    if value is MISSING:
        del held[name]
    elif isinstance(old, list) and _is_tracked(old) and isinstance(value, list):
        list.__setitem__(old, slice(None), value)
    elif isinstance(old, dict) and _is_tracked(old) and isinstance(value, dict):
        dict.clear(old)
        dict.update(old, value)
    elif isinstance(old, set) and _is_tracked(old) and isinstance(value, set):
        set.clear(old)
        set.update(old, value)
    else:
        held[name] = value


def _is_tensor(value: Any) -> bool:
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    return (torch is not None and isinstance(value, torch.Tensor)) or (
        jax is not None and isinstance(value, jax.Array)
    )


def _base(each: Any) -> str:
    if isinstance(each, keras.Model):
        return "Model"
    if isinstance(each, keras.Layer):
        return "Layer"
    return "Metric" if isinstance(each, keras.metrics.Metric) else "Optimizer"


@functools.cache
def _of_keras(base: str) -> frozenset[str]:
    """The attributes that Keras itself gives to an object that has been used."""
    # This must not affect the program: weights would draw from Python's global generator, and an
    # object without a name would use up a number of Keras's names.
    name = "outlast"
    layer = keras.layers.Identity(name=name)
    model = keras.Sequential([keras.Input((1,), name=f"{name}-input"), layer], name=name)
    model.compile(keras.optimizers.SGD(name=name), "mse")
    both = keras.Model(model.inputs, model.outputs, name=name)
    kinds: dict[str, tuple[Any, ...]] = {
        "Model": (model, both),
        "Layer": (keras.layers.Layer(name=name), layer),
        "Metric": (keras.metrics.Mean(name=name), keras.metrics.Metric(name=name)),
        "Optimizer": (model.optimizer, keras.optimizers.Adam(name=name)),
    }
    lazily = {"history", "stop_training", "stop_evaluating", "stop_predicting"}
    return frozenset(lazily.union(*(vars(each) for each in kinds[base])))
