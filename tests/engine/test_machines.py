"""A stack over its machines under the real engine: a zone, a region, GPUs, and how they end."""

import json
from pathlib import Path
from typing import Any

import pytest

from outlast.cloud.images import COMMON_GPU
from tests.engine.conftest import Project, until
from tests.engine.test_program import stack as stack  # its fixture
from tests.engine.test_program import wait_for_vm

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

FULL = {
    "name": "full",
    "about": "The first zone has no room any more.",
    "world": {"zones": {"europe-west4-a": {"capacity": [{"vms": 0}]}}},
}
LONG = {"epochs": 100000, "step-ms": 20}


def said(stack: Project, vm: dict[str, Any], words: str) -> None:
    """Waits until the VM's serial port has these words."""

    def look() -> bool:
        return any(words in log.read_text() for log in logs)

    logs = list(Path(stack.cloud.state).rglob(f"{vm['name']}-*.log"))
    until(look, f"{vm['name']} did not say {words!r}: {[log.read_text() for log in logs]}")


def running(stack: Project, group: str) -> dict[str, Any] | None:
    vms = [vm for vm in stack.cloud.vms() if vm["status"] == "RUNNING" and vm["group"] == group]
    return vms[0] if vms else None


def machine_type(stack: Project, vm: dict[str, Any]) -> str:
    path = f"/compute/v1/projects/outlast-rehearsal/zones/{vm['zone']}/instances/{vm['name']}"
    return stack.cloud.call("GET", path)["machineType"].rpartition("/")[2]


def test_a_stack_in_a_zone_in_a_region_and_with_gpus(stack: Project):
    stack.configure(experiment="machines", trainer="dummy", args=LONG)

    # What cannot be is refused at preview, in one sentence and without a traceback.
    stack.configure(accelerator="nvidia-tesla-t4", acceleratorCount=1)
    refused = stack.pulumi("preview", "-s", "dev", fails=True)
    assert "n2-standard-2 takes no GPU, only N1 machines do; leave it out" in refused
    assert "Traceback" not in refused
    stack.configure(accelerator="", acceleratorCount=0)
    for image, changes, why in (
        (COMMON_GPU, {"bootDiskGb": 49}, "outlast:bootDiskGb 49: image common-cu129-"),
        ("debian-13", {"machineType": "g2-standard-8"}, "-v20260921 has no GPU driver, and g2-st"),
    ):
        before = stack.folder.joinpath("Pulumi.dev.yaml").read_text()
        stack.configure(image=image, **changes)
        refused = stack.pulumi("preview", "-s", "dev", fails=True)
        assert why in refused and "Traceback" not in refused
        stack.folder.joinpath("Pulumi.dev.yaml").write_text(before)
    stack.up()
    zonal = stack.outputs()
    wait_for_vm(stack)

    # Zonal to regional is a new placement of the same run: its checkpoints and its deadline stay.
    stack.configure(
        zones=["europe-west4-a", "europe-west4-b"],
        machineTypes=["n2-standard-4"],
        localSsd=2,
        mode="burst",
    )
    stack.up()
    regional = stack.outputs()
    same = ("run", "group", "deadline", "prefix")
    assert {key: regional[key] for key in same} == {key: zonal[key] for key in same}
    assert (regional["placement"], regional["groupZone"]) == (1, "")
    assert stack.cloud.group_size(zonal["group"], "europe-west4-a") is None
    assert stack.cloud.group_size(regional["group"], "europe-west4") == 1
    vm = until(lambda: running(stack, regional["group"]), "no VM in the region")
    assert (vm["zone"], machine_type(stack, vm)) == ("europe-west4-a", "n2-standard-2")
    said(stack, vm, "/mnt/local-ssd is on /dev/md/outlast, of 2 local SSDs")
    assert stack.steps() == {}

    # A zone without room: the VM is recreated in the other, and resumes from its checkpoint.
    said(stack, vm, "term 2: ")
    stack.cloud.play(FULL, target="machines")
    stack.cloud.act(vm["name"], "kill")
    moved = until(
        lambda: (found := running(stack, regional["group"])) and found["id"] != vm["id"] and found,
        "no VM in the other zone",
    )
    assert moved["zone"] == "europe-west4-b"
    said(stack, moved, "term 3: resumes at step")

    # Another machine, with GPUs that answer; the run that is done leaves its regional group.
    stack.configure(
        machineType="g2-standard-24",
        machineTypes=[],
        onEnd="keep",
        keepVmMinutes=1,
        onNewRun="replace",
        args={"epochs": 2, "step-ms": 1},
    )
    stack.up()
    second = stack.outputs()
    vm = until(lambda: running(stack, second["group"]), "no VM for the second run")
    said(stack, vm, "the machine stays for 60 s")
    assert stack.cloud.group_size(second["group"], "europe-west4") == 1
    stack.cloud.act(vm["name"], "preempt")
    until(lambda: stack.cloud.group_size(second["group"], "europe-west4") == 0, "it did not leave")
    until(lambda: not running(stack, second["group"]), "it did not power off")
    stack.destroy()
    left = stack.cloud.audit()
    assert not [group for group in left["groups"] if "machines-" in json.dumps(group)]
