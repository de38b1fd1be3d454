"""The health process on real VMs, asked by the local cloud as the platform asks."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.localcloud.compute import firewalls
from tests.localcloud.compute.test_compute import (
    BASE,
    GROUPS,
    group_body,
    script,
    template_body,
)
from tests.localcloud.local_cloud import FullCloud

LONGEST_WAIT_SEC = 60.0
PORT = 8099
LIMIT_SEC = 2
TAG = "outlast-dev"
HEALTH = Path(__file__).parents[3] / "outlast/supervisor/health.py"
RULE = {
    "name": "health",
    "network": "global/networks/default",
    "allowed": [{"IPProtocol": "tcp", "ports": [str(PORT)]}],
    "sourceRanges": ["130.211.0.0/22", "35.191.0.0/16"],
    "targetTags": [TAG],
}
BOOT = f"""#!/bin/bash
sign="$OUTLAST_ROOT/run/sign"
: >"$sign"
ip="$(curl -s -H 'Metadata-Flavor: Google' "$METADATA_BASE/instance/network-interfaces/0/ip")"
python3 -I {HEALTH} "$ip" {PORT} {LIMIT_SEC} "$sign" &
while [[ ! -e $OUTLAST_ROOT/run/hang ]]; do
  : >"$sign"
  sleep 0.2
done
sleep 1000
"""


def wait(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LONGEST_WAIT_SEC
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def member(cloud: FullCloud, group: str) -> dict[str, Any]:
    """The group's one VM: {id, action, health}."""
    (found,) = cloud.ok("POST", f"{GROUPS}/{group}/listManagedInstances")["managedInstances"]
    health = found.get("instanceHealth") or [{}]
    return {
        "id": found.get("id"),
        "action": found["currentAction"],
        "health": health[0].get("detailedHealthState", "UNKNOWN"),
    }


def health(cloud: FullCloud, group: str) -> str:
    return member(cloud, group)["health"]


@pytest.mark.rehearsal
@pytest.mark.timeout(400)
def test_a_hung_vm_is_shown_or_recreated(full_cloud: FullCloud) -> None:
    """Two VMs that listen on one port, each at its own address; no VM is asked through a closed
    firewall."""
    body = template_body(**script(BOOT), tags={"items": [TAG]})
    full_cloud.ok("POST", f"{BASE}/global/instanceTemplates", body)
    check = {
        "name": "h1",
        "type": "HTTP",
        "checkIntervalSec": 1,
        "timeoutSec": 1,
        "healthyThreshold": 1,
        "unhealthyThreshold": 2,
        "httpHealthCheck": {"port": PORT, "requestPath": "/"},
    }
    full_cloud.ok("POST", f"{BASE}/global/healthChecks", check)
    for name, action in (("observed", "DO_NOTHING"), ("repaired", "REPAIR")):
        healing = [{"healthCheck": "global/healthChecks/h1", "initialDelaySec": 3600}]
        policy = {"forceUpdateOnRepair": "YES", "onFailedHealthCheck": action}
        group = group_body(1, autoHealingPolicies=healing, instanceLifecyclePolicy=policy)
        full_cloud.ok("POST", GROUPS, {**group, "name": name, "baseInstanceName": name})

    for name in ("observed", "repaired"):
        wait(lambda name=name: health(full_cloud, name) == "UNHEALTHY", "no rule lets anybody in")
        assert member(full_cloud, name)["action"] == "VERIFYING"  # its initial delay protects it
    full_cloud.ok("POST", f"{BASE}/global/firewalls", RULE)
    before = {}
    for name in ("observed", "repaired"):
        wait(lambda name=name: health(full_cloud, name) == "HEALTHY", f"{name} turns HEALTHY")
        before[name] = member(full_cloud, name)
        assert before[name]["action"] == "NONE"
    addresses = {
        vm["networkInterfaces"][0]["networkIP"]
        for vm in full_cloud.ok("GET", f"{BASE}/zones/europe-west4-a/instances")["items"]
    }
    assert len(addresses) == 2

    for one in before.values():
        (full_cloud.state / "vms" / one["id"] / "root/run/hang").touch()
    recreated = wait(
        lambda: (
            (found := member(full_cloud, "repaired"))["id"] not in (None, before["repaired"]["id"])
            and found["health"] == "HEALTHY"
        ),
        "the hung VM is recreated",
    )
    assert recreated
    found = wait(
        lambda: (one := member(full_cloud, "observed"))["health"] == "UNHEALTHY" and one,
        "the observed VM turns UNHEALTHY",
    )
    assert found == {**before["observed"], "health": "UNHEALTHY"}
    # One that gets on again is well again.
    (full_cloud.state / "vms" / found["id"] / "root/run/sign").touch()
    wait(lambda: health(full_cloud, "observed") == "HEALTHY", "it is HEALTHY again")


# What a firewall lets in


def lets_in(*rules: dict[str, Any], source: str = "35.191.0.1", **changes: Any) -> bool:
    vm = {"network": "n", "tags": [TAG], "account": "a@p", "port": PORT, **changes}
    return firewalls.lets_in(
        [{**RULE, "network": "x/n", **rule} for rule in rules], source=source, **vm
    )


def test_traffic_enters_only_by_a_matching_rule() -> None:
    assert lets_in({})
    assert not lets_in()
    assert not lets_in({}, source="35.235.240.1")
    assert not lets_in({}, port=22)
    assert not lets_in({}, tags=["other"])
    assert not lets_in({}, network="other")
    assert not lets_in({"disabled": True})
    assert not lets_in({"direction": "EGRESS"})
    assert not lets_in({"allowed": [{"IPProtocol": "udp", "ports": [str(PORT)]}]})
    assert lets_in({"allowed": [{"IPProtocol": "tcp", "ports": ["8000-8100"]}]})
    assert lets_in({"allowed": [{"IPProtocol": "all"}]})
    assert lets_in({"targetTags": [], "targetServiceAccounts": ["a@p"]})


def test_the_lowest_priority_decides_and_deny_precedes_allow() -> None:
    def decided(priority: int) -> bool:
        allowed = {**RULE, "network": "x/n"}
        refusal = {"denied": [{"IPProtocol": "all"}], "priority": priority}
        denied = {**{key: allowed[key] for key in allowed if key != "allowed"}, **refusal}
        vm = {"network": "n", "tags": [TAG], "account": "", "port": PORT}
        return firewalls.lets_in([allowed, denied], source="35.191.0.1", **vm)

    assert not decided(900)
    assert not decided(1000)
    assert decided(1100)
