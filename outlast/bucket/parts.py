"""The parts of a run, as HEAD's chain tells of them: trainings of one program, one after the other.

A part that is done has two entries of the same step: its state after the last step, and the one
tagged `DONE_TAG`, with `PART_FILE` and `PART_RESULT`. Steps of entries and rows count through all
parts; `before` is what the parts before made.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from outlast.base.retry import BRIEF, Patience
from outlast.bucket.errors import RestoreError
from outlast.bucket.head import Checkpoint, Result
from outlast.bucket.layout import (
    PART_RESULT,
    RESULT_FILE,
    Layout,
    Manifest,
    ManifestObject,
    ResultFile,
    ResultManifest,
)
from outlast.bucket.store import Damaged, NotFound, Store, copy_new, put_new

DONE_TAG = "done"
"""Tag of the entry that ends a part."""

_RESULT_MANIFEST = f"{PART_RESULT}/{RESULT_FILE}"


@dataclass(frozen=True)
class Part:
    """One part with what is kept of it."""

    name: str
    before: int
    """Steps of the parts before it."""
    newest: Checkpoint
    """Its newest entry."""
    state: Checkpoint | None = None
    """Its newest entry with a state; None where only its end is left."""

    @property
    def done(self) -> bool:
        return is_done(self.newest)

    @property
    def step(self) -> int:
        """Its own steps that are safe."""
        return own_step(self.newest)


def is_done(entry: Checkpoint) -> bool:
    """Whether the entry ends a part."""
    return bool(entry.part) and DONE_TAG in entry.tags


def own_step(entry: Checkpoint) -> int:
    """The entry's step in its own part; in a run without parts, its step."""
    return entry.step - entry.before


def parts_of(chain: Iterable[Checkpoint]) -> tuple[Part, ...]:
    """The parts that have a checkpoint, in the order in which they began."""
    found: dict[str, Part] = {}
    for entry in chain:
        if not entry.part:
            continue
        part = found.get(entry.part) or Part(entry.part, entry.before, entry)
        part = replace(part, newest=entry)
        found[entry.part] = part if is_done(entry) else replace(part, state=entry)
    return tuple(found.values())


def own_steps(
    chain: Iterable[Checkpoint], rows: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Rows as they are in the bucket, with the steps of their own parts."""
    before = {part.name: part.before for part in parts_of(chain)}
    for row in rows:
        yield {**row, "step": row["step"] - before.get(row.get("part", ""), 0)} if before else row


# The result of a part, and of all.


def put_manifest(folder: Path) -> None:
    """Writes the manifest of a part's result into its folder; the same bytes each time."""
    (folder / RESULT_FILE).unlink(missing_ok=True)
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            name = path.relative_to(folder).as_posix()
            files.append(ResultFile(name, path.stat().st_size, digest))
    (folder / RESULT_FILE).write_bytes(ResultManifest.of(files).to_json())


def result_of(store: Store, done: Checkpoint, *, patience: Patience = BRIEF) -> Result:
    """The result of a part that is done, as `fetch_result` takes it; `done` is its entry. Damaged
    or NotFound where it is not what HEAD names."""
    objects = _objects_of(store, done, patience)
    found = _manifest_of_result(store, done, objects, patience)
    generation = objects[_RESULT_MANIFEST].generation
    return Result(f"{done.path}{PART_RESULT}/", generation, found.digest)


def put_results(
    store: Store,
    layout: Layout,
    term: int,
    chain: Iterable[Checkpoint],
    *,
    patience: Patience = BRIEF,
) -> Result:
    """The result of a run with parts: the files of each in a folder of its name, copied inside of
    the store. RestoreError where one is not what its manifest says."""
    files: list[ResultFile] = []
    for part in parts_of(chain):
        try:
            files += _copy_result(store, layout.result(term), part, patience)
        except (Damaged, NotFound) as error:
            raise RestoreError(
                f"the result of part {part.name} cannot be read ({error}); set the run back to a "
                "step of that part with outlast resume --from"
            ) from None
    manifest = ResultManifest.of(files)
    path = layout.result_manifest(term)
    written = put_new(store, path, manifest.to_json(), patience=patience)
    return Result(path=layout.result(term), generation=written.generation, digest=manifest.digest)


def _copy_result(store: Store, prefix: str, part: Part, patience: Patience) -> Iterator[ResultFile]:
    done = part.newest
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
            raise Damaged(f"{done.path}{entry.name}: is gone, or has other bytes")
        yield replace(file, name=name)


def _objects_of(store: Store, done: Checkpoint, patience: Patience) -> Mapping[str, ManifestObject]:
    data, _ = patience(lambda: store.get(done.manifest, generation=done.generation))
    if blake3(data).hexdigest() != done.blake3:
        raise Damaged(f"{done.manifest}: has other bytes than were committed")
    try:
        return {entry.name: entry for entry in Manifest.from_json(data).objects}
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
    except ValueError as error:
        raise Damaged(f"{path}: {error}") from None
