"""One attempt: a term that this machine holds, from the restore to the record of its end.

One thread decides. It reads an inbox that all others write to: the trainer's connection, the
trainer's process, the machine's notices, the one thread that commits, and the pulse, which beats
and looks at HEAD. So no two of these are ever handled at once, and a commit outlives its trainer.

A retry is a new term, taken through the table at boot like any other: each attempt has one trainer,
one end, and rows that no other attempt's overlap.
"""

import contextlib
import errno
import importlib.metadata
import json
import platform
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from outlast import exits
from outlast.exits import FINAL_USER_REASONS, RETRIED_USER_REASONS, Reason, State
from outlast.layout import AttemptEnd, AttemptStart, Beat
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
    Hello,
    Listener,
    Message,
    ProtocolError,
    Snapshot,
    Stop,
    Tick,
    Welcome,
    greet,
)
from outlast.run.commit import (
    CommitError,
    Committer,
    Restored,
    RestoreError,
    Retention,
    write_record,
)
from outlast.run.group import Membership, wait_for_permission
from outlast.run.head import (
    Fenced,
    Head,
    HeadEnded,
    HeadError,
    HeadFile,
    HeadForbidden,
    HeadLost,
    HeadUnreadable,
)
from outlast.run.metadata import Machine, Spec
from outlast.run.notice import Interrupted, Maintenance, Notices, Stopping
from outlast.run.process import Exited, Trainer
from outlast.run.store import (
    Forbidden,
    StoreError,
    Throttled,
    Unavailable,
    jittered,
    patiently,
    put_new,
)

HELLO_SEC = 60.0
LAST_WORDS_SEC = 5.0
"""After a trainer's process has gone, for what it said before to arrive."""
POLL_SEC = 0.5
RETRY_SEC = 2.0
RETRY_MAX_SEC = 30.0
RETRY_LIMIT_SEC = 900.0
"""A store that does not answer for so long ends the attempt: another machine may reach it."""
END_RECORD_SEC = 10.0
"""The record of an end is tried for so long."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
TRAINERS_ERRORS = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
"""What reading a folder raises where the trainer made it badly, not the machine."""
RESERVE_MIN_SEC = 1.0
LIMIT_MARGIN_SEC = 120.0
LIMIT_MARGIN_SHARE = 0.1
LIMIT_MARGIN_COMMITS = 3
MAINTENANCE_EVERY_SEC = 30.0
LOG_PIECE_SEC = 60.0
LOG_PIECE_BYTES = 1 << 20
LAST_ROWS = 5
LAST_ROWS_BYTES = 16_384
RECORDED_PACKAGES = ("outlast", "blake3", "google-cloud-storage", "numpy", "scikit-learn")

Say = Callable[[str], None]


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
    door: "Door"
    work: Path
    """A folder for snapshots, this supervisor's alone."""
    make_trainer: Callable[[int], Trainer]
    """The trainer of a term."""
    log_of: Callable[[int], Path | None]
    """The log file of a term's trainer; None where nobody keeps one."""
    clock: "MachineClock"
    say: Say
    webhook: "Webhook"


class MachineClock:
    """Time of this machine. While nothing is worth finishing, a sleep ends with SIGTERM."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self.training = False
        """Whether an attempt would lose something, so that it watches for notices itself."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Raises Interrupted where SIGTERM came and nothing is worth finishing."""
        if self.training:
            time.sleep(seconds)
        else:
            self._notices.sleep(seconds)


class Webhook:
    """Tells an address of the user's choice about ends; never waited for, never retried."""

    def __init__(self, url: str, say: Say) -> None:
        self._url = url
        self._say = say
        self._thread: threading.Thread | None = None

    def post(self, body: dict[str, Any]) -> None:
        """Send in the background; does nothing without an address."""
        if self._url:
            self._thread = threading.Thread(target=self._send, args=(body,), daemon=True)
            self._thread.start()

    def close(self, timeout_sec: float = 2.0) -> None:
        """Give the last message a moment."""
        if self._thread is not None:
            self._thread.join(timeout_sec)

    def _send(self, body: dict[str, Any]) -> None:
        import urllib.request

        try:
            request = urllib.request.Request(
                self._url,
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                method="POST",
            )
            urllib.request.urlopen(request, timeout=10.0).close()
        except (OSError, ValueError) as error:
            self._say(f"webhook: {error}")


# What arrives in the inbox, beside Exited, Stopping and Maintenance.


@dataclass(frozen=True)
class _Connected:
    channel: Channel
    hello: Hello


