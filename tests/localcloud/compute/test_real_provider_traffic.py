"""The requests of the real gcp provider plugin, as it sends them, and what it reads in the answers.

The plugin (9.35, with the SDK 10.2.0) was seen to send these against custom endpoints: the beta
paths of Compute, nulls and empties in bodies, templates read by number, health checks replaced
whole, policies read and written under their etag, objects uploaded at the host's root.
"""

import base64
import hashlib
from typing import Any

import pytest

from outlast.localcloud.http.discovery import check_answer
from tests.localcloud.compute.test_compute import SPOT, wait
from tests.localcloud.local_cloud import PROJECT, FullCloud

ZONE = "europe-west4-a"
REGION = "europe-west4"
BETA = f"/compute/beta/projects/{PROJECT}"
AGENT = "Pulumi/3.0 (GPN:Pulumi; https://www.pulumi.com) pulumi-gcp/9.35.0"
LABEL = {"goog-pulumi-provisioned": "true"}


class Plugin:
    """Sends as the plugin does: its headers, `alt=json`, and a look at each operation."""

    def __init__(self, cloud: FullCloud) -> None:
        self.cloud = cloud

    def send(self, verb: str, path: str, body: Any = None, **query: Any) -> Any:
        headers = {
            "User-Agent": AGENT,
            "Authorization": "Bearer anything",
            "Content-Type": "application/json",
        }
        query = {"alt": "json", **query}
        answer = self.cloud.call(verb, path, json=body, params=query, headers=headers)
        assert answer.status_code == 200, f"{verb} {path}: {answer.text}"
        return answer.json()

    def operate(self, verb: str, path: str, body: Any = None, **query: Any) -> Any:
        """A call of Compute that answers with an operation, polled as the plugin polls."""
        operation = self.send(verb, f"{BETA}/{path}", body, **query)
        check_answer("compute.beta", "Operation", operation)
        assert operation["name"] and operation["targetId"].isdigit()

        def done() -> Any:
            """What it polls: by the last segment of the zone, the region, or in `global`."""
            if operation["status"] == "DONE":
                return operation
            place = next((k for k in ("zone", "region") if k in operation), "")
            where = f"{place}s/{operation[place].rpartition('/')[2]}" if place else "global"
            found = self.send("GET", f"{BETA}/{where}/operations/{operation['name']}")
            return found if found["status"] == "DONE" else None

        operation = wait(done)
        assert "error" not in operation
        return operation

    def read(self, path: str, schema: str, **query: Any) -> Any:
        """A resource, which must fit the document."""
        found = self.send("GET", f"{BETA}/{path}", **query)
        check_answer("compute.beta", schema, found)
        assert found["selfLink"].endswith(f"/compute/beta/projects/{PROJECT}/{path}") or query
        return found

    def is_gone(self, path: str) -> bool:
        return self.cloud.call("GET", path).status_code == 404


@pytest.fixture
def plugin(full_cloud: FullCloud) -> Plugin:
    """The plugin with a cloud in which nothing exists."""
    return Plugin(full_cloud)


def template_body(name: str) -> dict[str, Any]:
    """An InstanceTemplate with all that the plugin puts into it."""
    disk = {
        "autoDelete": True,
        "boot": True,
        "initializeParams": {
            "diskSizeGb": "50",
            "diskType": "pd-balanced",
            "labels": {"stack": "dev"},
            "sourceImage": f"projects/{PROJECT}/global/images/family/outlast",
        },
        "mode": "READ_WRITE",
        "type": "PERSISTENT",
        "diskEncryptionKey": None,
    }
    scheduling = {
        **SPOT,
        "hostErrorTimeoutSeconds": None,
        "instanceTerminationAction": "DELETE",
        "nodeAffinities": [None],
        "onHostMaintenance": "TERMINATE",
        "preemptionNoticeDuration": {"seconds": "120"},
        "terminationTime": "2099-01-01T00:00:00Z",
    }
    return {
        "name": name,
        "description": "",
        "properties": {
            "canIpForward": False,
            "description": None,
            "disks": [disk],
            "labels": {"stack": "dev", **LABEL},
            "machineType": "n2-standard-2",
            "metadata": {"items": [{"key": "startup-script", "value": "true"}]},
            "networkInterfaces": [
                {
                    "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}],
                    "network": f"projects/{PROJECT}/global/networks/default",
                    "aliasIpRanges": [],
                }
            ],
            "reservationAffinity": None,
            "scheduling": scheduling,
            "serviceAccounts": [{"email": "default", "scopes": ["cloud-platform"]}],
            "tags": {},
            "resourceManagerTags": {},
            "shieldedInstanceConfig": None,
        },
    }


