import itertools
import json
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rehearsal.clock import to_rfc3339
from rehearsal.model import (
    Boot,
    Discard,
    Fault,
    Fleet,
    Group,
    Instance,
    InUse,
    Invalid,
    Kill,
    NotFound,
    Preempt,
    Stop,
)

ZONE = "europe-west4-a"


class Machines:
    """Does the model's commands without machines, and holds it to what machines need."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.live: dict[str, str] = {}
        """Names of the VMs with a process, by id."""
        self.disks: set[str] = set()
        self.ever: set[str] = set()
        self.stopping: set[str] = set()
        self.log: list[object] = []

    def settle(self, *, fails: bool = False, exits: bool = True) -> None:
        """Does all commands until there are none; VMs told to stop have exited at the end."""
        while True:
            self.fleet.tick()
            commands = self.fleet.take_commands()
            self.log += commands
            for command in commands:
                self._do(command, fails)
            exiting = sorted(self.stopping) if exits else []
            self.stopping.difference_update(exiting)
            for instance_id in exiting:
                self.exit(instance_id)
            if not commands and not exiting:
                return

    def exit(self, instance_id: str) -> None:
        if self.live.pop(instance_id, None):
            self.fleet.exited(instance_id)

    def _do(self, command: object, fails: bool) -> None:
        match command:
            case Boot(instance_id, new_disk):
                name = self.fleet.instances[instance_id].name
                assert name not in self.live.values(), "two live VMs with one name"
                assert new_disk == (instance_id not in self.ever), "an id was given twice"
                self.ever.add(instance_id)
                self.disks.add(instance_id)
                if fails:
                    self.fleet.exited(instance_id, Fault("INTERNAL_ERROR", "no"))
                else:
                    self.live[instance_id] = name
                    self.fleet.running(instance_id)
            case Stop(instance_id) | Preempt(instance_id):
                if instance_id in self.live:
                    self.fleet.stopping(instance_id)
                    self.stopping.add(instance_id)
            case Kill(instance_id):
                self.exit(instance_id)
            case Discard(instance_id):
                assert instance_id not in self.live, "the disk of a live VM was deleted"
                self.disks.discard(instance_id)


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self._now_sec = 1_800_000_000.0

    def now(self) -> float:
        return self._now_sec

    def advance(self, seconds: float) -> None:
        """Moves on by `seconds`."""
        self._now_sec += seconds


class World:
    """A fleet with its clock and machines."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        numbers = itertools.count(1000)
        self.fleet = Fleet(
            self.clock,
            project_number="123",
            next_id=lambda: next(numbers),
            rng=random.Random(1),
        )
        self.machines = Machines(self.fleet)

    def template(self, name: str, **scheduling: object) -> None:
        properties = {"machineType": "e2-medium", "scheduling": scheduling}
        self.fleet.add_template(name, properties, "")

    def group(self, size: int = 1, template: str = "t1", **body: object) -> Group:
        version = {"instanceTemplate": template, "template": template}
        group = self.fleet.add_group(ZONE, "g", {"baseInstanceName": "g", **body}, [version], size)
        self.machines.settle()
        return group

    def only(self) -> Instance:
        (instance,) = self.fleet.instances.values()
        return instance

    def pass_time(self, seconds: float = 0.5) -> None:
        self.clock.advance(seconds)
        self.machines.settle()

    def update(self, group: Group, template: str, **body: object) -> None:
        version = {"instanceTemplate": template, "template": template}
        self.fleet.change_group(group, {**group.body, **body}, [version])
        self.machines.settle()


@pytest.fixture
def world() -> World:
    world = World()
    world.template("t1", provisioningModel="SPOT")
    return world


def test_group_creates_its_vms_with_attributes_of_its_own(world: World) -> None:
    group = world.group(size=2)
    assert world.fleet.is_stable(group)
    assert len(world.machines.live) == 2
    items = next(iter(world.fleet.instances.values())).properties["metadata"]["items"]
    assert {item["key"]: item["value"] for item in items} == {
        "created-by": f"projects/123/zones/{ZONE}/instanceGroupManagers/g",
        "instance-template": "projects/123/global/instanceTemplates/t1",
    }


def _preempt(world: World, instance: Instance) -> None:
    world.fleet.preempt_instance(instance)


def _host_dies(world: World, instance: Instance) -> None:
    world.machines.exit(instance.id)


def _power_off(world: World, instance: Instance) -> None:
    world.fleet.stopping(instance.id)
    world.machines.exit(instance.id)


