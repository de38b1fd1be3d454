"""Shows a rehearsal: live progress, and the report."""

import time
from collections.abc import Sequence
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from outlast.base import numbers
from outlast.base.exits import State
from outlast.base.visible import one_line
from outlast.cli.rehearsal.google.assumptions import Outcome
from outlast.cli.rehearsal.google.report import GoogleReport
from outlast.cli.rehearsal.guarantees import Guarantee, Verdict
from outlast.cli.rehearsal.rehearsal import Watcher
from outlast.cli.rehearsal.report import Report
from outlast.cli.show.attempts import (
    attempts_table,
    say_failures,
    say_metrics,
    say_parts,
    say_warnings,
)
from outlast.cli.show.console import Terminal

_COLOURS = {Verdict.HELD: "green", Verdict.BROKEN: "red", Verdict.NOT_EXERCISED: "yellow"}


class Screen(Watcher):
    """Live progress of a rehearsal: bars on a terminal, and one line for each event."""

    def __init__(self, *, quiet: bool) -> None:
        # With --json, stdout is the report's alone.
        self._console = Terminal(stderr=quiet)
        self._started = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn(
                "step {task.completed:.0f} of {task.total:.0f}  {task.fields[last]}", markup=False
            ),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Screen":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, message: str) -> None:
        seconds = time.monotonic() - self._started
        self._console.sentence(f"{seconds:6.1f} s  {message}")

    def progress(self, name: str, step: int, total: int, rows: tuple[dict[str, Any], ...]) -> None:
        last = _numbers(rows[-1]) if rows else ""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(one_line(name), total=total, last=last)
        self._progress.update(self._tasks[name], completed=step, total=total, last=last)


def _numbers(row: dict[str, Any]) -> str:
    """A row's floats, shortened; the step is shown separately."""
    shown = (f"{key} {value:.4g}" for key, value in row.items() if type(value) is float)
    return one_line("  ".join(shown))


def show_report(report: Report) -> None:
    """The end of a rehearsal: attempts, goodput, one line for each guarantee."""
    console = Terminal()
    console.print()
    if report.attempts:
        console.print(f"Attempts of run {report.run} (UTC), which is {report.ending}:")
        say_parts(console, report.parts)
        console.print(attempts_table(report.attempts))
        done = report.ending.startswith(State.DONE)
        say_failures(console, report.attempts, done=done)
        say_warnings(console, report.attempts)
    else:
        console.print(f"Run {report.run} is {report.ending}.")
    # The same failure is shown once.
    same = {attempt.why for attempt in report.attempts} & {a.why for a in report.baseline_attempts}
    done = bool(same - {""})
    say_failures(console, report.baseline_attempts, done=done, of="undisturbed run: ")
    console.print()
    say_metrics(console, report.metrics)
    if report.goodput is not None:
        baseline = report.goodput_baseline
        beside = "" if baseline is None else f" ({baseline:.1%} undisturbed)"
        console.print(
            f"goodput        {report.goodput:.1%} of the time from first boot to end{beside}"
        )
    console.print()
    _say_guarantees(console, report.guarantees)
    console.print()
    counts = [
        f"{numbers.count(count, 'guarantee')} {verdict.lower()}"
        for verdict in (Verdict.BROKEN, Verdict.NOT_EXERCISED)
        if (count := report.count(verdict))
    ]
    verdict = ", ".join(counts) or "all guarantees held"
    console.print(f"scenario {report.scenario}: {verdict}, {report.seconds:.0f} s")


def show_google_report(report: GoogleReport) -> None:
    """The end of a rehearsal on Google: one line for each assumption, then the run's report."""
    console = Terminal()
    console.print()
    console.print(f"Assumptions about Google, asked in {report.zone}:")
    width = max((len(answer.outcome) for answer in report.answers), default=0)
    for answer in report.answers:
        name = answer.assumption.name
        console.sentence(f"{answer.outcome.ljust(width)}  {name}: {answer.assumption.says}")
        if answer.outcome is not Outcome.HOLDS:
            console.sentence(f"{'':{width}}  {answer.seen}")
    if report.run:
        show_report(report.run)


def _say_guarantees(console: Terminal, guarantees: Sequence[Guarantee]) -> None:
    """One line for each guarantee; on a terminal, long ones are wrapped beside their verdicts."""
    width = max((len(guarantee.verdict) for guarantee in guarantees), default=0)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for guarantee in guarantees:
        word = Text(guarantee.verdict.ljust(width), style=_COLOURS[guarantee.verdict])
        text = f"{guarantee.promise}: {guarantee.detail}"
        if console.is_terminal:
            table.add_row(word, text)
        else:
            console.sentence(f"{word.plain}  {text}")
    if console.is_terminal:
        console.print(table)


def show_scenarios(listed: list[tuple[str, str]]) -> None:
    """The named scenarios with their descriptions."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, about in listed:
        table.add_row(name, about)
    Terminal().print(table)
