"""The group as the platform has it, one behaviour a test."""

import itertools
import json
from typing import Any

import pytest

from outlast.localcloud.base.clock import to_rfc3339
from outlast.localcloud.compute.fleet.fleet import Fleet
from outlast.localcloud.compute.fleet.manager import Manager
from outlast.localcloud.compute.fleet.model import (
    Announce,
    Boot,
    Exists,
    Group,
    Instance,
    InUse,
    Invalid,
    Kill,
    NotFound,
    Probe,
    Restless,
    Stop,
)
from tests.localcloud.compute.fleet.world import (
    REGION,
    ZONE,
    ZONES,
    Machines,
    World,
)


def test_group_creates_vms_with_separate_attributes(world: World) -> None:
    group = world.group(size=2)
    assert world.fleet.is_stable(group)
    assert len(world.machines.live) == 2
    items = next(iter(world.fleet.instances.values())).properties["metadata"]["items"]
    assert {item["key"]: item["value"] for item in items} == {
        "created-by": f"projects/123/zones/{ZONE}/instanceGroupManagers/g",
        "instance-template": "projects/123/global/instanceTemplates/t1",
    }


def _preempt(world: World, instance: Instance) -> None:
    world.fleet.vms.preempt_instance(instance)


def _host_dies(world: World, instance: Instance) -> None:
    world.machines.exit(instance.id)


def _power_off(world: World, instance: Instance) -> None:
    world.fleet.vms.stopping(instance.id)
    world.machines.exit(instance.id)


@pytest.mark.parametrize(
    "end",
    [
        _preempt,
        _host_dies,
        _power_off,
        lambda world, instance: world.fleet.vms.stop_instance(instance),
        lambda world, instance: world.fleet.vms.delete_instance(instance),
    ],
    ids=["preempted", "host dies", "powers off", "stopped", "deleted"],
)
def test_lost_vm_is_recreated_with_its_name_a_new_id_and_a_new_disk(world: World, end) -> None:
    group = world.group()
    old = world.only()
    end(world, old)
    world.machines.settle()
    assert group.target_size == 1
    world.pass_time()
    new = world.only()
    assert new.name == old.name
    assert new.id != old.id
    assert world.machines.disks == {new.id}
    assert world.fleet.is_stable(group)


def test_the_successor_of_a_vm_taken_for_dead_has_its_name_and_address(world: World) -> None:
    group = world.group(2)
    lost, other = world.fleet.instances.values()
    assert lost.address != other.address
    before = (lost.name, lost.address)
    world.fleet.vms.lose(lost)
    del world.machines.live[lost.id]  # what it still does must not matter
    stranger = world.fleet.vms.add_instance(lost.zone, "stranger", lost.properties)
    world.machines.settle()
    world.pass_time()
    new = next(i for i in world.fleet.instances.values() if i.name == lost.name)
    assert new.id != lost.id
    assert (new.name, new.address) == before
    assert stranger.address not in (new.address, other.address)
    assert world.fleet.is_stable(group)


def test_recreation_waits_its_delay(world: World) -> None:
    world.fleet.switches.recreate_delay_sec = 5.0
    group = world.group()
    _host_dies(world, world.only())
    world.machines.settle()
    assert world.fleet.next_time() == world.clock.now() + 5.0
    world.pass_time(4.9)
    assert not world.machines.live
    assert group.members[world.only().name].action == "RECREATING"
    world.pass_time(0.2)
    assert len(world.machines.live) == 1


def test_a_deleted_member_is_not_recreated_and_lowers_the_size(world: World) -> None:
    group = world.group()
    world.fleet.delete_members(group, [world.only().name])
    assert group.target_size == 0
    world.machines.settle()
    world.pass_time(100)
    assert not world.fleet.instances
    assert not group.members
    assert group.target_size == 0


def test_member_that_dies_while_it_is_deleted_is_not_recreated(world: World) -> None:
    group = world.group()
    world.fleet.delete_members(group, [world.only().name])
    world.machines.settle(exits=False)
    world.machines.exit(world.only().id)
    world.pass_time(100)
    assert not world.fleet.instances
    world.fleet.delete_group(group)
    world.machines.settle()
    assert not world.fleet.groups


