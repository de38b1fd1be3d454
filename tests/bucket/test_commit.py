"""Commits, restores, retention, the sweep and the end, each with what goes wrong there."""

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.base.clock import SYSTEM_CLOCK
from outlast.base.exits import Reason, State
from outlast.bucket import rows as rows_module
from outlast.bucket.boot import Claim
from outlast.bucket.cleanup import LAST_SEC
from outlast.bucket.commit import Committer
from outlast.bucket.errors import BadSnapshot, RestoreError
from outlast.bucket.head import Checkpoint, Fenced, Lineage, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import EndCopy, Layout, Manifest
from outlast.bucket.records import read_record
from outlast.bucket.restore import Fresh, Restored
from outlast.bucket.results import fetch_result
from outlast.bucket.retention import Retention
from outlast.bucket.rows import read_rows
from outlast.bucket.store import (
    Damaged,
    FolderStore,
    Forbidden,
    MemoryStore,
    NotFound,
    Operation,
    PreconditionFailed,
    Store,
    Unavailable,
    checksum_of,
)
from outlast.bucket.transfer import SMALL_READS, in_parallel
from outlast.spec.result import ResultManifest
from tests.log_lines import log_lines
from tests.stores import FakeClock


class Bench:
    """Attempts on one bucket, one after another or at once."""

    def __init__(self, store: Store, layout: Layout, clock: FakeClock, claim: Claim, work: Path):
        self.store, self.layout, self.clock = store, layout, clock
        self.claim, self.work = claim, work
        self.said = log_lines("outlast.bucket")

    def attempt(self, around: Any = None, retention: Retention | None = None) -> Committer:
        """An attempt that has taken the next term."""
        store = self.store
        if around is not None:
            assert isinstance(store, MemoryStore)
            store = store.view(around)
        head_file = HeadFile(store, self.layout, self.clock)
        head_file.take_term(self.claim)
        return Committer(head_file, retention=retention)

    def folder(self, name: str, **files: bytes) -> Path:
        folder = self.work / name
        for path, data in files.items():
            to = folder / path.replace("__", "/")
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(data)
        return folder

    def commit(self, committer: Committer, step: int, **named: Any) -> Checkpoint:
        folder = self.folder(
            f"snap-{committer.term}-{step}", state=b"state %d" % step, a__b=b"deep"
        )
        return committer.commit(folder, step=step, **named)

    def restore(self, committer: Committer) -> Any:
        return committer.restore(self.work / f"restored-{committer.term}")

    @property
    def head(self) -> Any:
        return read_head(self.store, self.layout).head

    def paths(self, prefix: str = "t") -> list[str]:
        root = self.layout.root
        return [found.path.removeprefix(root) for found in self.store.list(root + prefix)]


@pytest.fixture
def bench(
    memory: MemoryStore, layout: Layout, clock: FakeClock, claim: Claim, tmp_path: Path
) -> Bench:
    return Bench(memory, layout, clock, claim, tmp_path)


def rows(*steps: int) -> bytes:
    return b"".join(json.dumps({"step": step}).encode() + b"\n" for step in steps)


def steps_of(bench: Bench) -> list[int]:
    return [row["step"] for row in read_rows(bench.store, bench.layout, bench.head)]


# -- commit and restore -----------------------------------------------------------------------


def test_a_run_begins_fresh(bench: Bench) -> None:
    assert bench.restore(bench.attempt()) == Fresh()


def test_what_was_committed_is_restored_in_the_next_term(bench: Bench) -> None:
    first = bench.attempt()
    bench.restore(first)
    checkpoint = bench.commit(first, 7, tags=("best",), rows=rows(1, 7), row_count=2)
    assert checkpoint.path.startswith(f"{bench.layout.root}t000001/s000000000007-")
    second = bench.attempt()
    restored = bench.restore(second)
    assert isinstance(restored, Restored)
    assert (restored.step, restored.checkpoint, restored.skipped) == (7, checkpoint, ())
    found = {
        path.relative_to(restored.path).as_posix(): path.read_bytes()
        for path in restored.path.rglob("*")
        if path.is_file()
    }
    assert found == {"state": b"state 7", "a/b": b"deep"}


def test_the_manifest_tells_what_is_there(bench: Bench) -> None:
    committer = bench.attempt()
    checkpoint = bench.commit(committer, 7, tags=("best",), rows=rows(1, 7))
    manifest = read_record(bench.store, checkpoint.manifest, Manifest)
    assert manifest is not None
    assert (manifest.term, manifest.step, manifest.rows, manifest.tags) == (1, 7, 2, ("best",))
    for entry in manifest.objects:
        found = bench.store.stat(checkpoint.path + entry.name)
        assert (found.size, found.crc32c, found.generation) == (
            entry.size,
            entry.crc32c,
            entry.generation,
        )


