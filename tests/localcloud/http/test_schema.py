"""Requests and answers against Google's own discovery documents."""

import base64
import collections
import contextlib
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import requests

from outlast.cloud import compute
from outlast.localcloud.cloud import Options
from outlast.localcloud.http import discovery
from outlast.localcloud.server import assemble
from tests.fuzz import mutate
from tests.localcloud.compute.test_compute import group_body, template_body, wait
from tests.localcloud.local_cloud import PROJECT, FullCloud

ZONE = "europe-west4-a"
REGION = "europe-west4"
APIS = {
    "/compute/v1/": "compute.v1",
    "/compute/beta/": "compute.beta",
    "/iam/": "iam.v1",
    "/iamcredentials/": "iamcredentials.v1",
    "/cloudresourcemanager/": "cloudresourcemanager.v1",
    "/secretmanager/": "secretmanager.v1",
}
IDENTITY = ("kind", "id", "name", "selfLink", "creationTimestamp", "etag", "createTime")
# What a schema has and its answers need not: fields of other kinds, and of versions.
NOT_ALWAYS = {
    ("Operation", "creationTimestamp"),
    ("Router", "etag"),
}


class Served:
    """Every method that the local cloud serves, and which of them were called."""

    def __init__(self, folder: Path) -> None:
        cloud, _ = assemble(Options(folder), "http://127.0.0.1:1")
        self.methods: dict[tuple[str, str], discovery.Method] = {}
        self._routes: list[tuple[re.Pattern[str], str, tuple[str, str]]] = []
        self.called: set[tuple[str, str]] = set()
        names = set(cloud.services) - {"storage"}
        for route in [r for name in names for r in cloud.services[name].routes()]:
            path: str = route.path  # type: ignore[attr-defined]
            base = next(base for base in APIS if path.startswith(base))
            for verb in route.methods - {"HEAD"}:  # type: ignore[attr-defined]
                key = (verb, path)
                self.methods[key] = discovery.method(APIS[base], verb, path.removeprefix(base))
                self._routes.append((route.path_regex, verb, key))  # type: ignore[attr-defined]
        cloud.events.close()

    def check(self, verb: str, path: str, answer: requests.Response) -> None:
        """AssertionError unless the answer is as the method's document says, and whole."""
        key = next(k for pattern, v, k in self._routes if v == verb and pattern.fullmatch(path))
        method = self.methods[key]
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert error["code"] == answer.status_code
            assert error["message"] and error["errors"][0]["reason"]
            return
        self.called.add(key)
        content = answer.json()
        method.check_answer(content)
        if method.response:
            check_whole(method.api, method.response, content)


def check_whole(api: str, schema: str, content: Any) -> None:
    """AssertionError if an answer lacks what identifies a thing, or one in its list does."""
    known = discovery.properties(api, schema)
    for name in IDENTITY:
        if name in known and (schema, name) not in NOT_ALWAYS:
            assert content.get(name), f"{schema} without {name}: {content}"
    inner = known.get("items", {}).get("items", {}).get("$ref")
    for item in content.get("items", []) if inner else []:
        check_whole(api, inner, item)


class Recorder:
    """A client whose every answer is held to its method's document."""

    def __init__(self, cloud: FullCloud, served: Served, version: str) -> None:
        self.cloud = cloud
        self.served = served
        self.compute = f"/compute/{version}/projects/{PROJECT}"

    def call(self, verb: str, path: str, body: Any = None, **query: Any) -> requests.Response:
        path = path if re.match("/(iam|cloud|secret|compute)", path) else f"{self.compute}/{path}"
        answer = self.cloud.call(verb, path, json=body, params=query)
        self.served.check(verb, path, answer)
        return answer

    def ok(self, verb: str, path: str, body: Any = None, **query: Any) -> Any:
        answer = self.call(verb, path, body, **query)
        assert answer.status_code == 200, f"{verb} {path}: {answer.text}"
        return answer.json()

    def life(self, place: str, body: dict[str, Any], **change: Any) -> None:
        """Insert, get, list in its place and in all, change by patch or put."""
        one = f"{place}/{body['name']}"
        self.ok("POST", place, body)
        self.ok("GET", one)
        listed = self.ok("GET", place)["items"]
        assert body["name"] in [item["name"] for item in listed]
        scope, _, kind = place.rpartition("/")
        everywhere = f"{self.compute.replace(PROJECT, '{project}')}/aggregated/{kind}"
        if ("GET", everywhere) in self.served.methods:
            assert self.ok("GET", f"aggregated/{kind}")["items"][scope][kind] == listed
        for verb, changed in change.items():
            self.ok(verb, one, changed)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("served"))


