"""Coordinates of a report's pictures: curves and the timeline.

A picture is as wide as the page, so places across it are in thousandths of its width, which the
browser stretches, and places down it are in pixels. Texts are outside of what is stretched.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from outlast.base.numbers import duration
from outlast.bucket.goodput import Goodput, Stretch, Use
from outlast.cli.curves import Point

WIDTH = 1000.0
HEIGHT = 150
"""Of the area of a curve, in pixels."""
STRETCHES_MAX = 800
"""Above this many, a timeline is drawn by thousandths, each in its most common use."""
LABEL_MAX = 12
LETTER = 22.0
"""The width of a letter on a phone, in thousandths."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Tile:
    """One figure at the top of a page."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Tick:
    """A line of a grid with its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    points: str
    """As a polyline has them."""
    rank: int
    """The number of its colour."""
    label: str = ""


@dataclass(frozen=True)
class Mark:
    """A step at which something happened."""

    at: float
    text: str
    kind: str
    """`resume`, `changed`, `part` or `not-finite`."""
    label: str = ""
    """The text, if there is room for it."""

    @property
    def percent(self) -> float:
        return round(self.at / WIDTH * 100, 2)


@dataclass(frozen=True)
class Chart:
    """The curves of one metric."""

    title: str
    lines: tuple[Line, ...]
    across: tuple[Tick, ...]
    down: tuple[Tick, ...]
    marks: tuple[Mark, ...] = ()
    height: int = HEIGHT


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * one for one in _STEPS if power * one >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def number(value: float) -> str:
    """A value in few characters."""
    text = f"{value:.4g}"
    if "e" in text:
        mantissa, _, power = text.partition("e")
        return f"{mantissa}e{int(power)}"
    return text


def count(value: float) -> str:
    """A number of steps in few characters."""
    for least, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least:
            return f"{value / (1e3 if unit == 'k' else least):.4g}{unit}"
    return f"{value:.0f}"


def chart(
    title: str,
    curves: Mapping[str, Sequence[Point]],
    *,
    last: int,
    marks: Sequence[tuple[int, str, str]] = (),
    ranks: Mapping[str, int] | None = None,
    height: int = HEIGHT,
) -> Chart | None:
    """The curves by their labels over the steps 0 to `last`; None without a point. `marks`: step,
    text, kind.
    """
    values = [value for points in curves.values() for _, value in points]
    if not values:
        return None
    low, high = _range(min(values), max(values))
    across = _scale(0.0, float(max(last, 1)), 0.0, WIDTH)
    down = _scale(low, high, height - 4.0, 6.0)
    lines = tuple(
        Line(
            " ".join(f"{across(step):.1f},{down(value):.1f}" for step, value in _seen(points)),
            (ranks or {}).get(label, 0),
            label,
        )
        for label, points in curves.items()
        if points
    )
    return Chart(
        title,
        lines,
        tuple(Tick(round(across(one) / 10, 2), count(one)) for one in ticks(0, max(last, 1), 4)),
        tuple(Tick(round(down(one), 1), number(one)) for one in ticks(low, high, 4)),
        tuple(_labelled(Mark(round(across(at), 1), text, kind) for at, text, kind in marks)),
        height,
    )


def _labelled(marks: Iterable[Mark]) -> Iterator[Mark]:
    """From the left, with a text wherever it does not touch the one before."""
    free = 0.0
    for mark in sorted(marks, key=lambda one: one.at):
        text = mark.text if len(mark.text) <= LABEL_MAX else f"{mark.text[: LABEL_MAX - 1]}…"
        half = len(text) * LETTER / 2
        if mark.at - half < free and free:
            yield mark
            continue
        free = mark.at + half + LETTER
        yield replace(mark, label=text)


def _seen(points: Sequence[Point]) -> Sequence[Point]:
    """A single point as a short line, which is visible."""
    if len(points) > 1:
        return points
    ((step, value),) = points
    return [(step, value), (step + 1, value)]


