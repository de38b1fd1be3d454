"""Copies a run into another bucket, for a handover.

Checkpoints keep their names and bytes. A manifest names each object's generation, which the copy
cannot keep, so that the manifests and pages are written again, and HEAD names these. Records keep
their times. The objects pass through no other machine than Google's; each copy is compared by size
and CRC32C with what the manifest or the old bucket says, and all of them once more at the end.
"""

from collections.abc import Mapping
from dataclasses import replace

from blake3 import blake3

from outlast.base.retry import BRIEF, Patience
from outlast.bucket import pages
from outlast.bucket.head import Checkpoint, Head
from outlast.bucket.layout import Layout, Manifest
from outlast.bucket.store import (
    BucketStore,
    Damaged,
    NotFound,
    Object,
    PreconditionFailed,
    checksum_of,
    put_new,
)
from outlast.bucket.transfer import by_size, in_parallel, small_writes


def copy_run(
    origin: BucketStore,
    target: BucketStore,
    layout: Layout,
    head: Head,
    *,
    patience: Patience = BRIEF,
) -> Head:
    """Copies all of the run but HEAD, and returns the HEAD that names the copies; the caller writes
    it. What an interrupted call copied is compared, and not copied again. Nothing may write to
    the run meanwhile.

    Packages that the run started with are copied, too, unless the experiment has them there.
    Raises Damaged if anything in the old bucket is not what HEAD, a page or a manifest names, and
    StoreError.
    """
    return _Copying(origin, target, layout, head, patience).run()


