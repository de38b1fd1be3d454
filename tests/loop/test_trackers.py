"""Trackers that hang, fail or are not there: training neither waits nor ends for them."""

import json
import sys
import textwrap
import time
from collections.abc import Callable
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


def test_a_trackers_run_has_each_step_once_after_an_interruption(tmp_path: Path) -> None:
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
        (
            "import time\ndef init(**_): time.sleep(600)",
            "does not answer; the training ends without",
        ),
        ("def init(**_): raise OSError('no route')", "OSError: no route; training continues"),
    ],
)
def test_a_tracker_that_hangs_or_fails_loses_only_its_own_rows(
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


class Flapping:
    """A tracker's run that refuses every second call, in words that count up."""

    def __init__(self, *_: object) -> None:
        self.calls = 0
        self.rows: list[int] = []

    def last_step(self) -> int:
        return 0

    def send(self, rows: list[tuple[int, dict[str, float]]]) -> None:
        self.calls += 1
        if self.calls % 2:
            raise OSError(f"request {self.calls:08x} of 10.0.0.{self.calls} was refused")
        self.rows += [step for step, _ in rows]

    def close(self, *, interrupted: bool) -> None:
        raise RuntimeError("the last file was not sent")


def tracker_of(sender: object, monkeypatch: pytest.MonkeyPatch) -> trackers.Tracker:
    from outlast.protocol import Welcome

    monkeypatch.setattr(trackers, "RETRY_SEC", 0.002)
    monkeypatch.setitem(trackers._SENDERS, "wandb", sender)
    welcome = Welcome(None, 0, "", "", 1, "auto", run_id="r", run_url="/run")
    return trackers.Tracker("wandb", welcome, {})


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_tracker_that_never_answers_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[BaseException]
) -> None:
    tries: list[int] = []

    def refuse(*_: object) -> None:
        tries.append(1)
        raise kind(f"api_key not configured (no-tty), try {len(tries)}")

    tracker = tracker_of(refuse, monkeypatch)
    tracker.log(1, {"x": 1.0})
    wait_for(lambda: len(tries) >= 20)
    tracker.close(interrupted=False)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"outlast: tracker wandb: {kind.__name__}: api_key not configured (no-tty), try 1; "
        "training continues",
        "outlast: tracker wandb: 1 rows are missing there; the run's own rows are complete",
    ]


def test_each_different_tracker_error_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sender = Flapping()
    tracker = tracker_of(lambda *_: sender, monkeypatch)
    for step in range(1, 8):
        tracker.log(step, {"x": 1.0})
        wait_for(lambda step=step: sender.rows[-1:] == [step])
    tracker.close(interrupted=False)
    assert sender.rows == list(range(1, 8)) and sender.calls == 14
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].partition(": ")[2] for line in said] == [
        "OSError: request 00000001 of 10.0.0.1 was refused; training continues",
        "RuntimeError: the last file was not sent; rows may be missing there",
    ]


def test_many_different_errors_are_not_reported_forever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{first}{second}" for first in "abcdefgh" for second in "abcdefgh"]
    tries: list[int] = []

    def refuse(*_: object) -> None:
        tries.append(1)
        raise OSError(words[len(tries) % len(words)])

    tracker = tracker_of(refuse, monkeypatch)
    wait_for(lambda: len(tries) >= 40)
    tracker.close(interrupted=False)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == trackers.TROUBLES_MAX
    assert said[-1].endswith("; further troubles are not shown; training continues")


def test_a_missing_tracker_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLAST_TRACKER", raising=False)
    assert trackers.choose(None) is None
    with pytest.raises(LoopError, match="tracker 'tensorbord': unknown; known are mlflow, wandb"):
        trackers.choose("tensorbord")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LoopError, match=r"pip install 'outlast\[mlflow\]'"):
        trackers.choose("mlflow")


def test_all_attempts_of_a_run_share_one_unique_key() -> None:
    from outlast.protocol import Welcome

    def key(term: int, url: str) -> str:
        return trackers.run_key(Welcome(None, 0, "", "", term, "auto", run_id="r", run_url=url))

    assert key(1, "gs://a/r/") == key(2, "gs://a/r/") != key(1, "gs://b/r/")
