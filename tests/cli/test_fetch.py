"""`outlast fetch`: a stable path, only verified bytes, and never half a file under its name."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.bucket.store import Damaged
from outlast.cli import fetch, runs
from outlast.cli.app import cli
from outlast.cli.errors import OperateError
from tests.cli.test_runs import (  # noqa: F401  fixtures
    PREFIX,
    trained,  # noqa: F401  a fixture
    uploaded,
    uploaded_once,
)
from tests.stores import BUCKET, storage_api  # noqa: F401  a fixture

FILES = ["RESULT.json", "metrics.json", "model.bin", "model.json", "note.txt"]


def outlast(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.stdout


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_result_has_a_stable_path(uploaded: object, here: Path) -> None:  # noqa: F811
    where = f"gs://{BUCKET}/{PREFIX}"
    assert outlast("fetch", where) == "results/exp/0123456789\n"
    folder = here / "results/exp/0123456789"
    assert sorted(os.listdir(folder)) == FILES
    assert (folder / "note.txt").read_text() == "hello"
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    shown = json.loads(outlast("fetch", where, "--json"))
    assert shown["path"] == "results/exp/0123456789" and shown["files"] == FILES[1:]
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before


def test_the_best_checkpoint_is_verified_too(trained: Path, here: Path) -> None:  # noqa: F811
    place = runs.find(trained / "run")
    found = fetch.fetch(place, Path("results"), best=True)
    assert found.path.name == "best-step-10" and found.step == 10 and found.files
    again = fetch.fetch(place, Path("results"), best=True)
    assert again == found
    (found.path / found.files[0]).write_bytes(b"mine")
    with pytest.raises(OperateError, match="has other bytes than the checkpoint; move it away"):
        fetch.fetch(place, Path("results"), best=True)
    assert (found.path / found.files[0]).read_bytes() == b"mine"
    shown = outlast("fetch", str(trained / "run"), "--best", "--into", "others")
    assert shown.startswith("others/") and shown.endswith("/best-step-10\n")


def test_an_interrupted_fetch_continues_and_leaves_no_half_file(
    trained: Path,  # noqa: F811
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = runs.find(trained / "run")
    stream = place.store.stream
    seen: list[str] = []

    def broken(path: str, sink: object, **how: object) -> object:
        seen.append(path)
        if path.endswith("note.txt"):
            sink.write(b"he")  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return stream(path, sink, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(place.store, "stream", broken)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch(place, Path("results"))
    (folder,) = (here / "results").glob("*/*")
    there = sorted(os.listdir(folder))
    assert there and not {"RESULT.json", "note.txt"} & set(there)
    assert not [name for name in there if name.startswith(".")]
    first = list(seen)
    monkeypatch.setattr(place.store, "stream", stream)
    fetch.fetch(place, Path("results"))
    assert sorted(os.listdir(folder)) == FILES and len(first) > 1


def test_bytes_that_are_not_the_results_are_refused(
    trained: Path,  # noqa: F811
    here: Path,
) -> None:
    copy = here / "copy"
    shutil.copytree(trained / "run", copy, symlinks=True)
    (file,) = copy.glob("t*/result/note.txt")
    file.resolve().write_text("hullo")
    with pytest.raises(OperateError, match=r"note\.txt"):
        fetch.fetch(runs.find(copy), Path("results"))
    assert not list((here / "results").rglob("note.txt"))
    found = fetch.fetch(runs.find(trained / "run"), Path("good"))
    (found.path / "note.txt").write_text("mine")
    with pytest.raises(OperateError, match=r"note.txt: has other bytes than the result; move it"):
        fetch.fetch(runs.find(trained / "run"), Path("good"))
    assert (found.path / "note.txt").read_text() == "mine"


def test_a_run_without_a_result_says_so(trained: Path, here: Path) -> None:  # noqa: F811
    with pytest.raises(OperateError, match="the run is open at step .* and has no result; it has"):
        fetch.fetch(runs.find(trained / "half"), Path("results"))
    assert not (here / "results").exists()


def test_a_folder_that_cannot_be_written_and_a_bucket_that_fails_are_one_sentence(
    trained: Path,  # noqa: F811
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (here / "results").write_text("a file")
    with pytest.raises(OperateError, match="results"):
        fetch.fetch(runs.find(trained / "run"), Path("results"))
    place = runs.find(trained / "run")

    def fails(*_: object, **__: object) -> None:
        raise Damaged("torn")

    monkeypatch.setattr(place.store, "stream", fails)
    with pytest.raises(OperateError, match="torn"):
        fetch.fetch(place, Path("others"))
