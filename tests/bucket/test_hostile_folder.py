"""A run's folder that someone else made: reading changes nothing, and writing is refused."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outlast.base.exits import State
from outlast.bucket import blocks, rows
from outlast.bucket.head import Head
from outlast.bucket.layout import AttemptStart, Layout
from outlast.bucket.store import Foreign, MemoryStore, StoreError, open_store
from outlast.cli import repair

HEAD_TIME = datetime(2026, 11, 27, tzinfo=UTC)
HEAD = Head(
    owner="folder/a/b",
    resume=0,
    placement=0,
    term=1,
    state=State.OPEN,
    end=None,
    started=datetime(2026, 11, 27, tzinfo=UTC),
    deadline=datetime(2026, 11, 27, tzinfo=UTC) + timedelta(days=365),
    chain=(),
    lineage=(),
    failures=0,
    no_progress=0,
    data=None,
    nonce="n",
).to_json()


def all_below(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Name, mode, time of change and content of all that is there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (seen.st_mode, seen.st_mtime_ns, content)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The victim's; nothing in it changes."""
    home = tmp_path / "home"
    (home / "lake").mkdir(parents=True)
    for name in ("part-00000.parquet", "link-list.txt", "keep.txt", "part-" + "0" * 32):
        (home / "lake" / name).write_text("precious")
    (home / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n" + "x" * 400)
    (home / "out").mkdir()
    before = all_below(home)
    yield home
    assert all_below(home) == before


def outlast(*argv: str) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, "-m", "outlast.cli", *argv)
    return subprocess.run(argv, capture_output=True, text=True)


def test_objects_that_are_a_link_are_not_followed(tmp_path: Path) -> None:
    run, lake = tmp_path / "run", tmp_path / "lake"
    run.mkdir()
    lake.mkdir()
    for name in ("part-00000.parquet", "link-list.txt", "part-" + "0" * 32):
        (lake / name).write_text("precious")
    (run / ".objects").symlink_to(lake)
    written = open_store(str(tmp_path / "other")).put("HEAD", HEAD)
    blob = next((tmp_path / "other/.objects").glob(f"{written.generation}-*"))
    (run / "HEAD").symlink_to(f".objects/{blob.name}")
    (lake / blob.name).write_bytes(blob.read_bytes())
    before = all_below(lake)
    ended = outlast("status", f"{run}/")
    assert ended.returncode and "is a link, which no run has there" in ended.stderr
    assert "Traceback" not in ended.stderr
    for reading in (True, False):
        with pytest.raises(Foreign, match="is a link"):
            open_store(str(run), reading=reading).put("HEAD", HEAD)
    assert all_below(lake) == before


@pytest.mark.parametrize("how", ["link", "hard link", "dangling", "fifo", "folder"])
def test_a_lock_that_is_another_file_is_neither_followed_nor_written(
    home: Path, tmp_path: Path, how: str
) -> None:
    run = tmp_path / "run"
    (run / ".objects").mkdir(parents=True)
    lock, key = run / ".objects/lock", home / "id_ed25519"
    if how == "link":
        lock.symlink_to(key)
    elif how == "hard link":
        os.link(key, lock)
    elif how == "dangling":
        lock.symlink_to(home / "made")
    elif how == "fifo":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    with pytest.raises((Foreign, OSError)):
        open_store(str(run)).put("HEAD", HEAD)


def test_a_folder_of_the_run_that_is_a_link_is_not_written_through(
    home: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "attempts").symlink_to(home / "out")
    store = open_store(str(run))
    path = "attempts/000001/start.json"
    for act in (
        lambda: store.put(path, b"x"),
        lambda: store.get(path),
        lambda: store.stat("attempts/x"),
        lambda: list(store.list("attempts/")),
        lambda: list(store.folders("attempts/")),
        lambda: store.delete(path, generation=1),
    ):
        with pytest.raises(Foreign, match="attempts: is a link"):
            act()
    assert list(store.folders("")) == []


@pytest.mark.parametrize("how", ["link", "fifo"])
def test_only_plain_files_are_read_as_content(home: Path, tmp_path: Path, how: str) -> None:
    store = open_store(str(tmp_path / "run"))
    written = store.put("HEAD", HEAD)
    blob = next((tmp_path / "run/.objects").glob(f"{written.generation}-*"))
    blob.unlink()
    if how == "link":
        blob.symlink_to(home / "id_ed25519")
    else:
        os.mkfifo(blob)
    with pytest.raises(Foreign, match="is a link|is not a plain file"):
        store.get("HEAD")


def test_only_what_a_store_itself_left_is_cleared_away(tmp_path: Path) -> None:
    run = tmp_path / "run"
    open_store(str(run)).put("a", b"a")
    for name in ("part-00000.parquet", "link-list.txt", "probe-x", "part-" + "0" * 32):
        (run / ".objects" / name).write_text("x")
    (run / ".objects" / "1-1-00000000").mkdir()
    open_store(str(run)).put("b", b"b")
    left = sorted(path.name for path in (run / ".objects").iterdir() if "." in path.name)
    assert left == ["link-list.txt", "part-00000.parquet"]
    assert (run / ".objects/probe-x").exists() and (run / ".objects/1-1-00000000").is_dir()
    assert not (run / ".objects" / ("part-" + "0" * 32)).exists()