def test_head_is_swapped_last(bench: Bench) -> None:
    writes: list[str] = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.writes:
            writes.append(operation.path.removeprefix(bench.layout.root))
        return apply()

    bench.commit(bench.attempt(around), 7, rows=rows(1))
    names = [path.rsplit("/")[-1] for path in writes]
    assert names == ["HEAD", "000000.jsonl", "b", "state", "MANIFEST.json", "HEAD"]


@pytest.mark.parametrize("kind", ["symlink", "empty", "absent", "taken", "backslash"])
def test_an_invalid_snapshot_is_refused(bench: Bench, kind: str) -> None:
    committer = bench.attempt()
    folder = bench.work / kind
    if kind != "absent":
        folder.mkdir()
    if kind == "symlink":
        (folder / "x").symlink_to("/etc/passwd")
    if kind == "taken":
        (folder / "MANIFEST.json").write_bytes(b"")
    if kind == "backslash":
        (folder / "a\\b").write_bytes(b"")
    with pytest.raises(BadSnapshot):
        committer.commit(folder, step=1)
    assert bench.head.chain == ()


def test_a_step_before_the_restored_one_is_refused(bench: Bench) -> None:
    bench.commit(bench.attempt(), 7)
    second = bench.attempt()
    bench.restore(second)
    with pytest.raises(BadSnapshot, match="before the step 7"):
        bench.commit(second, 6)


def test_a_commit_survives_lost_answers(bench: Bench) -> None:
    """Every write is applied and its answer lost, once each."""
    seen: set[tuple[int, str]] = set()
    commit = 0

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        answer = apply()
        if commit and operation.writes and (commit, operation.path) not in seen:
            seen.add((commit, operation.path))
            raise Unavailable("gone")
        return answer

    committer = bench.attempt(around)
    commit = 1
    bench.commit(committer, 2, rows=rows(1, 2))
    commit = 2
    bench.commit(committer, 4, rows=rows(3, 4))
    assert [entry.step for entry in bench.head.chain] == [2, 4]
    assert steps_of(bench) == [1, 2, 3, 4]
    assert len(seen) == 10


# -- large files, and what has not changed ----------------------------------------------------

PART = 1000


def committer_in_parts(store: Store, bench: Bench) -> Committer:
    # A bucket takes one write of HEAD a second, by its own clock.
    clock = bench.clock if isinstance(store, MemoryStore) else SYSTEM_CLOCK
    head_file = HeadFile(store, bench.layout, clock)
    head_file.take_term(bench.claim)
    return Committer(head_file, part_bytes=PART)


def test_a_large_file_goes_in_parts_and_comes_back_whole(
    store: Store, bench: Bench, tmp_path: Path
) -> None:
    data = os.urandom(4 * PART + 1)
    bench.store = store
    folder = bench.folder("snap", large=data, small=b"small", empty=b"", exact=data[:PART])
    first = committer_in_parts(store, bench)
    checkpoint = first.commit(folder, step=3)
    manifest = read_record(store, checkpoint.manifest, Manifest)
    assert manifest is not None
    parts = manifest.files()["large"]
    assert [(part.name, part.offset, part.size) for part in parts] == [
        ("large/000000", 0, PART),
        ("large/000001", PART, PART),
        ("large/000002", 2 * PART, PART),
        ("large/000003", 3 * PART, PART),
        ("large/000004", 4 * PART, 1),
    ]
    for part in parts:
        found = store.stat(checkpoint.path + part.name)
        assert (found.generation, found.crc32c) == (part.generation, part.crc32c)
    restored = committer_in_parts(store, bench).restore(tmp_path / "restored")
    assert isinstance(restored, Restored)
    found = {path.name: path.read_bytes() for path in restored.path.iterdir()}
    assert found == {"large": data, "small": b"small", "empty": b"", "exact": data[:PART]}


def test_what_has_not_changed_is_copied(store: Store, bench: Bench, tmp_path: Path) -> None:
    """Also what the attempt before uploaded, and single parts of a file."""
    sent: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def put(self, path: str, data: Any, **named: Any) -> Any:
            if "/t0" in path and not path.endswith("MANIFEST.json"):
                sent.append(checksum_of(data)[0])
            return store.put(path, data, **named)

    counting: Any = Counting()
    bench.store = store
    data = os.urandom(3 * PART)
    changed = data[:PART] + os.urandom(PART) + data[2 * PART :]
    first = committer_in_parts(counting, bench)
    first.commit(bench.folder("one", large=data, same=b"same"), step=1)
    assert sorted(sent) == [4, PART, PART, PART]
    sent.clear()
    first.commit(bench.folder("two", large=changed, renamed=b"same"), step=2)
    assert sent == [PART]
    sent.clear()
    second = committer_in_parts(counting, bench)
    second.restore(tmp_path / "second")
    second.commit(bench.folder("three", large=changed, same=b"same", more=b"more"), step=3)
    assert sent == [4]
    restored = committer_in_parts(store, bench).restore(tmp_path / "third")
    assert (restored.step, bench.said) == (3, [])
    assert (tmp_path / "third" / "large").read_bytes() == changed


