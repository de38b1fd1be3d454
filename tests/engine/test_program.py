"""The repository's own program under the real engine: what each change does, and what it leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.base.folders import PACKAGE
from outlast.cli import cloud as clouds
from outlast.spec import labels
from tests.engine.conftest import Project, until

ROOT = PACKAGE.parent

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


@pytest.fixture
def stack(project: Project, parts) -> Project:
    """The checkout's program with its `dev` settings and a run that lasts."""
    definition = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
    definition["main"] = "checkout"
    definition["runtime"]["options"]["virtualenv"] = str(Path(parts.python).parents[1])
    settings = yaml.safe_load((ROOT / "Pulumi.dev.yaml").read_text())
    settings["config"]["outlast:args"] = {"epochs": 100000}
    (project.folder / "checkout").symlink_to(ROOT, target_is_directory=True)
    (project.folder / "Pulumi.yaml").write_text(yaml.safe_dump(definition))
    (project.folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump(settings))
    project.pulumi("stack", "init", "dev")
    return project


def wait_for_vm(stack: Project) -> dict[str, Any]:
    (found,) = until(
        lambda: [vm for vm in stack.cloud.vms() if vm["status"] == "RUNNING"], "a VM is up"
    )
    return found


def resize(stack: Project, group: str, zone: str, size: int) -> None:
    path = f"/compute/v1/projects/outlast-rehearsal/zones/{zone}/instanceGroupManagers/{group}"
    stack.cloud.call("POST", f"{path}/resize?size={size}")


def audited(stack: Project) -> list[str]:
    """What an audit finds of the project's resources."""
    text = stack.outlast("audit", "--min-age", "0", "--json", fails=None)
    found = json.loads(text[text.index("{") :])
    return [f"{one['kind']} {one['name']}" for one in found["findings"] if one["stack"]]


def test_the_life_of_a_stack(stack: Project):
    # The cloud is every test's of this tier: a bucket that another team lends is not a leftover.
    others = {bucket["name"] for bucket in stack.cloud.audit()["buckets"]} - {
        f"{clouds.PROJECT}-outlast"
    }
    stack.up()
    first = stack.outputs()
    vm = wait_for_vm(stack)
    assert (vm["group"], vm["zone"]) == (first["group"], first["groupZone"])

    # Nothing changed, nothing done.
    assert stack.steps() == {}

    # A label: another template, which the group gets; the VM is left alone.
    stack.set("outlast:labels.team", "blue")
    assert stack.steps() == {
        "trainer-template": ("replace", ["disks", "labels"]),
        "trainer-group": ("update", ["versions"]),
    }
    # Should the VM hold the old template, a later update deletes it.
    stack.cloud.call("POST", "/_local/switches", {"vms_hold_template": True})
    assert "is already being used by" in stack.up(fails=True)
    stack.cloud.call("POST", "/_local/switches", {"vms_hold_template": False})
    stack.up()
    labelled = stack.outputs()
    assert labelled["template"] != first["template"]
    assert {**labelled, "template": 0} == {**first, "template": 0}
    after = wait_for_vm(stack)
    assert (after["id"], after["pid"], after["boots"]) == (vm["id"], vm["pid"], vm["boots"])

    # A hyperparameter: a new run in a new group, the old VM gone.
    stack.set("outlast:args.epochs", "99999")
    stack.set("outlast:onNewRun", "replace")
    stack.up()
    second = stack.outputs()
    assert second["run"] != first["run"] and second["group"] != first["group"]
    until(
        lambda: [vm["group"] for vm in stack.cloud.vms()] == [second["group"]],
        "the old run's VM is gone",
    )

    # An audit reads the state and names nothing of the stack, only what nothing declares.
    assert audited(stack) == []
    zone = second["groupZone"]
    lost = {"name": "lost", "labels": labels.of_stack("outlast", "dev", "dev", {})}
    disks = f"/compute/v1/projects/outlast-rehearsal/zones/{zone}/disks"
    stack.cloud.call("POST", disks, lost)
    assert audited(stack) == ["disk lost"]
    stack.cloud.call("DELETE", f"{disks}/lost")

    # A run that took itself out of its group stays out, whatever a refresh finds.
    wait_for_vm(stack)
    resize(stack, second["group"], second["groupZone"], 0)
    stack.pulumi("preview", "--refresh", "--expect-no-changes", "-s", "dev")
    said = stack.up("--refresh")
    assert "updated" not in said.rpartition("Resources:")[2]
    assert stack.cloud.group_size(second["group"], second["groupZone"]) == 0

    # The end: the bucket is kept, and adopted again.
    stack.destroy()
    left = stack.cloud.audit()
    kept = {bucket["name"] for bucket in left["buckets"]}
    assert first["bucket"] in kept and kept - others == {first["bucket"]}
    for kind in ("templates", "groups", "vms", "disks", "service_accounts", "roles", "bindings"):
        assert not left[kind], kind
    # The engine's import knows no labels, so that what it adopts is given them next.
    operation, differs = stack.steps()["bucket-bucket"]
    assert operation == "update" and differs and all(name.startswith("labels") for name in differs)
