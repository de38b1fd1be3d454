"""Renders what the terminal shows: live progress, tables, guarantees."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from outlast.base import numbers
from outlast.base.exits import State
from outlast.base.numbers import duration
from outlast.base.visible import one_line, visible
from outlast.bucket.history import Attempt
from outlast.bucket.standing import Standing
from outlast.cli.boots import Wait
from outlast.cli.costs import Costs, ProjectCosts
from outlast.cli.data import Listed
from outlast.cli.inspecting import Inspected
from outlast.cli.overview import Line, Overview
from outlast.cli.rehearsal.google.assumptions import Outcome
from outlast.cli.rehearsal.google.report import GoogleReport
from outlast.cli.rehearsal.guarantees import Guarantee, Verdict
from outlast.cli.rehearsal.rehearsal import Watcher
from outlast.cli.rehearsal.report import Report
from outlast.cli.review.preview import Review
from outlast.cli.status import Status
from outlast.costs import pricing
from outlast.spec.metrics import Last

PIPED_WIDTH = 10_000


class Terminal(Console):
    """A console that prints strings literally, also in table cells: no markup, emoji codes or
    control sequences. `Text` objects are printed as they are.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)
        if not self.is_terminal:
            self.width = PIPED_WIDTH  # Nothing is cut or wrapped in a file or a pipe.

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible(text), **how)


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
        _line(self._console, f"{seconds:6.1f} s  {message}")

    def progress(self, name: str, step: int, total: int, rows: tuple[dict[str, Any], ...]) -> None:
        last = _numbers(rows[-1]) if rows else ""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(one_line(name), total=total, last=last)
        self._progress.update(self._tasks[name], completed=step, total=total, last=last)


def _numbers(row: dict[str, Any]) -> str:
    """A row's floats, shortened; the step is shown separately."""
    shown = (f"{key} {value:.4g}" for key, value in row.items() if type(value) is float)
    return one_line("  ".join(shown))


def _attempts_table(attempts: tuple[Attempt, ...], now: str = "not ended") -> Table:
    """`now`: how an attempt without an end stands."""
    table = Table(box=None, pad_edge=False)
    for name in ("attempt", "start", "end", "reason"):
        table.add_column(name)
    for name in ("from step", "to step", "steps", "steps lost"):
        table.add_column(name, justify="right")
    for attempt in attempts:
        end = f"{attempt.end:%H:%M:%S}" if attempt.end else ""
        table.add_row(
            str(attempt.term),
            f"{attempt.start:%H:%M:%S}",
            end,
            str(attempt.reason or now),
            str(attempt.from_step),
            str(attempt.step),
            str(attempt.steps),
            str(attempt.lost),
        )
    return table


FAILURES_SHOWN = 5
LINES_SHOWN = 30
LINES_WITHOUT_TRACEBACK = 10


def _say_failures(
    console: Terminal, attempts: Sequence[Attempt], *, done: bool, of: str = ""
) -> None:
    """Why attempts failed, and the newest one's last lines; only the sentences if the run is done
    anyway.
    """
    failed = [attempt for attempt in attempts if attempt.why]
    if len(failed) > FAILURES_SHOWN:
        console.print(f"{of}{len(failed) - FAILURES_SHOWN} earlier attempts failed too")
    for attempt in failed[-FAILURES_SHOWN:]:
        how = attempt.reason or "will fail unless its VM is stopping"
        _line(console, f"{of}attempt {attempt.term} {how}: {one_line(attempt.why)}")
    for line in [] if done or not failed else _excerpt(failed[-1].stderr):
        text = one_line(_BUNDLE.sub('"', line))
        console.print(f"  {text}".rstrip(), soft_wrap=True)


_BUNDLE = re.compile(r'"[^"]*/bundle/[0-9a-f]{64}/')
"""The folder of the delivered code on a VM, which tracebacks name."""
_RUNPY = '  File "<frozen runpy>"'