@pytest.mark.parametrize("how", ["flipped", "truncated", "gone", "swapped"])
def test_what_is_damaged_is_not_copied(bench: Bench, how: str) -> None:
    """The next checkpoint holds the right bytes, not a copy of the bad ones."""
    committer = bench.attempt()
    damage(bench, bench.commit(committer, 2).path + "a/b", how)
    whole = bench.commit(committer, 4)
    restored = bench.restore(bench.attempt())
    assert (restored.checkpoint, restored.skipped) == (whole, ())


def test_a_damaged_copy_does_not_become_a_checkpoint(bench: Bench) -> None:
    """The store says that it copied, and has other bytes: all is uploaded under a new name."""
    spoilt: list[str] = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        answer = apply()
        if operation.verb == "copy" and not spoilt:
            spoilt.append(operation.path)
            assert isinstance(bench.store, MemoryStore)
            bad = replace(answer, crc32c=checksum_of(b"odd!")[1])
            bench.store._objects[operation.path] = (b"odd!", bad)
            return bad
        return answer

    committer = bench.attempt(around)
    bench.commit(committer, 2)
    whole = bench.commit(committer, 4)
    assert spoilt and not spoilt[0].startswith(whole.path)
    assert any("uploading all of it" in line for line in bench.said)
    restored = bench.restore(bench.attempt())
    assert (restored.checkpoint, restored.skipped) == (whole, ())


def test_a_part_that_failed_is_sent_again_alone(bench: Bench) -> None:
    """Also where the store was away for so long that the whole commit begins again."""
    away = True
    puts: list[str] = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb == "put" and "/large/" in operation.path:
            if away and operation.path.endswith("/000002"):
                raise Unavailable("gone")
            puts.append(operation.path)
        return apply()

    assert isinstance(bench.store, MemoryStore)
    committer = committer_in_parts(bench.store.view(around), bench)
    folder = bench.folder("snap", large=os.urandom(5 * PART))
    with pytest.raises(Unavailable):
        committer.commit(folder, step=1)
    assert committer.bytes_left == 3 * PART
    away = False
    checkpoint = committer.commit(folder, step=1)
    assert committer.bytes_left == 0
    assert puts == [f"{checkpoint.path}large/{index:06d}" for index in range(5)]


def test_a_commit_whose_swap_has_an_unknown_fate_is_in_the_chain_once(bench: Bench) -> None:
    lost = True

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.path == bench.layout.head and operation.writes and lost:
            with contextlib.suppress(PreconditionFailed):
                apply()
            raise Unavailable("gone")
        return apply()

    lost = False
    committer = bench.attempt(around)
    bench.commit(committer, 1)
    lost = True
    folder = bench.folder("snap-once", state=b"state")
    with pytest.raises(Unavailable):
        committer.commit(folder, step=2)
    lost = False
    committer.commit(folder, step=2)
    assert [entry.step for entry in bench.head.chain] == [1, 2]


def test_parts_of_killed_uploads_are_cleaned_by_the_next_attempts_first_commit(
    bench: Bench,
) -> None:
    class Cut(BaseException):
        pass

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.path.endswith("/000003"):
            raise Cut
        return apply()

    assert isinstance(bench.store, MemoryStore)
    with pytest.raises(Cut):
        committer_in_parts(bench.store.view(around), bench).commit(
            bench.folder("snap", large=os.urandom(5 * PART)), step=1
        )
    orphans = bench.paths("t000001/")
    assert [path.rpartition("/")[2] for path in orphans] == ["000000", "000001", "000002"]
    bench.commit(bench.attempt(), 1)
    assert bench.paths("t000001/") == []


@pytest.mark.parametrize("how", ["flipped", "truncated", "gone", "swapped"])
def test_a_damaged_part_goes_to_the_checkpoint_before(bench: Bench, how: str) -> None:
    first = committer_in_parts(bench.store, bench)
    good = first.commit(bench.folder("one", large=os.urandom(3 * PART)), step=1)
    bad = first.commit(bench.folder("two", large=os.urandom(3 * PART)), step=2)
    damage(bench, f"{bad.path}large/000001", how)
    restored = committer_in_parts(bench.store, bench).restore(bench.work / "restored")
    assert isinstance(restored, Restored)
    assert (restored.checkpoint, restored.skipped) == (good, (bad,))


