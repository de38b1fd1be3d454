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


SWEEP = """
import gc, os, pathlib, signal, threading
import outlast

def mine():
    names = {name: os.environ.get(name) for name in ("RUN_ID", "LOG_DIR", "ATTEMPT")}
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    gc.collect()
    return names, files, threading.active_count(), handlers, os.listdir(os.environ["TMPDIR"])

os.environ["RUN_ID"] = "the user's own"
before = mine()
for number in range(6):
    state = {"x": {}}
    try:
        with outlast.train(
            state, 2, run_dir=f"runs/{number}", name="sweep", arguments={"n": number}
        ) as run:
            for step in run.steps():
                assert os.environ["RUN_ID"] != "the user's own" and os.environ["LOG_DIR"]
                if number % 3 == 2:
                    raise ValueError("this one fails")
    except ValueError:
        pass
    if number == 2:
        third = mine()
assert mine() == before == third, (before, third, mine())
"""


def test_trainings_one_after_the_other_leave_nothing_in_their_process(tmp_path: Path) -> None:
    """Variables, files, threads, handlers of signals, temporary files."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "walk.py").write_text(SWEEP)
    done = programs.run(tmp_path, [sys.executable, "walk.py"], TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 0, done.stderr