@pytest.mark.parametrize(
    "end",
    [
        _preempt,
        _host_dies,
        _power_off,
        lambda world, instance: world.fleet.stop_instance(instance),
        lambda world, instance: world.fleet.delete_instance(instance),
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


def test_deleted_member_stays_away_and_lowers_the_size(world: World) -> None:
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


def test_call_on_a_stranger_is_refused_and_changes_nothing(world: World) -> None:
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


def test_abandoned_vm_lives_on_alone(world: World) -> None:
    group = world.group()
    instance = world.only()
    world.fleet.abandon_members(group, [instance.name])
    world.pass_time(100)
    assert list(world.machines.live) == [instance.id]
    assert instance.group is None
    assert group.target_size == 0
    world.fleet.delete_instance(instance)
    world.machines.settle()
    assert not world.fleet.instances


@pytest.mark.parametrize(("force", "expected"), [("YES", "t2"), ("NO", "t1")])
def test_opportunistic_update_reaches_a_vm_at_its_repair_if_forced(
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
        world.fleet.delete_template("t1")
    world.template("t2")
    world.update(group, "t2")
    world.fleet.delete_template("t1")
    with pytest.raises(NotFound):
        world.fleet.template("t1")


def test_repair_from_a_template_that_is_gone_says_so_and_goes_on_trying(world: World) -> None:
    group = world.group(instanceLifecyclePolicy={"forceUpdateOnRepair": "NO"})
    world.template("t2")
    world.update(group, "t2")
    world.fleet.delete_template("t1")
    _host_dies(world, world.only())
    world.pass_time()
    world.pass_time()
    (member,) = group.members.values()
    assert member.errors[0]["code"] == "RESOURCE_NOT_FOUND"
    assert not world.machines.live


def test_no_capacity_is_told_and_tried_again(world: World) -> None:
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
def test_time_limit_ends_a_vm_and_both_answers_of_the_group_are_played(
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
def test_past_its_termination_time_no_vm_lives_or_is_created(world: World, lowers: bool) -> None:
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


def test_group_goes_when_its_last_vm_has_gone(world: World) -> None:
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
    world.fleet.reset_instance(instance)
    world.machines.settle()
    assert world.only() is instance
    assert instance.status == "RUNNING"
    assert world.machines.log[-2:] == [Kill(instance.id), Boot(instance.id, new_disk=False)]
    assert world.fleet.is_stable(group)


def test_names_are_numbered_where_the_base_name_asks_for_it(world: World) -> None:
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


class Anything(RuleBasedStateMachine):
    """Calls, deaths and time in any order."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.world.template("t1", provisioningModel="SPOT")
        self.templates = 1
        self.group = self.world.group(
            instanceLifecyclePolicy={"forceUpdateOnRepair": "YES"},
            updatePolicy={
                "type": "PROACTIVE",
                "replacementMethod": "RECREATE",
                "maxUnavailable": {"fixed": 1},
            },
        )
        self.gone = False

    def _settle(self) -> None:
        """Some commands done, VMs told to stop still up."""
        target = self.group.target_size
        before = len(self.world.machines.log)
        self.world.machines.settle(exits=False)
        boots = [c for c in self.world.machines.log[before:] if isinstance(c, Boot)]
        if target == 0:
            assert not [b for b in boots if b.new_disk], "a group of size 0 created a VM"

    @rule(size=st.integers(0, 3))
    @precondition(lambda self: not self.gone)
    def resize(self, size: int) -> None:
        self.world.fleet.resize(self.group, size)
        self._settle()

    @rule(data=st.data(), verb=st.sampled_from(["delete", "recreate", "abandon"]))
    @precondition(lambda self: not self.gone and self.group.members)
    def act_on_member(self, data: st.DataObject, verb: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.group.members)))
        getattr(self.world.fleet, f"{verb}_members")(self.group, [name])
        self._settle()

    @rule(data=st.data(), verb=st.sampled_from(["stop", "delete", "preempt", "reset"]))
    @precondition(lambda self: self.world.fleet.instances)
    def act_on_vm(self, data: st.DataObject, verb: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.fleet.instances)))
        instance = self.world.fleet.instances[key]
        if verb != "reset" or instance.status == "RUNNING":
            getattr(self.world.fleet, f"{verb}_instance")(instance)
        self._settle()

    @rule(data=st.data())
    @precondition(lambda self: self.world.machines.live)
    def lose_a_host(self, data: st.DataObject) -> None:
        self.world.machines.exit(data.draw(st.sampled_from(sorted(self.world.machines.live))))
        self._settle()

    @rule()
    def let_stopping_vms_exit(self) -> None:
        self.world.machines.settle()

    @rule(seconds=st.sampled_from([0.1, 0.3, 1.5]))
    def pass_time(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self._settle()

    @rule(value=st.booleans())
    def switch_capacity(self, value: bool) -> None:
        self.world.fleet.switches.no_capacity = value
        self._settle()

    @rule()
    @precondition(lambda self: not self.gone)
    def update(self) -> None:
        self.templates += 1
        name = f"t{self.templates}"
        self.world.template(name, provisioningModel="SPOT")
        version = {"instanceTemplate": name, "template": name}
        self.world.fleet.change_group(self.group, self.group.body, [version])
        self._settle()

    @rule()
    @precondition(lambda self: not self.gone)
    def delete_group(self) -> None:
        self.world.fleet.delete_group(self.group)
        self.gone = True
        self._settle()

    @invariant()
    def members_are_as_many_as_wanted(self) -> None:
        staying = [m for m in self.group.members.values() if not m.leaving]
        assert len(staying) == self.group.target_size

    @invariant()
    def live_vms_have_names_of_their_own(self) -> None:
        names = list(self.world.machines.live.values())
        assert len(names) == len(set(names))

    @invariant()
    def model_and_machines_agree(self) -> None:
        fleet = self.world.fleet
        assert {i.id for i in fleet.instances.values() if i.live} == set(self.world.machines.live)
        assert set(fleet.instances) == self.world.machines.disks

    def teardown(self) -> None:
        """Whatever happened, in peace the group gets what it wants."""
        if not hasattr(self, "group"):
            return
        self.world.fleet.switches.no_capacity = False
        for _ in range(12):
            self.world.pass_time(1.5)
        if self.gone:
            assert not self.world.fleet.groups
        else:
            assert self.world.fleet.is_stable(self.group)
            assert len(self.group.members) == self.group.target_size
            newest = self.world.fleet.newest(self.group)["template"]
            assert {m.template for m in self.group.members.values()} <= {newest}


TestAnything = Anything.TestCase
TestAnything.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
