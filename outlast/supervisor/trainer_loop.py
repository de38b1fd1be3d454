"""What happens around one trainer, from its start until the attempt's outcome is known.

One thread decides. It reads an inbox that all others write to: the trainer's connection, the
trainer's process, the machine's notices, the one thread that commits, and the thread that
sends heartbeats and looks at HEAD. So no two of these are ever handled at once, and a commit
outlives its trainer.
"""

import contextlib
import logging
import queue
import time
from typing import Any

from outlast.base.exits import Reason
from outlast.bucket.boot import STOP_ASKED
from outlast.bucket.data import DataService, Listings
from outlast.bucket.errors import CommitError, RestoreError
from outlast.bucket.head import DataFingerprint, HeadEnded
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
    Tick,
    Warn,
)
from outlast.supervisor.departure import Departure
from outlast.supervisor.heartbeat import HeadChanged, HeartbeatFailed, StopAsked
from outlast.supervisor.held_term import HeldTerm
from outlast.supervisor.jobs import Made
from outlast.supervisor.link import Link
from outlast.supervisor.listener import Asked, Connected, Disconnected, MessageReceived
from outlast.supervisor.notice import Maintenance, Stopping
from outlast.supervisor.offers import Offers
from outlast.supervisor.parts import Folders
from outlast.supervisor.process import Exited
from outlast.supervisor.rungs import Pruned
from outlast.supervisor.shutdown import Limit, Outlooks
from outlast.supervisor.site import Outcome
from outlast.supervisor.staging import (
    PHASE,
    Answered,
    Refused,
    Sign,
    Staged,
    Staging,
    Unanswered,
)
from outlast.supervisor.stall_watch import StallWatch
from outlast.supervisor.trainings import READ, RESULT, Trainings
from outlast.supervisor.verdict import Pending, Verdict
from outlast.supervisor.worker import Finished, Job, Work, Worker

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

AFTER_SEC = 600.0
"""Seconds that a program may keep running after its training is complete."""
PRUNE_SEC = 600.0
"""Seconds in which a trial that decided to stop can finish its step and hand over its state."""
PRUNE_COMMITS = 3
"""The same as a number of commits, if that takes longer."""
SECOND_TRAINING = (
    "outlast.train was called a second time in one program, which is one run: its result would be "
    "the first training's alone; make each of its trainings a part of the run (part='a name')"
)


