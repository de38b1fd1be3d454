"""Entries of the state that never change: reported by name, and a resume refused where the state is
plain; what may stay as it is passes."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlast
from outlast import protocol
from outlast.cli import app
from outlast.loop import DoesNotFit, LoopError
from tests.loop import programs
from tests.loop.fake_supervisor import FakeSupervisor

PROGRAM = """
import copy, os, sys
import numpy as np
import outlast

class Model:
    def __init__(self): self.w = np.zeros(2)
    def state_dict(self): return {"w": self.w.copy()}
    def load_state_dict(self, values): self.w[:] = values["w"]

w, n, params = np.zeros(3), 0, {"a": np.zeros(2), "b": [np.zeros(1)]}
model = Model()
best = copy.deepcopy(model)
hist = {"w": w, "steps": 0}
mode, kill, *constant = sys.argv[1:]
state = {
    "w": lambda: {"w": w},
    "steady": lambda: {"w": w},
    "n": lambda: {"numbers": {"n": n}},
    "params": lambda: {"params": params},
    "nested": lambda: {"hist": hist},
    "best": lambda: {"model": model, "best": best},
    "inline": lambda: {"numbers": {"other": n}},
}[mode]()
box = {"n": 0}
if mode == "inline":  # no reference is left to what is in the call
    run = outlast.train({"numbers": {"other": n}, "box": box}, 12, run_dir="run",
                        name="x", arguments={}, checkpoint_every="1", constant=constant)
else:
    run = outlast.train({**state, "box": box}, 12, run_dir="run", name="x", arguments={},
                        checkpoint_every="1", constant=constant)
del state
with run:
    for step in run.steps():
        box["n"] += 1
        if mode == "best":
            model.w += 1
        if mode in ("w", "nested"):
            w = w + 1
            hist["steps"] += 1
        if mode in ("n", "inline"):
            n = n + 1
        if mode == "params":
            params = {"a": params["a"] + 1, "b": [params["b"][0] + 1]}
        if mode == "best":
            best = copy.deepcopy(model)
        assert run._side.session.wait_committed(30)
        if step == int(kill):
            os._exit(9)
    run.result("n").write_text(str(box["n"]))
"""


def attempt(tmp_path: Path, mode: str, kill: int, *constant: str) -> subprocess.CompletedProcess:
    (tmp_path / "walk.py").write_text(PROGRAM)
    done = programs.run(tmp_path, [sys.executable, "walk.py", mode, str(kill), *constant])
    programs.wait_until_alone(tmp_path)
    return done


@pytest.mark.parametrize("kill", [3, 7])
@pytest.mark.parametrize(
    ("mode", "place"),
    [
        ("w", "state['w']"),
        ("steady", "state['w']"),
        ("n", "state['numbers']['n']"),
        ("params", "state['params']"),
        ("nested", "state['hist']['w']"),
        ("inline", "state['numbers']"),
    ],
)
def test_a_resume_without_what_the_program_computes_is_refused_by_name(
    tmp_path: Path, mode: str, place: str, kill: int
) -> None:
    first = attempt(tmp_path, mode, kill)
    assert first.returncode == 9, first.stderr
    again = attempt(tmp_path, mode, 99)
    assert again.returncode == 1
    assert f"{place} did not change in any of the" in again.stderr, again.stderr
    assert "Traceback" not in again.stderr
    before = programs.head(tmp_path / "run")
    assert before["state"] != "done" and before["chain"]
    if kill == 7:
        assert f"warning: {place}" in first.stderr
    name = place.split("'")[1]
    declared = attempt(tmp_path, mode, 99, name)
    assert declared.returncode == 0, declared.stderr
    assert f"resumes at step {kill - 1}" in declared.stderr


def test_a_best_model_bound_again_is_reported_and_status_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = attempt(tmp_path, "best", 7)
    assert done.returncode == 9
    said = "state['best'] does not change, and your program has bound the name to another object"
    assert said in done.stderr and done.stderr.count("warning:") == 1
    for option in ([], ["--json"]):
        with pytest.raises(SystemExit):
            app.cli.main(["status", str(tmp_path / "run"), *option])
        assert said in capsys.readouterr().out
    assert attempt(tmp_path, "best", 99).returncode == 0


class Best:
    """A model whose best version a program keeps."""

    def __init__(self) -> None:
        self.w = np.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"w": self.w.copy()}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.w[:] = values["w"]


class Seldom:
    """A schedule that steps once an epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.epoch = values["epoch"]


