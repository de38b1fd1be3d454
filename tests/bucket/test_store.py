"""One contract for a bucket, a folder and memory; then what only one of them can do wrong."""

import contextlib
import fcntl
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
import requests

from outlast.base.retry import PAUSE_MAX_SEC, Patience
from outlast.bucket import transfer
from outlast.bucket.errors import BadSnapshot
from outlast.bucket.store import (
    Damaged,
    Doubtful,
    FolderStore,
    Forbidden,
    GcsStore,
    MemoryStore,
    NotFound,
    Object,
    PreconditionFailed,
    Slice,
    Store,
    StoreError,
    Throttled,
    TooLarge,
    Unavailable,
    Unsupported,
    checksum_of,
    contract,
    copy_new,
    memory,
    open_store,
    put_new,
)
from outlast.bucket.store import folder as folder_module
from outlast.bucket.store import gcs as gcs_module

T = TypeVar("T")


def soon(action: Callable[[], T]) -> T:
    """A bucket takes one write of a name a second; the contract is about the answer after."""
    limit = time.monotonic() + 10
    while True:
        try:
            return action()
        except Throttled:
            assert time.monotonic() < limit
            time.sleep(0.1)


def same(found: Object, written: Object) -> bool:
    """A read by generation knows the time to the second only."""
    early = (written.updated - found.updated).total_seconds()
    return replace(found, updated=written.updated) == written and 0 <= early < 1


# -- the contract -----------------------------------------------------------------------------


def test_stale_write_is_refused(store: Store) -> None:
    """The first thing that fencing needs; if this fails, no other test means anything."""
    first = store.put("HEAD", b"one", if_generation_match=0)
    second = soon(lambda: store.put("HEAD", b"two", if_generation_match=first.generation))
    with pytest.raises(PreconditionFailed):
        soon(lambda: store.put("HEAD", b"stale", if_generation_match=first.generation))
    with pytest.raises(PreconditionFailed):
        soon(lambda: store.put("HEAD", b"fresh", if_generation_match=0))
    assert store.get("HEAD") == (b"two", store.stat("HEAD"))
    assert store.stat("HEAD").generation == second.generation > first.generation


def test_write_that_names_a_generation_of_nothing_is_refused(store: Store) -> None:
    with pytest.raises(PreconditionFailed):
        store.put("HEAD", b"x", if_generation_match=7)
    with pytest.raises(NotFound):
        store.stat("HEAD")


def test_one_of_many_creators_wins(store: Store) -> None:
    won: list[int] = []
    barrier = threading.Barrier(6)

    def create(number: int) -> None:
        barrier.wait()
        try:
            soon(lambda: store.put("HEAD", b"%d" % number, if_generation_match=0))
        except PreconditionFailed:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("HEAD")[0] == b"%d" % won[0]


