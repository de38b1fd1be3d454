"""The contract of every store: objects with generations, the errors, and shared code.

Every write names the generation that it replaces; a store refuses the write if the object has
another one. Reads by generation never mix two versions. A store retries reads by itself, but never
writes: the writer can recognise its own write after a lost answer.

    StoreError
    ├── NotFound no such object, or not this generation
    ├── Forbidden             401 or 403
    ├── PreconditionFailed    the object has another generation
    ├── Throttled             too many writes of one name; nothing was applied
    ├── Unavailable           no answer; a write's fate is unknown
    ├── Doubtful              400 or 409: this try was refused, another one may not be
    ├── PayerMissing          the bucket lets the requester pay, and the request names no project
    ├── Damaged               the bytes do not match their checksum or size
    ├── Foreign a folder holds something foreign under a name of the run
    └── Unsupported           this file system cannot keep a run
"""

import base64
import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import google_crc32c

from outlast.base.names import check_object_name
from outlast.base.plain_files import PlainFile
from outlast.base.retry import BRIEF, ONCE, Patience, Trouble
from outlast.base.visible import VisibleError

CHUNK_BYTES = 8 * 1024 * 1024

PIECE_BYTES = 1 << 18
"""Bytes that are read at a time to be hashed and copied: small enough for the processor's cache."""

STALL_SEC = 30.0
"""Seconds after which a chunk is sent again; an answer may take twice as long."""


class StoreError(VisibleError):
    """Base of all errors of a store."""

    trouble: Trouble | None = None
    """An error that may pass by itself."""
    retry_after_sec: float | None = None
    """The pause in seconds that the server asked for, if any."""


class NotFound(StoreError):
    """No such object, or it has another generation than the requested one."""


class Forbidden(StoreError):
    """The caller may not do this, or not yet."""

    trouble = Trouble.FORBIDDEN


class PreconditionFailed(StoreError):
    """The object has another generation than the one that the write named."""


class Throttled(StoreError):
    """Too many writes of one object; nothing was applied."""

    trouble = Trouble.SILENT


class Unavailable(StoreError):
    """No answer; whether a write was or will be applied is unknown."""

    trouble = Trouble.SILENT


class Doubtful(StoreError):
    """The server called the request bad or in conflict; nothing was applied. If it was damaged on
    its way or met another request, the next try may succeed.
    """

    trouble = Trouble.DOUBTFUL


class PayerMissing(StoreError):
    """The bucket lets the requester pay, and the request named no project that does."""


class Damaged(StoreError):
    """The bytes that arrived do not match their checksum or size."""


class TooLarge(Damaged):
    """An object to read into memory is larger than any that a run writes for that."""


class Foreign(StoreError):
    """The name of an object is taken by something that no run has put there."""


class Unsupported(StoreError):
    """This file system cannot keep a run safely."""


@dataclass(frozen=True)
class Object:
    """One generation of an object, as a store describes it."""

    path: str
    generation: int
    size: int
    crc32c: str
    """Base64 of the big-endian CRC32C, as Cloud Storage gives it."""
    updated: datetime
    """Server time of this generation's write; after a read by generation, only to the second. A
    copy from another bucket has its original's."""


@dataclass(frozen=True)
class Slice:
    """A range of a file, as the content of a separate object."""

    file: Path | PlainFile
    offset: int
    size: int
    crc32c: str
    """Checksum of these bytes: they were read when the slice was cut and need not be read again."""


GET_BYTES_MAX = 64 << 20
"""The most bytes of an object that is read into memory: records and pieces. Manifests are the
longest; one of this size names about 300,000 files.
"""

Data = bytes | Path | Slice
"""The content of an object: bytes, a whole file, or a range of one."""


class Sink(Protocol):
    """Receives content as it arrives."""

    def write(self, data: bytes, /) -> Any: ...


