"""Programs that are killed and run again: objects that appear late, a sampler, an OrderedDict."""

import json
import sys
from pathlib import Path

import pytest

from tests.loop import programs

PROGRAM = """
import collections, json, os, random, sys
import numpy as np
import outlast

kind, run_dir, kill = sys.argv[1], sys.argv[2], int(sys.argv[3])
Move = collections.namedtuple("Move", "seen reward")

class Own(dict):
    pass

class Counting:
    n = 0
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, values): self.n = values["n"]

class Metric:
    total = 0
    def state_dict(self): return {}
    def load_state_dict(self, values): pass

def late():
    return {
        "array": lambda: np.ones(3),
        "generator": lambda: random.Random(3),
        "default": lambda: collections.defaultdict(int, a=1),
        "moves": lambda: collections.deque([Move(np.ones(1), 2.0)], maxlen=3),
        "own": lambda: Own(a=1),
        "counting": Counting,
    }[kind]()

ordered, rows = collections.OrderedDict(), []
sampler = outlast.BatchSampler(40, batch_size=4, seed=1)
box = {"metric": Metric()} if kind == "metric" else {}
state = {"ordered": ordered, "rows": rows, "sampler": sampler, "box": box}
with outlast.train(state, 10, run_dir=run_dir, name="x", arguments={}, checkpoint_every="1") as run:
    for step, batch in zip(run.steps(), sampler):
        rows.append(batch)
        ordered[f"step{step}"] = step
        if step == 3 and kind != "metric":
            box["late"] = late()
        run._side.session.wait_committed(60)
        if step == kill:
            os._exit(9)
    run.result("out.json").write_text(json.dumps([rows, list(ordered.items()), repr(box)]))
"""


@pytest.fixture
def go(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(kind: str, folder: str, kill: int = 0):
        argv = [sys.executable, "program.py", kind, folder, str(kill)]
        done = programs.run(tmp_path, argv)
        programs.wait_until_alone(tmp_path)
        return done

    return run


@pytest.mark.parametrize("kind", ["array", "generator", "default", "moves"])
def test_a_run_killed_after_state_appeared_ends_as_the_baseline(
    tmp_path: Path, go, kind: str
) -> None:
    assert go(kind, "baseline").returncode == 0
    assert go(kind, "killed", 6).returncode == 9
    assert programs.newest(tmp_path / "killed") >= 3
    again = go(kind, "killed")
    assert again.returncode == 0, again.stderr
    ends = [
        json.loads(programs.result_of(tmp_path / d)["out.json"]) for d in ("baseline", "killed")
    ]
    if kind == "generator":  # its repr is its address
        ends = [end[:2] for end in ends]
    assert ends[0] == ends[1] and len(ends[0][1]) == 10


@pytest.mark.parametrize("kind", ["own", "counting"])
def test_state_that_cannot_be_restored_ends_the_run_by_name(tmp_path: Path, go, kind: str) -> None:
    done = go(kind, "run")
    assert done.returncode == 1
    assert "state['box']['late'] is " in done.stderr
    assert "did not exist when training began" in done.stderr
    assert programs.newest(tmp_path / "run") < 3


def test_a_metric_without_state_is_refused_before_training(tmp_path: Path, go) -> None:
    done = go("metric", "run")
    assert done.returncode == 1
    assert "state['box']['metric'] is __main__.Metric, whose state_dict() is empty" in done.stderr
    assert programs.newest(tmp_path / "run") == 0
