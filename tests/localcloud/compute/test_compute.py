"""The Compute API over HTTP, by plain requests and by Google's own client."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import googleapiclient.discovery
import httplib2
import pytest
import requests
from googleapiclient.errors import HttpError

from outlast.localcloud.http.discovery import check_body
from tests.localcloud.local_cloud import PROJECT, FullCloud

ZONE = "europe-west4-a"
BASE = f"/compute/v1/projects/{PROJECT}"
BETA = f"/compute/beta/projects/{PROJECT}"
GROUPS = f"{BASE}/zones/{ZONE}/instanceGroupManagers"
VMS = f"{BASE}/zones/{ZONE}/instances"
LONGEST_WAIT_SEC = 60.0
SPOT = {"provisioningModel": "SPOT", "preemptible": True, "automaticRestart": False}
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@pytest.fixture
def cloud(full_cloud: FullCloud) -> FullCloud:
    return full_cloud


@pytest.fixture
def client(cloud: FullCloud) -> Iterator[Callable[[str], Any]]:
    """Google's own client of an API version."""
    http = httplib2.Http()

    def build(version: str) -> Any:
        return googleapiclient.discovery.build(
            "compute",
            version,
            http=http,
            static_discovery=True,
            client_options={"api_endpoint": f"{cloud.url}/compute/{version}/"},
        )

    yield build
    http.close()


def template_body(name: str = "t1", **properties: Any) -> dict[str, Any]:
    disk = {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": f"projects/{PROJECT}/global/images/family/outlast",
            "diskSizeGb": "50",
            "diskType": "pd-balanced",
        },
    }
    return {
        "name": name,
        "properties": {
            "machineType": "e2-standard-2",
            "disks": [disk],
            "networkInterfaces": [{"network": "global/networks/default"}],
            "scheduling": SPOT,
            "serviceAccounts": [{"email": "default", "scopes": [SCOPE]}],
            **properties,
        },
    }


def script(text: str) -> dict[str, Any]:
    return {"metadata": {"items": [{"key": "startup-script", "value": text}]}}


def group_body(size: int = 0, template: str = "t1", **fields: Any) -> dict[str, Any]:
    return {
        "name": "g1",
        "baseInstanceName": "g1",
        "targetSize": size,
        "versions": [{"instanceTemplate": f"global/instanceTemplates/{template}"}],
        "updatePolicy": {
            "type": "OPPORTUNISTIC",
            "minimalAction": "REPLACE",
            "replacementMethod": "RECREATE",
            "maxSurge": {"fixed": 0, "percent": None},
            "maxUnavailable": {"fixed": 1},
        },
        "instanceLifecyclePolicy": {"forceUpdateOnRepair": "YES"},
        **fields,
    }


def make_group(cloud: FullCloud, size: int = 0, **properties: Any) -> dict[str, Any]:
    cloud.ok("POST", f"{BASE}/global/instanceTemplates", template_body(**properties))
    cloud.ok("POST", GROUPS, group_body(size))
    return cloud.ok("GET", f"{GROUPS}/g1")


