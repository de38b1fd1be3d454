"""The committing thread, and its retries of the store."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlast.base.retry import Patience
from outlast.protocol import Snapshot
from outlast.supervisor.listener import Post


@dataclass(frozen=True)
class Job:
    name: str
    run: Callable[[], Any]
    snapshot: Snapshot | None = None
    beside: bool = False
    """Whether the attempt continues after it. Without this, only a job with a snapshot lets it
    continue."""


@dataclass(frozen=True)
class Finished:
    """Event: a job of the committing thread has ended."""

    job: "Job"
    value: Any
    error: Exception | None


class Worker:
    """The one thread that commits: runs jobs in order, each until it succeeds or cannot."""

    def __init__(self, post: Post, patience: Patience) -> None:
        self._post = post
        self._patience = patience
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        threading.Thread(target=self._work, name="commit", daemon=True).start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Starts no more jobs or retries; does not interrupt the current job."""
        self._closed.set()
        self._patience.close()
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closed.is_set():
            try:
                value, error = self._patience(job.run, job.name), None
            except Exception as found:
                value, error = None, found
            self._post(Finished(job, value, error))


class Work:
    """Counts the jobs of one attempt. All methods belong to the attempt's one thread."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self.under_way = 0
        """Jobs submitted and not finished."""
        self.snapshots = 0
        """Jobs among them that commit a snapshot."""
        self.finishing = False
        """Whether the submitted job ends the attempt."""

    def begin(self, worker: Worker) -> None:
        """The thread that does the jobs from here on."""
        self._worker = worker

    def submit(self, job: Job) -> None:
        """Queue a job."""
        assert self._worker is not None
        self.under_way += 1
        if job.snapshot is not None:
            self.snapshots += 1
        if not job.beside:
            self.finishing = job.snapshot is None
        self._worker.submit(job)

    def over(self, job: Job) -> None:
        """A job is finished."""
        self.under_way -= 1
        if job.snapshot is not None:
            self.snapshots -= 1

    def close(self) -> None:
        """No job begins any more."""
        if self._worker is not None:
            self._worker.close()
