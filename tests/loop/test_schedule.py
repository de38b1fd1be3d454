"""When snapshots are due."""

import pytest

from outlast.loop import schedule
from outlast.loop.schedule import Every, Schedule


@pytest.mark.parametrize(
    ("text", "every"),
    [("auto", Every()), ("30s", Every(seconds=30)), ("0.5s", Every(seconds=0.5)),
     ("200", Every(steps=200))],
)  # fmt: skip
def test_the_three_forms(text: str, every: Every) -> None:
    assert schedule.parse(text) == every


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "5m", "1e3", "always", "3.5", " 5s", "5 s"])
def test_anything_else_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match="must be auto, seconds such as 30s, or steps such as 200"):
        schedule.parse(text)


def taken_at(every: str, *, cost_sec: float, until_sec: int) -> list[int]:
    """Seconds at which snapshots are taken by a loop with a step boundary a second."""
    plan = Schedule(schedule.parse(every), now_sec=0.0, step=0)
    times = []
    for now in range(1, until_sec + 1):
        if plan.due(now_sec=now, step=now):
            plan.taken(now_sec=now, step=now, cost_sec=cost_sec)
            times.append(now)
    return times


def test_auto_is_early_first_and_then_every_minute() -> None:
    assert taken_at("auto", cost_sec=0.01, until_sec=260) == [5, 15, 35, 75, 135, 195, 255]


def test_auto_never_costs_more_than_a_twentieth() -> None:
    times = taken_at("auto", cost_sec=10, until_sec=1000)
    assert times == [5, 205, 405, 605, 805]


def test_seconds_and_steps_are_what_they_say() -> None:
    assert taken_at("30s", cost_sec=9, until_sec=100) == [30, 60, 90]
    assert taken_at("40", cost_sec=9, until_sec=100) == [40, 80]


def test_steps_missed_while_busy_are_due_at_the_next_boundary() -> None:
    plan = Schedule(schedule.parse("10"), now_sec=0.0, step=0)
    assert [step for step in range(8, 13) if plan.due(now_sec=0, step=step)] == [10, 11, 12]
    plan.taken(now_sec=0, step=12, cost_sec=0)
    assert [step for step in range(12, 24) if plan.due(now_sec=0, step=step)] == [20, 21, 22, 23]


def test_the_same_step_is_never_due_twice() -> None:
    plan = Schedule(schedule.parse("1s"), now_sec=0.0, step=7)
    assert not plan.due(now_sec=100, step=7)
    assert plan.due(now_sec=100, step=8)
