"""Objects with generations: a bucket, a folder or memory behind one contract.

Every write names the generation that it replaces, and a store refuses it where the object has
another one. Reads by generation never mix two versions. A store retries reads by itself and writes
never: whoever wrote knows how to tell its own write after a lost answer.

    StoreError
    ├── NotFound              no such object, or not in this generation
    ├── Forbidden             401 or 403
    ├── PreconditionFailed    the object has another generation
    ├── Throttled             too many writes of one name; nothing was applied
    ├── Unavailable           no answer; a write's fate is unknown
    ├── Doubtful              400 or 409: this try was refused, another one may not be
    ├── Damaged               the bytes do not match their checksum or size
    ├── Foreign               a folder has what is no run's under a name of the run's
    └── Unsupported           this file system cannot keep a run
"""

import base64
import contextlib
import errno
import fcntl
import io
import itertools
import os
import re
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import google_crc32c

from outlast.base.places import FULL, file_system_type
from outlast.base.retry import BRIEF, RETRY_AFTER_MAX_SEC, Patience, Trouble

T = TypeVar("T")

CHUNK_BYTES = 8 * 1024 * 1024

PIECE_BYTES = 1 << 18
"""Read at a time to be hashed and copied: small enough to stay in the processor's cache."""

READ_RETRY_SEC = 60.0
PATIENT_READ_RETRY_SEC = 5.0
"""The same below a Patience, which says what it waits for."""
STALL_SEC = 30.0
"""A chunk that takes longer than this is sent again; an answer may take twice as long."""


class StoreError(Exception):
    """Base of everything that a store raises."""

    trouble: Trouble | None = None
    """What may pass by itself."""
    retry_after_sec: float | None = None
    """The pause that the server asked for, where it did."""


class NotFound(StoreError):
    """No such object, or it has another generation than the one asked for."""


class Forbidden(StoreError):
    """The caller may not do this, or may not yet."""

    trouble = Trouble.FORBIDDEN


class PreconditionFailed(StoreError):
    """The object's generation is not the one that the write named."""


class Throttled(StoreError):
    """Too many writes of one object; nothing was applied."""

    trouble = Trouble.SILENT


class Unavailable(StoreError):
    """No answer came; whether a write was applied, or will be, is unknown."""

    trouble = Trouble.SILENT


class Doubtful(StoreError):
    """The request was called bad or in conflict. Where it was damaged on its way, or met another
    one, the next try is not; nothing was applied."""

    trouble = Trouble.DOUBTFUL


class Damaged(StoreError):
    """Bytes arrived that do not match their checksum or size."""


class Foreign(StoreError):
    """Under the name of an object lies what no run has put there."""


class Unsupported(StoreError):
    """This file system cannot keep a run safely."""


@dataclass(frozen=True)
class Object:
    """What a store knows about one generation of an object."""

    path: str
    generation: int
    size: int
    crc32c: str
    """Base64 of the big-endian CRC32C, as Cloud Storage gives it."""
    updated: datetime
    """Server time at which this generation was written; to the second after a read by
    generation."""


@dataclass(frozen=True)
class Slice:
    """A stretch of a file, as the content of an object of its own."""

    file: Path
    offset: int
    size: int
    crc32c: str
    """Of these bytes: whoever cut the slice has read them, and nobody needs to again."""


Data = bytes | Path | Slice
"""The content of an object: bytes, a whole file, or a stretch of one."""


class Sink(Protocol):
    """Where content is written as it arrives."""

    def write(self, data: bytes, /) -> Any: ...


