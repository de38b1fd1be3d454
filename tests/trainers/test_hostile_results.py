"""A finished run that someone else wrote, as its readers see it: evaluated, loaded and
fetched. Each hostile node is refused in one sentence, and nothing is written or run."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.base import exits
from outlast.bucket.head import Head, Result
from outlast.bucket.store import open_store
from outlast.cli.errors import OperateError
from outlast.spec.result import RESULT_FILE, ResultFile, ResultManifest
from outlast.trainers import __main__ as command
from tests.loop import hostile, programs

FLAGS = ["--hidden", "4", "--epochs", "1", "--limit-rows", "100"]
TABLES = {"python": hostile.PYTHON, "numpy": hostile.NUMPY, "sklearn": hostile.SKLEARN}
PAYLOAD = b"id > /tmp/outlast-owned"


def memmap(victim: Path) -> dict[str, Any]:
    """Nodes that made a file of the attacker's choice out of a model once."""
    func = "sklearn.preprocessing._function_transformer.FunctionTransformer"
    memory = "sklearn.externals.array_api_compat.numpy.memmap"
    args = [str(victim), "uint8", "w+", 0, [len(PAYLOAD)]]
    write = hostile.estimator(func, {"func": {"$array": 0}})
    return {
        "a": hostile.compiled(memory, *args),
        "b": hostile.estimator(func, {"func": {"$same": "a"}}),
        "c": hostile.estimator(
            "sklearn.calibration.CalibratedClassifierCV",
            {"estimator": {"$same": "b"}},
            {"estimator": write},
        ),
    }


class Theirs:
    """A finished run of digits whose model is replaced, HEAD and manifest in agreement with it."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._store = open_store(str(run))
        self._head = Head.from_json(self._store.get("HEAD")[0])
        assert self._head.end is not None and self._head.end.result is not None
        self._prefix = self._head.end.result.path
        self._files = {
            found.path.removeprefix(self._prefix): self._store.get(found.path)[0]
            for found in self._store.list(self._prefix)
            if not found.path.endswith(RESULT_FILE)
        }

    def hold(self, values: dict[str, Any]) -> None:
        """Make these nodes the model of the result."""
        table = [
            {"dtype": blob.dtype, "shape": blob.shape, "offset": at * 64, "bytes": blob.nbytes}
            for at, blob in enumerate(hostile.blobs().items[:3])
        ]
        table[0] = {"dtype": "|u1", "shape": [len(PAYLOAD)], "offset": 0, "bytes": len(PAYLOAD)}
        head = {"format": 1, "values": values, "arrays": table}
        arrays = PAYLOAD.ljust(64, b"\0") + bytes(64) + bytes(4)
        files = {**self._files, "model.json": json.dumps(head).encode(), "model.bin": arrays}
        manifest = ResultManifest.of(
            ResultFile(name, len(text), hashlib.sha256(text).hexdigest())
            for name, text in files.items()
        )
        for name, text in files.items():
            self._store.put(self._prefix + name, text)
        put = self._store.put(self._prefix + RESULT_FILE, manifest.to_json())
        assert self._head.end is not None
        result = Result(self._prefix, put.generation, manifest.digest)
        news = replace(self._head, end=replace(self._head.end, result=result))
        self._store.put("HEAD", news.to_json())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    argv = [
        sys.executable,
        "-m",
        "outlast.trainers",
        "digits",
        "--run-dir",
        str(folder / "run"),
        *FLAGS,
    ]
    done = programs.run(folder, argv)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def theirs(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Theirs, Path]]:
    """The run, and a file of the victim's that must stay as it is."""
    monkeypatch.setenv("OUTLAST_CACHE", str(tmp_path / "cache"))
    victim = tmp_path / "home/.bashrc"
    victim.parent.mkdir()
    victim.write_text("# the user's own\n")
    yield Theirs(trained), victim
    assert victim.read_text() == "# the user's own\n"
    assert [path.name for path in victim.parent.iterdir()] == [".bashrc"]


def test_the_model_that_wrote_a_file_is_refused_wherever_it_is_read(
    theirs: tuple[Theirs, Path], tmp_path: Path
) -> None:
    run, victim = theirs
    run.hold(memmap(victim))
    with pytest.raises(OperateError, match=r"model.json: cannot be read: a: the checkpoint holds"):
        outlast.open(f"{run.run}/").load("model")
    for argv in (
        ["outlast.trainers", "digits", "--mode", "eval", "--run-dir", str(run.run)],
        ["outlast.supervisor", "fetch", str(run.run), "--into", str(tmp_path / "into")],
        ["outlast.cli", "status", f"{run.run}/"],
        ["outlast.cli", "checkpoints", f"{run.run}/"],
    ):
        ended = subprocess.run(
            [sys.executable, "-m", *argv], capture_output=True, text=True, timeout=100
        )
        assert "Traceback" not in ended.stderr, ended.stderr
        assert (ended.returncode == 0) == (argv[0] != "outlast.trainers"), ended.stderr
        if argv[0] == "outlast.trainers":
            assert "the checkpoint holds" in ended.stderr


@pytest.mark.parametrize("table", TABLES)
def test_hostile_nodes_of_a_result_are_refused_by_name(
    theirs: tuple[Theirs, Path], table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = theirs
    for number, node in enumerate(TABLES[table][::3]):
        run.hold({"model": node})
        with pytest.raises(OperateError, match=r"model.json: cannot be read: ") as caught:
            outlast.open(f"{run.run}/").load("model")
        assert "\n" not in str(caught.value).strip(), (number, node)
        code = command.main(["digits", "--mode", "eval", "--run-dir", str(run.run)])
        said = capsys.readouterr().err
        assert code not in (exits.DONE, exits.INTERRUPTED), (number, node)
        assert "model" in said and "Traceback" not in said, (number, node, said)


def test_a_result_is_loaded_where_it_is_sound(trained: Path, theirs: Any) -> None:
    run, _ = theirs
    run.hold({"model": {"a": [1, {"$tuple": [2]}]}})
    assert outlast.open(f"{trained}/").load("model") == {"a": [1, (2,)]}
    assert os.listdir(trained)
