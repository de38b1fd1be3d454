"""What a sweep would do and cost, before any money is spent."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlast.cli.errors import UsageError
from outlast.cli.sweep.file import Sweep
from outlast.cli.sweep.states import SweepState
from outlast.cli.sweep.trials import Trial
from outlast.cloud.limits import ACCOUNTS, BINDINGS, ROLES
from outlast.costs import pricing

if TYPE_CHECKING:
    from outlast.settings import Settings

PARALLEL = "parallel"
BUDGET = "budget"


@dataclass(frozen=True)
class Worst:
    """What a trial costs at most: its VM's price until its limit, or its own budget."""

    hour: pricing.Sum
    """Of its dearest machine."""
    hours: float
    """That its VMs live together."""
    dollars: float | None
    """None if a part has no known price."""

    def said(self, trials: int = 1) -> str:
        """The dollars of so many trials in words."""
        if self.dollars is None:
            return self.hour.said(self.hours * trials)
        return pricing.dollars(self.dollars * trials)


def worst_of(settings: "Settings") -> Worst:
    """The worst case of a trial with these settings: its dearest machine until its limit, or all of
    its own budget. A budget lasts longest on its cheapest machine.
    """
    prices = settings.machine_prices.values()
    dearest = max(prices, key=lambda one: (bool(one.unknown), one.hour))
    hours = settings.max_run_minutes / 60
    dollars = None if dearest.unknown else dearest.hour * hours
    if settings.budget_dollars and dollars is not None:  # without a price it would be refused
        dollars = min(dollars, settings.budget_dollars)
        hours = min(hours, settings.budget_dollars / min(one.hour for one in prices))
    return Worst(dearest, hours, dollars)


@dataclass(frozen=True)
class Plan:
    """Which trials start now, and why the others wait."""

    start: tuple[Trial, ...]
    waiting: Mapping[str, str]
    """By run: PARALLEL or BUDGET."""


def planned(sweep: Sweep, trials: Sequence[Trial], state: SweepState) -> Plan:
    """The trials that have neither ended nor started, as far as `parallel` and the budget allow.

    Raises UsageError if there is a budget in dollars and a price is unknown, or what a trial has
    cost and would have cost at most.
    """
    budget = sweep.asked.budget
    if budget and budget.dollars is not None:
        _check_costs(budget.dollars, trials, state)
    open_now = sum(one.is_open for one in state.trials.values())
    dollars = sum(one.reserved_dollars for one in state.trials.values())
    hours = sum(one.reserved_hours for one in state.trials.values())
    for trial in trials:
        known = state.trials.get(trial.run)
        if known and known.why and known.up is None:  # What it has cost is not known.
            worst = worst_of(trial.settings)
            dollars += worst.dollars or 0.0
            hours += worst.hours
    start: list[Trial] = []
    waiting: dict[str, str] = {}
    for trial in trials:
        known = state.trials.get(trial.run)
        if known and (known.has_ended or known.is_open):
            continue
        worst = worst_of(trial.settings)
        # What it has cost before it was destroyed is in the sum already. So is the worst case of an
        # `up` that was cut off, whose place this one takes.
        cut_off = known if known and known.up else None
        held_dollars = cut_off.reserved_dollars if cut_off else 0.0
        held_hours = cut_off.reserved_hours if cut_off else 0.0
        if budget and budget.dollars is not None:
            if worst.dollars is None:
                raise UsageError(
                    f"budget.dollars {budget.dollars:g}: no price is known for"
                    f" {', '.join(worst.hour.unknown)}, so the worst case is unknown; give"
                    " budget.hours instead, or leave the budget out."
                )
            fits = dollars - held_dollars + worst.dollars <= budget.dollars
        else:
            fits = budget is None or hours - held_hours + worst.hours <= (budget.hours or 0)
        if not fits:
            waiting[trial.run] = BUDGET
        elif open_now + len(start) >= sweep.asked.parallel:
            waiting[trial.run] = PARALLEL
        else:
            start.append(trial)
            dollars += (worst.dollars or 0.0) - held_dollars
            hours += worst.hours - held_hours
    return Plan(tuple(start), waiting)


def _check_costs(dollars: float, trials: Sequence[Trial], state: SweepState) -> None:
    """Refuses a budget of which an unknown part is gone."""
    now = {trial.run for trial in trials}
    for run, one in state.trials.items():
        has_worst = one.up is not None and one.up.dollars is not None
        if not one.unknown or has_worst or (one.why and one.up is None and run in now):
            continue
        why = one.why or f"no price is known for {', '.join(one.unpriced)}"
        raise UsageError(
            f"budget.dollars {dollars:g}: what trial {run} has cost is unknown ({why}); give"
            " budget.hours instead, or leave the budget out."
        )


