"""Commits, restores and ends: what may be lost, and what cannot be.

A commit is: rows flushed, objects under a name that nobody else has, a manifest of their hashes,
and HEAD swapped to name it. Only what HEAD's chain names was ever committed. What a swap that is
known to have succeeded dropped is deleted after it, generation by generation; a write whose fate
is unknown is left for a later term's sweep.

    CommitError
    ├── BadSnapshot       the trainer's folder is no snapshot
    └── RestoreError      no checkpoint of the chain can be read
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from outlast.exits import Reason, State
from outlast.layout import (
    Layout,
    Manifest,
    ManifestObject,
    Record,
    ResultFile,
    ResultManifest,
    check_object_name,
)
from outlast.run.head import (
    Checkpoint,
    End,
    Head,
    HeadFile,
    HeadForbidden,
    Result,
    new_nonce,
    write_end_copy,
)
from outlast.run.store import (
    CHUNK_BYTES,
    SYSTEM_CLOCK,
    Clock,
    Damaged,
    NotFound,
    Object,
    Store,
    StoreError,
    checksum_of,
    delete_quietly,
    patiently,
    put_new,
)

log = logging.getLogger(__name__)

KEEP_LAST = 3
"""Checkpoints that retention keeps at least, newest first."""

BEST_TAG = "best"
"""Tag of a checkpoint with a new best value; the newest one is kept."""

AnyRecord = TypeVar("AnyRecord", bound=Record)


class CommitError(Exception):
    """Base of what this module raises itself."""


class BadSnapshot(CommitError):
    """The folder that a trainer handed over is no snapshot."""


class RestoreError(CommitError):
    """No checkpoint that the chain names can be read; the run does not start over by itself."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint was read into `path`."""

    path: Path
    step: int
    checkpoint: Checkpoint
    skipped: tuple[Checkpoint, ...]
    """Newer checkpoints that could not be read; the next swap drops them."""


