"""Global random generators that steps use: saved in any form, or refused by name."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import outlast
from outlast import protocol
from outlast.loop import DoesNotFit
from tests.loop.fake_supervisor import FakeSupervisor

DRAWS: dict[str, Callable[[], object]] = {
    "random": random.random,
    "numpy.random": lambda: np.random.rand(),
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    random.seed(1)
    np.random.seed(1)


class Own:
    """A program's own object around a generator."""

    def __init__(self, give: Callable[[], Any], take: Callable[[Any], None]) -> None:
        self.state_dict = lambda: {"position": give()}
        self.load_state_dict = lambda values: take(values["position"])


def words() -> list[int]:
    return list(random.getstate()[1])


SAVED: dict[str, tuple[str, Callable[[], object]]] = {
    "random itself": ("random", lambda: random),
    "numpy.random itself": ("numpy.random", lambda: np.random),
    "in a list": ("numpy.random", lambda: [np.random, random]),
    "a tuple": ("random", lambda: Own(random.getstate, random.setstate)),
    "an array": (
        "random",
        lambda: Own(
            lambda: np.array(words()),
            lambda held: random.setstate((3, tuple(map(int, held)), None)),
        ),
    ),
    "numpy's dict": (
        "numpy.random",
        lambda: Own(lambda: np.random.get_state(legacy=False), np.random.set_state),
    ),
}


def train(
    supervisor: FakeSupervisor,
    draw: Callable[[], object],
    *constant: str,
    steps: int = 4,
    last: int = 4,
    **state: Any,
) -> list[str]:
    """Train up to a step; what was said in warnings."""
    box = {"n": 0}
    with outlast.train({"box": box, **state}, steps, constant=constant) as run:
        for step in run.steps():
            box["n"] += 1
            draw()
            assert run._side.session.wait_committed(5)
            if step == last:
                run.finish("enough")
    assert supervisor.gone.wait(60)
    return [said.message for said in supervisor.of(protocol.Warn)]


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_that_is_not_saved_is_named_and_a_resume_is_refused(
    supervisor: FakeSupervisor, name: str
) -> None:
    (said,) = train(supervisor, DRAWS[name])
    assert said.startswith(f"the steps draw from {name}, which the state lacks: ")
    supervisor.resume_from(1)
    refused = f"the 2 steps before this checkpoint drew from {name}, .* constant=.'{name}'"
    with pytest.raises(DoesNotFit, match=refused):
        train(supervisor, DRAWS[name])
    supervisor.resume_from(1)
    assert train(supervisor, DRAWS[name], name) == []
    # The declaration does not make what was drawn saved: without it, the next one is refused, too.
    supervisor.resume_from(-2)
    with pytest.raises(DoesNotFit, match=f"drew from {name}"):
        train(supervisor, DRAWS[name])


@pytest.mark.parametrize("form", SAVED)
def test_a_generator_that_is_saved_in_any_form_passes(
    supervisor: FakeSupervisor, form: str
) -> None:
    name, make = SAVED[form]
    assert train(supervisor, DRAWS[name], rng=make()) == []
    drawn = DRAWS[name]()
    supervisor.resume_from(1)
    assert train(supervisor, DRAWS[name], rng=make()) == []
    assert DRAWS[name]() == drawn


def test_a_generator_used_only_at_the_start_passes(supervisor: FakeSupervisor) -> None:
    """A resumed program draws it again."""
    np.random.rand(3)
    random.random()
    assert train(supervisor, lambda: None) == []
    supervisor.resume_from(1)
    assert train(supervisor, lambda: None) == []


def test_a_draw_late_in_the_training_is_named_with_the_next_snapshot(
    supervisor: FakeSupervisor,
) -> None:
    count = iter(range(100))
    (said,) = train(
        supervisor, lambda: random.random() if next(count) == 20 else None, steps=30, last=30
    )
    assert said.startswith("the steps draw from random, ")


@pytest.mark.frameworks
def test_torchs_generator_is_named_like_the_others(supervisor: FakeSupervisor) -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.zeros(8, 1))
    loader = torch.utils.data.DataLoader(data, shuffle=True)

    def draw() -> None:
        next(iter(loader))

    (said,) = train(supervisor, draw)
    assert said.startswith("the steps draw from torch.random, which the state lacks: ")
    supervisor.resume_from(1)
    with pytest.raises(DoesNotFit, match="drew from torch.random"):
        train(supervisor, draw)
    own = Own(torch.get_rng_state, torch.set_rng_state)
    for rng in (
        torch.random,
        torch.default_generator,
        own,
        Own(
            lambda: torch.get_rng_state().tolist(),
            lambda held: torch.set_rng_state(torch.tensor(held, dtype=torch.uint8)),
        ),
    ):
        supervisor.restore, supervisor.step = None, 0
        assert train(supervisor, draw, rng=rng) == []


def test_outlasts_own_pauses_draw_nothing() -> None:
    from outlast.base import retry

    before = random.getstate()
    retry.jittered(1.0)
    assert random.getstate() == before


@pytest.mark.frameworks
def test_keras_global_generator_is_named_and_saved_by_its_module(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    keras.utils.clear_session()

    def draw() -> Any:
        return keras.random.normal((2,))

    draw()  # the first draw takes its seed from Python's generator
    (said,) = train(supervisor, draw)
    assert said.startswith("the steps draw from keras.random, which the state lacks: ")
    supervisor.resume_from(1)
    with pytest.raises(DoesNotFit, match="drew from keras.random"):
        train(supervisor, draw)
    supervisor.resume_from(1)
    assert train(supervisor, draw, "keras.random") == []
    for start in ("a generator", "none"):
        supervisor.restore, supervisor.step = None, 0
        supervisor.committed.clear()
        if start == "none":
            keras.utils.clear_session()
        assert train(supervisor, draw, rng=keras.random) == []
        drawn = draw().tolist()
        keras.utils.clear_session()  # as in another process
        supervisor.resume_from(1)
        assert train(supervisor, draw, rng=keras.random) == []
        assert draw().tolist() == drawn
