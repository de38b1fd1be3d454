"""Trackers that hang, fail or are not there: training neither waits nor ends for them."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from outlast.loop import LoopError, trackers
from tests.loop import programs

PROGRAM = """
import os, sys
import outlast

state = {"x": 0}
with outlast.train(state={"s": state}, total=30, run_dir="run", arguments={"rate": 0.1}) as run:
    for step in run.steps():
        state["x"] += step
        run.log(x=state["x"], word="none")
        if os.environ.get("FAIL_AT") == str(step):
            sys.exit(9)
"""

RECORDING = """
import json
from pathlib import Path

class Run:
    def __init__(self, id):
        self.file = Path(f"wandb-{id}.jsonl")
        self.resumed = self.file.exists()
        rows = self.file.read_text().splitlines() if self.resumed else []
        self.step = json.loads(rows[-1])[0] + 1 if rows else 0

    def log(self, row, step):
        with self.file.open("a") as file:
            file.write(json.dumps([step, row]) + "\\n")

    def finish(self, exit_code):
        pass

def init(*, id, resume, name, config, project):
    assert resume == "allow" and config == {"rate": "0.1"}
    return Run(id)
"""


def write(folder: Path, text: str) -> list[str]:
    """The program, beside a package that calls itself wandb."""
    (folder / "wandb.py").write_text(textwrap.dedent(text))
    (folder / "walk.py").write_text(PROGRAM)
    return [sys.executable, "walk.py"]


def test_one_trackers_run_has_each_step_once_after_a_cut(tmp_path: Path) -> None:
    argv = write(tmp_path, RECORDING)
    cut = programs.run(tmp_path, argv, OUTLAST_TRACKER="wandb", FAIL_AT="17")
    assert cut.returncode == 9, cut.stderr
    done = programs.run(tmp_path, argv, OUTLAST_TRACKER="wandb")
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("wandb-*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [step for step, _ in rows] == list(range(1, 31))
    assert rows[9][1] == {"x": 55.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import time\ndef init(**_): time.sleep(600)", "does not answer; training ends without"),
        ("def init(**_): raise OSError('no route')", "OSError: no route; training goes on"),
    ],
)
def test_a_tracker_that_hangs_or_fails_costs_rows_there_only(
    tmp_path: Path, text: str, says: str
) -> None:
    argv = write(tmp_path, text)
    program = (tmp_path / "walk.py").read_text()
    short = "from outlast.loop import trackers\ntrackers.CLOSE_SEC = 0.2\n"
    (tmp_path / "walk.py").write_text(short + program)
    done = programs.run(tmp_path, argv, OUTLAST_TRACKER="wandb")
    assert done.returncode == 0, done.stderr
    assert says in done.stderr
    assert "tracker wandb: 30 rows are missing there; the run's own rows are comp" in done.stderr


def test_a_full_queue_drops_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import threading

    from outlast.protocol import Welcome

    free = threading.Event()
    monkeypatch.setattr(trackers, "QUEUE_ROWS", 5)
    monkeypatch.setattr(trackers, "CLOSE_SEC", 0.05)
    monkeypatch.setitem(trackers._SENDERS, "wandb", lambda *_: free.wait(60) and None)
    welcome = Welcome(None, 0, "", "", 1, "auto", run_id="r", run_url="/run")
    tracker = trackers.Tracker("wandb", welcome, {})
    for step in range(1, 11):
        tracker.log(step, {"x": 1.0})
    tracker.close(interrupted=False)
    free.set()
    tracker._thread.join(60)
    said = capsys.readouterr().err
    assert "too slow, rows are dropped there" in said and "10 rows are missing there" in said


def test_a_tracker_that_is_not_there_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLAST_TRACKER", raising=False)
    assert trackers.choose(None) is None
    with pytest.raises(LoopError, match="tracker 'tensorbord': unknown; known are mlflow, wandb"):
        trackers.choose("tensorbord")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LoopError, match=r"pip install 'outlast\[mlflow\]'"):
        trackers.choose("mlflow")


def test_every_attempt_at_a_run_has_one_key_and_no_other_run_has_it() -> None:
    from outlast.protocol import Welcome

    def key(term: int, url: str) -> str:
        return trackers.run_key(Welcome(None, 0, "", "", term, "auto", run_id="r", run_url=url))

    assert key(1, "gs://a/r/") == key(2, "gs://a/r/") != key(1, "gs://b/r/")
