"""A run's data: fetches it once, in parallel, checks it, resumes a download, and takes its
fingerprint.

Data is a local path, which is used in place, or ``gs://BUCKET/PATH``: an object, or all objects
below ``PATH/``. Objects of a bucket are read by generation into a cache folder:

    data/<bucket>/<path, quoted>/<generation>-<crc32c>/data/<base name>[/<names below PATH/>]
                                                       complete.json   once every byte was checked
                                                       parts/          while it is being fetched

Ranges of a large object are fetched in parallel into one file; a file beside it records which
ranges are complete, so that an interrupted download continues with the rest. Data that was
rewritten meanwhile is never mixed: it has another generation and another folder.

**The fingerprint** of an object or file is its size and CRC32C, of a folder the sum of the sizes
and the CRC32C of the lines ``<crc32c> <size> <name>`` of its files in the order of their names.
Equal sizes and checksums mean equal data, wherever and whenever it was uploaded: the generation (of
a folder, the highest) is recorded but not compared.

    DataError         the data cannot be used; the message is one sentence for people
    └── DataChanged the run started with other data
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from outlast.base.codec import canonical_json
from outlast.base.file_lock import try_lock
from outlast.base.names import BUCKET, check_file_names, check_object_name
from outlast.base.retry import BRIEF, Patience
from outlast.base.scratch_space import cache_home
from outlast.base.visible import VisibleError
from outlast.bucket.head import DataFingerprint
from outlast.bucket.layout import (
    Layout,
)
from outlast.bucket.store import (
    CHUNK_BYTES,
    Checksum,
    Damaged,
    Forbidden,
    NotFound,
    Object,
    PayerMissing,
    Store,
    checksum_of,
    open_store,
    put_new,
)

_log = logging.getLogger(__name__)

WORKERS = 8
RANGE_BYTES = CHUNK_BYTES
"""Bytes that one request reads; ``WORKERS`` times as many are in memory at once."""
SIGN_SEC = 1.0
"""Seconds between two signs of life of a download."""
LOOKS = 3
"""How often a fetch starts over because the data was rewritten meanwhile."""
ROOM_SPARE_BYTES = 16 << 20
NAME_BYTES_MAX = 200
FILE_NAME_BYTES_MAX = 255
FILE_PATH_BYTES_MAX = 3500
"""Linux allows paths of 4096 bytes; the cache's own folder needs some of them."""
COMPLETE_FILE = "complete.json"
PARTS_FOLDER = "parts"
DATA_FOLDER = "data"
CACHE_VARIABLE = "OUTLAST_CACHE"
PAYER_VARIABLE = "OUTLAST_DATA_PAYER"
"""The project that pays, outside of a VM, where a bucket of data lets the requester pay."""
NAMES_MAX = 100
"""The most paths that one run may read; HEAD keeps a fingerprint of each."""

T = TypeVar("T")

Files = list[tuple[str, int, str]]
"""Name, size and CRC32C of each file of a folder."""

Progress = Callable[[int, int], None]
"""Called at least once a second while data is fetched, with the bytes fetched and the total."""


def same_data(one: DataFingerprint, other: DataFingerprint) -> bool:
    """Whether both describe the same bytes, wherever and whenever they were stored."""
    return (one.size, one.crc32c) == (other.size, other.crc32c)


class DataError(VisibleError):
    """The data cannot be used; the message is one sentence for people."""


class DataChanged(DataError):
    """The run started with other data."""


@dataclass(frozen=True)
class Staged:
    """Data on this machine."""

    path: Path
    fingerprint: DataFingerprint


@dataclass(frozen=True)
class Source:
    """The object or objects that a ``gs://`` path names now."""

    url: str
    """The path as it was requested, without a slash at the end."""
    objects: tuple[tuple[str, Object], ...]
    """Each object with its name below the path; for a single object, its base name."""
    is_folder: bool

    @property
    def name(self) -> str:
        """Base name of the path."""
        return self.url.rpartition("/")[2]

    @property
    def fingerprint(self) -> DataFingerprint:
        if not self.is_folder:
            (_, only) = self.objects[0]
            return DataFingerprint(self.url, only.generation, only.size, only.crc32c)
        size, crc32c = _listed((name, found.size, found.crc32c) for name, found in self.objects)
        newest = max(found.generation for _, found in self.objects)
        return DataFingerprint(self.url, newest, size, crc32c)


