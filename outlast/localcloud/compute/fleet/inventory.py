"""All objects of the project, their timers, and their changes since the last call.

Each change of an object calls `keep`, and each event that a group must handle calls `wake`, so that
the work for a call or event does not grow with the number of other objects."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from outlast.localcloud.base.clock import Clock, from_rfc3339
from outlast.localcloud.compute.fleet.capacity import Capacity
from outlast.localcloud.compute.fleet.model import (
    Boot,
    Command,
    Discard,
    Group,
    HealthCheck,
    Instance,
    Member,
    Stop,
    Switches,
    Template,
)

TABLES = ("templates", "health_checks", "groups", "members", "instances")

Changes = dict[str, dict[str, dict[str, Any] | None]]
"""Entries by table and key; None for a deleted entry."""


class Timer(NamedTuple):
    """A time to look at a member of a group, a VM, or a VM's health."""

    at: float
    kind: Literal["member", "instance", "probe"]
    key: tuple[str, ...]


class Inventory:
    """The objects of one project, by their keys."""

    def __init__(self, clock: Clock, next_id: Callable[[], int]) -> None:
        self.clock = clock
        self.switches = Switches()
        self.capacity = Capacity(clock)
        self.templates: dict[str, Template] = {}
        self.health_checks: dict[str, HealthCheck] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.instances: dict[str, Instance] = {}
        self.commands: list[Command] = []
        self._next_id = next_id
        self._names: dict[tuple[str, str], str] = {}
        self._highest_address = 0
        self._free_addresses: list[int] = []
        """A heap of the free ones below the highest."""
        self._lost: dict[tuple[str, str], int] = {}
        """By zone and name: the address that the next VM of this name gets."""
        self._timers: list[Timer] = []
        self._awake: dict[tuple[str, str], dict[str, None]] = {}
        self._changed: dict[str, dict[str, None]] = {table: {} for table in TABLES}

    def new_id(self) -> str:
        """An id that was never used."""
        return str(self._next_id())

    # VMs

    def named(self, zone: str, name: str) -> Instance | None:
        """The VM of this name in a zone; None if it does not exist."""
        return self.instances.get(self._names.get((zone, name), ""))

    def add_instance(
        self, name: str, zone: str, properties: dict[str, Any], group: Group | None = None
    ) -> Instance:
        """Adds a VM and boots it on a new disk."""
        instance = Instance(self.new_id(), name, zone, self.clock.now(), properties)
        instance.address = self._new_address(zone, name)
        if group:
            instance.group, instance.location = group.name, group.location
        ends = instance.scheduling.get("terminationTime")
        if ends:
            instance.deadline = from_rfc3339(ends)
            self.at(instance.deadline, "instance", instance.id)
        self.instances[instance.id] = instance
        self._names[zone, name] = instance.id
        self.start(instance, new_disk=True)
        return instance

    def start(self, instance: Instance, *, new_disk: bool) -> None:
        """Boots a VM that has no process."""
        instance.status = "PROVISIONING"
        instance.stop_requested = instance.going_down = False
        self.capacity.charge(instance)
        self.commands.append(Boot(instance.id, new_disk))
        self.keep("instances", instance.id)

    def lose(self, instance: Instance) -> None:
        """Keeps the VM's address for the next VM of its name."""
        self._lost[instance.zone, instance.name] = instance.address

    def _new_address(self, zone: str, name: str) -> int:
        """The address of the lost VM of this name, or else the lowest free one."""
        if (zone, name) in self._lost:
            return self._lost.pop((zone, name))
        if self._free_addresses:
            return heapq.heappop(self._free_addresses)
        self._highest_address += 1
        return self._highest_address

    def stop(self, instance: Instance) -> None:
        """Asks a VM to stop, only once."""
        if not instance.stop_requested:
            instance.stop_requested = True
            instance.restart = False
            self.commands.append(Stop(instance.id))
            self.keep("instances", instance.id)

    def remove(self, instance: Instance) -> None:
        """Removes a VM without a process, with its disk."""
        del self.instances[instance.id]
        if (instance.zone, instance.name) not in self._lost:
            heapq.heappush(self._free_addresses, instance.address)
        if self._names.get((instance.zone, instance.name)) == instance.id:
            del self._names[instance.zone, instance.name]
        self.capacity.release(instance)
        self.commands.append(Discard(instance.id))
        self.keep("instances", instance.id)
        self.wake_owner(instance)

    def owner(self, instance: Instance) -> tuple[Group, Member] | None:
        """The group and member of a VM; None if it has none."""
        group = self.groups.get((instance.location, instance.group or ""))
        member = group.members.get(instance.name) if group else None
        if group is None or member is None or member.instance != instance.id:
            return None
        return group, member

    # Timers

    def wake(self, group: Group, member: Member | None = None) -> None:
        """Marks the group for a look at its size, and at one member if given."""
        names = self._awake.setdefault(group.key, {})
        if member:
            names[member.name] = None

    def wake_owner(self, instance: Instance) -> None:
        """Marks the VM's group for a look."""
        if found := self.owner(instance):
            self.wake(*found)

    def awake(self) -> Iterator[tuple[Group, list[Member]]]:
        """Yields and unmarks the marked groups with their marked members, until none is left."""
        while self._awake:
            key = next(iter(self._awake))
            names = self._awake.pop(key)
            if group := self.groups.get(key):
                yield group, [group.members[name] for name in names if name in group.members]

    def act(self, group: Group, member: Member, action: str) -> None:
        """Sets a member's current action, and marks its group."""
        group.act(member, action)
        self.keep_member(group, member)
        self.wake(group, member)

    def at(self, at: float, kind: Literal["member", "instance", "probe"], *key: str) -> None:
        """Sets a timer."""
        heapq.heappush(self._timers, Timer(at, kind, key))

    def due(self) -> Iterator[Timer]:
        """Yields and removes the timers that are due."""
        now = self.clock.now()
        while self._timers and self._timers[0].at <= now:
            yield heapq.heappop(self._timers)

    def next_time(self) -> float | None:
        """The time of the next timer; None if there is none."""
        return self._timers[0].at if self._timers else None

    # Stored state

    def keep(self, table: str, key: str) -> None:
        """Marks an entry as changed, created or deleted."""
        self._changed[table][key] = None

    def keep_group(self, group: Group) -> None:
        """Marks the group itself as changed."""
        self.keep("groups", "/".join(group.key))

    def keep_member(self, group: Group, member: Member) -> None:
        """Marks a member as changed, created or deleted."""
        self.keep("members", "/".join((*group.key, member.name)))

    def take_changes(self) -> Changes:
        """The entries that changed since the last call, as they are now."""
        changed = {
            table: {key: self._kept(table, key) for key in keys}
            for table, keys in self._changed.items()
            if keys
        }
        self._changed = {table: {} for table in TABLES}
        return changed

    def all_kept(self) -> dict[str, dict[str, dict[str, Any]]]:
        """All entries, by table and key."""
        keys: dict[str, list[str]] = {
            "templates": list(self.templates),
            "health_checks": list(self.health_checks),
            "groups": ["/".join(key) for key in self.groups],
            "members": [
                "/".join((*group.key, name))
                for group in self.groups.values()
                for name in group.members
            ],
            "instances": list(self.instances),
        }
        return {
            table: {key: kept for key in keys[table] if (kept := self._kept(table, key))}
            for table in TABLES
        }

    def take_up(self, document: dict[str, dict[str, Any]]) -> None:
        """Loads the entries of `all_kept`; marks every group and member."""
        kept = {table: document.get(table) or {} for table in TABLES}
        self.templates = {k: Template(**v) for k, v in kept["templates"].items()}
        self.health_checks = {k: HealthCheck(**v) for k, v in kept["health_checks"].items()}
        self.instances = {k: Instance(**v) for k, v in kept["instances"].items()}
        self._names = {(i.zone, i.name): i.id for i in self.instances.values()}
        self._highest_address = max((i.address for i in self.instances.values()), default=0)
        for value in kept["groups"].values():
            group = Group(**value)
            self.groups[group.key] = group
        for key, value in kept["members"].items():
            location, name, _ = key.split("/")
            if group := self.groups.get((location, name)):
                member = Member(**value)
                if member.action == "RESTARTING":
                    member.action = "NONE"  # its disk no longer exists: it is repaired instead
                group.add(member)
                self.wake(group, member)
                self.at(member.retry_at, "member", *group.key, member.name)
        for group in self.groups.values():
            group.compare()
            self.wake(group)

    def clear(self) -> None:
        """Forgets everything except the switches and the limits."""
        for instance in self.instances.values():
            self.capacity.release(instance)
        for things in (self.templates, self.health_checks, self.groups, self.instances):
            things.clear()
        self.commands.clear()
        self._names.clear()
        self._highest_address = 0
        self._free_addresses.clear()
        self._lost.clear()
        self._timers.clear()
        self._awake.clear()
        self._changed = {table: {} for table in TABLES}

    def _kept(self, table: str, key: str) -> dict[str, Any] | None:
        if table == "groups":
            location, name = key.split("/")
            thing = self.groups.get((location, name))
        elif table == "members":
            location, name, member = key.split("/")
            group = self.groups.get((location, name))
            thing = group.members.get(member) if group else None
        elif table == "templates":
            thing = self.templates.get(key)
        elif table == "health_checks":
            thing = self.health_checks.get(key)
        else:
            thing = self.instances.get(key)
        return asdict(thing) if thing else None
