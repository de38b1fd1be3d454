"""Renders what `outlast sweep` shows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from outlast.base import numbers
from outlast.cli.show.console import Terminal
from outlast.cli.sweep.bring_up import Outcome
from outlast.cli.sweep.leaderboard import Leaderboard, Line
from outlast.cli.sweep.plan import BUDGET, PARALLEL, Preview
from outlast.cli.sweep.states import SweepState, TrialState
from outlast.costs import pricing

SHOWN = 24
"""Trials of a preview that are shown; `--json` has all."""
WAITS = {PARALLEL: "for another to end", BUDGET: "for the budget to allow the worst case"}


def show_preview(found: Preview) -> None:
    """Trials, cost, time and limits."""
    console = Terminal()
    asked, left = found.sweep.asked, found.left
    parameters = _names(trial.parameters for trial in found.trials)
    table = _table(("trial", *parameters, "state"))
    for trial in found.trials[:SHOWN]:
        waits = found.plan.waiting.get(trial.run)
        state = found.states[trial.run]
        table.add_row(
            trial.run,
            *_values(trial.parameters, parameters),
            f"waits {WAITS[waits]}" if waits else state,
        )
    if found.trials:
        console.print(table)
    if len(found.trials) > SHOWN:
        _say(console, f"and {len(found.trials) - SHOWN} more")
    equal = f", samples equal to another: {found.equal}" if found.equal else ""
    _say(
        console,
        f"{numbers.count(len(found.trials), 'trial')} of {asked.base}; to start at the next up:"
        f" {len(found.plan.start)}, to wait: {len(found.plan.waiting)}, started before:"
        f" {len(found.trials) - left}{equal}",
    )
    worst = found.worst
    console.print(
        f"cost      {worst.hour.said()} an hour and trial; to its limit of {worst.hours:g} h at"
        f" most {worst.said()}; {numbers.count(left, 'trial')} at most {worst.said(left)}"
        f" (list prices of {pricing.date()})",
        soft_wrap=True,
    )
    if found.spent or not found.spent_known:
        least = "" if found.spent_known else "at least "
        console.print(f"spent     {least}{pricing.dollars(found.spent)} so far")
    console.print(f"budget    {_budget(found)}", soft_wrap=True)
    console.print(
        f"time      at most {found.hours:g} h, {min(asked.parallel, max(left, 1))} at once",
        soft_wrap=True,
    )
    for sentence in found.limits:
        console.print(f"limits    {sentence}", soft_wrap=True)
    for sentence in found.warnings:
        _say(Terminal(stderr=True), f"warning: {sentence}")


def _budget(found: Preview) -> str:
    budget = found.sweep.asked.budget
    if budget is None:
        return "none: every trial may run to its limit"
    if budget.dollars is not None:
        amount = pricing.dollars(budget.dollars)
    else:
        amount = f"{budget.hours or 0:g} VM hours"
    waiting = sum(why == BUDGET for why in found.plan.waiting.values())
    wait = "1 trial waits" if waiting == 1 else f"{waiting or 'no'} trials wait"
    return f"{amount}; {wait} because the worst case does not fit"


def show_outcome(found: Outcome, name: str) -> None:
    """What an `up` or a `destroy` has not done, and the next command."""
    console = Terminal(stderr=True)
    for stack, why in found.failed.items():
        _say(console, f"{stack}: failed: {why}")
    for kind, words in WAITS.items():
        count = sum(why == kind for why in found.waiting.values())
        if count:
            trials = "1 trial waits" if count == 1 else f"{count} trials wait"
            _say(console, f"{trials} {words}; outlast sweep up starts what can start")
    _say(console, f"next: outlast sweep leaderboard {name}")


def show_status(found: SweepState) -> None:
    """Each trial with its state."""
    console = Terminal()
    shown = found.current
    parameters = _names(one.record.parameters for one in shown)
    table = _table(("trial", *parameters, "state"), ("step", "cost"))
    for one in shown:
        values = _values(one.record.parameters, parameters)
        table.add_row(one.record.run, *values, one.state, *_progress(one))
    if shown:
        console.print(table)
    counts: dict[str, int] = {}
    for one in shown:
        counts[one.state] = counts.get(one.state, 0) + 1
    _say(console, ", ".join(f"{count} {state}" for state, count in counts.items()) or "no trials")
    for one in shown:
        if one.why:
            _say(Terminal(stderr=True), f"outlast: {one.why}")
        elif one.said:
            _say(console, f"{one.record.run} is {one.state}: {one.said}")


def show_leaderboard(found: Leaderboard) -> None:
    """The trials, the best first; groups over seeds; the best trial."""
    console = Terminal()
    parameters = _names(line.trial.record.parameters for line in found.lines)
    table = _table(
        ("", "trial", *parameters, "state"),
        ("step", found.metric or "metric", "at step", "best", "best at step", "cost"),
    )
    rank = 0
    for line in found.lines:
        rank += line.compared
        table.add_row(
            str(rank) if line.compared else "",
            line.trial.record.run,
            *_values(line.trial.record.parameters, parameters),
            line.trial.state,
            *_progress(line.trial)[:1],
            *_numbers(line),
            *_progress(line.trial)[1:],
        )
    if found.lines:
        console.print(table)
    if not found.metric:
        _say(console, "the sweep names no metric; give one with --metric and --goal")
    elif found.best is None:
        _say(console, f"no trial has a value of {found.metric} yet")
    else:
        best = found.best
        _say(
            console,
            f"best: {best.trial.stack} with {found.metric} {_number(best.value)} at step"
            f" {found.step} ({found.goal}); outlast sweep fetch {found.name} --best",
        )
    if found.groups:
        _show_groups(console, found)
    least = "at least " if found.is_lower_bound else ""
    _say(console, f"cost so far: {least}{pricing.dollars(found.dollars)}")
    if found.earlier:
        _say(
            console,
            f"{found.earlier} trials of earlier code or parameters are not shown; --every shows"
            " them",
        )


def _show_groups(console: Terminal, found: Leaderboard) -> None:
    parameters = _names(group.parameters for group in found.groups)
    table = _table((*parameters,), ("seeds", "mean", "spread"))
    for group in found.groups:
        cells = (str(len(group.runs)), _number(group.mean), _number(group.spread))
        table.add_row(*_values(group.parameters, parameters), *cells)
    _say(console, f"over seeds, {found.metric} at step {found.step}:")
    console.print(table)


def _table(left: Iterable[str], right: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _names(all_of: Iterable[Mapping[str, Any]]) -> list[str]:
    """The parameters that any trial has."""
    return list(dict.fromkeys(name for parameters in all_of for name in parameters))


def _values(parameters: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [str(parameters.get(name, "")) for name in names]


def _progress(one: TrialState) -> tuple[str, str]:
    book = one.status.history if one.status else None
    if book is None:
        return "", ""
    total = f" of {book.total}" if book.total else ""
    least = "at least " if one.unknown else ""
    return f"{book.step}{total}", f"{least}{pricing.dollars(one.dollars)}"


def _numbers(line: Line) -> list[str]:
    return [
        _number(line.value),
        "" if line.step is None else str(line.step),
        _number(line.best),
        "" if line.best_step is None else str(line.best_step),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _say(console: Terminal, text: str) -> None:
    console.print(text, soft_wrap=True)
