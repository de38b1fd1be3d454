"""The types of Compute Engine's model: objects, refusals, commands.

Pure data. `fleet.Fleet` is the state machine over it: calls of the API and events of the machines
go in, commands for the hypervisor come out.

    ModelError              a call that the model refuses
    |- NotFound
    |- Exists               a name is taken
    |- InUse                something else needs it
    |- Invalid              the call contradicts itself or the state
    Restless                a group that does not come to rest
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

# The statuses of a live VM; with any other, it has no process.
LIVE_STATUSES = ("PROVISIONING", "STAGING", "RUNNING", "STOPPING")

UNKNOWN, HEALTHY, UNHEALTHY = "UNKNOWN", "HEALTHY", "UNHEALTHY"


class ModelError(Exception):
    """A call that the model refuses; the message is Google's or similar."""


class NotFound(ModelError):
    """The template, group or VM does not exist."""


class Exists(ModelError):
    """The name is taken."""


class InUse(ModelError):
    """Another object needs it."""

    def __init__(self, kind: str, used: str, user: str) -> None:
        """`used` and `user` are paths; `kind` is that of the used object."""
        super().__init__(user)
        self.kind = kind
        self.used = used


class Invalid(ModelError):
    """The call contradicts itself or the state."""


class Restless(Exception):
    """A group does not come to rest: a defect of the model, not of a call."""


@dataclass(frozen=True)
class Boot:
    """Boot the VM with a new, empty disk, or with its own."""

    instance: str
    new_disk: bool = True


@dataclass(frozen=True)
class Stop:
    """Ask the VM's system to stop; kill it after the grace period."""

    instance: str


@dataclass(frozen=True)
class Preempt:
    """Set the `preempted` flag, wait for the notice period, then stop as above."""

    instance: str


@dataclass(frozen=True)
class Kill:
    """Kill the VM now."""

    instance: str


@dataclass(frozen=True)
class Discard:
    """Delete the disk of a VM that no longer has a process."""

    instance: str


@dataclass(frozen=True)
class SetMetadata:
    """Give the VM's metadata server the new attributes."""

    instance: str


@dataclass(frozen=True)
class Announce:
    """Announce the host's maintenance in the VM's metadata, as its `maintenance-event`."""

    instance: str
    event: str


@dataclass(frozen=True)
class Probe:
    """Probe the VM with the health check; the result goes to `Vms.probed`."""

    instance: str
    check: str
    """Key of the health check."""


Command = Boot | Stop | Preempt | Kill | Discard | SetMetadata | Announce | Probe


@dataclass(frozen=True)
class Fault:
    """Why a VM could not be created: a code and a sentence as in `lastAttempt.errors`."""

    code: str
    message: str


Vet = Callable[[dict[str, Any], str], Fault | None]
"""Returns the reason that a VM of these properties cannot be created in a zone; None if it can."""


@dataclass
class Switches:
    """Behaviour that the real cloud leaves open, or that a rehearsal wants to be worse than
    usual."""

    recreate_delay_sec: float = 0.2
    """Seconds from the end of a VM to the creation of its successor."""
    retry_delay_sec: float = 1.0
    """Seconds between two tries to create a VM."""
    limit_lowers_target: bool = False
    """Whether a group's target size decreases at a VM's time limit; otherwise the VM is
    recreated."""
    vms_hold_template: bool = False
    """Whether a template counts as used while a VM created from it exists; otherwise only while a
    group's versions name it."""
    automatic_restart: bool = True
    """Whether a VM with automaticRestart boots again after a failure of its host; otherwise its
    group recreates it."""
    no_capacity: bool = False
    """Whether all zones are full."""
    stays_stopping_sec: float = 0.0
    """Seconds that a VM is still shown as STOPPING after its end."""
    maintenance_notice_sec: float = 60.0
    """Seconds from the notice of a host's maintenance to its start."""
    maintenance_notice_gpu_sec: float = 3600.0
    """The same for a VM with GPUs."""


@dataclass
class _Placed:
    """An object of the project or of one region."""

    name: str
    id: str
    created: float
    region: str = field(default="", kw_only=True)
    """Empty for a global object."""

    collection: ClassVar[str]

    @property
    def key(self) -> str:
        return place_key(self.region, self.name)

    @property
    def path(self) -> str:
        return placed_path(self.collection, self.key)


@dataclass
class Template(_Placed):
    """An instance template; never changes."""

    collection = "instanceTemplates"

    description: str
    properties: dict[str, Any]


@dataclass
class HealthCheck(_Placed):
    """The rules by which a VM's health is probed."""

    collection = "healthChecks"

    body: dict[str, Any]

    def number(self, field_name: str, default: int) -> int:
        """A number of the check's body."""
        return int(self.body.get(field_name) or default)


