"""Commits, restores and ends a run for the holder of a term.

A commit flushes rows, uploads objects under a unique name and a manifest of their hashes, and swaps
HEAD to name the manifest. A large file is uploaded in parts, each a separate object; an object that
the checkpoint before also has is copied inside the store. Only what HEAD's chain names was ever
committed. After a swap that is known to have succeeded, the checkpoints that it dropped are deleted
by generation; a write whose fate is unknown is left to a later term's sweep.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from blake3 import blake3

from outlast.base.exits import Reason, State
from outlast.base.names import LABEL
from outlast.bucket import pages
from outlast.bucket.cleanup import Cleanup
from outlast.bucket.errors import BadSnapshot, RestoreError
from outlast.bucket.head import Checkpoint, End, Head, write_end_copy
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout, Manifest
from outlast.bucket.pages import Folder, PageLost
from outlast.bucket.part_results import put_results
from outlast.bucket.parts import Part
from outlast.bucket.restore import Fresh, Reader, Restored
from outlast.bucket.results import put_result
from outlast.bucket.retention import Retention
from outlast.bucket.rows import PieceWriter
from outlast.bucket.store import (
    Damaged,
    NotFound,
    Store,
    put_new,
)
from outlast.bucket.upload import PART_BYTES, Uploader

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """The speed of commits, as measured so far in this attempt."""

    bytes_per_sec: float
    overhead_sec: float
    """Seconds that a commit takes besides its bytes: the manifest, HEAD."""


def paced(before: Pace | None, sent_bytes: int, upload_sec: float, whole_sec: float) -> Pace | None:
    """The average speed; the newest commit counts as much as all before it. None if no commit has
    sent bytes yet."""
    rate = sent_bytes / upload_sec if sent_bytes and upload_sec > 0 else None
    overhead_sec = whole_sec - upload_sec
    if before is not None:
        rate = before.bytes_per_sec if rate is None else (before.bytes_per_sec + rate) / 2
        overhead_sec = (before.overhead_sec + overhead_sec) / 2
    return before if rate is None else Pace(rate, overhead_sec)


class Committer:
    """Commits and ends a run for the holder of a term. For one thread at a time."""

    def __init__(
        self,
        head_file: HeadFile,
        *,
        retention: Retention | None = None,
        part_bytes: int = PART_BYTES,
        sign: Callable[[], None] = lambda: None,
        owner: int | None = None,
    ) -> None:
        """``sign`` is called for each object that a restore has read. ``owner``: user id that a
        snapshot, a result and their files must have; None for any."""
        self._head_file = head_file
        self.term = head_file.term
        """Fixed: a term that the process takes later belongs to another committer."""
        self._store: Store = head_file.store
        self._layout: Layout = head_file.layout
        self._patience = head_file.patience
        self._retention = retention or Retention()
        self._reader = Reader(self._store, self._patience, sign)
        self._uploader = Uploader(
            self._store,
            self._layout,
            self.term,
            patience=self._patience,
            part_bytes=part_bytes,
            owner=owner,
        )
        self._owner = owner
        self._row_pieces = PieceWriter(
            self._store,
            lambda index, after: self._layout.metrics_piece(self.term, index, after),
            self._patience,
        )
        self.pace: Pace | None = None
        """None before the first commit."""
        self.last_commit_sec = 0.0
        """How long the last commit took, from its first upload until HEAD has it."""
        self.sent_bytes: int | None = None
        """Bytes that the last commit uploaded, without copies; None before the first."""
        self._folder = Folder(
            self._store,
            self._layout,
            self.term,
            patience=self._patience,
            stays=lambda head: self._retention.lasting(head.chain, head.older_chain),
        )
        self._from_step = 0
        self._bad: set[Checkpoint] = set()
        self._cut: Head | None = None
        """HEAD as of the restored checkpoint, if every checkpoint that HEAD itself holds is
        damaged.
        """
        self._cleanup = Cleanup(head_file)
        self._rows = 0

    @property
    def rows_flushed(self) -> int:
        """Bytes of the term's rows that are in the bucket; a commit is given the later ones."""
        return self._row_pieces.flushed

    @property
    def bytes_left(self) -> int:
        """Bytes of the current snapshot that the store does not have yet; for any thread."""
        return self._uploader.bytes_left

    @property
    def restore_bytes(self) -> int | None:
        """Size of the checkpoint that is being or was last restored, once known."""
        return self._reader.size

    # -- restore ------------------------------------------------------------------------------

    def restore(
        self, into: Path, *, place: Callable[[int], Path] | None = None
    ) -> Restored | Fresh:
        """Restores the newest intact checkpoint of the chain into the folder `into`, or into one of
        that name in the folder that `place` returns for its size in bytes.

        Every byte is hashed before it is used. If a hash fails in a second download too, the
        checkpoint before is used, which is logged, and the next swap drops the damaged one. Raises
        RestoreError if all fail, StoreError if the store does not answer (which says nothing about
        a checkpoint), Fenced or HeadEnded if HEAD has changed.

        Each life of a trainer begins with a restore, also after a user failure in the same term:
        its rows are counted from byte 0 again.
        """
        head = self._head_file.held(self.term)
        if not head.kept:
            self._begin(0)
            return Fresh()
        skipped: list[Checkpoint] = []
        lost: list[str] = []
        for checkpoint in self._newest_first(head, lost):
            try:
                manifest, found = self._reader.read(checkpoint, into, place)
            except (Damaged, NotFound) as error:
                # A checkpoint that a successor's retention removed is not damaged: looking at HEAD
                # raises.
                self._patience(lambda: self._head_file.check(term=self.term))
                skipped.append(checkpoint)
                _log.info(f"checkpoint {checkpoint.path}: {error}; trying the one before")
                continue
            self._uploader.note_objects(checkpoint.path, manifest.objects)
            self._bad.update(skipped)
            if checkpoint not in head.chain:
                self._cut = pages.until(
                    self._store,
                    self._layout,
                    head,
                    checkpoint.step,
                    without=skipped,
                    patience=self._patience,
                )
            self._begin(checkpoint.step)
            self._rows = manifest.rows if checkpoint.term == self.term else 0
            return Restored(found, checkpoint.step, checkpoint, tuple(skipped))
        unread = "; ".join(
            [f"none of the {head.kept} checkpoints that are kept can be read", *lost]
        )
        if not self._layout.run:  # A run in a folder, without a stack.
            raise RestoreError(f"{unread}; give another --run-dir to start from scratch")
        raise RestoreError(f"run {self._layout.run}: {unread}; see `outlast repair`")

    def _newest_first(self, head: Head, lost: list[str]) -> Iterator[Checkpoint]:
        """All kept checkpoints; pages that cannot be read are logged and noted in `lost`."""

        def note(error: PageLost) -> None:
            lost.append(str(error))
            _log.info(f"{error}; trying the checkpoints before")

        return pages.newest_first(
            self._store, self._layout, head, lost=note, patience=self._patience
        )

    def read_from(
        self,
        store: Store,
        checkpoint: Checkpoint,
        into: Path,
        *,
        place: Callable[[int], Path] | None = None,
    ) -> Path:
        """Reads another run's checkpoint from that run's store, as `restore` does."""
        reader = self._reader.of(store)
        try:
            return reader.read(checkpoint, into, place)[1]
        finally:
            self._reader.size = reader.size

    def read(
        self,
        checkpoint: Checkpoint,
        into: Path,
        *,
        place: Callable[[int], Path] | None = None,
        wanted: Callable[[str], bool] = lambda name: True,
    ) -> Path:
        """Reads one checkpoint of the chain, or its `wanted` files, into a folder, as `restore`
        does. Raises RestoreError if it cannot be read: there is no earlier one to use.
        """
        try:
            return self._reader.read(checkpoint, into, place, wanted)[1]
        except (Damaged, NotFound) as error:
            self._patience(lambda: self._head_file.check(term=self.term))
            of = f" of part {checkpoint.part}" if checkpoint.part else ""
            raise RestoreError(
                f"checkpoint {checkpoint.path}{of}: cannot be read ({error}); set the run back to "
                "an earlier one with outlast resume --from"
            ) from None

    def _begin(self, step: int) -> None:
        self._from_step = step
        self._row_pieces.begin(step)
        self._rows = 0

    # -- commit -------------------------------------------------------------------------------

    def commit(
        self,
        folder: Path,
        *,
        step: int,
        tags: Iterable[str] = (),
        rows: bytes = b"",
        row_count: int | None = None,
        part: str = "",
        before: int = 0,
        whole: bool = False,
        clean: bool = True,
    ) -> Checkpoint:
        """Commits a snapshot folder; when this returns, it is in HEAD's chain.

        `rows` are the term's rows from byte `rows_flushed` up to the step, as whole lines;
        `row_count`, if given, is their number. `part` and `before` are as in HEAD's chain; `whole`
        files are not cut into parts. A caller that passes `clean=False`, because something waits
        for the checkpoint, calls `clean` afterwards. Raises BadSnapshot, the store's errors
        (nothing is deleted then, because the fate may be unknown) and what HeadFile.swap raises.
        """
        if step < self._from_step:
            raise BadSnapshot(
                f"step {step}: is before the step {self._from_step} that this attempt started at"
            )
        try:
            tags = tuple(LABEL.check(tag, "tag") for tag in tags)
        except ValueError as error:
            raise BadSnapshot(str(error)) from None
        begun = time.monotonic()
        sent = self._uploader.send(
            folder, step, whole=whole, beside=lambda: self.flush_rows(rows, row_count=row_count)
        )
        fold = self._folder.fold(self._whole(self._head_file.held(self.term)))
        term, prefix = self.term, sent.prefix
        manifest = Manifest(
            run=self._layout.run,
            term=term,
            step=step,
            tags=tags,
            rows=self._rows,
            objects=sent.objects,
            part=part,
            before=before,
        ).to_json()
        written = put_new(self._store, f"{prefix}MANIFEST.json", manifest, patience=self._patience)
        checkpoint = Checkpoint(
            path=prefix,
            generation=written.generation,
            blake3=blake3(manifest).hexdigest(),
            term=term,
            step=step,
            tags=tags,
            part=part,
            before=before,
        )
        there: set[Checkpoint] = set()

        def change(head: Head) -> Head:
            nonlocal there
            readable = self._whole(head)
            folded = readable if fold is None else fold.applied(readable)
            there = {*head.chain, *self._bad} - ({*readable.chain} - {*folded.chain})
            # An earlier swap of unknown fate may have been applied; then it is already there.
            others = [entry for entry in folded.chain if entry != checkpoint]
            return replace(
                folded.with_lineage(term, self._from_step),
                chain=self._retention.kept([*others, checkpoint], folded.older_chain),
                no_progress=0,
            )

        after = self._head_file.swap(change, term=self.term)
        self._uploader.committed(sent)
        self.last_commit_sec = time.monotonic() - begun
        self.sent_bytes = sent.sent_bytes
        self.pace = paced(self.pace, sent.sent_bytes, sent.seconds, self.last_commit_sec)
        self._note_dropped(there, after)
        if clean:
            self.clean()
        return checkpoint

    @property
    def chain(self) -> tuple[Checkpoint, ...]:
        """HEAD's own chain, without the checkpoints that the restore could not read."""
        return self._whole(self._head_file.held(self.term)).chain

    def parts(self) -> tuple[Part, ...]:
        """The run's parts, including those in pages, as far as `chain` goes. Raises RestoreError if
        a page cannot be read.
        """
        head = self._whole(self._head_file.held(self.term))
        try:
            return pages.parts(self._store, self._layout, head, patience=self._patience)
        except PageLost as error:
            raise RestoreError(f"the parts of the run are not known: {error}") from None

    def _whole(self, head: Head) -> Head:
        """HEAD without the checkpoints that the restore could not read."""
        if self._cut is not None:
            head = replace(head, chain=self._cut.chain, older_chain=self._cut.older_chain)
        return replace(head, chain=tuple(one for one in head.chain if one not in self._bad))

    def clean(self) -> None:
        """Deletes what the last swap dropped and, once, what lower terms left."""
        self._cleanup.delete_dropped()
        if not self._cleanup.swept:
            self.sweep()

    def sweep(self, *, last: bool = False) -> None:
        """Deletes what lower terms left. Runs only after this term's first successful swap. `last`:
        the run ends, so requests that fail are repeated."""
        self._cleanup.sweep(self._bad, last=last)

    def _note_dropped(self, before: set[Checkpoint], after: Head) -> None:
        """Remembers what a swap that certainly succeeded removed from the chain."""
        self._cleanup.note_dropped(before - {*after.chain})
        self._bad.clear()
        self._cut = None

    def flush_rows(self, rows: bytes, *, row_count: int | None = None) -> None:
        """Appends rows, whole JSON lines, to the term's rows in the bucket.

        If it raises, `rows_flushed` says what is certainly in the bucket; give the same rows again,
        and none is stored twice.
        """
        count = rows.count(b"\n")
        if row_count is not None and row_count != count:
            raise BadSnapshot(f"rows: found {count} lines, {row_count} were announced")
        before = self._row_pieces.flushed
        try:
            self._row_pieces.append(rows)
        finally:
            self._rows += rows[: self._row_pieces.flushed - before].count(b"\n")

    # -- the end ------------------------------------------------------------------------------

    def finish(
        self,
        state: State,
        reason: Reason,
        *,
        exit: int | None = None,
        step: int | None = None,
        result: Path | None = None,
        parts: Sequence[Part] = (),
        why: str = "",
    ) -> Head:
        """Ends the run: result under the term, sweep, HEAD swapped to its end, copy for people.

        `step` defaults to the last committed step; `parts` are all of the run's, for a result with
        the files of each; `why` is the trainer's reason to end before its last step. Everything
        here can be repeated; a boot that finds HEAD ended writes a missing copy.
        """
        if not state.ended:
            raise ValueError(f"state {state}: is not an end")
        written = None
        if result is not None:
            written = put_result(
                self._store,
                self._layout,
                self.term,
                result,
                owner=self._owner,
                patience=self._patience,
            )
        elif parts:
            written = put_results(
                self._store, self._layout, self.term, parts, patience=self._patience
            )
        self.sweep(last=True)
        before: set[Checkpoint] = set()

        def change(head: Head) -> Head:
            nonlocal before
            before = {*head.chain, *self._bad}
            at = head.step if step is None else step
            ended = self._whole(head).with_lineage(self.term, self._from_step)
            return ended.ended(
                state, End(reason=reason, exit=exit, step=at, result=written, why=why)
            )

        after = self._head_file.swap(change, term=self.term)
        self._note_dropped(before, after)
        write_end_copy(self._store, self._layout, after, patience=self._patience)
        return after
