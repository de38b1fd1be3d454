"""Each trainer, killed at seeded moments of a short run, ends with the undisturbed run's bytes."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.spec import metrics
from tests.loop import programs
from tests.trainers import killed

FRAMEWORKS = {"census": "xgboost", "torch_cnn": "torch", "keras_mlp": "keras", "jax_mlp": "jax"}


def check(tmp_path: Path, name: str, *, kills: int) -> None:
    baseline = killed.undisturbed(tmp_path, name)
    stormy, resumed = killed.killed(tmp_path, name, seed=len(name), kills=kills)
    assert resumed >= 1, "the kills came after the end"
    assert list(stormy) == list(baseline)
    assert [file for file in baseline if stormy[file] != baseline[file]] == []
    table = metrics.read_table(baseline["metrics.json"])
    assert len(table["epoch"]) >= 2
    assert json.loads(baseline["config.json"])["trainer"] == name


@pytest.mark.parametrize("name", ["dummy", "digits"])
def test_a_killed_script_ends_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    check(tmp_path, name, kills=1)


@pytest.mark.frameworks
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_killed_with_a_framework_it_ends_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    if importlib.util.find_spec(FRAMEWORKS[name]) is None:  # importing Keras chooses its backend
        pytest.skip(f"{FRAMEWORKS[name]} is not installed")
    check(tmp_path, name, kills=2)


@pytest.mark.frameworks
@pytest.mark.timeout(600)
def test_the_convolutional_network_reads_digits_well(tmp_path: Path) -> None:
    """By its defaults, five epochs of scikit-learn's scans."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    argv = [sys.executable, "-m", "outlast.trainers", "torch_cnn", "--run-dir", "run"]
    done = subprocess.run(
        argv, cwd=tmp_path, env=programs.environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    table = metrics.read_table(programs.result_of(tmp_path / "run")["metrics.json"])
    assert table["epoch"][-1] == 5 and table["test_accuracy"][-1] >= 0.96