def parse_url(url: str) -> tuple[str, str]:
    """(bucket, path without a slash at the end) of a ``gs://`` path. Raises DataError for any
    other.
    """
    scheme, found, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    path = path.rstrip("/")
    if scheme != "gs" or not found or not bucket or not path:
        raise DataError(f"data {url}: must be a path of this machine or gs://BUCKET/PATH")
    try:
        BUCKET.check(bucket, f"data {url}: bucket")
    except ValueError as error:
        raise DataError(str(error)) from None
    try:
        check_object_name(path)
    except ValueError:
        raise DataError(f"data {url}: must have no empty parts, '.' or '..'") from None
    return bucket, path


def find(
    store: Store,
    url: str,
    *,
    patience: Patience = BRIEF,
    progress: Progress = lambda done, of: None,
) -> Source:
    """Looks up what the path names now. Raises DataError if it names nothing or an object's name
    cannot be a file's, and the store's errors. Calls `progress` before each try.
    """
    _, path = parse_url(url)
    clean = url.rstrip("/")

    def look() -> Object | list[Object]:
        progress(0, 0)
        refused: Forbidden | None = None
        if not url.endswith("/"):
            try:
                return store.stat(path)
            except NotFound:
                pass
            except Forbidden as error:
                # An account that may read below a path may lack the right to read the path itself.
                refused = error
        listed = list(store.list(f"{path}/"))
        if refused is not None and not listed:
            raise refused
        return listed

    listed = patience(look)
    if isinstance(listed, Object):
        check_names(url, [path.rpartition("/")[2]])
        return Source(clean, ((path.rpartition("/")[2], listed),), is_folder=False)
    objects = []
    for found in listed:
        name = found.path.removeprefix(f"{path}/")
        if not name or name.endswith("/"):
            continue  # The console's marker for an empty folder.
        try:
            objects.append((check_object_name(name), found))
        except ValueError as error:
            raise DataError(f"data {url}: {error}") from None
    check_names(url, [name for name, _ in objects])
    if not objects:
        raise DataError(f"data {url}: no such object, and none below {clean}/; check the name")
    return Source(clean, tuple(objects), is_folder=True)


def check_names(url: str, names: Sequence[str]) -> None:
    """Raises DataError if no disk can hold files of these names: every machine would fail on it."""
    try:
        check_file_names(names, "object")
    except ValueError as error:
        raise DataError(f"data {url}: {error}") from None
    for name in names:
        for part in name.split("/"):
            if len(os.fsencode(part)) > FILE_NAME_BYTES_MAX:
                raise DataError(
                    f"data {url}: object {name[:80]}… has a part of {len(os.fsencode(part))} bytes "
                    f"in its name, a file's has at most {FILE_NAME_BYTES_MAX}; rename it"
                )
        if len(os.fsencode(name)) > FILE_PATH_BYTES_MAX:
            raise DataError(
                f"data {url}: object {name[:80]}… has a name of {len(os.fsencode(name))} bytes, at "
                f"most {FILE_PATH_BYTES_MAX} fit a path; rename it"
            )


def local_files(path: Path, progress: Progress = lambda done, of: None) -> Files:
    """(name below the path, size, CRC32C) of a folder's files; for a file, one entry without a
    name.
    """
    try:
        if not path.is_dir():
            return [("", *_read_through(path, progress))]
        files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*"))
        return [
            (file, *_read_through(path / file, progress))
            for file in files
            if (path / file).is_file()
        ]
    except OSError as error:
        raise DataError(f"data {path}: cannot be read ({error.strerror or error})") from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise DataError(f"data {path}: cannot be read ({error.strerror or error})") from None


