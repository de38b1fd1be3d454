"""The state of one run, from the bucket: any machine that may read it can tell. Its group is asked
only while no attempt is at work, and where it is known."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outlast.base.exits import State
from outlast.bucket import ledger
from outlast.bucket.head import HeadError
from outlast.bucket.layout import METRICS_FILE, check_metrics, format_time
from outlast.bucket.ledger import Boot, Ledger
from outlast.bucket.store import NotFound, Store, StoreError
from outlast.cli import boots
from outlast.cli.boots import Wait
from outlast.cli.errors import OperateError, about
from outlast.cli.runs import Place


@dataclass(frozen=True)
class Status:
    """What `outlast status` shows."""

    experiment: str
    run: str
    home: str
    """What the names of the run's objects are below: a bucket, or a folder."""
    url: str
    ledger: Ledger | None
    """None: no VM of the run has got as far as taking a term yet."""
    boots: int
    """VM boots on record, those that never took a term included."""
    now: datetime
    metrics: dict[str, float]
    """The last row of a finished run's metrics, else of the newest beat; empty before any."""
    wait: Wait | None = None
    """What an open run waits for that has no attempt at work."""

    @property
    def result(self) -> str | None:
        """Where a finished run's result is."""
        end = self.ledger.head.end if self.ledger else None
        return f"{self.home}/{end.result.path}" if end and end.result else None

    @property
    def state(self) -> str:
        """HEAD's state; `expired` for a run still open past its deadline, and before HEAD what is
        waited for."""
        if self.ledger is None:
            return self.wait.what if self.wait else boots.Waits.WAITING
        head = self.ledger.head
        if head.state is State.OPEN and self.now >= head.deadline:
            return "expired"
        return head.state

    def as_json(self) -> dict[str, Any]:
        book = self.ledger
        end = book.head.end if book else None
        return {
            "experiment": self.experiment,
            "run": self.run,
            "url": self.url,
            "state": self.state,
            "reason": end.reason if end else None,
            "why": end.why if end else "",
            "step": book.step if book else 0,
            "total": book.total if book else None,
            "boots": self.boots,
            "waits": self.wait.as_json() if self.wait else None,
            "deadline": format_time(book.head.deadline) if book else None,
            "attempts": [a.as_json() for a in book.attempts] if book else [],
            "metrics": self.metrics,
            "result": self.result,
        }


def read(place: Place) -> Status:
    """The status of a run, wherever it lives. OperateError: it cannot be read."""
    store, layout = place.store, place.layout
    try:
        book = ledger.read(store, layout)
        booted = ledger.read_boots(store, layout)
        metrics = _last_metrics(store, book)
        now = store.now()
    except (HeadError, StoreError) as error:
        raise OperateError(about(place.name, error)) from None
    except ValueError as error:
        raise OperateError(f"{place.name}: a record of its run cannot be read: {error}") from None
    # A run in a folder has its name in HEAD alone.
    run = layout.run or (book.head.owner.rpartition("/")[2] if book else "")
    wait = _wait(place, book, booted, now)
    return Status(place.name, run, place.home, place.url, book, len(booted), now, metrics, wait)


def _wait(place: Place, book: Ledger | None, booted: Sequence[Boot], now: datetime) -> Wait | None:
    """What is waited for; None where an attempt is at work, or nothing is to come."""
    if place.folder or (book and (book.head.state.ended or now >= book.head.deadline)):
        return None
    seen = boots.look(place.group) if place.group else None
    last = book.attempts[-1].start if book and book.attempts else None
    later = [boot for boot in booted if last is None or boot.start > last]
    vm = seen.vm if seen else None
    if last and not later and (seen is None or (vm and vm.created <= last)):
        return None
    return boots.wait_of(later, seen, now=now, attempt=last)


def _last_metrics(store: Store, book: Ledger | None) -> dict[str, float]:
    if book is None:
        return {}
    end = book.head.end
    if end is None or end.result is None:
        last = book.rows[-1] if book.rows else {}
        return {name: value for name, value in last.items() if type(value) in (int, float)}
    try:
        table = check_metrics(store.get(end.result.path + METRICS_FILE)[0])
    except (NotFound, ValueError):  # a trainer of one's own may keep other metrics, or none
        return {}
    return {name: values[-1] for name, values in table.items() if values}
