"""Writes the result of a finished run under the term, and reads it back verified."""

import hashlib
from pathlib import Path

from outlast.base.plain_files import PlainFile
from outlast.base.retry import BRIEF, Patience
from outlast.bucket.head import Result
from outlast.bucket.layout import Layout
from outlast.bucket.store import Damaged, Slice, Store, put_new
from outlast.bucket.transfer import Place, by_size, sha256_and_crc32c, snapshot_files
from outlast.spec.result import ResultFile, ResultManifest


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
    data, _ = patience(lambda: store.get(f"{result.path}RESULT.json", generation=result.generation))
    try:
        manifest = ResultManifest.from_json(data)
    except ValueError as error:
        raise Damaged(f"{result.path}RESULT.json: {error}") from None
    if manifest.digest != result.digest:
        raise Damaged(
            f"{result.path}RESULT.json: digest is {manifest.digest}, HEAD names {result.digest}"
        )

    def fetch(file: ResultFile) -> None:
        to, path = into / file.name, result.path + file.name

        def once() -> Place:
            with Place(to, 0, hashlib.sha256(), until=file.size) as place:
                store.stream(path, place)
            return place

        place = patience(once)
        found = place.hasher.hexdigest()
        if place.written != file.size or found != file.sha256:
            raise Damaged(f"{path}: sha256 is {found}, the committed one is {file.sha256}")

    for file in manifest.files:
        (into / file.name).parent.mkdir(parents=True, exist_ok=True)
        (into / file.name).write_bytes(b"")
    by_size(store, [(file.size, lambda file=file: fetch(file)) for file in manifest.files])
    return manifest
