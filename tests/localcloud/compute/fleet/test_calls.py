"""What calls on the fleet find, change and refuse, and what reports come too late to matter."""

import json
import random
from typing import Any

import pytest

from outlast.localcloud.compute.fleet.fleet import Fleet
from outlast.localcloud.compute.fleet.model import (
    HEALTHY,
    UNKNOWN,
    Exists,
    Fault,
    Invalid,
    ModelError,
    NotFound,
)
from tests.localcloud.compute.fleet.world import REGION, ZONE, ZONES, World

# Names


def test_a_name_that_is_taken_is_refused_with_its_path(world: World) -> None:
    fleet = world.fleet
    fleet.blueprints.add_health_check("h", {})
    fleet.blueprints.add_health_check("h", {}, REGION)
    world.group(size=0)
    alone = fleet.vms.add_instance(ZONE, "alone", {})
    with pytest.raises(Exists, match="^global/instanceTemplates/t1$"):
        world.template("t1")
    with pytest.raises(Exists, match=f"^regions/{REGION}/healthChecks/h$"):
        fleet.blueprints.add_health_check("h", {}, REGION)
    with pytest.raises(Exists, match=f"^zones/{ZONE}/instanceGroupManagers/g$"):
        world.group()
    with pytest.raises(Exists, match=f"^zones/{ZONE}/instances/alone$"):
        fleet.vms.add_instance(ZONE, "alone", {})
    fleet.add_group(REGION, "g", {"baseInstanceName": "r"}, [{"template": "t1"}], 0, ZONES)
    with pytest.raises(Exists, match=f"^regions/{REGION}/instanceGroupManagers/g$"):
        fleet.add_group(REGION, "g", {"baseInstanceName": "r"}, [{"template": "t1"}], 0, ZONES)
    assert fleet.vms.instance(ZONE, "alone") is alone


def test_what_does_not_exist_is_not_found_by_its_path(world: World) -> None:
    fleet = world.fleet
    with pytest.raises(NotFound, match=f"^zones/{ZONE}/instances/x$"):
        fleet.vms.instance(ZONE, "x")
    with pytest.raises(NotFound, match="^global/healthChecks/x$"):
        fleet.blueprints.health_check("x")
    with pytest.raises(NotFound, match=f"^zones/{ZONE}/instanceGroupManagers/x$"):
        fleet.group(ZONE, "x")
    with pytest.raises(NotFound, match=f"^regions/{REGION}/instanceGroupManagers/x$"):
        fleet.group(REGION, "x", regional=True)


def test_a_template_is_found_by_its_number_in_its_place(world: World) -> None:
    template = world.fleet.blueprints.template("t1")
    assert world.fleet.blueprints.template(template.id) is template
    for number, region in ((template.id, REGION), ("1", "")):
        with pytest.raises(NotFound):
            world.fleet.blueprints.template(number, region)


def test_the_vms_of_a_zone(world: World) -> None:
    first = world.fleet.vms.add_instance(ZONE, "a", {})
    world.fleet.vms.add_instance(ZONES[1], "b", {})
    assert world.fleet.vms.in_zone(ZONE) == [first]
    assert world.fleet.vms.in_zone(ZONES[2]) == []


def test_a_name_drawn_twice_is_drawn_again(world: World) -> None:
    world.fleet._manager.creation._rng = random.Random(5)
    group = world.group(size=1)
    world.fleet._manager.creation._rng = random.Random(5)
    world.fleet.resize(group, 2)
    world.machines.settle()
    assert world.fleet.is_stable(group)
    assert len({instance.name for instance in world.fleet.instances.values()}) == 2


# Calls that the state or the call itself refuses


def test_a_group_refuses_a_call_that_contradicts_itself(world: World) -> None:
    group = world.group()
    with pytest.raises(Invalid, match="'size': '-1'. Must be at least 0"):
        world.fleet.resize(group, -1)
    with pytest.raises(Invalid, match="'minimalAction': 'REPLACE'. Must not be more disruptive"):
        world.fleet.update_members(group, None, "REPLACE", "RESTART")
    with pytest.raises(Invalid, match="'nonsense'. Must be the URL of a health check"):
        world.update(group, "t1", autoHealingPolicies=[{"healthCheck": "nonsense"}])
    assert (group.target_size, world.fleet.is_stable(group)) == (1, True)