def group_body(name: str, template: str, **more: Any) -> dict[str, Any]:
    """An InstanceGroupManager with all that the plugin puts into it."""
    return {
        "name": name,
        "baseInstanceName": name,
        "description": "",
        "targetSize": 0,
        "listManagedInstancesResults": "PAGELESS",
        "versions": [{"name": "trainer", "instanceTemplate": template, "targetSize": {}}],
        "autoHealingPolicies": [],
        "instanceLifecyclePolicy": {
            "defaultActionOnFailure": "REPAIR",
            "forceUpdateOnRepair": "YES",
            "onFailedHealthCheck": "DEFAULT_ACTION",
            "onRepair": None,
        },
        "updatePolicy": {
            "type": "OPPORTUNISTIC",
            "minimalAction": "REPLACE",
            "mostDisruptiveAllowedAction": None,
            "replacementMethod": "RECREATE",
            "maxSurge": {"fixed": 0, "percent": None},
            "maxUnavailable": {"fixed": 1, "percent": None},
        },
        "standbyPolicy": None,
        "statefulPolicy": {"preservedState": {}},
        "resourcePolicies": {"workloadPolicy": None},
        "params": {},
        "namedPorts": None,
        "targetPools": [],
        **more,
    }


def read_group(plugin: Plugin, path: str) -> Any:
    """A group with everything that the plugin's reader takes for granted."""
    group = plugin.read(path, "InstanceGroupManager")
    for key in (
        *("baseInstanceName", "name", "creationTimestamp", "id", "targetSize", "fingerprint"),
        *("listManagedInstancesResults", "versions", "updatePolicy", "instanceLifecyclePolicy"),
        *("instanceGroup", "selfLink", "standbyPolicy", "status", "targetSizePolicy"),
    ):
        assert key in group, key
    assert group["id"].isdigit()
    status = group["status"]
    assert {"isStable", "versionTarget", "stateful", "allInstancesConfig"} <= set(status)
    assert "isReached" in status["versionTarget"]
    assert "effective" in status["allInstancesConfig"]
    assert "hasStatefulConfig" in status["stateful"]
    assert "allEffective" in status["stateful"]["perInstanceConfigs"]
    return group


def test_template_and_group(plugin: Plugin) -> None:
    made = plugin.operate("POST", "global/instanceTemplates", template_body("t1"))
    number = made["targetId"]
    template = plugin.read(f"global/instanceTemplates/{number}", "InstanceTemplate", view="FULL")
    assert (template["id"], template["name"]) == (number, "t1")
    properties = template["properties"]
    assert properties["labels"] == {"stack": "dev", **LABEL}
    assert properties["metadata"]["fingerprint"]
    assert properties["scheduling"]["preemptionNoticeDuration"] == {"seconds": "120"}
    assert properties["disks"][0]["initializeParams"]["diskSizeGb"] == "50"

    # The reference that the program gives is `…?uniqueId=NUMBER`; the plugin sends the number.
    link = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/global/instanceTemplates"
    groups, group = f"zones/{ZONE}/instanceGroupManagers", f"zones/{ZONE}/instanceGroupManagers/g1"
    plugin.operate("POST", groups, group_body("g1", f"{link}/{number}"))
    live = read_group(plugin, group)
    assert live["versions"][0]["instanceTemplate"].rpartition("/")[2] in ("t1", number)
    assert live["status"]["isStable"] is True

    second = plugin.operate("POST", "global/instanceTemplates", template_body("t2"))["targetId"]
    patch = {
        "fingerprint": live["fingerprint"],
        "versions": [{"name": "trainer", "instanceTemplate": f"{link}/{second}", "targetSize": {}}],
    }
    plugin.operate("PATCH", group, patch)
    changed = read_group(plugin, group)
    assert changed["fingerprint"] != live["fingerprint"]
    assert changed["updatePolicy"]["replacementMethod"] == "RECREATE"
    ports = {"namedPorts": [{"name": "health", "port": 8080}]}
    plugin.operate("POST", f"zones/{ZONE}/instanceGroups/g1/setNamedPorts", ports)
    plugin.operate("POST", f"{group}/resize", size=0)
    # The old one goes once the group has the new one, by its name.
    plugin.operate("DELETE", "global/instanceTemplates/t1")
    assert plugin.is_gone(f"{BETA}/global/instanceTemplates/{number}")
    used = plugin.cloud.call("DELETE", f"{BETA}/global/instanceTemplates/t2")
    assert used.json()["error"]["errors"][0]["reason"] == "resourceInUseByAnotherResource"
    plugin.operate("DELETE", group)
    assert plugin.is_gone(f"{BETA}/{group}")
    plugin.operate("DELETE", "global/instanceTemplates/t2")


