"""The engine's provider for the local cloud, called as the engine calls it."""

import hashlib
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from outlast.localcloud.provider import changes, rest, values
from outlast.localcloud.provider.kind import DEFAULTS, auto_name
from outlast.localcloud.provider.server import KINDS, start
from outlast.localcloud.provider.values import (
    UNKNOWN,
    Asset,
    decode,
    encode,
)
from tests.localcloud.local_cloud import PROJECT, LocalCloud

ZONE = "europe-west4-a"
BUCKET = "gcp:storage/bucket:Bucket"
OBJECT = "gcp:storage/bucketObject:BucketObject"
BUCKET_MEMBER = "gcp:storage/bucketIAMMember:BucketIAMMember"
ACCOUNT = "gcp:serviceaccount/account:Account"
ROLE = "gcp:projects/iAMCustomRole:IAMCustomRole"
MEMBER = "gcp:projects/iAMMember:IAMMember"
TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
GROUP = "gcp:compute/instanceGroupManager:InstanceGroupManager"
REGION = "europe-west4"
REGION_GROUP = "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager"
NETWORK = "gcp:compute/network:Network"
SUBNETWORK = "gcp:compute/subnetwork:Subnetwork"
ROUTER = "gcp:compute/router:Router"
NAT = "gcp:compute/routerNat:RouterNat"
FIREWALL = "gcp:compute/firewall:Firewall"
HEALTH_CHECK = "gcp:compute/healthCheck:HealthCheck"
SECRET_MEMBER = "gcp:secretmanager/secretIamMember:SecretIamMember"
UPDATE = provider_pb2.PropertyDiff.UPDATE
UPDATE_REPLACE = provider_pb2.PropertyDiff.UPDATE_REPLACE
ADD_REPLACE = provider_pb2.PropertyDiff.ADD_REPLACE
DIFF_NONE = provider_pb2.DiffResponse.DIFF_NONE


class Engine:
    """Calls a provider as the engine does, for one stack."""

    def __init__(self, stub: provider_pb2_grpc.ResourceProviderStub, stack: str = "dev") -> None:
        self.stub = stub
        self.stack = stack

    def configure(self, **config: Any) -> None:
        settings = {"project": PROJECT, "zone": ZONE, "region": REGION, **config}
        urn = f"urn:pulumi:{self.stack}::outlast::pulumi:providers:gcp::default"
        self.stub.Configure(provider_pb2.ConfigureRequest(urn=urn, args=encode(settings)))

    def urn(self, token: str, name: str) -> str:
        return f"urn:pulumi:{self.stack}::outlast::outlast:index:Parent${token}::{name}"

    def check(
        self, token: str, inputs: dict[str, Any], old: dict[str, Any] | None = None, seed=b"1"
    ) -> tuple[dict[str, Any], list[str]]:
        answer = self.stub.Check(
            provider_pb2.CheckRequest(
                urn=self.urn(token, "thing"),
                news=encode(inputs),
                olds=encode(old or {}),
                randomSeed=seed,
            )
        )
        return decode(answer.inputs), [failure.reason for failure in answer.failures]

    def create(self, token: str, inputs: dict[str, Any], *, preview: bool = False):
        checked, failures = self.check(token, inputs, seed=uuid.uuid4().bytes)
        assert not failures
        answer = self.stub.Create(
            provider_pb2.CreateRequest(
                urn=self.urn(token, "thing"), properties=encode(checked), preview=preview
            )
        )
        return answer.id, checked, decode(answer.properties)

    def diff(self, token: str, old: dict[str, Any], new: dict[str, Any]):
        checked, failures = self.check(token, new, old)
        assert not failures
        return self.stub.Diff(
            provider_pb2.DiffRequest(
                urn=self.urn(token, "thing"), old_inputs=encode(old), news=encode(checked)
            )
        )

    def update(self, token, id, old, state, new, *, preview: bool = False) -> dict[str, Any]:
        checked, failures = self.check(token, new, old)
        assert not failures
        answer = self.stub.Update(
            provider_pb2.UpdateRequest(
                urn=self.urn(token, "thing"),
                id=id,
                olds=encode(state),
                old_inputs=encode(old),
                news=encode(checked),
                preview=preview,
            )
        )
        return decode(answer.properties)

    def read(self, token, id, inputs=None, state=None) -> tuple[str, dict, dict]:
        answer = self.stub.Read(
            provider_pb2.ReadRequest(
                urn=self.urn(token, "thing"),
                id=id,
                inputs=encode(inputs or {}),
                properties=encode(state or {}),
            )
        )
        return answer.id, decode(answer.inputs), decode(answer.properties)

    def delete(self, token: str, id: str, state: dict[str, Any]) -> None:
        self.stub.Delete(
            provider_pb2.DeleteRequest(
                urn=self.urn(token, "thing"), id=id, properties=encode(state)
            )
        )


@pytest.fixture(scope="module")
def whole_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """A cloud with templates and groups; no test here makes a VM."""
    state = tmp_path_factory.mktemp("cloud")
    arguments = ("-m", "outlast.localcloud", "serve", "--state", str(state), "--no-provider")
    image = tmp_path_factory.mktemp("image")
    cloud = LocalCloud(state, *arguments, "--image", f"{PROJECT}/outlast={image}")
    yield cloud
    cloud.stop()
    cloud.http.close()