def error_of(answer: requests.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    return answer.status_code, error["errors"][0]["reason"], error["message"]


def wait(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LONGEST_WAIT_SEC
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def running_vm(cloud: FullCloud, but: str = "") -> dict[str, Any]:
    def find() -> Any:
        vms = cloud.ok("GET", "/_local/vms")
        return next((vm for vm in vms if vm["status"] == "RUNNING" and vm["id"] != but), None)

    return wait(find)


# Templates


def test_template_round_trip(cloud: FullCloud) -> None:
    body = template_body(
        labels={"experiment": "digits"},
        scheduling={
            **SPOT,
            "terminationTime": "2030-01-01T00:00:00Z",
            "instanceTerminationAction": "DELETE",
            "preemptionNoticeDuration": {"seconds": "120"},
            "hostErrorTimeoutSeconds": None,
            "nodeAffinities": [None],
        },
        tags={},
    )
    operation = cloud.ok("POST", f"{BETA}/global/instanceTemplates", body)
    assert operation["status"] == "DONE"
    assert operation["targetId"].isdigit()
    by_id = cloud.ok(
        "GET", f"{BETA}/global/instanceTemplates/{operation['targetId']}", params={"view": "FULL"}
    )
    by_name = cloud.ok("GET", f"{BASE}/global/instanceTemplates/t1")
    assert by_id["selfLink"].startswith("https://www.googleapis.com/compute/beta/")
    assert by_name["selfLink"].startswith("https://www.googleapis.com/compute/v1/")
    assert by_id["properties"] == by_name["properties"]
    assert by_id["properties"]["scheduling"] == {
        **SPOT,
        "terminationTime": "2030-01-01T00:00:00Z",
        "instanceTerminationAction": "DELETE",
        "preemptionNoticeDuration": {"seconds": "120"},
        "onHostMaintenance": "TERMINATE",
    }
    check_body("compute.beta", "InstanceTemplate", by_id)
    cloud.ok("DELETE", f"{BASE}/global/instanceTemplates/t1")
    gone = cloud.call("GET", f"{BASE}/global/instanceTemplates/t1")
    assert error_of(gone)[:2] == (404, "notFound")


def test_template_name_is_taken(cloud: FullCloud) -> None:
    cloud.ok("POST", f"{BASE}/global/instanceTemplates", template_body())
    again = cloud.call("POST", f"{BASE}/global/instanceTemplates", json=template_body())
    status, reason, message = error_of(again)
    assert (status, reason) == (409, "alreadyExists")
    assert f"projects/{PROJECT}/global/instanceTemplates/t1' already exists" in message


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"scheduling": {**SPOT, "automaticRestart": True}}, "AutomaticRestart is true"),
        (
            {"scheduling": {**SPOT, "onHostMaintenance": "MIGRATE"}},
            "OnHostMaintenance isn't TERMINATE",
        ),
        ({"scheduling": {"instanceTerminationAction": "DELETE"}}, "termination action"),
        (
            {"scheduling": {**SPOT, "preemptionNoticeDuration": {"seconds": "60"}}},
            "Must be 0 s or 120 s",
        ),
        ({"scheduling": {"preemptionNoticeDuration": {"seconds": "120"}}}, "only for Spot"),
        (
            {
                "scheduling": {
                    **SPOT,
                    "terminationTime": "2030-01-01T00:00:00Z",
                    "maxRunDuration": {"seconds": "600"},
                }
            },
            "Only one of maxRunDuration and terminationTime",
        ),
        ({"scheduling": {**SPOT, "terminationTime": "tomorrow"}}, "terminationTime"),
        ({"scheduling": {**SPOT, "maxRunDuration": {"seconds": "29"}}}, "Must be 30 s to"),
        ({"scheduling": {**SPOT, "maxRunDuration": {"seconds": "10368001"}}}, "to 10368000 s"),
        ({"scheduling": {**SPOT, "provisioningModel": "CHEAP"}}, "CHEAP"),
        ({"scheduling": {**SPOT, "terminationtime": "2030-01-01T00:00:00Z"}}, "Unknown name"),
        ({"machineType": f"zones/{ZONE}/machineTypes/e2-medium"}, "Must be a name"),
        ({"machineType": {}}, "'resource.properties.machineType' not specified"),
        ({"labels": {"Upper": "x"}}, "Upper"),
        ({"labels": {"key": "Value"}}, "Value"),
        ({"metadata": {"items": [{"key": "a b", "value": "x"}]}}, "a b"),
        ({"metadata": {"items": [{"key": "a", "value": "x" * 262145}]}}, "too large"),
        (
            {"metadata": {"items": [{"key": f"k{i}", "value": "x" * 200_000} for i in range(3)]}},
            "less than 512 KB",
        ),
        ({"metadata": {"items": [{"key": "a"}, {"key": "a"}]}}, "duplicate"),
        (
            {"metadata": {"items": {"a": "b"}}},
            "Invalid value at 'properties.metadata.items' (list)",
        ),
        ({"disks": []}, "boot disk"),
        ({"networkInterfaces": []}, "networkInterfaces"),
    ],
)
def test_template_rules(cloud: FullCloud, properties: dict[str, Any], said: str) -> None:
    body = template_body(**properties)
    answer = cloud.call("POST", f"{BETA}/global/instanceTemplates", json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["T1", "1t", "t-", "t" * 64, "", None])
def test_bad_names(cloud: FullCloud, name: str | None) -> None:
    body = {**template_body(), "name": name}
    assert cloud.call("POST", f"{BASE}/global/instanceTemplates", json=body).status_code == 400


# Groups


@pytest.mark.parametrize("version", ["v1", "beta"])
def test_a_group_has_all_fields_that_clients_read(cloud: FullCloud, version: str) -> None:
    make_group(cloud)
    path = f"/compute/{version}/projects/{PROJECT}/zones/{ZONE}/instanceGroupManagers/g1"
    group = cloud.ok("GET", path)
    check_body(f"compute.{version}", "InstanceGroupManager", group)
    prefix = f"https://www.googleapis.com/compute/{version}/projects/{PROJECT}"
    assert group["selfLink"] == f"{prefix}/zones/{ZONE}/instanceGroupManagers/g1"
    assert group["instanceGroup"] == f"{prefix}/zones/{ZONE}/instanceGroups/g1"
    assert group["versions"] == [
        {
            "instanceTemplate": f"{prefix}/global/instanceTemplates/t1",
            "targetSize": {"calculated": 0},
        }
    ]
    assert group["status"]["isStable"] is True
    assert group["status"]["versionTarget"] == {"isReached": True}
    assert group["targetSize"] == 0
    assert group["updatePolicy"]["maxSurge"] == {"fixed": 0, "calculated": 0}
    assert group["instanceLifecyclePolicy"]["forceUpdateOnRepair"] == "YES"
    for key in ("id", "fingerprint", "creationTimestamp", "kind", "zone", "currentActions"):
        assert group[key]
    unmanaged = cloud.ok("GET", f"{BASE}/zones/{ZONE}/instanceGroups/g1")
    assert unmanaged["size"] == 0


