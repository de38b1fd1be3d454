"""Reads a run's history from its records: its state and its attempts."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import zip_longest
from typing import Any

from outlast.base.codec import format_time
from outlast.base.exits import Reason, State
from outlast.bucket import blocks
from outlast.bucket.head import Head, HeadLost, read_head
from outlast.bucket.layout import AttemptEnd, AttemptStart, BootEnd, Heartbeat, Layout
from outlast.bucket.store import NotFound, ReadOnlyStore
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.spec import changes, metrics
from outlast.spec.metrics import Last
from outlast.spec.run_spec import Timeouts

_NO_FAILURES = frozenset(
    {Reason.DONE, Reason.PREEMPTED, Reason.INTERRUPTED, Reason.MAINTENANCE}
    | {Reason.STOPPED, Reason.PRUNED}
)
"""Reasons that need no further explanation."""

BOOT_END = ".end.json"
"""What the record of a boot's end is called, behind the name of the boot."""

MISSED_HEARTBEATS = 3
"""After so many an attempt is silent."""
SILENCE_SEC_MAX = 86400.0


@dataclass(frozen=True)
class Limits:
    """How long an attempt may be silent, from its own timeouts, in seconds."""

    silent: float = MISSED_HEARTBEATS * Timeouts.heartbeat
    lost: float = Timeouts.successor_silence

    @classmethod
    def of(cls, start: AttemptStart) -> "Limits":
        """Those in a start record; a VM wrote it, so what is not a number of seconds counts as the
        default."""
        given = start.spec.get("timeouts")
        found: dict[str, Any] = given if isinstance(given, dict) else {}

        def seconds(name: str, default: float) -> float:
            value = found.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                return default
            return float(value) if 0 < value <= SILENCE_SEC_MAX else default

        heartbeat = seconds("heartbeat", Timeouts.heartbeat)
        lost = seconds("successor_silence", Timeouts.successor_silence)
        return cls(min(MISSED_HEARTBEATS * heartbeat, lost), lost)


@dataclass(frozen=True)
class Attempt:
    """One life of one VM working on the run; times are server times."""

    term: int
    start: datetime
    end: datetime | None
    """When it ended; the last heartbeat if its VM was lost; None while it runs."""
    reason: Reason | None
    """Why it ended; None while it runs."""
    instance: str
    zone: str
    from_step: int
    """Step of the checkpoint that it resumed from; 0 for a fresh start."""
    step: int
    """The last step in its records."""
    committed: int | None
    """Step of its last checkpoint in the records; None if it committed nothing."""
    lost: int
    """Steps that the final lineage does not contain: the next attempt repeats them."""
    changed: tuple[str, ...] = ()
    """What changed since the attempt before, in words."""
    why: str = ""
    """The recorded message of a failure."""
    stderr: tuple[str, ...] = ()
    """The last lines of its trainer's stderr, if it failed."""
    warnings: tuple[str, ...] = ()
    """Warnings of its trainer."""
    own_user: bool | None = None
    """Whether its trainer ran as its own user; None if the settings do not ask for that."""
    seen: datetime | None = None
    """Its last sign of life: its heartbeat, or else its start."""
    limits: Limits = Limits()
    staged_sec: float = 0.0
    """Seconds that its trainer waited for data; 0 if it left no end."""

    @property
    def steps(self) -> int:
        """Steps that it made, including lost ones."""
        return self.step - self.from_step

    def as_json(self) -> dict[str, Any]:
        return {
            "attempt": self.term,
            "start": format_time(self.start),
            "end": format_time(self.end) if self.end else None,
            "reason": self.reason,
            "instance": self.instance,
            "zone": self.zone,
            "from_step": self.from_step,
            "step": self.step,
            "steps": self.steps,
            "steps_lost": self.lost,
            "changed": list(self.changed),
            "why": self.why,
            "stderr": list(self.stderr),
            "warnings": list(self.warnings),
            "last_heartbeat": format_time(self.seen) if self.seen else None,
        }