def test_a_version_with_the_number_of_a_template_that_was_replaced_is_refused(
    world: World,
) -> None:
    old = world.fleet.blueprints.delete_template("t1").id
    world.template("t1")
    new = world.fleet.blueprints.template("t1").id
    version = {"template": "t1", "template_id": old}
    with pytest.raises(NotFound, match="global/instanceTemplates/t1"):
        world.fleet.add_group(ZONE, "g", {"baseInstanceName": "g"}, [version], 1)
    for known in (None, "", new):
        body = {"baseInstanceName": f"g{known}"}
        group = world.fleet.add_group(
            ZONE, f"g{known}", body, [{**version, "template_id": known}], 0
        )
        assert group.main["template_id"] == new


def test_a_vm_is_started_reset_and_maintained_only_in_the_state_for_it(world: World) -> None:
    world.template("standard", automaticRestart=True)
    properties = world.fleet.blueprints.template("standard").properties
    vms, alone = world.fleet.vms, world.fleet.vms.add_instance(ZONE, "alone", properties)
    world.machines.settle()
    with pytest.raises(ModelError, match="alone"):
        vms.start_instance(alone)
    vms.stop_instance(alone)
    world.machines.settle()
    assert alone.status == "TERMINATED"
    for call in (vms.reset_instance, vms.maintain_instance):
        with pytest.raises(ModelError, match="alone"):
            call(alone)
    vms.stop_instance(alone)  # of a stopped VM, it does nothing
    vms.lose(alone)
    assert world.fleet.take_commands() == []
    vms.start_instance(alone)
    world.machines.settle()
    assert (alone.status, list(world.machines.live)) == ("RUNNING", [alone.id])


def test_a_late_create_without_its_template_is_not_found(world: World) -> None:
    group = world.group(size=0)
    del world.fleet.templates["t1"]
    with pytest.raises(NotFound, match="global/instanceTemplates/t1"):
        world.fleet.vms.late_create(group)


def test_maintenance_preempts_a_spot_vm(world: World) -> None:
    world.group()
    old = world.only()
    world.fleet.vms.maintain_instance(old)
    assert old.preempting
    world.pass_times(3)
    assert world.only().id != old.id


# Changes


def test_all_vms_of_a_group_get_its_labels_and_metadata(world: World) -> None:
    template = world.fleet.blueprints.template("t1")
    template.properties["labels"] = {"a": "1", "b": "1"}
    template.properties["metadata"] = {"items": [{"key": "k", "value": "1"}]}
    config = {"properties": {"labels": {"b": "2"}, "metadata": {"k": "2"}}}
    world.group(allInstancesConfig=config)
    made = world.only().properties
    assert made["labels"] == {"a": "1", "b": "2"}
    assert [item["value"] for item in made["metadata"]["items"] if item["key"] == "k"] == ["2"]
    assert template.properties["labels"] == {"a": "1", "b": "1"}


@pytest.mark.parametrize(
    "limits", [{"minimalAction": "NONE"}, {"mostDisruptiveAllowedAction": "RESTART"}]
)
def test_an_update_that_may_not_replace_makes_no_vm_more(
    world: World, limits: dict[str, str]
) -> None:
    group = world.group()
    old = world.only()
    world.template("t2")
    world.fleet.blueprints.template("t2").properties["disks"] = [{}]
    world.update(group, "t2", updatePolicy={"type": "PROACTIVE", **limits})
    world.pass_times(3)
    assert world.only() is old


def test_a_changed_vm_outside_of_groups_is_what_was_asked(world: World) -> None:
    alone = world.fleet.vms.add_instance(ZONE, "alone", {"machineType": "e2-small"})
    before = alone.fingerprint
    world.fleet.vms.change_instance(alone, machineType="e2-medium", labels={"a": "1"})
    assert alone.properties == {"machineType": "e2-medium", "labels": {"a": "1"}}
    assert alone.fingerprint == before + 1


def test_a_member_that_waits_for_its_vm_can_be_abandoned(world: World) -> None:
    world.fleet.capacity.add_window(ZONE, 0)
    group = world.group()
    (member,) = group.members.values()
    assert member.instance is None
    world.fleet.abandon_members(group, [member.name])
    assert (group.members, group.target_size) == ({}, 0)


def test_an_update_of_members_leaves_those_that_are_busy(world: World) -> None:
    group = world.group(size=2)
    first, second = group.members
    world.template("t2")
    world.fleet.change_group(group, group.body, [{"template": "t2"}])
    world.fleet.recreate_members(group, [first])
    assert group.members[first].action != "NONE"
    action = group.members[first].action
    world.fleet.update_members(group, None, "RESTART", "RESTART")
    assert group.members[first].action == action
    world.machines.settle()
    assert group.members[second].instance is not None


# Capacity


