"""How the trials of a sweep stop early: the setting `outlast:sweep`, and its two rules.

A trial compares itself with the others at *rungs*, fixed steps. Better numbers are higher or lower,
by the goal; one that is not finite is worse than any other. Two rules:

`median`: a trial stops at a rung if its best value so far is worse than the median of the other
trials' running averages up to that rung ("Median Stopping Rule" in Golovin et al. 2017, "Google
Vizier: A Service for Black-Box Optimization", section 3.2.1).

`halving`: a trial stops at a rung unless its value there is among the best 1/eta of those that have
arrived, at least one (asynchronous successive halving, Li et al. 2018, arXiv:1810.05934, algorithm
2). In the paper a trial that is not promoted yet waits; here it ends, because a VM that waits
costs money.

Standard library only.
"""

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

from outlast.base import numbers
from outlast.base.codec import canonical_json
from outlast.base.suggest import did_you_mean

NAME_PATTERN = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
METRIC_CHARS_MAX = 200
RUNGS_MAX = 100
STEP_MAX = 10**12 - 1
ETA = 4
STARTUP = 5
"""Other trials that the median needs, as many libraries have it by default."""


VM_FOLDERS = ("rungs", "decisions")
"""Folders of a sweep's prefix in which VMs create objects; the others are the operator's."""


def prefix_of(name: str) -> str:
    """Prefix of a sweep's objects in the bucket, without a slash at the end."""
    return f"sweeps/{name}"


class Goal(StrEnum):
    """Which values of the metric are better."""

    MAX = "max"
    MIN = "min"


class Rule(StrEnum):
    """How a trial compares itself with the others."""

    NONE = "none"
    """It only records its values."""
    MEDIAN = "median"
    HALVING = "halving"


class BadRules(ValueError):
    """A sweep's setting breaks a rule: one sentence, which begins with the field."""


@dataclass(frozen=True)
class Measured:
    """A trial's metric up to a step. None is a number that is not finite."""

    value: float | None
    """The last one."""
    best: float | None
    mean: float | None
    """Of all finite ones so far."""


class Verdict(NamedTuple):
    """What a comparison at a rung says."""

    stop: bool
    own: float | None
    """The trial's number that was compared."""
    bar: float | None
    """What it must not be worse than; None also if there was no comparison."""
    why: str
    """A clause for people, without the rung: "accuracy 0.5 is worse than 0.7, the median of 5"."""