@dataclass
class Instance:
    """A VM, from its creation until its disk is deleted."""

    id: str
    name: str
    zone: str
    created: float
    properties: dict[str, Any]
    group: str | None = None
    location: str = ""
    """The zone or region of its group."""
    status: str = "PROVISIONING"
    started: float | None = None
    stopped: float | None = None
    deadline: float | None = None
    """When a time limit ends it."""
    limited: bool = False
    """Whether a time limit has ended it."""
    preempting: bool = False
    stop_requested: bool = False
    going_down: bool = False
    """Whether its system reported that it stops: then its end is not a failure of the host."""
    discard: bool = False
    """Whether to delete it once it has stopped."""
    restart: bool = False
    """Whether to boot it again on its own disk once it has stopped."""
    hold_sec: float = 0.0
    """Seconds that it is still shown as STOPPING after its end."""
    held_until: float | None = None
    """Until when it is shown as STOPPING although its process has ended."""
    maintenance_at: float | None = None
    """When the announced maintenance of its host starts."""
    fingerprint: int = 1
    address: int = 0
    """Number of its internal address, unique among existing VMs."""

    @property
    def live(self) -> bool:
        """Whether it has, or will have, a process, as far as the platform shows."""
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
    """A managed instance: a name in a group, and the VM that has the name now."""

    name: str
    zone: str
    action: str = "CREATING"
    template: str = ""
    """Key of the template that the VM has or will get."""
    template_id: str = ""
    version: str = ""
    """Name of its version; may be empty."""
    instance: str | None = None
    replace: bool = False
    """Whether the current VM must be deleted before a new one is created."""
    repaired: bool = False
    """Whether the next VM replaces a failed one, so that it may change its zone."""
    limited: bool = False
    """Whether a time limit has ended the VM."""
    retry_at: float = 0.0
    superseded: bool = False
    """Whether it is deleted for a successor of a newer version or in another zone, not for a
    smaller group."""
    health: str = UNKNOWN
    streak: int = 0
    """Number of equal results in a row: positive if healthy, negative if not."""
    verify_until: float | None = None
    """End of the initial delay; None once it has passed or the VM was healthy."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """Errors of the last failed try; empty after a success."""

    @property
    def leaving(self) -> bool:
        return self.action == "DELETING"


@dataclass
class Group:
    """A managed instance group of a zone or of a region."""

    name: str
    location: str
    """Name of a zone or region."""
    id: str
    created: float
    target_size: int
    body: dict[str, Any]
    """The requested body, without name, place, target size and versions."""
    versions: list[dict[str, Any]]
    """One or two of {name, instanceTemplate: as given, template: its key, template_id, targetSize};
    exactly one has no target size."""
    zones: list[str] = field(default_factory=list)
    """Zones of its VMs."""
    health_check: str = ""
    """Key of the health check of its autohealing policy; empty if it has none."""
    fingerprint: int = 1
    deleting: bool = False
    named_ports: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Sets up the counts of members, which `add`, `drop`, `act` and `move` keep up to date."""
        self.members: dict[str, Member] = {}
        self.actions: Counter[str] = Counter()
        self.spread: Counter[str] = Counter()
        """Number of members that stay, by zone."""
        self.outdated: dict[str, None] = {}
        """Names of members that stay and should get another version, in order."""
        self.outgoing = 0
        """Number of members that are being deleted for a successor."""

    @property
    def key(self) -> tuple[str, str]:
        return self.location, self.name

    @property
    def regional(self) -> bool:
        return self.zones != [self.location]

    @property
    def place(self) -> str:
        """`zones/europe-west4-a` or `regions/europe-west4`."""
        return f"{'regions' if self.regional else 'zones'}/{self.location}"

    @property
    def path(self) -> str:
        return f"{self.place}/instanceGroupManagers/{self.name}"

    @property
    def base_name(self) -> str:
        return self.body.get("baseInstanceName") or self.name

    @property
    def main(self) -> dict[str, Any]:
        """The version of all members beyond the target sizes of the others."""
        return next(v for v in self.versions if _size_of(v) is None)

    @property
    def staying(self) -> int:
        """Number of members that count for the target size."""
        return self.spread.total()

    @property
    def shape(self) -> str:
        """How a regional group spreads over its zones."""
        return (self.body.get("distributionPolicy") or {}).get("targetShape") or "EVEN"

    @property
    def healing(self) -> dict[str, Any]:
        """The autohealing policy; empty without one."""
        return (self.body.get("autoHealingPolicies") or [{}])[0]

    def policy(self, section: str, key: str, default: str) -> str:
        """A value of `updatePolicy` or `instanceLifecyclePolicy`."""
        return (self.body.get(section) or {}).get(key) or default

    def allowed(self, key: str) -> int:
        """`maxSurge` or `maxUnavailable` as a number; by default the number of zones. If both are
        percentages that round to 0, an update would never continue, so one VM may be
        unavailable."""
        number = self._limit(key)
        if key == "maxUnavailable" and number == 0 and self._limit("maxSurge") == 0:
            return 1
        return number

    def _limit(self, key: str) -> int:
        limit = (self.body.get("updatePolicy") or {}).get(key) or {}
        if limit.get("fixed") is None and limit.get("percent") is None:
            return len(self.zones)
        return calculated(limit, self.target_size)

    def wanted(self) -> list[int]:
        """Number of members that each version should have."""
        sized = [
            None if size is None else min(calculated(size, self.target_size), self.target_size)
            for size in map(_size_of, self.versions)
        ]
        rest = self.target_size - sum(size or 0 for size in sized)
        return [rest if size is None else size for size in sized]

    def held(self) -> list[int]:
        """Number of members that each version has, without those that are being deleted."""
        staying = [member for member in self.members.values() if not member.leaving]
        return [sum(_has(member, version) for member in staying) for version in self.versions]

    def due(self, member: Member | None = None) -> dict[str, Any]:
        """The version of a member's next VM, or of a new member: its own, unless that has too many
        members and another one too few."""
        if len(self.versions) == 1:
            return self.versions[0]
        own = next((v for v in self.versions if member and _has(member, v)), None)
        if own is not None and member and member.name not in self.outdated:
            return own
        numbers = zip(self.versions, self.held(), self.wanted(), strict=True)
        lacking = [version for version, held, wanted in numbers if held < wanted]
        lacking.sort(key=lambda version: version is self.main)
        return lacking[0] if lacking else own or self.main

    def has_due(self, member: Member) -> bool:
        """Whether a member has the version that it should have."""
        return _has(member, self.due(member))

    def add(self, member: Member) -> None:
        """Adds a member."""
        self.members[member.name] = member
        self._count(member, 1)

    def drop(self, member: Member) -> None:
        """Removes a member."""
        self._count(member, -1)
        del self.members[member.name]
        self.outdated.pop(member.name, None)

    def act(self, member: Member, action: str) -> None:
        """Sets a member's current action."""
        self._count(member, -1)
        member.action = action
        self._count(member, 1)
        if member.leaving:
            self.outdated.pop(member.name, None)

    def move(self, member: Member, zone: str) -> None:
        """Sets the zone of a member's next VM."""
        self._count(member, -1)
        member.zone = zone
        self._count(member, 1)

    def bind(self, member: Member, version: dict[str, Any]) -> None:
        """Sets a member's version."""
        member.template = version["template"]
        member.template_id = version["template_id"]
        member.version = str(version.get("name") or "")
        self.outdated.pop(member.name, None)

    def compare(self) -> None:
        """Finds the outdated members again, after a change of the versions or, if there are two, of
        the members. If a version has too many members, its latest ones should get the other
        version."""
        staying = [member for member in self.members.values() if not member.leaving]
        kept: set[str] = set()
        for version, wanted in zip(self.versions, self.wanted(), strict=True):
            names = [member.name for member in staying if _has(member, version)]
            kept.update(names if len(self.versions) == 1 else names[:wanted])
        self.outdated = {member.name: None for member in staying if member.name not in kept}

    def _count(self, member: Member, by: int) -> None:
        self.actions[member.action] += by
        if member.leaving and member.superseded:
            self.outgoing += by
        if not member.leaving:
            self.spread[member.zone] += by


