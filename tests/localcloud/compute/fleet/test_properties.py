"""What holds of a group in any order of calls, deaths, lacks and time.

How much was tried: `python -m pytest -n0 --hypothesis-show-statistics` with this file.
"""

import itertools
import json
from collections import Counter
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outlast.localcloud.compute.fleet.fleet import Fleet
from outlast.localcloud.compute.fleet.model import (
    Boot,
    Exists,
    Group,
    Instance,
)
from tests.localcloud.compute.fleet.world import ZONES, World

LARGEST = 4
LONGEST_PEACE = 60
RUN_SEC = 12
POLICIES = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["PROACTIVE", "OPPORTUNISTIC"]),
        "minimalAction": st.sampled_from(["REFRESH", "RESTART", "REPLACE"]),
        "instanceRedistributionType": st.sampled_from(["PROACTIVE", "NONE"]),
    }
)
REPLACING = st.one_of(
    st.builds(
        lambda unavailable: {
            "replacementMethod": "RECREATE",
            "maxSurge": {"fixed": 0},
            "maxUnavailable": {"fixed": unavailable},
        },
        st.integers(1, 3),
    ),
    st.builds(
        lambda surge, unavailable: {
            "replacementMethod": "SUBSTITUTE",
            "maxSurge": {"percent": surge},
            "maxUnavailable": {"percent": unavailable},
        },
        st.sampled_from([0, 10, 50]),
        st.sampled_from([20, 40, 100]),
    ),
    st.builds(
        lambda surge, unavailable: {
            "replacementMethod": "SUBSTITUTE",
            "maxSurge": {"fixed": surge},
            "maxUnavailable": {"fixed": unavailable if surge else 1 + unavailable},
        },
        st.integers(0, 2),
        st.integers(0, 2),
    ),
)
CANARIES = st.sampled_from(
    [None, None, {"fixed": 1}, {"fixed": 3}, {"percent": 25}, {"percent": 50}, {"percent": 100}]
)
SCHEDULING = st.sampled_from(
    [
        {"provisioningModel": "SPOT"},
        {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"},
        {"automaticRestart": True, "onHostMaintenance": "TERMINATE"},
        {
            "provisioningModel": "SPOT",
            "instanceTerminationAction": "DELETE",
            "maxRunDuration": {"seconds": RUN_SEC},
        },
    ]
)


def _wanted(group: Group) -> list[int]:
    """How many members each version must have; where there are two, the second has a size."""
    size = group.target_size
    if len(group.versions) == 1:
        return [size]
    canary = min(size, _number(group.versions[1]["targetSize"], size))
    return [size - canary, canary]


class Anything(RuleBasedStateMachine):
    """One group of a zone or a region, and everything that may befall it."""

    @initialize(
        shape=st.sampled_from([None, "EVEN", "BALANCED", "ANY", "ANY_SINGLE_ZONE"]),
        policy=POLICIES,
        replacing=REPLACING,
        forced=st.sampled_from(["YES", "NO"]),
        numbered=st.booleans(),
        lowers=st.booleans(),
        moves=st.booleans(),
        healed=st.booleans(),
        scheduling=SCHEDULING,
        size=st.integers(0, LARGEST),
    )
    def begin(
        self,
        shape: str | None,
        policy: dict[str, Any],
        replacing: dict[str, Any],
        forced: str,
        numbered: bool,
        lowers: bool,
        moves: bool,
        healed: bool,
        scheduling: dict[str, Any],
        size: int,
    ) -> None:
        self.world = World()
        self.world.fleet.switches.limit_lowers_target = self.lowers = lowers
        self.scheduling = scheduling
        self.world.template("t1", **scheduling)
        self.templates = 1
        lifecycle: dict[str, Any] = {"forceUpdateOnRepair": forced}
        self.moves = moves and shape in ("BALANCED", "ANY")
        if self.moves:
            lifecycle["onRepair"] = {"allowChangingZone": "YES"}
        body: dict[str, Any] = {
            "instanceLifecyclePolicy": lifecycle,
            "updatePolicy": {**policy, **replacing},
        }
        if healed:
            self.world.fleet.blueprints.add_health_check("h", {"checkIntervalSec": 1})
            body["autoHealingPolicies"] = [
                {"healthCheck": "global/healthChecks/h", "initialDelaySec": 3}
            ]
        if numbered:  # names that were had before are the first that are looked at
            body["baseInstanceName"] = "g-#"
        if shape:
            body["distributionPolicy"] = {"targetShape": shape}
        self.world.machines.log.clear()
        self.group = self.world.group(size=size, zones=ZONES if shape else None, **body)
        self.kept: dict[str, dict[str, Any]] = {}
        self.gone = False
        self.wanted = size
        self.limited: set[str] = set()
        self.doomed: set[str] = set()
        self.homes: dict[str, str] = {}
        self._settle()

    # What is done

    def _settle(self) -> None:
        """The commands are done, but VMs that must stop are still up."""
        target = self.group.target_size
        before = len(self.world.machines.log)
        self.world.machines.settle(exits=False)
        boots = [c for c in self.world.machines.log[before:] if isinstance(c, Boot)]
        if target == 0:
            assert not [b for b in boots if b.new_disk], "a group of size 0 created a VM"
        for table, entries in self.world.fleet.take_changes().items():
            for key, entry in entries.items():
                if entry is None:
                    self.kept.get(table, {}).pop(key, None)
                else:
                    self.kept.setdefault(table, {})[key] = entry

    def _draw(self, data: st.DataObject) -> Instance:
        key = data.draw(st.sampled_from(sorted(self.world.fleet.instances)))
        return self.world.fleet.instances[key]

    @rule(size=st.integers(0, LARGEST))
    @precondition(lambda self: not self.gone)
    def resize(self, size: int) -> None:
        self.world.fleet.resize(self.group, size)
        self.wanted = size
        self._settle()

    @rule(data=st.data(), verb=st.sampled_from(["delete", "recreate", "abandon"]))
    @precondition(lambda self: not self.gone and self.group.members)
    def act_on_member(self, data: st.DataObject, verb: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.group.members)))
        before, stays = self.group.target_size, not self.group.members[name].leaving
        if verb == "recreate":
            self.doomed.add(self.group.members[name].instance or "")
        getattr(self.world.fleet, f"{verb}_members")(self.group, [name])
        self.wanted -= stays and verb != "recreate"
        assert self.group.target_size == before - (stays and verb != "recreate")
        self._settle()

    @rule(number=st.integers(0, 2))
    @precondition(lambda self: not self.gone and self.wanted < LARGEST)
    def create_member(self, number: int) -> None:
        name, before = f"named-{number}", set(self.group.members)
        vms = {i.name for i in self.world.fleet.instances.values()}
        try:
            self.world.fleet.create_members(self.group, [name])
        except Exists:
            assert name in before | vms
        else:
            assert name not in before | vms
            self.wanted += 1
        self._settle()

    @rule(data=st.data(), verb=st.sampled_from(["stop", "delete", "preempt", "reset", "maintain"]))
    @precondition(lambda self: self.world.fleet.instances)
    def act_on_vm(self, data: st.DataObject, verb: str) -> None:
        instance = self._draw(data)
        if verb not in ("reset", "maintain") or instance.status == "RUNNING":
            getattr(self.world.fleet.vms, f"{verb}_instance")(instance)
        self._settle()

    @rule(data=st.data())
    @precondition(lambda self: self.world.machines.live)
    def lose_a_host(self, data: st.DataObject) -> None:
        self.world.machines.exit(data.draw(st.sampled_from(sorted(self.world.machines.live))))
        self._settle()

    @rule(data=st.data())
    @precondition(lambda self: self.world.fleet.instances)
    def see_an_end_late(self, data: st.DataObject) -> None:
        self.world.fleet.vms.hold_stopping(self._draw(data), 0.5)
        self._settle()

    @rule(data=st.data(), well=st.booleans())
    @precondition(lambda self: self.group.members)
    def fall_ill(self, data: st.DataObject, well: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.group.members)))
        sick = self.world.machines.sick
        sick.discard(name) if well else sick.add(name)

    @rule()
    def let_stopping_vms_exit(self) -> None:
        self.world.machines.settle()
        self._settle()

    @rule(seconds=st.sampled_from([0.1, 0.3, 1.5, 4.0, 15.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self._settle()

    @rule(zone=st.sampled_from(ZONES), vms=st.integers(0, 2), lasts_sec=st.sampled_from([1.0, 5.0]))
    def lack_room(self, zone: str, vms: int, lasts_sec: float) -> None:
        now = self.world.clock.now()
        self.world.fleet.capacity.add_window(zone, vms, now, now + lasts_sec)
        self._settle()

    @rule(limit=st.integers(0, 3))
    def lack_quota(self, limit: int) -> None:
        now = self.world.clock.now()
        self.world.fleet.capacity.limit("INSTANCES", limit, now, now + 3)
        self._settle()

    @rule(machine=st.sampled_from(["e2-medium", "e2-small"]), canary=CANARIES)
    @precondition(lambda self: not self.gone)
    def update(self, machine: str, canary: dict[str, int] | None) -> None:
        self.templates += 1
        name = f"t{self.templates}"
        properties = {"machineType": machine, "scheduling": self.scheduling}
        self.world.fleet.blueprints.add_template(name, properties, "")
        version: dict[str, Any] = {"name": name, "instanceTemplate": name, "template": name}
        versions = [self.group.main, {**version, "targetSize": canary}] if canary else [version]
        self.world.fleet.change_group(self.group, self.group.body, versions)
        self._settle()

    @rule()
    @precondition(lambda self: not self.gone)
    def delete_group(self) -> None:
        self.world.fleet.delete_group(self.group)
        self.wanted = 0
        self.gone = True
        self._settle()

    # What holds

    @invariant()
    def members_are_as_many_as_wanted(self) -> None:
        group = self.group
        policy = group.body["updatePolicy"]
        rolls = policy["type"] == "PROACTIVE" and policy["replacementMethod"] == "SUBSTITUTE"
        surge = group.allowed("maxSurge") if rolls else 0
        assert group.staying <= group.target_size + surge
        if not group.outgoing and not group.outdated:
            assert group.staying == group.target_size

    @invariant()
    def only_calls_and_limits_change_the_target(self) -> None:
        self.limited |= {i.id for i in self.world.fleet.instances.values() if i.limited}
        lost = self.wanted - self.group.target_size
        assert lost == 0 or (self.lowers and 0 < lost <= len(self.limited))

    @invariant()
    def vms_end_at_their_limit(self) -> None:
        now = self.world.clock.now()
        for instance in self.world.fleet.instances.values():
            if "maxRunDuration" not in self.scheduling or instance.started is None:
                continue
            if instance.live and instance.held_until is None:
                assert now < instance.started + RUN_SEC or instance.stop_requested, instance

    @invariant()
    def a_member_keeps_its_zone_unless_it_may_change_it(self) -> None:
        members = self.group.members
        self.homes = {name: zone for name, zone in self.homes.items() if name in members}
        for member in members.values():
            if member.instance and not self.moves:
                assert self.homes.setdefault(member.name, member.zone) == member.zone

    @invariant()
    def vms_have_separate_names_and_addresses(self) -> None:
        live = list(self.world.machines.live.values())
        assert len(live) == len(set(live))
        instances = self.world.fleet.instances.values()
        assert len(instances) == len({(i.zone, i.name) for i in instances})
        assert len(instances) == len({i.address for i in instances})

    @invariant()
    def model_and_machines_agree(self) -> None:
        instances = self.world.fleet.instances
        running = {i.id for i in instances.values() if i.live and i.held_until is None}
        assert running == set(self.world.machines.live)
        assert set(instances) == self.world.machines.disks

    @invariant()
    def a_member_without_a_vm_says_why(self) -> None:
        for member in self.group.members.values():
            if member.instance not in self.world.fleet.instances and not member.leaving:
                waits = member.action == "RECREATING" and member.repaired
                assert member.errors or waits, member
                assert member.retry_at > self.world.clock.now()

    @invariant()
    def what_is_counted_is_what_is_there(self) -> None:
        group, members = self.group, list(self.group.members.values())
        assert +group.actions == Counter(m.action for m in members)
        assert +group.spread == Counter(m.zone for m in members if not m.leaving)
        assert group.outgoing == sum(m.leaving and m.superseded for m in members)
        staying = [m for m in members if not m.leaving]
        ids = [version["template_id"] for version in group.versions]
        held = Counter(m.template_id for m in staying)
        wanted = dict(zip(ids, _wanted(group), strict=True))
        most = {id: wanted[id] if len(ids) > 1 else len(staying) for id in ids}
        kept = Counter(m.template_id for m in staying if m.name not in group.outdated)
        assert kept == +Counter({id: min(held[id], most[id]) for id in ids})
        live = Counter(i.zone for i in self.world.fleet.instances.values() if i.live)
        for zone in ZONES:
            capacity = self.world.fleet.capacity
            assert all(member.zone in group.zones for member in members)
            assert capacity.used(zone) == live[zone]

    @invariant()
    def what_is_kept_is_what_is_there(self) -> None:
        kept = {table: entries for table, entries in self.kept.items() if entries}
        there = {table: e for table, e in self.world.fleet.to_json().items() if e}
        for table in ("groups", "members", "instances"):
            assert kept.get(table, {}) == there.get(table, {})

    def teardown(self) -> None:
        """Whatever happened, in peace the group gets what it wants, also from what was kept."""
        if not hasattr(self, "group"):
            return
        self._take_up()
        self.world.machines.sick.clear()
        self._becomes_well(self.world)
        self.world.machines.settle()
        self.world.pass_time(1.5)  # an abandoned VM whose end is seen late
        assert not self.doomed & set(self.world.fleet.instances)

    def _take_up(self) -> None:
        """Another process takes the state up; it gets what it wants as well."""
        kept = json.loads(json.dumps(self.world.fleet.to_json()))
        world = World()
        world.clock.advance(self.world.clock.now() - world.clock.now())
        numbers = itertools.count(10**6)
        world.fleet = Fleet(world.clock, project_number="123", next_id=lambda: next(numbers))
        world.machines.fleet = world.fleet
        world.fleet.take_up(kept)
        self._becomes_well(world)

    def _becomes_well(self, world: World) -> None:
        for _ in range(LONGEST_PEACE):
            try:
                self._is_well(world.fleet)
                return
            except AssertionError:
                world.pass_time(1.5)
        self._is_well(world.fleet)

    def _is_well(self, fleet: Fleet) -> None:
        if self.gone:
            assert not fleet.groups
            return
        (group,) = fleet.groups.values()
        assert fleet.is_stable(group), group.members
        assert len(group.members) == group.target_size
        if group.body["updatePolicy"]["type"] == "PROACTIVE":
            held = Counter(m.template_id for m in group.members.values())
            ids = [version["template_id"] for version in group.versions]
            assert held == +Counter(dict(zip(ids, _wanted(group), strict=True)))
        shape = group.shape if group.regional else None
        if shape == "EVEN" and group.body["updatePolicy"]["instanceRedistributionType"] != "NONE":
            counts = [group.spread[zone] for zone in group.zones]
            assert max(counts) - min(counts) <= 1


TestAnything = Anything.TestCase
TestAnything.settings = settings(
    max_examples=200,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def _number(limit: dict[str, int], size: int) -> int:
    """What a `maxSurge` or `maxUnavailable` means for a group of a size."""
    percent = limit.get("percent")
    return (
        limit["fixed"] if percent is None else int(Decimal(size * percent) / 100 + Decimal("0.5"))
    )


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(size=st.integers(1, 6), replacing=REPLACING, canary=CANARIES, data=st.data())
def test_rolling_update_keeps_to_its_limits_at_every_moment(
    size: int, replacing: dict[str, Any], canary: dict[str, int] | None, data: st.DataObject
) -> None:
    """Never more VMs than target and surge, never fewer up than may be missing, in any order in
    which old VMs end and new ones come up; then all are new, of a canary as many as it asks for,
    and no other member was replaced."""
    world = World()
    world.template("t1", provisioningModel="SPOT")
    policy = {"type": "PROACTIVE", "minimalAction": "REPLACE", **replacing}
    group = world.group(size=size, updatePolicy=policy)
    old_ids, old_names = set(world.fleet.instances), set(group.members)
    world.template("t2", provisioningModel="SPOT")
    version: dict[str, Any] = {"name": "t2", "instanceTemplate": "t2", "template": "t2"}
    versions = [group.main, {**version, "targetSize": canary}] if canary else [version]
    world.fleet.change_group(group, group.body, versions)
    surge, unavailable = (_number(replacing[k], size) for k in ("maxSurge", "maxUnavailable"))
    if surge == unavailable == 0:  # by rounding alone: a roll must continue
        unavailable = 1
    machines = world.machines
    for _ in range(20 * size):
        machines.settle(exits=False, comes_up=False)
        assert len(world.fleet.instances) <= size + surge
        up = [i for i in world.fleet.instances.values() if i.status == "RUNNING"]
        assert len(up) >= size - unavailable
        waiting = sorted(machines.stopping | machines.booting)
        if not waiting:
            break
        machines.let(data.draw(st.sampled_from(waiting)))
    assert world.fleet.is_stable(group)
    new = _wanted(group)[-1]
    templates = Counter(member.template for member in group.members.values())
    assert (templates["t2"], templates["t1"]) == (new, size - new)
    assert len(old_ids & set(world.fleet.instances)) == size - new
    kept_names = replacing["replacementMethod"] == "RECREATE" or new == 0
    assert (set(group.members) == old_names) == kept_names


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    delay_sec=st.integers(0, 20),
    interval_sec=st.integers(1, 4),
    threshold=st.integers(1, 3),
    on_failure=st.sampled_from(["DEFAULT_ACTION", "REPAIR", "DO_NOTHING"]),
)
def test_a_vm_that_is_never_healthy_is_healed_only_after_its_initial_delay(
    delay_sec: int, interval_sec: int, threshold: int, on_failure: str
) -> None:
    world = World()
    world.template("t1", provisioningModel="SPOT")
    world.fleet.blueprints.add_health_check(
        "h", {"checkIntervalSec": interval_sec, "unhealthyThreshold": threshold}
    )
    policy = {"healthCheck": "global/healthChecks/h", "initialDelaySec": delay_sec}
    world.machines.everybody_is_sick = True
    group = world.group(
        autoHealingPolicies=[policy], instanceLifecyclePolicy={"onFailedHealthCheck": on_failure}
    )
    first = world.only()
    assert first.started is not None
    healed_by = max(delay_sec, interval_sec * threshold) + interval_sec
    while first.id in world.fleet.instances and world.clock.now() < first.started + healed_by:
        world.pass_time(0.5)
    lived_sec = world.clock.now() - first.started
    if on_failure == "DO_NOTHING":
        assert lived_sec >= healed_by and world.fleet.is_stable(group)
    else:
        assert max(delay_sec, interval_sec * (threshold - 1)) <= lived_sec < healed_by


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(run_sec=st.integers(1, 30), wait_sec=st.integers(0, 5), lowers=st.booleans())
def test_a_vm_ends_at_its_limit_counted_from_its_start(
    run_sec: int, wait_sec: int, lowers: bool
) -> None:
    world = World()
    world.fleet.switches.limit_lowers_target = lowers
    scheduling = {"instanceTerminationAction": "DELETE", "maxRunDuration": {"seconds": run_sec}}
    world.template("t1", provisioningModel="SPOT", **scheduling)
    version = {"instanceTemplate": "t1", "template": "t1"}
    group = world.fleet.add_group(ZONES[0], "g", {"baseInstanceName": "g"}, [version], 1)
    world.machines.settle(comes_up=False)
    world.clock.advance(wait_sec)
    first = world.only()
    world.machines.let(first.id)
    world.machines.settle()
    for _ in range(2 * run_sec):
        assert first.id in world.fleet.instances
        world.pass_time(0.5)
    assert first.id not in world.fleet.instances
    world.pass_times(3, 0.2)
    assert len(world.fleet.instances) == group.target_size == (0 if lowers else 1)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    shape=st.sampled_from(["EVEN", "BALANCED", "ANY", "ANY_SINGLE_ZONE"]),
    moves=st.booleans(),
    size=st.integers(1, LARGEST),
    data=st.data(),
)
def test_a_repaired_vm_changes_its_zone_only_if_allowed_and_needed(
    shape: str, moves: bool, size: int, data: st.DataObject
) -> None:
    world = World()
    world.template("t1", provisioningModel="SPOT")
    moves = moves and shape in ("BALANCED", "ANY")
    lifecycle: dict[str, Any] = {"forceUpdateOnRepair": "YES"}
    if moves:
        lifecycle["onRepair"] = {"allowChangingZone": "YES"}
    group = world.group(
        size=size,
        zones=ZONES,
        instanceLifecyclePolicy=lifecycle,
        updatePolicy={"instanceRedistributionType": "NONE"},
        distributionPolicy={"targetShape": shape},
    )
    name = data.draw(st.sampled_from(sorted(group.members)))
    before = group.members[name].zone
    world.fleet.capacity.add_window(before, 0)
    world.machines.exit(group.members[name].instance or "")
    world.pass_times(3)
    assert (group.members[name].zone != before) == moves
    assert world.fleet.is_stable(group) == moves


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(
    shape=st.sampled_from(["EVEN", "BALANCED", "ANY", "ANY_SINGLE_ZONE"]),
    room=st.fixed_dictionaries({zone: st.integers(0, 5) for zone in ZONES}),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_a_regional_group_spreads_by_its_shape(
    shape: str, room: dict[str, int], sizes: list[int]
) -> None:
    """EVEN is even and waits for room, BALANCED is as even as the room allows, ANY takes what
    there is, ANY_SINGLE_ZONE is in one zone: at every size that it comes to."""
    world = World()
    world.template("t1", provisioningModel="SPOT")
    for zone, vms in room.items():
        world.fleet.capacity.add_window(zone, vms)
    group = world.group(
        size=sizes[0],
        zones=ZONES,
        updatePolicy={"instanceRedistributionType": "NONE"},
        distributionPolicy={"targetShape": shape},
    )
    for size in sizes:
        world.fleet.resize(group, size)
        world.pass_times(4)
        assert group.staying == size
        live = Counter({zone: 0 for zone in ZONES})
        live.update(i.zone for i in world.fleet.instances.values() if i.live)
        assert all(live[zone] <= room[zone] for zone in ZONES)
        _spreads(shape, room, {zone: group.spread[zone] for zone in ZONES}, live)


def _spreads(shape: str, room: dict[str, int], asked: dict[str, int], live: Counter[str]) -> None:
    """`asked`: members by zone, those that wait included; `live`: VMs by zone."""
    size = sum(asked.values())
    if shape == "EVEN":
        assert max(asked.values()) - min(asked.values()) <= 1
        assert live == {zone: min(asked[zone], room[zone]) for zone in asked}
    elif shape == "ANY_SINGLE_ZONE":
        assert len(+live) <= 1
    else:
        assert live.total() == min(size, sum(room.values()))
    if shape == "BALANCED":
        roomy = [live[zone] for zone in live if live[zone] < room[zone]]
        assert max(live.values()) - min(roomy, default=max(live.values())) <= 1


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(size=st.integers(1, LARGEST), regional=st.booleans(), data=st.data())
def test_a_vms_name_is_not_given_to_another_vm(
    size: int, regional: bool, data: st.DataObject
) -> None:
    """An abandoned VM keeps its name."""
    world = World()
    world.template("t1", provisioningModel="SPOT")
    group = world.group(size=size, zones=ZONES if regional else None, baseInstanceName="g-#")
    left = data.draw(st.sets(st.sampled_from(sorted(group.members)), min_size=1))
    world.fleet.abandon_members(group, sorted(left))
    world.fleet.resize(group, size)
    world.machines.settle()
    assert len(group.members) == size and not left & set(group.members)
    assert len(world.fleet.instances) == size + len(left)