@pytest.fixture(scope="module")
def stub(whole_cloud: LocalCloud) -> Iterator[provider_pb2_grpc.ResourceProviderStub]:
    server, port = start(whole_cloud.url)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield provider_pb2_grpc.ResourceProviderStub(channel)
    server.stop(None)


@pytest.fixture
def engine(stub) -> Engine:
    engine = Engine(stub)
    engine.configure()
    return engine


def template_inputs(**more: Any) -> dict[str, Any]:
    return {
        "machineType": "n2-standard-2",
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "sourceImage": f"projects/{PROJECT}/global/images/family/outlast",
                "diskSizeGb": 50,
                "diskType": "pd-balanced",
                "labels": {"stack": "dev"},
            }
        ],
        "networkInterfaces": [{"network": "default", "accessConfigs": [{}]}],
        "scheduling": {
            "provisioningModel": "SPOT",
            "preemptible": True,
            "automaticRestart": False,
            "onHostMaintenance": "TERMINATE",
            "instanceTerminationAction": "DELETE",
            "terminationTime": "2099-01-01T00:00:00Z",
            "preemptionNoticeDuration": {"seconds": 120},
        },
        "serviceAccount": {"email": "default", "scopes": ["cloud-platform"]},
        "metadata": {"startup-script": "true", "outlast-run": "0123456789"},
        "labels": {"stack": "dev"},
        **more,
    }


def group_inputs(name: str, template: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "baseInstanceName": name,
        "description": "a group",
        "targetSize": 0,
        "versions": [{"name": "trainer", "instanceTemplate": template}],
        "updatePolicy": {
            "type": "OPPORTUNISTIC",
            "minimalAction": "REPLACE",
            "replacementMethod": "RECREATE",
            "maxSurgeFixed": 0,
            "maxUnavailableFixed": 1,
        },
        "instanceLifecyclePolicy": {
            "defaultActionOnFailure": "REPAIR",
            "forceUpdateOnRepair": "YES",
        },
        "waitForInstances": False,
        **more,
    }


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


# -------------------------------------------------------------------------------------- values


def test_values_pass_through():
    given = {
        "text": "a",
        "number": 3,
        "fraction": 0.5,
        "list": [1, {"deep": True}],
        "asset": Asset("ab", path="x.zip"),
        "unknown": UNKNOWN,
        "nothing": None,
    }
    assert decode(encode(given)) == {key: value for key, value in given.items() if key != "nothing"}


def test_secrets_and_outputs_are_unwrapped():
    struct = struct_pb2.Struct()
    struct.update(
        {
            "secret": {values.SIGNATURE: values.SECRET, "value": [1, "x"]},
            "output": {values.SIGNATURE: values.OUTPUT, "value": "y"},
            "unknown": {values.SIGNATURE: values.OUTPUT},
        }
    )
    assert decode(struct) == {"secret": [1, "x"], "output": "y", "unknown": UNKNOWN}


def test_an_asset_that_changed_meanwhile_is_refused(tmp_path: Path):
    file = tmp_path / "bundle.zip"
    file.write_bytes(b"new")
    with pytest.raises(ValueError, match="changed since the engine read it"):
        Asset(hashlib.sha256(b"old").hexdigest(), path=str(file)).read()


def test_differences_name_paths_the_way_the_engine_does():
    old = {"metadata": {"a-b": "1", "c": "2"}, "disks": [{"size": 1}], "same": [1]}
    new = {"metadata": {"a-b": "9"}, "disks": [{"size": 1}, {"size": 2}], "same": [1], "off": False}
    assert dict(changes.differences(old, new)) == {
        'metadata["a-b"]': "update",
        "metadata.c": "delete",
        "disks[1]": "add",
    }


def test_a_value_in_another_spelling_is_not_a_difference():
    host = "https://www.googleapis.com/compute/beta/"
    base = "projects/p/global/instanceTemplates/"
    inputs = {
        "network": "default",
        "sizes": [{"seconds": 120, "extra": None}],
        "template": f"{host}{base}t-1?uniqueId=77",
        "by_number": f"{host}{base}t-1?uniqueId=77",
        "gone": "x",
    }
    live = {
        "network": f"{host}projects/p/global/networks/default",
        "sizes": [{"seconds": "120", "nanos": 0}],
        "template": f"{host}{base}t-1",
        "by_number": f"{base}77",
        "added": True,
    }
    kept = {key: value for key, value in inputs.items() if key != "gone"}
    assert changes.still_so(inputs, live) == kept
    assert changes.still_so({"size": 1}, {"size": 0}) == {"size": 0}


def test_auto_names_follow_the_seed():
    assert auto_name("My_Thing", b"1") == auto_name("My_Thing", b"1")
    assert auto_name("My_Thing", b"1") != auto_name("My_Thing", b"2")
    assert auto_name("My_Thing", b"1").startswith("my-thing-")


# --------------------------------------------------------------------------------------- check


