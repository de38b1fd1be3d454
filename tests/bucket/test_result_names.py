"""Names of a result's files that come from outside: each file arrives whole under its own name, in
the folder and nowhere else, or the list is refused."""

import contextlib
import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket import results
from outlast.bucket.fetch import deliver
from outlast.bucket.head import End, Result
from outlast.bucket.layout import Layout
from outlast.bucket.results import complete_result, fetch_result, put_result
from outlast.bucket.store import Damaged, MemoryStore
from outlast.spec.result import ResultFile, ResultManifest
from tests.bucket.test_hostile_records import head

LAYOUT = Layout("experiments/mine", "run1")
SEC = 60.0


class Store(MemoryStore):
    """Reads an object only after some others have been read."""

    def __init__(self) -> None:
        super().__init__()
        self.after: dict[str, list[str]] = {}
        self._read: dict[str, threading.Event] = {}

    def stream(self, path: str, sink: Any, *, generation: int | None = None) -> Any:
        name = path.rpartition("/")[2]
        for other in self.after.get(name, ()):
            assert self._event(other).wait(SEC)
        return super().stream(path, sink, generation=generation)

    def was_read(self, name: str) -> None:
        self._event(name).set()

    def _event(self, name: str) -> threading.Event:
        return self._read.setdefault(name, threading.Event())


def stored(store: MemoryStore, files: dict[str, bytes], folder: Path) -> Result:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return put_result(store, LAYOUT, 1, folder)


def forged(store: MemoryStore, names: list[str]) -> Result:
    """A result whose list has these names; its writer did not use our code."""
    empty = hashlib.sha256(b"").hexdigest()
    lines = "".join(f"{empty}  {name}\n" for name in sorted(names))
    digest = hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()
    body = {
        "format": 1,
        "files": [{"name": name, "size": 0, "sha256": empty} for name in sorted(names)],
        "digest": digest,
    }
    put = store.put(LAYOUT.result_manifest(1), json.dumps(body).encode())
    return Result(LAYOUT.result(1), put.generation, digest)


def below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "RESULT.json"
    }


LONGEST = {"x" * 255: b"1", "é" * 127: b"2", "a/" + "y" * 255: b"3", "x" * 254 + "y": b"4"}


def test_the_longest_names_are_fetched_completed_and_delivered(tmp_path: Path) -> None:
    store = MemoryStore()
    result = stored(store, LONGEST, tmp_path / "made")
    (tmp_path / "fetched").mkdir()
    fetch_result(store, result, tmp_path / "fetched")
    complete_result(store, result, tmp_path / "completed")
    ended = head(state=State.DONE, end=End(Reason.DONE, 0, 10, result))
    assert deliver(store, ended, str(tmp_path / "out"), tmp_path / "w")
    for name in ("fetched", "completed", "out"):
        assert below(tmp_path / name) == LONGEST, name


def test_a_file_with_the_name_of_an_unfinished_one_takes_no_others_place(tmp_path: Path) -> None:
    store = Store()
    unfinished = results._unfinished_name("model.json", ())
    files = {"model.json": b"the model", unfinished: b"something else"}
    result = stored(store, files, tmp_path / "made")
    store.after["model.json"] = [unfinished]
    complete = threading.Event()

    def watch() -> None:
        # The other one has its name before the model has all of its bytes.
        while not complete.wait(0.01):
            with contextlib.suppress(FileNotFoundError):
                if (tmp_path / "into" / unfinished).read_bytes() == files[unfinished]:
                    break
        store.was_read(unfinished)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        complete_result(store, result, tmp_path / "into")
    finally:
        complete.set()
        watcher.join()
    assert below(tmp_path / "into") == files


@pytest.mark.parametrize(
    "name",
    [
        *("..", "../x", "/etc/x", "a/../../x", "a//b", "./a", "a/.", "", "a\\b", "..\\x", "C:\\x"),
        *("a\0b", "a\nb", "\x1b[2J", "\x7f", "x" * 256, "a/" * 600 + "b", "\ud800"),
        "RESULT.json",
    ],
)
@pytest.mark.parametrize("how", [complete_result, fetch_result])
def test_a_name_that_is_not_plain_is_refused(how: Any, name: str, tmp_path: Path) -> None:
    (tmp_path / "in/into").mkdir(parents=True)
    store = MemoryStore()
    result = forged(store, ["good", name])
    with pytest.raises(Damaged, match=r"RESULT\.json: "):
        how(store, result, tmp_path / "in/into")
    assert not below(tmp_path)


def test_a_file_and_a_folder_of_one_name_and_a_name_twice_are_refused(tmp_path: Path) -> None:
    for names in (["a", "a/b"], ["a", "a"]):
        store = MemoryStore()
        with pytest.raises(Damaged, match=r"RESULT\.json: "):
            complete_result(store, forged(store, names), tmp_path / "into")


def test_a_link_in_the_folder_is_not_written_through(tmp_path: Path) -> None:
    store = MemoryStore()
    result = stored(store, {"model.json": b"m"}, tmp_path / "made")
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "into").mkdir()
    for name in ("model.json", "RESULT.json"):
        unfinished = results._unfinished_name(name, ())
        (tmp_path / "into" / unfinished).symlink_to(tmp_path / "precious")
    complete_result(store, result, tmp_path / "into")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "into/model.json").read_bytes() == b"m"


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    result = stored(store, {"plots/deep/loss.svg": b"m"}, tmp_path / "made")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "into").mkdir()
    (tmp_path / "into/plots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="into/plots: is a link, and the result has a folder"):
        complete_result(store, result, tmp_path / "into")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_our_own_lists_have_no_such_name() -> None:
    file = ResultFile("RESULT.json", 0, "0" * 64)
    with pytest.raises(ValueError, match=r"ResultManifest\.files 'RESULT\.json': "):
        ResultManifest.of([file])
