"""Hands snapshots to the supervisor: one in flight, and only the newest of those waiting."""

import shutil
import time
from dataclasses import dataclass

from outlast.loop.command.folder import Taken
from outlast.loop.session import Session
from outlast.protocol import Snapshot

BUSY_RETRY_SEC = 1.0


@dataclass
class _Waiting:
    taken: Taken
    message: Snapshot


class Handover:
    """Hands over snapshots one at a time; a newer one replaces one that still waits."""

    def __init__(self, session: Session, every_sec: float) -> None:
        self._session = session
        self._every_sec = every_sec
        self._waiting: _Waiting | None = None
        self._offered_at_sec = -every_sec
        self._retry_at_sec = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether a snapshot still waits to be handed over."""
        return self._waiting is not None

    def is_due(self, now_sec: float) -> bool:
        """Whether the minimum time between two checkpoints has passed."""
        return now_sec - self._offered_at_sec >= self._every_sec

    def put(self, identifier: str, taken: Taken, step: int) -> None:
        """Add the newest snapshot."""
        self.drop()
        self._waiting = _Waiting(taken, Snapshot(identifier, str(taken.folder), step, [], 0))

    def drop(self) -> None:
        """Discard the waiting snapshot."""
        if self._waiting is not None:
            shutil.rmtree(self._waiting.taken.folder, ignore_errors=True)
            self._waiting = None

    def offer(self, *, stopping: bool) -> None:
        """Hand the newest snapshot over, unless one is in flight or it is too early."""
        now_sec = time.monotonic()
        if self._waiting is None or self._session.busy or now_sec < self._retry_at_sec:
            return
        if not stopping and not self.is_due(now_sec):
            return
        if self._session.offer(self._waiting.message):
            self._waiting = None
            self._offered_at_sec = now_sec
        else:
            self._retry_at_sec = now_sec + BUSY_RETRY_SEC

    def finish(self, step: int, deadline_sec: float) -> bool:
        """Hand over what waits, until the deadline; whether all of it was handed over."""
        while self._waiting is not None and time.monotonic() < deadline_sec:
            if self._session.offer(self._waiting.message):
                self._waiting = None
                break
            self._session.tick(step, "stop")
            self._session.wait_committed(min(0.2, max(0.0, deadline_sec - time.monotonic())))
        return self._waiting is None
