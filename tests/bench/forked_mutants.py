"""Plants mutants in the process that kills are forked from; a program, for test_forks.py.

`python -m tests.bench.forked_mutants NAME…` prints a line of JSON for each: how many points were
played until one did not hold, and what it said.
"""

import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from bench.forks import scenes
from bench.forks.play import play
from bench.forks.points import PHASES, Deck, Point
from bench.forks.probe import Kind, WatchedStore
from bench.forks.verdict import judge
from outlast.base.process_tree import adopt_orphans
from outlast.bucket.commit import Committer
from outlast.bucket.restore import Fresh
from outlast.bucket.store import FolderStore, Object, checksum_of, folder
from outlast.bucket.store.contract import opened
from outlast.loop import call as call_module
from outlast.loop import state as state_module
from outlast.supervisor import planner
from tests.supervisor import mutants

POINTS = 20
ROUNDS = 20
"""How often each cell of phase and kind is drawn from."""
SEED = 1
PROGRAM = "dummy"


def head_before_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD names a checkpoint, one of whose files is uploaded afterwards."""
    put, next_generation = WatchedStore.put, FolderStore._next_generation
    held: list[tuple[str, bytes, int]] = []
    planned: list[int] = []

    def put_later(
        store: WatchedStore, path: str, data: Any, *, if_generation_match: int | None = None
    ) -> Any:
        if path.endswith("/arrays.bin"):
            with opened(data) as file:
                content = file.read()
            held.append((path, content, time.time_ns() // 1000))
            return Object(path, held[-1][2], *checksum_of(content), store.now())
        written = put(store, path, data, if_generation_match=if_generation_match)
        while path.endswith("/HEAD") and held:
            late, content, generation = held.pop()
            planned.append(generation)
            put(store, late, content, if_generation_match=0)
        return written

    def chosen(store: FolderStore, counter: int, current: Any) -> int:
        return planned.pop() if planned else next_generation(store, counter, current)

    monkeypatch.setattr(WatchedStore, "put", put_later)
    monkeypatch.setattr(FolderStore, "_next_generation", chosen)


def optimizer_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed training begins with an optimizer that remembers nothing."""
    _not_restored(monkeypatch, "velocity")


def random_numbers_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed training draws its random numbers from the beginning again."""
    _not_restored(monkeypatch, "rng")


def _not_restored(monkeypatch: pytest.MonkeyPatch, left_out: str) -> None:
    restore = state_module.restore_named

    def some(state: Any, found: Any, blobs: Any, names: Iterable[str]) -> None:
        restore(state, found, blobs, [name for name in names if name != left_out])

    monkeypatch.setattr(state_module, "restore_named", some)
    monkeypatch.setattr(call_module.verify, "check", lambda *_, **__: None)


def fence_without_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store applies a write whatever generation it names."""
    monkeypatch.setattr(folder, "check_generation", lambda *_: None)


def rows_after_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are flushed once the commit is in HEAD."""
    commit = Committer.commit

    def committed(committer: Committer, snapshot: Path, **named: Any) -> Any:
        rows = named.pop("rows", b"")
        named["row_count"] = None
        made = commit(committer, snapshot, **named)
        committer.flush_rows(rows)
        return made

    monkeypatch.setattr(Committer, "commit", committed)


def starts_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later attempt restores nothing."""

    def fresh(committer: Committer, into: Path, **_: Any) -> Fresh:
        committer._begin(0)
        return Fresh()

    monkeypatch.setattr(Committer, "restore", fresh)


def nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What killed attempts left stays."""
    monkeypatch.setattr(Committer, "sweep", lambda committer, **_: None)


def no_snapshot_after_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notice stops the trainer without its last snapshot."""
    nothing = planner.Decision(planner.Plan.NOTHING, 0.0)
    monkeypatch.setattr(planner, "decide", lambda outlook: nothing)


COMMITS = ("commit of HEAD",)
AWAKE = (Kind.ZOMBIE, Kind.KILL_LATE)
Plant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Plant, tuple[Kind, ...], tuple[str, ...]]] = {
    plant.__name__: (plant, kinds, phases)
    for plant, kinds, phases in (
        (head_before_the_checkpoint, (Kind.KILL,), COMMITS),
        (optimizer_not_restored, (Kind.KILL,), PHASES),
        (random_numbers_not_restored, (Kind.KILL,), PHASES),
        (rows_after_head, (Kind.KILL,), COMMITS),
        (starts_from_scratch, (Kind.KILL,), PHASES),
        (nothing_is_swept, (Kind.KILL,), PHASES),
        (mutants.retention_before_the_swap, (Kind.KILL,), PHASES),
        (mutants.term_taken_without_one_more, AWAKE, PHASES),
        (fence_without_generation, AWAKE, PHASES),
        (mutants.swap_repeated_over_whatever_is_there, AWAKE, PHASES),
        (mutants.nonce_ignored, (Kind.LOST, Kind.LATE), COMMITS),
        (no_snapshot_after_a_notice, (Kind.NOTICE,), PHASES),
    )
}
"""Each mutant, and the kinds and phases of the points that are for it."""


def main(names: list[str]) -> None:
    adopt_orphans()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as temporary:
        work = Path(temporary)
        made = scenes.make([PROGRAM], work / "scenes")
        deck = Deck(made)
        drawn = [deck.draw(SEED, number) for number in range(len(deck.cells) * ROUNDS)]
        for name in names or MUTANTS:
            plant, kinds, phases = MUTANTS[name]
            mine = [one for one in drawn if one.blow.kind in kinds and one.phase in phases][:POINTS]
            with pytest.MonkeyPatch.context() as monkeypatch:
                plant(monkeypatch)
                print(json.dumps({"mutant": name, **_caught(made, mine, work)}), flush=True)


def _caught(made: Any, drawn: list[Point], work: Path) -> dict[str, Any]:
    for number, point in zip(itertools.count(1), drawn, strict=False):
        scene = made[point.scene]
        verdict = judge(number, scene, play(scene, point, work / "point"))
        shutil.rmtree(work / "point")
        if not verdict.good:
            return {"points": number, "broken": verdict.broken, "point": point.text}
    return {"points": None}


if __name__ == "__main__":
    main(sys.argv[1:])
