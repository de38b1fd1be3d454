"""``outlast:processes`` on VMs of the local cloud: torch's launcher, gloo, a preemption, a cut."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.bucket.store import Store, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests.engine.conftest import Project, Watch, checkout_on

pytestmark = [pytest.mark.engine, pytest.mark.frameworks, pytest.mark.timeout(400)]
pytest.importorskip("torch", reason="torch is an extra")

TRAINER = Path(__file__).with_name("parallel_trainer.py")
TOTAL = 60


@pytest.fixture
def stack(cloud: clouds.LocalCloud, parts: engines.Parts, tmp_path: Path) -> Iterator[Project]:
    """A checkout with its own trainer, which trains in two processes."""
    made = checkout_on(cloud, parts, tmp_path)
    shutil.copy(TRAINER, made.folder / "trainers" / "parallel.py")
    made.set("outlast:trainer", "parallel")
    made.set("outlast:args.total", str(TOTAL))
    made.set("outlast:processes", "2")
    made.set("outlast:trainerPython", sys.executable)
    made.set("outlast:checkpointEvery", "5")
    yield made
    made.destroy()


@pytest.fixture
def store(cloud: clouds.LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    return open_store(f"gs://{clouds.PROJECT}-outlast")


class Training(Watch):
    """One experiment's run."""

    def __init__(self, stack: Project, store: Store, experiment: str) -> None:
        stack.set("outlast:experiment", experiment)
        stack.up()
        super().__init__(stack, store)

    def wait_for_commit(self, term: int) -> str:
        """The VM of the attempt ``term``, once it has committed something."""
        self.wait(lambda head: head.chain and head.chain[-1].term == term, f"attempt {term}")
        (vm,) = [vm for vm in self.stack.cloud.vms() if vm["group"] == self.outputs["group"]]
        return vm["name"]

    def result(self) -> dict[str, bytes]:
        head = self.done()
        assert head.end is not None and head.end.result is not None
        assert self.steps(head) == list(range(1, TOTAL + 1))
        names = ("weights", "metrics.json")
        return {name: self.store.get(head.end.result.path + name)[0] for name in names}

    def logs(self, term: int) -> dict[str, str]:
        """What every rank wrote last into the LOG_DIR of an attempt."""
        folder = f"{self.layout.attempts}{term:06d}/logs/"
        found = self.store.list(folder)
        return {
            item.path.removeprefix(folder): self.store.get(item.path)[0].decode() for item in found
        }


def test_two_processes_end_with_the_undisturbed_bytes_after_a_preemption_and_a_kill(
    stack: Project, store: Store
) -> None:
    baseline = Training(stack, store, "baseline").result()
    storm = Training(stack, store, "storm")
    stack.cloud.act(storm.wait_for_commit(1), "preempt")
    stack.cloud.act(storm.wait_for_commit(2), "kill")
    storm.wait_for_commit(3)
    assert storm.result() == baseline

    ranks = {"rank-0-of-2", "rank-1-of-2"}
    logged = storm.logs(1)  # a preemption leaves the time for the last files
    assert set(logged) == ranks and len(set(logged.values())) == 1, "all stop after one step"
    last = storm.logs(3)
    assert last == dict.fromkeys(sorted(ranks), f"3 {TOTAL}")
