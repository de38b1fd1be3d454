"""Commits, restores and ends: what may be lost, and what cannot be.

A commit is: rows flushed and objects under a name that nobody else has, a manifest of their hashes,
and HEAD swapped to name it. A large file goes in parts, each an object of its own; what is equal to
an object of the checkpoint before is copied inside the store. Only what HEAD's chain names was ever
committed. What a swap that is known to have succeeded dropped is deleted after it, generation by
generation; a write whose fate is unknown is left for a later term's sweep.

    CommitError
    ├── BadSnapshot       the trainer's folder is no snapshot
    └── RestoreError      no checkpoint of the chain can be read
"""

import bisect
import copy
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from outlast.base.exits import Reason, State
from outlast.base.retry import BRIEF, Patience
from outlast.bucket.head import (
    Checkpoint,
    End,
    Head,
    HeadFile,
    HeadForbidden,
    Result,
    new_nonce,
    write_end_copy,
)
from outlast.bucket.layout import (
    Layout,
    Manifest,
    ManifestObject,
    Record,
    ResultFile,
    ResultManifest,
    check_object_name,
)
from outlast.bucket.store import (
    Checksum,
    Damaged,
    NotFound,
    Object,
    Slice,
    Store,
    StoreError,
    copy_new,
    delete_quietly,
    put_new,
)

log = logging.getLogger(__name__)

KEEP_LAST = 3
"""Checkpoints that retention keeps at least, newest first."""

BEST_TAG = "best"
"""Tag of a checkpoint with a new best value; the newest one is kept."""

PART_BYTES = 32 << 20
"""A larger file goes up and down in parts of this size, several at the same time."""

HASHED_BYTES = 1 << 18
"""Read at a time to be hashed; small enough that the second hash finds it in the cache."""

