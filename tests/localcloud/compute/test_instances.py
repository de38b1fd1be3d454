"""VMs of no group, and what changes in a VM, by the calls that gcloud and the provider send."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from outlast.localcloud.http import discovery
from tests.localcloud.compute.test_compute import (
    BASE,
    error_of,
    group_body,
    template_body,
)
from tests.localcloud.local_cloud import LocalCloud
from tests.localcloud.scenarios.test_scenario_platform import (
    GROUPS,
    PATH,
    ZONE,
    ok,
    put,
    start,
)

VMS = f"{BASE}/zones/{ZONE}/instances"
STANDARD = {"provisioningModel": "STANDARD"}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    cloud = start(tmp_path_factory.mktemp("instances"))
    yield cloud
    assert cloud.stop() == 0
    cloud.http.close()


@pytest.fixture
def cloud(platform: LocalCloud) -> LocalCloud:
    """A cloud in which nothing exists and nothing is played."""
    ok(platform, "POST", "/_local/reset")
    return platform


def vm_body(name: str = "vm1", **properties: Any) -> dict[str, Any]:
    properties = template_body(**properties)["properties"]
    machine_type = f"zones/{ZONE}/machineTypes/{properties['machineType']}"
    return {**properties, "name": name, "machineType": machine_type}


def insert(cloud: LocalCloud, **properties: Any) -> dict[str, Any]:
    operation = ok(cloud, "POST", VMS, vm_body(**properties))
    assert operation["status"] == "DONE" and "error" not in operation
    return shown(cloud)


def shown(cloud: LocalCloud, name: str = "vm1") -> dict[str, Any]:
    answer = ok(cloud, "GET", f"{VMS}/{name}")
    discovery.check_answer("compute.v1", "Instance", answer)
    return answer


def change(cloud: LocalCloud, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    operation = ok(cloud, "POST", f"{VMS}/vm1/{verb}", body)
    assert operation["operationType"] == verb and operation["status"] == "DONE"
    return shown(cloud)


def refused(cloud: LocalCloud, verb: str, body: dict[str, Any]) -> tuple[int, str, str]:
    return error_of(cloud.call("POST", f"{VMS}/vm1/{verb}", json=body))


def test_labels_and_tags_change_only_with_the_current_fingerprint(cloud: LocalCloud) -> None:
    before = insert(cloud, labels={"a": "1"}, tags={"items": ["first"]})
    labels = {"labels": {"b": "2"}, "labelFingerprint": before["labelFingerprint"]}
    after = change(cloud, "setLabels", labels)
    assert after["labels"] == {"b": "2"}
    assert refused(cloud, "setLabels", labels) == (
        412,
        "conditionNotMet",
        "Labels fingerprint either invalid or resource labels have changed",
    )
    wrong = {"labels": {"B": "2"}, "labelFingerprint": after["labelFingerprint"]}
    assert refused(cloud, "setLabels", wrong)[0] == 400
    assert change(cloud, "setLabels", {**wrong, "labels": {}})["labels"] == {}

    tags = {"items": ["second"], "fingerprint": before["tags"]["fingerprint"]}
    after = change(cloud, "setTags", tags)
    assert after["tags"]["items"] == ["second"]
    assert refused(cloud, "setTags", tags)[:2] == (412, "conditionNotMet")
    wrong = {"items": ["No"], "fingerprint": after["tags"]["fingerprint"]}
    assert refused(cloud, "setTags", wrong)[2].startswith("Invalid value for field 'tags.items[0]'")


def test_changes_that_need_a_stopped_vm_are_refused_while_it_runs(cloud: LocalCloud) -> None:
    insert(cloud, scheduling=STANDARD, machineType="n2-standard-2")
    after = change(cloud, "setScheduling", {"onHostMaintenance": "TERMINATE"})
    assert after["scheduling"]["onHostMaintenance"] == "TERMINATE"
    larger = {"machineType": f"zones/{ZONE}/machineTypes/n2-standard-4"}
    spot = {"provisioningModel": "SPOT", "preemptible": True, "automaticRestart": False}
    for verb, body in (("setMachineType", larger), ("setScheduling", spot)):
        status, reason, message = refused(cloud, verb, body)
        assert (status, reason) == (400, "resourceNotReady")
        assert message.endswith("can be changed only while it is TERMINATED; stop it first.")

    ok(cloud, "POST", f"{VMS}/vm1/stop")
    after = change(cloud, "setMachineType", larger)
    assert after["machineType"].endswith("/n2-standard-4")
    moved = refused(cloud, "setMachineType", {"machineType": "zones/x/machineTypes/e2-medium"})
    assert moved[0] == 400 and "e2 instances do not support" in moved[2]
    assert refused(cloud, "setMachineType", {"machineType": "zones/x/machineTypes/no"})[0] in (
        400,
        404,
    )
    assert change(cloud, "setScheduling", spot)["scheduling"]["preemptible"]
    assert refused(cloud, "setScheduling", {"automaticRestart": True})[0] == 400


def test_an_insert_without_capacity_or_quota_is_a_failed_operation(cloud: LocalCloud) -> None:
    ok(cloud, "POST", "/_local/switches", {"no_capacity": True})
    try:
        _is_exhausted(ok(cloud, "POST", VMS, vm_body()))
        assert cloud.call("GET", f"{VMS}/vm1").status_code == 404
        ok(cloud, "POST", "/_local/switches", {"no_capacity": False})
        insert(cloud)
        ok(cloud, "POST", f"{VMS}/vm1/stop")
        ok(cloud, "POST", "/_local/switches", {"no_capacity": True})
        _is_exhausted(ok(cloud, "POST", f"{VMS}/vm1/start"))
        assert shown(cloud)["status"] == "TERMINATED"
    finally:
        ok(cloud, "POST", "/_local/switches", {"no_capacity": False})
    put(cloud, world={"quota": [{"metric": "PREEMPTIBLE_CPUS", "limit": 0}]})
    metadata = {"items": [{"key": "outlast-prefix", "value": "experiments/dev"}]}
    operation = ok(cloud, "POST", VMS, vm_body("vm2", metadata=metadata))
    assert operation["error"]["errors"][0]["code"] == "QUOTA_EXCEEDED"
    assert operation["httpErrorStatusCode"] == 403
    ok(cloud, "DELETE", PATH)


def _is_exhausted(operation: dict[str, Any]) -> None:
    (error,) = operation["error"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert operation["httpErrorStatusCode"] == 503


def test_a_repeated_request_id_does_nothing(cloud: LocalCloud) -> None:
    request = {"params": {"requestId": str(uuid.uuid4())}}
    first = ok(cloud, "POST", VMS, vm_body(), **request)
    number = shown(cloud)["id"]
    again = ok(cloud, "POST", VMS, vm_body(), **request)
    assert again["name"] == first["name"] and shown(cloud)["id"] == number
    assert cloud.call("POST", VMS, json=vm_body()).status_code == 409
    # The same id on another call is another request, and a refused request may be repeated.
    ok(cloud, "DELETE", f"{VMS}/vm1", **request)
    assert cloud.call("GET", f"{VMS}/vm1").status_code == 404
    request = {"params": {"requestId": str(uuid.uuid4())}}
    assert cloud.call("DELETE", f"{VMS}/vm1", **request).status_code == 404
    insert(cloud)
    ok(cloud, "DELETE", f"{VMS}/vm1", **request)
    for wrong in ("no", "00000000-0000-0000-0000-000000000000"):
        answer = cloud.call("DELETE", f"{VMS}/vm1", params={"requestId": wrong})
        assert error_of(answer)[2] == (
            f"Invalid value for field 'requestId': '{wrong}'. Must be a UUID other than zero."
        )


def test_a_group_takes_members_of_given_names(cloud: LocalCloud) -> None:
    ok(cloud, "POST", f"{BASE}/global/instanceTemplates", template_body())
    ok(cloud, "POST", GROUPS, group_body())
    path = f"{GROUPS}/g1/createInstances"
    ok(cloud, "POST", path, {"instances": [{"name": "one"}, {"name": "two"}]})
    group = ok(cloud, "GET", f"{GROUPS}/g1")
    assert group["targetSize"] == 2
    listed = ok(cloud, "POST", f"{GROUPS}/g1/listManagedInstances")
    assert {member["name"] for member in listed["managedInstances"]} == {"one", "two"}
    taken = cloud.call("POST", path, json={"instances": [{"name": "three"}, {"name": "two"}]})
    assert error_of(taken)[:2] == (409, "alreadyExists")
    for instances in ([], [{"name": "A"}], [{"name": "x"}, {"name": "x"}]):
        assert cloud.call("POST", path, json={"instances": instances}).status_code == 400
    stateful = [{"name": "x", "preservedState": {"metadata": {"a": "b"}}}]
    policy = {"statefulPolicy": {"preservedState": {"disks": {"data": {"autoDelete": "NEVER"}}}}}
    for method, called, body, what in (
        ("POST", path, {"instances": stateful}, "instances[0].preservedState"),
        ("PATCH", f"{GROUPS}/g1", policy, "statefulPolicy.preservedState"),
    ):
        answer = cloud.call(method, called, json=body)
        said = f"{what}: the local cloud has no stateful groups; leave it out."
        assert (answer.status_code, error_of(answer)[2]) == (501, said)
    answer = cloud.call("POST", f"{GROUPS}/g1/listPerInstanceConfigs")
    assert answer.status_code == 501
    assert "/listPerInstanceConfigs is not implemented by the local cloud" in error_of(answer)[2]
    assert ok(cloud, "GET", f"{GROUPS}/g1")["targetSize"] == 2


def test_a_disk_is_attached_to_one_vm_at_a_time(cloud: LocalCloud) -> None:
    insert(cloud, scheduling=STANDARD)
    ok(cloud, "POST", VMS, vm_body("vm2", scheduling=STANDARD))
    disk = f"{BASE}/zones/{ZONE}/disks/data"
    ok(cloud, "POST", f"{BASE}/zones/{ZONE}/disks", {"name": "data", "sizeGb": "20"})
    source = ok(cloud, "GET", disk)["selfLink"]
    assert "users" not in ok(cloud, "GET", disk)

    after = change(cloud, "attachDisk", {"source": source, "deviceName": "rows"})
    assert after["disks"][1] | {"source": source, "deviceName": "rows"} == after["disks"][1]
    assert (after["disks"][1]["index"], after["disks"][1]["mode"]) == (1, "READ_WRITE")
    assert ok(cloud, "GET", disk)["users"] == [after["selfLink"]]
    for verb, path, body in (
        ("POST", f"{VMS}/vm2/attachDisk", {"source": f"zones/{ZONE}/disks/data"}),
        ("DELETE", disk, None),
    ):
        status, reason, message = error_of(cloud.call(verb, path, json=body))
        assert (status, reason) == (400, "resourceInUseByAnotherResource")
        assert "disks/data' is already being used by" in message and "instances/vm1'" in message
    twice = {"source": source, "deviceName": "rows", "mode": "READ_ONLY"}
    assert refused(cloud, "attachDisk", twice)[1] == "resourceInUseByAnotherResource"

    again = ok(cloud, "POST", f"{VMS}/vm1/detachDisk", params={"deviceName": "rows"})
    assert again["operationType"] == "detachDisk"
    assert [d["index"] for d in shown(cloud)["disks"]] == [0]
    for name in ("vm1", "vm2"):  # both may read
        ok(cloud, "POST", f"{VMS}/{name}/attachDisk", {"source": source, "mode": "READ_ONLY"})
    assert len(ok(cloud, "GET", disk)["users"]) == 2
    ok(cloud, "DELETE", f"{VMS}/vm1")
    ok(cloud, "DELETE", f"{VMS}/vm2")
    body = vm_body("vm3", scheduling=STANDARD)
    body["disks"].append({"source": f"zones/{ZONE}/disks/data", "deviceName": "rows"})
    ok(cloud, "POST", VMS, body)
    assert ok(cloud, "GET", disk)["users"] == [shown(cloud, "vm3")["selfLink"]]
    status, reason, _ = error_of(cloud.call("POST", VMS, json={**body, "name": "vm4"}))
    assert (status, reason) == (400, "resourceInUseByAnotherResource")
    ok(cloud, "DELETE", f"{VMS}/vm3")
    ok(cloud, "DELETE", disk)


def test_a_boot_disk_that_is_smaller_than_its_image_is_refused(cloud: LocalCloud) -> None:
    body = vm_body("small", scheduling=STANDARD)
    image = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404"
    body["disks"][0]["initializeParams"] = {
        "sourceImage": f"{image}-nvidia-580",
        "diskSizeGb": "49",
    }
    status, _, message = error_of(cloud.call("POST", VMS, json=body))
    assert status == 400
    assert "Requested disk size cannot be smaller than the image size (50 GB)" in message
    body["disks"][0]["initializeParams"]["diskSizeGb"] = "50"
    ok(cloud, "POST", VMS, body)


def test_an_impossible_attach_or_detach_is_reported(cloud: LocalCloud) -> None:
    boot = insert(cloud, scheduling=STANDARD)["disks"][0]["deviceName"]
    ok(cloud, "POST", f"{BASE}/zones/{ZONE}/disks", {"name": "data", "sizeGb": "20"})
    source = f"zones/{ZONE}/disks/data"
    for body, status, said in (
        ({}, 400, "Must be the URL of a disk"),
        ({"source": "zones/europe-west1-b/disks/data"}, 400, "Must be the URL of a disk of zone"),
        ({"source": f"zones/{ZONE}/disks/no"}, 404, "disks/no' was not found"),
        ({"source": source, "initializeParams": {"diskSizeGb": "9"}}, 400, "create and attach"),
        (
            {"source": source, "autoDelete": True},
            501,
            "autoDelete: the local cloud deletes no attached disk with its VM",
        ),
        (
            {"source": source, "boot": True},
            501,
            "boot: the local cloud boots no VM from a disk that was attached to it",
        ),
        ({"source": source, "deviceName": boot}, 400, "this device name"),
    ):
        answer = cloud.call("POST", f"{VMS}/vm1/attachDisk", json=body)
        assert answer.status_code == status, (body, answer.text)
        assert said in error_of(answer)[2]
    for device, status, said in (
        ("no", 400, "No attached disk found with device name 'no'"),
        (boot, 501, "made with the VM"),
    ):
        answer = cloud.call("POST", f"{VMS}/vm1/detachDisk", params={"deviceName": device})
        assert (answer.status_code, said in error_of(answer)[2]) == (status, True)
