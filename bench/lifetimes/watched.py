"""Runs a trainer that comes with Outlast, with another timer and a record of its times.

    LIFETIMES='{"folder": …, "policy": {…}, "born_sec": …, "save_at_sec": …}' \
        python -m bench.lifetimes.watched digits --run-dir …

The function that makes a training's timer is replaced by the policy's. A few others are timed: the
boundary between two steps, and the parts of a start. The records survive SIGKILL.
"""

import json
import math
import os
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lifetimes.policies import Policy
from outlast.base import exits
from outlast.loop import connection, leading, local, resuming, schedule, writing
from outlast.protocol import Welcome

VARIABLE = "LIFETIMES"
RECORD = "boundaries"
PARTS = "parts"
SUPERVISOR = "supervisor"
"""File with the process id of the trainer's supervisor."""
_FORM = struct.Struct("<Qdd?d")


@dataclass(frozen=True)
class Boundary:
    """What happened between two steps, by the clock that all processes share."""

    step: int
    """Steps made so far."""
    entered_sec: float
    left_sec: float
    saved: bool
    commit_sec: float
    """Of the last commit; NaN before the first."""

    @property
    def seconds(self) -> float:
        return self.left_sec - self.entered_sec


def read(folder: Path) -> Iterator[Boundary]:
    """The record of an attempt, in order."""
    path = folder / RECORD
    data = path.read_bytes() if path.exists() else b""
    for fields in _FORM.iter_unpack(data[: len(data) // _FORM.size * _FORM.size]):
        yield Boundary(*fields)


def parts(folder: Path) -> dict[str, float]:
    """Seconds that parts of an attempt's start took: ``fetch``, until the checkpoint's verified
    files are on this machine, the supervisor's start included; ``restore``, from these files into
    the program's objects."""
    return json.loads((folder / PARTS).read_text())


def main() -> int:
    """Replace what the bench watches, then run the trainer."""
    plan = json.loads(os.environ.pop(VARIABLE))
    folder, policy = Path(plan["folder"]), Policy(**plan["policy"])

    def begin(every: str, step: int, answer: Welcome) -> object:
        now_sec = time.monotonic()
        return policy.timer(
            now_sec=now_sec,
            step=step,
            age_sec=now_sec - plan["born_sec"],
            commit_sec=answer.commit_sec,
            save_at_sec=plan["save_at_sec"],
        )

    schedule.begin = begin  # pyright: ignore[reportAttributeAccessIssue]
    _time_boundaries(os.open(folder / RECORD, os.O_CREAT | os.O_WRONLY | os.O_APPEND))
    _note_supervisor(folder / SUPERVISOR)
    _time_parts(folder / PARTS)
    from outlast.trainers.__main__ import main as train

    return train(sys.argv[1:])


def _time_boundaries(file: int) -> None:
    boundary, write = leading.Leading.boundary, writing.Writer.write
    bench, saved = os.getppid(), False

    def noted_write(self, *arguments, **named):
        nonlocal saved
        saved = True
        return write(self, *arguments, **named)

    def timed_boundary(self) -> None:
        nonlocal saved
        if os.getppid() != bench:
            os._exit(exits.INTERRUPTED)  # the bench was killed, and this training never ends
        saved, entered_sec = False, time.monotonic()
        try:
            boundary(self)
        finally:
            commit_sec = self.session.commit_sec
            fields = (self._progress.step, entered_sec, time.monotonic(), saved)
            os.write(file, _FORM.pack(*fields, math.nan if commit_sec is None else commit_sec))

    leading.Leading.boundary = timed_boundary
    writing.Writer.write = noted_write


def _time_parts(file: Path) -> None:
    seconds: dict[str, float] = {}

    def timed(owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        def wrapper(*arguments, **named):
            begun_sec = time.monotonic()
            try:
                return function(*arguments, **named)
            finally:
                seconds[part] = time.monotonic() - begun_sec
                file.write_text(json.dumps(seconds))

        setattr(owner, name, wrapper)

    timed(connection.Connection, "open", "fetch")
    timed(resuming.Resuming, "take", "restore")


def _note_supervisor(file: Path) -> None:
    create = local.LocalSupervisor.__init__

    def noted_create(self, *arguments, **named) -> None:
        create(self, *arguments, **named)
        file.write_text(str(self._process.pid))

    local.LocalSupervisor.__init__ = noted_create


if __name__ == "__main__":
    sys.exit(main())