@dataclass(frozen=True)
class Preview:
    """What `outlast sweep preview` shows."""

    sweep: Sweep
    trials: tuple[Trial, ...]
    states: Mapping[str, str]
    """By run: `new`, or how a trial stands that was recorded before."""
    plan: Plan
    equal: int
    """Samples that are equal to another one."""
    worst: Worst
    """Of the dearest trial."""
    spent: float
    spent_known: bool
    """Whether that is all; else it is a lower bound."""
    limits: tuple[str, ...]
    """Limits of the project and the bucket that the sweep meets, a sentence each."""
    warnings: tuple[str, ...]

    @property
    def left(self) -> int:
        """Trials that have not ended."""
        return len(self.plan.start) + len(self.plan.waiting)

    @property
    def dollars(self) -> float | None:
        """What the trials that have not started cost at most."""
        return None if self.worst.dollars is None else self.worst.dollars * self.left

    @property
    def hours(self) -> float:
        """How long they take at most, side by side."""
        return math.ceil(self.left / self.sweep.asked.parallel) * self.worst.hours

    def as_json(self) -> dict[str, Any]:
        asked = self.sweep.asked
        return {
            "sweep": self.sweep.name,
            "base": asked.base,
            "trials": [
                {
                    "id": trial.run,
                    "number": trial.number,
                    "parameters": dict(trial.parameters),
                    "state": self.states[trial.run],
                    "waits": self.plan.waiting.get(trial.run),
                }
                for trial in self.trials
            ],
            "equal_samples": self.equal,
            "parallel": asked.parallel,
            "starts": len(self.plan.start),
            "cost": {
                "prices_of": pricing.date(),
                "hour": None if self.worst.hour.unknown else round(self.worst.hour.hour, 6),
                "trial_hours": self.worst.hours,
                "trial": _rounded(self.worst.dollars),
                "all": _rounded(self.dollars),
                "spent": round(self.spent, 4),
                "spent_known": self.spent_known,
                "unknown": list(self.worst.hour.unknown),
            },
            "budget": asked.budget.model_dump(exclude_none=True) if asked.budget else None,
            "hours": self.hours,
            "limits": list(self.limits),
            "warnings": list(self.warnings),
        }


def _rounded(dollars: float | None) -> float | None:
    return None if dollars is None else round(dollars, 6)


def preview(
    sweep: Sweep, trials: Sequence[Trial], state: SweepState, settings: "Settings", why: str = ""
) -> Preview:
    """`settings`: of some trial, or the base's; `why`: why `state` is not known. Raises UsageError
    as `planned` does.
    """
    worsts = [worst_of(trial.settings) for trial in trials] or [worst_of(settings)]
    worst = max(worsts, key=lambda one: (one.dollars is None, one.dollars or 0.0, one.hours))
    states = {
        trial.run: state.trials[trial.run].state if trial.run in state.trials else "new"
        for trial in trials
    }
    quotas, warnings = _quotas(sweep, settings, len(trials))
    return Preview(
        sweep,
        tuple(trials),
        states,
        planned(sweep, trials, state),
        len(sweep.points()) - len({trial.run for trial in trials if not trial.asked}),
        worst,
        sum(one.dollars for one in state.trials.values()),
        not any(one.unknown for one in state.trials.values()),
        (*_shared(settings), *quotas),
        (*([why] if why else []), *warnings),
    )


def _shared(settings: "Settings") -> Iterator[str]:
    """What all trials share, and which limits that keeps away."""
    roles = "no custom role" if settings.leave_role else f"1 custom role of {ROLES}"
    account = (
        "an existing service account"
        if settings.service_account
        else (f"1 service account of {ACCOUNTS} by default")
    )
    bindings = 2 + len(settings.reads)
    yield (
        f"project {settings.project}: the trials share {account} and {roles}; bucket"
        f" {settings.bucket}: {bindings} conditional bindings of about {BINDINGS}"
    )
    yield (
        "each trial has its own template, group and object of code; outlast sweep destroy deletes"
        " them"
    )


def _quotas(sweep: Sweep, settings: "Settings", count: int) -> tuple[list[str], list[str]]:
    """The quotas that the trials meet, and why they may not be known."""
    from outlast.settings import allowances

    count = count or sweep.asked.parallel
    at_once = min(sweep.asked.parallel, count)
    short = allowances.shortages(settings, at_once=at_once, groups=count)
    if short is None:
        return [], [f"quotas of project {settings.project}: could not be read, so not checked"]
    return [
        f"quota {metric}{where}: {at_once} trials at once, {count} in all, need {need:g}, and"
        f" its limit is {limit:g}; lower parallel, or ask for more (page Quotas of the console)"
        for metric, where, limit, need in short
    ], []