@pytest.fixture
def cloud(full_cloud: FullCloud) -> FullCloud:
    return full_cloud


def needs_a_vm(path: str) -> bool:
    last = path.rpartition("/")[2]
    members = last in ("createInstances", "recreateInstances", "abandonInstances")
    return "/instances/{" in path or members or path.endswith("{zone}/instances")


def regional_group(size: int = 0) -> dict[str, Any]:
    template = f"regions/{REGION}/instanceTemplates/t1"
    policy = {
        "type": "OPPORTUNISTIC",
        "minimalAction": "REPLACE",
        "replacementMethod": "RECREATE",
        "instanceRedistributionType": "NONE",
        "maxSurge": {"fixed": 0},
        "maxUnavailable": {"fixed": 3},
    }
    return {
        **group_body(size),
        "versions": [{"instanceTemplate": template}],
        "distributionPolicy": {"targetShape": "ANY"},
        "updatePolicy": policy,
    }


def call_what_is_fixed(client: Recorder) -> None:
    client.ok("GET", client.compute)
    for path in ("zones", f"zones/{ZONE}", "regions", f"regions/{REGION}"):
        client.ok("GET", path)
    client.ok("GET", f"zones/{ZONE}/machineTypes/e2-small")
    client.ok("GET", f"zones/{ZONE}/machineTypes")
    client.ok("GET", f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4")
    client.ok("GET", "global/images/family/outlast")
    for path in ("global/routes", f"zones/{ZONE}/autoscalers", f"regions/{REGION}/autoscalers"):
        assert client.ok("GET", path)["items"] == []
    for kind in ("instances", "machineTypes", "acceleratorTypes"):
        client.ok("GET", f"aggregated/{kind}")


def call_templates_and_groups(client: Recorder, place: str, group: dict[str, Any]) -> None:
    """In a zone or a region; a zone's templates are global."""
    regional = place.startswith("regions/")
    templates = f"{place if regional else 'global'}/instanceTemplates"
    client.life(templates, template_body())
    groups = f"{place}/instanceGroupManagers"
    change = {"updatePolicy": {"minimalAction": "RESTART"}}
    client.life(groups, group, PATCH=change)
    one = f"{groups}/g1"
    operation = client.ok("POST", f"{one}/resize", size=0)
    client.ok("POST", f"{one}/listManagedInstances")
    client.ok("GET", f"{one}/listErrors")
    client.ok("GET", f"{place}/instanceGroups")
    client.ok("GET", f"{place}/instanceGroups/g1")
    ports = {"namedPorts": [{"name": "http", "port": 80}]}
    client.ok("POST", f"{place}/instanceGroups/g1/setNamedPorts", ports)
    listed = client.ok("GET", f"{place}/operations")["items"]
    assert operation["name"] in [one["name"] for one in listed]
    assert client.ok("GET", "aggregated/operations")["items"][place]["operations"] == listed
    client.ok("GET", f"{place}/operations/{operation['name']}")
    client.ok("POST", f"{place}/operations/{operation['name']}/wait")
    empty = {"instances": [], "skipInstancesOnValidationError": True}
    client.ok("POST", f"{one}/deleteInstances", empty)
    client.ok("POST", f"{one}/applyUpdatesToInstances", {"allInstances": True})
    client.ok("DELETE", one)
    operation = client.ok("DELETE", f"{templates}/t1")
    scope = templates.rpartition("/")[0]
    assert client.ok("GET", f"{scope}/operations")["items"][0] == operation
    client.ok("GET", f"{scope}/operations/{operation['name']}")
    client.ok("POST", f"{scope}/operations/{operation['name']}/wait")


def call_health_checks(client: Recorder, place: str) -> None:
    check = {"name": "h1", "type": "HTTP", "httpHealthCheck": {"port": 80}}
    client.life(f"{place}/healthChecks", check, PUT=check)
    client.ok("DELETE", f"{place}/healthChecks/h1")


def call_what_is_declared(client: Recorder) -> None:
    client.life(
        "global/networks",
        {"name": "n1", "autoCreateSubnetworks": False},
        PATCH={"routingConfig": {"routingMode": "GLOBAL"}},
    )
    network = f"projects/{PROJECT}/global/networks/n1"
    subnetworks = f"regions/{REGION}/subnetworks"
    client.life(
        subnetworks,
        {"name": "s1", "network": network, "ipCidrRange": "10.1.0.0/24"},
        PATCH={"privateIpGoogleAccess": True},
    )
    client.ok("POST", f"{subnetworks}/s1/expandIpCidrRange", {"ipCidrRange": "10.1.0.0/20"})
    access = {"privateIpGoogleAccess": False}
    client.ok("POST", f"{subnetworks}/s1/setPrivateIpGoogleAccess", access)
    nat = {
        "name": "nat",
        "natIpAllocateOption": "AUTO_ONLY",
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
    }
    router = {"name": "r1", "network": network}
    client.life(f"regions/{REGION}/routers", router, PATCH={"nats": [nat]})
    operation = client.ok("DELETE", f"regions/{REGION}/routers/r1")
    client.ok("GET", f"regions/{REGION}/operations/{operation['name']}")
    client.ok("POST", f"regions/{REGION}/operations/{operation['name']}/wait")
    rule = {"name": "f1", "network": network, "allowed": [{"IPProtocol": "tcp", "ports": ["80"]}]}
    client.life("global/firewalls", rule, PATCH={"disabled": True})
    image = {"name": "i1", "sourceImage": f"projects/{PROJECT}/global/images/family/outlast"}
    client.life("global/images", image, PATCH={"family": "mine"})
    labels = {
        "labels": {"a": "b"},
        "labelFingerprint": client.ok("GET", "global/images/i1")["labelFingerprint"],
    }
    client.ok("POST", "global/images/i1/setLabels", labels)
    client.ok("POST", "global/images/i1/deprecate", {"state": "DEPRECATED"})
    disks = f"zones/{ZONE}/disks"
    client.life(disks, {"name": "d1", "sizeGb": "20"}, PATCH={"labels": {"x": "y"}})
    labels["labelFingerprint"] = client.ok("GET", f"{disks}/d1")["labelFingerprint"]
    client.ok("POST", f"{disks}/d1/setLabels", labels)
    client.ok("POST", f"{disks}/d1/resize", {"sizeGb": "30"})
    addresses = f"regions/{REGION}/addresses"
    client.life(addresses, {"name": "a1"})
    labels["labelFingerprint"] = client.ok("GET", f"{addresses}/a1")["labelFingerprint"]
    client.ok("POST", f"{addresses}/a1/setLabels", labels)
    client.ok("DELETE", f"{addresses}/a1")
    for path in ("global/firewalls/f1", "global/images/i1", f"{disks}/d1", f"{subnetworks}/s1"):
        client.ok("DELETE", path)
    client.ok("DELETE", "global/networks/n1")


def call_iam(client: Recorder) -> None:
    accounts = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
    account = client.ok("POST", accounts, {"accountId": "the-vm", "serviceAccount": {}})
    one = f"{accounts}/{account['email']}"
    client.ok("GET", accounts)
    client.ok("GET", one)
    change = {"serviceAccount": {"displayName": "VM"}, "updateMask": "displayName"}
    client.ok("PATCH", one, change)
    client.ok("POST", f"{one}:disable", {})
    client.ok("POST", f"{one}:enable", {})
    acting = f"/iamcredentials/v1/projects/-/serviceAccounts/{account['email']}"
    scope = {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}
    client.ok("POST", f"{acting}:generateAccessToken", scope)
    roles = f"/iam/v1/projects/{PROJECT}/roles"
    role = {"title": "Leave", "includedPermissions": ["compute.instanceGroupManagers.get"]}
    client.ok("POST", roles, {"roleId": "leave", "role": role})
    client.ok("GET", roles)
    client.ok("GET", f"{roles}/leave")
    client.ok("PATCH", f"{roles}/leave", {"title": "Go"})
    client.ok("DELETE", f"{roles}/leave")
    client.ok("POST", f"{roles}/leave:undelete", {})
    predefined = client.ok("GET", "/iam/v1/roles", pageSize=100)["roles"]
    assert "roles/compute.viewer" in [role["name"] for role in predefined]
    assert client.call("GET", "/iam/v1/roles", view="FULL").status_code == 501
    project = f"/cloudresourcemanager/v1/projects/{PROJECT}"
    client.ok("GET", project)
    policy = client.ok("POST", f"{project}:getIamPolicy", {})
    member = f"serviceAccount:{account['email']}"
    policy["bindings"] = [{"role": "roles/compute.viewer", "members": [member]}]
    client.ok("POST", f"{project}:setIamPolicy", {"policy": policy})
    client.ok("POST", f"{project}:testIamPermissions", {"permissions": ["compute.zones.get"]})
    constraint = {"constraint": "constraints/compute.requireOsLogin"}
    enforced = {"policy": {**constraint, "booleanPolicy": {"enforced": True}}}
    client.ok("POST", f"{project}:setOrgPolicy", enforced)
    for method in ("getOrgPolicy", "getEffectiveOrgPolicy"):
        client.ok("POST", f"{project}:{method}", constraint)
    scope = {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}
    whose = f"/iamcredentials/v1/projects/-/serviceAccounts/{account['email']}"
    client.ok("POST", f"{whose}:generateAccessToken", scope)
    client.ok("DELETE", one)


def call_secrets(client: Recorder) -> None:
    secrets = f"/secretmanager/v1/projects/{PROJECT}/secrets"
    client.ok("POST", secrets, {"replication": {"automatic": {}}}, secretId="s")
    client.ok("GET", secrets)
    client.ok("GET", f"{secrets}/s")
    client.ok("PATCH", f"{secrets}/s", {"labels": {"a": "b"}}, updateMask="labels")
    payload = {"payload": {"data": base64.b64encode(b"secret").decode()}}
    client.ok("POST", f"{secrets}/s:addVersion", payload)
    client.ok("GET", f"{secrets}/s/versions")
    client.ok("GET", f"{secrets}/s/versions/1")
    access = client.ok("GET", f"{secrets}/s/versions/latest:access")
    assert base64.b64decode(access["payload"]["data"]) == b"secret"
    for verb in ("disable", "enable", "destroy"):
        client.ok("POST", f"{secrets}/s/versions/1:{verb}", {})
    policy = client.ok("GET", f"{secrets}/s:getIamPolicy")
    client.ok("POST", f"{secrets}/s:setIamPolicy", {"policy": policy})
    client.ok("DELETE", f"{secrets}/s")


def test_every_answer_fits_its_schema(cloud: FullCloud, served: Served) -> None:
    for version in ("v1", "beta"):
        client = Recorder(cloud, served, version)
        call_what_is_fixed(client)
        call_templates_and_groups(client, f"zones/{ZONE}", group_body())
        call_templates_and_groups(client, f"regions/{REGION}", regional_group())
        call_health_checks(client, "global")
        call_health_checks(client, f"regions/{REGION}")
        call_what_is_declared(client)
    call_iam(client)
    call_secrets(client)
    left = {key for key in served.methods if not needs_a_vm(key[1])} - served.called
    assert not left


@pytest.mark.rehearsal
def test_every_answer_about_a_vm_fits_its_schema(cloud: FullCloud, served: Served) -> None:
    for version in ("v1", "beta"):
        client = Recorder(cloud, served, version)
        client.ok("POST", "global/instanceTemplates", template_body())
        client.ok("POST", f"zones/{ZONE}/instanceGroupManagers", group_body(1))
        call_a_managed_vm(client, f"zones/{ZONE}/instanceGroupManagers/g1")
        client.ok("POST", f"regions/{REGION}/instanceTemplates", template_body())
        client.ok("POST", f"regions/{REGION}/instanceGroupManagers", regional_group(1))
        call_members(client, f"regions/{REGION}/instanceGroupManagers/g1")
        for path in ("zones/" + ZONE, "regions/" + REGION):
            client.ok("DELETE", f"{path}/instanceGroupManagers/g1")
        for path in ("global", f"regions/{REGION}"):
            client.ok("DELETE", f"{path}/instanceTemplates/t1")
        call_a_separate_vm(client)
    left = {key for key in served.methods if needs_a_vm(key[1])} - served.called
    assert {path.rpartition("/")[2] for _, path in left} <= {"getGuestAttributes"}


def running_member(client: Recorder, group: str) -> str:
    """The path of the one member, once it is up."""

    def find() -> str:
        (member,) = client.ok("POST", f"{group}/listManagedInstances")["managedInstances"]
        up = (member["currentAction"], member.get("instanceStatus")) == ("NONE", "RUNNING")
        return member["instance"].partition(f"/projects/{PROJECT}/")[2] if up else ""

    return wait(find)


def call_members(client: Recorder, group: str) -> None:
    client.ok("POST", f"{group}/recreateInstances", {"instances": [running_member(client, group)]})
    vm = running_member(client, group)
    client.ok("POST", f"{group}/abandonInstances", {"instances": [vm]})
    client.ok("DELETE", vm)
    client.ok(
        "POST",
        f"{group}/createInstances",
        {"instances": [{"name": f"in-{group.partition('/')[0]}"}]},
    )


def call_a_managed_vm(client: Recorder, group: str) -> None:
    vm = running_member(client, group)
    for path in (f"zones/{ZONE}/instances", f"zones/{ZONE}/disks", "aggregated/instances", group):
        client.ok("GET", path)
    shown = client.ok("GET", vm)
    client.ok("GET", f"{vm}/serialPort")
    metadata = {"fingerprint": shown["metadata"]["fingerprint"], "items": []}
    client.ok("POST", f"{vm}/setMetadata", metadata)
    client.ok("POST", f"{vm}/setTags", {"fingerprint": shown["tags"]["fingerprint"]})
    labels = {"labels": {"a": "b"}, "labelFingerprint": shown["labelFingerprint"]}
    client.ok("POST", f"{vm}/setLabels", labels)
    client.call("GET", f"{vm}/getGuestAttributes", queryPath="a/")
    for verb in ("reset", "simulateMaintenanceEvent", "stop"):
        client.ok("POST", f"{running_member(client, group)}/{verb}")
    client.ok("DELETE", running_member(client, group))
    call_members(client, group)


def call_a_separate_vm(client: Recorder) -> None:
    vms = f"zones/{ZONE}/instances"
    body = {**template_body()["properties"], "name": "alone"}
    body["machineType"] = f"zones/{ZONE}/machineTypes/{body['machineType']}"
    client.ok("POST", vms, body)
    client.ok("POST", f"{vms}/alone/stop")
    assert client.ok("GET", f"{vms}/alone")["status"] == "TERMINATED"
    client.ok("POST", f"{vms}/alone/setMachineType", {"machineType": body["machineType"]})
    client.ok("POST", f"{vms}/alone/setScheduling", {"onHostMaintenance": "TERMINATE"})
    client.ok("POST", f"zones/{ZONE}/disks", {"name": "beside", "sizeGb": "10"})
    disk = {"source": f"zones/{ZONE}/disks/beside", "deviceName": "beside"}
    client.ok("POST", f"{vms}/alone/attachDisk", disk)
    client.ok("GET", f"{vms}/alone")
    client.ok("GET", disk["source"])
    client.ok("POST", f"{vms}/alone/detachDisk", deviceName="beside")
    client.ok("DELETE", disk["source"])
    client.ok("POST", f"{vms}/alone/start")
    client.ok("DELETE", f"{vms}/alone")


# Nulls

NULL = {"colour": None}
"""The real APIs take a null for a name that they do not know, as Google's plugin sends some."""
NULLS = [
    (
        "/compute/beta/projects/{P}/global/networks",
        {"name": "one", **NULL, "routingConfig": NULL},
        "/compute/beta/projects/{P}/global/networks/one",
    ),
    (
        "/storage/v1/b?project={P}",
        {
            "name": "one",
            **NULL,
            "iamConfiguration": {**NULL, "uniformBucketLevelAccess": {"enabled": True, **NULL}},
            "lifecycle": {
                "rule": [{"action": {"type": "Delete", **NULL}, "condition": {"age": 1}}]
            },
        },
        "/storage/v1/b/one",
    ),
    (
        "/iam/v1/projects/{P}/serviceAccounts",
        {"accountId": "number-one", **NULL, "serviceAccount": NULL},
        "/iam/v1/projects/{P}/serviceAccounts",
    ),
    (
        "/iam/v1/projects/{P}/roles",
        {"roleId": "one", "role": {"title": "One", **NULL}, **NULL},
        "/iam/v1/projects/{P}/roles/one",
    ),
    (
        "/cloudresourcemanager/v1/projects/{P}:setIamPolicy",
        {"policy": {"bindings": [{"role": "roles/owner", "members": ["user:a@b.c"]}, None]}},
        "/cloudresourcemanager/v1/projects/{P}",
    ),
    (
        "/secretmanager/v1/projects/{P}/secrets?secretId=one",
        {"replication": {"automatic": NULL, **NULL}, **NULL},
        "/secretmanager/v1/projects/{P}/secrets/one",
    ),
]


@pytest.mark.parametrize(("path", "body", "made"), NULLS, ids=lambda value: str(value)[:12])
def test_a_null_for_an_unknown_name_is_taken_and_forgotten(
    cloud: FullCloud, path: str, body: dict[str, Any], made: str
) -> None:
    answer = cloud.call("POST", path.replace("{P}", PROJECT), json=body)
    assert answer.status_code == 200, answer.text
    shown = cloud.call("GET", made.replace("{P}", PROJECT))
    assert shown.status_code == 200 and not {"colour", "null"} & set(re.findall(r"\w+", shown.text))


def test_a_patch_forgets_nulls_too(cloud: FullCloud) -> None:
    cloud.ok("POST", f"/storage/v1/b?project={PROJECT}", {"name": "one"})
    rule = {"action": {"type": "Delete", **NULL}, "condition": {"age": 1, **NULL}}
    changes = {**NULL, "versioning": {"enabled": True, **NULL}, "lifecycle": {"rule": [rule]}}
    changed = cloud.ok("PATCH", "/storage/v1/b/one", changes)
    assert changed["versioning"] == {"enabled": True}
    assert changed["lifecycle"]["rule"] == [{"action": {"type": "Delete"}, "condition": {"age": 1}}]


# Refusals, in the words of the real API

NAME_PATTERN = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
STANDARD_NEEDS_A_LIMIT = (
    "You cannot specify a termination action for a VM instance that has the standard "
    "provisioning model (default). To use instance termination action, the VM instance must use "
    "the Spot, Reservation-Bound or Flex Start provisioning model."
)
SCHEDULING = "resource.properties.scheduling"


def scheduled(**scheduling: Any) -> dict[str, Any]:
    return template_body(scheduling=scheduling)


def with_metadata(*values: str) -> dict[str, Any]:
    items = [{"key": f"k{index}", "value": value} for index, value in enumerate(values)]
    return template_body(metadata={"items": items})


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        ({}, "required", "Required field 'resource' not specified"),
        ({"properties": {}}, "required", "Required field 'resource.name' not specified"),
        (
            {"name": "Wrong_Name", "properties": {}},
            "invalid",
            "Invalid value for field 'resource.name': 'Wrong_Name'. Must be a match of regex "
            f"'{NAME_PATTERN}'",
        ),
        (
            scheduled(preemtible=True),
            "badRequest",
            'Invalid JSON payload received. Unknown name "preemtible" at '
            "'properties.scheduling': Cannot find field.",
        ),
        (
            scheduled(preemptible="yes"),
            "badRequest",
            "Invalid value at 'properties.scheduling.preemptible' (TYPE_BOOL), \"yes\"",
        ),
        (
            scheduled(minNodeCpus=2**31),
            "badRequest",
            "Invalid value at 'properties.scheduling.min_node_cpus' (TYPE_INT32), 2147483648",
        ),
        (
            scheduled(provisioningModel="SPOT", automaticRestart=True),
            "invalid",
            f"Invalid value for field '{SCHEDULING}.preemptible': 'true'. Scheduling must have "
            "preemptible be false when AutomaticRestart is true.",
        ),
        (
            scheduled(instanceTerminationAction="DELETE"),
            "invalid",
            f"Invalid value for field '{SCHEDULING}.instanceTerminationAction': 'DELETE'. "
            + STANDARD_NEEDS_A_LIMIT,
        ),
        (
            with_metadata("", "x" * 262145),
            "invalid",
            "Value for field 'resource.properties.metadata.items[1].value' is too large: maximum "
            "size 262144 character(s); actual size 262145.",
        ),
        (
            with_metadata("é" * 131073),
            "invalid",
            "Value for field 'resource.properties.metadata.items[0].value' is too large: maximum "
            "size 262144 character(s); actual size 262146.",
        ),
        (
            with_metadata("x" * 262144, "x" * 262140),
            "invalid",
            "Value for field 'resource.properties.metadata' is too large: the total size of all "
            "keys and values is 524288 bytes; it must be less than 512 KB.",
        ),
    ],
)
def test_an_invalid_template_is_refused(
    cloud: FullCloud, body: dict[str, Any], reason: str, message: str
) -> None:
    answer = cloud.call("POST", f"/compute/beta/projects/{PROJECT}/global/instanceTemplates",
                        json=body)  # fmt: skip
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["message"]) == (400, message)
    assert error["errors"] == [{"message": message, "domain": "global", "reason": reason}]


