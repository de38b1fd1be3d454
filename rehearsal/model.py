"""Compute Engine's part in a run's life, as a state machine: templates, managed groups, VMs.

Pure: no I/O, no threads, no time but the clock's. Calls of the API and events of the machines go
in; commands for the hypervisor come out of `take_commands`. The group does what the real one does:
it keeps its size, recreates a VM that stopped, crashed, was preempted or deleted under the same
name with a new id and a new disk, and lowers its size only where it was told to.

    ModelError              a call that the model refuses
    |- NotFound
    |- Exists               a name is taken
    |- InUse                something else needs it
    |- Invalid              the call contradicts itself or the state
"""

import copy
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rehearsal.clock import Clock, from_rfc3339

# What a live VM may be; anything else has no process.
LIVE_STATUSES = ("PROVISIONING", "STAGING", "RUNNING", "STOPPING")

NAME_LETTERS = "bcdfghjklmnpqrstvwxz0123456789"
NAME_SUFFIX_LENGTH = 4
KEPT_ERRORS = 100


class ModelError(Exception):
    """A call that the model refuses; the message is Google's or in its manner."""


class NotFound(ModelError):
    """No such template, group or VM."""


class Exists(ModelError):
    """The name is taken."""


class InUse(ModelError):
    """Something else needs it."""


class Invalid(ModelError):
    """The call contradicts itself or the state."""


@dataclass(frozen=True)
class Boot:
    """Start the VM with a new, empty disk, or with the one it has."""

    instance: str
    new_disk: bool = True


@dataclass(frozen=True)
class Stop:
    """Ask the VM's system to stop; cut it off when the grace has passed."""

    instance: str


@dataclass(frozen=True)
class Preempt:
    """Raise the `preempted` flag, wait for the notice, then stop as above."""

    instance: str


@dataclass(frozen=True)
class Kill:
    """Cut the VM off now."""

    instance: str


@dataclass(frozen=True)
class Discard:
    """Delete the disk of a VM that has no process any more."""

    instance: str


@dataclass(frozen=True)
class SetMetadata:
    """Tell the VM's metadata server the new attributes."""

    instance: str


Command = Boot | Stop | Preempt | Kill | Discard | SetMetadata


@dataclass(frozen=True)
class Fault:
    """Why a VM could not be created: a code and a sentence as in `lastAttempt.errors`."""

    code: str
    message: str


@dataclass
class Switches:
    """What the real cloud leaves open, or what a rehearsal wants worse than usual."""

    recreate_delay_sec: float = 0.2
    """From the end of a VM to the creation of its successor."""
    retry_delay_sec: float = 1.0
    """Between two tries to create a VM."""
    limit_lowers_target: bool = False
    """At a time limit: whether the group's target size falls, or the VM is created anew."""
    no_capacity: bool = False
    """Whether the zone has no room for new VMs."""


@dataclass
class Template:
    """An instance template; never changes."""

    name: str
    id: str
    created: float
    description: str
    properties: dict[str, Any]


@dataclass
class Instance:
    """A VM, from its creation until its disk is deleted."""

    id: str
    name: str
    zone: str
    created: float
    properties: dict[str, Any]
    group: str | None = None
    status: str = "PROVISIONING"
    started: float | None = None
    stopped: float | None = None
    deadline: float | None = None
    """When a time limit ends it."""
    limited: bool = False
    """Whether a time limit has ended it."""
    preempting: bool = False
    stop_requested: bool = False
    discard: bool = False
    """Delete it once it has stopped."""
    restart: bool = False
    """Boot it again, on the disk it has, once it has stopped."""
    fingerprint: int = 1

    @property
    def live(self) -> bool:
        """Whether it has, or is about to have, a process."""
        return self.status in LIVE_STATUSES

    @property
    def scheduling(self) -> dict[str, Any]:
        return self.properties.get("scheduling") or {}

    @property
    def spot(self) -> bool:
        """Whether it may be preempted."""
        return is_spot(self.scheduling)


