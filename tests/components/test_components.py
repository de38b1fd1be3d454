"""Each component by itself: what it declares, as its inventory lists it."""

import pulumi
import pytest

from outlast.components.bundle_object import BundleObject
from outlast.components.checkpoint_bucket import CheckpointBucket
from outlast.components.foundation_use import FoundationUse
from outlast.components.healing_group import HealingGroup, physical_name
from outlast.components.health import HealthCheck
from outlast.components.image_family import ImageFamily
from outlast.components.leave_role import LeaveRole, role_id
from outlast.components.network import Network
from outlast.components.vm_access import VmAccess
from outlast.components.vm_identity import VmIdentity
from outlast.components.vm_template import VmTemplate
from outlast.dynamic.foundation_guard import FoundationGuard
from outlast.dynamic.run_pin import RunPin
from outlast.spec import account, labels
from tests.components import inventory

COMPONENTS = (
    *(BundleObject, CheckpointBucket, FoundationUse, HealingGroup, HealthCheck, LeaveRole),
    *(ImageFamily, Network, RunPin, VmAccess, VmIdentity, VmTemplate),
)
LABELS = labels.of_stack("outlast", "Dev", "dev", {"team": "vision"})


def bucket(**changes):
    return CheckpointBucket(
        "bucket",
        {"bucket": "p-outlast", "project": "p", "location": "europe-west4", **changes},
    )


def identity(**changes):
    return VmIdentity(
        "identity",
        {
            "project": "p",
            "experiment": "a-b",
            "bucket": "p-outlast",
            "written": "experiments/a-b/",
            "leave_role": "projects/p/roles/outlast_a_b",
            **changes,
        },
    )


def template(**changes):
    return VmTemplate(
        "trainer",
        {
            "project": "p",
            "machine_type": "e2-standard-2",
            "image": "projects/p/global/images/family/f",
            "disk_gb": 50,
            "disk_type": "pd-balanced",
            "network": "default",
            "subnetwork": "",
            "external_ip": True,
            "tags": [],
            "service_account": "vm@p.iam.gserviceaccount.com",
            "metadata": {"startup-script": "#!/bin/bash\n"},
            "labels": LABELS,
            "deadline": "2026-11-27T23:59:59Z",
            "now": "2026-11-27T23:59:58Z",
            "accelerator": "",
            "accelerator_count": 0,
            "local_ssd": 0,
            "min_cpu_platform": "",
            "spot": True,
            "restarts": False,
            "notice": True,
            **changes,
        },
    )


def group(**changes):
    return HealingGroup(
        "trainer",
        {
            "project": "p",
            "zone": "europe-west4-a",
            "region": "europe-west4",
            "zones": [],
            "machine_types": ["e2-standard-2"],
            "experiment": "dev",
            "run": "0123456789",
            "resume": 2,
            "placement": 1,
            "size": 1,
            "template": "projects/p/global/instanceTemplates/t?uniqueId=1",
            "update": "opportunistic",
            "health": None,
            "repairs": False,
            "after": [],
            **changes,
        },
    )


def network(**changes):
    return Network("network", {"project": "p", "region": "europe-west4", **changes})


def access(**changes):
    return VmAccess(
        "access",
        {
            "project": "p",
            "network": "n",
            "tag": "outlast-dev",
            "health_port": 0,
            "ssh": False,
            **changes,
        },
    )