def test_a_group_is_bound_to_one_exact_template(cloud: FullCloud) -> None:
    target = cloud.ok("POST", f"{BASE}/global/instanceTemplates", template_body())["targetId"]
    url = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/global/instanceTemplates/t1"
    wrong = group_body(versions=[{"instanceTemplate": f"{url}?uniqueId=1"}])
    assert cloud.call("POST", GROUPS, json=wrong).status_code == 404
    right = group_body(versions=[{"instanceTemplate": f"{url}?uniqueId={target}"}])
    cloud.ok("POST", GROUPS, right)
    group = cloud.ok("GET", f"{GROUPS}/g1")
    assert group["versions"][0]["instanceTemplate"] == f"{url}?uniqueId={target}"


T1 = {"instanceTemplate": "global/instanceTemplates/t1"}


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"updatePolicy": {"replacementMethod": "RECREATE", "maxSurge": {"fixed": 1}}}, 400,
         "maxSurge"),
        ({"updatePolicy": {"replacementMethod": "RECREATE", "maxSurge": {"fixed": 0},
                           "maxUnavailable": {"fixed": 0}}}, 400, "maxUnavailable"),
        ({"versions": []}, 400, "template is required"),
        ({"versions": [{"instanceTemplate": "global/instanceTemplates/t9"}]}, 404, "t9"),
        ({"versions": [{"name": "a", **T1}, {"name": "b", **T1}]}, 400, "Exactly one version"),
        ({"versions": [{**T1, "targetSize": {"fixed": 1}}]}, 400, "Exactly one version"),
        ({"versions": [T1, {**T1, "targetSize": {"fixed": 1}}]}, 400, "must be unique"),
        ({"versions": [T1, {"name": "b", **T1, "targetSize": {"percent": 101}}]}, 400, "0 to 100"),
        ({"versions": [T1, {"name": "b", **T1, "targetSize": {"fixed": -1}}]}, 400, "at least 0"),
        ({"versions": [T1, {"name": "b", **T1, "targetSize": {"fixed": 1, "percent": 1}}]}, 400,
         "Only one of fixed and percent"),
        ({"versions": [{"name": n, **T1, "targetSize": {"fixed": 1}} for n in "abc"]}, 400,
         "At most 2 versions"),
        ({"updatePolicy": {"maxSurge": {"percent": 101}}}, 400,
         "'resource.updatePolicy.maxSurge.percent': '101'. Must be from 0 to 100"),
        ({"updatePolicy": {"maxUnavailable": {"fixed": -1}}}, 400,
         "'resource.updatePolicy.maxUnavailable.fixed': '-1'. Must be at least 0"),
        ({"updatePolicy": {"maxSurge": {"fixed": 3, "percent": 20}}}, 400,
         "Only one of fixed and percent"),
        ({"targetSize": None}, 400, "resource.targetSize"),
        ({"targetSize": -1}, 400, "targetSize"),
        ({"targetSize": "one"}, 400, "target_size"),
        ({"baseInstanceName": "x" * 59}, 400, "baseInstanceName"),
        ({"instanceLifecyclePolicy": {"onRepair": {"allowChangingZone": "YES"}}}, 400, "regional"),
        ({"autoHealingPolicies": [{"initialDelaySec": 3601}]}, 400, "between 0 and 3600"),
        ({"autoHealingPolicies": [{"healthCheck": "global/healthChecks/h9"}]}, 404, "h9"),
        ({"autoHealingPolicies": [{"healthCheck": "h9"}]}, 400, "URL of a health check"),
        ({"updatepolicy": {}}, 400, 'Unknown name "updatepolicy"'),
    ],
)  # fmt: skip
def test_group_rules(cloud: FullCloud, fields: dict[str, Any], status: int, said: str) -> None:
    cloud.ok("POST", f"{BASE}/global/instanceTemplates", template_body())
    answer = cloud.call("POST", f"{BETA}/zones/{ZONE}/instanceGroupManagers",
                        json=group_body(**fields))  # fmt: skip
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]
    assert cloud.call("GET", f"{GROUPS}/g1").status_code == 404


def test_bodies_of_the_real_provider_pass(cloud: FullCloud) -> None:
    cloud.ok("POST", f"{BETA}/global/instanceTemplates", template_body())
    body = group_body(
        params={},
        statefulPolicy={"preservedState": {}},
        resourcePolicies={"workloadPolicy": None},
        versions=[
            {"name": "", "instanceTemplate": "global/instanceTemplates/t1", "targetSize": {}}
        ],
        instanceLifecyclePolicy={
            "forceUpdateOnRepair": "YES",
            "defaultActionOnFailure": "REPAIR",
            "onRepair": {},
        },
        standbyPolicy={},
        autoHealingPolicies=[],
    )
    cloud.ok("POST", f"{BETA}/zones/{ZONE}/instanceGroupManagers", body)


def test_patch_merges_and_moves_the_fingerprint(cloud: FullCloud) -> None:
    old = make_group(cloud)
    cloud.ok("POST", f"{BASE}/global/instanceTemplates", template_body("t2"))
    change = {
        "fingerprint": old["fingerprint"],
        "versions": [{"instanceTemplate": "global/instanceTemplates/t2"}],
        "updatePolicy": {"minimalAction": "RESTART"},
    }
    cloud.ok("PATCH", f"{GROUPS}/g1", change)
    new = cloud.ok("GET", f"{GROUPS}/g1")
    assert new["instanceTemplate"].endswith("/t2")
    assert new["updatePolicy"]["minimalAction"] == "RESTART"
    assert new["updatePolicy"]["replacementMethod"] == "RECREATE"
    assert new["id"] == old["id"]
    stale = cloud.call("PATCH", f"{GROUPS}/g1", json=change)
    assert error_of(stale)[:2] == (412, "conditionNotMet")


