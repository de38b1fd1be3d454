"""The controller of managed instance groups: it keeps their size, heals, updates and spreads.

It recreates a VM that stopped, crashed, was preempted or deleted, under the same name, with a new
id and a new disk. It decreases a group's size only on request."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from outlast.localcloud.compute.fleet.creation import Creation
from outlast.localcloud.compute.fleet.health import HealthWatch
from outlast.localcloud.compute.fleet.inventory import Inventory
from outlast.localcloud.compute.fleet.model import (
    Group,
    Instance,
    Invalid,
    Member,
    Restless,
    SetMetadata,
)
from outlast.localcloud.compute.fleet.placement import (
    crowded_zone,
    ranked_types,
)

LOOKS, LOOKS_EACH = 100, 20
"""Maximum number of looks at a group before it must be at rest: a fixed number, and more for each
member."""

# From the least disruptive action of an update to the most disruptive.
UPDATES = ("NONE", "REFRESH", "RESTART", "REPLACE")
# The action that a change of a template's property needs; any other property needs a new VM.
MILD_CHANGES = {
    **dict.fromkeys(("labels", "metadata", "tags"), "REFRESH"),
    **dict.fromkeys(("machineType", "minCpuPlatform", "scheduling", "serviceAccounts"), "RESTART"),
}


class Manager:
    """Controls all groups."""

    def __init__(self, inventory: Inventory, creation: Creation, health: HealthWatch) -> None:
        self._inventory = inventory
        self.creation = creation
        self.health = health

    def reconcile(self) -> None:
        """Advances every marked group until none is marked.

        Raises Restless if a group never comes to rest."""
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

    # For calls

    def leave(self, group: Group, member: Member, *, superseded: bool = False) -> None:
        """Starts to delete a member with its VM."""
        if member.leaving:
            return
        member.errors = []
        member.superseded = superseded
        self._inventory.act(group, member, "DELETING")

    def recreate(
        self,
        group: Group,
        member: Member,
        *,
        delay_sec: float = 0.0,
        newest: bool = True,
        repaired: bool = False,
    ) -> None:
        """Starts to delete a member's VM and to recreate it under its name."""
        if newest:
            group.bind(member, group.due(member))
        member.replace = True
        member.repaired = repaired
        member.retry_at = self._inventory.clock.now() + delay_sec
        self.health.forget(member)
        self._inventory.act(group, member, "RECREATING")
        if delay_sec > 0:
            self._inventory.at(member.retry_at, "member", *group.key, member.name)

    def update(self, group: Group, member: Member, minimal: str, most: str) -> bool:
        """Updates a member to the version that it should have, with the least disruptive action.
        Returns False if that is more disruptive than `most`, or if there is nothing to do."""
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
            self.health.forget(member)
            self._inventory.act(group, member, "RESTARTING")
        instance.properties = self.creation.properties(group, template)
        instance.fingerprint += 1
        self._inventory.commands.append(SetMetadata(instance.id))
        self._inventory.keep("instances", instance.id)
        self._inventory.keep_member(group, member)
        return True

    # One member

    def _advance(self, group: Group, member: Member) -> None:
        """Takes one member's next step."""
        instance = self._inventory.instances.get(member.instance or "")
        if member.action == "DELETING":
            self._delete(group, member, instance)
        elif member.action == "RESTARTING":
            self._restart(group, member, instance)
        elif member.action in ("NONE", "VERIFYING"):
            if instance is None or not instance.live:
                self._repair(group, member)
            elif self.health.failed(group, member):
                asked = group.policy(
                    "instanceLifecyclePolicy", "onFailedHealthCheck", "DEFAULT_ACTION"
                )
                action = self._on_failure(group) if asked == "DEFAULT_ACTION" else asked
                self._heal(group, member, action, 0.0)
        elif instance and member.replace:
            if instance.live:
                self._discard(instance)
            elif member.retry_at <= self._inventory.clock.now():
                self._inventory.remove(instance)
                self.creation.create(group, member)
        elif instance is None or not instance.live:
            if member.retry_at <= self._inventory.clock.now():
                if instance:  # one that never ran
                    self._inventory.remove(instance)
                self.creation.create(group, member)
        elif instance.status == "RUNNING":
            member.errors = []
            self.health.verify(group, member, instance)

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
            self._inventory.act(group, member, "STARTING")
        else:
            self._inventory.stop(instance)

    def _discard(self, instance: Instance) -> None:
        if not instance.discard:
            instance.discard = True
            self._inventory.keep("instances", instance.id)
        self._inventory.stop(instance)

    def _repair(self, group: Group, member: Member) -> None:
        """Repairs a member whose VM stopped or disappeared, but not because of the group."""
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
            self._inventory.act(group, member, "NONE")

    def _on_failure(self, group: Group) -> str:
        return group.policy("instanceLifecyclePolicy", "defaultActionOnFailure", "REPAIR")

    # The group as a whole

    def _balance(self, group: Group) -> None:
        """Adds missing members, removes surplus ones, and updates."""
        policy = group.body.get("updatePolicy") or {}
        if len(group.versions) > 1:
            group.compare()
        surge = 0
        minimal = policy.get("minimalAction") or "REPLACE"
        most_disruptive = policy.get("mostDisruptiveAllowedAction") or "REPLACE"
        rolls = policy.get("type") == "PROACTIVE" and minimal != "NONE"
        if rolls and not group.deleting:
            if group.outdated:
                self._roll(group, minimal, most_disruptive)
            if _substitutes(group) and most_disruptive == "REPLACE":
                surge = min(group.allowed("maxSurge"), len(group.outdated))
        most = group.target_size + group.allowed("maxSurge")
        while group.staying < group.target_size + surge and (
            not group.outgoing or group.staying + group.outgoing < most
        ):
            self.creation.add_member(group)
        for member in self._victims(group, group.staying - group.target_size - surge):
            self.leave(group, member)
        self._spread_evenly(group)

    def _roll(self, group: Group, minimal: str, most: str) -> None:
        """Updates a proactive group's members of an older version, as many at once as allowed."""
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
        """The members to remove from a group that is too large: first those without a VM, then
        outdated ones; in a region, from the fullest zones."""
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
        """Moves one VM at a time to an emptier zone, if no other action is in progress."""
        quiet = group.actions["NONE"] == len(group.members) == group.target_size
        if not quiet or group.outdated:
            return
        zone = crowded_zone(group, self.creation.room(group))
        if zone is not None:
            names = [m.name for m in group.members.values() if m.zone == zone]
            self.leave(group, group.members[max(names)], superseded=True)

    def _needed(self, instance: Instance, version: dict[str, Any]) -> str:
        """The least disruptive action that gives a VM the properties of a version's template."""
        template = self._inventory.templates.get(version["template"])
        group = self._inventory.owner(instance)
        if template is None or group is None:
            return "REPLACE"
        wanted = self.creation.properties(group[0], template)
        changed = {
            key
            for key in {*wanted, *instance.properties}
            if wanted.get(key) != instance.properties.get(key)
        }
        if ranked_types(group[0].body):
            changed.discard("machineType")  # the group's own choice
        actions = [MILD_CHANGES.get(key, "REPLACE") for key in changed]
        return max(actions, key=UPDATES.index, default="NONE")


def _substitutes(group: Group) -> bool:
    """Whether VMs of a new version get new names."""
    return group.policy("updatePolicy", "replacementMethod", "SUBSTITUTE") == "SUBSTITUTE"


def check_member(group: Group, name: str) -> Member:
    """The member of this name; raises Invalid if it is not in the group."""
    if name not in group.members:
        raise Invalid(
            f"Invalid value for field 'instances': '{name}'. "
            f"The instance is not a member of instance group manager '{group.name}'."
        )
    return group.members[name]
