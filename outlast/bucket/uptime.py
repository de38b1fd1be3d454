"""The lives of a run's VMs, as far as the bucket has records of them: what is paid for.

A VM counts from its first record to its last, so the platform bills a few more seconds at both
ends: from its start to its boot script, and from its last record to its end. One that still works
counts up to now, a silent one to its last heartbeat, and one that is kept after the run's end for
as long as it stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outlast.base.exits import Reason
from outlast.bucket.history import Attempt, History
from outlast.bucket.layout import AttemptStart, BootRecord, Layout
from outlast.bucket.standing import Standing, standing
from outlast.bucket.store import NotFound, ReadOnlyStore

LEAST = timedelta(minutes=1)
"""What the platform bills of a VM at least."""
_STAYS_SEC_MAX = 120 * 86400.0
"""No VM lives longer than 120 days."""


@dataclass(frozen=True)
class Life:
    """One VM's life."""

    instance: str
    instance_id: str
    zone: str
    start: datetime
    end: datetime
    alive: bool
    """Whether it still works on the run."""
    attempts: tuple[Attempt, ...]
    """Those that it worked on, in order; empty if it never came to one."""
    record: AttemptStart | None
    """The start record of its last attempt. A VM that never came to one is of the kind of the
    run's newest; None if there is none."""

    @property
    def hours(self) -> float:
        """That are billed."""
        return max(self.end - self.start, LEAST).total_seconds() / 3600


def lives_of(store: ReadOnlyStore, layout: Layout, book: History | None) -> tuple[Life, ...]:
    """Every VM that booted for the run, oldest first, from a history that was just read. Only the
    records of VMs that never came to an attempt are read here. Raises StoreError.
    """
    seen: dict[str, list[datetime]] = {}
    """By instance id: the times of its records."""
    what: dict[str, tuple[str, str]] = {}
    """By instance id: its name and zone."""
    records: dict[str, AttemptStart] = {}
    attempts: dict[str, list[Attempt]] = {}
    alive: set[str] = set()
    if book is None:
        booted = {item.path: item.updated for item in store.list(layout.boots)}
    else:
        booted = book.booted
    for path, updated in booted.items():
        instance_id = path.removeprefix(layout.boots).partition("-")[0]
        seen.setdefault(instance_id, []).append(updated)
    now = store.now()
    for attempt in book.attempts if book else ():
        assert book is not None
        start = book.starts[attempt.term]
        records[start.instance_id] = start
        what[start.instance_id] = (start.instance, start.zone)
        attempts.setdefault(start.instance_id, []).append(attempt)
        times = seen.setdefault(start.instance_id, [])
        times += [attempt.start, attempt.end or attempt.seen or attempt.start]
        if standing(book.head, attempt, now) in (Standing.RUNNING, Standing.SILENT):
            times.append(now)
            alive.add(start.instance_id)
    for path in booted:
        instance_id = path.removeprefix(layout.boots).partition("-")[0]
        if instance_id not in what and not path.endswith(".end.json"):
            record = _read(store, path)
            if record is not None:
                what[instance_id] = (record.instance, record.zone)
    if book and book.attempts and book.head.state.ended:
        _keep(seen, records, book, now)
    lives = []
    newest = records.get(next(reversed(records), ""))
    for instance_id, times in seen.items():
        instance, zone = what.get(instance_id, (instance_id, ""))
        lives.append(
            Life(
                instance,
                instance_id,
                zone,
                min(times),
                max(times),
                instance_id in alive,
                tuple(attempts.get(instance_id, ())),
                records.get(instance_id, newest),
            )
        )
    return tuple(sorted(lives, key=lambda life: life.start))


def _keep(
    seen: Mapping[str, list[datetime]],
    records: dict[str, AttemptStart],
    book: History,
    now: datetime,
) -> None:
    """The last VM, where it stays after the run's end. One whose budget is used up does not."""
    if book.head.end is not None and book.head.end.reason is Reason.BUDGET:
        return
    end = book.attempts[-1].end
    instance_id, start = next(reversed(records.items()))
    timeouts = start.spec.get("timeouts")
    stays_sec = within(timeouts.get("keep") if isinstance(timeouts, dict) else 0, _STAYS_SEC_MAX)
    if end and stays_sec:
        until = min(end + timedelta(seconds=stays_sec), book.head.deadline, now)
        seen[instance_id].append(max(until, end))


def _read(store: ReadOnlyStore, path: str) -> BootRecord | None:
    try:
        return BootRecord.from_json(store.get(path)[0])
    except (NotFound, ValueError):  # gone between list and get, or cut while it was written
        return None


def within(value: Any, most: float) -> float | None:
    """A number of a record, which a VM wrote, if it can be one; None otherwise."""
    fits = type(value) in (int, float) and 0 <= value <= most
    return value if fits else None
