"""Fetches a finished run's result, or data, without a supervisor; and copies a result elsewhere.

Results are cached like data: once, by content, as ``results/<digest>`` in the cache folder.
"""

import contextlib
import json
import logging
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path

from outlast.base import exits
from outlast.base.console import write_line
from outlast.base.exits import State
from outlast.base.log import log_to
from outlast.base.names import DIGEST, check_object_name
from outlast.base.retry import BRIEF, Patience
from outlast.bucket.data import Cache, DataError
from outlast.bucket.head import Head, HeadError, HeadLost, Result, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.results import fetch_result
from outlast.bucket.store import (
    Forbidden,
    NotFound,
    PreconditionFailed,
    Store,
    StoreError,
    checksum_of,
    open_store,
)
from outlast.spec.result import RESULT_FILE, check_result

_log = logging.getLogger(__name__)

SAY_SEC = 5.0


def fetch(url: str, kind: str, home: Path) -> Path:
    """Fetches what is at ``url`` into the cache folder ``home``.

    ``kind``: ``data``, ``result`` (of a run's folder or ``gs://…/<run>``, or the copy of one in a
    bucket), or ``auto``: a result if there is a run. Raises DataError with a sentence, and
    StoreError.
    """
    if kind == "auto":
        kind = "result" if _is_run(url) else "data"
    if kind == "result":
        store, layout = _run_at(url)
        try:
            head = read_head(store, layout).head
        except HeadLost:
            return _copied_result(url, store, layout, home)
        except HeadError as error:
            raise DataError(f"run {url}: {error}") from None
        if head.state is not State.DONE or head.end is None or head.end.result is None:
            raise DataError(f"run {url}: is {head.state} and has no result; let it finish first")
        return cached_result(store, head.end.result, home)
    said_at = time.monotonic()

    def progress(done: int, of: int) -> None:
        nonlocal said_at
        if of and time.monotonic() - said_at >= SAY_SEC:
            said_at = time.monotonic()
            _log.info(f"data {url}: {done} of {of} bytes")

    return Cache(home, patience=BRIEF).stage(url, progress).path


def _run_at(url: str) -> tuple[Store, Layout]:
    """The store and layout of a run's folder or ``gs://`` path."""
    if not url.startswith("gs://") and not (Path(url) / "HEAD").exists():
        raise DataError(f"run {url}: holds no run; train there first")
    where, layout = place_of(url)
    return open_store(where, reading=True), layout


def place_of(url: str) -> tuple[str, Layout]:
    """The store's URL and the layout of a run's folder or ``gs://`` path.

    Raises DataError for a path in a bucket that cannot be a run's.
    """
    if not url.startswith("gs://"):
        return url, Layout("", "")
    bucket, _, path = url.removeprefix("gs://").strip("/").partition("/")
    try:
        prefix, _, run = check_object_name(path).rpartition("/")
    except ValueError:
        raise DataError(
            f"run {url}: must be a run's folder or gs://BUCKET/experiments/NAME/RUN"
        ) from None
    return f"gs://{bucket}", Layout(prefix, run)


def _is_run(url: str) -> bool:
    try:
        store, layout = _run_at(url)
        store.stat(layout.head)
    except (DataError, NotFound):
        return False
    return True


def _copied_result(url: str, store: Store, layout: Layout, home: Path) -> Path:
    """The result in a place that ``deliver`` copied it to. Raises DataError if there is none."""
    try:
        store.stat(layout.root + RESULT_FILE)
    except NotFound:
        raise DataError(f"run {url}: holds no run; train there first") from None
    cache = Cache(home, patience=BRIEF)
    folder = cache.stage(f"{store.url}/{layout.root}").path
    try:
        check_result(folder)
    except ValueError as error:
        raise DataError(f"result {url}: {error}; take it from another copy") from None
    return folder


def cached_result(store: Store, result: Result, home: Path) -> Path:
    """The files of a result in ``home``, verified each time.

    An incomplete copy is replaced once a new download beside it is verified.
    """
    try:
        digest = DIGEST.check(result.digest, "result digest")
    except ValueError as error:
        raise DataError(f"{store.url}/{result.path}: {error}") from None
    folder = home / "results" / digest
    if _intact(folder, digest):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="part-", dir=folder.parent, ignore_cleanup_errors=True
    ) as scratch:
        part = Path(scratch) / "files"
        part.mkdir()
        manifest = fetch_result(store, result, part)
        (part / RESULT_FILE).write_bytes(manifest.to_json())
        with contextlib.suppress(FileNotFoundError):
            folder.rename(Path(scratch) / "replaced")  # Moves a link itself, never its target.
        try:
            part.rename(folder)
        except OSError:
            if not _intact(folder, digest):  # Otherwise another process was faster.
                raise
    return folder


