"""The rules that a reviewer applies, as pure functions of the resources that the engine would
create.

A resource has a type, a name and inputs, as the engine has them (camelCase). Values that are
unknown before `up` count as set, such as a deadline. Policy documents are read; a resource of an
unknown type, or with a document that cannot be read, is refused. `outlast preview` and the policy
pack beside this file call `check`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from outlast.spec import keys

TEMPLATES = (
    "gcp:compute/instanceTemplate:InstanceTemplate",
    "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
)
MACHINES = (*TEMPLATES, "gcp:compute/instance:Instance")
BUCKET = "gcp:storage/bucket:Bucket"
RANKED_GROUP = "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager"
"""The only kind of group that can choose among machine types."""

REASON_LABEL = "external-ip"
"""The label that says why a VM has an external address."""

STACK_LABELS = ("managed-by", "project", "stack", "component", "experiment")
SHARED_LABELS = ("managed-by", "component")
"""Labels required of resources that serve several stacks."""

EVERYONE = frozenset({"allUsers", "allAuthenticatedUsers", "principalSet://goog/public:all"})
PRIMITIVE_ROLES = frozenset({"roles/owner", "roles/editor", "roles/admin", "roles/writer"})
"""Owner and editor, and the basic roles that replace them."""
PUBLIC_ACLS = frozenset({"publicread", "publicreadwrite", "authenticatedread"})
"""Predefined access lists that include everyone, without case and separators."""

JUDGED = frozenset(
    {
        *MACHINES,
        BUCKET,
        RANKED_GROUP,
        *(
            f"gcp:compute/{name[0].lower()}{name[1:]}:{name}"
            for name in (
                *("Address", "Disk", "Firewall", "GlobalAddress", "HealthCheck", "Image"),
                *("InstanceGroupManager", "Network", "RegionHealthCheck", "Route", "Router"),
                *("RouterNat", "Snapshot", "Subnetwork"),
            )
        ),
        *(
            f"gcp:storage/{name[0].lower()}{name[1:]}:{name}"
            for name in (
                *("BucketACL", "BucketAccessControl", "BucketIAMBinding", "BucketIAMMember"),
                *("BucketIAMPolicy", "BucketObject", "DefaultObjectACL", "Notification"),
                *("DefaultObjectAccessControl", "Folder", "ManagedFolder", "ObjectACL"),
                *("ManagedFolderIamBinding", "ManagedFolderIamMember", "ManagedFolderIamPolicy"),
                *("ObjectAccessControl",),
            )
        ),
        "gcp:projects/iAMCustomRole:IAMCustomRole",
    }
)
"""Types that the rules can judge, besides grants with readable role and members."""
_MAY_HOLD = re.compile(
    r"(?:gcp|google-native|kubernetes|docker|docker-build|command|aws|aws-native|awsx|azure"
    r"|azure-native|azuread):.*",
    re.I,
)
"""Types that may create machines, buckets or rights, or run a program. Providers add types every
month, so a type that is neither judged nor known to be harmless is refused.
"""
_GRANT = re.compile(r"iam(?:member|binding|policy)$", re.I)
_HARMLESS = frozenset(
    f"gcp:{module}/{name[0].lower()}{name[1:]}:{name}"
    for module, names in {
        "artifactregistry": ("Repository",),
        "billing": ("Budget",),
        "logging": ("Metric", "ProjectBucketConfig"),
        "monitoring": ("AlertPolicy", "Dashboard", "NotificationChannel", "UptimeCheckConfig"),
        "projects": ("Service",),
        "pubsub": ("Schema", "Subscription", "Topic"),
        "secretmanager": ("RegionalSecret", "RegionalSecretVersion", "Secret", "SecretVersion"),
        "serviceaccount": ("Account",),
    }.items()
    for name in names
)
"""Types that do not create machines, buckets or rights."""

_G2 = {"24": 2, "48": 4, "96": 8}
_G4 = {"96": 2, "192": 4, "384": 8}


@dataclass(frozen=True)
class Resource:
    """One resource that the engine would create."""

    type: str
    name: str
    inputs: Mapping[str, Any]
    before: Mapping[str, Any] = field(default_factory=dict)
    """Its current inputs; empty for a new resource, and in the policy pack, which does not know
    them.
    """


@dataclass(frozen=True)
class Limits:
    """An organisation's limits; the policy pack and `outlast preview` have the same defaults."""

    gpus: int = 8
    """The most GPUs of one stack's VMs together."""
    labels: tuple[str, ...] = ()
    """Labels that VMs must have besides Outlast's own."""
    hour: float | None = None
    """The most dollars an hour for one stack's VMs together; None for no limit."""
    allowed: tuple[str, ...] = ()
    """Types that the rules cannot judge and that the organisation allows."""