_HASHING = threading.BoundedSemaphore(max(1, (os.cpu_count() or 1) // 2))
"""Parts are hashed on half of the processors: training wants the others, and so does the upload of
the parts before. All at once, the store would get nothing meanwhile, and then all of it."""

AnyRecord = TypeVar("AnyRecord", bound=Record)
T = TypeVar("T")


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


@dataclass(frozen=True)
class _Piece:
    """A file of a snapshot, or a part of a large one: what becomes one object."""

    name: str
    file: str
    path: Path
    offset: int
    size: int


@dataclass
class _Upload:
    """A snapshot on its way up; kept where a try failed, so that only the rest is sent again."""

    identity: tuple[Path, int, int, int]
    prefix: str
    size: int
    written: dict[str, ManifestObject] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Bytes that the store does not have yet."""
        return self.size - sum(entry.size for entry in list(self.written.values()))


class _BadCopy(Exception):
    """A copy inside the store is not what it is a copy of; its name is taken now."""


@dataclass(frozen=True)
class Pace:
    """How fast commits go, as measured so far in this attempt."""

    bytes_per_sec: float
    overhead_sec: float
    """What a commit takes beside its bytes: the manifest, HEAD."""


class Committer:
    """Commits and ends a run for the holder of a term. One thread at a time."""

    def __init__(
        self,
        head_file: HeadFile,
        *,
        retention: Retention | None = None,
        say: Callable[[str], None] = log.warning,
        part_bytes: int = PART_BYTES,
        sign: Callable[[], None] = lambda: None,
    ) -> None:
        """``sign`` is called for each object that a restore has read."""
        self._head_file = head_file
        self._sign = sign
        self.term = head_file.term
        """Fixed: what the head file's process takes later is another committer's."""
        self._store: Store = head_file.store
        self._layout: Layout = head_file.layout
        self._patience = head_file.patience
        self._retention = retention or Retention()
        self._say = say
        self._part_bytes = part_bytes
        self.restore_bytes: int | None = None
        """Size of the checkpoint that is or was restored last, once known."""
        self.pace: Pace | None = None
        """None before the first commit."""
        self.sent_bytes: int | None = None
        """Of the last commit, without what was copied; None before the first one."""
        self._upload: _Upload | None = None
        self._known: dict[tuple[int, str], tuple[str, ManifestObject]] = {}
        """(folder, object) by size and BLAKE3: what the newest checkpoint holds."""
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

    @property
    def bytes_left(self) -> int:
        """Of the snapshot on its way, what the store does not have yet; for any thread."""
        upload = self._upload
        return 0 if upload is None else upload.left

    # -- restore ------------------------------------------------------------------------------

    def restore(
        self, into: Path, *, place: Callable[[int], Path] | None = None
    ) -> Restored | Fresh:
        """Reads the newest checkpoint of the chain that is whole into the folder `into`, or into
        one of that name in the folder that `place` gives for so many bytes.

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
                manifest, found = self._download_twice(checkpoint, into, place)
            except (Damaged, NotFound) as error:
                # What a successor's retention removed is not damaged: HEAD tells, and raises.
                self._patience(lambda: self._head_file.check(term=self.term))
                skipped.append(checkpoint)
                self._say(f"checkpoint {checkpoint.path}: {error}; going to the one before")
                continue
            self._note_objects(checkpoint.path, manifest.objects)
            self._bad.update(skipped)
            self._from_step = checkpoint.step
            self._rows = manifest.rows if checkpoint.term == self.term else 0
            return Restored(found, checkpoint.step, checkpoint, tuple(skipped))
        unread = f"none of the {len(chain)} checkpoints that HEAD names can be read"
        if not self._layout.run:  # a folder, which no stack declares
            raise RestoreError(f"{unread}; give another --run-dir to begin anew")
        raise RestoreError(f"run {self._layout.run}: {unread}; see `outlast repair`")

    def read_from(
        self,
        store: Store,
        checkpoint: Checkpoint,
        into: Path,
        *,
        place: Callable[[int], Path] | None = None,
    ) -> Path:
        """Reads another run's checkpoint from the store of that run, as `restore` reads one."""
        reader = copy.copy(self)
        reader._store = store
        return reader._download_twice(checkpoint, into, place)[1]

    def _download_twice(
        self, checkpoint: Checkpoint, into: Path, place: Callable[[int], Path] | None = None
    ) -> tuple[Manifest, Path]:
        manifest = self._twice(checkpoint, lambda: self._manifest(checkpoint))
        self.restore_bytes = sum(entry.size for entry in manifest.objects)
        if place is not None:
            into = place(self.restore_bytes) / into.name
        part = into.with_name(f"{into.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            for name, entries in manifest.files().items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                with (part / name).open("wb") as file:
                    file.truncate(sum(entry.size for entry in entries))
            in_parallel(
                [
                    lambda entry=entry: self._twice(
                        checkpoint, lambda: self._download_object(checkpoint, entry, part)
                    )
                    for entry in manifest.objects
                ],
                self._store.streams,
            )
            shutil.rmtree(into, ignore_errors=True)
            os.rename(part, into)
            return manifest, into
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _twice(self, checkpoint: Checkpoint, download: Callable[[], T]) -> T:
        try:
            return download()
        except Damaged as error:
            self._say(f"checkpoint {checkpoint.path}: {error}; downloading it again")
            return download()

    def _download_object(self, checkpoint: Checkpoint, entry: ManifestObject, into: Path) -> None:
        """Writes the object to its place in its file, hashed on its way."""
        path, to = checkpoint.path + entry.name, into / (entry.file or entry.name)

        def once() -> _Place:
            with _Place(to, entry.offset, blake3(), until=entry.offset + entry.size) as place:
                self._store.stream(path, place, generation=entry.generation)
            return place

        place = self._patience(once)
        found = place.hasher.hexdigest()
        if place.written != entry.size or found != entry.blake3:
            raise Damaged(f"{path}: BLAKE3 is {found}, committed was {entry.blake3}")
        self._sign()

    def _manifest(self, checkpoint: Checkpoint) -> Manifest:
        data, _ = self._patience(
            lambda: self._store.get(checkpoint.manifest, generation=checkpoint.generation)
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
        clean: bool = True,
    ) -> Checkpoint:
        """Commits a snapshot folder; it is in HEAD's chain when this returns.

        `rows` are the term's rows from byte `rows_flushed` up to the step, whole lines;
        `row_count`, where given, is their number. Who gives `clean` as False, because somebody
        waits for the checkpoint, calls `clean` afterwards. Raises BadSnapshot, the store's errors
        (nothing is cleaned then: the fate may be unknown) and what HeadFile.swap raises.
        """
        if step < self._from_step:
            raise BadSnapshot(
                f"step {step}: is before the step {self._from_step} that this attempt started at"
            )
        begun = time.monotonic()
        pieces = [piece for name, path in snapshot_files(folder) for piece in self._cut(name, path)]
        upload = self._begin_upload(folder, step, pieces)
        try:
            upload_sec, sent_bytes = self._put_objects(
                upload, pieces, beside=lambda: self.flush_rows(rows, row_count=row_count)
            )
        except _BadCopy as error:
            # The name is taken by what is not ours to delete: all of it anew, and not by copies.
            self._say(f"snapshot of step {step}: {error}; uploading it anew")
            self._known.clear()
            self._upload = None
            upload = self._begin_upload(folder, step, pieces)
            upload_sec, sent_bytes = self._put_objects(upload, pieces)
        term, prefix = self.term, upload.prefix
        objects = tuple(upload.written[piece.name] for piece in pieces)
        manifest = Manifest(
            run=self._layout.run,
            term=term,
            step=step,
            tags=tuple(tags),
            rows=self._rows,
            objects=objects,
        ).to_json()
        written = put_new(self._store, f"{prefix}MANIFEST.json", manifest, patience=self._patience)
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
            # An earlier swap of unknown fate may have been applied: it is there already then.
            others = (entry for entry in head.chain if entry != checkpoint)
            whole = (entry for entry in (*others, checkpoint) if entry not in self._bad)
            return replace(
                head.with_lineage(term, self._from_step),
                chain=self._retention.kept(whole),
                barren=0,
            )

        after = self._head_file.swap(change, term=self.term)
        self._upload = None
        self._note_objects(prefix, objects)
        self._note_pace(sent_bytes, upload_sec, time.monotonic() - begun)
        self._note_dropped(before, after)
        if clean:
            self.clean()
        return checkpoint

    def clean(self) -> None:
        """Deletes what the last swap dropped, and once what lower terms left."""
        self._delete_dropped()
        if not self._swept:
            self.sweep()

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
            path = self._layout.metrics_piece(self.term, self._piece)
            put_new(self._store, path, piece, patience=self._patience)
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

    def _cut(self, name: str, path: Path) -> list[_Piece]:
        """The file as one object under its own name, or as parts in a folder of that name."""
        size, step = path.stat().st_size, self._part_bytes
        if size <= step:
            return [_Piece(name, name, path, 0, size)]
        return [
            _Piece(f"{name}/{place // step:06d}", name, path, place, min(step, size - place))
            for place in range(0, size, step)
        ]

    def _begin_upload(self, folder: Path, step: int, pieces: Sequence[_Piece]) -> _Upload:
        """The upload of this folder: the one that was not finished, or a new one."""
        found = folder.stat()
        identity = (folder, found.st_ino, found.st_ctime_ns, step)
        if self._upload is None or self._upload.identity != identity:
            prefix = self._layout.snapshot(self.term, step, new_nonce())
            self._upload = _Upload(identity, prefix, sum(piece.size for piece in pieces))
        return self._upload

    def _put_objects(
        self,
        upload: _Upload,
        pieces: Sequence[_Piece],
        *,
        beside: Callable[[], None] = lambda: None,
    ) -> tuple[float, int]:
        """Writes the pieces that are not written yet, and does what may be done at the same time,
        which is begun first; the seconds it took, and the pieces' bytes that were sent."""
        begun = time.monotonic()
        left = [piece for piece in pieces if piece.name not in upload.written]
        puts = [lambda piece=piece: self._put_piece(upload, piece) for piece in left]
        sent = in_parallel([beside, *puts], self._store.streams)
        return time.monotonic() - begun, sum(count or 0 for count in sent)

    def _put_piece(self, upload: _Upload, piece: _Piece) -> int:
        """Copies or uploads it; gives the bytes that were sent."""
        with _HASHING:
            digest, crc32c = _hashed(piece)
        path = upload.prefix + piece.name
        written, sent_bytes = self._copied(piece, digest, path), 0
        if written is None:
            part = Slice(piece.path, piece.offset, piece.size, crc32c)
            written = put_new(self._store, path, part, patience=self._patience)
            sent_bytes = piece.size
        upload.written[piece.name] = ManifestObject(
            name=piece.name,
            size=written.size,
            crc32c=written.crc32c,
            blake3=digest,
            generation=written.generation,
            file=None if piece.name == piece.file else piece.file,
            offset=piece.offset,
        )
        return sent_bytes

    def _copied(self, piece: _Piece, digest: str, path: str) -> Object | None:
        """A copy of the same bytes in the newest checkpoint; None where there are none."""
        known = self._known.get((piece.size, digest))
        if known is None:
            return None
        folder, entry = known
        try:
            return copy_new(
                self._store,
                folder + entry.name,
                path,
                source_generation=entry.generation,
                expected=(entry.size, entry.crc32c),
                patience=self._patience,
            )
        except Damaged as error:
            raise _BadCopy(str(error)) from None

    def _note_objects(self, folder: str, objects: Iterable[ManifestObject]) -> None:
        self._known = {(entry.size, entry.blake3): (folder, entry) for entry in objects}

    def _note_pace(self, sent_bytes: int, upload_sec: float, whole_sec: float) -> None:
        """The newest commit counts as much as all before it."""
        self.sent_bytes = sent_bytes
        before = self.pace
        rate = sent_bytes / upload_sec if sent_bytes and upload_sec > 0 else None
        overhead_sec = whole_sec - upload_sec
        if before is not None:
            rate = before.bytes_per_sec if rate is None else (before.bytes_per_sec + rate) / 2
            overhead_sec = (before.overhead_sec + overhead_sec) / 2
        if rate is not None:
            self.pace = Pace(rate, overhead_sec)

    # -- retention ----------------------------------------------------------------------------

    def _note_dropped(self, before: Iterable[Checkpoint], after: Head) -> None:
        """Remembers what a swap that is known to have succeeded took out of the chain."""
        kept = set(after.chain)
        self._dropped += [entry for entry in before if entry not in kept]
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
        gone = in_parallel(
            [
                lambda found=found: delete_quietly(self._store, found.path, found.generation)
                for found in self._store.list(folder)
            ],
            self._store.streams,
        )
        return all(gone)

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
        why: str = "",
    ) -> Head:
        """Ends the run: result under the term, sweep, HEAD swapped to its end, copy for people.

        `step` is the last committed step where it is not given; `why`, the trainer's reason to end
        before all its steps were made. Each part can be repeated; a
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
                state, End(reason=reason, exit=exit, step=at, result=written, why=why)
            )

        after = self._head_file.swap(change, term=self.term)
        self._note_dropped(before, after)
        write_end_copy(self._store, self._layout, after, patience=self._patience)
        return after

    def _put_result(self, folder: Path) -> Result:
        prefix = self._layout.result(self.term)

        def put(name: str, path: Path) -> ResultFile:
            sha256, crc32c = _sha256_and_crc32c(path)
            whole = Slice(path, 0, path.stat().st_size, crc32c)
            put_new(self._store, prefix + name, whole, patience=self._patience)
            return ResultFile(name, whole.size, sha256)

        files = in_parallel(
            [lambda name=name, path=path: put(name, path) for name, path in snapshot_files(folder)],
            self._store.streams,
        )
        manifest = ResultManifest.of(files)
        path = self._layout.result_manifest(self.term)
        written = put_new(self._store, path, manifest.to_json(), patience=self._patience)
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
        repeated.sort(key=_step)
        if repeated:
            # Only what is repeated goes, so that all pieces together cost what their rows do.
            del rows[bisect.bisect_left(rows, repeated[0]["step"], key=_step) :]
            rows += repeated
    return rows


def _step(row: Mapping[str, Any]) -> int:
    return row["step"]


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


def write_record(store: Store, path: str, record: Record, *, patience: Patience = BRIEF) -> Object:
    """Writes a record, over an older one too; for those that decide nothing."""
    data = record.to_json()
    return patience(lambda: store.put(path, data))


def fetch_result(
    store: Store, result: Result, into: Path, *, patience: Patience = BRIEF
) -> ResultManifest:
    """Downloads a result into the folder `into` and verifies each file; Damaged where one fails."""
    data, _ = patience(lambda: store.get(f"{result.path}RESULT.json", generation=result.generation))
    try:
        manifest = ResultManifest.from_json(data)
    except ValueError as error:
        raise Damaged(f"{result.path}RESULT.json: {error}") from None
    if manifest.digest != result.digest:
        raise Damaged(
            f"{result.path}RESULT.json: digest is {manifest.digest}, HEAD names {result.digest}"
        )

    def fetch(file: ResultFile) -> None:
        to, path = into / file.name, result.path + file.name

        def once() -> _Place:
            with _Place(to, 0, hashlib.sha256(), until=file.size) as place:
                store.stream(path, place)
            return place

        place = patience(once)
        found = place.hasher.hexdigest()
        if place.written != file.size or found != file.sha256:
            raise Damaged(f"{path}: sha256 is {found}, committed was {file.sha256}")

    for file in manifest.files:
        (into / file.name).parent.mkdir(parents=True, exist_ok=True)
        (into / file.name).write_bytes(b"")
    in_parallel([lambda file=file: fetch(file) for file in manifest.files], store.streams)
    return manifest


def in_parallel(jobs: Sequence[Callable[[], T]], streams: int) -> list[T]:
    """What the jobs give, in their order, `streams` of them at a time.

    Where one raises, the ones not begun are dropped, those under way are waited for, and the error
    of the first job that had one is raised.
    """
    if streams == 1 or len(jobs) <= 1:
        return [job() for job in jobs]
    with ThreadPoolExecutor(min(streams, len(jobs)), "transfer") as pool:
        futures = [pool.submit(job) for job in jobs]
        _, pending = wait(futures, return_when=FIRST_EXCEPTION)
        for future in pending:
            future.cancel()
    return [future.result() for future in futures if not future.cancelled()]


class _Place:
    """A stretch of an existing file to write to, once and in order; hashes what it is given."""

    def __init__(self, file: Path, offset: int, hasher: Any, *, until: int) -> None:
        self._file = file.open("r+b")
        self._at = self._begin = offset
        self._until = until
        self.hasher = hasher

    @property
    def written(self) -> int:
        """Bytes that it was given."""
        return self._at - self._begin

    def write(self, data: bytes) -> int:
        # What is too much would overwrite the neighbour; it counts, and so the size is wrong.
        kept = data[: max(0, self._until - self._at)]
        self._file.seek(self._at)
        self._file.write(kept)
        self.hasher.update(kept)
        self._at += len(data)
        return len(data)

    def __enter__(self) -> "_Place":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


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


def _hashed(piece: _Piece) -> tuple[str, str]:
    """(BLAKE3, CRC32C) in one pass; BadSnapshot where the file has shrunk meanwhile."""
    hasher, checksum = blake3(), Checksum()
    with piece.path.open("rb", buffering=0) as source:
        source.seek(piece.offset)
        while checksum.size < piece.size and (
            data := source.read(min(HASHED_BYTES, piece.size - checksum.size))
        ):
            hasher.update(data)
            checksum.update(data)
    if checksum.size != piece.size:
        raise BadSnapshot(f"snapshot {piece.path}: became shorter while it was read")
    return hasher.hexdigest(), checksum.crc32c


def _sha256_and_crc32c(file: Path) -> tuple[str, str]:
    hasher, checksum = hashlib.sha256(), Checksum()
    with file.open("rb", buffering=0) as source:
        while data := source.read(HASHED_BYTES):
            hasher.update(data)
            checksum.update(data)
    return hasher.hexdigest(), checksum.crc32c