class Store(Protocol):
    """The contract; tests/bucket/test_store.py holds all implementations to it."""

    url: str
    streams: int
    """Objects that are worth moving at the same time."""
    rewrite_sec: float
    """Seconds to leave between two writes of one object."""

    def get(self, path: str, *, generation: int | None = None) -> tuple[bytes, Object]:
        """The whole content, verified, and what it is the content of."""
        ...

    def fetch(self, path: str, to: Path, *, generation: int | None = None) -> Object:
        """Streams the content into the file `to`, verified; `to` appears whole or not at all."""
        ...

    def read_range(self, path: str, start: int, size: int, *, generation: int) -> bytes:
        """`size` bytes of one generation, from byte `start` on; only their number is checked."""
        ...

    def stream(self, path: str, sink: Sink, *, generation: int | None = None) -> Object:
        """Writes the content to `sink`, verified; after an error what it wrote is void."""
        ...

    def stat(self, path: str) -> Object: ...

    def put(self, path: str, data: Data, *, if_generation_match: int | None = None) -> Object:
        """Writes once, without a retry; 0 means only where the object is absent."""
        ...

    def copy(
        self,
        source: str,
        to: str,
        *,
        source_generation: int,
        if_generation_match: int | None = None,
    ) -> Object:
        """Writes the content of another object once, inside the store; gives the new object.

        A source that has not this generation is NotFound or PreconditionFailed, one whose bytes
        are found not to match its checksum is Damaged.
        """
        ...

    def delete(self, path: str, *, generation: int) -> None:
        """Deletes this generation; another one is PreconditionFailed, none is NotFound."""
        ...

    def list(self, prefix: str) -> Iterator[Object]:
        """All objects whose path starts with `prefix`, sorted by path."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """The names of the folders right below `prefix`, which is empty or ends with a slash;
        sorted. Costs nothing for what lies in them."""
        ...

    def now(self) -> datetime:
        """Server time in UTC."""
        ...


def put_new(
    store: Store,
    path: str,
    data: Data,
    *,
    replaces: int = 0,
    patience: Patience = BRIEF,
) -> Object:
    """Creates an object that only this writer can name, or writes it over its generation
    `replaces`; an earlier try of ours counts as success.

    An object that is there already with other bytes is PreconditionFailed; one that arrived with
    other bytes than were sent is Damaged.
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
        raise Damaged(f"{path}: arrived as {(written.size, written.crc32c)}, sent was {expected}")
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
    """As `put_new`, with the content of an object that is in the store already.

    None where there is no copy to be had: the source is gone, or its bytes are found to be bad.
    Damaged where the copy was made and has not the `expected` (size, CRC32C).
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
                found = None  # the refusal was about something else than this name
            if found is None or (found.size, found.crc32c) != expected:
                raise
            return found

    return patience(once)


def delete_quietly(store: Store, path: str, generation: int) -> bool:
    """Deletes one generation; True where it is gone now, False where that is unknown or refused."""
    try:
        store.delete(path, generation=generation)
    except (NotFound, PreconditionFailed):
        return True
    except StoreError:
        return False
    return True


class Checksum:
    """Size and CRC32C of bytes as they pass by."""

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
    """(size, CRC32C) of the data; a slice knows its own."""
    if isinstance(data, Slice):
        return data.size, data.crc32c
    checksum = Checksum()
    with _opened(data) as file:
        while chunk := file.read(CHUNK_BYTES):
            checksum.update(chunk)
    return checksum.size, checksum.crc32c


def _opened(data: Data) -> Any:
    """The data as a binary file to read from."""
    if isinstance(data, Slice):
        return _Window(data)
    return data.open("rb") if isinstance(data, Path) else io.BytesIO(data)


class _Window(io.RawIOBase):
    """A slice of a file as if it were all of it."""

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


def check_path(path: str) -> str:
    """The path itself, where it can name an object in every store."""
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise StoreError(
            f"object path {path!r}: must be a relative path without empty parts, '.' or '..'"
        )
    return path


def open_store(
    url: str,
    *,
    credentials: Any = None,
    stall_sec: float = STALL_SEC,
    read_retry_sec: float = READ_RETRY_SEC,
) -> Store:
    """The store behind `gs://bucket`, a folder's path, `file:///folder` or `memory:`.

    Credentials are those of google-auth; None takes the machine's own. They concern `gs://` alone,
    and so do `stall_sec` and `read_retry_sec`: for how long a read tries again by itself.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "gs":
        bucket = rest.removeprefix("//").rstrip("/")
        if not bucket or "/" in bucket:
            raise StoreError(f"store {url!r}: must be gs:// and a bucket's name, without a path")
        from google.auth.exceptions import GoogleAuthError

        try:
            return GcsStore(
                bucket,
                credentials=credentials,
                stall_sec=stall_sec,
                read_retry_sec=read_retry_sec,
            )
        except GoogleAuthError as error:
            raise Forbidden(
                f"gs://{bucket}: there are no credentials ({error}); run gcloud auth "
                "application-default login"
            ) from None
    if scheme == "file":
        return FolderStore(Path(urllib.parse.unquote(rest.removeprefix("//"))))
    if url == "memory:":
        return MemoryStore()
    if re.match(r"[a-z][a-z0-9+]*://", url):
        raise StoreError(f"store {url!r}: must be gs://bucket, a folder or memory:")
    return FolderStore(Path(url))


class _Fetching:
    """`fetch` for a store that can `stream`."""

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


# ---------------------------------------------------------------------------------------------
# Memory


class Operation(NamedTuple):
    """One call of a store: the verb, the path and whether it changes anything."""

    verb: str
    path: str
    writes: bool


Around = Callable[[Operation, Callable[[], Any]], Any]
"""Called with each operation and the function that performs it; may fail before or after it."""


