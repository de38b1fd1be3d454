"""The trials of sweeps."""

from typing import Any, TypedDict


class TrialLine(TypedDict):
    """A trial in a leaderboard."""

    id: str
    experiment: str
    number: int | None
    parameters: dict[str, Any]
    state: str
    step: int
    total: int | None
    compared: bool
    """false: it has no value at the step of the comparison"""
    value: Any
    """of the metric at that step"""
    value_step: int | None
    best: Any
    best_step: int | None
    dollars: float
    url: str | None
    why: str
    """why it did not start, or failed"""


class TrialGroup(TypedDict):
    """Trials that differ in their seed only."""

    parameters: dict[str, Any]
    trials: list[str]
    mean: Any
    spread: Any


class Leaderboard(TypedDict):
    """The trials of a sweep, the best first."""

    sweep: str
    metric: str
    goal: str
    step: int | None
    """of the comparison"""
    best: str | None
    trials: list[TrialLine]
    groups: list[TrialGroup]
    earlier: int
    """trials of earlier code and parameters"""
    dollars: float
    dollars_known: bool


class PreviewedTrial(TypedDict):
    """A trial before it starts."""

    id: str
    number: int | None
    parameters: dict[str, Any]
    state: str
    """`new`, or how its run stands"""
    waits: str | None
    """why it does not start now"""


class SweepCost(TypedDict):
    """The worst cost of a sweep."""

    prices_of: str
    hour: float | None
    """of one trial, null if a price is unknown"""
    trial_hours: float
    trial: float | None
    all: float | None
    spent: float
    spent_known: bool
    """else `spent` is a lower bound"""
    unknown: list[str]


class SweepPreview(TypedDict):
    """What a sweep would start."""

    sweep: str
    base: str
    trials: list[PreviewedTrial]
    equal_samples: int
    parallel: int
    starts: int
    cost: SweepCost
    budget: dict[str, float] | None
    hours: float | None
    limits: list[str]
    """what it needs of the project's limits, and which are too low"""
    warnings: list[str]


class SweepOutcome(TypedDict):
    """The trials of a sweep that were brought up or destroyed."""

    sweep: str
    done: list[str]
    failed: dict[str, str]
    """by experiment, why"""
    waiting: dict[str, str]
    """by experiment, why"""


class Asked(TypedDict):
    """A trial that an optimiser has added."""

    id: str
    experiment: str
    parameters: dict[str, Any]
    new: bool
    """false: there was one with these parameters"""


class SweepFacts(Leaderboard):
    """What a report about a sweep shows."""

    made: str
    states: dict[str, int]
    interruptions: int
    steps_lost: int
    problems: list[str]
