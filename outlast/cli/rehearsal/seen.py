"""What a rehearsal has seen: the runs in the bucket, and what happened to them."""

import contextlib
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from outlast.bucket.head import Head
from outlast.bucket.history import Attempt, Boot, History
from outlast.bucket.layout import AttemptEnd
from outlast.bucket.results import fetch_result
from outlast.bucket.store import Damaged, NotFound, Store
from outlast.spec import metrics
from outlast.spec.metrics import Last
from outlast.spec.result import METRICS_FILE

NEVER_STARTED = "never-started"
"""State of a run that no boot has reached; there is no HEAD to say so."""
WAITING = "waiting"
"""State of a run for which no VM has booted yet."""


@dataclass(frozen=True)
class Ending:
    """How a run must end: HEAD's state, or `never-started` or `waiting` without a HEAD."""

    state: str
    reason: str | None = None
    """None: any."""

    def __str__(self) -> str:
        return f"{self.state} ({self.reason})" if self.reason else self.state


@dataclass(frozen=True)
class Fault:
    """One action of the local cloud on the run."""

    do: str
    """Name of the action, such as `kill`."""
    boot: int | None = None
    """Which boot of the run it hit."""
    attempt: int | None = None
    """The VM's term; None if it held none."""
    options: Mapping[str, Any] = field(default_factory=dict)
    missed: str = ""
    """Why it had no effect; empty if it had one."""

    def __str__(self) -> str:
        what = self.do
        if self.attempt is not None:
            what += f": attempt {self.attempt}"
        elif self.boot is not None:
            what += f": boot {self.boot}"
        return f"{what} (missed: {self.missed})" if self.missed else what


@dataclass(frozen=True)
class Stall:
    """A request that the local cloud left hanging."""

    target: str
    """An object's name, or the path of a call."""
    waited_sec: float | None
    """How long its sender waited before it gave up; None if it never did."""
    again: bool
    """Whether the sender then repeated it."""

    def __str__(self) -> str:
        waited = "never" if self.waited_sec is None else f"after {self.waited_sec:g} s"
        end = "asked again" if self.again else "and not asked again"
        return f"{self.target.rpartition('/')[2]} given up {waited}, {end}"


@dataclass(frozen=True)
class ResultRead:
    """A result, read from its bytes; `digest` is None if they do not match the records."""

    digest: str | None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def last_metrics(self) -> dict[str, Last]:
        """The last value of each column of metrics.json, or of each part's; empty if there is none,
        or if it has another form.
        """
        found = {}
        for path, data in self.files.items():
            of, _, name = path.rpartition("/")  # A part's file is in a folder of its name.
            if name == METRICS_FILE and "/" not in of:
                with contextlib.suppress(ValueError):
                    last = metrics.last_values(metrics.read_table(data))
                    found |= {f"{of}/{key}" if of else key: value for key, value in last.items()}
        return found


Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RunRecord:
    """What one stack's run has left in the bucket."""

    history: History | None = None
    """None: no VM has ever taken a term."""
    rows: Rows = ()
    result: ResultRead = ResultRead(None)  # noqa: RUF009 - frozen
    boots: tuple[Boot, ...] = ()
    ends: Mapping[int, AttemptEnd] = field(default_factory=dict)
    """Records of ends, by attempt."""
    ended: datetime | None = None
    """When the copy of the run's end was written."""
    heads: tuple[Head, ...] = ()
    """HEAD as seen from time to time, oldest first."""
    parts: Sequence[Mapping[str, Any]] = ()
    """The progress of each of its parts."""

    @property
    def head(self) -> Head | None:
        return self.history.head if self.history else None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return self.history.attempts if self.history else ()

    @property
    def resumed(self) -> int:
        """The step that its second attempt resumed from: up to it, nothing interrupted the run. All
        steps if there is one attempt."""
        if len(self.attempts) > 1:
            return self.attempts[1].from_step
        return self.history.step if self.history else 0

    @property
    def ending(self) -> Ending:
        """Its state, in words."""
        if self.head is None:
            return Ending(NEVER_STARTED if self.boots else WAITING)
        end = self.head.end
        return Ending(self.head.state, end.reason if end else None)


@dataclass
class Seen:
    """All that a rehearsal saw."""

    expected: Ending
    run: RunRecord
    within_sec: float = 0.0
    """The run's time limit, in seconds."""
    baseline: RunRecord | None = None
    """The undisturbed run; None if there was none."""
    faults: Sequence[Fault] = ()
    disturbed_requests: int = 0
    stalls: Sequence[Stall] = ()
    """Requests that a fault of the scenario has hit."""
    pending: Sequence[str] = ()
    """Planned events that did not happen, in words."""
    retries: int = 0
    """How many of the trainer's own failures the stack retries."""
    refusals: Collection[str] = ()
    """Codes with which the platform refused to create a VM."""
    sizes: Mapping[str, int | None] = field(default_factory=dict)
    vms: Sequence[str] = ()
    audit: Mapping[str, Any] = field(default_factory=dict)
    """What exists after destroy."""
    bucket: str = ""
    strays: Sequence[str] = ()
    """Processes that had to be killed."""

    @property
    def effective(self) -> list[Fault]:
        """The faults that had an effect."""
        return [fault for fault in self.faults if not fault.missed]

    def attempt_of(self, fault: Fault) -> Attempt | None:
        return next((a for a in self.run.attempts if a.term == fault.attempt), None)


def read_result(store: Store, head: Head) -> ResultRead:
    """Downloads a finished run's result and hashes every byte of it here, trusting no record."""
    end = head.end
    if end is None or end.result is None:
        return ResultRead(None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            manifest = fetch_result(store, end.result, folder)
        except (Damaged, NotFound):
            return ResultRead(None)
        files = {file.name: (folder / file.name).read_bytes() for file in manifest.files}
    return ResultRead(manifest.digest, files)
