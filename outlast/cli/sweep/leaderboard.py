"""Compares the trials of a sweep at equal steps, from the bucket alone."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from outlast.base import numbers
from outlast.base.codec import canonical_json
from outlast.bucket.head import HeadError, read_head
from outlast.bucket.rows import iter_rows
from outlast.bucket.standing import Standing
from outlast.bucket.store import StoreError
from outlast.bucket.sweeps import SweepObjects
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.cli.errors import UsageError, about
from outlast.cli.sweep import file, states
from outlast.cli.sweep.states import SweepState, TrialState
from outlast.cli.sweep.trials import SEED
from outlast.protocol import own_row

Curve = Sequence[tuple[int, float]]
"""A metric by step, rising."""

_ENDED_EARLY = frozenset({Standing.PRUNED, Standing.FAILED, Standing.STOPPED, Standing.EXPIRED})
"""Trials that would set the step of the comparison too low; they are only shown."""


@dataclass(frozen=True)
class Line:
    """One trial."""

    trial: TrialState
    compared: bool
    """Whether it takes part in the comparison."""
    step: int | None
    """Step of `value`; None before any."""
    value: float | None
    """The metric at the step of the comparison, or its last one."""
    best: float | None
    best_step: int | None
    unread: str = ""
    """Why the trial, or its rows, cannot be read."""

    def as_json(self) -> dict[str, Any]:
        record, found = self.trial.record, self.trial.status
        return {
            "id": record.run,
            "experiment": self.trial.stack,
            "number": record.number,
            "parameters": record.parameters,
            "state": self.trial.state,
            "step": self.trial.step,
            "total": found.history.total if found and found.history else None,
            "compared": self.compared,
            "value": numbers.to_json(self.value),
            "value_step": self.step,
            "best": numbers.to_json(self.best),
            "best_step": self.best_step,
            "dollars": round(self.trial.dollars, 6),
            "url": found.url if found else None,
            "why": self.unread or self.trial.said,
        }


@dataclass(frozen=True)
class Group:
    """Compared trials that differ in their seed only."""

    parameters: Mapping[str, Any]
    runs: tuple[str, ...]
    mean: float
    spread: float
    """The sample's standard deviation."""

    def as_json(self) -> dict[str, Any]:
        return {
            "parameters": dict(self.parameters),
            "trials": list(self.runs),
            "mean": numbers.to_json(self.mean),
            "spread": numbers.to_json(self.spread),
        }


@dataclass(frozen=True)
class Leaderboard:
    """What `outlast sweep leaderboard` shows."""

    name: str
    metric: str
    goal: str
    step: int | None
    """Of the comparison: the largest one that all compared trials have reached; None before any."""
    lines: tuple[Line, ...]
    """The best first."""
    groups: tuple[Group, ...]
    """Of at least two current trials each, the best first."""
    earlier: int
    """Trials of other code or parameters, which are not shown."""
    dollars: float
    """What all trials have cost so far."""
    is_lower_bound: bool
    """Whether a part of that has no known price, or cannot be read."""
    curves: Mapping[str, Curve] = field(default_factory=dict, repr=False)
    """By run: the metric's values, as `curves_of` reads them."""

    @property
    def unread(self) -> tuple[str, ...]:
        """The trials that cannot be read, and why, a sentence each: one of them may be the best."""
        return tuple(
            f"trial {line.trial.record.run}: {line.unread}" for line in self.lines if line.unread
        )

    @property
    def best(self) -> Line | None:
        """The first of the compared trials."""
        return next((line for line in self.lines if line.compared), None)

    def as_json(self) -> dict[str, Any]:
        return {
            "sweep": self.name,
            "metric": self.metric,
            "goal": self.goal,
            "step": self.step,
            "best": self.best.trial.record.run if self.best else None,
            "trials": [line.as_json() for line in self.lines],
            "groups": [group.as_json() for group in self.groups],
            "earlier": self.earlier,
            "dollars": round(self.dollars, 6),
            "dollars_known": not self.is_lower_bound,
        }


def of(
    objects: SweepObjects,
    state: SweepState,
    *,
    metric: str = "",
    goal: str = "",
    at: int | None = None,
    every: bool = False,
    without_values: bool = False,
) -> Leaderboard:
    """The leaderboard. `metric` and `goal`: instead of the file's; `at`: a step to compare at,
    instead of the largest one that all have reached; `every`: trials of earlier code and parameters
    too; `without_values`: rows are not read. Raises StoreError, and UsageError for another metric
    without its goal.
    """
    document = state.record.document if state.record else {}
    own = str(document.get("metric") or "")
    if metric not in ("", own) and not goal:
        raise UsageError(
            f"--metric {metric}: is not the metric of sweep {state.name}"
            f"{f', which is {own}' if own else ''}, so its goal is not known; give --goal max or"
            " min."
        )
    metric = metric or own
    goal = goal or str(document.get("goal") or "max")
    shown = list(state.trials.values()) if every else state.current
    current = {one.record.run for one in state.current}
    curves: dict[str, Curve] = {}
    unread: dict[str, str] = {}
    if metric and not without_values:
        curves, unread = curves_of(objects, shown, metric)
    lines, step = compared(shown, curves, goal=goal, at=at)
    lines = [
        replace(line, unread=line.trial.why or unread.get(line.trial.record.run, ""))
        for line in lines
    ]
    return Leaderboard(
        state.name,
        metric,
        goal,
        step,
        tuple(lines),
        # Trials of earlier code are not seeds of current ones.
        tuple(groups([line for line in lines if line.trial.record.run in current], goal)),
        len(state.trials) - len(shown),
        sum(one.dollars for one in state.trials.values()),
        any(one.unknown for one in state.trials.values()),
        curves,
    )


