"""The rules of a sweep: parsed from a setting, and applied to numbers."""

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.spec.sweep_rules import BadRules, Goal, Measured, Rule, SweepRules

SETTING = {
    "name": "lr",
    "metric": "accuracy",
    "goal": "max",
    "rule": "halving",
    "minStep": 10,
    "eta": 3,
    "startup": 0,
}


def rules(**changes: Any) -> SweepRules:
    return SweepRules.parse({**SETTING, **changes})


def value(number: float | None) -> Measured:
    return Measured(number, number, number)


def values(*numbers: float | None) -> list[Measured]:
    return [value(number) for number in numbers]


def test_a_setting_and_its_json() -> None:
    found = rules()
    assert found == SweepRules("lr", "accuracy", Goal.MAX, Rule.HALVING, (), 10, 3, 0)
    assert found.as_setting() == SETTING
    assert SweepRules.from_json(found.to_json()) == found


def test_what_may_be_left_out() -> None:
    least = {"name": "lr", "metric": "loss", "goal": "min", "rule": "median", "rungs": [5, 50]}
    found = SweepRules.parse(least)
    assert (found.eta, found.startup, found.rungs, found.min_step) == (4, 5, (5, 50), 0)
    assert SweepRules.parse({**least, "rule": "halving"}).startup == 0
    assert SweepRules.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"nmae": "x"}, "nmae: is not known; did you mean name?"),
        ({"name": "Lr"}, "name 'Lr': must have 1 to 40 lower-case letters"),
        ({"name": 7}, "name '7': must have"),
        ({"metric": ""}, "metric '': must name a metric that the trainer logs"),
        ({"metric": "step"}, "metric 'step': must name"),
        ({"metric": "a\nb"}, "metric 'a.nb': must name"),
        ({"goal": "maximise"}, "goal 'maximise': must be max or min"),
        ({"goal": ["max"]}, "goal .*: must be max or min"),
        ({"rule": "hyperband"}, "rule 'hyperband': must be none or median or halving"),
        ({"minStep": 0}, r"rungs \[\] and minStep 0: one of the two"),
        ({"rungs": [10]}, r"rungs \[10\] and minStep 10: one of the two"),
        ({"minStep": 1.5}, "minStep 1.5: must be a whole number from 0 to"),
        ({"minStep": True}, "minStep True: must be a whole number"),
        ({"eta": 1}, "eta 1: must be a whole number from 2 to 1000"),
        ({"startup": -1}, "startup -1: must be a whole number from 0"),
        ({"rungs": [3, 3], "minStep": 0}, r"rungs \[3, 3\]: must be a list of at most 100 rising"),
        ({"rungs": [0], "minStep": 0}, r"rungs \[0\]: must be"),
        ({"rungs": "10", "minStep": 0}, "rungs 10: must be a list"),
        ({"rungs": list(range(1, 102)), "minStep": 0}, "rungs .*: must be a list of at most 100"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRules, match=f"^{sentence}"):
        rules(**changes)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": "x"', "null"])
def test_json_that_is_not_a_setting(text: str) -> None:
    with pytest.raises(BadRules, match="sweep-rules .*must be a JSON object"):
        SweepRules.from_json(text)


def test_rungs_grow_by_eta() -> None:
    found = rules(minStep=10, eta=3)
    assert [found.rung_after(step) for step in (0, 9, 10, 30, 31)] == [10, 10, 30, 90, 90]
    assert found.rung_after(10**12) is None


def test_rungs_as_given() -> None:
    found = rules(rungs=[5, 50], minStep=0)
    assert [found.rung_after(step) for step in (0, 5, 49, 50)] == [5, 50, 50, None]