def _settings() -> Any:
    settings = {"rate": 0.1, "sizes": [3, 4], "scale": np.ones(2)}
    return settings, lambda step: None


def _counter() -> Any:
    counter = {"epoch": 0}

    def at_end(step: int) -> None:
        counter["epoch"] += step % 10 == 0

    return counter, at_end


def _best() -> Any:
    best, w = Best(), np.zeros(2)

    def improve(step: int) -> None:
        w[:] -= 1
        if w.sum() > best.w.sum():
            best.load_state_dict({"w": w.copy()})

    return best, improve


def _seldom() -> Any:
    seldom = Seldom()

    def at_end(step: int) -> None:
        seldom.epoch += step % 10 == 0

    return seldom, at_end


HEALTHY: dict[str, Callable[[], Any]] = {
    "numbers that stay": _settings,
    "a counter of epochs": _counter,
    "a best model that does not improve": _best,
    "a schedule of epochs": _seldom,
    "a generator that is not used": lambda: (np.random.default_rng(1), lambda step: None),
    "random numbers that are not used": lambda: (random.Random(1), lambda step: None),
    "an array that changes": lambda: (
        (array := np.zeros(3)),
        lambda step: array.__setitem__(0, step),
    ),
    "an array that changes once": lambda: (
        (array := np.zeros(3)),
        lambda step: array.__setitem__(0, 1),
    ),
    "one far element of a large array": lambda: (
        (large := np.zeros(200_000)),
        lambda step: large.__setitem__(77_777, step),
    ),
    "an empty list": lambda: ([], lambda step: None),
    "texts": lambda: ({"name": "x", "flag": False}, lambda step: None),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_values_that_may_stay_unchanged_pass_without_a_warning(
    supervisor: FakeSupervisor, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def walk(last: int) -> None:
        part, work = HEALTHY[name]()
        box = {"n": 0}
        with outlast.train({"part": part, "box": box}, 9) as run:
            for step in run.steps():
                box["n"] += 1
                epoch = step // 10  # a variable that does not count on either
                work(step)
                assert run._side.session.wait_committed(5) and epoch == 0
                if step == last:
                    raise InterruptedError

    with pytest.raises(InterruptedError):
        walk(6)
    supervisor.gone.wait(60)
    supervisor.resume_from()
    with pytest.raises(InterruptedError):
        walk(8)
    supervisor.gone.wait(60)
    supervisor.resume_from()
    walk(0)
    assert not supervisor.of(protocol.Warn) and "warning" not in capsys.readouterr().err


def test_an_array_that_stays_is_reported_once_after_three_checkpoints_unless_declared(
    supervisor: FakeSupervisor,
) -> None:
    table = np.arange(6.0)

    def walk(*constant: str) -> list[str]:
        box = {"n": 0}
        with outlast.train({"table": table, "box": box}, 6, constant=constant) as run:
            for _ in run.steps():
                box["n"] += 1
                assert run._side.session.wait_committed(5)
        assert supervisor.gone.wait(60)
        return [said.message for said in supervisor.of(protocol.Warn)]

    assert walk("table") == []
    (said,) = walk()
    assert said.startswith("state['table'] has not changed in 3 steps; ")
    supervisor.resume_from(-6)
    with pytest.raises(DoesNotFit, match=r"state\['table'\] .* any of the 1 steps"):
        walk()
    walk("table")


def test_a_name_that_is_not_in_the_state_is_refused() -> None:
    with pytest.raises(LoopError, match=r"constant \['v'\]: .* the state has w"):
        outlast.train({"w": np.zeros(1)}, 1, constant=["v"])
    with pytest.raises(LoopError, match=r"constant 'w': must be a list"):
        outlast.train({"w": np.zeros(1)}, 1, constant="w")
    outlast.train({"w": np.zeros(1)}, 1, rank_state={"v": {"n": 1}}, constant=["v"])


def test_the_snapshot_records_which_values_changed(supervisor: FakeSupervisor) -> None:
    moving, still = np.zeros(2), np.zeros(2)
    with outlast.train({"moving": moving, "still": still}, 2, constant=[]) as run:
        for _ in run.steps():
            moving += 1
            assert run._side.session.wait_committed(5)
    _, folder = supervisor.committed[0]
    note = json.loads((folder / "state.json").read_text())["loop"]["unchanged"]
    assert note == {"changed": ["moving"], "rebound": {}, "stopped": []}
