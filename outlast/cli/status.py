"""The state of one run, read from the bucket, so any machine with access can show it. The group is
asked only while no attempt is working, and if it is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outlast.base.codec import format_time
from outlast.bucket import history, pages
from outlast.bucket.head import HeadError
from outlast.bucket.history import Boot, History
from outlast.bucket.layout import Layout
from outlast.bucket.parts import parts_of, table
from outlast.bucket.standing import Standing, is_reopened, standing
from outlast.bucket.store import NotFound, ReadOnlyStore, StoreError
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.cli import boots
from outlast.cli.boots import Wait
from outlast.cli.errors import OperateError, about
from outlast.cli.runs import ReadPlace
from outlast.spec import metrics
from outlast.spec.metrics import Last
from outlast.spec.result import METRICS_FILE

PARTS_READ = 20
"""How many parts' evaluations of a finished run are read."""


@dataclass(frozen=True)
class Status:
    """Everything that `outlast status` shows."""

    experiment: str
    run: str
    home: str
    """What the names of the run's objects are below: a bucket, or a folder."""
    url: str
    history: History | None
    """None if no VM of the run has taken a term yet."""
    boots: int
    """Recorded VM boots, including those that never took a term."""
    now: datetime
    metrics: Mapping[str, Last]
    """The last value of each metric; empty before any."""
    wait: Wait | None = None
    """What an open run without a working attempt waits for."""
    parts: Sequence[Mapping[str, Any]] = ()
    """The run's parts in the order in which they began, with their own steps; empty if it has
    none."""
    resume: int | None = None
    """The stack's, if it is known."""

    @property
    def why(self) -> str:
        """Why the run ended before its last step, such as by which comparison it was pruned, or
        that it is past its limit; empty for neither."""
        head = self.history.head if self.history else None
        if head and self.state is Standing.EXPIRED:
            return (
                f"past its limit of {head.deadline:%Y-%m-%d %H:%M} UTC, and no VM was there to end"
                " it; raise outlast:maxRunMinutes, and outlast resume reopens it"
            )
        return head.end.why if head and head.end else ""

    @property
    def result(self) -> str | None:
        """The URL of a finished run's result."""
        end = self.history.head.end if self.history else None
        return f"{self.home}/{end.result.path}" if end and end.result else None

    @property
    def state(self) -> Standing:
        """How the run stands."""
        book = self.history
        newest = book.attempts[-1] if book and book.attempts else None
        wait = self.wait.what if self.wait else None
        return standing(book.head if book else None, newest, self.now, wait, self.resume)

    @property
    def started(self) -> datetime:
        """When its first attempt, or else its first boot, began; for an order of runs."""
        if self.history is not None:
            return self.history.head.started
        return self.wait.since if self.wait and self.wait.since else self.now

    @property
    def silence(self) -> timedelta | None:
        """Since the last sign of life of an attempt that has not ended; None if there is none."""
        book = self.history
        newest = book.attempts[-1] if book and book.attempts else None
        if newest is None or newest.reason is not None or newest.seen is None:
            return None
        return max(self.now - newest.seen, timedelta())

    @property
    def left(self) -> timedelta | None:
        """The time for the remaining steps at the newest attempt's rate; None if no attempt makes
        steps or their number is unknown.
        """
        book = self.history
        if book is None or not (book.attempts and book.total and book.rate):
            return None
        if self.state not in (Standing.RUNNING, Standing.SILENT):
            return None
        return timedelta(seconds=max(0, book.total - book.step) / book.rate)

    def as_json(self) -> dict[str, Any]:
        book = self.history
        end = book.head.end if book else None
        return {
            "experiment": self.experiment,
            "run": self.run,
            "url": self.url,
            "state": self.state,
            "reason": end.reason if end else None,
            "why": self.why,
            "step": book.step if book else 0,
            "total": book.total if book else None,
            "boots": self.boots,
            "waits": self.wait.as_json() if self.wait else None,
            "deadline": format_time(book.head.deadline) if book else None,
            "attempts": [a.as_json() for a in book.attempts] if book else [],
            "rate": book.rate if book else None,
            "left_sec": None if self.left is None else round(self.left.total_seconds()),
            "silent_sec": None if self.silence is None else round(self.silence.total_seconds()),
            "metrics": {name: last.value for name, last in self.metrics.items()},
            "metric_steps": {name: last.step for name, last in self.metrics.items()},
            "result": self.result,
            **({"parts": list(self.parts)} if self.parts else {}),
        }


def read(place: ReadPlace) -> Status:
    """The status of a run. Raises OperateError if it cannot be read."""
    store, layout = place.store, place.layout
    try:
        book = history.read(store, layout)
        booted = history.read_boots(store, layout, book.booted if book else None)
        parts = _parts(store, layout, book)
        last = _last_metrics(store, book, [part["part"] for part in parts])
        now = store.now()
    except (HeadError, StoreError) as error:
        raise OperateError(about(place.name, error)) from None
    except ValueError as error:
        raise OperateError(f"{place.name}: a record of its run cannot be read: {error}") from None
    # A run in a folder has its name only in HEAD.
    run = layout.run or (book.head.owner.rpartition("/")[2] if book else "")
    wait = _wait(place, book, booted, now)
    return Status(
        place.name,
        run,
        place.home,
        place.url,
        book,
        len(booted),
        now,
        last,
        wait,
        parts,
        place.resume,
    )


def _parts(store: ReadOnlyStore, layout: Layout, book: History | None) -> list[dict[str, Any]]:
    """Parts behind an unreadable page are left out; code that needs them reports it."""
    if book is None:
        return []
    try:
        found = pages.parts(store, layout, book.head)
    except pages.PageLost:
        found = parts_of(book.head.chain)
    return table(found, now=book.part, before=book.before, step=book.step)


def _wait(
    place: ReadPlace, book: History | None, booted: Sequence[Boot], now: datetime
) -> Wait | None:
    """What the run waits for; None if an attempt is working, or nothing is expected."""
    head = book.head if book else None
    if place.folder or (
        head and (head.state.ended or now >= head.deadline) and not is_reopened(head, place.resume)
    ):
        return None
    seen = boots.look(place.group) if place.group else None
    last = book.attempts[-1].start if book and book.attempts else None
    later = [boot for boot in booted if last is None or boot.start > last]
    vm = seen.vm if seen else None
    if last and not later and (seen is None or (vm and vm.created <= last)):
        return None
    wait = boots.wait_of(later, seen, now=now, attempt=last)
    return boots.with_serial(wait, place.group, vm) if place.group and vm else wait


def _last_metrics(
    store: ReadOnlyStore, book: History | None, parts: Sequence[str]
) -> Mapping[str, Last]:
    """For a finished run, metrics.json is included, because it has the evaluations after the loop.
    If there are many parts, only the last ones are read.
    """
    if book is None:
        return {}
    end = book.head.end
    if end is None or end.result is None:
        return book.metrics
    path = end.result.path
    prefixes = [f"{name}/" for name in parts[-PARTS_READ:]] or [""]
    read = in_parallel(
        [lambda of=of: _last_evaluations(store, f"{path}{of}{METRICS_FILE}") for of in prefixes],
        small_reads(store),
    )
    found = dict(book.metrics)
    for of, last in zip(prefixes, read, strict=True):
        found |= {f"{of}{name}": value for name, value in last.items()}
    return found


def _last_evaluations(store: ReadOnlyStore, path: str) -> dict[str, Last]:
    try:
        return metrics.last_values(metrics.read_table(store.get(path)[0]))
    except (
        NotFound,
        ValueError,
    ):  # A command's result may lack this file, or have another form of it.
        return {}
