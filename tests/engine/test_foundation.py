"""A foundation and an experiment on it, with the real engine and the local cloud."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.base.folders import PACKAGE
from outlast.cli import cloud as clouds
from tests.checkout import copy_checkout
from tests.engine.conftest import Project, until
from tests.engine.test_secrets import keep

ROOT = PACKAGE.parent

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

API = "/compute/v1/projects/outlast-rehearsal"
BUCKET = "outlast-rehearsal-shared"
BASE = {"part": "foundation", "network": "isolated", "nat": True, "bucket": BUCKET}
KEEPER = {"part": "foundation", "bucket": "outlast-rehearsal-kept"}
LENT = "outlast-rehearsal-lent"
UNIFORM = {"uniformBucketLevelAccess": {"enabled": True}}
EXPERIMENT = {
    "foundation": "base",
    "health": "observe",
    "ssh": "iap",
    "secretEnv": {"KEY": "of-foundation"},
    "args": {"epochs": 100000},
}


class Two:
    """The checkout's program, two stacks of it."""

    def __init__(self, project: Project, parts: Any) -> None:
        self.cloud, self.pulumi, self.folder = project.cloud, project.pulumi, project.folder
        definition = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())
        definition["main"] = "checkout"
        definition["runtime"]["options"]["virtualenv"] = str(Path(parts.python).parents[1])
        (self.folder / "checkout").mkdir()
        copy_checkout(self.folder / "checkout")  # which only this test changes
        (self.folder / "Pulumi.yaml").write_text(yaml.safe_dump(definition))

    def init(self, name: str, config: dict[str, Any]) -> None:
        self.configure(name, config)
        self.pulumi("stack", "init", name, "--no-select")

    def configure(self, name: str, config: dict[str, Any]) -> None:
        settings = yaml.safe_load((ROOT / "Pulumi.dev.yaml").read_text())
        settings["config"] |= {f"outlast:{key}": value for key, value in config.items()}
        settings["config"]["outlast:experiment"] = name
        (self.folder / f"Pulumi.{name}.yaml").write_text(yaml.safe_dump(settings))

    def up(self, name: str) -> dict[str, Any]:
        self.pulumi("up", "--yes", "--skip-preview", "-s", name)
        return json.loads(self.pulumi("stack", "output", "--json", "-s", name))

    def destroy(self, name: str, *, fails: bool = False) -> str:
        return self.pulumi("destroy", "--yes", "--skip-preview", "-s", name, fails=fails)

    def steps(self, name: str) -> dict[str, str]:
        """What a preview would do, by logical name."""
        text = self.pulumi("preview", "--json", "-s", name)
        found = json.loads(text[text.index("\n{") if not text.startswith("{") else 0 :])["steps"]
        kept = ("same", "create-replacement", "delete-replaced")
        return {
            step["urn"].rpartition("::")[2]: step["op"] for step in found if step["op"] not in kept
        }

    def kinds(self) -> dict[str, int]:
        """How many of each declared kind there are."""
        found = [path.split("/")[-2] for path in self.cloud.audit()["declared"]]
        return {kind: found.count(kind) for kind in found}