def test_regional_template_and_group(plugin: Plugin) -> None:
    templates = f"regions/{REGION}/instanceTemplates"
    plugin.operate("POST", templates, template_body("t1"))
    template = plugin.read(f"{templates}/t1", "InstanceTemplate", view="FULL")
    assert template["region"].endswith(f"/regions/{REGION}")
    group = f"regions/{REGION}/instanceGroupManagers/g1"
    body = group_body(
        "g1",
        template["selfLink"],
        distributionPolicy={"zones": [], "targetShape": "ANY"},
        instanceFlexibilityPolicy=None,
        targetSizePolicy=None,
    )
    body["instanceLifecyclePolicy"]["onRepair"] = {"allowChangingZone": "YES"}
    body["updatePolicy"] |= {
        "instanceRedistributionType": "NONE",
        "maxUnavailable": {"fixed": 3, "percent": None},
    }
    plugin.operate("POST", f"regions/{REGION}/instanceGroupManagers", body)
    live = read_group(plugin, group)
    assert live["region"].endswith(f"/regions/{REGION}")
    assert live["distributionPolicy"]["targetShape"] == "ANY"
    zones = {entry["zone"].rpartition("/")[2] for entry in live["distributionPolicy"]["zones"]}
    assert zones == {f"{REGION}-{letter}" for letter in "abc"}
    change = {"fingerprint": live["fingerprint"], "updatePolicy": {"minimalAction": "RESTART"}}
    plugin.operate("PATCH", group, change)
    assert read_group(plugin, group)["updatePolicy"]["instanceRedistributionType"] == "NONE"
    plugin.operate("POST", f"{group}/resize", size=0)
    plugin.operate("DELETE", group)
    plugin.operate("DELETE", f"{templates}/t1")


