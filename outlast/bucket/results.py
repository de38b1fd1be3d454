"""Writes the result of a finished run under the term, and reads it back verified."""

import contextlib
import hashlib
import os
from collections.abc import Container, Iterator
from pathlib import Path

from outlast.base.plain_files import PlainFile
from outlast.base.retry import BRIEF, Patience
from outlast.bucket.head import Result
from outlast.bucket.layout import Layout
from outlast.bucket.store import CHUNK_BYTES, Damaged, Slice, Store, put_new
from outlast.bucket.transfer import Place, by_size, sha256_and_crc32c, snapshot_files
from outlast.spec.result import RESULT_FILE, ResultFile, ResultManifest


def put_result(
    store: Store,
    layout: Layout,
    term: int,
    folder: Path,
    *,
    owner: int | None = None,
    patience: Patience = BRIEF,
) -> Result:
    """Writes the folder's files as the term's result, RESULT.json last. ``owner``: user id that the
    folder and its files must have; None for any.
    """
    prefix = layout.result(term)

    def put(name: str, path: PlainFile) -> ResultFile:
        sha256, crc32c = sha256_and_crc32c(path)
        whole = Slice(path, 0, path.stat().st_size, crc32c)
        put_new(store, prefix + name, whole, patience=patience)
        return ResultFile(name, whole.size, sha256)

    files = by_size(
        store,
        [
            (path.stat().st_size, lambda name=name, path=path: put(name, path))
            for name, path in snapshot_files(folder, owner)
        ],
    )
    manifest = ResultManifest.of(files)
    written = put_new(store, layout.result_manifest(term), manifest.to_json(), patience=patience)
    return Result(path=prefix, generation=written.generation, digest=manifest.digest)


def fetch_result(
    store: Store, result: Result, into: Path, *, patience: Patience = BRIEF
) -> ResultManifest:
    """Downloads a result into the folder `into` and verifies each file; Damaged if one fails."""
    manifest = result_manifest(store, result, patience=patience)

    def fetch(file: ResultFile) -> None:
        (into / file.name).parent.mkdir(parents=True, exist_ok=True)
        _fetch_file(store, result.path + file.name, file, into / file.name, patience)

    by_size(store, [(file.size, lambda file=file: fetch(file)) for file in manifest.files])
    return manifest


def complete_result(
    store: Store, result: Result, folder: Path, *, patience: Patience = BRIEF
) -> ResultManifest:
    """Downloads what the folder lacks of a result, RESULT.json last. Each file is verified before
    it gets its name, and files that are there are verified too, so a call that was interrupted can
    be repeated. Raises Damaged, FileExistsError for a file with other bytes, and OSError.
    """
    manifest = result_manifest(store, result, patience=patience)
    files = [*manifest.files, _listed(manifest)]
    missing = [file for file in files if not _is_there(folder / file.name, file)]

    taken = {name for file in files for name in file.name.split("/")}

    @contextlib.contextmanager
    def unfinished(name: str) -> Iterator[Path]:
        to = folder / name
        _make_folders(folder, to.parent)
        part = to.with_name(_unfinished_name(to.name, taken))
        part.unlink(missing_ok=True)  # left by a process that was killed
        try:
            yield part
            os.replace(part, to)
        finally:
            part.unlink(missing_ok=True)

    def fetch(file: ResultFile) -> None:
        with unfinished(file.name) as part:
            _fetch_file(store, result.path + file.name, file, part, patience)

    last = [file for file in missing if file.name == RESULT_FILE]
    first = [file for file in missing if file.name != RESULT_FILE]
    by_size(store, [(file.size, lambda file=file: fetch(file)) for file in first])
    for file in last:
        with unfinished(file.name) as part, part.open("xb") as opened:
            opened.write(manifest.to_json())
    return manifest


def _unfinished_name(name: str, taken: Container[str]) -> str:
    """A name beside a file until it is whole: short, however long the file's own name is, and none
    of ``taken``, which are the names that the result's author chose.
    """
    found = f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.part"
    while found in taken:
        found = f".{found}"
    return found


def _make_folders(top: Path, folder: Path) -> None:
    """Creates a folder below ``top``. Raises FileExistsError if a link would lead elsewhere."""
    top.mkdir(parents=True, exist_ok=True)
    for name in folder.relative_to(top).parts:
        top = top / name
        if top.is_symlink():
            raise FileExistsError(f"{top}: is a link, and the result has a folder there")
        top.mkdir(exist_ok=True)


def _listed(manifest: ResultManifest) -> ResultFile:
    """RESULT.json itself, as the list would have it."""
    data = manifest.to_json()
    return ResultFile(RESULT_FILE, len(data), hashlib.sha256(data).hexdigest())


def _is_there(path: Path, file: ResultFile) -> bool:
    """Whether the file is there with its bytes. Raises FileExistsError if it has others."""
    hasher = hashlib.sha256()
    try:
        with path.open("rb") as found:
            while data := found.read(CHUNK_BYTES):
                hasher.update(data)
    except FileNotFoundError:
        return False
    if hasher.hexdigest() != file.sha256:
        raise FileExistsError(f"{path}: has other bytes than the result")
    return True


def result_manifest(store: Store, result: Result, *, patience: Patience = BRIEF) -> ResultManifest:
    """The list of a result's files, whose digest HEAD names. Raises Damaged."""
    data, _ = patience(lambda: store.get(f"{result.path}RESULT.json", generation=result.generation))
    try:
        manifest = ResultManifest.from_json(data)
    except ValueError as error:
        raise Damaged(f"{result.path}RESULT.json: {error}") from None
    if manifest.digest != result.digest:
        raise Damaged(
            f"{result.path}RESULT.json: digest is {manifest.digest}, HEAD names {result.digest}"
        )
    return manifest


def _fetch_file(store: Store, path: str, file: ResultFile, to: Path, patience: Patience) -> None:
    """Downloads one file, which must not exist. Raises Damaged if its bytes are not those of the
    list.
    """
    to.open("xb").close()

    def once() -> Place:
        with Place(to, 0, hashlib.sha256(), until=file.size) as place:
            store.stream(path, place)
        return place

    place = patience(once)
    found = place.hasher.hexdigest()
    if place.written != file.size or found != file.sha256:
        raise Damaged(f"{path}: sha256 is {found}, the committed one is {file.sha256}")
