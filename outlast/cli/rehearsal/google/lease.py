"""Whether a rehearsal is running in a project: an object in its bucket, rewritten while it runs."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from outlast.bucket.store import NotFound, Store, StoreError

OBJECT = "rehearsal.json"
RENEW_SEC = 30.0
SILENT_SEC = 180.0
"""A rehearsal on another machine that has not renewed its lease for so long has ended."""


@dataclass(frozen=True)
class Holder:
    """The process that runs a rehearsal."""

    host: str
    pid: int
    begun: str
    """Which process of that pid: its start, in the kernel's ticks since boot."""
    token: str
    """What every process that it started has in its environment."""

    @classmethod
    def ours(cls, token: str) -> "Holder":
        """This process."""
        return cls(socket.gethostname(), os.getpid(), _begun(os.getpid()), token)

    @property
    def is_here(self) -> bool:
        """Whether it runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def read(store: Store) -> Holder | None:
    """Who last held the lease; None if there is no lease. Raises StoreError."""
    try:
        return Holder(**json.loads(store.get(OBJECT)[0]))
    except (NotFound, ValueError, TypeError):
        return None


def running(store: Store, holder: Holder) -> bool:
    """Whether it still runs. Raises StoreError."""
    if holder.is_here:
        return _begun(holder.pid) == holder.begun
    try:
        renewed = store.stat(OBJECT).updated
    except NotFound:
        return False
    return (datetime.now(UTC) - renewed).total_seconds() < SILENT_SEC


@contextlib.contextmanager
def held(store: Store, holder: Holder) -> Iterator[None]:
    """Holds the lease until the end. Raises StoreError if it cannot be taken."""
    data = json.dumps(asdict(holder)).encode()
    store.put(OBJECT, data)
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEW_SEC):
            with contextlib.suppress(StoreError):  # The rehearsal's own calls report it.
                store.put(OBJECT, data)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _begun(pid: int) -> str:
    """Empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