@dataclass(frozen=True)
class SweepRules:
    """The sweep of a trial, and when the trial ends itself."""

    name: str
    """The sweep's: its objects are below `sweeps/<name>/` in the bucket."""
    metric: str
    """Column of the rows; in a run with parts, `PART/METRIC`."""
    goal: Goal
    rule: Rule
    rungs: tuple[int, ...] = ()
    """Steps of the rungs; empty: `min_step` times each power of `eta`."""
    min_step: int = 0
    eta: int = ETA
    startup: int = STARTUP
    """Other trials that must have reached a rung before one is stopped there."""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """From the setting's object. Raises BadRules."""
        unknown = [key for key in given if key not in _KEYS]
        if unknown:
            known = ", ".join(_KEYS)
            hint = did_you_mean(unknown[0], _KEYS, f"known are {known}")
            raise BadRules(f"{unknown[0][:80]}: is not known; {hint}")
        rule = Rule(_one_of(given, "rule", [str(rule) for rule in Rule]))
        found = cls(
            name=_text(
                given,
                "name",
                NAME_PATTERN.fullmatch,
                "must have 1 to 40 lower-case letters, digits and dashes, begin with a letter and"
                " not end in a dash",
            ),
            metric=_text(
                given, "metric", _is_metric, "must name a metric that the trainer logs, not step"
            ),
            goal=Goal(_one_of(given, "goal", [str(goal) for goal in Goal])),
            rule=rule,
            rungs=_rungs(given.get("rungs", [])),
            min_step=_whole(given, "minStep", 0, STEP_MAX, 0),
            eta=_whole(given, "eta", 2, 1000, ETA),
            startup=_whole(given, "startup", 0, 10**6, STARTUP if rule is Rule.MEDIAN else 0),
        )
        if bool(found.rungs) == bool(found.min_step):
            raise BadRules(
                f"rungs {list(found.rungs)} and minStep {found.min_step}: one of the two must say"
                " at which steps the trials compare themselves"
            )
        return found

    @classmethod
    def from_json(cls, text: str) -> Self:
        """As `to_json` writes it. Raises BadRules."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise BadRules(f"sweep-rules {text[:80]!r}: must be a JSON object")
        try:
            return cls.parse(found)
        except BadRules as error:
            raise BadRules(f"sweep-rules {error}") from None

    def to_json(self) -> str:
        """Canonical JSON, as `from_json` reads it."""
        return canonical_json(self.as_setting()).decode()

    def as_setting(self) -> dict[str, Any]:
        """The setting's object."""
        rungs = {"rungs": list(self.rungs)} if self.rungs else {"minStep": self.min_step}
        return {
            "name": self.name,
            "metric": self.metric,
            "goal": str(self.goal),
            "rule": str(self.rule),
            **rungs,
            "eta": self.eta,
            "startup": self.startup,
        }

    def rung_after(self, step: int) -> int | None:
        """The first rung after a step; None after the last one."""
        if self.rungs:
            return next((rung for rung in self.rungs if rung > step), None)
        rung = self.min_step
        while rung <= step:
            rung *= self.eta
        return rung if rung <= STEP_MAX else None

    def better(self, value: float, than: float) -> bool:
        """Whether a value is better than another one."""
        return value > than if self.goal is Goal.MAX else value < than

    def decide(self, own: Measured, others: Sequence[Measured]) -> Verdict:
        """Compares a trial with the others that reached the rung before it. Pure."""
        compared = own.best if self.rule is Rule.MEDIAN else own.value
        if self.rule is Rule.NONE:
            return Verdict(False, compared, None, "the sweep stops no trials")
        if not others or len(others) < self.startup:
            least = max(self.startup, 1)
            why = f"{_count(len(others))} came before, and a comparison needs {least}"
            return Verdict(False, compared, None, why)
        score = self._score(compared)
        if self.rule is Rule.MEDIAN:
            bar = statistics.median(self._score(other.mean) for other in others)
            what = f"the median of the averages of {_count(len(others))}"
            mine = f"best {self.metric}"
        else:
            scores = sorted([score, *(self._score(other.value) for other in others)], reverse=True)
            kept = max(1, len(scores) // self.eta)
            bar = scores[kept - 1]
            what = f"the last of the best {kept} among {len(scores)} trials"
            mine = self.metric
        stop = score < bar
        shown = self._number(bar)
        how = "worse than" if stop else "not worse than"
        why = f"{mine} {_shown(compared)} is {how} {_shown(shown)}, {what}"
        return Verdict(stop, compared, shown, why)

    def _score(self, value: float | None) -> float:
        """The value so that more is better."""
        if value is None:
            return -math.inf
        return value if self.goal is Goal.MAX else -value

    def _number(self, score: float) -> float | None:
        """Reverses `_score`."""
        if not math.isfinite(score):
            return None
        return score if self.goal is Goal.MAX else -score


_KEYS = ("name", "metric", "goal", "rule", "rungs", "minStep", "eta", "startup")


def _count(trials: int) -> str:
    return numbers.count(trials, "other trial")


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"


def _is_metric(text: str) -> bool:
    return text.isprintable() and text != "step" and len(text) <= METRIC_CHARS_MAX


def _text(given: Mapping[str, Any], key: str, holds: Callable[[str], object], rule: str) -> str:
    value = given.get(key, "")
    if not isinstance(value, str) or not value or not holds(value):
        raise BadRules(f"{key} {str(value)[:80]!r}: {rule}")
    return value


def _one_of(given: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
    value = given.get(key, "")
    if value not in known:
        raise BadRules(f"{key} {str(value)[:80]!r}: must be {' or '.join(known)}")
    return value


def _whole(given: Mapping[str, Any], key: str, least: int, most: int, default: int) -> int:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadRules(f"{key} {str(value)[:80]}: must be a whole number from {least} to {most}")
    return value


def _rungs(value: Any) -> tuple[int, ...]:
    rule = f"must be a list of at most {RUNGS_MAX} rising steps, 1 or more"
    if not isinstance(value, list | tuple) or len(value) > RUNGS_MAX:
        raise BadRules(f"rungs {str(value)[:80]}: {rule}")
    before = 0
    for step in value:
        if isinstance(step, bool) or not isinstance(step, int) or not before < step <= STEP_MAX:
            raise BadRules(f"rungs {str(list(value))[:80]}: {rule}")
        before = step
    return tuple(value)