def test_template_in_use(cloud: FullCloud) -> None:
    make_group(cloud)
    used = cloud.call("DELETE", f"{BASE}/global/instanceTemplates/t1")
    status, reason, message = error_of(used)
    assert (status, reason) == (400, "resourceInUseByAnotherResource")
    assert message.endswith(f"/zones/{ZONE}/instanceGroupManagers/g1'")
    cloud.ok("DELETE", f"{GROUPS}/g1")
    cloud.ok("DELETE", f"{BASE}/global/instanceTemplates/t1")


def test_named_ports(cloud: FullCloud) -> None:
    make_group(cloud)
    ports = [{"name": "http", "port": 80}]
    path = f"{BASE}/zones/{ZONE}/instanceGroups/g1/setNamedPorts"
    cloud.ok("POST", path, {"namedPorts": ports})
    assert cloud.ok("GET", f"{GROUPS}/g1")["namedPorts"] == ports


def test_the_group_reports_a_vm_that_cannot_be_created(cloud: FullCloud) -> None:
    make_group(cloud, size=1, machineType="e2-huge-1000")
    errors = cloud.ok("GET", f"{GROUPS}/g1/listErrors")["items"]
    assert errors[0]["error"]["code"] == "RESOURCE_NOT_FOUND"
    assert "e2-huge-1000" in errors[0]["error"]["message"]
    assert errors[0]["instanceActionDetails"]["action"] == "CREATING"
    (member,) = cloud.ok("POST", f"{GROUPS}/g1/listManagedInstances")["managedInstances"]
    assert member["currentAction"] == "CREATING"
    assert member["lastAttempt"]["errors"]["errors"][0]["code"] == "RESOURCE_NOT_FOUND"
    assert "id" not in member
    group = cloud.ok("GET", f"{GROUPS}/g1")
    assert group["status"]["isStable"] is False
    assert group["currentActions"]["creating"] == 1


def test_a_groups_error_names_the_organization_policy_that_forbids_its_vm(cloud: FullCloud) -> None:
    project = f"/cloudresourcemanager/v1/projects/{PROJECT}"
    asked = {"constraint": "constraints/compute.vmExternalIpAccess"}
    free = cloud.ok("POST", f"{project}:getEffectiveOrgPolicy", asked)
    assert free["listPolicy"] == {"allValues": "ALLOW"}
    denied = {**asked, "listPolicy": {"allValues": "DENY"}}
    cloud.ok("POST", f"{project}:setOrgPolicy", {"policy": denied})
    assert cloud.ok("POST", f"{project}:getEffectiveOrgPolicy", asked)["listPolicy"] == {
        "allValues": "DENY"
    }
    address = {"type": "ONE_TO_ONE_NAT"}
    interface = {"network": "global/networks/default", "accessConfigs": [address]}
    make_group(cloud, size=1, networkInterfaces=[interface])
    error = cloud.ok("GET", f"{GROUPS}/g1/listErrors")["items"][0]["error"]
    error = cloud.ok("GET", f"{GROUPS}/g1/listErrors")["items"][0]["error"]
    assert error["code"] == "CONDITION_NOT_MET"
    assert "constraints/compute.vmExternalIpAccess violated" in error["message"]


# Regions, health, operations

REGION = "europe-west4"
REGIONAL = f"{BASE}/regions/{REGION}/instanceGroupManagers"


def regional_body(size: int = 0, shape: str = "ANY", **fields: Any) -> dict[str, Any]:
    policy = {
        "type": "OPPORTUNISTIC",
        "minimalAction": "REPLACE",
        "replacementMethod": "RECREATE",
        "maxSurge": {"fixed": 0},
        "maxUnavailable": {"fixed": 3},
        "instanceRedistributionType": "NONE",
    }
    lifecycle = {"forceUpdateOnRepair": "YES", "onRepair": {"allowChangingZone": "YES"}}
    body = group_body(size, updatePolicy=policy, instanceLifecyclePolicy=lifecycle)
    return {**body, "distributionPolicy": {"targetShape": shape}, **fields}


