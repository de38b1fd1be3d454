"""Network, health, bucket and foundation in the program and its settings."""

import json
import re

import pulumi
import pytest

from outlast.settings import SettingsError, lookups
from tests.program import stack
from tests.program.test_program import only, program
from tests.settings.test_settings import check, refusal

__all__ = ["program"]

BASE = {"outlast:part": "foundation", "outlast:experiment": "base"}
OUTPUTS = {
    "part": "foundation",
    "project": "acme-research",
    "region": "europe-west4",
    "bucket": "shared",
    "network": "projects/acme-research/global/networks/n",
    "subnetwork": "projects/acme-research/regions/europe-west4/subnetworks/s",
    "externalIp": False,
    "nat": True,
    "image": "",
    "leaveRole": "projects/acme-research/roles/outlast_base",
}


def kinds(recorder) -> set[str]:
    return {one.type.rpartition(":")[2] for one in recorder.declared.values()}


def test_the_default_network_declares_no_resources(program):
    recorder = program()
    assert kinds(recorder).isdisjoint({"Network", "Firewall", "HealthCheck", "RouterNat"})
    (interface,) = only(recorder, "InstanceTemplate").inputs["networkInterfaces"]
    assert interface == {"network": "default", "accessConfigs": [{}]}


def test_an_isolated_network_has_no_addresses_and_comes_before_the_vms(program):
    recorder = program(**{"outlast:network": "isolated", "outlast:nat": "true"})
    (interface,) = only(recorder, "InstanceTemplate").inputs["networkInterfaces"]
    assert set(interface) == {"network", "subnetwork"}
    waited = {
        urn.rpartition("::")[2] for urn in only(recorder, "InstanceGroupManager").dependencies
    }
    assert {"network-subnetwork", "network-nat"} <= waited


def test_health_and_ssh_each_open_one_port_only_to_these_vms(program):
    recorder = program(**{"outlast:health": "repair", "outlast:ssh": "iap"})
    rules = [one.inputs for one in recorder.declared.values() if one.type.endswith(":Firewall")]
    assert {rule["allows"][0]["ports"][0]: rule["sourceRanges"] for rule in rules} == {
        "8099": ["130.211.0.0/22", "35.191.0.0/16"],
        "22": ["35.235.240.0/20"],
    }
    template = only(recorder, "InstanceTemplate").inputs
    assert {tuple(rule["targetTags"]) for rule in rules} == {tuple(template["tags"])}
    assert template["tags"] == ["outlast-dev"]
    assert template["metadata"]["outlast-health"] == "8099 2400"
    assert template["metadata"]["enable-oslogin"] == "TRUE"
    group = only(recorder, "InstanceGroupManager").inputs
    assert group["instanceLifecyclePolicy"]["onFailedHealthCheck"] == "REPAIR"
    assert group["autoHealingPolicies"]["initialDelaySec"] == 1800


def test_an_existing_bucket_is_not_declared(program):
    recorder = program(**{"outlast:bucketMode": "existing", "outlast:bucket": "theirs"})
    assert "Bucket" not in kinds(recorder)
    assert recorder.exports["bucket"] == "theirs"


def test_a_foundation_has_no_run_but_a_guard_over_all_its_resources(program):
    recorder = program(**BASE, **{"outlast:network": "isolated"})
    assert kinds(recorder) == {
        *("CheckpointBucket", "Bucket", "Network", "Subnetwork", "LeaveRole", "IAMCustomRole"),
        *("Foundation", "FoundationGuard"),
    }
    guard = only(recorder, "FoundationGuard")
    waited = {urn.rpartition("::")[2] for urn in guard.dependencies}
    assert {"bucket-bucket", "network-vpc", "network-subnetwork", "leave-role"} <= waited
    assert set(recorder.exports) == {*OUTPUTS, "owner", "bucketLocation"}
    role = recorder.exports["leaveRole"]
    assert re.fullmatch("projects/outlast-rehearsal/roles/outlast_base_20[0-9]{2}w[0-9]{2}", role)


