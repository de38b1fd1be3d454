"""The trainer of one attempt: its process, its connection, and why it ended."""

import contextlib
import logging
import time

from outlast.base import exits
from outlast.base.exits import Reason
from outlast.protocol import Channel, Closed, Error, Message
from outlast.supervisor.listener import HELLO_SEC
from outlast.supervisor.process import Exited, Trainer

_log = logging.getLogger(__name__)

LAST_WORDS_SEC = 5.0
"""Seconds to wait for a trainer's last messages after its process has ended."""

KINDS = {
    "does-not-fit": Reason.DOES_NOT_FIT,
    "data-changed": Reason.DATA_CHANGED,
    "restore": Reason.RESTORE_ERROR,
    "usage": Reason.USAGE,
    "no-output": Reason.NO_OUTPUT,
    "result-too-large": Reason.RESULT_TOO_LARGE,
}
"""Reasons of the error kinds that a trainer sends."""


class Link:
    """The trainer as its attempt sees it. Only the attempt's one thread may call its methods."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._started_at = time.monotonic()
        self.channel: Channel | None = None
        self.hung = False
        """Whether its connection is closed."""
        self._exited: Exited | None = None
        self._exited_at = 0.0
        self._killed = False
        self.error: Error | None = None
        """The error that it named as the cause of its end."""
        self.refusal: Error | None = None
        """The refusal of data that it asked for; a trainer may continue without."""
        self.exit_said: int | None = None
        """The program's exit code, if the trainer has sent it."""

    # -- its life -----------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether its process has not ended, as far as known."""
        return self._exited is None

    @property
    def gone(self) -> bool:
        """Whether the trainer has ended, and all of its messages were read."""
        if self.trainer.ends_with_connection:
            return self.hung or self._exited is not None
        if self._exited is None:
            return False
        silent = self.channel is None or self.hung
        return silent or time.monotonic() - self._exited_at >= LAST_WORDS_SEC

    @property
    def overdue(self) -> bool:
        """Whether a trainer in a folder has not connected in time: it died before."""
        waited_sec = time.monotonic() - self._started_at
        return self.trainer.ends_with_connection and waited_sec >= HELLO_SEC

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell reports it: 128 plus the number for a signal."""
        code = self._exited.code if self._exited is not None else None
        return code if code is None or code >= 0 else 128 - code

    def note_exit(self, exited: Exited) -> None:
        self._exited, self._exited_at = exited, time.monotonic()

    def note_error(self, error: Error) -> None:
        """Notes an error; the first is the cause, and later ones follow from it."""
        self.error = self.error or error

    def send(self, message: Message) -> None:
        """Sends a message; does nothing if the trainer has disconnected."""
        if self.channel is not None:
            with contextlib.suppress(Closed):
                self.channel.send(message)

    def kill(self, why: str) -> None:
        """Kills it, once. ``why`` completes the log line "trainer killed: it"."""
        if self._exited is None and not self._killed:
            self._killed = True
            _log.info(f"trainer killed: it {why}")
            self.trainer.kill()
            if self.trainer.ends_with_connection and self.channel is not None:
                self.channel.close()

    def close(self) -> None:
        """Kills it and closes its connection."""
        if self._exited is None:
            self.trainer.kill()
        if self.channel is not None:
            self.channel.close()

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines of its stderr. If that is a person's terminal: the lines in its error
        message."""
        return self.trainer.last_lines() or tuple(self.error.lines if self.error else ())

    # -- why it ended -------------------------------------------------------------------------

    def cause(self, stopped: str) -> tuple[Reason, str]:
        """Why the trainer ended, if the machine keeps running; ``stopped`` is the sentence if
        nothing more is known.
        """
        code = self._exited.code if self._exited is not None else None
        found = self._found(code)
        said = found.message if found is not None else ""
        reason = KINDS.get(found.kind) if found is not None else None
        if reason is not None:
            return reason, said
        if code is None:
            return (Reason.USER_FAILED, said) if said else (Reason.INTERRUPTED, stopped)
        reason = exits.reason_of_exit(code)
        if code < 0:
            message = f"the trainer was killed by signal {-code}"
        elif code == exits.DONE:
            message = "the trainer exited with 0 without declaring completion"
        elif code == exits.INTERRUPTED and self.trainer.restarts:
            # Only after a stop does this code blame the machine; without one it would repeat.
            reason = Reason.USER_FAILED
            message = f"the trainer exited with {code} without a request to stop"
        else:
            message = f"the trainer exited with {code}"
        return reason, f"{message}: {said}" if said else message

    def _found(self, code: int | None) -> Error | None:
        """The error that explains the end: the trainer's own, or the refusal of data that caused
        it."""
        if self.refusal is not None and (
            # It asked before it connected, or sent no error, and the refusal ended it.
            (self.error is None and (self.channel is None or code == exits.USAGE))
            or (self.error is not None and self.refusal.message in self.error.message)
        ):
            return self.refusal
        return self.error
