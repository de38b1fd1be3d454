"""Checkpoints that someone else wrote, restored into objects of the frameworks: refused by name.

A node is where the program has an object of the framework, and where it has nothing.
"""

import copy
import importlib
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from outlast.loop import state
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import Blob, Blobs

pytestmark = pytest.mark.frameworks

Harm = Callable[[dict[str, Any]], Any]


def sets(**news: Any) -> Harm:
    """The node with other fields; MISSING takes one away."""

    def harm(node: dict[str, Any]) -> Any:
        whole = {**node, **news}
        return {name: item for name, item in whole.items() if item is not state.MISSING}

    return harm


def inside(*keys: Any, value: Any) -> Harm:
    """The node with something else at a place inside of it."""

    def harm(node: dict[str, Any]) -> Any:
        held: Any = node
        for key in keys[:-1]:
            held = held[key]
        held[keys[-1]] = value
        return node

    return harm


def instead(node: Any) -> Harm:
    return lambda _: node


GENERAL: list[Harm] = [
    sets(extra=1),
    sets(**{"$tuple": []}),
    sets(**{"$object": "os.system"}),
    sets(**{"$object": "sklearn.object", "class": "gzip.GzipFile", "args": ["x", "wb"]}),
    sets(**{"$object": None}),
    sets(**{"$object": ["torch.Module"]}),
    sets(attributes=1),
    sets(attributes={"": 1}),
    sets(attributes={"nowhere": {"x": 1}}),
    sets(attributes={"": {"x": {"$array": 99}}}),
    sets(attributes={"": {"x": {"$same": "nowhere"}}}),
    sets(attributes={"": {"x": {"$object": "builtins.eval"}}}),
    sets(attributes={"": {"__class__": 1}}),
    sets(attributes={"": {"__dict__": {}}}),
    sets(began=1),
    sets(began={"gone": 1}),
    sets(began={"gone": {"": [1]}}),
    sets(began={"more": {}}),
    instead({"$array": 0, "x": 1}),
    instead({"$new": {"$object": "x"}, "instead": ""}),
    instead({"$tensor": "0"}),
    instead({"$jax": -1}),
]
"""What no object of any framework has."""


def torch_case() -> tuple[Any, list[Harm]]:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    entry = ("entries", "0.weight")
    own: list[Harm] = [
        *(sets(**{name: state.MISSING}) for name in ("entries", "versions", "eval")),
        *(sets(entries=value) for value in (None, [], {}, {"0.weight": 1}, 1)),
        *(inside(*entry, value=value) for value in (1, None, [1], "x", {"$tensor": 99})),
        inside(*entry, value={"$tensor": 1}),
        inside(*entry, value={"$array": 0}),
        inside(*entry, value={"$tensor": 0, "grad": "yes"}),
        inside(*entry, value={"$tensor": 0, "device": 5}),
        inside(*entry, value={"$tensor": 0, "storage": "file"}),
        inside(*entry, value={"$object": "torch.load", "name": "/etc/passwd"}),
        inside(*entry, value={"$object": "torch.Storage"}),
        inside("entries", "0.bias", value={"$tensor": 0}),
        sets(eval=1),
        sets(eval=[1]),
        sets(versions=1),
        sets(attributes={"": {"_modules": {}}}),
        sets(attributes={"": {"_parameters": {}}}),
        sets(attributes={"0": {"_forward_hooks": {"$dict": [[1, {"$value": ["type", "int"]}]]}}}),
        sets(attributes={"1": {"training": 5}}),
        sets(attributes={"5": {"x": 5}}),
    ]
    return model, own