@dataclass(frozen=True)
class _Said:
    channel: Channel
    message: Message


@dataclass(frozen=True)
class _Hung:
    channel: Channel


@dataclass(frozen=True)
class _Finished:
    """A job of the committing thread is over."""

    job: "_Job"
    value: Any
    error: Exception | None


@dataclass(frozen=True)
class _HeadSpoke:
    """HEAD says that this attempt is over."""

    error: HeadError


@dataclass(frozen=True)
class _Job:
    name: str
    run: Callable[[], Any]
    snapshot: Snapshot | None = None


Post = Callable[[Any], None]


class Door:
    """Accepts trainers, for as long as the supervisor lives, for the attempt that listens."""

    def __init__(self, socket_path: Path) -> None:
        socket_path.parent.mkdir(parents=True, exist_ok=True)
        self.socket_path = socket_path
        self._listener = Listener(socket_path)
        self._post: Post | None = None
        self._open = threading.Event()
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def listen(self, post: Post | None) -> None:
        """Hand connections and what they say to ``post``; None lets them wait outside."""
        self._post = post
        if post is None:
            self._open.clear()
        else:
            self._open.set()

    def turn_away(self, answer: Message, *, timeout_sec: float = HELLO_SEC) -> None:
        """Answer the next trainer's hello with ``answer`` and wait until it has gone."""
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.listen(inbox.put)
        end = time.monotonic() + timeout_sec
        with contextlib.suppress(queue.Empty, Closed):
            while True:
                match inbox.get(timeout=max(0.0, end - time.monotonic())):
                    case _Connected(channel):
                        channel.send(answer)
                    case _Hung():
                        return

    def close(self) -> None:
        self._listener.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                channel = self._listener.accept()
            except Closed:
                return
            if channel is not None:
                threading.Thread(target=self._read, args=(channel,), daemon=True).start()

    def _read(self, channel: Channel) -> None:
        self._open.wait()
        post = self._post
        if post is None:
            channel.close()
            return
        try:
            hello = greet(channel, timeout_sec=HELLO_SEC)
            if hello is None:
                return
            post(_Connected(channel, hello))
            for message in channel:
                post(_Said(channel, message))
        except ProtocolError as error:
            with contextlib.suppress(Closed):
                channel.send(Error(str(error), "protocol"))
        finally:
            channel.close()
            post(_Hung(channel))