@pytest.mark.parametrize("version", ["v1", "beta"])
def test_regional_group_by_googles_client(client: Callable[[str], Any], version: str) -> None:
    api = client(version)
    where = {"project": PROJECT, "region": REGION}
    api.regionInstanceTemplates().insert(**where, body=template_body()).execute()
    template = api.regionInstanceTemplates().get(**where, instanceTemplate="t1").execute()
    check_body(f"compute.{version}", "InstanceTemplate", template)
    assert template["region"].endswith(f"/regions/{REGION}")
    managers = api.regionInstanceGroupManagers()
    zones = [{"zone": f"zones/{REGION}-{letter}"} for letter in "ab"]
    body = regional_body(
        versions=[{"instanceTemplate": f"regions/{REGION}/instanceTemplates/t1"}],
        distributionPolicy={"targetShape": "BALANCED", "zones": zones},
    )
    operation = managers.insert(**where, body=body).execute()
    assert api.regionOperations().wait(**where, operation=operation["name"]).execute() == operation
    name = {**where, "instanceGroupManager": "g1"}
    group = managers.get(**name).execute()
    check_body(f"compute.{version}", "InstanceGroupManager", group)
    assert "zone" not in group
    assert group["region"].endswith(f"/regions/{REGION}")
    assert group["distributionPolicy"]["targetShape"] == "BALANCED"
    asked = [zone["zone"].rpartition("/")[2] for zone in group["distributionPolicy"]["zones"]]
    assert asked == [f"{REGION}-a", f"{REGION}-b"]
    assert group["versions"][0]["instanceTemplate"] == template["selfLink"]
    assert len(managers.list(**where).execute()["items"]) == 1
    assert api.instanceGroupManagers().list(project=PROJECT, zone=ZONE).execute()["items"] == []
    assert managers.listManagedInstances(**name).execute() == {"managedInstances": []}
    assert managers.listErrors(**name).execute() == {"items": []}
    managers.resize(**name, size=0).execute()
    managers.delete(**name).execute()
    api.regionInstanceTemplates().delete(**where, instanceTemplate="t1").execute()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"distributionPolicy": {"targetShape": "EVEN"}}, "BALANCED or ANY"),
        (
            {"distributionPolicy": {"targetShape": "ANY", "zones": [{"zone": "zones/mars-a"}]}},
            "zone of region",
        ),
        (
            {"updatePolicy": {"maxUnavailable": {"fixed": 1}}},
            "'resource.updatePolicy.maxUnavailable.fixed': '1'. Fixed updatePolicy.maxUnavailable "
            "for regional managed instance group has to be either 0 or at least equal to the "
            "number of zones.",
        ),
        (
            {"updatePolicy": {"maxUnavailable": {"percent": 100}}, "targetSize": 9},
            "Invalid value for field 'resource.updatePolicy.maxUnavailable.percent': '100'. "
            "Percent updatePolicy.maxUnavailable for regional managed instance group is only "
            "allowed for regional managed instance groups with size at least 10.",
        ),
        (
            {"updatePolicy": {"maxSurge": {"percent": 20}}, "targetSize": 0},
            "'resource.updatePolicy.maxSurge.percent': '20'. Percent updatePolicy.maxSurge for",
        ),
        ({"instanceLifecyclePolicy": {"onRepair": {"allowChangingZone": "YES"}}}, "forceUpdate"),
    ],
)
def test_rules_of_regional_groups(cloud: FullCloud, fields: dict[str, Any], said: str) -> None:
    cloud.ok("POST", f"{BASE}/global/instanceTemplates", template_body())
    answer = cloud.call("POST", REGIONAL, json=regional_body(**fields))
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]


def test_a_percentage_needs_ten_vms_and_replaces_a_fixed_number(cloud: FullCloud) -> None:
    cloud.ok("POST", f"{BASE}/global/instanceTemplates", template_body(machineType="e2-huge-1000"))
    group = f"{REGIONAL}/g1"
    fixed = {"updatePolicy": {"maxUnavailable": {"fixed": 3}}, "instanceLifecyclePolicy": {}}
    cloud.ok("POST", REGIONAL, regional_body(10, **fixed))
    share = {"percent": 25}
    both = cloud.call("PATCH", group, json={"updatePolicy": {"maxUnavailable": share}})
    assert (both.status_code, "Only one of" in both.text) == (400, True)
    alone = {"maxUnavailable": {**share, "fixed": None}}
    small = cloud.call("PATCH", group, json={"updatePolicy": alone, "targetSize": 9})
    assert (small.status_code, "with size at least 10." in small.text) == (400, True)
    cloud.ok("PATCH", group, {"updatePolicy": alone})
    assert cloud.ok("GET", group)["updatePolicy"]["maxUnavailable"] == {"calculated": 3, **share}
    cloud.ok("PATCH", group, {"updatePolicy": {"maxUnavailable": None}})
    assert cloud.ok("GET", group)["updatePolicy"]["maxUnavailable"]["fixed"] == 3, "by default"
    cloud.ok("PATCH", group, {"targetSize": 0})
    cloud.ok("DELETE", group)


def test_a_regional_groups_errors_name_the_zone(cloud: FullCloud) -> None:
    body = template_body(machineType="e2-huge-1000")
    cloud.ok("POST", f"{BASE}/global/instanceTemplates", body)
    cloud.ok("POST", REGIONAL, regional_body(1))
    (member,) = cloud.ok("POST", f"{REGIONAL}/g1/listManagedInstances")["managedInstances"]
    assert f"/zones/{REGION}-a/instances/" in member["instance"]
    error = cloud.ok("GET", f"{REGIONAL}/g1/listErrors")["items"][0]
    assert error["instanceActionDetails"]["instance"] == member["instance"]
    reference = f"zones/{REGION}-b/instances/{member['name']}"
    wrong = cloud.call("POST", f"{REGIONAL}/g1/deleteInstances", json={"instances": [reference]})
    assert error_of(wrong)[0] == 400
    right = {"instances": [member["instance"]]}
    cloud.ok("POST", f"{REGIONAL}/g1/deleteInstances", right)
    assert cloud.ok("GET", f"{REGIONAL}/g1")["targetSize"] == 0


