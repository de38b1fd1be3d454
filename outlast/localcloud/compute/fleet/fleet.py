"""Compute Engine as a state machine: templates, managed groups, VMs.

Pure: no I/O, no threads, and no time but the clock's. The input is calls of the API and events of
the machines; the output is commands for the hypervisor, from `take_commands`. `inventory` holds the
objects, `manager` controls the groups."""

import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from outlast.localcloud.base.clock import Clock
from outlast.localcloud.compute.fleet.blueprints import Blueprints
from outlast.localcloud.compute.fleet.capacity import Capacity
from outlast.localcloud.compute.fleet.creation import Creation
from outlast.localcloud.compute.fleet.health import HealthWatch
from outlast.localcloud.compute.fleet.inventory import Changes, Inventory
from outlast.localcloud.compute.fleet.manager import UPDATES, Manager, check_member
from outlast.localcloud.compute.fleet.model import (
    Command,
    Exists,
    Group,
    HealthCheck,
    Instance,
    Invalid,
    Member,
    NotFound,
    Switches,
    Template,
    Vet,
    accept_all,
    not_ready,
)
from outlast.localcloud.compute.fleet.vms import Vms

HEALTH_CHECK_PATH = re.compile(
    r"(?:.*/)?(?:global|regions/(?P<region>[^/]+))/healthChecks/(?P<name>[^/]+)"
)


