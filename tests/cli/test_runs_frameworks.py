"""``outlast.load`` of models that frameworks wrote, as our trainers leave them in a result."""

import sys
from pathlib import Path

import pytest

import outlast
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
