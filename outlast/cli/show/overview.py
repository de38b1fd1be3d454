"""Shows many runs: as a list, or as they progress."""

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from outlast.base.numbers import duration
from outlast.base.visible import one_line, visible
from outlast.bucket.standing import Standing
from outlast.cli.overview import Line, Overview
from outlast.cli.show.console import PRICES, Terminal, shortened, show_unread, shown_value
from outlast.costs import pricing

SUMMARY_METRICS = 3


def show_overview(found: Overview) -> None:
    """All runs, one a line, and what could not be read."""
    console = Terminal()
    table = Table(box=None, pad_edge=False)
    for name in ("experiment", "run", "state"):
        table.add_column(name)
    for name in ("step", "steps/s", "left", "heartbeat", "cost"):
        table.add_column(name, justify="right")
    whys = [one_line(line.status.why) for line in found.lines]
    if any(whys):
        table.add_column("why")
    for line, why in zip(found.lines, whys, strict=True):
        table.add_row(line.status.experiment, line.status.run, *_cells(line), *([why] * any(whys)))
    if found.lines:
        console.print(table)
        if console.is_terminal:  # the table alone is for programs
            console.sentence(PRICES.format(date=pricing.dates()))
    if found.without:
        console.sentence(f"without a run yet: {', '.join(found.without)}")
    if not (found.lines or found.without or found.unread):
        console.sentence("no experiments yet; outlast up starts one")
    show_unread(found.unread)


def _cells(line: Line) -> list[str]:
    status, book = line.status, line.status.history
    total = f" of {book.total}" if book and book.total else ""
    works = status.left is not None or (status.silence is not None and not status.state.ended)
    return [
        status.state,
        f"{book.step}{total}" if book else "",
        f"{book.rate:.3g}" if book and book.rate and works else "",
        duration(status.left.total_seconds()) if status.left is not None else "",
        f"{duration(status.silence.total_seconds())} ago"
        if status.silence is not None and works
        else "",
        line.cost,
    ]


def summary(line: Line) -> str:
    """One run in a sentence: state, step, time left, metrics, cost."""
    status, book = line.status, line.status.history
    parts = [f"{status.experiment}: {status.state}"]
    if book:
        parts.append(f"step {book.step}" + (f" of {book.total}" if book.total else ""))
    if status.left is not None and book and book.rate:
        parts.append(f"{duration(status.left.total_seconds())} left at {book.rate:.3g} steps/s")
    if status.silence is not None and status.state in (Standing.SILENT, Standing.LOST):
        parts.append(f"last heartbeat {duration(status.silence.total_seconds())} ago")
    if status.wait and status.wait.why:
        parts.append(status.wait.why)
    if status.why:
        parts.append(one_line(status.why))
    shown = sorted(status.metrics.items())[:SUMMARY_METRICS]
    parts += [f"{shortened(name)} {shown_value(last.value)}" for name, last in shown]
    return ", ".join([*parts, line.cost])


class Progresses:
    """Several runs as they progress: a bar each on a terminal, otherwise a line for each change."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._console = Terminal()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[rest]}", markup=False),
            console=self._console,
            disable=as_json or not self._console.is_terminal,
        )
        self._tasks: dict[int, TaskID] = {}
        self._said: dict[int, str] = {}

    def __enter__(self) -> "Progresses":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, lines: Sequence[Line]) -> None:
        for number, line in enumerate(lines):
            if not self._progress.disable:
                self._bar(number, line)
                continue
            text = json.dumps(line.as_json()) if self._as_json else summary(line)
            state = line.status.state
            step = line.status.history.step if line.status.history else 0
            mark = f"{state} {step}"
            if self._said.get(number) != mark:
                self._said[number] = mark
                click.echo(visible(text))

    def _bar(self, number: int, line: Line) -> None:
        name, _, rest = summary(line).partition(", ")
        book = line.status.history
        given: dict[str, Any] = {
            "description": shortened(name, 60),
            "completed": book.step if book else 0,
            "total": (book.total if book else None) or (1 if line.status.state.ended else None),
            "rest": one_line(rest),
        }
        if number in self._tasks:
            self._progress.update(self._tasks[number], **given)
        else:
            self._tasks[number] = self._progress.add_task(**given)
