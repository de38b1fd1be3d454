"""``outlast.load`` of models that frameworks wrote, as our trainers leave them in a result."""

import base64
import json
import sys
import zipfile
from pathlib import Path

import pytest

import outlast
from outlast import notebook
from outlast.cli.errors import OperateError
from tests.loop import programs

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]

BEGIN = """
import numpy as np
import outlast

with outlast.train(state={"x": {}}, total=1, run_dir="run", arguments={}) as run:
    list(run.steps())
"""
BOOSTED = """
    import xgboost
    rows = xgboost.DMatrix(np.eye(4), np.arange(4))
    booster = xgboost.train({"max_depth": 1}, rows, 2)
    booster.save_model(run.result("model.ubj"))
    booster.save_model(run.result("text.json"))
"""
LAYERS = """
    import keras
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.save(run.result("model.keras"))
"""
WEIGHTS = """
    import torch, safetensors.torch
    weights = {"a": torch.arange(3.0)}
    safetensors.torch.save_file(weights, run.result("model.safetensors"))
    torch.save(weights, run.result("other.pt"))
    torch.save(torch.nn.Linear(1, 1), run.result("whole.pt"))
"""


@pytest.fixture
def trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    monkeypatch.setenv("OUTLAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setattr(programs, "WAIT_SEC", 240.0)
    (tmp_path / "make.py").write_text(BEGIN + request.param)
    done = programs.run(tmp_path, [sys.executable, "make.py"])
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return tmp_path / "run"


@pytest.mark.parametrize("trained", [BOOSTED], indirect=True)
def test_a_booster_in_both_of_its_formats(trained: Path) -> None:
    assert outlast.load(trained).num_boosted_rounds() == 2
    assert outlast.load(trained, "text").num_boosted_rounds() == 2


@pytest.mark.parametrize("trained", [LAYERS], indirect=True)
def test_a_keras_model_by_a_backend_that_is_there(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERAS_BACKEND")
    assert outlast.load(trained).count_params() == 3


@pytest.mark.parametrize("trained", [WEIGHTS], indirect=True)
def test_weights_of_torch_and_no_pickled_module(trained: Path) -> None:
    assert outlast.load(trained)["a"].tolist() == [0, 1, 2]
    assert outlast.load(trained, "other")["a"].tolist() == [0, 1, 2]
    with pytest.raises(OperateError, match="whole.pt: cannot be read: "):
        outlast.load(trained, "whole")


def layer(module: str | None, name: str, config: object) -> dict[str, object]:
    shape = {"input_shape": [None, 1]}
    return {"module": module, "class_name": name, "config": config, "build_config": shape}


def function(module: str, name: str) -> dict[str, object]:
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def called(of: dict[str, object], **arguments: object) -> dict[str, object]:
    config = {"name": "l", "function": of, "arguments": arguments}
    return layer("keras.layers", "Lambda", config)


def hostile_layers(home: Path) -> list[dict[str, object]]:
    """What once ran or wrote something as Keras read a model, and what looks like it."""
    victim, touched = str(home / "victim"), f"touch {home}/pwned"
    pickled = base64.b64encode(f"cposix\nsystem\n(S'{touched}'\ntR.".encode()).decode()
    mapped = {"filename": victim, "dtype": "uint8", "mode": "w+", "shape": [4]}
    marshalled = {"class_name": "__lambda__", "config": {"code": "4wEA", "defaults": None}}
    return [
        layer("numpy", "memmap", mapped),
        layer("subprocess", "Popen", {"args": ["touch", f"{home}/pwned"]}),
        layer("builtins", "exec", touched),
        layer("gzip", "GzipFile", {"filename": victim, "mode": "wb"}),
        layer("keras.src.utils.file_utils", "function", "rename"),
        called(function("os", "system"), command=touched),
        called(function("keras.utils", "get_file"), origin=f"file://{victim}", cache_dir=str(home)),
        called(function("keras.saving", "load_model"), filepath=victim),
        called(marshalled),
        layer("keras.layers", "TorchModuleWrapper", {"name": "t", "module": pickled}),
        layer("keras.layers", "TFSMLayer", {"name": "t", "filepath": str(home)}),
        layer("keras.layers", "StringLookup", {"name": "s", "vocabulary": victim}),
        layer(None, "Custom>Thing", {}),
    ]


# Keras itself, with numpy 2, as it writes the sound model.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_crafted_keras_model_runs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "good.keras")
    home = tmp_path / "home"
    home.mkdir()
    (home / "victim").write_text("precious")
    for number, planted in enumerate(hostile_layers(home)):
        crafted = tmp_path / f"{number}.keras"
        with (
            zipfile.ZipFile(tmp_path / "good.keras") as good,
            zipfile.ZipFile(crafted, "w") as bad,
        ):
            for name in good.namelist():
                content = good.read(name)
                if name == "config.json":
                    config = json.loads(content)
                    config["config"]["layers"].append(planted)
                    content = json.dumps(config).encode()
                bad.writestr(name, content)
        with pytest.raises(Exception) as refused:
            notebook._READERS[".keras"](crafted)
        assert not isinstance(refused.value, AssertionError), planted
    assert [path.name for path in home.iterdir()] == ["victim"]
    assert (home / "victim").read_text() == "precious"