def fingerprint_of(path: Path, files: Files) -> DataFingerprint:
    """The fingerprint of a local path with these files, as `local_files` returns them."""
    name = Path(os.path.abspath(path)).name
    if len(files) == 1 and not files[0][0]:
        return DataFingerprint(name, 0, *files[0][1:])
    return DataFingerprint(name, 0, *_listed(files))


def _read_through(file: Path, progress: Progress) -> tuple[int, str]:
    """Size and CRC32C, in parallel also within one large file."""
    checksum = Checksum()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            checksum.update(chunk)
            progress(0, 0)
    return checksum.size, checksum.crc32c


def _listed(entries: Iterable[tuple[str, int, str]]) -> tuple[int, str]:
    ordered = sorted(entries)
    text = "".join(f"{crc32c} {size} {name}\n" for name, size, crc32c in ordered)
    return sum(size for _, size, _ in ordered), checksum_of(os.fsencode(text))[1]


# ---------------------------------------------------------------------------------------------
# What a trainer asks for


class DataService:
    """Serves data to one attempt's trainer; accepts only the data that the run started with.

    Safe to use from several threads: each rank of a trainer asks separately.
    """

    def __init__(
        self,
        cache: "Cache",
        known: Callable[[], Iterable[DataFingerprint]],
        listings: "Listings | None" = None,
        sight: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """``known`` returns the fingerprints in HEAD. With ``listings``, files that were added to a
        local folder do not count as a change and are logged once. The trainer's own files are read
        within ``sight``.
        """
        self._cache = cache
        self._known = known
        self._listings = listings
        self._sight = sight
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._asked: set[str] = set()

    def answer(self, url: str, path: str, progress: Progress) -> Staged:
        """The data of ``url``, a ``gs://`` path or a local one. With ``path``, it is already there
        and only checked. Raises DataError and StoreError as ``Cache.stage`` does, and DataChanged
        if HEAD has another fingerprint for it.
        """
        there = Path(path or url)
        if "://" in url and not path:
            staged = self._cache.stage(url, progress)
        else:
            with self._sight():
                if not _exists(there):
                    raise DataError(f"data {there}: no such file or folder")
                found = self._cache.known(there)
                files = None if found is not None else local_files(there, progress)
            if files is not None:
                found = fingerprint_of(there, files)
            assert found is not None
            staged = Staged(there, self._named(found, there) if "://" not in url else found)
            if files is not None:
                staged = self._without_added(url, staged, files)
        found = staged.fingerprint
        before = {entry.name: entry for entry in self._known()}
        if found.name in before and not same_data(before[found.name], found):
            raise DataChanged(_changed(url, found, before[found.name]))
        with self._lock:
            self._asked.add(found.name)
            if len(self._asked | before.keys()) > NAMES_MAX:
                raise DataError(
                    f"data {url}: is the path number {NAMES_MAX + 1} of this run, at most "
                    f"{NAMES_MAX} are allowed; ask for the folder that holds them all"
                )
        return staged

    def _without_added(self, url: str, staged: Staged, files: Files) -> Staged:
        """The data as the run first found it, if since then files were only added."""
        if self._listings is None or not staged.path.is_dir():
            return staged
        found = staged.fingerprint
        before = {entry.name: entry for entry in self._known()}.get(found.name)
        if before is None:
            self._listings.keep(found, files)
            return staged
        if same_data(before, found):
            return staged
        kept = self._listings.read(before)
        if kept is None:
            return staged
        now = {name: (size, crc32c) for name, size, crc32c in files}
        for name, size, crc32c in kept:
            if now.get(name) != (size, crc32c):
                what = f"its file {name} {'has changed' if name in now else 'is gone'}"
                raise DataChanged(_changed(url, found, before, what))
        added = sorted(now.keys() - {name for name, _, _ in kept})
        with self._lock:
            is_new = found.name not in self._said
            self._said.add(found.name)
        if is_new:
            some = ", ".join(added[:5]) + (f" and {len(added) - 5} more" if len(added) > 5 else "")
            _log.info(
                f"data {url}: files were added since the run started, which does not count as a"
                f" change: {some}"
            )
        return Staged(staged.path, before)

    def _named(self, found: DataFingerprint, path: Path) -> DataFingerprint:
        """Renamed if another local path with the same base name came before."""
        key = os.path.abspath(path)
        with self._lock:
            if key not in self._names:
                same = sum(Path(other).name == found.name for other in self._names)
                self._names[key] = f"{found.name} ({same + 1})" if same else found.name
            return replace(found, name=self._names[key])


class Listings:
    """The file lists of the local folders that a run started with, kept with the run."""

    FILES_MAX = 100_000
    """The most files of a listed folder; in a larger one, an added file counts as a change."""

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store = store
        self._layout = layout

    def keep(self, found: DataFingerprint, files: Files) -> None:
        """Stores the list under a name made of its content, so that a second store changes
        nothing.
        """
        if len(files) <= self.FILES_MAX:
            data = canonical_json({"files": files})
            put_new(self._store, self._layout.data_listing(found.size, found.crc32c), data)

    def read(self, found: DataFingerprint) -> Files | None:
        """The stored list; None if there is none."""
        try:
            data, _ = self._store.get(self._layout.data_listing(found.size, found.crc32c))
            files = [
                (str(name), int(size), str(crc)) for name, size, crc in json.loads(data)["files"]
            ]
            is_whole = _listed(files) == (found.size, found.crc32c)
        except (
            *(NotFound, Damaged, ValueError, KeyError, TypeError),
            *(OverflowError, RecursionError),
        ):
            return None
        return files if is_whole else None


def _changed(url: str, found: DataFingerprint, before: DataFingerprint, what: str = "") -> str:
    return (
        f"data {url}: is {_described(found)}, the run started with {_described(before)}"
        f"{f' ({what})' if what else ''}; put that data back, or start a new run (with "
        "another path, or outlast:rerun)"
    )


def _described(found: DataFingerprint) -> str:
    generation = f", generation {found.generation}" if found.generation else ""
    return f"{found.size} bytes with CRC32C {found.crc32c}{generation}"


# ---------------------------------------------------------------------------------------------
# The cache


def user_cache() -> Path:
    """The cache folder on a laptop, for everything that can be fetched again."""
    return cache_home("outlast", CACHE_VARIABLE)


class Cache:
    """A folder of fetched data. Safe to use from several threads and processes."""

    def __init__(
        self,
        home: Path,
        *,
        opener: Callable[..., Store] = open_store,
        patience: Patience | None = None,
        payer: str = "",
    ) -> None:
        """``payer``: the project that pays for reading a bucket that lets the requester pay; by
        default that of OUTLAST_DATA_PAYER."""
        self.folder = home / "data"
        self._opener = opener
        self.payer = payer or os.environ.get(PAYER_VARIABLE, "")
        self._patience = patience or Patience()

    def stage(self, url: str, progress: Progress = lambda done, of: None) -> Staged:
        """The data of a ``gs://`` path, fetched unless it is cached, with every byte checked.

        Raises DataError (absent, forbidden, no room), StoreError if the store gives no usable
        answer for a long time, and OSError if the local disk fails.
        """
        try:
            return self._stage(url, progress, "")
        except PayerMissing:
            # Only such a bucket is read at the payer's expense.
            if not self.payer:
                raise DataError(
                    f"data {url}: its bucket lets the requester pay; set outlast:dataPayer to the"
                    f" project that pays, or outside of a VM {PAYER_VARIABLE}"
                ) from None
            return self._stage(url, progress, self.payer)

    def _stage(self, url: str, progress: Progress, payer: str) -> Staged:
        bucket, _ = parse_url(url)
        paid = {"payer": payer} if payer else {}
        store = self._opener(f"gs://{bucket}", **paid)
        for _ in range(LOOKS):
            try:
                source = find(store, url, patience=self._patience, progress=progress)
                return self._staged(store, source, progress)
            except NotFound:
                continue  # It was rewritten since it was looked up.
            except Forbidden as error:
                why = "for a VM, add it to outlast:dataPaths or put it below data/ in the run's own"
                why += " bucket"
                if payer:
                    why = f"it is read at the expense of project {payer}, which needs"
                    why += " roles/serviceusage.serviceUsageConsumer there"
                raise DataError(f"data {url}: may not be read ({error}); {why}") from None
        raise DataError(f"data {url}: was rewritten {LOOKS} times while it was fetched")

    def known(self, path: Path) -> DataFingerprint | None:
        """The fingerprint of what ``stage`` returned; None for any other path."""
        if not path.is_relative_to(self.folder):
            return None
        return _read_complete(path.parent.parent)

    def _staged(self, store: Store, source: Source, progress: Progress) -> Staged:
        fingerprint = source.fingerprint
        entry = self._entry(source)
        path = entry / DATA_FOLDER / source.name
        try:
            entry.mkdir(parents=True, exist_ok=True)
            with _locked(entry.with_name(f"{entry.name}.lock"), progress):
                if _read_complete(entry) != fingerprint or not _same_sizes(source, path):
                    self._drop_unfinished(entry)
                    fetch = _Download(store, source, entry, self._patience)
                    fetch.run(progress)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DataError(
                f"data {source.url}: has no room in {self.folder} ({error.strerror}); make room, "
                "or choose a larger disk (outlast:bootDiskGb on a VM)"
            ) from None
        return Staged(path, fingerprint)

    def _entry(self, source: Source) -> Path:
        bucket, path = parse_url(source.url)
        quoted = quote(path, safe="")
        if len(quoted) > NAME_BYTES_MAX:
            quoted = f"{quoted[:100]}-{hashlib.sha256(path.encode()).hexdigest()[:32]}"
        found = source.fingerprint
        crc32c = found.crc32c.translate(str.maketrans("+/", "-_", "="))
        return self.folder / bucket / quoted / f"{found.generation}-{crc32c}"

    def _drop_unfinished(self, entry: Path) -> None:
        """Deletes unfinished downloads of other generations."""
        for other in entry.parent.iterdir():
            if other == entry or not other.is_dir() or (other / COMPLETE_FILE).exists():
                continue
            lock = other.with_name(f"{other.name}.lock")
            with contextlib.suppress(OSError), lock.open("ab") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other, ignore_errors=True)