def test_deleting_a_member_twice_lowers_the_size_once(world: World) -> None:
    group = world.group(size=2)
    name = next(iter(group.members))
    world.fleet.delete_members(group, [name])
    world.fleet.delete_members(group, [name])
    assert group.target_size == 1


def test_a_call_on_a_vm_outside_the_group_is_refused(world: World) -> None:
    group = world.group()
    with pytest.raises(Invalid, match="not a member"):
        world.fleet.delete_members(group, [world.only().name, "stranger"])
    assert group.target_size == 1
    assert world.fleet.is_stable(group)


def test_resize_to_nothing_and_back(world: World) -> None:
    group = world.group(size=3)
    world.fleet.resize(group, 0)
    world.machines.settle()
    assert not world.fleet.instances
    world.fleet.resize(group, 2)
    world.machines.settle()
    assert len(world.machines.live) == 2


def test_an_abandoned_vm_keeps_running_alone(world: World) -> None:
    group = world.group()
    instance = world.only()
    world.fleet.abandon_members(group, [instance.name])
    world.pass_time(100)
    assert list(world.machines.live) == [instance.id]
    assert instance.group is None
    assert group.target_size == 0
    world.fleet.vms.delete_instance(instance)
    world.machines.settle()
    assert not world.fleet.instances


@pytest.mark.parametrize(("force", "expected"), [("YES", "t2"), ("NO", "t1")])
def test_a_forced_opportunistic_update_reaches_a_vm_at_its_repair(
    world: World, force: str, expected: str
) -> None:
    group = world.group(instanceLifecyclePolicy={"forceUpdateOnRepair": force})
    old = world.only()
    world.template("t2", provisioningModel="SPOT")
    world.update(group, "t2")
    assert list(world.machines.live) == [old.id]
    _host_dies(world, old)
    world.pass_time()
    world.pass_time()
    assert group.members[world.only().name].template == expected


def test_proactive_update_replaces_the_vm_under_its_name(world: World) -> None:
    policy = {"type": "PROACTIVE", "replacementMethod": "RECREATE", "maxUnavailable": {"fixed": 1}}
    group = world.group(updatePolicy=policy)
    old = world.only()
    world.template("t2")
    world.update(group, "t2")
    new = world.only()
    assert (new.name, new.id != old.id) == (old.name, True)
    assert group.members[new.name].template == "t2"
    assert world.fleet.is_stable(group)


def test_proactive_update_takes_down_no_more_than_allowed(world: World) -> None:
    policy = {"type": "PROACTIVE", "replacementMethod": "RECREATE", "maxUnavailable": {"fixed": 1}}
    group = world.group(size=3, updatePolicy=policy)
    world.template("t2")
    version = {"instanceTemplate": "t2", "template": "t2"}
    world.fleet.change_group(group, group.body, [version])
    world.fleet.tick()
    stops = [c for c in world.fleet.take_commands() if isinstance(c, Stop)]
    assert len(stops) == 1


def test_recreate_takes_the_newest_template(world: World) -> None:
    group = world.group()
    world.template("t2")
    world.update(group, "t2")
    old = world.only()
    world.fleet.recreate_members(group, [old.name])
    world.machines.settle()
    assert world.only().id != old.id
    assert group.members[old.name].template == "t2"


def test_template_in_use_cannot_be_deleted(world: World) -> None:
    group = world.group()
    with pytest.raises(InUse, match="instanceGroupManagers/g"):
        world.fleet.blueprints.delete_template("t1")
    world.template("t2")
    world.update(group, "t2")
    world.fleet.blueprints.delete_template("t1")
    with pytest.raises(NotFound):
        world.fleet.blueprints.template("t1")


def test_repair_from_a_deleted_template_reports_it_and_keeps_trying(world: World) -> None:
    group = world.group(instanceLifecyclePolicy={"forceUpdateOnRepair": "NO"})
    world.template("t2")
    world.update(group, "t2")
    world.fleet.blueprints.delete_template("t1")
    _host_dies(world, world.only())
    world.pass_time()
    world.pass_time()
    (member,) = group.members.values()
    assert member.errors[0]["code"] == "RESOURCE_NOT_FOUND"
    assert not world.machines.live