class MemoryStore(_Fetching):
    """Objects in this process. Views share the objects and see their own operations only."""

    url = "memory:"
    streams = 1
    """One after another, so that what a test disturbs is the same operation every time."""
    rewrite_sec = 1.0

    def __init__(
        self, *, clock: Callable[[], datetime] | None = None, around: Around | None = None
    ) -> None:
        self._objects: dict[str, tuple[bytes, Object]] = {}
        self._generations = itertools.count(1)
        self._lock = threading.RLock()
        self._clock = clock or (lambda: datetime.now(UTC))
        self._around = around

    def view(self, around: Around | None) -> "MemoryStore":
        """A store over the same objects, whose operations pass through `around`."""
        view = MemoryStore(clock=self._clock, around=around)
        view._objects, view._generations = self._objects, self._generations
        view._lock = self._lock
        return view

    def get(self, path: str, *, generation: int | None = None) -> tuple[bytes, Object]:
        return self._perform("get", path, lambda: self._found(path, generation))

    def stream(self, path: str, sink: Sink, *, generation: int | None = None) -> Object:
        data, found = self._perform("fetch", path, lambda: self._found(path, generation))
        sink.write(data)
        return found

    def read_range(self, path: str, start: int, size: int, *, generation: int) -> bytes:
        data, _ = self._perform("read_range", path, lambda: self._found(path, generation))
        return _whole_range(path, data[start : start + size], start, size)

    def stat(self, path: str) -> Object:
        return self._perform("stat", path, lambda: self._found(path, None)[1])

    def put(self, path: str, data: Data, *, if_generation_match: int | None = None) -> Object:
        with _opened(data) as file:
            content = file.read()

        def apply() -> Object:
            return self._write(path, content, if_generation_match)

        return self._perform("put", path, apply, writes=True)

    def copy(
        self,
        source: str,
        to: str,
        *,
        source_generation: int,
        if_generation_match: int | None = None,
    ) -> Object:
        def apply() -> Object:
            content, found = self._found(source, source_generation)
            _verify(found, checksum_of(content))
            return self._write(to, content, if_generation_match)

        return self._perform("copy", to, apply, writes=True)

    def _write(self, path: str, content: bytes, if_generation_match: int | None) -> Object:
        current = self._objects.get(check_path(path))
        _check_generation(path, current[1].generation if current else 0, if_generation_match)
        size, crc32c = checksum_of(content)
        written = Object(path, next(self._generations), size, crc32c, self.now())
        self._objects[path] = (content, written)
        return written

    def delete(self, path: str, *, generation: int) -> None:
        def apply() -> None:
            _check_generation(path, self._found(path, None)[1].generation, generation)
            del self._objects[path]

        self._perform("delete", path, apply, writes=True)

    def list(self, prefix: str) -> Iterator[Object]:
        def apply() -> list[Object]:
            return [
                self._objects[path][1] for path in sorted(self._objects) if path.startswith(prefix)
            ]

        return iter(self._perform("list", prefix, apply))

    def folders(self, prefix: str) -> Iterator[str]:
        rests = (found.path[len(prefix) :] for found in self.list(prefix))
        return iter(sorted({rest.partition("/")[0] for rest in rests if "/" in rest}))

    def now(self) -> datetime:
        return self._clock()

    def _found(self, path: str, generation: int | None) -> tuple[bytes, Object]:
        entry = self._objects.get(check_path(path))
        if entry is None or generation not in (None, entry[1].generation):
            raise _not_found(path, generation)
        return entry

    def _perform(self, verb: str, path: str, apply: Callable[[], T], *, writes: bool = False) -> T:
        def locked() -> T:
            with self._lock:
                return apply()

        if self._around is None:
            return locked()
        return self._around(Operation(verb, path, writes), locked)


def _check_generation(path: str, found: int, expected: int | None) -> None:
    if expected is not None and found != expected:
        raise PreconditionFailed(f"{path}: has generation {found}, the write named {expected}")


def _not_found(path: str, generation: int | None) -> NotFound:
    which = "" if generation is None else f" in generation {generation}"
    return NotFound(f"{path}: no such object{which}")


def _whole_range(path: str, data: bytes, start: int, size: int) -> bytes:
    if len(data) != size:
        raise Damaged(f"{path}: {len(data)} bytes came from byte {start} on, asked were {size}")
    return data


def _verify(found: Object, actual: tuple[int, str]) -> None:
    if (found.size, found.crc32c) != actual:
        raise Damaged(
            f"{found.path}: has size and CRC32C {actual}, written were {(found.size, found.crc32c)}"
        )


# ---------------------------------------------------------------------------------------------
# A folder


