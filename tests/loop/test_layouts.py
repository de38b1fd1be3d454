"""Folders as public frameworks write them: whatever the times between two changes are, what is
kept is one save, whole, by the rule that the framework itself resumes by."""

import os
import random
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from outlast.loop.command import saves as saves_module
from outlast.loop.command.folder import Copier, Taken
from outlast.loop.command.notes import Notes
from outlast.loop.command.saves import Saves
from outlast.spec.file_kinds import DEFAULT
from tests.loop.layouts import LAYOUTS, Folder, Layout, empty

QUIET_SEC = 10.0

PACES = {
    # (between two changes of one save, between two saves), in seconds
    "slow": ((0.0, 9.0), (150.0, 250.0)),
    "late": ((0.0, 25.0), (700.0, 800.0)),
    "close": ((0.0, 0.4), (2.0, 9.0)),
    "tight": ((0.0, 0.2), (0.3, 2.0)),
    "starved": ((0.0, 1.2), (0.5, 3.0)),
}


class Machine:
    """A command that saves, and its kept checkpoints; the test controls the time."""

    def __init__(self, folder: Path, layout: Layout, chance: random.Random, pace: str) -> None:
        self.layout, self.chance, self.pace = layout, chance, pace
        self.root = folder / "checkpoint"
        self.work, self.again, self.other = (folder / name for name in ("work", "again", "other"))
        for made in (self.root, self.work, self.again, self.other):
            made.mkdir()
        self.clock = SimpleNamespace(now=1000.0)
        self.over = 0
        self.unseen_sec = 0.0
        """For so long, a busy machine leaves Outlast no time to look."""
        self.kept: list[int] = []
        self.last: Path | None = None
        self.copier = Copier(self.root, [self.work])
        self.begin(Notes())

    # What Saves asks of a handover.

    def is_due(self, now_sec: float) -> bool:
        return True

    def put(self, identifier: str, taken: Taken, step: int) -> None:
        """A snapshot: what would the framework resume from?"""
        if self.last is not None:
            shutil.rmtree(self.last)
        self.last = self.work / "last"
        shutil.copytree(taken.folder, self.last, symlinks=True)
        empty(self.again)
        notes = Copier(self.again, [self.other]).put_back(taken.folder)
        assert not notes.ended
        shutil.rmtree(taken.folder)
        number = self.layout.resume(self.again)
        assert number >= (self.kept[-1] if self.kept else 1), f"{number} after {self.kept}"
        oldest = 0 if self.pace == "starved" else self.over - 1
        assert oldest <= number <= self.over + 1, f"{number}, not {self.over}"
        self.kept.append(number)

    # The command.

    def begin(self, notes: Notes) -> None:
        self.folder = Folder(self.root)
        self.saves = Saves(
            self.root,
            self.copier,
            self,  # type: ignore[arg-type]
            DEFAULT,
            quiet_sec=QUIET_SEC,
            step=0,
            has_open=lambda paths: bool(self.folder.open & set(paths)),
        )
        self.saves.begin(notes)

    def wait(self, seconds: float) -> None:
        begun, until = self.clock.now, self.clock.now + seconds
        while self.clock.now < until:
            step = max(0.25, (self.clock.now - begun) / 8)  # less often once all rests
            if self.pace == "starved" and self.chance.random() < 0.3:
                self.unseen_sec = self.chance.uniform(1, 8)
            step = min(until - self.clock.now, step)
            self.clock.now += step
            self.unseen_sec -= step
            if self.unseen_sec <= 0:
                self.saves.scan(self.clock.now, stopping=False)

    def save(self, number: int, *, stop_after: int | None = None) -> bool:
        """One save, or its first changes only."""
        inside, between = PACES[self.pace]
        steps = self.layout.save(self.folder, number)
        for count, _ in enumerate(steps):
            if count == stop_after:
                steps.close()  # type: ignore[attr-defined]
                return False
            tick(self.work)
            self.wait(self.chance.uniform(*inside) if self.chance.random() < 0.7 else 0.0)
        self.over = number
        self.wait(self.chance.uniform(*between))
        return True

    def kill(self) -> int:
        """The next attempt, with what was kept; the number that it resumes from."""
        empty(self.root)
        notes = Notes()
        if self.last is not None:
            copy = self.work / "copy"
            shutil.copytree(self.last, copy, symlinks=True)
            notes = self.copier.put_back(copy)
            shutil.rmtree(copy)
        self.begin(notes)
        self.over = self.layout.resume(self.root)
        assert self.over == (self.kept[-1] if self.kept else 0)
        return self.over


def tick(folder: Path) -> None:
    """The file system's clock has moved on."""
    probe = folder / "probe"
    probe.touch()
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        os.utime(probe)


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_each_checkpoint_is_one_whole_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, pace: str
) -> None:
    if pace == "late" and layout.varies:
        pytest.skip("nothing says that this save lacks a file")
    chance = random.Random(f"{layout.name} {pace} {os.environ.get('SEED', '')}")
    clock = SimpleNamespace(monotonic=lambda: machine.clock.now, time_ns=time.time_ns)
    machine = SimpleNamespace(clock=SimpleNamespace(now=1000.0))
    monkeypatch.setattr(saves_module, "time", clock)
    machine = Machine(tmp_path, layout, chance, pace)
    number, kills = 0, 0
    while number < (5 if pace in ("slow", "late") else 8):
        if kills < 3 and chance.random() < 0.25:
            kills += 1
            machine.save(number + 1, stop_after=chance.randrange(6))
            number = machine.kill()
            continue
        number += 1
        machine.save(number)
    print(layout.name, pace, "kept", machine.kept)
    if pace in ("slow", "late"):
        assert machine.kept[-1] == number
