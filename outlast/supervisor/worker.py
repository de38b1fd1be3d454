"""The thread that commits, and its patience with the store."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlast.base import places
from outlast.bucket.head import HeadForbidden
from outlast.bucket.store import (
    Forbidden,
    Throttled,
    Unavailable,
    pause_after,
)
from outlast.protocol import Snapshot
from outlast.supervisor.door import Post
from outlast.supervisor.group import Say

RETRY_SEC = 2.0
RETRY_MAX_SEC = 30.0
RETRY_LIMIT_SEC = 900.0
"""A store that does not answer for so long ends the attempt: another machine may reach it."""
FULL_LIMIT_SEC = 60.0
"""A folder's full disk is tried for so long: somebody may make room."""


@dataclass(frozen=True)
class Job:
    name: str
    run: Callable[[], Any]
    snapshot: Snapshot | None = None
    beside: bool = False
    """The attempt goes on after it, as after a snapshot; whatever else is none ends it."""
    bytes_left: Callable[[], int] | None = None
    """Bytes still to send, where that can be told: fewer than before is an answer."""


@dataclass(frozen=True)
class Finished:
    """A job of the committing thread is over."""

    job: "Job"
    value: Any
    error: Exception | None


class Worker:
    """The one thread that commits: jobs in order, each until it is done or pointless."""

    def __init__(self, post: Post, say: Say, *, forbidden_sec: float) -> None:
        """A 401 or 403 is retried for ``forbidden_sec``: permissions may be spreading."""
        self._post = post
        self._say = say
        self._forbidden_sec = forbidden_sec
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        threading.Thread(target=self._work, name="commit", daemon=True).start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """No retry and no job any more; what is being done now is left alone."""
        self._closed.set()
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closed.is_set():
            value, error = self._do(job)
            self._post(Finished(job, value, error))

    def _do(self, job: Job) -> tuple[Any, Exception | None]:
        wait_sec = RETRY_SEC
        failing_since: float | None = None
        left_before: int | None = None
        tries = 0
        told: type[Exception] | None = None
        while True:
            tries += 1
            try:
                value = job.run()
                if tries > 1:
                    self._say(f"{job.name}: went through at try {tries}")
                return value, None
            except Exception as error:
                # The store's trouble, not the snapshot's: the trainer hears "busy" meanwhile.
                now = time.monotonic()
                left = job.bytes_left() if job.bytes_left is not None else None
                if left is not None and left_before is not None and left < left_before:
                    failing_since, wait_sec = None, RETRY_SEC  # it answered in between
                left_before = left
                failing_since = now if failing_since is None else failing_since
                if now - failing_since >= self._retried_sec(error):
                    return None, error
                # Each trouble once, then the 4th, 8th, 16th try: who waits hears of it still.
                if type(error) is not told or (tries >= 4 and tries.bit_count() == 1):
                    before = "" if tries == 1 else f" (tried {tries} times)"
                    self._say(f"{job.name}: {error}; trying again{before}")
                    told = type(error)
                if self._closed.wait(pause_after(error, wait_sec)):
                    return None, error
                wait_sec = min(wait_sec * 2, RETRY_MAX_SEC)

    def _retried_sec(self, error: Exception) -> float:
        """For how long it may pass by itself."""
        if isinstance(error, Throttled | Unavailable):
            return RETRY_LIMIT_SEC
        if isinstance(error, Forbidden | HeadForbidden):
            return self._forbidden_sec
        if isinstance(error, OSError) and error.errno in places.FULL:
            return FULL_LIMIT_SEC
        return 0.0