def test_check_fills_in_name_project_and_zone(engine: Engine):
    inputs, failures = engine.check(GROUP, {"baseInstanceName": "a", "versions": []})
    assert not failures
    assert (inputs["project"], inputs["zone"]) == (PROJECT, ZONE)
    assert inputs["name"].startswith("thing-")
    assert inputs[DEFAULTS] == ["project", "zone", "name"]
    again, _ = engine.check(GROUP, {"baseInstanceName": "a", "versions": []}, inputs, seed=b"2")
    assert again["name"] == inputs["name"]
    again, _ = engine.check(GROUP, {"baseInstanceName": "a", "versions": []}, seed=b"2")
    assert again["name"] != inputs["name"]


def test_check_names_unknown_and_missing_inputs(engine: Engine):
    _, failures = engine.check(TEMPLATE, {"disks": [{"bot": True}], "metadataStartup": "x"})
    said = "\n".join(failures)
    assert "disks[0].bot: no input of" in said
    assert "metadataStartup: no input of" in said
    assert "machineType: gcp:compute/instanceTemplate:InstanceTemplate needs it" in said


def test_an_unknown_type_is_named(engine: Engine):
    with pytest.raises(grpc.RpcError, match="gcp:pubsub/topic:Topic: no type of resource"):
        engine.check("gcp:pubsub/topic:Topic", {})


def test_a_lookup_is_refused_by_name(engine: Engine):
    token = "gcp:storage/getBucket:getBucket"
    with pytest.raises(grpc.RpcError, match=token):
        engine.stub.Invoke(provider_pb2.InvokeRequest(tok=token))


def test_stacks_have_their_own_configuration(engine: Engine, stub):
    other = Engine(stub, "baseline")
    other.configure(project="another", zone="us-east1-b")
    inputs = {"baseInstanceName": "a", "versions": []}
    assert engine.check(GROUP, inputs)[0]["project"] == PROJECT
    assert other.check(GROUP, inputs)[0]["project"] == "another"


def test_a_stack_that_was_not_configured_is_named(stub):
    with pytest.raises(grpc.RpcError, match="stack ghost of outlast"):
        Engine(stub, "ghost").check(BUCKET, {"location": "EU"})


# ----------------------------------------------------------------------------------- resources


@pytest.mark.parametrize("token", sorted(KINDS))
def test_a_preview_knows_only_the_inputs(token: str):
    state = KINDS[token].preview_create({"project": PROJECT, DEFAULTS: []})
    assert state.pop("project") == PROJECT
    assert state == dict.fromkeys(KINDS[token].computed, UNKNOWN)


def test_template_life(engine: Engine, whole_cloud: LocalCloud):
    inputs = template_inputs()
    id, checked, state = engine.create(TEMPLATE, inputs)
    live = whole_cloud.call("GET", f"/compute/beta/{id}").json()
    properties = live["properties"]
    assert properties["disks"][0]["initializeParams"]["diskSizeGb"] == "50"
    assert properties["scheduling"]["preemptionNoticeDuration"] == {"seconds": "120"}
    assert properties["labels"] == {"stack": "dev", "goog-pulumi-provisioned": "true"}
    assert {item["key"]: item["value"] for item in properties["metadata"]["items"]} == inputs[
        "metadata"
    ]
    assert state["selfLinkUnique"] == f"{state['selfLink']}?uniqueId={live['id']}"
    assert state["numericId"] == live["id"]
    read_id, read_inputs, read_state = engine.read(TEMPLATE, id, checked, state)
    assert (read_id, read_inputs, read_state) == (id, checked, state)
    same = engine.diff(TEMPLATE, checked, inputs)
    assert same.changes == DIFF_NONE
    engine.delete(TEMPLATE, id, state)
    engine.delete(TEMPLATE, id, state)
    assert engine.read(TEMPLATE, id, checked, state)[0] == ""


def test_any_change_of_a_template_creates_another_one_first(engine: Engine):
    checked, _ = engine.check(TEMPLATE, template_inputs())
    changed = template_inputs(
        metadata={"startup-script": "true", "outlast-run": "9", "new": "1"},
        machineType="n2-standard-4",
    )
    answer = engine.diff(TEMPLATE, checked, changed)
    assert answer.changes == provider_pb2.DiffResponse.DIFF_SOME
    assert sorted(answer.replaces) == ["machineType", "metadata"]
    assert not answer.deleteBeforeReplace
    assert {path: detail.kind for path, detail in answer.detailedDiff.items()} == {
        "machineType": UPDATE_REPLACE,
        'metadata["outlast-run"]': UPDATE_REPLACE,
        "metadata.new": ADD_REPLACE,
    }
    named = {**checked, "name": "fixed", DEFAULTS: []}
    assert engine.diff(TEMPLATE, named, {**changed, "name": "fixed"}).deleteBeforeReplace