MANDATORY, ADVISORY, DISABLED = "mandatory", "advisory", "disabled"
LEVELS = {MANDATORY: MANDATORY, "remediate": MANDATORY, ADVISORY: ADVISORY, DISABLED: DISABLED}
"""The engine's enforcement levels, and what each means here, without remediation."""


@dataclass(frozen=True)
class Config:
    """The content of a file for `--policy-pack-config`."""

    limits: Limits = Limits()
    levels: Mapping[str, str] = field(default_factory=dict)
    """Enforcement levels by rule, unless mandatory."""

    def level(self, rule: str) -> str:
        return self.levels.get(rule, MANDATORY)


@dataclass(frozen=True)
class Broken:
    """A broken rule."""

    rule: str
    resource: str
    """The resource's name; empty for the stack as a whole."""
    why: str
    """A sentence with what to do."""


def run_limit(resource: Resource, _limits: Limits) -> str | None:
    """Every VM has a time limit that the platform enforces."""
    if resource.type not in MACHINES:
        return None
    scheduling = resource.inputs.get("scheduling") or {}
    duration = scheduling.get("maxRunDuration")
    if isinstance(duration, Mapping):
        duration = str(duration.get("seconds", "0")).strip("0 ")
    if scheduling.get("terminationTime") or duration:
        return None
    return (
        "scheduling has neither terminationTime nor maxRunDuration: a VM that hangs would bill"
        " forever; set outlast:maxRunMinutes, or give it a maxRunDuration"
    )


def public_access(resource: Resource, _limits: Limits) -> str | None:
    """Nothing is public."""
    if resource.type == BUCKET:
        if resource.inputs.get("publicAccessPrevention") != "enforced":
            return (
                "publicAccessPrevention is not enforced; set it: runs are for the people of the"
                " project only"
            )
        if resource.inputs.get("uniformBucketLevelAccess") is not True:
            return (
                "uniformBucketLevelAccess is not true, so objects may have their own rights; set it"
            )
        return None
    acl = re.sub(r"[^a-z]", "", str(resource.inputs.get("predefinedAcl", "")).lower())
    if acl in PUBLIC_ACLS:
        return f"predefinedAcl {resource.inputs['predefinedAcl']} opens it; leave it out"
    known = {who.strip().lower() for _, who in _grants(resource)}
    found = {who for who in EVERYONE if who.lower() in known}
    if not found:
        return None
    return f"grants {min(found)} access; name the accounts that need it"


def external_ip(resource: Resource, _limits: Limits) -> str | None:
    """An external address needs a reason."""
    if resource.type not in MACHINES:
        return None
    interfaces = resource.inputs.get("networkInterfaces") or ()
    has_address = any(
        interface.get(key) is not None
        for interface in interfaces
        for key in ("accessConfigs", "ipv6AccessConfigs")
        if interface.get(key) != []
    )
    if not has_address or (resource.inputs.get("labels") or {}).get(REASON_LABEL):
        return None
    return (
        "VMs get an external address without a reason; set outlast:network isolated, or give"
        f" the reason in outlast:labels.{REASON_LABEL}"
    )


def primitive_role(resource: Resource, _limits: Limits) -> str | None:
    """No account gets owner or editor."""
    grants = [(role, who) for role, who in _grants(resource) if role in PRIMITIVE_ROLES]
    if not grants:
        return None
    role = min(role for role, _ in grants)
    who = ", ".join(sorted({who for of, who in grants if of == role and who})) or "a member"
    return f"grants {role} to {who}; grant the few permissions that are needed"


def unjudged(resource: Resource, limits: Limits) -> str | None:
    """Resources that may create VMs, buckets or rights have a type that these rules can read."""
    kind = resource.type
    if kind in limits.allowed or kind in _HARMLESS or not _MAY_HOLD.fullmatch(kind):
        return None
    if _GRANT.search(kind):
        if "policyData" not in resource.inputs or _bindings(resource) is not None:
            return None
        return (
            "policyData is not a policy document that can be read before up; write it as a"
            " literal, or grant"
            " with members and bindings"
        )
    if kind in JUDGED:
        return None
    return (
        f"no rule can judge {kind}, which may create VMs, buckets or rights; use another type, or"
        " allow it (unjudged: allowed)"
    )


def labels(resource: Resource, limits: Limits) -> str | None:
    """Resources that bill have labels."""
    if resource.type == BUCKET:
        wanted: tuple[str, ...] = SHARED_LABELS
    elif resource.type in MACHINES:
        wanted = STACK_LABELS + limits.labels
    else:
        return None
    has = resource.inputs.get("labels") or {}
    missing = [key for key in wanted if not has.get(key)]
    if not missing:
        return None
    return f"has no label {', '.join(missing)}; set outlast:labels.{missing[0]}"


