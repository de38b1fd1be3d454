"""Keras 3: models, optimisers, metrics and seed generators resume bit for bit."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.loop import snapshot, state, verify
from outlast.loop.errors import DoesNotFit, StateError
from tests.loop.adapters.through import same, save

os.environ.setdefault("KERAS_BACKEND", "torch")
torch = pytest.importorskip("torch")
keras = pytest.importorskip("keras")
keras_attributes = pytest.importorskip("outlast.loop.adapters.keras_attributes")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning:keras"),
]


def build(optimizer: Any = "adam", *, dtype: str | None = None, width: int = 3) -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(width, dtype=dtype),
            layers.Dropout(0.5),
            layers.BatchNormalization(),
            layers.Dense(1, dtype=dtype),
        ]
    )
    model.compile(optimizer, "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()])
    return model


def train(model: Any, first: int, last: int) -> list[Any]:
    rows = []
    for number in range(first, last):
        rng = np.random.default_rng(number)
        x, y = rng.normal(size=(8, 4)), rng.normal(size=(8, 1))
        rows.append(model.train_on_batch(x, y, return_dict=True))
    return rows


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop", "adamw", "lion", "ftrl"])
@pytest.mark.parametrize("target_steps", [0, 2])
def test_training_resumes_as_if_never_stopped(
    tmp_path: Path, optimizer: str, target_steps: int
) -> None:
    mine, theirs = build(optimizer), build(optimizer)
    train(mine, 0, 3)
    # With the backend torch, dropout without a seed draws from torch's own generator.
    save(tmp_path / "s", {"model": mine, "rng": torch.random})
    expected = train(mine, 3, 6)
    train(theirs, 10, 10 + target_steps)
    load_unbuilt(tmp_path / "s", {"model": theirs, "rng": torch.random})
    assert train(theirs, 3, 6) == expected
    for one, two in zip(variables(mine), variables(theirs), strict=True):
        assert one.tobytes() == two.tobytes()


def load_unbuilt(folder: Path, target: dict[str, Any]) -> None:
    """Restore alone: compiled metrics come back with the first batch."""
    from outlast.loop import snapshot, state

    saved = snapshot.read(folder)
    state.restore_all(target, saved.nodes, saved.blobs)


def variables(model: Any) -> list[np.ndarray]:
    each = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return [keras.ops.convert_to_numpy(variable.value) for variable in each]


def test_a_learning_rate_that_was_changed_is_kept(tmp_path: Path) -> None:
    mine, theirs = build(), build()
    train(mine, 0, 1)
    mine.optimizer.learning_rate = 0.25
    load_unbuilt(save(tmp_path / "s", {"model": mine}), {"model": theirs})
    assert float(theirs.optimizer.learning_rate.numpy()) == 0.25


def test_parts_by_themselves(tmp_path: Path) -> None:
    def parts(start: int) -> dict[str, Any]:
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
        optimizer = keras.optimizers.Adam()
        optimizer.build(layer.trainable_variables)
        metric = keras.metrics.Mean()
        metric.update_state(start)
        seeds = keras.random.SeedGenerator(start)
        return {
            "l": layer,
            "o": optimizer,
            "m": metric,
            "s": seeds,
            "v": keras.Variable([float(start)]),
        }

    mine, theirs = parts(1), parts(2)
    keras.random.normal((2,), seed=mine["s"])
    load_unbuilt(save(tmp_path / "s", mine), theirs)
    assert float(theirs["m"].result()) == 1.0 and float(theirs["v"].numpy()[0]) == 1.0
    assert (mine["l"].kernel.numpy() == theirs["l"].kernel.numpy()).all()
    one, two = (keras.random.normal((3,), seed=each["s"]) for each in (mine, theirs))
    assert one.tolist() == two.tolist()


def test_bfloat16_weights_keep_their_bits(tmp_path: Path) -> None:
    mine, theirs = build(dtype="bfloat16"), build(dtype="bfloat16")
    train(mine, 0, 2)
    load_unbuilt(save(tmp_path / "s", {"model": mine}), {"model": theirs})
    one, two = (each.layers[0].kernel.value.detach() for each in (mine, theirs))
    assert str(one.dtype) == "torch.bfloat16" and one.equal(two)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: keras.Sequential([keras.layers.Dense(2)]), "is not built and has no variables"),
        (lambda: keras.optimizers.Adam(), "call build(model.trainable_variables)"),
    ],
)
def test_a_layer_without_variables_is_refused(tmp_path: Path, make: Any, says: str) -> None:
    with pytest.raises(StateError) as caught:
        save(tmp_path / "s", {"x": make()})
    assert "state['x']" in str(caught.value) and says in str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (lambda: build(width=5), "kernel is (4, 5) of float32: the checkpoint holds"),
        (lambda: build(dtype="float64"), "kernel is (4, 3) of float64: the checkpoint holds"),
        (lambda: build("sgd"), "state['m'].optimizer has"),
        (lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]), "is not compiled"),
        (lambda: {}, "is dict: the checkpoint holds a Keras Layer"),
    ],
)
def test_a_mismatch_is_refused_by_name(tmp_path: Path, theirs: Any, says: str) -> None:
    with pytest.raises(DoesNotFit) as caught:
        load_unbuilt(save(tmp_path / "s", {"m": build()}), {"m": theirs()})
    assert "state['m']" in str(caught.value) and says in str(caught.value)


def test_capturing_twice_is_the_same(tmp_path: Path) -> None:
    model = build()
    train(model, 0, 1)
    assert same({"m": model}, {"m": model}) is None


class Average:
    """A value of one's own, without state_dict()."""

    def __init__(self) -> None:
        self.value = np.zeros(2)