def optimizer_case() -> tuple[Any, list[Harm]]:
    import torch

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    groups = ("state", "param_groups")
    own: list[Harm] = [
        *(sets(**{name: state.MISSING}) for name in ("params", "state")),
        *(sets(params=value) for value in (None, [], [1], [[[3], "cpu"]], [[[-1], "cpu"]])),
        sets(params=[[[2], 5]]),
        sets(params=[[[2], "nowhere:9"]]),
        *(sets(state=value) for value in (None, [], {}, 1)),
        *(inside(*groups, value=value) for value in (None, {}, [], [1], [[]], [{}])),
        inside(*groups, 0, "params", value=5),
        inside(*groups, 0, "params", value=[0, 1]),
        inside(*groups, 0, "params", value=[[1]]),
        inside("state", "state", value=5),
        inside("state", "state", value=[]),
        inside("state", "state", value={"$dict": [[[1], {}]]}),
        inside("state", "state", value={"$dict": [[0, 5]]}),
        inside("state", "state", value={"$dict": [[0, {"exp_avg": {"$tensor": 77}}]]}),
        inside("state", "state", value={"$dict": [[0, {"exp_avg": {"$array": 0}}]]}),
        sets(attributes={"": {"state": {}}}),
        sets(attributes={"": {"param_groups": []}}),
    ]
    return optimizer, own


def generator_case() -> tuple[Any, list[Harm]]:
    import torch

    own: list[Harm] = [
        *(sets(state=value) for value in (None, 1, "x", [], {}, {"$array": 0}, {"$bytes": ""})),
        *(sets(**{"$object": "torch.dtype", "name": name}) for name in ("load", "__class__", "")),
        *(sets(**{"$object": "torch.device", "name": name}) for name in ("x:y", "", 5)),
        *(sets(**{"$object": "torch.Size", "sizes": sizes}) for sizes in (1, [-1], ["a"])),
        *(sets(**{"$object": "torch.random", "state": inner}) for inner in ([], [1], {}, [[]])),
        sets(**{"$object": "torch.random", "state": [{"$tensor": 1}]}),
        sets(**{"$object": "torch.disabled"}),
        sets(**{"$object": "torch.nn.Module"}),
        sets(device=state.MISSING),
        sets(device=5),
        sets(state=state.MISSING),
    ]
    return torch.Generator(), [*own, *(instead({"$tensor": n}) for n in (3, 99, -1, 1.5, None))]


def keras_case() -> tuple[Any, list[Harm]]:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    value = ("variables", 0, "value")
    own: list[Harm] = [
        *(sets(**{name: state.MISSING}) for name in ("variables", "optimizer")),
        *(sets(variables=item) for item in (None, [], {}, [1], [{}], [{"path": "x"}])),
        *(sets(optimizer=item) for item in (None, 1, [], {}, {"$object": "keras.Layer"})),
        *(sets(metrics=item) for item in (None, 1, [1], {}, [{"path": "x"}])),
        *(inside(*value, value=item) for item in (None, 1, [1], "x", {"$array": 99})),
        *(inside(*value, value=item) for item in ({"$array": 1}, {"$tensor": 1}, {"$jax": 0})),
        inside("variables", 0, "path", value=5),
        inside("variables", 0, "path", value="other/bias"),
        sets(**{"$object": "keras.Metric"}),
        sets(**{"$object": "keras.Optimizer"}),
        sets(**{"$object": "keras.SeedGenerator"}),
        sets(**{"$object": "keras.Lambda"}),
        sets(**{"$object": "keras.saving"}),
    ]
    return model, own


def xgboost_case() -> tuple[Any, list[Harm]]:
    import xgboost

    rows = xgboost.DMatrix(np.ones((4, 2)), np.arange(4.0))
    booster = xgboost.train({"max_depth": 1}, rows, 1)
    other = (None, 1, "x", [], {}, {"$array": 0}, {"$bytes": ""}, {"$bytes": "AAAA"})
    own: list[Harm] = [
        *(sets(raw=value) for value in other),
        *(sets(config=value) for value in (*other, {"$bytes": "/w=="}, {"$bytes": "e30="})),
        *(sets(**{name: state.MISSING}) for name in ("raw", "config")),
        sets(**{"$object": "xgboost.DMatrix"}),
        sets(**{"$object": "xgboost.core"}),
        sets(uri="/etc/passwd"),
        sets(raw={"$value": ["path", "PosixPath", "/etc/passwd"]}),
        sets(raw={"$object": "containers.bytearray", "raw": {"$bytes": ""}}),
        *(instead({"$object": "xgboost.Booster", "raw": n, "config": n}) for n in range(6)),
    ]
    return booster, own