def test_metadata_just_within_its_limits_passes(cloud: FullCloud) -> None:
    body = with_metadata("é" * 131072, "x" * 262139)
    cloud.ok("POST", f"/compute/v1/projects/{PROJECT}/global/instanceTemplates", body)


def test_an_invalid_group_is_refused(cloud: FullCloud) -> None:
    project = f"/compute/v1/projects/{PROJECT}"
    cloud.ok("POST", f"{project}/global/instanceTemplates", template_body())
    policy = {"replacementMethod": "RECREATE", "maxSurge": {"percent": 20}}
    groups = f"{project}/zones/{ZONE}/instanceGroupManagers"
    refused = cloud.call("POST", groups, json=group_body(updatePolicy=policy))
    assert refused.json()["error"]["message"] == (
        "Invalid value for field 'resource.updatePolicy.maxSurge': '{\n  \"percent\": 20\n}'. "
        "maxSurge must be equal to 0 when replacement method is set to RECREATE"
    )
    cloud.ok("POST", groups, group_body())
    renamed = cloud.call("PATCH", f"{groups}/g1", json={"name": "g2"})
    assert renamed.status_code == 400
    used = cloud.call("DELETE", f"{project}/global/instanceTemplates/t1")
    (entry,) = used.json()["error"]["errors"]
    assert entry["reason"] == "resourceInUseByAnotherResource"
    assert entry["message"] == (
        f"The instance_template resource 'projects/{PROJECT}/global/instanceTemplates/t1' is "
        f"already being used by 'projects/{PROJECT}/zones/{ZONE}/instanceGroupManagers/g1'"
    )


