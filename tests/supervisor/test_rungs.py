"""A trial of a sweep compares itself at its rungs, and ends itself if it is to stop."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.base.exits import Reason, State
from outlast.bucket import rungs
from outlast.bucket.layout import Choice, EndCopy, RungDecision, RungValue, SweepLayout
from outlast.bucket.records import read_record
from outlast.bucket.store import Forbidden, MemoryStore, Operation, Store, Unavailable
from outlast.protocol import Stop
from outlast.spec.run_spec import RunSpec
from outlast.spec.sweep_rules import Measured, SweepRules
from outlast.supervisor.rungs import Course
from tests.supervisor.world import LAYOUT, SPEC, Life, World, a_world, wait_until

SWEEP = SweepLayout("lr")
SETTING = {
    "name": "lr",
    "metric": "acc",
    "goal": "max",
    "rule": "halving",
    "rungs": [5, 20],
    "eta": 2,
}
RUN = LAYOUT.run


def rules(**changes: Any) -> SweepRules:
    return SweepRules.parse({**SETTING, **changes})


def trial(resume: int = 0, **changes: Any) -> RunSpec:
    return replace(SPEC, sweep_rules=rules(**changes), resume=resume)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as world:
        yield world


def arrived(world: World, number: float, run: str = "other", rung: int = 5) -> None:
    """Another trial has reached the rung."""
    value = RungValue(run, rung, rung, number, number, number)
    rungs.record_value(world.store, SWEEP, value)


def log(life: Life, *values: Any, name: str = "acc") -> None:
    """A step with a row for each value; None is a step without."""
    with open(life.welcome.rows, "a") as rows:
        for value in values:
            life.step += 1
            row = {"step": life.welcome.before + life.step}
            rows.write(json.dumps(row if value is None else {**row, name: value}) + "\n")


def decided(world: World, rung: int = 5) -> RungDecision | None:
    return read_record(world.store, SWEEP.decision(rung, RUN), RungDecision)


def recorded(world: World, rung: int = 5) -> RungValue | None:
    return read_record(world.store, SWEEP.value(rung, RUN), RungValue)


def until_decided(world: World, rung: int = 5) -> RungDecision:
    return wait_until(lambda: decided(world, rung), f"the decision at rung {rung}")


def warnings(world: World, term: int = 1) -> list[str]:
    heartbeat = world.heartbeat_of(term)
    assert heartbeat is not None
    return list(heartbeat.warnings)


# -- the metric, row by row


def row(step: int, **values: Any) -> dict[str, Any]:
    return {"step": step, **values}


def test_a_rung_is_passed_by_its_own_row_or_a_later_one() -> None:
    course = Course(rules())
    assert course.add(row(4, acc=0.5)) == []
    (reached,) = course.add(row(5, loss=1.0))
    assert (reached.rung, reached.step, reached.measured) == (5, 4, Measured(0.5, 0.5, 0.5))
    (reached,) = course.add(row(30, acc=9.0))
    assert (reached.rung, reached.step, reached.measured) == (20, 4, Measured(0.5, 0.5, 0.5))


def test_the_best_and_the_average_so_far() -> None:
    course = Course(rules(goal="min"))
    for step, value in enumerate((4.0, 1.0, 2.0, None), 1):
        course.add(row(step, acc=value))
    (reached,) = course.add(row(5, acc=3))
    assert reached.measured == Measured(3.0, 1.0, 2.5)


@pytest.mark.parametrize("value", [None, 2**1030])
def test_a_value_that_is_not_finite(value: Any) -> None:
    course = Course(rules())
    course.add(row(1, acc=2.0))
    (reached,) = course.add(row(5, acc=value))
    assert reached.measured == Measured(None, 2.0, 2.0)


@pytest.mark.parametrize("value", ["high", True, [1.0]])
def test_a_value_that_is_not_a_number_does_not_count(value: Any) -> None:
    course = Course(rules())
    (reached,) = course.add(row(5, acc=value))
    assert (reached.measured, course.strange) == (None, value)


def test_a_part_has_its_own_steps() -> None:
    course = Course(rules(metric="b/acc"))
    assert course.add(row(7, part=["a", 0], acc=9.0)) == []
    assert course.add(row(14, part=["b", 10], acc=0.5)) == []
    (reached,) = course.add(row(15, part=["b", 10], acc=0.6))
    assert (reached.rung, reached.step) == (5, 5)
    assert reached.measured == Measured(0.6, 0.6, 0.55)


def test_a_name_may_have_a_slash_without_parts() -> None:
    course = Course(rules(metric="val/acc"))
    (reached,) = course.add({"step": 5, "val/acc": 0.5})
    assert reached.measured is not None


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=5, max_size=30))
def test_the_same_rows_give_the_same_bits(values: list[float]) -> None:
    """However they are written and read: rows are JSON."""
    first, second = Course(rules()), Course(rules())
    for step, value in enumerate(values, 1):
        written = row(step, acc=value)
        once, again = first.add(written), second.add(json.loads(json.dumps(written)))
        assert once == again
        for reached in once:
            assert reached.measured is not None and reached.measured.value == value
            mean = reached.measured.mean
            assert mean is None or math.isfinite(mean)


@pytest.mark.parametrize("strange", [{}, {"step": "5"}, {"step": True}, {"step": 5.0, "acc": 1}])
def test_what_is_not_a_row_changes_nothing(strange: dict[str, Any]) -> None:
    assert Course(rules()).add(strange) == []


# -- a trial


def test_a_trial_that_is_worse_ends_as_pruned(world: World) -> None:
    arrived(world, 0.9)

    def script(life: Life) -> int:
        log(life, 0.1, 0.2, 0.3)
        life.commit()
        log(life, 0.4, 0.5)
        until_decided(world)
        log(life, 0.6)
        return life.obey()

    vm = world.boot(script, spec=trial())
    assert vm.run() == 0
    why = "rung 5 of sweep lr: acc 0.5 is worse than 0.9, the last of the best 1 among 2 trials"
    head = world.head
    assert head.state is State.PRUNED and head.end is not None
    assert (head.end.reason, head.end.step, head.end.why) == (Reason.PRUNED, 6, why)
    assert (head.end.result, head.failures) == (None, 0)
    assert [entry.step for entry in head.chain] == [3, 6]
    assert world.steps() == [1, 2, 3, 4, 5, 6]
    end = world.end_of(1)
    assert (end.reason, end.state, end.message) == (Reason.PRUNED, State.PRUNED, why)
    copy = read_record(world.store, LAYOUT.end(0), EndCopy)
    assert copy is not None and (copy.state, copy.why) == (State.PRUNED, why)
    assert world.cloud.groups["group"] == []
    assert recorded(world) == RungValue(RUN, 5, 5, 0.5, 0.5, (0.1 + 0.2 + 0.3 + 0.4 + 0.5) / 5)


def test_a_trial_that_is_better_trains_to_its_end(world: World) -> None:
    arrived(world, 0.1)

    def script(life: Life) -> int:
        log(life, *[0.5] * 5)
        until_decided(world)
        log(life, *[0.5] * 20)
        until_decided(world, 20)
        return life.complete()

    assert world.boot(script, spec=trial()).run() == 0
    assert world.head.state is State.DONE
    assert [one.choice for one in rungs.decisions_of(world.store, SWEEP, RUN)] == [
        Choice.CONTINUE,
        Choice.CONTINUE,
    ]
    assert warnings(world) == []


def test_the_median_rule(world: World) -> None:
    for run, mean in (("a", 0.4), ("b", 0.6), ("c", 0.8)):
        value = RungValue(run, 5, 5, 0.0, 0.9, mean)
        rungs.record_value(world.store, SWEEP, value)

    def script(life: Life) -> int:
        log(life, 0.59, 0.1, 0.1, 0.1, 0.1)
        return life.obey()

    assert world.boot(script, spec=trial(rule="median", startup=3)).run() == 0
    assert world.head.end is not None and world.head.end.why == (
        "rung 5 of sweep lr: best acc 0.59 is worse than 0.6, the median of the averages of 3 other"
        " trials"
    )


def test_a_decision_is_obeyed_before_anything_is_trained(world: World) -> None:
    """The machine of an earlier attempt was lost between its decision and its end."""
    arrived(world, 0.9)

    def lost(life: Life) -> int:
        log(life, 0.1)
        life.commit()
        life.hear(Stop)
        return 75

    vm = world.boot(lost, spec=trial()).start()
    vm.terminate()
    assert vm.ended() == 75
    mine = rungs.record_value(world.store, SWEEP, RungValue(RUN, 5, 5, 0.5, 0.5, 0.3))
    decision = rungs.decide(world.store, SWEEP, mine, rules())
    again = world.boot(spec=trial())
    assert again.run() == 0 and again.trainers == []
    head = world.head
    assert head.state is State.PRUNED and head.end is not None
    assert (head.end.step, head.end.why) == (1, decision.why)


def test_a_resume_overrules_the_decision_and_compares_later_rungs(world: World) -> None:
    arrived(world, 0.9)
    arrived(world, 0.1, rung=20)

    def pruned(life: Life) -> int:
        log(life, *[0.5] * 5)
        life.commit()
        return life.obey()

    assert world.boot(pruned, spec=trial()).run() == 0
    assert world.head.state is State.PRUNED

    def continued(life: Life) -> int:
        assert life.restored == {"step": 5}
        log(life, *[0.5] * 15)
        until_decided(world, 20)
        return life.complete()

    assert world.boot(continued, spec=trial(resume=1)).run() == 0
    assert (world.head.state, world.head.resume) == (State.DONE, 1)
    first, second = rungs.decisions_of(world.store, SWEEP, RUN)
    assert (first.choice, first.resume) == (Choice.STOP, 0)
    assert (second.choice, second.resume) == (Choice.CONTINUE, 1)


def test_between_value_and_decision_only_earlier_arrivals_count(world: World) -> None:
    """An undisturbed trial would have continued: it was the first at the rung."""

    def lost(life: Life) -> int:
        log(life, *[0.5] * 5)
        life.commit()
        life.hear(Stop)
        return 75

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "put" and operation.path.startswith(SWEEP.decisions):
            raise Unavailable("never answers")
        return perform()

    assert isinstance(world.store, MemoryStore)
    vm = world.boot(lost, spec=trial(), store=world.store.view(around)).start()
    wait_until(lambda: recorded(world), "the value")
    vm.terminate()
    assert vm.ended() == 75 and decided(world) is None
    arrived(world, 0.9)

    def resumed(life: Life) -> int:
        until_decided(world)
        return life.complete()

    assert world.boot(resumed, spec=trial()).run() == 0
    decision = decided(world)
    assert decision is not None and (decision.choice, decision.others) == (Choice.CONTINUE, ())


def test_an_average_covers_all_attempts(world: World) -> None:
    """Rows after the checkpoint are repeated, and count once."""

    def lost(life: Life) -> int:
        log(life, 1.0, 2.0)
        life.commit()
        log(life, 100.0)
        life.hear(Stop)
        return 75

    vm = world.boot(lost, spec=trial()).start()
    vm.terminate()
    assert vm.ended() == 75

    def resumed(life: Life) -> int:
        log(life, 3.0, 4.0, 5.0)
        until_decided(world)
        return life.complete()

    assert world.boot(resumed, spec=trial()).run() == 0
    assert recorded(world) == RungValue(RUN, 5, 5, 5.0, 5.0, 3.0)


def test_a_trainer_that_does_not_repeat_itself_is_reported(world: World) -> None:
    def script(life: Life) -> int:
        log(life, *[0.5] * 5)
        until_decided(world)
        return life.complete()

    rungs.record_value(world.store, SWEEP, RungValue(RUN, 5, 5, 0.75, 0.75, 0.5))
    assert world.boot(script, spec=trial()).run() == 0
    assert recorded(world) == RungValue(RUN, 5, 5, 0.75, 0.75, 0.5)
    (warning,) = warnings(world)
    assert warning == (
        "sweep lr: rung 5: an earlier attempt recorded 0.75 (best 0.75, average 0.5) at step 5,"
        " this one has 0.5 (best 0.5, average 0.5) at step 5; the first counts (the trainer does"
        " not repeat itself exactly, or its arguments were changed)"
    )


def test_the_last_step_decides_nothing(world: World) -> None:
    """The scripted trainer announces 100 steps."""
    arrived(world, 0.9, rung=100)

    def script(life: Life) -> int:
        log(life, *[0.5] * 100)
        wait_until(lambda: recorded(world, 100), "the value")
        return life.complete()

    assert world.boot(script, spec=trial(rungs=[100])).run() == 0
    assert world.head.state is State.DONE and decided(world, 100) is None


def test_without_a_rule_values_are_recorded_and_nothing_stops(world: World) -> None:
    arrived(world, 0.9)

    def script(life: Life) -> int:
        log(life, *[0.5] * 5)
        return life.complete()

    assert world.boot(script, spec=trial(rule="none")).run() == 0
    assert world.head.state is State.DONE
    assert recorded(world) is not None and decided(world) is None


@pytest.mark.parametrize(
    ("values", "name", "said"),
    [
        ([0.5] * 6, "accu", "metric acc has no value up to rung 5; did you mean accu?"),
        ([0.5] * 6, "loss", "metric acc has no value up to rung 5; logged are loss"),
        (["x"] * 6, "acc", "metric acc is 'x', which is not a number"),
        ([], "acc", "metric acc has no value at any step; the trainer logs no rows"),
    ],
)
def test_a_metric_that_never_appears_is_a_warning(
    world: World, values: list[Any], name: str, said: str
) -> None:
    def script(life: Life) -> int:
        log(life, *values, name=name)
        return life.complete()

    assert world.boot(script, spec=trial()).run() == 0
    assert world.head.state is State.DONE and recorded(world) is None
    assert warnings(world)[0] == f"sweep lr: {said}; the trial is not compared there, and trains on"


def test_a_sweep_that_cannot_be_reached_costs_no_run(world: World) -> None:
    arrived(world, 0.9)

    def script(life: Life) -> int:
        log(life, *[0.5] * 5)
        life.commit()
        wait_until(lambda: any("rung 5 could not" in text for text in warned()), "the warning")
        log(life, 0.5)
        return life.complete()

    def warned() -> list[str]:
        heartbeat = world.heartbeat_of(1)
        return list(heartbeat.warnings) if heartbeat else []

    assert world.boot(script, spec=trial(), store=forbidding(world.store)).run() == 0
    assert world.head.state is State.DONE
    assert any(
        text.startswith("sweep lr: rung 5 could not be compared (")
        and text.endswith("training continues, and it is tried again at the next rung")
        for text in warned()
    )


def forbidding(store: Store) -> Store:
    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.path.startswith("sweeps/"):
            raise Forbidden(f"{operation.path}: 403")
        return perform()

    assert isinstance(store, MemoryStore)
    return store.view(around)


def test_a_rung_that_failed_is_compared_at_the_next_one(world: World) -> None:
    arrived(world, 0.9)
    down = True

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if down and operation.path.startswith("sweeps/"):
            raise Forbidden(f"{operation.path}: 403")
        return perform()

    def script(life: Life) -> int:
        nonlocal down
        log(life, *[0.5] * 5)
        wait_until(
            lambda: (found := world.heartbeat_of(1)) and any("rung 5" in w for w in found.warnings),
            "the warning",
        )
        down = False
        log(life, *[0.95] * 15)
        return life.obey()

    assert isinstance(world.store, MemoryStore)
    assert world.boot(script, spec=trial(), store=world.store.view(around)).run() == 0
    assert world.head.state is State.PRUNED
    assert world.head.end is not None and "rung 5 of sweep lr" in world.head.end.why


def test_a_machine_that_stops_leaves_the_end_to_its_successor(world: World) -> None:
    """The decision comes while the trainer hands over its state after a notice."""
    arrived(world, 0.9)

    def script(life: Life) -> int:
        life.hear(Stop)
        log(life, *[0.5] * 5)
        until_decided(world)
        life.commit()
        return 75

    vm = world.boot(script, spec=trial()).start()
    vm.terminate()
    assert vm.ended() == 75
    assert world.end_of(1).reason is Reason.INTERRUPTED and world.head.state is State.OPEN
    again = world.boot(spec=trial())
    assert again.run() == 0 and again.trainers == []
    assert world.head.state is State.PRUNED


def test_a_trainer_that_completes_first_is_done(world: World) -> None:
    """A result that is there is worth more than a decision."""
    arrived(world, 0.9)

    def script(life: Life) -> int:
        log(life, *[0.5] * 5)
        life.hear(Stop)
        return life.complete()

    assert world.boot(script, spec=trial()).run() == 0
    assert world.head.state is State.DONE
    decision = decided(world)
    assert decision is not None and decision.choice is Choice.STOP


def test_values_of_the_last_rungs_are_kept_for_the_others(world: World) -> None:
    """A trainer that is faster than the look at its rows."""

    def script(life: Life) -> int:
        log(life, *[0.5] * 30)
        return life.complete()

    assert world.boot(script, spec=trial()).run() == 0
    assert recorded(world, 5) is not None and recorded(world, 20) is not None
