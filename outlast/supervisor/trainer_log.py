"""The trainer's log: its newest part on this machine's disk, and all of it in the bucket.

The log never holds up the trainer, a heartbeat or the disk. Its size here is limited, and a
separate thread uploads it; if it grows faster than the upload, the pieces say how much was left
out.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from outlast.base.retry import Patience
from outlast.bucket.store import StoreError

HALF_BYTES = 32 << 20
"""Size at which the file is rotated; with the previous one, it holds at most twice as much."""
PIECE_BYTES = 8 << 20
DUE_BYTES = 1 << 20
"""Bytes that are uploaded at once; fewer wait for `DUE_SEC`."""
DUE_SEC = 60.0
LOOK_SEC = 1.0
LAST_BYTES = 16 << 20
"""Bytes of the log that are still uploaded at the end of an attempt: the newest ones."""
LAST_SEC = 5.0
KEPT_LOGS = 4
"""Number of logs of earlier attempts that stay on the disk."""


class TrainerLog:
    """A log file that threads append to and read once, from its start.

    It holds only the newest bytes: at ``half_bytes`` the file becomes ``<name>.1`` and replaces the
    previous one. `take` reports the bytes that were dropped before they were read."""

    def __init__(self, path: Path, *, half_bytes: int = HALF_BYTES) -> None:
        self.path = path
        self.older = path.with_name(path.name + ".1")
        self._half_bytes = half_bytes
        self._file: int | None = None
        self._lock = threading.Lock()
        self._older_start = self._start = self._end = 0
        """Offsets in all written bytes: the starts of the two files, and the end of the newer
        one."""
        self._read_to = 0
        self._dropped = 0
        self._closed = False

    def write(self, data: bytes) -> None:
        """Appends the data. A full disk is not an error: the bytes that it does not take are
        dropped."""
        with self._lock:
            if self._closed:
                return
            try:
                written = self._append(data)
            except OSError:
                written = 0
            self._end += written
            self._dropped += len(data) - written

    def close(self) -> None:
        """Drops all later writes; bytes that are there can still be taken."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None

    @property
    def unread(self) -> int:
        """Bytes that are still to be taken."""
        return self._end - max(self._read_to, self._older_start)

    def skip_to_last(self, size: int) -> None:
        """Drops the bytes that were not taken yet, except the last ``size``."""
        with self._lock:
            self._drop_until(self._end - size)

    def take(self, size: int) -> bytes:
        """Returns the next bytes, at most ``size`` and a line about dropped bytes before them;
        empty if there is nothing new."""
        with self._lock:
            self._drop_until(self._older_start)
            while not (data := self._read(size)) and self._read_to < self._end:
                # The file was truncated or removed.
                self._drop_until(self._start if self._read_to < self._start else self._end)
            dropped, self._dropped = self._dropped, 0
            self._read_to += len(data)
        if not dropped:
            return data
        return f"\n[outlast: {dropped} bytes of the log were not kept]\n".encode() + data

    def _append(self, data: bytes) -> int:
        if self._file is not None and self._end - self._start >= self._half_bytes:
            os.close(self._file)
            self._file = None
            os.replace(self.path, self.older)
            self._older_start, self._start = self._start, self._end
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644
            )
        written = 0
        with contextlib.suppress(OSError):
            while written < len(data):
                written += os.write(self._file, memoryview(data)[written:])
        return written

    def _drop_until(self, place: int) -> None:
        if place > self._read_to:
            self._dropped += place - self._read_to
            self._read_to = place

    def _read(self, size: int) -> bytes:
        is_older = self._read_to < self._start
        path, start = (self.older, self._older_start) if is_older else (self.path, self._start)
        size = min(size, (self._start if is_older else self._end) - self._read_to)
        if not size:
            return b""
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(self._read_to - start)
            return file.read(size)
        return b""


class LogUpload:
    """Uploads one trainer's log in pieces, in a separate thread."""

    def __init__(
        self, log: TrainerLog, put: Callable[[int, bytes], object], patience: Patience
    ) -> None:
        """``put`` writes a piece under its number; the same piece may be written twice.
        ``patience`` logs failures; each look at the log is a try."""
        self._log = log
        self._put = put
        self._spell = patience.spell("trainer's log")
        self._index = 0
        self._piece = b""
        """Taken from the log, and not known to be written."""
        self._sent_at = time.monotonic()
        self._until = float("inf")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def finish(self, *, last_words: bool) -> None:
        """Starts to end; with ``last_words``, after the newest part of the rest."""
        self._until = time.monotonic() + (LAST_SEC if last_words else 0.0)
        self._ending.set()

    def join(self) -> None:
        """Waits for the end, for a limited time."""
        self._thread.join(LAST_SEC)

    def _run(self) -> None:
        while not self._ending.wait(LOOK_SEC):
            if self._is_due():
                self._upload()
        self._log.skip_to_last(LAST_BYTES)
        self._upload()

    def _is_due(self) -> bool:
        waits = self._log.unread + len(self._piece)
        late = time.monotonic() - self._sent_at >= DUE_SEC
        return waits >= DUE_BYTES or (waits > 0 and late)

    def _upload(self) -> None:
        """Uploads everything that is there; if the store fails, the rest waits for the next
        look."""
        while time.monotonic() < self._until:
            self._piece = self._piece or self._log.take(PIECE_BYTES)
            if not self._piece:
                return
            try:
                self._put(self._index, self._piece)
            except (StoreError, OSError) as error:
                self._spell.note(error)
                return
            self._spell.over()
            self._piece = b""
            self._index += 1
            self._sent_at = time.monotonic()
            if self._ending.is_set():
                self._log.skip_to_last(LAST_BYTES)


def drop_old_logs(folder: Path) -> None:
    """Deletes the trainers' logs of earlier attempts, except the newest."""
    logs = sorted(folder.glob("trainer-*.log"))
    for log in logs[:-KEPT_LOGS]:
        for path in (log, log.with_name(log.name + ".1")):
            path.unlink(missing_ok=True)