@dataclass
class Member:
    """A managed instance: a name in a group, and the VM that has it now."""

    name: str
    action: str = "CREATING"
    template: str = ""
    """Name of the template that the VM has or will get."""
    template_id: str = ""
    instance: str | None = None
    replace: bool = False
    """Whether the VM that has the name must go before a new one is created."""
    limited: bool = False
    """Whether a time limit has ended the VM."""
    retry_at: float = 0.0
    errors: list[dict[str, Any]] = field(default_factory=list)
    """Of the last failed try; empty after a success."""

    @property
    def leaving(self) -> bool:
        return self.action == "DELETING"


@dataclass
class Group:
    """A zonal managed instance group."""

    name: str
    zone: str
    id: str
    created: float
    target_size: int
    body: dict[str, Any]
    """As it was asked for, without name, zone, target size and versions."""
    versions: list[dict[str, Any]]
    """[{name, instanceTemplate: as given, template, template_id}], the newest last."""
    fingerprint: int = 1
    deleting: bool = False
    named_ports: list[dict[str, Any]] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def base_name(self) -> str:
        return self.body.get("baseInstanceName") or self.name

    def policy(self, section: str, key: str, default: str) -> str:
        """A word of `updatePolicy` or `instanceLifecyclePolicy`."""
        return (self.body.get(section) or {}).get(key) or default


def is_spot(scheduling: dict[str, Any]) -> bool:
    """Whether a `scheduling` block makes a VM that may be preempted."""
    return scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible"))


def duration_sec(duration: dict[str, Any] | None) -> float:
    """Seconds of an API Duration; 0 where there is none."""
    if not duration:
        return 0.0
    return int(duration.get("seconds") or 0) + int(duration.get("nanos") or 0) / 1e9


def accept_all(properties: dict[str, Any], zone: str) -> Fault | None:
    """The `vet` of a fleet whose zones have every machine and image."""
    return None


