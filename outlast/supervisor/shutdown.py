"""The shutdown after a notice, or before the end of the run's limit or budget: how to use the time
left."""

import time
from dataclasses import dataclass

from outlast.base.exits import Reason
from outlast.bucket.commit import Committer
from outlast.bucket.headfile import HeadFile
from outlast.supervisor import planner
from outlast.supervisor.budget import Budget
from outlast.supervisor.progress import Progress

LIMIT_MARGIN_SEC = 120.0
LIMIT_MARGIN_SHARE = 0.1
LIMIT_MARGIN_COMMITS = 3
LIMIT_MARGIN_MOST = 0.5
"""Share of the run's whole time, and of the time left at the attempt's start, that commits may take
from training."""


@dataclass(frozen=True)
class Leaving:
    """A stop that the trainer was asked for."""

    reason: Reason
    message: str
    until: float
    """When the machine ends."""
    trainer_until: float
    """When the trainer is killed."""
    snapshot: bool
    """Whether the trainer was asked for a snapshot."""
    no_time: str = ""
    """Why it was not asked for a snapshot, or why the commit of its snapshot was not started."""

    def lost(self, step: int, kept: int) -> str:
        """The message of the attempt's end. ``kept`` is the last committed step and ``step`` the
        last one made; if they differ, the message says what was lost, and why."""
        if step <= kept:
            return self.message
        why = self.no_time or "the trainer did not hand it over in its share of the time"
        return f"{self.message}; step {step} is not committed, step {kept} is: {why}"


class Outlooks:
    """Plans how to use the seconds left, from what was measured so far."""

    def __init__(
        self, committer: Committer, progress: Progress, commit_sec_before: float | None
    ) -> None:
        """``commit_sec_before``: seconds that the last commit of an earlier attempt took, if
        known."""
        self._committer = committer
        self._progress = progress
        self._commit_sec_before = commit_sec_before

    def leaving(
        self, reason: Reason, message: str, until: float, *, in_flight: bool, before: Leaving | None
    ) -> tuple[Leaving, planner.Plan]:
        """Returns the stop to send to the trainer, which gives it no more time than the previous
        one, and the plan."""
        now = time.monotonic()
        found = self.plan(until - now, in_flight=in_flight)
        wanted = found.plan.new
        # If no snapshot is wanted, it may use all of the time to end.
        trainer_until = now + found.trainer_sec if wanted else until
        if before is not None:
            trainer_until = min(trainer_until, before.trainer_until)
        no_time = "" if wanted else self.no_time(until - now, in_flight=in_flight)
        return Leaving(reason, message, until, trainer_until, wanted, no_time), found.plan

    def no_time(self, left_sec: float, *, in_flight: bool) -> str:
        """A clause with what was measured, for a plan without a new snapshot."""
        before = ", a commit was in progress" if in_flight else ""
        last_sec = self._progress.commit_sec or self._commit_sec_before
        took = f", and the last commit took {last_sec:.1f} s" if last_sec else ""
        return f"{max(left_sec, 0):.1f} s were left{before}{took}"

    def plan(self, left_sec: float, *, in_flight: bool, written: bool = False) -> planner.Decision:
        """Plans the time left. ``in_flight``: a commit is in progress; ``written``: the trainer has
        its snapshot ready."""
        committer = self._committer
        rate, overhead_sec = None, 0.0
        new_bytes = committer.sent_bytes
        if new_bytes is None:
            new_bytes = committer.restore_bytes or 0
        if committer.pace is not None:
            rate, overhead_sec = committer.pace.bytes_per_sec, committer.pace.overhead_sec
        elif self._commit_sec_before and committer.restore_bytes:
            rate = committer.restore_bytes / self._commit_sec_before
        return planner.decide(
            planner.Outlook(
                left_sec=left_sec,
                in_flight_bytes=committer.bytes_left if in_flight else None,
                new_bytes=new_bytes,
                bytes_per_sec=rate,
                overhead_sec=overhead_sec,
                write_sec=0.0 if written else self._progress.step_sec,
            )
        )


class Limit:
    """The end of the run's time or of its budget, whichever comes first, and the margin before it
    that the last commits need."""

    def __init__(self, head_file: HeadFile, term: int, progress: Progress, budget: Budget) -> None:
        self._head_file = head_file
        self._term = term
        self._progress = progress
        self._budget = budget
        self._at_start_sec: float | None = None

    def begin(self) -> None:
        """Notes that training starts now."""
        self._at_start_sec = self._to_deadline_sec

    @property
    def margin_sec(self) -> float:
        head = self._head_file.held(self._term)
        whole_sec = (head.deadline - head.started).total_seconds()
        if self.reason is Reason.BUDGET:
            whole_sec = min(whole_sec, self._budget.bought_sec)
        margin = min(LIMIT_MARGIN_SEC, whole_sec * LIMIT_MARGIN_SHARE)
        commits_sec = LIMIT_MARGIN_COMMITS * (self._progress.commit_sec or 0.0)
        at_start_sec = whole_sec if self._at_start_sec is None else self._at_start_sec
        return max(margin, min(commits_sec, LIMIT_MARGIN_MOST * min(whole_sec, at_start_sec)))

    @property
    def left_sec(self) -> float:
        """Seconds until the trainer has to be stopped."""
        return self._to_deadline_sec - self.margin_sec

    @property
    def reason(self) -> Reason:
        """Which of the two comes first."""
        head, budget = self._head_file.held(self._term), self._budget.deadline
        return Reason.BUDGET if budget is not None and budget < head.deadline else Reason.LIMIT

    @property
    def message(self) -> str:
        """Why the trainer has to be stopped."""
        is_limit = self.reason is Reason.LIMIT
        return "the run's time is up" if is_limit else self._budget.message

    @property
    def _to_deadline_sec(self) -> float:
        deadline = self._head_file.held(self._term).deadline
        if self._budget.deadline is not None:
            deadline = min(deadline, self._budget.deadline)
        return (deadline - self._head_file.store.now()).total_seconds()