@pytest.mark.parametrize(
    ("place", "body", "change", "field"),
    [
        ("global/firewalls", {"allowed": [{"IPProtocol": "tcp"}]}, {"direction": "EGRESS"},
         "resource.direction"),
        (f"regions/{REGION}/routers", {"network": "global/networks/default"}, {"name": "other"},
         "resource.name"),
        (f"regions/{REGION}/subnetworks",
         {"network": "global/networks/default", "ipCidrRange": "10.9.0.0/24"},
         {"ipCidrRange": "10.8.0.0/24"}, "resource.ipCidrRange"),
        ("global/images", {"rawDisk": {"source": "gs://b/o"}}, {"sourceImage": "global/images/x"},
         "resource.sourceImage"),
    ],
)  # fmt: skip
def test_fields_fixed_at_creation_cannot_be_patched(
    cloud: FullCloud, place: str, body: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    path = f"/compute/v1/projects/{PROJECT}/{place}"
    cloud.ok("POST", path, {"name": "thing", **body})
    before = cloud.ok("GET", f"{path}/thing")
    refused = cloud.call("PATCH", f"{path}/thing", json=change)
    assert refused.status_code == 400
    assert f"Invalid value for field '{field}'" in refused.json()["error"]["message"]
    assert cloud.ok("GET", f"{path}/thing") == before


def test_a_network_in_use_and_a_stale_fingerprint(cloud: FullCloud) -> None:
    project = f"/compute/v1/projects/{PROJECT}"
    cloud.ok("POST", f"{project}/global/networks", {"name": "n1", "autoCreateSubnetworks": False})
    network = f"projects/{PROJECT}/global/networks/n1"
    subnetwork = {"name": "s1", "network": network, "ipCidrRange": "10.1.0.0/24"}
    subnetworks = f"{project}/regions/{REGION}/subnetworks"
    cloud.ok("POST", subnetworks, subnetwork)
    used = cloud.call("DELETE", f"{project}/global/networks/n1").json()["error"]
    assert used["message"] == (
        f"The network resource '{network}' is already being used by "
        f"'projects/{PROJECT}/regions/{REGION}/subnetworks/s1'"
    )
    stale = {"fingerprint": "AAAAAAAAAAA=", "privateIpGoogleAccess": True}
    refused = cloud.call("PATCH", f"{subnetworks}/s1", json=stale)
    assert (refused.status_code, refused.json()["error"]["errors"][0]["reason"]) == (
        412,
        "conditionNotMet",
    )
    absent = {**subnetwork, "name": "s2", "network": "global/networks/none"}
    assert "cannot be found" in cloud.call("POST", subnetworks, json=absent).text


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ({"colour": "red"}, 400, "Cannot bind query parameter"),
        ({"maxResults": "many"}, 400, "Invalid value at 'max_results' (TYPE_UINT32)"),
        ({"maxResults": "-1"}, 400, "Values must be within the range"),
        ({"filter": "name ="}, 400, "Invalid list filter expression"),
        ({"pageToken": "nonsense"}, 400, "'pageToken'"),
        ({"orderBy": "size"}, 400, "'orderBy'"),
    ],
)
def test_invalid_queries_are_refused(
    cloud: FullCloud, query: dict[str, str], status: int, message: str
) -> None:
    path = f"/compute/v1/projects/{PROJECT}/global/instanceTemplates"
    answer = cloud.call("GET", path, params=query)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_lists_have_pages_filters_and_an_order(cloud: FullCloud) -> None:
    networks = f"/compute/v1/projects/{PROJECT}/global/networks"
    for name in ("a-one", "a-two", "b-one"):
        cloud.ok("POST", networks, {"name": name, "autoCreateSubnetworks": False})

    def names(**query: Any) -> list[str]:
        return [item["name"] for item in cloud.ok("GET", networks, params=query)["items"]]

    assert names(filter="name = a-*") == ["a-one", "a-two"]
    assert names(filter='name eq ".*one"') == ["a-one", "b-one"]
    assert names(filter=r'name eq ".*\bone\b.*"') == ["a-one", "b-one"]  # as gcloud sends name:one
    assert names(filter="(name != default) (name ne a-one)") == ["a-two", "b-one"]
    assert names(filter="name = b-one OR autoCreateSubnetworks = true") == ["default", "b-one"]
    assert names(filter="NOT name:one", orderBy="name") == ["a-two", "default"]
    found: list[str] = []
    query: dict[str, Any] = {"maxResults": 2, "orderBy": "name"}
    while True:
        page = cloud.ok("GET", networks, params=query)
        assert len(page["items"]) <= 2
        found += [item["name"] for item in page["items"]]
        if "nextPageToken" not in page:
            break
        query["pageToken"] = page["nextPageToken"]
    assert found == ["a-one", "a-two", "b-one", "default"]