def test_a_foundation_bakes_the_family_of_its_experiments(program, monkeypatch):
    recipe = {"family": "shared", "packages": ["git"]}
    recorder = program(
        **BASE,
        **{
            "outlast:imageRecipe": json.dumps(recipe),
            "outlast:network": "isolated",
            "outlast:nat": "true",
        },
    )
    family = "projects/outlast-rehearsal/global/images/family/shared"
    assert recorder.exports["image"] == family
    bake = only(recorder, "ImageBake")
    assert (bake.inputs["subnetwork"], bake.inputs["external_ip"]) == (
        recorder.exports["subnetwork"],
        False,
    )
    # No rule lets clients in, it waits for its way out, and it goes after the guard.
    assert "VmIdentity" not in kinds(recorder) and bake.inputs["service_account"] == ""
    assert "network-nat" in {urn.rpartition("::")[2] for urn in bake.dependencies}
    guard = only(recorder, "FoundationGuard")
    assert bake.urn in guard.dependencies

    outputs = {**OUTPUTS, "project": "outlast-rehearsal", "image": family}
    monkeypatch.setattr(lookups, "read_foundation", lambda name: outputs)
    default = stack.defaults()["outlast:image"]
    recorder = program(**{"outlast:foundation": "base", "outlast:image": default})
    assert only(recorder, "RunPin").inputs["image"] == family
    assert "ImageBake" not in kinds(recorder)


def test_a_builder_may_read_its_inputs(program):
    data = [{"url": f"gs://{where}/y.npz", "sha256": "0" * 64} for where in ("b/a", "own/data")]
    recorder = program(
        **BASE,
        **{
            "outlast:bucket": "own",
            "outlast:imageRecipe": json.dumps({"data": data[:1], "trainers": True}),
        },
    )
    bound = [one.inputs for one in recorder.declared.values() if "BucketIAMMember" in one.type]
    assert [one["condition"]["description"] for one in bound if one["bucket"] == "b"] == [
        "Only a/y.npz"
    ]
    bake = only(recorder, "ImageBake")
    assert bake.inputs["service_account"] and bake.inputs["bundle"].startswith("gs://own/")
    waited = {urn.rpartition("::")[2] for urn in bake.dependencies}
    assert {"identity-read", "bundle-object"} <= waited


def test_an_experiment_on_a_foundation_declares_none_of_it(program, monkeypatch):
    outputs = {**OUTPUTS, "project": "outlast-rehearsal"}
    asked = []
    monkeypatch.setattr(lookups, "read_foundation", lambda name: asked.append(name) or outputs)
    recorder = program(**{"outlast:foundation": "base"})
    assert asked == ["organization/outlast/base"]
    assert kinds(recorder).isdisjoint({"Bucket", "Network", "IAMCustomRole", "FoundationGuard"})
    note = only(recorder, "FoundationUse")
    (child,) = [one for one in recorder.declared.values() if one.parent == note.urn]
    assert (child.inputs["bucket"], child.inputs["name"]) == (
        "shared",
        "foundations/outlast-base/dev",
    )
    assert only(recorder, "IAMMember").inputs["role"] == OUTPUTS["leaveRole"]


# -- Settings


def test_a_foundation_is_named_as_the_engine_names_stacks():
    for name in ("base", "outlast/base", "organization/outlast/base"):
        found = check({"outlast:foundation": name}, foundation=OUTPUTS)
        assert found.foundation == "organization/outlast/base"
    assert (found.bucket, found.network_rules.network) == ("shared", OUTPUTS["network"])
    assert found.leave_role == OUTPUTS["leaveRole"] and not found.network_rules.external_ip
    assert "must be a stack's name" in refusal({"outlast:foundation": "a b"})


def test_a_missing_nat_of_a_foundation_is_named():
    said = refusal({"outlast:foundation": "base"}, foundation={**OUTPUTS, "nat": False})
    assert "set nat to true" in said and said.endswith("; the network is set in stack base")


