"""Scripts of frameworks that were not written for this: killed, and they go on by their own means
from the folder that they find."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loop import programs

WAIT_SEC = 240.0
"""A framework alone takes long to import."""

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]

EXAMPLES = programs.ROOT / "examples" / "commands"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "WAIT_SEC", WAIT_SEC)


def argv(run_dir: Path, script: str, *words: str) -> list[str]:
    runner = [sys.executable, "-m", "outlast.loop.command", "--run-dir", str(run_dir)]
    return [*runner, "--quiet-sec", "0.4", "--", sys.executable, str(EXAMPLES / script), *words]


def killed_and_finished(
    tmp_path: Path, command: list[str], at: tuple[int, ...]
) -> subprocess.CompletedProcess[str]:
    """SIGKILL once this attempt has committed; the last attempt runs to its end."""
    run_dir, more = tmp_path / "run", {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
    for least in at:
        with programs.started(tmp_path, command, **more) as process:
            programs.wait_for(lambda least=least: programs.newest(run_dir) >= least, process)
            process.kill()
        programs.wait_until_alone(tmp_path)
    done = programs.run(tmp_path, command, **more)
    assert done.returncode == 0, done.stderr
    return done


def test_keras_backup_and_restore(tmp_path: Path) -> None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    pytest.importorskip("keras")
    words = ["--backup-dir", "{checkpoint}", "--model", "{result}/model.keras"]
    words += ["--epochs", "4", "--batch-size", "2"]
    done = killed_and_finished(tmp_path, argv(tmp_path / "run", "keras_backup.py", *words), (1, 2))
    epochs = [int(number) for number in re.findall(r"^Epoch (\d+)/4$", done.stdout, re.MULTILINE)]
    assert epochs[-1] == 4 and epochs[0] >= 3, done.stdout
    assert "model.keras" in programs.result_of(tmp_path / "run")


def test_lightning_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    words = ["--checkpoints", "{checkpoint}", "--model", "{result}/model.ckpt", "--epochs", "5"]
    words += ["--batch-size", "2"]
    done = killed_and_finished(
        tmp_path, argv(tmp_path / "run", "lightning_digits.py", *words), (1,)
    )
    assert "Restored all states from the checkpoint at" in done.stderr
    assert "trained to epoch 5" in done.stdout
    assert "model.ckpt" in programs.result_of(tmp_path / "run")
