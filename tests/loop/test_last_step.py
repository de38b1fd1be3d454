"""The last step of a loop: its state is handed over at once, and an error names the step."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import outlast
from outlast.cli import runs, status
from outlast.loop import Training
from outlast.protocol import Accepted, Busy, Committed, Snapshot
from tests.loop import programs
from tests.loop.fake_supervisor import FakeSupervisor

PROGRAM = """
import sys

import numpy as np
import outlast

state = {"x": np.zeros(3)}
with outlast.train(state=state, total=900, run_dir="run", arguments={}) as run:
    for step in run.steps():
        if step == 701:
            raise ValueError("boom")
        state["x"] += 1
        run.log(loss=1 / step)
        if step == int(sys.argv[1]):
            raise ValueError("boom")
"""


@pytest.mark.parametrize("last", [700, 701])
def test_the_last_step_before_an_error_is_recorded(tmp_path: Path, last: int) -> None:
    (tmp_path / "walk.py").write_text(PROGRAM)
    done = programs.run(tmp_path, [sys.executable, "walk.py", str(last)])
    assert done.returncode == 1, done.stderr
    programs.wait_until_alone(tmp_path)
    shown = status.read(runs.find(tmp_path / "run")).as_json()
    assert (shown["step"], shown["metric_steps"]) == (700, {"loss": 700})


STEPS = 6


class Slow:
    """Accepts snapshots while it has room, and commits only when asked."""

    def __init__(self, fake: FakeSupervisor) -> None:
        self.fake = fake
        self.waiting: list[Snapshot] = []
        fake.every = "2"
        fake.on_snapshot = lambda _, snapshot: self.take(snapshot)

    def take(self, snapshot: Snapshot) -> None:
        if self.waiting and not snapshot.last:
            self.fake.push(Busy(snapshot.id))
            return
        self.waiting.append(snapshot)
        self.fake.push(Accepted(snapshot.id))

    def commit(self) -> None:
        for snapshot in self.waiting:
            self.fake.keep(snapshot)
            self.fake.push(Committed(snapshot.id, snapshot.step))


def walk(way: str, after: Callable[[Training], None], *, best: int | None = None) -> None:
    """Trains; ``after`` is what follows the loop, with the state changed."""
    state = {"x": np.zeros(2)}
    total = STEPS if way in ("total", "error") else None
    with outlast.train(state=state, total=total) as run:
        for step in run.steps():
            state["x"] += step
            run.log(x=float(state["x"][0]))
            if step == best:
                run.eval(x=float(step), best="max")
            if step == STEPS and way == "error":
                raise ZeroDivisionError("on purpose")
            if step == STEPS and total is None:
                run.finish("enough")
                if way == "break":
                    break
        state["x"] += 1000
        after(run)


def check(slow: Slow, tags: list[list[str]]) -> None:
    """The state that the loop ended with is the last of what was handed over."""
    slow.commit()
    assert [snapshot.tags for snapshot in slow.waiting] == tags
    assert slow.waiting[-1].step == STEPS
    rows = slow.fake.folder.joinpath("rows.jsonl").read_bytes()[: slow.waiting[-1].rows_offset]
    assert rows.count(b"\n") == STEPS
    _, folder = slow.fake.committed[-1]
    sums = np.frombuffer(folder.joinpath("arrays.bin").read_bytes()[:16])
    assert sums.tolist() == [STEPS * (STEPS + 1) / 2] * 2


@pytest.mark.parametrize("way", ["total", "finish", "break"])
@pytest.mark.parametrize("best", [None, 4, STEPS])
def test_the_state_after_the_loop_is_queued(
    supervisor: FakeSupervisor, way: str, best: int | None
) -> None:
    """Also behind a better one; a notice in what follows the loop then loses nothing."""
    slow = Slow(supervisor)

    def after(run: Training) -> None:
        run.tick()
        deadline = time.monotonic() + programs.WAIT_SEC
        while slow.waiting[-1].step != STEPS:
            assert time.monotonic() < deadline, slow.waiting
            time.sleep(0.01)
        check(slow, [[], *([["best"]] if best else []), *([[]] if best != STEPS else [])])

    walk(way, after, best=best)
    assert supervisor.gone.wait(60) and supervisor.result is not None


def test_an_error_after_the_loop_keeps_the_last_snapshot(supervisor: FakeSupervisor) -> None:
    slow = Slow(supervisor)

    def after(run: Training) -> None:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError):
        walk("total", after)
    assert supervisor.gone.wait(60)
    check(slow, [[], []])


def test_an_error_in_the_last_step_hands_nothing_over(supervisor: FakeSupervisor) -> None:
    slow = Slow(supervisor)
    with pytest.raises(ZeroDivisionError):
        walk("error", lambda run: None)
    assert supervisor.gone.wait(60)
    assert [snapshot.step for snapshot in slow.waiting] == [2]