def test_parts_exchanged_for_each_other_are_noticed(bench: Bench) -> None:
    """Each is whole, in the other's place."""
    first = committer_in_parts(bench.store, bench)
    bad = first.commit(bench.folder("one", large=os.urandom(2 * PART)), step=1)
    assert isinstance(bench.store, MemoryStore)
    objects = bench.store._objects
    one, other = (f"{bad.path}large/{index:06d}" for index in range(2))
    for path, content in ((one, objects[other][0]), (other, objects[one][0])):
        size, crc32c = checksum_of(content)
        objects[path] = (content, replace(objects[path][1], size=size, crc32c=crc32c))
    with pytest.raises(RestoreError):
        committer_in_parts(bench.store, bench).restore(bench.work / "restored")


def test_a_manifest_swapped_for_another_whole_one_is_noticed(bench: Bench) -> None:
    committer = bench.attempt()
    good = bench.commit(committer, 2)
    bad = bench.commit(committer, 4)
    assert isinstance(bench.store, MemoryStore)
    objects = bench.store._objects
    content = objects[good.manifest][0]
    size, crc32c = checksum_of(content)
    swapped = replace(objects[bad.manifest][1], size=size, crc32c=crc32c)
    objects[bad.manifest] = (content, swapped)
    restored = bench.restore(bench.attempt())
    assert (restored.checkpoint, restored.skipped) == (good, (bad,))


def test_the_first_error_of_parallel_work_is_raised_and_what_is_not_begun_is_dropped() -> None:
    begun: list[int] = []

    def job(number: int) -> int:
        begun.append(number)
        if number == 1:
            raise Unavailable("gone")
        return number

    with pytest.raises(Unavailable):
        in_parallel([lambda n=n: job(n) for n in range(200)], 2)
    assert 1 in begun and len(begun) < 200
    assert in_parallel([lambda n=n: n * n for n in range(20)], 4) == [n * n for n in range(20)]


# -- damage -----------------------------------------------------------------------------------


def damage(bench: Bench, path: str, how: str) -> None:
    """Changes an object as bad luck would: its generation and checksums stay as they were."""
    assert isinstance(bench.store, MemoryStore)
    data, found = bench.store._objects[path]
    if how == "flipped":
        data = bytes([data[0] ^ 1]) + data[1:]
    elif how == "truncated":
        data = data[:-1]
    bench.store._objects[path] = (data, found)
    if how == "gone":
        del bench.store._objects[path]
    if how == "swapped":
        bench.store.put(path, data)


HOW = ["flipped", "truncated", "gone", "swapped"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["state", "a/b", "MANIFEST.json"])
def test_damage_goes_to_the_one_before_and_says_so(bench: Bench, name: str, how: str) -> None:
    first = bench.attempt()
    good = bench.commit(first, 2, rows=rows(1, 2))
    bad = bench.commit(first, 4, rows=rows(3, 4))
    damage(bench, bad.path + name, how)
    second = bench.attempt()
    restored = bench.restore(second)
    assert (restored.step, restored.skipped) == (2, (bad,))
    assert (restored.path / "state").read_bytes() == b"state 2"
    assert any(bad.path in line and "the one before" in line for line in bench.said)
    assert bench.head.chain == (good, bad)
    new = bench.commit(second, 3, rows=rows(3))
    assert bench.head.chain == (good, new)
    assert bench.head.lineage == (Lineage(1, 0), Lineage(2, 2))
    assert steps_of(bench) == [1, 2, 3]
    # The bad one's remains are swept away with it.
    assert not any("s000000000004" in path for path in bench.paths())


@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_all_damaged_is_an_error_and_no_restart(bench: Bench, how: str) -> None:
    first = bench.attempt()
    for step in (2, 4):
        damage(bench, bench.commit(first, step).path + "state", how)
    with pytest.raises(RestoreError, match="outlast repair"):
        bench.restore(bench.attempt())
    assert len(bench.head.chain) == 2


def test_all_damaged_in_a_folder_names_what_helps_there(
    clock: FakeClock, claim: Claim, tmp_path: Path
) -> None:
    """Not `outlast repair`, which repairs what a stack declares."""
    bench = Bench(FolderStore(tmp_path / "run"), Layout("", ""), clock, claim, tmp_path)
    (tmp_path / "run" / bench.commit(bench.attempt(), 2).path / "state").unlink()
    with pytest.raises(RestoreError, match="^none of the 1 .* give another --run-dir"):
        bench.restore(bench.attempt())


def test_a_bad_download_is_tried_again(bench: Bench) -> None:
    bench.commit(bench.attempt(), 2)
    spoilt: list[str] = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        answer = apply()
        if operation.verb == "fetch" and operation.path.endswith("state") and not spoilt:
            spoilt.append(operation.path)
            return b"state 0", answer[1]
        return answer

    restored = bench.restore(bench.attempt(around))
    assert (restored.step, restored.skipped) == (2, ())
    assert spoilt and any("again" in line for line in bench.said)