def test_readers_change_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    open_store(str(run)).put("HEAD", HEAD)
    (run / ".objects" / ("part-" + "0" * 32)).write_text("left by a killed writer")
    (run / ".objects/lock").unlink()
    before = all_below(tmp_path)
    for command in ("status", "costs", "checkpoints", "metrics"):
        ended = outlast(command, f"{run}/")
        assert "Traceback" not in ended.stderr, ended.stderr
    argv = [sys.executable, "-m", "outlast.supervisor", "fetch", str(run), "--into"]
    assert subprocess.run([*argv, str(tmp_path / "cache")], capture_output=True).returncode
    assert all_below(tmp_path) == before


def test_a_reader_makes_nothing_where_no_run_is(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "none"), reading=True)
    with pytest.raises(StoreError):
        store.get("HEAD")
    assert list(store.list("")) == [] and list(store.folders("")) == []
    assert list(tmp_path.iterdir()) == []
    store.put("HEAD", HEAD)
    assert store.get("HEAD")[0] == HEAD


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_folder_is_read_and_not_written(tmp_path: Path) -> None:
    run = tmp_path / "run"
    open_store(str(run)).put("HEAD", HEAD)
    os.chown(run, 12345, 12345)
    store = open_store(str(run), reading=True)
    assert store.get("HEAD")[0] == HEAD
    with pytest.raises(Foreign, match="belongs to user 12345"):
        store.put("x", b"x")
    with pytest.raises(Foreign, match="belongs to user 12345"):
        open_store(str(run))


@pytest.mark.parametrize("which", ["attempts", "attempts/000001", "t000001"])
@pytest.mark.parametrize("how", ["open to every user", "another user's"])
def test_a_folder_inside_a_run_is_its_owners_alone(tmp_path: Path, which: str, how: str) -> None:
    """Another user who may write there swaps the folder for a link between a look and a write."""
    run = tmp_path / "run"
    store = open_store(str(run))
    paths = ["attempts/000001/start.json", "t000001/s000000000001-a/MANIFEST.json"]
    written = {path: store.put(path, b"x") for path in paths}
    path = next(path for path in paths if path.startswith(which))
    if how == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(run / which, 12345, 12345)
    else:
        (run / which).chmod(0o1777)
    for act in (
        lambda: store.put(path, b"y"),
        lambda: store.put(f"{which}/new/deep", b"y"),
        lambda: store.delete(path, generation=written[path].generation),
        lambda: store.copy(path, f"{which}/copy", source_generation=written[path].generation),
    ):
        with pytest.raises(Foreign, match="(every user of this machine|only its owner) may write"):
            act()
    assert open_store(str(run), reading=True).get(path)[0] == b"x"
    assert not list((run / which).glob("**/new")) and not list((run / which).glob("copy"))


@pytest.mark.parametrize("which", ["", ".objects"])
def test_a_folder_that_every_user_may_write_to_is_read_and_not_written(
    tmp_path: Path, which: str
) -> None:
    run = tmp_path / "run"
    open_store(str(run)).put("HEAD", HEAD)
    (run / which).chmod(0o1777)
    store = open_store(str(run), reading=True)
    assert store.get("HEAD")[0] == HEAD
    with pytest.raises(Foreign, match="every user of this machine may write there"):
        store.put("x", b"x")
    with pytest.raises(Foreign, match="every user of this machine may write there"):
        open_store(str(run))


def test_a_folder_made_without_a_umask_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_store(str(tmp_path / "runs/run")).put("HEAD", HEAD)
        open_store(str(tmp_path / "runs/run")).put("attempts/000001/start.json", HEAD)
        open_store(str(tmp_path / "runs/run")).put("attempts/000001/end.json", HEAD)
    finally:
        os.umask(before)
    run_folders = ("", "/.objects", "/attempts", "/attempts/000001")
    for folder in ("runs", *(f"runs/run{below}" for below in run_folders)):
        assert (tmp_path / folder).stat().st_mode & 0o002 == 0


def test_only_numbers_as_they_are_written_here_are_numbers() -> None:
    """Other digits, leading zeros and long numbers are names that someone else has chosen."""
    store, layout = MemoryStore(), Layout("", "")
    names = ("٠٠٠٠٠١", "²", "0000001", "1", "9" * 12, "-00001", "+00001", "000001 ", "1_0000")
    start = AttemptStart(
        *(1, 0, 0, "vm", "1", "b", "z", "m", "i", "t", {}, {}, 0, None, HEAD_TIME)
    ).to_json()
    for name in (*names, "000001"):
        store.put(f"attempts/{name}/start.json", start)
        store.put(f"records/{name}.json", b"{}")
        store.put(f"metrics/t{name}/000000.jsonl", b"{}")
        store.put(f"metrics/t000002/{name}.jsonl", b"{}")
    assert set(blocks.read(store, layout)) == {1}
    assert blocks._numbers(store, layout) == [1]
    pieces = rows._pieces(store, layout)
    assert set(pieces) == {1, 2} and [one.index for one in pieces[2]] == [1]
    assert repair._attempts(store, layout)[0] == {1}
    assert repair.living_attempt(store, layout, 1e9) is not None
