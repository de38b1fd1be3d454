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
"""After a trainer's process has gone, for what it said before to arrive."""

KINDS = {
    "does-not-fit": Reason.DOES_NOT_FIT,
    "data-changed": Reason.DATA_CHANGED,
    "restore": Reason.RESTORE_ERROR,
    "usage": Reason.USAGE,
    "no-output": Reason.NO_OUTPUT,
    "result-too-large": Reason.RESULT_TOO_LARGE,
}
"""Reasons of the errors that a trainer names itself."""


class Link:
    """The trainer as its attempt sees it. All but the constructor is the attempt's one thread's."""

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
        """What it said that it ends for."""
        self.refusal: Error | None = None
        """Data that could not be given; a trainer may do without."""

    # -- its life -----------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether its process has not been seen to end."""
        return self._exited is None

    @property
    def gone(self) -> bool:
        """Whether the trainer has ended and all that it said was heard."""
        if self.trainer.ends_with_connection:
            return self.hung or self._exited is not None
        if self._exited is None:
            return False
        silent = self.channel is None or self.hung
        return silent or time.monotonic() - self._exited_at >= LAST_WORDS_SEC

    @property
    def overdue(self) -> bool:
        """Whether a trainer that only had to connect has not done so: it died before."""
        waited_sec = time.monotonic() - self._started_at
        return self.trainer.ends_with_connection and waited_sec >= HELLO_SEC

    @property
    def exit_code(self) -> int | None:
        """As a shell gives it: 128 and its number for a signal."""
        code = self._exited.code if self._exited is not None else None
        return code if code is None or code >= 0 else 128 - code

    def note_exit(self, exited: Exited) -> None:
        self._exited, self._exited_at = exited, time.monotonic()

    def note_error(self, error: Error) -> None:
        """The first error is the cause; later ones follow from it."""
        self.error = self.error or error

    def send(self, message: Message) -> None:
        """Nothing happens if it has gone."""
        if self.channel is not None:
            with contextlib.suppress(Closed):
                self.channel.send(message)

    def kill(self, why: str) -> None:
        """End it, once; ``why`` follows "trainer killed: it"."""
        if self._exited is None and not self._killed:
            self._killed = True
            _log.info(f"trainer killed: it {why}")
            self.trainer.kill()
            if self.trainer.ends_with_connection and self.channel is not None:
                self.channel.close()

    def close(self) -> None:
        """End it and its connection, whatever it does."""
        if self._exited is None:
            self.trainer.kill()
        if self.channel is not None:
            self.channel.close()

    @property
    def lines(self) -> tuple[str, ...]:
        """The end of its stderr; where that is a person's own, what it said itself of its error."""
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
            # Only an exit after a stop is the machine's; this one would come again and again.
            reason = Reason.USER_FAILED
            message = f"the trainer exited with {code} without a request to stop"
        else:
            message = f"the trainer exited with {code}"
        return reason, f"{message}: {said}" if said else message

    def _found(self, code: int | None) -> Error | None:
        """The error to go by: its own, or the refusal of data that it died of."""
        if self.refusal is not None and (
            # Asked before it connected, or without a word, and died of it.
            (self.error is None and (self.channel is None or code == exits.USAGE))
            or (self.error is not None and self.refusal.message in self.error.message)
        ):
            return self.refusal
        return self.error