def test_put_tells_what_was_written(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\0" * 70_000 + b"end")
    for path, data in (("a/b/bytes", b"content"), ("a/file", file), ("empty", b"")):
        written = store.put(path, data, if_generation_match=0)
        assert (written.size, written.crc32c) == checksum_of(data)
        assert written.path == path
        assert written == store.stat(path)
        assert abs((written.updated - datetime.now(UTC)).total_seconds()) < 60


def test_get_of_a_generation_never_gives_another(store: Store) -> None:
    first = store.put("x", b"one")
    soon(lambda: store.put("x", b"two"))
    with pytest.raises(NotFound):
        store.get("x", generation=first.generation)
    with pytest.raises(NotFound):
        store.get("y")


def test_read_range_gives_bytes_of_one_generation(store: Store) -> None:
    first = store.put("data", bytes(range(200)))
    generation = first.generation
    assert store.read_range("data", 0, 200, generation=generation) == bytes(range(200))
    assert store.read_range("data", 150, 50, generation=generation) == bytes(range(150, 200))
    with pytest.raises(Damaged):
        store.read_range("data", 150, 51, generation=generation)
    soon(lambda: store.put("data", b"other", if_generation_match=generation))
    with pytest.raises(NotFound):
        store.read_range("data", 0, 5, generation=generation)


def test_what_is_too_long_for_a_record_is_not_read_into_memory(store: Store, monkeypatch) -> None:
    for module in (contract, folder_module, gcs_module, memory):
        monkeypatch.setattr(module, "GET_BYTES_MAX", 1 << 20)
    store.put("fits", b"x" * (1 << 20))
    assert len(store.get("fits")[0]) == 1 << 20
    written = store.put("HEAD", b"x" * (8 << 20))
    for generation in (None, written.generation):
        with pytest.raises(
            TooLarge, match="HEAD: has more than 1 MiB, which no record of a run has"
        ):
            store.get("HEAD", generation=generation)
    sink = io.BytesIO()
    store.stream("HEAD", sink)
    assert sink.tell() == 8 << 20


def test_fetch_writes_the_whole_file(store: Store, tmp_path: Path) -> None:
    data = os.urandom(9 * 1024 * 1024)
    source, to = tmp_path / "source", tmp_path / "to"
    source.write_bytes(data)
    written = store.put("large", source, if_generation_match=0)
    assert same(store.fetch("large", to, generation=written.generation), written)
    assert to.read_bytes() == data
    with pytest.raises(NotFound):
        store.fetch("absent", tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["source", "to"]


def test_a_slice_of_a_file_is_an_object(store: Store, tmp_path: Path) -> None:
    data = os.urandom(9 * 1024 * 1024 + 3)
    file = tmp_path / "file"
    file.write_bytes(data)
    for name, start, size in (("large", 2, 9 * 1024 * 1024), ("last", len(data) - 3, 3)):
        content = data[start : start + size]
        crc32c = checksum_of(content)[1]
        written = store.put(name, Slice(file, start, size, crc32c), if_generation_match=0)
        assert (written.size, written.crc32c) == (size, crc32c)
        assert store.get(name) == (content, written)


def test_a_slice_whose_bytes_changed_is_noticed(store: Store, tmp_path: Path, clock: Any) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"changed")
    stale = Slice(file, 0, 7, checksum_of(b"before!")[1])
    with pytest.raises(StoreError):
        put_new(store, "x", stale, patience=Patience(clock))


def test_stream_writes_what_is_there(store: Store) -> None:
    written = store.put("x", b"content")
    sink = io.BytesIO()
    assert same(store.stream("x", sink, generation=written.generation), written)
    assert sink.getvalue() == b"content"
    with pytest.raises(NotFound):
        store.stream("x", sink, generation=written.generation + 1)


def test_copy_is_a_new_object_with_the_same_bytes(store: Store) -> None:
    source = store.put("d/source", b"content")
    copied = store.copy(
        "d/source", "d/copy", source_generation=source.generation, if_generation_match=0
    )
    assert (copied.size, copied.crc32c) == (source.size, source.crc32c)
    assert copied.generation != source.generation
    assert store.get("d/copy") == (b"content", copied)
    store.delete("d/source", generation=source.generation)
    data, found = store.get("d/copy", generation=copied.generation)
    assert data == b"content" and same(found, copied)


def test_copy_names_what_it_replaces_and_what_it_copies(store: Store) -> None:
    source = store.put("source", b"content")
    there = store.put("there", b"there")
    with pytest.raises(PreconditionFailed):
        store.copy("source", "there", source_generation=source.generation, if_generation_match=0)
    with pytest.raises((NotFound, PreconditionFailed)):
        store.copy("source", "to", source_generation=source.generation + 1, if_generation_match=0)
    with pytest.raises(NotFound):
        store.copy("absent", "to", source_generation=1, if_generation_match=0)
    assert store.get("there") == (b"there", there)
    assert [found.path for found in store.list("")] == ["source", "there"]


def test_copy_new_takes_its_own_earlier_try_for_success(store: Store) -> None:
    source = store.put("source", b"content")
    known = {
        "source_generation": source.generation,
        "expected": (source.size, source.crc32c),
    }
    copied = copy_new(store, "source", "to", **known)
    assert copied is not None and soon(lambda: copy_new(store, "source", "to", **known)) == copied
    soon(lambda: store.delete("source", generation=source.generation))
    assert copy_new(store, "source", "elsewhere", **known) is None


def test_delete_takes_one_generation_only(store: Store) -> None:
    first = store.put("d/x", b"one")
    second = soon(lambda: store.put("d/x", b"two"))
    with pytest.raises(PreconditionFailed):
        soon(lambda: store.delete("d/x", generation=first.generation))
    assert store.get("d/x")[0] == b"two"
    soon(lambda: store.delete("d/x", generation=second.generation))
    with pytest.raises((NotFound, PreconditionFailed)):
        soon(lambda: store.delete("d/x", generation=second.generation))
    with pytest.raises(NotFound):
        store.stat("d/x")
    again = soon(lambda: store.put("d/x", b"three", if_generation_match=0))
    assert again.generation > second.generation


def test_list_is_sorted_and_cut_by_prefix(store: Store) -> None:
    for path in ("t000001/s2/b", "t000001/s10/a", "t000001/s2/a", "t00001", "u"):
        store.put(path, path.encode())
    assert [found.path for found in store.list("t000001/")] == [
        "t000001/s10/a",
        "t000001/s2/a",
        "t000001/s2/b",
    ]
    assert [found.path for found in store.list("t0000")] == [
        "t000001/s10/a",
        "t000001/s2/a",
        "t000001/s2/b",
        "t00001",
    ]
    assert list(store.list("v")) == []
    assert next(store.list("u")) == store.stat("u")


def test_a_list_matches_names_by_a_glob(store: Store) -> None:
    for path in (
        "a/r/HEAD",
        "a/r/x/HEAD",
        "a/q/end.json",
        "a/q/start.json",
        "b/r/HEAD",
        "a/r.HEAD",
    ):
        store.put(path, b"x")

    def found(glob: str) -> list[str]:
        return [one.path for one in store.list("a/", glob=glob)]

    assert found("a/*/HEAD") == ["a/r/HEAD"]
    assert found("a/*/{start,end}.json") == ["a/q/end.json", "a/q/start.json"]
    assert found("*/r/HEAD") == ["a/r/HEAD"]
    assert found("a/r") == []


def test_folders_are_those_right_below(store: Store) -> None:
    for path in ("a/run-2/t1/x", "a/run-1/HEAD", "a/run-1/t1/x", "a/file", "ab/run-3/HEAD", "top"):
        store.put(path, b"x")
    assert list(store.folders("a/")) == ["run-1", "run-2"]
    assert list(store.folders("")) == ["a", "ab"]
    assert list(store.folders("a/run-2/t1/")) == list(store.folders("v/")) == []


def test_server_time_is_utc(store: Store) -> None:
    now = store.now()
    assert now.tzinfo is UTC
    assert abs((now - datetime.now(UTC)).total_seconds()) < 60


@pytest.mark.parametrize("path", ["", "/x", "a//b", "a/", "../x", "a/../b", "./a"])
def test_paths_that_are_no_object_are_refused(path: str, tmp_path: Path) -> None:
    for store in (MemoryStore(), FolderStore(tmp_path)):
        with pytest.raises(StoreError, match="object path"):
            store.put(path, b"x")


def test_put_new_takes_its_own_earlier_try_for_success(store: Store) -> None:
    written = put_new(store, "x", b"same")
    assert soon(lambda: put_new(store, "x", b"same")) == written
    with pytest.raises(PreconditionFailed):
        put_new(store, "x", b"different")


def test_patiently_waits_for_an_answer(clock: Any) -> None:
    answers: list[Any] = [Throttled("slow"), Unavailable("gone"), 7]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert Patience(clock)(ask) == 7
    assert clock.elapsed > 1


def test_patiently_gives_up_and_never_repeats_a_refusal(clock: Any) -> None:
    def fail() -> None:
        raise Unavailable("gone")

    with pytest.raises(Unavailable):
        Patience(clock).within(30)(fail)
    assert 30 <= clock.elapsed < 30 + 1.5 * PAUSE_MAX_SEC

    calls = []

    def refuse() -> None:
        calls.append(1)
        raise Forbidden("no")

    with pytest.raises(Forbidden):
        Patience(clock)(refuse)
    assert calls == [1]


# -- which store ------------------------------------------------------------------------------


def test_open_store_knows_its_addresses(tmp_path: Path) -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    assert isinstance(open_store(str(tmp_path / "a")), FolderStore)
    spaced = open_store((tmp_path / "a b").as_uri())
    assert isinstance(spaced, FolderStore)
    assert (tmp_path / "a b").is_dir()


@pytest.mark.parametrize("url", ["gs://", "gs://bucket/path", "s3://bucket"])
def test_open_store_refuses_what_it_does_not_know(url: str) -> None:
    with pytest.raises(StoreError, match="must be gs://"):
        open_store(url)


# -- a folder ---------------------------------------------------------------------------------


def test_folder_survives_being_copied(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "run")
    written = store.put("t000001/s/x", b"content")
    copied = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(tmp_path / "run"), str(copied)], check=True)
    assert FolderStore(copied).get("t000001/s/x") == (b"content", written)


