"""A command's working folder, its result, and a checkpoint folder of the user's own."""

import sys
from pathlib import Path

import pytest

from outlast.loop.command import work
from outlast.loop.command.work import TooMuch, WorkFolder
from outlast.protocol import Error
from tests.loop import programs
from tests.loop.test_command import RUNNER, Place, place

__all__ = ["place"]

# -- The working folder


def test_new_files_of_the_working_folder_become_the_result(place: Place) -> None:
    source = place.folder / "source"
    (source / "data").mkdir(parents=True)
    (source / "main.py").write_text("pass\n")
    (source / "config.json").write_text("{}")
    place.options += ["--source", str(source)]
    line = (
        "echo m > mnist_cnn.pt; mkdir -p out __pycache__ .git venv data/raw; echo 1 > out/a.csv; "
    )
    line += "touch __pycache__/x.pyc .git/HEAD venv/pyvenv.cfg venv/x data/raw/rows data/best.pt; "
    line += "echo '{\"a\": 1}' > config.json; echo l > train.log; ln -s out/a.csv link"
    code, _, err = place.shell(line)
    assert code == 0, err
    assert set(place.result()) == {
        *("mnist_cnn.pt", "out/a.csv", "data/best.pt", "config.json", "train.log"),
    }
    assert "new files in the working folder become the result: " in err
    assert "new files in data are data, and left out of the result" in err
    assert "so it starts from scratch after each interruption" in err.splitlines()[0]


def test_on_a_laptop_the_files_stay_and_the_result_is_a_copy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('model.pkl', 'w').write('m')\n")
    argv = [*RUNNER, "--run-dir", "run", "--", sys.executable, "train.py"]
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    assert programs.result_of(tmp_path / "run")["model.pkl"] == b"m"
    assert (tmp_path / "model.pkl").read_text() == "m"


def test_a_result_that_is_too_large_is_named_and_kept(place: Place) -> None:
    source = place.folder / "source"
    source.mkdir()
    place.options += ["--source", str(source), "--result-gb", "0.001"]
    code, _, err = place.shell("head -c 2000000 /dev/zero > model.pt; echo s > small")
    assert code == 1, err
    (error,) = place.supervisor.of(Error)
    assert error.kind == "result-too-large"
    assert "2.0 MB, more than the 1.0 MB" in error.message
    assert "model.pt (2.0 MB), small (2 bytes)" in error.message
    assert (place.home / "source/model.pt").stat().st_size == 2_000_000


@pytest.mark.parametrize("limit", ["1", "0.001"])
def test_files_beside_a_result_are_kept_too(place: Place, limit: str) -> None:
    """Above the limit models alone are: what the command put into RESULT_DIR is its result."""
    place.options += ["--source", str(place.folder / "source"), "--result-gb", limit]
    (place.folder / "source").mkdir()
    line = "echo r > $RESULT_DIR/r; cp $RESULT_DIR/r r; echo m > m.safetensors; "
    line += "head -c 2000000 /dev/zero > weights.bin"
    code, _, err = place.shell(line)
    assert code == 0, err
    found = {"r", "m.safetensors", *(["weights.bin"] if limit == "1" else [])}
    assert set(place.result()) == found
    assert ("not weights.bin (2.0 MB)" in err) == (limit != "1")


def test_files_with_a_taken_name_go_to_work_in_the_result(place: Place) -> None:
    """A file whose name is a folder elsewhere, and the reverse; no file is lost."""
    place.options += ["--source", str(place.folder / "source")]
    (place.folder / "source").mkdir()
    line = "cd $RESULT_DIR; mkdir -p b; echo 1 > a; echo 1 > b/c; echo 1 > work; cd - > /dev/null; "
    code, _, err = place.shell(line + "mkdir -p a/x b/c; echo 2 > a/x/y; echo 2 > b/c/d")
    assert code == 0, err
    expected = {"a": "1\n", "b/c": "1\n", "work": "1\n"}
    assert place.result() == {**expected, "work-2/a/x/y": "2\n", "work-2/b/c/d": "2\n"}


