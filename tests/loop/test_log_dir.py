"""LOG_DIR, RUN_ID and ATTEMPT of a run in a folder."""

import sys
from pathlib import Path

from tests.loop import programs

PROGRAM = """
import os, pathlib, sys
import outlast

with outlast.train(state={"x": {}}, total=2, run_dir="run", arguments={}) as run:
    for step in run.steps():
        name = f"train/{os.environ['RUN_ID']}-{os.environ['ATTEMPT']}"
        path = pathlib.Path(os.environ["LOG_DIR"], name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(step))
        if len(sys.argv) > 1:
            sys.exit(3)
"""


def test_files_are_kept_with_each_attempt(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(PROGRAM)
    failed = programs.run(tmp_path, [sys.executable, "walk.py", "fail"])
    assert failed.returncode == 3
    programs.wait_until_alone(tmp_path)
    done = programs.run(tmp_path, [sys.executable, "walk.py"])
    assert done.returncode == 0, done.stderr
    programs.wait_until_alone(tmp_path)
    run = programs.head(tmp_path / "run")["owner"].rpartition("/")[2]
    attempts = tmp_path / "run" / "attempts"
    assert (attempts / "000001" / "logs" / "train" / f"{run}-1").read_text() == "1"
    assert (attempts / "000002" / "logs" / "train" / f"{run}-2").read_text() == "2"
