"""What a managed instance group does by itself: it keeps its size, heals, updates and spreads.

It recreates a VM that stopped, crashed, was preempted or deleted, under the same name, with a
new id and a new disk, and lowers its size only on request.
"""

import copy
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from outlast.localcloud.base.clock import from_rfc3339
from outlast.localcloud.compute.fleet.capacity import exhausted
from outlast.localcloud.compute.fleet.inventory import Inventory
from outlast.localcloud.compute.fleet.model import (
    HEALTHY,
    UNHEALTHY,
    UNKNOWN,
    Fault,
    Group,
    HealthCheck,
    Instance,
    Invalid,
    Member,
    Probe,
    Restless,
    SetMetadata,
    Template,
    Vet,
    template_path,
)
from outlast.localcloud.compute.fleet.placement import (
    HasRoom,
    choose_zone,
    crowded_zone,
    may_move,
    ranked_types,
)

NAME_LETTERS = "bcdfghjklmnpqrstvwxz0123456789"
NAME_SUFFIX_LENGTH = 4
KEPT_ERRORS = 100
LOOKS, LOOKS_EACH = 100, 20
"""How often a group is looked at before it rests: at most this, and so often for each member."""
INTERVAL_SEC = 5
THRESHOLD = 2

# From the mildest action of an update to the hardest.
UPDATES = ("NONE", "REFRESH", "RESTART", "REPLACE")
# What a change of a template's property asks for; of any other, a new VM.
MILD_CHANGES = {
    **dict.fromkeys(("labels", "metadata", "tags"), "REFRESH"),
    **dict.fromkeys(("machineType", "minCpuPlatform", "scheduling", "serviceAccounts"), "RESTART"),
}


