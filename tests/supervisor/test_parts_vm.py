"""A notice at the seams of a run's parts, with a real trainer: no step that was made is lost."""

import io
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.parts import parts_of
from outlast.bucket.rows import read_rows
from outlast.spec import bundle as bundles
from tests.supervisor.fake_cloud import fake_cloud
from tests.supervisor.test_main import LAYOUT, ROOT, TIMEOUTS, Machines, wait_until

pytestmark = pytest.mark.timeout(300)

STEPS = 12
TRAINER = f"""
import argparse
import os
import time
from pathlib import Path

import outlast

def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--gate-at", default="")
    parser.add_argument("--way", default="total")
    options = parser.parse_args(argv)

    def at(phase):
        if options.gate_at == f"{{part}} {{phase}}".replace(" ", "-"):
            options.gate.with_suffix(".waiting").write_text(str(os.getpid()))
            while not options.gate.exists():
                time.sleep(0.01)

    total = {{"total": {STEPS}, "finish": 100, "finish-and-break": None}}[options.way]
    for part in ("first", "second"):
        state = {{"sum": 0}}
        with outlast.train(state={{"total": state}}, total=total, part=part) as run:
            for step in run.steps():
                state["sum"] += step
                run.log(sum=state["sum"])
                at(step)
                if step == {STEPS} and total != {STEPS}:
                    run.finish("enough")
                    if "break" in options.way:
                        break
            at("evaluation")
            state["sum"] += 0.5  # what follows the loop is done again
            run.result("sum.txt").write_text(str(state["sum"]))
        at("end")
    return 0
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    packed = bundles.pack(ROOT, {"outlast/trainers/count.py": TRAINER.encode()})
    zipfile.ZipFile(io.BytesIO(packed)).extractall(folder)
    return folder


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path) -> Iterator[Machines]:
    with fake_cloud(monkeypatch) as cloud:
        machines = Machines(cloud, tmp_path, bundle)
        try:
            yield machines
        finally:
            machines.close()


def check_done(machines: Machines) -> None:
    head = machines.head
    assert head.state is State.DONE and head.end is not None and head.end.result is not None
    rows = read_rows(machines.store, LAYOUT, head)
    made = [(part, step) for part in ("first", "second") for step in range(1, STEPS + 1)]
    assert [(row["part"], row["step"]) for row in rows] == made
    for part in ("first", "second"):
        assert machines.store.get(f"{head.end.result.path}{part}/sum.txt")[0] == b"78.5"


UPLOAD = r"put .*/t000001/s.*/state"
"""Of the first checkpoint: the others wait in line behind it."""


@pytest.mark.parametrize(
    ("at", "way", "frozen", "steps"),
    [
        ("first-evaluation", "total", True, {"first": STEPS}),
        ("first-evaluation", "finish", True, {"first": STEPS}),
        ("first-evaluation", "finish-and-break", True, {"first": STEPS}),
        ("first-end", "total", False, {"first": STEPS}),
        ("second-1", "total", False, {"first": STEPS, "second": 1}),
        ("second-evaluation", "total", False, {"first": STEPS, "second": STEPS}),
    ],
    ids=["evaluation", "finish", "finish-and-break", "between", "begin", "last"],
)
def test_a_notice_at_a_parts_seam_loses_no_step(
    machines: Machines, at: str, way: str, frozen: bool, steps: dict[str, int]
) -> None:
    gate = {"outlast-arg-gate": str(machines.gate), "outlast-arg-gate-at": at}
    gate |= {"outlast-arg-way": way, "outlast-timeouts": TIMEOUTS.replace('"stop":10', '"stop":6')}
    first = machines.boot(**gate, **({"FREEZE": UPLOAD} if frozen else {}))
    machines.trainer_at_gate()
    if frozen:
        machines.wait_frozen(first)
    first.send_signal(signal.SIGTERM)
    if frozen:
        first.send_signal(signal.SIGCONT)
    wait_until(lambda: "the trainer has" in machines.serial(0), "the trainer is asked to stop")
    if at == "second-1":
        machines.gate.touch()  # the others do not come to another step in time
    assert first.wait(60) == 75
    assert machines.end_of(1).reason is Reason.INTERRUPTED
    safe = {part.name: part.step for part in parts_of(machines.head.chain)}
    assert safe == steps, machines.serial(0)
    machines.gate.touch()
    assert machines.boot(**gate).wait(60) == 0, machines.serial(1)
    begun = {f"part {part}: resumes at step {at}" for part, at in steps.items() if at}
    begun |= {f"part {part}: is done already" for part in steps}
    assert sum(line in machines.serial(1) for line in begun) == len(steps), machines.serial(1)
    check_done(machines)
