"""A program or a command whose stderr, or all of whose streams, are closed: it trains and ends as
with open ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loop import programs

CLOSED = ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"]

PARTS = """
import sys
import outlast

n = {"v": 0}
for part in ("one", "two"):
    try:
        with outlast.train({"n": n}, 3, part=part, run_dir=sys.argv[1], name="x") as run:
            for step in run.steps():
                n["v"] += 1
                if part == "two" and step == 2 and sys.argv[2] == "left":
                    raise RuntimeError("swallowed")
    except RuntimeError:
        pass
"""


def run(folder: Path, closed: str, *argv: str) -> int:
    words = ["bash", "-c", f'exec "$@" {closed}', "-", sys.executable, *argv]
    done = subprocess.run(
        words, cwd=folder, env=programs.environment(folder), timeout=programs.WAIT_SEC
    )
    programs.wait_until_alone(folder)
    return done.returncode


@pytest.mark.parametrize("closed", ["", *CLOSED], ids=["open", "stderr", "both", "all"])
@pytest.mark.parametrize("how", ["left", "whole"])
def test_parts_end_with_the_code_of_their_run(tmp_path: Path, closed: str, how: str) -> None:
    (tmp_path / "p.py").write_text(PARTS)
    code = run(tmp_path, closed, "p.py", "run", how)
    assert code == (1 if how == "left" else 0)
    assert programs.head(tmp_path / "run")["state"] == ("open" if how == "left" else "done")


COMMAND = """
import os, sys
place = os.environ["CHECKPOINT_DIR"] + "/n"
n = int(open(place).read()) if os.path.exists(place) else 0
while n < 3:
    n += 1
    print("step", n, file=sys.stderr, flush=True)
    open(place, "w").write(str(n))
    os.system("outlast mark")
open(os.environ["RESULT_DIR"] + "/n", "w").write(str(n))
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("closed", ["", *CLOSED], ids=["open", "stderr", "both", "all"])
@pytest.mark.parametrize("entry", ["outlast.cli", "outlast.loop.command"])
def test_a_command_trains_and_ends(tmp_path: Path, closed: str, entry: str) -> None:
    (tmp_path / "c.py").write_text(COMMAND)
    words = ["train"] if entry == "outlast.cli" else []
    words += ["--run-dir", "run", "--", sys.executable, "c.py", "0"]
    assert run(tmp_path, closed, "-m", entry, *words) == 0
    assert programs.head(tmp_path / "run")["state"] == "done"
    assert programs.result_of(tmp_path / "run")["n"] == b"3"


def test_a_command_that_fails_has_its_last_lines_in_the_record(tmp_path: Path) -> None:
    (tmp_path / "c.py").write_text(COMMAND)
    argv = ["--run-dir", "run", "--", sys.executable, "c.py", "7"]
    assert run(tmp_path, "2>&-", "-m", "outlast.loop.command", *argv) == 7
    end = json.loads((tmp_path / "run" / "attempts" / "000001" / "end.json").read_bytes())
    assert end["reason"] == "user-failed"
    assert "step 3" in json.dumps(end)