def _range(low: float, high: float) -> tuple[float, float]:
    """With some room, so that a level line is in the middle."""
    if not math.isfinite(high - low):  # beyond what a float can hold
        return max(low, -1e300), min(high, 1e300)
    if high > low:
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low or 1.0

    def place(value: float) -> float:
        share = min(1.0, max(0.0, (value - low) / span))
        return start + share * (end - start)

    return place


# ---------------------------------------------------------------------------------------------
# Timeline


@dataclass(frozen=True)
class Box:
    """A stretch of the timeline."""

    at: float
    width: float
    use: Use
    text: str


@dataclass(frozen=True)
class Timeline:
    """The time of a run from its first boot, in its uses."""

    boxes: tuple[Box, ...]
    across: tuple[Tick, ...]
    """Percent of the width, and the time since the beginning."""
    uses: tuple[Use, ...]
    """Those that are in it."""
    attempts: tuple[Mark, ...] = ()
    """The numbers of the attempts, in their middle."""


def timeline(found: Goodput) -> Timeline:
    """The picture of a run's time."""
    begin, end = found.stretches[0].start, found.stretches[-1].end
    seconds = (end - begin).total_seconds()
    across = _scale(0.0, seconds, 0.0, WIDTH)

    def at(moment: datetime) -> float:
        return across((moment - begin).total_seconds())

    if len(found.stretches) <= STRETCHES_MAX:
        boxes = [_box(one, at) for one in found.stretches]
    else:
        boxes = list(_by_thousandths(found.stretches, at))
    seen = {one.use for one in found.stretches}
    labels = tuple(
        Tick(round(across(one) / 10, 2), duration(one))
        for one in _round_times(seconds)
        if one <= seconds
    )
    numbers = _labelled(_attempts(found.stretches, at))
    return Timeline(tuple(boxes), labels, tuple(use for use in Use if use in seen), tuple(numbers))


def _attempts(stretches: Sequence[Stretch], at: Callable[[datetime], float]) -> Iterator[Mark]:
    spans: dict[int, tuple[datetime, datetime]] = {}
    for one in stretches:
        if one.use not in (Use.WAITING, Use.FAILED_BOOT):
            spans[one.term] = (spans.get(one.term, (one.start,))[0], one.end)
    for term, (start, end) in spans.items():
        yield Mark((at(start) + at(end)) / 2, str(term), "attempt")


def _box(one: Stretch, at: Callable[[datetime], float]) -> Box:
    start = at(one.start)
    of = f"attempt {one.term}: " if one.term else ""
    text = f"{of}{one.use}, {duration(one.seconds)}"
    return Box(round(start, 2), round(max(at(one.end) - start, 0.3), 2), one.use, text)


def _by_thousandths(stretches: Sequence[Stretch], at: Callable[[datetime], float]) -> Iterator[Box]:
    columns: list[dict[Use, float]] = [defaultdict(float) for _ in range(int(WIDTH))]
    for one in stretches:
        start, end = at(one.start), at(one.end)
        for column in range(int(start), min(int(end) + 1, int(WIDTH))):
            columns[column][one.use] += min(end, column + 1) - max(start, column)
    begin, use = 0, None
    for column, seconds in enumerate([*columns, {}]):
        most = max(seconds, key=lambda one: seconds[one], default=None)
        if most is not use:
            if use is not None:
                yield Box(begin, column - begin, use, str(use))
            begin, use = column, most


_SPANS = (
    *(1, 2, 5, 10, 30, 60, 120, 300, 600, 1800),
    *(3600, 7200, 21600, 43200, 86400, 172800, 604800),
)


def _round_times(seconds: float) -> list[int]:
    """About four round spans up to `seconds`."""
    step = next((one for one in _SPANS if one * 5 >= seconds), 0)
    if not step:
        step = math.ceil(seconds / 5 / 604800) * 604800
    return [step * number for number in range(int(seconds // step) + 1)]
