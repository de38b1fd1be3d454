"""The heartbeat: a sign of life in the bucket, after a look at HEAD and before one for a request
of `outlast stop`.
"""

import contextlib
import logging
import threading
import time
from dataclasses import dataclass

from outlast.bucket.head import HeadError, HeadForbidden
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Heartbeat, StopRequest
from outlast.bucket.records import read_record
from outlast.bucket.store import Damaged, StoreError, Throttled, Unavailable
from outlast.supervisor.latest import Latest
from outlast.supervisor.listener import Post
from outlast.supervisor.progress import Progress

_log = logging.getLogger(__name__)

LAST_WORDS_SEC = 5.0
"""Seconds that a close waits for the heartbeat being sent."""

UNREADABLE_STOP_SEC = 300.0
"""Seconds for the last checkpoint if the request does not say how many."""


@dataclass(frozen=True)
class HeadChanged:
    """Event: HEAD says that this attempt is over."""

    error: HeadError


@dataclass(frozen=True)
class StopAsked:
    """Event: `outlast stop` asks for a last checkpoint and the run's end."""

    seconds: float
    """How long both may take."""


@dataclass(frozen=True)
class HeartbeatFailed:
    """Event: the heartbeats have stopped, and nothing reads HEAD any more."""

    error: Exception


class HeartbeatSender:
    """Reads HEAD and sends a heartbeat, every ``heartbeat_sec``, in a separate thread."""

    def __init__(
        self,
        head_file: HeadFile,
        term: int,
        progress: Progress,
        *,
        latest: Latest,
        heartbeat_sec: float,
        silence_sec: float,
        post: Post,
        stoppable: bool,
    ) -> None:
        """``silence_sec``: without an answer from storage for so long, the attempt is over;
        ``stoppable``: whether `outlast stop` may ask this attempt to end its run."""
        self._head_file = head_file
        self._term = term
        self._progress = progress
        self._latest = latest
        self._interval_sec = heartbeat_sec
        self._silence_sec = silence_sec
        self._silent_since: float | None = None
        self._post = post
        self._looks_for_stop = stoppable
        self._closed = threading.Event()
        self._before = (time.monotonic(), progress.step)
        self._sent_at: float | None = None
        self._warned = 0
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self, *, last_words: bool) -> None:
        """Ends the heartbeats; with ``last_words``, after a last one."""
        self._closed.set()
        self._thread.join(LAST_WORDS_SEC)
        if last_words and not self._thread.is_alive():
            with contextlib.suppress(StoreError, OSError):
                if self._is_due():
                    self._send()

    def _is_due(self) -> bool:
        """Whether no heartbeat was sent, or the last one is older than a second or lacks a
        warning."""
        if self._sent_at is None or len(self._progress.warnings) > self._warned:
            return True
        return time.monotonic() - self._sent_at >= 1.0

    def _run(self) -> None:
        while True:
            try:
                # HEAD is read first: a fenced attempt must not send heartbeats.
                self._head_file.check(term=self._term)
                self._send()
                self._silent_since = None
                self._look_for_stop()
            except (HeadForbidden, StoreError, OSError) as error:
                _log.info(f"heartbeat: {error}")
                if self._is_silent(error):
                    self._post(HeartbeatFailed(error))
                    return
            except HeadError as error:
                self._post(HeadChanged(error))
                return
            except Exception as error:
                self._post(HeartbeatFailed(error))
                return
            if self._closed.wait(self._interval_sec):
                return

    def _is_silent(self, error: Exception) -> bool:
        """Whether storage has given no answer for too long: neither to heartbeats nor to uploads,
        which may fill a slow line."""
        now = time.monotonic()
        if not isinstance(error, Throttled | Unavailable):
            self._silent_since = None
            return False
        self._silent_since = now if self._silent_since is None else self._silent_since
        since = max(self._silent_since, self._progress.uploaded_at)
        return now - since >= self._silence_sec

    def _look_for_stop(self) -> None:
        if not self._looks_for_stop:
            return
        head_file = self._head_file
        path = head_file.layout.stop_request(head_file.held(self._term).resume)
        try:
            request = read_record(head_file.store, path, StopRequest)
        except Damaged as error:
            _log.info(f"stop request: {error}")
            request = StopRequest(0, UNREADABLE_STOP_SEC, head_file.store.now())
        if request is not None:
            self._looks_for_stop = False
            self._post(StopAsked(request.seconds))

    def _send(self) -> None:
        progress, store = self._progress, self._head_file.store
        now, step = time.monotonic(), progress.step
        before, step_before = self._before
        self._before = (now, step)
        rate = (step - step_before) / (now - before) if step > step_before else None
        self._latest.read()
        heartbeat = Heartbeat(
            term=self._term,
            step=step,
            total=progress.total,
            phase=progress.phase,
            rate=None if rate is None else round(rate, 3),
            committed=progress.committed,
            seconds_to_commit=progress.seconds_to_commit,
            rows=self._latest.rows,
            time=store.now(),
            commit_sec=progress.commit_sec,
            warnings=tuple(progress.warnings),
            metrics=self._latest.metrics,
            failure=progress.failure,
            stderr=progress.stderr,
            part=progress.part,
            before=progress.before,
        )
        self._sent_at, self._warned = now, len(heartbeat.warnings)
        store.put(self._head_file.layout.heartbeat(self._term), heartbeat.to_json())