def test_group_life(engine: Engine, whole_cloud: LocalCloud):
    _, _, template = engine.create(TEMPLATE, template_inputs())
    _, _, second = engine.create(TEMPLATE, template_inputs(machineType="n2-standard-4"))
    assert template["selfLinkUnique"] != second["selfLinkUnique"]
    inputs = group_inputs(unique("group"), template["selfLinkUnique"])
    id, checked, state = engine.create(GROUP, inputs)
    assert id == f"projects/{PROJECT}/zones/{ZONE}/instanceGroupManagers/{inputs['name']}"
    assert engine.read(GROUP, id, checked, state)[1] == checked
    patched = group_inputs(inputs["name"], second["selfLinkUnique"])
    difference = engine.diff(GROUP, checked, patched)
    assert list(difference.replaces) == []
    assert {path: each.kind for path, each in difference.detailedDiff.items()} == {
        "versions[0].instanceTemplate": UPDATE
    }
    preview = engine.update(GROUP, id, checked, state, patched, preview=True)
    assert preview["fingerprint"] is UNKNOWN and preview["selfLink"] == state["selfLink"]
    engine.update(GROUP, id, checked, state, patched)
    live = whole_cloud.call("GET", f"/compute/v1/{id}").json()
    assert second["name"] in live["versions"][0]["instanceTemplate"]
    assert (
        engine.read(GROUP, id, engine.check(GROUP, patched)[0], state)[1]["versions"]
        == (patched["versions"])
    )
    engine.delete(GROUP, id, state)
    engine.delete(GROUP, id, state)
    assert engine.read(GROUP, id, checked, state)[0] == ""


@pytest.mark.parametrize(
    "change",
    [{"description": "b"}, {"zone": "us-east1-b"}, {"baseInstanceName": "b"}, {"name": "b"}],
    ids=lambda change: next(iter(change)),
)
def test_changes_that_replace_a_group(engine: Engine, change):
    checked, _ = engine.check(GROUP, group_inputs("a", "t"))
    answer = engine.diff(GROUP, checked, {**group_inputs("a", "t"), **change})
    assert list(answer.replaces) == list(change)
    assert answer.deleteBeforeReplace is ("name" not in change)


def test_a_size_that_dropped_by_itself_shows_in_a_refresh(engine: Engine, whole_cloud: LocalCloud):
    _, _, template = engine.create(TEMPLATE, template_inputs())
    inputs = group_inputs(unique("group"), template["selfLinkUnique"])
    id, checked, state = engine.create(GROUP, inputs)
    resized = {**checked, "targetSize": 1}
    assert engine.read(GROUP, id, resized, state)[1]["targetSize"] == 0
    engine.delete(GROUP, id, state)


def test_a_finished_run_is_not_started_by_up_refresh(engine: Engine, whole_cloud: LocalCloud):
    """The program says size 1 and ignores changes of it; the VM has set it to 0."""
    _, _, template = engine.create(TEMPLATE, template_inputs())
    program = group_inputs(unique("group"), template["selfLinkUnique"], targetSize=0)
    id, checked, state = engine.create(GROUP, program)
    checked, program = {**checked, "targetSize": 1}, {**program, "targetSize": 1}  # as it began
    _, refreshed, state = engine.read(GROUP, id, checked, state)
    assert refreshed == {**checked, "targetSize": 0}
    ignoring = {**program, "targetSize": refreshed["targetSize"]}  # the engine's part
    answer = engine.diff(GROUP, refreshed, ignoring)
    assert answer.changes == DIFF_NONE, answer.detailedDiff
    # And where something else changes, the size is not sent.
    engine.update(
        GROUP, id, refreshed, state, {**ignoring, "listManagedInstancesResults": "PAGINATED"}
    )
    live = whole_cloud.call("GET", f"/compute/v1/{id}").json()
    assert (live["targetSize"], live["listManagedInstancesResults"]) == (0, "PAGINATED")
    engine.delete(GROUP, id, state)


def test_unknown_inputs_reach_no_cloud(engine: Engine):
    inputs = group_inputs("never", "t")
    inputs["versions"][0]["instanceTemplate"] = UNKNOWN
    id, _, state = engine.create(GROUP, inputs, preview=True)
    assert id == "" and state["selfLink"] is UNKNOWN
    with pytest.raises(grpc.RpcError, match="versions: gcp:compute/.* needs it known"):
        engine.create(GROUP, inputs)


def test_bucket_life(engine: Engine, whole_cloud: LocalCloud):
    inputs = {
        "name": unique("bucket"),
        "location": "europe-west4",
        "storageClass": "STANDARD",
        "uniformBucketLevelAccess": True,
        "publicAccessPrevention": "enforced",
        "softDeletePolicy": {"retentionDurationSeconds": 0},
        "versioning": {"enabled": False},
        "labels": {"team": "a", "old": "x"},
        "lifecycleRules": [{"action": {"type": "Delete"}, "condition": {"age": 3}}],
    }
    id, checked, state = engine.create(BUCKET, inputs)
    assert (id, state["url"]) == (inputs["name"], f"gs://{inputs['name']}")
    assert engine.read(BUCKET, id, checked, state)[1] == checked
    changed = {**inputs, "labels": {"team": "b"}, "lifecycleRules": []}
    answer = engine.diff(BUCKET, checked, changed)
    assert not answer.replaces and sorted(answer.diffs) == ["labels", "lifecycleRules"]
    engine.update(BUCKET, id, checked, state, changed)
    live = whole_cloud.call("GET", f"/storage/v1/b/{id}").json()
    assert live["labels"] == {"team": "b", "goog-pulumi-provisioned": "true"}
    assert not live.get("lifecycle", {}).get("rule")
    whole_cloud.put(id, "an/object")
    with pytest.raises(grpc.RpcError, match="holds objects, such as an/object; set forceDestroy"):
        engine.delete(BUCKET, id, state)
    engine.delete(BUCKET, id, {**state, "forceDestroy": True})
    assert engine.read(BUCKET, id, checked, state)[0] == ""


