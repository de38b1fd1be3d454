"""Puts data into the bucket for runs to read, and lists what is there.

Data is below `data/` of a bucket, which every VM of the bucket's experiments may read. Its
fingerprint is the one that a run compares (`outlast.bucket.data`).
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outlast.base import numbers
from outlast.base.exits import State
from outlast.base.names import check_object_name
from outlast.base.retry import BRIEF
from outlast.bucket.data import (
    DataError,
    Source,
    check_names,
    find,
    fingerprint_of,
    local_files,
    same_data,
)
from outlast.bucket.head import DataFingerprint, HeadError, read_head
from outlast.bucket.layout import AttemptStart
from outlast.bucket.records import read_record
from outlast.bucket.store import Object, PreconditionFailed, Store, StoreError, put_new
from outlast.bucket.transfer import by_size, in_parallel, small_reads
from outlast.cli import experiments
from outlast.cli.errors import OperateError, UsageError

PREFIX = "data/"
SHOWN_NAMES = 3
"""How many names a message lists."""
SAY_SEC = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Use:
    """A run that names a path of data."""

    experiment: str
    run: str
    state: State

    def __str__(self) -> str:
        return f"{self.experiment}/{self.run} ({self.state})"


@dataclass(frozen=True)
class Listed:
    """Data of one name in the bucket."""

    name: str
    source: Source
    uses: tuple[Use, ...]

    def as_json(self) -> dict[str, Any]:
        found = self.source.fingerprint
        return {
            "name": self.name,
            "url": self.source.url,
            "files": len(self.source.objects),
            "bytes": found.size,
            "crc32c": found.crc32c,
            "used_by": [
                {"experiment": use.experiment, "run": use.run, "state": use.state.value}
                for use in self.uses
            ],
        }


@dataclass(frozen=True)
class Pushed:
    """What a push has done."""

    fingerprint: DataFingerprint
    files: int
    sent: int
    deleted: int

    def as_json(self) -> dict[str, Any]:
        return {
            "url": self.fingerprint.name,
            "files": self.files,
            "bytes": self.fingerprint.size,
            "crc32c": self.fingerprint.crc32c,
            "sent": self.sent,
            "deleted": self.deleted,
        }


def chosen_bucket(named: str | None) -> tuple[Store, str]:
    """The store of the bucket that is named, or of the only one of this project, and the bucket's
    name. Raises UsageError if there are several, OperateError if there is none.
    """
    known = experiments.buckets()
    if named:
        bucket = experiments.bucket_name(named)
    elif len(known) == 1:
        (bucket,) = known
    elif known:
        raise UsageError(f"bucket: there are {', '.join(sorted(known))}; name one with --bucket")
    else:
        raise OperateError(
            "no bucket: neither OUTLAST_BUCKET nor the settings of a stack of this project name"
            " one; go to your project, or give --bucket"
        )
    return experiments.open_bucket(bucket, known.get(bucket, "")), bucket


# ---------------------------------------------------------------------------------------------
# Push


def push(store: Store, bucket: str, path: Path, name: str, *, delete: bool = False) -> Pushed:
    """Uploads a file or folder as `gs://BUCKET/data/NAME`; files that are there already are
    skipped, so that a push that was interrupted continues.

    Objects that the folder lacks are deleted with `delete`, otherwise they are an error, because
    they would be part of the data. Nothing is changed if an open run names the data. Raises
    UsageError and OperateError.
    """
    url = _url(bucket, name)
    try:
        files = local_files(path)
        if not files:
            raise DataError(f"data {path}: holds no file")
        if files[0][0]:
            check_names(url, [file for file, _, _ in files])
        before = _objects(store, name)
    except DataError as error:
        raise UsageError(str(error)) from None
    except StoreError as error:
        raise OperateError(f"{url}: {error}") from None
    is_file = not files[0][0]
    target = f"{PREFIX}{name}" if is_file else f"{PREFIX}{name}/"
    _check_kind(url, f"{PREFIX}{name}", before, is_file=is_file)
    wanted = {target + file: (size, crc32c) for file, size, crc32c in files}
    stale = [found for found in before.values() if found.path not in wanted]
    if stale and not delete:
        raise UsageError(
            f"data {url}: has {numbers.count(len(stale), 'file')} that {path} lacks"
            f" ({_some(found.path.removeprefix(target) for found in stale)}); add --delete to"
            " delete them there, or push under another name"
        )
    changed = [one for one, is_ in wanted.items() if one not in before or _is(before[one]) != is_]
    if changed or stale:
        _refuse_used(store, url)
    sizes = {one: wanted[one][0] for one in changed}
    sending = _Sending(store, sum(sizes.values()))
    jobs = [
        (
            sizes[one],
            partial(
                sending.send,
                one,
                path / one.removeprefix(target) if one != target else path,
                before[one].generation if one in before else 0,
            ),
        )
        for one in changed
    ]
    try:
        by_size(store, jobs)
        for found in stale:
            BRIEF(partial(store.delete, found.path, generation=found.generation))
        there = find(store, url).fingerprint
    except PreconditionFailed as error:
        raise OperateError(
            f"data {url}: was changed by someone else meanwhile ({error}); push again"
        ) from None
    except (DataError, StoreError, OSError) as error:
        raise OperateError(f"data {url}: {error}; the same command continues") from None
    if not same_data(there, fingerprint_of(path, files)):
        raise OperateError(
            f"data {url}: is not what {path} was, because one of them changed meanwhile; push again"
        )
    return Pushed(there, len(files), len(changed), len(stale))


class _Sending:
    """Uploads files, and logs how far it is."""

    def __init__(self, store: Store, size: int) -> None:
        self._store = store
        self._size = size
        self._sent = 0
        self._said_at = time.monotonic()

    def send(self, to: str, file: Path, replaces: int) -> None:
        written = put_new(self._store, to, file, replaces=replaces)
        self._sent += written.size
        if time.monotonic() - self._said_at >= SAY_SEC:
            self._said_at = time.monotonic()
            _log.info(f"{self._sent} of {self._size} bytes")


def _url(bucket: str, name: str) -> str:
    try:
        if "/" in name:
            raise ValueError(f"name {name!r}: must have no slash")
        return f"gs://{bucket}/{PREFIX}{check_object_name(name, 'name')}"
    except ValueError as error:
        raise UsageError(f"{error}; give the data another name") from None


def _objects(store: Store, name: str) -> dict[str, Object]:
    """The objects of a name, by path."""
    whole = f"{PREFIX}{name}"
    return {
        found.path: found
        for found in store.list(whole)
        if found.path == whole or found.path.startswith(f"{whole}/")
    }


def _check_kind(url: str, whole: str, before: Mapping[str, Object], *, is_file: bool) -> None:
    other = [path for path in before if (path == whole) != is_file]
    if other:
        is_, was = ("a file", "a folder") if is_file else ("a folder", "a file")
        raise UsageError(f"data {url}: is {was} in the bucket, not {is_}; push under another name")


def _is(found: Object) -> tuple[int, str]:
    return found.size, found.crc32c


def _refuse_used(store: Store, url: str) -> None:
    """Raises OperateError if an open run names the data, or if that is not known."""
    try:
        uses, unread = uses_of(store)
    except StoreError as error:
        raise OperateError(
            f"data {url}: whether a run uses it is not known: {error}; try again, or push under"
            " another name"
        ) from None
    if unread:
        raise OperateError(
            f"data {url}: whether a run uses it is not known: {unread[0]}; repair that run, or push"
            " under another name"
        )
    open_ = [
        use
        for named, found in uses.items()
        if _overlap(named, url)
        for use in found
        if use.state is State.OPEN
    ]
    if open_:
        raise OperateError(
            f"data {url}: the open run {open_[0]} started with it and would be refused with other"
            " data; push under another name, or stop that run first"
        )


# ---------------------------------------------------------------------------------------------
# List


def listed(store: Store, bucket: str) -> tuple[list[Listed], list[str]]:
    """All data of the bucket by name, and why some runs could not be read. Raises StoreError."""
    objects: dict[str, list[tuple[str, Object]]] = {}
    for found in store.list(PREFIX):
        name, slash, below = found.path.removeprefix(PREFIX).partition("/")
        if name and (below or not slash) and not below.endswith("/"):
            objects.setdefault(name, []).append((below, found))
    uses, unread = uses_of(store)
    lines = []
    for name, there in sorted(objects.items()):
        url = f"gs://{bucket}/{PREFIX}{name}"
        # A file and a folder of the same name are two; a run that names it reads the file.
        alone = [(name, found) for below, found in there if not below]
        source = Source(url, tuple(alone or there), is_folder=not alone)
        by = [use for named, found in uses.items() if _overlap(named, url) for use in found]
        lines.append(Listed(name, source, tuple(dict.fromkeys(by))))
    return lines, unread


def uses_of(store: Store) -> tuple[dict[str, list[Use]], list[str]]:
    """The runs of a bucket by each `gs://` path that they name, and why some could not be read.

    A run names what its HEAD has a fingerprint of and, while it is open, what its newest attempt
    was given. Raises StoreError.
    """
    paths = [f"{experiments.ROOT}{name}" for name in experiments.names(store)]
    runs = experiments.runs_of(store, paths)
    jobs = [partial(_named_by, store, found) for found in runs]
    uses: dict[str, list[Use]] = {}
    unread = []
    for found, (state, names, why) in zip(runs, in_parallel(jobs, small_reads(store)), strict=True):
        if why:
            unread.append(f"{found.experiment}/{found.layout.run}: {why}")
        for name in sorted(names):
            uses.setdefault(name, []).append(Use(found.experiment, found.layout.run, state))
    return uses, unread


def _named_by(store: Store, found: experiments.Found) -> tuple[State, set[str], str]:
    """A run's state, the `gs://` paths that it names, and why they are not known."""
    try:
        head = read_head(store, found.layout).head
        names = {entry.name for entry in head.data or ()}
        if head.state is State.OPEN:
            start = read_record(store, found.layout.attempt_start(head.term), AttemptStart)
            if start is not None:
                names |= set(_texts(start.spec.get("data"), start.spec.get("args")))
    except (HeadError, StoreError) as error:
        return State.OPEN, set(), str(error)
    return head.state, {name.rstrip("/") for name in names if name.startswith("gs://")}, ""


def _texts(*values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(*value.values())
        elif isinstance(value, Sequence):
            yield from _texts(*value)


def _overlap(one: str, other: str) -> bool:
    """Whether one path is the other or below it."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _some(names: Iterator[str]) -> str:
    first = [name for name, _ in zip(names, range(SHOWN_NAMES + 1), strict=False)]
    return ", ".join(first[:SHOWN_NAMES]) + (", …" if len(first) > SHOWN_NAMES else "")
