"""What a report about a sweep says: its leaderboard, and its trials' curves at equal steps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outlast.base import numbers
from outlast.base.codec import format_time
from outlast.base.exits import INFRASTRUCTURE_REASONS
from outlast.bucket import goodput
from outlast.bucket.goodput import Goodput
from outlast.bucket.store import StoreError
from outlast.bucket.sweeps import SweepObjects
from outlast.cli.curves import Curve
from outlast.cli.errors import OperateError, about
from outlast.cli.report import drawing
from outlast.cli.report.drawing import Chart
from outlast.cli.report.page import render
from outlast.cli.sweep import finding, leaderboard
from outlast.cli.sweep.leaderboard import Leaderboard, Line
from outlast.costs import pricing

COLOURS = 7
"""The best trials have a colour each, the others one together."""
OVERLAY = 280
"""Pixels of the overlay's height."""
TRIALS_SHOWN = 100
"""Trials with a section each."""
POINTS_MAX = 40_000
"""Of all curves of the overlay together."""


@dataclass(frozen=True)
class Entry:
    """One trial of the page."""

    line: Line
    rank: int
    """The number of its colour."""
    points: Sequence[tuple[int, float]]
    goodput: Goodput | None

    @property
    def run(self) -> str:
        return self.line.trial.record.run

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.line.trial.record.parameters

    @property
    def interruptions(self) -> int:
        return sum(one.reason in INFRASTRUCTURE_REASONS for one in self._attempts)

    @property
    def attempts(self) -> int:
        return len(self._attempts)

    @property
    def steps_lost(self) -> int:
        return sum(one.lost for one in self._attempts)

    @property
    def _attempts(self) -> Sequence[Any]:
        found = self.line.trial.status
        return found.history.attempts if found and found.history else ()


@dataclass(frozen=True)
class SweepFacts:
    """A sweep, as a report shows it."""

    board: Leaderboard
    entries: tuple[Entry, ...]
    """The best first."""
    names: tuple[str, ...]
    """The parameters that differ between trials."""
    made: datetime

    @property
    def name(self) -> str:
        """The sweep's."""
        return self.board.name

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read, a sentence each."""
        return self.board.unread

    @property
    def states(self) -> Mapping[str, int]:
        return Counter(one.line.trial.state for one in self.entries)

    @property
    def interruptions(self) -> int:
        return sum(one.interruptions for one in self.entries)

    @property
    def steps_lost(self) -> int:
        return sum(one.steps_lost for one in self.entries)

    @property
    def cost(self) -> str:
        """Of all trials, in words."""
        return ("at least " if self.board.is_lower_bound else "") + pricing.dollars(
            self.board.dollars
        )

    def as_json(self) -> dict[str, Any]:
        return {
            **self.board.as_json(),
            "made": format_time(self.made),
            "states": dict(self.states),
            "interruptions": self.interruptions,
            "steps_lost": self.steps_lost,
            "problems": list(self.problems),
        }


def find(where: str) -> SweepFacts:
    """The facts of a sweep, by its name or its file. Raises UsageError and OperateError."""
    return read(finding.found(where))


def read(objects: SweepObjects) -> SweepFacts:
    """The facts of a sweep. Raises OperateError."""
    try:
        state = finding.state_of(objects)
        board = leaderboard.of(objects, state)
        now = objects.store.now()
    except StoreError as error:
        raise OperateError(about(f"sweep {objects.name}", error)) from None
    each = max(20, POINTS_MAX // max(1, 4 * len(board.lines)))
    entries = tuple(
        Entry(
            line,
            min(rank, COLOURS) if line.compared else COLOURS,
            _thinned(board.curves.get(line.trial.record.run) or (), each),
            _goodput(line, now),
        )
        for rank, line in enumerate(board.lines)
    )
    return SweepFacts(board, entries, _differing(entries), now)


def _thinned(curve: Sequence[tuple[int, float]], buckets: int) -> Sequence[tuple[int, float]]:
    found = Curve("", min(buckets, 300))
    for step, value in curve:
        found.add(step, value)
    return found.points


def _goodput(line: Line, now: datetime) -> Goodput | None:
    found = line.trial.status
    return goodput.of(found.history, now) if found and found.history else None


def _differing(entries: Sequence[Entry]) -> tuple[str, ...]:
    """The parameters with more than one value; all of them if there is one trial only."""
    values: dict[str, set[str]] = {}
    for one in entries:
        for name, value in one.parameters.items():
            values.setdefault(name, set()).add(str(value))
    differing = tuple(name for name, found in values.items() if len(found) > 1)
    return differing or tuple(values)


def html(facts: SweepFacts) -> str:
    """The page about a sweep."""
    board = facts.board
    last = max((one.points[-1][0] for one in facts.entries if one.points), default=0)
    return render(
        "sweep.html",
        title=f"sweep {board.name}",
        facts=facts,
        board=board,
        parameters=parameters,
        tiles=_tiles(facts),
        overlay=_overlay(facts, last),
        legend=[one for one in facts.entries if one.rank < COLOURS and one.points],
        shown=facts.entries[:TRIALS_SHOWN],
        charts={one.run: _chart(one, board, last) for one in facts.entries[:TRIALS_SHOWN]},
        groups=board.groups,
        price_date=pricing.date(),
        made=facts.made,
    )


def _overlay(facts: SweepFacts, last: int) -> Chart | None:
    """All curves; the best ones are drawn last, above the others."""
    drawn = [one for one in reversed(facts.entries) if one.points]
    step = facts.board.step
    marks = [(step, f"{step:,}", "changed")] if step else []
    return drawing.chart(
        facts.board.metric,
        {one.run: one.points for one in drawn},
        last=last,
        marks=marks,
        ranks={one.run: one.rank for one in drawn},
        height=OVERLAY,
    )


def _chart(entry: Entry, board: Leaderboard, last: int) -> Chart | None:
    return drawing.chart(
        board.metric, {entry.run: entry.points}, last=last, ranks={entry.run: entry.rank}
    )


def _tiles(facts: SweepFacts) -> list[drawing.Tile]:
    board, best = facts.board, facts.board.best
    tiles = [
        drawing.Tile(
            "trials",
            f"{len(facts.entries):,}",
            ", ".join(f"{count} {state}" for state, count in sorted(facts.states.items())),
        )
    ]
    if best is not None and best.value is not None:
        value = drawing.number(best.value)
        tiles.append(drawing.Tile("best", value, f"{board.metric} at step {best.step or 0:,}"))
    tiles.append(drawing.Tile("cost", facts.cost, "of all trials"))
    lost = (
        f"{numbers.count(facts.steps_lost, 'step')} repeated"
        if facts.steps_lost
        else "no step repeated"
    )
    tiles.append(drawing.Tile("interruptions", f"{facts.interruptions:,}", lost))
    return tiles


def parameters(entry: Entry, names: Sequence[str]) -> str:
    """The trial's values of these parameters in one line."""
    given = ((name, entry.parameters.get(name)) for name in names)
    return ", ".join(f"{name} {_text(value)}" for name, value in given if value is not None)


def _text(value: Any) -> str:
    value = numbers.from_json(value)
    return drawing.number(value) if isinstance(value, float) else str(value)[:60]
