"""``outlast.open``: runs in folders and in the local cloud's storage, as a notebook reads them."""

import dataclasses
import importlib.machinery
import os
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import outlast
from outlast import notebook
from outlast.base import folders
from outlast.bucket.head import read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import FolderStore, GcsStore
from outlast.cli import (
    costs,
    engine,
    experiments,
    runs,
    stack,
    status,
)
from outlast.cli.errors import CloudError, EngineError, NoStack, NotUp, OperateError, UsageError
from outlast.cli.runs import Table
from tests.loop import programs
from tests.stores import BUCKET, storage_api  # noqa: F401  a fixture

PROGRAM = """
import sys
import numpy as np
import outlast
from outlast.loop import snapshot

state = {"x": np.zeros(3)}
with outlast.train(state=state, total=20, run_dir="run", arguments={}, checkpoint_every="3") as run:
    for step in run.steps():
        if len(sys.argv) > 1 and step == 12:
            sys.exit(9)
        state["x"] += step
        run.log(loss=1 / step)
        if step % 5 == 0:
            run.eval(epoch=step // 5, score=float(-abs(step - 10)), best="max", of="score")
    snapshot.write_values(run.result("model.json"), {"model": {"x": state["x"]}})
    run.result("note.txt").write_text("hello")
"""
PREFIX = "experiments/exp/0123456789"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was cut once and then finished, and one that was only cut."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "walk.py").write_text(PROGRAM)
    cut = programs.run(folder, [sys.executable, "walk.py", "cut"])
    assert cut.returncode == 9, cut.stderr
    programs.wait_until_alone(folder)
    shutil.copytree(folder / "run", folder / "half", symlinks=True)
    done = programs.run(folder, [sys.executable, "walk.py"])
    assert done.returncode == 0, done.stderr
    programs.wait_until_alone(folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTLAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_finished_run_in_a_folder(trained: Path) -> None:
    run = outlast.open(trained / "run")
    assert (run.state, run.step) == ("done", 20)
    assert [row["step"] for row in run.rows()] == list(range(1, 21))
    metrics = run.metrics()
    assert metrics["epoch"] == [1, 2, 3, 4] and metrics["score"] == [-5, 0, -5, -10]
    assert repr(metrics).splitlines()[0].split() == ["epoch", "score", "step"]
    assert run.best()["step"] == 10 and run.best()["score"] == 0 and "best" in run.best()["tags"]
    # The best one is kept, and the state that the loop ended with is always the newest.
    kept = run.checkpoints()["step"]
    assert kept == sorted(set(kept)) and kept[-1] == 20 and 10 in kept
    assert run.load("model")["x"].tolist() == [210.0] * 3
    assert outlast.load(trained / "run", "metrics")["epoch"] == [1, 2, 3, 4]
    assert (run.result() / "note.txt").read_text() == "hello"
    with pytest.raises(OperateError, match=r"note\.txt: only \.safetensors, \.json, .* are read"):
        run.load("note.txt")
    with pytest.raises(OperateError, match="has no 'modle'; it has metrics.json, model.bin"):
        run.load("modle")


def test_a_run_that_is_still_open(trained: Path) -> None:
    run = outlast.open(str(trained / "half"))
    assert run.state == "open" and 0 < run.step < 12
    assert run.metrics()["step"] == list(range(1, run.step + 1))
    with pytest.raises(OperateError, match="the run is open at step .* and has no result"):
        run.result()


FORMATS = """
import json, pickle, sys
import numpy as np
import outlast

with outlast.train(state={"x": {}}, total=1, run_dir="run", arguments={}) as run:
    list(run.steps())
    np.save(run.result("model.npy"), np.arange(3.0))
    np.savez(run.result("arrays.npz"), a=np.arange(2), b=np.ones(1))
    run.result("notes.json").write_text(json.dumps({"a": 1}))
    run.result("old.pkl").write_bytes(pickle.dumps(print))
    np.save(run.result("objects.npy"), np.array([print, {}], dtype=object))
    run.result("cut.npy").write_bytes(b"")
    run.result("folder/in.json").write_text("[2]")
    run.result("boosted.ubj").write_bytes(b"{")
"""


def test_every_format_of_our_trainers_is_read_and_no_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = programs.run(tmp_path, [sys.executable, "-c", FORMATS])
    assert done.returncode == 0, done.stderr
    run = outlast.open(tmp_path / "run")
    assert run.load("model").tolist() == run.load("model.npy").tolist() == [0, 1, 2]
    arrays = run.load("arrays")
    assert (arrays["a"].tolist(), arrays["b"].tolist()) == ([0, 1], [1])
    assert run.load("notes") == {"a": 1} and run.load("folder/in") == [2]
    for name, says in (
        ("old", "old.pkl: is a pickle, which may run any program when it is read"),
        ("objects", "objects.npy: cannot be read: Object arrays cannot be loaded"),
        ("cut", "cut.npy: cannot be read: "),
    ):
        with pytest.raises(OperateError) as caught:
            run.load(name)
        assert says in str(caught.value)
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(OperateError, match=r"boosted.ubj: xgboost is not installed; pip install"):
        run.load("boosted")


def test_only_the_newest_best_is_marked_as_best(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained / "run", copy, symlinks=True)
    store = FolderStore(copy)
    head = read_head(store, Layout("", "")).head
    first, second, *rest = (dataclasses.replace(entry, tags=()) for entry in head.chain)
    first = dataclasses.replace(first, tags=("best", "kept"))
    second = dataclasses.replace(second, tags=("best",))
    store.put("HEAD", dataclasses.replace(head, chain=(first, second, *rest)).to_json())
    run = outlast.open(copy)
    assert run.checkpoints()["tags"] == ["kept", "best", *([""] * len(rest))]
    assert run.best()["step"] == second.step


def test_a_run_in_a_folder_has_a_status(trained: Path) -> None:
    found = status.read(runs.find(trained / "run"))
    assert (found.state, found.result) == ("done", str(next(trained.glob("run/t*/result"))) + "/")
    shown = found.as_json()
    assert (shown["step"], shown["reason"], len(shown["attempts"])) == (20, "done", 2)
    assert shown["metrics"] == {"loss": 1 / 20, "epoch": 4, "score": -10.0}
    half = status.read(runs.find(trained / "half")).as_json()
    assert half["metrics"] == {"loss": 1 / 11, "epoch": 2, "score": 0.0}
    assert half["metric_steps"] == {"loss": 11, "epoch": 10, "score": 10}
    assert len(found.run) == 10 and found.url == str(trained / "run")


NO_PULUMI = "pulumi is not on PATH, so stacks were not looked for"


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("frist", f"frist: no such folder, and {NO_PULUMI}"),
        ("first", f"first: no such folder, and {NO_PULUMI}"),
        ("./runs/frist", "runs/frist: no such folder"),
        ("runs", f"runs: the folder holds no run, and {NO_PULUMI}"),
    ],
)
def test_a_mistyped_folder_is_answered_with_the_runs_there_are(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")  # no pulumi
    monkeypatch.delenv("OUTLAST_BUCKET", raising=False)
    shutil.copytree(trained / "half", tmp_path / "runs" / "first", symlinks=True)
    with pytest.raises(UsageError) as caught:
        outlast.open(where)
    assert str(caught.value) == f"{says}; did you mean runs/first?"


def test_a_name_that_is_nothing_says_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("OUTLAST_BUCKET", raising=False)
    with pytest.raises(UsageError) as caught:
        outlast.open("first")
    assert str(caught.value) == f"first: no such folder, and {NO_PULUMI}; known are dev"
    monkeypatch.setattr(folders, "PACKAGE", tmp_path / "package")  # no project at all
    with pytest.raises(EngineError, match="go to your project, or create one with outlast init"):
        outlast.open("first")
    monkeypatch.setattr(experiments, "settings", tuple)

    def unknown(name: str) -> None:
        raise NoStack("stack first: this backend has no such stack")

    monkeypatch.setattr(stack, "find", unknown)
    with pytest.raises(UsageError) as caught:
        outlast.open("first")
    meant = "name a stack, the folder of a run, or gs://BUCKET/experiments/first"
    assert str(caught.value) == (f"first: no such folder, and no stack has that name; {meant}")


def test_what_is_damaged_is_not_shown(trained: Path, tmp_path: Path, cache: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained / "run", copy, symlinks=True)
    (file,) = copy.glob("t*/result/note.txt")
    file.resolve().write_text("hullo")
    with pytest.raises(OperateError, match="note.txt"):
        outlast.open(copy).result()
    kept = outlast.open(trained / "run").result()
    (kept / "note.txt").write_text("hullo")
    assert (outlast.open(trained / "run").result() / "note.txt").read_text() == "hello"
    assert [path.name for path in (cache / "results").iterdir()] == [kept.name]


@pytest.fixture(scope="module")
def uploaded_once(trained: Path, storage_api: str) -> None:  # noqa: F811
    """The finished run, in a bucket."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", storage_api)
        patch.delenv("GCE_METADATA_HOST", raising=False)
        store, source = GcsStore(BUCKET), FolderStore(trained / "run")
        generations = {}
        for item in source.list(""):
            if item.path != "HEAD":
                written = store.put(f"{PREFIX}/{item.path}", source.get(item.path)[0])
                generations[item.path] = written.generation
        head = read_head(source, Layout("", "")).head
        assert head.end is not None and head.end.result is not None
        result = dataclasses.replace(
            head.end.result,
            path=f"{PREFIX}/{head.end.result.path}",
            generation=generations[f"{head.end.result.path}RESULT.json"],
        )
        chain = [dataclasses.replace(entry, path=f"{PREFIX}/{entry.path}") for entry in head.chain]
        end = dataclasses.replace(head.end, result=result)
        head = dataclasses.replace(head, end=end, chain=tuple(chain))
        store.put(f"{PREFIX}/HEAD", head.to_json())
        store.close()


@pytest.fixture
def uploaded(
    uploaded_once: None,
    storage_api: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> GcsStore:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    return GcsStore(BUCKET)


def test_a_run_in_a_bucket(
    uploaded: GcsStore, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (f"gs://{BUCKET}/{PREFIX}/", f"gs://{BUCKET}/experiments/exp"):
        assert outlast.open(where).url == f"gs://{BUCKET}/{PREFIX}/"
    assert outlast.open("exp", bucket=BUCKET).metrics()["epoch"] == [1, 2, 3, 4]
    monkeypatch.setenv("OUTLAST_BUCKET", f"gs://{BUCKET}")
    run = outlast.open("exp")
    assert np.array_equal(run.load("model")["x"], np.full(3, 210.0))
    assert run.result().parent == cache / "results"
    assert [row["step"] for row in run.rows()] == list(range(1, 21))
    with pytest.raises(
        OperateError, match=f"exq: no run was found in gs://{BUCKET}/experiments/exq"
    ):
        outlast.open("exq")
    with pytest.raises(OperateError, match="nowhere"):
        outlast.open("exp", bucket="nowhere")
    uploaded.close()


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("./nothing", "no such folder; name the folder that"),
        (Path("."), "holds no run; name the folder that"),
        ("afile/run", "no such folder; name the folder that"),
        ("Exp", "'Exp': is not an experiment, folder or gs:// path"),
    ],
)
def test_a_folder_without_a_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str | Path, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        outlast.open(where)
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir()), "looking makes no folder"


def test_a_folder_without_its_head_still_counts_as_a_run(tmp_path: Path) -> None:
    (tmp_path / "attempts" / "000001").mkdir(parents=True)
    with pytest.raises(UsageError, match="its HEAD is missing, but attempts exist"):
        outlast.open(tmp_path)


def test_a_table_is_readable_however_long() -> None:
    table = Table([{"step": n, "loss": 1 / 3} for n in range(100)] + [{"step": 100, "x": None}])
    lines = repr(table).splitlines()
    assert lines[0].split() == ["step", "loss", "x"] and lines[-1].startswith("(101 rows, the last")
    assert "0.333333" in lines[-3]
    assert len(table[:3]) == 3 and table[0]["step"] == 0 and table["x"][-1] is None
    assert "<td>0.333333</td>" in table._repr_html_()
    with pytest.raises(KeyError, match="column 'y': is not one of step, loss, x"):
        table["y"]


@pytest.mark.parametrize(
    ("library", "name", "version", "needs"),
    [
        ("torch", "w.pt", "2.5.1+cu124", "torch 2.6"),
        ("torch", "w.pth", "1.13.1", "torch 2.6"),
        ("keras", "m.keras", "3.11.3", "keras 3.12"),
        ("keras", "m.keras", "2.15.0", "keras 3.12"),
    ],
)
def test_a_library_that_runs_what_a_crafted_file_holds_reads_none(
    tmp_path, monkeypatch, library, name, version, needs
):
    """torch before 2.6 ran programs in spite of weights_only, and Keras before 3.12 in spite of its
    safe mode."""
    fake = types.ModuleType(library)
    fake.__version__ = version
    fake.load = fake.models = lambda *args, **options: pytest.fail("the file was read")
    fake.__spec__ = importlib.machinery.ModuleSpec(library, None)
    monkeypatch.setitem(sys.modules, library, fake)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(
        RuntimeError, match=f"^{library} .* runs programs .*; install {needs} or la"
    ):
        notebook._READERS[Path(name).suffix](tmp_path / name)


SETTINGS = """\
config:
  gcp:project: mine
  outlast:bucket: runs
  outlast:experiment: exp
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one stack, whose experiment has another name, and no stack that is up."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "Pulumi.yaml").write_text("name: mine\nruntime: python\n")
    (folder / "Pulumi.first.yaml").write_text(SETTINGS)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("OUTLAST_BUCKET", raising=False)

    def destroyed(name: str) -> None:
        raise NotUp(f"stack {name}: is not up; run pulumi up first.")

    monkeypatch.setattr(stack, "find", destroyed)
    return folder


@pytest.mark.parametrize("name", ["first", "exp"])
def test_a_run_of_a_destroyed_stack_is_found_by_its_name(
    uploaded: GcsStore, project: Path, name: str
) -> None:
    """By the stack's name and by the experiment's, with everything that reads a run."""
    assert outlast.open(name).url == f"gs://{BUCKET}/{PREFIX}/"
    assert status.read(runs.find(name)).state == "done"
    assert costs.count(runs.find(name)).state == "done"
    uploaded.close()


def test_a_name_without_runs_is_answered_with_those_that_have_some(
    uploaded: GcsStore, project: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        runs.find("expp")
    assert str(caught.value) == (
        "expp: no such folder, and the stack of that name is not up; gs://runs has no run of it;"
        " did you mean exp? known are exp, first"
    )
    (project / "Pulumi.other.yaml").write_text("config: {outlast:bucket: runs}")
    with pytest.raises(UsageError, match="gs://runs has no run of it; outlast up other starts one"):
        runs.find("other")
    uploaded.close()


def test_a_bucket_that_cannot_be_read_is_not_a_mistake_in_the_call(
    uploaded: GcsStore, project: Path
) -> None:
    (project / "Pulumi.other.yaml").write_text("config: {outlast:bucket: nowhere}")
    with pytest.raises(OperateError, match="gs://nowhere: there is no such bucket") as caught:
        runs.find("gone")
    assert not isinstance(caught.value, UsageError)
    uploaded.close()


def test_settings_lead_to_the_bucket_as_in_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OUTLAST_BUCKET", raising=False)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    texts = {
        "Pulumi.yaml": "name: p\nconfig:\n  gcp:project: {value: common}\n  a: {type: string}\n",
        "Pulumi.plain.yaml": "config: {gcp:project: own}",
        "Pulumi.base.yaml": "config: {outlast:part: foundation, outlast:bucket: shared}",
        "Pulumi.small.yaml": "config: {outlast:foundation: organization/p/base}",
        "Pulumi.secret.yaml": "config: {outlast:bucket: {secure: v1}}",
        "Pulumi.local.yaml": "config: {gcp:project: outlast-rehearsal}",
        "Pulumi.torn.yaml": "config: [",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = {one.stack: one.bucket for one in experiments.settings()}
    assert found == {
        "plain": "own-outlast",
        "small": "shared",
        "secret": "common-outlast",
        "local": "",  # there is no such project outside of a local cloud
        "torn": "common-outlast",
    }
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    assert {one.stack: one.bucket for one in experiments.settings()}["local"]
    monkeypatch.setenv("OUTLAST_BUCKET", "gs://given/")
    assert experiments.buckets() == {"given": ""}


def test_a_stopped_local_cloud_is_named_at_once(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    for where in ("first", "gs://runs/experiments/exp"):
        with pytest.raises(CloudError, match=r"is stopped: .* start one: eval"):
            runs.find(where)
    for call in (engine.run_engine, engine.show_engine):
        with pytest.raises(CloudError, match="is stopped"):
            call(["up"], env=os.environ)
