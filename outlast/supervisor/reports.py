"""The reports of a running attempt to people: its heartbeat, its trainer's log, its LOG_DIR."""

import math
from pathlib import Path

from outlast.bucket.headfile import HeadFile
from outlast.spec.run_spec import Timeouts
from outlast.supervisor.heartbeat import HeartbeatSender
from outlast.supervisor.latest import Latest
from outlast.supervisor.listener import Post
from outlast.supervisor.logs import Logs
from outlast.supervisor.progress import Progress
from outlast.supervisor.site import Site
from outlast.supervisor.trainer_log import LogUpload


class Reports:
    """The threads that report on one attempt. Only a change of HEAD or an unexpected error in the
    heartbeat ends the attempt."""

    def __init__(self, head_file: HeadFile, site: Site) -> None:
        self._head_file = head_file
        self._site = site
        self._term = head_file.term
        self._heartbeats: HeartbeatSender | None = None
        self._logs: list[LogUpload | Logs] = []

    def begin(self, progress: Progress, latest: Latest, timeouts: Timeouts, post: Post) -> None:
        """Starts the heartbeats and the upload of the trainer's log."""
        self._heartbeats = HeartbeatSender(
            self._head_file,
            self._term,
            progress,
            latest=latest,
            heartbeat_sec=timeouts.heartbeat,
            # On a laptop, which may be offline for long, only a commit has to be in time.
            silence_sec=timeouts.silence if self._site.restarts else math.inf,
            post=post,
            stoppable=self._site.restarts,
        )
        log = self._site.log_of(self._term)
        if log is not None:
            self._logs.append(LogUpload(log, self._put_log_piece, self._head_file.patience))

    def keep(self, log_dir: Path) -> None:
        """Starts to upload the files that the trainer will leave in its LOG_DIR."""
        user = self._site.trainer_user
        if user is None:
            log_dir.mkdir(parents=True, exist_ok=True)
        else:
            user.make(log_dir)
        owner = None if user is None else user.uid
        self._logs.append(Logs(log_dir, self._put_log_file, owner))

    def close(self, *, last_words: bool) -> None:
        """Ends the reports; with ``last_words``, after a last heartbeat and the rest of the logs,
        all at the same time."""
        for part in self._logs:
            part.finish(last_words=last_words)
        if self._heartbeats is not None:
            self._heartbeats.close(last_words=last_words)
        for part in self._logs:
            part.join()

    # Only this attempt writes these names: a repeated write has the same bytes, or more of a file.

    def _put_log_piece(self, index: int, data: bytes) -> None:
        self._head_file.store.put(self._head_file.layout.log_piece(self._term, index), data)

    def _put_log_file(self, name: str, data: bytes) -> None:
        path = self._head_file.layout.log_file(self._term, name)
        self._head_file.store.put(path, self._site.mask.data(data))
