"""Where the time of a run went, in Google's categories of goodput and badput.

*ML Productivity Goodput* is scheduling goodput times runtime goodput times program goodput (Google
Cloud's blog, "Introducing ML Productivity Goodput", 2024-04-10,
cloud.google.com/blog/products/ai-machine-learning/goodput-metric-as-measure-of-ml-productivity).
The causes of badput have the names of Google's library ml-goodput-measurement (its README and
0.2.3, read 2026-11-30). Program goodput compares a program with its hardware's peak; no record
says that, so it is not computed.

Records do not say when a trainer's first step began, nor how long a step waited for a checkpoint's
copy, so both count as productive.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from outlast.base.exits import State
from outlast.bucket.history import Attempt, History


class Use(StrEnum):
    """What a stretch of time was used for; the values are for people."""

    PRODUCTIVE = "steps that were kept"
    LOST = "steps that were repeated"
    DATA = "waiting for data"
    STARTUP = "boot, packages, restore"
    NO_STEP = "attempts without a step"
    FAILED_BOOT = "boots that failed"
    WAITING = "waiting for a VM"

    @property
    def google(self) -> str:
        """Google's name of the category."""
        return _GOOGLE[self]


_GOOGLE = {
    Use.PRODUCTIVE: "goodput",
    Use.LOST: "wasted progress from disruption",
    Use.DATA: "data loading",
    Use.STARTUP: "accelerator initialization, training preparation, checkpoint restore",
    Use.NO_STEP: "program startup",
    Use.FAILED_BOOT: "other",
    Use.WAITING: "infrastructure recovery from disruption",
}


@dataclass(frozen=True)
class Stretch:
    """A stretch of time with one use."""

    use: Use
    start: datetime
    end: datetime
    term: int
    """The attempt that it belongs to, or that comes next; 0 if none comes."""

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


@dataclass(frozen=True)
class Goodput:
    """The time of a run from its first boot to its end, or to its last sign of life."""

    stretches: tuple[Stretch, ...]
    """In order, without gaps."""

    def seconds(self, *uses: Use) -> float:
        return sum(one.seconds for one in self.stretches if one.use in uses)

    @property
    def wall_sec(self) -> float:
        return sum(one.seconds for one in self.stretches)

    @property
    def share(self) -> float:
        """Goodput: the seconds of kept steps divided by all seconds."""
        return self.seconds(Use.PRODUCTIVE) / self.wall_sec

    @property
    def scheduling(self) -> float:
        """Scheduling goodput: the share of the time in which there was a VM."""
        return 1 - self.seconds(Use.WAITING) / self.wall_sec

    @property
    def runtime(self) -> float:
        """Runtime goodput: the share of the VMs' time that made kept steps."""
        with_vm = self.wall_sec - self.seconds(Use.WAITING)
        return self.seconds(Use.PRODUCTIVE) / with_vm if with_vm > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "share": round(self.share, 4),
            "scheduling": round(self.scheduling, 4),
            "runtime": round(self.runtime, 4),
            "program": None,
            "wall_sec": round(self.wall_sec, 3),
            "causes": [
                {"use": use, "google": use.google, "sec": round(self.seconds(use), 3)}
                for use in Use
            ],
        }


def of(book: History, now: datetime | None = None) -> Goodput | None:
    """The goodput of a run, from its records; None if it has no VMs, as in a folder, or if it is
    open and no `now` (server time) is given, up to which it is then counted.
    """
    if book.first_boot is None or not book.attempts:
        return None
    if book.head.state is State.OPEN and now is None:
        return None
    found = [one for one in _stretches(book, now) if one.end > one.start]
    return Goodput(tuple(found)) if found else None


def _stretches(book: History, now: datetime | None) -> Iterator[Stretch]:
    boots, ended = _boots(book)
    failed = sorted((boots[name], end) for name, end in ended.items() if name in boots)
    assert book.first_boot is not None
    at = book.first_boot
    for number, attempt in enumerate(book.attempts):
        start = max(attempt.start, at)
        record = book.starts[attempt.term]
        boot = boots.get(f"{record.instance_id}-{record.boot_id}", start)
        boot = min(max(boot, at), start)
        yield from _without_vm(at, boot, failed, attempt.term)
        yield Stretch(Use.STARTUP, boot, start, attempt.term)
        at = max(start, attempt.end or attempt.seen or start)
        if number + 1 < len(book.attempts):  # A fenced attempt may end after its successor began.
            at = max(start, min(at, book.attempts[number + 1].start))
        yield from _attempt(attempt, start, at)
    if now is not None and book.head.state is State.OPEN and book.attempts[-1].end is not None:
        booting = max((boot for name, boot in boots.items() if name not in ended), default=at)
        booting = min(max(booting, at), now) if booting > at else max(at, now)
        yield from _without_vm(at, booting, failed, 0)
        yield Stretch(Use.STARTUP, booting, max(booting, now), 0)


def _boots(book: History) -> tuple[dict[str, datetime], dict[str, datetime]]:
    """When each boot began, by its name, and when those ended that came to no attempt."""
    begins: dict[str, datetime] = {}
    ends: dict[str, datetime] = {}
    for path, written in book.booted.items():
        name = path.rpartition("/")[2].removesuffix(".json")
        (ends if name.endswith(".end") else begins)[name.removesuffix(".end")] = written
    return begins, ends


def _without_vm(
    at: datetime, until: datetime, failed: list[tuple[datetime, datetime]], term: int
) -> Iterator[Stretch]:
    """The time between two attempts: no VM, apart from boots that failed."""
    for begin, end in failed:
        begin, end = max(begin, at), min(end, until)
        if begin < end:
            yield Stretch(Use.WAITING, at, begin, term)
            yield Stretch(Use.FAILED_BOOT, begin, end, term)
            at = end
    yield Stretch(Use.WAITING, at, until, term)


def _attempt(attempt: Attempt, start: datetime, end: datetime) -> Iterator[Stretch]:
    """Data is waited for first, and the lost steps are the last ones."""
    data = start + min(timedelta(seconds=attempt.staged_sec), end - start)
    yield Stretch(Use.DATA, start, data, attempt.term)
    if attempt.steps <= 0:
        yield Stretch(Use.NO_STEP, data, end, attempt.term)
        return
    kept = data + (end - data) * (max(0, attempt.steps - attempt.lost) / attempt.steps)
    yield Stretch(Use.PRODUCTIVE, data, kept, attempt.term)
    yield Stretch(Use.LOST, kept, end, attempt.term)
