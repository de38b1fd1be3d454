"""What a scenario does to the platform, on a real cloud whose VMs have no processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.localcloud.compute.test_compute import (
    BASE,
    group_body,
    template_body,
    wait,
)
from tests.localcloud.local_cloud import PROJECT, LocalCloud

ZONE = "us-central1-a"
GROUPS = f"{BASE}/zones/{ZONE}/instanceGroupManagers"
PATH = "/_local/scenario"
OURS, BASELINE = "dev-0123456789", "dev-baseline-0123456789"
LATER_SEC = 3600
"""Of the cloud's clock; no test waits for what is due then."""


def start(folder: Path, *options: str) -> LocalCloud:
    (folder / "image").mkdir()
    command = [
        "-m",
        "outlast.localcloud",
        "serve",
        "--state",
        str(folder / "state"),
        "--no-provider",
    ]
    command += ["--no-guests", "--image", f"{PROJECT}/outlast={folder / 'image'}", *options]
    return LocalCloud(folder / "state", *command)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    cloud = start(tmp_path_factory.mktemp("platform"))
    yield cloud
    assert cloud.stop() == 0
    cloud.http.close()


@pytest.fixture
def cloud(platform: LocalCloud) -> LocalCloud:
    """A cloud in which nothing exists and nothing is played."""
    ok(platform, "POST", "/_local/reset")
    return platform