def curves_of(
    objects: SweepObjects, trials: Sequence[TrialState], metric: str
) -> tuple[dict[str, Curve], dict[str, str]]:
    """By run: the metric's values up to the newest checkpoint or the end, none if it has none; and
    why rows cannot be read.
    """

    def read(run: str) -> Curve | str:
        place = states.place_of(objects, run)
        found: dict[int, float] = {}
        try:
            head = read_head(objects.store, place.layout).head
            for row in iter_rows(objects.store, place.layout, head):
                own = own_row(row)
                # A run without parts may have a metric of that name.
                part = f"{own['part']}/" if own.get("part") != row.get("part") else ""
                value = _number(own, metric.removeprefix(part))
                if value is not None and metric.startswith(part):
                    found[own["step"]] = value
        except (HeadError, StoreError) as error:
            return f"its rows cannot be read ({about(place.name, error)})"
        return sorted(found.items())

    runs = [one.record.run for one in trials if one.status and one.status.history]
    read_all = in_parallel([partial(read, run) for run in runs], small_reads(objects.store))
    found = dict(zip(runs, read_all, strict=True))
    unread = {run: why for run, why in found.items() if isinstance(why, str)}
    return {run: [] if isinstance(one, str) else one for run, one in found.items()}, unread


def _number(row: Mapping[str, Any], name: str) -> float | None:
    """A number of a row, which has null for one that is not finite; None if it has none."""
    if name not in row:
        return None
    value = math.nan if row[name] is None else numbers.from_json(row[name])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return math.inf if value > 0 else -math.inf


def compared(
    trials: Sequence[TrialState], curves: Mapping[str, Curve], *, goal: str, at: int | None = None
) -> tuple[list[Line], int | None]:
    """The trials, the best first, and the step at which they are compared. Pure.

    The value at a step is the last one up to it. Trials that ended early are not compared, because
    the others would then be compared at their last step; nor are those without a value.
    """
    taking_part = {
        run: curves[run]
        for one in trials
        if one.state not in _ENDED_EARLY and curves.get(run := one.record.run)
    }
    step = at
    if step is None and taking_part:
        step = min(curve[-1][0] for curve in taking_part.values())
    lines = []
    for one in trials:
        curve: Curve = curves.get(one.record.run, [])
        takes_part = one.record.run in taking_part
        upto = [point for point in curve if step is not None and point[0] <= step]
        reached = bool(upto) and (at is None or curve[-1][0] >= at)
        chosen = upto[-1] if takes_part and reached else curve[-1] if curve else None
        best = min(curve, key=lambda point: _worse(point[1], goal), default=None)
        lines.append(
            Line(
                one,
                takes_part and reached,
                chosen[0] if chosen else None,
                chosen[1] if chosen else None,
                best[1] if best else None,
                best[0] if best else None,
            )
        )
    lines.sort(key=lambda line: (not line.compared, _worse(line.value, goal)))
    return lines, step


def _worse(value: float | None, goal: str) -> float:
    """A number that rises from the best value to the worst; last are those that are not finite, or
    missing.
    """
    if value is None or not math.isfinite(value):
        return math.inf
    return -value if goal == "max" else value


def groups(lines: Sequence[Line], goal: str) -> list[Group]:
    """The compared trials that differ in their seed only: mean and spread, the best first."""
    found: dict[bytes, list[Line]] = defaultdict(list)
    for line in lines:
        if line.compared:
            without = {k: v for k, v in line.trial.record.parameters.items() if k != SEED}
            found[canonical_json(without)].append(line)
    made = []
    for alike in found.values():
        values = [line.value for line in alike if line.value is not None]
        if len(values) < 2:
            continue
        without = {k: v for k, v in alike[0].trial.record.parameters.items() if k != SEED}
        finite = all(math.isfinite(value) for value in values)
        mean = statistics.fmean(values) if finite else math.nan
        spread = statistics.stdev(values) if finite else math.nan
        runs = tuple(line.trial.record.run for line in alike)
        made.append(Group(without, runs, mean, spread))
    return sorted(made, key=lambda group: _worse(group.mean, goal))


def sweep_of(state: SweepState) -> file.Sweep | None:
    """The sweep that the bucket has recorded; None if it was never up."""
    if state.record is None:
        return None
    return file.parse(state.record.document, f"sweep {state.name}")