def test_network_and_its_dependents(plugin: Plugin) -> None:
    network = {
        "name": "n1",
        "autoCreateSubnetworks": False,
        "description": "",
        "routingConfig": {"routingMode": "REGIONAL", "bgpBestPathSelectionMode": None},
        "params": {},
    }
    plugin.operate("POST", "global/networks", network)
    live = plugin.read("global/networks/n1", "Network")
    assert {"autoCreateSubnetworks", "mtu", "routingConfig", "selfLinkWithId"} <= set(live)
    assert plugin.send("GET", f"{BETA}/global/routes", filter="network = n1")["items"] == []
    subnetworks = f"regions/{REGION}/subnetworks"
    subnetwork = {
        "name": "s1",
        "ipCidrRange": "10.1.0.0/24",
        "network": f"projects/{PROJECT}/global/networks/n1",
        "privateIpGoogleAccess": True,
        "region": f"projects/{PROJECT}/global/regions/{REGION}",
        "logConfig": {"enable": False},
        "secondaryIpRanges": [],
    }
    plugin.operate("POST", subnetworks, subnetwork)
    live = plugin.read(f"{subnetworks}/s1", "Subnetwork")
    assert live["gatewayAddress"] == "10.1.0.1" and live["fingerprint"]
    plugin.operate("POST", f"{subnetworks}/s1/expandIpCidrRange", {"ipCidrRange": "10.1.0.0/20"})
    allowed = {"privateIpGoogleAccess": False}
    plugin.operate("POST", f"{subnetworks}/s1/setPrivateIpGoogleAccess", allowed)
    live = plugin.read(f"{subnetworks}/s1", "Subnetwork")
    assert (live["ipCidrRange"], live["privateIpGoogleAccess"]) == ("10.1.0.0/20", False)

    routers = f"regions/{REGION}/routers"
    router = {"name": "r1", "network": f"projects/{PROJECT}/global/networks/n1", "bgp": None}
    plugin.operate("POST", routers, router)
    nat = {
        "name": "nat",
        "natIpAllocateOption": "AUTO_ONLY",
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
        "natIps": [],
        "subnetworks": [],
        "logConfig": {"enable": True, "filter": "ERRORS_ONLY"},
        "rules": [],
        "initialNatIps": None,  # in no document
    }
    assert "nats" not in plugin.read(f"{routers}/r1", "Router")
    plugin.operate("PATCH", f"{routers}/r1", {"nats": [nat]})
    (found,) = plugin.read(f"{routers}/r1", "Router")["nats"]
    assert found["logConfig"]["filter"] == "ERRORS_ONLY"
    assert found["udpIdleTimeoutSec"] == 30 and "initialNatIps" not in found
    plugin.operate("PATCH", f"{routers}/r1", {"nats": []})
    assert not plugin.read(f"{routers}/r1", "Router").get("nats")

    rule = {
        "name": "f1",
        "network": f"projects/{PROJECT}/global/networks/n1",
        "allowed": [{"IPProtocol": "tcp", "ports": ["8080"]}],
        "denied": [],
        "sourceRanges": ["130.211.0.0/22", "35.191.0.0/16"],
        "targetTags": ["health"],
        "logConfig": {"enable": False},
        "priority": 1000,
        "params": {},
    }
    plugin.operate("POST", "global/firewalls", rule)
    live = plugin.read("global/firewalls/f1", "Firewall")
    assert (live["direction"], live["disabled"]) == ("INGRESS", False)
    plugin.operate("PATCH", "global/firewalls/f1", {"sourceRanges": ["35.191.0.0/16"]})
    assert plugin.read("global/firewalls/f1", "Firewall")["sourceRanges"] == ["35.191.0.0/16"]
    made = ("global/firewalls/f1", f"{routers}/r1", f"{subnetworks}/s1", "global/networks/n1")
    assert plugin.cloud.ok("GET", "/_local/audit")["declared"] == sorted(made)
    for path in made:
        plugin.operate("DELETE", path)
        assert plugin.is_gone(f"{BETA}/{path}")


@pytest.mark.parametrize("place", ["global", f"regions/{REGION}"])
def test_health_check_is_replaced_whole(plugin: Plugin, place: str) -> None:
    body = {
        "name": "h1",
        "type": "HTTP",
        "checkIntervalSec": 30,
        "timeoutSec": 5,
        "healthyThreshold": 2,
        "unhealthyThreshold": 10,
        "httpHealthCheck": {"port": 8080, "requestPath": "/healthz", "proxyHeader": "NONE"},
        "logConfig": {"enable": False},
        "sourceRegions": [],
    }
    plugin.operate("POST", f"{place}/healthChecks", body)
    live = plugin.read(f"{place}/healthChecks/h1", "HealthCheck")
    assert live["httpHealthCheck"]["requestPath"] == "/healthz"
    plugin.operate("PUT", f"{place}/healthChecks/h1", {**body, "unhealthyThreshold": 3})
    live = plugin.read(f"{place}/healthChecks/h1", "HealthCheck")
    assert (live["unhealthyThreshold"], live["type"]) == (3, "HTTP")
    plugin.operate("DELETE", f"{place}/healthChecks/h1")
    assert plugin.is_gone(f"{BETA}/{place}/healthChecks/h1")


