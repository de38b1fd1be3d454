"""Plans the seconds that a stopping machine has left.

One commit may be in progress, and the trainer could hand over one more snapshot. A commit that
cannot finish is not started: it would only slow down the other one.
"""

from dataclasses import dataclass
from enum import Enum

SPARE_SHARE = 0.1
"""Kept of what is left: for a network slower than measured, and the record of the end."""


class Plan(Enum):
    """What to do on a notice."""

    NOTHING = "nothing"
    """Neither can finish, or there is nothing to save."""
    FINISH = "finish"
    """The commit on its way, and no other."""
    FINISH_AND_NEW = "finish and new"
    """The commit on its way, and then a snapshot of where the trainer is now."""
    NEW = "new"
    """A snapshot of where the trainer is now; nothing worth finishing is on its way."""

    @property
    def new(self) -> bool:
        """Whether the trainer is asked for a snapshot."""
        return self in (Plan.NEW, Plan.FINISH_AND_NEW)


@dataclass(frozen=True)
class Outlook:
    """What is known when the notice comes. Sizes in bytes, times in seconds."""

    left_sec: float
    """Until the machine ends."""
    in_flight_bytes: int | None
    """Of the commit on its way, what is not in the store yet; None if none is on its way."""
    new_bytes: int
    """What a new snapshot would have to send, as far as is known."""
    bytes_per_sec: float | None
    """Measured while uploading; None before the first commit."""
    overhead_sec: float = 0.0
    """What a commit takes beside its bytes."""
    write_sec: float = 0.0
    """What the trainer needs to come to a boundary and write its state."""


@dataclass(frozen=True)
class Decision:
    """The plan, and the time that the trainer gets for its part of it."""

    plan: Plan
    trainer_sec: float
    """Seconds from the notice after which a snapshot could not be committed any more."""


def decide(outlook: Outlook) -> Decision:
    """The plan for what is left. Pure.

    If nothing was measured yet a new snapshot is tried, with half of the time for the trainer:
    not to try would lose for sure.
    """
    left_sec = outlook.left_sec * (1 - SPARE_SHARE)
    rate, flying = outlook.bytes_per_sec, outlook.in_flight_bytes
    if left_sec <= 0:
        return Decision(Plan.NOTHING, 0.0)
    if rate is None:
        plan = Plan.NEW if flying is None else Plan.FINISH_AND_NEW
        return Decision(plan, outlook.left_sec / 2)
    new_sec = outlook.new_bytes / rate + outlook.overhead_sec
    finish_sec = 0.0 if flying is None else flying / rate + outlook.overhead_sec
    # Writing the new one and uploading the old one happen at the same time; the uploads do not.
    if max(finish_sec, outlook.write_sec) + new_sec <= left_sec:
        plan = Plan.NEW if flying is None else Plan.FINISH_AND_NEW
        return Decision(plan, left_sec - new_sec)
    if flying is not None and finish_sec <= left_sec:
        return Decision(Plan.FINISH, 0.0)
    return Decision(Plan.NOTHING, 0.0)
