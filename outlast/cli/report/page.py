"""A report as one HTML file: no script, nothing from the network, all text from outside escaped.

Everything in a bucket may be written by a VM, or by another who may write there: names, values,
messages, log lines. Jinja escapes each value; before that, `_shown` makes control characters
visible and hides what looks like a key. The page's policy allows its own style sheet, by its hash,
and nothing else, so that a slip would still do nothing.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from outlast.base import numbers
from outlast.base.exits import INFRASTRUCTURE_REASONS, Reason, State
from outlast.base.numbers import duration
from outlast.base.visible import visible
from outlast.base.whole_file import write_whole
from outlast.bucket.goodput import Use
from outlast.bucket.history import Attempt
from outlast.cli import version
from outlast.cli.curves import Curve, Point
from outlast.cli.errors import OperateError
from outlast.cli.report import drawing, redact
from outlast.cli.report.drawing import Chart, Tile
from outlast.cli.report.facts import Facts
from outlast.costs import pricing

TEMPLATES = Path(__file__).with_name("templates")
BEGIN = "<!doctype html><!-- outlast report -->"
"""How each report begins, so that only reports are ever replaced."""
FIGURES_MAX = 60
ATTEMPTS_MAX = 200
MARKED_MAX = 300
VALUES_SHOWN = 6
_COST_ITEMS_MAX = 50


@dataclass(frozen=True)
class Figure:
    """A chart with what is said beside it."""

    chart: Chart
    last: Point
    lowest: Point
    highest: Point
    not_finite: int


def html(facts: Facts) -> str:
    """The page about a run."""
    figures, hidden = _figures(facts)
    attempts = facts.attempts
    return render(
        "experiment.html",
        title=f"{facts.name}: {facts.status.state}",
        facts=facts,
        status=facts.status,
        book=facts.status.history,
        story=story(facts),
        tiles=_tiles(facts),
        timeline=drawing.timeline(facts.goodput) if facts.goodput else None,
        attempts=attempts[-ATTEMPTS_MAX:],
        earlier=max(0, len(attempts) - ATTEMPTS_MAX),
        figures=figures,
        hidden=hidden,
        goodput=_goodput(facts),
        price_dates=pricing.dates(),
        cost_items=_cost_items(facts),
        cost_of=_cost_of(facts),
        made=facts.made,
    )


def file_name(name: str) -> Path:
    """The file that a report gets, by the name of its experiment or sweep."""
    return Path(f"report-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.html")


def write(text: str, path: Path) -> None:
    """Writes a page under its name at once; an earlier report there is replaced. Raises
    OperateError, also for a file that is not a report.
    """
    try:
        if path.exists() or path.is_symlink():
            with path.open("rb") as there:
                if there.read(len(BEGIN)) != BEGIN.encode():
                    raise OperateError(
                        f"{path}: exists and is not a report, so it is kept; name another with -o"
                    )
        write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise OperateError(f"{path}: {error.strerror or error}; name another with -o") from None


def render(template: str, **values: Any) -> str:
    """A page from one of the templates."""
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment().get_template(template)
    return page.render(
        begin=Markup(BEGIN),  # noqa: S704 - a constant
        style=Markup(style),  # noqa: S704 - the file beside the template
        style_hash=digest,
        version=version.text(),
        **values,
    )


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(Use=Use, State=State, Markup=Markup)
    made.filters.update(
        steps=lambda value: f"{value:,}",
        time=lambda value: f"{value:%Y-%m-%d %H:%M:%S}",
        clock=lambda value: f"{value:%d %b %H:%M:%S}",
        percent=lambda value: f"{value:.1%}",
        duration=duration,
        dollars=pricing.dollars,
        number=drawing.number,
        value=_value,
        lasted=_lasted,
        change=_change,
        use_class=lambda use: use.name.lower().replace("_", "-"),
    )
    return made


def _shown(value: Any) -> Any:
    """What is written for a value of a template: text without control characters and keys."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return redact.text(visible(str(value)))


# ---------------------------------------------------------------------------------------------
# What the page says


