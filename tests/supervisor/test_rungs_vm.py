"""Four trials of a sweep as processes, two of which are pruned and killed on the way."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.base import process_tree
from outlast.base.exits import Reason, State
from outlast.bucket import rungs
from outlast.bucket.head import Head, read_head
from outlast.bucket.layout import Choice, Layout, RungValue, SweepLayout
from outlast.bucket.records import read_record
from outlast.spec.sweep_rules import SweepRules
from tests.supervisor.fake_cloud import FakeCloud, fake_cloud
from tests.supervisor.test_main import ATTRIBUTES, Machines

pytestmark = pytest.mark.timeout(300)

SWEEP = SweepLayout("lr")
RULES = SweepRules.parse(
    {"name": "lr", "metric": "acc", "goal": "max", "rule": "halving", "rungs": [10], "eta": 2}
)
LEVELS = {"a": 0.5, "b": 0.9, "c": 0.6, "d": 0.2}
"""In the order of their arrival. With the value of d, c would be among the best two of four."""
TRAINER = """
import argparse, os, time
from pathlib import Path
import outlast

def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=float)
    parser.add_argument("--decision", type=Path)
    options = parser.parse_args(argv)
    total = {"sum": 0}
    with outlast.train(state={"total": total}, total=400) as run:
        for step in run.steps():
            total["sum"] += step
            run.log(acc=options.level + total["sum"] / 1e6)
            if step > 10 and not may_continue(options.decision):
                time.sleep(0.05)
    return 0

def may_continue(decision):
    return decision.exists() and '"choice":"continue"' in decision.read_text()
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    ignored = shutil.ignore_patterns("__pycache__", "cli", "localcloud")
    shutil.copytree(Path(outlast.__file__).parent, folder / "outlast", ignore=ignored)
    (folder / "outlast" / "trainers" / "count.py").write_text(TRAINER)
    return folder


class Trials:
    """A sweep's trials in one bucket, one after the other."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines

    def boot(self, name: str, **environment: Any) -> Any:
        spec: dict[str, Any] = {
            "outlast-run": run_of(name),
            "outlast-sweep-rules": RULES.to_json(),
            "outlast-arg-level": str(LEVELS[name]),
            "outlast-arg-decision": str(self.machines.bucket / SWEEP.decision(10, run_of(name))),
        }
        return self.machines.boot(**spec, **environment)

    def play(self, name: str) -> None:
        """From boot to end."""
        vm = self.boot(name)
        assert vm.wait(60) == 0, self.machines.serial(len(self.machines.processes) - 1)

    def kill(self, name: str, **when: str) -> None:
        """SIGKILL of the supervisor and its trainer, where its writes come to a stop."""
        (self.machines.folder / "frozen").unlink(missing_ok=True)
        vm = self.boot(name, FREEZE="put sweeps/lr/decisions/", **when)
        self.machines.wait_frozen(vm)
        vm.kill()
        vm.wait()
        root = self.machines.root(len(self.machines.processes) - 1)
        process_tree.kill_marked(str(root / "run/outlast/supervisor.sock"))

    def head_of(self, name: str) -> Head:
        layout = Layout(ATTRIBUTES["outlast-prefix"], run_of(name))
        return read_head(self.machines.store, layout).head

    def outcome(self) -> dict[str, Any]:
        """How each trial ended, and every byte of the sweep."""
        store = self.machines.store
        ends: dict[str, Any] = {}
        for name in LEVELS:
            head = self.head_of(name)
            assert head.end is not None and head.chain
            ends[name] = (head.state, head.end.reason, head.end.why)
        objects = {one.path: store.get(one.path)[0] for one in store.list(SWEEP.prefix)}
        return {"ends": ends, "objects": objects}


def machines_in(folder: Path, cloud: FakeCloud, bundle: Path) -> Machines:
    folder.mkdir()
    return Machines(cloud, folder, bundle)


def run_of(name: str) -> str:
    return f"{ord(name):010d}"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path) -> Iterator[Trials]:
    with fake_cloud(monkeypatch) as cloud:
        machines = machines_in(tmp_path / "first", cloud, bundle)
        try:
            yield Trials(machines)
        finally:
            machines.close()


def test_trials_that_are_killed_end_as_they_would_have_ended(
    trials: Trials, tmp_path: Path, bundle: Path
) -> None:
    trials.play("a")
    trials.play("b")
    other = machines_in(tmp_path / "second", trials.machines.cloud, bundle)
    shutil.copytree(trials.machines.bucket, other.bucket, symlinks=True, dirs_exist_ok=True)
    try:
        baseline = Trials(other)
        baseline.play("c")
        baseline.play("d")
        expected = baseline.outcome()
    finally:
        other.close()

    trials.kill("c")  # its value is recorded, its decision is not
    store = trials.machines.store
    assert read_record(store, SWEEP.value(10, run_of("c")), RungValue) is not None
    assert rungs.decisions_of(store, SWEEP, run_of("c")) == []
    trials.kill("d", FREEZE_AFTER="1")  # its decision is recorded, its end is not
    assert trials.head_of("d").state is State.OPEN
    (decided,) = rungs.decisions_of(store, SWEEP, run_of("d"))
    assert decided.choice is Choice.STOP
    trials.play("c")
    trials.play("d")

    assert trials.outcome() == expected
    ends = expected["ends"]
    assert {name: end[0] for name, end in ends.items()} == {
        "a": State.DONE,
        "b": State.DONE,
        "c": State.PRUNED,
        "d": State.PRUNED,
    }
    assert ends["c"][1] is Reason.PRUNED
    assert "is worse than 0.900055, the last of the best 1 among 3 trials" in ends["c"][2]
    assert "is worse than 0.600055, the last of the best 2 among 4 trials" in ends["d"][2]
    # The successor of d obeyed before anything was trained.
    assert "pruned: rung 10" in trials.machines.serial(5)