def ok(cloud: LocalCloud, method: str, path: str, body: Any = None, **options: Any) -> Any:
    answer = cloud.call(method, path, json=body, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def put(cloud: LocalCloud, target: str = "dev", **document: Any) -> None:
    document = {"name": "x", "about": "A test.", **document}
    ok(cloud, "PUT", PATH, {"document": document, "target": target})


def played(cloud: LocalCloud) -> list[dict[str, Any]]:
    return ok(cloud, "GET", PATH)["log"]


def make_group(cloud: LocalCloud, name: str = OURS, **properties: Any) -> None:
    """A group of one VM that works for the experiment that its name begins with."""
    prefix = f"experiments/{name.rpartition('-')[0]}"
    metadata = {"items": [{"key": "outlast-prefix", "value": prefix}]}
    template = template_body(f"t-{name}", metadata=metadata, **properties)
    ok(cloud, "POST", f"{BASE}/global/instanceTemplates", template)
    body = group_body(1, f"t-{name}", baseInstanceName=name) | {"name": name}
    ok(cloud, "POST", GROUPS, body)


def vms(cloud: LocalCloud, group: str | None = OURS) -> list[dict[str, Any]]:
    return [vm for vm in ok(cloud, "GET", "/_local/vms") if vm["group"] == group]


def running(cloud: LocalCloud, group: str = OURS, but: str = "") -> dict[str, Any]:
    def find() -> Any:
        found = [vm for vm in vms(cloud, group) if vm["status"] == "RUNNING" and vm["id"] != but]
        return found[0] if found else None

    return wait(find)


def errors(cloud: LocalCloud, group: str = OURS) -> list[str]:
    listed = ok(cloud, "GET", f"{GROUPS}/{group}/listErrors")
    return [item["error"]["code"] for item in listed.get("items") or []]


def test_a_zone_without_room_creates_no_vm_of_the_target_for_a_time(cloud: LocalCloud) -> None:
    window = {"to_sec": LATER_SEC, "vms": 0}
    put(cloud, world={"zones": {ZONE: {"capacity": [window]}}})
    make_group(cloud)
    make_group(cloud, BASELINE)
    running(cloud, BASELINE)
    wait(lambda: "ZONE_RESOURCE_POOL_EXHAUSTED" in errors(cloud))
    assert not vms(cloud)
    # The same at a speed at which the hour has soon passed.
    put(cloud, speed=LATER_SEC * 4, world={"zones": {ZONE: {"capacity": [window]}}})
    assert running(cloud)["zone"] == ZONE


def test_a_quota_of_zero_has_googles_message(cloud: LocalCloud) -> None:
    put(cloud, world={"quota": [{"metric": "PREEMPTIBLE_CPUS", "limit": 0}]})
    make_group(cloud)
    wait(lambda: "QUOTA_EXCEEDED" in errors(cloud))
    assert not vms(cloud)
    ok(cloud, "DELETE", PATH)
    running(cloud)


def test_a_regional_group_goes_to_a_zone_that_has_room(cloud: LocalCloud) -> None:
    full = {"capacity": [{"vms": 0}]}
    put(cloud, world={"zones": {zone: full for zone in ("us-central1-a", "us-central1-b")}})
    prefix = {"items": [{"key": "outlast-prefix", "value": "experiments/dev"}]}
    ok(cloud, "POST", f"{BASE}/global/instanceTemplates", template_body(metadata=prefix))
    zones = [{"zone": f"zones/us-central1-{letter}"} for letter in "abc"]
    body = group_body(
        1,
        baseInstanceName=OURS,
        distributionPolicy={"zones": zones, "targetShape": "ANY"},
        updatePolicy={
            "type": "OPPORTUNISTIC",
            "minimalAction": "REPLACE",
            "replacementMethod": "RECREATE",
            "instanceRedistributionType": "NONE",
            "maxSurge": {"fixed": 0},
            "maxUnavailable": {"fixed": 3},
        },
        instanceLifecyclePolicy={
            "forceUpdateOnRepair": "YES",
            "onRepair": {"allowChangingZone": "YES"},
        },
    )
    groups = f"{BASE}/regions/us-central1/instanceGroupManagers"
    ok(cloud, "POST", groups, body | {"name": OURS})
    assert running(cloud)["zone"] == "us-central1-c"


def test_a_dead_vm_finds_its_zone_full_until_there_is_room_again(cloud: LocalCloud) -> None:
    put(
        cloud,
        speed=20,
        events=[
            {"when": {"boot": 1}, "do": {"capacity": {"zone": ZONE, "vms": 0, "for_sec": 10}}},
            {"when": {"boot": 1}, "do": {"kill": {}}},
        ],
    )
    make_group(cloud)
    second = wait(lambda: [entry for entry in played(cloud) if entry["do"] == "kill"])[0]
    found = running(cloud, but=second["instance_id"])
    assert found["name"] == second["vm"], "the successor has the same name"
    assert found["id"] != second["instance_id"]
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in errors(cloud)


def test_preempted_stopped_and_deleted_vms_are_recreated(cloud: LocalCloud) -> None:
    actions = ["preempt", "stop", "delete", "lost"]
    events = [{"when": {"boot": n}, "do": {do: {}}} for n, do in enumerate(actions, 1)]
    put(cloud, events=events)
    make_group(cloud)
    wait(lambda: ok(cloud, "GET", PATH)["pending"] == 0)
    log = played(cloud)
    assert [entry["do"] for entry in log] == actions
    assert len({entry["vm"] for entry in log}) == 1
    assert len({entry["instance_id"] for entry in log}) == 4
    assert running(cloud, but=log[-1]["instance_id"])


def test_a_stopped_vm_stays_stopping(cloud: LocalCloud) -> None:
    put(cloud, events=[{"when": {}, "do": {"stays-stopping": {"for_sec": LATER_SEC}}}])
    make_group(cloud)
    found = wait(lambda: [vm for vm in vms(cloud) if vm["status"] == "STOPPING"])[0]
    ok(cloud, "DELETE", PATH)
    assert [vm["id"] for vm in vms(cloud)] == [found["id"]], "no successor beside it"


def test_a_create_completes_after_the_group_was_resized_to_nothing(cloud: LocalCloud) -> None:
    make_group(cloud)
    running(cloud)
    ok(cloud, "POST", f"{GROUPS}/{OURS}/resize", params={"size": 0})
    wait(lambda: not vms(cloud))
    put(
        cloud, speed=100, events=[{"when": {"at_sec": 0}, "do": {"late-create": {"lives_sec": 60}}}]
    )
    # Its second 0 is the first try to create a VM of the target: another group's.
    make_group(cloud, "dev-9876543210")
    late = wait(lambda: [vm for vm in vms(cloud, None) if vm["status"] == "RUNNING"])[0]
    wait(lambda: late["id"] not in [vm["id"] for vm in vms(cloud, None)])


def test_lifetimes_end_vms_at_the_ages_that_are_drawn(cloud: LocalCloud) -> None:
    put(cloud, speed=50, world={"lifetimes": {"ages_sec": [5, 10], "notice_share": 0}})
    make_group(cloud)
    wait(lambda: len(played(cloud)) == 2)
    log = played(cloud)
    assert [(entry["do"], entry["boot"], entry["age_sec"]) for entry in log] == [
        ("kill", 1, 5),
        ("kill", 2, 10),
    ]
    assert running(cloud, but=log[-1]["instance_id"])


def test_the_daily_preemption_preempts_day_by_day(cloud: LocalCloud) -> None:
    put(cloud, speed=86400, world={"daily_preemption": {"at_sec": 3600}})
    make_group(cloud)
    make_group(cloud, BASELINE)
    baseline = running(cloud, BASELINE)
    wait(lambda: len(played(cloud)) >= 2)
    assert {entry["do"] for entry in played(cloud)} == {"preempt"}
    assert running(cloud, BASELINE)["id"] == baseline["id"]


def test_a_family_gets_a_newer_image(cloud: LocalCloud) -> None:
    family = f"/compute/v1/projects/{PROJECT}/global/images/family/outlast"
    before = ok(cloud, "GET", family)
    put(cloud, events=[{"when": {"at_sec": 0}, "do": {"new-image": {"family": "outlast"}}}])
    make_group(cloud)
    running(cloud)
    after = wait(lambda: (now := ok(cloud, "GET", family))["name"] != before["name"] and now)
    assert after["id"] != before["id"]
    old = ok(cloud, "GET", f"/compute/v1/projects/{PROJECT}/global/images/{before['name']}")
    assert old["id"] == before["id"]


def test_operations_fail_or_are_slow(cloud: LocalCloud) -> None:
    error = {"code": "INTERNAL_ERROR", "message": "Please try again."}
    match = "POST zones/.*/instanceGroupManagers/.*/resize"
    put(
        cloud,
        world={
            "operations": [
                {"match": match, "error": error},
                {"match": match, "delay_sec": LATER_SEC},
            ]
        },
    )
    make_group(cloud)
    running(cloud)
    resize = f"{GROUPS}/{OURS}/resize"
    failed = ok(cloud, "POST", resize, params={"size": 0})
    assert failed["error"]["errors"][0]["code"] == "INTERNAL_ERROR"
    assert ok(cloud, "GET", f"{GROUPS}/{OURS}")["targetSize"] == 1
    assert ok(cloud, "POST", resize, params={"size": 0})["status"] == "RUNNING"
    assert ok(cloud, "GET", f"{GROUPS}/{OURS}")["targetSize"] == 0
    assert ok(cloud, "POST", resize, params={"size": 0})["status"] == "DONE"


def test_a_scenarios_switches_end_with_it(cloud: LocalCloud) -> None:
    put(cloud, world={"switches": {"no_capacity": True}})
    make_group(cloud)
    wait(lambda: "ZONE_RESOURCE_POOL_EXHAUSTED" in errors(cloud))
    ok(cloud, "DELETE", PATH)
    running(cloud)


def test_serve_plays_a_file_from_the_start_for_all_stacks(tmp_path: Path) -> None:
    file = tmp_path / "full.yaml"
    file.write_text(
        f"{{name: full, about: No room., world: {{zones: {{{ZONE}: {{capacity: [{{vms: 1}}]}}}}}}}}"
    )
    cloud = start(tmp_path, "--scenario", str(file))
    try:
        make_group(cloud)
        running(cloud)
        make_group(cloud, BASELINE)
        wait(lambda: "ZONE_RESOURCE_POOL_EXHAUSTED" in errors(cloud, BASELINE))
        assert not vms(cloud, BASELINE)
        assert ok(cloud, "GET", PATH)["document"]["name"] == "full"
    finally:
        assert cloud.stop() == 0
        cloud.http.close()
