"""One run that trains on VMs through every change that it may live through: corrected code, a new
machine at once, a region, a stack that is destroyed while its group waits for a VM, a kill of the
engine, and other arguments. In the end each step was made once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.base.exits import State
from outlast.bucket.head import Head
from outlast.bucket.layout import AttemptStart
from outlast.bucket.store import Store, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests.engine.conftest import (
    LIMIT_SEC,
    Project,
    Watch,
    checkout_on_a_separate_cloud,
    until,
)
from tests.engine.test_killed import UP, Moment, killed

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

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
    with checkout_on_a_separate_cloud(parts, tmp_path) as made:
        yield made


@pytest.fixture
def store(stack: Project, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stack.cloud.url)
    return open_store(f"gs://{clouds.PROJECT}-outlast")


class Walk(Watch):
    """The run on its way through the changes."""

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
        """HEAD once a later attempt than that one has resumed from its checkpoint, or a newer."""
        head, start = self.commits(after=after.term)
        assert start.step >= after.chain[-1].step > 0
        assert (head.deadline, head.owner) == (after.deadline, after.owner)
        return head


def test_a_run_survives_every_change(stack: Project, store: Store):
    stack.configure(trainer="dummy", args=SLOW, checkpointEvery="1s")
    stack.outlast("up", "dev")
    status = json.loads(stack.outlast("status", "dev", "--json"))
    assert status["state"] in ("booting", "waiting", "running"), status
    walk = Walk(stack, store)
    first, born = walk.commits(after=0)

    # Corrected code: another run, unless it is said that it is this one.
    trainer = stack.folder / "trainers" / "dummy.py"
    trainer.write_text(trainer.read_text().replace("MOMENTUM = 0.9", "MOMENTUM = 0.8"))
    said = stack.outlast("up", "dev", fails=True)
    assert f"run {walk.layout.run} is open at step" in said and "outlast resume dev" in said
    said = stack.outlast("resume", "dev")
    assert "outlast:run keeps the run's name; changed: the code" in said
    stack.outlast("up", "dev")
    corrected, start = walk.commits(after=walk.wait(lambda head: head.resume == 1, "1").term - 1)
    assert start.step >= first.chain[-1].step and start.resume == 1
    assert start.spec["before"] == born.spec["content"]
    assert start.spec["content"]["source"] != born.spec["content"]["source"]
    assert "the code" in stack.outlast("status", "dev")

    # At once: the running VM is replaced, after a notice.
    old = walk.vm()
    stack.configure(update="now", machineType="n2-standard-4")
    stack.outlast("up", "dev")
    now = walk.resumed(after=corrected)
    assert walk.vm()["id"] != old["id"]
    assert "n2-standard-2 → n2-standard-4" in stack.outlast("status", "dev")

    # From a zone to a region, with the engine killed when the new group was made.
    stack.configure(zones=["europe-west4-a", "europe-west4-b"])
    assert killed(stack, UP, Moment("after", "POST", r"instanceGroupManagers\?"))
    said = stack.outlast("up", "dev")
    regional = stack.outputs()
    assert (regional["placement"], regional["groupZone"], regional["run"]) == (
        1,
        "",
        walk.layout.run,
    )
    moved = walk.wait(lambda head: head.placement == 1, "no VM in the region has taken the term")
    moved, start = walk.commits(after=moved.term - 1)
    assert start.step >= now.chain[-1].step

    # No room any more: the group keeps trying, and the stack is destroyed meanwhile.
    stack.cloud.play(FULL, target="dev")
    stack.cloud.act(walk.vm()["name"], "kill")

    def waits() -> bool:
        return "the next attempt: waiting" in stack.outlast("status", "dev")

    until(waits, "the group waits for a VM")
    said = stack.outlast("destroy", "dev")
    assert f"run {walk.layout.run} stays open at step" in said
    stack.cloud.call("DELETE", "/_local/scenario")
    left = stack.cloud.audit()
    for kind in ("groups", "templates", "vms", "disks", "pids", "service_accounts", "bindings"):
        assert not left[kind], kind

    # Other arguments are refused beside it; the same arguments continue it.
    settings = (stack.folder / "Pulumi.dev.yaml").read_text()
    stack.configure(args={**SLOW, "seed": 5}, run="")
    said = stack.pulumi("preview", "-s", "dev", fails=True)
    assert "would start from scratch beside it" in said
    (stack.folder / "Pulumi.dev.yaml").write_text(settings)
    stack.outlast("up", "dev")
    again = stack.outputs()
    assert (again["placement"], again["deadline"]) == (2, regional["deadline"])
    back = walk.resumed(after=moved)

    # An argument that the trainer lets change in mid-run; then to the end.
    stack.configure(args=QUICK)
    said = stack.outlast("resume", "dev")
    assert "args.step-ms 20 → 0.01" in said
    said = stack.outlast("run", "dev", "--destroy")
    done = walk.done(limit_sec=3 * LIMIT_SEC)
    result = Path("results", "dev", walk.layout.run)
    assert str(result) in said and (stack.folder / result / "RESULT.json").is_file()
    assert not stack.cloud.audit()["groups"]
    assert json.loads(stack.outlast("status", "dev", "--json"))["state"] == "done"
    assert done.end and (done.resume, done.placement) == (2, 0) and done.term > back.term
    assert walk.steps(done) == list(range(1, done.end.step + 1))
