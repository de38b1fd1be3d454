"""One attempt: a term that this machine holds, from the restore to the record of its end.

One thread decides. It reads an inbox that all others write to: the trainer's connection, the
trainer's process, the machine's notices, the one thread that commits, and the pulse, which beats
and looks at HEAD. So no two of these are ever handled at once, and a commit outlives its trainer.

A retry is a new term, taken through the table at boot like any other: each attempt has one trainer,
one end, and rows that no other attempt's overlap.
"""

import contextlib
import importlib.metadata
import os
import platform
import queue
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from outlast.base import exits, places
from outlast.base.exits import (
    FINAL_USER_REASONS,
    RETRIED_USER_REASONS,
    Reason,
    State,
)
from outlast.bucket.commit import (
    CommitError,
    Committer,
    Fresh,
    Restored,
    RestoreError,
    Retention,
    read_record,
    write_record,
)
from outlast.bucket.data import Cache, Desk, user_cache
from outlast.bucket.head import (
    DataFingerprint,
    Fenced,
    Head,
    HeadEnded,
    HeadError,
    HeadFile,
    HeadForbidden,
    HeadLost,
    HeadUnreadable,
)
from outlast.bucket.layout import AttemptEnd, AttemptStart, Beat
from outlast.bucket.store import (
    StoreError,
    Throttled,
    Unavailable,
    patiently,
    put_new,
)
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
    Failed,
    Fetch,
    Hello,
    Message,
    Snapshot,
    Stop,
    Tick,
    Welcome,
)
from outlast.spec import changes
from outlast.supervisor import planner
from outlast.supervisor.code import CodeRefused, CodeUnavailable
from outlast.supervisor.door import (
    HELLO_SEC,
    Asked,
    Connected,
    Door,
    Hung,
    Said,
)
from outlast.supervisor.driver import wait_for_gpus
from outlast.supervisor.group import Membership, Say, wait_for_permission
from outlast.supervisor.initial import InitError, is_init, take_over
from outlast.supervisor.logs import Logs
from outlast.supervisor.metadata import Machine, Spec, machine_age_sec
from outlast.supervisor.notice import (
    Interrupted,
    Maintenance,
    Notices,
    Stopping,
)
from outlast.supervisor.process import Exited, Trainer
from outlast.supervisor.pulse import HeadSpoke, Pulse
from outlast.supervisor.staging import (
    PHASE,
    Over,
    Refused,
    Sign,
    Staged,
    Staging,
    Unanswered,
)
from outlast.supervisor.webhook import Webhook
from outlast.supervisor.worker import Finished, Job, Worker

LAST_WORDS_SEC = 5.0
"""After a trainer's process has gone, for what it said before to arrive."""
POLL_SEC = 0.5
SLEEP_SIGN_SEC = 10.0
"""Who sleeps for longer says in between that it does."""
END_RECORD_SEC = 10.0
"""The record of an end is tried for so long."""
TRAINERS_ERRORS = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
"""What reading a folder raises where the trainer made it badly, not the machine."""
LIMIT_MARGIN_SEC = 120.0
LIMIT_MARGIN_SHARE = 0.1
LIMIT_MARGIN_COMMITS = 3
MAINTENANCE_EVERY_SEC = 30.0
RECORDED_PACKAGES = ("outlast", "blake3", "google-cloud-storage", "numpy", "scikit-learn")


class Next(Enum):
    """What follows an attempt."""

    LEAVE = "leave"
    """The run has ended."""
    STOP = "stop"
    """The machine ends, or should, so that another takes its place."""
    AGAIN = "again"
    """Go through the table at boot."""
    WATCH = "watch"
    """Fenced: a higher term holds the run."""
    IDLE = "idle"
    """This machine may not leave its group, so it must not train: wait for the permission."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    next: Next
    reason: Reason
    message: str


@dataclass(frozen=True)
class Site:
    """Where attempts happen: all that differs between a VM and a folder."""

    machine: Machine
    group: Membership
    notices: Notices
    door: Door
    work: Path
    """A folder for snapshots, this supervisor's alone."""
    make_trainer: Callable[[int], Trainer]
    """The trainer of a term; asked once its code is ready."""
    log_of: Callable[[int], Path | None]
    """The log file of a term's trainer; None where nobody keeps one."""
    clock: "MachineClock"
    say: Say
    webhook: Webhook
    log_dir_of: Callable[[int], Path] | None = None
    """Where a term's trainer leaves files to be kept with the attempt; None for in ``work``."""
    run_id: str = ""
    """Name of the run, where the spec has none because it is in a folder."""
    restarts: bool = True
    """Whether an attempt that ended for a reason of the user's own ends the run; in a folder
    whoever starts the command again retries."""
    data: Cache = field(default_factory=lambda: Cache(user_cache()))
    """Where data of buckets is fetched to."""
    places: tuple[Path, ...] = ()
    """Other folders for snapshots, this supervisor's alone, in order, where ``work`` has no room
    for two."""
    sign: Callable[[], None] = lambda: None
    """Called for each sign of progress, for whoever asks this machine for its health."""
    prepare_code: Callable[[], None] = lambda: None
    """Makes ready what the trainer is started from; raises CodeRefused and CodeUnavailable."""
    machine_age_sec: Callable[[], float] = machine_age_sec
    """Since the machine was started."""