class FolderStore(_Fetching):
    """Objects as files of a folder on a local disk.

    Each object is a symbolic link to `.objects/<generation>-<size>-<crc32c>`, so that one rename
    changes content, generation and checksum together, a reader needs no lock, and a copy of the
    folder is the same run. Writers exclude each other by `flock` on `.objects/lock`; a write
    that is killed at any instant leaves the old object or the new one.
    """

    streams = 2
    """More only wait for one another's writing to the disk."""
    rewrite_sec = 0.0

    # A generation is a moment in microseconds: 17 digits last until the year 5138.
    _BLOB = re.compile(r"([0-9]{1,17})-([0-9]+)-([0-9a-f]{8})")
    _COUNTER = re.compile(rb"[0-9]{1,16}")
    _LOCK_SECONDS = 20.0

    # On these a lock holds on this machine only, or not at all, or a rename is not atomic.
    _REFUSED_TYPES = re.compile(r"nfs\d*|cifs|smb\d*|smbfs|afs|9p|ncpfs|fuse\.(?!fuse-overlayfs).*")

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.path.abspath(folder))
        self.url = self._folder.as_uri()
        self._blobs = self._folder / ".objects"
        if self._folder.exists() and not self._folder.is_dir():
            raise Unsupported(f"run folder {self._folder}: is a file; give a folder")
        entries = [self._blobs, *self._blobs.parents]
        entries = list(itertools.takewhile(lambda folder: not folder.exists(), entries))
        self._blobs.mkdir(parents=True, exist_ok=True)
        for folder in entries:
            _sync_folder(folder.parent)
        self._lasting: set[Path] = set()
        """Folders whose entries in their parents are on the disk."""
        self._threads = threading.RLock()
        self._syncs = _Syncs()
        self._refuse_type()
        self._refuse_without_locks()
        self._cleared = False
        """Whether what killed writers left is cleared away: readers of a large run leave it."""

    def get(self, path: str, *, generation: int | None = None) -> tuple[bytes, Object]:
        with self._opened(path, generation) as (file, found):
            data = file.read()
        _verify(found, checksum_of(data))
        return data, found

    def stream(self, path: str, sink: Sink, *, generation: int | None = None) -> Object:
        with self._opened(path, generation) as (file, found):
            checksum = _poured(file, sink)
        _verify(found, (checksum.size, checksum.crc32c))
        return found

    def read_range(self, path: str, start: int, size: int, *, generation: int) -> bytes:
        with self._opened(path, generation) as (file, _):
            file.seek(start)
            data = file.read(size)
        return _whole_range(path, data, start, size)

    def stat(self, path: str) -> Object:
        found = self._linked(path)
        if found is None:
            raise _not_found(path, None)
        return found[1]

    def put(self, path: str, data: Data, *, if_generation_match: int | None = None) -> Object:
        self._clear_once()
        with self._room(), _opened(data) as source:
            return self._put(path, source, if_generation_match)

    def copy(
        self,
        source: str,
        to: str,
        *,
        source_generation: int,
        if_generation_match: int | None = None,
    ) -> Object:
        self._clear_once()
        with self._room(), self._opened(source, source_generation) as (file, found):
            return self._put(to, file, if_generation_match, expected=found)

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Has the error of a full disk name this folder: the system says it of no file."""
        try:
            yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise OSError(error.errno, error.strerror, str(self._folder)) from None

    def _put(
        self,
        path: str,
        source: Any,
        if_generation_match: int | None,
        *,
        expected: Object | None = None,
    ) -> Object:
        link = self._folder / check_path(path)
        with self._staged(source) as (staged, size, crc32c):
            if expected is not None:
                _verify(expected, (size, crc32c))
            with self._locked() as counter:
                current = self._linked(path)
                _check_generation(
                    path, current[1].generation if current else 0, if_generation_match
                )
                generation = self._next_generation(counter, current)
                crc_hex = base64.b64decode(crc32c).hex()
                blob = self._blobs / f"{generation}-{size}-{crc_hex}"
                os.rename(staged, blob)
                self._link(link, blob)
        self._sync_entry(link)
        if current:
            current[0].unlink(missing_ok=True)
        return Object(path, generation, size, crc32c, _moment(generation))

    def _sync_entry(self, link: Path) -> None:
        """Makes a link and its blob last, and the folders on the way to it."""
        folders = itertools.takewhile(lambda folder: folder != self._folder, link.parents)
        fresh = [folder for folder in folders if folder not in self._lasting]
        self._syncs.sync(self._blobs, link.parent, *(folder.parent for folder in fresh))
        self._lasting.update(fresh)

    def delete(self, path: str, *, generation: int) -> None:
        with self._locked():
            current = self._linked(path)
            if current is None:
                raise _not_found(path, None)
            _check_generation(path, current[1].generation, generation)
            link = self._folder / path
            link.unlink()
        self._syncs.sync(link.parent)
        current[0].unlink(missing_ok=True)
        with self._locked():
            # Folders are nothing in a bucket: the empty ones go with their last object.
            for parent in link.relative_to(self._folder).parents[:-1]:
                try:
                    (self._folder / parent).rmdir()
                except OSError:
                    break
                self._lasting.discard(self._folder / parent)

    def list(self, prefix: str) -> Iterator[Object]:
        folder = self._folder / prefix.rpartition("/")[0]
        found = []
        for root, folders, files in os.walk(folder):
            if Path(root) == self._folder:
                folders[:] = [name for name in folders if name != self._blobs.name]
            for name in files:
                path = (Path(root) / name).relative_to(self._folder).as_posix()
                if not path.startswith(prefix):
                    continue
                # A file that somebody put there is no object; only its name is taken.
                with contextlib.suppress(StoreError):
                    if entry := self._linked(path):
                        found.append(entry[1])
        return iter(sorted(found, key=lambda entry: entry.path))

    def folders(self, prefix: str) -> Iterator[str]:
        folder = self._folder / prefix
        entries = folder.iterdir() if folder.is_dir() else ()
        return iter(sorted(one.name for one in entries if one.is_dir() and one != self._blobs))

    def now(self) -> datetime:
        return datetime.now(UTC)

    def _linked(self, path: str) -> tuple[Path, Object] | None:
        """The blob that a path's link names, and what its name says; None where absent."""
        link = self._folder / check_path(path)
        try:
            target = os.readlink(link)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            raise Foreign(f"{link}: is no object of this run; move it out of the folder") from None
        match = self._BLOB.fullmatch(os.path.basename(target))
        if match is None:
            raise Foreign(f"{link}: links to {target}, which is no object of this run")
        crc32c = base64.b64encode(bytes.fromhex(match[3])).decode()
        generation = int(match[1])
        known = Object(path, generation, int(match[2]), crc32c, _moment(generation))
        return self._blobs / match[0], known

    @contextlib.contextmanager
    def _opened(self, path: str, generation: int | None) -> Iterator[tuple[Any, Object]]:
        while True:
            entry = self._linked(path)
            if entry is None or generation not in (None, entry[1].generation):
                raise _not_found(path, generation)
            try:
                file = entry[0].open("rb")
            except FileNotFoundError:
                # Replaced between the two looks, unless the link still names what is gone.
                if self._linked(path) == entry:
                    raise Damaged(f"{path}: its content {entry[0]} is gone") from None
                continue
            with file:
                yield file, entry[1]
            return

    @contextlib.contextmanager
    def _staged(self, source: Any) -> Iterator[tuple[Path, int, str]]:
        """A synced copy of the data beside the blobs; locked, so that no other clears it away."""
        staged = self._blobs / f"part-{uuid.uuid4().hex}"
        try:
            with contextlib.ExitStack() as stack:
                with self._locked():
                    copy = stack.enter_context(staged.open("wb"))
                    fcntl.flock(copy, fcntl.LOCK_EX)
                checksum = _poured(source, copy, written=lambda size: _write_out(copy, size))
                copy.flush()
                os.fsync(copy.fileno())
                yield staged, checksum.size, checksum.crc32c
        finally:
            staged.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Excludes every other writer; gives the lock file, which keeps the last generation."""
        limit = time.monotonic() + self._LOCK_SECONDS
        with self._threads:
            descriptor = os.open(self._blobs / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            try:
                while True:
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > limit:
                            raise Unavailable(
                                f"{self._folder}: another process has held its lock for "
                                f"{self._LOCK_SECONDS:.0f} s"
                            ) from None
                        time.sleep(0.01)
                yield descriptor
            finally:
                os.close(descriptor)

    def _next_generation(self, counter: int, current: tuple[Path, Object] | None) -> int:
        """Higher than every one before, also of deleted objects: microseconds, never repeated."""
        floor = max(self._last_generation(counter), current[1].generation if current else 0)
        generation = max(time.time_ns() // 1000, floor + 1)
        os.pwrite(counter, f"{generation:<32}".encode(), 0)
        os.ftruncate(counter, 32)
        return generation

    def _last_generation(self, counter: int) -> int:
        """What the lock file keeps; where that is no generation, the highest among the blobs."""
        kept = os.pread(counter, 64, 0).strip()
        if self._COUNTER.fullmatch(kept):
            return int(kept)
        names = (self._BLOB.fullmatch(entry.name) for entry in self._blobs.iterdir())
        return max((int(match[1]) for match in names if match), default=0)

    def _link(self, link: Path, blob: Path) -> None:
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
            target = os.path.relpath(blob, link.parent)
            fresh = self._blobs / f"link-{uuid.uuid4().hex}"
            # The link is made beside the blobs and renamed: relative to where it will be.
            os.symlink(target, fresh)
            os.replace(fresh, link)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            blob.unlink(missing_ok=True)
            raise StoreError(
                f"{link}: a folder and an object cannot have one name in a run folder"
            ) from None
        except OSError as error:
            blob.unlink(missing_ok=True)
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            raise Unsupported(
                f"run folder {self._folder}: its file system has no symbolic links; "
                "use a local disk or gs://"
            ) from None

    def _clear_once(self) -> None:
        """Before this process's first write: looking through a large run takes a while."""
        with self._threads:
            if not self._cleared:
                self._drop_orphans()
                self._cleared = True

    def _drop_orphans(self) -> None:
        """Clears away what killed writers left: staged files nobody holds, blobs nobody names."""
        with self._locked():
            named = {
                os.path.basename(os.readlink(Path(root) / name))
                for root, folders, files in os.walk(self._folder)
                if self._blobs not in (Path(root), *Path(root).parents)
                for name in files
                if (Path(root) / name).is_symlink()
            }
            for entry in sorted(self._blobs.iterdir()):
                if entry.name.startswith(("part-", "probe-")):
                    with contextlib.suppress(OSError), entry.open("rb") as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        entry.unlink(missing_ok=True)
                elif entry.name.startswith("link-") or (
                    self._BLOB.fullmatch(entry.name) and entry.name not in named
                ):
                    entry.unlink(missing_ok=True)

    def _refuse_type(self) -> None:
        kind = file_system_type(self._folder)
        if kind and self._REFUSED_TYPES.fullmatch(kind):
            raise Unsupported(
                f"run folder {self._folder}: is on {kind}, where locks or renames "
                "do not hold; use a local disk or gs://"
            )

    def _refuse_without_locks(self) -> None:
        """Two open files must exclude each other, or two attempts could write at once."""
        advice = "use a local disk or gs://"
        probe = self._blobs / f"probe-{uuid.uuid4().hex}"
        try:
            with probe.open("wb") as first, probe.open("rb") as second:
                try:
                    fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise Unsupported(
                        f"run folder {self._folder}: its file system has no locks "
                        f"({error.strerror}); {advice}"
                    ) from None
                try:
                    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    pass
                else:
                    raise Unsupported(
                        f"run folder {self._folder}: flock does not exclude on its "
                        f"file system; {advice}"
                    )
        finally:
            probe.unlink(missing_ok=True)


