"""Values and decisions of a sweep: each is created once and counts from then on."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast.base.retry import ONCE
from outlast.bucket import rungs
from outlast.bucket.layout import Choice, RungDecision, RungValue, SweepLayout
from outlast.bucket.store import Forbidden, MemoryStore, Operation, Unavailable
from outlast.spec.sweep_rules import SweepRules

LAYOUT = SweepLayout("lr")
RULES = SweepRules.parse(
    {"name": "lr", "metric": "acc", "goal": "max", "rule": "halving", "minStep": 10, "eta": 2}
)


class Clock:
    """Each write is `step` later than the one before."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 11, 30, tzinfo=UTC)
        self.step = timedelta(seconds=1)

    def __call__(self) -> datetime:
        self.moment += self.step
        return self.moment


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=Clock())


def value(run: str, number: float | None, rung: int = 10) -> RungValue:
    return RungValue(run, rung, rung, number, number, number)


def arrive(store: MemoryStore, run: str, number: float | None) -> RungValue:
    return rungs.record_value(store, LAYOUT, value(run, number), patience=ONCE)


def decide(store: MemoryStore, found: RungValue, resume: int = 0) -> RungDecision:
    return rungs.decide(store, LAYOUT, found, RULES, resume=resume, patience=ONCE)


def test_where_the_objects_are(store: MemoryStore) -> None:
    decide(store, arrive(store, "a", 1.0))
    assert [found.path for found in store.list("")] == [
        "sweeps/lr/decisions/000000000010/a.json",
        "sweeps/lr/rungs/000000000010/a.json",
    ]


def test_the_first_value_counts(store: MemoryStore) -> None:
    first = arrive(store, "a", 1.0)
    assert arrive(store, "a", 2.0) == first == value("a", 1.0)


def test_only_values_that_came_before_count(store: MemoryStore) -> None:
    """A trial that is interrupted between its value and its decision decides as it would have."""
    b, c = arrive(store, "b", 2.0), arrive(store, "c", 1.0)
    late = arrive(store, "a", 3.0)
    decided = decide(store, b)
    assert (decided.choice, decided.others) == (Choice.CONTINUE, ())
    assert decide(store, c).choice is Choice.STOP
    assert [other.run for other in decide(store, late).others] == ["b", "c"]


def test_values_of_the_same_moment_are_in_the_order_of_their_names(store: MemoryStore) -> None:
    clock = Clock()
    clock.step = timedelta()
    store = MemoryStore(clock=clock)
    found = {run: arrive(store, run, 1.0) for run in ("c", "a", "b")}
    others = {run: [other.run for other in decide(store, found[run]).others] for run in found}
    assert others == {"a": [], "b": ["a"], "c": ["a", "b"]}


def test_a_decision_never_changes(store: MemoryStore) -> None:
    mine = arrive(store, "a", 1.0)
    first = decide(store, mine)
    changed = SweepRules.parse({**RULES.as_setting(), "goal": "min"})
    again = rungs.decide(store, LAYOUT, mine, changed, resume=3, patience=ONCE)
    assert again == first and first.rules == RULES.as_setting() and first.resume == 0


@pytest.mark.parametrize("applied", [True, False])
def test_an_answer_that_is_lost_changes_nothing(applied: bool) -> None:
    """Also where a second write over the object would be refused with 403."""
    base = MemoryStore(clock=Clock())
    lost: list[str] = []

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb != "put":
            return perform()
        there = {found.path for found in base.list("")}
        if operation.path in there:
            raise Forbidden("may not replace")
        if operation.path not in lost:
            lost.append(operation.path)
            if applied:
                perform()
            raise Unavailable("the answer was lost")
        return perform()

    store = base.view(around)
    mine = rungs.record_value(store, LAYOUT, value("a", 1.0))
    decided = rungs.decide(store, LAYOUT, mine, RULES)
    assert (mine, decided.choice, len(lost)) == (value("a", 1.0), Choice.CONTINUE, 2)


def test_two_attempts_that_decide_at_once_agree(store: MemoryStore) -> None:
    """The other one decides between this one's look and its write."""
    arrive(store, "z", 9.0)
    mine = arrive(store, "a", 1.0)
    theirs: list[RungDecision] = []

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "put" and not theirs:
            theirs.append(decide(store, mine, resume=7))
        return perform()

    decided = rungs.decide(store.view(around), LAYOUT, mine, RULES, patience=ONCE)
    assert decided == theirs[0] and decided.resume == 7


def test_what_is_not_a_value_of_its_name_does_not_count(store: MemoryStore) -> None:
    store.put(LAYOUT.value(10, "x"), b"not JSON")
    store.put(LAYOUT.value(10, "y"), value("other", 9.0).to_json())
    store.put(LAYOUT.value(10, "w"), value("w", 9.0, rung=20).to_json())
    arrive(store, "b", 0.5)
    decided = decide(store, arrive(store, "a", 1.0))
    assert [other.run for other in decided.others] == ["b"]


def test_the_decisions_of_one_trial(store: MemoryStore) -> None:
    for rung in (40, 10):
        for run in ("a", "b"):
            mine = rungs.record_value(store, LAYOUT, value(run, 1.0, rung))
            rungs.decide(store, LAYOUT, mine, RULES)
    store.put(f"{LAYOUT.decisions}strange/a.json", b"{}")
    assert [one.rung for one in rungs.decisions_of(store, LAYOUT, "b")] == [10, 40]
    assert rungs.decisions_of(store, LAYOUT, "c") == []


def test_the_name_of_a_sweep_is_checked() -> None:
    with pytest.raises(ValueError, match="sweep '../x': is not a sweep's name"):
        SweepLayout("../x")
