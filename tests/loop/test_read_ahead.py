"""A BatchSampler anywhere in the state, and programs that read ahead of their steps: killed and run
again, a run ends as the baseline or is refused by name."""

import json
import sys
from pathlib import Path

import pytest

from tests.loop import programs

PROGRAM = """
import collections, itertools, json, os, queue, sys, threading
import outlast

where, how, run_dir, kill = *sys.argv[1:4], int(sys.argv[4])
total = int(os.environ.get("TOTAL", "12"))
uneven = "UNEVEN" in os.environ
s = outlast.BatchSampler(14, batch_size=2, seed=3, uneven=uneven)

class Whole:
    def __init__(self): self.s = s
    def state_dict(self): return {"s": self.s.state_dict()}
    def load_state_dict(self, values): self.s.load_state_dict(values["s"])

class Number:
    def __init__(self): self.s = s
    def state_dict(self): return {"at": self.s.position}
    def load_state_dict(self, values): self.s.position = values["at"]

state = {
    "top": lambda: {"s": s},
    "dict": lambda: {"data": {"s": s}},
    "list": lambda: {"data": {"x": [1, {"y": [s]}]}},
    "tuple": lambda: {"data": {"x": (1, s)}},
    "whole": lambda: {"data": Whole()},
    "number": lambda: {"data": {"in": Number()}},
}[where]()
rows = []
state["rows"] = rows

def buffered(batches, depth):
    held = collections.deque(itertools.islice(batches, depth))
    while held:
        held.append(next(batches))
        yield held.popleft()

def chunks(batches, size):
    held = []
    while True:
        held = held or [next(batches) for _ in range(size)]
        yield held.pop(0)

def fetched(batches):
    held = queue.Queue(3)
    def fetch():
        for batch in batches:
            held.put(batch)
    threading.Thread(target=fetch, daemon=True).start()
    while True:
        yield held.get()

def changed(batches):
    for batch in batches:
        yield [row + 100 for row in batch]

def groups(run, batches, sizes):
    for step in run.steps():
        yield step, [next(batches) for _ in range(sizes(step))]

def leftover(run):
    '''Three batches a step; what an epoch has left over is a step of fewer.'''
    for step in run.steps():
        left = s.batches_per_epoch - s.position % s.batches_per_epoch
        yield step, [next(iter(s)) for _ in range(min(3, left))]

def pairs(run):
    return {
        "right": lambda: zip(run.steps(), s),
        "over": lambda: zip(run.steps(), s.over(s)),
        "changed": lambda: zip(run.steps(), changed(s)),
        "three": lambda: groups(run, iter(s), lambda step: 3),
        "leftover": lambda: leftover(run),
        "skips": lambda: groups(run, iter(s), lambda step: step % 2 * 2),
        "once": lambda: groups(run, iter(s), lambda step: 2 if step == 1 else 1),
        "wrong": lambda: ((step, batch) for batch, step in zip(s, run.steps())),
        "buffer": lambda: zip(run.steps(), buffered(iter(s), 2)),
        "chunks of 2": lambda: zip(run.steps(), chunks(iter(s), 2)),
        "chunks of 4": lambda: zip(run.steps(), chunks(iter(s), 4)),
        "chunks over": lambda: zip(run.steps(), chunks(s.over(s), 3)),
        "thread": lambda: zip(run.steps(), fetched(iter(s))),
    }[how]()

options = {"run_dir": run_dir, "name": "x", "arguments": {}, "checkpoint_every": "1"}
with outlast.train(state, total, **options) as run:
    for step, batch in pairs(run):
        rows.append(batch)
        if step >= kill - 1:
            run._side.session.wait_committed(60)
        if step == kill:
            os._exit(9)
    run.result("out.json").write_text(json.dumps(rows))
"""


