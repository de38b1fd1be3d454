"""A store in a folder on a local disk."""

import base64
import contextlib
import errno
import fcntl
import itertools
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from outlast.base.file_lock import try_lock
from outlast.base.scratch_space import FULL, file_system_type
from outlast.bucket.store import trust
from outlast.bucket.store.contract import (
    CHUNK_BYTES,
    GET_BYTES_MAX,
    PIECE_BYTES,
    Checksum,
    Damaged,
    Data,
    Fetching,
    Foreign,
    Object,
    Sink,
    StoreError,
    Unavailable,
    Unsupported,
    check_generation,
    check_path,
    checksum_of,
    matcher,
    not_found,
    opened,
    too_large,
    verify,
    whole_range,
)

_REFUSED_TYPES = re.compile(r"nfs\d*|cifs|smb\d*|smbfs|afs|9p|ncpfs|fuse\.(?!fuse-overlayfs).*")
"""File systems on which a lock works only on this machine, or not at all, or a rename is not
atomic.
"""

_FOLDER_MODE = 0o775
"""Mode of new folders, before the umask."""


class FolderStore(Fetching):
    """A store whose objects are files of a folder on a local disk.

    Each object is a symbolic link to `.objects/<generation>-<size>-<crc32c>`, so that one rename
    changes content, generation and checksum together, a reader needs no lock, and a copy of the
    folder is the same run. Writers exclude each other by `flock` on `.objects/lock`; a write
    that is killed at any instant leaves the old object or the new one.
    """

    streams = 2
    """More would only wait for each other's writes."""
    rewrite_sec = 0.0

    # A generation is a moment in microseconds: 17 digits last until the year 5138.
    _BLOB = re.compile(r"([0-9]{1,17})-([0-9]{1,18})-([0-9a-f]{8})")
    _COUNTER = re.compile(rb"[0-9]{1,16}")
    _LEFT = re.compile(r"(part|probe|link)-[0-9a-f]{1,32}")
    _LOCK_SECONDS = 20.0

    def __init__(self, folder: Path, *, reading: bool = False) -> None:
        """``reading``: create, lock and delete nothing before the first write, if any: the run may
        be another user's, or come out of an archive.
        """
        self._folder = Path(os.path.abspath(folder))
        self.url = self._folder.as_uri()
        self._blobs = self._folder / ".objects"
        if self._folder.exists() and not self._folder.is_dir():
            raise Unsupported(f"run folder {self._folder}: is a file; give a folder")
        trust.check_folder(self._blobs)
        self._lasting: set[Path] = set()
        """Folders whose entries in their parents are synced to the disk."""
        self._threads = threading.RLock()
        self._syncs = _Syncs()
        self._is_ready = False
        self._cleared = False
        """Whether leftovers of killed writers were deleted; readers of a large run leave them."""
        if not reading:
            self._make_ready()

    def _make_ready(self) -> None:
        """Opens the folder for writing. Raises Unsupported or Foreign if nothing can or must be
        written here.
        """
        with self._threads:
            if self._is_ready:
                return
            for folder in _make_folders(self._blobs):
                _sync_folder(folder.parent)
            trust.check_owner(self._folder)
            trust.check_folder(self._blobs)
            trust.check_owner(self._blobs)
            _refuse_type(self._folder)
            _refuse_without_locks(self._folder, self._blobs)
            self._is_ready = True

    def get(self, path: str, *, generation: int | None = None) -> tuple[bytes, Object]:
        with self._opened(path, generation) as (file, found):
            data = file.read(GET_BYTES_MAX + 1)
        if len(data) > GET_BYTES_MAX:
            raise too_large(path)
        verify(found, checksum_of(data))
        return data, found

    def stream(self, path: str, sink: Sink, *, generation: int | None = None) -> Object:
        with self._opened(path, generation) as (file, found):
            checksum = _poured(file, sink)
        verify(found, (checksum.size, checksum.crc32c))
        return found

    def read_range(self, path: str, start: int, size: int, *, generation: int) -> bytes:
        with self._opened(path, generation) as (file, _):
            file.seek(start)
            data = file.read(size)
        return whole_range(path, data, start, size)

    def stat(self, path: str) -> Object:
        found = self._linked(path)
        if found is None:
            raise not_found(path, None)
        return found[1]

    def put(self, path: str, data: Data, *, if_generation_match: int | None = None) -> Object:
        self._clear_once()
        with self._room(), opened(data) as source:
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
        """Adds the folder to ENOSPC errors, which carry no path."""
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
        trust.check_way(self._folder, path.rpartition("/")[0], writing=True)
        with self._staged(source) as (staged, size, crc32c):
            if expected is not None:
                verify(expected, (size, crc32c))
            with self._locked() as counter:
                current = self._linked(path)
                check_generation(path, current[1].generation if current else 0, if_generation_match)
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
        """Syncs a link, its blob and the folders above to the disk."""
        folders = itertools.takewhile(lambda folder: folder != self._folder, link.parents)
        fresh = [folder for folder in folders if folder not in self._lasting]
        self._syncs.sync(self._blobs, link.parent, *(folder.parent for folder in fresh))
        self._lasting.update(fresh)

    def delete(self, path: str, *, generation: int) -> None:
        self._make_ready()
        with self._locked():
            current = self._linked(path)
            if current is None:
                raise not_found(path, None)
            check_generation(path, current[1].generation, generation)
            trust.check_way(self._folder, path.rpartition("/")[0], writing=True)
            link = self._folder / path
            link.unlink()
        self._syncs.sync(link.parent)
        current[0].unlink(missing_ok=True)
        with self._locked():
            # Buckets have no folders, so empty ones are deleted with their last object.
            for parent in link.relative_to(self._folder).parents[:-1]:
                try:
                    (self._folder / parent).rmdir()
                except OSError:
                    break
                self._lasting.discard(self._folder / parent)

    def list(self, prefix: str, *, glob: str = "") -> Iterator[Object]:
        matches = matcher(glob)
        folder = self._folder / prefix.rpartition("/")[0]
        trust.check_way(self._folder, prefix.rpartition("/")[0])
        found = []
        for root, folders, files in os.walk(folder):
            if Path(root) == self._folder:
                folders[:] = [name for name in folders if name != self._blobs.name]
            for name in files:
                path = (Path(root) / name).relative_to(self._folder).as_posix()
                if not (path.startswith(prefix) and matches(path)):
                    continue
                # A foreign file is not an object; it only takes the name.
                with contextlib.suppress(StoreError):
                    if entry := self._linked(path):
                        found.append(entry[1])
        return iter(sorted(found, key=lambda entry: entry.path))

    def folders(self, prefix: str) -> Iterator[str]:
        folder = self._folder / prefix
        trust.check_way(self._folder, prefix)
        entries = list(os.scandir(folder)) if folder.is_dir() else []
        names = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
        is_top = folder == self._folder
        return iter(sorted(name for name in names if not is_top or name != self._blobs.name))

    def now(self) -> datetime:
        return datetime.now(UTC)

    def _linked(self, path: str) -> tuple[Path, Object] | None:
        """The blob that a path's link names, and the data in its name; None if absent."""
        link = f"{self._folder}/{check_path(path)}"
        trust.check_way(self._folder, path.rpartition("/")[0])
        try:
            target = os.readlink(link)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            raise Foreign(
                f"{link}: is not an object of this run; move it out of the folder"
            ) from None
        match = self._BLOB.fullmatch(os.path.basename(target))
        if match is None:
            raise Foreign(f"{link}: links to {target}, which is not an object of this run")
        crc32c = base64.b64encode(bytes.fromhex(match[3])).decode()
        generation = int(match[1])
        known = Object(path, generation, int(match[2]), crc32c, _moment(generation))
        return self._blobs / match[0], known

    @contextlib.contextmanager
    def _opened(self, path: str, generation: int | None) -> Iterator[tuple[Any, Object]]:
        while True:
            entry = self._linked(path)
            if entry is None or generation not in (None, entry[1].generation):
                raise not_found(path, generation)
            try:
                file = trust.open_file(entry[0], os.O_RDONLY)
            except FileNotFoundError:
                # The object was replaced between the two reads, unless the link still names the
                # missing blob.
                if self._linked(path) == entry:
                    raise Damaged(f"{path}: its content {entry[0]} is missing") from None
                continue
            with open(file, "rb") as content:
                yield content, entry[1]
            return

    @contextlib.contextmanager
    def _staged(self, source: Any) -> Iterator[tuple[Path, int, str]]:
        """Writes a synced copy of the data beside the blobs, locked so that no other process
        deletes it.
        """
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
        """Excludes every other writer; yields the lock file, which stores the last generation."""
        limit = time.monotonic() + self._LOCK_SECONDS
        with self._threads:
            lock = self._blobs / "lock"
            descriptor = trust.open_file(lock, os.O_RDWR | os.O_CREAT)
            try:
                trust.check_alone(lock, descriptor)
                while not try_lock(descriptor):
                    if time.monotonic() > limit:
                        raise Unavailable(
                            f"{self._folder}: another process has held its lock for "
                            f"{self._LOCK_SECONDS:.0f} s"
                        )
                    time.sleep(0.01)
                yield descriptor
            finally:
                os.close(descriptor)

    def _next_generation(self, counter: int, current: tuple[Path, Object] | None) -> int:
        """A new generation: microseconds, higher than all before, including those of deleted
        objects.
        """
        floor = max(self._last_generation(counter), current[1].generation if current else 0)
        generation = max(time.time_ns() // 1000, floor + 1)
        os.pwrite(counter, f"{generation:<32}".encode(), 0)
        os.ftruncate(counter, 32)
        return generation

    def _last_generation(self, counter: int) -> int:
        """The generation in the lock file; if that is not one, the highest among the blobs."""
        kept = os.pread(counter, 64, 0).strip()
        if self._COUNTER.fullmatch(kept):
            return int(kept)
        names = (self._BLOB.fullmatch(entry.name) for entry in self._blobs.iterdir())
        return max((int(match[1]) for match in names if match), default=0)

    def _link(self, link: Path, blob: Path) -> None:
        try:
            _make_folders(link.parent)
            target = os.path.relpath(blob, link.parent)
            fresh = self._blobs / f"link-{uuid.uuid4().hex}"
            # The link is created beside the blobs and then renamed, so it is relative to its final
            # place.
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
        """Called before this process's first write: scanning a large run takes a while."""
        self._make_ready()
        with self._threads:
            if not self._cleared:
                self._drop_orphans()
                self._cleared = True

    def _drop_orphans(self) -> None:
        """Deletes leftovers of killed writers: staged files without a writer, blobs without a
        name.
        """
        with self._locked():
            named = {
                os.path.basename(os.readlink(Path(root) / name))
                for root, folders, files in os.walk(self._folder)
                if self._blobs not in (Path(root), *Path(root).parents)
                for name in files
                if (Path(root) / name).is_symlink()
            }
            for entry in sorted(self._blobs.iterdir()):
                left = self._LEFT.fullmatch(entry.name)
                if left and left[1] != "link":
                    with (
                        contextlib.suppress(OSError, Foreign),
                        open(trust.open_file(entry, os.O_RDONLY), "rb") as file,
                    ):
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        entry.unlink(missing_ok=True)
                elif left or (self._BLOB.fullmatch(entry.name) and entry.name not in named):
                    with contextlib.suppress(IsADirectoryError, PermissionError):
                        entry.unlink(missing_ok=True)


def _make_folders(folder: Path) -> list[Path]:
    """Creates a folder and those above it, none of them writable by every user, whatever the umask.
    Returns the new ones, innermost first.
    """
    ways = [folder, *folder.parents]
    fresh = list(itertools.takewhile(lambda entry: not entry.exists(), ways))
    for entry in reversed(fresh):
        entry.mkdir(_FOLDER_MODE, exist_ok=True)
    return fresh


def _refuse_type(folder: Path) -> None:
    kind = file_system_type(folder)
    if kind and _REFUSED_TYPES.fullmatch(kind):
        raise Unsupported(
            f"run folder {folder}: is on {kind}, where locks or renames "
            "do not hold; use a local disk or gs://"
        )


def _refuse_without_locks(folder: Path, blobs: Path) -> None:
    """Checks that two open files exclude each other; otherwise two attempts could write at once."""
    advice = "use a local disk or gs://"
    probe = blobs / f"probe-{uuid.uuid4().hex}"
    try:
        with probe.open("wb") as first, probe.open("rb") as second:
            try:
                fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise Unsupported(
                    f"run folder {folder}: its file system has no locks "
                    f"({error.strerror}); {advice}"
                ) from None
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass
            else:
                raise Unsupported(
                    f"run folder {folder}: flock does not exclude on its file system; {advice}"
                )
    finally:
        probe.unlink(missing_ok=True)


def _poured(
    source: Any, sink: Sink, *, written: Callable[[int], None] = lambda size: None
) -> Checksum:
    """Copies the rest of a file to the sink; calls `written` with the size of each piece."""
    checksum = Checksum()
    while piece := source.read(PIECE_BYTES):
        checksum.update(piece)
        sink.write(piece)
        written(checksum.size)
    return checksum


def _write_out(file: Any, size: int) -> None:
    """Starts writing a growing file to the disk whenever it has grown by `CHUNK_BYTES`, so that the
    final sync has less to do.
    """
    if size % CHUNK_BYTES == 0 and hasattr(os, "posix_fadvise"):
        file.flush()
        start = size - CHUNK_BYTES
        os.posix_fadvise(file.fileno(), start, CHUNK_BYTES, os.POSIX_FADV_DONTNEED)


def _moment(generation: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=generation)


class _Syncs:
    """Syncs names in folders to the disk; threads that wait at the same time share one sync."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turn = threading.Lock()
        self._due: set[Path] = set()
        self._asked = 0
        self._done = 0

    def sync(self, *folders: Path) -> None:
        """Returns when everything that was in these folders at the call is on the disk."""
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
                    # A deleted folder holds nothing that could be lost.
                    with contextlib.suppress(FileNotFoundError):
                        _sync_folder(folder)
            except BaseException:
                with self._guard:
                    self._due |= due  # For the others that asked.
                raise
            self._done = until


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
