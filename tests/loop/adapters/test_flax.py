"""Flax: nnx modules in place, as a state that is split off, and the training state of linen."""

from pathlib import Path
from typing import Any

import pytest

from outlast.loop import snapshot, state, verify
from outlast.loop.errors import DoesNotFit, StateError
from tests.loop.adapters.through import same

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
nnx = pytest.importorskip("flax.nnx")
pytestmark = pytest.mark.frameworks
import jax.numpy as jnp  # noqa: E402

ROWS = jnp.linspace(-1, 1, 8).reshape(4, 2)


class Network(nnx.Module):
    """Everything that nnx has: parameters, statistics, random numbers, a tie, plain attributes."""

    def __init__(self, rngs: Any, hidden: int = 3) -> None:
        self.first = nnx.Linear(2, hidden, rngs=rngs)
        self.norm = nnx.BatchNorm(hidden, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(hidden, hidden, rngs=rngs), jnp.tanh])
        self.tied = self.first.kernel
        self.calls = nnx.Variable(jnp.zeros((), int))
        self.seen = nnx.data(jnp.zeros(2))
        self.factor = 1.0

    def __call__(self, x: Any) -> Any:
        self.calls[...] += 1
        self.seen = self.seen + x[0]
        self.rows = nnx.Intermediate(x)  # as sow() leaves it
        x = self.drop(self.norm(self.first(x)))
        return self.factor * (self.blocks[1](self.blocks[0](x)) @ self.tied.T)


def start(hidden: int = 3) -> dict[str, Any]:
    model = Network(nnx.Rngs(0, dropout=1), hidden)
    return {
        "model": model,
        "optimizer": nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param),
        "metric": nnx.MultiMetric(loss=nnx.metrics.Average("loss")),
        "rngs": nnx.Rngs(5),
    }


def step(parts: dict[str, Any]) -> None:
    x = ROWS + 0.1 * jax.random.normal(parts["rngs"](), ROWS.shape)
    loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).sum())(parts["model"])
    parts["optimizer"].update(parts["model"], grads)
    parts["metric"].update(loss=loss)
    parts["model"].factor *= 0.9


def through(folder: Path, mine: Any, theirs: Any, begun: Any) -> None:
    snapshot.write(folder, snapshot.Saved(3, {}, *state.capture_all(mine, begun)))
    found = snapshot.read(folder)
    state.restore_all(theirs, found.nodes, found.blobs)
    verify.check(theirs, found)


def test_modules_optimisers_metrics_and_random_numbers_resume(tmp_path: Path) -> None:
    mine, theirs = start(), start()
    held = {name: theirs["model"].first.kernel for name in ("first", "tied")}
    begun = state.survey(mine)
    state.check_top(mine)
    for _ in range(3):
        step(mine)
    mine["model"].eval()
    through(tmp_path / "s", mine, theirs, begun)
    model = theirs["model"]
    assert model.drop.deterministic and model.norm.use_running_average
    assert model.tied is model.first.kernel is held["first"] and model.factor == 0.9**3 * 1.0
    for parts in (mine, theirs):
        parts["model"].train()
        step(parts)
        step(parts)
    assert same(mine, theirs) is None
    assert mine["metric"].compute() == theirs["metric"].compute()


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    mine = start()
    begun = state.survey(mine)
    with pytest.raises(DoesNotFit, match=r"state\['model'\].\S+.bias.value is an array \(4,\)"):
        through(tmp_path / "s", mine, start(hidden=4), begun)
    theirs = start()
    theirs["model"].drop.rate = 0.1
    with pytest.raises(DoesNotFit, match=r"\['model'\] has drop.rate=0.1: the checkpoint's is 0.5"):
        through(tmp_path / "s", mine, theirs, begun)
    theirs = start()
    theirs["model"].tied = nnx.Param(jnp.ones((2, 3)))
    with pytest.raises(
        DoesNotFit, match="tied .*only in this program's or only in the checkpoint's module"
    ):
        through(tmp_path / "s", mine, theirs, begun)
    mine["model"].blocks = nnx.List([])
    with pytest.raises(StateError, match=r"Network of \d+ variables .* and was .*Network of"):
        state.capture_all(mine, begun)


def test_a_module_that_appears_is_refused() -> None:
    box: dict[str, Any] = {"best": None}
    begun = state.survey({"box": box})
    box["best"] = nnx.clone(start()["model"])
    with pytest.raises(StateError, match=r"\['best'\] is .*Network of .*did not exist when"):
        state.capture_all({"box": box}, begun)


def test_a_copy_of_the_best_model_made_before_training(tmp_path: Path) -> None:
    mine, theirs = start(), start()
    for parts in (mine, theirs):
        parts["best"] = nnx.clone(parts["model"])
    begun = state.survey(mine)
    step(mine)
    nnx.update(mine["best"], nnx.state(mine["model"], nnx.Not(nnx.Intermediate)))
    step(mine)
    through(tmp_path / "s", mine, theirs, begun)
    assert same(mine, theirs) is None and same({"m": mine["best"]}, {"m": mine["model"]})


def test_a_split_off_state_is_saved(tmp_path: Path) -> None:
    """The functional way: a dict holds the state, and a jitted function gives the next one."""

    def begin() -> tuple[Any, dict[str, Any]]:
        graph, variables = nnx.split(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
        return graph, {"model": variables, "opt": optax.adam(0.1).init(variables)}

    def advance(graph: Any, box: dict[str, Any]) -> None:
        grads = jax.grad(lambda it: (nnx.merge(graph, it)(ROWS) ** 2).sum())(box["model"])
        updates, box["opt"] = optax.adam(0.1).update(grads, box["opt"])
        box["model"] = optax.apply_updates(box["model"], updates)

    one, mine = begin()
    two, theirs = begin()
    begun = state.survey({"box": mine})
    for _ in range(3):
        advance(one, mine)
    through(tmp_path / "s", {"box": mine}, {"box": theirs}, begun)
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    for graph, box in ((one, mine), (two, theirs)):
        advance(graph, box)
    assert same({"box": mine}, {"box": theirs}) is None


def test_the_training_state_of_linen(tmp_path: Path) -> None:
    linen = pytest.importorskip("flax.linen")
    train_state = pytest.importorskip("flax.training.train_state")
    model = linen.Dense(2)

    def begin(seed: int) -> dict[str, Any]:
        params = model.init(jax.random.key(seed), ROWS)["params"]
        made = train_state.TrainState.create(
            apply_fn=model.apply, params=params, tx=optax.adam(0.1)
        )
        return {"train": made, "frozen": linen.FrozenDict({"a": {"b": jnp.full(2, float(seed))}})}

    def advance(box: dict[str, Any]) -> None:
        now = box["train"]
        grads = jax.grad(lambda p: (now.apply_fn({"params": p}, ROWS) ** 2).sum())(now.params)
        box["train"] = now.apply_gradients(grads=grads)

    mine, theirs = begin(1), begin(2)
    begun = state.survey({"box": mine})
    for _ in range(3):
        advance(mine)
    through(tmp_path / "s", {"box": mine}, {"box": theirs}, begun)
    assert theirs["train"].step == 3 and theirs["train"].tx is not mine["train"].tx
    assert theirs["frozen"]["a"]["b"].tolist() == [1, 1]
    for box in (mine, theirs):
        advance(box)
    assert same({"box": mine}, {"box": theirs}) is None