class Fleet:
    """All objects in the project's zones."""

    def __init__(
        self,
        clock: Clock,
        *,
        project_number: str,
        next_id: Callable[[], int],
        vet: Vet = accept_all,
        rng: random.Random | None = None,
    ) -> None:
        """`vet` returns the reason that a VM of these properties cannot be created in a zone;
        `next_id` returns a number that was never used."""
        self._clock = clock
        self._inventory = Inventory(clock, next_id)
        creation = Creation(self._inventory, project_number, vet, rng or random.Random())
        self._manager = Manager(self._inventory, creation, HealthWatch(self._inventory))
        self.blueprints = Blueprints(self._inventory)
        """Templates and health checks."""
        self.vms = Vms(self._inventory, self._manager)
        """The VMs."""
        self.refusal = creation.refusal
        """Returns the reason that a VM of these properties cannot be created in a zone now; None if
        it can."""

    @property
    def switches(self) -> Switches:
        """Settings that may change at any time."""
        return self._inventory.switches

    @property
    def capacity(self) -> Capacity:
        """The zones' room and the quotas."""
        return self._inventory.capacity

    @property
    def templates(self) -> dict[str, Template]:
        """Templates by key: the name, after `REGION/` for a regional one."""
        return self._inventory.templates

    @property
    def health_checks(self) -> dict[str, HealthCheck]:
        """Health checks by key, as for templates."""
        return self._inventory.health_checks

    @property
    def groups(self) -> dict[tuple[str, str], Group]:
        """Groups by the name of their zone or region, and their own name."""
        return self._inventory.groups

    @property
    def instances(self) -> dict[str, Instance]:
        """VMs by id."""
        return self._inventory.instances

    # Groups

    def add_group(
        self,
        location: str,
        name: str,
        body: dict[str, Any],
        versions: Sequence[dict[str, Any]],
        target_size: int,
        zones: Sequence[str] | None = None,
    ) -> Group:
        """Adds a group, which starts to create its VMs at the next tick. `zones`: the zones of a
        regional group, whose location is a region. Raises Exists."""
        path_of_kind = "regions" if zones else "zones"
        if (location, name) in self.groups:
            raise Exists(f"{path_of_kind}/{location}/instanceGroupManagers/{name}")
        group = Group(
            name,
            location,
            self._inventory.new_id(),
            self._clock.now(),
            target_size,
            body,
            self._bind(versions),
            list(zones or [location]),
            self._bind_check(body),
        )
        self.groups[group.key] = group
        self._inventory.keep_group(group)
        self._inventory.wake(group)
        return group

    def group(self, location: str, name: str, *, regional: bool = False) -> Group:
        """A group, even one that is being deleted. Raises NotFound."""
        try:
            return self.groups[location, name]
        except KeyError:
            place = f"{'regions' if regional else 'zones'}/{location}"
            raise NotFound(f"{place}/instanceGroupManagers/{name}") from None

    def change_group(
        self, group: Group, body: dict[str, Any], versions: Sequence[dict[str, Any]] | None
    ) -> None:
        """Changes a group's policies, and its versions if given."""
        self._not_deleting(group)
        bound = None if versions is None else self._bind(versions)
        check = self._bind_check(body)
        healing = group.healing
        group.body = body
        if bound is not None:
            group.versions = bound
        group.compare()
        group.fingerprint += 1
        if (check, group.healing) != (group.health_check, healing):
            group.health_check = check
            self._manager.health.watch(group)
        self._touch(group)

    def set_named_ports(self, group: Group, ports: list[dict[str, Any]]) -> None:
        """Sets names for ports; they have no effect here."""
        group.named_ports = ports
        self._inventory.keep_group(group)

    def resize(self, group: Group, size: int) -> None:
        """Sets the target size. If there are too many VMs, those that are not running are deleted
        first."""
        self._not_deleting(group)
        if size < 0:
            raise Invalid(f"Invalid value for field 'size': '{size}'. Must be at least 0.")
        group.target_size = size
        self._touch(group)

    def delete_group(self, group: Group) -> None:
        """Starts to delete a group; it is removed after its last VM."""
        group.deleting = True
        group.target_size = 0
        for member in group.members.values():
            self._manager.leave(group, member)
        self._touch(group)

    def members(self, group: Group, names: Iterable[str]) -> list[Member]:
        """The members of these names; raises Invalid if one is not in the group."""
        return [check_member(group, name) for name in dict.fromkeys(names)]

    def delete_members(self, group: Group, names: Iterable[str]) -> None:
        """Starts to delete members. The target size decreases at once, by the members that were to
        stay."""
        self._not_deleting(group)
        for member in self.members(group, names):
            if not member.leaving:
                group.target_size -= 1
                self._manager.leave(group, member)
        self._touch(group)

    def recreate_members(self, group: Group, names: Iterable[str]) -> None:
        """Stops and recreates members under their names, with the version that each should have."""
        self._not_deleting(group)
        for member in self.members(group, names):
            if not member.leaving:
                self._manager.recreate(group, member)

    def update_members(
        self, group: Group, names: Iterable[str] | None, minimal: str, most: str
    ) -> None:
        """Updates members, or all for None, to the version that each should have, without a limit
        on how many are unavailable at once. Raises Invalid."""
        self._not_deleting(group)
        if UPDATES.index(minimal) > UPDATES.index(most):
            raise Invalid(
                f"Invalid value for field 'minimalAction': '{minimal}'. "
                f"Must not be more disruptive than mostDisruptiveAllowedAction {most}."
            )
        for member in self.members(group, list(group.members) if names is None else names):
            if member.action in ("NONE", "VERIFYING"):
                self._manager.update(group, member, minimal, most)

    def create_members(self, group: Group, names: Sequence[str]) -> None:
        """Adds members of these names; the target size increases. Raises Exists."""
        self._not_deleting(group)
        for name in names:
            zone = next((zone for zone in group.zones if self._inventory.named(zone, name)), "")
            if zone or name in group.members:
                raise Exists(f"zones/{zone or group.zones[0]}/instances/{name}")
        for name in names:
            group.target_size += 1
            self._manager.creation.add_member(group, name)
        self._touch(group)

    def abandon_members(self, group: Group, names: Iterable[str]) -> None:
        """Removes members from the group, but keeps their VMs; the target size decreases."""
        self._not_deleting(group)
        for member in self.members(group, names):
            if not member.leaving:
                group.target_size -= 1
            instance = self.instances.get(member.instance or "")
            if instance:
                instance.group = None
                instance.location = ""
                self._inventory.keep("instances", instance.id)
            group.drop(member)
            self._inventory.keep_member(group, member)
        self._touch(group)

    def is_stable(self, group: Group) -> bool:
        """Whether the group has its target size and no action is in progress."""
        return group.actions["NONE"] == len(group.members) == group.target_size

    # Time

    def tick(self) -> None:
        """Does everything that is due. Call it after each call and event, and at `next_time`."""
        for timer in self._inventory.due():
            if timer.kind == "member":
                *place, name = timer.key
                group = self.groups.get((place[0], place[1]))
                if group and name in group.members:
                    self._inventory.wake(group, group.members[name])
            elif instance := self.instances.get(timer.key[0]):
                if timer.kind == "probe":
                    self._manager.health.ask(instance, timer.at)
                else:
                    self.vms.look_at(instance)
        self._manager.reconcile()

    def next_time(self) -> float | None:
        """When something becomes due without a call or event; None if nothing does."""
        return self._inventory.next_time()

    def take_commands(self) -> list[Command]:
        """The commands since the last call, in order."""
        commands = list(self._inventory.commands)
        self._inventory.commands.clear()
        return commands

    # Stored state

    def take_changes(self) -> Changes:
        """The changes to store since the last call: by table and key, None for a deleted entry."""
        return self._inventory.take_changes()

    def to_json(self) -> dict[str, dict[str, Any]]:
        """The whole state by table and key."""
        return self._inventory.all_kept()

    def take_up(self, document: dict[str, dict[str, Any]]) -> None:
        """Loads the state of `to_json`. The machines no longer exist, so every live VM has lost its
        host and its disk."""
        self._inventory.take_up(document)
        for instance in list(self.instances.values()):
            instance.restart = False
            if instance.live:
                self.vms.end(instance, None, deletes_disk=True)

    def clear(self) -> None:
        """Forgets everything except the switches and the limits."""
        self._inventory.clear()

    # Inside

    def _touch(self, group: Group) -> None:
        self._inventory.keep_group(group)
        self._inventory.wake(group)

    def _bind(self, versions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Versions with the key and id of the templates that they name now. Raises NotFound."""
        bound = []
        for version in versions:
            region, _, name = version["template"].rpartition("/")
            template = self.blueprints.template(name, region)
            if version.get("template_id") not in (None, "", template.id):
                raise NotFound(template.path)
            bound.append({**version, "template": template.key, "template_id": template.id})
        return bound

    def _bind_check(self, body: dict[str, Any]) -> str:
        """The key of the health check of a group's autohealing policy; empty without one."""
        policies = body.get("autoHealingPolicies") or []
        reference = str((policies[0] if policies else {}).get("healthCheck") or "")
        if not reference:
            return ""
        match = HEALTH_CHECK_PATH.fullmatch(reference)
        if match is None:
            raise Invalid(
                "Invalid value for field 'resource.autoHealingPolicies[0].healthCheck': "
                f"'{reference}'. Must be the URL of a health check."
            )
        return self.blueprints.health_check(match["name"], match["region"] or "").key

    def _not_deleting(self, group: Group) -> None:
        if group.deleting:
            raise not_ready(group.path)
