"""The exit code found at a program's end: the shell's, or unknown; never a wrong 0."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, sys, threading
from outlast.loop import exit_code
if {here}:
    exit_code.watch()
    exit_code.watch()
atexit.register(lambda: print("found", exit_code.find(), flush=True))

def caught(code):
    try:
        sys.exit(code)
    except SystemExit:
        pass

def main(code):
    return code

class Unwinding:
    def __enter__(self):
        return self
    def __exit__(self, *error):
        caught(0)

{body}
"""

ENDS = [
    ("pass", 0),
    ("main(3)", 0),
    ("sys.exit()", 0),
    ("sys.exit(0)", 0),
    ("sys.exit(main(0))", 0),
    ("sys.exit(3)", 3),
    ("sys.exit(True)", 1),
    ("sys.exit(256)", 0),
    ("sys.exit(-1)", 255),
    ("sys.exit('a word')", 1),
    ("caught(3)", 0),
    ("caught(0)\nsys.exit(3)", 3),
    ("caught(3)\nsys.exit(0)", 0),
    ("1 / 0", 1),
    ("caught(0)\n1 / 0", 1),
    ("try:\n    sys.exit(0)\nexcept SystemExit as error:\n    held = error\n1 / 0", 1),
    ("try:\n    sys.exit(0)\nexcept SystemExit:\n    raise SystemExit(3)", 3),
    ("try:\n    sys.exit(3)\nfinally:\n    caught(0)", 3),
    ("import argparse\nargparse.ArgumentParser().parse_args(['--none'])", 2),
    ("raise KeyboardInterrupt", -2),
    ("raise SystemExit", 0),
    ("raise SystemExit(main(0))", 0),
    ("raise SystemExit(main(3))", 3),
    ("raise SystemExit('a word')", 1),
    ("class Own(SystemExit): pass\nraise Own(4)", 4),
    ("with Unwinding():\n    sys.exit(3)", 3),
    ("threading.Thread(target=sys.exit, args=(3,)).start()", 0),
]
"""The last lines of a program, and what a shell sees."""


UNKNOWN_BEFORE_312 = ("raise SystemExit", "raise Own", "finally:", "with ")


def run(tmp_path: Path, text: str, *how: str, python: str = sys.executable) -> tuple[str, int]:
    """The exit code found, and the program's real one."""
    (tmp_path / "program.py").write_text(text)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [python, *(how or ["program.py"])],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{root}:{tmp_path}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("found")]
    assert len(lines) == 1, done.stderr
    return lines[0].removeprefix("found "), done.returncode


@pytest.mark.parametrize(("body", "code"), ENDS)
def test_the_exit_code_found_is_the_shells_or_unknown(tmp_path: Path, body: str, code: int) -> None:
    found, real = run(tmp_path, PROGRAM.format(here=True, body=body))
    assert real == code
    if "1 / 0" in body or "KeyboardInterrupt" in body:
        assert found == "None"
    elif sys.version_info < (3, 12) and any(what in body for what in UNKNOWN_BEFORE_312):
        assert found in ("None", str(code))
    else:
        assert found == str(code)


@pytest.mark.parametrize("how", [("-m", "program"), ("-c", "import program")])
def test_the_exit_code_does_not_depend_on_how_the_program_starts(
    tmp_path: Path, how: tuple[str, ...]
) -> None:
    found, real = run(tmp_path, PROGRAM.format(here=True, body="sys.exit(3)"), *how)
    assert real == 3
    # Python 3.11's import machinery handles the exception on its way.
    assert found == "3" or (sys.version_info < (3, 12) and how[0] == "-c" and found == "None")
    assert run(tmp_path, PROGRAM.format(here=True, body=""), *how) == ("0", 0)


def test_a_program_that_trains_in_another_thread(tmp_path: Path) -> None:
    body = """
worker = threading.Thread(target=exit_code.watch)
worker.start()
worker.join()
sys.exit(5)
"""
    assert run(tmp_path, PROGRAM.format(here=False, body=body)) == ("5", 5)


def test_without_watching_the_exit_code_is_unknown() -> None:
    from outlast.loop import exit_code

    assert exit_code._outermost is None
    assert exit_code.find() is None