def test_aggregated_lists_have_pages(cloud: FullCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """As gcloud and Outlast read them: an item is on one page, each scope on every page."""
    templates = f"/compute/v1/projects/{PROJECT}/global/instanceTemplates"
    names = [f"t{number}" for number in range(5)]
    for name in names:
        cloud.ok("POST", templates, {**template_body(), "name": name})
    path = f"/compute/v1/projects/{PROJECT}/aggregated/instanceTemplates"
    whole = cloud.ok("GET", path)["items"]

    def walk(**query: Any) -> list[list[str]]:
        pages: list[list[str]] = []
        while True:
            answer = cloud.ok("GET", path, params=query)
            discovery.check_answer("compute.v1", "InstanceTemplateAggregatedList", answer)
            assert answer["items"].keys() == whole.keys()
            found = [
                item["name"]
                for scope in answer["items"].values()
                for item in scope.get("instanceTemplates", [])
            ]
            for scope in answer["items"].values():
                assert ("warning" in scope) != bool(scope.get("instanceTemplates"))
            pages.append(found)
            if "nextPageToken" not in answer:
                return pages
            query["pageToken"] = answer["nextPageToken"]

    assert walk() == [names]
    assert walk(maxResults=2) == [names[:2], names[2:4], names[4:]]
    assert walk(maxResults=2, filter="name != t1") == [["t0", "t2"], ["t3", "t4"]]
    assert walk(filter="name = none") == [[]]

    # More than any page has, as Outlast itself reads them.
    more = [f"u{number:03}" for number in range(500)]
    for name in more:
        cloud.ok("POST", templates, {**template_body(), "name": name})
    assert [len(page) for page in walk()] == [500, 5]
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "anything")
    client = compute.Compute(PROJECT, endpoint=f"{cloud.url}/compute/v1/")
    assert [one["name"] for one in client.aggregated("instanceTemplates")] == [*names, *more]