def test_disk_and_image(plugin: Plugin) -> None:
    disk = {
        "name": "d1",
        "sizeGb": "20",
        "sourceImage": f"projects/{PROJECT}/global/images/family/outlast",
        "type": f"projects/{PROJECT}/zones/{ZONE}/diskTypes/pd-balanced",
        "labels": LABEL,
        "params": {},
    }
    path = f"zones/{ZONE}/disks/d1"
    plugin.operate("POST", f"zones/{ZONE}/disks", disk, sourceImage="")
    live = plugin.read(path, "Disk")
    assert (live["sizeGb"], live["status"]) == ("20", "READY")
    labels = {"labels": {"a": "b"}, "labelFingerprint": live["labelFingerprint"]}
    plugin.operate("POST", f"{path}/setLabels", labels)
    plugin.operate("POST", f"{path}/resize", {"sizeGb": 30})
    live = plugin.read(path, "Disk")
    assert (live["sizeGb"], live["labels"]) == ("30", {"a": "b"})
    image = {
        "name": "i1",
        "family": "baked",
        "sourceDisk": live["selfLink"],
        "labels": LABEL,
        "guestOsFeatures": [],
        "licenses": [],
    }
    plugin.operate("POST", "global/images", image)
    live = plugin.read("global/images/i1", "Image")
    assert (live["status"], live["diskSizeGb"]) == ("READY", "30")
    assert plugin.send("GET", f"{BETA}/global/images/family/baked")["name"] == "i1"
    labels = {"labels": {}, "labelFingerprint": live["labelFingerprint"]}
    plugin.operate("POST", "global/images/i1/setLabels", labels)
    stale = plugin.cloud.call("POST", f"{BETA}/global/images/i1/setLabels", json=labels)
    assert stale.status_code == 412
    # Before a disk goes the plugin looks for who uses it.
    assert "users" not in plugin.read(path, "Disk")
    plugin.operate("DELETE", path)
    plugin.operate("DELETE", "global/images/i1")
    assert plugin.is_gone(f"{BETA}/global/images/i1")


def test_bucket_object_and_binding(plugin: Plugin) -> None:
    bucket = {
        "name": "plugin-bucket",
        "location": "EUROPE-WEST4",
        "labels": LABEL,
        "iamConfiguration": {
            "uniformBucketLevelAccess": {"enabled": True},
            "publicAccessPrevention": "enforced",
        },
        "storageClass": "STANDARD",
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
    }
    plugin.send("POST", "/storage/v1/b", bucket, project=PROJECT, prettyPrint="false")
    live = plugin.send("GET", "/storage/v1/b/plugin-bucket", prettyPrint="false")
    assert {"projectNumber", "selfLink", "timeCreated", "etag", "metageneration"} <= set(live)
    plugin.send("PATCH", "/storage/v1/b/plugin-bucket", {"labels": {"a": "b"}})

    data = b"bundle"
    parts = [
        b'--xx\r\nContent-Type: application/json\r\n\r\n{"bucket":"plugin-bucket",'
        b'"name":"a/b.zip","contentType":"application/zip"}\r\n',
        b"--xx\r\nContent-Type: application/zip\r\n\r\n" + data + b"\r\n--xx--\r\n",
    ]
    # At the root of the host, not below the custom endpoint.
    answer = plugin.cloud.call(
        "POST",
        "/upload/storage/v1/b/plugin-bucket/o",
        params={"alt": "json", "name": "a/b.zip", "uploadType": "multipart"},
        data=b"".join(parts),
        headers={"Content-Type": "multipart/related; boundary=xx", "User-Agent": AGENT},
    )
    assert answer.status_code == 200, answer.text
    live = plugin.send("GET", "/storage/v1/b/plugin-bucket/o/a%2Fb.zip")
    assert live["md5Hash"] == base64.b64encode(hashlib.md5(data).digest()).decode()
    assert {"crc32c", "generation", "mediaLink", "selfLink"} <= set(live)

    account = {"accountId": "the-vm", "serviceAccount": {"displayName": ""}}
    email = plugin.send("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", account)["email"]
    prefix = "projects/_/buckets/plugin-bucket/objects/e/"
    condition = {"title": "prefix", "expression": f"resource.name.startsWith('{prefix}')"}
    path = "/storage/v1/b/plugin-bucket/iam"
    policy = plugin.send("GET", path, optionsRequestedPolicyVersion="3")
    policy["version"] = 3
    binding = {"role": "roles/storage.objectUser", "members": [f"serviceAccount:{email}"]}
    policy["bindings"].append({**binding, "condition": condition})
    written = plugin.send("PUT", path, policy)
    assert written["etag"] != policy["etag"]
    refused = plugin.cloud.call("PUT", path, json=policy)  # someone wrote in between
    assert refused.status_code in (409, 412)
    listed = plugin.send("GET", "/storage/v1/b/plugin-bucket/o", versions="true")
    for item in listed["items"]:
        path = f"/storage/v1/b/plugin-bucket/o/{item['name'].replace('/', '%2F')}"
        generation = {"generation": item["generation"]}
        assert plugin.cloud.call("DELETE", path, params=generation).status_code == 204
    assert plugin.cloud.call("DELETE", "/storage/v1/b/plugin-bucket").status_code == 204
    assert plugin.is_gone("/storage/v1/b/plugin-bucket")


