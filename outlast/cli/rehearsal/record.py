"""Checks a run's rows in the bucket, alone and against those of an undisturbed run.

A trainer may log every step, once an epoch, or when it evaluates, so the check uses the steps that
it logs.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from outlast.base.exits import State
from outlast.cli.rehearsal.seen import RunRecord
from outlast.protocol import own_row

STEPS_SHOWN = 3


def disorder(run: RunRecord) -> str:
    """Duplicate rows, or rows out of order; empty if there are none."""
    steps = [row["step"] for row in run.rows]
    for before, after in pairwise(steps):
        if after == before:
            return f"step {after} is recorded twice"
        if after < before:
            return f"step {after} comes after step {before}"
    return ""


def gap(run: RunRecord) -> str:
    """Missing rows, judged by the run alone: more steps in a row lack one at the start of an
    attempt than anywhere else, or the last one that the trainer logged is missing.
    """
    steps = [row["step"] for row in run.rows]
    seams = {attempt.from_step for attempt in run.attempts[1:]}
    within, across = 0, []
    for before, after in pairwise([0, *steps]):
        seam = next((seam for seam in seams if before <= seam < after), None)
        if seam is None:
            within = max(within, after - before)
        else:
            across.append((before, after))
    for before, after in across:
        if 0 < within < after - before:
            return f"no row between step {before} and step {after}, where an attempt took over"
    logged = _last_logged(run)
    if steps and logged > steps[-1]:
        return f"no row after step {steps[-1]}, and the trainer logged step {logged}"
    return ""


def _last_logged(run: RunRecord) -> int:
    """The last step that the trainer of a finished run logged, according to its supervisor."""
    head = run.head
    end = run.ends.get(head.term) if head is not None else None
    if end is None or head is None or head.state is not State.DONE:
        return 0
    steps = (_before(run, name) + last.step for name, last in end.metrics.items())
    return max((step for step in steps if step <= end.step), default=0)


def _before(run: RunRecord, metric: str) -> int:
    """Steps of the parts before the one that a metric's name says; 0 in a run without parts."""
    before = 0
    for part in run.parts:
        if metric.startswith(f"{part['part']}/"):
            return before
        before += part["step"]
    return 0


def difference(run: RunRecord, baseline: RunRecord) -> str:
    """How the rows differ from the undisturbed run's, except in values that vary in each run."""
    steps, baseline_steps = ({row["step"] for row in one.rows} for one in (run, baseline))
    differences = []
    if missing := baseline_steps - steps:
        differences.append(f"without step {_some(missing)}, which the undisturbed run has")
    if added := steps - baseline_steps:
        differences.append(f"with step {_some(added)}, which the undisturbed run lacks")
    if differences:
        return " and ".join(differences)
    varies, others = set(varying(run, baseline)), {row["step"]: row for row in baseline.rows}
    for row in run.rows:
        other = others[row["step"]]
        for name in _differing(row, other):
            if name not in varies:
                return _values(name, row, other)
    return ""


def varying(run: RunRecord, baseline: RunRecord) -> list[str]:
    """Names whose values differ even before the first interruption, such as times."""
    found: dict[str, None] = {}
    for row, other in _undisturbed(run, baseline):
        found |= dict.fromkeys(_differing(row, other))
    return list(found)


def differs_before_interruption(run: RunRecord, baseline: RunRecord) -> str:
    """A sentence if two runs of the same training differ by themselves."""
    for row, other in _undisturbed(run, baseline):
        for name in _differing(row, other):
            return (
                "the rows differ before anything interrupted the run: "
                f"{_values(name, row, other)}; if that is not a time, the training is not "
                "repeatable: seed its random numbers"
            )
    return ""


def _undisturbed(
    run: RunRecord, baseline: RunRecord
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Rows of the same step in both, up to the step from which the run was first resumed."""
    others = {row["step"]: row for row in baseline.rows}
    rows = [row for row in run.rows if row["step"] <= run.resumed]
    return [(row, others[row["step"]]) for row in rows if row["step"] in others]


def _differing(row: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    missing = object()
    return [n for n in {**row, **other} if row.get(n, missing) != other.get(n, missing)]


def _values(name: str, row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    here, there = (_value(one.get(name, "not logged")) for one in (row, other))
    if here == there:
        here, there = row.get(name), other.get(name)
    own = own_row(row)
    of = f" of part {own['part']}" if own.get("part") != row.get("part") else ""
    return f"{name} of step {own['step']}{of} is {here}, undisturbed {there}"


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _some(steps: set[int]) -> str:
    shown = sorted(steps)[:STEPS_SHOWN]
    more = f" and {len(steps) - len(shown)} more" if len(steps) > len(shown) else ""
    return ", ".join(map(str, shown)) + more
