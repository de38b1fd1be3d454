"""Exit code 0 of a command counts with the processes still running and the files saved since."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.loop.command.errors import CommandError
from outlast.loop.command.left import LOOKS_MIN, Left
from outlast.loop.command.own_folder import make_ready
from outlast.protocol import Complete, Error
from tests.loop import programs
from tests.loop.test_command import RUNNER, Place, lives, place, wait_until

__all__ = ["place"]

COUNT = "i=0; while :; do i=$((i+1)); echo $i > {file}.new; mv {file}.new {file}; sleep 0.1; done"
SPIN = [sys.executable, "-c", "while True: pass"]


# -- What it leaves running


@pytest.mark.parametrize(
    "left",
    [
        f"nohup sh -c '{COUNT.format(file='$CHECKPOINT_DIR/model')}' > /dev/null 2>&1 & sleep 1",
        f"echo m > $CHECKPOINT_DIR/model; setsid {SPIN[0]} -c 'while True: pass' & sleep 0.2",
        # Its result is not whole yet.
        "(sleep 1; while :; do echo row >> $RESULT_DIR/out; echo $$ > $CHECKPOINT_DIR/n; sleep 0.1;"
        " done) &",
        f"nohup sh -c '{COUNT.format(file='model.pt')}' > train.log 2>&1 & sleep 1",
    ],
    ids=["saving", "computing", "writing its result", "saving beside itself"],
)
def test_a_training_that_is_left_in_the_background_is_not_done(place: Place, left: str) -> None:
    code, _, err = place.shell(f"{left}\nexit 0")
    assert code == 1, err
    (error,) = place.supervisor.of(Error)
    assert error.kind == "trainer" and "still working: " in error.message
    assert "wait" in error.message and not place.supervisor.of(Complete)


def test_a_save_in_the_background_ends_with_the_command(place: Place) -> None:
    code, _, err = place.shell("(sleep 1; echo whole > $CHECKPOINT_DIR/model) & exit 0")
    assert code == 0, err
    assert place.result() == {"checkpoint/model": "whole\n"}


def test_a_process_that_keeps_writing_beside_an_old_result_is_ended(place: Place) -> None:
    """For example a monitor of the machine; RESULT_DIR shows that the command has ended."""
    monitor = COUNT.format(file="$CHECKPOINT_DIR/heartbeat")
    line = f"(echo $BASHPID > pid; {monitor}) & sleep 1; echo r > $RESULT_DIR/r; cp pid $RESULT_DIR"
    code, _, err = place.shell(line)
    assert code == 0, err
    result = place.result()
    assert result["r"] == "r\n" and not lives(int(result["pid"]))


def test_a_model_beside_the_script_is_the_result_even_while_processes_run(place: Place) -> None:
    code, _, err = place.shell(f"echo m > model.pt; {SPIN[0]} -c 'while True: pass' & sleep 1")
    assert code == 0, err
    assert place.result() == {"model.pt": "m\n"}


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_a_waiting_process_is_idle_and_a_computing_one_is_busy() -> None:
    with subprocess.Popen(["sleep", "600"]) as idle, subprocess.Popen(SPIN) as busy:
        left = Left()
        try:
            wait_until(lambda: "while True" in " ".join(_words(busy.pid)), "it did not begin")

            def seen() -> bool:
                left.look([idle.pid, busy.pid])
                return bool(left.at_work([busy.pid], saves=False))

            wait_until(seen, "the computing process was not seen")
            # On a busy machine a process that has just begun computes before it waits.
            wait_until(
                lambda: seen() and not left.at_work([idle.pid], saves=False),
                "the waiting process counts as busy",
            )
            named = left.at_work([idle.pid, busy.pid], saves=False)
            assert named is not None and f"while True: pass ({busy.pid})" in named
            assert str(idle.pid) not in named
            assert left.at_work([idle.pid], saves=True) == f"sleep 600 ({idle.pid})"
        finally:
            idle.kill()
            busy.kill()


def test_a_process_that_ends_while_it_is_looked_at_is_idle() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    left = Left()
    for _ in range(LOOKS_MIN):
        left.look([ended.pid])
    assert left.at_work([ended.pid], saves=False) is None


# -- What it saved


@pytest.mark.parametrize("crash", ["true", "echo Traceback >> $CHECKPOINT_DIR/train.log"])
def test_a_hidden_crash_after_a_resume_does_not_complete_the_run(place: Place, crash: str) -> None:
    line = f"[ -e $CHECKPOINT_DIR/m ] && {{ {crash}; exit 0; }}; echo m > $CHECKPOINT_DIR/m; "
    line += "sleep 600"
    with place.running("--shell", "--", line) as process:
        wait_until(lambda: bool(place.supervisor.committed), "no snapshot")
        process.kill()
    place.supervisor.resume_from()
    again = place.folder / "again"
    shutil.copytree(place.supervisor.committed[-1][1], again)
    code, _, err = place.shell(line)
    assert code == 1, err
    (error,) = place.supervisor.of(Error)
    assert error.kind == "no-output" and "since it resumed" in error.message
    place.options.append("--allow-no-output")
    place.supervisor.restore = again
    code, _, err = place.shell(line)
    assert code == 0, err
    assert place.result()["checkpoint/m"] == "m\n"


def test_an_unchanged_checkpoint_folder_does_not_count_as_output(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/pretrained.pt").write_text("m")
    argv = [*RUNNER, "--run-dir", "run", "--checkpoint-dir", "out", "--", "true"]
    done = programs.run(tmp_path, argv)
    assert done.returncode == 1 and "left nothing" in done.stderr, done.stderr
    assert programs.head(tmp_path / "run")["state"] == "open"


@pytest.mark.parametrize("target", ["$CHECKPOINT_DIR/step-9", "../elsewhere"])
def test_a_linked_folder_in_the_result_is_saved_as_files(place: Place, target: str) -> None:
    line = "mkdir -p $CHECKPOINT_DIR/step-9/deep ../elsewhere/deep; "
    line += "cd $RESULT_DIR/; for top in $CHECKPOINT_DIR/step-9 ../elsewhere; do "
    line += "mkdir -p $top/deep; echo m > $top/deep/model.pt; ln -sf deep/model.pt $top/best.pt; "
    line += f"ln -sfn .. $top/deep/up; done; ln -s {target} $RESULT_DIR/final; "
    line += "ln -s . $RESULT_DIR/loop"
    code, _, err = place.shell(line)
    assert code == 0, err
    assert place.result() == {"final/deep/model.pt": "m\n", "final/best.pt": "m\n"}
    assert "loop: a link to a folder" in err


def test_a_link_to_the_data_is_left_out_of_the_result(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a.csv").write_text("1")
    line = "ln -s $DATA_DIR $RESULT_DIR/rows; echo m > $RESULT_DIR/m"
    argv = [*RUNNER, "--run-dir", "run", "--data", "rows", "--shell", "--", line]
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0 and "rows: a link to the run's data" in done.stderr
    assert {*programs.result_of(tmp_path / "run")} == {"m", "RESULT.json"}


def test_a_script_with_windows_line_ends_is_named_before_the_run_begins(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_bytes(b"#!/bin/sh\r\necho hi\r\n")
    (tmp_path / "train.sh").chmod(0o755)
    done = programs.run(tmp_path, [*RUNNER, "--run-dir", "run", "--", "./train.sh"])
    assert done.returncode == 64 and "CRLF" in done.stderr
    assert not os.path.exists(tmp_path / "run")


# -- Folders that the command or the user has made links or mounts of


def test_a_checkpoint_folder_that_became_a_link_is_a_link_again(tmp_path: Path) -> None:
    """As a script does that moves it to a larger disk."""
    (tmp_path / "disk").mkdir()
    line = f"ls $CHECKPOINT_DIR; rmdir $CHECKPOINT_DIR && ln -s {tmp_path}/disk $CHECKPOINT_DIR; "
    line += "[ -e $CHECKPOINT_DIR/m ] && cp $CHECKPOINT_DIR/m $RESULT_DIR && exit; "
    line += "echo m > $CHECKPOINT_DIR/m; sleep 600"
    argv = [*RUNNER, "--run-dir", "run", "--checkpoint-quiet-sec", "0.3", "--shell", "--", line]
    with programs.started(tmp_path, argv) as process:
        programs.wait_for(lambda: programs.newest(tmp_path / "run") >= 1, process)
        process.kill()
    programs.wait_until_alone(tmp_path)
    (tmp_path / "disk/m").write_text("half")
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0 and done.stdout == "m\n", done.stderr
    assert programs.result_of(tmp_path / "run")["m"] == b"m\n"


def test_a_checkpoint_folder_that_is_a_mount_is_emptied_in_place(tmp_path: Path) -> None:
    """It cannot be renamed, as a volume of a container cannot."""
    mount = tmp_path / "out"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "out", mount], check=False)
    if made.returncode:
        pytest.skip("may not mount here")
    try:
        (mount / "half").write_text("half of a save")
        (mount / "lost+found").mkdir()
        said = make_ready(mount, attempt=2, restores=True, is_copy=False, before={})
        assert said is not None and "out.attempt-1" in said
        assert [path.name for path in mount.iterdir()] == ["lost+found"]
        assert (tmp_path / "out.attempt-1/half").read_text() == "half of a save"
        again = make_ready(mount, attempt=3, restores=True, is_copy=False, before={})
        assert again is None
    finally:
        subprocess.run(["umount", mount], check=True)


def test_a_folder_that_cannot_be_moved_gives_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "half").write_text("half of a save")
    (tmp_path / "out.attempt-1").write_text("in the way")
    with pytest.raises(CommandError, match=r"cannot be moved to .*out\.attempt-1 \(.*; move it"):
        make_ready(out, attempt=2, restores=True, is_copy=False, before={})
    assert (out / "half").read_text() == "half of a save"
