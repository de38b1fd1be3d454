"""Checkpoints whose names HEAD has given to pages, as commands and ``outlast.open`` show them."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import outlast
from outlast.bucket import pages
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.head import Head, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.retention import Retention
from outlast.bucket.store import FolderStore
from outlast.cli import rewind, runs
from outlast.cli.errors import OperateError
from outlast.cli.review import bucket
from outlast.cli.review.plan import Pin

STEPS, BEST = 20, 3
LAYOUT = Layout("", "")


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that keeps every checkpoint; the best one is of step 3, and then of step 18."""
    monkeypatch.setattr(pages, "CHAIN_PAGE", 3)
    monkeypatch.setattr(pages, "FAN", 2)
    monkeypatch.setattr(rewind, "living_attempt", lambda *_: None)
    store = FolderStore(tmp_path / "run")
    head_file = HeadFile(store, LAYOUT)
    head_file.take_term(Claim("folder/run", 0, 0, datetime(2100, 1, 1, tzinfo=UTC)))
    committer = Committer(head_file, retention=Retention(keep_every_steps=1))
    committer.restore(tmp_path / "restored")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for step in range(1, STEPS + 1):
        (folder / "state").write_text("x" * step)
        tags = ["best"] if step in (BEST, 18) else []
        committer.commit(folder, step=step, tags=tags, rows=b'{"step":%d}\n' % step)
    return tmp_path / "run"


def head_of(run_dir: Path) -> Head:
    return read_head(FolderStore(run_dir), LAYOUT).head


def test_all_are_listed_and_the_newest_best_is_found(run_dir: Path) -> None:
    assert len(head_of(run_dir).chain) < STEPS / 2
    run = outlast.open(run_dir)
    table = run.checkpoints()
    assert table["step"] == list(range(1, STEPS + 1))
    assert [row["step"] for row in table if row["tags"] == "best"] == [18]
    assert run.best()["step"] == 18


def test_the_best_one_is_found_once_the_run_was_set_back(run_dir: Path) -> None:
    place = runs.find(run_dir)
    rewind.plan(place.store, place.layout, 15).write()
    assert outlast.open(run_dir).best()["step"] == BEST
    with pytest.raises(OperateError, match="has no best checkpoint"):
        rewind.plan(place.store, place.layout, BEST - 1).write()
        outlast.open(run_dir).best()


def test_a_best_one_that_only_a_page_names_is_found(run_dir: Path) -> None:
    head = head_of(run_dir)
    chain = tuple(entry for entry in head.chain if "best" not in entry.tags)
    assert len(chain) < len(head.chain)
    FolderStore(run_dir).put("HEAD", replace(head, chain=chain).to_json())
    run = outlast.open(run_dir)
    in_pages = pages.kept(FolderStore(run_dir), LAYOUT, head_of(run_dir)).chain
    assert any("best" in entry.tags for entry in in_pages) and run.best()["step"] == BEST


def test_a_lost_page_is_named_and_newer_checkpoints_are_listed(run_dir: Path) -> None:
    older = head_of(run_dir).older_chain
    assert older is not None
    (run_dir / older.path).unlink()
    with pytest.warns(UserWarning, match=f"page {older.path}: cannot be read, and it leads to"):
        steps = outlast.open(run_dir).checkpoints()["step"]
    assert steps == [entry.step for entry in head_of(run_dir).chain]
    place = runs.find(run_dir)
    with pytest.raises(pages.PageLost, match="cannot be read"):
        rewind.plan(place.store, place.layout, 2)
    with pytest.raises(OperateError, match="has no checkpoint of that step"):
        rewind.plan(place.store, place.layout, STEPS + 1)


def test_a_review_counts_the_room_of_all(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "open_store", lambda url: FolderStore(run_dir))
    pin = Pin("", 0, "bucket", "", "z", 60, None)
    sizes = bucket.sizes(pin, head_of(run_dir))
    assert len(sizes) == STEPS
    assert [size - sizes[3] for size in sizes[3:9]] == list(range(6))