@dataclass(frozen=True)
class History:
    """All that is recorded of one run."""

    head: Head
    attempts: tuple[Attempt, ...]
    booted: Mapping[str, datetime]
    """When each record in `boots/` was written, by its path: boots, and ends of boots that never
    held a term."""
    total: int | None
    """Total steps of the run; None until the trainer has said."""
    rows: tuple[dict[str, Any], ...]
    """The last rows in the newest attempt's heartbeat, newest last."""
    phase: str = ""
    """Phase of the newest attempt, from its heartbeat; empty before the first."""
    rate: float | None = None
    """Steps a second of the newest attempt, from its last heartbeat; None if not measured."""
    metrics: Mapping[str, Last] = field(default_factory=dict)
    """The last value of each metric, from the newest attempt that logged it."""
    part: str = ""
    """The part of the run that the newest attempt trains; empty without parts."""
    before: int = 0
    """Steps of the parts before it."""
    starts: Mapping[int, AttemptStart] = field(default_factory=dict)
    """Each attempt's start record, by its term."""

    @property
    def boots(self) -> int:
        """VM boots, including those that never held a term."""
        return sum(not path.endswith(BOOT_END) for path in self.booted)

    @property
    def first_boot(self) -> datetime | None:
        times = [at for path, at in self.booted.items() if not path.endswith(BOOT_END)]
        return min(times, default=None)

    @property
    def step(self) -> int:
        """The last step in the records; steps here count through all parts."""
        return self.attempts[-1].step if self.attempts else 0

    @property
    def steps_lost(self) -> int:
        return sum(attempt.lost for attempt in self.attempts)


def read(store: ReadOnlyStore, layout: Layout) -> History | None:
    """The history of a run; None if the run has no HEAD yet.

    Raises HeadError and StoreError as `read_head` does, ValueError if a record is damaged.
    """
    try:
        head = read_head(store, layout).head
    except HeadLost:
        return None
    records = blocks.read(store, layout)
    attempts = tuple(_attempts(head, records))
    booted = {item.path: item.updated for item in store.list(layout.boots)}
    heartbeats = [
        found.record
        for term in sorted(records)
        if (found := records[term].get(Heartbeat)) is not None
    ]
    totals = [heartbeat.total for heartbeat in heartbeats if heartbeat.total]
    live = heartbeats and attempts and heartbeats[-1].term == attempts[-1].term
    return History(
        head,
        attempts,
        booted,
        totals[-1] if totals else None,
        heartbeats[-1].rows if live else (),
        heartbeats[-1].phase if live else "",
        heartbeats[-1].rate if live else None,
        metrics.of_attempts(
            records[term][kind].record.metrics
            for term in sorted(records)
            for kind in (Heartbeat, AttemptEnd)
            if kind in records[term]
        ),
        heartbeats[-1].part if live else "",
        heartbeats[-1].before if live else 0,
        {
            term: kinds[AttemptStart].record
            for term, kinds in sorted(records.items())
            if AttemptStart in kinds
        },
    )


@dataclass(frozen=True)
class Boot:
    """One boot of a VM of the run, with or without an attempt."""

    instance_id: str
    start: datetime
    """When its record was written, in server time."""
    reason: Reason | None
    """How it ended if it never held the term; otherwise None."""
    why: str = ""
    """The first line of that end's message."""


def read_boots(
    store: ReadOnlyStore, layout: Layout, booted: Mapping[str, datetime] | None = None
) -> tuple[Boot, ...]:
    """All recorded boots, oldest first; `booted` as in a history that was just read. Raises as
    `read` does.
    """
    starts: dict[str, datetime] = {}
    found: dict[str, tuple[Reason, str]] = {}
    ends: list[str] = []
    if booted is None:
        booted = {item.path: item.updated for item in store.list(layout.boots)}
    for path, updated in booted.items():
        name = path.removeprefix(layout.boots)
        if name.endswith(BOOT_END):
            ends.append(name)
        else:
            starts[name.removesuffix(".json")] = updated

    def reason(name: str) -> None:
        with contextlib.suppress(NotFound):
            end = BootEnd.from_json(store.get(layout.boots + name)[0])
            why = end.message.partition("\n")[0]
            found[name.removesuffix(BOOT_END)] = end.reason, why

    in_parallel([partial(reason, name) for name in ends], small_reads(store))
    boots = (
        Boot(name.partition("-")[0], start, *found.get(name, (None, "")))
        for name, start in starts.items()
    )
    return tuple(sorted(boots, key=lambda boot: boot.start))


