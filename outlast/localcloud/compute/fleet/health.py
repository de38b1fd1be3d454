"""The health of groups' VMs: when each is probed, and what follows from its answers."""

from outlast.localcloud.compute.fleet.inventory import Inventory
from outlast.localcloud.compute.fleet.model import (
    HEALTHY,
    UNHEALTHY,
    UNKNOWN,
    Group,
    HealthCheck,
    Instance,
    Member,
    Probe,
)

INTERVAL_SEC = 5
THRESHOLD = 2


class HealthWatch:
    """Probes VMs with their group's health check."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._asks: dict[str, float] = {}
        """The time of a VM's next probe, by its id."""

    def watch(self, group: Group) -> None:
        """Starts to probe a group's VMs with changed rules."""
        for member in group.members.values():
            instance = self._inventory.instances.get(member.instance or "")
            self.forget(member)
            if instance and instance.status == "RUNNING" and member.action in ("NONE", "VERIFYING"):
                self.verify(group, member, instance)

    def probed(self, instance: Instance, healthy: bool) -> None:
        """Notes the result of a VM's probe."""
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
        """Notes that a VM runs; after a reboot from inside, its health is verified again."""
        found = self._inventory.owner(instance)
        if found and found[1].action in ("NONE", "VERIFYING"):
            self.forget(found[1])
            self.verify(*found, instance)
        self._inventory.wake_owner(instance)

    def ask(self, instance: Instance, at: float) -> None:
        """Probes a VM if `at` is still its time, and sets the next time."""
        found = self._inventory.owner(instance)
        check = self._check(found[0]) if found else None
        if self._asks.get(instance.id) != at:
            return
        del self._asks[instance.id]
        if check and instance.status == "RUNNING":
            self._inventory.commands.append(Probe(instance.id, check.key))
            interval_sec = check.number("checkIntervalSec", INTERVAL_SEC)
            self._ask_at(instance, self._inventory.clock.now() + interval_sec)

    def forget(self, member: Member) -> None:
        """Resets a member's health, because its next VM's is unknown."""
        member.health = UNKNOWN
        member.streak = 0
        member.verify_until = None

    def verify(self, group: Group, member: Member, instance: Instance) -> None:
        """Starts to verify a running VM; without a health check its member is healthy at once."""
        if self._check(group) is None:
            self._inventory.act(group, member, "NONE")
            return
        now = self._inventory.clock.now()
        member.verify_until = now + int(group.healing.get("initialDelaySec") or 0)
        self._inventory.act(group, member, "VERIFYING")
        self._inventory.at(member.verify_until, "member", *group.key, member.name)
        self._ask_at(instance, now)

    def failed(self, group: Group, member: Member) -> bool:
        """Whether a live VM's health requires a repair: never in its initial delay, which the first
        HEALTHY ends."""
        now = self._inventory.clock.now()
        if member.action == "VERIFYING":
            if member.health == HEALTHY:
                member.verify_until = None
                self._inventory.act(group, member, "NONE")
                return False
            if member.verify_until is not None and now < member.verify_until:
                return False
        return member.health == UNHEALTHY

    def _check(self, group: Group) -> HealthCheck | None:
        return self._inventory.health_checks.get(group.health_check)

    def _ask_at(self, instance: Instance, at: float) -> None:
        self._asks[instance.id] = at
        self._inventory.at(at, "probe", instance.id)