def test_a_missing_answer_does_not_count_as_damage(bench: Bench) -> None:
    bench.commit(bench.attempt(), 2)

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb == "fetch":
            raise Unavailable("gone")
        return apply()

    with pytest.raises(Unavailable):
        bench.restore(bench.attempt(around))


def test_an_object_that_a_successor_removed_is_not_damaged(bench: Bench) -> None:
    bench.commit(bench.attempt(), 2)
    old = bench.attempt()
    new = bench.attempt(retention=Retention(keep_last=1))
    bench.restore(new)
    bench.commit(new, 4)
    with pytest.raises(Fenced):
        bench.restore(old)


def test_a_half_restored_folder_is_never_seen(bench: Bench) -> None:
    bench.commit(bench.attempt(), 2)

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb == "fetch" and operation.path.endswith("state"):
            raise PreconditionFailed("odd")
        return apply()

    with pytest.raises(PreconditionFailed):
        bench.restore(bench.attempt(around))
    assert [path for path in bench.work.iterdir() if path.name.startswith("restored")] == []


# -- rows -------------------------------------------------------------------------------------


def test_rows_of_each_term_end_where_the_next_begins(bench: Bench) -> None:
    first = bench.attempt()
    bench.restore(first)
    bench.commit(first, 4, rows=rows(1, 2, 3, 4))
    first.flush_rows(rows(5, 6))  # never committed
    second = bench.attempt()
    bench.restore(second)
    bench.commit(second, 6, rows=rows(5, 6))
    assert steps_of(bench) == [1, 2, 3, 4, 5, 6]
    assert bench.head.lineage == (Lineage(1, 0), Lineage(2, 4))


def test_rows_without_a_commit_are_not_final(bench: Bench) -> None:
    committer = bench.attempt()
    committer.flush_rows(rows(1, 2))
    assert steps_of(bench) == []
    bench.commit(committer, 2, rows=rows(3)[:0])
    assert steps_of(bench) == [1, 2]


def test_rows_of_unknown_fate_are_flushed_once(bench: Bench) -> None:
    broken = [True]
    applied: list[Any] = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb == "put" and operation.path.endswith(".jsonl") and broken[0]:
            if not applied:
                applied.append(apply())
            raise Unavailable("gone")
        return apply()

    committer = bench.attempt(around)
    with pytest.raises(Unavailable):
        committer.flush_rows(rows(1, 2))
    assert committer.rows_flushed == 0
    broken[0] = False
    bench.commit(committer, 3, rows=rows(1, 2, 3))
    assert committer.rows_flushed == len(rows(1, 2, 3))
    assert steps_of(bench) == [1, 2, 3]


def test_a_trainer_begun_again_in_one_term_repeats_no_row(bench: Bench) -> None:
    committer = bench.attempt()
    bench.restore(committer)
    bench.commit(committer, 2, rows=rows(1, 2))
    committer.flush_rows(rows(3, 4))
    assert bench.restore(committer).step == 2
    assert committer.rows_flushed == 0
    checkpoint = bench.commit(committer, 3, rows=rows(3))
    assert steps_of(bench) == [1, 2, 3]
    manifest = read_record(bench.store, checkpoint.manifest, Manifest)
    assert manifest is not None and manifest.rows == 3


