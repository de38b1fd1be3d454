"""Shows the attempts of a run, why they failed, its parts and its metrics."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from outlast.base.visible import one_line
from outlast.bucket.history import Attempt
from outlast.cli.show.console import Terminal, shortened, shown_value
from outlast.spec.metrics import Last

FAILURES_SHOWN = 5
LINES_SHOWN = 30
LINES_WITHOUT_TRACEBACK = 10
PARTS_SHOWN = 12
METRICS_SHOWN = 30
LABEL_WIDTH = 13
_BUNDLE = re.compile(r'"[^"]*/bundle/[0-9a-f]{64}/')
"""The folder of the delivered code on a VM, which tracebacks name."""
_RUNPY = '  File "<frozen runpy>"'


def attempts_table(attempts: tuple[Attempt, ...], now: str = "not ended") -> Table:
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


def say_failures(
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
        console.sentence(f"{of}attempt {attempt.term} {how}: {one_line(attempt.why)}")
    for line in [] if done or not failed else _excerpt(failed[-1].stderr):
        text = one_line(_BUNDLE.sub('"', line))
        console.print(f"  {text}".rstrip(), soft_wrap=True)


def _excerpt(lines: Sequence[str]) -> list[str]:
    """The last traceback and what follows it, or else the last few lines."""
    starts = [n for n, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    shown = list(lines[starts[-1] :] if starts else lines[-LINES_WITHOUT_TRACEBACK:])
    shown = [line for line in shown if not line.startswith(_RUNPY)]
    if len(shown) > LINES_SHOWN:
        half = LINES_SHOWN // 2
        shown = [*shown[:half], f"… {len(shown) - 2 * half} lines …", *shown[-half:]]
    return shown


def say_parts(console: Terminal, parts: Sequence[Mapping[str, Any]]) -> None:
    """The progress of each part; if there are many, of the last ones."""
    hidden = parts[:-PARTS_SHOWN]
    if hidden:
        done = sum(part["done"] for part in hidden)
        console.sentence(f"{len(parts)} parts; the first {len(hidden)}: {done} done")
    for part in parts[len(hidden) :]:
        how = "done, after" if part["done"] else "at"
        console.sentence(f"part {part['part']}: {how} step {part['step']}")


def say_metrics(console: Terminal, metrics: Mapping[str, Last], now: int | None = None) -> None:
    """The last value of each metric, with its step if that is not `now`."""
    shown = sorted(metrics.items())[:METRICS_SHOWN]
    lines = [(shortened(name), shown_value(last.value), last.step) for name, last in shown]
    label = max([LABEL_WIDTH, *(len(name) for name, _, _ in lines)])
    width = max((len(value) for _, value, _ in lines), default=0)
    for name, value, step in lines:
        text = f"{name:{label}}  {value}"
        if now is not None and step != now:
            text = f"{text:{label + width + 4}}at step {step}"
        console.print(text, soft_wrap=True)
    if len(metrics) > len(shown):
        console.print(f"and {len(metrics) - len(shown)} more: --json has them all")


def say_warnings(console: Terminal, attempts: tuple[Attempt, ...]) -> None:
    """The trainers' warnings, each once."""
    for warning in {text: None for attempt in attempts for text in attempt.warnings}:
        console.sentence(f"warning: {warning}")