class TrainerLoop:
    """The events around one trainer. Use once: ``run``."""

    def __init__(self, term: HeldTerm, trainings: Trainings, work: Work) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.link: Link | None = None
        """The trainer; None until it is started."""
        self._term = term
        self._site = term.site
        self._progress = term.progress
        self._trainings = trainings
        self._work = work
        self._limit = Limit(term.head_file, term.head_file.term, term.progress, term.budget)
        self._departure = Departure(Outlooks(term.committer, term.progress, None))
        self._offers = Offers(term, trainings, work)
        self._stall = StallWatch(term.site, term.progress, term.spec.timeouts.stall)
        self._verdict = Verdict(term, trainings, self._stall, work)
        self._staging = Staging(_data_service(term), self.inbox.put)
        self._phase_before = term.progress.phase
        self._kept_data: set[DataFingerprint] = set()
        self._bytes_left = 0
        self._started_at = 0.0
        self._complete: Complete | None = None
        self._completed_at = 0.0
        self._keeping = False
        """Whether the completed training's result is being kept."""
        self._maintenance_at: float | None = None
        self._outcome: Outcome | None = None

    @property
    def staged_sec(self) -> float:
        """How long the trainer waited for data."""
        return self._staging.seconds

    def run(self) -> Outcome:
        """Start the trainer, and handle events until there is an outcome."""
        link = self._start()
        while self._outcome is None:
            try:
                event = self.inbox.get(timeout=self._poll_sec())
            except queue.Empty:
                self._tend(link, quiet=True)
            else:
                self._handle(event, link)
                self._tend(link, quiet=False)
        return self._outcome

    def close(self) -> None:
        """End the trainer and its connection; no job begins any more."""
        if self.link is not None:
            self.link.close()
        self._work.close()

    def _start(self) -> Link:
        self._started_at = time.monotonic()
        self._stall.note_wait()
        post, term = self.inbox.put, self._term
        self._work.begin(Worker(post, term.head_file.patience))
        commit_sec = self._trainings.read_commit_sec()
        self._departure = Departure(Outlooks(term.committer, self._progress, commit_sec))
        self._limit.begin()
        self.link = link = Link(self._site.make_trainer(term.head_file.term))
        self._site.listener.listen(post)
        link.trainer.start(post)
        self._site.notices.listen(post)
        return link

    def _poll_sec(self) -> float:
        """Seconds until the next timer is due, at most POLL_SEC."""
        leaving = self._departure.leaving
        ends = [self._verdict.due, leaving.trainer_until if leaving else None]
        now = time.monotonic()
        waits = [end - now for end in ends if end is not None and end > now]
        return min([POLL_SEC, *waits])

    # -- events -------------------------------------------------------------------------------

    def _handle(self, event: Any, link: Link) -> None:
        match event:
            case Connected(channel, hello):
                self._connect(link, channel, hello)
            case Asked(channel, request):
                self._stage(request, channel)
            case MessageReceived(channel, message) if channel is link.channel:
                self._stall.note_sign()
                self._hear(link, message)
            case Disconnected(channel) if channel is link.channel:
                link.hung = True
            case Exited():
                link.note_exit(event)
            case Stopping():
                self._stop(link, event.reason, "the machine stops", event.until)
            case StopAsked(seconds):
                self._stop_run(link, seconds)
            case Maintenance(kind):
                _log.info(f"maintenance-event {kind}: committing now and oftener")
                self._maintenance_at = time.monotonic()
            case Finished():
                self._finished(link, event)
            case Sign():
                self._stall.note_sign()
            case Pruned(decision):
                self._prune(link, decision.why)
            case Staged(fingerprint):
                self._keep_data(fingerprint)
            case Refused(error):
                link.refusal = error
            case Unanswered(error) | HeartbeatFailed(error):
                raise error
            case Answered():
                self._staging.over()
                self._stall.note_sign()
                if not self._staging.under_way and self._progress.phase == PHASE:
                    self._progress.phase = self._phase_before
            case HeadChanged(error):
                # The end in HEAD may be this attempt's own, still being written.
                if not (self._work.finishing and isinstance(error, HeadEnded)):
                    raise error

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
        self._stall.note_sign()
        folders = self._trainings.begin(link, hello)
        if folders is not None:
            self._greet(link, folders)

    def _greet(self, link: Link, folders: Folders) -> None:
        self._trainings.welcome(link, folders)
        self._departure.tell(link)

    def _hear(self, link: Link, message: Message) -> None:
        match message:
            case Hello():
                self._begin(link, message)
            case Tick(step, phase):
                self._trainings.note_tick(step, phase)
            case Warn(warning):
                self._progress.note_warning(warning)
            case Snapshot() if self._complete is not None:
                link.send(Busy(message.id))
            case Snapshot():
                self._offers.take(link, message, self._departure)
            case Complete() if self._trainings.parts.now.part:
                self._offers.take_end(link, message)
            case Results():
                if not self._trainings.read_result():
                    link.send(Error("results: this part is not done", "protocol"))
            case Exit(code):
                link.exit_said = code
                lacking = self._trainings.parts.lacking
                if lacking is not None:  # else it waits for the run's result
                    link.note_error(Error(lacking, "usage"))
                    link.hung = True
            case Complete():
                self._progress.step = message.step
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
        """Start to fetch data for the trainer; the results arrive as events."""

        def answer(message: Message) -> None:
            with contextlib.suppress(Closed):
                channel.send(message)

        if not self._staging.under_way:
            self._phase_before, self._progress.phase = self._progress.phase, PHASE
        self._staging.ask(request, answer)

    def _keep_data(self, fingerprint: DataFingerprint) -> None:
        """Record the fingerprint in HEAD before the next commit."""
        if fingerprint not in self._kept_data:
            self._kept_data.add(fingerprint)
            head_file = self._term.head_file
            keep = lambda: head_file.set_data(fingerprint, term=head_file.term)  # noqa: E731
            self._work.submit(Job("data", keep, beside=True))

    def _finished(self, link: Link, done: Finished) -> None:
        self._site.sign()
        self._work.over(done.job)
        snapshot, error = done.job.snapshot, done.error
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
            self._complete, self._work.finishing, self._keeping = None, False, False
            link.error = Error(f"the result could not be kept: {error}", "trainer")
        elif error is not None:
            raise error
        elif not done.job.beside:
            self._outcome = done.value

    def _committed(self, link: Link, snapshot: Snapshot, made: Made) -> None:
        progress = self._progress
        progress.commit_sec, progress.committed = made.seconds, made.checkpoint.step
        self._trainings.parts.committed(made.checkpoint)
        if progress.seconds_to_commit is None:
            progress.seconds_to_commit = round(time.monotonic() - self._started_at, 3)
        link.send(Committed(snapshot.id, snapshot.step))
        if not self._work.finishing:  # the end cleans up too
            self._work.submit(Job("clean", self._term.jobs.clean, beside=True))

    # -- time ---------------------------------------------------------------------------------

    def _tend(self, link: Link, *, quiet: bool) -> None:
        """Do everything that depends on time. ``quiet``: no event was waiting."""
        if self._outcome is not None:
            return
        now = time.monotonic()
        bytes_left = self._term.committer.bytes_left
        if bytes_left != self._bytes_left:  # an upload makes progress, whatever the trainer does
            self._bytes_left = bytes_left
            self._progress.uploaded_at = now
            self._site.sign()
        if self._complete is not None:
            self._finish(link, self._complete, now)
        elif self._has_exited(link) and self._trainings.parts.all_done:
            self._finish_parts()
        elif not link.gone:
            self._watch(link, now, quiet=quiet)
        over = self._complete is not None or self._keeping
        if link.gone and self._work.under_way == 0 and not over and not self._verdict.given:
            self._judge(link, now)

    def _finish(self, link: Link, complete: Complete, now: float) -> None:
        """End the run as done once the program that completed its training has ended. If it starts
        another training instead, that training is refused and the run is not done. The program has
        AFTER_SEC to end, but no time if the machine stops."""
        waits = link.trainer.restarts and not link.gone and self._departure.leaving is None
        if waits and now - self._completed_at < AFTER_SEC and self._limit.left_sec > 0:
            return
        if not self._keeping:
            self._keeping = True
            jobs = self._term.jobs
            self._work.submit(Job("result", lambda: jobs.finish_done(complete)))

    def _has_exited(self, link: Link) -> bool:
        """Whether the program has ended with exit code 0. False for one that was asked to stop: it
        may not have reached its end."""
        if self._departure.leaving is not None or self._trainings.reading:
            return False
        return link.exit_said == 0 or (link.gone and link.exit_code == 0)

    def _finish_parts(self) -> None:
        if not self._keeping:
            self._keeping = True
            jobs, parts = self._term.jobs, self._trainings.parts.known
            self._work.submit(Job("result", lambda: jobs.finish_parts(parts)))

    def _watch(self, link: Link, now: float, *, quiet: bool) -> None:
        """Check the time limits of a running trainer."""
        leaving = self._departure.leaving
        if link.channel is None and link.overdue:
            link.kill("was not there")
        elif leaving is not None:
            if now >= leaving.trainer_until:
                link.kill("did not stop in time")
        elif self._trainings.reading:
            self._stall.note_wait()
        elif quiet and self._stall.is_stalled(link):
            self._stall.end(link)
        elif (left_sec := self._limit.left_sec) <= 0:
            margin_sec = self._limit.margin_sec
            self._stop(link, self._limit.reason, self._limit.message, now + margin_sec)
            _log.info(f"{self._limit.reason} in {margin_sec + left_sec:.0f} s: stopping")
        elif self._maintenance_at is not None and now >= self._maintenance_at:
            self._ask_for_checkpoint(link, now)

    def _ask_for_checkpoint(self, link: Link, now: float) -> None:
        """Ask for a checkpoint if the trainer is connected and nothing is in flight, and schedule
        the next request."""
        if link.channel is not None and self._work.snapshots == 0:
            link.send(Checkpoint("maintenance"))
            wait_sec = max(MAINTENANCE_EVERY_SEC, 3 * (self._progress.commit_sec or 0.0))
            self._maintenance_at = now + wait_sec

    # -- the end ------------------------------------------------------------------------------

    def _stop(self, link: Link, reason: Reason, message: str, until: float) -> None:
        """Tell the trainer to hand over its state, early enough for the upload."""
        in_flight = self._work.snapshots > 0
        changed = self._departure.begin(reason, message, until, in_flight=in_flight)
        if not changed or self._complete is not None:
            return
        if link.channel is None:
            link.kill("had not begun")  # nothing to hand over
        else:
            self._departure.tell(link)

    def _prune(self, link: Link, why: str) -> None:
        """Ask the trainer of a trial that decided to stop for its last checkpoint. A machine that
        stops leaves the end to its successor, which obeys the same decision."""
        if self._complete is not None or self._departure.leaving is not None:
            _log.info(f"not stopped any more: {why}")
            return
        commits_sec = PRUNE_COMMITS * (self._progress.commit_sec or 0.0)
        left_sec = min(max(PRUNE_SEC, commits_sec), max(0.0, self._limit.left_sec))
        self._stop(link, Reason.PRUNED, why, time.monotonic() + left_sec)

    def _stop_run(self, link: Link, seconds: float) -> None:
        """Stop the trainer for `outlast stop`, and end the run once its state is committed. If the
        machine is stopping, the next one ends it.
        """
        if self._departure.leaving is None:
            most_sec = max(0.0, self._limit.left_sec) + self._limit.margin_sec
            until = time.monotonic() + min(seconds, most_sec)
            self._stop(link, Reason.STOPPED, STOP_ASKED, until)

    def _judge(self, link: Link, now: float) -> None:
        """Decide why the trainer ended without completing. Called when nothing is in flight."""
        found = self._verdict.give(link, now, self._departure.leaving)
        if isinstance(found, Stopping):
            self._stop(link, found.reason, "the machine stops", found.until)
        elif not isinstance(found, Pending):
            self._outcome = found


def _data_service(term: HeldTerm) -> DataService:
    head_file, user = term.head_file, term.site.trainer_user
    return DataService(
        term.site.data,
        lambda: head_file.held(head_file.term).data or (),
        Listings(head_file.store, head_file.layout),
        contextlib.nullcontext if user is None else user.sight,
    )