def read_end(store: ReadOnlyStore, layout: Layout, term: int) -> AttemptEnd | None:
    """The record of an attempt's end; None if it left none. Raises as `read` does."""
    try:
        return AttemptEnd.from_json(store.get(layout.attempt_end(term))[0])
    except NotFound:
        return None


def _attempts(head: Head, records: blocks.Records) -> Iterator[Attempt]:
    """One attempt for each start record; times are the store's write times."""
    terms = [term for term in sorted(records) if AttemptStart in records[term]]
    previous: AttemptStart | None = None
    for term, later in zip_longest(terms, terms[1:]):
        started = records[term][AttemptStart]
        start: AttemptStart = started.record
        changed = _changed(previous, start) if previous else ()
        previous = start
        heartbeat_found, ended = records[term].get(Heartbeat), records[term].get(AttemptEnd)
        heartbeat: Heartbeat | None = heartbeat_found.record if heartbeat_found else None
        end: AttemptEnd | None = ended.record if ended else None
        step = max(start.step, heartbeat.step if heartbeat else 0, end.step if end else 0)
        # Another VM has taken the run, or a handover has moved it, which fences the VM.
        fenced = later is None and head.term > term
        if later:
            kept = records[later][AttemptStart].record.step
        elif fenced or head.state in (
            State.FAILED,
            State.STOPPED,
        ):  # The step that a resume would continue from.
            kept = min(step, head.step)
        else:
            kept = step
        over = end is not None or later is not None or fenced or head.state is not State.OPEN
        why, stderr = _failure(heartbeat, end)
        yield Attempt(
            term=term,
            start=started.updated,
            end=(ended or heartbeat_found or started).updated if over else None,
            # Only the attempt itself writes its end.
            reason=end.reason if end else Reason.VM_LOST if over else None,
            instance=start.instance,
            zone=start.zone,
            from_step=start.step,
            step=max(step, kept),
            committed=end.committed if end else heartbeat.committed if heartbeat else None,
            lost=max(0, step - kept),
            changed=changed,
            why=why,
            stderr=stderr,
            warnings=heartbeat.warnings if heartbeat else (),
            own_user=_own_user(start),
            seen=(heartbeat_found or started).updated,
            limits=Limits.of(start),
            staged_sec=end.staged_sec if end else 0.0,
        )


def _own_user(start: AttemptStart) -> bool | None:
    if start.spec.get("trainer_user") != "own":
        return None
    return start.spec.get("has_own_user") is True


def _failure(heartbeat: Heartbeat | None, end: AttemptEnd | None) -> tuple[str, tuple[str, ...]]:
    """Why an attempt failed, and the last lines of its trainer; empty if it did not fail."""
    if end is not None:
        return ("", ()) if end.reason in _NO_FAILURES else (end.message, end.stderr)
    # The verdict is still held back, or the machine ended before it was given.
    return (heartbeat.failure, heartbeat.stderr) if heartbeat is not None else ("", ())


def _changed(before: AttemptStart, now: AttemptStart) -> tuple[str, ...]:
    """What changed from the previous attempt to this one."""
    pairs = {
        "machine": (before.machine_type, now.machine_type),
        "image": (before.image.rpartition("/")[2], now.image.rpartition("/")[2]),
        "zone": (before.zone, now.zone),
        "outlast": (before.versions.get("outlast"), now.versions.get("outlast")),
    }
    places = [changes.Change(what, *pair) for what, pair in pairs.items() if pair[0] != pair[1]]
    contents = (before.spec.get("content") or {}, now.spec.get("content") or {})
    return tuple(str(change) for change in (*places, *changes.between(*contents)))