class _Worker:
    """The one thread that commits: jobs in order, each until it is done or pointless."""

    def __init__(self, post: Post, say: Say, *, forbidden_sec: float) -> None:
        """A 401 or 403 is retried for ``forbidden_sec``: permissions may be spreading."""
        self._post = post
        self._say = say
        self._forbidden_sec = forbidden_sec
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        threading.Thread(target=self._work, name="commit", daemon=True).start()

    def submit(self, job: _Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """No retry and no job any more; what is being done now is left alone."""
        self._closed.set()
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closed.is_set():
            value, error = self._do(job)
            self._post(_Finished(job, value, error))

    def _do(self, job: _Job) -> tuple[Any, Exception | None]:
        wait_sec = RETRY_SEC
        failing_since: float | None = None
        while True:
            try:
                return job.run(), None
            except Exception as error:
                # The store's trouble, not the snapshot's: the trainer hears "busy" meanwhile.
                now = time.monotonic()
                failing_since = now if failing_since is None else failing_since
                if now - failing_since >= self._retried_sec(error):
                    return None, error
                self._say(f"{job.name}: {error}; trying again")
                if self._closed.wait(jittered(wait_sec)):
                    return None, error
                wait_sec = min(wait_sec * 2, RETRY_MAX_SEC)

    def _retried_sec(self, error: Exception) -> float:
        """For how long it may pass by itself."""
        if isinstance(error, Throttled | Unavailable):
            return RETRY_LIMIT_SEC
        if isinstance(error, Forbidden | HeadForbidden):
            return self._forbidden_sec
        return 0.0


class _Pulse:
    """Beats, pieces of log, and a look at HEAD with each beat."""

    def __init__(self, attempt: "Attempt", post: Post) -> None:
        self._attempt = attempt
        self._post = post
        self._closed = threading.Event()
        self._log_path = attempt.site.log_of(attempt.term)
        self._log_offset = 0
        self._log_index = 0
        self._log_at = time.monotonic()
        self._before = (time.monotonic(), attempt.step)
        self._beat_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def close(self, *, last_words: bool) -> None:
        """End the beats; with ``last_words`` after one last beat and the rest of the log."""
        self._closed.set()
        self._thread.join(LAST_WORDS_SEC)
        if last_words and not self._thread.is_alive():
            with contextlib.suppress(StoreError, OSError):
                if self._beat_at is None or time.monotonic() - self._beat_at >= 1.0:
                    self._beat()
                self._put_log()

    def _run(self) -> None:
        while True:
            try:
                # HEAD first: a fenced attempt does not beat any more.
                self._attempt.head_file.check(term=self._attempt.term)
                self._beat()
                if self._log_due():
                    self._put_log()
            except (HeadForbidden, StoreError, OSError) as error:
                self._attempt.site.say(f"beat: {error}")
            except HeadError as error:
                self._post(_HeadSpoke(error))
                return
            if self._closed.wait(self._attempt.spec.waits.beat):
                return

    def _beat(self) -> None:
        attempt = self._attempt
        now, step = time.monotonic(), attempt.step
        before, step_before = self._before
        self._before = (now, step)
        rate = (step - step_before) / (now - before) if step > step_before else None
        beat = Beat(
            term=attempt.term,
            step=step,
            total=attempt.total,
            phase=attempt.phase,
            rate=None if rate is None else round(rate, 3),
            committed=attempt.committed,
            seconds_to_commit=attempt.seconds_to_commit,
            rows=_last_rows(attempt.rows_path),
            time=attempt.head_file.store.now(),
        )
        self._beat_at = now
        attempt.head_file.store.put(attempt.head_file.layout.beat(attempt.term), beat.to_json())

    def _log_due(self) -> bool:
        if self._log_path is None or not self._log_path.exists():
            return False
        size = self._log_path.stat().st_size - self._log_offset
        return size >= LOG_PIECE_BYTES or (
            size > 0 and time.monotonic() - self._log_at >= LOG_PIECE_SEC
        )

    def _put_log(self) -> None:
        if self._log_path is None or not self._log_path.exists():
            return
        with self._log_path.open("rb") as log:
            while True:
                log.seek(self._log_offset)
                data = log.read(8 * LOG_PIECE_BYTES)
                if not data:
                    return
                path = self._attempt.head_file.layout.log_piece(self._attempt.term, self._log_index)
                # Only this attempt names it: a repeated piece is the same piece or a longer one.
                self._attempt.head_file.store.put(path, data)
                self._log_offset += len(data)
                self._log_index += 1
                self._log_at = time.monotonic()


@dataclass(frozen=True)
class _Leaving:
    """A stop that the trainer was told of."""

    reason: Reason
    message: str
    trainer_until: float
    """It is killed then."""


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
        self._work = site.work / f"t{self.term:06d}"
        self.rows_path = self._work / "rows.jsonl"
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        retention = Retention(keep_every_steps=spec.keep_every_steps or None)
        self._committer = Committer(head_file, retention=retention, say=site.say)
        self._restored: Restored | None = None
        self._trainer: Trainer | None = None
        self._worker: _Worker | None = None
        self._pulse: _Pulse | None = None
        self._started_at = time.monotonic()
        self._channel: Channel | None = None
        self._hung = False
        self._exited: Exited | None = None
        self._exited_at = 0.0
        self._error: Error | None = None
        self._complete: Complete | None = None
        self._leaving: _Leaving | None = None
        self._killed = False
        self._stalled = False
        self._sign_at = time.monotonic()
        self._jobs = 0
        self._snapshots = 0
        self._commit_sec = 0.0
        self._maintenance_at: float | None = None
        self._verdict_at: float | None = None
        self._judged = False
        self._ending = False
        self._outcome: Outcome | None = None

    def run(self) -> Outcome:
        """Restore, train, commit, end.

        Raises nothing that HEAD, the store, the disk or the trainer did.
        """
        try:
            try:
                outcome = self._prepare() or self._train()
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
            if error.errno in FULL and self._trainer is None:
                # No VM of this machine type has the room either: ten of these end the run.
                outcome = Outcome(Next.STOP, Reason.RESTORE_ERROR, outcome.message)
        except Interrupted:
            outcome = Outcome(Next.STOP, self._notice_reason(), "stopped before it trained")
        self._end(outcome)
        return outcome

    def _host_error(self, message: str) -> Outcome:
        """This machine cannot go on; another one may. One that is stopping has its own reason."""
        stopping = self.site.notices.stopping
        reason = Reason.HOST_ERROR if stopping is None else stopping.reason
        return Outcome(Next.STOP, reason, message)

    def _disk_message(self, error: OSError) -> str:
        message = f"files in {self.site.work}: {error}"
        if error.errno not in FULL:
            return message
        sizes = []
        if self._committer.restore_bytes is not None:
            sizes.append(f"the checkpoint needs {self._committer.restore_bytes} bytes")
        with contextlib.suppress(OSError):
            sizes.append(f"{self.site.work} has {shutil.disk_usage(self.site.work).free} free")
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
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        self.rows_path.touch()
        restored = self._committer.restore(self._work / "restored")
        if isinstance(restored, Restored):
            self._restored = restored
            self.step = restored.step
        where = restored.checkpoint.path if isinstance(restored, Restored) else None
        self.site.say(
            f"term {self.term}: " + (f"resumes at step {self.step}" if where else "starts fresh")
        )
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
            spec=self.spec.to_json(),
            versions=_versions(),
            step=self.step,
            restored=where,
            time=self.head_file.store.now(),
        )
        path = self.head_file.layout.attempt_start(self.term)
        write_record(self.head_file.store, path, start, clock=self.site.clock)
        return None

    # -- with the trainer ---------------------------------------------------------------------

    def _train(self) -> Outcome:
        self.site.clock.training = True
        self._started_at = self._sign_at = time.monotonic()
        post = self._inbox.put
        self._worker = _Worker(post, self.site.say, forbidden_sec=self.spec.waits.iam)
        self._pulse = _Pulse(self, post)
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

    def _poll_sec(self) -> float:
        """Until the next moment that a timer may care about."""
        ends = [self._verdict_at, self._leaving.trainer_until if self._leaving else None]
        now = time.monotonic()
        waits = [end - now for end in ends if end is not None and end > now]
        return min([POLL_SEC, *waits])

    def _handle(self, event: Any) -> None:
        match event:
            case _Connected(channel, hello):
                self._welcome(channel, hello)
            case _Said(channel, message) if channel is self._channel:
                self._sign_at = time.monotonic()
                self._hear(message)
            case _Hung(channel) if channel is self._channel:
                self._hung = True
            case Exited():
                self._exited, self._exited_at = event, time.monotonic()
            case Stopping():
                self._stop(event.reason, "the machine stops", event.until)
            case Maintenance(kind):
                self.site.say(f"maintenance-event {kind}: committing now and oftener")
                self._maintenance_at = time.monotonic()
            case _Finished():
                self._finished(event)
            case _HeadSpoke(error):
                # The end that the pulse saw may be this attempt's own, still being written.
                if not (self._ending and isinstance(error, HeadEnded)):
                    raise error

    def _welcome(self, channel: Channel, hello: Hello) -> None:
        if self._channel is not None or self._gone:
            with contextlib.suppress(Closed):
                channel.send(Error("another trainer is connected already", "supervisor"))
            channel.close()
            return
        self._channel = channel
        self._sign_at = time.monotonic()
        self.phase, self.total = "load", hello.total
        self._send(
            Welcome(
                restore=str(self._restored.path) if self._restored else None,
                step=self.step,
                work=str(self._work),
                rows=str(self.rows_path),
                term=self.term,
                checkpoint_every=self.spec.checkpoint_every,
            )
        )
        if self._leaving is not None:
            self._send(Stop(max(0.0, self._leaving.trainer_until - time.monotonic())))

    def _hear(self, message: Message) -> None:
        match message:
            case Tick(step, phase):
                self.step, self.phase = step, phase
                if self._restored is not None:  # loaded: its memory is the trainer's again
                    shutil.rmtree(self._restored.path, ignore_errors=True)
            case Snapshot():
                self._offer(message)
            case Complete():
                self.step = message.step
                self._complete = message
                self._send(Accepted(COMPLETE_ID))
                self._submit(_Job("result", lambda: self._finish_done(message)))
            case Error():
                self._error = self._error or message
            case _:
                name = type(message).__name__.lower()
                self._send(Error(f"{name}: is not for a trainer to say", "protocol"))

    def _offer(self, snapshot: Snapshot) -> None:
        """At most one snapshot in flight; while stopping the last one may wait for it."""
        room = 1 if self._leaving is None else 2
        if self._snapshots >= room or self._complete is not None:
            self._send(Busy(snapshot.id))
            return
        self.step = max(self.step, snapshot.step)
        if Path(snapshot.path).parent != self._work:
            self._send(Accepted(snapshot.id))
            self._send(Failed(snapshot.id, f"{snapshot.path}: must be a folder in {self._work}"))
            return
        self._snapshots += 1
        self._send(Accepted(snapshot.id))
        self._submit(_Job("commit", lambda: self._commit(snapshot), snapshot))

    def _finished(self, done: _Finished) -> None:
        self._jobs -= 1
        snapshot, error = done.job.snapshot, done.error
        if snapshot is not None:
            self._snapshots -= 1
        if isinstance(error, HeadError | StoreError | OSError) and not isinstance(
            error, TRAINERS_ERRORS
        ):
            raise error
        if snapshot is not None:
            if error is None:
                self._commit_sec = done.value
                self.committed = snapshot.step
                if self.seconds_to_commit is None:
                    self.seconds_to_commit = round(time.monotonic() - self._started_at, 3)
                self._send(Committed(snapshot.id, snapshot.step))
            else:
                self.site.say(f"snapshot of step {snapshot.step}: {error}")
                self._send(Failed(snapshot.id, str(error)))
        elif isinstance(error, CommitError | OSError):
            # Only a result can be so: its files are the trainer's.
            self._complete, self._ending = None, False
            self._error = Error(f"the result could not be kept: {error}", "trainer")
        elif error is not None:
            raise error
        else:
            self._outcome = done.value

    def _tend(self, *, quiet: bool) -> None:
        """All that depends on time. ``quiet``: nothing was waiting to be handled."""
        if self._outcome is not None:
            return
        now = time.monotonic()
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
            self._maintenance_at = now + max(MAINTENANCE_EVERY_SEC, 3 * self._commit_sec)

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
        budget_sec = max(0.0, until - time.monotonic())
        reserve_sec = min(budget_sec / 2, max(RESERVE_MIN_SEC, 2 * self._commit_sec))
        trainer_until = until - reserve_sec
        before = self._leaving
        if before is not None:
            trainer_until = min(trainer_until, before.trainer_until)
        self._leaving = _Leaving(reason, message, trainer_until)
        if before is not None and trainer_until == before.trainer_until:
            return
        self.site.say(f"{reason}: {message}; the trainer has {budget_sec - reserve_sec:.1f} s")
        if self._complete is not None:
            return
        if self._channel is None:
            self._kill("had not begun")  # nothing to hand over
        else:
            self._send(Stop(max(0.0, trainer_until - time.monotonic())))

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
        return max(margin, LIMIT_MARGIN_COMMITS * self._commit_sec)

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
            self._submit(_Job("failure", lambda: self._count_failure(reason, message)))
        else:
            self._outcome = Outcome(Next.STOP, reason, message)

    def _cause(self) -> tuple[Reason, str]:
        """Why the trainer ended, on a machine that lives on."""
        code = self._exited.code if self._exited is not None else None
        said = self._error.message if self._error is not None else ""
        kind = self._error.kind if self._error is not None else ""
        if self._stalled:
            return Reason.STALLED, f"no step and no tick for {self.spec.waits.stall:.0f} s"
        if kind == "does-not-fit":
            return Reason.DOES_NOT_FIT, said
        if kind == "restore":
            return Reason.RESTORE_ERROR, said
        if kind == "usage":
            return Reason.USAGE, said
        if code is None:
            return (Reason.USER_FAILED, said) if said else (Reason.INTERRUPTED, "trainer has gone")
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

    def _submit(self, job: _Job) -> None:
        assert self._worker is not None
        self._jobs += 1
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
        self._submit(_Job("end", lambda: self._finish_failed(reason, message)))

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

    def _end(self, outcome: Outcome) -> None:
        """The record of the end. Its own name, so that it harms nobody even when fenced."""
        self.site.clock.training = True  # worth finishing, too: SIGTERM ends no sleep
        self.site.say(f"term {self.term}: {outcome.reason}: {outcome.message}")
        if self._pulse is not None:
            self._pulse.close(last_words=outcome.next is not Next.WATCH)
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
        except StoreError as error:
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
        shutil.rmtree(self._work, ignore_errors=True)

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


def _last_rows(path: Path) -> tuple[dict[str, Any], ...]:
    """The last whole rows of a file that is being written."""
    try:
        with path.open("rb") as rows:
            rows.seek(max(0, rows.seek(0, 2) - LAST_ROWS_BYTES))
            lines = rows.read().split(b"\n")[:-1]
    except OSError:
        return ()
    found = []
    for line in lines[-LAST_ROWS:]:
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                found.append(row)
    return tuple(found)


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
        return f"this run is done, at step {end.step}; its result is kept"
    return f"this run has {head.state}: {end.reason} at step {end.step}"
