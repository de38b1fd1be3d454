"""Old entries of HEAD in pages: found, cut, named where they are lost, and HEAD small."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.bucket import pages
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.head import Head, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.restore import Restored
from outlast.bucket.retention import Retention
from outlast.bucket.rows import read_rows
from outlast.bucket.store import MemoryStore, Operation
from outlast.cli import rewind
from outlast.cli.errors import OperateError
from tests.log_lines import log_lines
from tests.stores import FakeClock

COMMITS = 60


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "CHAIN_PAGE", 2)
    monkeypatch.setattr(pages, "FAN", 3)


def committed(
    store: MemoryStore, layout: Layout, claim: Claim, folder: Path, clock: FakeClock
) -> list[int]:
    """Commits all of which are kept; the operations of each."""
    counted: Counter[str] = Counter()

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        counted[operation.verb] += 1
        return apply()

    head_file = HeadFile(store.view(around), layout, clock)
    head_file.take_term(claim)
    committer = Committer(head_file, retention=Retention(keep_every_steps=1))
    committer.restore(folder / "restored")
    found = []
    for step in range(1, COMMITS + 1):
        snapshot = folder / str(step)
        snapshot.mkdir()
        (snapshot / "state").write_text(str(step))
        counted.clear()
        committer.commit(snapshot, step=step, rows=b'{"step":%d}\n' % step)
        found.append(counted.total())
    return found


def head_of(store: MemoryStore, layout: Layout) -> Head:
    return read_head(store, layout).head


@pytest.mark.usefixtures("small")
def test_all_that_is_kept_is_found_and_a_commit_costs_one_page_at_most(
    memory: MemoryStore, layout: Layout, claim: Claim, tmp_path: Path, clock: FakeClock
) -> None:
    counts = committed(memory, layout, claim, tmp_path, clock)
    head = head_of(memory, layout)
    steps = list(range(1, COMMITS + 1))
    assert len(head.chain) <= pages.CHAIN_PAGE + 3 and head.kept == COMMITS
    assert max(counts[1:]) <= min(counts[1:]) + 1
    assert [entry.step for entry in pages.kept(memory, layout, head).chain] == steps
    for step in steps:
        entry = pages.find(memory, layout, head, step)
        assert entry is not None and entry.step == step
        cut = pages.until(memory, layout, head, step)
        assert cut.step == step
        found = [one.step for one in pages.kept(memory, layout, cut).chain]
        assert found == list(range(1, step + 1)) and cut.kept == step


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("how", ["gone", "flipped"])
def test_a_lost_page_is_named_and_newer_checkpoints_stay(
    how: str, memory: MemoryStore, layout: Layout, claim: Claim, tmp_path: Path, clock: FakeClock
) -> None:
    committed(memory, layout, claim, tmp_path, clock)
    older = head_of(memory, layout).older_chain
    assert older is not None
    data, known = memory._objects.pop(older.path)
    if how == "flipped":
        memory._objects[older.path] = (bytes([data[0] ^ 1]) + data[1:], known)
    said = log_lines()
    head_file = HeadFile(memory, layout, clock)
    head_file.take_term(claim)
    committer = Committer(head_file, retention=Retention(keep_every_steps=1))
    restored = committer.restore(tmp_path / "again")
    assert isinstance(restored, Restored) and restored.step == COMMITS
    before = {item.path for item in memory.list(layout.terms)}
    snapshot = tmp_path / "next"
    snapshot.mkdir()
    (snapshot / "state").write_text("next")
    committer.commit(snapshot, step=COMMITS + 1)
    assert any(older.path in line and "nothing is deleted" in line for line in said)
    assert before <= {item.path for item in memory.list(layout.terms)}
    kept = pages.kept(memory, layout, head_of(memory, layout))
    assert older.path in kept.lost[0] and kept.chain[-1].step == COMMITS + 1


@pytest.mark.usefixtures("small")
def test_a_restore_goes_back_into_the_pages(
    memory: MemoryStore, layout: Layout, claim: Claim, tmp_path: Path, clock: FakeClock
) -> None:
    committed(memory, layout, claim, tmp_path, clock)
    bad = head_of(memory, layout).chain
    for entry in bad:
        del memory._objects[entry.manifest]
    head_file = HeadFile(memory, layout, clock)
    head_file.take_term(claim)
    committer = Committer(head_file, retention=Retention(keep_every_steps=1))
    restored = committer.restore(tmp_path / "again")
    assert isinstance(restored, Restored) and restored.step == bad[0].step - 1
    snapshot = tmp_path / "next"
    snapshot.mkdir()
    (snapshot / "state").write_text("next")
    committer.commit(snapshot, step=bad[0].step)
    kept = pages.kept(memory, layout, head_of(memory, layout))
    assert [entry.step for entry in kept.chain] == list(range(1, bad[0].step + 1))
    assert all(entry not in kept.chain for entry in bad)


@pytest.mark.usefixtures("small")
def test_an_old_best_checkpoint_that_goes_to_a_later_page_keeps_its_turn(
    memory: MemoryStore, layout: Layout, claim: Claim, tmp_path: Path, clock: FakeClock
) -> None:
    head_file = HeadFile(memory, layout, clock)
    head_file.take_term(claim)
    committer = Committer(head_file, retention=Retention(keep_every_steps=1))
    committer.restore(tmp_path / "restored")
    for step in range(1, 21):
        folder = tmp_path / str(step)
        folder.mkdir()
        (folder / "state").write_text(str(step))
        committer.commit(folder, step=step, tags=["best"] if step in (2, 12) else [])
    head = head_of(memory, layout)
    assert [entry.step for entry in head.chain if "best" in entry.tags] == [12]
    found = pages.newest_first(memory, layout, head, lost=lambda error: pytest.fail(str(error)))
    assert [entry.step for entry in found] == list(range(20, 0, -1))
    for step in range(1, 21):
        cut = pages.until(memory, layout, head, step)
        kept = pages.kept(memory, layout, cut).chain
        assert [entry.step for entry in kept] == list(range(1, step + 1))
        assert cut.step == step


TERMS = 40


@pytest.fixture
def many_terms(
    memory: MemoryStore,
    layout: Layout,
    claim: Claim,
    tmp_path: Path,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> Head:
    """HEAD of a run in which each attempt made one step and was cut."""
    monkeypatch.setattr(pages, "LINEAGE_PAGE", 2)
    monkeypatch.setattr(pages, "FAN", 3)
    for step in range(1, TERMS + 1):
        head_file = HeadFile(memory, layout, clock)
        head_file.take_term(claim)
        committer = Committer(head_file)
        committer.restore(tmp_path / f"restored-{step}")
        folder = tmp_path / str(step)
        folder.mkdir()
        (folder / "state").write_text(str(step))
        committer.commit(folder, step=step, rows=b'{"step":%d}\n' % step)
    return head_of(memory, layout)


def test_old_terms_go_to_pages_and_every_row_is_found(
    memory: MemoryStore, layout: Layout, many_terms: Head
) -> None:
    head = many_terms
    assert len(head.lineage) <= 4 and head.older_lineage is not None
    assert [row["step"] for row in read_rows(memory, layout, head)] == list(range(1, TERMS + 1))
    found = [(entry.term, entry.from_step) for entry in pages.lineage(memory, layout, head)]
    assert found[::-1] == [(term, term - 1) for term in range(1, TERMS + 1)]
    for term in range(1, TERMS + 1):
        cut = pages.lineage_until(memory, layout, head, term)
        assert cut.committed_by(term) and not cut.committed_by(term + 1)
        found = [entry.term for entry in pages.lineage(memory, layout, cut)]
        assert found[::-1] == list(range(1, term + 1))


def test_rows_behind_a_lost_page_of_the_lineage_are_refused_with_its_name(
    memory: MemoryStore, layout: Layout, many_terms: Head
) -> None:
    older = many_terms.older_lineage
    assert older is not None
    memory.delete(older.path, generation=older.generation)
    with pytest.raises(pages.PageLost, match=rf"{older.path}: cannot be read.*of the lineage"):
        read_rows(memory, layout, many_terms)


@pytest.mark.usefixtures("small")
def test_a_run_is_set_back_to_a_checkpoint_in_a_page(
    memory: MemoryStore, layout: Layout, claim: Claim, tmp_path: Path, clock: FakeClock
) -> None:
    committed(memory, layout, claim, tmp_path, clock)
    for step in (1, 17, COMMITS - 1):
        store = copy_of(memory)
        back = rewind.plan(store, layout, step, silent_sec=0)
        assert back.dropped == COMMITS - step
        back.write()
        head_file = HeadFile(store, layout, clock)
        head_file.take_term(claim)
        committer = Committer(head_file, retention=Retention(keep_every_steps=1))
        restored = committer.restore(tmp_path / f"again-{step}")
        assert isinstance(restored, Restored) and restored.step == step
        assert (restored.path / "state").read_text() == str(step)
        committer.commit(restored.path, step=step + 1, rows=b'{"step":%d}\n' % (step + 1))
        head = head_of(store, layout)
        kept = pages.kept(store, layout, head).chain
        assert [entry.step for entry in kept] == list(range(1, step + 2))
        assert [row["step"] for row in read_rows(store, layout, head)] == list(range(1, step + 2))
        there = {place[1] for o in store.list(layout.terms) if (place := layout.folder_of(o.path))}
        assert there == {entry.path for entry in kept}
    with pytest.raises(OperateError, match="no checkpoint of that step; it has 60, of these") as no:
        rewind.plan(memory, layout, 1000, silent_sec=0)
    assert "56, 57, 58, 59, 60 (outlast checkpoints lists them all)" in str(no.value)


def copy_of(memory: MemoryStore) -> MemoryStore:
    store = memory.view(None)
    store._objects = type(memory._objects)()
    for path, entry in memory._objects.items():
        store._objects[path] = entry
    return store