@pytest.fixture
def go(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(where: str, how: str, folder: str, kill: int = 0, **more: str):
        argv = [sys.executable, "program.py", where, how, folder, str(kill)]
        done = programs.run(tmp_path, argv, **more)
        programs.wait_until_alone(tmp_path)
        return done

    return run


def read(folder: Path) -> list[list[int]]:
    return json.loads(programs.result_of(folder)["out.json"])


PLACES = ["top", "dict", "list", "tuple", "whole", "number"]


@pytest.mark.parametrize("where", PLACES)
def test_a_batch_before_its_step_is_refused_for_a_sampler_anywhere(
    tmp_path: Path, go, where: str
) -> None:
    done = go(where, "wrong", "run")
    assert done.returncode == 1
    assert "has given a batch before the first step" in done.stderr
    assert programs.newest(tmp_path / "run") == 0


@pytest.mark.parametrize(
    ("where", "how"),
    [
        *((where, "right") for where in PLACES if where != "number"),
        *(("dict", how) for how in ("over", "changed", "three", "leftover", "skips", "once")),
    ],
)
def test_a_killed_and_resumed_run_ends_as_the_baseline(
    tmp_path: Path, go, where: str, how: str
) -> None:
    more = {"UNEVEN": "1"} if how == "skips" else {}
    baseline = go(where, how, "baseline", **more)
    assert baseline.returncode == 0, baseline.stderr
    assert go(where, how, "killed", 5, **more).returncode == 9
    assert programs.newest(tmp_path / "killed") >= 3
    again = go(where, how, "killed", **more)
    assert again.returncode == 0, again.stderr
    assert read(tmp_path / "killed") == read(tmp_path / "baseline")
    assert ("reads ahead" in baseline.stderr) == (how == "once"), baseline.stderr


@pytest.mark.parametrize("kill", [2, 3, 5])
@pytest.mark.parametrize("how", ["chunks of 2", "chunks of 4", "chunks over", "skips"])
def test_uneven_steps_are_refused_at_the_resume(tmp_path: Path, go, how: str, kill: int) -> None:
    """A buffer that is refilled now and then, or groups of different sizes: nothing tells which."""
    assert go("dict", how, "run", kill).returncode == 9
    assert programs.newest(tmp_path / "run") >= 1
    again = go("dict", how, "run")
    assert again.returncode == 1, again.stderr
    assert "state['data']['s']: " in again.stderr and "Traceback" not in again.stderr
    assert "read ahead" in again.stderr or "reads ahead" in again.stderr
    assert programs.head(tmp_path / "run")["state"] != "done"


def test_two_steps_after_a_resume_reveal_a_buffer(tmp_path: Path, go) -> None:
    assert go("dict", "chunks of 2", "run", 2, TOTAL="3").returncode == 9
    again = go("dict", "chunks of 2", "run", TOTAL="3")
    assert again.returncode == 1 and "so the program reads ahead" in again.stderr


def test_declaring_uneven_steps_after_a_refusal_allows_the_resume(tmp_path: Path, go) -> None:
    baseline = go("dict", "skips", "baseline")
    assert baseline.returncode == 0 and "so a resume is refused" in baseline.stderr
    assert go("dict", "skips", "run", 5).returncode == 9
    refused = go("dict", "skips", "run")
    assert refused.returncode == 1 and "BatchSampler(..., uneven=True)" in refused.stderr
    again = go("dict", "skips", "run", UNEVEN="1")
    assert again.returncode == 0 and "resumes at step" in again.stderr, again.stderr
    assert read(tmp_path / "run") == read(tmp_path / "baseline")


@pytest.mark.parametrize(
    ("where", "kill"), [("top", 2), ("top", 3), ("top", 6), ("list", 6), ("whole", 6)]
)
def test_the_programs_own_buffer_is_reported_and_its_resume_is_refused(
    tmp_path: Path, go, where: str, kill: int
) -> None:
    first = go(where, "buffer", "run", kill)
    assert first.returncode == 9
    if kill > 3:
        assert "the first step took 3 batches and others take 1" in first.stderr
    assert programs.newest(tmp_path / "run") >= 1
    again = go(where, "buffer", "run")
    assert again.returncode == 1, again.stderr
    assert "so the program reads ahead" in again.stderr and "start from scratch" in again.stderr
    assert programs.head(tmp_path / "run")["state"] != "done"


def test_a_position_that_is_saved_without_its_order_is_refused_at_the_resume(
    tmp_path: Path, go
) -> None:
    assert go("number", "right", "run", 5).returncode == 9
    again = go("number", "right", "run")
    assert again.returncode == 1
    assert "changed s, a outlast.loop.sampler.BatchSampler, which was not saved" in again.stderr


def test_a_thread_that_takes_batches_is_refused_at_once(tmp_path: Path, go) -> None:
    done = go("dict", "thread", "run")
    assert done.returncode == 1
    assert "state['data']['s']: a thread other than the loop's took batches" in done.stderr
    assert programs.newest(tmp_path / "run") == 0
