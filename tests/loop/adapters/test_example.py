"""The documented example: few lines changed, and a killed run ends with the undisturbed bytes."""

import difflib
import sys
from pathlib import Path

import pytest

from tests.loop import programs

EXAMPLES = programs.ROOT / "examples"
LINES_MOST = 15


def test_few_lines_are_changed() -> None:
    before, after = (
        (EXAMPLES / name).read_text().splitlines()
        for name in ("own_trainer_before.py", "own_trainer.py")
    )
    changes = [
        line
        for line in difflib.unified_diff(before, after, lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    for sign in "+-":
        assert 0 < sum(line.startswith(sign) for line in changes) <= LINES_MOST


@pytest.mark.frameworks
@pytest.mark.timeout(300)
def test_a_killed_run_ends_with_the_undisturbed_bytes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(EXAMPLES / "own_trainer.py"), "--epochs", "100"]
    one = {"OMP_NUM_THREADS": "1"}
    baseline, killed = tmp_path / "baseline", tmp_path / "killed"
    baseline.mkdir()
    killed.mkdir()
    done = programs.run(baseline, command, **one)
    assert done.returncode == 0, done.stderr
    with programs.started(killed, command, **one) as process:
        programs.wait_for(lambda: _committed(killed) > 0, process)
        process.kill()
        process.wait()
    assert programs.head(_folder(killed))["state"] == "open"
    done = programs.run(killed, command, **one)
    assert done.returncode == 0, done.stderr
    assert programs.head(_folder(killed))["term"] == 2
    expected, found = (programs.result_of(_folder(each)) for each in (baseline, killed))
    assert sorted(found) == sorted(expected) and "model.pt" in found
    assert found == expected


@pytest.mark.frameworks
def test_the_unchanged_file_runs_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(EXAMPLES / "own_trainer_before.py"), "--epochs", "10"]
    done = programs.run(tmp_path, command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("step 230 ") and (tmp_path / "model.pt").exists()


def _folder(where: Path) -> Path:
    found = list((where / "runs").glob("own_trainer-*"))
    return found[0] if found else where / "runs" / "none"


def _committed(where: Path) -> int:
    return len(programs.head(_folder(where))["chain"])
