"""An error of the run is one sentence; a bug in the program keeps its traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.loop import programs

PROGRAM = """
import outlast
from outlast.loop.errors import DataError, LoopError, SupervisorLost

def lost(code):
    error = SupervisorLost("the supervisor has ended")
    error.exit = code
    return error

def while_handling():
    try:
        raise ZeroDivisionError("the user's own")
    except ZeroDivisionError:
        raise lost(None)

try:
    outlast.data("no/such")
except DataError as error:
    known = error
"""


def ends(tmp_path: Path, last_line: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM + last_line)
    return programs.run(tmp_path, [sys.executable, "program.py"])


@pytest.mark.parametrize(
    ("last_line", "code", "sentence"),
    [
        ("raise lost(-9)", 75, "the supervisor has ended"),
        ("raise lost(76)", 76, "another process works on this folder; end one of them"),
        ("outlast.data('no/such')", 64, "data no/such: no such file or folder"),
    ],
)
def test_an_error_of_the_run_is_one_sentence_without_traceback(
    tmp_path: Path, last_line: str, code: int, sentence: str
) -> None:
    ended = ends(tmp_path, last_line)
    assert (ended.returncode, ended.stderr) == (code, f"outlast: {sentence}\n")


@pytest.mark.parametrize(
    ("last_line", "says"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("raise LoopError('run.log outside a step')", "LoopError: run.log outside a step"),
        ("while_handling()", "ZeroDivisionError: the user's own"),
        ("raise KeyError('mine') from known", "DataError: data no/such"),
    ],
)
def test_other_errors_keep_their_traceback(tmp_path: Path, last_line: str, says: str) -> None:
    ended = ends(tmp_path, last_line)
    assert ended.returncode == 1 and says in ended.stderr
    assert ended.stderr.startswith("Traceback") and 'program.py", line' in ended.stderr


def test_unread_output_does_not_change_the_exit_code() -> None:
    """120 is what Python makes of a stderr that it cannot flush at its end."""
    code = "from outlast.loop.words import say; input(); say('one'); say('two')"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stderr.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(60) == 0