@dataclass(frozen=True)
class Fresh:
    """The chain is empty: the run starts at step 0."""

    step: int = 0


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the last K, each Nth step's, the newest best."""

    keep_last: int = KEEP_LAST
    keep_every_steps: int | None = None

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ValueError(f"keep_last {self.keep_last}: must be 1 or more")
        if self.keep_every_steps is not None and self.keep_every_steps < 1:
            raise ValueError(f"keep_every_steps {self.keep_every_steps}: must be 1 or more")

    def kept(self, chain: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
        """The part of the chain that stays, in its order; doing it again changes nothing."""
        chain = tuple(chain)
        kept = set(chain[-self.keep_last :])
        kept.update([entry for entry in chain if BEST_TAG in entry.tags][-1:])
        if self.keep_every_steps:
            seen = {0}
            for entry in chain:
                interval = entry.step // self.keep_every_steps
                if interval not in seen:
                    seen.add(interval)
                    kept.add(entry)
        return tuple(entry for entry in chain if entry in kept)


class Committer:
    """Commits and ends a run for the holder of a term. One thread at a time."""

    def __init__(
        self,
        head_file: HeadFile,
        *,
        retention: Retention | None = None,
        say: Callable[[str], None] = log.warning,
    ) -> None:
        self._head_file = head_file
        self.term = head_file.term
        """Fixed: what the head file's process takes later is another committer's."""
        self._store: Store = head_file.store
        self._layout: Layout = head_file.layout
        self._clock: Clock = head_file.clock
        self._retention = retention or Retention()
        self._say = say
        self.restore_bytes: int | None = None
        """Size of the checkpoint that is or was restored last, once known."""
        self._from_step = 0
        self._bad: set[Checkpoint] = set()
        self._dropped: list[Checkpoint] = []
        self._piece = 0
        self._pending_piece: bytes | None = None
        self._rows_flushed = 0
        self._rows = 0
        self._swept = False

    @property
    def rows_flushed(self) -> int:
        """Bytes of the term's rows that are in the bucket; a commit is given those after."""
        return self._rows_flushed

    # -- restore ------------------------------------------------------------------------------

    def restore(self, into: Path) -> Restored | Fresh:
        """Reads the newest checkpoint of the chain that is whole into the folder `into`.

        Every byte is hashed before anybody reads it as anything else. A hash that fails on a
        second download too goes to the checkpoint before; that is said, and the next swap drops
        the bad one. Raises RestoreError where all fail, StoreError where the store does not
        answer (which says nothing about a checkpoint), Fenced or HeadEnded where HEAD went on.

        Begins a trainer's life, also one after a user failure in the same term: its rows are
        counted from byte 0 again.
        """
        self._begin_rows()
        chain = self._head_file.held(self.term).chain
        if not chain:
            self._from_step = 0
            return Fresh()
        skipped: list[Checkpoint] = []
        for checkpoint in reversed(chain):
            try:
                manifest = self._download_twice(checkpoint, into)
            except (Damaged, NotFound) as error:
                # What a successor's retention removed is not damaged: HEAD tells, and raises.
                patiently(lambda: self._head_file.check(term=self.term), clock=self._clock)
                skipped.append(checkpoint)
                self._say(f"checkpoint {checkpoint.path}: {error}; going to the one before")
                continue
            self._bad.update(skipped)
            self._from_step = checkpoint.step
            self._rows = manifest.rows if checkpoint.term == self.term else 0
            return Restored(into, checkpoint.step, checkpoint, tuple(skipped))
        raise RestoreError(
            f"run {self._layout.run}: none of the {len(chain)} checkpoints that HEAD names can be "
            "read; see `outlast repair`"
        )

    def _download_twice(self, checkpoint: Checkpoint, into: Path) -> Manifest:
        try:
            return self._download(checkpoint, into)
        except Damaged as error:
            self._say(f"checkpoint {checkpoint.path}: {error}; downloading it again")
            return self._download(checkpoint, into)

    def _download(self, checkpoint: Checkpoint, into: Path) -> Manifest:
        manifest = self._manifest(checkpoint)
        self.restore_bytes = sum(entry.size for entry in manifest.objects)
        part = into.with_name(f"{into.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            for entry in manifest.objects:
                self._download_object(checkpoint, entry, part / entry.name)
            shutil.rmtree(into, ignore_errors=True)
            os.rename(part, into)
            return manifest
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _download_object(self, checkpoint: Checkpoint, entry: ManifestObject, to: Path) -> None:
        path = checkpoint.path + entry.name
        to.parent.mkdir(parents=True, exist_ok=True)
        patiently(
            lambda: self._store.fetch(path, to, generation=entry.generation), clock=self._clock
        )
        found = _blake3_of(to)
        if to.stat().st_size != entry.size or found != entry.blake3:
            raise Damaged(f"{path}: BLAKE3 is {found}, committed was {entry.blake3}")

    def _manifest(self, checkpoint: Checkpoint) -> Manifest:
        data, _ = patiently(
            lambda: self._store.get(checkpoint.manifest, generation=checkpoint.generation),
            clock=self._clock,
        )
        found = blake3(data).hexdigest()
        if found != checkpoint.blake3:
            raise Damaged(
                f"{checkpoint.manifest}: BLAKE3 is {found}, HEAD names {checkpoint.blake3}"
            )
        try:
            return Manifest.from_json(data)
        except ValueError as error:
            raise Damaged(f"{checkpoint.manifest}: {error}") from None

    # -- commit -------------------------------------------------------------------------------

    def commit(
        self,
        folder: Path,
        *,
        step: int,
        tags: Iterable[str] = (),
        rows: bytes = b"",
        row_count: int | None = None,
    ) -> Checkpoint:
        """Commits a snapshot folder; it is in HEAD's chain when this returns.

        `rows` are the term's rows from byte `rows_flushed` up to the step, whole lines;
        `row_count`, where given, is their number. Raises BadSnapshot, the store's errors (nothing
        is cleaned then: the fate may be unknown) and what HeadFile.swap raises.
        """
        if step < self._from_step:
            raise BadSnapshot(
                f"step {step}: is before the step {self._from_step} that this attempt started at"
            )
        files = snapshot_files(folder)
        self.flush_rows(rows, row_count=row_count)
        term, nonce = self.term, new_nonce()
        prefix = self._layout.snapshot(term, step, nonce)
        objects = tuple(self._put_object(prefix, name, path) for name, path in files)
        manifest = Manifest(
            run=self._layout.run,
            term=term,
            step=step,
            tags=tuple(tags),
            rows=self._rows,
            objects=objects,
        ).to_json()
        written = self._put_new(f"{prefix}MANIFEST.json", manifest)
        checkpoint = Checkpoint(
            path=prefix,
            generation=written.generation,
            blake3=blake3(manifest).hexdigest(),
            term=term,
            step=step,
            tags=tuple(tags),
        )
        before: tuple[Checkpoint, ...] = ()

        def change(head: Head) -> Head:
            nonlocal before
            before = head.chain
            whole = (entry for entry in (*head.chain, checkpoint) if entry not in self._bad)
            return replace(
                head.with_lineage(term, self._from_step),
                chain=self._retention.kept(whole),
                barren=0,
            )

        after = self._head_file.swap(change, term=self.term)
        self._note_dropped(before, after)
        self._delete_dropped()
        if not self._swept:
            self.sweep()
        return checkpoint

    def flush_rows(self, rows: bytes, *, row_count: int | None = None) -> None:
        """Appends rows, whole JSON lines, to the term's rows in the bucket.

        Where it raises, `rows_flushed` tells what is in the bucket for sure; the same rows are
        given again, and none is there twice.
        """
        count = rows.count(b"\n")
        if rows and not rows.endswith(b"\n"):
            raise BadSnapshot("rows: end in mid-line; only whole lines can be flushed")
        if row_count is not None and row_count != count:
            raise BadSnapshot(f"rows: are {count} lines, {row_count} were announced")
        while rows:
            # A piece of unknown fate goes first and unchanged: its name may be taken by now.
            piece = self._pending_piece or rows
            if not rows.startswith(piece):
                raise BadSnapshot("rows: do not go on where the last ones of unknown fate began")
            self._pending_piece = piece
            self._put_new(self._layout.metrics_piece(self.term, self._piece), piece)
            self._pending_piece = None
            self._piece += 1
            self._rows_flushed += len(piece)
            self._rows += piece.count(b"\n")
            rows = rows[len(piece) :]

    def _begin_rows(self) -> None:
        if self._pending_piece is not None:
            # Its name may be taken, or be taken late.
            self._pending_piece = None
            self._piece += 1
        self._rows_flushed = 0
        self._rows = 0

    def _put_object(self, prefix: str, name: str, file: Path) -> ManifestObject:
        digest = _blake3_of(file)
        written = self._put_new(prefix + name, file)
        return ManifestObject(
            name=name,
            size=written.size,
            crc32c=written.crc32c,
            blake3=digest,
            generation=written.generation,
        )

    def _put_new(self, path: str, data: bytes | Path) -> Object:
        expected = checksum_of(data)
        written = put_new(self._store, path, data, clock=self._clock)
        if (written.size, written.crc32c) != expected:
            raise Damaged(
                f"{path}: arrived as {(written.size, written.crc32c)}, sent was {expected}"
            )
        return written

    # -- retention ----------------------------------------------------------------------------

    def _note_dropped(self, before: Iterable[Checkpoint], after: Head) -> None:
        """Remembers what a swap that is known to have succeeded took out of the chain."""
        self._dropped += [entry for entry in before if entry not in after.chain]
        self._bad.clear()

    def _delete_dropped(self) -> None:
        """Deletes dropped checkpoints; what cannot be deleted now is left for the sweep."""
        left = []
        for checkpoint in self._dropped:
            try:
                gone = self._delete_folder(checkpoint.path)
            except StoreError as error:
                gone = False
                self._say(f"checkpoint {checkpoint.path}: was dropped but not deleted ({error})")
            if not gone:
                left.append(checkpoint)
        self._dropped = left

    def _delete_folder(self, folder: str) -> bool:
        """Deletes what is in the folder now, by generation; True where all of it is gone."""
        objects = list(self._store.list(folder))
        return all([delete_quietly(self._store, found.path, found.generation) for found in objects])

    def sweep(self) -> None:
        """Deletes what lower terms left: snapshots and results that HEAD does not name.

        Only after an own swap succeeded, so that no lower term can name them any more. Looks at
        HEAD before each folder: a fenced attempt deletes nothing. What fails is left for later.
        """
        self._delete_dropped()
        term = self.term
        try:
            leftovers = {
                place[1]
                for found in self._store.list(self._layout.terms)
                if (place := self._layout.folder_of(found.path)) and place[0] < term
            }
            for folder in sorted(leftovers):
                head = self._head_file.check(term=self.term)
                if all(entry.path != folder for entry in head.chain):
                    self._delete_folder(folder)
        except (HeadForbidden, StoreError) as error:
            self._say(f"sweep: was not finished ({error}); the next one goes on")
            return
        self._swept = True

    # -- the end ------------------------------------------------------------------------------

    def finish(
        self,
        state: State,
        reason: Reason,
        *,
        exit: int | None = None,
        step: int | None = None,
        result: Path | None = None,
    ) -> Head:
        """Ends the run: result under the term, sweep, HEAD swapped to its end, copy for people.

        `step` is the last committed step where it is not given. Each part can be repeated; a
        boot that finds HEAD ended writes a missing copy.
        """
        if not state.ended:
            raise ValueError(f"state {state}: is no end")
        written = self._put_result(result) if result is not None else None
        self.sweep()
        before: tuple[Checkpoint, ...] = ()

        def change(head: Head) -> Head:
            nonlocal before
            before = head.chain
            at = head.step if step is None else step
            whole = tuple(entry for entry in head.chain if entry not in self._bad)
            ended = head.with_lineage(self.term, self._from_step)
            return replace(ended, chain=whole).ended(
                state, End(reason=reason, exit=exit, step=at, result=written)
            )

        after = self._head_file.swap(change, term=self.term)
        self._note_dropped(before, after)
        write_end_copy(self._store, self._layout, after, clock=self._clock)
        return after

    def _put_result(self, folder: Path) -> Result:
        prefix = self._layout.result(self.term)
        files = []
        for name, path in snapshot_files(folder):
            self._put_new(prefix + name, path)
            files.append(ResultFile(name, path.stat().st_size, _sha256_of(path)))
        manifest = ResultManifest.of(files)
        written = self._put_new(self._layout.result_manifest(self.term), manifest.to_json())
        return Result(path=prefix, generation=written.generation, digest=manifest.digest)


# ---------------------------------------------------------------------------------------------
# Readers


def read_rows(store: Store, layout: Layout, head: Head) -> list[dict[str, Any]]:
    """The rows of the final lineage in the order of their steps, each step from one term only.

    A term owns the steps after its `from` until a later term's. Only steps up to the last
    commit, or up to the end of a finished run, are final.
    """
    last = head.end.step if head.end else head.step
    rows: list[dict[str, Any]] = []
    for index, entry in enumerate(head.lineage):
        until = min([last, *(later.from_step for later in head.lineage[index + 1 :])])
        if until <= entry.from_step:
            continue
        for row in _rows_of_term(store, layout, entry.term):
            if entry.from_step < row["step"] <= until:
                rows.append(row)
    return sorted(rows, key=lambda row: row["step"])


def _rows_of_term(store: Store, layout: Layout, term: int) -> list[dict[str, Any]]:
    """The term's rows; a trainer that began again in the same term replaces what it repeats."""
    rows: list[dict[str, Any]] = []
    for piece in store.list(layout.metrics(term)):
        data, _ = store.get(piece.path, generation=piece.generation)
        repeated = [_row(piece.path, line) for line in data.splitlines()]
        if repeated:
            first = min(row["step"] for row in repeated)
            rows = [row for row in rows if row["step"] < first] + repeated
    return rows


def _row(path: str, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
        step = row["step"]
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{path}: holds a line that is no row: {line[:80]!r}") from None
    if type(step) is not int:
        raise Damaged(f"{path}: step {step!r}: must be a whole number")
    return row


def read_record(store: Store, path: str, kind: type[AnyRecord]) -> AnyRecord | None:
    """The record at `path`; None where there is none, Damaged where it is not one."""
    try:
        data, _ = store.get(path)
    except NotFound:
        return None
    try:
        return kind.from_json(data)
    except ValueError as error:
        raise Damaged(f"{path}: {error}") from None


def write_record(store: Store, path: str, record: Record, *, clock: Clock = SYSTEM_CLOCK) -> Object:
    """Writes a record, over an older one too; for those that decide nothing."""
    data = record.to_json()
    return patiently(lambda: store.put(path, data), clock=clock)


def fetch_result(
    store: Store, result: Result, into: Path, *, clock: Clock = SYSTEM_CLOCK
) -> ResultManifest:
    """Downloads a result into the folder `into` and verifies each file; Damaged where one fails."""
    data, _ = patiently(
        lambda: store.get(f"{result.path}RESULT.json", generation=result.generation), clock=clock
    )
    try:
        manifest = ResultManifest.from_json(data)
    except ValueError as error:
        raise Damaged(f"{result.path}RESULT.json: {error}") from None
    if manifest.digest != result.digest:
        raise Damaged(
            f"{result.path}RESULT.json: digest is {manifest.digest}, HEAD names {result.digest}"
        )
    for file in manifest.files:
        to = into / file.name
        to.parent.mkdir(parents=True, exist_ok=True)
        patiently(lambda f=file, t=to: store.fetch(result.path + f.name, t), clock=clock)
        found = _sha256_of(to)
        if found != file.sha256:
            raise Damaged(
                f"{result.path}{file.name}: sha256 is {found}, committed was {file.sha256}"
            )
    return manifest


def snapshot_files(folder: Path) -> list[tuple[str, Path]]:
    """(name, file) of all files below the folder, sorted by name; BadSnapshot for anything else."""
    if not folder.is_dir():
        raise BadSnapshot(f"snapshot {folder}: is no folder")
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise BadSnapshot(f"snapshot {path}: is neither a plain file nor a folder")
        if path.is_file():
            try:
                name = check_object_name(path.relative_to(folder).as_posix())
            except ValueError as error:
                raise BadSnapshot(f"snapshot {folder}: {error}") from None
            if name in ("MANIFEST.json", "RESULT.json"):
                raise BadSnapshot(f"snapshot {path}: the name is taken; choose another one")
            files.append((name, path))
    if not files:
        raise BadSnapshot(f"snapshot {folder}: is empty")
    return sorted(files)


def _blake3_of(file: Path) -> str:
    hasher = blake3(max_threads=blake3.AUTO)
    hasher.update_mmap(file)
    return hasher.hexdigest()


def _sha256_of(file: Path) -> str:
    hasher = hashlib.sha256()
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()