class _Copying:
    def __init__(
        self,
        origin: BucketStore,
        target: BucketStore,
        layout: Layout,
        head: Head,
        patience: Patience,
    ) -> None:
        self._origin = origin
        self._target = target
        self._layout = layout
        self._head = head
        self._patience = patience
        self._there: dict[str, Object] = {}
        """What the new bucket has."""
        self._wanted: dict[str, tuple[int, str]] = {}
        """Size and CRC32C of what it must have in the end."""

    def run(self) -> Head:
        layout, head = self._layout, self._head
        kept = pages.kept(self._origin, layout, head, patience=self._patience)
        if kept.lost:
            raise Damaged("; ".join(kept.lost))
        manifests = self._manifests(kept.chain)
        self._there = self._listed(self._target, layout.root)
        self._copy_objects(manifests)
        moved = {path: self._write_manifest(*found) for path, found in manifests.items()}
        copied = pages.moved(
            self._origin,
            self._target,
            layout,
            head,
            lambda entry: replace(
                entry, generation=moved[entry.path][0], blake3=moved[entry.path][1]
            ),
            patience=self._patience,
        )
        self._check()
        return self._with_result(copied)

    def _listed(self, store: BucketStore, prefix: str) -> dict[str, Object]:
        found = self._patience(lambda: list(store.list(prefix)))
        return {item.path: item for item in found}

    def _manifests(
        self, chain: tuple[Checkpoint, ...]
    ) -> Mapping[str, tuple[Checkpoint, Manifest]]:
        """The manifest of each kept checkpoint, by its path."""

        def read(entry: Checkpoint) -> Manifest:
            data, _ = self._patience(
                lambda: self._origin.get(entry.manifest, generation=entry.generation)
            )
            if blake3(data).hexdigest() != entry.blake3:
                raise Damaged(f"{entry.manifest}: has other bytes than HEAD names")
            try:
                return Manifest.from_json(data)
            except ValueError as error:
                raise Damaged(f"{entry.manifest}: {error}") from None

        streams = small_writes(self._origin)
        found = in_parallel([lambda entry=entry: read(entry) for entry in chain], streams)
        pairs = zip(chain, found, strict=True)
        return {entry.path: (entry, manifest) for entry, manifest in pairs}

    def _copy_objects(self, manifests: Mapping[str, tuple[Checkpoint, Manifest]]) -> None:
        layout = self._layout
        here = self._listed(self._origin, layout.root)
        for wheels in self._head.wheels:
            here |= self._listed(self._origin, f"{layout.environments}{wheels.key}.zip")
        named = {
            f"{path}{one.name}": one
            for path, (_, manifest) in manifests.items()
            for one in manifest.objects
        }
        for path, one in named.items():
            found = here.get(path)
            if found is None or (found.size, found.crc32c, found.generation) != (
                one.size,
                one.crc32c,
                one.generation,
            ):
                raise Damaged(
                    f"{self._origin.url}/{path}: is missing, or not what its manifest names;"
                    " nothing is handed over"
                )
        jobs = []
        for path, found in here.items():
            # A snapshot that HEAD does not name was never committed, or is being deleted.
            snapshot = layout.is_of_snapshot(path)
            written_again = path == layout.head or path.startswith(layout.pages)
            if written_again or (snapshot and path not in named):
                continue
            self._wanted[path] = (found.size, found.crc32c)
            jobs.append((found.size, lambda found=found: self._take(found)))
        for written in by_size(self._target, jobs):
            self._there[written.path] = written

    def _take(self, source: Object) -> Object:
        """The copy of an object; one of a changed record is replaced."""
        expected = (source.size, source.crc32c)
        there = self._there.get(source.path)
        if there is None and not source.path.startswith(self._layout.root):
            there = self._stat(source.path)
            if there is not None:  # another run of the experiment has put it there
                self._wanted[source.path] = (there.size, there.crc32c)
                return there
        if there is not None and (there.size, there.crc32c) == expected:
            return there
        replaces = there.generation if there is not None else 0

        def once() -> Object:
            try:
                return self._target.take(self._origin, source, if_generation_match=replaces)
            except PreconditionFailed:
                found = self._stat(source.path)  # An earlier try of ours, if it has these bytes.
                if found is None or (found.size, found.crc32c) != expected:
                    raise
                return found

        try:
            written = self._patience(once)
        except (NotFound, PreconditionFailed) as error:
            raise Damaged(
                f"{self._origin.url}/{source.path}: changed while it was copied ({error}); repeat"
                " the handover"
            ) from None
        if (written.size, written.crc32c) != expected:
            raise Damaged(
                f"{self._target.url}/{source.path}: arrived as {(written.size, written.crc32c)},"
                f" but {expected} was sent"
            )
        return written

    def _stat(self, path: str) -> Object | None:
        try:
            return self._patience(lambda: self._target.stat(path))
        except NotFound:
            return None

    def _write_manifest(self, entry: Checkpoint, manifest: Manifest) -> tuple[int, str]:
        """Writes the manifest of the copy, which names the copied objects; returns its generation
        and BLAKE3."""
        objects = tuple(
            replace(one, generation=self._there[f"{entry.path}{one.name}"].generation)
            for one in manifest.objects
        )
        data = replace(manifest, objects=objects).to_json()
        self._wanted[entry.manifest] = checksum_of(data)
        written = self._there.get(entry.manifest)
        if written is None or (written.size, written.crc32c) != checksum_of(data):
            replaces = written.generation if written is not None else 0
            written = put_new(
                self._target, entry.manifest, data, replaces=replaces, patience=self._patience
            )
        return written.generation, blake3(data).hexdigest()

    def _check(self) -> None:
        """Compares everything in the new bucket once more. Raises Damaged."""
        there = self._listed(self._target, self._layout.root)
        for path, expected in self._wanted.items():
            own = path.startswith(self._layout.root)
            found = there.get(path) if own else self._stat(path)
            if found is None or (found.size, found.crc32c) != expected:
                raise Damaged(
                    f"{self._target.url}/{path}: is missing after the copy, or has other bytes;"
                    " repeat the handover"
                )

    def _with_result(self, head: Head) -> Head:
        """HEAD whose end names the copied result."""
        if head.end is None or head.end.result is None:
            return head
        path = f"{head.end.result.path}RESULT.json"
        if path not in self._wanted:
            raise Damaged(f"{self._origin.url}/{path}: is missing; nothing is handed over")
        result = replace(head.end.result, generation=self._there[path].generation)
        return replace(head, end=replace(head.end, result=result))