def test_folder_notices_a_flipped_bit(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("x", b"content")
    (tmp_path / "x").resolve().write_bytes(b"c0ntent")
    with pytest.raises(Damaged):
        store.get("x")
    with pytest.raises(Damaged):
        store.fetch("x", tmp_path / "to")
    assert not (tmp_path / "to").exists() and not (tmp_path / "to.part").exists()


def test_folder_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
    with pytest.raises(Unsupported, match="flock does not exclude"):
        FolderStore(tmp_path)


def test_folder_whose_locks_fail_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: object, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(Unsupported, match="has no locks"):
        FolderStore(tmp_path)


@pytest.mark.parametrize("kind", ["nfs4", "fuse.gcsfuse", "cifs", "fuse.sshfs"])
def test_network_folder_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "file_system_type", lambda folder: kind)
    with pytest.raises(Unsupported, match=kind):
        FolderStore(tmp_path)


@pytest.mark.parametrize(
    "kept", ["abc", "", " ", "-5", "1" * 20, "9" * 32, "9" * 40, "1" * 17, "\0\0", "\u0663"]
)
def test_folder_with_a_broken_counter_continues_above_its_highest_generation(
    tmp_path: Path, kept: str
) -> None:
    """An object of the future stands for a clock that was set back."""
    store = FolderStore(tmp_path)
    future = (time.time_ns() // 1000) + 10**12
    (tmp_path / ".objects" / "lock").write_text(str(future))
    first = store.put("a", b"x")
    assert first.generation == future + 1
    (tmp_path / ".objects" / "lock").write_text(kept)
    store = FolderStore(tmp_path)
    second = store.put("b", b"x")
    assert second.generation == future + 2
    assert store.put("b", b"y", if_generation_match=second.generation).generation == future + 3
    assert store.get("a") == (b"x", first) and store.get("b")[0] == b"y"


def test_a_link_with_no_moment_for_a_generation_is_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    (tmp_path / "x").symlink_to(f".objects/{'9' * 20}-1-00000000")
    with pytest.raises(StoreError, match="which is not an object of this run"):
        store.get("x")


def test_foreign_file_in_a_folder_is_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    (tmp_path / "HEAD").write_text("mine")
    with pytest.raises(StoreError, match="is not an object of this run"):
        store.get("HEAD")
    (tmp_path / "notes").symlink_to("/etc/hostname")
    store.put("x", b"x")
    assert [found.path for found in store.list("")] == ["x"]
    file = tmp_path / "plain"
    file.write_text("")
    with pytest.raises(Unsupported, match="is a file"):
        FolderStore(file)


WRITER = """
import sys
from pathlib import Path
from outlast.bucket.store import FolderStore, PreconditionFailed
store = FolderStore(Path(sys.argv[1]))
print("ready", flush=True)
number = 0
while True:
    number += 1
    current = store.stat("HEAD")
    try:
        store.put("HEAD", b"%d:" % number + b"x" * 50_000, if_generation_match=current.generation)
    except PreconditionFailed:
        continue
"""


def test_folder_survives_writers_killed_at_any_instant(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    last = store.put("HEAD", b"0:" + b"x" * 50_000).generation
    for round_number in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        until = time.monotonic() + 60
        while store.stat("HEAD").generation <= last:
            assert time.monotonic() < until, "it writes nothing"
        time.sleep(0.003 + 0.007 * round_number)  # somewhere in a later write
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        data, found = FolderStore(tmp_path).get("HEAD")
        assert data.endswith(b"x" * 50_000)
        assert found.generation > last
        last = found.generation
    # The next writer clears away what they left: only the lock and the one blob stay.
    FolderStore(tmp_path).put("HEAD", b"")
    assert len(list((tmp_path / ".objects").iterdir())) == 2


def test_a_folder_is_looked_through_for_leftovers_by_its_writers_alone(tmp_path: Path) -> None:
    """A reader of a large run does not wait for that."""
    FolderStore(tmp_path).put("x", b"x")
    leftovers = [tmp_path / ".objects" / name for name in ("1-1-00000000", "part-1", "link-1")]
    for leftover in leftovers:
        leftover.write_text("x")
    store = FolderStore(tmp_path)
    assert store.get("x")[0] == b"x" and [found.path for found in store.list("")] == ["x"]
    assert all(leftover.exists() for leftover in leftovers)
    store.put("y", b"y")
    assert not any(leftover.exists() for leftover in leftovers)
    assert store.get("x")[0] == b"x"


def test_folder_reader_sees_whole_objects_while_they_change(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("x", b"0" * 1000)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.put("x", b"%d" % (number % 10) * 1000)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(200):
            assert len(set(store.get("x")[0])) == 1
    finally:
        stop.set()
        thread.join()


def test_folder_held_by_another_process_answers_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    store.put("x", b"")
    monkeypatch.setattr(FolderStore, "_LOCK_SECONDS", 0.05)
    with (tmp_path / ".objects" / "lock").open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="held its lock"):
            store.put("x", b"")


def test_folder_writers_at_the_same_time_share_the_syncs_of_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first holds the turn until all others wait for it: one more sync is enough for them."""
    others = 6
    store = FolderStore(tmp_path)
    synced: list[Path] = []
    sync, all_wait = folder_module._sync_folder, threading.Event()

    def slow(folder: Path) -> None:
        assert all_wait.wait(60)
        synced.append(folder)
        sync(folder)

    monkeypatch.setattr(folder_module, "_sync_folder", slow)
    with ThreadPoolExecutor(others + 1) as pool:
        written = [pool.submit(store.put, "d/first", b"x")]
        written += [pool.submit(store.put, f"d/{number}", b"x") for number in range(others)]
        limit = time.monotonic() + 10
        while store._syncs._asked < others + 1 and time.monotonic() < limit:
            time.sleep(0.001)
        assert not any(future.done() for future in written)
        all_wait.set()
    assert {future.result().size for future in written} == {1}
    assert sorted(synced) == sorted(2 * [tmp_path, tmp_path / ".objects", tmp_path / "d"])


def test_folder_sync_that_fails_is_made_by_the_next_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = folder_module._Syncs()
    synced: list[Path] = []

    def fails_once(folder: Path) -> None:
        if not synced:
            synced.append(folder)
            raise OSError(5, "Input/output error")
        synced.append(folder)

    monkeypatch.setattr(folder_module, "_sync_folder", fails_once)
    with pytest.raises(OSError, match="Input/output"):
        syncs.sync(tmp_path / "a")
    syncs.sync(tmp_path / "b")
    assert sorted(synced[1:]) == [tmp_path / "a", tmp_path / "b"]


# -- Cloud Storage ----------------------------------------------------------------------------


@pytest.fixture
def gcs(storage_api: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    store = GcsStore("runs")
    yield store
    store.close()


def answer_with(gcs: GcsStore, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    def send(self: Any, request: Any, **_: Any) -> requests.Response:
        response = requests.Response()
        response.status_code = status
        response.request = request
        response.url = request.url
        response._content = b"{}"
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Forbidden),
        (403, Forbidden),
        (404, NotFound),
        (412, PreconditionFailed),
        (429, Throttled),
        (500, Unavailable),
        (503, Unavailable),
        (400, Doubtful),
        (409, Doubtful),
        (451, StoreError),
    ],
)
def test_answers_of_the_bucket_become_our_errors(
    gcs: GcsStore, status: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(gcs, monkeypatch, status)
    with pytest.raises(StoreError) as caught:
        gcs.put("x", b"data", if_generation_match=0)
    assert type(caught.value) is kind
    with pytest.raises(StoreError) as caught:
        gcs.delete("x", generation=1)
    assert type(caught.value) is kind


def test_a_bucket_that_is_not_there_is_named(
    gcs: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(gcs, monkeypatch, 404)
    with pytest.raises(NotFound) as caught:
        gcs.list("experiments/dev/attempts/")
    assert str(caught.value) == "gs://runs: there is no such bucket; create it, or name another"


def test_a_server_that_is_not_there_is_named_in_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{nowhere}")
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    with contextlib.closing(GcsStore("runs", read_retry_sec=0.1)) as store:
        for act in (lambda: store.get("x"), lambda: store.put("x", b"")):
            with pytest.raises(Unavailable) as caught:
                act()
            assert re.fullmatch(
                rf"x: the connection to {nowhere} failed \(\[Errno 111\] Connection refused\)",
                str(caught.value),
            )


def test_lost_connection_is_a_write_of_unknown_fate(
    gcs: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(self: Any, request: Any, **_: Any) -> None:
        raise requests.exceptions.ConnectionError("reset by peer")

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    with pytest.raises(Unavailable):
        gcs.put("x", b"data", if_generation_match=0)
    with pytest.raises(Unavailable):
        gcs.delete("x", generation=1)


def test_bucket_writes_are_sent_once(gcs: GcsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    answer_with(gcs, monkeypatch, 503)
    once = requests.adapters.HTTPAdapter.send
    monkeypatch.setattr(
        requests.adapters.HTTPAdapter,
        "send",
        lambda self, request, **named: sent.append(request) or once(self, request, **named),
    )
    with pytest.raises(Unavailable):
        gcs.put("x", b"data", if_generation_match=0)
    assert len(sent) == 1
    assert "ifGenerationMatch=0" in sent[0].url


def test_a_known_generation_is_read_with_one_request(
    gcs: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(3 * folder_module.PIECE_BYTES + 1)
    written = gcs.put("pieces", data, if_generation_match=0)
    sent = []
    send = requests.adapters.HTTPAdapter.send
    monkeypatch.setattr(
        requests.adapters.HTTPAdapter,
        "send",
        lambda self, request, **named: sent.append(request) or send(self, request, **named),
    )
    pieces: list[bytes] = []

    class Pieces:
        def write(self, piece: bytes) -> None:
            pieces.append(piece)

    assert same(gcs.stream("pieces", Pieces(), generation=written.generation), written)
    assert b"".join(pieces) == data
    assert len(sent) == 1 and len(pieces) == 4


@pytest.mark.parametrize(
    "header", ["X-Goog-Hash", "X-Goog-Stored-Content-Length", "X-Goog-Generation", "Last-Modified"]
)
def test_an_answer_without_what_is_verified_is_asked_about(
    gcs: GcsStore, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"without-{header}"
    written = gcs.put(name, b"content", if_generation_match=0)
    send = requests.adapters.HTTPAdapter.send

    def without(self: Any, request: Any, **named: Any) -> Any:
        response = send(self, request, **named)
        response.headers.pop(header, None)
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", without)
    assert same(gcs.get(name, generation=written.generation)[1], written)


def test_on_a_vm_the_metadata_servers_token_is_used(
    storage_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.auth import compute_engine

    from outlast.cloud import credentials

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    assert isinstance(credentials.for_storage(), compute_engine.Credentials)


def test_given_credentials_are_sent(storage_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.oauth2.credentials import Credentials

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    seen = []
    send = requests.adapters.HTTPAdapter.send
    monkeypatch.setattr(
        requests.adapters.HTTPAdapter,
        "send",
        lambda self, request, **named: seen.append(request) or send(self, request, **named),
    )
    store = GcsStore("runs", credentials=Credentials(token="the-token"))
    with pytest.raises(NotFound):
        store.stat("absent")
    store.close()
    assert {request.headers["authorization"] for request in seen} == {"Bearer the-token"}


def test_each_new_folder_of_a_run_is_on_the_disk_before_its_object_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may forget a folder whose entry in its parent was never synced."""
    made: set[Path] = set()
    synced: set[Path] = set()
    make, sync = os.mkdir, folder_module._sync_folder

    def mkdir(path: Any, *arguments: Any, **named: Any) -> None:
        make(path, *arguments, **named)
        made.add(Path(path))
        synced.discard(Path(path).parent)

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(
        folder_module, "_sync_folder", lambda folder: (sync(folder), synced.add(folder))
    )

    def lasts() -> bool:
        return {folder.parent for folder in made} <= synced

    run = tmp_path / "runs/deep/run"
    store = FolderStore(run)
    assert made == {run, run.parent, run.parent.parent, run / ".objects"} and lasts()
    for path in ("t000001/s1-a/state/x", "t000001/s1-a/MANIFEST.json", "metrics/000001/1", "HEAD"):
        put_new(store, path, b"x")
        assert lasts(), path
    for path in ("t000001/s1-a/state/x", "t000001/s1-a/MANIFEST.json"):
        store.delete(path, generation=store.stat(path).generation)
    assert not (run / "t000001").exists()
    made.clear()
    put_new(store, "t000001/s1-a/state/x", b"y")
    assert made and lasts()
    other = FolderStore(run)  # another process, which does not know what this one synced
    synced.clear()
    put_new(other, "t000001/s1-a/state/y", b"y")
    assert {run, run / "t000001", run / "t000001/s1-a"} <= synced


def test_more_files_than_a_manifest_can_name_are_refused_before_they_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (tmp_path / f"f{number}").write_bytes(b"")
    assert len(transfer.snapshot_files(tmp_path)) == 50
    monkeypatch.setattr(transfer, "GET_BYTES_MAX", 8192)
    with pytest.raises(BadSnapshot, match="has 50 files, whose manifest would be longer than"):
        transfer.snapshot_files(tmp_path)