def test_an_imported_bucket_fits_its_declaration_except_its_labels(
    engine: Engine, whole_cloud: LocalCloud
):
    """The real plugin knows of labels those that a program has given; an import has no program."""
    inputs = {
        "name": unique("bucket"),
        "location": "europe-west4",
        "project": PROJECT,
        "storageClass": "STANDARD",
        "uniformBucketLevelAccess": True,
        "publicAccessPrevention": "enforced",
        "softDeletePolicy": {"retentionDurationSeconds": 0},
        "versioning": {"enabled": False},
        "labels": {"managed-by": "outlast"},
    }
    id, _, state = engine.create(BUCKET, inputs)
    all_labels = {"managed-by": "outlast", "goog-pulumi-provisioned": "true"}
    assert state["pulumiLabels"] == state["effectiveLabels"] == all_labels
    _, imported, found = engine.read(BUCKET, id)
    assert imported["labels"] == found["labels"] == found["pulumiLabels"] == {}
    assert found["effectiveLabels"] == all_labels
    answer = engine.diff(BUCKET, imported, inputs)
    assert list(answer.detailedDiff) == ['labels["managed-by"]']
    assert engine.diff(BUCKET, imported, {**inputs, "labels": {}}).changes == DIFF_NONE
    updated = engine.update(BUCKET, id, imported, found, inputs)
    assert updated["pulumiLabels"] == all_labels
    assert whole_cloud.call("GET", f"/storage/v1/b/{id}").json()["labels"] == all_labels
    engine.delete(BUCKET, id, state)


def test_a_bucket_of_another_team_does_not_get_the_providers_label(
    engine: Engine, whole_cloud: LocalCloud
):
    """Google's plugin adds its label only to what it creates."""
    name = unique("bucket")
    theirs = {"name": name, "location": "EUROPE-WEST4", "labels": {"team": "vision"}}
    whole_cloud.call("POST", f"/storage/v1/b?project={PROJECT}", json=theirs)
    id, imported, found = engine.read(BUCKET, name)
    given = {"name": name, "location": "europe-west4", "labels": {"managed-by": "outlast"}}
    inputs = {**given, "project": PROJECT}
    updated = engine.update(BUCKET, id, imported, found, inputs)
    assert updated["pulumiLabels"] == {"managed-by": "outlast"}
    live = whole_cloud.call("GET", f"/storage/v1/b/{id}").json()["labels"]
    assert live == updated["effectiveLabels"] == {"team": "vision", "managed-by": "outlast"}
    engine.delete(BUCKET, id, updated)


def test_the_outputs_that_show_all_labels_are_secret(engine: Engine):
    checked, _ = engine.check(BUCKET, {"location": "EU", "labels": {"a": "b"}})
    urn = engine.urn(BUCKET, "thing")
    made = engine.stub.Create(provider_pb2.CreateRequest(urn=urn, properties=encode(checked)))
    for key in ("effectiveLabels", "pulumiLabels"):
        assert made.properties[key][values.SIGNATURE] == values.SECRET
    engine.delete(BUCKET, made.id, decode(made.properties))


def test_object_life(engine: Engine, whole_cloud: LocalCloud, tmp_path: Path):
    bucket, _, bucket_state = engine.create(BUCKET, {"location": "EU", "forceDestroy": True})
    file = tmp_path / "bundle.zip"
    file.write_bytes(b"\x00\r\n--binary--\r\n")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    inputs = {
        "bucket": bucket,
        "name": "a/b c.zip",
        "source": Asset(digest, path=str(file)),
        "contentType": "application/zip",
    }
    id, checked, state = engine.create(OBJECT, inputs)
    stored = whole_cloud.object("GET", bucket, inputs["name"], params={"alt": "media"})
    assert stored.content == file.read_bytes()
    assert stored.headers["content-type"] == "application/zip"
    assert engine.read(OBJECT, id, checked, state)[1:] == (checked, state)
    text = {"bucket": bucket, "name": inputs["name"], "content": "hello"}
    changed = engine.update(OBJECT, id, checked, state, text)
    assert changed["generation"] != state["generation"]
    stored = whole_cloud.object("GET", bucket, inputs["name"], params={"alt": "media"})
    assert stored.content == b"hello"
    assert list(engine.diff(OBJECT, checked, {**inputs, "name": "z"}).replaces) == ["name"]
    engine.delete(OBJECT, id, state)
    engine.delete(OBJECT, id, state)
    assert engine.read(OBJECT, id, checked, state)[0] == ""
    engine.delete(BUCKET, bucket, bucket_state)