class Smooth(keras.layers.Layer):
    """A layer that keeps numbers, arrays and containers beside its variables."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.calls, self.mean = 0, np.zeros(2)
        self.seen: list[Any] = []
        self.counts = {"rows": 0}
        self.bag: set[int] = set()
        self.own = Average()

    def build(self, shape: Any) -> None:
        self.dense.build(shape)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def note(self, number: int) -> None:
        self.calls += 1
        self.mean = 0.5 * self.mean + number
        self.seen.append([number, np.full(2, number)])
        self.counts["rows"] += number
        self.bag.add(number)


class Last(keras.metrics.Metric):
    """A metric without variables."""

    def __init__(self) -> None:
        super().__init__()
        self.value = 0.0

    def update_state(self, *values: Any) -> None:
        self.value = float(values[0])

    def result(self) -> float:
        return self.value


class Counted(keras.optimizers.SGD):
    def __init__(self) -> None:
        super().__init__(0.1)
        self.calls = 0


def with_own() -> dict[str, Any]:
    inner = Smooth()
    model = keras.Sequential([keras.Input((3,)), inner])
    optimizer = Counted()
    optimizer.build(model.trainable_variables)
    return {"model": model, "optimizer": optimizer, "metric": Last()}


def change(parts: dict[str, Any], number: int) -> None:
    parts["model"].layers[-1].note(number)
    parts["metric"].update_state(number)
    parts["optimizer"].calls += number


@pytest.mark.parametrize("theirs_changed", [False, True])
def test_attributes_of_the_programs_own_classes_are_saved(
    tmp_path: Path, theirs_changed: bool
) -> None:
    mine, theirs = with_own(), with_own()
    begun = state.survey(mine)
    for number in (1, 2):
        change(mine, number)
    nodes, blobs = state.capture_all(mine, begun)
    snapshot.write(tmp_path / "s", snapshot.Saved(2, {}, nodes, blobs))
    if theirs_changed:
        change(theirs, 7)
    saved = snapshot.read(tmp_path / "s")
    state.restore_all(theirs, saved.nodes, saved.blobs)
    again = state.capture_all(theirs)
    assert verify.difference((saved.nodes, saved.blobs), again, moved=True) is None
    for parts in (mine, theirs):
        change(parts, 3)
    one, two = (parts["model"].layers[-1] for parts in (mine, theirs))
    assert (one.calls, one.counts, one.bag) == (two.calls, two.counts, two.bag)
    assert one.mean.tobytes() == two.mean.tobytes()
    assert [(a, b.tolist()) for a, b in one.seen] == [(a, b.tolist()) for a, b in two.seen]
    assert mine["metric"].value == theirs["metric"].value == 3.0
    assert mine["optimizer"].calls == theirs["optimizer"].calls == 6


def test_a_changing_attribute_that_cannot_be_saved_is_refused_by_name() -> None:
    mine = with_own()
    begun = state.survey(mine)
    mine["model"].layers[-1].own.value += 1
    with pytest.raises(
        StateError, match=r"own\.value changes during training, and is in an object"
    ):
        state.capture_all(mine, begun)


def test_a_model_of_keras_own_classes_has_no_attributes(tmp_path: Path) -> None:
    model = build()
    train(model, 0, 2)
    nodes, _ = state.capture_all({"model": model})
    assert "attributes" not in nodes["model"]


@pytest.mark.parametrize("base", ["Model", "Layer", "Metric", "Optimizer"])
def test_a_look_at_attributes_touches_no_generator_and_no_name(base: str) -> None:
    keras_attributes._of_keras.cache_clear()
    before, torchs = random.getstate(), torch.get_rng_state()
    keras.layers.Dense(1)
    first = int(keras.layers.Dense(1).name.rpartition("_")[2])
    between = random.getstate()
    keras_attributes._of_keras(base)
    assert random.getstate() == between and torch.equal(torch.get_rng_state(), torchs)
    assert keras.layers.Dense(1).name == f"dense_{first + 1}"
    random.setstate(before)
