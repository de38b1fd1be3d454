"""The heartbeat: a sign of life in the bucket, and a look at HEAD."""

import contextlib
import threading
import time
from dataclasses import dataclass

from outlast.base.console import Say
from outlast.bucket.head import HeadError, HeadForbidden
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Beat
from outlast.bucket.store import StoreError
from outlast.supervisor.door import Post
from outlast.supervisor.latest import Latest
from outlast.supervisor.progress import Progress

LAST_WORDS_SEC = 5.0
"""For the beat that is under way when the pulse is closed."""


@dataclass(frozen=True)
class HeadSpoke:
    """HEAD says that this attempt is over."""

    error: HeadError


@dataclass(frozen=True)
class PulseBroke:
    """No heartbeat comes any more, and nothing looks at HEAD."""

    error: Exception


class Pulse:
    """Heartbeats, and a look at HEAD with each of them."""

    def __init__(
        self,
        head_file: HeadFile,
        term: int,
        progress: Progress,
        *,
        latest: Latest,
        beat_sec: float,
        post: Post,
        say: Say,
    ) -> None:
        self._head_file = head_file
        self._term = term
        self._progress = progress
        self._latest = latest
        self._beat_sec = beat_sec
        self._post = post
        self._say = say
        self._closed = threading.Event()
        self._before = (time.monotonic(), progress.step)
        self._beat_at: float | None = None
        self._warned = 0
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def close(self, *, last_words: bool) -> None:
        """End the heartbeats; with ``last_words`` after a last one."""
        self._closed.set()
        self._thread.join(LAST_WORDS_SEC)
        if last_words and not self._thread.is_alive():
            with contextlib.suppress(StoreError, OSError):
                if self._beat_is_due():
                    self._beat()

    def _beat_is_due(self) -> bool:
        """Whether the last heartbeat lacks something that people should know."""
        if self._beat_at is None or len(self._progress.warnings) > self._warned:
            return True
        return time.monotonic() - self._beat_at >= 1.0

    def _run(self) -> None:
        while True:
            try:
                # HEAD first: a fenced attempt does not beat any more.
                self._head_file.check(term=self._term)
                self._beat()
            except (HeadForbidden, StoreError, OSError) as error:
                self._say(f"beat: {error}")
            except HeadError as error:
                self._post(HeadSpoke(error))
                return
            except Exception as error:
                self._post(PulseBroke(error))
                return
            if self._closed.wait(self._beat_sec):
                return

    def _beat(self) -> None:
        progress, store = self._progress, self._head_file.store
        now, step = time.monotonic(), progress.step
        before, step_before = self._before
        self._before = (now, step)
        rate = (step - step_before) / (now - before) if step > step_before else None
        self._latest.read()
        beat = Beat(
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
        self._beat_at, self._warned = now, len(beat.warnings)
        store.put(self._head_file.layout.beat(self._term), beat.to_json())
