"""Scripts of frameworks that do not know Outlast: after a kill, they resume by their own means
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
    return [
        *runner,
        "--checkpoint-quiet-sec",
        "0.4",
        "--",
        sys.executable,
        str(EXAMPLES / script),
        *words,
    ]


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


RANKS = """
import os, signal, subprocess, sys, time
import torch.distributed as dist

dist.init_process_group("gloo")
place = os.environ["CHECKPOINT_DIR"] + "/place"
count = int(open(place).read()) if os.path.exists(place) else 0
while count < int(sys.argv[1]):
    dist.barrier()
    count += 1
    if os.environ.get("FAIL_AT") == f"{dist.get_rank()} {count}":
        raise ZeroDivisionError("on purpose")
    if dist.get_rank() == 0:
        with open(place, "w") as file:
            file.write(str(count))
        subprocess.run(["outlast", "mark"], check=True)
    time.sleep(float(os.environ.get("PACE", "0")))
if dist.get_rank() == 0:
    open(os.environ["RESULT_DIR"] + "/count", "w").write(str(count))
dist.destroy_process_group()
"""


def test_ranks_of_torchrun_interrupted_failed_and_finished(tmp_path: Path) -> None:
    """torchrun says 1 for everything: after a stop that is 75, and else the command's failure."""
    pytest.importorskip("torch")
    (tmp_path / "count.py").write_text(RANKS)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "count.py"]
    runner = [sys.executable, "-m", "outlast.loop.command", "--run-dir", "run", "--"]
    command = [*runner, sys.executable, *launch, "8"]
    run_dir, more = tmp_path / "run", {"OMP_NUM_THREADS": "1"}
    code, err = programs.interrupt_at_a_commit(tmp_path, run_dir, command, PACE="0.5", **more)
    assert code == 75 and "the same command resumes from its last checkpoint" in err, err
    failed = programs.run(tmp_path, command, FAIL_AT="1 7", **more)
    assert failed.returncode == 1 and "ZeroDivisionError: on purpose" in failed.stderr
    assert "the command exited with 1; the same command resumes from" in failed.stderr
    assert programs.head(run_dir)["state"] == "open" and programs.newest(run_dir) >= 5
    done = programs.run(tmp_path, command, **more)
    assert done.returncode == 0, done.stderr
    assert programs.result_of(run_dir)["count"] == b"8"


def test_keras_backup_and_restore(tmp_path: Path) -> None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    pytest.importorskip("keras")
    words = ["--backup-dir", "{checkpoint}", "--model", "{result}/model.keras"]
    words += ["--epochs", "4", "--batch-size", "2"]
    done = killed_and_finished(tmp_path, argv(tmp_path / "run", "keras_backup.py", *words), (1, 2))
    epochs = [int(number) for number in re.findall(r"^Epoch (\d+)/4$", done.stdout, re.MULTILINE)]
    assert epochs[-1] == 4 and epochs[0] >= 3, done.stdout
    assert "model.keras" in programs.result_of(tmp_path / "run")


def test_lightning_resumes_from_its_last_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    words = ["--checkpoints", "{checkpoint}", "--model", "{result}/model.ckpt", "--epochs", "8"]
    words += ["--batch-size", "1"]  # an epoch lasts much longer than a checkpoint needs
    done = killed_and_finished(
        tmp_path, argv(tmp_path / "run", "lightning_digits.py", *words), (1,)
    )
    assert "Restored all states from the checkpoint at" in done.stderr
    assert "trained to epoch 8" in done.stdout
    assert "model.ckpt" in programs.result_of(tmp_path / "run")