def _excerpt(lines: Sequence[str]) -> list[str]:
    """The last traceback and what follows it, or else the last few lines."""
    starts = [n for n, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    shown = list(lines[starts[-1] :] if starts else lines[-LINES_WITHOUT_TRACEBACK:])
    shown = [line for line in shown if not line.startswith(_RUNPY)]
    if len(shown) > LINES_SHOWN:
        half = LINES_SHOWN // 2
        shown = [*shown[:half], f"… {len(shown) - 2 * half} lines …", *shown[-half:]]
    return shown


PARTS_SHOWN = 12


def _say_parts(console: Terminal, parts: Sequence[Mapping[str, Any]]) -> None:
    """The progress of each part; if there are many, of the last ones."""
    hidden = parts[:-PARTS_SHOWN]
    if hidden:
        done = sum(part["done"] for part in hidden)
        _line(console, f"{len(parts)} parts; the first {len(hidden)}: {done} done")
    for part in parts[len(hidden) :]:
        how = "done, after" if part["done"] else "at"
        _line(console, f"part {part['part']}: {how} step {part['step']}")


def show_report(report: Report) -> None:
    """The end of a rehearsal: attempts, goodput, one line for each guarantee."""
    console = Terminal()
    console.print()
    if report.attempts:
        console.print(f"Attempts of run {report.run} (UTC), which is {report.ending}:")
        _say_parts(console, report.parts)
        console.print(_attempts_table(report.attempts))
        done = report.ending.startswith(State.DONE)
        _say_failures(console, report.attempts, done=done)
        _say_warnings(console, report.attempts)
    else:
        console.print(f"Run {report.run} is {report.ending}.")
    # The same failure is shown once.
    same = {attempt.why for attempt in report.attempts} & {a.why for a in report.baseline_attempts}
    done = bool(same - {""})
    _say_failures(console, report.baseline_attempts, done=done, of="undisturbed run: ")
    console.print()
    _say_metrics(console, report.metrics)
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
        _line(console, f"{answer.outcome.ljust(width)}  {name}: {answer.assumption.says}")
        if answer.outcome is not Outcome.HOLDS:
            _line(console, f"{'':{width}}  {answer.seen}")
    if report.run:
        show_report(report.run)


_COLOURS = {Verdict.HELD: "green", Verdict.BROKEN: "red", Verdict.NOT_EXERCISED: "yellow"}


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
            _line(console, f"{word.plain}  {text}")
    if console.is_terminal:
        console.print(table)


def show_scenarios(listed: list[tuple[str, str]]) -> None:
    """The named scenarios with their descriptions."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, about in listed:
        table.add_row(name, about)
    Terminal().print(table)


def show_status(status: Status) -> None:
    """One run: state, attempts, the last metrics."""
    console = Terminal()
    book, wait = status.history, status.wait
    if book is None:
        what = _waited(wait) if wait else status.state
        _line(console, f"{status.experiment}: run {status.run} is {what}")
        _line(console, status.url)
        _say_serial(console, wait)
        return
    end = book.head.end
    state = status.state
    if end and end.reason != state:
        state += f" ({end.reason})"
    total = f" of {book.total}" if book.total else ""
    step = f"step {book.step}{total}" if not status.parts else f"{book.step} steps in all its parts"
    if status.left is not None and book.rate:
        of = f" of part {book.part}" if book.part else ""
        step += f", {duration(status.left.total_seconds())} left{of} at {book.rate:.3g} steps/s"
    if book.head.state in (State.FAILED, State.STOPPED) and book.head.step < book.step:
        step += f"; its newest checkpoint is at step {book.head.step}"
    _line(console, f"{status.experiment}: run {status.run} is {state}, {step}")
    if status.why:
        _line(console, f"{status.state}: {one_line(status.why)}")
    _line(console, status.url)
    if status.silence is not None and not status.state.ended:
        _line(console, f"last heartbeat {duration(status.silence.total_seconds())} ago")
    _say_parts(console, status.parts)
    console.print()
    console.print("Attempts (UTC):")
    open_state = status.state if status.silence is not None else "not ended"
    console.print(_attempts_table(book.attempts, open_state))
    if wait:
        _line(console, f"the next attempt: {_waited(wait)}")
        _say_serial(console, wait)
    for attempt in book.attempts:
        if attempt.changed:
            what = ", ".join(attempt.changed)
            _line(console, f"attempt {attempt.term} changed: {what}")
    _say_failures(console, book.attempts, done=book.head.state is State.DONE)
    _say_warnings(console, book.attempts)
    if status.metrics:
        console.print()
        _say_metrics(console, status.metrics, now=-1 if status.parts else book.step)
    if status.result:
        console.print()
        _line(console, f"result  {status.result}")


def _line(console: Terminal, text: str) -> None:
    """Prints a sentence: wrapped between words on a terminal, unless it contains a long path; as
    one line into a file or pipe.
    """
    fits = all(len(word) < console.width for word in text.split())
    console.print(text, soft_wrap=not (console.is_terminal and fits))


METRICS_SHOWN = 30
NAME_SHOWN = 30
LABEL_WIDTH = 13


def _say_metrics(console: Terminal, metrics: Mapping[str, Last], now: int | None = None) -> None:
    """The last value of each metric, with its step if that is not `now`."""
    shown = sorted(metrics.items())[:METRICS_SHOWN]
    lines = [(_cut(name), _value(last.value), last.step) for name, last in shown]
    label = max([LABEL_WIDTH, *(len(name) for name, _, _ in lines)])
    width = max((len(value) for _, value, _ in lines), default=0)
    for name, value, step in lines:
        text = f"{name:{label}}  {value}"
        if now is not None and step != now:
            text = f"{text:{label + width + 4}}at step {step}"
        console.print(text, soft_wrap=True)
    if len(metrics) > len(shown):
        console.print(f"and {len(metrics) - len(shown)} more: --json has them all")


def _cut(text: str, most: int = NAME_SHOWN) -> str:
    """One line of printable characters, limited in length."""
    line = one_line(text)
    return line if len(line) <= most else line[: most - 1] + "…"


def _value(value: Any) -> str:
    if value is None:
        return "not finite"
    return _cut(f"{value:.6g}" if type(value) is float else str(value))


def _say_warnings(console: Terminal, attempts: tuple[Attempt, ...]) -> None:
    """The trainers' warnings, each once."""
    for warning in {text: None for attempt in attempts for text in attempt.warnings}:
        _line(console, f"warning: {warning}")


def _say_serial(console: Terminal, wait: Wait | None) -> None:
    """The last lines of a VM that never started its training."""
    if wait and wait.serial:
        console.print("the VM's serial port ends with:")
        for line in wait.serial:
            _line(console, f"  {line}")


def _waited(wait: Wait) -> str:
    since = f" since {wait.since:%H:%M:%S}" if wait.since else ""
    return f"{wait.what}{since}" + (f": {wait.why}" if wait.why else "")


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
            _line(console, _PRICES.format(date=pricing.dates()))
    if found.without:
        _line(console, f"without a run yet: {', '.join(found.without)}")
    if not (found.lines or found.without or found.unread):
        _line(console, "no experiments yet; outlast up starts one")
    show_unread(found.unread)


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
    parts += [f"{_cut(name)} {_value(last.value)}" for name, last in shown]
    return ", ".join([*parts, line.cost])


SUMMARY_METRICS = 3


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
            "description": _cut(name, 60),
            "completed": book.step if book else 0,
            "total": (book.total if book else None) or (1 if line.status.state.ended else None),
            "rest": one_line(rest),
        }
        if number in self._tasks:
            self._progress.update(self._tasks[number], **given)
        else:
            self._tasks[number] = self._progress.add_task(**given)