class ReadOnlyStore(Protocol):
    """What readers of records need of a store."""

    url: str
    streams: int
    """How many objects it makes sense to transfer at the same time."""

    def get(self, path: str, *, generation: int | None = None) -> tuple[bytes, Object]:
        """Reads the whole content, verified, and its description. Raises TooLarge above
        `GET_BYTES_MAX`, without reading more.
        """
        ...

    def list(self, prefix: str, *, glob: str = "") -> Iterator[Object]:
        """All objects whose path starts with `prefix`, sorted by path; with `glob`, only those
        whose whole path matches it: `*` within a folder, and `{a,b}`. A bucket does the matching.
        """
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """The sorted names of the folders directly below `prefix`, which is empty or ends with a
        slash. Their content does not make it slower.
        """
        ...

    def now(self) -> datetime:
        """Server time in UTC."""
        ...


class Store(ReadOnlyStore, Protocol):
    """The contract of a store; tests/bucket/test_store.py tests all implementations."""

    rewrite_sec: float
    """The least seconds between two writes of one object."""

    def fetch(self, path: str, to: Path, *, generation: int | None = None) -> Object:
        """Streams the content into the file `to`, verified; `to` appears complete or not at all."""
        ...

    def read_range(self, path: str, start: int, size: int, *, generation: int) -> bytes:
        """Reads `size` bytes of one generation, from byte `start`; only their number is checked."""
        ...

    def stream(self, path: str, sink: Sink, *, generation: int | None = None) -> Object:
        """Writes the content to `sink`, verified; after an error, discard what it wrote."""
        ...

    def stat(self, path: str) -> Object: ...

    def put(self, path: str, data: Data, *, if_generation_match: int | None = None) -> Object:
        """Writes once, without a retry; 0 means only if the object is absent."""
        ...

    def copy(
        self,
        source: str,
        to: str,
        *,
        source_generation: int,
        if_generation_match: int | None = None,
    ) -> Object:
        """Copies another object once, inside the store; returns the new object.

        Raises NotFound or PreconditionFailed if the source has another generation, Damaged if its
        bytes do not match its checksum.
        """
        ...

    def delete(self, path: str, *, generation: int) -> None:
        """Deletes this generation. Raises PreconditionFailed if there is another one, NotFound if
        there is none.
        """
        ...


class BucketStore(Store, Protocol):
    """A store that can take objects from another one of its kind."""

    def take(self, origin: Any, source: Object, *, if_generation_match: int) -> Object:
        """Copies this generation of another bucket's object once, without its bytes passing
        through this machine; it keeps its name and time. Raises as `copy` does.
        """
        ...


def put_new(
    store: Store,
    path: str,
    data: Data,
    *,
    replaces: int = 0,
    patience: Patience = BRIEF,
) -> Object:
    """Creates an object whose name only this writer uses, or replaces its generation `replaces`; an
    earlier try of ours counts as success.

    Raises PreconditionFailed if the object exists with other bytes, Damaged if other bytes arrived
    than were sent.
    """
    expected = checksum_of(data)
    written = _create(
        store,
        path,
        lambda: store.put(path, data, if_generation_match=replaces),
        expected,
        patience,
    )
    if (written.size, written.crc32c) != expected:
        raise Damaged(
            f"{path}: arrived as {(written.size, written.crc32c)}, but {expected} was sent"
        )
    return written


def copy_new(
    store: Store,
    source: str,
    path: str,
    *,
    source_generation: int,
    expected: tuple[int, str],
    patience: Patience = BRIEF,
) -> Object | None:
    """Like `put_new`, with the content of an object that is already in the store.

    None if no copy is possible: the source no longer exists, or its bytes are damaged. Raises
    Damaged if the copy does not have the `expected` (size, CRC32C).
    """

    def once() -> Object:
        return store.copy(source, path, source_generation=source_generation, if_generation_match=0)

    try:
        written = _create(store, path, once, expected, patience)
    except (NotFound, PreconditionFailed, Damaged):
        return None
    if (written.size, written.crc32c) != expected:
        raise Damaged(f"{path}: was copied as {(written.size, written.crc32c)}, not {expected}")
    return written