def test_a_file_called_checkpoint_beside_a_checkpoint(place: Place) -> None:
    """TensorFlow's, for example."""
    place.options += ["--source", str(place.folder / "source")]
    (place.folder / "source").mkdir()
    code, _, err = place.shell("echo 1 > checkpoint; echo 2 > $CHECKPOINT_DIR/a")
    assert code == 0, err
    assert place.result() == {"checkpoint/a": "2\n", "work/checkpoint": "1\n"}


def test_what_an_earlier_attempt_left_in_a_laptops_folder_is_part_of_the_result(
    tmp_path: Path,
) -> None:
    """The result is the same whether the command was interrupted or not."""
    line = "mkdir -p models; [ -e models/1.pt ] && exec sh -c 'echo 2 > models/2.pt'; "
    line += "echo 1 > models/1.pt; sleep 600"
    (tmp_path / "models").mkdir()
    (tmp_path / "models/old.pt").write_text("0")
    argv = [*RUNNER, "--run-dir", "run", "--shell", "--", line]
    with programs.started(tmp_path, argv) as process:
        programs.wait_for((tmp_path / "models/1.pt").exists, process)
        process.kill()
    programs.wait_until_alone(tmp_path)
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    result = programs.result_of(tmp_path / "run")
    assert {name for name in result if name.startswith("models")} == {"models/1.pt", "models/2.pt"}


def test_files_of_an_earlier_attempt_are_not_output_of_the_next(tmp_path: Path) -> None:
    """A command that then crashes and hides it is not done."""
    line = "[ -e model.pt ] && exit 0; echo 1 > model.pt; sleep 600"
    argv = [*RUNNER, "--run-dir", "run", "--shell", "--", line]
    with programs.started(tmp_path, argv) as process:
        programs.wait_for((tmp_path / "model.pt").exists, process)
        process.kill()
    programs.wait_until_alone(tmp_path)
    done = programs.run(tmp_path, argv)
    assert done.returncode == 1 and "--allow-no-output" in done.stderr
    done = programs.run(tmp_path, [*argv[:-3], "--allow-no-output", *argv[-3:]])
    assert done.returncode == 0, done.stderr
    assert programs.result_of(tmp_path / "run")["model.pt"] == b"1\n"


def test_a_working_folder_with_too_many_files_is_reported_before_the_command_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        (tmp_path / f"{number}.txt").touch()
    monkeypatch.setattr(work, "FILES_MAX", 10)
    assert not WorkFolder(tmp_path, []).is_known
    monkeypatch.setattr(work, "FILES_MAX", 20)
    folder = WorkFolder(tmp_path, [])
    assert folder.is_known
    monkeypatch.setattr(work, "FILES_AT_END_MAX", 10)
    with pytest.raises(TooMuch):  # a part of them would be a wrong result
        folder.produced()


# -- A folder of the user's own


OUT = """
import os, sys, time
os.makedirs("out", exist_ok=True)
start = int(open("out/count").read()) if os.path.exists("out/count") else 0
print("begins after", start, flush=True)
for number in range(start + 1, int(sys.argv[1]) + 1):
    with open("out/count.tmp", "w") as file:
        file.write(str(number))
    os.replace("out/count.tmp", "out/count")
    time.sleep(float(os.environ.get("PACE", "0")))
"""


