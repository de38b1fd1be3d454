"""Plans the seconds that a stopping machine has left.

One commit may be in progress, and the trainer could hand over one more snapshot. A commit that
cannot finish is not started: it would only slow down the other one.
"""

from dataclasses import dataclass
from enum import Enum

SPARE_SHARE = 0.1
"""Share of the time left that is kept in reserve: for a network slower than measured, and for the
end record."""


class Plan(Enum):
    """What to do after a notice."""

    NOTHING = "nothing"
    """Neither can finish, or there is nothing to save."""
    FINISH = "finish"
    """Finish the commit in progress, and start no other."""
    FINISH_AND_NEW = "finish and new"
    """Finish the commit in progress, then commit a snapshot of the current state."""
    NEW = "new"
    """Commit a snapshot of the current state; no commit in progress is worth finishing."""

    @property
    def new(self) -> bool:
        """Whether the trainer is asked for a snapshot."""
        return self in (Plan.NEW, Plan.FINISH_AND_NEW)


@dataclass(frozen=True)
class Outlook:
    """What is known when the notice comes. Sizes in bytes, times in seconds."""

    left_sec: float
    """Seconds until the machine ends."""
    in_flight_bytes: int | None
    """Bytes of the commit in progress that are not in the store yet; None if there is no such
    commit."""
    new_bytes: int
    """Bytes that a new snapshot would have to send, as far as known."""
    bytes_per_sec: float | None
    """Measured while uploading; None before the first commit."""
    overhead_sec: float = 0.0
    """Seconds that a commit takes besides sending its bytes."""
    write_sec: float = 0.0
    """Seconds that the trainer needs to finish its step and write its state."""


@dataclass(frozen=True)
class Decision:
    """The plan, and the trainer's share of the time."""

    plan: Plan
    trainer_sec: float
    """Seconds from the notice after which a snapshot could not be committed any more."""


def decide(outlook: Outlook) -> Decision:
    """Decides what to do with the time left. Pure.

    If nothing was measured yet, a new snapshot is tried, with half of the time for the trainer:
    without a try, the work since the last commit is lost for certain."""
    left_sec = outlook.left_sec * (1 - SPARE_SHARE)
    rate, flying = outlook.bytes_per_sec, outlook.in_flight_bytes
    if left_sec <= 0:
        return Decision(Plan.NOTHING, 0.0)
    if rate is None:
        plan = Plan.NEW if flying is None else Plan.FINISH_AND_NEW
        return Decision(plan, outlook.left_sec / 2)
    new_sec = outlook.new_bytes / rate + outlook.overhead_sec
    finish_sec = 0.0 if flying is None else flying / rate + outlook.overhead_sec
    # Writing the new snapshot overlaps with uploading the old one; the two uploads do not overlap.
    if max(finish_sec, outlook.write_sec) + new_sec <= left_sec:
        plan = Plan.NEW if flying is None else Plan.FINISH_AND_NEW
        return Decision(plan, left_sec - new_sec)
    if flying is not None and finish_sec <= left_sec:
        return Decision(Plan.FINISH, 0.0)
    return Decision(Plan.NOTHING, 0.0)