def test_settings_that_conflict_with_a_foundation_are_refused():
    said = refusal({"outlast:foundation": "base", "outlast:nat": "true"}, foundation=OUTPUTS)
    assert said == (
        "outlast:nat beside outlast:foundation: is the foundation's; leave it out, or set it in"
        " stack base"
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"network": "isolated"},
            "reach Google's APIs only, and a VM of the stock image projects/",
        ),
        ({"network": "Corp"}, "outlast:network 'Corp': must be default, isolated or the name"),
        ({"subnetwork": "a/b"}, "outlast:subnetwork 'a/b': must be the name of a subnetwork"),
        ({"externalIp": "maybe"}, "outlast:externalIp 'maybe': must be true or false"),
        ({"ssh": "open"}, "outlast:ssh 'open': must be iap; set outlast:ssh or leave it empty"),
        ({"health": "on"}, "outlast:health 'on': must be off, observe or repair"),
        (
            {"health": "repair", "healthLimitSec": "60"},
            "outlast:healthLimitSec 60: with health rep",
        ),
        ({"softDeleteDays": "a week"}, "'a week': must be a whole number; set outlast:soft"),
        ({"softDeleteDays": "3"}, "outlast:softDeleteDays 3: must be 0, or 7 to 90"),
        ({"bucketMode": "mine"}, "outlast:bucketMode 'mine': must be managed or existing"),
        ({"part": "both"}, "outlast:part 'both': must be experiment, foundation or sweep"),
        ({"part": "foundation", "foundation": "base"}, "a foundation cannot use another"),
        (
            {"part": "foundation", "args": '{"epochs": 5}'},
            "outlast:args {'epochs': 5} beside outlast:part foundation: is a run's",
        ),
        ({"part": "foundation", "resume": "3"}, "outlast:resume '3' beside outlast:part found"),
        (
            {"bucketMode": "existing", "softDeleteDays": "7"},
            "outlast:softDeleteDays '7' beside outlast:bucketMode existing: such a bucket",
        ),
        (
            {"bucketMode": "existing", "versioning": "true"},
            "outlast:versioning 'true' beside outlast:bucketMode existing: such a bucket",
        ),
        (
            {"imageRecipe": '{"trainers": true, "base": "Debian!"}'},
            "outlast:imageRecipe.base 'Debian!': must name an image or an image family",
        ),
        (
            {"imageRecipe": '{"packages": ["gcc"], "zone": "europe-west4-z"}'},
            "outlast:imageRecipe.zone 'europe-west4-z': europe-west4 has the zones",
        ),
        (
            {"imageRecipe": '{"packages": ["gcc"], "machineType": "e2-standrad-4"}'},
            "outlast:imageRecipe.machineType 'e2-standrad-4': there is no such machine type; the"
            " nearest: e2-standard-4",
        ),
        (
            {"imageRecipe": '{"packages": ["gcc"], "machineType": "c4-standard-4"}'},
            "'c4-standard-4': the builder's disk is pd-balanced, and it takes hyperdisk",
        ),
        (
            {"imageRecipe": '{"packages": ["gcc"], "machineType": "a3-highgpu-1g"}'},
            "'a3-highgpu-1g': exists only as a Spot VM, and a builder is a standard VM; set"
            " outlast:imageRecipe.machineType to e2-standard-8 for example",
        ),
        (
            {"imageRecipe": '{"packages": ["gcc"], "zone": "europe-west9-a"}', "subnetwork": "s"},
            "outlast:imageRecipe.zone 'europe-west9-a': the builder's subnetwork is in",
        ),
        (
            {"imageRecipe": '{"packages": ["gcc"]}', "delivery": "image"},
            "the image that is baked would not hold the code; add trainers true",
        ),
        (
            {"imageRecipe": '{"packages": ["gcc", 3]}'},
            "outlast:imageRecipe.packages[1] 3: must be a package's name, or NAME=VERSION; correct",
        ),
        (
            {"imageRecipe": '{"trainers": true}', "network": "isolated"},
            "outlast:imageRecipe beside outlast:network 'isolated': the builder installs from the",
        ),
    ],
)
def test_refused(values, said):
    assert said in refusal({f"outlast:{key}": value for key, value in values.items()})


def test_an_isolated_vm_of_a_baked_image_needs_no_internet():
    image = {"outlast:image": "projects/acme-research/global/images/family/outlast"}
    found = check({"outlast:network": "isolated", **image})
    assert found.network_rules.isolated and not found.network_rules.internet


def test_a_missing_foundation_gives_one_sentence(monkeypatch):
    def fail(*_args):
        raise RuntimeError("invocation of x returned an error: unknown stack\nTraceback")

    monkeypatch.setattr(pulumi.runtime, "invoke", fail)
    with pytest.raises(SettingsError) as caught:
        lookups.read_foundation("organization/outlast/base")
    assert str(caught.value) == (
        "outlast:foundation 'organization/outlast/base': cannot be read (unknown stack); bring that"
        " stack up first, in this backend"
    )


def test_every_key_of_the_foundation_is_declared():
    from outlast.spec import foundation

    keys = {f"outlast:{key}" for key in (*foundation.OUTPUTS, *foundation.OWN_ONLY)}
    assert keys <= set(stack.defaults())
