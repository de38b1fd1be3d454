"""Creates a managed group's VMs: chooses name, zone and machine type, and notes failures."""

import copy
import random
import re
from dataclasses import asdict
from typing import Any

from outlast.localcloud.base.clock import from_rfc3339
from outlast.localcloud.compute.fleet.capacity import exhausted
from outlast.localcloud.compute.fleet.inventory import Inventory
from outlast.localcloud.compute.fleet.model import (
    Fault,
    Group,
    Member,
    Template,
    Vet,
    template_path,
)
from outlast.localcloud.compute.fleet.placement import (
    HasRoom,
    choose_zone,
    may_move,
    ranked_types,
)

NAME_LETTERS = "bcdfghjklmnpqrstvwxz0123456789"
NAME_SUFFIX_LENGTH = 4
KEPT_ERRORS = 100


class Creation:
    """Creates the VMs of groups."""

    def __init__(
        self, inventory: Inventory, project_number: str, vet: Vet, rng: random.Random
    ) -> None:
        self._inventory = inventory
        self._number = project_number
        self._vet = vet
        self._rng = rng

    def add_member(self, group: Group, name: str = "") -> Member:
        """Adds a member, whose VM is created the next time that the group is looked at."""
        member = Member(name or self.new_name(group), group.zones[0])
        group.bind(member, group.due())
        member.zone = choose_zone(group, member, self.room(group))
        group.add(member)
        self._inventory.keep_member(group, member)
        self._inventory.wake(group, member)
        return member

    def create(self, group: Group, member: Member) -> None:
        """Creates the member's VM, or notes the reason of the failure and when to try again."""
        inventory = self._inventory
        member.instance = None
        if (group.body.get("updatePolicy") or {}).get("type") == "PROACTIVE":
            group.bind(member, group.due(member))
        properties: dict[str, Any] = {}
        template = inventory.templates.get(member.template)
        if template is None or template.id != member.template_id:
            path = template_path(member.template)
            fault = Fault("RESOURCE_NOT_FOUND", f"The resource '{path}' was not found")
        else:
            properties = self.properties(group, template)
            fault = self._place(group, member, properties)
        if fault:
            self.note(group, member, fault)
            return
        instance = inventory.add_instance(member.name, member.zone, properties, group)
        member.instance = instance.id
        member.replace = member.repaired = member.limited = False
        inventory.keep_member(group, member)

    def new_name(self, group: Group) -> str:
        """A name that is free in the group and in the group's zones."""

        def taken(name: str) -> bool:
            return name in group.members or any(
                self._inventory.named(zone, name) for zone in group.zones
            )

        numbered = re.fullmatch(r"(.*?)(#+)", group.base_name)
        if numbered:
            stem, places = numbered.group(1), len(numbered.group(2))
            number = 1
            while taken(name := f"{stem}{number:0{places}d}"):
                number += 1
            return name
        while True:
            letters = self._rng.choices(NAME_LETTERS, k=NAME_SUFFIX_LENGTH)
            name = f"{group.base_name}-{''.join(letters)}"
            if not taken(name):
                return name

    def properties(self, group: Group, template: Template) -> dict[str, Any]:
        """A VM's properties: the template's, the group's additions to all its VMs, and the group's
        name."""
        properties = copy.deepcopy(template.properties)
        config = (group.body.get("allInstancesConfig") or {}).get("properties") or {}
        if config.get("labels"):
            properties["labels"] = {**(properties.get("labels") or {}), **config["labels"]}
        own = {
            **(config.get("metadata") or {}),
            "created-by": f"projects/{self._number}/{group.path}",
            "instance-template": f"projects/{self._number}/{template.path}",
        }
        items = [
            item
            for item in (properties.get("metadata") or {}).get("items") or []
            if item["key"] not in own
        ]
        items += [{"key": key, "value": value} for key, value in own.items()]
        properties["metadata"] = {"items": items}
        return properties

    def refusal(self, properties: dict[str, Any], zone: str) -> Fault | None:
        """The reason that a VM of these properties cannot be created in a zone now; None if it
        can."""
        if self._inventory.switches.no_capacity:
            return exhausted(zone)
        ends = (properties.get("scheduling") or {}).get("terminationTime")
        if ends and from_rfc3339(ends) <= self._inventory.clock.now():
            return Fault(
                "INVALID_USAGE",
                f"Invalid value for field 'scheduling.terminationTime': '{ends}'. "
                "The time must be in the future.",
            )
        return self._vet(properties, zone) or self._inventory.capacity.refuse(properties, zone)

    def note(self, group: Group, member: Member, fault: Fault) -> None:
        """Records why a try failed, for `lastAttempt` and `listErrors`."""
        now = self._inventory.clock.now()
        member.retry_at = now + self._inventory.switches.retry_delay_sec
        member.errors = [asdict(fault)]
        entry = {
            "time": now,
            "member": member.name,
            "zone": member.zone,
            "action": member.action,
            "template": member.template,
            **asdict(fault),
        }
        group.errors = [*group.errors, entry][-KEPT_ERRORS:]
        self._inventory.keep_group(group)
        self._inventory.keep_member(group, member)
        self._inventory.at(member.retry_at, "member", *group.key, member.name)

    def room(self, group: Group) -> HasRoom:
        """Returns a function that tells whether a zone has room for VMs of the group's main
        version."""
        template = self._inventory.templates.get(group.main["template"])
        properties = self.properties(group, template) if template and group.regional else {}
        capacity = self._inventory.capacity
        return lambda zone, count: capacity.has_room(zone, properties, count)

    def _place(self, group: Group, member: Member, properties: dict[str, Any]) -> Fault | None:
        """Chooses the member's zone and the best-ranked machine type that has room there. Returns
        the reason of the last failure, None if the VM can be created."""
        movable = may_move(group, member)
        capacity = self._inventory.capacity
        fault = None
        for machine_type in ranked_types(group.body) or [properties.get("machineType")]:
            properties["machineType"] = machine_type
            if movable:
                room = lambda zone, count: capacity.has_room(zone, properties, count)  # noqa: E731
                group.move(member, choose_zone(group, member, room))
            fault = self.refusal(properties, member.zone)
            if fault is None:
                break
        return fault