@pytest.mark.parametrize("place", ["global", f"regions/{REGION}"])
def test_health_check_round_trip(cloud: FullCloud, place: str) -> None:
    path = f"{BASE}/{place}/healthChecks"
    http = {"port": 8080, "requestPath": "/healthz"}
    body = {"name": "h1", "type": "HTTP", "httpHealthCheck": http, "checkIntervalSec": 30}
    cloud.ok("POST", path, body)
    check = cloud.ok("GET", f"{path}/h1")
    check_body("compute.v1", "HealthCheck", check)
    assert (check["checkIntervalSec"], check["unhealthyThreshold"]) == (30, 2)
    cloud.ok("PUT", f"{path}/h1", {"name": "h1", "type": "HTTP", "httpHealthCheck": http})
    assert cloud.ok("GET", f"{path}/h1")["checkIntervalSec"] == 5
    bad = cloud.call("PUT", f"{path}/h1", json={**body, "checkIntervalSec": 9, "timeoutSec": 10})
    assert "at most checkIntervalSec" in error_of(bad)[2]

    cloud.ok("POST", f"{BASE}/global/instanceTemplates", template_body())
    healing = [{"healthCheck": check["selfLink"], "initialDelaySec": 300}]
    cloud.ok("POST", GROUPS, group_body(autoHealingPolicies=healing))
    assert cloud.ok("GET", f"{GROUPS}/g1")["autoHealingPolicies"] == healing
    used = cloud.call("DELETE", f"{path}/h1")
    assert error_of(used)[:2] == (400, "resourceInUseByAnotherResource")
    cloud.ok("DELETE", f"{GROUPS}/g1")
    cloud.ok("DELETE", f"{path}/h1")
    assert cloud.ok("GET", path)["items"] == []


# What is fixed


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("", "Project"),
        (f"zones/{ZONE}", "Zone"),
        ("zones", "ZoneList"),
        ("regions/us-central1", "Region"),
        ("regions", "RegionList"),
        (f"zones/{ZONE}/machineTypes/n2-standard-4", "MachineType"),
        ("global/images/outlast-local", "Image"),
        ("global/images/family/outlast", "Image"),
        ("global/networks/default", "Network"),
        ("regions/europe-west4/subnetworks/default", "Subnetwork"),
    ],
)
def test_catalogue_answers_fit_the_schema(cloud: FullCloud, path: str, schema: str) -> None:
    answer = cloud.ok("GET", f"{BASE}/{path}".rstrip("/"))
    check_body("compute.v1", schema, answer)
    assert answer["kind"] == f"compute#{schema[0].lower()}{schema[1:]}"


@pytest.mark.parametrize(
    "path",
    [
        "zones/mars-a",
        "zones/europe-west4-x/instances",
        "regions/mars",
        f"zones/{ZONE}/machineTypes/e2-huge",
        "global/images/family/no-such",
        "global/networks/other",
        f"zones/{ZONE}/instances/none",
        f"zones/{ZONE}/operations/none",
    ],
)
def test_unknown_things(cloud: FullCloud, path: str) -> None:
    assert error_of(cloud.call("GET", f"{BASE}/{path}"))[:2] == (404, "notFound")


def test_another_project_is_not_found_except_its_public_images(cloud: FullCloud) -> None:
    assert cloud.call("GET", "/compute/v1/projects/someone-else").status_code == 404
    image = cloud.ok("GET", "/compute/v1/projects/debian-cloud/global/images/family/debian-13")
    assert image["family"] == "debian-13"


def test_an_unsupported_call_answers_501(cloud: FullCloud) -> None:
    for method, path in (
        ("POST", f"{BASE}/zones/{ZONE}/instances/bulkInsert"),
        ("GET", f"{BASE}/global/snapshots"),
    ):
        assert cloud.call(method, path).status_code == 501


