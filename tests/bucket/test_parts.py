"""A run with many parts: HEAD stays small, all parts are found again, and what is lost or set back
is named."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from outlast.base.exits import Reason, State
from outlast.bucket import pages
from outlast.bucket.boot import Act, Claim
from outlast.bucket.commit import Committer
from outlast.bucket.errors import RestoreError
from outlast.bucket.head import Head, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.part_results import put_manifest, result_of
from outlast.bucket.parts import DONE_TAG, Part, is_done, own_step, shown
from outlast.bucket.restore import Restored
from outlast.bucket.results import fetch_result
from outlast.bucket.retention import Retention
from outlast.bucket.rows import read_rows
from outlast.bucket.store import MemoryStore, Operation
from outlast.cli import rewind
from outlast.cli.errors import OperateError
from outlast.cli.repair import rebuild
from outlast.protocol import row_part
from tests.cli.records import start_record
from tests.stores import START, FakeClock

LAYOUT = Layout("experiments/dev", "0123456789")
CLAIM = Claim("o/p/s", 0, 0, START.replace(year=2100))
STEPS = 2
HEAD_BYTES_MAX = 64 << 10


class Machine:
    """One attempt of a run whose parts make `STEPS` steps each."""

    def __init__(
        self, store: MemoryStore, folder: Path, *, keep_every_steps: int | None = None
    ) -> None:
        self.asked: Counter[str] = Counter()

        def around(operation: Operation, apply: Callable[[], Any]) -> Any:
            self.asked[operation.path] += 1
            return apply()

        self.store = store
        self.folder = folder
        self.head_file = HeadFile(store.view(around), LAYOUT, FakeClock())
        assert self.head_file.take_term(CLAIM).act is Act.TAKE
        retention = Retention(keep_every_steps=keep_every_steps)
        self.committer = Committer(self.head_file, retention=retention)
        found = self.committer.restore(folder / f"restored-{self.head_file.term}")
        self.restored = found.checkpoint if isinstance(found, Restored) else None
        path = None if self.restored is None else self.restored.path
        start = start_record(self.head_file.term, found.step, START, restored=path)
        store.put(LAYOUT.attempt_start(start.term), start.to_json())

    def state(self, name: str, before: int, own: int) -> None:
        row = {"step": before + own, "part": row_part(name, before), "x": own}
        line = json.dumps(row) + "\n"
        self._commit({"state": f"{name} {own}"}, name, before, own, (), line if own else "")

    def end(self, name: str, before: int, own: int) -> None:
        files = {"part.json": "{}", "result/model": name}
        self._commit(files, name, before, own, (DONE_TAG,), "")

    def part(self, name: str, before: int, *, steps: int = STEPS) -> int:
        """All of a part; the steps of all parts so far."""
        for own in range(1, steps + 1):
            self.state(name, before, own)
        self.end(name, before, steps)
        return before + steps

    def _commit(
        self, files: dict[str, str], part: str, before: int, own: int, tags: Any, rows: str
    ) -> None:
        folder = self.folder / f"snapshot-{len(self.asked)}-{self.asked.total()}"
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        if (folder / "result").exists():
            put_manifest(folder)
        self.committer.commit(
            folder,
            step=before + own,
            tags=tags,
            rows=rows.encode(),
            part=part,
            before=before,
            whole=bool(tags),
        )


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def head_of(store: MemoryStore) -> Head:
    return read_head(store, LAYOUT).head


def bytes_of_head(store: MemoryStore) -> int:
    return len(store.get(LAYOUT.head)[0])


def names(parts: tuple[Part, ...]) -> list[tuple[str, int, bool]]:
    return [(part.name, part.step, part.done) for part in parts]


def fold(number: int) -> str:
    return f"fold-{number:04d}-of-a-cross-validation-of-many"[:40]


COUNT = 200
ALL = [(fold(number), STEPS, True) for number in range(COUNT)]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of many parts, all done and none of it ended: its objects, and how large HEAD was."""
    store = MemoryStore()
    machine = Machine(store, tmp_path_factory.mktemp("many"))
    sizes, asked, before = [], [], 0
    for number in range(COUNT):
        at = machine.asked.total()
        before = machine.part(fold(number), before)
        sizes.append(bytes_of_head(store))
        asked.append(machine.asked.total() - at)
    return {"objects": dict(store._objects), "sizes": sizes, "asked": asked}


def copy_of(many: dict[str, Any]) -> MemoryStore:
    store = MemoryStore()
    for path, kept in many["objects"].items():
        store._objects[path] = kept
    newest = max(found.generation for _, found in many["objects"].values())
    store._generations = itertools.count(newest + 1)
    return store


def test_head_and_the_cost_of_a_part_stay_as_they_are(many: dict[str, Any]) -> None:
    assert max(many["sizes"]) < HEAD_BYTES_MAX / 2
    assert max(many["sizes"][-40:]) <= max(many["sizes"][40:80]) + 200
    assert sum(many["asked"][-40:]) <= 1.1 * sum(many["asked"][40:80])