def show_inspected(found: Inspected) -> None:
    """Parameters and trees, and files that are only named."""
    console = Terminal()
    table = Table(box=None, pad_edge=False)
    for name in ("file", "parameter", "shape", "type"):
        table.add_column(name)
    for name in ("count", "norm"):
        table.add_column(name, justify="right")
    for one in found.parameters:
        norm = "" if one.norm is None else f"{one.norm:.6g}"
        shape = " x ".join(map(str, one.shape)) or "scalar"
        cells = (one.file, one.name, shape, one.dtype)
        table.add_row(*map(one_line, cells), f"{one.count:,}", norm)
    if found.parameters:
        console.print(table)
        console.print(f"{found.count:,} numbers in {len(found.parameters)} arrays")
    for model in found.trees:
        _line(
            console,
            f"{one_line(model.file)}: {model.trees} trees of {model.nodes} nodes, depth up to "
            f"{model.depth}, {model.features} features, {one_line(model.objective)}",
        )
    for name, why in found.others:
        _line(console, f"{one_line(name)}: {why}")


def show_data(lines: Sequence[Listed]) -> None:
    """The data of a bucket, one name a line."""
    console = Terminal()
    if not lines:
        _line(console, "no data yet; outlast data push FOLDER puts some there")
        return
    table = Table(box=None, pad_edge=False)
    for name, justify in (("name", "left"), ("files", "right"), ("bytes", "right")):
        table.add_column(name, justify=cast(Any, justify))
    for name in ("CRC32C", "used by"):
        table.add_column(name)
    for line in lines:
        found = line.source.fingerprint
        uses = ", ".join(str(use) for use in line.uses)
        table.add_row(line.name, str(len(line.source.objects)), str(found.size), found.crc32c, uses)
    console.print(table)