@pytest.mark.parametrize("version", ["v1", "beta"])
def test_googles_client_declares_and_lists(client: Callable[[str], Any], version: str) -> None:
    api = client(version)
    where = {"project": PROJECT, "zone": ZONE}
    assert api.projects().get(project=PROJECT).execute()["name"] == PROJECT
    operation = api.instanceTemplates().insert(project=PROJECT, body=template_body()).execute()
    got = api.globalOperations().get(project=PROJECT, operation=operation["name"]).execute()
    assert got["status"] == "DONE"
    managers = api.instanceGroupManagers()
    operation = managers.insert(**where, body=group_body()).execute()
    assert api.zoneOperations().wait(**where, operation=operation["name"]).execute() == operation
    name = {**where, "instanceGroupManager": "g1"}
    assert managers.get(**name).execute()["name"] == "g1"
    assert len(managers.list(**where).execute()["items"]) == 1
    managers.resize(**name, size=0).execute()
    assert managers.listManagedInstances(**name).execute() == {"managedInstances": []}
    assert managers.listErrors(**name).execute() == {"items": []}
    with pytest.raises(HttpError, match="not a member"):
        body = {"instances": [f"zones/{ZONE}/instances/stranger"]}
        managers.deleteInstances(**name, body=body).execute()
    assert api.instances().list(**where).execute()["items"] == []
    zones = api.instances().aggregatedList(project=PROJECT).execute()["items"]
    assert zones[f"zones/{ZONE}"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    managers.delete(**name).execute()
    api.instanceTemplates().delete(project=PROJECT, instanceTemplate="t1").execute()


# VMs


@pytest.mark.rehearsal
def test_life_of_a_group_of_one(cloud: FullCloud, client: Callable[[str], Any]) -> None:
    make_group(cloud, size=1, **script("echo hello; sleep 600"))
    vm = running_vm(cloud)
    api = client("v1")
    name = {"project": PROJECT, "zone": ZONE, "instance": vm["name"]}
    instance = api.instances().get(**name).execute()
    check_body("compute.v1", "Instance", instance)
    assert (instance["id"], instance["status"]) == (vm["id"], "RUNNING")
    attributes = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
    assert attributes["created-by"].endswith(f"/zones/{ZONE}/instanceGroupManagers/g1")
    (member,) = cloud.ok("POST", f"{GROUPS}/g1/listManagedInstances")["managedInstances"]
    check_body("compute.v1", "ManagedInstance", member)
    assert (member["id"], member["instanceStatus"], member["currentAction"]) == (
        vm["id"],
        "RUNNING",
        "NONE",
    )
    wait(lambda: "hello" in api.instances().getSerialPortOutput(**name).execute()["contents"])
    (disk,) = api.disks().list(project=PROJECT, zone=ZONE).execute()["items"]
    assert (disk["name"], disk["sizeGb"]) == (vm["name"], "50")

    assert cloud.call("POST", f"/_local/vms/{vm['name']}/kill").status_code == 200
    new = running_vm(cloud, but=vm["id"])
    assert (new["name"], new["boots"]) == (vm["name"], 2)

    operation = api.instances().simulateMaintenanceEvent(**name).execute()
    assert operation["status"] == "DONE"
    last = running_vm(cloud, but=new["id"])
    listed = api.zoneOperations().list(project=PROJECT, zone=ZONE).execute()["items"]
    assert "compute.instances.preempted" in [item["operationType"] for item in listed]

    body = {"instances": [f"zones/{ZONE}/instances/{last['name']}"]}
    path = {"project": PROJECT, "zone": ZONE, "instanceGroupManager": "g1"}
    done = api.instanceGroupManagers().deleteInstances(**path, body=body).execute()
    assert done["status"] == "DONE"
    assert cloud.ok("GET", f"{GROUPS}/g1")["targetSize"] == 0
    wait(lambda: not cloud.ok("GET", "/_local/vms"))
    audit = cloud.ok("GET", "/_local/audit")
    assert (audit["vms"], audit["disks"], audit["pids"]) == ([], [], [])
    assert audit["groups"] == ["g1"]


ASK = (
    "import os, sys, time, urllib.request as u; sys.stdin.readline();"
    "r = u.Request(os.environ['METADATA_BASE'] + '/instance/name',"
    " headers={'Metadata-Flavor': 'Google'});"
    "print(u.build_opener(u.ProxyHandler({})).open(r).read().decode(), flush=True);"
    "time.sleep(600)"
)
"""Waits for a line, then asks the metadata server."""


@pytest.mark.rehearsal
def test_a_process_enters_a_vm_only_with_its_environment(cloud: FullCloud) -> None:
    make_group(cloud, size=1, **script("sleep 600"))
    vm = running_vm(cloud)
    pairs = Path(f"/proc/{vm['pid']}/environ").read_bytes().split(b"\0")
    inside = dict(pair.decode().split("=", 1) for pair in pairs if b"=" in pair)
    enter = f"/_local/vms/{vm['name']}/processes"
    argv = [sys.executable, "-I", "-S", "-c", ASK]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, env=inside, **pipes) as one:
        assert cloud.call("POST", enter, json={"pid": os.getpid()}).status_code == 409
        assert cloud.call("POST", enter, json={"pid": True}).status_code == 400
        unknown = cloud.call("POST", "/_local/vms/none/processes", json={"pid": one.pid})
        assert unknown.status_code == 404
        cloud.ok("POST", enter, {"pid": one.pid})
        assert one.stdin and one.stdout
        one.stdin.write("\n")
        one.stdin.flush()
        assert one.stdout.readline() == f"{vm['name']}\n"
        # It ends with the VM.
        assert cloud.call("POST", f"/_local/vms/{vm['name']}/kill").status_code == 200
        assert one.wait(LONGEST_WAIT_SEC) == -signal.SIGKILL
        assert cloud.call("POST", enter, json={"pid": one.pid}).status_code == 409


@pytest.mark.rehearsal
def test_deleting_the_group_is_done_when_its_vms_are_gone(cloud: FullCloud) -> None:
    make_group(cloud, size=2, **script("trap '' TERM; while true; do sleep 1; done"))
    wait(lambda: sum(len(vm["pids"]) > 1 for vm in cloud.ok("GET", "/_local/vms")) == 2)
    operation = cloud.ok("DELETE", f"{GROUPS}/g1")
    assert operation["status"] == "DONE"
    audit = cloud.ok("GET", "/_local/audit")
    assert (audit["groups"], audit["vms"], audit["pids"]) == ([], [], [])