def test_an_experiment_on_a_foundation(project: Project, parts):
    two = Two(project, parts)
    cloud = two.cloud
    secret = keep(cloud, "of-foundation", "value")

    # Nothing to stand on yet.
    two.init("dev", EXPERIMENT)
    said = two.pulumi("preview", "-s", "dev", fails=True)
    assert "outlast:foundation 'organization/outlast/base': cannot be read" in said
    assert "Traceback" not in said

    two.init("base", BASE)
    base = two.up("base")
    assert two.kinds() == {"networks": 1, "subnetworks": 1, "routers": 1}
    network = base["network"].rpartition("/")[2]
    (router,) = cloud.call("GET", f"{API}/regions/europe-west4/routers")["items"]
    assert len(router["nats"]) == 1 and router["network"].endswith(network)
    assert (base["bucket"], base["bucketLocation"]) == (BUCKET, "europe-west4")
    assert not cloud.audit()["groups"] and not cloud.audit()["service_accounts"]
    assert two.steps("base") == {}

    # The experiment declares nothing of it again.
    dev = two.up("dev")
    assert (dev["bucket"], dev["network"]) == (BUCKET, base["network"])
    assert two.kinds() == {"networks": 1, "subnetworks": 1, "routers": 1, "firewalls": 2}
    assert cloud.audit()["roles"] == [base["leaveRole"]]
    template = cloud.call("GET", f"{API}/global/instanceTemplates/{dev['template']}")["properties"]
    (interface,) = template["networkInterfaces"]
    assert interface["network"].endswith(network) and "accessConfigs" not in interface
    assert interface["subnetwork"].endswith(base["subnetwork"])
    assert template["tags"]["items"] == ["outlast-dev"]
    metadata = {item["key"]: item["value"] for item in template["metadata"]["items"]}
    assert (metadata["enable-oslogin"], metadata["outlast-health"]) == ("TRUE", "8099 900")
    for rule in cloud.call("GET", f"{API}/global/firewalls")["items"]:
        assert rule["targetTags"] == ["outlast-dev"] and rule["network"].endswith(network)
    (reader,) = cloud.call("GET", f"{secret}:getIamPolicy")["bindings"]
    assert reader["role"] == "roles/secretmanager.secretAccessor"
    assert two.steps("dev") == {}

    # What boot.sh started answers to the group.
    group = f"{API}/zones/{dev['groupZone']}/instanceGroupManagers/{dev['group']}"

    def healthy() -> bool:
        members = cloud.call("POST", f"{group}/listManagedInstances")["managedInstances"]
        states = [
            one["detailedHealthState"] for m in members for one in m.get("instanceHealth", [])
        ]
        return states == ["HEALTHY"]

    until(healthy, "the VM says that it gets on")
    lifecycle = cloud.call("GET", group)["instanceLifecyclePolicy"]
    assert lifecycle["onFailedHealthCheck"] == "DO_NOTHING"

    # A foundation in use stays whole.
    said = two.destroy("base", fails=True)
    assert "foundation organization/outlast/base: experiments use it: dev" in said
    assert "Traceback" not in said
    assert two.steps("base") == {}
    assert two.kinds()["networks"] == 1

    # Health checks are off: template and group change before the check and its rule are deleted.
    two.configure("dev", {**EXPERIMENT, "health": "off", "ssh": ""})
    assert {
        k: v for k, v in two.steps("dev").items() if not k.startswith(("access", "health"))
    } == {
        "trainer-template": "replace",
        "trainer-group": "update",
    }
    two.up("dev")
    assert "firewalls" not in two.kinds() and not cloud.audit()["health_checks"]

    # The foundation without its way out.
    two.configure("base", {**BASE, "nat": False})
    assert two.steps("base") == {"network-router": "delete", "network-nat": "delete"}

    two.destroy("dev")
    two.destroy("base")
    left = cloud.audit()
    for kind in ("templates", "groups", "vms", "service_accounts", "roles", "declared"):
        assert not left[kind], kind
    assert BUCKET in {bucket["name"] for bucket in left["buckets"]}
    assert not cloud.call("GET", f"{secret}:getIamPolicy").get("bindings")
    cloud.call("DELETE", secret)


def test_a_bucket_is_created_kept_adopted_or_another_teams(project: Project, parts):
    two = Two(project, parts)
    cloud = two.cloud

    def bucket(name: str) -> dict[str, Any]:
        return cloud.call("GET", f"/storage/v1/b/{name}")

    two.init("base", {**KEEPER, "softDeleteDays": 7, "versioning": True})
    two.up("base")
    made = bucket(KEEPER["bucket"])
    assert made["softDeletePolicy"]["retentionDurationSeconds"] == str(7 * 86_400)
    assert made["versioning"]["enabled"] and made["labels"]["managed-by"] == "outlast"
    access = made["iamConfiguration"]
    assert access["uniformBucketLevelAccess"]["enabled"] and "lifecycle" not in made
    assert access["publicAccessPrevention"] == "enforced"

    # Kept at destroy, adopted by the next, which takes no protection away.
    two.destroy("base")
    two.configure("base", KEEPER)
    two.up("base")
    kept = bucket(KEEPER["bucket"])
    for key in ("timeCreated", "versioning", "softDeletePolicy", "labels"):
        assert kept[key] == made[key]

    # Another team's bucket is used as it is, and ours is left as it was.
    lent = {"name": LENT, "location": "EUROPE-WEST4", "iamConfiguration": UNIFORM}
    theirs = cloud.call("POST", f"/storage/v1/b?project={clouds.PROJECT}", lent)
    two.configure("base", {**KEEPER, "bucket": LENT, "bucketMode": "existing"})
    base = two.up("base")
    assert (base["bucket"], base["bucketLocation"]) == (LENT, "europe-west4")
    two.destroy("base")
    assert bucket(LENT) == theirs and bucket(KEEPER["bucket"]) == kept
