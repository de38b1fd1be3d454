"""What points begin from and are measured by: buckets, undisturbed runs, the truth."""

import contextlib
import importlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.forks.probe import Blow, Kind
from bench.forks.programs import PROGRAMS, Program
from bench.forks.vm import LAYOUT, Place, Vm, iter_events
from outlast.bucket import pages
from outlast.bucket.head import Checkpoint, Head, read_head
from outlast.bucket.layout import Manifest
from outlast.bucket.parts import is_done
from outlast.bucket.rows import read_rows
from outlast.bucket.store import FolderStore, Store
from outlast.spec.result import ResultManifest

RUN_SEC = 180.0
"""A VM that has not ended after so long hangs."""
EMPTY = "empty"
"""The bucket of a run that has not begun."""
HALF = "half"
"""The bucket of a run that was killed in the middle of an upload, halfway."""
CENSUSES = 2
"""Undisturbed runs of each scene; only events that each of them has are drawn."""


class SceneError(Exception):
    """An undisturbed run did not do what it must; one sentence."""


@dataclass(frozen=True)
class Truth:
    """What an undisturbed run leaves."""

    result: Mapping[str, bytes]
    rows: Sequence[Mapping[str, Any]]
    head: Mapping[str, Any]
    """HEAD without terms, names, generations and times."""
    states: Mapping[tuple[str, int, bool], Mapping[str, str]]
    """BLAKE3 of each file of a checkpoint, by part, step, and whether it is the part's end."""


@dataclass(frozen=True)
class Scene:
    """A program, a bucket to begin from, and what happens in an undisturbed run from there."""

    program: Program
    base: str
    bucket: Path | None
    truth: Truth
    events: Sequence[tuple[str, str]]
    """(process, name) in order."""

    @property
    def name(self) -> str:
        return f"{self.program.name}/{self.base}"

    def new_place(self, folder: Path) -> Place:
        """A new folder with the bucket to begin from."""
        folder.mkdir(parents=True)
        place = Place(folder, folder / "bucket")
        if self.bucket is not None:
            shutil.copytree(self.bucket, place.bucket, symlinks=True)
        return place


def make(names: Sequence[str], work: Path) -> dict[str, Scene]:
    """The scenes of these programs, by name. Raises SceneError."""
    scenes = {}
    for name in names:
        program = PROGRAMS[name]
        warm(program, work / name / "warm")
        truth = _truth(program, work / name)
        half = _halfway(program, work / name / "half")
        for base, bucket in ((EMPTY, None), (HALF, half)):
            scene = Scene(program, base, bucket, truth, ())
            events = _census(scene, work / name)
            scenes[scene.name] = replace(scene, events=events)
    return scenes