def test_account_life(engine: Engine):
    inputs = {"accountId": unique("vm"), "displayName": "A VM"}
    id, checked, state = engine.create(ACCOUNT, inputs)
    assert state["member"] == f"serviceAccount:{state['email']}"
    assert engine.read(ACCOUNT, id, checked, state)[1] == checked
    changed = {**inputs, "displayName": "Another", "disabled": True}
    updated = engine.update(ACCOUNT, id, checked, state, changed)
    assert (updated["displayName"], updated["disabled"]) == ("Another", True)
    assert list(engine.diff(ACCOUNT, checked, {**inputs, "accountId": "other-id"}).replaces) == [
        "accountId"
    ]
    engine.delete(ACCOUNT, id, state)
    assert engine.read(ACCOUNT, id, checked, state)[0] == ""


def test_a_deleted_role_is_undeleted(engine: Engine):
    inputs = {
        "roleId": f"role_{uuid.uuid4().hex[:8]}",
        "title": "Leave",
        "permissions": [
            "compute.instanceGroupManagers.update",
            "compute.instanceGroupManagers.get",
        ],
    }
    id, checked, state = engine.create(ROLE, inputs)
    assert state["name"] == id == f"projects/{PROJECT}/roles/{inputs['roleId']}"
    assert engine.read(ROLE, id, checked, state)[1] == checked
    with pytest.raises(grpc.RpcError, match="exists already"):
        engine.create(ROLE, inputs)
    updated = engine.update(ROLE, id, checked, state, {**inputs, "title": "Go"})
    assert updated["title"] == "Go"
    engine.delete(ROLE, id, state)
    assert engine.read(ROLE, id, checked, state)[0] == ""
    again, _, state = engine.create(ROLE, inputs)
    assert again == id
    engine.delete(ROLE, id, state)


def test_an_account_and_its_binding_are_read_back_before_anything_uses_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """The order of Google's plugin, without its waits: 10 s after the account, 6 s of reads."""
    calls: list[str] = []
    send = rest.Api.send

    def record(self: rest.Api, method: str, url: str, *others: Any) -> Any:
        calls.append(f"{method} {url.rpartition('/')[2].replace(PROJECT, 'P')}")
        return send(self, method, url, *others)

    monkeypatch.setattr(rest.Api, "send", record)
    _, _, account = engine.create(ACCOUNT, {"accountId": unique("vm")})
    inputs = {"role": "roles/compute.viewer", "member": account["member"]}
    id, _, state = engine.create(MEMBER, inputs)
    email = account["email"].replace(PROJECT, "P")
    policy = ["POST P:getIamPolicy", "POST P:setIamPolicy", "POST P:getIamPolicy"]
    assert calls == ["POST serviceAccounts", f"GET {email}", *policy]
    engine.delete(MEMBER, id, state)


def test_project_binding_life(engine: Engine):
    _, _, account = engine.create(ACCOUNT, {"accountId": unique("vm")})
    inputs = {"role": "roles/compute.viewer", "member": account["member"]}
    id, checked, state = engine.create(MEMBER, inputs)
    assert id == f"{PROJECT}/roles/compute.viewer/{account['member']}"
    assert engine.read(MEMBER, id, checked, state)[1] == checked
    engine.delete(MEMBER, id, state)
    engine.delete(MEMBER, id, state)
    assert engine.read(MEMBER, id, checked, state)[0] == ""


def test_bucket_bindings_with_conditions_are_kept_apart(engine: Engine, whole_cloud: LocalCloud):
    bucket, _, bucket_state = engine.create(
        BUCKET, {"location": "EU", "uniformBucketLevelAccess": True}
    )
    _, _, account = engine.create(ACCOUNT, {"accountId": unique("vm")})
    made = []
    for prefix in ("a", "b"):
        expression = f"resource.name.startsWith('projects/_/buckets/{bucket}/objects/{prefix}/')"
        inputs = {
            "bucket": bucket,
            "role": "roles/storage.objectUser",
            "member": account["member"],
            "condition": {"title": f"only-{prefix}", "expression": expression},
        }
        made.append(engine.create(BUCKET_MEMBER, inputs))
    for id, checked, state in made:
        assert engine.read(BUCKET_MEMBER, id, checked, state)[1] == checked
    first, second = made
    engine.delete(BUCKET_MEMBER, first[0], first[2])
    assert engine.read(BUCKET_MEMBER, *first)[0] == ""
    assert engine.read(BUCKET_MEMBER, *second)[0] == second[0]
    engine.delete(BUCKET_MEMBER, second[0], second[2])
    engine.delete(BUCKET, bucket, bucket_state)


def test_a_policy_that_changed_meanwhile_is_written_again(engine: Engine, whole_cloud: LocalCloud):
    _, _, account = engine.create(ACCOUNT, {"accountId": unique("vm")})
    rule = whole_cloud.add_fault(
        "before", {"status": 409}, method="POST", path=".*:setIamPolicy", count=2
    )
    inputs = {"role": "roles/compute.viewer", "member": account["member"]}
    id, checked, state = engine.create(MEMBER, inputs)
    assert engine.read(MEMBER, id, checked, state)[0] == id
    whole_cloud.call("DELETE", f"/_local/faults/{rule}")
    engine.delete(MEMBER, id, state)


