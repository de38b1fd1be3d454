"""What the committing thread does for an attempt: commits, the result, and the run's end."""

import contextlib
import shutil
import time
from pathlib import Path

from outlast.base import exits
from outlast.base.exits import Reason, State
from outlast.bucket import blocks
from outlast.bucket.commit import Committer
from outlast.bucket.errors import CommitError
from outlast.bucket.headfile import HeadFile
from outlast.bucket.store import StoreError
from outlast.protocol import Complete, Snapshot
from outlast.supervisor.metadata import Spec
from outlast.supervisor.site import Next, Outcome


class Jobs:
    """The jobs of one attempt. Each can be done again after an error of the store."""

    def __init__(
        self, spec: Spec, head_file: HeadFile, committer: Committer, rows_path: Path
    ) -> None:
        self._spec = spec
        self._head_file = head_file
        self._committer = committer
        self._rows_path = rows_path
        self._failures = head_file.head.failures
        self._blocks_written = False

    def commit(self, snapshot: Snapshot) -> float:
        """Seconds that the commit took; the folder is gone then."""
        begun = time.monotonic()
        folder = Path(snapshot.path)
        self._committer.commit(
            folder,
            step=snapshot.step,
            tags=snapshot.tags,
            rows=self._rows_until(snapshot.rows_offset),
            clean=False,
        )
        shutil.rmtree(folder, ignore_errors=True)
        return time.monotonic() - begun

    def clean(self) -> None:
        """Deletes what the last commit dropped; once also what lower terms left, and writes the
        blocks of old attempts' records that are missing."""
        self._committer.clean()
        if self._blocks_written:
            return
        self._blocks_written = True
        head_file = self._head_file
        with contextlib.suppress(StoreError):  # a later attempt does it
            blocks.write_missing(
                head_file.store,
                head_file.layout,
                self._committer.term,
                patience=head_file.patience,
            )

    def finish_done(self, complete: Complete) -> Outcome:
        self._committer.flush_rows(self._rows_until(complete.rows_offset))
        self._committer.finish(
            State.DONE,
            Reason.DONE,
            exit=exits.DONE,
            step=complete.step,
            result=Path(complete.result),
            why=complete.why,
        )
        why = f": {complete.why}" if complete.why else ""
        return Outcome(Next.LEAVE, Reason.DONE, f"done at step {complete.step}{why}")

    def finish_failed(self, reason: Reason, message: str, exit_code: int | None) -> Outcome:
        self._committer.finish(State.FAILED, reason, exit=exit_code)
        return Outcome(Next.LEAVE, reason, message)

    def count_failure(self, reason: Reason, message: str, exit_code: int | None) -> Outcome:
        """Counted before the retry, so that a crash in between grants none too many."""
        granted = self._head_file.count_failure(
            term=self._committer.term,
            before=self._failures,
            retries=self._spec.retries_failures,
        )
        if granted:
            return Outcome(Next.AGAIN, reason, message)
        return self.finish_failed(reason, message, exit_code)

    def _rows_until(self, offset: int) -> bytes:
        begin = self._committer.rows_flushed
        if offset < begin:
            raise CommitError(f"rows offset {offset}: {begin} bytes are committed already")
        with self._rows_path.open("rb") as rows:
            rows.seek(begin)
            data = rows.read(offset - begin)
        if len(data) != offset - begin:
            raise CommitError(f"rows offset {offset}: {self._rows_path} has only {len(data)} more")
        return data
