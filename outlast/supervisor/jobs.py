"""The jobs of the committing thread: commits, the result, and the run's end."""

import contextlib
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.base import exits, scratch_space
from outlast.base.exits import Reason, State
from outlast.base.plain_files import NotPlain, PlainFile
from outlast.bucket import blocks
from outlast.bucket.commit import Committer
from outlast.bucket.errors import CommitError
from outlast.bucket.head import Checkpoint
from outlast.bucket.headfile import HeadFile
from outlast.bucket.part_results import put_manifest
from outlast.bucket.parts import DONE_TAG, Part
from outlast.bucket.store import StoreError
from outlast.protocol import Complete, Snapshot
from outlast.spec.result import PART_RESULT
from outlast.spec.run_spec import RunSpec
from outlast.supervisor.parts import Begin, Folders
from outlast.supervisor.rooms import Rooms
from outlast.supervisor.site import Next, Outcome

ROWS_DROP_BYTES = 1 << 20
"""Approximate maximum size, in bytes, of rows on the disk that are already in the bucket."""


def _is_not_result(name: str) -> bool:
    return not name.startswith(f"{PART_RESULT}/")


@dataclass(frozen=True)
class Made:
    """A finished commit."""

    checkpoint: Checkpoint
    seconds: float


class Jobs:
    """The jobs of one attempt. Each can be repeated after an error of the store."""

    def __init__(
        self,
        spec: RunSpec,
        head_file: HeadFile,
        committer: Committer,
        rows: PlainFile,
        rows_needed: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        """``rows_needed`` returns the byte from which another reader still needs the file of the
        rows. The owner of that file is the user that all files of the trainer must have."""
        self._spec = spec
        self._head_file = head_file
        self._committer = committer
        self._rows_file = rows
        self._owner = rows.owner
        self._rows_needed = rows_needed
        self._rows_dropped = 0
        self._failures = head_file.head.failures
        self._blocks_written = False

    @property
    def chain(self) -> tuple[Checkpoint, ...]:
        """As in the committer."""
        return self._committer.chain

    def parts(self) -> tuple[Part, ...]:
        """As in the committer."""
        return self._committer.parts()

    def commit(self, snapshot: Snapshot, begin: Begin, *, is_end: bool = False) -> Made:
        """Commits a snapshot of the training that started as in ``begin``, and deletes its folder.
        ``is_end``: the snapshot is what a part ended with. The files of its result stay whole, so
        that they can be copied into the run's result."""
        if is_end:
            put_manifest(Path(snapshot.path), self._owner)
        folder = Path(snapshot.path)
        checkpoint = self._committer.commit(
            folder,
            step=begin.before + snapshot.step,
            tags=[DONE_TAG] if is_end else snapshot.tags,
            rows=self._rows_until(snapshot.rows_offset),
            part=begin.part,
            before=begin.before,
            whole=is_end,
            clean=False,
        )
        shutil.rmtree(folder, ignore_errors=True)
        return Made(checkpoint, self._committer.last_commit_sec)

    def read(self, begin: Begin, rooms: Rooms, count: int) -> Folders:
        """Reads what a training starts from, into folders with the number ``count``."""

        state = begin.state if begin.wants_state else None
        return Folders(
            begin,
            self._read(state, rooms, f"state-{count}") if state else None,
            self._read(begin.end, rooms, f"end-{count}", _is_not_result) if begin.end else None,
        )

    def read_result(self, begin: Begin, rooms: Rooms, count: int) -> Path:
        """Reads the result's files of a part that is done; returns their folder."""
        assert begin.end is not None
        is_result = lambda name: not _is_not_result(name)  # noqa: E731
        return self._read(begin.end, rooms, f"result-{count}", is_result) / PART_RESULT

    def _read(
        self,
        entry: Checkpoint,
        rooms: Rooms,
        name: str,
        wanted: Callable[[str], bool] = lambda name: True,
    ) -> Path:
        folder = self._committer.read(
            entry, rooms.given[0] / name, place=rooms.choose, wanted=wanted
        )
        rooms.hand_over(folder)
        return folder

    def clean(self) -> None:
        """Deletes what the last commit dropped. The first call also deletes what lower terms left,
        and writes missing blocks of old attempts' records."""
        self._committer.clean()
        self._drop_rows()
        if self._blocks_written:
            return
        self._blocks_written = True
        head_file = self._head_file
        with contextlib.suppress(StoreError):  # A later attempt does it.
            blocks.write_missing(
                head_file.store,
                head_file.layout,
                self._committer.term,
                patience=head_file.patience,
            )

    def _drop_rows(self) -> None:
        """Frees the disk space of rows that are in the bucket: a run may log for weeks."""
        until = min(self._committer.rows_flushed, self._rows_needed())
        if until - self._rows_dropped >= ROWS_DROP_BYTES:
            with contextlib.suppress(OSError, NotPlain):
                scratch_space.give_back(self._rows_file, until)
            self._rows_dropped = until

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

    def finish_parts(self, parts: Sequence[Part]) -> Outcome:
        """Ends the run as done, because every part is."""
        done = self._committer.finish(State.DONE, Reason.DONE, exit=exits.DONE, parts=parts)
        many = f"{len(parts)} parts" if len(parts) > 1 else "1 part"
        return Outcome(Next.LEAVE, Reason.DONE, f"done with {many}, {done.step} steps in all")

    def finish_pruned(self, why: str) -> Outcome:
        """Ends a sweep's trial that decided to stop; its checkpoints stay."""
        self._committer.finish(State.PRUNED, Reason.PRUNED, why=why)
        return Outcome(Next.LEAVE, Reason.PRUNED, why)

    def finish_failed(self, reason: Reason, message: str, exit_code: int | None) -> Outcome:
        self._committer.finish(State.FAILED, reason, exit=exit_code)
        return Outcome(Next.LEAVE, reason, message)

    def finish_stopped(self, message: str, reason: Reason = Reason.STOPPED) -> Outcome:
        """Ends the run as stopped, at its newest checkpoint."""
        self._committer.finish(State.STOPPED, reason)
        return Outcome(Next.LEAVE, reason, message)

    def count_failure(self, reason: Reason, message: str, exit_code: int | None) -> Outcome:
        """Counts the failure before the retry, so that a crash in between never grants one too
        many."""
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
        try:
            with self._rows_file.open() as rows:
                rows.seek(begin)
                data = rows.read(offset - begin)
        except NotPlain as error:
            raise CommitError(f"rows {error}") from None
        if len(data) != offset - begin:
            raise CommitError(f"rows offset {offset}: {self._rows_file} has only {len(data)} more")
        return data
