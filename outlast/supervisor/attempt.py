"""One attempt: the term that this machine holds, from the restore to the record of its end.

One thread decides. It reads an inbox that all others write to: the trainer's connection, the
trainer's process, the machine's notices, the one thread that commits, and the thread that
sends heartbeats and looks at HEAD. So no two of these are ever handled at once, and a commit
outlives its trainer.

A retry is a new term, taken through the table at boot like any other: each attempt has one trainer,
one end, and rows that no other attempt's overlap.
"""

import contextlib
import logging
import queue
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from outlast.base import exits
from outlast.base.exits import (
    FINAL_USER_REASONS,
    RETRIED_USER_REASONS,
    Reason,
)
from outlast.bucket.commit import Committer
from outlast.bucket.data import DataService, Listings
from outlast.bucket.errors import CommitError, RestoreError
from outlast.bucket.head import DataFingerprint, HeadEnded
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import AttemptEnd
from outlast.bucket.parts import DONE_TAG
from outlast.bucket.retention import Retention
from outlast.protocol import (
    COMPLETE_ID,
    Accepted,
    Busy,
    Channel,
    Checkpoint,
    Closed,
    Committed,
    Complete,
    Error,
    Exit,
    Failed,
    Fetch,
    Hello,
    Message,
    Results,
    Snapshot,
    Stop,
    Tick,
    Warn,
)
from outlast.spec.run_spec import RunSpec
from outlast.supervisor.ending import ENDING_ERRORS, Ending, reason_of_notice
from outlast.supervisor.heartbeat import HeadChanged, HeartbeatFailed
from outlast.supervisor.jobs import Jobs, Made
from outlast.supervisor.latest import Latest
from outlast.supervisor.link import Link
from outlast.supervisor.listener import Asked, Connected, Disconnected, MessageReceived
from outlast.supervisor.notice import Maintenance, Stopping
from outlast.supervisor.parts import Folders
from outlast.supervisor.preparation import Preparation
from outlast.supervisor.process import Exited
from outlast.supervisor.progress import Progress
from outlast.supervisor.reports import Reports
from outlast.supervisor.rooms import Rooms
from outlast.supervisor.shutdown import Leaving, Limit, Outlooks
from outlast.supervisor.site import Next, Outcome, Site
from outlast.supervisor.staging import (
    PHASE,
    Answered,
    Refused,
    Sign,
    Staged,
    Staging,
    Unanswered,
)
from outlast.supervisor.trainings import READ, RESULT, Trainings
from outlast.supervisor.worker import Finished, Job, Worker

_log = logging.getLogger(__name__)

POLL_SEC = 0.5
TRAINERS_ERRORS = (
    CommitError,
    ValueError,
    FileNotFoundError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
)
"""Errors of a commit that the trainer's folder causes, not the machine."""
MAINTENANCE_EVERY_SEC = 30.0

LAST_ROOM = 3
"""Maximum number of snapshots in flight after the loop has ended: one being committed, the best
one, and the last."""

AFTER_SEC = 600.0
"""Seconds that a program may keep running after its training is complete."""
SECOND_TRAINING = (
    "outlast.train was called a second time in one program, which is one run: its result would be "
    "the first training's alone; make each of its trainings a part of the run (part='a name')"
)


