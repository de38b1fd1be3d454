"""Data fetched into a cache: whole, checked, resumed, and distinguished by its content."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.base.retry import Patience
from outlast.bucket import data as data_module
from outlast.bucket.data import (
    Cache,
    DataChanged,
    DataError,
    DataService,
    Listings,
    find,
    local_files,
    same_data,
)
from outlast.bucket.head import DataFingerprint
from outlast.bucket.layout import Layout
from outlast.bucket.store import (
    CHUNK_BYTES,
    Damaged,
    FolderStore,
    Forbidden,
    GcsStore,
    MemoryStore,
    Operation,
    Store,
    Throttled,
    checksum_of,
)
from tests.log_lines import log_lines
from tests.stores import BUCKET, FakeClock
from tests.supervisor.world import wait_until

ROOT = Path(__file__).parents[2]
RANGE = 1000


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "RANGE_BYTES", RANGE)


def cache_of(store: Store, home: Path, **options: Any) -> Cache:
    return Cache(home, opener=lambda url: store, **options)


def content(size: int, salt: int = 0) -> bytes:
    return bytes((index * index + salt) % 251 for index in range(size))


def local_fingerprint(path: Path, progress: Any = lambda done, of: None) -> DataFingerprint:
    return data_module.fingerprint_of(path, local_files(path, progress))


def test_an_object_is_a_file(store: Store, tmp_path: Path) -> None:
    body = content(10 * RANGE + 7)
    written = store.put("data/rows.csv", body)
    staged = cache_of(store, tmp_path).stage("gs://b/data/rows.csv")
    assert staged.path.name == "rows.csv" and staged.path.read_bytes() == body
    found = staged.fingerprint
    assert (found.name, found.generation) == ("gs://b/data/rows.csv", written.generation)
    assert (found.size, found.crc32c) == checksum_of(body)
    assert cache_of(store, tmp_path).known(staged.path) == found


@pytest.mark.parametrize("asked", ["gs://b/data/digits", "gs://b/data/digits/"])
def test_objects_below_a_path_are_a_folder(store: Store, tmp_path: Path, asked: str) -> None:
    if store.url.startswith("file:"):
        asked = f"{asked.rstrip('/')}/"  # there an object and a folder cannot have one name
    files = {"train/a": content(2 * RANGE), "train/b": b"", "test": content(3), "z": content(1)}
    for name, body in files.items():
        store.put(f"data/digits/{name}", body)
    store.put("data/digits-2/other", b"other")
    staged = cache_of(store, tmp_path / "cache").stage(asked)
    there = {
        path.relative_to(staged.path).as_posix(): path.read_bytes()
        for path in staged.path.rglob("*")
        if path.is_file()
    }
    assert there == files and staged.path.name == "digits"
    for name, body in files.items():
        (tmp_path / "digits" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "digits" / name).write_bytes(body)
    assert same_data(staged.fingerprint, local_fingerprint(tmp_path / "digits"))
    (tmp_path / "digits" / "z").rename(tmp_path / "digits" / "y")
    assert not same_data(staged.fingerprint, local_fingerprint(tmp_path / "digits"))


def test_a_large_file_of_this_machine_shows_that_it_is_read(tmp_path: Path) -> None:
    """As long as many small ones take, and just as little a silence."""
    with (tmp_path / "rows").open("wb") as file:
        file.truncate(3 * CHUNK_BYTES + 1)
    signs: list[tuple[int, int]] = []
    found = local_fingerprint(tmp_path / "rows", lambda done, of: signs.append((done, of)))
    assert len(signs) == 4
    assert (found.size, found.crc32c) == checksum_of(tmp_path / "rows")


def counting(memory: MemoryStore, reads: list[str]) -> MemoryStore:
    def around(operation: Operation, perform: Any) -> Any:
        if operation.verb == "read_range":
            reads.append(operation.path)
        return perform()

    return memory.view(around)


def test_what_is_there_is_not_fetched_again(memory: MemoryStore, tmp_path: Path) -> None:
    memory.put("d", content(3 * RANGE))
    reads: list[str] = []
    cache = cache_of(counting(memory, reads), tmp_path)
    first = cache.stage("gs://b/d")
    assert cache.stage("gs://b/d") == first and reads == ["d"] * 3
    first.path.unlink()  # a user may clear a cache
    assert cache.stage("gs://b/d") == first and reads == ["d"] * 6
    memory.put("d", content(2 * RANGE, salt=1))
    second = cache.stage("gs://b/d")
    assert second.path != first.path and first.path.exists() and len(reads) == 8


def test_two_at_once_fetch_once(memory: MemoryStore, tmp_path: Path) -> None:
    memory.put("d", content(5 * RANGE))
    reads: list[str] = []
    both = threading.Barrier(2)

    def stage() -> None:
        both.wait(60)
        cache_of(counting(memory, reads), tmp_path).stage("gs://b/d")

    threads = [threading.Thread(target=stage) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(reads) == 5


def test_an_interrupted_download_continues_where_it_stopped(
    memory: MemoryStore, tmp_path: Path
) -> None:
    body = content(20 * RANGE)
    memory.put("d", body)
    reads: list[str] = []

    def failing_after(operation: Operation, perform: Any) -> Any:
        if operation.verb == "read_range":
            if len(reads) >= 9:
                raise Forbidden("no more")
            reads.append(operation.path)
        return perform()

    with pytest.raises(DataError, match="may not be read"):
        cache_of(memory.view(failing_after), tmp_path).stage("gs://b/d")
    assert len(reads) == 9
    assert cache_of(counting(memory, reads), tmp_path).stage("gs://b/d").path.read_bytes() == body
    assert len(reads) == 20


def test_a_damaged_file_is_fetched_again(memory: MemoryStore, tmp_path: Path) -> None:
    body = content(4 * RANGE)
    memory.put("d", body)
    whole = threading.Event()

    def half(operation: Operation, perform: Any) -> Any:
        if operation.verb == "read_range" and whole.is_set():
            raise Forbidden("no more")
        whole.set()
        return perform()

    with pytest.raises(DataError):
        cache_of(memory.view(half), tmp_path).stage("gs://b/d")
    (part,) = [path for path in tmp_path.rglob("000000") if path.is_file()]
    marks = part.with_name("000000.marks")
    marks.write_bytes(b"\1" * 4)  # as if all were there
    assert cache_of(memory, tmp_path).stage("gs://b/d").path.read_bytes() == body


def test_bytes_that_never_match_are_an_error(memory: MemoryStore, tmp_path: Path) -> None:
    memory.put("d", content(2 * RANGE))

    def flipped(operation: Operation, perform: Any) -> Any:
        found = perform()
        if operation.verb != "read_range":
            return found
        return b"x" + found[0][1:], found[1]

    with pytest.raises(Damaged, match="in two downloads, the bytes did not match"):
        cache_of(memory.view(flipped), tmp_path).stage("gs://b/d")
    assert not [path for path in tmp_path.rglob("d") if path.is_file()]


def test_data_rewritten_in_mid_download_is_never_mixed(memory: MemoryStore, tmp_path: Path) -> None:
    new = content(6 * RANGE, salt=3)
    memory.put("d", content(6 * RANGE))
    rewritten = threading.Event()

    def around(operation: Operation, perform: Any) -> Any:
        if operation.verb == "read_range" and not rewritten.is_set():
            rewritten.set()
            memory.put("d", new)
        return perform()

    assert cache_of(memory.view(around), tmp_path).stage("gs://b/d").path.read_bytes() == new


def test_a_busy_store_is_asked_again(memory: MemoryStore, tmp_path: Path, clock: FakeClock) -> None:
    memory.put("d", content(3 * RANGE))
    trouble = iter([Throttled("slow"), Throttled("slow")])

    def around(operation: Operation, perform: Any) -> Any:
        if operation.verb == "read_range" and (error := next(trouble, None)):
            raise error
        return perform()

    staged = cache_of(memory.view(around), tmp_path, patience=Patience(clock)).stage("gs://b/d")
    assert staged.path.stat().st_size == 3 * RANGE and clock.elapsed > 0


def test_no_room_is_a_sentence(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.put("d", content(3 * RANGE))
    usage = type("Usage", (), {"free": 2 * RANGE})()
    monkeypatch.setattr(data_module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match=r"gs://b/d: needs 3000 bytes, .* has 2000 free; make room"):
        cache_of(memory, tmp_path).stage("gs://b/d")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gs://b/none", "no such object, and none below gs://b/none/"),
        ("gs://b", "must be a path of this machine or gs://BUCKET/PATH"),
        ("s3://b/x", "must be a path of this machine or gs://BUCKET/PATH"),
        ("gs://b/a/../x", "must have no empty parts"),
    ],
)
def test_invalid_data_gives_one_sentence(
    memory: MemoryStore, tmp_path: Path, url: str, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        cache_of(memory, tmp_path).stage(url)


def test_permissions_may_be_spreading(
    memory: MemoryStore, tmp_path: Path, clock: FakeClock
) -> None:
    memory.put("d", b"x")

    def around(operation: Operation, perform: Any) -> Any:
        if clock.elapsed < 20:
            raise Forbidden("not yet")
        return perform()

    view = memory.view(around)
    with pytest.raises(DataError, match="add it to outlast:dataPaths or put it"):
        cache_of(view, tmp_path, patience=Patience(clock).permitting(10)).stage("gs://b/d")
    assert cache_of(view, tmp_path, patience=Patience(clock).permitting(60)).stage("gs://b/d")


def test_a_reader_of_what_is_below_a_path_needs_no_right_to_the_path(memory: MemoryStore) -> None:
    memory.put("d/x", b"x")

    def around(operation: Operation, perform: Any) -> Any:
        if operation.path == "d":
            raise Forbidden("only below")
        return perform()

    assert find(memory.view(around), "gs://b/d").is_folder


# -- what a run was begun on -----------------------------------------------------------------------


def test_local_data_that_only_moved_is_the_same(tmp_path: Path) -> None:
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "rows.csv").write_text("1,2\n")
    data_service = DataService(Cache(tmp_path), lambda: [])
    first = data_service.answer(str(tmp_path / "here/rows.csv"), "", print).fingerprint
    assert first.name == "rows.csv" and first.generation == 0
    again = DataService(Cache(tmp_path), lambda: [first])
    assert again.answer(str(tmp_path / "there/rows.csv"), "", print).fingerprint == first
    (tmp_path / "there/rows.csv").write_text("1,3\n")
    with pytest.raises(DataError, match=r"is 4 bytes with CRC32C .*, the run started with 4 bytes"):
        DataService(Cache(tmp_path), lambda: [first]).answer(
            str(tmp_path / "there/rows.csv"), "", print
        )


def test_two_local_paths_of_one_name_are_two(tmp_path: Path) -> None:
    for place in ("train", "test"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "rows.csv").write_text(place)
    data_service = DataService(Cache(tmp_path), lambda: [])
    asked = ["train", "test", "train"]
    names = [
        data_service.answer(str(tmp_path / place / "rows.csv"), "", print).fingerprint.name
        for place in asked
    ]
    assert names == ["rows.csv", "rows.csv (2)", "rows.csv"]


def test_equal_bytes_uploaded_again_are_the_same(memory: MemoryStore, tmp_path: Path) -> None:
    memory.put("d", b"one")
    first = cache_of(memory, tmp_path).stage("gs://b/d").fingerprint
    memory.put("d", b"one")
    data_service = DataService(cache_of(memory, tmp_path), lambda: [first])
    again = data_service.answer("gs://b/d", "", lambda done, of: None).fingerprint
    assert again.generation > first.generation and same_data(again, first)


def test_a_run_has_not_too_many_paths(tmp_path: Path) -> None:
    for number in range(data_module.NAMES_MAX + 1):
        (tmp_path / f"{number}").write_text("x")
    data_service = DataService(Cache(tmp_path), lambda: [])
    for number in range(data_module.NAMES_MAX):
        data_service.answer(str(tmp_path / f"{number}"), "", print)
    with pytest.raises(DataError, match="at most 100 are allowed; ask for the folder"):
        data_service.answer(str(tmp_path / f"{data_module.NAMES_MAX}"), "", print)


# -- the command, against the local cloud ----------------------------------------------------------


@pytest.fixture
def bucket(storage_api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStore]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    store = GcsStore(BUCKET)
    yield store
    store.close()


def fetching(url: str, into: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "outlast.supervisor", "fetch", url, "--into", str(into), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_a_killed_fetch_continues(bucket: GcsStore, tmp_path: Path) -> None:
    body = os.urandom(96 << 20)
    bucket.put("data/large", body)
    url = f"gs://{BUCKET}/data/large"
    process = fetching(url, tmp_path)

    def marked() -> bool:
        return any(any(path.read_bytes()) for path in tmp_path.rglob("*.marks"))

    wait_until(marked, "a first range")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    (marks,) = tmp_path.rglob("*.marks")
    kept = sum(marks.read_bytes())
    part = marks.with_suffix("")
    before = part.stat().st_ino
    assert 0 < kept < len(marks.read_bytes()), "it was killed in the middle"
    said, errors = (process := fetching(url, tmp_path)).communicate(timeout=60)
    assert process.returncode == 0, errors
    found = Path(said.strip())
    assert found.read_bytes() == body
    assert found.stat().st_ino == before, "the same file, continued"


def test_the_command_says_why_not(bucket: GcsStore, tmp_path: Path) -> None:
    for options, stream in (((), 1), (("--json",), 0)):
        process = fetching(f"gs://{BUCKET}/none", tmp_path, *options)
        said = process.communicate(timeout=120)
        assert process.returncode == 64
        assert "no such object" in said[stream] and "Traceback" not in said[1]
    assert json.loads(said[0])["usage"] is True


def test_a_folder_store_is_read_alike(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    store.put("d", content(3 * RANGE))
    staged = cache_of(store, tmp_path / "cache").stage("gs://b/d")
    assert staged.path.read_bytes() == content(3 * RANGE)


def test_files_that_are_added_are_no_other_data_and_named_once(tmp_path: Path) -> None:
    """Caches that a training writes beside its data; what changed or went is named."""
    rows = tmp_path / "rows"
    (rows / "sub").mkdir(parents=True)
    (rows / "a.csv").write_text("a")
    (rows / "sub/b.csv").write_text("b")
    store, said, known = MemoryStore(), log_lines(), []

    def data_service() -> DataService:
        return DataService(Cache(tmp_path), lambda: known, Listings(store, Layout("", "")))

    known.append(data_service().answer(str(rows), "", lambda done, of: None).fingerprint)
    for name in ("labels.cache", "__pycache__/x.pyc", "sub/memmap.npy"):
        (rows / name).parent.mkdir(exist_ok=True)
        (rows / name).write_text("cached")
    again = data_service()
    for _ in range(2):
        assert again.answer(str(rows), "", lambda done, of: None).fingerprint == known[0]
    assert said == [
        f"data {rows}: files were added since the run started, which does not count as a change: "
        "__pycache__/x.pyc, labels.cache, sub/memmap.npy"
    ]
    (rows / "sub/b.csv").write_text("B")
    with pytest.raises(DataChanged, match=r"its file sub/b\.csv has changed"):
        data_service().answer(str(rows), "", lambda done, of: None)
    (rows / "sub/b.csv").unlink()
    with pytest.raises(DataChanged, match=r"its file sub/b\.csv is gone"):
        data_service().answer(str(rows), "", lambda done, of: None)


@pytest.mark.parametrize(
    "name", ["../../../etc/x", "/abs", "a//b", "a\\..\\b", "a/./b", "..", "x" * 256, "a\x1b[2J"]
)
def test_an_objects_name_that_leads_elsewhere_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    """A bucket's writer chooses the names of its objects."""

    class Theirs(MemoryStore):
        def list(self, prefix: str, *, glob: str = "") -> Any:
            found = [*super().list(prefix, glob=glob)]
            return iter([*found, dataclasses.replace(found[0], path=f"{prefix}{name}")])

    store = Theirs()
    store.put("data/d/one", b"1")
    with pytest.raises((DataError, ValueError), match="must "):
        find(store, "gs://b/data/d")
    with pytest.raises((DataError, ValueError), match="must "):
        Cache(tmp_path / "cache", opener=lambda url: store).stage("gs://b/data/d")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
