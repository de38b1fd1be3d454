"""Reads a checkpoint into a folder, hashing every byte before it is used."""

import errno
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from outlast.base.codec import OtherFormat
from outlast.base.retry import Patience
from outlast.bucket.errors import RestoreError
from outlast.bucket.head import Checkpoint
from outlast.bucket.layout import Manifest, ManifestObject
from outlast.bucket.store import Damaged, Store
from outlast.bucket.transfer import HASHED_BYTES, Place, by_size

_log = logging.getLogger(__name__)

T = TypeVar("T")


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
    """The chain is empty; the run starts at step 0."""

    step: int = 0


class Reader:
    """Downloads and verifies checkpoints; a file that fails is downloaded once more."""

    def __init__(
        self,
        store: Store,
        patience: Patience,
        sign: Callable[[], None] = lambda: None,
    ) -> None:
        """``sign`` is called for each object that was read."""
        self._store = store
        self._patience = patience
        self._sign = sign
        self.size: int | None = None
        """Bytes of the checkpoint that is being or was last read, once known."""

    def of(self, store: Store) -> "Reader":
        """Another one for checkpoints in another store."""
        return Reader(store, self._patience, self._sign)

    def read(
        self,
        checkpoint: Checkpoint,
        into: Path,
        place: Callable[[int], Path] | None = None,
        wanted: Callable[[str], bool] = lambda name: True,
    ) -> tuple[Manifest, Path]:
        """Reads the checkpoint, or its `wanted` files, into the folder `into`, or into one of that
        name in the folder that `place` returns for its size in bytes. Returns the manifest and the
        folder.

        Raises Damaged or NotFound if two downloads fail, and what the store raises.
        """
        manifest = self._twice(checkpoint, lambda: self._manifest(checkpoint))
        files = {name: found for name, found in manifest.files().items() if wanted(name)}
        objects = [entry for entries in files.values() for entry in entries]
        self.size = sum(entry.size for entry in objects)
        if place is not None:
            into = place(self.size) / into.name
        part = into.with_name(f"{into.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            for name, entries in files.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                _make(part / name, sum(entry.size for entry in entries), checkpoint)
            by_size(
                self._store,
                [
                    (
                        entry.size,
                        lambda entry=entry: self._twice(
                            checkpoint, lambda: self._object(checkpoint, entry, part)
                        ),
                    )
                    for entry in objects
                ],
            )
            shutil.rmtree(into, ignore_errors=True)
            os.rename(part, into)
            return manifest, into
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def has(self, checkpoint: Checkpoint, folder: Path) -> bool:
        """Whether the folder holds every file of the checkpoint, byte for byte. Raises Damaged or
        NotFound if the list of its files cannot be read, and what the store raises.
        """
        if not folder.is_dir():
            return False
        manifest = self._twice(checkpoint, lambda: self._manifest(checkpoint))
        try:
            for name, entries in manifest.files().items():
                with (folder / name).open("rb") as file:
                    for entry in entries:
                        hasher, left = blake3(), entry.size
                        while data := file.read(min(left, HASHED_BYTES)):
                            hasher.update(data)
                            left -= len(data)
                        if left or hasher.hexdigest() != entry.blake3:
                            return False
                    if file.read(1):
                        return False
        except OSError:
            return False
        return True

    def _twice(self, checkpoint: Checkpoint, download: Callable[[], T]) -> T:
        try:
            return download()
        except Damaged as error:
            _log.info(f"checkpoint {checkpoint.path}: {error}; downloading it again")
            return download()

    def _object(self, checkpoint: Checkpoint, entry: ManifestObject, into: Path) -> None:
        """Writes the object at its offset in the file, hashing it on the way."""
        path, to = checkpoint.path + entry.name, into / (entry.file or entry.name)

        def once() -> Place:
            with Place(to, entry.offset, blake3(), until=entry.offset + entry.size) as place:
                self._store.stream(path, place, generation=entry.generation)
            return place

        place = self._patience(once)
        found = place.hasher.hexdigest()
        if place.written != entry.size or found != entry.blake3:
            raise Damaged(f"{path}: BLAKE3 is {found}, the committed one is {entry.blake3}")
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
        except OtherFormat as error:
            raise RestoreError(f"{checkpoint.manifest}: {error}") from None
        except ValueError as error:
            raise Damaged(f"{checkpoint.manifest}: {error}") from None


def _make(path: Path, size: int, checkpoint: Checkpoint) -> None:
    """Creates a file of this size; Damaged if no file can be so large."""
    with path.open("wb") as file:
        try:
            file.truncate(size)
        except OSError as error:
            if error.errno not in (errno.EFBIG, errno.EINVAL):
                raise
            raise Damaged(f"{checkpoint.manifest}: {path.name} has {size} bytes") from None