def secret(resource: Resource, _limits: Limits) -> str | None:
    """Metadata holds no secret: every process of the VM and many people of the project can read
    it.
    """
    for key, value in _metadata(resource.inputs):
        found = keys.find(value)
        if found is not None:
            return (
                f"metadata {key} holds {found.what}; keep it in Secret Manager and let the VM read"
                " it there"
            )
    return None


def weaker_bucket(resource: Resource, _limits: Limits) -> str | None:
    """A bucket that others may share keeps versions and deleted objects as long as before."""
    if resource.type != BUCKET or not resource.before:
        return None
    had, has = (_protection(inputs) for inputs in (resource.before, resource.inputs))
    lost = [
        f"{what} {had[what]} → {has[what]}"
        for what in sorted(had.keys() & has.keys())
        if had[what] > has[what]
    ]
    if not lost:
        return None
    return (
        f"protects less what is in it ({', '.join(lost)}), and other stacks may rely on it; leave"
        " both as they are, or change them on the bucket itself"
    )


def _protection(inputs: Mapping[str, Any]) -> dict[str, float]:
    """How a bucket protects its content; settings that are left out stay as they are."""
    blocks = {key: inputs.get(key) for key in ("versioning", "softDeletePolicy")}
    values = {key: block for key, block in blocks.items() if isinstance(block, Mapping)}
    versions = values.get("versioning", {}).get("enabled")
    seconds = values.get("softDeletePolicy", {}).get("retentionDurationSeconds")
    found: dict[str, float] = {}
    if isinstance(versions, bool):
        found["versions"] = versions
    if seconds is not None and _is_number(seconds):
        found["seconds of soft delete"] = int(seconds)
    return found


Rule = Callable[[Resource, Limits], str | None]

RULES: Mapping[str, Rule] = {
    "run-limit": run_limit,
    "public-access": public_access,
    "external-ip": external_ip,
    "primitive-role": primitive_role,
    "labels": labels,
    "secret": secret,
    "weaker-bucket": weaker_bucket,
    "unjudged": unjudged,
}
"""Rules about one resource, by name."""

GPU_CEILING = "gpu-ceiling"


def gpu_ceiling(resources: Iterable[Resource], limits: Limits) -> str | None:
    """The one rule about a whole stack."""
    known = list(resources)
    total = sum(max(map(gpus, choices(resource, known))) for resource in known)
    if total <= limits.gpus:
        return None
    return (
        f"its VMs have {total} GPUs, and {limits.gpus} are allowed; choose a smaller machine, or"
        " raise the ceiling"
    )


HOUR_CEILING = "hour-ceiling"
NAMES = (*RULES, GPU_CEILING, HOUR_CEILING)


def hour_ceiling(hour: float, limits: Limits) -> str | None:
    """The VMs of a stack cost at most the allowed dollars an hour."""
    if limits.hour is None or hour <= limits.hour:
        return None
    return (
        f"its VMs cost ${hour:,.2f} an hour at least, and ${limits.hour:,.2f} are allowed; choose a"
        " smaller machine or Spot, or raise the ceiling"
    )


def parse(config: Any) -> Config:
    """Reads a policy pack's configuration: limits and enforcement levels by rule.

    ValueError: one sentence with what is wrong.
    """
    if not isinstance(config, Mapping):
        raise ValueError("must be an object, by rule")
    unknown = sorted(config.keys() - {*NAMES, "all"})
    if unknown:
        raise ValueError(f"{unknown[0]}: is not a rule; there are {', '.join(NAMES)}")
    levels, own = {}, {}
    for rule in NAMES:
        values = config.get(rule, {})
        if isinstance(values, str):
            values = {"enforcementLevel": values}
        if not isinstance(values, Mapping):
            raise ValueError(f"{rule}: must be an object, or an enforcement level")
        own[rule] = values
        every = config.get("all", MANDATORY)
        if isinstance(every, Mapping):
            every = every.get("enforcementLevel", MANDATORY)
        level = values.get("enforcementLevel", every)
        if level not in LEVELS:
            raise ValueError(f"{rule}: enforcementLevel {level!r} must be {', '.join(LEVELS)}")
        levels[rule] = LEVELS[level]
    gpus = own[GPU_CEILING].get("gpus", Limits().gpus)
    # The engine passes whole numbers as 8.0.
    if not _is_number(gpus) or gpus != int(gpus):
        raise ValueError(f"{GPU_CEILING}: gpus {gpus!r} must be a whole number from 0")
    required = own["labels"].get("required", [])
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise ValueError(f"labels: required {required!r} must be a list of names")
    allowed = own["unjudged"].get("allowed", [])
    if not isinstance(allowed, list) or not all(isinstance(one, str) for one in allowed):
        raise ValueError(f"unjudged: allowed {allowed!r} must be a list of types")
    hour = own[HOUR_CEILING].get("dollars")
    if hour is not None and not _is_number(hour):
        raise ValueError(f"{HOUR_CEILING}: dollars {hour!r} must be a number from 0")
    return Config(Limits(int(gpus), tuple(required), hour, tuple(allowed)), levels)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf


