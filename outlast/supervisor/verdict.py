"""Why a trainer left without completing its run, and what follows from it."""

import logging
from enum import Enum

from outlast.base import exits
from outlast.base.exits import FINAL_USER_REASONS, RETRIED_USER_REASONS, Reason
from outlast.supervisor.ending import reason_of_notice
from outlast.supervisor.held_term import HeldTerm
from outlast.supervisor.link import Link
from outlast.supervisor.notice import Stopping
from outlast.supervisor.shutdown import Leaving
from outlast.supervisor.site import Next, Outcome
from outlast.supervisor.stall_watch import StallWatch
from outlast.supervisor.trainings import Trainings
from outlast.supervisor.worker import Job, Work

_log = logging.getLogger(__name__)


class Pending(Enum):
    """What a judgement without an outcome waits for."""

    GRACE = "grace"
    """The machine may be about to stop; ask again later."""
    JOB = "job"
    """A job that ends the attempt."""


class Verdict:
    """Judges one attempt's trainer once it has gone and no job is under way. All methods belong to
    the attempt's one thread."""

    def __init__(self, term: HeldTerm, trainings: Trainings, stall: StallWatch, work: Work) -> None:
        self._grace_sec = term.spec.timeouts.failure_grace
        self._site = term.site
        self._progress = term.progress
        self._jobs = term.jobs
        self._trainings = trainings
        self._stall = stall
        self._work = work
        self.due: float | None = None
        """When the verdict is given; None until the trainer has gone."""
        self.given = False

    def give(self, link: Link, now: float, leaving: Leaving | None) -> Outcome | Stopping | Pending:
        """The outcome, or the notice that came in time to be the cause. ``leaving``: the stop
        that the trainer was sent."""
        if leaving is not None:
            self.given = True
            return self._after_stop(link, leaving)
        reason, message = self._cause(link)
        if not link.trainer.restarts:
            # The same command retries: the run stays open.
            return Outcome(Next.STOP, reason, message)
        due = self._hold(link, now, message) if self.due is None else self.due
        if now < due:
            return Pending.GRACE
        stopping = self._site.notices.look()
        if stopping is not None:
            return stopping
        self.given = True
        if reason in FINAL_USER_REASONS:
            return self._fail(link, reason, message)
        if reason in RETRIED_USER_REASONS:
            code = link.exit_code
            count = lambda: self._jobs.count_failure(reason, message, code)  # noqa: E731
            self._work.submit(Job("failure", count))
            return Pending.JOB
        return Outcome(Next.STOP, reason, message)

    def _after_stop(self, link: Link, leaving: Leaving) -> Outcome | Pending:
        if leaving.reason is Reason.LIMIT:
            return self._fail(link, Reason.LIMIT, leaving.message)
        if leaving.reason is Reason.PRUNED:
            self._work.submit(Job("end", lambda: self._jobs.finish_pruned(leaving.message)))
            return Pending.JOB
        message = leaving.lost(self._progress.step, self._progress.kept)
        if leaving.reason in (Reason.BUDGET, Reason.STOPPED):
            stop = lambda: self._jobs.finish_stopped(message, leaving.reason)  # noqa: E731
            self._work.submit(Job("end", stop))
            return Pending.JOB
        return Outcome(Next.STOP, reason_of_notice(self._site.notices), message)

    def _fail(self, link: Link, reason: Reason, message: str) -> Pending:
        code = link.exit_code
        self._work.submit(Job("end", lambda: self._jobs.finish_failed(reason, message, code)))
        return Pending.JOB

    def _hold(self, link: Link, now: float, message: str) -> float:
        """Wait: a dying machine may kill its trainer first; that must not count as the user's."""
        self.due = now + self._grace_sec
        self._progress.phase = "verdict"
        mask = self._site.mask.text
        self._progress.note_failure(mask(message), tuple(map(mask, link.lines)))
        _log.info(f"{message}; holding the verdict for {self._grace_sec:.0f} s")
        return self.due

    def _cause(self, link: Link) -> tuple[Reason, str]:
        if self._stall.cause:
            return Reason.STALLED, self._stall.cause
        parts = self._trainings.parts
        reason, message = link.cause(parts.resumes_from())
        lacking = parts.lacking if parts.used else None
        if lacking is not None and exits.DONE in (link.exit_code, link.exit_said):
            message = f"the program ended with exit code 0, and {lacking}"
        return reason, message