class Attempt:
    """The holder of a term. Use once: ``run``."""

    def __init__(self, spec: RunSpec, head_file: HeadFile, site: Site) -> None:
        self.spec = spec
        self.head_file = head_file
        self.site = site
        self.term = head_file.term
        self.progress = Progress()
        self._rooms = Rooms.of(site, self.term)
        self._scratch = self._rooms.scratch
        self._place_said = self._scratch[0]
        self._latest = Latest(self._rooms.rows)
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        retention = Retention(keep_every_steps=spec.keep_every_steps or None)
        self._committer = Committer(
            head_file,
            retention=retention,
            sign=site.sign,
            owner=self._rooms.rows.owner,
        )
        self._jobs = Jobs(
            spec, head_file, self._committer, self._rooms.rows, lambda: self._latest.offset
        )
        self._preparation = Preparation(
            spec, head_file, site, self._committer, self._jobs, self._rooms
        )
        self._ending = Ending(spec, head_file, site, self._committer)
        self._limit = Limit(head_file, self.term, self.progress)
        self._trainings = Trainings(
            spec, head_file, site, self._rooms, self.progress, self._jobs, self._submit
        )
        self._link: Link | None = None
        self._worker: Worker | None = None
        self._reports = Reports(head_file, site)
        self._outlooks = Outlooks(self._committer, self.progress, None)
        self._bytes_left = 0
        self._started_at = self._sign_at = time.monotonic()
        self._complete: Complete | None = None
        self._completed_at = 0.0
        self._keeping = False
        """Whether the completed training's result is being kept."""
        self._leaving: Leaving | None = None
        self._stalled = False
        self._silence_said = False
        self._under_way = 0
        """Jobs submitted and not finished."""
        self._snapshots = 0
        """Jobs among them that commit a snapshot."""
        self._finishing = False
        """Whether the submitted job ends the attempt."""
        self._exit_said: int | None = None
        """The program's exit code, if the trainer has sent it."""
        self._maintenance_at: float | None = None
        self._verdict_at: float | None = None
        self._judged = False
        self._outcome: Outcome | None = None
        user = site.trainer_user
        data_service = DataService(
            site.data,
            lambda: head_file.held(self.term).data or (),
            Listings(head_file.store, head_file.layout),
            contextlib.nullcontext if user is None else user.sight,
        )
        self._staging = Staging(data_service, self._inbox.put)
        self._phase_before = self.progress.phase
        self._kept_data: set[DataFingerprint] = set()

    def run(self) -> Outcome:
        """Restores, trains, commits and ends.

        Errors of HEAD, the store, the disk and the trainer become the outcome; none is raised."""
        try:
            try:
                outcome = self._prepare() or self._set_up() or self._train()
            finally:
                self._close_trainer()
        except ENDING_ERRORS as error:
            outcome = self._ending.outcome_of(error, trained=self._link is not None)
        except Exception as error:
            outcome = self._ending.crashed(error)
        self._end(outcome)
        return outcome

    # -- before the trainer -------------------------------------------------------------------

    def _prepare(self) -> Outcome | None:
        """Checks the permission, restores and records the start. Returns an outcome if this machine
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
        return None

    def _set_up(self) -> Outcome | None:
        """Prepares the trainer's code and packages. Returns an outcome if that fails."""
        self.progress.phase = "setup"
        self._reports.begin(
            self.progress, self._latest, self.spec.timeouts.heartbeat, self._inbox.put
        )
        outcome = self._preparation.code()
        if outcome is None:
            self.progress.phase = "start"
        return outcome

    # -- with the trainer ---------------------------------------------------------------------

    def _train(self) -> Outcome:
        self.site.clock.training = True
        self._started_at = self._sign_at = time.monotonic()
        post = self._inbox.put
        self._worker = Worker(post, self.head_file.patience)
        self._reports.keep(self._rooms.logs)
        commit_sec = self._trainings.read_commit_sec()
        self._outlooks = Outlooks(self._committer, self.progress, commit_sec)
        self._limit.begin()
        self._link = Link(self.site.make_trainer(self.term))
        self.site.listener.listen(post)
        self._link.trainer.start(post)
        self.site.notices.listen(post)
        while self._outcome is None:
            try:
                event = self._inbox.get(timeout=self._poll_sec())
            except queue.Empty:
                self._tend(self._link, quiet=True)
            else:
                self._handle(event, self._link)
                self._tend(self._link, quiet=False)
        return self._outcome

    def _poll_sec(self) -> float:
        """Seconds until the next timer is due, at most POLL_SEC."""
        ends = [self._verdict_at, self._leaving.trainer_until if self._leaving else None]
        now = time.monotonic()
        waits = [end - now for end in ends if end is not None and end > now]
        return min([POLL_SEC, *waits])

    def _handle(self, event: Any, link: Link) -> None:
        match event:
            case Connected(channel, hello):
                self._connect(link, channel, hello)
            case Asked(channel, request):
                self._stage(request, channel)
            case MessageReceived(channel, message) if channel is link.channel:
                self._note_sign()
                self._hear(link, message)
            case Disconnected(channel) if channel is link.channel:
                link.hung = True
            case Exited():
                link.note_exit(event)
            case Stopping():
                self._stop(link, event.reason, "the machine stops", event.until)
            case Maintenance(kind):
                _log.info(f"maintenance-event {kind}: committing now and oftener")
                self._maintenance_at = time.monotonic()
            case Finished():
                self._finished(link, event)
            case Sign():
                self._note_sign()
            case Staged(fingerprint):
                self._keep_data(fingerprint)
            case Refused(error):
                link.refusal = error
            case Unanswered(error) | HeartbeatFailed(error):
                raise error
            case Answered():
                self._staging.over()
                self._note_sign()
                if not self._staging.under_way and self.progress.phase == PHASE:
                    self.progress.phase = self._phase_before
            case HeadChanged(error):
                # The end in HEAD may be this attempt's own, still being written.
                if not (self._finishing and isinstance(error, HeadEnded)):
                    raise error

    def _note_sign(self) -> None:
        """Notes that the trainer makes progress, so neither it nor this machine counts as stuck."""
        self._sign_at = time.monotonic()
        self._silence_said = False
        self.site.sign()

    def _connect(self, link: Link, channel: Channel, hello: Hello) -> None:
        if link.channel is not None or link.gone:
            refusal = Error("another trainer is connected already", "supervisor")
            if self._complete is not None and not self._keeping:
                refusal = Error(SECOND_TRAINING, "usage")
                self._complete = None
                link.note_error(refusal)
            with contextlib.suppress(Closed):
                channel.send(refusal)
            channel.close()
            return
        link.channel = channel
        self._begin(link, hello)

    def _begin(self, link: Link, hello: Hello) -> None:
        self._note_sign()
        folders = self._trainings.begin(link, hello)
        if folders is not None:
            self._greet(link, folders)

    def _greet(self, link: Link, folders: Folders) -> None:
        self._trainings.welcome(link, folders)
        if self._leaving is not None:
            self._tell_stop(link, self._leaving)

    def _hear(self, link: Link, message: Message) -> None:
        match message:
            case Hello():
                self._begin(link, message)
            case Tick(step, phase):
                self._trainings.note_tick(step, phase)
            case Warn(warning):
                self.progress.note_warning(warning)
            case Snapshot():
                self._offer(link, message)
            case Complete() if self._trainings.parts.now.part:
                self._end_part(link, message)
            case Results():
                if not self._trainings.read_result():
                    link.send(Error("results: this part is not done", "protocol"))
            case Exit(code):
                self._exit_said = code
                lacking = self._trainings.parts.lacking
                if lacking is not None:  # else it waits for the run's result
                    link.note_error(Error(lacking, "usage"))
                    link.hung = True
            case Complete():
                self.progress.step = message.step
                self._complete, self._completed_at = message, time.monotonic()
                link.send(Accepted(COMPLETE_ID))
            case Error():
                link.note_error(message)
            case Fetch() if link.channel is not None:
                self._stage(message, link.channel)
            case _:
                name = type(message).__name__.lower()
                link.send(Error(f"{name}: is not for a trainer to say", "protocol"))

    def _stage(self, request: Fetch, channel: Channel) -> None:
        """Starts to fetch data for the trainer; the results arrive as events."""

        def answer(message: Message) -> None:
            with contextlib.suppress(Closed):
                channel.send(message)

        if not self._staging.under_way:
            self._phase_before, self.progress.phase = self.progress.phase, PHASE
        self._staging.ask(request, answer)

    def _keep_data(self, fingerprint: DataFingerprint) -> None:
        """Records the fingerprint in HEAD before the next commit."""
        if fingerprint not in self._kept_data:
            self._kept_data.add(fingerprint)
            keep = lambda: self.head_file.set_data(fingerprint, term=self.term)  # noqa: E731
            self._submit(Job("data", keep, beside=True))

    # -- snapshots and other jobs of the committing thread ------------------------------------

    def _offer(self, link: Link, snapshot: Snapshot) -> None:
        """Accepts a snapshot or answers Busy. One may be in flight; two while stopping; LAST_ROOM
        if the loop has ended."""
        room = LAST_ROOM if snapshot.last else 1 if self._leaving is None else 2
        if self._snapshots >= room or self._complete is not None:
            link.send(Busy(snapshot.id))
            return
        if self._leaving is not None and not self._fits(link, self._leaving):
            link.send(Busy(snapshot.id))
            return
        self.progress.step = max(self.progress.step, self.progress.before + snapshot.step)
        place = self._rooms.place_of(snapshot.path)
        if place is None:
            known = " or ".join(map(str, self._scratch))
            link.send(Accepted(snapshot.id))
            link.send(Failed(snapshot.id, f"{snapshot.path}: must be a folder in {known}"))
            return
        if place != self._place_said:
            self._place_said = place
            _log.info(f"snapshots are written to {place}")
        self._snapshots += 1
        link.send(Accepted(snapshot.id))
        begin = self._trainings.parts.now
        self._submit(Job("commit", lambda: self._jobs.commit(snapshot, begin), snapshot))

    def _end_part(self, link: Link, complete: Complete) -> None:
        """Commits what a part ended with, after the snapshots before it."""
        self._snapshots += 1
        link.send(Accepted(COMPLETE_ID))
        if self._rooms.place_of(complete.result) is None:
            known = " or ".join(map(str, self._scratch))
            self._snapshots -= 1
            link.send(Failed(COMPLETE_ID, f"{complete.result}: must be a folder in {known}"))
            return
        ended = Snapshot(
            COMPLETE_ID, complete.result, complete.step, [DONE_TAG], complete.rows_offset
        )
        begin = self._trainings.parts.now
        self._submit(Job("commit", lambda: self._jobs.commit(ended, begin, is_end=True), ended))

    def _fits(self, link: Link, leaving: Leaving) -> bool:
        """Whether a commit that starts now can finish before the machine ends. If not, logs it and
        tells the trainer."""
        left_sec = leaving.until - time.monotonic()
        in_flight = self._snapshots > 0
        if not leaving.snapshot or (
            self._outlooks.plan(left_sec, in_flight=in_flight, written=True).plan.new
        ):
            return leaving.snapshot
        _log.info("a snapshot handed over now could not be committed in time: not begun")
        no_time = self._outlooks.no_time(left_sec, in_flight=in_flight)
        self._leaving = replace(leaving, snapshot=False, no_time=no_time)
        self._tell_stop(link, self._leaving)
        return False

    def _submit(self, job: Job) -> None:
        assert self._worker is not None
        self._under_way += 1
        if not job.beside:
            self._finishing = job.snapshot is None
        self._worker.submit(job)

    def _submit_failed(self, link: Link, reason: Reason, message: str) -> None:
        code = link.exit_code
        self._submit(Job("end", lambda: self._jobs.finish_failed(reason, message, code)))

    def _finished(self, link: Link, done: Finished) -> None:
        self._under_way -= 1
        self.site.sign()
        snapshot, error = done.job.snapshot, done.error
        if snapshot is not None:
            self._snapshots -= 1
        if error is not None and not isinstance(error, TRAINERS_ERRORS):
            raise error
        if snapshot is not None:
            if error is None:
                self._committed(link, snapshot, done.value)
            else:
                _log.info(f"snapshot of step {snapshot.step}: {error}")
                link.send(Failed(snapshot.id, str(error)))
        elif isinstance(error, RestoreError) or (
            error is not None and done.job.name in (READ, RESULT)
        ):
            raise error
        elif done.job.name == READ:
            self._greet(link, done.value)
        elif done.job.name == RESULT:
            self._trainings.give_result(link, done.value)
        elif isinstance(error, CommitError | OSError):
            # Only a result gets here: its files are the trainer's.
            self._complete, self._finishing, self._keeping = None, False, False
            link.error = Error(f"the result could not be kept: {error}", "trainer")
        elif error is not None:
            raise error
        elif not done.job.beside:
            self._outcome = done.value

    def _committed(self, link: Link, snapshot: Snapshot, made: Made) -> None:
        progress = self.progress
        progress.commit_sec, progress.committed = made.seconds, made.checkpoint.step
        self._trainings.parts.committed(made.checkpoint)
        if progress.seconds_to_commit is None:
            progress.seconds_to_commit = round(time.monotonic() - self._started_at, 3)
        link.send(Committed(snapshot.id, snapshot.step))
        if not self._finishing:  # the end cleans up too
            self._submit(Job("clean", self._jobs.clean, beside=True))

    # -- time ---------------------------------------------------------------------------------

    def _tend(self, link: Link, *, quiet: bool) -> None:
        """Does everything that depends on time. ``quiet``: no event was waiting."""
        if self._outcome is not None:
            return
        now = time.monotonic()
        bytes_left = self._committer.bytes_left
        if bytes_left != self._bytes_left:  # an upload makes progress, whatever the trainer does
            self._bytes_left = bytes_left
            self.site.sign()
        if self._complete is not None:
            self._finish(link, self._complete, now)
        elif self._has_exited(link) and self._trainings.parts.all_done:
            self._finish_parts()
        elif not link.gone:
            self._watch(link, now, quiet=quiet)
        over = self._complete is not None or self._keeping
        if link.gone and self._under_way == 0 and not over and not self._judged:
            self._judge(link, now)

    def _finish(self, link: Link, complete: Complete, now: float) -> None:
        """Ends the run as done once the program that completed its training has ended. If it starts
        another training instead, that training is refused and the run is not done. The program has
        AFTER_SEC to end, but no time if the machine stops."""
        waits = link.trainer.restarts and not link.gone and self._leaving is None
        if waits and now - self._completed_at < AFTER_SEC and self._limit.left_sec > 0:
            return
        if not self._keeping:
            self._keeping = True
            self._submit(Job("result", lambda: self._jobs.finish_done(complete)))

    def _has_exited(self, link: Link) -> bool:
        """Whether the program has ended with exit code 0. False for one that was asked to stop: it
        may not have reached its end."""
        if self._leaving is not None or self._trainings.reading:
            return False
        return self._exit_said == 0 or (link.gone and link.exit_code == 0)

    def _finish_parts(self) -> None:
        if not self._keeping:
            self._keeping = True
            parts = self._trainings.parts.known
            self._submit(Job("result", lambda: self._jobs.finish_parts(parts)))

    def _watch(self, link: Link, now: float, *, quiet: bool) -> None:
        """Checks the time limits of a running trainer."""
        if link.channel is None and link.overdue:
            link.kill("was not there")
        elif self._leaving is not None:
            if now >= self._leaving.trainer_until:
                link.kill("did not stop in time")
        elif self._trainings.reading:
            self._sign_at = now  # the trainer waits for the supervisor
        elif quiet and now - self._sign_at >= self.spec.timeouts.stall and self._is_stuck(link):
            self._stall(link)
        elif (left_sec := self._limit.left_sec) <= 0:
            margin_sec = self._limit.margin_sec
            self._stop(link, Reason.LIMIT, "the run's time is up", now + margin_sec)
            _log.info(f"deadline in {margin_sec + left_sec:.0f} s: stopping")
        elif self._maintenance_at is not None and now >= self._maintenance_at:
            self._ask_for_checkpoint(link, now)

    def _ask_for_checkpoint(self, link: Link, now: float) -> None:
        """Asks for a checkpoint if the trainer is connected and nothing is in flight, and schedules
        the next request."""
        if link.channel is not None and self._snapshots == 0:
            link.send(Checkpoint("maintenance"))
            wait_sec = max(MAINTENANCE_EVERY_SEC, 3 * (self.progress.commit_sec or 0.0))
            self._maintenance_at = now + wait_sec

    # -- stopping it --------------------------------------------------------------------------

    def _stop(self, link: Link, reason: Reason, message: str, until: float) -> None:
        """Tells the trainer to hand over its state, early enough for the upload."""
        before = self._leaving
        leaving, plan = self._outlooks.leaving(
            reason, message, until, in_flight=self._snapshots > 0, before=before
        )
        self._leaving = leaving
        if (
            before is not None
            and leaving.trainer_until == before.trainer_until
            and leaving.snapshot == before.snapshot
        ):
            return
        trainer_sec = max(0.0, leaving.trainer_until - time.monotonic())
        _log.info(f"{reason}: {message}; plan: {plan.value}, the trainer has {trainer_sec:.1f} s")
        if self._complete is not None:
            return
        if link.channel is None:
            link.kill("had not begun")  # nothing to hand over
        else:
            self._tell_stop(link, leaving)

    def _tell_stop(self, link: Link, leaving: Leaving) -> None:
        left_sec = max(0.0, leaving.trainer_until - time.monotonic())
        link.send(Stop(left_sec, leaving.snapshot))

    def _is_stuck(self, link: Link) -> bool:
        """Whether to end a trainer that gives no sign. One that a person started may be paused
        (Ctrl-Z, a closed lid, a debugger): that is only logged, once."""
        if link.trainer.restarts:
            return True
        if not self._silence_said:
            self._silence_said = True
            _log.info(
                f"no step for {self.spec.timeouts.stall:.0f} s at step {self.progress.step}; the "
                "program may be paused or stuck, and is left alone"
            )
        return False

    def _stall(self, link: Link) -> None:
        self._stalled = True
        _log.info(
            f"no step and no tick for {self.spec.timeouts.stall:.0f} s at step "
            f"{self.progress.step}: the trainer is stuck; its stack is in its log"
        )
        link.trainer.dump_stacks()
        link.kill("was stuck")

    # -- the verdict --------------------------------------------------------------------------

    def _judge(self, link: Link, now: float) -> None:
        """Decides why the trainer ended without completing, and what comes next. Called when
        nothing is in flight."""
        if self._leaving is not None:
            self._judged = True
            reason = self._leaving.reason
            if reason is Reason.LIMIT:
                self._submit_failed(link, Reason.LIMIT, self._leaving.message)
            else:
                reason = reason_of_notice(self.site.notices)
                message = self._leaving.lost(self.progress.step, self.progress.kept)
                self._outcome = Outcome(Next.STOP, reason, message)
            return
        reason, message = self._cause(link)
        if not link.trainer.restarts:
            # The same command retries: the run stays open.
            self._outcome = Outcome(Next.STOP, reason, message)
            return
        if self._verdict_at is None:
            # A dying machine may kill its trainer first; that must not count as the user's failure.
            self._verdict_at = now + self.spec.timeouts.failure_grace
            self.progress.phase = "verdict"
            mask = self.site.mask.text
            self.progress.note_failure(mask(message), tuple(map(mask, link.lines)))
            _log.info(
                f"{message}; holding the verdict for {self.spec.timeouts.failure_grace:.0f} s"
            )
        if now < self._verdict_at:
            return
        stopping = self.site.notices.look()
        if stopping is not None:
            self._stop(link, stopping.reason, "the machine stops", stopping.until)
            return
        self._judged = True
        if reason in FINAL_USER_REASONS:
            self._submit_failed(link, reason, message)
        elif reason in RETRIED_USER_REASONS:
            code = link.exit_code
            count = lambda: self._jobs.count_failure(reason, message, code)  # noqa: E731
            self._submit(Job("failure", count))
        else:
            self._outcome = Outcome(Next.STOP, reason, message)

    def _cause(self, link: Link) -> tuple[Reason, str]:
        if self._stalled:
            return Reason.STALLED, f"no step and no tick for {self.spec.timeouts.stall:.0f} s"
        reason, message = link.cause(self._goes_on())
        lacking = self._trainings.parts.lacking if self._trainings.parts.used else None
        if lacking is not None and exits.DONE in (link.exit_code, self._exit_said):
            message = f"the program ended with exit code 0, and {lacking}"
        return reason, message

    def _goes_on(self) -> str:
        """Says where the same command will continue: the last line that its user sees."""
        return self._trainings.parts.goes_on()

    # -- the end --------------------------------------------------------------------------------

    def _close_trainer(self) -> None:
        self.site.notices.listen(None)
        self.site.listener.listen(None)
        if self._link is not None:
            self._link.close()
        if self._worker is not None:
            self._worker.close()

    def _end(self, outcome: Outcome) -> None:
        """Sends the last heartbeat and the rest of the logs, and records the end."""
        self.site.clock.training = True  # this is worth finishing too: SIGTERM must not end a sleep
        reason = "" if outcome.message.startswith(outcome.reason) else f"{outcome.reason}: "
        _log.info(f"term {self.term}: {reason}{outcome.message}")
        self._reports.close(last_words=outcome.next is not Next.WATCH)
        link = self._link
        self._latest.read()
        self._ending.record(
            AttemptEnd(
                term=self.term,
                reason=outcome.reason,
                state=self._ending.state(outcome),
                exit=link.exit_code if link else None,
                step=self.progress.step,
                committed=self.progress.committed,
                message=outcome.message,
                stderr=link.lines if link else (),
                staged_sec=round(self._staging.seconds, 3),
                time=datetime.now(UTC),
                repeats=outcome.repeats,
                metrics=self._latest.metrics,
            ),
            outcome,
        )
        self.site.clock.training = False
        self._rooms.remove()
