"""Objects that the program holds, that steps change and that the state does not have: reported by
name, and a resume refused; what is saved in any form, or is as it was, passes."""

import copy
import functools
import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import outlast
from outlast import protocol
from outlast.loop import DoesNotFit, LoopError
from tests.loop.fake_supervisor import FakeSupervisor

MODULE_RNG = np.random.default_rng(3)


class Average:
    """A moving average as a program may have it."""

    def __init__(self) -> None:
        self.w = np.zeros(3)

    def update(self) -> None:
        self.w += 1

    def state_dict(self) -> dict[str, Any]:
        return {"w": self.w.copy()}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.w[:] = values["w"]


class Data:
    """Holds a generator, and is not in the state."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.parts = [self.rng]


def batches(rng: Any) -> Iterator[float]:
    while True:
        yield rng.random()


def own_batches() -> Iterator[float]:
    rng = np.random.default_rng(0)
    while True:
        yield rng.random()


def train(
    supervisor: FakeSupervisor,
    state: dict[str, Any],
    work: Callable[[int], object],
    *constant: str,
    last: int = 4,
    beside: Any = None,
) -> list[str]:
    """Train up to a step; what was said in warnings."""
    box = {"n": 0}
    with outlast.train({"box": box, **state}, 30, constant=constant) as run:
        steps = run.steps()
        for step in steps if beside is None else (pair[0] for pair in zip(steps, beside)):  # noqa: B905
            box["n"] += 1
            work(step)
            assert run._side.session.wait_committed(5)
            if step == last:
                run.finish("enough")
    assert supervisor.gone.wait(60)
    return [said.message for said in supervisor.of(protocol.Warn)]


def check_refused(
    supervisor: FakeSupervisor, place: str, work: Callable[[int], object], **state: Any
) -> None:
    (said,) = train(supervisor, state, work)
    assert said.startswith(f"the steps change {place}, "), said
    assert f"constant=[{place!r}]" in said
    supervisor.resume_from(1)
    with pytest.raises(DoesNotFit, match="2 steps before this checkpoint changed ") as caught:
        train(supervisor, state, work)
    assert f"changed {place}, " in str(caught.value)
    supervisor.resume_from(1)
    assert train(supervisor, state, work, place) == []
    # The declaration does not make it saved: without it, the next one is refused, too.
    supervisor.resume_from(-2)
    with pytest.raises(DoesNotFit):
        train(supervisor, state, work)


# Random generators.


@pytest.mark.parametrize("make", [
    lambda: np.random.default_rng(1),
    lambda: np.random.Generator(np.random.Philox(1)),
    lambda: np.random.Generator(np.random.SFC64(1)),
    lambda: np.random.RandomState(1),
    lambda: random.Random(1),
])  # fmt: skip
def test_a_generator_in_a_variable_is_named(
    supervisor: FakeSupervisor, make: Callable[[], Any]
) -> None:
    rng = make()
    draw = rng.random if hasattr(rng, "random") else rng.rand
    check_refused(supervisor, "rng", lambda step: draw())


def test_a_generator_of_a_module_is_named(supervisor: FakeSupervisor) -> None:
    check_refused(supervisor, "MODULE_RNG", lambda step: MODULE_RNG.random())


def test_a_generator_in_a_closure_is_named(supervisor: FakeSupervisor) -> None:
    def make() -> Callable[[], float]:
        inner = np.random.default_rng(0)
        return lambda: inner.random()

    draw = make()
    check_refused(supervisor, "draw.inner", lambda step: draw())


def test_a_generator_in_an_object_or_behind_others_is_named(supervisor: FakeSupervisor) -> None:
    data = Data()
    check_refused(supervisor, "data.rng", lambda step: data.rng.random())


@pytest.mark.parametrize("wrap", [
    lambda rng: functools.partial(rng.integers, 10),
    lambda rng: {"draw": [rng.random]},
])  # fmt: skip
def test_a_generator_behind_a_function_is_named(
    supervisor: FakeSupervisor, wrap: Callable[[Any], Any]
) -> None:
    held = wrap(np.random.default_rng(5))
    draw = held if callable(held) else held["draw"][0]
    (said,) = train(supervisor, {}, lambda step: draw())
    assert "a numpy.random" in said


@pytest.mark.parametrize("beside", [
    lambda: batches(np.random.default_rng(0)),
    own_batches,
    lambda: enumerate(own_batches()),
    lambda: itertools.chain([1.0], own_batches()),
])  # fmt: skip
def test_a_generator_inside_of_the_batches_is_named(
    supervisor: FakeSupervisor, beside: Callable[[], Any]
) -> None:
    (said,) = train(supervisor, {}, lambda step: None, beside=beside())
    assert ".rng, a numpy.random._generator.Generator, which the state lacks" in said


@pytest.mark.parametrize("form", ["itself", "its bit generator", "its numbers", "in a list"])
def test_a_generator_that_is_saved_in_any_form_passes(
    supervisor: FakeSupervisor, form: str
) -> None:
    rng = np.random.default_rng(1)

    class Own:
        def state_dict(self) -> dict[str, Any]:
            return {"position": rng.bit_generator.state}

        def load_state_dict(self, values: dict[str, Any]) -> None:
            rng.bit_generator.state = values["position"]

    forms: dict[str, Any] = {
        "itself": rng,
        "its bit generator": rng.bit_generator,
        "its numbers": Own(),
        "in a list": [rng],
    }
    assert train(supervisor, {"held": forms[form]}, lambda step: rng.random()) == []
    drawn = rng.random()
    supervisor.resume_from()
    assert train(supervisor, {"held": forms[form]}, lambda step: None, last=5) == []
    assert rng.random() == drawn


def test_generators_created_in_each_step_or_used_only_before_training_pass(
    supervisor: FakeSupervisor,
) -> None:
    before = np.random.default_rng(0)
    before.random()
    made = []

    def work(step: int) -> None:
        rng = np.random.default_rng(step)
        rng.random()
        made[:] = [rng, random.Random(step)]

    assert train(supervisor, {}, work, last=9) == []


class Proxy:
    """An object whose class lookup runs foreign code, which fails."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("not bound")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not bound")