def jax_case() -> tuple[Any, list[Harm]]:
    import jax

    own: list[Harm] = [
        *(instead({"$jax": n}) for n in (99, -1, None, "0", 1.5, True, [0])),
        *(instead({"$jax": 0, "key": key}) for key in (1, "nowhere", "", None, "rbg")),
        *(instead({"$jax": 0, "weak": weak}) for weak in (1, "yes", None)),
        *(instead({"$jax": 0, "device": device}) for device in (1, None, [])),
        *(instead({"$jax": 0, name: 1}) for name in ("sharding", "$array", "dtype")),
        instead({"$jax": 1}),
        *(instead({"$object": f"jax.{name}"}) for name in ("Ref", "pytree", "Array", "jit")),
        instead({"$object": "jax.Ref", "value": {"$jax": 99}}),
        instead({"$object": "jax.Ref", "value": {"$same": "x"}}),
        *(
            instead({"$object": "jax.pytree", "class": cls, "children": children})
            for cls in ("os:_Environ", "x", 1, "jax:Array")
            for children in ({}, [], {".a": 1})
        ),
    ]
    return jax.numpy.ones(2), own


def flax_case() -> tuple[Any, list[Harm]]:
    from flax import nnx

    own: list[Harm] = [
        *(sets(**{name: state.MISSING}) for name in ("parts", "plain")),
        *(sets(parts=value) for value in (None, [], {}, {"kernel": 1}, 1)),
        *(inside("parts", "kernel", value=value) for value in (None, 1, [1], {"$jax": 99})),
        inside("parts", "kernel", value={"$object": "flax.Variable", "class": "x", "value": 1}),
        inside("parts", "kernel", value={"$object": "flax.Variable", "class": 1, "value": 1}),
        inside("parts", "kernel", "value", value={"$array": 0}),
        inside("parts", "kernel", "value", value=[1]),
        *(sets(plain=value) for value in (None, 1, [], {"x": [1]}, {"$array": 0})),
        sets(plain={"in_features": 7}),
        sets(plain={"__class__": 7}),
        sets(plain={"nowhere.x": 7}),
        sets(plain={"__call__": 7}),
        sets(began={"x": 1}),
        *(sets(**{"$object": f"flax.{name}"}) for name in ("Variable", "State", "serialization")),
    ]
    return nnx.Linear(2, 2, rngs=nnx.Rngs(0)), own


CASES = {
    "torch module": torch_case,
    "torch optimiser": optimizer_case,
    "torch generator": generator_case,
    "keras": keras_case,
    "xgboost": xgboost_case,
    "jax": jax_case,
    "flax": flax_case,
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_nodes_of_a_framework_are_refused_by_name(name: str) -> None:
    target, own = CASES[name]()
    harms = [*own, *GENERAL]
    nodes, blobs = state.capture_all({"box": {"x": target}})
    sound = nodes["box"]["x"]
    seen = set()
    for number, harm in enumerate(harms):
        node = harm(copy.deepcopy(sound))
        seen.add(json.dumps(node, sort_keys=True))
        for start in ({"x": target}, {}):
            with pytest.raises(DoesNotFit) as caught:
                state.restore_all({"box": start}, {"box": {"x": node}}, again(blobs))
                pytest.fail(f"{name} {number} was taken: {json.dumps(node)[:300]}")
            assert str(caught.value).startswith("state['box']"), (number, caught.value)
    state.restore_all({"box": {"x": target}}, nodes, again(blobs))  # sound still
    assert len(seen) >= 50, len(seen)


def again(blobs: Blobs) -> Blobs:
    """The arrays of a capture as a new checkpoint's, with a few that fit nothing."""
    odd = [Blob("bytes", (8,), bytes(8), 8), Blob("<f8", (1 << 50,), bytes(8), 8)]
    return Blobs([*blobs.items, *odd] if len(blobs.items) < 90 else list(blobs.items))


def test_a_framework_is_imported_only_by_its_own_name() -> None:
    for name in ("subprocess", "tests", "antigravity", "outlast", "numpy.random", ""):
        with pytest.raises(DoesNotFit, match="unknown here"):
            state.restore_new({"x": {"$object": f"{name}.thing"}}, Blobs([]))
    assert importlib.util.find_spec("antigravity") is not None
    assert "antigravity" not in __import__("sys").modules