def story(facts: Facts) -> list[str]:
    """What happened, in sentences."""
    book, state = facts.status.history, facts.status.state
    if book is None:
        return [f"The run is {state}: no VM has trained yet."]
    head, end = book.head, book.head.end
    vms = len({book.starts[one.term].instance_id for one in book.attempts})
    lasted = _wall(facts)
    of = f" of {book.total:,}" if book.total else ""
    said = f"The run is {state} at step {book.step:,}{of}"
    if lasted:
        said += f", after {duration(lasted)}"
    if facts.costs is not None:
        said += f" on {numbers.count(vms, 'VM')}"
    sentences = [f"{said}."]
    if end is not None and end.reason not in (Reason.DONE, Reason.STOPPED):
        sentences.append(f"The reason of its end: {end.reason}.")
    if end is not None and end.why:
        sentences.append(f"Its trainer ended it: {end.why}")
    if facts.status.wait is not None:
        wait = facts.status.wait
        why = f": {wait.why}" if wait.why else ""
        sentences.append(f"It waits for a VM ({wait.what}){why}.")
    sentences.append(_interruptions(facts))
    if head.state is State.FAILED and (why := next(_reasons(book.attempts), "")):
        sentences.append(f"The last failure: {why}")
    return sentences


def _interruptions(facts: Facts) -> str:
    count = facts.interruptions
    if not count:
        return "Nothing interrupted it."
    reasons: dict[str, int] = {}
    for one in facts.attempts:
        if one.reason in INFRASTRUCTURE_REASONS:
            reasons[str(one.reason)] = reasons.get(str(one.reason), 0) + 1
    named = ", ".join(f"{amount} {reason}" for reason, amount in reasons.items())
    said = f"The platform interrupted it {_times(count)} ({named}): "
    were = "was" if facts.steps_lost == 1 else "were"
    said += (
        f"{numbers.count(facts.steps_lost, 'step')} {were} repeated"
        if facts.steps_lost
        else "no step was repeated"
    )
    cost = facts.preemptions
    if cost is not None:
        said += (
            f", and VMs spent {duration(cost.hours * 3600)} on starting again and repeating steps"
        )
    waited = facts.goodput.seconds(Use.WAITING) if facts.goodput else 0.0
    if waited >= 1:
        said += f"; {duration(waited)} passed without a VM, which costs nothing"
    if cost is not None and facts.costs is not None and facts.costs.said != "unknown":
        least = "at least " if facts.costs.unknown else ""
        said += f". Starting again and repeating cost {least}{pricing.dollars(cost.dollars)}"
        said += f" of {facts.costs.said}"
    return f"{said}."


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _reasons(attempts: Sequence[Attempt]) -> Any:
    return (one.why for one in reversed(attempts) if one.why)


def _wall(facts: Facts) -> float:
    if facts.goodput is not None:
        return facts.goodput.wall_sec
    if not facts.attempts:
        return 0.0
    last = facts.attempts[-1]
    return ((last.end or last.seen or last.start) - facts.attempts[0].start).total_seconds()


def _tiles(facts: Facts) -> list[Tile]:
    book = facts.status.history
    if book is None:
        return []
    total = f"of {book.total:,}" if book.total else ""
    left = facts.status.left
    if left is not None:
        total += f", {duration(left.total_seconds())} left"
    tiles = [Tile("step", f"{book.step:,}", total.strip(", "))]
    for best in facts.best[:2]:
        name, value = next(iter(best.values.items()), ("checkpoint", None))
        of = f" of part {best.part}" if best.part else ""
        shown = "kept" if value is None else _value(value)
        tiles.append(Tile("best", shown, f"{name}, step {best.step:,}{of}"))
    if not facts.best:
        for name, last in list(facts.status.metrics.items())[:2]:
            tiles.append(Tile("last", _value(last.value), f"{name}, step {last.step:,}"))
    if facts.costs is not None:
        tiles.append(Tile("cost", facts.costs.said, f"{facts.costs.hours:.2f} VM hours"))
    if facts.goodput is not None:
        tiles.append(
            Tile("goodput", f"{facts.goodput.share:.1%}", "of the time went into kept steps")
        )
    lost = (
        f"{numbers.count(facts.steps_lost, 'step')} repeated"
        if facts.steps_lost
        else "no step repeated"
    )
    tiles.append(Tile("interruptions", f"{facts.interruptions}", lost))
    return tiles


