"""A run that another version of Outlast has written: it is named, and nothing of it is lost."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

import outlast
from outlast.base import codec
from outlast.base.codec import OtherFormat, Record
from outlast.base.exits import Reason
from outlast.bucket import blocks, head, layout, pages  # noqa: F401 - the records in them
from outlast.bucket.boot import Act
from outlast.bucket.commit import Committer
from outlast.bucket.errors import RestoreError
from outlast.bucket.headfile import HeadFile
from outlast.bucket.store import MemoryStore, open_store
from outlast.cli.errors import OperateError
from outlast.loop import snapshot
from outlast.loop.command import notes
from outlast.loop.errors import DoesNotFit
from tests.cli.test_repair import CLAIM, LAYOUT, OWNER, Machine, Quick, lose_head, repair, train
from tests.loop import programs

SENTENCE = "has format 2, this version of Outlast reads format 1; upgrade Outlast"


def renumbered(data: bytes) -> bytes:
    """The record as a newer version would write it, with a new field."""
    return json.dumps({**json.loads(data), "format": 2, "added": []}).encode()


def everything(store: MemoryStore) -> dict[str, bytes]:
    return {item.path: store.get(item.path)[0] for item in store.list("")}


def rewrite(store: MemoryStore, path: str) -> None:
    store.put(path, renumbered(store.get(path)[0]))


@pytest.mark.parametrize("kind", Record.__subclasses__(), ids=lambda kind: kind.__name__)
def test_each_kind_of_record_names_both_formats(kind: type[Record]):
    with pytest.raises(OtherFormat) as caught:
        kind.from_json('{"format": 2, "added": []}')
    assert str(caught.value) == f"{kind.__name__}: {SENTENCE}"


def test_an_older_record_asks_for_the_older_version(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(OtherFormat) as caught:
        codec.check_format("Head", 2, reads=3)
    assert "reads format 3; use the version of Outlast that wrote it" in str(caught.value)


@pytest.mark.parametrize("found", ["2", None, True, 1.0, 0, -1])
def test_an_invalid_format_number_counts_as_damage(found: object):
    with pytest.raises(ValueError) as caught:
        codec.check_format("Head", found)
    assert not isinstance(caught.value, OtherFormat)


def test_a_vm_leaves_a_run_whose_head_it_cannot_read(tmp_path: Path):
    store = MemoryStore()
    train(store, tmp_path)
    rewrite(store, LAYOUT.head)
    before = everything(store)
    decision = HeadFile(store, LAYOUT, Quick()).take_term(CLAIM)
    assert (decision.act, decision.reason) == (Act.REFUSE, Reason.REFUSED)
    assert decision.message.endswith(f"/HEAD: {SENTENCE}")
    assert everything(store) == before


def test_a_checkpoint_of_another_format_is_not_passed_over(tmp_path: Path):
    store = MemoryStore()
    newest = train(store, tmp_path).chain[-1]
    data = renumbered(store.get(newest.manifest)[0])
    written = store.put(newest.manifest, data)
    file = HeadFile(store, LAYOUT, Quick())
    assert file.take_term(CLAIM).act is Act.TAKE
    named = replace(newest, blake3=blake3(data).hexdigest(), generation=written.generation)
    file.swap(lambda head: replace(head, chain=(*head.chain[:-1], named)), term=file.term)
    with pytest.raises(RestoreError) as caught:
        Committer(file).restore(tmp_path / "restored")
    assert str(caught.value) == f"{newest.manifest}: Manifest: {SENTENCE}"


def test_an_attempt_writes_and_deletes_nothing_once_a_newer_version_has_taken_its_run(
    tmp_path: Path,
):
    store = MemoryStore()
    machine = Machine(store, tmp_path)
    for step in (10, 20, 30, 40):
        machine.commit(step)
    rewrite(store, LAYOUT.head)
    kept = {path for path in everything(store) if "/t000001/" in path}
    with pytest.raises(head.HeadOtherFormat) as caught:
        machine.commit(50)
    assert SENTENCE in str(caught.value)
    assert kept <= set(everything(store))
    assert json.loads(store.get(LAYOUT.head)[0])["format"] == 2


@pytest.mark.parametrize("record", ["HEAD", "manifest", "start", "page"])
def test_repair_changes_nothing_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
):
    monkeypatch.setattr(pages, "CHAIN_PAGE", 2)
    store = MemoryStore()
    machine = Machine(store, tmp_path, every=10)
    for step in range(10, 110, 10):
        machine.commit(step)
    found = head.read_head(store, LAYOUT).head
    assert found.older_chain is not None
    if record == "HEAD":
        rewrite(store, LAYOUT.head)
    else:
        lose_head(store)
    if record == "manifest":
        rewrite(store, found.chain[-1].manifest)
    if record == "start":
        rewrite(store, LAYOUT.attempt_start(found.term))
    if record == "page":
        data = renumbered(store.get(found.older_chain.path)[0])
        store.put(LAYOUT.page(found.term, blake3(data).hexdigest()), data)
    before = everything(store)
    with pytest.raises((OperateError, head.HeadOtherFormat)) as caught:
        repair(store, LAYOUT, OWNER)
    assert SENTENCE in str(caught.value)
    assert everything(store) == before


def test_the_loop_and_a_command_name_both_formats(tmp_path: Path):
    (tmp_path / "state.json").write_text('{"format": 2, "added": []}')
    (tmp_path / "arrays.bin").write_bytes(b"")
    (tmp_path / notes.NOTES).write_text('{"format": 2, "added": []}')
    with pytest.raises(DoesNotFit) as caught:
        snapshot.read(tmp_path)
    assert str(caught.value) == f"state.json: {SENTENCE}"
    with pytest.raises(DoesNotFit) as caught:
        notes.read(tmp_path, [])
    assert str(caught.value) == f"{notes.NOTES}: {SENTENCE}"


PROGRAM = """
import outlast
with outlast.train({"x": [0]}, total=3, run_dir="run") as run:
    for step in run.steps():
        pass
"""


def test_a_run_in_a_folder_is_named_by_the_trainer_and_by_each_command(tmp_path: Path):
    (tmp_path / "train.py").write_text(PROGRAM)
    first = programs.run(tmp_path, [sys.executable, "train.py"])
    assert first.returncode == 0, first.stderr
    store = open_store(str(tmp_path / "run"))
    store.put("HEAD", renumbered(store.get("HEAD")[0]))
    before = store.get("HEAD")

    again = programs.run(tmp_path, [sys.executable, "train.py"])
    assert again.returncode and SENTENCE in again.stderr
    assert "repair" not in again.stderr and "Traceback" not in again.stderr

    run = str(tmp_path / "run")
    for words in (
        ["status", run],
        ["checkpoints", run],
        ["repair", run],
        ["resume", run, "--from", "1"],
    ):
        done = programs.run(tmp_path, [sys.executable, "-m", "outlast.cli", *words])
        (line,) = done.stderr.splitlines()
        assert done.returncode == 1 and SENTENCE in line, words
        assert "outlast repair" not in line, words
    with pytest.raises(OperateError, match=SENTENCE):
        _ = outlast.open(run).state
    assert store.get("HEAD") == before
