"""Transfers files and objects, several at a time, hashing each on the way."""

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

from outlast.base.names import check_object_name
from outlast.base.plain_files import NotPlain, PlainFile, plain_files
from outlast.bucket.errors import BadSnapshot
from outlast.bucket.store import GET_BYTES_MAX, Checksum, ReadOnlyStore, Store

T = TypeVar("T")

HASHED_BYTES = 1 << 18
"""Bytes read at a time to be hashed; small enough that the second hash finds them in the cache."""

SMALL_READS = 16
"""How many small objects are read or written at the same time in a remote store."""

SMALL_BYTES = 1 << 18
"""The largest small object: for a larger one, the bytes take longer than the request."""


def in_parallel(jobs: Sequence[Callable[[], T]], streams: int) -> list[T]:
    """The results of the jobs in order, run `streams` at a time.

    If one raises, jobs that have not begun are dropped, running ones finish, and the first failed
    job's error is raised.
    """
    if streams == 1 or len(jobs) <= 1:
        return [job() for job in jobs]
    with ThreadPoolExecutor(min(streams, len(jobs)), "transfer") as pool:
        futures = [pool.submit(job) for job in jobs]
        _, pending = wait(futures, return_when=FIRST_EXCEPTION)
        for future in pending:
            future.cancel()
    return [future.result() for future in futures if not future.cancelled()]


def small_reads(store: ReadOnlyStore) -> int:
    """How many small objects to read from the store at the same time. One for a folder: it answers
    at once, and threads would only wait for each other.
    """
    return SMALL_READS if store.streams > 2 else 1


def small_writes(store: Store) -> int:
    """How many small objects to write or delete at the same time."""
    return max(store.streams, small_reads(store))


def by_size(store: Store, jobs: Sequence[tuple[int, Callable[[], T]]]) -> list[T]:
    """Like `in_parallel`, for objects with these sizes in bytes: the large ones first, then many
    small ones at a time.
    """
    small = [index for index, (size, _) in enumerate(jobs) if size <= SMALL_BYTES]
    if len(small) <= store.streams or small_writes(store) == store.streams:
        return in_parallel([job for _, job in jobs], store.streams)
    large = sorted({*range(len(jobs))} - {*small})
    found: dict[int, T] = {}
    for indices, streams in ((large, store.streams), (small, small_writes(store))):
        given = in_parallel([jobs[index][1] for index in indices], streams)
        found.update(zip(indices, given, strict=True))
    return [found[index] for index in range(len(jobs))]


class Place:
    """A range of an existing file, written once and in order, and hashed."""

    def __init__(self, file: Path, offset: int, hasher: Any, *, until: int) -> None:
        self._file = file.open("r+b")
        self._at = self._begin = offset
        self._until = until
        self.hasher = hasher

    @property
    def written(self) -> int:
        """Bytes received so far."""
        return self._at - self._begin

    def write(self, data: bytes) -> int:
        # Excess bytes would overwrite the neighbour; they only count, so the size is wrong.
        kept = data[: max(0, self._until - self._at)]
        self._file.seek(self._at)
        self._file.write(kept)
        self.hasher.update(kept)
        self._at += len(data)
        return len(data)

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


_ENTRY_BYTES = 256
"""Bytes of a manifest for each file besides its name: digest, generation, size and their keys."""


def snapshot_files(folder: Path, owner: int | None = None) -> list[tuple[str, PlainFile]]:
    """(name, file) of all files below the folder, sorted by name. Raises BadSnapshot for anything
    else and, with ``owner``, for files of another user.
    """
    files = []
    try:
        for file in plain_files(folder, owner):
            name = check_object_name(file.name)
            if name in ("MANIFEST.json", "RESULT.json"):
                raise BadSnapshot(f"snapshot {file}: the name is reserved; choose another one")
            files.append((name, file))
    except NotPlain as error:
        raise BadSnapshot(f"snapshot {error}") from None
    except ValueError as error:
        raise BadSnapshot(f"snapshot {folder}: {error}") from None
    if not files:
        raise BadSnapshot(f"snapshot {folder}: is empty")
    if sum(len(json.dumps(name)) + _ENTRY_BYTES for name, _ in files) > GET_BYTES_MAX:
        raise BadSnapshot(
            f"snapshot {folder}: has {len(files)} files, whose manifest would be longer than"
            f" {GET_BYTES_MAX >> 20} MiB; keep many small files in an archive"
        )
    return sorted(files)


def sha256_and_crc32c(file: PlainFile) -> tuple[str, str]:
    hasher, checksum = hashlib.sha256(), Checksum()
    with file.open("rb", 0) as source:
        while data := source.read(HASHED_BYTES):
            hasher.update(data)
            checksum.update(data)
    return hasher.hexdigest(), checksum.crc32c