def _goodput(facts: Facts) -> list[tuple[Use, float, float]]:
    """Uses that took time, with their seconds and shares."""
    found = facts.goodput
    if found is None:
        return []
    seconds = {use: found.seconds(use) for use in Use}
    return [(use, sec, sec / found.wall_sec) for use, sec in seconds.items() if sec > 0]


def _cost_of(facts: Facts) -> dict[int, str]:
    """What each attempt's VM cost in its time, by the attempt's number."""
    shares = facts.costs.shares if facts.costs else ()
    return {one.attempt.term: one.life.rate.said(one.hours) for one in shares if one.attempt}


def _cost_items(facts: Facts) -> list[tuple[str, float, str]]:
    """Each kind of VM: what it consists of, its hours, and its price."""
    if facts.costs is None:
        return []
    kinds: dict[tuple[str, str], list[Any]] = {}
    for life in facts.costs.lives:
        kind = (" + ".join(item.what for item in life.rate.items), life.zone.rpartition("/")[2])
        entry = kinds.setdefault(kind, [0.0, 0, life.rate])
        entry[0] += life.hours
        entry[1] += 1
    return [
        (f"{vms} × {what}{f' in {zone}' if zone else ''}", hours, rate.said(hours))
        for (what, zone), (hours, vms, rate) in list(kinds.items())[:_COST_ITEMS_MAX]
    ]


# ---------------------------------------------------------------------------------------------
# Charts


def _figures(facts: Facts) -> tuple[list[Figure], list[str]]:
    """The charts, those of the best step's metrics first, and the names of metrics without one."""
    first = [name for best in facts.best for name in best.values]
    by_name = facts.curves.by_name
    names = [name for name in dict.fromkeys(first) if name in by_name]
    names += [name for name in by_name if name not in names]
    marks = _marks(facts)
    figures: list[Figure] = []
    hidden: list[str] = []
    for name in names:
        figure = _figure(by_name[name], facts, marks) if len(figures) < FIGURES_MAX else None
        if figure is None:
            hidden.append(name)
        else:
            figures.append(figure)
    return figures, hidden


def _figure(curve: Curve, facts: Facts, marks: Sequence[tuple[int, str, str]]) -> Figure | None:
    last, lowest, highest = curve.last, curve.lowest, curve.highest
    if last is None or lowest is None or highest is None:
        return None
    own = list(marks)
    if curve.first_not_finite is not None:
        own.append((curve.first_not_finite, "not finite", "not-finite"))
    book = facts.status.history
    until = max(facts.curves.last_step, book.step if book else 0)
    made = drawing.chart(curve.name, {curve.name: curve.points}, last=until, marks=own)
    assert made is not None
    return Figure(made, last, lowest, highest, curve.not_finite)


def _marks(facts: Facts) -> list[tuple[int, str, str]]:
    """Resumes, and the beginnings of parts; resumes at one step are one mark."""
    found: dict[int, tuple[str, str]] = {}
    for attempt in facts.attempts[1:]:
        before = found.get(attempt.from_step)
        changed = attempt.changed or (before is not None and before[1] == "changed")
        first = before[0].partition("–")[0] if before else ""
        text = f"{first}–{attempt.term}" if first else str(attempt.term)
        found[attempt.from_step] = (text, "changed" if changed else "resume")
    resumes = [(step, text, kind) for step, (text, kind) in found.items()][-MARKED_MAX:]
    parts = [(step, name, "part") for name, step in facts.part_begins.items()][-MARKED_MAX:]
    return [*resumes, *parts]


# ---------------------------------------------------------------------------------------------
# Filters


def _value(value: Any) -> str:
    value = numbers.from_json(value)
    if value is None:
        return "not finite"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)[:80]
    return drawing.number(value) if isinstance(value, float) else f"{value:,}"


def _lasted(attempt: Attempt) -> str:
    end: datetime | None = attempt.end or attempt.seen
    return duration((end - attempt.start).total_seconds()) if end else ""


def _change(text: str) -> str:
    """A change in words; `args.<flag> BEFORE → NOW`."""
    return redact.text(text, text.partition(" ")[0])
