"""A restored state is compared with its checkpoint: what differs ends the run, by name."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlast
from outlast import protocol
from outlast.loop import DoesNotFit, ranks, snapshot, state, verify
from tests.loop import programs
from tests.loop.fake_supervisor import FakeSupervisor


class Forgetful:
    """Restores values of the first steps, which the proof checks, but no later ones."""

    def __init__(self) -> None:
        self.numbers = {"count": 0, "late": 0}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.numbers)

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.numbers["count"] = values["count"]


def train(supervisor: FakeSupervisor, part: object, step_of: Callable[[int], None]) -> None:
    with outlast.train({"w": np.zeros(4), "part": part}, 6) as run:
        for step in run.steps():
            step_of(step)
            assert run._side.session.wait_committed(5)


def test_a_value_that_a_restore_leaves_out_ends_the_run_by_name(supervisor: FakeSupervisor) -> None:
    part = Forgetful()

    def late(step: int) -> None:
        part.numbers["count"] += 1
        part.numbers["late"] += step > 2

    train(supervisor, part, late)
    supervisor.resume_from(3)
    supervisor.result = None
    with pytest.raises(DoesNotFit, match=r"state\['part'\]\['late'\] is not what the checkpoint"):
        train(supervisor, Forgetful(), late)
    assert supervisor.gone.wait(60)
    (said,) = supervisor.of(protocol.Error)
    assert said.kind == "does-not-fit" and "step 4" in said.message
    assert not supervisor.of(protocol.Snapshot) and supervisor.result is None


PROGRAM = """
import os, random, sys
import outlast

class Two:
    # Two lists that are one object until the restore makes them two.
    def __init__(self): self.lists = {"a": [], "b": []}
    def state_dict(self): return self.lists
    def load_state_dict(self, values):
        self.lists = {name: list(values[name]) for name in ("a", "b")}

two, box = Two(), {"n": 0}
with outlast.train({"two": two, "box": box}, 8, run_dir="run", arguments={},
                   checkpoint_every="1") as run:
    for step in run.steps():
        box["n"] += 1
        if step == 3:
            two.lists["b"] = two.lists["a"]
        two.lists["a"].append(step)
        assert run._side.session.wait_committed(30)
        if step == 5 and len(sys.argv) == 1:
            os._exit(9)
    run.result("n").write_text(str(box["n"]))
