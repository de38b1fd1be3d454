"""Lets another optimiser choose the parameters: it asks for a trial, `up` starts it, and `tell`
gives the result.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.base.suggest import did_you_mean
from outlast.bucket.store import NotFound
from outlast.bucket.sweeps import SweepObjects, TrialRecord
from outlast.cli.errors import OperateError, UsageError, reading
from outlast.cli.polling import Pauses
from outlast.cli.sweep import leaderboard, states, trials
from outlast.cli.sweep.bring_up import Prepared
from outlast.cli.sweep.leaderboard import Line
from outlast.cli.sweep.states import TrialState


@dataclass(frozen=True)
class Asked:
    """A trial that was asked for."""

    run: str
    stack: str
    parameters: Mapping[str, Any]
    is_new: bool
    """Whether there was no trial with these parameters."""

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.run,
            "experiment": self.stack,
            "parameters": dict(self.parameters),
            "new": self.is_new,
        }


def ask(prepared: Prepared, objects: SweepObjects, parameters: Any) -> Asked:
    """Records a trial with these parameters; the next `outlast sweep up` starts it. Asking twice
    for the same gives the same trial. Raises UsageError if they are none of the base's.
    """
    if not isinstance(parameters, dict):
        raise UsageError(
            f"--params {str(parameters)[:80]}: must be a JSON object of parameters, such as"
            ' {"learning-rate": 0.1}.'
        )
    spaces = prepared.sweep.spaces
    for name, value in parameters.items():
        if spaces and name not in spaces:
            hint = did_you_mean(name, spaces, f"they are {', '.join(spaces)}.")
            raise UsageError(f"--params {name}: is not a parameter of the sweep; {hint}")
        if not isinstance(value, bool | int | float | str) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise UsageError(
                f"--params {name} {str(value)[:80]}: must be a finite number, a text, true or"
                " false."
            )
    sweep = prepared.sweep.name
    with reading(f"sweep {sweep}"):
        known = objects.trials()
        number = sum(one.asked for one in known.values())
        trial = trials.trial_of(
            prepared.base, sweep, number, parameters, prepared.where, asked=True
        )
        if trial.run in known:
            return Asked(trial.run, trial.stack, known[trial.run].parameters, False)
        try:
            objects.add([TrialRecord(trial.run, number, dict(parameters), True)])
        except NotFound:
            raise OperateError(
                f"sweep {sweep}: its bucket gs://{prepared.bucket} does not exist yet; run outlast"
                f" sweep up {prepared.where} first, which creates it."
            ) from None
    return Asked(trial.run, trial.stack, trial.parameters, True)


def tell(
    objects: SweepObjects, runs: tuple[str, ...], *, pauses: Pauses | None = None
) -> list[Line]:
    """The results of some trials, by default of all; with `pauses`, once they have ended. The value
    is a trial's last one. Raises UsageError for an unknown trial, OperateError if rows cannot be
    read.
    """
    before: list[str] = []
    while True:
        with reading(f"sweep {objects.name}"):
            state = states.read(objects)
            chosen = [_known(state.trials, run, objects.name) for run in runs] or state.current
            if pauses is None or all(_is_over(one) for one in chosen):
                document = state.record.document if state.record else {}
                metric = str(document.get("metric") or "")
                curves, unread = leaderboard.curves_of(objects, chosen, metric)
                if unread:  # Without a value it would be another result.
                    said = "; ".join(f"trial {run}: {why}" for run, why in unread.items())
                    raise OperateError(f"sweep {objects.name}: {said}")
                goal = str(document.get("goal") or "max")
                found = {
                    run: leaderboard.compared([one], curves, goal=goal)[0][0]
                    for run, one in ((one.record.run, one) for one in chosen)
                }
                return [found[one.record.run] for one in chosen]
        now = [one.state for one in chosen]
        pauses.wait(changed=now != before)
        before = now


def _is_over(trial: TrialState) -> bool:
    """Whether waiting longer changes nothing: it has ended, or nothing has started it."""
    return trial.has_ended or not trial.is_up


def _known(known: Mapping[str, TrialState], run: str, sweep: str) -> TrialState:
    if run in known:
        return known[run]
    hint = did_you_mean(run, known, f"outlast sweep status {sweep} lists them.")
    raise UsageError(f"trial {run!r}: is not a trial of sweep {sweep}; {hint}")