def test_a_binding_waits_until_iam_knows_its_account(engine: Engine):
    """As the plugin does: IAM hears of a new account late."""
    name = unique("late")
    project = engine.create(ACCOUNT, {"accountId": unique("vm")})[2]["member"].rpartition("@")[2]
    inputs = {"role": "roles/compute.viewer", "member": f"serviceAccount:{name}@{project}"}
    begun = time.monotonic()
    made: list[Any] = []
    late = threading.Timer(2.0, lambda: made.append(engine.create(ACCOUNT, {"accountId": name})))
    late.start()
    id, checked, state = engine.create(MEMBER, inputs)
    late.join()
    assert made and time.monotonic() - begun >= 2.0
    assert engine.read(MEMBER, id, checked, state)[0] == id
    engine.delete(MEMBER, id, state)


def test_a_binding_of_an_unknown_account_fails_with_its_name(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rest, "NEW_ACCOUNT_SEC", 1.5)
    project = engine.create(ACCOUNT, {"accountId": unique("vm")})[2]["member"].rpartition("@")[2]
    inputs = {"role": "roles/compute.viewer", "member": f"serviceAccount:nobody@{project}"}
    with pytest.raises(grpc.RpcError, match="nobody@.* does not exist"):
        engine.create(MEMBER, inputs)


# ------------------------------------------------------------------------- what is only declared


def live_out(
    engine: Engine,
    token: str,
    inputs: dict[str, Any],
    change: dict[str, Any],
    replaces: dict[str, Any],
) -> None:
    """A resource's life: made, read, imported, changed in place, replaced if it must be."""
    id, checked, state = engine.create(token, inputs)
    assert engine.read(token, id, checked, state)[1] == checked, "a refresh changes nothing"
    same = engine.diff(token, checked, inputs)
    assert same.changes == DIFF_NONE, same.detailedDiff
    _, imported, _ = engine.read(token, id)
    if "labels" in inputs:  # which an import does not know
        assert imported["labels"] == {}
        imported["labels"] = inputs["labels"]
    declared = engine.diff(token, imported, inputs)
    assert declared.changes == DIFF_NONE, declared.detailedDiff
    if change:
        changed = {**inputs, **change}
        assert list(engine.diff(token, checked, changed).replaces) == []
        engine.update(token, id, checked, state, changed)
        after, _ = engine.check(token, changed, checked)
        assert engine.read(token, id, after, state)[1] == after
    for key, value in replaces.items():
        answer = engine.diff(token, checked, {**inputs, key: value})
        assert list(answer.replaces) == [key]
    engine.delete(token, id, state)
    engine.delete(token, id, state)
    assert engine.read(token, id, checked, state)[0] == ""


def test_network_and_firewall(engine: Engine):
    name = unique("net")
    live_out(
        engine,
        NETWORK,
        {"name": name, "autoCreateSubnetworks": False, "description": "d"},
        {"routingMode": "GLOBAL"},
        {"autoCreateSubnetworks": True, "description": "e", "name": "other"},
    )
    rule = {
        "name": unique("fw"),
        "network": f"projects/{PROJECT}/global/networks/default",
        "allows": [{"protocol": "tcp", "ports": ["8080"]}],
        "sourceRanges": ["35.191.0.0/16"],
    }
    live_out(engine, FIREWALL, rule, {"sourceRanges": ["10.0.0.0/8"]}, {"direction": "EGRESS"})


def test_subnetwork_router_and_nat(engine: Engine):
    id, _, network = engine.create(NETWORK, {"name": unique("net"), "autoCreateSubnetworks": False})
    link = network["selfLink"]
    subnetwork = {"name": unique("sub"), "network": link, "ipCidrRange": "10.1.0.0/24"}
    live_out(
        engine,
        SUBNETWORK,
        subnetwork,
        {"ipCidrRange": "10.1.0.0/20", "privateIpGoogleAccess": True},
        {"region": "us-central1", "network": "other"},
    )
    router = {"name": unique("router"), "network": link}
    live_out(engine, ROUTER, router, {"description": "x"}, {"network": "other"})
    router_id, _, router_state = engine.create(ROUTER, router)
    nat = {
        "name": "nat",
        "router": router["name"],
        "natIpAllocateOption": "AUTO_ONLY",
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
    }
    live_out(engine, NAT, nat, {"minPortsPerVm": 128}, {"router": "other", "name": "other"})
    engine.delete(ROUTER, router_id, router_state)
    engine.delete(NETWORK, id, network)


def test_health_check(engine: Engine):
    inputs = {
        "name": unique("check"),
        "checkIntervalSec": 30,
        "httpHealthCheck": {"port": 8080, "requestPath": "/healthz"},
    }
    live_out(engine, HEALTH_CHECK, inputs, {"unhealthyThreshold": 9}, {"name": "other"})
    with pytest.raises(grpc.RpcError, match="needs exactly one of httpHealthCheck"):
        engine.create(HEALTH_CHECK, {"name": unique("check")})