def test_a_proxy_that_fails_is_left_alone(supervisor: FakeSupervisor) -> None:
    proxy, rng = Proxy(), random.Random(1)
    (said,) = train(supervisor, {}, lambda step: rng.random())
    assert said.startswith("the steps change rng, ") and type(proxy) is Proxy


# What has a state to be saved.


def test_an_average_that_is_left_out_of_the_state_is_named(supervisor: FakeSupervisor) -> None:
    average = Average()
    check_refused(supervisor, "average", lambda step: average.update())


def test_a_sampler_that_is_left_out_of_the_state_is_named(supervisor: FakeSupervisor) -> None:
    sampler = outlast.BatchSampler(10, 2)
    found = iter(sampler)
    check_refused(supervisor, "sampler", lambda step: next(found))


def test_an_object_saved_as_part_of_another_passes(supervisor: FakeSupervisor) -> None:
    average = Average()

    class Trainer:
        def __init__(self) -> None:
            self.average = average

        def state_dict(self) -> dict[str, Any]:
            return {"average": self.average.state_dict()}

        def load_state_dict(self, values: dict[str, Any]) -> None:
            self.average.load_state_dict(values["average"])

    trainer = Trainer()
    assert train(supervisor, {"trainer": trainer}, lambda step: average.update()) == []


def test_constant_and_recomputed_values_pass(supervisor: FakeSupervisor) -> None:
    teacher, kept = Average(), []

    def work(step: int) -> None:
        copied = copy.deepcopy(teacher)
        copied.update()
        kept[:] = [copied]

    assert train(supervisor, {}, work, last=6) == []


def test_a_declared_name_must_exist_in_the_program(supervisor: FakeSupervisor) -> None:
    average = Average()
    with pytest.raises(LoopError, match="constant .'averages'.: must be a list of names"):
        outlast.train({"box": {"n": 0}}, 1, constant=["averages"])
    assert train(supervisor, {}, lambda step: average.update(), "average") == []


# What an object's own state_dict leaves out.