"""


def test_a_shared_object_must_be_shared_again_and_the_checkpoint_stays(
    tmp_path: Path,
) -> None:
    (tmp_path / "walk.py").write_text(PROGRAM)
    assert programs.run(tmp_path, [sys.executable, "walk.py"]).returncode == 9
    programs.wait_until_alone(tmp_path)
    before = programs.head(tmp_path / "run")["chain"]
    again = programs.run(tmp_path, [sys.executable, "walk.py", "on"])
    assert again.returncode == 1
    assert "state['two']['b'] is not what the checkpoint of step" in again.stderr
    assert "Traceback" not in again.stderr
    programs.wait_until_alone(tmp_path)
    head = programs.head(tmp_path / "run")
    assert head["chain"] == before and head["state"] != "done"


def test_each_ranks_own_state_is_compared_too(tmp_path: Path) -> None:
    part = Forgetful()
    part.numbers["late"] = 2
    ranks.RankState({"part": part}, 1, 2).write(tmp_path, 5)
    with pytest.raises(DoesNotFit, match=r"rank_state\['part'\]\['late'\] .* of step 5"):
        ranks.RankState({"part": Forgetful()}, 1, 2).restore(tmp_path)


def saved(folder: Path, values: dict[str, Any]) -> snapshot.Saved:
    snapshot.write(folder, snapshot.Saved(3, {}, *state.capture_all(values)))
    return snapshot.read(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("small", lambda values: values["small"].__setitem__(2, -0.0)),
        ("large", lambda values: values["large"].__setitem__(-1, 1)),
        ("fixed", lambda values: values["box"].update(fixed=np.ones(40_000, np.int8))),
        ("n", lambda values: values["box"].update(n=1.0)),
        ("bytes", lambda values: values["box"].update(bytes=b"y" * 70_000)),
        ("order", lambda values: values["box"].update(n=values["box"].pop("n"))),
    ],
)
def test_each_bit_counts(tmp_path: Path, name: str, change: Callable[[dict], None]) -> None:
    fixed = np.zeros(40_000, np.int8)
    fixed.flags.writeable = False  # compared without its address
    values = {
        "small": np.zeros(3),
        "large": np.zeros(100_000, np.float32),
        "box": {"n": 1, "fixed": fixed, "bytes": b"x" * 70_000},
    }
    before = saved(tmp_path / "s", values)
    verify.check(values, before)
    change(values)
    with pytest.raises(DoesNotFit, match=name if name != "order" else "'box'"):
        verify.check(values, before)


def test_another_order_in_memory_or_of_names_makes_no_difference(tmp_path: Path) -> None:
    table = np.arange(24.0).reshape(2, 3, 4)
    before = saved(tmp_path / "s", {"a": np.asfortranarray(table), "b": {"n": 1}})
    values = {"b": {"n": 0}, "a": np.zeros((2, 3, 4))}
    state.restore_all(values, before.nodes, before.blobs)
    verify.check(values, before)
    values["a"][1, 2, 3] = -1
    with pytest.raises(DoesNotFit, match=r"state\['a'\]"):
        verify.check(values, before)


def test_shared_objects_stay_shared_and_separate_ones_stay_separate(tmp_path: Path) -> None:
    """Under two names, one object is saved once; a program with two objects is refused."""
    array, box = np.zeros(3), {"n": 0}

    def named() -> dict[str, Any]:
        one, inner = np.zeros(3), {"n": 0}
        return {"a": one, "b": one, "x": inner, "y": inner}

    saved(tmp_path / "one", {"a": array, "b": array, "x": box, "y": box})
    saved(tmp_path / "two", {"a": array, "b": np.ones(3), "x": box, "y": {"n": 2}})

    def resumed(name: str, values: dict[str, Any]) -> None:
        found = snapshot.read(tmp_path / name)
        state.restore_all(values, found.nodes, found.blobs)
        verify.check(values, found)

    resumed("one", named())
    with pytest.raises(DoesNotFit, match=r"state\['b'\]"):
        resumed("one", {**named(), "b": np.zeros(3)})
    with pytest.raises(DoesNotFit, match=r"state\['y'\]"):
        resumed("one", {**named(), "y": {"n": 0}})
    with pytest.raises(DoesNotFit, match=r"state\['[by]'\]"):
        resumed("two", named())


def test_a_run_with_one_object_under_two_names_resumes_to_equal_bytes(
    supervisor: FakeSupervisor,
) -> None:
    def walk() -> bytes:
        w, box = np.zeros(3), {"n": 0}
        with outlast.train({"w": w, "same": w, "box": box, "again": box}, 6) as run:
            for _ in run.steps():
                w += 1
                box["n"] += 1
                assert run._side.session.wait_committed(5)
            run.result("w").write_bytes(w.tobytes() + json.dumps(box).encode())
        assert supervisor.result is not None
        return (supervisor.result / "w").read_bytes()

    baseline = walk()
    supervisor.resume_from(2)
    assert walk() == baseline


def node(kind: str, **parts: Any) -> dict[str, Any]:
    return {"$object": kind, **parts}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (node("torch.Generator", device="cuda:0", state=[]), node("torch.Generator", state=[])),
        (
            node("torch.Module", versions={"a": 1}, eval=[], entries={"a": 1, "b": 2}),
            node("torch.Module", versions={"a": 2}, eval=[], entries={"b": 2, "a": 1}),
        ),
        (
            node("torch.Optimizer", params=[[[2], "cuda:0"]], state={"param_groups": [{"lr": 1}]}),
            node(
                "torch.Optimizer",
                params=[[[2], "cpu"]],
                state={"param_groups": [{"lr": 1, "fused": None}]},
            ),
        ),
        (node("torch.random", state=[1, 2, 3]), node("torch.random", state=[1])),
        (
            node("keras.Layer", variables=[{"path": "dense_3/kernel", "value": 1}], metrics=[1]),
            node("keras.Layer", variables=[{"path": "dense/kernel", "value": 1}], metrics=[]),
        ),
    ],
)
def test_differences_between_machines_or_processes_do_not_count(one: Any, two: Any) -> None:
    sides = ({"x": one}, state.Blobs()), ({"x": two}, state.Blobs())
    assert verify.difference(*sides, moved=True) is None
    assert verify.difference(*sides) is not None