def test_regional_group(engine: Engine):
    id, _, template = engine.create(TEMPLATE, template_inputs())
    inputs = group_inputs(unique("group"), template["selfLink"])
    inputs |= {
        "distributionPolicyTargetShape": "ANY",
        "distributionPolicyZones": [f"{REGION}-a", f"{REGION}-b"],
    }
    inputs["instanceLifecyclePolicy"]["onRepair"] = {"allowChangingZone": "YES"}
    inputs["updatePolicy"] |= {"instanceRedistributionType": "NONE", "maxUnavailableFixed": 2}
    live_out(
        engine,
        REGION_GROUP,
        inputs,
        {"namedPorts": [{"name": "health", "port": 8080}]},
        {
            "description": "other",
            "region": "us-central1",
            "distributionPolicyZones": [f"{REGION}-a"],
            "baseInstanceName": "other",
        },
    )
    engine.delete(TEMPLATE, id, template)


def test_readers_of_a_secret(engine: Engine, whole_cloud: LocalCloud):
    secret = f"projects/{PROJECT}/secrets/{unique('secret')}"
    path, _, name = secret.rpartition("/")
    body = {"replication": {"automatic": {}}}
    made = whole_cloud.call("POST", f"/secretmanager/v1/{path}?secretId={name}", json=body)
    assert made.status_code == 200, made.text
    _, _, account = engine.create(ACCOUNT, {"accountId": unique("vm")})
    reader = {
        "secretId": name,
        "role": "roles/secretmanager.secretAccessor",
        "member": account["member"],
    }
    id, checked, state = engine.create(SECRET_MEMBER, reader)
    assert engine.read(SECRET_MEMBER, id, checked, state)[1] == checked
    imported = engine.read(SECRET_MEMBER, f"{secret} {reader['role']} {reader['member']}")
    assert imported[0] == id
    engine.delete(SECRET_MEMBER, id, state)
    assert engine.read(SECRET_MEMBER, id, checked, state)[0] == ""


# ------------------------------------------------------------------------------------- imports


def test_imports_accept_short_names(engine: Engine):
    _, _, template = engine.create(TEMPLATE, template_inputs())
    inputs = group_inputs(unique("group"), template["selfLinkUnique"])
    id, checked, state = engine.create(GROUP, inputs)
    for short in (inputs["name"], f"{ZONE}/{inputs['name']}", f"{PROJECT}/{ZONE}/{inputs['name']}"):
        found, imported, _ = engine.read(GROUP, short)
        assert found == id
        answer = engine.diff(GROUP, imported, inputs)
        changed = set(answer.diffs) - {"waitForInstances"}
        assert not changed, answer.detailedDiff
    with pytest.raises(grpc.RpcError, match="must be of the form projects/{project}/zones"):
        engine.read(GROUP, "a/b/c/d/e")
    assert engine.read(GROUP, "no-such-group")[0] == ""
    engine.delete(GROUP, id, state)


def test_bindings_are_imported_with_their_condition(engine: Engine):
    bucket, _, bucket_state = engine.create(
        BUCKET, {"location": "EU", "uniformBucketLevelAccess": True}
    )
    _, _, account = engine.create(ACCOUNT, {"accountId": unique("vm")})
    prefix = f"projects/_/buckets/{bucket}/objects/a/"
    inputs = {
        "bucket": bucket,
        "role": "roles/storage.objectUser",
        "member": account["member"],
        "condition": {"title": "only-a", "expression": f"resource.name.startsWith('{prefix}')"},
    }
    id, _, state = engine.create(BUCKET_MEMBER, inputs)
    name = f"b/{bucket} {inputs['role']} {inputs['member']} only-a"
    found, imported, _ = engine.read(BUCKET_MEMBER, name)
    assert found == id
    assert engine.diff(BUCKET_MEMBER, imported, inputs).changes == DIFF_NONE
    assert engine.read(BUCKET_MEMBER, name.replace("only-a", "only-b"))[0] == ""
    with pytest.raises(grpc.RpcError, match="must be of the form 'b/BUCKET ROLE MEMBER"):
        engine.read(BUCKET_MEMBER, bucket)
    engine.delete(BUCKET_MEMBER, id, state)
    engine.delete(BUCKET, bucket, bucket_state)
    member = {"role": "roles/compute.viewer", "member": account["member"]}
    id, _, state = engine.create(MEMBER, member)
    found, imported, _ = engine.read(MEMBER, f"{PROJECT} {member['role']} {member['member']}")
    assert found == id
    assert engine.diff(MEMBER, imported, member).changes == DIFF_NONE
    engine.delete(MEMBER, id, state)


def test_an_error_of_the_api_reaches_the_engine_as_a_sentence(engine: Engine):
    with pytest.raises(grpc.RpcError, match="POST .*instanceTemplates: 400: Invalid value"):
        engine.create(TEMPLATE, template_inputs(labels={"Capital": "x"}))


def test_a_missing_cloud_is_reported(tmp_path: Path):
    server, port = start("http://127.0.0.1:9")
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            engine = Engine(provider_pb2_grpc.ResourceProviderStub(channel))
            engine.configure()
            with pytest.raises(grpc.RpcError, match="does not answer"):
                engine.create(BUCKET, {"location": "EU"})
    finally:
        server.stop(None)
