"""The words of a command: the values of {checkpoint}, {latest:…} and the other fields."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.loop.command import fields, shell
from outlast.loop.command.command import Command
from outlast.loop.command.errors import CommandError
from outlast.spec.file_kinds import DEFAULT
from tests.loop import programs
from tests.loop.test_command import RUNNER, Place, place, wait_until

__all__ = ["place"]


def test_latest_is_the_newest_file_and_drops_its_flag_on_the_first_start(tmp_path: Path) -> None:
    def filled(*words: str, line: str = "") -> list[str]:
        return Command(words, line).filled({}, tmp_path)

    words = ("train", "--resume", "{latest:.pt}", "--lr=1", "--init={latest:.pt:base.pt}")
    flags = ("--from={latest:checkpoint-}", "{resume:--resume}", "x{latest}")
    assert filled(*words, *flags) == ["train", "--lr=1", "--init=base.pt"]
    line = "train --resume {latest:*.pt} --from={latest:checkpoint-} {resume:--again} --lr 1"
    assert filled(line=line)[-1].split() == ["train", "--lr", "1"]
    (tmp_path / "checkpoint-10").mkdir()
    for name in ("a 9.pt", "b.pt.tmp", "checkpoint-10/model", "train.log"):
        (tmp_path / name).write_text(name)
    assert fields.newest(tmp_path, "checkpoint-", DEFAULT) == str(tmp_path / "checkpoint-10")
    assert filled(*words, *flags)[:3] == ["train", "--resume", str(tmp_path / "a 9.pt")]
    assert filled(*words, *flags)[-2] == "--resume"
    found = filled(line=line)[-1]
    assert f"--resume '{tmp_path}/a 9.pt' --from={tmp_path}/checkpoint-10 --again --lr 1" in found
    with pytest.raises(CommandError, match="without its"):
        Command(("x", "{latest:[a}")).check()
    assert list(Command(("{lates:.pt}",)).words.near_misses()) == [
        "command {lates}: is left as it is; did you mean {latest}?"
    ]


def test_a_script_with_resume_is_resumed(place: Place) -> None:
    script = "import sys, os, time\nprint(sys.argv[1:])\nfolder = os.environ['CHECKPOINT_DIR']\n"
    script += "open(folder + '/a.ckpt', 'w').write('1'); time.sleep(60 if len(sys.argv) < 2 else 0)"
    (place.folder / "train.py").write_text(script)
    words = ["--", sys.executable, str(place.folder / "train.py"), "--resume", "{latest:.ckpt}"]
    with place.running(*words) as process:
        wait_until(lambda: bool(place.supervisor.committed), "no snapshot")
        process.kill()
    place.supervisor.resume_from()
    code, out, err = place.run(*words)
    assert (code, out) == (0, f"{['--resume', str(place.checkpoint / 'a.ckpt')]}\n"), err


# -- A line for the shell


PATH = '/it\'s a "path"/$HOME/`x`\\y/*'


@pytest.mark.parametrize(
    ("line", "before"),
    [
        ("printf %s {checkpoint}", ""),
        ('printf %s "{checkpoint}"', ""),
        ("printf %s '{checkpoint}'", ""),
        ("printf %s it\\'s{checkpoint}", "it's"),
        ('printf %s "it\'s {checkpoint}"', "it's "),
        ('printf %s "$(printf %s {checkpoint})"', ""),
        ('printf %s "$(printf %s "{checkpoint}")"', ""),
        ("printf %s $'a\\'b' {checkpoint}", "a'b"),
        ("true # it's a remark\nprintf %s {checkpoint}", ""),
        ('printf %s "a\\"{checkpoint}"', 'a"'),
        ("( printf %s {checkpoint} )", ""),
    ],
)
def test_a_path_keeps_its_text_inside_other_words(tmp_path: Path, line: str, before: str) -> None:
    """The shell itself prints the text that it reads."""
    filled = fields.fill_line(line, {"checkpoint": PATH}, tmp_path, DEFAULT)
    done = subprocess.run([*shell.shell_of(line), filled], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{before}{PATH}"), done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train --resume {latest:.pt} --lr 1", ["train", "--lr", "1"]),
        ("train --resume={latest:.pt}", ["train"]),
        ("train resume={latest:.pt} x", ["train", "x"]),
        ("train --resume '{latest:.pt}' x", ["train", "x"]),
        ('train --resume="{latest:.pt}" x', ["train", "x"]),
        ('train "--resume={latest:.pt}" x', ["train", "x"]),
        ("bash -c 'train --resume {latest:.pt}' x", ["bash", "-c", "train ", "x"]),
        ("train {resume:--resume auto}x", ["train", "x"]),
        ("train {latest:.pt:base.pt}", ["train", "base.pt"]),
    ],
)
def test_without_a_checkpoint_the_word_and_its_flag_are_removed(
    tmp_path: Path, line: str, words: list[str]
) -> None:
    assert shlex.split(fields.fill_line(line, {}, tmp_path, DEFAULT)) == words


def test_a_run_folder_with_a_space_works_within_quotes(tmp_path: Path) -> None:
    line = "echo m > \"{result}/m\"; echo c > '{checkpoint}/c'; cp {checkpoint}/c {result}"
    argv = [*RUNNER, "--run-dir", "my run", "--shell", "--", line]
    done = programs.run(tmp_path, argv)
    assert done.returncode == 0, done.stderr
    assert set(programs.result_of(tmp_path / "my run")) >= {"m", "c"}