def test_a_later_attempt_knows_all_parts_and_reads_the_state_of_none(
    many: dict[str, Any], tmp_path: Path
) -> None:
    store = copy_of(many)
    machine = Machine(store, tmp_path)
    assert machine.restored is not None and is_done(machine.restored)
    assert names(machine.committer.parts()) == ALL
    states = [path for path in machine.asked if path.endswith("/state")]
    assert not states and machine.asked.total() < COUNT / 5
    before = machine.part("one-more", COUNT * STEPS)
    assert names(pages.parts(store, LAYOUT, head_of(store))) == [*ALL, ("one-more", STEPS, True)]
    rows = read_rows(store, LAYOUT, head_of(store))
    assert len(rows) == before
    assert [(row["part"], row["step"]) for row in rows[:3]] == [
        (fold(0), 1),
        (fold(0), 2),
        (fold(1), 1),
    ]


def test_all_of_them_are_the_runs_result(many: dict[str, Any], tmp_path: Path) -> None:
    store = copy_of(many)
    machine = Machine(store, tmp_path)
    parts = machine.committer.parts()
    head = machine.committer.finish(State.DONE, Reason.DONE, exit=0, parts=parts)
    assert head.end is not None and head.end.result is not None
    found = fetch_result(store, head.end.result, tmp_path / "result")
    assert [file.name for file in found.files] == [f"{name}/model" for name, _, _ in ALL]
    assert (tmp_path / "result" / fold(7) / "model").read_text() == fold(7)


def test_one_of_them_is_read_from_its_page(many: dict[str, Any], tmp_path: Path) -> None:
    store = copy_of(many)
    part = pages.parts(store, LAYOUT, head_of(store))[7]
    assert part.newest not in head_of(store).chain
    fetch_result(store, result_of(store, part.newest), tmp_path / "result")
    assert (tmp_path / "result" / "model").read_text() == fold(7)


def test_a_part_from_another_version_of_outlast_is_not_repeated(
    many: dict[str, Any], tmp_path: Path
) -> None:
    store = copy_of(many)
    end = pages.parts(store, LAYOUT, head_of(store))[7].newest
    data = store.get(end.manifest)[0].replace(b'"format":1', b'"format":2')
    written = store.put(end.manifest, data)
    newer = replace(end, blake3=blake3(data).hexdigest(), generation=written.generation)
    with pytest.raises(RestoreError) as caught:
        result_of(store, newer)
    assert "has format 2, this version of Outlast reads format 1" in str(caught.value)
    assert "repeat it" not in str(caught.value)


def test_a_lost_page_of_parts_is_named(many: dict[str, Any], tmp_path: Path) -> None:
    store = copy_of(many)
    older = head_of(store).older_chain
    assert older is not None
    store.delete(older.path, generation=older.generation)
    machine = Machine(store, tmp_path)
    with pytest.raises(RestoreError, match=f"parts of the run are not known: page {older.path}"):
        machine.committer.parts()


# Set back.


def set_back(store: MemoryStore, where: str) -> Head:
    rewind.plan(store, LAYOUT, where, silent_sec=0).write()
    return head_of(store)