def _read_complete(entry: Path) -> DataFingerprint | None:
    try:
        return DataFingerprint(**json.loads((entry / COMPLETE_FILE).read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _same_sizes(source: Source, path: Path) -> bool:
    """Whether all files still exist: users may clear the cache."""
    files = ((path / name if source.is_folder else path, found) for name, found in source.objects)
    try:
        return all(file.stat().st_size == found.size for file, found in files)
    except OSError:
        return False


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Lets one fetch; the others wait for it and find the result."""
    with path.open("ab") as file:
        while not try_lock(file):
            progress(0, 0)
            time.sleep(0.1)
        yield


class _Part:
    """One object being downloaded: a file of its full size, and a file with a byte for each
    complete range.
    """

    def __init__(self, found: Object, final: Path, parts: Path, index: int) -> None:
        self.found = found
        self.final = final
        self._file = parts / f"{index:06d}"
        self._marks = parts / f"{index:06d}.marks"
        self.ranges = -(-found.size // RANGE_BYTES)

    @property
    def there(self) -> bool:
        return self.final.is_file() and self.final.stat().st_size == self.found.size

    def missing(self) -> list[int]:
        """Numbers of the ranges still to fetch; creates the files if they are not complete."""
        try:
            marks = self._marks.read_bytes()
            whole = len(marks) == self.ranges and self._file.stat().st_size == self.found.size
        except OSError:
            marks, whole = b"", False
        if not whole:
            self.begin()
            marks = bytes(self.ranges)
        return [number for number, mark in enumerate(marks) if not mark]

    def begin(self) -> None:
        """Forgets all ranges."""
        self._marks.unlink(missing_ok=True)
        with self._file.open("wb") as file:
            file.truncate(self.found.size)
        self._marks.write_bytes(bytes(self.ranges))

    def bounds(self, number: int) -> tuple[int, int]:
        """First byte and size of a range."""
        start = number * RANGE_BYTES
        return start, min(RANGE_BYTES, self.found.size - start)

    def take(self, number: int, data: bytes) -> None:
        _write_at(self._file, data, number * RANGE_BYTES)
        _write_at(self._marks, b"\1", number)

    def finish(self) -> bool:
        """Moves the file into place if its bytes are right; False if they are not."""
        if checksum_of(self._file) != (self.found.size, self.found.crc32c):
            return False
        self.final.parent.mkdir(parents=True, exist_ok=True)
        self._file.chmod(0o444)
        os.replace(self._file, self.final)
        self._marks.unlink(missing_ok=True)
        return True


def _write_at(path: Path, data: bytes, offset: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(file, view, offset)
            view, offset = view[written:], offset + written
    finally:
        os.close(file)


class _Download:
    """Downloads all objects of a source into its cache entry, while holding its lock."""

    def __init__(self, store: Store, source: Source, entry: Path, patience: Patience) -> None:
        self._store = store
        self._source = source
        self._entry = entry
        self._patience = patience
        self._counting = threading.Lock()
        self._stopped = threading.Event()
        self._bytes = 0

    def run(self, progress: Progress) -> None:
        entry, source = self._entry, self._source
        (entry / COMPLETE_FILE).unlink(missing_ok=True)
        folder = entry / PARTS_FOLDER
        folder.mkdir(exist_ok=True)
        path = entry / DATA_FOLDER / source.name
        parts = [
            _Part(found, path / name if source.is_folder else path, folder, index)
            for index, (name, found) in enumerate(source.objects)
        ]
        parts = [part for part in parts if not part.there]
        pieces = [(part, number) for part in parts for number in part.missing()]
        needed = sum(part.bounds(number)[1] for part, number in pieces)
        self._check_room(needed)
        self._bytes = source.fingerprint.size - needed
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="data") as pool:
            try:
                self._wait([pool.submit(self._fetch, *piece) for piece in pieces], progress)
                self._wait([pool.submit(self._finish, part) for part in parts], progress)
            except BaseException:
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        _write_complete(entry, source.fingerprint)
        shutil.rmtree(folder, ignore_errors=True)

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self._entry).free
        if needed + ROOM_SPARE_BYTES > free:
            raise DataError(
                f"data {self._source.url}: needs {needed} bytes, {self._entry.parents[2]} has "
                f"{free} free; make room, or choose a larger disk (outlast:bootDiskGb on a VM)"
            )

    def _wait(self, jobs: list[Future[None]], progress: Progress) -> None:
        waiting = set(jobs)
        while waiting:
            done, waiting = wait(waiting, timeout=SIGN_SEC, return_when=FIRST_EXCEPTION)
            progress(self._bytes, self._source.fingerprint.size)
            for job in done:
                job.result()

    def _fetch(self, part: _Part, number: int) -> None:
        if self._stopped.is_set():
            return
        found, (start, size) = part.found, part.bounds(number)
        data = self._patience(
            lambda: self._store.read_range(found.path, start, size, generation=found.generation)
        )
        part.take(number, data)
        with self._counting:
            self._bytes += size

    def _finish(self, part: _Part) -> None:
        """Checks the file, and fetches it once more if it is wrong: the local ranges may be
        damaged.
        """
        if part.finish():
            return
        part.begin()
        with self._counting:
            self._bytes -= part.found.size
        for number in range(part.ranges):
            self._fetch(part, number)
        if not self._stopped.is_set() and not part.finish():
            raise Damaged(
                f"{part.found.path}: in two downloads, the bytes did not match its CRC32C or size"
            )


def _write_complete(entry: Path, fingerprint: DataFingerprint) -> None:
    fresh = entry / f"{COMPLETE_FILE}.new"
    fresh.write_text(json.dumps(asdict(fingerprint)))
    os.replace(fresh, entry / COMPLETE_FILE)