def _poured(
    source: Any, sink: Sink, *, written: Callable[[int], None] = lambda size: None
) -> Checksum:
    """Copies what is left of a file to the sink; tells `written` after each piece how much."""
    checksum = Checksum()
    while piece := source.read(PIECE_BYTES):
        checksum.update(piece)
        sink.write(piece)
        written(checksum.size)
    return checksum


def _write_out(file: Any, size: int) -> None:
    """Has the system begin to write a growing file to the disk, each time that it has grown by
    `CHUNK_BYTES`: the sync at its end finds less to do."""
    if size % CHUNK_BYTES == 0 and hasattr(os, "posix_fadvise"):
        file.flush()
        start = size - CHUNK_BYTES
        os.posix_fadvise(file.fileno(), start, CHUNK_BYTES, os.POSIX_FADV_DONTNEED)


def _moment(generation: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=generation)


class _Syncs:
    """Makes names in folders last; threads that wait for it at the same time share one sync."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turn = threading.Lock()
        self._due: set[Path] = set()
        self._asked = 0
        self._done = 0

    def sync(self, *folders: Path) -> None:
        """Returns once what was in these folders when it was called is on the disk."""
        with self._guard:
            self._asked += 1
            mine = self._asked
            self._due.update(folders)
        with self._turn:
            if self._done >= mine:
                return
            with self._guard:
                until, due, self._due = self._asked, self._due, set()
            try:
                for folder in due:
                    # A folder that is gone holds nothing that could be lost.
                    with contextlib.suppress(FileNotFoundError):
                        _sync_folder(folder)
            except BaseException:
                with self._guard:
                    self._due |= due  # for the others that asked
                raise
            self._done = until


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------------------------------
# Cloud Storage


class GcsStore(_Fetching):
    """A bucket through google-cloud-storage; honours STORAGE_EMULATOR_HOST.

    On a VM the metadata server's token is used, in the local cloud too: without it the client
    would be anonymous there, and permissions would not be rehearsed.
    """

    streams = 4
    rewrite_sec = 1.0  # Cloud Storage takes one write of one name a second

    _NO_RETRY: Any = None
    _NO_CHECKSUM: Any = None

    def __init__(
        self,
        bucket: str,
        *,
        credentials: Any = None,
        stall_sec: float = STALL_SEC,
        read_retry_sec: float = READ_RETRY_SEC,
    ) -> None:
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import AuthorizedSession
        from google.cloud import storage
        from google.cloud.storage.retry import DEFAULT_RETRY

        # Else the client asks for the bucket itself, from a thread of its own, for traces that
        # nobody collects: a request that the VM's service account may not make.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        self.url = f"gs://{bucket}"
        self._server: tuple[datetime, float] | None = None
        # Sending a chunk (and connecting before it), and waiting for an answer; the client hands
        # it to requests, which takes a pair. A stalled upload ends with the first.
        self._timeout: Any = (stall_sec, 2 * stall_sec)
        self._read_retry: Any = _Obedient(DEFAULT_RETRY.with_timeout(read_retry_sec))
        self._chunk_retry: Any = _Obedient(DEFAULT_RETRY.with_timeout(READ_RETRY_SEC))
        credentials = credentials or _machine_credentials()
        if isinstance(credentials, AnonymousCredentials):
            session = _anonymous_session()
        else:
            session = AuthorizedSession(credentials)
        self._last = threading.local()
        session.hooks["response"].append(self._note)
        self._session = session
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        options = ClientOptions(api_endpoint=emulator) if emulator else None
        self._client = storage.Client(
            project="outlast", credentials=credentials, _http=session, client_options=options
        )
        self._bucket = self._client.bucket(bucket)

    def close(self) -> None:
        """Closes the connections."""
        self._session.close()

    def get(self, path: str, *, generation: int | None = None) -> tuple[bytes, Object]:
        content = io.BytesIO()
        found = self.stream(path, content, generation=generation)
        return content.getvalue(), found

    def stream(self, path: str, sink: Sink, *, generation: int | None = None) -> Object:
        counted = _Counted(sink)

        def download(blob: Any) -> None:
            # The client does not verify what it resumed in the middle; we do, all of it.
            blob.download_to_file(
                counted,
                raw_download=True,
                checksum=self._NO_CHECKSUM,
                timeout=self._timeout,
                retry=self._read_retry,
            )

        found = self._read(path, generation, download)
        if (counted.checksum.size, counted.checksum.crc32c) != (found.size, found.crc32c):
            raise Damaged(f"{path}: the bytes that arrived do not match its CRC32C or size")
        return found

    def read_range(self, path: str, start: int, size: int, *, generation: int) -> bytes:
        blob = self._bucket.blob(check_path(path), generation=generation)
        with self._mapped(path):
            data = blob.download_as_bytes(
                start=start,
                end=start + size - 1,
                raw_download=True,
                checksum=self._NO_CHECKSUM,
                timeout=self._timeout,
                retry=self._read_retry,
            )
        return _whole_range(path, data, start, size)

    def stat(self, path: str) -> Object:
        blob = self._bucket.blob(check_path(path))
        with self._mapped(path):
            blob.reload(timeout=self._timeout, retry=self._read_retry)
        return _object(blob)

    def put(self, path: str, data: Data, *, if_generation_match: int | None = None) -> Object:
        blob = self._bucket.blob(check_path(path), chunk_size=CHUNK_BYTES)
        size, crc32c = checksum_of(data)
        blob.crc32c = crc32c  # sent along: the server refuses other bytes
        # Large objects go up in chunks, which the client may send again: their session knows
        # which it has.
        with self._mapped(path), _opened(data) as file:
            blob.upload_from_file(
                file,
                size=size,
                content_type="application/octet-stream",
                if_generation_match=if_generation_match,
                checksum=self._NO_CHECKSUM,
                timeout=self._timeout,
                retry=self._NO_RETRY if size <= CHUNK_BYTES else self._chunk_retry,
            )
        written = _object(blob)
        if (written.size, written.crc32c) != (size, crc32c):
            raise Damaged(
                f"{path}: arrived with size {written.size} and CRC32C {written.crc32c}, "
                f"sent were {size} and {crc32c}"
            )
        return written

    def copy(
        self,
        source: str,
        to: str,
        *,
        source_generation: int,
        if_generation_match: int | None = None,
    ) -> Object:
        blob = self._bucket.blob(check_path(to))
        origin = self._bucket.blob(check_path(source), generation=source_generation)
        token = None
        with self._mapped(to):
            while True:
                token, _, _ = blob.rewrite(
                    origin,
                    token=token,
                    if_generation_match=if_generation_match,
                    if_source_generation_match=source_generation,
                    timeout=self._timeout,
                    retry=self._NO_RETRY,
                )
                if token is None:
                    return _object(blob)

    def delete(self, path: str, *, generation: int) -> None:
        # Without a generation in the name, so that another one is refused and not just absent.
        blob = self._bucket.blob(check_path(path))
        with self._mapped(path):
            blob.delete(if_generation_match=generation, timeout=self._timeout, retry=self._NO_RETRY)

    def list(self, prefix: str) -> Iterator[Object]:
        with self._listing(prefix) as blobs:
            return iter(sorted((_object(blob) for blob in blobs), key=lambda found: found.path))

    def folders(self, prefix: str) -> Iterator[str]:
        with self._listing(prefix, delimiter="/") as blobs:
            for _ in blobs:  # the folders come with the pages
                pass
            return iter(sorted(path[len(prefix) : -1] for path in blobs.prefixes))

    @contextlib.contextmanager
    def _listing(self, prefix: str, **more: Any) -> Iterator[Any]:
        try:
            with self._mapped(prefix):
                yield self._client.list_blobs(
                    self._bucket,
                    prefix=prefix,
                    timeout=self._timeout,
                    retry=self._read_retry,
                    **more,
                )
        except NotFound:  # a prefix without objects is an empty list
            raise NotFound(
                f"{self.url}: there is no such bucket; make it, or name another"
            ) from None

    def now(self) -> datetime:
        if self._server is None:
            with contextlib.suppress(NotFound, Forbidden):
                self.stat("outlast-clock")
        if self._server is None:
            raise Unavailable(f"{self.url}: the server's answer had no Date")
        moment, at = self._server
        return moment + timedelta(seconds=time.monotonic() - at)

    def _note(self, response: Any, *_: Any, **__: Any) -> None:
        self._last.headers = response.headers
        if response.raw is not None:
            _widen(response.raw)
        try:
            moment = parsedate_to_datetime(response.headers["Date"])
        except (KeyError, ValueError, TypeError):
            return
        self._server = (moment.astimezone(UTC), time.monotonic())

    def _read(self, path: str, generation: int | None, download: Callable[[Any], None]) -> Object:
        """Downloads exactly one generation and tells which."""
        if generation is not None:
            with self._mapped(path):
                download(self._bucket.blob(check_path(path), generation=generation))
            return self._answered(path, generation)
        for _ in range(8):
            found = self.stat(path)
            try:
                with self._mapped(path):
                    download(self._bucket.blob(path, generation=found.generation))
                return found
            except NotFound:
                continue  # rewritten between the two requests; the next look sees the new one
        raise Unavailable(f"{path}: was rewritten during each of eight reads")

    def _answered(self, path: str, generation: int) -> Object:
        """What the download that this thread made last says of its object."""
        headers = self._last.headers
        hashes = (item.strip().partition("=") for item in headers.get("X-Goog-Hash", "").split(","))
        crc32c = {kind: value for kind, _, value in hashes}.get("crc32c")
        size = headers.get("X-Goog-Stored-Content-Length")
        since = headers.get("Last-Modified")
        named = headers.get("X-Goog-Generation") == str(generation)
        if not (crc32c and size and since and named):
            # What went on after a cut may say less.
            found = self.stat(path)
            if found.generation != generation:
                raise _not_found(path, generation)
            return found
        updated = parsedate_to_datetime(since).astimezone(UTC)
        return Object(path, generation, int(size), crc32c, updated)

    @contextlib.contextmanager
    def _mapped(self, path: str) -> Iterator[None]:
        """Turns the clients' exceptions into this module's tree."""
        import requests
        from google.api_core import exceptions as api
        from google.auth import exceptions as auth
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

        try:
            yield
        except api.RetryError as error:
            status = getattr(error.cause, "code", None)
            status = getattr(getattr(error.cause, "response", None), "status_code", status)
            raise _error_of_status(path, status, error) from error
        except api.GoogleAPICallError as error:
            raise _error_of_status(path, error.code, error) from error
        except InvalidResponse as error:
            raise _error_of_status(path, error.response.status_code, error) from error
        except DataCorruption as error:
            raise Damaged(f"{path}: {error}") from error
        except (requests.exceptions.RequestException, auth.GoogleAuthError) as error:
            raise Unavailable(f"{path}: {_in_short(error)}") from error
        except (ConnectionError, TimeoutError) as error:
            raise Unavailable(f"{path}: {error}") from error


def _object(blob: Any) -> Object:
    if blob.generation is None or blob.size is None or not blob.crc32c or blob.updated is None:
        raise Unavailable(f"{blob.name}: the answer lacks generation, size, CRC32C or time")
    return Object(
        blob.name, int(blob.generation), int(blob.size), blob.crc32c, blob.updated.astimezone(UTC)
    )


def _error_of_status(path: str, status: int | None, error: Exception) -> StoreError:
    kinds: dict[int | None, type[StoreError]] = {
        401: Forbidden,
        403: Forbidden,
        404: NotFound,
        400: Doubtful,
        409: Doubtful,
        412: PreconditionFailed,
        429: Throttled,
        408: Unavailable,
        None: Unavailable,
    }
    kind = kinds.get(status, Unavailable if (status or 0) >= 500 else StoreError)
    if status in (404, 410) and _is_upload_session(error):
        # Cloud Storage forgets a session now and then; the next try opens another.
        kind = Unavailable
    found = kind(f"{path}: {_in_short(error)}")
    found.retry_after_sec = _retry_after(error)
    _close_answer(error)
    return found


def _in_short(error: Any) -> str:
    """An error for people: of a connection, where to and why, without the request."""
    import requests

    cause = getattr(error, "cause", None) or error
    if not isinstance(cause, requests.exceptions.ConnectionError | requests.exceptions.Timeout):
        return str(cause)
    asked = getattr(getattr(cause, "request", None), "url", None)
    to = urllib.parse.urlsplit(asked).netloc if asked else "the server"
    if isinstance(cause, requests.exceptions.Timeout):
        return f"no answer from {to}"
    why = re.search(r"\[Errno [-0-9]+\] [^'\")]+", str(cause))
    return f"the connection to {to} failed ({why[0] if why else type(cause).__name__})"


def _is_upload_session(error: Any) -> bool:
    """Whether the answer is to a chunk of a large object, not to the request that opened it."""
    response = getattr(getattr(error, "cause", None) or error, "response", None)
    request = getattr(response, "request", None)
    return request is not None and request.method == "PUT" and "upload_id=" in (request.url or "")


def _close_answer(error: Any) -> None:
    """Gives the connection back of an answer that the client did not read to its end."""
    response = getattr(getattr(error, "cause", None) or error, "response", None)
    if response is not None:
        response.close()


def _retry_after(error: Any) -> float | None:
    """The pause in seconds that an answer asked for, as a number or as a time; else None."""
    response = getattr(getattr(error, "cause", None) or error, "response", None)
    text = getattr(response, "headers", {}).get("Retry-After", "")
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return None


class _Obedient:
    """The client's own retry, and the pause that the server asked for before each of its tries."""

    def __init__(self, retry: Any) -> None:
        self._retry = retry

    def __call__(self, call: Callable[..., T]) -> Callable[..., T]:
        return self._retry(call, on_error=self._pause)

    def _pause(self, error: Exception) -> None:
        _close_answer(error)
        time.sleep(min(_retry_after(error) or 0.0, RETRY_AFTER_MAX_SEC))


def _widen(raw: Any) -> None:
    """Has an answer's body handed over in pieces that are worth hashing and writing; the client
    asks for 8 KiB at a time, which takes longer than the bytes do."""
    stream = raw.stream

    def wide(amt: int = 0, decode_content: bool | None = None) -> Iterator[bytes]:
        return stream(max(amt, PIECE_BYTES), decode_content=decode_content)

    raw.stream = wide


class _Counted:
    """A sink that knows the checksum of what went through it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.checksum = Checksum()

    def write(self, data: bytes) -> int:
        self.checksum.update(data)
        self._sink.write(data)
        return len(data)


def _anonymous_session() -> Any:
    import requests

    return requests.Session()


def _machine_credentials() -> Any:
    """The metadata server's token where this is a VM; else whatever the client finds itself."""
    import google.auth
    from google.auth import compute_engine
    from google.auth.credentials import AnonymousCredentials

    if os.environ.get("GCE_METADATA_HOST"):
        return compute_engine.Credentials()
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        return AnonymousCredentials()
    return google.auth.default(scopes=["https://www.googleapis.com/auth/devstorage.read_write"])[0]
