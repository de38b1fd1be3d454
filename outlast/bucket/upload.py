"""Uploads a snapshot's folder under a unique name.

A large file is uploaded in parts, each a separate object; objects that the checkpoint before also
has are copied inside the store; after a failure, only the rest is sent again.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from outlast.base.plain_files import PlainFile
from outlast.base.retry import Patience
from outlast.bucket.errors import BadSnapshot
from outlast.bucket.head import new_nonce
from outlast.bucket.layout import Layout, ManifestObject
from outlast.bucket.store import (
    Checksum,
    Damaged,
    Object,
    Slice,
    Store,
    copy_new,
    put_new,
)
from outlast.bucket.transfer import HASHED_BYTES, by_size, snapshot_files

_log = logging.getLogger(__name__)

PART_BYTES = 32 << 20
"""A larger file is transferred in parts of this size, several at a time."""

_HASHING = threading.BoundedSemaphore(max(1, (os.cpu_count() or 1) // 2))
"""Parts are hashed on half of the processors: training and the upload of earlier parts need the
others. If all were hashed at once, the store would get nothing meanwhile, and then everything.
"""


@dataclass(frozen=True)
class _Piece:
    """What becomes one object: a file of a snapshot, or a part of a large one."""

    name: str
    file: str
    path: PlainFile
    offset: int
    size: int


@dataclass
class _Upload:
    """A snapshot being uploaded; kept after a failed try, so that only the rest is sent again."""

    identity: tuple[Path, int, int, int]
    prefix: str
    size: int
    written: dict[str, ManifestObject] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Bytes that the store does not have yet."""
        return self.size - sum(entry.size for entry in list(self.written.values()))


class _BadCopy(Exception):
    """A copy inside the store differs from its source; its name is now taken."""


@dataclass(frozen=True)
class Sent:
    """A snapshot whose objects are all in the store."""

    prefix: str
    objects: tuple[ManifestObject, ...]
    sent_bytes: int
    """Bytes sent in this try, without copies."""
    seconds: float


class Uploader:
    """Uploads the snapshots of one term, one at a time."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        term: int,
        *,
        patience: Patience,
        part_bytes: int = PART_BYTES,
        owner: int | None = None,
    ) -> None:
        """``owner``: user id that a snapshot and its files must have; None for any."""
        self._store = store
        self._layout = layout
        self._term = term
        self._patience = patience
        self.part_bytes = part_bytes
        self._owner = owner
        self._upload: _Upload | None = None
        self._known: dict[tuple[int, str], tuple[str, ManifestObject]] = {}
        """(folder, object) of the newest checkpoint by size and BLAKE3."""

    @property
    def bytes_left(self) -> int:
        """Bytes of the current snapshot that the store does not have yet; for any thread."""
        upload = self._upload
        return 0 if upload is None else upload.left

    def send(
        self, folder: Path, step: int, *, whole: bool = False, beside: Callable[[], None]
    ) -> Sent:
        """Uploads each piece of the folder that the store does not have yet, and at the same time
        calls `beside`, which is started first. A second try continues under the same name. `whole`
        files are one piece each.
        """
        pieces = [
            piece
            for name, path in snapshot_files(folder, self._owner)
            for piece in self._cut(name, path, whole)
        ]
        begun = time.monotonic()
        upload = self._begin(folder, step, pieces)
        while True:
            puts: list[tuple[int, Callable[[], int | None]]] = [
                (piece.size, lambda piece=piece, upload=upload: self._put_piece(upload, piece))
                for piece in pieces
                if piece.name not in upload.written
            ]
            try:
                sent = by_size(self._store, [(sys.maxsize, beside), *puts])
                break
            except _BadCopy as error:
                # The name is taken by an object that we must not delete: send everything again,
                # without copies.
                _log.info(f"snapshot of step {step}: {error}; uploading all of it")
                self._known.clear()
                self._upload, beside = None, lambda: None
                begun, upload = time.monotonic(), self._begin(folder, step, pieces)
        seconds, sent_bytes = time.monotonic() - begun, sum(count or 0 for count in sent)
        objects = tuple(upload.written[piece.name] for piece in pieces)
        return Sent(upload.prefix, objects, sent_bytes, seconds)

    def committed(self, sent: Sent) -> None:
        """Records that HEAD names the snapshot: the next one may copy from it."""
        self._upload = None
        self.note_objects(sent.prefix, sent.objects)

    def note_objects(self, folder: str, objects: Iterable[ManifestObject]) -> None:
        """The objects of the newest checkpoint, from which the next snapshot may copy."""
        self._known = {(entry.size, entry.blake3): (folder, entry) for entry in objects}

    def _cut(self, name: str, path: PlainFile, whole: bool) -> list[_Piece]:
        """The pieces of a file: one object under its name, or parts in a folder of that name."""
        size, step = path.stat().st_size, self.part_bytes
        if whole or size <= step:
            return [_Piece(name, name, path, 0, size)]
        return [
            _Piece(f"{name}/{place // step:06d}", name, path, place, min(step, size - place))
            for place in range(0, size, step)
        ]

    def _begin(self, folder: Path, step: int, pieces: Sequence[_Piece]) -> _Upload:
        """The upload of this folder: the unfinished one, or a new one."""
        found = folder.stat()
        identity = (folder, found.st_ino, found.st_ctime_ns, step)
        if self._upload is None or self._upload.identity != identity:
            prefix = self._layout.snapshot(self._term, step, new_nonce())
            self._upload = _Upload(identity, prefix, sum(piece.size for piece in pieces))
        return self._upload

    def _put_piece(self, upload: _Upload, piece: _Piece) -> int:
        """Copies or uploads a piece; returns the bytes that were sent."""
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
        """Copies the same bytes from the newest checkpoint; None if it does not have them."""
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


def _hashed(piece: _Piece) -> tuple[str, str]:
    """(BLAKE3, CRC32C) in one pass. Raises BadSnapshot if the file has become shorter."""
    hasher, checksum = blake3(), Checksum()
    with piece.path.open("rb", 0) as source:
        source.seek(piece.offset)
        while checksum.size < piece.size and (
            data := source.read(min(HASHED_BYTES, piece.size - checksum.size))
        ):
            hasher.update(data)
            checksum.update(data)
    if checksum.size != piece.size:
        raise BadSnapshot(f"snapshot {piece.path}: became shorter while it was read")
    return hasher.hexdigest(), checksum.crc32c