def test_each_row_is_parsed_once_however_many_pieces_there_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed."""
    monkeypatch.setattr(rows_module, "PIECE_BYTES", 1)
    committer = bench.attempt()
    pieces = 64
    for piece in range(pieces):
        bench.commit(committer, 2 * piece + 2, rows=rows(2 * piece + 1, 2 * piece + 2))
    looks = 0
    decoded = rows_module._decoded

    def counted(path: str, data: bytes) -> list[dict[str, Any]]:
        nonlocal looks
        found = decoded(path, data)
        looks += len(found)
        return found

    monkeypatch.setattr(rows_module, "_decoded", counted)
    assert steps_of(bench) == list(range(1, 2 * pieces + 1))
    assert looks == 2 * pieces


@pytest.mark.parametrize(
    ("data", "count", "said"),
    [(b'{"step":1}', None, "mid-line"), (rows(1, 2), 3, "3 were announced")],
)
def test_rows_that_are_cut_are_refused(
    bench: Bench, data: bytes, count: int | None, said: str
) -> None:
    with pytest.raises(BadSnapshot, match=said):
        bench.attempt().flush_rows(data, row_count=count)


def test_lines_that_are_no_rows_are_named(bench: Bench) -> None:
    committer = bench.attempt()
    bench.commit(committer, 2, rows=b"garbage\n")
    with pytest.raises(Damaged, match="garbage"):
        steps_of(bench)


def test_an_old_committer_commits_nothing_in_a_newer_term_of_its_process(bench: Bench) -> None:
    """Its thread thaws after another machine committed and this process took the term again."""
    head_file = HeadFile(bench.store, bench.layout, bench.clock)
    head_file.take_term(bench.claim)
    old = Committer(head_file)
    bench.restore(old)
    bench.commit(old, 10, rows=rows(10))
    second = bench.attempt()
    bench.restore(second)
    bench.commit(second, 20, rows=rows(20))
    head_file.take_term(bench.claim)
    new = Committer(head_file)
    assert (old.term, new.term) == (1, 3)
    before = bench.head
    with pytest.raises(Fenced):
        bench.commit(old, 11, rows=rows(11))
    with pytest.raises(Fenced):
        old.finish(State.DONE, Reason.DONE)
    with pytest.raises(Fenced):
        old.restore(bench.work / "old")
    assert bench.head == before
    assert [(entry.term, entry.step) for entry in before.chain] == [(1, 10), (2, 20)]
    bench.restore(new)
    bench.commit(new, 30, rows=rows(30))
    assert [(entry.term, entry.step) for entry in bench.head.chain] == [(1, 10), (2, 20), (3, 30)]


# -- retention --------------------------------------------------------------------------------


def entry(step: int, *tags: str) -> Checkpoint:
    return Checkpoint(f"p/t000001/s{step:012}-aa/", step, "f" * 64, 1, step, tags)


def test_retention_keeps_the_last_the_best_and_each_nth() -> None:
    chain = [entry(1, "best"), entry(2, "best"), entry(3), entry(10), entry(12), entry(21)]
    kept = Retention(keep_last=1, keep_every_steps=10).kept(chain)
    assert [kept_entry.step for kept_entry in kept] == [2, 10, 21]
    assert Retention().kept(chain) == tuple(chain[1:2] + chain[-3:])


@given(
    st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=20),
    st.integers(1, 4),
    st.none() | st.integers(1, 9),
)
def test_retention_is_stable_and_keeps_the_newest(
    steps: list[tuple[int, bool]], last: int, every: int | None
) -> None:
    chain = [entry(step, *(["best"] if best else [])) for step, best in steps]
    retention = Retention(last, every)
    kept = retention.kept(chain)
    assert retention.kept(kept) == kept
    assert set(chain[-last:]) <= set(kept)
    # One at a time, as commits come, gives the same as all at once.
    grown: tuple[Checkpoint, ...] = ()
    for number in range(len(chain)):
        grown = retention.kept((*grown, chain[number]))
    if len(set(chain)) == len(chain) and every is None:
        assert grown == kept


def test_what_was_dropped_may_be_deleted_later(bench: Bench) -> None:
    committer = bench.attempt(retention=Retention(keep_last=1))
    bench.commit(committer, 2)
    (first,) = bench.head.chain
    bench.commit(committer, 4, clean=False)
    assert [entry.step for entry in bench.head.chain] == [4]
    assert list(bench.store.list(first.path))
    committer.clean()
    assert not list(bench.store.list(first.path))


def test_dropped_checkpoints_are_deleted_after_the_swap(bench: Bench) -> None:
    events: list[str] = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb == "delete" or operation.path == bench.layout.head:
            events.append(operation.verb)
        return apply()

    committer = bench.attempt(around, Retention(keep_last=2))
    for step in (2, 4):
        bench.commit(committer, step)
    events.clear()
    bench.commit(committer, 6)
    assert [entry.step for entry in bench.head.chain] == [4, 6]
    assert events == ["put", "delete", "delete", "delete"]
    assert {path.split("/")[1][:13] for path in bench.paths()} == {
        "s000000000004",
        "s000000000006",
    }


def test_a_fenced_attempt_deletes_nothing(bench: Bench) -> None:
    old = bench.attempt(retention=Retention(keep_last=1))
    bench.commit(old, 2)
    bench.attempt()
    before = bench.paths()
    with pytest.raises(Fenced):
        bench.commit(old, 4)
    with pytest.raises(Fenced):
        old.finish(State.DONE, Reason.DONE, result=bench.folder("result", model=b"m"))
    assert set(before) <= set(bench.paths())


def test_a_write_of_unknown_fate_is_not_cleaned_by_its_writer(bench: Bench) -> None:
    broken = [False]

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if broken[0] and operation.verb == "put" and operation.path == bench.layout.head:
            raise Unavailable("gone")
        return apply()

    first = bench.attempt(around, Retention(keep_last=1))
    bench.commit(first, 2)
    broken[0] = True
    with pytest.raises(Unavailable):
        bench.commit(first, 4)
    broken[0] = False
    bench.commit(first, 6)
    first.sweep()
    assert any("s000000000004" in path for path in bench.paths())
    # A later term's sweep takes it.
    second = bench.attempt()
    bench.restore(second)
    bench.commit(second, 8)
    assert not any("s000000000004" in path for path in bench.paths())


def test_the_sweep_takes_what_lower_terms_left_and_nothing_else(bench: Bench) -> None:
    first = bench.attempt()
    named = bench.commit(first, 2)
    root = bench.layout.root
    for path in (
        "t000001/s000000000003-ab/state",
        "t000001/result/model",
        "t000002/s000000000003-cd/state",
        "t000009/s000000000003-ef/state",
        "t000001/other/file",
        "metrics/t000001/000009.jsonl",
        "tmp",
    ):
        bench.store.put(root + path, b"x")
    second = bench.attempt()
    bench.restore(second)
    bench.commit(second, 4)
    left = bench.paths()
    assert "t000001/s000000000003-ab/state" not in left
    assert "t000001/result/model" not in left
    for kept in (
        "t000002/s000000000003-cd/state",
        "t000009/s000000000003-ef/state",
        "t000001/other/file",
        "tmp",
        f"{named.path.removeprefix(root)}state",
    ):
        assert kept in left
    assert bench.paths("metrics/t000001/") == ["metrics/t000001/000009.jsonl"]


def test_a_failing_sweep_stops_nothing(bench: Bench) -> None:
    bench.store.put(bench.layout.snapshot(1, 1, "ab") + "state", b"x")
    bench.attempt()
    gone = [False]  # from the sweep on: before it takes a term, an attempt waits for the list

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        swept = operation.verb in ("list", "delete")
        if gone[0] and swept and operation.path.startswith(bench.layout.terms):
            raise Unavailable("gone")
        return apply()

    second = bench.attempt(around)
    gone[0] = True
    bench.commit(second, 2)
    second.finish(State.FAILED, Reason.USER_FAILED, exit=1)
    assert bench.head.state is State.FAILED
    assert any("sweep" in line for line in bench.said)


@pytest.mark.parametrize("verb", ["list", "delete"])
def test_the_end_deletes_what_a_failing_request_left(bench: Bench, verb: str) -> None:
    """After the end no clean-up follows, so that one which is not repeated would leave objects."""
    bench.store.put(bench.layout.snapshot(1, 1, "ab") + "state", b"x")
    bench.attempt()
    failures = [0]

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if failures[0] and operation.verb == verb and operation.path.startswith(bench.layout.terms):
            failures[0] -= 1
            raise Unavailable("503")
        return apply()

    second = bench.attempt(around, Retention(keep_last=1))
    bench.commit(second, 2)
    failures[0] = 4  # more than a commit and an end meet that try once each
    bench.commit(second, 3)
    second.finish(State.DONE, Reason.DONE, exit=0)
    assert not failures[0]
    assert {path.split("/")[1] for path in bench.paths()} == {
        bench.head.chain[-1].path.rstrip("/").rpartition("/")[2]
    }


def test_the_end_waits_for_all_failing_deletions_together_not_for_each(bench: Bench) -> None:
    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb == "delete":
            raise Unavailable("503")
        return apply()

    attempt = bench.attempt(around, Retention(keep_last=1))
    for step in range(1, 9):
        bench.commit(attempt, step)
    begun = bench.clock.monotonic()
    attempt.finish(State.DONE, Reason.DONE, exit=0)
    # Each of a folder's three objects may begin its longest pause just before the time is over.
    assert LAST_SEC <= bench.clock.monotonic() - begun < 4 * LAST_SEC
    assert bench.head.state is State.DONE


def test_a_head_that_may_not_be_read_now_ends_no_sweeping_attempt(bench: Bench) -> None:
    bench.store.put(bench.layout.snapshot(1, 1, "ab") + "state", b"x")
    bench.attempt()
    denied = [False]

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if denied[0] and operation.verb == "get" and operation.path == bench.layout.head:
            raise Forbidden("403")
        return apply()

    second = bench.attempt(around)
    denied[0] = True
    bench.commit(second, 2)
    assert [entry.step for entry in bench.head.chain] == [2]
    assert any("sweep" in line and "403" in line for line in bench.said)
    assert "t000001/s000000000001-ab/state" in bench.paths()
    denied[0] = False
    bench.commit(second, 3)
    assert "t000001/s000000000001-ab/state" not in bench.paths()


# -- the end ----------------------------------------------------------------------------------


def test_the_end_names_the_result(bench: Bench) -> None:
    committer = bench.attempt()
    bench.commit(committer, 6, rows=rows(*range(1, 7)))
    folder = bench.folder("result", model=b"the model", sub__metrics=b"{}")
    ended = committer.finish(State.DONE, Reason.DONE, exit=0, result=folder)
    assert bench.head == ended
    assert (ended.state, ended.end.step, ended.end.exit) == (State.DONE, 6, 0)
    into = bench.work / "pulled"
    manifest = fetch_result(bench.store, ended.end.result, into)
    assert manifest.digest == ended.end.result.digest
    assert (into / "model").read_bytes() == b"the model"
    copy = read_record(bench.store, bench.layout.end(0), EndCopy)
    assert copy is not None and copy.digest == manifest.digest
    assert copy.result == bench.layout.result(1)
    assert steps_of(bench) == [1, 2, 3, 4, 5, 6]


def test_the_result_does_not_tell_who_made_it(bench: Bench) -> None:
    folder = bench.folder("result", model=b"the model")
    data = []
    for layout in (bench.layout, Layout("experiments/other", "ffffffffff")):
        bench.layout = layout
        for _ in range(2):
            committer = bench.attempt()
        committer.finish(State.DONE, Reason.DONE, result=folder)
        data.append(bench.store.get(layout.result_manifest(2))[0])
    assert data[0] == data[1]
    assert set(json.loads(data[0])) == {"format", "files", "digest"}


def test_a_spoilt_result_is_noticed(bench: Bench) -> None:
    committer = bench.attempt()
    folder = bench.folder("result", model=b"the model")
    end = committer.finish(State.DONE, Reason.DONE, result=folder).end
    assert end is not None and end.result is not None
    bench.store.put(bench.layout.result(1) + "model", b"another")
    with pytest.raises(Damaged, match="sha256"):
        fetch_result(bench.store, end.result, bench.work / "pulled")
    bench.store.put(bench.layout.result_manifest(1), ResultManifest.of([]).to_json())
    with pytest.raises(NotFound):
        fetch_result(bench.store, end.result, bench.work / "pulled")


def test_an_end_without_a_commit_owns_its_rows(bench: Bench) -> None:
    bench.commit(bench.attempt(), 2, rows=rows(1, 2))
    second = bench.attempt()
    bench.restore(second)
    second.finish(State.FAILED, Reason.LIMIT)
    head = bench.head
    assert head.lineage == (Lineage(1, 0), Lineage(2, 2))
    assert (head.end.step, head.end.reason, head.end.result) == (2, Reason.LIMIT, None)


def test_open_cannot_be_the_reason_of_an_end(bench: Bench) -> None:
    with pytest.raises(ValueError, match="is not an end"):
        bench.attempt().finish(State.OPEN, Reason.DONE)


def test_read_record_tells_absent_from_damaged(bench: Bench) -> None:
    assert read_record(bench.store, "absent", Manifest) is None
    bench.store.put("odd", b"{}")
    with pytest.raises(Damaged, match="odd"):
        read_record(bench.store, "odd", Manifest)


def test_a_whole_run_in_a_folder(clock: FakeClock, claim: Claim, tmp_path: Path) -> None:
    bench = Bench(FolderStore(tmp_path / "run"), Layout("", ""), clock, claim, tmp_path)
    first = bench.attempt(retention=Retention(keep_last=1))
    assert bench.restore(first) == Fresh()
    for step in (2, 4):
        bench.commit(first, step, rows=rows(step - 1, step))
    second = bench.attempt()
    assert bench.restore(second).step == 4
    folder = bench.folder("result", model=os.urandom(100))
    second.finish(State.DONE, Reason.DONE, exit=0, result=folder)
    assert steps_of(bench) == [1, 2, 3, 4]
    assert (tmp_path / "run" / "t000002" / "result" / "model").read_bytes() == (
        folder / "model"
    ).read_bytes()
    assert {path.split("/")[0] for path in bench.paths()} == {"t000001", "t000002"}


def test_many_small_files_of_a_bucket_are_written_and_deleted_many_at_a_time(
    layout: Layout, tmp_path: Path
) -> None:
    """Each takes a separate request, and the answer takes longer than the bytes."""
    together, most = Counter[str](), Counter[str]()
    lock, busy = threading.Lock(), threading.Condition()

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        verb = operation.verb
        if "/small-" not in operation.path:
            return apply()
        with busy:
            together[verb] += 1
            most[verb] = max(most[verb], together[verb])
            busy.notify_all()
            busy.wait_for(lambda: most[verb] >= SMALL_READS, 5)
        try:
            return apply()
        finally:
            with lock:
                together[verb] -= 1

    store = MemoryStore().view(around)
    store.streams = 4
    head_file = HeadFile(store, layout, FakeClock())
    head_file.take_term(Claim("o/p/s", 0, 0, datetime(2100, 1, 1, tzinfo=UTC)))
    committer = Committer(head_file)
    committer.restore(tmp_path / "restored")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for step in range(1, 6):
        for number in range(40):
            (folder / f"small-{number}").write_text(f"{number} {step}")
        (folder / "large").write_bytes(bytes(1 << 20))
        committer.commit(folder, step=step)
    assert most["put"] == most["delete"] == SMALL_READS
    found = Committer(head_file).restore(tmp_path / "again")
    assert isinstance(found, Restored)
    assert len([*found.path.iterdir()]) == 41
    assert (found.path / "small-7").read_text() == "7 5"