class MachineClock:
    """Time of this machine. While nothing is worth finishing, a sleep ends with SIGTERM."""

    def __init__(self, notices: Notices, sign: Callable[[], None] = lambda: None) -> None:
        """``sign`` is called while it sleeps: who waits on purpose is not stuck."""
        self._notices = notices
        self._sign = sign
        self.training = False
        """Whether an attempt would lose something, so that it watches for notices itself."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Raises Interrupted where SIGTERM came and nothing is worth finishing."""
        until = time.monotonic() + seconds
        sleep = time.sleep if self.training else self._notices.sleep
        while True:
            self._sign()
            sleep(max(0.0, min(until - time.monotonic(), SLEEP_SIGN_SEC)))
            if time.monotonic() >= until:
                return


@dataclass(frozen=True)
class _Leaving:
    """A stop that the trainer was told of."""

    reason: Reason
    message: str
    until: float
    """The machine ends then."""
    trainer_until: float
    """It is killed then."""
    snapshot: bool
    """Whether it was asked for one."""


class Attempt:
    """The holder of a term. Use once: ``run``."""

    def __init__(self, spec: Spec, head_file: HeadFile, site: Site) -> None:
        self.spec = spec
        self.head_file = head_file
        self.site = site
        self.term = head_file.term
        self._failures = head_file.head.failures
        self.step = 0
        self.total: int | None = None
        self.phase = "start"
        self.committed: int | None = None
        self.seconds_to_commit: float | None = None
        self.commit_sec: float | None = None
        """What the last commit took."""
        self._commit_sec_before: float | None = None
        self._step_sec = 0.0
        self._stepped_at: tuple[float, int] | None = None
        self._work = site.work / f"t{self.term:06d}"
        self._places = [place / f"t{self.term:06d}" for place in (site.work, *site.places)]
        self._place_said = self._places[0]
        self.rows_path = self._work / "rows.jsonl"
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        retention = Retention(keep_every_steps=spec.keep_every_steps or None)
        self._committer = Committer(head_file, retention=retention, say=site.say, sign=site.sign)
        self._bytes_left = 0
        self._restored: Restored | None = None
        self._trainer: Trainer | None = None
        self._worker: Worker | None = None
        self._pulse: Pulse | None = None
        self._logs: Logs | None = None
        log_dir_of = site.log_dir_of or (lambda term: self._work / "logs")
        self._log_dir = log_dir_of(self.term)
        self._started_at = time.monotonic()
        self._channel: Channel | None = None
        self._hung = False
        self._exited: Exited | None = None
        self._exited_at = 0.0
        self._error: Error | None = None
        self._refusal: Error | None = None
        """Data that could not be given; a trainer may do without."""
        self._complete: Complete | None = None
        self._leaving: _Leaving | None = None
        self._killed = False
        self._stalled = False
        self._sign_at = time.monotonic()
        self._jobs = 0
        self._snapshots = 0
        self._maintenance_at: float | None = None
        self._verdict_at: float | None = None
        self._judged = False
        self._ending = False
        self._outcome: Outcome | None = None
        desk = Desk(site.data, lambda: head_file.held(self.term).data or ())
        self._staging = Staging(desk, self._inbox.put, site.say)
        self._phase_before = self.phase
        self._kept_data: set[DataFingerprint] = set()

    def run(self) -> Outcome:
        """Restore, train, commit, end.

        Raises nothing that HEAD, the store, the disk or the trainer did.
        """
        try:
            try:
                outcome = self._prepare() or self._set_up() or self._train()
            finally:
                self._close_trainer()
        except Fenced as error:
            outcome = Outcome(Next.WATCH, Reason.FENCED, str(error))
        except HeadEnded as error:
            end = error.head.end
            reason = end.reason if end is not None else Reason.ENDED
            outcome = Outcome(Next.LEAVE, reason, str(error))
        except HeadError as error:
            outcome = Outcome(Next.AGAIN, _reason_of(error), str(error))
        except RestoreError as error:
            outcome = Outcome(Next.STOP, Reason.RESTORE_ERROR, str(error))
        except StoreError as error:
            silent = isinstance(error, Throttled | Unavailable)
            what = "the store does not answer" if silent else "the store refuses"
            outcome = self._host_error(f"{what}: {error}")
        except OSError as error:
            outcome = self._host_error(self._disk_message(error))
            if error.errno in places.FULL and self._trainer is None:
                # No VM of this machine type has the room either: ten of these end the run.
                outcome = Outcome(Next.STOP, Reason.RESTORE_ERROR, outcome.message)
        except Interrupted:
            outcome = Outcome(Next.STOP, self._notice_reason(), "stopped before it trained")
        self._end(outcome)
        return outcome

    def _unusable(self, message: str) -> Outcome:
        """What the run was told to begin with cannot be used; it would meet the same again."""
        if self.site.restarts:
            return self._finish_failed(Reason.USAGE, message)
        return Outcome(Next.STOP, Reason.USAGE, message)

    def _host_error(self, message: str) -> Outcome:
        """This machine cannot go on; another one may. One that is stopping has its own reason."""
        stopping = self.site.notices.stopping
        reason = Reason.HOST_ERROR if stopping is None else stopping.reason
        return Outcome(Next.STOP, reason, message)

    def _disk_message(self, error: OSError) -> str:
        # A store in a folder names that; of what is written here the system mostly names no file.
        named = Path(os.fsdecode(error.filename)) if error.filename else None
        message = str(error) if named else f"files in {self.site.work}: {error}"
        if error.errno not in places.FULL:
            return message
        sizes = []
        if self._committer.restore_bytes is not None:
            sizes.append(f"the checkpoint needs {self._committer.restore_bytes} bytes")
        folders = [named] if named and named.is_dir() else [self.site.work, *self.site.places]
        with contextlib.suppress(OSError):
            sizes.append(places.told(folders))
        return "; ".join([message, ", ".join(sizes), "make room or choose a larger machine"])

    # -- before the trainer -------------------------------------------------------------------

    def _prepare(self) -> Outcome | None:
        """Permission, restore, start record; an outcome where it must not train."""
        waits = self.spec.waits
        if not wait_for_permission(
            self.site.group,
            self.site.say,
            iam_sec=waits.iam,
            backoff_sec=waits.backoff,
            sleep=self.site.clock.sleep,
        ):
            return Outcome(
                Next.IDLE,
                Reason.REFUSED,
                "this VM may not leave its group, so it must not train: the group would start the "
                "finished run again and again",
            )
        if self.spec.gpus:
            limit_sec, sleep = waits.driver, self.site.clock.sleep
            wrong = wait_for_gpus(self.spec.gpus, self.site.say, limit_sec=limit_sec, sleep=sleep)
            if wrong:
                return Outcome(Next.STOP, Reason.DRIVER, wrong)
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
        self.rows_path.touch()
        restored = self._committer.restore(
            self._work / "restored", place=lambda size: places.choose(self._places, size)
        )
        if isinstance(restored, Fresh) and self.spec.init:
            try:
                restored = self._take_over()
            except InitError as error:
                return self._unusable(str(error))
        if isinstance(restored, Restored):
            self._restored = restored
            self.step = restored.step
        where = restored.checkpoint.path if isinstance(restored, Restored) else None
        self.site.say(
            f"term {self.term}: " + (f"resumes at step {self.step}" if where else "starts fresh")
        )
        spec = self.spec.to_json()
        before = self._content_before()
        if before is not None:
            spec["before"] = before
            changed = changes.said(changes.between(before, self.spec.content))
            self.site.say(f"term {self.term}: goes on with what was changed: {changed}")
        machine = self.site.machine
        start = AttemptStart(
            term=self.term,
            resume=self.spec.resume,
            place=self.spec.place,
            instance=machine.instance,
            instance_id=machine.instance_id,
            boot_id=machine.boot_id,
            zone=machine.zone,
            machine_type=machine.machine_type,
            image=machine.image,
            trainer=self.spec.trainer,
            spec=spec,
            versions=_versions(),
            step=self.step,
            restored=where,
            time=self.head_file.store.now(),
        )
        path = self.head_file.layout.attempt_start(self.term)
        write_record(self.head_file.store, path, start, clock=self.site.clock)
        return None

    def _content_before(self) -> dict[str, Any] | None:
        """The content with which the restored checkpoint was made, where this attempt has another;
        None where it is the same, or nobody can tell."""
        if self._restored is None or not self.spec.content:
            return None
        store, layout = self.head_file.store, self.head_file.layout
        with contextlib.suppress(StoreError):
            maker = layout.attempt_start(self._restored.checkpoint.term)
            record = read_record(store, maker, AttemptStart)
            before = record.spec.get("content") if record else None
            if before and before != self.spec.content:
                return before
        return None

    def _take_over(self) -> Restored:
        return take_over(
            self._committer,
            self.spec.init,
            self._work / "restored",
            place=lambda size: places.choose(self._places, size),
            clock=self.site.clock,
            forbidden_sec=self.spec.waits.iam,
        )

    def _set_up(self) -> Outcome | None:
        """The trainer's code and its packages; an outcome where they cannot be had."""
        self.phase = "setup"
        self._pulse = Pulse(self, self._inbox.put)
        try:
            self.site.prepare_code()
        except CodeRefused as error:
            return self._unusable(str(error))
        except CodeUnavailable as error:
            return Outcome(Next.STOP, Reason.SETUP_FAILED, str(error))
        self.phase = "start"
        return None

    # -- with the trainer ---------------------------------------------------------------------

    def _train(self) -> Outcome:
        self.site.clock.training = True
        self._started_at = self._sign_at = time.monotonic()
        post = self._inbox.put
        self._worker = Worker(post, self.site.say, forbidden_sec=self.spec.waits.iam)
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._logs = Logs(self._log_dir, self._put_log_file, self.site.say)
        self._commit_sec_before = self._read_commit_sec()
        self._trainer = self.site.make_trainer(self.term)
        self.site.door.listen(post)
        self._trainer.start(post)
        self.site.notices.listen(post)
        while self._outcome is None:
            try:
                event = self._inbox.get(timeout=self._poll_sec())
            except queue.Empty:
                self._tend(quiet=True)
            else:
                self._handle(event)
                self._tend(quiet=False)
        return self._outcome

    def _read_commit_sec(self) -> float | None:
        """What the last commit of an earlier attempt took, as its beat says; None if unknown."""
        for entry in reversed(self.head_file.held(self.term).lineage):
            with contextlib.suppress(StoreError):
                beat = read_record(
                    self.head_file.store, self.head_file.layout.beat(entry.term), Beat
                )
                if beat is not None and beat.commit_sec is not None:
                    return beat.commit_sec
        return None

    def _poll_sec(self) -> float:
        """Until the next moment that a timer may care about."""
        ends = [self._verdict_at, self._leaving.trainer_until if self._leaving else None]
        now = time.monotonic()
        waits = [end - now for end in ends if end is not None and end > now]
        return min([POLL_SEC, *waits])

    def _handle(self, event: Any) -> None:
        match event:
            case Connected(channel, hello):
                self._welcome(channel, hello)
            case Asked(channel, request):
                self._stage(request, channel)
            case Said(channel, message) if channel is self._channel:
                self._note_sign()
                self._hear(message)
            case Hung(channel) if channel is self._channel:
                self._hung = True
            case Exited():
                self._exited, self._exited_at = event, time.monotonic()
            case Stopping():
                self._stop(event.reason, "the machine stops", event.until)
            case Maintenance(kind):
                self.site.say(f"maintenance-event {kind}: committing now and oftener")
                self._maintenance_at = time.monotonic()
            case Finished():
                self._finished(event)
            case Sign():
                self._note_sign()
            case Staged(fingerprint):
                self._keep_data(fingerprint)
            case Refused(error):
                self._refusal = error
            case Unanswered(error):
                raise error
            case Over():
                self._staging.over()
                self._note_sign()
                if not self._staging.under_way and self.phase == PHASE:
                    self.phase = self._phase_before
            case HeadSpoke(error):
                # The end that the pulse saw may be this attempt's own, still being written.
                if not (self._ending and isinstance(error, HeadEnded)):
                    raise error

    def _note_sign(self) -> None:
        """The trainer gets on: it is not stuck, and neither is this machine."""
        self._sign_at = time.monotonic()
        self.site.sign()

    def _welcome(self, channel: Channel, hello: Hello) -> None:
        if self._channel is not None or self._gone:
            with contextlib.suppress(Closed):
                channel.send(Error("another trainer is connected already", "supervisor"))
            channel.close()
            return
        self._channel = channel
        self._note_sign()
        self.phase, self.total = "load", hello.total
        self._send(
            Welcome(
                restore=str(self._restored.path) if self._restored else None,
                step=self.step,
                work=str(self._work),
                rows=str(self.rows_path),
                term=self.term,
                checkpoint_every=self.spec.checkpoint_every,
                run_id=self.spec.run or self.site.run_id,
                run_url=f"{self.head_file.store.url}/{self.head_file.layout.root}",
                log_dir=str(self._log_dir),
                places=[str(place) for place in self._places[1:]],
                machine_age_sec=self.site.machine_age_sec(),
                commit_sec=self._commit_sec_before,
                init=self._restored is not None and is_init(self._restored.checkpoint),
            )
        )
        if self._leaving is not None:
            self._tell_stop(self._leaving)

    def _hear(self, message: Message) -> None:
        match message:
            case Tick(step, phase):
                self._note_step(step)
                self.step, self.phase = step, phase
                if self._restored is not None:  # loaded: its memory is the trainer's again
                    shutil.rmtree(self._restored.path, ignore_errors=True)
            case Snapshot():
                self._offer(message)
            case Complete():
                self.step = message.step
                self._complete = message
                self._send(Accepted(COMPLETE_ID))
                self._submit(Job("result", lambda: self._finish_done(message)))
            case Error():
                self._error = self._error or message
            case Fetch() if self._channel is not None:
                self._stage(message, self._channel)
            case _:
                name = type(message).__name__.lower()
                self._send(Error(f"{name}: is not for a trainer to say", "protocol"))

    def _stage(self, request: Fetch, channel: Channel) -> None:
        """Let the trainer have its data; what comes of it arrives as events."""

        def answer(message: Message) -> None:
            with contextlib.suppress(Closed):
                channel.send(message)

        if not self._staging.under_way:
            self._phase_before, self.phase = self.phase, PHASE
        self._staging.ask(request, answer)

    def _keep_data(self, fingerprint: DataFingerprint) -> None:
        """In HEAD before anything that is committed from now on."""
        if fingerprint not in self._kept_data:
            self._kept_data.add(fingerprint)
            keep = lambda: self.head_file.set_data(fingerprint, term=self.term)  # noqa: E731
            self._submit(Job("data", keep, beside=True))

    def _note_step(self, step: int) -> None:
        """How long a step takes: after a notice the trainer finishes the one it is in."""
        now, before = time.monotonic(), self._stepped_at
        if before is None or step < before[1]:
            self._stepped_at = (now, step)
        elif step > before[1]:
            self._step_sec = (now - before[0]) / (step - before[1])
            self._stepped_at = (now, step)

    def _offer(self, snapshot: Snapshot) -> None:
        """At most one snapshot in flight; while stopping the last one may wait for it."""
        room = 1 if self._leaving is None else 2
        if self._snapshots >= room or self._complete is not None:
            self._send(Busy(snapshot.id))
            return
        if self._leaving is not None and not self._fits(self._leaving):
            self._send(Busy(snapshot.id))
            return
        self.step = max(self.step, snapshot.step)
        place = Path(snapshot.path).parent
        if place not in self._places:
            known = " or ".join(map(str, self._places))
            self._send(Accepted(snapshot.id))
            self._send(Failed(snapshot.id, f"{snapshot.path}: must be a folder in {known}"))
            return
        if place != self._place_said:
            self._place_said = place
            self.site.say(f"snapshots are written to {place}")
        self._snapshots += 1
        self._send(Accepted(snapshot.id))
        commit = Job(
            "commit",
            lambda: self._commit(snapshot),
            snapshot,
            bytes_left=lambda: self._committer.bytes_left,
        )
        self._submit(commit)

    def _fits(self, leaving: _Leaving) -> bool:
        """Whether a commit begun now can finish before the machine ends; says so where not."""
        left_sec = leaving.until - time.monotonic()
        if not leaving.snapshot or self._plan(left_sec, written=True).plan.new:
            return leaving.snapshot
        self.site.say("a snapshot handed over now could not be committed in time: not begun")
        self._leaving = replace(leaving, snapshot=False)
        self._tell_stop(self._leaving)
        return False

    def _finished(self, done: Finished) -> None:
        self._jobs -= 1
        self.site.sign()
        snapshot, error = done.job.snapshot, done.error
        if snapshot is not None:
            self._snapshots -= 1
        if isinstance(error, HeadError | StoreError | OSError) and not isinstance(
            error, TRAINERS_ERRORS
        ):
            raise error
        if snapshot is not None:
            if error is None:
                self.commit_sec = done.value
                self.committed = snapshot.step
                if self.seconds_to_commit is None:
                    self.seconds_to_commit = round(time.monotonic() - self._started_at, 3)
                self._send(Committed(snapshot.id, snapshot.step))
                if not self._ending:  # the end cleans up too
                    self._submit(Job("clean", self._committer.clean, beside=True))
            else:
                self.site.say(f"snapshot of step {snapshot.step}: {error}")
                self._send(Failed(snapshot.id, str(error)))
        elif isinstance(error, CommitError | OSError):
            # Only a result can be so: its files are the trainer's.
            self._complete, self._ending = None, False
            self._error = Error(f"the result could not be kept: {error}", "trainer")
        elif error is not None:
            raise error
        elif not done.job.beside:
            self._outcome = done.value

    def _tend(self, *, quiet: bool) -> None:
        """All that depends on time. ``quiet``: nothing was waiting to be handled."""
        if self._outcome is not None:
            return
        now = time.monotonic()
        bytes_left = self._committer.bytes_left
        if bytes_left != self._bytes_left:  # an upload gets on, whatever its trainer does
            self._bytes_left = bytes_left
            self.site.sign()
        if not self._gone and self._complete is None:
            if self._channel is None and self._never_came(now):
                self._kill("was not there")
            elif self._leaving is not None:
                if now >= self._leaving.trainer_until:
                    self._kill("did not stop in time")
            elif quiet and now - self._sign_at >= self.spec.waits.stall:
                self._stall()
            elif (left_sec := self._limit_in_sec()) <= 0:
                self._stop(Reason.LIMIT, "the run's time is up", now + self._limit_margin_sec())
                self.site.say(f"deadline in {self._limit_margin_sec() + left_sec:.0f} s: stopping")
            elif self._maintenance_at is not None and now >= self._maintenance_at:
                self._ask_for_checkpoint(now)
        if self._gone and self._jobs == 0 and self._complete is None and not self._judged:
            self._judge(now)

    def _ask_for_checkpoint(self, now: float) -> None:
        """Once the trainer is there and nothing is in flight; then again after a while."""
        if self._channel is not None and self._snapshots == 0:
            self._send(Checkpoint("maintenance"))
            self._maintenance_at = now + max(MAINTENANCE_EVERY_SEC, 3 * (self.commit_sec or 0.0))

    def _never_came(self, now: float) -> bool:
        """Whether a trainer that only had to connect has not done so: it died before."""
        assert self._trainer is not None
        connects = self._trainer.ends_with_connection
        return connects and now - self._started_at >= HELLO_SEC

    @property
    def _gone(self) -> bool:
        """Whether the trainer has ended and all that it said was heard."""
        assert self._trainer is not None
        if self._trainer.ends_with_connection:
            return self._hung or self._exited is not None
        if self._exited is None:
            return False
        silent = self._channel is None or self._hung
        return silent or time.monotonic() - self._exited_at >= LAST_WORDS_SEC

    # -- stopping it --------------------------------------------------------------------------

    def _stop(self, reason: Reason, message: str, until: float) -> None:
        """Tell the trainer to hand over its state; the upload needs the rest of the time."""
        now = time.monotonic()
        found = self._plan(until - now)
        wanted = found.plan.new
        # Where no snapshot is wanted it has all of the time to end by itself.
        trainer_until = now + found.trainer_sec if wanted else until
        before = self._leaving
        if before is not None:
            trainer_until = min(trainer_until, before.trainer_until)
        self._leaving = leaving = _Leaving(reason, message, until, trainer_until, wanted)
        if (
            before is not None
            and trainer_until == before.trainer_until
            and wanted == before.snapshot
        ):
            return
        self.site.say(
            f"{reason}: {message}; plan: {found.plan.value}, "
            f"the trainer has {max(0.0, trainer_until - now):.1f} s"
        )
        if self._complete is not None:
            return
        if self._channel is None:
            self._kill("had not begun")  # nothing to hand over
        else:
            self._tell_stop(leaving)

    def _tell_stop(self, leaving: _Leaving) -> None:
        left_sec = max(0.0, leaving.trainer_until - time.monotonic())
        self._send(Stop(left_sec, leaving.snapshot))

    def _plan(self, left_sec: float, *, written: bool = False) -> planner.Decision:
        """What is worth doing with the seconds left, by what was measured so far. ``written``: the
        trainer has its snapshot ready."""
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
                in_flight_bytes=committer.bytes_left if self._snapshots else None,
                new_bytes=new_bytes,
                bytes_per_sec=rate,
                overhead_sec=overhead_sec,
                write_sec=0.0 if written else self._step_sec,
            )
        )

    def _stall(self) -> None:
        self._stalled = True
        self.site.say(
            f"no step and no tick for {self.spec.waits.stall:.0f} s at step {self.step}: "
            "the trainer is stuck; its stack is in its log"
        )
        assert self._trainer is not None
        self._trainer.dump_stacks()
        self._kill("was stuck")

    def _kill(self, why: str) -> None:
        assert self._trainer is not None
        if self._exited is None and not self._killed:
            self._killed = True
            self.site.say(f"trainer killed: it {why}")
            self._trainer.kill()
            if self._trainer.ends_with_connection and self._channel is not None:
                self._channel.close()

    def _limit_margin_sec(self) -> float:
        head = self.head_file.held(self.term)
        whole_sec = (head.deadline - head.started).total_seconds()
        margin = min(LIMIT_MARGIN_SEC, whole_sec * LIMIT_MARGIN_SHARE)
        return max(margin, LIMIT_MARGIN_COMMITS * (self.commit_sec or 0.0))

    def _limit_in_sec(self) -> float:
        left = self.head_file.held(self.term).deadline - self.head_file.store.now()
        return left.total_seconds() - self._limit_margin_sec()

    # -- the verdict --------------------------------------------------------------------------

    def _judge(self, now: float) -> None:
        """The trainer has gone without completing and nothing is in flight: why, and what next."""
        if self._leaving is not None:
            self._judged = True
            reason = self._leaving.reason
            if reason is Reason.LIMIT:
                self._submit_failed(Reason.LIMIT, self._leaving.message)
            else:
                self._outcome = Outcome(Next.STOP, self._notice_reason(), self._leaving.message)
            return
        assert self._trainer is not None
        reason, message = self._cause()
        if not self._trainer.restarts:
            # Whoever starts the command again retries: the run stays open.
            self._outcome = Outcome(Next.STOP, reason, message)
            return
        if self._verdict_at is None:
            # A machine that dies takes its trainer down first: its end is not the user's.
            self._verdict_at = now + self.spec.waits.verdict
            self.phase = "verdict"
            self.site.say(f"{message}; holding the verdict for {self.spec.waits.verdict:.0f} s")
        if now < self._verdict_at:
            return
        stopping = self.site.notices.look()
        if stopping is not None:
            self._stop(stopping.reason, "the machine stops", stopping.until)
            return
        self._judged = True
        if reason in FINAL_USER_REASONS:
            self._submit_failed(reason, message)
        elif reason in RETRIED_USER_REASONS:
            self._submit(Job("failure", lambda: self._count_failure(reason, message)))
        else:
            self._outcome = Outcome(Next.STOP, reason, message)

    def _cause(self) -> tuple[Reason, str]:
        """Why the trainer ended, on a machine that lives on."""
        code = self._exited.code if self._exited is not None else None
        found = self._error
        if self._refusal is not None and (
            # Asked before it connected, or without a word, and died of it.
            (found is None and (self._channel is None or code == exits.USAGE))
            or (found is not None and self._refusal.message in found.message)
        ):
            found = self._refusal
        said = found.message if found is not None else ""
        kind = found.kind if found is not None else ""
        if self._stalled:
            return Reason.STALLED, f"no step and no tick for {self.spec.waits.stall:.0f} s"
        if kind == "does-not-fit":
            return Reason.DOES_NOT_FIT, said
        if kind == "data-changed":
            return Reason.DATA_CHANGED, said
        if kind == "restore":
            return Reason.RESTORE_ERROR, said
        if kind == "usage":
            return Reason.USAGE, said
        if code is None:
            return (Reason.USER_FAILED, said) if said else (Reason.INTERRUPTED, self._goes_on())
        reason = exits.reason_of_exit(code)
        if code < 0:
            message = f"the trainer was killed by signal {-code}"
        elif code == exits.DONE:
            message = "the trainer exited with 0 and had not declared completion"
        elif code == exits.INTERRUPTED and self._trainer is not None and self._trainer.restarts:
            # Only an exit after a stop is the machine's; this one would come again and again.
            reason = Reason.USER_FAILED
            message = f"the trainer exited with {code}, and nobody had asked it to stop"
        else:
            message = f"the trainer exited with {code}"
        return reason, f"{message}: {said}" if said else message

    def _notice_reason(self) -> Reason:
        """What the machine says of its end; SIGTERM alone does not tell."""
        stopping = self.site.notices.look()
        return stopping.reason if stopping is not None else Reason.INTERRUPTED

    # -- jobs of the committing thread ----------------------------------------------------------

    def _submit(self, job: Job) -> None:
        assert self._worker is not None
        self._jobs += 1
        if not job.beside:
            self._ending = job.snapshot is None
        self._worker.submit(job)

    def _commit(self, snapshot: Snapshot) -> float:
        """Seconds that the commit took; the folder is gone then."""
        begun = time.monotonic()
        folder = Path(snapshot.path)
        self._committer.commit(
            folder,
            step=snapshot.step,
            tags=snapshot.tags,
            rows=self._rows_until(snapshot.rows_offset),
            clean=False,
        )
        shutil.rmtree(folder, ignore_errors=True)
        return time.monotonic() - begun

    def _finish_done(self, complete: Complete) -> Outcome:
        self._committer.flush_rows(self._rows_until(complete.rows_offset))
        self._committer.finish(
            State.DONE,
            Reason.DONE,
            exit=exits.DONE,
            step=complete.step,
            result=Path(complete.result),
        )
        return Outcome(Next.LEAVE, Reason.DONE, f"done at step {complete.step}")

    def _submit_failed(self, reason: Reason, message: str) -> None:
        self._submit(Job("end", lambda: self._finish_failed(reason, message)))

    def _finish_failed(self, reason: Reason, message: str) -> Outcome:
        self._committer.finish(State.FAILED, reason, exit=self._exit_code)
        return Outcome(Next.LEAVE, reason, message)

    def _count_failure(self, reason: Reason, message: str) -> Outcome:
        """Counted before the retry, so that a crash in between grants none too many."""
        granted = self.head_file.count_failure(
            term=self.term, before=self._failures, retries=self.spec.retries_failures
        )
        if granted:
            return Outcome(Next.AGAIN, reason, message)
        return self._finish_failed(reason, message)

    def _rows_until(self, offset: int) -> bytes:
        begin = self._committer.rows_flushed
        if offset < begin:
            raise CommitError(f"rows offset {offset}: {begin} bytes are committed already")
        with self.rows_path.open("rb") as rows:
            rows.seek(begin)
            data = rows.read(offset - begin)
        if len(data) != offset - begin:
            raise CommitError(f"rows offset {offset}: {self.rows_path} has only {len(data)} more")
        return data

    # -- the end --------------------------------------------------------------------------------

    @property
    def _exit_code(self) -> int | None:
        code = self._exited.code if self._exited is not None else None
        return code if code is None or code >= 0 else 128 - code

    def _goes_on(self) -> str:
        """What whoever starts the command again begins with: the last line that they see."""
        newest = self.committed
        if newest is None and self._restored is not None:
            newest = self._restored.step
        if newest is None:
            return "the same command begins anew"
        return f"the same command goes on from step {newest}"

    def _send(self, message: Message) -> None:
        if self._channel is not None:
            with contextlib.suppress(Closed):
                self._channel.send(message)

    def _close_trainer(self) -> None:
        self.site.notices.listen(None)
        self.site.door.listen(None)
        if self._trainer is not None and self._exited is None:
            self._trainer.kill()
        if self._channel is not None:
            self._channel.close()
        if self._worker is not None:
            self._worker.close()

    def _put_log_file(self, name: str, data: bytes) -> None:
        # Only this attempt names it: a repeated write is the same file or a longer one.
        self.head_file.store.put(self.head_file.layout.log_file(self.term, name), data)

    def _end(self, outcome: Outcome) -> None:
        """The record of the end. Its own name, so that it harms nobody even when fenced."""
        self.site.clock.training = True  # worth finishing, too: SIGTERM ends no sleep
        reason = "" if outcome.message.startswith(outcome.reason) else f"{outcome.reason}: "
        self.site.say(f"term {self.term}: {reason}{outcome.message}")
        if self._pulse is not None:
            self._pulse.close(last_words=outcome.next is not Next.WATCH)
        if self._logs is not None:
            self._logs.close(last_words=outcome.next is not Next.WATCH)
        state = State.OPEN
        if outcome.next is Next.LEAVE:
            with contextlib.suppress(HeadError, StoreError):
                state = self.head_file.read().head.state
        store, layout = self.head_file.store, self.head_file.layout
        end = AttemptEnd(
            term=self.term,
            reason=outcome.reason,
            state=state,
            exit=self._exit_code,
            step=self.step,
            committed=self.committed,
            message=outcome.message,
            stderr=self._trainer.last_lines() if self._trainer is not None else (),
            staged_sec=round(self._staging.seconds, 3),
            time=datetime.now(UTC),
        )
        try:
            limit_sec = self._end_record_sec()
            now = patiently(store.now, clock=self.site.clock, limit_seconds=limit_sec)
            put_new(
                store,
                layout.attempt_end(self.term),
                replace(end, time=now).to_json(),
                clock=self.site.clock,
                limit_seconds=limit_sec,
            )
        except (StoreError, OSError) as error:
            self.site.say(f"the end of term {self.term} was not recorded: {error}")
        self.site.webhook.post(
            {
                "run": layout.run,
                "owner": self.spec.owner,
                "term": self.term,
                "reason": outcome.reason.value,
                "state": state.value,
                "step": self.step,
                "message": outcome.message,
            }
        )
        self.site.clock.training = False
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)

    def _end_record_sec(self) -> float:
        """What a stopping machine has left, at most."""
        stopping = self.site.notices.stopping
        if stopping is None:
            return END_RECORD_SEC
        return max(0.0, min(END_RECORD_SEC, stopping.until - time.monotonic()))


def _reason_of(error: HeadError) -> Reason:
    if isinstance(error, HeadLost):
        return Reason.LOST
    if isinstance(error, HeadUnreadable):
        return Reason.UNREADABLE
    if isinstance(error, HeadForbidden):
        return Reason.FORBIDDEN
    return Reason.INTERRUPTED


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in RECORDED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def ended_head(head: Head) -> str:
    """One sentence for people about a run that has ended."""
    end = head.end
    if end is None:
        return "the run is open"
    if head.state is State.DONE:
        return f"this run is done, at step {end.step}"
    return f"this run has {head.state}: {end.reason} at step {end.step}"