def test_missing_capacity_is_reported_and_tried_again(world: World) -> None:
    world.fleet.switches.no_capacity = True
    group = world.group()
    (member,) = group.members.values()
    assert member.errors[0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert member.action == "CREATING"
    world.pass_time(1.1)
    assert len(group.errors) == 2
    world.fleet.switches.no_capacity = False
    world.pass_time(1.1)
    assert world.fleet.is_stable(group)
    assert not member.errors


def test_vm_that_cannot_boot_is_tried_again_later(world: World) -> None:
    group = world.fleet.add_group(ZONE, "g", {}, [{"instanceTemplate": "t1", "template": "t1"}], 1)
    world.machines.settle(fails=True)
    (member,) = group.members.values()
    assert member.errors == [{"code": "INTERNAL_ERROR", "message": "no"}]
    assert not world.machines.live
    world.pass_time(1.1)
    assert world.fleet.is_stable(group)


@pytest.mark.parametrize("lowers", [True, False])
def test_a_time_limit_ends_a_vm_and_the_group_recreates_it_or_not(
    world: World, lowers: bool
) -> None:
    world.fleet.switches.limit_lowers_target = lowers
    world.template("short", maxRunDuration={"seconds": "60"}, instanceTerminationAction="DELETE")
    group = world.group(template="short")
    old = world.only()
    world.pass_time(59)
    assert list(world.machines.live) == [old.id]
    assert world.fleet.next_time() == world.clock.now() + 1
    world.pass_time(1)
    world.pass_time(1)
    if lowers:
        assert group.target_size == 0
        assert not world.fleet.instances
    else:
        assert group.target_size == 1
        assert world.only().id != old.id


@pytest.mark.parametrize("lowers", [True, False])
def test_after_its_termination_time_no_vm_runs_or_is_created(world: World, lowers: bool) -> None:
    world.fleet.switches.limit_lowers_target = lowers
    ends = to_rfc3339(world.clock.now() + 60)
    world.template("t2", terminationTime=ends, instanceTerminationAction="DELETE")
    group = world.group(template="t2")
    world.pass_time(61)
    for _ in range(5):
        world.pass_time(10)
    assert not world.machines.live
    if not lowers:
        (member,) = group.members.values()
        assert "terminationTime" in member.errors[0]["message"]
    world.fleet.resize(group, 3)
    world.pass_time(10)
    assert not world.machines.live


@pytest.mark.parametrize(
    ("action", "size", "live"), [("DO_NOTHING", 1, 0), ("DELETE", 0, 0), ("REPAIR", 1, 1)]
)
def test_default_action_on_failure(world: World, action: str, size: int, live: int) -> None:
    group = world.group(instanceLifecyclePolicy={"defaultActionOnFailure": action})
    _host_dies(world, world.only())
    world.machines.settle()
    world.pass_time()
    world.pass_time()
    assert (group.target_size, len(world.machines.live)) == (size, live)


def test_a_group_is_deleted_after_its_last_vm(world: World) -> None:
    group = world.group(size=2)
    world.fleet.delete_group(group)
    world.machines.settle(exits=False)
    assert world.fleet.group(ZONE, "g") is group
    with pytest.raises(Invalid, match="not ready"):
        world.fleet.resize(group, 1)
    world.machines.settle()
    with pytest.raises(NotFound):
        world.fleet.group(ZONE, "g")
    assert not world.machines.live


def test_reset_keeps_id_and_disk(world: World) -> None:
    group = world.group()
    instance = world.only()
    world.fleet.vms.reset_instance(instance)
    world.machines.settle()
    assert world.only() is instance
    assert instance.status == "RUNNING"
    assert world.machines.log[-2:] == [Kill(instance.id), Boot(instance.id, new_disk=False)]
    assert world.fleet.is_stable(group)


def test_names_are_numbered_if_the_base_name_asks_for_it(world: World) -> None:
    group = world.group(size=2, baseInstanceName="vm-###")
    assert sorted(group.members) == ["vm-001", "vm-002"]


def test_state_survives_the_cloud_but_its_vms_do_not(world: World) -> None:
    world.group()
    old = world.only()
    kept = json.loads(json.dumps(world.fleet.to_json()))
    numbers = itertools.count(9000)
    fleet = Fleet(world.clock, project_number="123", next_id=lambda: next(numbers))
    fleet.take_up(kept)
    machines = Machines(fleet)
    machines.settle()
    world.clock.advance(1)
    machines.settle()
    (new,) = fleet.instances.values()
    assert (new.name, new.id) == (old.name, "9000")
    assert fleet.is_stable(fleet.group(ZONE, "g"))


# Health


def _healed(world: World, **body: Any) -> Group:
    """A group of one whose VM is asked for its health every second, after 10 s."""
    rules = {"checkIntervalSec": 1, "healthyThreshold": 2, "unhealthyThreshold": 3}
    world.fleet.blueprints.add_health_check("h", rules)
    healing = {"healthCheck": "global/healthChecks/h", "initialDelaySec": 10}
    return world.group(autoHealingPolicies=[healing], **body)


def test_first_healthy_answer_ends_the_initial_delay(world: World) -> None:
    group = _healed(world)
    (member,) = group.members.values()
    assert (member.action, member.health) == ("VERIFYING", "UNKNOWN")
    assert not world.fleet.is_stable(group)
    world.pass_times(2, 1)
    assert (member.action, member.health) == ("NONE", "HEALTHY")
    assert world.fleet.is_stable(group)


def test_an_unhealthy_vm_is_recreated_under_its_name(world: World) -> None:
    group = _healed(world)
    world.pass_times(2, 1)
    old = world.only()
    world.machines.sick.add(old.name)
    world.pass_times(2, 1)
    assert world.only() is old, "before the third bad answer in a row"
    world.pass_time(1)
    assert (world.only().name, world.only().id != old.id) == (old.name, True)
    assert group.target_size == 1


def test_an_unhealthy_vm_is_left_alone_during_its_initial_delay(world: World) -> None:
    world.machines.sick.add("g-001")
    _healed(world, baseInstanceName="g-###")
    old = world.only()
    world.pass_times(9, 1)
    assert world.only() is old
    world.pass_times(2, 1)
    assert world.only() is not old


@pytest.mark.parametrize(
    ("lifecycle", "recreated"),
    [
        ({"onFailedHealthCheck": "DO_NOTHING"}, False),
        ({"defaultActionOnFailure": "DO_NOTHING"}, False),
        ({"defaultActionOnFailure": "DO_NOTHING", "onFailedHealthCheck": "REPAIR"}, True),
    ],
)
def test_the_policy_decides_what_a_failed_health_check_does(
    world: World, lifecycle: dict[str, str], recreated: bool
) -> None:
    group = _healed(world, instanceLifecyclePolicy=lifecycle)
    world.pass_times(2, 1)
    old = world.only()
    world.machines.sick.add(old.name)
    world.pass_times(4, 1)
    assert (world.only() is not old) == recreated
    if not recreated:
        (member,) = group.members.values()
        assert (member.health, member.action) == ("UNHEALTHY", "NONE")


def test_health_check_in_use_cannot_be_deleted_and_its_change_holds_at_once(world: World) -> None:
    group = _healed(world)
    check = world.fleet.blueprints.health_check("h")
    with pytest.raises(InUse, match="instanceGroupManagers/g"):
        world.fleet.blueprints.delete_health_check(check)
    world.fleet.blueprints.change_health_check(check, {**check.body, "checkIntervalSec": 7})
    world.pass_times(3, 1)
    probes = sum(isinstance(command, Probe) for command in world.machines.log)
    world.pass_times(4, 1)
    assert sum(isinstance(command, Probe) for command in world.machines.log) == probes
    world.fleet.change_group(group, {"baseInstanceName": "g"}, None)
    world.fleet.blueprints.delete_health_check(check)
    assert not world.fleet.health_checks


# Updates


def test_substitution_starts_the_new_vm_before_the_old_one_ends(world: World) -> None:
    policy = {"type": "PROACTIVE", "maxSurge": {"fixed": 1}, "maxUnavailable": {"fixed": 0}}
    group = world.group(updatePolicy=policy)
    old = world.only()
    world.template("t2")
    version = {"instanceTemplate": "t2", "template": "t2"}
    world.fleet.change_group(group, group.body, [version])
    world.machines.settle(exits=False)
    assert len(world.machines.live) == 2, "until the old one has ended"
    world.machines.settle()
    assert world.only().name != old.name
    assert group.members[world.only().name].template == "t2"
    assert group.target_size == 1


def canary(world: World, group: Group, **size: int) -> None:
    """Puts a second version beside the group's own."""
    world.template("t2")
    second = {"name": "canary", "instanceTemplate": "t2", "template": "t2", "targetSize": size}
    world.fleet.change_group(group, group.body, [group.main, second])
    world.pass_times(3)


def held(group: Group) -> list[int]:
    templates = [member.template for member in group.members.values()]
    return [templates.count("t1"), templates.count("t2")]


@pytest.mark.parametrize(
    ("size", "asked", "wanted"),
    [
        (5, {"fixed": 2}, [3, 2]),
        (5, {"fixed": 9}, [0, 5]),
        (5, {"percent": 30}, [3, 2]),  # 1.5 VMs
        (3, {"percent": 10}, [3, 0]),  # 0.3 VMs
        (4, {"percent": 100}, [0, 4]),
        (4, {"fixed": 0}, [4, 0]),
    ],
)
@pytest.mark.parametrize("method", ["RECREATE", "SUBSTITUTE"])
def test_a_canary_has_its_target_size(
    world: World, method: str, size: int, asked: dict[str, int], wanted: list[int]
) -> None:
    surge = {"maxSurge": {"fixed": int(method == "SUBSTITUTE")}, "maxUnavailable": {"fixed": 1}}
    policy = {"type": "PROACTIVE", "replacementMethod": method, **surge}
    group = world.group(size=size, updatePolicy=policy)
    old = set(world.fleet.instances)
    canary(world, group, **asked)
    assert group.wanted() == held(group) == wanted
    assert len(old & set(world.fleet.instances)) == wanted[0], "no more than needed were replaced"
    world.fleet.resize(group, size + 1)
    world.pass_times(3)
    assert held(group) == group.wanted() and sum(held(group)) == size + 1


def test_a_canary_that_waits_gets_the_vms_that_come(world: World) -> None:
    """Opportunistic: no VM is replaced; a recreated VM gets the version that has too few."""
    group = world.group(size=3, updatePolicy={"replacementMethod": "RECREATE"})
    canary(world, group, fixed=1)
    assert held(group) == [3, 0]
    world.fleet.resize(group, 4)
    world.pass_times(3)
    assert held(group) == [3, 1]
    (name,) = [m.name for m in group.members.values() if m.template == "t2"]
    world.fleet.recreate_members(group, [name])
    world.pass_times(3)
    assert group.members[name].template == "t2", "its own version is not full beyond its size"
    world.fleet.delete_members(group, [name])
    world.pass_times(3)
    assert held(group) == [3, 0], "the target is one less"
    world.fleet.update_members(group, None, "NONE", "REPLACE")
    world.pass_times(3)
    assert held(group) == [2, 1], "updating all of them keeps to the sizes"


def test_a_version_of_another_name_is_another_version(world: World) -> None:
    """What `gcloud … rolling-action replace` sends."""
    policy = {"type": "PROACTIVE", "replacementMethod": "RECREATE", "minimalAction": "REPLACE"}
    group = world.group(updatePolicy={**policy, "maxSurge": {"fixed": 0}})
    old = world.only()
    version = {"name": "0-2026", "instanceTemplate": "t1", "template": "t1"}
    world.fleet.change_group(group, group.body, [version])
    world.pass_times(3)
    assert (world.only().name, world.only().id == old.id) == (old.name, False)
    assert group.members[old.name].version == "0-2026"


def test_a_group_that_does_not_settle_is_reported_as_unstable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = world.group(size=2)
    look = Manager._balance

    def restless(manager: Manager, looked_at: Group) -> None:
        look(manager, looked_at)
        manager._inventory.wake(looked_at)

    monkeypatch.setattr(Manager, "_balance", restless)
    world.fleet.resize(group, 3)
    with pytest.raises(Restless, match=r"Managers/g: has not come to rest after \d+ looks"):
        world.fleet.tick()


@pytest.mark.parametrize(
    ("minimal", "most", "change", "kept_id", "boots"),
    [
        ("REFRESH", "REPLACE", {"labels": {"a": "b"}}, True, 0),
        ("RESTART", "REPLACE", {"labels": {"a": "b"}}, True, 1),
        ("REFRESH", "REPLACE", {"machineType": "e2-small"}, True, 1),
        ("REFRESH", "REPLACE", {"disks": [{"boot": True}]}, False, 1),
        ("REPLACE", "REPLACE", {"labels": {"a": "b"}}, False, 1),
        ("REFRESH", "REFRESH", {"machineType": "e2-small"}, True, 0),
    ],
)
def test_an_update_uses_the_mildest_sufficient_action(
    world: World, minimal: str, most: str, change: dict[str, Any], kept_id: bool, boots: int
) -> None:
    group = world.group(updatePolicy={"replacementMethod": "RECREATE"})
    old = world.only()
    before = len(world.machines.log)
    properties = world.fleet.blueprints.template("t1").properties
    world.fleet.blueprints.add_template("t2", {**properties, **change}, "")
    world.update(group, "t2")
    world.fleet.update_members(group, [old.name], minimal, most)
    world.machines.settle()
    assert (world.only().id == old.id) == kept_id
    assert sum(isinstance(c, Boot) for c in world.machines.log[before:]) == boots
    done = most != "REFRESH"
    key = next(iter(change))
    assert (world.only().properties.get(key) == change[key]) == done


# Regions


def test_even_group_spreads_and_waits_for_a_zone_without_room(world: World) -> None:
    world.fleet.capacity.add_window(ZONES[1], 0)
    group = world.group(size=3, zones=ZONES)
    world.pass_times(3)
    assert dict(group.spread) == dict.fromkeys(ZONES, 1)
    (waiting,) = [m for m in group.members.values() if m.errors]
    assert (waiting.zone, waiting.errors[0]["code"]) == (ZONES[1], "ZONE_RESOURCE_POOL_EXHAUSTED")


def _shape(name: str) -> dict[str, Any]:
    return {"distributionPolicy": {"targetShape": name}}


@pytest.mark.parametrize(
    ("shape", "spread"),
    [
        ("ANY", {ZONES[1]: 4}),
        ("BALANCED", {ZONES[1]: 2, ZONES[2]: 2}),
        ("ANY_SINGLE_ZONE", {ZONES[1]: 4}),
    ],
)
def test_other_shapes_go_where_there_is_room(
    world: World, shape: str, spread: dict[str, int]
) -> None:
    world.fleet.capacity.add_window(ZONES[0], 0)
    group = world.group(size=4, zones=ZONES, **_shape(shape))
    assert world.fleet.is_stable(group)
    assert dict(+group.spread) == spread


@pytest.mark.parametrize("moves", [True, False])
def test_a_recreated_vm_changes_its_zone_only_if_allowed(world: World, moves: bool) -> None:
    lifecycle = {
        "forceUpdateOnRepair": "YES",
        "onRepair": {"allowChangingZone": "YES" if moves else "NO"},
    }
    group = world.group(zones=ZONES, instanceLifecyclePolicy=lifecycle, **_shape("ANY"))
    old = world.only()
    now = world.clock.now()
    world.fleet.capacity.add_window(old.zone, 0, now, now + 60)
    world.fleet.vms.preempt_instance(old)
    world.pass_times(4)
    if moves:
        new = world.only()
        assert (new.name, new.zone != old.zone) == (old.name, True)
        assert group.members[new.name].zone == new.zone
        return
    (member,) = group.members.values()
    assert member.errors[0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    world.pass_times(2, 60)
    assert world.only().zone == old.zone


@pytest.mark.parametrize(("limit", "taken"), [(8, "n2-standard-8"), (2, "e2-standard-2")])
def test_the_machine_type_of_the_best_rank_with_room_is_taken(
    world: World, limit: int, taken: str
) -> None:
    world.fleet.capacity.limit("CPUS_ALL_REGIONS", limit)
    selections = {
        "second": {"rank": 1, "machineTypes": ["e2-standard-2"]},
        "first": {"rank": 0, "machineTypes": ["n2-standard-8"]},
    }
    flexible = {"instanceFlexibilityPolicy": {"instanceSelections": selections}}
    world.group(zones=ZONES, **flexible, **_shape("ANY"))
    assert world.only().properties["machineType"] == taken


@pytest.mark.parametrize("kind", ["PROACTIVE", "NONE"])
def test_redistribution_evens_out_unless_it_is_off(world: World, kind: str) -> None:
    policy = {"instanceRedistributionType": kind}
    group = world.group(size=6, zones=ZONES, updatePolicy=policy)
    gone = [m.name for m in group.members.values() if m.zone != ZONES[0]]
    world.fleet.abandon_members(group, gone[:3])
    world.pass_times(10)
    counts = sorted(group.spread[zone] for zone in ZONES)
    assert counts == ([1, 1, 1] if kind == "PROACTIVE" else [0, 1, 2])


# Lacks


def test_capacity_counts_vms_and_is_checked_only_at_creation(world: World) -> None:
    now = world.clock.now()
    world.fleet.capacity.add_window(ZONE, 2, now, now + 10)
    group = world.group(size=3)
    assert len(world.machines.live) == 2
    world.fleet.capacity.add_window(ZONE, 0, now, now + 10)
    world.pass_times(2)
    assert len(world.machines.live) == 2, "live VMs keep running"
    world.pass_times(8)
    assert world.fleet.is_stable(group)


def test_limit_can_be_for_some_vms_only(world: World) -> None:
    world.fleet.capacity.add_window(
        ZONE, 0, applies=lambda properties: properties["machineType"] == "e2-small"
    )
    assert world.fleet.is_stable(world.group())
    assert world.fleet.capacity.has_room(ZONE, {"machineType": "e2-medium"})
    assert not world.fleet.capacity.has_room(ZONE, {"machineType": "e2-small"})


@pytest.mark.parametrize(
    ("properties", "metric", "limit", "said"),
    [
        ({}, "PREEMPTIBLE_CPUS", 1, "in region europe-west4"),
        ({}, "CPUS", 0, None),
        (
            {"guestAccelerators": [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}]},
            "PREEMPTIBLE_NVIDIA_T4_GPUS",
            0,
            "in region europe-west4",
        ),
        ({"machineType": "g2-standard-24"}, "GPUS_ALL_REGIONS", 1, "globally"),
        ({"machineType": "g2-standard-24"}, "PREEMPTIBLE_NVIDIA_L4_GPUS", 2, None),
    ],
)
def test_a_quota_error_is_reported_as_the_platform_does(
    world: World, properties: dict[str, Any], metric: str, limit: int, said: str | None
) -> None:
    spot = world.fleet.blueprints.template("t1").properties
    world.fleet.blueprints.add_template("t2", {**spot, **properties}, "")
    world.fleet.capacity.limit(metric, limit)
    group = world.group(template="t2")
    (member,) = group.members.values()
    if said is None:
        assert world.fleet.is_stable(group)
        return
    assert member.errors == [
        {
            "code": "QUOTA_EXCEEDED",
            "message": f"Quota '{metric}' exceeded. Limit: {float(limit)} {said}.",
        }
    ]
    assert group.errors[-1]["code"] == "QUOTA_EXCEEDED"


# Hosts


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_standard_vm_whose_host_is_lost_restarts_or_is_recreated(
    world: World, by_itself: bool
) -> None:
    world.fleet.switches.automatic_restart = by_itself
    world.template("t2", automaticRestart=True)
    world.group(template="t2")
    old = world.only()
    _host_dies(world, old)
    world.pass_times(2)
    assert (world.only().id == old.id) == by_itself
    _power_off(world, world.only())
    world.pass_times(2)
    assert world.only().id != old.id, "who powers off has not lost the host"


def test_maintenance_is_announced_then_stops_and_starts_the_vm(world: World) -> None:
    world.template("t2", automaticRestart=True, onHostMaintenance="TERMINATE")
    group = world.group(template="t2")
    instance = world.only()
    before = len(world.machines.log)
    world.fleet.vms.maintain_instance(instance)
    world.pass_time(59)
    assert instance.status == "RUNNING"
    world.pass_time(2)
    assert world.only() is instance
    assert world.machines.log[before:] == [
        Announce(instance.id, "TERMINATE_ON_HOST_MAINTENANCE"),
        Stop(instance.id),
        Boot(instance.id, new_disk=False),
        Announce(instance.id, "NONE"),
    ]
    assert world.fleet.is_stable(group)


def test_maintenance_that_moves_the_vm_only_announces(world: World) -> None:
    world.template("t2", automaticRestart=True, onHostMaintenance="MIGRATE")
    world.group(template="t2")
    world.fleet.vms.maintain_instance(world.only(), 5)
    world.pass_time(6)
    announced = [c.event for c in world.machines.log if isinstance(c, Announce)]
    assert announced == ["MIGRATE_ON_HOST_MAINTENANCE", "NONE"]
    assert world.only().status == "RUNNING"


def test_a_vm_whose_end_is_noticed_late_stays_stopping_without_a_successor(world: World) -> None:
    world.group()
    old = world.only()
    world.fleet.vms.hold_stopping(old, 30)
    world.fleet.vms.preempt_instance(old)
    world.machines.settle()
    world.pass_time(29)
    assert world.only() is old
    assert (old.status, list(world.machines.live)) == ("STOPPING", [])
    world.pass_times(2)
    assert world.only().id != old.id


def test_a_late_create_does_not_join_and_stays_until_it_is_deleted(world: World) -> None:
    group = world.group(size=1)
    world.fleet.resize(group, 0)
    world.machines.settle()
    late = world.fleet.vms.late_create(group)
    world.pass_times(3)
    assert list(world.machines.live) == [late.id]
    assert (group.target_size, group.members, late.group) == (0, {}, None)
    items = {item["key"]: item["value"] for item in late.properties["metadata"]["items"]}
    assert items["created-by"].endswith("/instanceGroupManagers/g")
    with pytest.raises(Exists, match=late.name):
        world.fleet.vms.add_instance(ZONE, late.name, {})
    world.fleet.vms.delete_instance(late)
    world.machines.settle()
    assert not world.fleet.instances


@pytest.mark.parametrize("held", [True, False])
def test_the_template_of_a_running_vm_can_or_cannot_be_deleted(world: World, held: bool) -> None:
    world.fleet.switches.vms_hold_template = held
    group = world.group()
    world.template("t2")
    world.update(group, "t2")
    if held:
        with pytest.raises(InUse):
            world.fleet.blueprints.delete_template("t1")
    else:
        world.fleet.blueprints.delete_template("t1")
    assert ("t1" in world.fleet.templates) == held


def test_a_regional_template_is_a_different_template(world: World) -> None:
    world.fleet.blueprints.add_template("t1", {"machineType": "e2-small"}, "", REGION)
    group = world.group(template=f"{REGION}/t1")
    assert world.only().properties["machineType"] == "e2-small"
    with pytest.raises(InUse):
        world.fleet.blueprints.delete_template("t1", REGION)
    world.fleet.blueprints.delete_template("t1")
    assert group.main["template"] == f"{REGION}/t1"
    with pytest.raises(NotFound, match="regions/europe-west4/instanceTemplates/t9"):
        world.fleet.blueprints.template("t9", REGION)