def _intact(folder: Path, digest: str) -> bool:
    """Whether the folder holds every file of the result with this digest, byte for byte."""
    try:
        return not folder.is_symlink() and check_result(folder).digest == digest
    except ValueError:
        return False


# ---------------------------------------------------------------------------------------------
# --model-output-path


def deliver(store: Store, head: Head, output: str, work: Path, patience: Patience = BRIEF) -> bool:
    """Copies the verified result of a finished run to ``output``, a ``gs://`` path or a folder.
    Returns whether it is there now.

    Writes only absent files, the manifest last, so it may be repeated at every boot that finds the
    run done. If a file there has other bytes, nothing is written, and a message says so. A failure
    is only reported: the run is done in any case.
    """
    result = head.end.result if head.end is not None else None
    if result is None:
        return False
    folder = work / "delivery"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        manifest = fetch_result(store, result, folder, patience=patience)
        (folder / RESULT_FILE).write_bytes(manifest.to_json())
        names = [*(file.name for file in manifest.files), RESULT_FILE]
        target = _Bucket(output, patience) if output.startswith("gs://") else _Folder(Path(output))
        other = [name for name in names if target.has_other(name, folder / name)]
        if other:
            _log.info(
                f"model-output-path {output}: holds other bytes in {', '.join(other)}; nothing was "
                "copied there, the result stays where it is; name another place, or empty that one"
            )
            return False
        for name in names:
            target.put(name, folder / name)
        _log.info(f"model-output-path {output}: has the result, {len(names) - 1} files")
        return True
    except (StoreError, OSError) as error:
        why = "may not be written" if isinstance(error, Forbidden) else "could not be written"
        _log.info(f"model-output-path {output}: {why} ({error}); the result stays where it is")
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Bucket:
    """Writes files below a ``gs://`` path."""

    def __init__(self, output: str, patience: Patience) -> None:
        bucket, _, path = output.removeprefix("gs://").strip("/").partition("/")
        self._store = open_store(f"gs://{bucket}")
        self._prefix = f"{path}/" if path else ""
        self._patience = patience

    def has_other(self, name: str, file: Path) -> bool:
        try:
            found = self._patience(lambda: self._store.stat(self._prefix + name))
        except NotFound:
            return False
        return (found.size, found.crc32c) != checksum_of(file)

    def put(self, name: str, file: Path) -> None:
        path = self._prefix + name

        def once() -> None:
            with contextlib.suppress(PreconditionFailed):  # An earlier try of ours wrote it.
                self._store.put(path, file, if_generation_match=0)

        self._patience(once)


class _Folder:
    """Writes files into a local folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has_other(self, name: str, file: Path) -> bool:
        there = self._folder / name
        return there.exists() and (there.is_dir() or checksum_of(there) != checksum_of(file))

    def put(self, name: str, file: Path) -> None:
        there = self._folder / name
        there.parent.mkdir(parents=True, exist_ok=True)
        fresh = there.with_name(f".{secrets.token_hex(8)}.part")
        try:
            shutil.copyfile(file, fresh)
            with contextlib.suppress(FileExistsError):
                os.link(fresh, there)  # Never overwrites someone else's file.
        finally:
            fresh.unlink(missing_ok=True)


def main(url: str, kind: str, into: Path, *, as_json: bool) -> int:
    """``python -m outlast.supervisor fetch``: prints the path, or one sentence that says why there
    is none.
    """
    log_to(lambda line: write_line(f"outlast: {line}"))
    try:
        path = fetch(url, kind, into.absolute())
    except KeyboardInterrupt:
        _log.info(f"{url}: interrupted; the same command continues where this one stopped")
        return exits.INTERRUPTED
    except (DataError, StoreError, OSError) as error:
        usage = isinstance(error, DataError)
        sentence = str(error) if usage else f"{url}: {error}"
        if as_json:
            print(json.dumps({"error": sentence, "usage": usage}))
        else:
            _log.info(sentence)
        return exits.USAGE if usage else 1
    print(json.dumps({"path": str(path)}) if as_json else path)
    return exits.DONE
