"""Listens for the end of the machine.

Three sources, any of which is enough: the metadata server (`instance/preempted`), SIGTERM, and a
system that is stopping. `maintenance-event` is a warning, not a stop. A signal handler only notes
that it ran; everything else happens in the threads that listen.
"""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from outlast.base.exits import Reason
from outlast.base.retry import ONCE, persistently
from outlast.spec.run_spec import Timeouts
from outlast.supervisor.metadata import Metadata, MetadataError

NO_MAINTENANCE = ("", "NONE")
RETRY_SEC = 1.0


@dataclass(frozen=True)
class Stopping:
    """The machine ends at ``until``, by this process's monotonic clock."""

    reason: Reason
    until: float


@dataclass(frozen=True)
class Maintenance:
    """The host will have maintenance: commit now, then more often, and keep training."""

    event: str


Post = Callable[[Stopping | Maintenance], None]


class Interrupted(Exception):
    """Raised if the machine is stopping and there is nothing to finish."""


class Notices:
    """Collects notices and passes them to the current listener."""

    def __init__(self, timeouts: Timeouts, metadata: Metadata | None = None) -> None:
        """Without ``metadata`` (a laptop), only signals are noticed."""
        self._timeouts = timeouts
        self._metadata = metadata
        self._post: Post | None = None
        self._terminated = threading.Event()
        self._terminated_until: float | None = None
        self._preempted_until: float | None = None
        self._maintenance = ""

    def start(self) -> None:
        """Starts to listen to the metadata server, in threads that end with the process."""
        if self._metadata is not None:
            for listen in (self._listen_preempted, self._listen_maintenance):
                threading.Thread(target=listen, name=listen.__name__, daemon=True).start()

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """Handles SIGTERM. The main thread must not wait for anything that this sets."""
        if self._terminated_until is None:
            self._terminated_until = time.monotonic() + self._timeouts.stop
        self._terminated.set()
        self._tell()

    def listen(self, post: Post | None) -> None:
        """Passes each notice to ``post`` from now on, and earlier ones at once. It is called from
        other threads and from the signal handler, which a ``SimpleQueue``'s ``put`` allows."""
        self._post = post
        self._tell()
        if post is not None and self._maintenance not in NO_MAINTENANCE:
            post(Maintenance(self._maintenance))

    @property
    def stopping(self) -> Stopping | None:
        """The earliest end of the machine that was announced; None if none was."""
        ends = [end for end in (self._preempted_until, self._terminated_until) if end is not None]
        if not ends:
            return None
        reason = Reason.INTERRUPTED
        if self._preempted_until is not None:
            reason = Reason.PREEMPTED
        elif self._maintenance.startswith("TERMINATE"):
            reason = Reason.MAINTENANCE
        return Stopping(reason, min(ends))

    def look(self) -> Stopping | None:
        """Asks the machine now whether it is stopping, beyond its own notices; for verdicts."""
        if self._preempted_until is None and self._metadata is not None:
            with contextlib.suppress(MetadataError):
                if self._metadata.get("instance/preempted", patience=ONCE) == "TRUE":
                    self._note_preempted()
        if self.stopping is None and self._metadata is not None and is_system_stopping():
            self._terminated_until = time.monotonic() + self._timeouts.stop
        return self.stopping

    def sleep(self, seconds: float) -> None:
        """Waits; raises Interrupted as soon as SIGTERM comes, because nothing is worth
        finishing."""
        if self._terminated.wait(seconds):
            raise Interrupted

    def _tell(self) -> None:
        stopping, post = self.stopping, self._post
        if stopping is not None and post is not None:
            post(stopping)

    def _note_preempted(self) -> None:
        if self._preempted_until is None:
            # Without advance notice, the flag is set when the machine begins to stop.
            left_sec = self._timeouts.notice or self._timeouts.stop
            self._preempted_until = time.monotonic() + left_sec
            self._tell()

    def _listen_preempted(self) -> None:
        for value in self._values("instance/preempted"):
            if value == "TRUE":
                self._note_preempted()
                return

    def _listen_maintenance(self) -> None:
        for value in self._values("instance/maintenance-event"):
            self._maintenance = value
            post = self._post
            if post is not None and value not in NO_MAINTENANCE:
                post(Maintenance(value))

    def _values(self, path: str):
        """Yields the value at ``path`` now and after each change."""
        assert self._metadata is not None
        wait, etag, seen = self._metadata.wait_for_change, "0", None
        while True:
            # No odd answer may end this thread silently.
            value, etag = persistently(lambda etag=etag: wait(path, last_etag=etag), RETRY_SEC)
            if value != seen:
                seen = value
                yield value


def is_system_stopping() -> bool:
    """Whether systemd is shutting the system down; False without systemd."""
    try:
        answer = subprocess.run(
            ["systemctl", "is-system-running"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5.0,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == "stopping"
