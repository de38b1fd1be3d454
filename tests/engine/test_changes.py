"""One run that trains on VMs through every change that it may live through: corrected code, a new
machine at once, a region, a stack that is destroyed while its group waits for a VM, a kill of the
engine, and other arguments. In the end each step was made once."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.exits import State
from outlast.layout import AttemptStart, Layout
from outlast.operate import cloud as clouds
from outlast.operate import engine as engines
from outlast.run.commit import read_rows
from outlast.run.head import Head, HeadLost, read_head
from outlast.run.store import Store, open_store
from tests.engine.conftest import Project, checkout_on_a_cloud_of_its_own
from tests.engine.test_killed import UP, Moment, killed
from tests.engine.test_machines import configure

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

LIMIT_SEC = 300
EPOCHS = 1200
SLOW = {"epochs": EPOCHS, "step-ms": 20}
QUICK = {"epochs": EPOCHS, "step-ms": 0.01}
FULL = {
    "name": "full",
    "about": "No zone has room any more.",
    "world": {
        "zones": {zone: {"capacity": [{"vms": 0}]} for zone in ("europe-west4-a", "europe-west4-b")}
    },
}


@pytest.fixture
def stack(parts: engines.Parts, tmp_path: Path) -> Iterator[Project]:
    with checkout_on_a_cloud_of_its_own(parts, tmp_path) as made:
        yield made


@pytest.fixture
def store(stack: Project, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stack.cloud.url)
    return open_store(f"gs://{clouds.PROJECT}-outlast")


def outlast(stack: Project, *words: str, fails: bool = False) -> str:
    """The command of the checkout's copy; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "outlast.operate", *words],
        cwd=stack.folder,
        env=stack.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SEC,
    )
    assert bool(done.returncode) is fails, done.stdout
    return done.stdout


class Walk:
    """The run, from outside."""

    def __init__(self, stack: Project, store: Store) -> None:
        self.stack, self.store = stack, store
        self.outputs = stack.outputs()
        self.layout = Layout(self.outputs["prefix"], self.outputs["run"])

    @property
    def head(self) -> Head | None:
        try:
            return read_head(self.store, self.layout).head
        except HeadLost:
            return None

    def wait(
        self, condition: Callable[[Head], object], what: str, *, limit_sec: float = LIMIT_SEC
    ) -> Head:
        deadline = time.monotonic() + limit_sec
        while (head := self.head) is None or not condition(head):
            assert time.monotonic() < deadline, f"{what}: {head}"
            time.sleep(0.2)
        return head

    def commits(self, *, after: int) -> tuple[Head, AttemptStart]:
        """Once an attempt above a term has committed: HEAD, and how the attempt began."""
        head = self.wait(lambda head: head.chain and head.chain[-1].term > after, "no commit")
        assert head.state is State.OPEN, "the run is too short for the walk"
        path = self.layout.attempt_start(head.chain[-1].term)
        return head, AttemptStart.from_json(self.store.get(path)[0])

    def vm(self) -> dict[str, Any]:
        (found,) = [vm for vm in self.stack.cloud.vms() if vm["status"] == "RUNNING"]
        return found

    def resumed(self, *, after: Head) -> Head:
        """HEAD once a later attempt than that one has gone on from its checkpoint, or a newer."""
        head, start = self.commits(after=after.term)
        assert start.step >= after.chain[-1].step > 0
        assert (head.deadline, head.owner) == (after.deadline, after.owner)
        return head


def test_a_run_lives_through_every_change(stack: Project, store: Store):
    configure(stack, trainer="dummy", args=SLOW, checkpointEvery="1s")
    outlast(stack, "up", "dev")
    status = json.loads(outlast(stack, "status", "dev", "--json"))
    assert status["state"] in ("booting", "waiting", "open"), status
    walk = Walk(stack, store)
    first, born = walk.commits(after=0)

    # Corrected code: another run, unless it is said that it is this one.
    trainer = stack.folder / "trainers" / "dummy.py"
    trainer.write_text(trainer.read_text().replace("MOMENTUM = 0.9", "MOMENTUM = 0.8"))
    said = outlast(stack, "up", "dev", fails=True)
    assert f"run {walk.layout.run} is open at step" in said and "outlast resume dev" in said
    said = outlast(stack, "resume", "dev")
    assert "outlast:run keeps the run's name; changed: the code" in said
    outlast(stack, "up", "dev")
    corrected, start = walk.commits(after=walk.wait(lambda head: head.resume == 1, "1").term - 1)
    assert start.step >= first.chain[-1].step and start.resume == 1
    assert start.spec["before"] == born.spec["content"]
    assert start.spec["content"]["source"] != born.spec["content"]["source"]
    assert "the code" in outlast(stack, "status", "dev")

    # At once: the living VM is replaced, and told before.
    old = walk.vm()
    configure(stack, update="now", machineType="n2-standard-4")
    outlast(stack, "up", "dev")
    now = walk.resumed(after=corrected)
    assert walk.vm()["id"] != old["id"]
    assert "n2-standard-2 → n2-standard-4" in outlast(stack, "status", "dev")

    # From a zone to a region, with the engine killed when the new group was made.
    configure(stack, zones=["europe-west4-a", "europe-west4-b"])
    assert killed(stack, UP, Moment("after", "POST", r"instanceGroupManagers\?"))
    said = outlast(stack, "up", "dev")
    regional = stack.outputs()
    assert (regional["place"], regional["groupZone"], regional["run"]) == (1, "", walk.layout.run)
    moved = walk.wait(lambda head: head.place == 1, "no VM in the region has taken the term")
    moved, start = walk.commits(after=moved.term - 1)
    assert start.step >= now.chain[-1].step

    # No room any more: the group goes on trying, and the stack is destroyed meanwhile.
    stack.cloud.play(FULL, target="dev")
    stack.cloud.act(walk.vm()["name"], "kill")

    def waits() -> bool:
        return "the next is waiting" in outlast(stack, "status", "dev")

    deadline = time.monotonic() + LIMIT_SEC
    while not waits():
        assert time.monotonic() < deadline
    said = outlast(stack, "destroy", "dev")
    assert f"run {walk.layout.run} stays open at step" in said
    stack.cloud.call("DELETE", "/_local/scenario")
    left = stack.cloud.audit()
    for kind in ("groups", "templates", "vms", "disks", "pids", "service_accounts", "bindings"):
        assert not left[kind], kind

    # Other arguments do not slip in beside it; the same ones go on with it.
    settings = (stack.folder / "Pulumi.dev.yaml").read_text()
    configure(stack, args={**SLOW, "seed": 5}, run="")
    said = stack.pulumi("preview", "-s", "dev", fails=True)
    assert "would begin anew beside it" in said
    (stack.folder / "Pulumi.dev.yaml").write_text(settings)
    outlast(stack, "up", "dev")
    again = stack.outputs()
    assert (again["place"], again["deadline"]) == (2, regional["deadline"])
    back = walk.resumed(after=moved)

    # An argument that the trainer lets change in mid-run; then to the end.
    configure(stack, args=QUICK)
    said = outlast(stack, "resume", "dev")
    assert "args.step-ms 20 → 0.01" in said
    outlast(stack, "up", "dev")
    done = walk.wait(lambda head: head.state.ended, "the end", limit_sec=3 * LIMIT_SEC)
    assert done.state is State.DONE and done.end and done.resume == 2 and done.place == 0
    assert done.term > back.term
    steps = [row["step"] for row in read_rows(store, walk.layout, done)]
    assert steps == list(range(1, done.end.step + 1))