@pytest.mark.rehearsal
def test_set_metadata_reaches_the_guest(cloud: FullCloud) -> None:
    make_group(cloud, size=1)
    vm = running_vm(cloud)
    instance = cloud.ok("GET", f"{VMS}/{vm['name']}")
    stale = {"items": [], "fingerprint": "AAAAAAAAAAA="}
    path = f"{VMS}/{vm['name']}/setMetadata"
    assert cloud.call("POST", path, json=stale).status_code == 412
    items = [{"key": "greeting", "value": "hello"}]
    fresh = {"items": items, "fingerprint": instance["metadata"]["fingerprint"]}
    cloud.ok("POST", path, fresh)
    changed = cloud.ok("GET", f"{VMS}/{vm['name']}")["metadata"]
    assert changed["items"] == items
    assert changed["fingerprint"] != instance["metadata"]["fingerprint"]


@pytest.mark.rehearsal
def test_stop_and_delete_by_others_do_not_end_a_managed_vm(cloud: FullCloud) -> None:
    make_group(cloud, size=1)
    first = running_vm(cloud)
    assert cloud.ok("POST", f"{VMS}/{first['name']}/stop")["status"] == "DONE"
    second = running_vm(cloud, but=first["id"])
    assert cloud.ok("DELETE", f"{VMS}/{second['name']}")["status"] == "DONE"
    third = running_vm(cloud, but=second["id"])
    assert third["name"] == first["name"]
    cloud.ok("POST", f"{VMS}/{third['name']}/reset")
    wait(lambda: cloud.ok("GET", "/_local/vms")[0]["boots"] == 4)
    assert running_vm(cloud)["id"] == third["id"]


@pytest.mark.rehearsal
def test_vm_leaves_its_group_only_with_the_permissions(cloud: FullCloud) -> None:
    leave = """
      header='Metadata-Flavor: Google'
      token=$(curl -sfH "$header" "$METADATA_BASE/instance/service-accounts/default/token" \
        | python3 -c 'import json, sys; print(json.load(sys.stdin)["access_token"])')
      zone=$(curl -sfH "$header" "$METADATA_BASE/instance/zone"); zone=${zone##*/}
      name=$(curl -sfH "$header" "$METADATA_BASE/instance/name")
      url="${OUTLAST_COMPUTE_ENDPOINT}projects/outlast-rehearsal/zones/$zone"
      url+="/instanceGroupManagers/g1/deleteInstances"
      while true; do
        code=$(curl -s -o /dev/null -w '%{http_code}' -X POST "$url" \
          -H "Authorization: Bearer $token" -H 'Content-Type: application/json' \
          -d "{\\"instances\\": [\\"zones/$zone/instances/$name\\"]}")
        echo "answered $code"
        [ "$code" = 200 ] && exit
        sleep 0.1
      done
    """
    email = f"leaver@{PROJECT}.iam.gserviceaccount.com"
    account = {"accountId": "leaver", "serviceAccount": {}}
    cloud.ok("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", account)
    scopes = {"email": email, "scopes": [SCOPE]}
    make_group(cloud, size=1, serviceAccounts=[scopes], **script(leave))
    vm = running_vm(cloud)

    def serial() -> str:
        return cloud.ok("GET", f"{VMS}/{vm['name']}/serialPort")["contents"]

    wait(lambda: "answered 403" in serial())
    role = {
        "roleId": "leaver",
        "role": {
            "includedPermissions": [
                "compute.instanceGroupManagers.get",
                "compute.instanceGroupManagers.update",
            ]
        },
    }
    cloud.ok("POST", f"/iam/v1/projects/{PROJECT}/roles", role)
    policy = f"/cloudresourcemanager/v1/projects/{PROJECT}"
    now = cloud.ok("POST", f"{policy}:getIamPolicy", {})
    binding = {"role": f"projects/{PROJECT}/roles/leaver", "members": [f"serviceAccount:{email}"]}
    bindings = [*now.get("bindings", []), binding]
    cloud.ok("POST", f"{policy}:setIamPolicy", {"policy": {**now, "bindings": bindings}})
    wait(lambda: not cloud.ok("GET", "/_local/vms"))
    assert cloud.ok("GET", f"{GROUPS}/g1")["targetSize"] == 0


@pytest.mark.rehearsal
def test_groups_survive_a_restart_of_the_cloud(tmp_path: Path) -> None:
    cloud = FullCloud(tmp_path / "state")
    try:
        make_group(cloud, size=1, **script("sleep 600"))
        old = running_vm(cloud)
        cloud.stop()
        assert not any(Path(f"/proc/{pid}").exists() for pid in old["pids"])
        assert not list((cloud.state / "vms").iterdir())
        cloud.start()
        new = running_vm(cloud, but=old["id"])
        assert (new["name"], new["group"]) == (old["name"], "g1")
    finally:
        cloud.stop()
        cloud.http.close()