def check(resources: Iterable[Resource], limits: Limits = Limits()) -> list[Broken]:
    """All broken rules, in the resources' order."""
    known = list(resources)
    broken = [
        Broken(name, resource.name, why)
        for resource in known
        for name, rule in RULES.items()
        if (why := rule(resource, limits))
    ]
    why = gpu_ceiling(known, limits)
    return broken + ([Broken(GPU_CEILING, "", why)] if why else [])


def choices(resource: Resource, resources: Iterable[Resource]) -> list[Resource]:
    """The resource with each machine type that its VMs may have: the template's own, and those that
    the stack's groups rank, because before `up` it is unknown which group uses the template.
    """
    if resource.type not in TEMPLATES:
        return [resource]
    ranked = {
        str(name).rpartition("/")[2]: None
        for group in resources
        if group.type == RANKED_GROUP
        for selection in _selections(group.inputs)
        for name in selection.get("machineTypes") or ()
    }
    return [
        resource,
        *(
            Resource(resource.type, resource.name, {**resource.inputs, "machineType": name})
            for name in ranked
        ),
    ]


def _selections(inputs: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    policy = inputs.get("instanceFlexibilityPolicy")
    found = policy.get("instanceSelections") if isinstance(policy, Mapping) else None
    return [one for one in found or () if isinstance(one, Mapping)]


def gpus(resource: Resource) -> int:
    """GPUs of one VM of this resource."""
    if resource.type not in MACHINES:
        return 0
    attached = sum(
        int(one.get("count") or 1) for one in resource.inputs.get("guestAccelerators") or ()
    )
    machine = str(resource.inputs.get("machineType", "")).rpartition("/")[2]
    many = re.search(r"-(\d+)g(?:-|$)", machine)
    if many:
        return attached + int(many[1])
    family, _, size = machine.partition("-standard-")
    own = {"g2": _G2.get(size, 1), "g4": _G4.get(size, 1)}.get(family, 0)
    return attached + own


def _grants(resource: Resource) -> Iterator[tuple[str, str]]:
    """Role and member of everything that a resource grants; an access list's entities have the
    list's role."""
    inputs = resource.inputs
    role = str(inputs.get("role") or "")
    named = [inputs.get(key) for key in ("member", "entity") if inputs.get(key)]
    named += inputs.get("members") or ()
    for who in named or ([""] if role and "iam" in resource.type.lower() else []):
        yield role, str(who)
    for key in ("roleEntities", "defaultAcl"):
        for one in _texts(inputs.get(key)):
            of, _, who = one.rpartition(":")
            yield of, who
    for acl in inputs.get("acls") or ():
        if isinstance(acl, Mapping):
            yield str(acl.get("role", "")), str(acl.get("entity", ""))
    for binding in _bindings(resource) or ():
        for who in binding["members"]:
            yield binding["role"], who


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value or ()]


def _bindings(resource: Resource) -> list[dict[str, Any]] | None:
    """Role and members of each binding of a policy document; None if there is no readable one
    (https://cloud.google.com/iam/docs/reference/rest/v1/Policy).
    """
    try:
        policy = json.loads(resource.inputs["policyData"], object_pairs_hook=_once)
        bindings = policy.get("bindings") or ()
        if not policy.keys() <= _POLICY or any(not one.keys() <= _BINDING for one in bindings):
            return None
        return [
            {"role": str(one["role"]), "members": [str(who) for who in one.get("members") or ()]}
            for one in bindings
        ]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


_POLICY = frozenset({"auditConfigs", "bindings", "etag", "version"})
_BINDING = frozenset({"condition", "members", "role"})


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parses a JSON object. Raises ValueError for a key that occurs twice, ignoring case: the
    provider ignores case and would take another value than Python does.
    """
    if len({key.lower() for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _metadata(inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A VM's own metadata, and what a group sets on all of its VMs."""
    whole = inputs.get("allInstancesConfig")
    for of in (inputs, whole if isinstance(whole, Mapping) else {}):
        found = of.get("metadata")
        if isinstance(found, Mapping):
            for key, value in found.items():
                yield str(key), str(value)
    if inputs.get("metadataStartupScript"):
        yield "startup-script", str(inputs["metadataStartupScript"])