def warm(program: Program, folder: Path) -> None:
    """Imports what the program's VMs import, so that forks need not."""
    place = _alone(program, folder)
    for name in (place.folder / "events.modules").read_text().splitlines():
        if name not in ("__main__", "__mp_main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def _alone(program: Program, folder: Path) -> Place:
    """One undisturbed run from its beginning to its end."""
    scene = Scene(program, EMPTY, None, Truth({}, [], {}, {}), ())
    place = scene.new_place(folder)
    _to_end(place, program)
    return place


def _to_end(place: Place, program: Program) -> None:
    vm = Vm(place, "vm1", program, events=place.folder / "events")
    try:
        vm.wait(RUN_SEC)
    finally:
        vm.destroy()
    if vm.code != 0 or place.member.exists():
        raise SceneError(f"{program.name}: ended with {vm.code}; see {place.folder}/vm1/log")


def _truth(program: Program, work: Path) -> Truth:
    """From a run that saves at each step and keeps everything, and from one as it is."""
    every = replace(program, checkpoint_every="1", keep_every_steps=1, waits=True)
    store = FolderStore(_alone(every, work / "every").bucket)
    head = read_head(store, LAYOUT).head
    states = {key_of(one): files_of(store, one) for one in kept(store, head)}
    store = FolderStore(_alone(program, work / "baseline").bucket)
    head = read_head(store, LAYOUT).head
    rows = read_rows(store, LAYOUT, head)
    return Truth(result_of(store, head), rows, comparable(store, head), states)


def _halfway(program: Program, folder: Path) -> Path:
    """The bucket after a kill halfway, in the middle of an upload: its leftovers are there."""
    events = Counter(name for _, name in iter_events(folder.parent / "baseline" / "events"))
    nth = events["put s/MANIFEST.json"] // 2 + 1
    scene = Scene(program, EMPTY, None, Truth({}, [], {}, {}), ())
    place = scene.new_place(folder)
    vm = Vm(place, "vm0", program, Blow("put s/MANIFEST.json", nth, False, Kind.KILL))
    try:
        vm.wait(RUN_SEC)
    finally:
        vm.destroy()
    if vm.code is not None or not vm.board.hit:
        raise SceneError(f"{program.name}: was not killed halfway; see {place.folder}/vm0/log")
    return place.bucket


def _census(scene: Scene, work: Path) -> Sequence[tuple[str, str]]:
    """The events of an undisturbed run from the scene's bucket that come each time."""
    every: list[list[tuple[str, str]]] = []
    for number in range(CENSUSES):
        place = scene.new_place(work / f"census-{scene.base}-{number}")
        _to_end(place, scene.program)
        every.append(list(iter_events(place.folder / "events")))
    sure = Counter(every[0])
    for events in every[1:]:
        sure &= Counter(events)
    found, seen = [], Counter[tuple[str, str]]()
    for event in every[0]:
        seen[event] += 1
        if seen[event] <= sure[event]:
            found.append(event)
    return found


# ---------------------------------------------------------------------------------------------
# Reading a run


def kept(store: Store, head: Head) -> list[Checkpoint]:
    """All checkpoints that HEAD and its pages name, oldest first. StoreError: a page is lost."""
    found = pages.kept(store, LAYOUT, head)
    if found.lost:
        raise pages.PageLost("; ".join(found.lost))
    return sorted(found.chain, key=lambda one: (one.step, one.tags))


def key_of(one: Checkpoint) -> tuple[str, int, bool]:
    """The key in `Truth.states`."""
    return one.part, one.step, is_done(one)


def files_of(store: Store, one: Checkpoint) -> dict[str, str]:
    """BLAKE3 of each object of a checkpoint, from its bytes. StoreError: one is not as named."""
    from blake3 import blake3

    data, _ = store.get(one.manifest, generation=one.generation)
    if blake3(data).hexdigest() != one.blake3:
        raise pages.PageLost(f"{one.manifest}: is not what HEAD names")
    found = {}
    for entry in Manifest.from_json(data).objects:
        content, _ = store.get(one.path + entry.name, generation=entry.generation)
        found[entry.name] = blake3(content).hexdigest()
        if found[entry.name] != entry.blake3:
            raise pages.PageLost(f"{one.path}{entry.name}: is not what its manifest names")
    return found


def result_of(store: Store, head: Head) -> dict[str, bytes]:
    """The files of the run's result, RESULT.json among them."""
    assert head.end is not None and head.end.result is not None
    result = head.end.result
    data, _ = store.get(f"{result.path}RESULT.json", generation=result.generation)
    names = [file.name for file in ResultManifest.from_json(data).files]
    return {"RESULT.json": data, **{name: store.get(result.path + name)[0] for name in names}}


def comparable(store: Store, head: Head) -> dict[str, Any]:
    """What HEAD and its pages say, without what differs between two undisturbed runs."""
    body = json.loads(head.to_json())
    end = body.get("end") or {}
    end.pop("result", None)
    names = ("owner", "resume", "placement", "state", "failures", "no_progress", "data")
    chain = [(one.part, one.before, one.step, list(one.tags)) for one in kept(store, head)]
    return {**{name: body[name] for name in names}, "end": end, "chain": chain}