@pytest.fixture(params=[32, 3, 2], ids=lambda size: f"pages of {size}")
def three(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> MemoryStore:
    monkeypatch.setattr(pages, "CHAIN_PAGE", request.param)
    monkeypatch.setattr(pages, "FAN", 2)
    return a_run_of_three(tmp_path)


def a_run_of_three(folder: Path) -> MemoryStore:
    """Three parts that are done, and a fourth that has been saved before its first step and after
    its second."""
    store = MemoryStore()
    machine, before = Machine(store, folder), 0
    for name in ("a", "b", "c"):
        before = machine.part(name, before)
    machine.state("d", before, 0)
    machine.state("d", before, 2)
    return store


@pytest.mark.parametrize(
    ("where", "parts", "tip"),
    [
        ("d:0", [("a", 2, True), ("b", 2, True), ("c", 2, True), ("d", 0, False)], ("d", 0, False)),
        ("c:2", [("a", 2, True), ("b", 2, True), ("c", 2, False)], ("c", 2, False)),
        ("c:0", [("a", 2, True), ("b", 2, True)], ("b", 2, True)),
        ("b:2", [("a", 2, True), ("b", 2, False)], ("b", 2, False)),
        ("b:0", [("a", 2, True)], ("a", 2, True)),
        ("a:2", [("a", 2, False)], ("a", 2, False)),
    ],
)
def test_a_run_is_set_back_into_a_part_or_to_its_beginning(
    three: MemoryStore, tmp_path: Path, where: str, parts: list, tip: tuple
) -> None:
    head = set_back(three, where)
    newest = head.chain[-1]
    assert (newest.part, own_step(newest), is_done(newest)) == tip
    assert names(pages.parts(three, LAYOUT, head)) == parts
    machine = Machine(three, tmp_path / "later")
    assert machine.restored == newest
    assert names(machine.committer.parts()) == parts
    before = newest.step if is_done(newest) else newest.before
    name = "again" if is_done(newest) else newest.part
    machine.end(name, before, STEPS)
    assert names(pages.parts(three, LAYOUT, head_of(three)))[-1] == (name, STEPS, True)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("2", r"has parts \(a, b, c, d\), each with its own steps; write --from PART:STEP, such as "
         "d:2"),
        ("e:1", "has no part 'e'; it has a, b, c, d"),
        ("b:1", "part b has no checkpoint of that step; it has b:2, and b:0 starts it from"),
        ("d:9", "part d has no checkpoint of that step; it has d:0, d:2, and d:0 starts it"),
        ("a:0", "a is the first part of run 0123456789, which would start from scratch"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_with_what_is(
    three: MemoryStore, where: str, said: str
) -> None:
    before = head_of(three)
    with pytest.raises(OperateError, match=said):
        set_back(three, where)
    assert head_of(three) == before


def test_a_part_of_a_run_without_parts_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    machine = Machine(store, tmp_path)
    machine.state("", 0, 1)
    with pytest.raises(OperateError, match="has no parts; give a step, it has 1"):
        set_back(store, "a:1")


# Repaired.


def lose_head(store: MemoryStore) -> None:
    store.delete(LAYOUT.head, generation=store.stat(LAYOUT.head).generation)


def repaired(store: MemoryStore) -> tuple[Head, int]:
    found = rebuild(store, LAYOUT, CLAIM.owner, START)
    return found.head, found.set_aside


def test_a_lost_head_of_a_run_with_parts_comes_back(three: MemoryStore) -> None:
    before = head_of(three)
    lose_head(three)
    head, set_aside = repaired(three)
    assert set_aside == 0
    found, expected = (pages.kept(three, LAYOUT, one).chain for one in (head, before))
    assert found == expected


def test_a_lost_head_of_many_parts_comes_back_small(many: dict[str, Any]) -> None:
    store = copy_of(many)
    lose_head(store)
    head, set_aside = repaired(store)
    assert set_aside == 0 and len(head.to_json()) < HEAD_BYTES_MAX / 2
    assert names(pages.parts(store, LAYOUT, head)) == ALL


def test_an_end_that_a_later_attempt_committed_at_its_first_step_comes_back(
    store: MemoryStore, tmp_path: Path
) -> None:
    """It was cut between the last state of a part and its end."""
    first = Machine(store, tmp_path / "1")
    first.state("a", 0, 1)
    first.state("a", 0, 2)
    second = Machine(store, tmp_path / "2")
    second.end("a", 0, 2)
    second.state("b", 2, 0)
    second.state("b", 2, 1)
    expected = names(pages.parts(store, LAYOUT, head_of(store)))
    assert expected == [("a", 2, True), ("b", 1, False)]
    lose_head(store)
    head, set_aside = repaired(store)
    assert names(pages.parts(store, LAYOUT, head)) == expected and set_aside == 0


def test_parts_that_build_on_a_lost_end_are_left_out(tmp_path: Path) -> None:
    three = a_run_of_three(tmp_path)
    end = pages.parts(three, LAYOUT, head_of(three))[1].newest
    lose_head(three)
    three.delete(end.manifest, generation=end.generation)
    head, set_aside = repaired(three)
    assert names(pages.parts(three, LAYOUT, head))[:2] == [("a", 2, True), ("b", 2, False)]
    kept = pages.kept(three, LAYOUT, head).chain
    assert len(kept) == 3 and set_aside >= 2


# Retention.


def test_each_part_keeps_its_own_intervals(store: MemoryStore, tmp_path: Path) -> None:
    machine = Machine(store, tmp_path, keep_every_steps=5)
    before = machine.part("a", 0, steps=12)
    before = machine.part("b", before, steps=13)
    machine.part("c", before, steps=3)
    kept = pages.kept(store, LAYOUT, head_of(store)).chain
    found = [(entry.part, own_step(entry)) for entry in kept if not is_done(entry)]
    assert found == [("a", 5), ("a", 10), ("a", 12), ("b", 5), ("b", 10), ("b", 13), ("c", 3)]


def test_of_many_names_a_sentence_has_those_around_one() -> None:
    many = [str(number) for number in range(1000)]
    assert shown(many[:3]) == "0, 1, 2"
    assert shown(many) == "1000 in all: … 992, 993, 994, 995, 996, 997, 998, 999"
    assert shown(many, "500") == "1000 in all: … 496, 497, 498, 499, 500, 501, 502, 503 …"
    assert shown(many, "1") == "1000 in all: 0, 1, 2, 3, 4, 5, 6, 7 …"