def test_account_role_and_the_projects_policy(plugin: Plugin) -> None:
    accounts = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
    query = {"prettyPrint": "false"}
    made = plugin.send("POST", accounts, {"accountId": "the-vm", "serviceAccount": {}}, **query)
    one = f"/iam/v1/{made['name']}"
    assert {"email", "uniqueId", "name", "projectId"} <= set(plugin.send("GET", one))
    change = {"serviceAccount": {"displayName": "VM"}, "updateMask": "displayName"}
    plugin.send("PATCH", one, change)
    plugin.send("POST", f"{one}:disable", {})
    assert plugin.send("GET", one)["disabled"] is True
    plugin.send("POST", f"{one}:enable", {})

    roles = f"/iam/v1/projects/{PROJECT}/roles"
    assert plugin.is_gone(f"{roles}/leave")
    role = {
        "title": "Leave",
        "includedPermissions": ["compute.instanceGroupManagers.update"],
        "stage": "GA",
    }
    plugin.send("POST", roles, {"roleId": "leave", "role": role})
    plugin.send("PATCH", f"{roles}/leave", {**role, "title": "Go"})
    assert plugin.send("GET", f"{roles}/leave")["title"] == "Go"

    project = f"/cloudresourcemanager/v1/projects/{PROJECT}"
    options = {"options": {"requestedPolicyVersion": 3}}
    policy = plugin.send("POST", f"{project}:getIamPolicy", options, **query)
    member = f"serviceAccount:{made['email']}"
    # One batch of all bindings of a parent.
    batch = {
        "etag": policy["etag"],
        "version": 3,
        "bindings": [
            {"role": f"projects/{PROJECT}/roles/leave", "members": [member]},
            {"role": "roles/compute.viewer", "members": [member]},
        ],
    }
    body = {"policy": batch, "updateMask": "bindings,etag,auditConfigs"}
    plugin.send("POST", f"{project}:setIamPolicy", body, **query)
    stale = plugin.cloud.call("POST", f"{project}:setIamPolicy", json=body)
    error = stale.json()["error"]
    assert (error["code"], error["status"]) == (409, "ABORTED")
    assert "concurrent policy changes" in error["message"]
    for _ in range(3):  # it reads until the binding shows
        found = plugin.send("POST", f"{project}:getIamPolicy", options, **query)
        assert len(found["bindings"]) == 2
    body["policy"] = {**found, "bindings": []}
    plugin.send("POST", f"{project}:setIamPolicy", body, **query)
    plugin.send("DELETE", f"{roles}/leave")
    plugin.send("DELETE", one)
    assert plugin.is_gone(one)


