"""The script of docs/your-script.md: killed, it resumes from its own file to the same model."""

import sys
from pathlib import Path

import pytest

from tests.loop import programs

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]

SCRIPT = programs.ROOT / "examples" / "legacy" / "train.py"
MORE = {"OMP_NUM_THREADS": "1"}


def command(run_dir: Path) -> list[str]:
    runner = [sys.executable, "-m", "outlast.loop.command", "--run-dir", str(run_dir)]
    script = [sys.executable, str(SCRIPT), "--output", "{checkpoint}/model.pt"]
    return [
        *runner,
        "--checkpoint-quiet-sec",
        "0.2",
        "--",
        *script,
        "--epochs",
        "160",
        "--save-every",
        "40",
    ]


def test_killed_and_finished_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(programs, "WAIT_SEC", 240.0)
    disturbed, baseline = tmp_path / "disturbed", tmp_path / "baseline"
    with programs.started(tmp_path, command(disturbed), **MORE) as process:
        programs.wait_for(lambda: programs.newest(disturbed) >= 1, process)
        process.kill()
    programs.wait_until_alone(tmp_path)
    done = programs.run(tmp_path, command(disturbed), **MORE)
    assert done.returncode == 0, done.stderr
    assert "begins after epoch 0" not in done.stdout + done.stderr
    assert "begins after epoch" in done.stdout + done.stderr
    assert programs.run(tmp_path, command(baseline), **MORE).returncode == 0
    first, second = (
        [path.read_bytes() for path in place.glob("*/result/checkpoint/model.pt")]
        for place in (disturbed, baseline)
    )
    assert len(first) == 1 and first == second
