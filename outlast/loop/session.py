"""The trainer's side of the protocol with its supervisor.

Single-threaded: the loop reads the supervisor's messages between two steps.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from outlast.base import exits
from outlast.loop.data import answer_path
from outlast.loop.errors import CheckpointFailed, LoopError, NotHere, Refused, SupervisorLost
from outlast.loop.words import say
from outlast.protocol import (
    COMPLETE_ID,
    ERROR_LINE_CHARS_MAX,
    ERROR_LINES_MAX,
    VERSION,
    Accepted,
    Busy,
    Channel,
    Checkpoint,
    Closed,
    Committed,
    Complete,
    Ended,
    Error,
    Failed,
    Fetch,
    Fetched,
    Hello,
    Message,
    ProtocolError,
    Results,
    Snapshot,
    Stop,
    Tick,
    Warn,
    Welcome,
)

CONNECT_SEC = 30.0
WELCOME_SEC = 1200.0
"""Seconds to wait for the welcome, which comes after a restore: downloading and hashing a large
checkpoint takes minutes."""
ANSWER_SEC = 120.0
TICK_SEC = 1.0
WARNING_CHARS = 1000
STOPPED_POLL_SEC = 0.2
WELCOME_SAID_SEC = 5.0
"""Seconds after which a message explains the wait."""


def connect(socket_path: str | Path) -> Channel:
    """Connect to a supervisor that may still be starting; SupervisorLost if it does not answer."""
    try:
        return Channel.connect(socket_path, timeout_sec=CONNECT_SEC)
    except (ProtocolError, OSError) as error:
        raise SupervisorLost(str(error)) from None


class Session:
    """One connection, with its snapshots in flight and the supervisor's requests."""

    def __init__(
        self, channel: Channel, *, total: int | None, part: str = "", restore_done: bool = True
    ) -> None:
        """Send hello. ``part`` names the part of the run to train; if it is already done, its state
        is restored only with ``restore_done``."""
        self.checkpoint_wanted = False
        self.commit_sec: float | None = None
        """Seconds from hand-over to the commit message of the last commit; None before the
        first."""
        self.last_snapshot_wanted = True
        """False once the supervisor has said that no snapshot can be committed in time."""
        self._stop_at: float | None = None
        self._in_flight: dict[str, float] = {}
        """Snapshots handed over and not yet committed, with the time of the hand-over."""
        self._failure: Failed | None = None
        self._offered = ""
        self._answer: Accepted | Busy | None = None
        self._ticked_at = 0.0
        self._own = os.getpid()
        self._phase = ""
        self._channel = channel
        self._send(Hello(VERSION, os.getpid(), total, part, restore_done))

    @property
    def channel(self) -> Channel:
        """The connection, for its next user."""
        return self._channel

    def welcome(self, *, stopped: Callable[[], bool] = lambda: False) -> Welcome | Ended:
        """The supervisor's answer to hello; waits while it restores. SystemExit 75 once ``stopped``
        returns True."""
        deadline = time.monotonic() + WELCOME_SEC
        announced = False
        while (left := deadline - time.monotonic()) > 0:
            if not announced and WELCOME_SEC - left >= WELCOME_SAID_SEC:
                announced = True
                say(
                    "waiting until the run is opened: a large checkpoint takes time, and "
                    "storage may not answer yet"
                )
            if stopped():
                raise SystemExit(exits.INTERRUPTED)
            message = self._receive(min(left, STOPPED_POLL_SEC))
            if isinstance(message, Welcome | Ended):
                return message
            if message is not None:
                self._take(message)
        raise SupervisorLost(f"the supervisor gave no welcome within {WELCOME_SEC:.0f} s")

    @property
    def stop_in_sec(self) -> float | None:
        """Seconds left since the supervisor asked to stop; None if it did not."""
        return None if self._stop_at is None else self._stop_at - time.monotonic()

    def look_for_stop(self) -> bool:
        """Read all messages so far; whether the supervisor has asked to stop."""
        with contextlib.suppress(LoopError):
            while self._channel.is_waiting() and (message := self._receive(0)) is not None:
                self._take(message)
        return self._stop_at is not None

    @property
    def busy(self) -> bool:
        """Whether a snapshot was handed over and is not committed yet."""
        return bool(self._in_flight)

    def poll(self) -> None:
        """Read new messages; CheckpointFailed if a commit failed. Does nothing in a forked child,
        such as a loader's worker, because its parent uses the connection."""
        if os.getpid() != self._own:
            return
        while self._channel.is_waiting() and (message := self._receive(0)) is not None:
            self._take(message)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            what = "the result" if failure.id == COMPLETE_ID else f"checkpoint {failure.id}"
            raise CheckpointFailed(f"{what} could not be committed: {failure.message}")

    def tick(self, step: int, phase: str, *, last: bool = False) -> bool:
        """Send a sign of life, at most once a second, at each change of phase, and with
        ``last``."""
        if os.getpid() != self._own:
            return False
        now = time.monotonic()
        due = last or phase != self._phase or now - self._ticked_at >= TICK_SEC
        if due:
            self._phase, self._ticked_at = phase, now
            self._send(Tick(step, phase))
        return due

    def warn(self, message: str) -> None:
        """Print a warning for people, here and in the run's status."""
        say(f"warning: {message}")
        self._send(Warn(message[:WARNING_CHARS]))

    def hand_over(self, snapshot: Snapshot) -> None:
        """Hand over a folder without waiting; ``answer`` says later whether it was accepted."""
        self._send(snapshot)
        self._offered = snapshot.id
        self._in_flight[snapshot.id] = time.monotonic()

    def answer(self, *, wait: bool = False) -> bool | None:
        """Whether the supervisor accepted the last folder; False if it was busy and the folder is
        still ours, None while that is unknown. Each answer is returned once."""
        if wait:
            return isinstance(self._answer_to(self._offered), Accepted)
        answer, self._answer = self._answer, None
        return None if answer is None else isinstance(answer, Accepted)

    def offer(self, snapshot: Snapshot) -> bool:
        """Hand over a folder and wait for the answer; False if the supervisor is busy and the
        folder is still ours."""
        self.hand_over(snapshot)
        return bool(self.answer(wait=True))

    def wait_committed(self, timeout_sec: float) -> bool:
        """Wait until no snapshot is in flight; False after ``timeout_sec``."""
        deadline = time.monotonic() + timeout_sec
        self.poll()
        while self._in_flight:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            message = self._receive(left)
            if message is not None:
                self._take(message)
            self.poll()
        return True

    def fetch(self, url: str, path: Path, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """Report the data in use, which this process has at ``path``; DataError if the run began
        with other data. The supervisor reads all of it now. SystemExit 75 once ``stopped`` returns
        True."""
        self._send(Fetch(url, str(path)))
        while True:
            if stopped():
                raise SystemExit(exits.INTERRUPTED)
            message = self._receive(TICK_SEC)
            if isinstance(message, Fetched | Error):
                answer_path(message, url)
                return
            if message is not None:
                self._take(message)

    def results(self) -> Path:
        """The folder with the result of this part, which is done."""
        self._send(Results())
        while True:
            message = self._receive(TICK_SEC)
            if isinstance(message, Fetched):
                return Path(message.path)
            if message is not None:
                self._take(message)
            self.tick(0, "result")

    def complete(self, step: int, result: Path, rows_offset: int, why: str = "") -> None:
        """Hand over the result and wait until the supervisor accepts it; ``why`` says why it came
        before all steps were made."""
        self._send(Complete(step, str(result), rows_offset, why))
        self._answer_to(COMPLETE_ID)

    def complete_part(self, step: int, record: Path, rows_offset: int, why: str) -> None:
        """Like ``complete``, for a part, and wait until it is committed or a stop is requested;
        CheckpointFailed if the commit failed."""
        self.complete(step, record, rows_offset, why)
        self._in_flight[COMPLETE_ID] = time.monotonic()
        while self._in_flight and self._stop_at is None:
            message = self._receive(TICK_SEC)
            if message is not None:
                self._take(message)
            self.poll()
            self.tick(step, "result")

    def report(self, message: str, kind: str, lines: Sequence[str] = ()) -> None:
        """Tell the supervisor why training ends; print a message if it has already ended."""
        last = [line[:ERROR_LINE_CHARS_MAX] for line in lines[-ERROR_LINES_MAX:]]
        try:
            self._channel.send(Error(message[:10_000], kind, last))
        except Closed:
            say(f"the supervisor has ended too; {message}")

    def close(self) -> None:
        """Close the connection. In a forked child only its own copy is closed and the parent's
        stays open."""
        self._channel.close(hang_up=os.getpid() == self._own)

    def _answer_to(self, identifier: str) -> Accepted | Busy:
        deadline = time.monotonic() + ANSWER_SEC
        while (left := deadline - time.monotonic()) > 0:
            if self._answer is not None:
                answer, self._answer = self._answer, None
                if answer.id != identifier:
                    raise LoopError(
                        f"the supervisor answered {answer.id}, but the request was {identifier}"
                    )
                return answer
            message = self._receive(left)
            if message is not None:
                self._take(message)
        raise SupervisorLost(f"the supervisor gave no answer within {ANSWER_SEC:.0f} s")

    def _take(self, message: Message) -> None:
        match message:
            case Stop(seconds, wanted):
                self._stop_at = time.monotonic() + seconds
                self.last_snapshot_wanted = wanted
            case Checkpoint():
                self.checkpoint_wanted = True
            case Committed(identifier):
                offered_sec = self._in_flight.pop(identifier, None)
                if offered_sec is not None:
                    self.commit_sec = time.monotonic() - offered_sec
            case Failed(identifier):
                self._in_flight.pop(identifier, None)
                self._failure = message
            case Accepted():
                self._answer, self.checkpoint_wanted = message, False
            case Busy(identifier):
                self._in_flight.pop(identifier, None)
                self._answer = message
            case Error(text):
                raise Refused(f"the supervisor refuses: {text}")
            case _:
                raise LoopError(
                    f"the supervisor sent {type(message).__name__.lower()}, which a trainer "
                    "does not accept; use the same version of outlast on both sides"
                )

    def check_process(self) -> None:
        """Raise NotHere in a forked child of the trainer."""
        if os.getpid() != self._own:
            raise NotHere(
                "this process was forked from the one that called outlast.train, and only that one "
                "makes steps; end the child with os._exit, or use multiprocessing"
            )

    def _receive(self, timeout_sec: float | None) -> Message | None:
        self.check_process()
        try:
            return self._channel.receive(timeout_sec)
        except Closed:
            raise SupervisorLost(
                "the supervisor has ended; committed checkpoints are safe, start the same run again"
            ) from None
        except ProtocolError as error:
            raise LoopError(f"the supervisor cannot be understood: {error}") from None

    def _send(self, message: Message) -> None:
        self.check_process()
        try:
            self._channel.send(message)
            return
        except Closed:
            pass  # it may have sent the reason before it ended
        while (last := self._receive(0)) is not None:
            self._take(last)
        raise SupervisorLost("the supervisor has ended")