class Manager:
    """The platform's controller of all groups."""

    def __init__(
        self, inventory: Inventory, project_number: str, vet: Vet, rng: random.Random
    ) -> None:
        self._inventory = inventory
        self._number = project_number
        self._vet = vet
        self._rng = rng
        self._asks: dict[str, float] = {}
        """When a VM is next asked for its health, by its id."""

    def reconcile(self) -> None:
        """Takes every group that has something to look at one step on, until none has.

        Restless: one never has.
        """
        looks: Counter[tuple[str, str]] = Counter()
        for group, members in self._inventory.awake():
            looks[group.key] += 1
            most = LOOKS + LOOKS_EACH * (len(group.members) + group.target_size)
            if looks[group.key] > most:
                actions = ", ".join(f"{n} {action}" for action, n in group.actions.items() if n)
                raise Restless(
                    f"{group.path}: has not come to rest after {most} looks, with target size "
                    f"{group.target_size} and members {actions or 'none'}"
                )
            for member in members:
                self._advance(group, member)
            self._balance(group)
            if group.deleting and not group.members:
                del self._inventory.groups[group.key]
                self._inventory.keep_group(group)

    # What calls ask for

    def leave(self, group: Group, member: Member, *, superseded: bool = False) -> None:
        """A member's VM is deleted, and the member with it."""
        if member.leaving:
            return
        member.errors = []
        member.superseded = superseded
        self._act(group, member, "DELETING")

    def recreate(
        self,
        group: Group,
        member: Member,
        *,
        delay_sec: float = 0.0,
        newest: bool = True,
        repaired: bool = False,
    ) -> None:
        """A member's VM is deleted and recreated under its name."""
        if newest:
            group.bind(member, group.due(member))
        member.replace = True
        member.repaired = repaired
        member.retry_at = self._inventory.clock.now() + delay_sec
        self._forget_health(member)
        self._act(group, member, "RECREATING")
        if delay_sec > 0:
            self._inventory.at(member.retry_at, "member", *group.key, member.name)

    def update(self, group: Group, member: Member, minimal: str, most: str) -> bool:
        """Brings a member to the version that it is to have by the mildest action that does it;
        False if that is harder than `most` allows, or nothing is to be done."""
        instance = self._inventory.instances.get(member.instance or "")
        version = group.due(member)
        needed = "NONE"
        if member.template_id != version["template_id"]:
            needed = self._needed(instance, version) if instance else "REPLACE"
        action = max(minimal, needed, key=UPDATES.index)
        if action == "NONE" or UPDATES.index(action) > UPDATES.index(most):
            return False
        if action == "REPLACE" or instance is None:
            if _substitutes(group):
                self.leave(group, member, superseded=True)
            else:
                self.recreate(group, member)
            return True
        group.bind(member, version)
        template = self._inventory.templates[version["template"]]
        if action == "RESTART":
            self._forget_health(member)
            self._act(group, member, "RESTARTING")
        instance.properties = self.properties(group, template)
        instance.fingerprint += 1
        self._inventory.commands.append(SetMetadata(instance.id))
        self._inventory.keep("instances", instance.id)
        self._inventory.keep_member(group, member)
        return True

    def watch(self, group: Group) -> None:
        """The group has other rules for health: its VMs are asked by them from now on."""
        for member in group.members.values():
            instance = self._inventory.instances.get(member.instance or "")
            self._forget_health(member)
            if instance and instance.status == "RUNNING" and member.action in ("NONE", "VERIFYING"):
                self._verify(group, member, instance)

    def probed(self, instance: Instance, healthy: bool) -> None:
        """The answer of a VM that was asked for its health."""
        found = self._inventory.owner(instance)
        check = self._check(found[0]) if found else None
        if found is None or check is None:
            return
        group, member = found
        before = member.streak, member.health
        if healthy:
            most = check.number("healthyThreshold", THRESHOLD)
            member.streak = min(max(member.streak, 0) + 1, most)
            member.health = HEALTHY if member.streak == most else member.health
        else:
            most = check.number("unhealthyThreshold", THRESHOLD)
            member.streak = max(min(member.streak, 0) - 1, -most)
            member.health = UNHEALTHY if member.streak == -most else member.health
        if (member.streak, member.health) != before:
            self._inventory.keep_member(group, member)
            self._inventory.wake(group, member)

    def came_up(self, instance: Instance) -> None:
        """A VM runs; after a reboot from inside its health is asked again."""
        found = self._inventory.owner(instance)
        if found and found[1].action in ("NONE", "VERIFYING"):
            self._forget_health(found[1])
            self._verify(*found, instance)
        self._inventory.wake_owner(instance)

    def ask(self, instance: Instance, at: float) -> None:
        """Asks a VM for its health at the time that was set, and sets the next."""
        found = self._inventory.owner(instance)
        check = self._check(found[0]) if found else None
        if self._asks.get(instance.id) != at:
            return
        del self._asks[instance.id]
        if check and instance.status == "RUNNING":
            self._inventory.commands.append(Probe(instance.id, check.key))
            interval_sec = check.number("checkIntervalSec", INTERVAL_SEC)
            self._ask_at(instance, self._inventory.clock.now() + interval_sec)

    def _ask_at(self, instance: Instance, at: float) -> None:
        self._asks[instance.id] = at
        self._inventory.at(at, "probe", instance.id)

    def new_name(self, group: Group) -> str:
        """A name that no member and no VM of the group's zones has."""

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

    def add_member(self, group: Group, name: str = "") -> Member:
        """A new member, whose VM is created at the next look."""
        member = Member(name or self.new_name(group), group.zones[0])
        group.bind(member, group.due())
        member.zone = choose_zone(group, member, self._room(group))
        group.add(member)
        self._inventory.keep_member(group, member)
        self._inventory.wake(group, member)
        return member

    def note(self, group: Group, member: Member, fault: Fault) -> None:
        """Keeps why a try failed, for `lastAttempt` and `listErrors`."""
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

    # One member

    def _advance(self, group: Group, member: Member) -> None:
        """One member's next step."""
        instance = self._inventory.instances.get(member.instance or "")
        if member.action == "DELETING":
            self._delete(group, member, instance)
        elif member.action == "RESTARTING":
            self._restart(group, member, instance)
        elif member.action in ("NONE", "VERIFYING"):
            if instance is None or not instance.live:
                self._repair(group, member)
            else:
                self._judge(group, member)
        elif instance and member.replace:
            if instance.live:
                self._discard(instance)
            elif member.retry_at <= self._inventory.clock.now():
                self._inventory.remove(instance)
                self._create(group, member)
        elif instance is None or not instance.live:
            if member.retry_at <= self._inventory.clock.now():
                if instance:  # one that never came up
                    self._inventory.remove(instance)
                self._create(group, member)
        elif instance.status == "RUNNING":
            member.errors = []
            self._verify(group, member, instance)

    def _delete(self, group: Group, member: Member, instance: Instance | None) -> None:
        if instance and instance.live:
            self._discard(instance)
            return
        if instance:
            self._inventory.remove(instance)
        group.drop(member)
        self._inventory.keep_member(group, member)
        self._inventory.wake(group)

    def _restart(self, group: Group, member: Member, instance: Instance | None) -> None:
        if instance is None:
            self.recreate(group, member, newest=False)
        elif not instance.live:
            self._inventory.start(instance, new_disk=False)
            member.replace = False
            self._act(group, member, "STARTING")
        else:
            self._inventory.stop(instance)

    def _discard(self, instance: Instance) -> None:
        if not instance.discard:
            instance.discard = True
            self._inventory.keep("instances", instance.id)
        self._inventory.stop(instance)

    def _repair(self, group: Group, member: Member) -> None:
        """A member whose VM has stopped or gone without the group's doing."""
        lowers = member.limited and self._inventory.switches.limit_lowers_target
        action = "DELETE" if lowers else self._on_failure(group)
        self._heal(group, member, action, self._inventory.switches.recreate_delay_sec)

    def _heal(self, group: Group, member: Member, action: str, delay_sec: float) -> None:
        if action == "DELETE":
            group.target_size -= 1
            self._inventory.keep_group(group)
            self.leave(group, member)
        elif action == "REPAIR":
            forced = group.policy("instanceLifecyclePolicy", "forceUpdateOnRepair", "NO") == "YES"
            self.recreate(group, member, delay_sec=delay_sec, newest=forced, repaired=True)
        elif member.action == "VERIFYING":
            self._act(group, member, "NONE")

    def _on_failure(self, group: Group) -> str:
        return group.policy("instanceLifecyclePolicy", "defaultActionOnFailure", "REPAIR")

    # Health

    def _check(self, group: Group) -> HealthCheck | None:
        return self._inventory.health_checks.get(group.health_check)

    def _forget_health(self, member: Member) -> None:
        member.health = UNKNOWN
        member.streak = 0
        member.verify_until = None

    def _verify(self, group: Group, member: Member, instance: Instance) -> None:
        """A VM that is up: a member that is well, unless it is to be asked for its health."""
        if self._check(group) is None:
            self._act(group, member, "NONE")
            return
        now = self._inventory.clock.now()
        member.verify_until = now + int(group.healing.get("initialDelaySec") or 0)
        self._act(group, member, "VERIFYING")
        self._inventory.at(member.verify_until, "member", *group.key, member.name)
        self._ask_at(instance, now)

    def _judge(self, group: Group, member: Member) -> None:
        """What the health of a live VM means: nothing in its initial delay, which the first
        HEALTHY ends."""
        now = self._inventory.clock.now()
        if member.action == "VERIFYING":
            if member.health == HEALTHY:
                member.verify_until = None
                self._act(group, member, "NONE")
                return
            if member.verify_until is not None and now < member.verify_until:
                return
        if member.health == UNHEALTHY:
            asked = group.policy("instanceLifecyclePolicy", "onFailedHealthCheck", "DEFAULT_ACTION")
            action = self._on_failure(group) if asked == "DEFAULT_ACTION" else asked
            self._heal(group, member, action, 0.0)

    # The group as a whole

    def _balance(self, group: Group) -> None:
        """Makes as many members as are wanted, lets go of those too many, and updates."""
        policy = group.body.get("updatePolicy") or {}
        if len(group.versions) > 1:
            group.compare()
        surge = 0
        if policy.get("type") == "PROACTIVE" and not group.deleting:
            if group.outdated:
                self._roll(group, policy)
            if _substitutes(group):
                surge = min(group.allowed("maxSurge"), len(group.outdated))
        most = group.target_size + group.allowed("maxSurge")
        while group.staying < group.target_size + surge and (
            not group.outgoing or group.staying + group.outgoing < most
        ):
            self.add_member(group)
        for member in self._victims(group, group.staying - group.target_size - surge):
            self.leave(group, member)
        self._spread_evenly(group)

    def _roll(self, group: Group, policy: dict[str, Any]) -> None:
        """A proactive group updates members of an older version, as many at once as allowed."""
        minimal = policy.get("minimalAction") or "REPLACE"
        most = policy.get("mostDisruptiveAllowedAction") or "REPLACE"
        if minimal == "NONE":
            return
        budget = group.actions["NONE"] - (group.target_size - group.allowed("maxUnavailable"))
        for name in list(group.outdated):
            member = group.members[name]
            if member.action != "NONE":
                continue  # bound to its version when it is created; or busy
            if budget <= 0:
                return
            if group.has_due(member):  # its version has too many, and the other has enough
                if group.staying > group.target_size:
                    self.leave(group, member, superseded=True)
                    budget -= 1
            elif self.update(group, member, minimal, most) and member.action != "NONE":
                budget -= 1

    def _victims(self, group: Group, count: int) -> Sequence[Member]:
        """Who goes from a group that is too big: who is not up, who is outdated, and in a region
        from the fullest zones."""
        if count <= 0:
            return ()
        left = group.spread.copy()
        staying = [m for m in group.members.values() if not m.leaving]
        ranked = sorted(
            staying, key=lambda m: (m.instance is not None, m.name not in group.outdated, m.name)
        )
        if not group.regional:
            return ranked[:count]
        victims = []
        for _ in range(min(count, len(ranked))):
            victim = min(ranked, key=lambda m: (m.instance is not None, -left[m.zone]))
            ranked.remove(victim)
            left[victim.zone] -= 1
            victims.append(victim)
        return victims

    def _spread_evenly(self, group: Group) -> None:
        """Once nothing else is under way, one VM at a time moves to an emptier zone."""
        quiet = group.actions["NONE"] == len(group.members) == group.target_size
        if not quiet or group.outdated:
            return
        zone = crowded_zone(group, self._room(group))
        if zone is not None:
            names = [m.name for m in group.members.values() if m.zone == zone]
            self.leave(group, group.members[max(names)], superseded=True)

    # Creation

    def _create(self, group: Group, member: Member) -> None:
        """Creates the member's VM, or notes why that cannot be and when to try again."""
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

    def _place(self, group: Group, member: Member, properties: dict[str, Any]) -> Fault | None:
        """Puts the member into a zone, with the machine type of the best rank that has room there;
        what keeps its VM from being created with the last of them."""
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

    def refusal(self, properties: dict[str, Any], zone: str) -> Fault | None:
        """Why a VM of these properties cannot be created in a zone now."""
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

    def _room(self, group: Group) -> HasRoom:
        """Whether a zone has room for VMs of the group's main version."""
        template = self._inventory.templates.get(group.main["template"])
        properties = self.properties(group, template) if template and group.regional else {}
        capacity = self._inventory.capacity
        return lambda zone, count: capacity.has_room(zone, properties, count)

    def properties(self, group: Group, template: Template) -> dict[str, Any]:
        """A VM's properties: the template's, what the group adds to all, and the group's name."""
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

    def _needed(self, instance: Instance, version: dict[str, Any]) -> str:
        """The mildest action that gives a VM the properties of a version's template."""
        template = self._inventory.templates.get(version["template"])
        group = self._inventory.owner(instance)
        if template is None or group is None:
            return "REPLACE"
        wanted = self.properties(group[0], template)
        changed = {
            key
            for key in {*wanted, *instance.properties}
            if wanted.get(key) != instance.properties.get(key)
        }
        if ranked_types(group[0].body):
            changed.discard("machineType")  # the group's own choice
        actions = [MILD_CHANGES.get(key, "REPLACE") for key in changed]
        return max(actions, key=UPDATES.index, default="NONE")

    def _act(self, group: Group, member: Member, action: str) -> None:
        group.act(member, action)
        self._inventory.keep_member(group, member)
        self._inventory.wake(group, member)


def _substitutes(group: Group) -> bool:
    """Whether a new version comes under new names: not if it keeps them."""
    return group.policy("updatePolicy", "replacementMethod", "SUBSTITUTE") == "SUBSTITUTE"


def check_member(group: Group, name: str) -> Member:
    """The member of that name; Invalid if it is not of the group."""
    if name not in group.members:
        raise Invalid(
            f"Invalid value for field 'instances': '{name}'. "
            f"The instance is not a member of instance group manager '{group.name}'."
        )
    return group.members[name]
