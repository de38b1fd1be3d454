"""The digits trainer alone on this machine: Ctrl-C, and the same command again."""

import json
import sys
from pathlib import Path

from tests.loop import programs

# Some seconds: HEAD is written once a second, and the run must outlast its first commit.
FLAGS = ["--hidden", "256", "--epochs", "200", "--eval-every", "100", "--limit-rows", "600"]


def command(run_dir: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "outlast.trainers",
        "digits",
        "--run-dir",
        str(run_dir),
        *FLAGS,
        *more,
    ]


def test_ctrl_c_and_the_same_command_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    argv = command(run_dir, "--checkpoint-every", "10")
    code, err = programs.interrupt_at_a_commit(tmp_path, run_dir, argv)
    assert code == 75, err
    assert "Traceback" not in err and "the same command resumes from there" in err
    stopped_at = programs.newest(run_dir)
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    assert f"resumes at step {stopped_at}" in done.stderr
    assert [json.loads(line)["epoch"] for line in done.stdout.splitlines()][-1] == 200

    again = programs.run(tmp_path, argv)
    assert again.returncode == 0 and "done" in again.stderr and not again.stdout
    evaluated = programs.run(tmp_path, [*argv, "--mode", "eval"])
    assert evaluated.returncode == 0, evaluated.stderr
    table = json.loads(programs.result_of(run_dir)["metrics.json"])
    assert table["epoch"] == [100, 200]
    assert json.loads(evaluated.stdout)["test_accuracy"] == table["test_accuracy"][-1]
    programs.wait_until_alone(tmp_path)


def test_a_run_dir_that_is_a_file_is_bad_usage(tmp_path: Path) -> None:
    """And not 75, which would make a loop around the command try forever."""
    file = tmp_path / "run"
    file.write_text("here first")
    refused = programs.run(tmp_path, command(file))
    assert refused.returncode == 64
    assert "is a file; give a folder" in refused.stderr and "Traceback" not in refused.stderr


def test_of_two_on_one_folder_the_fenced_one_says_so(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    argv = command(run_dir, "--checkpoint-every", "10")
    with programs.started(tmp_path, argv) as first:
        programs.wait_for(lambda: programs.newest(run_dir) > 0, first)
        with programs.started(tmp_path, argv) as second:
            _, err = first.communicate(timeout=programs.WAIT_SEC)
            assert first.returncode == 76, err
            assert "another process works on this folder; end one of them" in err
            assert "start the same run again" not in err
            out, err = second.communicate(timeout=programs.WAIT_SEC)
            assert second.returncode == 0, err


def test_a_training_with_unread_output_ends(tmp_path: Path) -> None:
    """As with ``| head -1``."""
    argv = [
        sys.executable,
        "-m",
        "outlast.trainers",
        "dummy",
        "--run-dir",
        "run",
        "--eval-every",
        "1",
    ]
    with programs.started(tmp_path, [*argv, "--step-ms", "1"]) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["epoch"] == 1
        process.stdout.close()
        process.stdout = None
        assert process.wait(timeout=programs.WAIT_SEC) == 0
        err = process.stderr.read()
    assert "the run is done" in err and "Pipe" not in err