def _create(
    store: Store,
    path: str,
    write: Callable[[], Object],
    expected: tuple[int, str],
    patience: Patience,
) -> Object:
    def once() -> Object:
        try:
            return write()
        except PreconditionFailed:
            try:
                found = store.stat(path)
            except NotFound:
                found = None  # The refusal was not about this name.
            if found is None or (found.size, found.crc32c) != expected:
                raise
            return found

    return patience(once)


def delete_quietly(store: Store, path: str, generation: int, *, patience: Patience = ONCE) -> bool:
    """Deletes one generation; True if it no longer exists, False if that is unknown or refused."""
    try:
        patience(lambda: store.delete(path, generation=generation))
    except (NotFound, PreconditionFailed):
        return True
    except StoreError:
        return False
    return True


class Checksum:
    """Computes size and CRC32C of passing bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._crc = google_crc32c.Checksum()

    def update(self, data: bytes) -> None:
        self.size += len(data)
        self._crc.update(data)

    @property
    def crc32c(self) -> str:
        return base64.b64encode(self._crc.digest()).decode()


def checksum_of(data: Data) -> tuple[int, str]:
    """(size, CRC32C) of the data; a slice already knows them."""
    if isinstance(data, Slice):
        return data.size, data.crc32c
    checksum = Checksum()
    with opened(data) as file:
        while chunk := file.read(CHUNK_BYTES):
            checksum.update(chunk)
    return checksum.size, checksum.crc32c


def opened(data: Data) -> Any:
    """The data as a binary file for reading."""
    if isinstance(data, Slice):
        return _Window(data)
    return data.open("rb") if isinstance(data, Path) else io.BytesIO(data)


class _Window(io.RawIOBase):
    """A file object that shows only a slice of a file."""

    def __init__(self, part: Slice) -> None:
        self._part = part
        self._file = part.file.open("rb")
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        left = self._part.size - self._at
        size = left if size is None or size < 0 else min(size, left)
        data = b""
        if size > 0:
            data = os.pread(self._file.fileno(), size, self._part.offset + self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._part.size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


def matcher(glob: str) -> Callable[[str], object]:
    """Whether a path matches a glob of `Store.list`; every path does if it is empty."""
    signs = {"*": "[^/]*", "{": "(?:", ",": "|", "}": ")"}
    pattern = "".join(signs.get(sign, re.escape(sign)) for sign in glob)
    return re.compile(pattern if glob else ".*", re.DOTALL).fullmatch


def check_path(path: str) -> str:
    """Returns the path if it can name an object in every store."""
    try:
        return check_object_name(path, "object path")
    except ValueError as error:
        raise StoreError(str(error)) from None


class Fetching:
    """`fetch`, for a store that has `stream`."""

    def fetch(self, path: str, to: Path, *, generation: int | None = None) -> Object:
        part = to.with_name(f"{to.name}.part")
        try:
            with part.open("wb") as file:
                found = self.stream(path, file, generation=generation)
            os.replace(part, to)
        finally:
            part.unlink(missing_ok=True)
        return found

    def stream(self, path: str, sink: Sink, *, generation: int | None = None) -> Object:
        raise NotImplementedError


def check_generation(path: str, found: int, expected: int | None) -> None:
    if expected is not None and found != expected:
        raise PreconditionFailed(f"{path}: has generation {found}, the write named {expected}")


def not_found(path: str, generation: int | None) -> NotFound:
    which = "" if generation is None else f" in generation {generation}"
    return NotFound(f"{path}: no such object{which}")


def whole_range(path: str, data: bytes, start: int, size: int) -> bytes:
    if len(data) != size:
        raise Damaged(f"{path}: {len(data)} bytes came from byte {start} on, {size} were requested")
    return data


def verify(found: Object, actual: tuple[int, str]) -> None:
    if (found.size, found.crc32c) != actual:
        raise Damaged(
            f"{found.path}: has size and CRC32C {actual}, but {(found.size, found.crc32c)} was"
            " written"
        )


def too_large(path: str) -> TooLarge:
    return TooLarge(
        f"{path}: has more than {GET_BYTES_MAX >> 20} MiB, which no record of a run has"
    )
