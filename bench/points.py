"""Moments for a fault: drawn from a seed and from what an undisturbed run showed of its phases."""

import json
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PHASES = ("setup", "step", "snapshot", "upload", "evaluation", "final upload")
MAX_OFFSET_SEC = 3.0


@dataclass(frozen=True)
class Point:
    """One blow: where, how, and when. The same seed and number give the same one."""

    number: int
    where: str
    """folder or cloud."""
    kind: str
    """SIGKILL, SIGTERM or notice."""
    target: str
    """machine (trainer and supervisor at once), trainer, supervisor, or vm (its whole tree)."""
    phase: str
    nth: int
    """Which occurrence of the phase."""
    offset_sec: float
    """After the phase was entered."""

    def plan(self) -> dict[str, Any]:
        """What the probe follows."""
        return {key: asdict(self)[key] for key in ("phase", "nth", "offset_sec", "kind", "target")}


@dataclass
class Phases:
    """What a run showed of its phases: how often, and how long each."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    steps: int = 0

    @classmethod
    def read(cls, plan: Path) -> "Phases":
        """From the marks of an undisturbed run; phases that were never seen are absent."""
        seconds: dict[str, list[float]] = defaultdict(list)
        steps = 0
        for line in (plan / "marks.jsonl").read_text().splitlines():
            mark = json.loads(line)
            if "steps" in mark:
                steps = mark["steps"]
            else:
                seconds[mark["phase"]].append(mark["seconds"])
        return cls(dict(seconds), steps)

    @property
    def known(self) -> list[str]:
        """Phases that there are in this run, in the order of a run."""
        return [phase for phase in PHASES if phase in self.seconds]

    def draw(self, phase: str, dice: random.Random) -> tuple[int, float]:
        """(occurrence, offset in seconds), evenly over the phase's time."""
        if phase == "step":
            nth = dice.randint(1, max(1, self.steps))
            return nth, dice.random() * self.seconds["step"][0]
        nth = dice.randint(1, len(self.seconds[phase]))
        return nth, min(MAX_OFFSET_SEC, dice.random() * self.seconds[phase][nth - 1])


def kinds(where: str) -> tuple[tuple[str, str], ...]:
    """(kind, target) that make sense there, in turn."""
    if where == "cloud":
        return (("SIGKILL", "vm"), ("notice", "vm"), ("SIGTERM", "supervisor"))
    return (
        ("SIGKILL", "machine"),
        ("SIGTERM", "trainer"),
        ("SIGKILL", "trainer"),
        ("SIGKILL", "supervisor"),
    )


def draw(
    seed: int, number: int, where: str, phases: Phases, choices: Sequence[tuple[str, str]]
) -> Point:
    """The point of that number: phases and kinds take turns, moments are drawn."""
    known = phases.known
    phase = known[number % len(known)]
    kind, target = choices[number // len(known) % len(choices)]
    nth, offset_sec = phases.draw(phase, random.Random(f"{seed}/{where}/{number}"))
    return Point(number, where, kind, target, phase, nth, round(offset_sec, 5))


@dataclass(frozen=True)
class Verdict:
    """The outcome of one point's run."""

    point: Point
    hit: bool
    """The blow fell before the run had ended."""
    resumed: bool
    """The next attempt resumed from the newest checkpoint, and the run was finished."""
    equal: bool
    """The result has the bytes of the undisturbed run's."""
    lost: int | None
    """Steps made and not in the state that the next attempt resumed from."""
    duplicate: int
    missing: int
    why: str = ""

    @property
    def good(self) -> bool:
        return self.resumed and self.equal and not self.duplicate and not self.missing


def row_faults(steps: Sequence[int], total: int) -> tuple[int, int]:
    """(duplicate, missing) among the steps that have a row; each from 1 to total has one."""
    return len(steps) - len(set(steps)), len(set(range(1, total + 1)) - set(steps))


def summary(name: str, verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """A line for each place, kind and phase, and one of all."""
    groups: dict[tuple[str, str, str], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        point = verdict.point
        aimed = point.kind if point.target in ("vm", "job") else f"{point.kind} {point.target}"
        groups[point.where, aimed, point.phase].append(verdict)
    order = {phase: index for index, phase in enumerate(PHASES)}
    keys = sorted(groups, key=lambda key: (key[0], key[1], order[key[2]]))
    lines = [_line(name, *key, groups[key]) for key in keys]
    return [*lines, _line(name, "all", "all", "all", verdicts)]


def _line(
    name: str, where: str, kind: str, phase: str, verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    hit = [verdict for verdict in verdicts if verdict.hit]
    lost = [verdict.lost for verdict in hit if verdict.lost is not None]
    return {
        "trainer": name,
        "where": where,
        "kind": kind,
        "phase": phase,
        "points": len(hit),
        "resumed %": _share([verdict.resumed for verdict in hit]),
        "equal bytes %": _share([verdict.equal for verdict in hit]),
        "lost median": statistics.median(lost) if lost else None,
        "lost max": max(lost, default=None),
        "duplicate rows": sum(verdict.duplicate for verdict in hit),
        "missing rows": sum(verdict.missing for verdict in hit),
        "ended before": len(verdicts) - len(hit),
    }


def _share(found: Sequence[bool]) -> float | None:
    return round(100 * sum(found) / len(found), 1) if found else None


def as_json(verdict: Verdict) -> Mapping[str, Any]:
    """A verdict for programs, its point beside it."""
    return asdict(verdict)