def nonsense(method: discovery.Method, draw: random.Random) -> Any:
    """A body with some of the fields that the method's document names, and any values."""
    if not method.request or draw.random() < 0.1:
        return draw.choice([None, [], {}, "x", 1, [[]], {"": None}])
    known = sorted(discovery.properties(method.api, method.request))
    body = {name: draw.choice(known) for name in draw.sample(known, min(4, len(known)))}
    for _ in range(draw.randrange(1, 4)):
        text = mutate.mutated(json.dumps(body).encode(), [draw.getrandbits(48)])
        with contextlib.suppress(ValueError, RecursionError):
            body = json.loads(text)
    return body


def test_no_nonsense_breaks_the_cloud(cloud: FullCloud, served: Served) -> None:
    """Every method, with senseless names, queries and bodies: each is answered, with
    an error of the API if it is one, and afterwards the cloud still serves."""
    names = (
        "x",
        PROJECT,
        "..",
        "%2e%2e%2fx",
        "a%00b",
        "%1b[2J",
        "x" * 300,
        "-",
        "0",
        "%F0%9F%98%80",
    )
    real = collections.defaultdict(lambda: "x", project=PROJECT, zone=ZONE, region=REGION)
    draw = random.Random(17)
    for verb, path in sorted(served.methods):
        for _ in range(1 + ("v1" in path)):
            url = re.sub(
                r"{(\w+)[^}]*}",
                lambda found: real[found[1]] if draw.random() < 0.8 else draw.choice(names),
                path,
            )
            known = [
                name
                for name, one in served.methods[verb, path].parameters.items()
                if one["location"] == "query"
            ]
            asked = [name for name in [*known, "unknown"] if draw.random() < 0.1]
            query = {name: draw.choice((*mutate.TEXTS[:12], "1", "true", "a=b")) for name in asked}
            body = nonsense(served.methods[verb, path], draw) if verb != "GET" else None
            answer = cloud.call(verb, url, params=query, json=body)
            said = f"{verb} {url} {query} {body}: {answer.status_code} {answer.text}"
            assert answer.status_code < 500 or answer.status_code == 501, said
            if answer.status_code >= 400:
                assert answer.json()["error"]["code"] == answer.status_code, said
    assert cloud.call("GET", f"/compute/v1/projects/{PROJECT}").status_code == 200
