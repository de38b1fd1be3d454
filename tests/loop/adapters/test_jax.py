"""JAX: saved state resumes bit for bit, in every container, and what cannot be saved is named."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.loop import snapshot, state, unchanged, verify
from outlast.loop.errors import DoesNotFit, StateError
from tests.loop import programs
from tests.loop.adapters.through import load, same, save

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
pytestmark = pytest.mark.frameworks
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

DTYPES = [
    "bool", "int4", "uint4", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16",
    "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "complex64",
]  # fmt: skip
PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw with a schedule": lambda: optax.adamw(optax.cosine_decay_schedule(0.1, 10)),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9)),
    "a rate in the state": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "accumulated": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "adafactor": lambda: optax.adafactor(0.1),
    "masked": lambda: optax.masked(optax.adam(0.1), {"w": True, "b": False}),
    "by label": lambda: optax.multi_transform(
        {"a": optax.adam(0.1), "b": optax.sgd(0.1)}, {"w": "a", "b": "b"}
    ),
    "if finite": lambda: optax.apply_if_finite(optax.adam(0.1), 3),
    "noisy": lambda: optax.noisy_sgd(0.1, key=jax.random.key(3)),
}


def through(folder: Path, mine: Any, theirs: Any, begun: Any = None) -> None:
    """As a resumed run takes it."""
    snapshot.write(folder, snapshot.Saved(3, {}, *state.capture_all(mine, begun)))
    found = snapshot.read(folder)
    state.restore_all(theirs, found.nodes, found.blobs)
    verify.check(theirs, found)


def bits(value: Any) -> bytes:
    return np.asarray(value).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_dtype_keep_their_bits(tmp_path: Path, dtype: str) -> None:
    value = jnp.arange(6).reshape(3, 2).astype(dtype)
    if dtype.startswith(("float", "bfloat")):
        value = value.at[1, 1].set(jnp.nan).at[0, 0].set(-0.0)
    mine = {"box": {"w": value, "new": value, "number": value[2, 1], "none": value[:0]}}
    box: dict[str, Any] = {"w": jnp.zeros_like(value)}
    load(save(tmp_path / "s", mine), {"box": box})
    for name, item in mine["box"].items():
        assert isinstance(box[name], jax.Array) and box[name].shape == item.shape
        assert box[name].dtype == item.dtype and bits(box[name]) == bits(item)
    assert box["w"] is box["new"]


def test_a_weak_type_stays_weak_and_a_strong_one_strong(tmp_path: Path) -> None:
    weak = {
        "rate": jnp.asarray(0.1),
        "count": jnp.asarray(3),
        "row": jnp.full((3,), 0.5) * 2.0,
        "z": jnp.asarray(1 + 2j),
    }
    strong = {"one": jnp.ones(3), "number": jnp.float32(2)}
    box: dict[str, Any] = {"rate": jnp.float32(3), "one": jnp.full((3,), 1.0)}
    load(save(tmp_path / "s", {"box": {**weak, **strong}}), {"box": box})
    assert [name for name, item in box.items() if item.weak_type] == list(weak)
    assert all(bits(box[name]) == bits(item) for name, item in {**weak, **strong}.items())
    assert (box["rate"] * jnp.bfloat16(1)).dtype == jnp.bfloat16


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_keys_resume(tmp_path: Path, impl: str) -> None:
    key = jax.random.key(7, impl=impl)
    mine = {"box": {"key": key, "many": jax.random.split(key, 3), "raw": jax.random.PRNGKey(5)}}
    for box in ({}, {"key": jax.random.key(0, impl=impl), "raw": jax.random.PRNGKey(0)}):
        load(save(tmp_path / "s", mine), {"box": box})
        assert box["key"].dtype == key.dtype
        for name, item in mine["box"].items():
            one, two = (each if name != "many" else each[1] for each in (item, box[name]))
            assert bits(jax.random.normal(one, 4)) == bits(jax.random.normal(two, 4))


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (jax.random.key(0), "is a random key of threefry2x32: the checkpoint holds an array"),
        (jnp.zeros((2, 2)), r"is an array \(2, 2\) of <f4: the checkpoint holds \(3,\) of <f4"),
        (jnp.zeros(3, jnp.bfloat16), r"is an array \(3,\) of bfloat16: the checkpoint"),
    ],
)
def test_a_mismatch_is_refused_by_name(tmp_path: Path, held: Any, says: str) -> None:
    save(tmp_path / "s", {"box": {"w": jnp.ones(3)}})
    with pytest.raises(DoesNotFit, match=rf"state\['box'\]\['w'\] {says}"):
        load(tmp_path / "s", {"box": {"w": held}})


def test_an_array_stays_on_the_device_that_it_was_committed_to(tmp_path: Path) -> None:
    device = jax.devices()[0]
    mesh = jax.sharding.Mesh(np.array([device]), ("rows",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    mine = {"box": {"a": jax.device_put(jnp.ones(4), place), "b": jnp.ones(2)}}
    mine["box"]["c"] = jax.device_put(jnp.ones(3), device)
    box: dict[str, Any] = {"a": jax.device_put(jnp.zeros(4), place)}
    load(save(tmp_path / "s", mine), {"box": box})
    assert box["a"].sharding == place
    assert [box[name].committed for name in "abc"] == [True, False, True]


def test_arrays_over_several_devices(tmp_path: Path) -> None:
    """In a process that sees two devices; a new process puts each if it has its own."""
    program = (
        "import sys, jax, jax.numpy as jnp, numpy as np\n"
        "from pathlib import Path\n"
        "from outlast.loop import state\n"
        "from outlast.loop.errors import StateError\n"
        "from tests.loop.adapters.through import load, save\n"
        "mesh = jax.sharding.Mesh(np.array(jax.devices()), ('x',))\n"
        "spec = jax.sharding.PartitionSpec\n"
        "rows = jax.sharding.NamedSharding(mesh, spec('x'))\n"
        "whole = jax.sharding.NamedSharding(mesh, spec())\n"
        "box = {'a': jax.device_put(jnp.arange(8.), rows)}\n"
        "box['b'] = jax.device_put(jnp.ones(3), whole)\n"
        "new = {'a': jax.device_put(jnp.zeros(8), rows), 'b': jnp.zeros(3)}\n"
        "load(save(Path(sys.argv[1]), {'box': box}), {'box': new})\n"
        "assert new['a'].sharding == rows and new['a'].tolist() == list(range(8))\n"
        "assert new['b'].tolist() == [1, 1, 1] and not new['b'].committed\n"
        "begun = state.survey({'box': {}})\n"
        "try:\n"
        "    state.capture_all({'box': box}, begun)\n"
        "except StateError as error:\n"
        "    print(error)\n"
    )
    flags = "--xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s")],
        cwd=programs.ROOT,
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "state['box']['a'] is a JAX array over 2 devices, which did not exist" in done.stdout


def test_a_shared_array_stays_shared_and_equal_arrays_stay_separate(tmp_path: Path) -> None:
    begin = jnp.zeros(3)
    mine = {"box": {"now": jnp.ones(3), "best": jnp.ones(3)}, "one": {}}
    mine["one"] |= {"x": mine["box"]["now"]}
    theirs: dict[str, Any] = {"box": {"now": begin, "best": begin}, "one": {"x": begin}}
    through(tmp_path / "s", mine, theirs)
    assert theirs["one"]["x"] is theirs["box"]["now"] is not theirs["box"]["best"]
    begin = jnp.ones(3)
    theirs = {"box": {"now": begin, "best": begin}, "one": {"x": begin}}
    through(tmp_path / "s2", mine, theirs)  # and where they are equal already
    assert theirs["one"]["x"] is theirs["box"]["now"] is begin is not theirs["box"]["best"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_states_of_optax(tmp_path: Path, name: str) -> None:
    def begun() -> tuple[Any, dict[str, Any]]:
        transform = OPTIMIZERS[name]()
        return transform, {"params": PARAMS, "opt": transform.init(PARAMS)}

    def step(transform: Any, box: dict[str, Any]) -> None:
        grads = jax.tree.map(jnp.sin, box["params"])
        updates, box["opt"] = transform.update(grads, box["opt"], box["params"])
        box["params"] = optax.apply_updates(box["params"], updates)

    one, mine = begun()
    two, theirs = begun()
    start = state.survey({"box": mine})
    for _ in range(3):
        step(one, mine)
    through(tmp_path / "s", {"box": mine}, {"box": theirs}, start)
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    for _ in range(2):
        step(one, mine)
        step(two, theirs)
    assert same({"box": mine}, {"box": theirs}) is None


def test_a_reference_is_changed_in_place(tmp_path: Path) -> None:
    mine, theirs = {"r": jax.new_ref(jnp.ones(3))}, {"r": jax.new_ref(jnp.zeros(3))}
    held = theirs["r"]
    load(save(tmp_path / "s", mine), theirs)
    assert theirs["r"] is held and held[...].tolist() == [1, 1, 1]


def test_the_error_says_what_a_wider_type_needs(tmp_path: Path) -> None:
    jax.config.update("jax_enable_x64", True)
    try:
        save(tmp_path / "s", {"box": {"w": jnp.ones(2)}})
    finally:
        jax.config.update("jax_enable_x64", False)
    with pytest.raises(DoesNotFit, match=r"\['w'\]: the checkpoint holds float64, .* set jax_enab"):
        load(tmp_path / "s", {"box": {}})


def test_deleted_and_missing_arrays_are_refused() -> None:
    value = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(value)
    value.delete()  # as donation does where the device can
    with pytest.raises(StateError, match=r"\['w'\] is an array that was donated"):
        state.capture_all({"box": {"w": value}})

    box: dict[str, Any] = {}

    def leaks(x: Any) -> Any:
        box["w"] = x
        return x

    jax.jit(leaks)(jnp.ones(2))
    with pytest.raises(StateError, match=r"\['w'\] is a value of a function that JAX is tracing"):
        state.capture_all({"box": box})


@pytest.mark.parametrize(
    "value", [jnp.ones(2), jax.random.key(0), optax.adam(0.1).init(PARAMS)], ids=str
)
def test_an_immutable_value_must_be_in_a_dict(value: Any) -> None:
    with pytest.raises(StateError, match=r"state\['x'\] is .*such as box = {'x': …}"):
        state.check_top({"x": value})


# Pytrees


@jax.tree_util.register_pytree_node_class
class Running:
    """A mean as one writes it: registered, and changed in place or made new."""

    def __init__(self, total: Any, count: Any, name: str) -> None:
        self.total, self.count, self.name = total, count, name

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.total, self.count), self.name

    @classmethod
    def tree_unflatten(cls, name: str, children: Any) -> Any:
        return cls(*children, name)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    """As equinox has its modules: frozen, with functions among the fields."""

    w: Any
    inner: Any
    act: Callable[[Any], Any] = dataclasses.field(metadata={"static": True}, default=jnp.tanh)
    size: int = dataclasses.field(metadata={"static": True}, default=3)


def layer(number: float) -> Layer:
    return Layer(jnp.full(3, number), (jnp.asarray(number), None))


def test_a_frozen_pytree_is_rebuilt_from_the_programs_initial_one(tmp_path: Path) -> None:
    mine, theirs = {"box": {"m": layer(1)}}, {"box": {"m": layer(2)}}
    begun = state.survey(mine)
    mine["box"]["m"] = jax.tree.map(lambda x: x * 3, mine["box"]["m"])
    through(tmp_path / "s", mine, theirs, begun)
    assert theirs["box"]["m"].w.tolist() == [3, 3, 3] and theirs["box"]["m"].act is jnp.tanh
    with pytest.raises(StateError, match=r"state\['m'\] is .*which cannot be restored in place"):
        state.check_top({"m": layer(1)})
    mine["box"]["m"] = dataclasses.replace(mine["box"]["m"], size=4)
    with pytest.raises(StateError, match=r"\['m'\] is .*Layer, in which something has changed"):
        state.capture_all(mine, begun)


def test_a_mutable_pytree_stays_the_same_object(tmp_path: Path) -> None:
    mine, theirs = ({"r": Running(jnp.asarray(total), total, "loss")} for total in (2.0, 1.0))
    held = theirs["r"]
    state.check_top(mine)
    through(tmp_path / "s", mine, theirs, state.survey(mine))
    assert theirs["r"] is held and (float(held.total), held.count) == (2.0, 2.0)


def test_a_pytree_that_appears_is_refused() -> None:
    box: dict[str, Any] = {"best": None}
    begun = state.survey({"box": box})
    box["best"] = layer(1)
    with pytest.raises(StateError, match=r"\['best'\] is .*Layer, which did not exist when"):
        state.capture_all({"box": box}, begun)


# What never changes


def test_a_rebound_name_is_reported_and_a_resume_refused(tmp_path: Path) -> None:
    params = dict(PARAMS)
    watch = unchanged.Watch({"params": params}, inline=True)
    watch.begin(0)
    said: list[str] = []
    for step in range(1, 3):
        params = jax.tree.map(lambda x: x + 1, params)  # the mistake
        watch.glance()
        said += watch.look(step)
    assert any(
        sentence.startswith("state['params'] has not changed in 1 steps") for sentence in said
    )
    assert any("params.update(new)" in text for text in said)
    again = unchanged.Watch({"params": dict(PARAMS)}, inline=True)
    with pytest.raises(DoesNotFit, match=r"state\['params'\].* did not change"):
        again.begin(2, watch.note())


def test_a_dict_that_takes_up_the_new_values_passes() -> None:
    box = {"params": dict(PARAMS), "key": jax.random.key(0), "best": dict(PARAMS)}
    watch = unchanged.Watch({"box": box}, inline=True)
    watch.begin(0)
    for step in range(1, 5):
        box["key"], _ = jax.random.split(box["key"])
        box["params"] = jax.tree.map(lambda x: x + 1, box["params"])
        watch.glance()
        assert watch.look(step) == []
    assert watch.note()["rebound"] == {}
