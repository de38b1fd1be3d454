"""Phases of a run, and the point of a seed and a number."""

import random
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.forks.probe import FAILING, READS, Blow, Kind
from bench.forks.scenes import Scene

PHASES = (
    "term taking",
    "restore",
    "steps",
    "snapshot",
    "save",
    "upload",
    "manifest",
    "commit of HEAD",
    "pages of HEAD",
    "retention",
    "metrics rows",
    "heartbeat",
    "parts",
    "result",
    "result manifest",
    "ending",
    "leaving",
)
LOOP = {
    "loop restore": "restore",
    "loop step begins": "steps",
    "loop step": "steps",
    "loop snapshot": "snapshot",
    "loop save": "save",
    "loop complete": "ending",
}
WAKES = (
    ("put HEAD", 1, True),
    ("put attempts/start.json", 1, True),
    ("put s/MANIFEST.json", 1, False),
    ("put HEAD", 2, False),
    ("put HEAD", 2, True),
    ("put HEAD", 3, True),
    ("put result/RESULT.json", 1, True),
    ("put END-r0.json", 1, True),
    ("call leave", 1, True),
)
"""Events of a successor at which a zombie is woken or a late request arrives; where there is no
such event, after the successor's end."""
CALLS = 3
"""The most requests in a row that fail."""
LATER = 12
"""The most events between a notice and a kill."""


@dataclass(frozen=True)
class Point:
    """One blow to one run."""

    scene: str
    phase: str
    process: str
    """vm or trainer."""
    blow: Blow
    wake: tuple[str, int, bool] | None = None
    """Of a zombie or a late request."""

    @property
    def text(self) -> str:
        """The point as `--point` takes it."""
        blow = self.blow
        fields = [self.scene, blow.kind, blow.event, blow.nth, _side(blow.after), blow.times]
        if self.wake is not None:
            fields += [self.wake[0], self.wake[1], _side(self.wake[2])]
        return ":".join(map(str, fields))

    @property
    def command(self) -> str:
        """What plays this point alone."""
        return f"python -m bench.kill_matrix --forks --point {shlex.quote(self.text)}"


def _side(after: bool) -> str:
    return "after" if after else "before"


def parse(text: str, scenes: Mapping[str, Scene]) -> Point:
    """A point from its text. ValueError: it is none of these scenes'."""
    fields = text.split(":")
    if len(fields) not in (6, 9) or fields[0] not in scenes:
        raise ValueError(f"point {text!r}: must be as the matrix prints it, of a program it has")
    blow = Blow(fields[2], int(fields[3]), fields[4] == "after", Kind(fields[1]), int(fields[5]))
    wake = None if len(fields) == 6 else (fields[6], int(fields[7]), fields[8] == "after")
    found = [one for one in _events(scenes[fields[0]]) if one.event == (blow.event, blow.nth)]
    phase, process = (found[0].phase, found[0].process) if found else ("?", "vm")
    return Point(fields[0], phase, process, blow, wake)


@dataclass(frozen=True)
class _Event:
    scene: str
    process: str
    event: tuple[str, int]
    phase: str


def _events(scene: Scene) -> Iterator[_Event]:
    """The events of an undisturbed run with their phases."""
    seen = Counter[tuple[str, str]]()
    swaps = sum(name == "put HEAD" for _, name in scene.events)
    taken = started = False
    for process, name in scene.events:
        seen[process, name] += 1
        nth = seen[process, name]
        verb, _, path = name.partition(" ")
        if process == "trainer":
            phase = LOOP[name]
        elif verb == "call":
            phase = "leaving" if path == "leave" else "term taking"
        elif name == "put attempts/start.json":
            phase, started = "term taking", True
        elif not taken:
            phase = "term taking"
        elif not started:
            phase = "restore"
        elif path in ("END-r0.json", "attempts/end.json"):
            phase = "ending"
        elif name == "put HEAD":
            phase = "ending" if nth == swaps else "commit of HEAD"
        else:
            phase = _phase(verb, path)
        if name == "put HEAD":
            taken = True
        yield _Event(scene.name, process, (name, nth), phase)


def _phase(verb: str, path: str) -> str:
    if verb == "delete" or (verb == "list" and path in ("t", "s/", "s")):
        return "retention"
    if path == "result/RESULT.json":
        return "result manifest"
    if path.startswith("s/result/") or path == "s/part.json" or verb in READS and path[:2] == "s/":
        return "parts"
    if path.startswith("result/"):
        return "result"
    if path == "s/MANIFEST.json":
        return "manifest"
    for prefix, phase in (
        ("s/", "upload"),
        ("metrics/", "metrics rows"),
        ("pages", "pages of HEAD"),
    ):
        if path.startswith(prefix):
            return phase
    return "heartbeat"


class Deck:
    """All points there are, in cells of phase and kind that take turns."""

    def __init__(self, scenes: Mapping[str, Scene]) -> None:
        self._cells: dict[tuple[str, Kind], dict[str, list[_Event]]]
        self._cells = defaultdict(lambda: defaultdict(list))
        for scene in scenes.values():
            for event in _events(scene):
                for kind in _kinds(event):
                    self._cells[event.phase, kind][scene.name].append(event)
        self._order = sorted(self._cells, key=lambda cell: (PHASES.index(cell[0]), cell[1]))
        random.Random(0).shuffle(self._order)  # so that few points already see many of both

    def draw(self, seed: int, number: int) -> Point:
        """The same seed and number give the same point."""
        dice = random.Random(f"{seed}/{number}")
        cell = self._order[number % len(self._order)]
        scene = dice.choice(sorted(self._cells[cell]))
        event = dice.choice(self._cells[cell][scene])
        kind = cell[1]
        after = dice.random() < 0.5 and kind not in FAILING and kind is not Kind.KILL_LATE
        times = 1
        if kind is Kind.NOTICE_CUT:
            times = dice.randint(1, LATER)
        elif kind in FAILING:
            times = dice.randint(1, CALLS)
        wake = dice.choice(WAKES) if kind in (Kind.ZOMBIE, Kind.KILL_LATE) else None
        name, nth = event.event
        blow = Blow(name, nth, after, kind, times)
        return Point(scene, event.phase, event.process, blow, wake)

    @property
    def cells(self) -> Sequence[tuple[str, Kind]]:
        """Phase and kind of each cell."""
        return self._order


def _kinds(event: _Event) -> Iterator[Kind]:
    """What can happen at an event: requests fail, of a write the answer, too."""
    yield from (Kind.KILL, Kind.NOTICE, Kind.NOTICE_CUT, Kind.ZOMBIE)
    verb = event.event[0].partition(" ")[0]
    if event.process == "trainer" or verb == "call":
        return
    yield Kind.REFUSED
    if verb not in READS:
        yield from (Kind.KILL_LATE, Kind.THROTTLED, Kind.LATE, Kind.LOST)