class Fleet:
    """Everything that exists in the project's zones."""

    def __init__(
        self,
        clock: Clock,
        *,
        project_number: str,
        next_id: Callable[[], int],
        vet: Callable[[dict[str, Any], str], Fault | None] = accept_all,
        rng: random.Random | None = None,
    ) -> None:
        """`vet` says what keeps a VM of these properties from being created in a zone;
        `next_id` gives a number never given before."""
        self._clock = clock
        self._number = project_number
        self._next_id = next_id
        self._vet = vet
        self._rng = rng or random.Random()
        self._commands: list[Command] = []
        self.switches = Switches()
        self.templates: dict[str, Template] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.instances: dict[str, Instance] = {}

    # Templates

    def add_template(self, name: str, properties: dict[str, Any], description: str) -> Template:
        """A new template; Exists where the name is taken."""
        if name in self.templates:
            raise Exists(f"instanceTemplates/{name}")
        template = Template(name, self._id(), self._clock.now(), description, properties)
        self.templates[name] = template
        return template

    def template(self, name_or_id: str) -> Template:
        """A template by its name or its numeric id."""
        found = self.templates.get(name_or_id)
        if found is None and name_or_id.isdigit():
            found = next((t for t in self.templates.values() if t.id == name_or_id), None)
        if found is None:
            raise NotFound(f"instanceTemplates/{name_or_id}")
        return found

    def delete_template(self, name_or_id: str) -> Template:
        """InUse where a group's versions name it; the message is that group's path."""
        template = self.template(name_or_id)
        for group in self.groups.values():
            if any(version["template_id"] == template.id for version in group.versions):
                raise InUse(f"zones/{group.zone}/instanceGroupManagers/{group.name}")
        del self.templates[template.name]
        return template

    # Groups

    def add_group(
        self,
        zone: str,
        name: str,
        body: dict[str, Any],
        versions: Sequence[dict[str, Any]],
        target_size: int,
    ) -> Group:
        """A new group; it begins to create its VMs at the next tick."""
        if (zone, name) in self.groups:
            raise Exists(f"zones/{zone}/instanceGroupManagers/{name}")
        group = Group(
            name, zone, self._id(), self._clock.now(), target_size, body, self._bind(versions)
        )
        self.groups[zone, name] = group
        return group

    def group(self, zone: str, name: str) -> Group:
        """A group, one that is being deleted too."""
        try:
            return self.groups[zone, name]
        except KeyError:
            raise NotFound(f"zones/{zone}/instanceGroupManagers/{name}") from None

    def change_group(
        self, group: Group, body: dict[str, Any], versions: Sequence[dict[str, Any]] | None
    ) -> None:
        """New policies, and new versions where given."""
        self._not_deleting(group)
        bound = None if versions is None else self._bind(versions)
        group.body = body
        if bound is not None:
            group.versions = bound
        group.fingerprint += 1

    def resize(self, group: Group, size: int) -> None:
        """A new target size; of VMs too many, those that are not up go first."""
        self._not_deleting(group)
        if size < 0:
            raise Invalid(f"Invalid value for field 'size': '{size}'. Must be at least 0.")
        group.target_size = size

    def delete_group(self, group: Group) -> None:
        """The group goes when its last VM has gone."""
        group.deleting = True
        group.target_size = 0
        for member in group.members.values():
            self._leave(member)

    def members(self, group: Group, names: Iterable[str]) -> list[Member]:
        """The members of these names; Invalid where one is not of the group."""
        found = []
        for name in dict.fromkeys(names):
            if name not in group.members:
                raise Invalid(
                    f"Invalid value for field 'instances': '{name}'. "
                    f"The instance is not a member of instance group manager '{group.name}'."
                )
            found.append(group.members[name])
        return found

    def delete_members(self, group: Group, names: Iterable[str]) -> None:
        """Scheduled at once: the target size falls by the number of members that were to stay."""
        self._not_deleting(group)
        for member in self.members(group, names):
            if not member.leaving:
                group.target_size -= 1
                self._leave(member)

    def recreate_members(self, group: Group, names: Iterable[str]) -> None:
        """Each is stopped and created anew from the newest template, under its own name."""
        self._not_deleting(group)
        for member in self.members(group, names):
            if not member.leaving:
                self._recreate(group, member, delay_sec=0.0, newest=True)

    def abandon_members(self, group: Group, names: Iterable[str]) -> None:
        """The VMs live on without the group, whose target size falls."""
        self._not_deleting(group)
        for member in self.members(group, names):
            if not member.leaving:
                group.target_size -= 1
            instance = self.instances.get(member.instance or "")
            if instance:
                instance.group = None
            del group.members[member.name]

    def newest(self, group: Group) -> dict[str, Any]:
        """The version that new members get."""
        return group.versions[-1]

    def is_stable(self, group: Group) -> bool:
        """Whether the group has what it wants and nothing is under way."""
        return len(group.members) == group.target_size and all(
            member.action == "NONE" for member in group.members.values()
        )

    # VMs

    def instance(self, zone: str, name: str) -> Instance:
        """The VM of that name."""
        for instance in self.instances.values():
            if instance.name == name and instance.zone == zone:
                return instance
        raise NotFound(f"zones/{zone}/instances/{name}")

    def stop_instance(self, instance: Instance) -> None:
        """As by `instances.stop`: a group creates it anew."""
        if instance.live:
            self._stop(instance)

    def delete_instance(self, instance: Instance) -> None:
        """As by `instances.delete`: a group does not know the intent and creates it anew."""
        if instance.live:
            instance.discard = True
            self._stop(instance)
        else:
            self._remove(instance)

    def reset_instance(self, instance: Instance) -> None:
        """Cuts it off and boots it again on the disk it has."""
        if instance.status != "RUNNING":
            raise Invalid(
                f"The resource 'zones/{instance.zone}/instances/{instance.name}' is not ready"
            )
        instance.restart = True
        self._commands.append(Kill(instance.id))

    def preempt_instance(self, instance: Instance) -> None:
        """Begins a preemption; nothing where one has begun or the VM is on its way out."""
        if instance.status in ("PROVISIONING", "STAGING", "RUNNING") and not instance.preempting:
            instance.preempting = True
            self._commands.append(Preempt(instance.id))

    def set_metadata(self, instance: Instance, items: list[dict[str, Any]]) -> None:
        """Replaces the VM's attributes; its metadata server shows them at once."""
        instance.properties["metadata"] = {"items": items}
        instance.fingerprint += 1
        self._commands.append(SetMetadata(instance.id))

    # Events of the machines. They name a VM by id; one that is gone is no news.

    def running(self, instance_id: str) -> None:
        """The VM's system has started."""
        instance = self.instances.get(instance_id)
        if instance and instance.status in ("PROVISIONING", "STAGING"):
            instance.status = "RUNNING"
            instance.started = self._clock.now()
            limit_sec = duration_sec(instance.scheduling.get("maxRunDuration"))
            if limit_sec:
                instance.deadline = instance.started + limit_sec

    def stopping(self, instance_id: str) -> None:
        """The VM's system is going down, for whatever reason."""
        instance = self.instances.get(instance_id)
        if instance and instance.live:
            instance.status = "STOPPING"

    def exited(self, instance_id: str, fault: Fault | None = None) -> None:
        """The VM has no process any more; `fault` where it never got one."""
        instance = self.instances.get(instance_id)
        if instance is None or not instance.live:
            return
        instance.status = "TERMINATED"
        instance.stopped = self._clock.now()
        member = self._member_of(instance)
        if member and instance.started is None and member.action != "DELETING":
            fault = fault or Fault("INTERNAL_ERROR", "The instance stopped before it had started.")
            self._note(self.groups[instance.zone, instance.group or ""], member, fault)
        if instance.restart and not instance.discard:
            instance.restart = False
            self._start(instance, new_disk=False)
            return
        ends_deleted = instance.scheduling.get("instanceTerminationAction") == "DELETE"
        if instance.discard or (ends_deleted and (instance.preempting or instance.limited)):
            self._remove(instance)

    # Time

    def tick(self) -> None:
        """Does everything that is due. Call it after each call and event, and at `next_time`."""
        now = self._clock.now()
        for instance in list(self.instances.values()):
            if instance.live and not instance.limited and (instance.deadline or now + 1) <= now:
                instance.limited = True
                if member := self._member_of(instance):
                    member.limited = True
                self._stop(instance)
        for group in list(self.groups.values()):
            self._reconcile(group)

    def next_time(self) -> float | None:
        """When something will be due that no call or event announces."""
        now = self._clock.now()
        times = [
            instance.deadline
            for instance in self.instances.values()
            if instance.live and not instance.limited and instance.deadline is not None
        ]
        times += [
            member.retry_at
            for group in self.groups.values()
            for member in group.members.values()
            if member.action in ("CREATING", "RECREATING") and member.retry_at > now
        ]
        return min(times, default=None)

    def take_commands(self) -> list[Command]:
        """The commands since the last call, in order."""
        commands, self._commands = self._commands, []
        return commands

    # Keeping

    def to_json(self) -> dict[str, dict[str, Any]]:
        """The whole state by kind and key."""
        return {
            "templates": {key: asdict(value) for key, value in self.templates.items()},
            "groups": {
                f"{zone}/{name}": asdict(value) for (zone, name), value in self.groups.items()
            },
            "instances": {key: asdict(value) for key, value in self.instances.items()},
        }

    def take_up(self, document: dict[str, dict[str, Any]]) -> None:
        """The state of `to_json`. The machines are gone: every live VM has lost its host."""
        self.templates = {k: Template(**v) for k, v in document["templates"].items()}
        self.instances = {k: Instance(**v) for k, v in document["instances"].items()}
        self.groups = {}
        for value in document["groups"].values():
            members = {k: Member(**v) for k, v in value["members"].items()}
            group = Group(**{**value, "members": members})
            self.groups[group.zone, group.name] = group
        for instance in list(self.instances.values()):
            instance.restart = False
            self.exited(instance.id)

    def clear(self) -> None:
        """Forgets everything."""
        self.templates.clear()
        self.groups.clear()
        self.instances.clear()
        self._commands.clear()

    # Inside

    def _id(self) -> str:
        return str(self._next_id())

    def _bind(self, versions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Versions with the templates that they mean now, by name and id."""
        bound = []
        for version in versions:
            template = self.template(version["template"])
            if version.get("template_id") not in (None, "", template.id):
                raise NotFound(f"instanceTemplates/{version['template']}")
            bound.append({**version, "template": template.name, "template_id": template.id})
        return bound

    def _not_deleting(self, group: Group) -> None:
        if group.deleting:
            raise Invalid(
                f"The resource 'zones/{group.zone}/instanceGroupManagers/{group.name}' is not ready"
            )

    def _leave(self, member: Member) -> None:
        member.action = "DELETING"
        member.errors = []

    def _reconcile(self, group: Group) -> None:
        for member in list(group.members.values()):
            self._advance(group, member)
        staying = [m for m in group.members.values() if not m.leaving]
        for member in self._victims(staying, len(staying) - group.target_size):
            self._leave(member)
            self._advance(group, member)
        for _ in range(group.target_size - len(staying)):
            version = self.newest(group)
            member = Member(
                self._new_name(group),
                template=version["template"],
                template_id=version["template_id"],
            )
            group.members[member.name] = member
            self._advance(group, member)
        if group.deleting and not group.members:
            del self.groups[group.zone, group.name]

    def _victims(self, staying: list[Member], count: int) -> list[Member]:
        return sorted(staying, key=lambda m: (m.instance is not None, m.name))[: max(0, count)]

    def _advance(self, group: Group, member: Member) -> None:
        """One member's next step."""
        instance = self.instances.get(member.instance or "")
        if member.action == "NONE":
            if instance and instance.live:
                self._update(group, member)
            else:
                self._repair(group, member, instance)
        elif member.action == "DELETING":
            if instance is None:
                del group.members[member.name]
            elif instance.live:
                instance.discard = True
                self._stop(instance)
            else:
                self._remove(instance)
                del group.members[member.name]
        elif instance and member.replace:
            if instance.live:
                instance.discard = True
                self._stop(instance)
            elif member.retry_at <= self._clock.now():
                self._remove(instance)
                self._create(group, member)
        elif instance is None or not instance.live:
            if member.retry_at <= self._clock.now():
                if instance:  # one that never came up
                    self._remove(instance)
                self._create(group, member)
        elif instance.status == "RUNNING":
            member.action = "NONE"
            member.errors = []

    def _repair(self, group: Group, member: Member, instance: Instance | None) -> None:
        """A member whose VM has stopped or gone without the group's doing."""
        on_failure = group.policy("instanceLifecyclePolicy", "defaultActionOnFailure", "REPAIR")
        if on_failure == "DELETE" or (member.limited and self.switches.limit_lowers_target):
            group.target_size -= 1
            self._leave(member)
            self._advance(group, member)
        elif on_failure != "DO_NOTHING":
            newest = group.policy("instanceLifecyclePolicy", "forceUpdateOnRepair", "NO") == "YES"
            delay_sec = self.switches.recreate_delay_sec
            self._recreate(group, member, delay_sec=delay_sec, newest=newest)
            if delay_sec <= 0:
                self._advance(group, member)

    def _update(self, group: Group, member: Member) -> None:
        """A proactive group replaces members of an older template, as many at once as allowed."""
        version = self.newest(group)
        if (
            member.template_id == version["template_id"]
            or group.policy("updatePolicy", "type", "OPPORTUNISTIC") != "PROACTIVE"
            or group.policy("updatePolicy", "minimalAction", "REPLACE") == "NONE"
        ):
            return
        allowed = (group.body.get("updatePolicy") or {}).get("maxUnavailable") or {}
        limit = allowed.get("fixed")
        if limit is None:
            percent = allowed.get("percent")
            limit = 1 if percent is None else group.target_size * percent // 100
        unavailable = sum(m.action != "NONE" for m in group.members.values() if not m.leaving)
        if unavailable < limit:
            self._recreate(group, member, delay_sec=0.0, newest=True)
            self._advance(group, member)

    def _recreate(self, group: Group, member: Member, *, delay_sec: float, newest: bool) -> None:
        version = self.newest(group)
        if newest:
            member.template = version["template"]
            member.template_id = version["template_id"]
        member.action = "RECREATING"
        member.replace = True
        member.retry_at = self._clock.now() + delay_sec

    def _create(self, group: Group, member: Member) -> None:
        """Creates the member's VM, or notes why that cannot be and when to try again."""
        template = self.templates.get(member.template)
        now = self._clock.now()
        fault: Fault | None = None
        if template is None or template.id != member.template_id:
            path = f"global/instanceTemplates/{member.template}"
            fault = Fault("RESOURCE_NOT_FOUND", f"The resource '{path}' was not found")
        elif self.switches.no_capacity:
            fault = Fault(
                "ZONE_RESOURCE_POOL_EXHAUSTED",
                f"The zone '{group.zone}' does not have enough resources available to fulfill "
                "the request.",
            )
        else:
            fault = self._expired(template, now) or self._vet(template.properties, group.zone)
        if fault or template is None:
            assert fault is not None
            self._note(group, member, fault)
            return
        instance = Instance(
            self._id(), member.name, group.zone, now, self._properties(group, template), group.name
        )
        ends = instance.scheduling.get("terminationTime")
        instance.deadline = from_rfc3339(ends) if ends else None
        self.instances[instance.id] = instance
        member.instance = instance.id
        member.replace = False
        member.limited = False
        self._start(instance, new_disk=True)

    def _expired(self, template: Template, now: float) -> Fault | None:
        ends = (template.properties.get("scheduling") or {}).get("terminationTime")
        if ends and from_rfc3339(ends) <= now:
            return Fault(
                "INVALID_USAGE",
                f"Invalid value for field 'scheduling.terminationTime': '{ends}'. "
                "The time must be in the future.",
            )
        return None

    def _properties(self, group: Group, template: Template) -> dict[str, Any]:
        properties = copy.deepcopy(template.properties)
        own = {
            "created-by": f"projects/{self._number}/zones/{group.zone}"
            f"/instanceGroupManagers/{group.name}",
            "instance-template": f"projects/{self._number}/global/instanceTemplates"
            f"/{template.name}",
        }
        items = [
            item
            for item in (properties.get("metadata") or {}).get("items") or []
            if item["key"] not in own
        ]
        items += [{"key": key, "value": value} for key, value in own.items()]
        properties["metadata"] = {"items": items}
        return properties

    def _note(self, group: Group, member: Member, fault: Fault) -> None:
        """Keeps why a try failed, for `lastAttempt` and `listErrors`."""
        now = self._clock.now()
        member.retry_at = now + self.switches.retry_delay_sec
        member.errors = [asdict(fault)]
        entry = {
            "time": now,
            "member": member.name,
            "action": member.action,
            "template": member.template,
            **asdict(fault),
        }
        group.errors = [*group.errors, entry][-KEPT_ERRORS:]

    def _member_of(self, instance: Instance) -> Member | None:
        group = self.groups.get((instance.zone, instance.group or ""))
        member = group.members.get(instance.name) if group else None
        return member if member and member.instance == instance.id else None

    def _start(self, instance: Instance, *, new_disk: bool) -> None:
        instance.status = "PROVISIONING"
        instance.stop_requested = False
        self._commands.append(Boot(instance.id, new_disk))

    def _stop(self, instance: Instance) -> None:
        if not instance.stop_requested:
            instance.stop_requested = True
            instance.restart = False
            self._commands.append(Stop(instance.id))

    def _remove(self, instance: Instance) -> None:
        del self.instances[instance.id]
        self._commands.append(Discard(instance.id))

    def _new_name(self, group: Group) -> str:
        """A name that no member and no VM of the zone has."""
        taken = set(group.members)
        taken.update(i.name for i in self.instances.values() if i.zone == group.zone)
        numbered = re.fullmatch(r"(.*?)(#+)", group.base_name)
        if numbered:
            stem, places = numbered.group(1), len(numbered.group(2))
            number = 1
            while (name := f"{stem}{number:0{places}d}") in taken:
                number += 1
            return name
        while True:
            letters = self._rng.choices(NAME_LETTERS, k=NAME_SUFFIX_LENGTH)
            name = f"{group.base_name}-{''.join(letters)}"
            if name not in taken:
                return name