def test_a_scripts_own_checkpoint_folder_is_used(tmp_path: Path) -> None:
    """After a kill, its files are moved aside and replaced by the checkpoint."""
    (tmp_path / "train.py").write_text(OUT)
    options = ["--run-dir", "run", "--checkpoint-dir", "./out", "--checkpoint-quiet-sec", "0.3"]
    argv = [*RUNNER, *options, "--", sys.executable, "train.py", "4"]
    with programs.started(tmp_path, argv, PACE="2") as process:
        programs.wait_for(lambda: programs.newest(tmp_path / "run") >= 2, process)
        process.kill()
    programs.wait_until_alone(tmp_path)
    (tmp_path / "out/count").write_text("half of a sa")
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    assert done.stdout in ("begins after 2\n", "begins after 3\n")
    assert (tmp_path / "out/count").read_text() == "4"
    assert (tmp_path / "out.attempt-1/count").read_text() == "half of a sa"
    assert (programs.local.finished_result(tmp_path / "run") / "checkpoint/count").exists()


def test_a_checkpoint_folder_that_is_not_empty_is_kept(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OUT)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/count").write_text("7")
    options = ["--run-dir", "run", "--checkpoint-dir", "out"]
    done = programs.run(tmp_path, [*RUNNER, *options, "--", sys.executable, "train.py", "9"])
    assert done.returncode == 0 and done.stdout == "begins after 7\n", done.stderr
    assert "starts from scratch after each" not in done.stderr


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        (".", "checkpoint-dir .: holds the working folder"),
        ("runs", "checkpoint-dir runs: holds the run's own folder"),
        ("rows", "checkpoint-dir rows: holds data rows"),
        ("afile", "checkpoint-dir afile: is a file"),
    ],
)
def test_an_invalid_checkpoint_folder_is_refused(tmp_path: Path, folder: str, says: str) -> None:
    (tmp_path / "afile").touch()
    (tmp_path / "rows").mkdir()
    argv = [*RUNNER, "--data", "rows", "--checkpoint-dir", folder, "--", "true"]
    done = programs.run(tmp_path, argv)
    assert done.returncode == 64 and says in done.stderr


def test_rerun_is_another_run_of_the_same_command(tmp_path: Path) -> None:
    argv = [*RUNNER, "--shell"]
    line = "echo x >> count; cp count $RESULT_DIR"
    assert programs.run(tmp_path, [*argv, "--", line]).returncode == 0
    again = programs.run(tmp_path, [*argv, "--", line])
    assert "to run the same command again: --rerun 1" in again.stderr
    rerun = programs.run(tmp_path, [*argv, "--rerun", "1", "--", line])
    assert rerun.returncode == 0 and (tmp_path / "count").read_text() == "x\nx\n"


def test_a_checkpoint_folder_keeps_what_it_held_before_the_first_checkpoint(
    tmp_path: Path,
) -> None:
    """A configuration that the script reads, for example; what an attempt left is moved aside."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/config.yaml").write_text("a: 1\n")
    line = "cat out/config.yaml; ls out; [ -e go ] && cp out/config.yaml out/end && exit; "
    line += "echo x >> out/train.log; sleep 600"
    options = ["--run-dir", "run", "--checkpoint-dir", "out", "--shell", "--"]
    argv = [*RUNNER, *options, line]
    for _ in range(2):
        with programs.started(tmp_path, argv) as process:
            programs.wait_for((tmp_path / "out/train.log").exists, process)
            process.kill()
        programs.wait_until_alone(tmp_path)
        (tmp_path / "out/train.log").rename(tmp_path / "train.log")
    (tmp_path / "go").touch()
    done = programs.run(tmp_path, argv)
    assert (done.returncode, done.stdout) == (0, "a: 1\nconfig.yaml\n"), done.stderr


def test_a_done_run_says_how_to_run_it_again_in_its_folder(tmp_path: Path) -> None:
    argv = [*RUNNER, "--run-dir", "run", "--shell", "--", "echo m > $RESULT_DIR/m"]
    assert programs.run(tmp_path, argv).returncode == 0
    again = programs.run(tmp_path, argv)
    said = "to run the same command again: another --run-dir, or --rerun 1 without one"
    assert again.returncode == 0 and said in again.stderr
    argv[argv.index("run")] = "other"
    assert programs.run(tmp_path, argv).returncode == 0
    assert programs.result_of(tmp_path / "other")["m"] == b"m\n"