class Trainer:
    """A program's own trainer; the test chooses what it saves."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.n, self.rate, self.mode = 0, 1.0, "warm"
        self.w, self.losses = np.zeros(3), [0.0]
        self.history: dict[str, Any] = {"best": 9.0}
        self.helper = Helper()
        self.best: float | None = None
        self.started = time.time()

    def train(self, step: int) -> None:
        self.n += 1
        self.rate /= 2
        self.mode = "main"
        self.w[:] = step
        self.losses.append(float(step))
        self.history["best"] = 1.0 / step
        self.helper.count += 1
        self.best = 2.0 / step
        self.started = time.time()

    def state_dict(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.names if name != "helper"}
        if "helper" in self.names:
            found["of helper"] = self.helper.count
        return found

    def load_state_dict(self, values: dict[str, Any]) -> None:
        for name, item in values.items():
            if name == "of helper":
                self.helper.count = item
            else:
                setattr(self, name, item)


class Helper:
    count = 0

    def __init__(self) -> None:
        self.count = 0


ALL = ("n", "rate", "mode", "w", "losses", "history", "helper", "best")
PLACES = {
    "n": ".n",
    "rate": ".rate",
    "mode": ".mode",
    "w": ".w",
    "losses": ".losses",
    "history": ".history['best']",
    "helper": ".helper.count",
    "best": ".best",
}


@pytest.mark.parametrize("left_out", ALL)
def test_values_missing_from_a_state_dict_are_named(
    supervisor: FakeSupervisor, left_out: str
) -> None:
    def make() -> Trainer:
        return Trainer(*(name for name in ALL if name != left_out))

    place = f"trainer{PLACES[left_out]}"
    first = make()
    said = train(supervisor, {"trainer": first}, first.train)
    (sentence,) = said
    assert sentence.startswith(
        f"the steps change {place}, which state_dict() or load_state_dict() leaves out: "
    )
    supervisor.resume_from(2)
    again = make()
    with pytest.raises(DoesNotFit) as caught:
        train(supervisor, {"trainer": again}, again.train, last=6)
    assert f"the 3 steps before this checkpoint changed {place}, " in str(caught.value)
    supervisor.resume_from(2)
    assert train(supervisor, {"trainer": again}, again.train, place, last=6) == []


def test_a_whole_state_dict_passes(supervisor: FakeSupervisor) -> None:
    first, again = Trainer(*ALL), Trainer(*ALL)
    assert train(supervisor, {"trainer": first}, first.train) == []
    supervisor.resume_from(2)
    assert train(supervisor, {"trainer": again}, again.train, last=6) == []
    assert (again.n, again.losses[-1], again.helper.count, again.best) == (6, 6.0, 6, 2 / 6)


class Renamed:
    """Saves all under other names, and computes a part of it when it is loaded."""

    def __init__(self) -> None:
        self._sum, self._count, self._mean = np.zeros(2), 0, 0.0
        self._seen: set[int] = set()

    def train(self, step: int) -> None:
        self._sum += step
        self._count += 1
        self._mean = float(self._sum[0]) / self._count
        self._seen.add(step)

    def state_dict(self) -> dict[str, Any]:
        return {"total": (self._sum * 2).tolist(), "steps": [self._count], "seen": len(self._seen)}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self._sum[:] = np.array(values["total"]) / 2
        (self._count,) = values["steps"]
        self._mean = float(self._sum[0]) / self._count if self._count else 0.0
        self._seen = set(range(1, values["seen"] + 1))


def test_values_saved_in_another_form_pass(supervisor: FakeSupervisor) -> None:
    first, again = Renamed(), Renamed()
    assert train(supervisor, {"average": first}, first.train) == []
    supervisor.resume_from(2)
    assert train(supervisor, {"average": again}, again.train, last=6) == []
    assert vars(again).keys() == vars(first).keys()


def test_the_trial_does_not_touch_a_live_object(supervisor: FakeSupervisor) -> None:
    first = Trainer("n")
    train(supervisor, {"trainer": first}, first.train)
    assert first.losses == [0.0, 1.0, 2.0, 3.0, 4.0] and first.w.tolist() == [4, 4, 4]
    assert first.helper.count == first.n == 4 and first.history == {"best": 0.25}