def show_unread(sentences: Sequence[str]) -> None:
    """What could not be read, on stderr."""
    for sentence in sentences:
        _line(Terminal(stderr=True), f"outlast: {sentence}")


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


def show_costs(costs: Costs) -> None:
    """The cost of a run by its attempts, and what preemptions cost."""
    console = Terminal()

    def line(text: str) -> None:
        _line(console, text)

    line(
        f"{costs.experiment}: run {costs.run} is {costs.state}; its VMs cost {costs.said} in"
        f" {costs.hours:.2f} h so far"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("attempt", "VM", "zone", "from (UTC)", "to", "ended as"):
        table.add_column(name)
    for name in ("hours", "an hour", "cost"):
        table.add_column(name, justify="right")
    shares = costs.shares
    for share in shares:
        life, attempt = share.life, share.attempt
        is_now = life.alive and share.end == life.end
        table.add_row(
            str(attempt.term) if attempt else "none",
            life.instance,
            life.zone,
            f"{share.start:%m-%d %H:%M:%S}",
            "now" if is_now else f"{share.end:%m-%d %H:%M:%S}",
            str(attempt.reason or "") if attempt else "",
            f"{share.hours:.2f}",
            life.rate.said(),
            life.rate.said(share.hours),
        )
    if shares:
        console.print(table)
    for text in costs.sentences:
        line(text)
    line(f"storage: {costs.storage}")
    for what in costs.unknown:
        line(f"no price is known for {what}")
    line("not counted: requests, traffic, images")
    line(_PRICES.format(date=pricing.dates()))


def show_project_costs(found: ProjectCosts) -> None:
    """The costs of all runs of a project."""
    console = Terminal()
    table = Table(box=None, pad_edge=False)
    for name in ("experiment", "run", "state"):
        table.add_column(name)
    for name in ("hours", "cost", "preemptions", "GiB kept"):
        table.add_column(name, justify="right")
    for run in found.runs:
        table.add_row(
            run.experiment,
            run.run,
            run.state,
            f"{run.hours:.2f}",
            run.said,
            pricing.dollars(run.preemptions.dollars),
            f"{run.gib:,.2f}",
        )
    if found.runs:
        console.print(table)
    count = len(found.runs)
    _line(
        console,
        f"{numbers.count(count, 'run')}: VMs cost {found.said}, of which"
        f" {pricing.dollars(found.preempted)} for preemptions; what they keep in the bucket costs"
        f" {found.month_said} a month",
    )
    for what in dict.fromkeys(what for run in found.runs for what in run.unknown):
        _line(console, f"no price is known for {what}")
    _line(console, _PRICES.format(date=pricing.dates()))
    show_unread(found.unread)


def show_review(review: Review) -> None:
    """The effects of a change, for a terminal."""
    console = Terminal()

    def line(text: str = "") -> None:
        _line(console, text)

    line(f"Stack {review.stack}")
    line()
    for run in review.runs:
        line(f"run {run.run} {run.said}: {run.why}")
    if not review.runs:
        line("no run")
    line()
    table = Table(box=None, pad_edge=False)
    for name in ("cost", "before", "after"):
        table.add_column(name)
    for row in _costs(review):
        table.add_row(*row)
    console.print(table)
    if review.after.sum.items:
        line(f"an hour: {', '.join(map(_item, review.after.sum.items))}")
    for text in (*review.bakes, *review.storage):
        line(text)
    line(_PRICES.format(date=pricing.dates()))
    line()
    for word, names in review.changes.items():
        line(f"{word}: {', '.join(names)}")
    if not review.changes:
        line("no resource changes")
    for text in review.warnings:
        line(f"warning: {text}")
    for text in review.advice:
        line(f"advice: {text}")
    line()
    for broken in review.broken:
        line(f"REFUSED  {_named(broken.rule, broken.resource)}: {broken.why}")
    for text in review.not_checked:
        line(f"GUARD NOT CHECKED  {text}")
    if not review.broken:
        line("no rule is broken")


def refused_as_markdown(stack: str | None, error: Exception) -> str:
    """The comment where there is no review, because of the error."""
    name = f"stack `{_code(stack)}`" if stack else "the selected stack"
    return f"### Outlast: {name}\n\n**Refused**\n\n- {_markdown(str(error))}"


def as_markdown(review: Review) -> str:
    """The effects of a change, as a pull request's comment."""
    lines = [
        f"### Outlast: stack `{_code(review.stack)}`",
        "",
        "| run | then | why |",
        "|---|---|---|",
    ]
    lines += [f"| `{_code(run.run)}` | **{run.said}** | {_cell(run.why)} |" for run in review.runs]
    if not review.runs:
        lines.append("| none | | |")
    lines += ["", "| cost | before | after |", "|---|---|---|"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in _costs(review)]
    lines += [
        "",
        *(
            line
            for text in map(_markdown, review.bakes)
            for line in (text[0].upper() + text[1:], "")
        ),
    ]
    if review.broken:
        lines += ["**Refused**", ""]
        lines += [
            f"- `{_code(_named(broken.rule, broken.resource))}`: {_markdown(broken.why)}"
            for broken in review.broken
        ]
    else:
        lines.append("No rule is broken.")
    if review.not_checked:
        lines += ["", "**Guard not checked**", ""]
        lines += [f"- {_markdown(text)}" for text in review.not_checked]
    remarks = [*(f"warning: {text}" for text in review.warnings), *review.advice]
    if remarks:
        lines += ["", *(f"- {_markdown(text)}" for text in remarks)]
    count = sum(map(len, review.changes.values()))
    lines += ["", f"<details><summary>resources that change: {count}</summary>", ""]
    for word, names in review.changes.items():
        lines += [f"**{word}**", "", *(f"- {_markdown(name)}" for name in names), ""]
    lines += ["</details>", "", "<details><summary>what the price is made of</summary>", ""]
    for when, stack_run in (("before", review.before), ("after", review.after)):
        for item in stack_run.sum.items:
            lines.append(f"- {when}: {_markdown(_item(item))} an hour")
    lines += [f"- {_markdown(text)}" for text in review.storage]
    lines += ["", _PRICES.format(date=pricing.dates()), "", "</details>"]
    return "\n".join(lines)


_PRICES = "List prices of {date}, without tax and discounts; Spot prices change up to once a day."


def _costs(review: Review) -> list[tuple[str, str, str]]:
    before, after = review.before, review.after
    return [
        ("an hour, while its VM runs", before.an_hour, after.an_hour),
        ("a day of it", before.a_day, after.a_day),
        ("at most, to its limit", before.at_the_limit, after.at_the_limit),
    ]


def _item(item: pricing.Item) -> str:
    return f"{item.what} {'unknown' if item.hour is None else pricing.dollars(item.hour)}"


def _named(rule: str, resource: str) -> str:
    return f"{rule} {resource}".strip()


def _cell(text: str) -> str:
    return _markdown(text).replace("|", "\\|")


def _code(text: str) -> str:
    """Text within backquotes, in a table's cell too."""
    return one_line(text).replace("`", "'").replace("|", "\\|")


_MARKS = re.compile(r"[\\`<>\[\]!&@]")


def _markdown(text: str) -> str:
    """Text that Markdown shows literally: no link, picture, tag or mention."""
    return _MARKS.sub(lambda found: f"&#{ord(found[0])};", one_line(text))
