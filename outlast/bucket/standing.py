"""How a run stands: what its HEAD allows, and the sentences about it."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from outlast.base.exits import Reason, State
from outlast.bucket.head import Head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.history import Attempt
from outlast.bucket.layout import AttemptStart, Layout
from outlast.bucket.records import read_record
from outlast.bucket.store import Damaged, Store

PLACEMENTS_MAX = 999_999
"""Limit of a run's placements. A VM can write any number into HEAD; more than the template's nine
digits would lock out all later VMs.
"""


class Standing(StrEnum):
    """How a run stands, in one word: the closed list of what `outlast status` and `list` show."""

    WAITING = "waiting"
    """Its group has no VM yet."""
    BOOTING = "booting"
    """A VM has booted and not yet reached an attempt."""
    NEVER_STARTED = "never-started"
    """VMs failed before an attempt, or one takes too long to boot."""
    RUNNING = "running"
    """Its newest attempt has given a sign of life within three heartbeats."""
    SILENT = "silent"
    """Its newest attempt has missed three heartbeats."""
    LOST = "lost"
    """Its newest attempt has been silent for so long that another may take over."""
    INTERRUPTED = "interrupted"
    """Its newest attempt has ended and no other has begun."""
    EXPIRED = "expired"
    """Open, but past its deadline: nothing will start."""
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    PRUNED = "pruned"

    @property
    def ended(self) -> bool:
        """Whether nothing continues the run by itself."""
        return self in _ENDED


_ENDED = frozenset(
    {Standing.EXPIRED, Standing.DONE, Standing.FAILED, Standing.STOPPED, Standing.PRUNED}
)


def is_reopened(head: Head, resume: int | None) -> bool:
    """Whether a VM of this resume will reopen the run, which has ended or expired."""
    return resume is not None and resume > head.resume and head.state is not State.DONE


def standing(
    head: Head | None,
    newest: Attempt | None,
    now: datetime,
    wait: Standing | None = None,
    resume: int | None = None,
) -> Standing:
    """The one rule for how a run stands.

    `newest`: its newest attempt; `now`: server time; `wait`: what it waits for, if the group or
    the boot records show a later VM than the attempt's; `resume`: its stack's, if that is known.
    """
    if head is None or is_reopened(head, resume):
        return wait or Standing.WAITING
    if is_expired(head, now):
        return Standing.EXPIRED
    if head.state.ended:
        return Standing(head.state)
    if wait is not None:
        return wait
    if newest is None:
        return Standing.BOOTING  # It holds the term, and is about to restore its state.
    if newest.reason is not None or newest.seen is None:
        return Standing.INTERRUPTED
    silent_sec = (now - newest.seen).total_seconds()
    if silent_sec >= newest.limits.lost:
        return Standing.LOST
    return Standing.SILENT if silent_sec >= newest.limits.silent else Standing.RUNNING


def is_expired(head: Head, now: datetime) -> bool:
    """Whether the run is open past its deadline, so that no VM continues it."""
    return head.state is State.OPEN and head.deadline <= now


def end_if_expired(head_file: HeadFile) -> Head:
    """HEAD; a run that is open past its deadline is ended first, so that its end is recorded.
    Raises HeadError and StoreError."""
    head = head_file.read().head
    if is_expired(head, head_file.store.now()):
        return head_file.end_from_outside(State.FAILED, Reason.EXPIRED)
    return head


def obstacle(head: Head, *, resume: int, now: datetime) -> str | None:
    """Why a VM of this resume would have nothing to do: the rest of a sentence, with the remedy."""
    if head.state is State.DONE:
        return "is done, nothing is started; other args or outlast:rerun make a new run"
    if resume < head.resume:
        return (
            f"is at resume {head.resume} already, nothing is started at {resume}; outlast resume"
            " resumes from there"
        )
    if resume > head.resume:
        return None
    if head.state.ended:
        reason = f" ({head.end.reason})" if head.end and head.end.reason != head.state else ""
        first = ""
        if head.end and head.end.reason is Reason.BUDGET:
            first = "raise outlast:budgetDollars, and "
        return (
            f"has ended as {head.state}{reason}, nothing is started; {first}outlast resume reopens"
            " it"
        )
    if is_expired(head, now):
        return (
            f"has passed its limit of {head.deadline:%Y-%m-%d %H:%M} UTC, nothing is started;"
            " raise outlast:maxRunMinutes, and outlast resume reopens it"
        )
    if head.placement >= PLACEMENTS_MAX:
        return (
            f"has placement {head.placement} in its HEAD, which must be less than"
            f" {PLACEMENTS_MAX}; nothing is started; outlast resume continues with placement 0"
        )
    return None


def content_of(store: Store, layout: Layout, term: int) -> Mapping[str, Any] | None:
    """What the run's name was made of in the attempt of that term, as its start record says; None
    if it is unknown. Raises StoreError."""
    try:
        record = read_record(store, layout.attempt_start(term), AttemptStart)
    except Damaged:
        return None
    return record.spec.get("content") if record else None
