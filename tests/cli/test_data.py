"""`outlast data`: push by fingerprint, and what runs use."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.base.exits import State
from outlast.bucket.data import fingerprint_of, local_files, same_data
from outlast.bucket.head import DataFingerprint, Head
from outlast.bucket.store import MemoryStore, NotFound
from outlast.cli import data, experiments
from outlast.cli.app import cli
from outlast.cli.errors import OperateError, UsageError
from tests.cli.records import start_record
from tests.cli.test_overview import START, layout, plant

URL = "gs://runs/data/digits"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The one bucket of this project."""
    store = MemoryStore()
    monkeypatch.setattr(experiments, "buckets", lambda: {"runs": ""})
    monkeypatch.setattr(experiments, "open_bucket", lambda *_: store)
    return store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files."""
    (tmp_path / "digits/train").mkdir(parents=True)
    (tmp_path / "digits/train/a.bin").write_bytes(b"aaa")
    (tmp_path / "digits/labels.csv").write_bytes(b"1,2\n")
    return tmp_path / "digits"


def push(store: Any, path: Path, name: str = "digits", **options: Any) -> data.Pushed:
    return data.push(store, "runs", path, name, **options)


def names_data(store: MemoryStore, *names: str, state: State = State.OPEN) -> None:
    """Plants a run that started with these paths of data."""
    run = plant(store, "first", state=state)
    head = Head.from_json(store.get(run.head)[0])
    found = tuple(DataFingerprint(name, 1, 3, "AAAAAA==") for name in names)
    store.put(run.head, replace(head, data=found).to_json())


def test_a_pushed_folder_has_the_fingerprint_that_runs_use(
    store: MemoryStore, folder: Path
) -> None:
    pushed = push(store, folder)
    assert same_data(pushed.fingerprint, fingerprint_of(folder, local_files(folder)))
    assert pushed.as_json() | {"crc32c": ""} == {
        **{"url": URL, "files": 2, "bytes": 7, "crc32c": "", "sent": 2, "deleted": 0}
    }
    assert store.get("data/digits/train/a.bin")[0] == b"aaa"


def test_a_file_is_data_too(store: MemoryStore, folder: Path) -> None:
    assert push(store, folder / "labels.csv", "labels").fingerprint.size == 4
    assert store.get("data/labels")[0] == b"1,2\n"
    with pytest.raises(UsageError, match="is a file in the bucket, not a folder"):
        push(store, folder, "labels")
    push(store, folder)
    with pytest.raises(UsageError, match="is a folder in the bucket, not a file"):
        push(store, folder / "labels.csv", "digits")


def test_only_changed_files_are_sent_again(store: MemoryStore, folder: Path) -> None:
    push(store, folder)
    before = store.stat("data/digits/labels.csv")
    (folder / "train/a.bin").write_bytes(b"bbb")
    again = push(store, folder)
    assert (again.sent, store.get("data/digits/train/a.bin")[0]) == (1, b"bbb")
    assert store.stat("data/digits/labels.csv") == before
    assert push(store, folder).sent == 0


def test_an_interrupted_push_continues(store: MemoryStore, folder: Path) -> None:
    class Ends:
        """A store that fails at the second file."""

        def __init__(self) -> None:
            self.left = 1

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def put(self, *args: Any, **how: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise OSError("the network is gone")
            return store.put(*args, **how)

    with pytest.raises(OperateError, match=r"the network is gone; the same command continues$"):
        push(Ends(), folder)
    assert push(store, folder).sent == 1


def test_what_the_folder_lacks_is_named_and_deleted_only_on_request(
    store: MemoryStore, folder: Path
) -> None:
    push(store, folder)
    (folder / "labels.csv").unlink()
    with pytest.raises(UsageError, match=r"has 1 file that .* lacks \(labels.csv\); add --delete"):
        push(store, folder)
    assert push(store, folder, delete=True).deleted == 1
    with pytest.raises(NotFound):
        store.stat("data/digits/labels.csv")
    store.put("data/digits2/x", b"x")
    assert push(store, folder, delete=True).deleted == 0


@pytest.mark.parametrize("named", [URL, f"{URL}/train", "gs://runs/data"])
def test_data_of_an_open_run_is_not_changed(store: MemoryStore, folder: Path, named: str) -> None:
    push(store, folder)
    names_data(store, named)
    assert push(store, folder).sent == 0  # the same data
    (folder / "new.bin").write_bytes(b"c")
    with pytest.raises(OperateError, match=r"the open run first/0123456789 \(open\) started with"):
        push(store, folder)
    with pytest.raises(NotFound):
        store.stat("data/digits/new.bin")
    names_data(store, named, state=State.DONE)
    assert push(store, folder).sent == 1


def test_data_that_an_attempt_was_only_given_counts_too(store: MemoryStore, folder: Path) -> None:
    run = plant(store, "first", attempts=1)
    start = replace(start_record(1, 0, START), spec={"args": {"data": f"{URL}/"}})
    store.put(run.attempt_start(1), start.to_json())
    with pytest.raises(OperateError, match="the open run first/0123456789"):
        push(store, folder)
    other = replace(start_record(1, 0, START), spec={"data": ["gs://runs/data/digits2"]})
    store.put(run.attempt_start(1), other.to_json())
    assert push(store, folder).sent == 2


def test_a_run_that_cannot_be_read_keeps_data_from_being_changed(
    store: MemoryStore, folder: Path
) -> None:
    store.put(layout("torn").head, b"x")
    with pytest.raises(OperateError, match="whether a run uses it is not known: torn/0123456789"):
        push(store, folder)


@pytest.mark.parametrize("name", ["a/b", "..", "a\\b", "a\x1bb"])
def test_a_name_is_one_plain_word(store: MemoryStore, folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match="give the data another name"):
        push(store, folder, name)


def test_an_empty_folder_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no file"):
        push(store, tmp_path, "nothing")


def test_a_bucket_of_several_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "buckets", lambda: {"a": "one", "b": "two"})
    with pytest.raises(UsageError, match="bucket: there are a, b; name one with --bucket"):
        data.chosen_bucket(None)
    monkeypatch.setattr(experiments, "buckets", dict)
    with pytest.raises(OperateError, match="no bucket: neither OUTLAST_BUCKET"):
        data.chosen_bucket(None)


def test_the_commands_print_names_bytes_fingerprints_and_uses(
    store: MemoryStore, folder: Path
) -> None:
    ran = CliRunner().invoke(cli, ["data", "push", str(folder), "--json"])
    assert ran.exit_code == 0, ran.output
    pushed = json.loads(ran.output)
    store.put("data/zero", b"")
    names_data(store, f"{URL}/train")
    ran = CliRunner().invoke(cli, ["data", "ls", "--json"])
    assert ran.exit_code == 0, ran.output
    first, second = json.loads(ran.output)
    assert first == {
        **{"name": "digits", "url": URL, "files": 2, "bytes": 7, "crc32c": pushed["crc32c"]},
        "used_by": [{"experiment": "first", "run": "0123456789", "state": "open"}],
    }
    assert (second["name"], second["files"], second["used_by"]) == ("zero", 1, [])
    ran = CliRunner().invoke(cli, ["data", "ls"])
    assert "digits" in ran.output and "first/0123456789 (open)" in ran.output
    ran = CliRunner().invoke(cli, ["data", "push", str(folder)])
    assert ran.output.startswith(f"{URL}: 7 bytes in 2 files, CRC32C {pushed['crc32c']}; 0 sent")
    store.put(layout("torn").head, b"x")
    assert CliRunner().invoke(cli, ["data", "ls"]).exit_code == 1
