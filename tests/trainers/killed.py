"""Short runs of each trainer that are killed at seeded moments; what they end with."""

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.loop import programs

CENSUS = programs.ROOT / "tests" / "data" / "adult-sample.data"

SHORT = {
    "dummy": ["--epochs", "16", "--limit-rows", "400", "--step-ms", "15"],
    "digits": ["--epochs", "500", "--limit-rows", "200", "--hidden", "64", "--eval-every", "50"],
    "census": [
        "--data", str(CENSUS), "--cv-iterations", "3", "--epochs", "400", "--eval-every", "50",
        "--threads", "1",
    ],
    "torch_cnn": ["--epochs", "12", "--limit-rows", "500"],
    "keras_mlp": ["--epochs", "24", "--limit-rows", "500", "--hidden", "64", "--eval-every", "1"],
    "jax_mlp": ["--epochs", "200", "--limit-rows", "500", "--hidden", "64", "--eval-every", "20"],
}  # fmt: skip
"""Some seconds each: HEAD is written once a second, and a run must outlast its first commits."""


def command(name: str, run_dir: Path) -> list[str]:
    argv = [sys.executable, "-m", "outlast.trainers", name, "--run-dir", str(run_dir), *SHORT[name]]
    return [*argv, "--checkpoint-every", "5"]


def undisturbed(tmp_path: Path, name: str) -> dict[str, bytes]:
    """The result of an undisturbed run."""
    run_dir = tmp_path / "baseline"
    done = programs.run(tmp_path, command(name, run_dir))
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr  # for example of a generator that the state lacks
    return programs.result_of(run_dir)


def killed(tmp_path: Path, name: str, *, seed: int, kills: int) -> tuple[dict[str, bytes], int]:
    """The result of a run whose trainer gets SIGKILL so often, and from how many checkpoints it
    went on. The seed says after which commit of an attempt, and how long after it."""
    run_dir = tmp_path / "stormy"
    moments = random.Random(seed)
    argv = command(name, run_dir)
    resumed = 0
    for _ in range(kills):
        before = programs.newest(run_dir)
        commits = moments.choice((1, 1, 2))
        with programs.started(tmp_path, argv) as process:
            seen = before
            for _ in range(commits):
                programs.wait_for(
                    lambda seen=seen: programs.newest(run_dir) > seen or process.poll() == 0,
                    process,
                )
                seen = programs.newest(run_dir)
            time.sleep(moments.uniform(0, 0.3))  # the moment itself: any will do
            with contextlib.suppress(ProcessLookupError):  # it may have come to its end
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=programs.WAIT_SEC)
        programs.wait_until_alone(tmp_path)
        if programs.head(run_dir)["state"] == "done":
            break
        resumed += programs.newest(run_dir) > before
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    return programs.result_of(run_dir), resumed
