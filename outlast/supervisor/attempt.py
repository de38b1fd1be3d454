"""One attempt: the term that this machine holds, from the restore to the record of its end.

A retry is a new term, taken through the table at boot like any other: each attempt has one trainer,
one end, and rows that no other attempt's overlap.
"""

import logging
from datetime import UTC, datetime

from outlast.base.exits import Reason
from outlast.bucket.commit import Committer
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import AttemptEnd
from outlast.bucket.retention import Retention
from outlast.spec.run_spec import RunSpec
from outlast.supervisor.announcements import Announcements
from outlast.supervisor.budget import Budget
from outlast.supervisor.ending import ENDING_ERRORS, Ending
from outlast.supervisor.held_term import HeldTerm
from outlast.supervisor.jobs import Jobs
from outlast.supervisor.latest import Latest
from outlast.supervisor.preparation import Preparation
from outlast.supervisor.progress import Progress
from outlast.supervisor.reports import Reports
from outlast.supervisor.rooms import Rooms
from outlast.supervisor.rungs import RungWatch, earlier_stop
from outlast.supervisor.site import Next, Outcome, Site
from outlast.supervisor.trainer_loop import TrainerLoop
from outlast.supervisor.trainings import Trainings
from outlast.supervisor.worker import Work

_log = logging.getLogger(__name__)


class Attempt:
    """The holder of a term. Use once: ``run``."""

    def __init__(self, spec: RunSpec, head_file: HeadFile, site: Site) -> None:
        self.spec = spec
        self.head_file = head_file
        self.site = site
        self.term = head_file.term
        self.progress = Progress()
        self._rooms = rooms = Rooms.of(site, self.term)
        self._latest = Latest(rooms.rows)
        self._committer = Committer(
            head_file,
            retention=Retention(keep_every_steps=spec.keep_every_steps or None),
            sign=site.sign,
            owner=rooms.rows.owner,
        )
        self._rungs: RungWatch | None = None
        """Compares a sweep's trial with the others, once it trains."""
        self._jobs = Jobs(spec, head_file, self._committer, rooms.rows, self._rows_needed)
        self._ending = Ending(spec, head_file, site, self._committer)
        self._reports = Reports(head_file, site)
        work = Work()
        budget = Budget(spec, head_file, site.machine)
        self._held = term = HeldTerm(
            spec, head_file, site, rooms, self.progress, self._committer, self._jobs, budget
        )
        self._preparation = Preparation(term)
        self._trainings = Trainings(term, work.submit)
        self._loop = TrainerLoop(term, self._trainings, work)

    def run(self) -> Outcome:
        """Restore, train, commit and end.

        Errors of HEAD, the store, the disk and the trainer become the outcome; none is raised."""
        try:
            try:
                outcome = self._prepare() or self._set_up() or self._train()
            finally:
                self._close_trainer()
        except ENDING_ERRORS as error:
            outcome = self._ending.outcome_of(error, trained=self._loop.link is not None)
        except Exception as error:
            outcome = self._ending.crashed(error)
        return self._end(outcome)

    def _prepare(self) -> Outcome | None:
        """Check the permission, restore and record the start. Returns an outcome if this machine
        must not train."""
        refused = self._preparation.allowed()
        if refused is not None:
            return refused
        restored = self._preparation.restore()
        if isinstance(restored, Outcome):
            return restored
        self._rooms.make()
        self._trainings.prepare(restored)
        if restored is not None:
            self.progress.step = self.progress.begun = restored.step
        self._preparation.record_start(restored)
        announcements = Announcements(self.spec, self.head_file.layout, self.site)
        if self.term > 1:
            announcements.lost(self.head_file.store, self.term - 1, self.progress.step)
        announcements.began(self.term, self.progress.step)
        return self._obey() or self._preparation.affordable()

    def _obey(self) -> Outcome | None:
        """End a sweep's trial that an earlier attempt decided to stop."""
        stop = earlier_stop(self._held)
        return None if stop is None else self._jobs.finish_pruned(stop.why)

    def _set_up(self) -> Outcome | None:
        """Prepare the trainer's code and packages. Returns an outcome if that fails."""
        self.progress.phase = "setup"
        self._reports.begin(self.progress, self._latest, self.spec.timeouts, self._loop.inbox.put)
        outcome = self._preparation.code()
        if outcome is None:
            self.progress.phase = "start"
        return outcome

    def _train(self) -> Outcome:
        self.site.clock.training = True
        self._reports.keep(self._rooms.logs)
        if self.spec.sweep_rules is not None:
            self._rungs = RungWatch(self._held, self.spec.sweep_rules, self.progress.begun)
            self._rungs.begin(self._loop.inbox.put)
        return self._loop.run()

    def _rows_needed(self) -> int:
        """The byte from which the rows' file is still read."""
        latest = self._latest.offset
        return latest if self._rungs is None else min(latest, self._rungs.offset)

    def _close_trainer(self) -> None:
        self.site.notices.listen(None)
        self.site.listener.listen(None)
        self._loop.close()

    def _end(self, outcome: Outcome) -> Outcome:
        """Write the last heartbeat, the rest of the logs, and the record of the end. Returns the
        outcome, which may depend on whether storage took the record."""
        self.site.clock.training = True  # worth finishing, too: SIGTERM ends no sleep
        reason = "" if outcome.message.startswith(outcome.reason) else f"{outcome.reason}: "
        _log.info(f"term {self.term}: {reason}{outcome.message}")
        if self._rungs is not None:
            stays = outcome.next in (Next.LEAVE, Next.AGAIN)
            self._rungs.close(last_words=stays, done=outcome.reason is Reason.DONE)
        self._reports.close(last_words=outcome.next is not Next.WATCH)
        link = self._loop.link
        self._latest.read()
        ended = self._ending.record(
            AttemptEnd(
                term=self.term,
                reason=outcome.reason,
                state=self._ending.state(outcome),
                exit=link.exit_code if link else None,
                step=self.progress.step,
                committed=self.progress.committed,
                message=outcome.message,
                stderr=link.lines if link else (),
                staged_sec=round(self._loop.staged_sec, 3),
                time=datetime.now(UTC),
                repeats=outcome.repeats,
                metrics=self._latest.metrics,
            ),
            outcome,
        )
        self.site.clock.training = False
        self._rooms.remove()
        return ended