def test_halving_keeps_the_best_share() -> None:
    """Of 7 trials with eta 3 the best 2 continue; one that is equal to the last of them, too."""
    found = rules(eta=3)
    others = values(0.1, 0.2, 0.3, 0.4, 0.9, 0.8)
    assert found.decide(value(0.8), others).stop is False
    lost = found.decide(value(0.7), others)
    assert (lost.stop, lost.own, lost.bar) == (True, 0.7, 0.8)
    assert lost.why == "accuracy 0.7 is worse than 0.8, the last of the best 2 among 7 trials"
    lowest = rules(eta=3, goal="min").decide(value(0.2), others)
    assert (lowest.stop, lowest.bar) == (False, 0.2)


def test_the_first_trial_at_a_rung_continues() -> None:
    found = rules().decide(value(None), [])
    assert (found.stop, found.own, found.bar) == (False, None, None)
    assert found.why == "0 other trials came before, and a comparison needs 1"


def test_few_trials_are_not_compared_before_the_startup_is_over() -> None:
    found = rules(startup=2)
    assert found.decide(value(0.1), values(0.9)).stop is False
    assert found.decide(value(0.1), values(0.9, 0.8)).stop is True


def test_a_number_that_is_not_finite_is_worse_than_any_other() -> None:
    for goal in ("max", "min"):
        found = rules(goal=goal, eta=2)
        lost = found.decide(value(None), values(5.0))
        assert (lost.stop, lost.own, lost.bar) == (True, None, 5.0)
        assert found.decide(value(-5.0), values(None)).stop is False
        assert found.decide(value(None), values(None)).stop is False


def test_the_median_is_of_averages_and_compared_with_the_best() -> None:
    found = rules(rule="median", startup=1)
    others = [Measured(0.9, 0.9, mean) for mean in (0.2, 0.4, 0.6)]
    kept = found.decide(Measured(value=0.0, best=0.4, mean=0.1), others)
    assert (kept.stop, kept.own, kept.bar) == (False, 0.4, 0.4)
    lost = found.decide(Measured(value=0.9, best=0.39, mean=0.9), others)
    assert lost.stop is True
    assert lost.why == (
        "best accuracy 0.39 is worse than 0.4, the median of the averages of 3 other trials"
    )
    loss = rules(rule="median", goal="min", startup=1)
    assert loss.decide(Measured(0.9, 0.41, 0.9), others).stop is True
    assert loss.decide(Measured(0.9, 0.4, 0.9), others).stop is False


def test_without_a_rule_no_trial_stops() -> None:
    assert rules(rule="none").decide(value(0.0), values(1.0, 2.0)).stop is False


NUMBERS = st.floats(-1e6, 1e6) | st.none()


@given(st.sampled_from(["max", "min"]), st.integers(2, 5), st.lists(NUMBERS, min_size=1))
def test_halving_never_stops_the_best_and_the_goal_is_a_mirror(
    goal: str, eta: int, numbers: list[float | None]
) -> None:
    found = rules(goal=goal, eta=eta)
    mirrored = rules(goal="min" if goal == "max" else "max", eta=eta)
    stops = 0
    for place, own in enumerate(numbers):
        others = numbers[:place] + numbers[place + 1 :]
        verdict = found.decide(value(own), values(*others))
        turned = [None if number is None else -number for number in (own, *others)]
        assert mirrored.decide(value(turned[0]), values(*turned[1:])).stop == verdict.stop
        stops += verdict.stop
    kept = len(numbers) - stops
    assert kept >= max(1, len(numbers) // eta)
    finite = [number for number in numbers if number is not None]
    if finite:
        best = max(finite) if goal == "max" else min(finite)
        assert not found.decide(value(best), values(*numbers)).stop


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(-1e6, 1e6))
def test_the_median_rule_is_its_definition(means: list[float], best: float) -> None:
    found = rules(rule="median", startup=0)
    verdict = found.decide(Measured(0.0, best, 0.0), [Measured(0.0, 0.0, mean) for mean in means])
    assert verdict.stop == (best < statistics.median(means))
    assert verdict.bar is not None and math.isclose(verdict.bar, statistics.median(means))
