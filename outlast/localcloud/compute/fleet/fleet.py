"""Compute Engine's part in a run's life, as a state machine: templates, managed groups, VMs.

Pure: no I/O, no threads, no time but the clock's. Calls of the API and events of the machines go
in; commands for the hypervisor come out of `take_commands`. `inventory` holds what exists,
`manager` does what groups do by themselves.
"""

import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from outlast.localcloud.base.clock import Clock
from outlast.localcloud.compute.fleet.capacity import Capacity
from outlast.localcloud.compute.fleet.inventory import Changes, Inventory
from outlast.localcloud.compute.fleet.manager import UPDATES, Manager, check_member
from outlast.localcloud.compute.fleet.model import (
    Announce,
    Command,
    Exists,
    Fault,
    Group,
    HealthCheck,
    Instance,
    InUse,
    Invalid,
    Kill,
    Member,
    NotFound,
    Preempt,
    SetMetadata,
    Switches,
    Template,
    Vet,
    accept_all,
    duration_sec,
    place_key,
    placed_path,
    template_path,
)

HEALTH_CHECK_PATH = re.compile(
    r"(?:.*/)?(?:global|regions/(?P<region>[^/]+))/healthChecks/(?P<name>[^/]+)"
)


class Fleet:
    """Everything that exists in the project's zones."""

    def __init__(
        self,
        clock: Clock,
        *,
        project_number: str,
        next_id: Callable[[], int],
        vet: Vet = accept_all,
        rng: random.Random | None = None,
    ) -> None:
        """`vet` says what keeps a VM of these properties from being created in a zone;
        `next_id` gives a number never given before."""
        self._clock = clock
        self._inventory = Inventory(clock, next_id)
        self._manager = Manager(self._inventory, project_number, vet, rng or random.Random())

    @property
    def switches(self) -> Switches:
        """What may be changed at any time."""
        return self._inventory.switches

    @property
    def capacity(self) -> Capacity:
        """The zones' room and the quotas."""
        return self._inventory.capacity

    @property
    def templates(self) -> dict[str, Template]:
        """By key: the name, behind `REGION/` for a regional one."""
        return self._inventory.templates

    @property
    def health_checks(self) -> dict[str, HealthCheck]:
        """By key, as templates."""
        return self._inventory.health_checks

    @property
    def groups(self) -> dict[tuple[str, str], Group]:
        """By the name of their zone or region, and their own."""
        return self._inventory.groups

    @property
    def instances(self) -> dict[str, Instance]:
        """By id."""
        return self._inventory.instances

    # Templates

    def add_template(
        self, name: str, properties: dict[str, Any], description: str, region: str = ""
    ) -> Template:
        """A new template; Exists where the name is taken."""
        key = place_key(region, name)
        if key in self.templates:
            raise Exists(template_path(key))
        template = Template(
            name,
            self._inventory.new_id(),
            self._clock.now(),
            description,
            properties,
            region=region,
        )
        self.templates[key] = template
        self._inventory.keep("templates", key)
        return template

    def template(self, name_or_id: str, region: str = "") -> Template:
        """A template by its name or its numeric id."""
        found = self.templates.get(place_key(region, name_or_id))
        if found is None and name_or_id.isdigit():
            found = next(
                (t for t in self.templates.values() if (t.id, t.region) == (name_or_id, region)),
                None,
            )
        if found is None:
            raise NotFound(template_path(place_key(region, name_or_id)))
        return found

    def delete_template(self, name_or_id: str, region: str = "") -> Template:
        """InUse where a group's versions name it, or with `vms_hold_template` a group's VM was
        made from it; the message is that group's path."""
        template = self.template(name_or_id, region)
        for group in self.groups.values():
            ids = {version["template_id"] for version in group.versions}
            if self.switches.vms_hold_template:
                ids |= {member.template_id for member in group.members.values()}
            if template.id in ids:
                raise InUse("instance_template", template.path, group.path)
        del self.templates[template.key]
        self._inventory.keep("templates", template.key)
        return template

    # Health checks

    def add_health_check(self, name: str, body: dict[str, Any], region: str = "") -> HealthCheck:
        """A new health check; Exists where the name is taken."""
        check = HealthCheck(name, self._inventory.new_id(), self._clock.now(), body, region=region)
        if check.key in self.health_checks:
            raise Exists(check.path)
        self.health_checks[check.key] = check
        self._inventory.keep("health_checks", check.key)
        return check

    def health_check(self, name: str, region: str = "") -> HealthCheck:
        """A health check by its name."""
        found = self.health_checks.get(place_key(region, name))
        if found is None:
            raise NotFound(placed_path(HealthCheck.collection, place_key(region, name)))
        return found

    def change_health_check(self, check: HealthCheck, body: dict[str, Any]) -> None:
        """Other rules, from the next question on."""
        check.body = body
        self._inventory.keep("health_checks", check.key)

    def delete_health_check(self, check: HealthCheck) -> None:
        """InUse where a group heals by it; the message is that group's path."""
        for group in self.groups.values():
            if group.health_check == check.key:
                raise InUse("health_check", check.path, group.path)
        del self.health_checks[check.key]
        self._inventory.keep("health_checks", check.key)

    def probed(self, instance_id: str, healthy: bool) -> None:
        """The answer of a VM that was asked for its health."""
        if instance := self.instances.get(instance_id):
            self._manager.probed(instance, healthy)

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
        """A new group; it begins to create its VMs at the next tick. `zones`: of a regional
        group, whose location is a region."""
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
        """A group, one that is being deleted too."""
        try:
            return self.groups[location, name]
        except KeyError:
            place = f"{'regions' if regional else 'zones'}/{location}"
            raise NotFound(f"{place}/instanceGroupManagers/{name}") from None

    def change_group(
        self, group: Group, body: dict[str, Any], versions: Sequence[dict[str, Any]] | None
    ) -> None:
        """New policies, and new versions where given."""
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
            self._manager.watch(group)
        self._touch(group)

    def set_named_ports(self, group: Group, ports: list[dict[str, Any]]) -> None:
        """Names for ports, which nothing here listens on."""
        group.named_ports = ports
        self._inventory.keep_group(group)

    def resize(self, group: Group, size: int) -> None:
        """A new target size; of VMs too many, those that are not up go first."""
        self._not_deleting(group)
        if size < 0:
            raise Invalid(f"Invalid value for field 'size': '{size}'. Must be at least 0.")
        group.target_size = size
        self._touch(group)

    def delete_group(self, group: Group) -> None:
        """The group goes when its last VM has gone."""
        group.deleting = True
        group.target_size = 0
        for member in group.members.values():
            self._manager.leave(group, member)
        self._touch(group)

    def members(self, group: Group, names: Iterable[str]) -> list[Member]:
        """The members of these names; Invalid if one is not of the group."""
        return [check_member(group, name) for name in dict.fromkeys(names)]

    def delete_members(self, group: Group, names: Iterable[str]) -> None:
        """Scheduled at once: the target size falls by the number of members that were to stay."""
        self._not_deleting(group)
        for member in self.members(group, names):
            if not member.leaving:
                group.target_size -= 1
                self._manager.leave(group, member)
        self._touch(group)

    def recreate_members(self, group: Group, names: Iterable[str]) -> None:
        """Each is stopped and recreated under its own name, of the version that it is to
        have."""
        self._not_deleting(group)
        for member in self.members(group, names):
            if not member.leaving:
                self._manager.recreate(group, member)

    def update_members(
        self, group: Group, names: Iterable[str] | None, minimal: str, most: str
    ) -> None:
        """Brings members, or all for None, to the version that each is to have, without regard to
        how many are away at once."""
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
        """New members of these names, beside those that there are: the target size grows."""
        self._not_deleting(group)
        for name in names:
            zone = next((zone for zone in group.zones if self._inventory.named(zone, name)), "")
            if zone or name in group.members:
                raise Exists(f"zones/{zone or group.zones[0]}/instances/{name}")
        for name in names:
            group.target_size += 1
            self._manager.add_member(group, name)
        self._touch(group)

    def abandon_members(self, group: Group, names: Iterable[str]) -> None:
        """The VMs live on without the group, whose target size falls."""
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
        """Whether the group has what it wants and nothing is under way."""
        return group.actions["NONE"] == len(group.members) == group.target_size

    # VMs

    def instance(self, zone: str, name: str) -> Instance:
        """The VM of that name."""
        found = self._inventory.named(zone, name)
        if found is None:
            raise NotFound(f"zones/{zone}/instances/{name}")
        return found

    def in_zone(self, zone: str) -> list[Instance]:
        """A zone's VMs."""
        return [i for i in self.instances.values() if i.zone == zone]

    def refusal(self, properties: dict[str, Any], zone: str) -> Fault | None:
        """Why a VM of these properties cannot be created in a zone now."""
        return self._manager.refusal(properties, zone)

    def add_instance(self, zone: str, name: str, properties: dict[str, Any]) -> Instance:
        """A VM of no group; Exists where the name is taken."""
        if self._inventory.named(zone, name):
            raise Exists(f"zones/{zone}/instances/{name}")
        return self._inventory.add_instance(name, zone, properties)

    def late_create(self, group: Group, name: str = "", zone: str = "") -> Instance:
        """A VM of the group's main version whose creation was on its way when it was cancelled:
        it boots and says whose it is, but is not a member. The group may be gone."""
        template = self.templates.get(group.main["template"])
        if template is None:
            raise NotFound(template_path(group.main["template"]))
        properties = self._manager.properties(group, template)
        return self.add_instance(
            zone or group.zones[0], name or self._manager.new_name(group), properties
        )

    def start_instance(self, instance: Instance) -> None:
        """As by `instances.start`: boots a VM that has stopped, on the disk it has."""
        if instance.status != "TERMINATED":
            raise Invalid(_not_ready(f"zones/{instance.zone}/instances/{instance.name}"))
        instance.preempting = instance.limited = False
        self._inventory.start(instance, new_disk=False)

    def stop_instance(self, instance: Instance) -> None:
        """As by `instances.stop`: a group recreates it."""
        if instance.live:
            self._inventory.stop(instance)

    def delete_instance(self, instance: Instance) -> None:
        """As by `instances.delete`: a group does not know the intent and recreates it."""
        if instance.live:
            instance.discard = True
            self._inventory.stop(instance)
            self._inventory.keep("instances", instance.id)
        else:
            self._inventory.remove(instance)

    def reset_instance(self, instance: Instance) -> None:
        """Cuts it off and boots it again on the disk it has."""
        if instance.status != "RUNNING":
            raise Invalid(_not_ready(f"zones/{instance.zone}/instances/{instance.name}"))
        instance.restart = True
        self._inventory.commands.append(Kill(instance.id))

    def preempt_instance(self, instance: Instance) -> None:
        """Begins a preemption; nothing if one has begun or the VM is on its way out."""
        if instance.status in ("PROVISIONING", "STAGING", "RUNNING") and not instance.preempting:
            instance.preempting = True
            self._inventory.commands.append(Preempt(instance.id))
            self._inventory.keep("instances", instance.id)

    def maintain_instance(self, instance: Instance, notice_sec: float | None = None) -> None:
        """Announces the maintenance of a VM's host. A Spot VM is preempted. Another one is moved
        without a break, or stopped after its notice and, with automaticRestart, booted again."""
        if instance.spot:
            self.preempt_instance(instance)
            return
        if instance.status != "RUNNING":
            raise Invalid(_not_ready(f"zones/{instance.zone}/instances/{instance.name}"))
        if notice_sec is None:
            gpus = bool(instance.properties.get("guestAccelerators"))
            switches = self.switches
            notice_sec = (
                switches.maintenance_notice_gpu_sec if gpus else switches.maintenance_notice_sec
            )
        instance.maintenance_at = self._clock.now() + notice_sec
        policy = instance.scheduling.get("onHostMaintenance") or "MIGRATE"
        self._inventory.commands.append(Announce(instance.id, f"{policy}_ON_HOST_MAINTENANCE"))
        self._inventory.keep("instances", instance.id)
        self._inventory.at(instance.maintenance_at, "instance", instance.id)

    def hold_stopping(self, instance: Instance, hold_sec: float) -> None:
        """The VM's end is seen late: for so long after it, it is still STOPPING."""
        instance.hold_sec = hold_sec
        self._inventory.keep("instances", instance.id)

    def change_instance(self, instance: Instance, **changes: Any) -> None:
        """Other properties of a VM: at once, or from its next boot on."""
        instance.properties = {**instance.properties, **changes}
        instance.fingerprint += 1
        self._inventory.keep("instances", instance.id)

    def set_metadata(self, instance: Instance, items: list[dict[str, Any]]) -> None:
        """Replaces the VM's attributes; its metadata server shows them at once."""
        instance.properties["metadata"] = {"items": items}
        instance.fingerprint += 1
        self._inventory.commands.append(SetMetadata(instance.id))
        self._inventory.keep("instances", instance.id)

    # Events of the machines. They name a VM by id; an unknown id is ignored.

    def running(self, instance_id: str) -> None:
        """The VM's system has started."""
        instance = self.instances.get(instance_id)
        if instance and instance.status in ("PROVISIONING", "STAGING"):
            instance.status = "RUNNING"
            instance.started = self._clock.now()
            limit_sec = duration_sec(instance.scheduling.get("maxRunDuration"))
            if limit_sec:
                instance.deadline = instance.started + limit_sec
                self._inventory.at(instance.deadline, "instance", instance.id)
            self._inventory.keep("instances", instance.id)
            self._manager.came_up(instance)

    def stopping(self, instance_id: str) -> None:
        """The VM's system is going down, for whatever reason."""
        instance = self.instances.get(instance_id)
        if instance and instance.live:
            instance.status = "STOPPING"
            instance.going_down = True
            self._inventory.keep("instances", instance.id)

    def exited(self, instance_id: str, fault: Fault | None = None) -> None:
        """The VM has no process any more; `fault` if it never got one."""
        instance = self.instances.get(instance_id)
        if instance is None or not instance.live or instance.held_until is not None:
            return
        hold_sec = instance.hold_sec or self.switches.stays_stopping_sec
        if hold_sec > 0 and instance.started is not None and not instance.restart:
            instance.status = "STOPPING"
            instance.held_until = self._clock.now() + hold_sec
            self._inventory.keep("instances", instance.id)
            self._inventory.at(instance.held_until, "instance", instance.id)
            return
        self._end(instance, fault)

    def lose(self, instance: Instance) -> None:
        """The platform takes the VM for dead, whatever its process does: its group creates it
        again at once, with its name and address; what the old one still does is ignored."""
        if instance.live:
            self._inventory.lose(instance)
            self._end(instance, None, for_good=True)

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
                    self._manager.ask(instance, timer.at)
                else:
                    self._look_at(instance)
        self._manager.reconcile()

    def next_time(self) -> float | None:
        """When something will be due that no call or event announces."""
        return self._inventory.next_time()

    def take_commands(self) -> list[Command]:
        """The commands since the last call, in order."""
        commands = list(self._inventory.commands)
        self._inventory.commands.clear()
        return commands

    # Keeping

    def take_changes(self) -> Changes:
        """What has to be kept since the last call: by table and key, None for what is gone."""
        return self._inventory.take_changes()

    def to_json(self) -> dict[str, dict[str, Any]]:
        """The whole state by table and key."""
        return self._inventory.all_kept()

    def take_up(self, document: dict[str, dict[str, Any]]) -> None:
        """The state of `to_json`. The machines are gone: every live VM has lost its host and its
        disk."""
        self._inventory.take_up(document)
        for instance in list(self.instances.values()):
            instance.restart = False
            if instance.live:
                self._end(instance, None, for_good=True)

    def clear(self) -> None:
        """Forgets everything but the switches and the limits."""
        self._inventory.clear()

    # Inside

    def _touch(self, group: Group) -> None:
        self._inventory.keep_group(group)
        self._inventory.wake(group)

    def _bind(self, versions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Versions with the templates that they mean now, by key and id."""
        bound = []
        for version in versions:
            region, _, name = version["template"].rpartition("/")
            template = self.template(name, region)
            if version.get("template_id") not in (None, "", template.id):
                raise NotFound(template.path)
            bound.append({**version, "template": template.key, "template_id": template.id})
        return bound

    def _bind_check(self, body: dict[str, Any]) -> str:
        """The key of the health check that a group's autohealing policy means."""
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
        return self.health_check(match["name"], match["region"] or "").key

    def _not_deleting(self, group: Group) -> None:
        if group.deleting:
            raise Invalid(_not_ready(group.path))

    def _look_at(self, instance: Instance) -> None:
        """A VM at its own time: its limit, its host's maintenance, the end that is seen."""
        now = self._clock.now()
        if instance.held_until is not None:
            if instance.held_until <= now:
                self._end(instance, None)
            return
        if not instance.live:
            return
        if instance.deadline is not None and instance.deadline <= now and not instance.limited:
            instance.limited = True
            if found := self._inventory.owner(instance):
                found[1].limited = True
                self._inventory.keep_member(*found)
            self._inventory.keep("instances", instance.id)
            self._inventory.stop(instance)
        elif instance.maintenance_at is not None and instance.maintenance_at <= now:
            if instance.scheduling.get("onHostMaintenance") != "TERMINATE":
                self._maintained(instance)
            elif not instance.stop_requested:
                self._inventory.stop(instance)
                instance.restart = self._restarts(instance)

    def _maintained(self, instance: Instance) -> None:
        instance.maintenance_at = None
        self._inventory.commands.append(Announce(instance.id, "NONE"))
        self._inventory.keep("instances", instance.id)

    def _restarts(self, instance: Instance) -> bool:
        """Whether the platform boots a VM again whose host is lost."""
        asked = bool(instance.scheduling.get("automaticRestart"))
        return asked and self.switches.automatic_restart and not instance.spot

    def _end(self, instance: Instance, fault: Fault | None, *, for_good: bool = False) -> None:
        """A VM has ended; `for_good`: its disk too."""
        lost = not (instance.stop_requested or instance.going_down or instance.preempting)
        if lost and instance.started is not None and not for_good and self._restarts(instance):
            instance.restart = True
        instance.status = "TERMINATED"
        instance.stopped = self._clock.now()
        instance.held_until = None
        instance.hold_sec = 0.0
        self._inventory.capacity.release(instance)
        self._inventory.keep("instances", instance.id)
        found = self._inventory.owner(instance)
        if found and instance.started is None and not found[1].leaving:
            fault = fault or Fault("INTERNAL_ERROR", "The instance stopped before it had started.")
            self._manager.note(*found, fault)
        self._inventory.wake_owner(instance)
        ends_deleted = instance.scheduling.get("instanceTerminationAction") == "DELETE"
        if instance.restart and not instance.discard:
            instance.restart = False
            self._inventory.start(instance, new_disk=False)
            if instance.maintenance_at is not None:
                self._maintained(instance)
        elif instance.discard or (ends_deleted and (instance.preempting or instance.limited)):
            self._inventory.remove(instance)


def _not_ready(path: str) -> str:
    return f"The resource '{path}' is not ready"
