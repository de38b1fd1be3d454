"""A VM that lives and gets nowhere, under the real engine: shown, left alone, and recreated."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.bucket.store import open_store
from tests.checkout import copy_checkout
from tests.engine.conftest import Project, Watch, until
from tests.engine.test_machines import LONG
from tests.engine.test_program import wait_for_vm

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

OBSERVED_SEC = 20
"""How old a sign of progress may be: longer than a busy machine lets a trainer wait its turn."""

SWIFT = {"name": "swift", "about": "Health is asked for every half second.", "speed": 20}


@pytest.fixture
def stack(project: Project) -> Project:
    copy_checkout(project.folder)
    project.pulumi("stack", "init", "dev", "--no-select")
    return project


def stop(root: Path) -> list[int]:
    """Stops the supervisor of a VM and all that it has started; the health process lives on."""
    supervisor = int((root / "run/outlast/ready").read_text())
    stopped, waiting = [], [supervisor]
    while waiting:
        pid = waiting.pop()
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)
        for task in Path(f"/proc/{pid}/task").iterdir():
            waiting += map(int, (task / "children").read_text().split())
    return stopped


def test_a_hung_vm_is_observed_then_repaired_and_its_run_continues(
    stack: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stack.cloud.url)
    store = open_store("gs://outlast-rehearsal-outlast")
    hung = {"experiment": "hung", "trainer": "dummy", "args": LONG, "checkpointEvery": "1s"}
    stack.configure(**hung, health="observe", healthLimitSec=OBSERVED_SEC)
    stack.up()
    run = Watch(stack, store)
    outputs = run.outputs
    group = (
        f"/compute/v1/projects/outlast-rehearsal/zones/{outputs['groupZone']}"
        f"/instanceGroupManagers/{outputs['group']}"
    )

    def member() -> dict[str, Any]:
        (found,) = stack.cloud.call("POST", f"{group}/listManagedInstances")["managedInstances"]
        return found

    def health() -> str:
        (found,) = member().get("instanceHealth") or [{}]
        return found.get("detailedHealthState", "UNKNOWN")

    vm = wait_for_vm(stack)
    until(lambda: run.step, "no checkpoint")
    stack.cloud.play(SWIFT, target="")
    until(lambda: health() == "HEALTHY", "a VM that trains is not HEALTHY")

    stopped = stop(stack.cloud.state / "vms" / vm["id"] / "root")
    assert len(stopped) > 1, "the supervisor and its trainer"
    until(lambda: health() == "UNHEALTHY", "a hung VM is not UNHEALTHY")
    # It was asked many times more, and nothing is done.
    later = time.monotonic() + 10
    until(lambda: time.monotonic() > later, "")
    assert (health(), member()["id"], member()["currentAction"]) == ("UNHEALTHY", vm["id"], "NONE")
    before = run.step

    # The setting reaches the group at once, the VM that hangs as it is.
    stack.configure(health="repair", healthLimitSec=0)
    assert stack.steps()["trainer-group"][0] == "update"
    stack.up()
    recreated = until(
        lambda: (
            [
                one
                for one in stack.cloud.vms()
                if one["id"] != vm["id"] and one["status"] == "RUNNING"
            ]
        ),
        "the hung VM is not recreated",
    )
    assert len(recreated) == 1
    until(lambda: run.step > before, "the run does not continue")
    assert health() == "HEALTHY"
    serial = "".join(log.read_text() for log in (stack.cloud.state / "serial").iterdir())
    assert f"term 2: resumes at step {before}" in serial
    assert not [pid for pid in stopped if Path(f"/proc/{pid}").exists()]

    stack.destroy()
    left = stack.cloud.audit()
    assert not [one for one in left["groups"] if "hung-" in json.dumps(one)]
