"""Results of a run with parts: each part's result, and all of them as the run's result."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from blake3 import blake3

from outlast.base.codec import OtherFormat
from outlast.base.plain_files import NotPlain, PlainFile, plain_files
from outlast.base.retry import BRIEF, Patience
from outlast.bucket.errors import BadSnapshot, RestoreError
from outlast.bucket.head import Checkpoint, Result
from outlast.bucket.layout import Layout, Manifest, ManifestObject
from outlast.bucket.parts import Part
from outlast.bucket.store import Damaged, NotFound, Store, copy_new, put_new
from outlast.bucket.transfer import in_parallel
from outlast.spec.result import PART_RESULT, RESULT_FILE, ResultFile, ResultManifest

_RESULT_MANIFEST = f"{PART_RESULT}/{RESULT_FILE}"


def put_manifest(ended: Path, owner: int | None = None) -> None:
    """Writes the manifest of a part's result into ``ended``, the folder that the part ended with;
    the same bytes each time. Raises BadSnapshot if the result holds anything but plain files or,
    with ``owner``, files of another user.
    """
    folder = ended / PART_RESULT
    files = []
    try:
        for found in sorted(plain_files(folder, owner)):
            if found.name != RESULT_FILE:
                with found.open() as file:
                    digest = hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
                    size = os.fstat(file.fileno()).st_size
                files.append(ResultFile(found.name, size, digest))
        manifest = ResultManifest.of(files).to_json()
        PlainFile(ended, f"{PART_RESULT}/{RESULT_FILE}", owner).replace(manifest)
    except NotPlain as error:
        raise BadSnapshot(f"result {error}") from None


def result_of(store: Store, done: Checkpoint, *, patience: Patience = BRIEF) -> Result:
    """The result of a finished part, for `fetch_result`; `done` is its entry. Raises Damaged or
    NotFound if it is not what HEAD names.
    """
    objects = _objects_of(store, done, patience)
    found = _manifest_of_result(store, done, objects, patience)
    generation = objects[_RESULT_MANIFEST].generation
    return Result(f"{done.path}{PART_RESULT}/", generation, found.digest)


def put_results(
    store: Store,
    layout: Layout,
    term: int,
    parts: Iterable[Part],
    *,
    patience: Patience = BRIEF,
) -> Result:
    """Puts together the result of a run whose parts are all done: each part's files in a folder of
    its name, copied inside the store, a few parts at a time. Raises RestoreError if a file is not
    what its manifest says.
    """

    def copy(part: Part) -> list[ResultFile]:
        try:
            return _copy_result(store, layout.result(term), part, patience)
        except (Damaged, NotFound) as error:
            raise RestoreError(
                f"the result of part {part.name} cannot be read ({error}); repeat it: "
                f"outlast resume --from {part.name}:{part.step}"
            ) from None

    copied = in_parallel([lambda part=part: copy(part) for part in parts], store.streams)
    manifest = ResultManifest.of([file for files in copied for file in files])
    path = layout.result_manifest(term)
    written = put_new(store, path, manifest.to_json(), patience=patience)
    return Result(path=layout.result(term), generation=written.generation, digest=manifest.digest)


def _copy_result(store: Store, prefix: str, part: Part, patience: Patience) -> list[ResultFile]:
    done, found = part.newest, list[ResultFile]()
    objects = _objects_of(store, done, patience)
    for file in _manifest_of_result(store, done, objects, patience).files:
        name, entry = f"{part.name}/{file.name}", objects.get(f"{PART_RESULT}/{file.name}")
        if entry is None or entry.size != file.size:
            raise Damaged(f"{done.path}: has no {PART_RESULT}/{file.name} as recorded")
        copied = copy_new(
            store,
            done.path + entry.name,
            prefix + name,
            source_generation=entry.generation,
            expected=(entry.size, entry.crc32c),
            patience=patience,
        )
        if copied is None:
            raise Damaged(f"{done.path}{entry.name}: is missing, or has other bytes")
        found.append(replace(file, name=name))
    return found


def _objects_of(store: Store, done: Checkpoint, patience: Patience) -> Mapping[str, ManifestObject]:
    data, _ = patience(lambda: store.get(done.manifest, generation=done.generation))
    if blake3(data).hexdigest() != done.blake3:
        raise Damaged(f"{done.manifest}: has other bytes than were committed")
    try:
        return {entry.name: entry for entry in Manifest.from_json(data).objects}
    except OtherFormat as error:
        raise RestoreError(f"{done.manifest}: {error}") from None
    except ValueError as error:
        raise Damaged(f"{done.manifest}: {error}") from None


def _manifest_of_result(
    store: Store, done: Checkpoint, objects: Mapping[str, ManifestObject], patience: Patience
) -> ResultManifest:
    entry = objects.get(_RESULT_MANIFEST)
    if entry is None:
        raise Damaged(f"{done.manifest}: names no {_RESULT_MANIFEST}")
    path = done.path + entry.name
    data, _ = patience(lambda: store.get(path, generation=entry.generation))
    if blake3(data).hexdigest() != entry.blake3:
        raise Damaged(f"{path}: has other bytes than were committed")
    try:
        return ResultManifest.from_json(data)
    except OtherFormat as error:
        raise RestoreError(f"{path}: {error}") from None
    except ValueError as error:
        raise Damaged(f"{path}: {error}") from None
