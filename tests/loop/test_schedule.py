"""When snapshots are due."""

import pytest

from outlast.loop.schedule import Schedule, hazard_per_sec, interval_sec
from outlast.protocol import Every, parse_every


@pytest.mark.parametrize(
    ("text", "every"),
    [("auto", Every()), ("30s", Every(seconds=30)), ("0.5s", Every(seconds=0.5)),
     ("200", Every(steps=200))],
)  # fmt: skip
def test_a_rhythm_has_three_forms(text: str, every: Every) -> None:
    assert parse_every(text) == every


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "5m", "1e3", "always", "3.5", " 5s", "5 s"])
def test_anything_else_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match="must be auto, seconds such as 30s, or steps such as 200"):
        parse_every(text)


def taken_at(
    every: str,
    *,
    cost_sec: float,
    until_sec: int,
    age_sec: float = 0.0,
    commit_sec: float | None = None,
) -> list[int]:
    """Seconds at which snapshots are taken by a loop with a step boundary a second."""
    plan = Schedule(parse_every(every), now_sec=0.0, step=0, age_sec=age_sec)
    times = []
    for now in range(1, until_sec + 1):
        if plan.due(now_sec=now, step=now):
            plan.taken(now_sec=now, step=now, cost_sec=cost_sec, commit_sec=commit_sec)
            times.append(now)
    return times


HOUR = 3600.0


def test_young_machines_are_preempted_most() -> None:
    """The mixture: 0.54 of mean 0.78 h and 0.46 of mean 36 h."""
    assert 1 / hazard_per_sec(0) == pytest.approx(1 / (0.54 / 0.78 + 0.46 / 36) * HOUR)
    assert 1 / hazard_per_sec(0) == pytest.approx(1.418 * HOUR, rel=1e-3)
    assert 1 / hazard_per_sec(HOUR) == pytest.approx(2.920 * HOUR, rel=1e-3)
    assert 1 / hazard_per_sec(1e9) == pytest.approx(36 * HOUR)
    hours = [hazard_per_sec(hour * HOUR) for hour in range(100)]
    assert hours == sorted(hours, reverse=True)
    assert hazard_per_sec(-5) == hazard_per_sec(0)


@pytest.mark.parametrize(
    ("cost_sec", "age_sec", "commit_sec", "interval"),
    [
        (0.0, 0, None, 5.0),  # costs nothing: as often as commits are worth their requests
        (0.05, 0, None, 22.6),  # sqrt(2 * 0.05 * 5104)
        (0.05, 100 * HOUR, None, 113.8),  # sqrt(2 * 0.05 * 129600)
        (0.5, 0, 1.0, 71.4),
        (0.5, 0, 90.0, 90.0),  # the one before is still in flight
        (10.0, 0, None, 319.5),
        (60.0, 0, None, 1200.0),  # no more than a twentieth of the time
        (60.0, 100 * HOUR, None, 3600.0),
    ],
)
def test_auto_is_the_optimum_for_cost_and_age_within_bounds(
    cost_sec: float, age_sec: float, commit_sec: float | None, interval: float
) -> None:
    assert interval_sec(cost_sec, age_sec, commit_sec) == pytest.approx(interval, rel=1e-3)


def test_auto_saves_early_first_and_then_follows_the_measurements() -> None:
    every_23_sec = [5, 28, 51, 74, 97]
    assert taken_at("auto", cost_sec=0.05, until_sec=110) == every_23_sec
    later = taken_at("auto", cost_sec=0.05, until_sec=300, age_sec=100 * HOUR)
    assert later == [5, 119, 233]
    waiting = taken_at("auto", cost_sec=0.05, until_sec=110, commit_sec=40)
    assert waiting == [5, 45, 85]


def test_auto_uses_the_commit_time_of_earlier_attempts_until_it_measures() -> None:
    plan = Schedule(Every(), now_sec=0.0, step=0, commit_sec=300.0)
    assert plan.due(now_sec=5, step=1)
    plan.taken(now_sec=5, step=1, cost_sec=0.001)
    assert not plan.due(now_sec=304, step=2) and plan.due(now_sec=305, step=2)
    plan.taken(now_sec=305, step=2, cost_sec=0.001, commit_sec=30.0)
    assert plan.due(now_sec=335, step=3)


def test_seconds_and_steps_are_taken_literally() -> None:
    assert taken_at("30s", cost_sec=9, until_sec=100) == [30, 60, 90]
    assert taken_at("40", cost_sec=9, until_sec=100) == [40, 80]


def test_steps_missed_while_busy_are_due_at_the_next_boundary() -> None:
    plan = Schedule(parse_every("10"), now_sec=0.0, step=0)
    assert [step for step in range(8, 13) if plan.due(now_sec=0, step=step)] == [10, 11, 12]
    plan.taken(now_sec=0, step=12, cost_sec=0)
    assert [step for step in range(12, 24) if plan.due(now_sec=0, step=step)] == [20, 21, 22, 23]


def test_the_same_step_is_never_due_twice() -> None:
    plan = Schedule(parse_every("1s"), now_sec=0.0, step=7)
    assert not plan.due(now_sec=100, step=7)
    assert plan.due(now_sec=100, step=8)