def test_secret_version_and_its_readers(plugin: Plugin) -> None:
    secrets = f"/secretmanager/v1/projects/{PROJECT}/secrets"
    body = {"replication": {"automatic": {}}, "labels": LABEL, "annotations": {}}
    made = plugin.send("POST", secrets, body, secretId="token")
    assert made["name"].endswith("/secrets/token") and made["createTime"]
    plugin.send("PATCH", f"{secrets}/token", {"labels": {"a": "b"}}, updateMask="labels")
    assert plugin.send("GET", f"{secrets}/token")["labels"] == {"a": "b"}
    payload = {"payload": {"data": base64.b64encode(b"s3cr3t").decode()}}
    version = plugin.send("POST", f"{secrets}/token:addVersion", payload)
    path = f"/secretmanager/v1/{version['name']}"
    assert plugin.send("GET", path)["state"] == "ENABLED"
    data = plugin.send("GET", f"{path}:access")["payload"]["data"]
    assert base64.b64decode(data) == b"s3cr3t"
    assert plugin.send("POST", f"{path}:disable", {})["state"] == "DISABLED"
    hidden = plugin.cloud.call("GET", f"{path}:access").json()["error"]
    assert (hidden["code"], hidden["status"]) == (400, "FAILED_PRECONDITION")
    plugin.send("POST", f"{path}:enable", {})

    account = {"accountId": "the-vm", "serviceAccount": {}}
    email = plugin.send("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", account)["email"]
    asked = {"options.requestedPolicyVersion": "3"}
    policy = plugin.send("GET", f"{secrets}/token:getIamPolicy", **asked)
    reader = {
        "role": "roles/secretmanager.secretAccessor",
        "members": [f"serviceAccount:{email}"],
    }
    policy["bindings"] = [reader]
    plugin.send("POST", f"{secrets}/token:setIamPolicy", {"policy": policy})
    assert plugin.send("GET", f"{secrets}/token:getIamPolicy", **asked)["bindings"] == [reader]
    stale = plugin.cloud.call("POST", f"{secrets}/token:setIamPolicy", json={"policy": policy})
    assert stale.status_code == 409
    plugin.send("POST", f"{path}:destroy", {})
    assert plugin.send("GET", path)["state"] == "DESTROYED"
    kept = [file.read_text() for file in plugin.cloud.state.rglob("*.json*")]
    assert not [text for text in kept if payload["payload"]["data"] in text]
    plugin.send("DELETE", f"{secrets}/token")
    assert plugin.is_gone(f"{secrets}/token")


@pytest.mark.rehearsal
def test_instance_until_it_runs(plugin: Plugin) -> None:
    properties = template_body("x")["properties"]
    del properties["resourceManagerTags"]  # a VM has them in `params`
    body = {
        **properties,
        "name": "builder",
        "machineType": f"projects/{PROJECT}/zones/{ZONE}/machineTypes/e2-small",
        "deletionProtection": False,
        "params": {},
        "scheduling": {"automaticRestart": True, "provisioningModel": "STANDARD"},
    }
    path = f"zones/{ZONE}/instances/builder"
    plugin.operate("POST", f"zones/{ZONE}/instances", body)

    def running() -> Any:
        found = plugin.read(path, "Instance", view="FULL")
        return found if found["status"] == "RUNNING" else None

    live = wait(running)
    for key in ("id", "cpuPlatform", "labelFingerprint", "metadata", "networkInterfaces", "zone"):
        assert live[key], key
    assert live["scheduling"]["onHostMaintenance"] == "MIGRATE"
    for disk in live["disks"]:
        source = disk["source"].partition(f"/projects/{PROJECT}/")[2]
        found = plugin.read(source, "Disk")
        used = plugin.cloud.call("DELETE", f"{BETA}/{source}").json()["error"]
        assert used["message"].endswith(f"is already being used by 'projects/{PROJECT}/{path}'")
        assert found["users"] == [live["selfLink"].replace("/compute/v1/", "/compute/beta/")]
    items = [{"key": "outlast-done", "value": "1"}]
    metadata = {"fingerprint": live["metadata"]["fingerprint"], "items": items}
    plugin.operate("POST", f"{path}/setMetadata", metadata)
    plugin.operate("POST", f"{path}/stop")
    assert plugin.read(path, "Instance", view="FULL")["status"] == "TERMINATED"
    plugin.operate("DELETE", path)
    assert plugin.is_gone(f"{BETA}/{path}")
    assert plugin.cloud.ok("GET", "/_local/audit")["vms"] == []