CHECK = "projects/p/global/healthChecks/h"
CASES = {
    "network": network,
    "network_nat": lambda: network(nat=True),
    "vm_access_health": lambda: access(health_port=8099),
    "vm_access_ssh": lambda: access(ssh=True),
    "health_check": lambda: HealthCheck("health", {"project": "p", "port": 8099}),
    "image_family": lambda: ImageFamily(
        "image",
        {
            "recipe": {"base": "debian-cloud/debian-13", "packages": ["git"]},
            "hash": "0123456789abcdef",
            "family": "own",
            "project": "images",
            "labels": LABELS,
            "service_account": "",
            "bundle": "",
            "bundle_sha256": "",
            "payer": "",
            "timeouts": "{}",
            "network": "default",
            "subnetwork": "",
            "external_ip": True,
            "after": [],
            "users": ["serviceAccount:1@cloudservices.gserviceaccount.com"],
        },
    ),
    "leave_role": lambda: LeaveRole("leave", {"project": "p", "stack": "a-b", "week": "2026w49"}),
    "foundation_use": lambda: FoundationUse(
        "use",
        {
            "bucket": "p-outlast",
            "object": "foundations/outlast-base/dev",
            "owner": "organization/outlast/dev",
        },
    ),
    "foundation_guard": lambda: FoundationGuard(
        "foundation", {"owner": "organization/outlast/base", "bucket": "p-outlast"}
    ),
    "checkpoint_bucket_kept": lambda: bucket(soft_delete_days=7, versioning=True),
    "vm_template_isolated": lambda: template(
        network="n", subnetwork="s", external_ip=False, tags=["outlast-dev"]
    ),
    "healing_group_observed": lambda: group(health=CHECK),
    "healing_group_repaired": lambda: group(health=CHECK, repairs=True),
    "checkpoint_bucket": bucket,
    "checkpoint_bucket_adopted": lambda: bucket(adopt=True),
    "vm_identity": identity,
    "vm_identity_secret": lambda: identity(secrets=[("keys", "deploy"), ("p", "wandb")]),
    "vm_identity_reads": lambda: identity(reads=["gs://other/digits", "gs://p-outlast/faces/"]),
    "vm_identity_payer": lambda: identity(payer="pays"),
    "vm_identity_sweep": lambda: identity(sweep="lr"),
    "bundle_object": lambda: BundleObject(
        "bundle",
        {"bucket": "p-outlast", "object": "experiments/dev/bundles/00.zip", "path": "00.zip"},
    ),
    "vm_template": template,
    "vm_template_without_notice": lambda: template(notice=False),
    "vm_template_standard": lambda: template(spot=False),
    "vm_template_gpu": lambda: template(
        machine_type="n1-standard-8",
        accelerator="nvidia-tesla-t4",
        accelerator_count=2,
        local_ssd=2,
        min_cpu_platform="Intel Skylake",
        spot=False,
        restarts=True,
    ),
    "healing_group": group,
    "healing_group_regional": lambda: group(
        zone="",
        zones=["europe-west4-a", "europe-west4-b", "europe-west4-c"],
        machine_types=["g2-standard-8", "g2-standard-12"],
    ),
    "healing_group_whole_region": lambda: group(zone=""),
    "run_pin": lambda: RunPin(
        "run",
        {
            "owner": "organization/outlast/dev",
            "bucket": "p-outlast",
            "prefix": "experiments/dev",
            "run": "0123456789",
            "resume": 0,
            "zone": "europe-west4-a",
            "image": "projects/p/global/images/family/f",
            "maxRunMinutes": 60,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_inventory(name):
    def program():
        CASES[name]()

    inventory.check(inventory.record(program), name)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("run_pin", "foundation_guard")]
)
def test_outputs_are_registered_and_children_are_children(name):
    def program():
        CASES[name]()

    declared = inventory.record(program).declared
    (component,) = [one for one in declared.values() if one.type.startswith("outlast:index:")]
    annotated = set(type_of(component.type).__annotations__) - {"bindings"}
    assert component.outputs is not None
    assert set(component.outputs) == annotated
    assert None not in component.outputs.values()
    children = [one for one in declared.values() if one is not component]
    assert children
    for child in children:
        assert child.parent == component.urn
        assert child.name.startswith(f"{component.name}-")


def type_of(token):
    name = token.rpartition(":")[2]
    return {one.__name__: one for one in COMPONENTS}[name]


def test_the_group_waits_as_its_argument_says():
    def program():
        made = identity()
        group(after=made.bindings)

    declared = inventory.record(program).declared
    (made,) = [one for one in declared.values() if one.type.endswith(":InstanceGroupManager")]
    assert {urn.rpartition("::")[2] for urn in made.dependencies} == {
        "identity-leave",
        "identity-write",
        "identity-read",
    }


def declared_inputs(make, kind):
    """The inputs of the one resource of a kind that a component declares."""
    declared = inventory.record(lambda: make() and None).declared
    (made,) = [one for one in declared.values() if one.type.endswith(f":{kind}")]
    return made.inputs


def test_what_an_organization_asks_for_is_declared():
    key = "projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k"
    made = declared_inputs(
        lambda: template(
            shielded=True,
            confidential="SEV",
            kms_key=key,
            resource_tags={"tagKeys/1": "tagValues/2"},
        ),
        "InstanceTemplate",
    )
    assert made["shieldedInstanceConfig"] == {
        "enableIntegrityMonitoring": True,
        "enableSecureBoot": True,
        "enableVtpm": True,
    }
    assert made["confidentialInstanceConfig"]["confidentialInstanceType"] == "SEV"
    assert made["disks"][0]["diskEncryptionKey"] == {"kmsKeySelfLink": key}
    assert made["resourceManagerTags"] == {"tagKeys/1": "tagValues/2"}
    assert declared_inputs(lambda: bucket(kms_key=key), "Bucket")["encryption"] == {
        "defaultKmsKeyName": key
    }
    made = declared_inputs(lambda: network(ip_range="10.9.0.0/24"), "Subnetwork")
    assert made["ipCidrRange"] == "10.9.0.0/24"


def test_an_existing_account_is_bound_and_none_is_created():
    email = "vm@p.iam.gserviceaccount.com"
    declared = inventory.record(lambda: identity(account=email) and None).declared
    kinds = [one.type.rpartition(":")[2] for one in declared.values()]
    assert "Account" not in kinds and kinds.count("BucketIAMMember") == 2
    members = {one.inputs["member"] for one in declared.values() if "member" in one.inputs}
    assert members == {f"serviceAccount:{email}"}


@pytest.mark.parametrize(("resume", "name"), [(0, "dev-0123456789"), (3, "dev-0123456789-r3")])
def test_physical_name(resume, name):
    assert physical_name("dev", "0123456789", resume) == name


def test_the_longest_group_name_still_names_vms():
    assert len(physical_name("e" * 40, "0123456789", 9999)) <= 58


@pytest.mark.parametrize("experiment", ["a", "dev", "e" * 22, "e" * 23, "e" * 13 + "-" * 9 + "x"])
def test_account_ids_are_legal(experiment):
    found = account.account_id(experiment)
    assert 6 <= len(found) <= 30
    assert found[-1].isalnum()


def test_long_experiments_do_not_share_an_account():
    one, other = "e" * 39 + "a", "e" * 39 + "b"
    assert account.account_id(one) != account.account_id(other)


def test_role_ids_have_no_dash_and_stay_apart():
    assert role_id("a-b", "2026w49") == "outlast_a_b_2026w49"
    assert role_id("ab", "2026w49") == "outlast_ab_2026w49"
    assert len(role_id("e" * 40, "2026w49")) <= 64


@pytest.mark.parametrize(
    ("text", "label"),
    [("Dev", "dev"), ("a.b/c", "a-b-c"), ("ü" * 3, "---"), ("x" * 80, "x" * 63), ("", "")],
)
def test_sanitise(text, label):
    assert labels.sanitise(text) == label


def test_ours_win_over_the_users():
    assert labels.of_stack("p", "s", "e", {"stack": "mine"})["stack"] == "s"


def test_a_failing_inventory_prints_how_to_update_it(monkeypatch):
    monkeypatch.delenv("OUTLAST_INVENTORY", raising=False)
    recorder = inventory.record(lambda: group(zone="elsewhere") and None)
    with pytest.raises(AssertionError, match="(?s)elsewhere.*OUTLAST_INVENTORY=update python"):
        inventory.check(recorder, "healing_group")


def test_differences_sees_absent_keys_counts_and_strangers():
    recorder = inventory.record(lambda: group() and None)
    actual = [one for one in recorder.declared.values() if "Manager" in one.type]
    kind, name = actual[0].type, actual[0].name
    entry = {"type": kind, "name": name}
    found = inventory.differences
    assert found([entry], actual) == []
    assert found([{**entry, "count": 2}], actual)
    assert found([], actual)
    assert found([{**entry, "inputs": {"zone": inventory.ABSENT}}], actual)
    assert found([{**entry, "inputs": {"autoHealingPolicies": inventory.ABSENT}}], actual) == []
    assert found([{**entry, "inputs": {"zone": inventory.ANY}}], actual) == []
    assert found([{**entry, "inputs": {"updatePolicy": {"type": "PROACTIVE"}}}], actual)


def test_a_look_up_through_the_engine_would_fail_the_test():
    answers = inventory.Answers()
    with pytest.raises(AssertionError, match="no look-up"):
        answers.call(pulumi.runtime.MockCallArgs("gcp:storage/getBucket:getBucket", {}, ""))


@pytest.mark.parametrize("spot", [True, False])
def test_a_deadline_that_is_over_becomes_a_short_limit(spot: bool):
    """The platform refuses a template whose time is over, and a template without a limit bills."""
    recorder = inventory.record(lambda: template(spot=spot, now="2026-11-27T23:59:59Z") and None)
    (found,) = [one for one in recorder.declared.values() if "InstanceTemplate" in one.type]
    scheduling = found.inputs["scheduling"]
    assert "terminationTime" not in scheduling
    assert scheduling["maxRunDuration"] == {"seconds": 60}
    assert scheduling["instanceTerminationAction"] == "DELETE"