def test_limits_are_removed_all_or_by_what_they_apply_to(world: World) -> None:
    def small(properties: Any) -> bool:
        return properties["machineType"] == "e2-small"

    capacity = world.fleet.capacity
    kinds = [{"machineType": name} for name in ("e2-small", "e2-medium")]

    def rooms() -> list[bool]:
        return [capacity.has_room(ZONE, kind) for kind in kinds]

    capacity.add_window(ZONE, 0, applies=small)
    capacity.clear(lambda properties: True)
    assert rooms() == [False, True]
    capacity.add_window(ZONE, 0)
    capacity.limit("CPUS", 5)
    assert rooms() == [False, False]
    capacity.clear(small)
    assert rooms() == [False, False]
    assert [quota["metric"] for quota in capacity.quotas(REGION)] == ["CPUS"]
    capacity.clear()
    assert (rooms(), capacity.quotas(REGION)) == ([True, True], [])


def test_a_vm_of_an_unknown_machine_type_counts_without_cpus(world: World) -> None:
    world.fleet.capacity.limit("CPUS", 5)
    world.fleet.capacity.limit("INSTANCES", 5)
    before = world.fleet.capacity.used(ZONE)
    world.fleet.vms.add_instance(ZONE, "odd", {"machineType": "zz-odd-1"})
    usage = {quota["metric"]: quota["usage"] for quota in world.fleet.capacity.quotas(REGION)}
    assert usage == {"CPUS": 0, "INSTANCES": 1}
    assert world.fleet.capacity.used(ZONE) == before + 1


# Reports


def test_reports_of_unknown_vms_change_nothing(world: World) -> None:
    world.group()
    before = world.fleet.to_json()
    vms = world.fleet.vms
    for report in (vms.running, vms.stopping, vms.exited):
        report("77")
    vms.exited("77", Fault("INTERNAL_ERROR", "no"))
    vms.probed("77", True)
    assert world.fleet.to_json() == before
    assert world.fleet.take_commands() == []


def test_reports_that_come_twice_or_late_change_nothing(world: World) -> None:
    alone = world.fleet.vms.add_instance(ZONE, "alone", {})
    world.machines.settle()
    started = alone.started
    world.clock.advance(5)
    world.fleet.vms.running(alone.id)
    assert (alone.status, alone.started) == ("RUNNING", started)
    world.fleet.vms.stop_instance(alone)
    world.machines.settle()
    stopped = alone.stopped
    world.clock.advance(5)
    world.fleet.vms.stopping(alone.id)
    world.fleet.vms.exited(alone.id)
    assert (alone.status, alone.stopped) == ("TERMINATED", stopped)


def test_a_probe_of_a_vm_without_a_health_check_says_nothing(world: World) -> None:
    group = world.group()
    (member,) = group.members.values()
    world.fleet.vms.probed(world.only().id, True)
    assert (member.health, member.streak) == (UNKNOWN, 0)
    assert member.health != HEALTHY


def test_a_new_health_check_waits_for_vms_that_are_not_up(world: World) -> None:
    group = world.group()
    (member,) = group.members.values()
    world.machines.exit(world.only().id)
    world.fleet.blueprints.add_health_check("h", {"checkIntervalSec": 1})
    healing = {"healthCheck": "global/healthChecks/h", "initialDelaySec": 10}
    world.fleet.change_group(group, {**group.body, "autoHealingPolicies": [healing]}, None)
    assert member.action != "VERIFYING"
    world.pass_times(20, 1)
    assert member.health == HEALTHY


# The state


def test_a_member_whose_group_is_gone_is_not_taken_up(world: World) -> None:
    world.group()
    kept = json.loads(json.dumps(world.fleet.to_json()))
    kept["groups"].clear()
    fleet = Fleet(world.clock, project_number="123", next_id=lambda: 1)
    fleet.take_up(kept)
    assert fleet.groups == {}
    fleet.tick()
    assert [instance.live for instance in fleet.instances.values()] == [False]


def test_a_cleared_fleet_has_nothing_and_all_of_its_room(world: World) -> None:
    world.fleet.switches.recreate_delay_sec = 5.0
    world.fleet.capacity.add_window(ZONE, 2)
    world.group(size=2)
    world.fleet.clear()
    assert not any(world.fleet.to_json().values())
    assert (world.fleet.next_time(), world.fleet.take_commands()) == (None, [])
    assert world.fleet.capacity.used(ZONE) == 0
    assert world.fleet.switches.recreate_delay_sec == 5.0
    world.machines.live.clear()
    world.template("t1")
    assert world.fleet.is_stable(world.group(size=2))