def calculated(size: dict[str, Any], target_size: int) -> int:
    """A FixedOrPercent as a number of VMs.

    Compute's discovery document (v1, revision 20261106) says of `FixedOrPercent.calculated`:
    percent/100 * targetSize, and "if there is a remainder, the number is rounded"; likewise of
    maxSurge, maxUnavailable and a version's target size. Here it is rounded to the nearest, a half
    up. The document of 2019 said "rounded up" of the first two."""
    if size.get("fixed") is not None:
        return int(size["fixed"])
    return (target_size * int(size["percent"]) + 50) // 100


def _size_of(version: dict[str, Any]) -> dict[str, Any] | None:
    """A version's target size; None if it takes the rest."""
    size = version.get("targetSize") or {}
    return size if {"fixed", "percent"} & {k for k, v in size.items() if v is not None} else None


def _has(member: Member, version: dict[str, Any]) -> bool:
    own = (member.template_id, member.version)
    return own == (version["template_id"], version.get("name") or "")


def place_key(region: str, name: str) -> str:
    """The key of a template or health check: its name, after its region if it has one."""
    return f"{region}/{name}" if region else name


def placed_path(collection: str, key: str) -> str:
    """The path of the template or health check with this key."""
    region, _, name = key.rpartition("/")
    return f"{f'regions/{region}' if region else 'global'}/{collection}/{name}"


def template_path(key: str) -> str:
    """The path of the template with this key."""
    return placed_path(Template.collection, key)


def is_spot(scheduling: dict[str, Any]) -> bool:
    """Whether a VM with this `scheduling` block may be preempted."""
    return scheduling.get("provisioningModel") == "SPOT" or bool(scheduling.get("preemptible"))


def duration_sec(duration: dict[str, Any] | None) -> float:
    """Seconds of an API Duration; 0 for None."""
    if not duration:
        return 0.0
    return int(duration.get("seconds") or 0) + int(duration.get("nanos") or 0) / 1e9


def accept_all(properties: dict[str, Any], zone: str) -> Fault | None:
    """A `Vet` that accepts every VM."""
    return None


def not_ready(path: str) -> Invalid:
    """The refusal of a call that the object's current state does not allow."""
    return Invalid(f"The resource '{path}' is not ready")
