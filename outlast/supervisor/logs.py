"""Keeps the files that a trainer leaves in LOG_DIR, for example TensorBoard's, with the attempt.

A separate thread uploads changed files, so neither a commit nor a heartbeat waits for it. It is a
copy for people: no failure here ends a run.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from outlast.base.names import check_object_name
from outlast.base.plain_files import NotPlain, PlainFile, entries

_log = logging.getLogger(__name__)

EVERY_SEC = 60.0
LAST_SEC = 5.0
"""Seconds that the end of an attempt waits for the last changes."""
FILE_BYTES_MAX = 32 << 20
ALL_BYTES_MAX = 256 << 20
FILES_MAX = 1000
NOT_PLAIN = "is a link, or not the trainer's file; links are not followed"

Put = Callable[[str, bytes], object]


class Logs:
    """The uploads of one attempt."""

    def __init__(self, folder: Path, put: Put, owner: int | None = None) -> None:
        """``put`` writes the bytes of a file under its name relative to ``folder``. ``owner``: user
        id that the folder and its files must have; None for any."""
        self._folder = folder
        self._owner = owner
        self._put = put
        self._sent: dict[str, tuple[int, int]] = {}
        """Size and change time, in nanoseconds, of each uploaded file, by name."""
        self._left: dict[str, str] = {}
        """Why a file is not kept, by name; each reason is logged once."""
        self._closed = threading.Event()
        self._until = float("inf")
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def finish(self, *, last_words: bool) -> None:
        """Starts to end; with ``last_words``, first uploads the last changes, for a limited
        time."""
        self._until = time.monotonic() + (LAST_SEC if last_words else 0.0)
        self._closed.set()

    def join(self) -> None:
        """Waits for the end, for a limited time."""
        self._thread.join(LAST_SEC)

    def close(self, *, last_words: bool) -> None:
        """`finish` and `join`."""
        self.finish(last_words=last_words)
        self.join()

    def _run(self) -> None:
        while not self._closed.wait(EVERY_SEC):
            self._round()
        self._round()

    def _round(self) -> None:
        files: list[tuple[PlainFile, NotPlain | None]] = []
        with contextlib.suppress(OSError, NotPlain):
            files = sorted(entries(self._folder, self._owner), key=lambda entry: entry[0].name)
        for file, problem in files:
            if time.monotonic() >= self._until:
                return
            try:
                if problem is None:
                    self._upload(file)
                else:
                    self._leave(file.name, NOT_PLAIN)
            except FileNotFoundError:
                pass  # renamed or removed since it was listed
            except NotPlain:  # a link since it was listed
                self._leave(file.name, NOT_PLAIN)
            except Exception as error:  # its name or its bytes; the other files are kept
                self._leave(file.name, str(error))

    def _upload(self, kept: PlainFile) -> None:
        name = check_object_name(kept.name)
        # A file that grows is kept as it was at one moment; the next round uploads the rest.
        with kept.open() as file:
            found = os.fstat(file.fileno())
            mark = (found.st_size, found.st_mtime_ns)
            if self._sent.get(name) == mark:
                return
            others = sum(size for other, (size, _) in self._sent.items() if other != name)
            if found.st_size > FILE_BYTES_MAX:
                return self._leave(name, f"is larger than {FILE_BYTES_MAX >> 20} MiB")
            if others + found.st_size > ALL_BYTES_MAX:
                return self._leave(
                    name, f"together, the files are larger than {ALL_BYTES_MAX >> 20} MiB"
                )
            if len({*self._sent, name}) > FILES_MAX:
                return self._leave(name, f"there are more than {FILES_MAX} files")
            data = file.read(found.st_size)
        self._put(name, data)
        self._sent[name] = mark

    def _leave(self, name: str, why: str) -> None:
        """Notes why a file is not kept; a reason that many files share is logged once."""
        if why not in self._left.values():
            _log.info(f"LOG_DIR {name}: is not kept with the attempt: {why}")
        self._left[name] = why
