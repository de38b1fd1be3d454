"""Finds what stacks created in a project, without any state, which may be damaged or lost.

The one finder of `outlast audit` and `outlast destroy`. Groups, VMs, disks, addresses, templates
and images are found by the labels of their stack, everything else by the mark that ends its
description (`outlast.spec.labels`), never by name alone. Bindings are found by the account or role
that they name. All lists are of all zones and regions.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from outlast.base.retry import BRIEF
from outlast.cloud.compute import Compute, Json, Missing
from outlast.cloud.project import Project, without_members
from outlast.spec import labels

DELETE_SEC = 300.0
"""For so long a deletion is waited for."""

_MARKED = (
    ("health check", "global/healthChecks"),
    ("firewall rule", "global/firewalls"),
    ("router", "aggregated/routers"),
    ("subnetwork", "aggregated/subnetworks"),
    ("network", "global/networks"),
)
"""Kinds and lists of Compute resources without labels, in an order in which they can be deleted."""
_APART = (("disk", "disks"), ("address", "addresses"))
"""Kinds that no stack declares by themselves."""


@dataclass(frozen=True)
class Resource:
    """Something that a stack created."""

    kind: str
    name: str
    mark: str
    """The stack that created it, as `labels.mark` names it."""
    delete: Callable[[], Any]
    """Deletes it, or finds it gone. Raises ComputeError."""
    path: str = ""
    """Its path below the project; empty for bindings."""
    body: Json = field(default_factory=dict)
    """What the API says of it."""

    @property
    def created(self) -> datetime | None:
        """None if the API does not say it."""
        text = self.body.get("creationTimestamp")
        return datetime.fromisoformat(str(text)) if text else None

    @property
    def is_attached(self) -> bool:
        """Whether a VM uses it, with which it is deleted."""
        return bool(self.body.get("users"))


def billed(project: str, mark: str = "") -> Iterator[Resource]:
    """What stacks declare in Compute Engine, in an order in which it can be deleted; only that of
    one stack if a mark is given. Raises ComputeError.
    """
    compute = Compute(project)

    def wanted(found: str) -> bool:
        return bool(found) and found == (mark or found)

    templates = {
        path_of(one["selfLink"]): (one, found)
        for one in compute.aggregated("instanceTemplates")
        if wanted(found := labels.mark_of(one["properties"].get("labels")))
    }
    for group in compute.aggregated("instanceGroupManagers"):
        of = next((templates[path][1] for path in templates_of(group) if path in templates), "")
        if of:
            yield _resource(compute, "group", group, of)  # A group deletes its VMs.
    for vm in compute.aggregated("instances"):
        if wanted(found := labels.mark_of(vm.get("labels"))):
            yield _resource(compute, "VM", vm, found)
    for template, found in templates.values():
        yield _resource(compute, "template", template, found)
    for image in compute.listed("global/images"):
        if wanted(found := labels.mark_of(image.get("labels"))):
            yield _resource(compute, "image", image, found)
    for kind, path in _MARKED:
        scope, _, collection = path.partition("/")
        listed = compute.aggregated(collection) if scope == "aggregated" else compute.listed(path)
        for one in listed:
            if wanted(found := labels.mark_in(one.get("description"))):
                yield _resource(compute, kind, one, found)


def apart(project: str) -> Iterator[Resource]:
    """Disks and addresses with a stack's labels, attached ones too. No stack declares them by
    themselves, but a VM may leave one, or a person add one. Raises ComputeError."""
    compute = Compute(project)
    for kind, collection in _APART:
        for one in compute.aggregated(collection):
            if found := labels.mark_of(one.get("labels")):
                yield _resource(compute, kind, one, found)


def principals(project: str, mark: str = "") -> Iterator[Resource]:
    """Service accounts, then roles. Raises ComputeError."""
    api = Project(project)
    for one in api.accounts():
        found = labels.mark_in(one.get("description"))
        if found and found == (mark or found):
            email = str(one["email"])
            yield Resource(
                *("service account", email, found, lambda email=email: api.delete_account(email)),
                *(f"serviceAccounts/{email}", one),
            )
    for one in api.roles():
        found = labels.mark_in(one.get("description"))
        if found and found == (mark or found):
            name = str(one["name"])
            short = name.rpartition("/")[2]
            yield Resource(
                *("role", short, found, lambda name=name: api.delete_role(name)),
                *(f"roles/{short}", one),
            )


def bindings(project: str, buckets: Iterable[str], of: Iterable[Resource]) -> Iterator[Resource]:
    """The bindings of these accounts and roles in the policies of the project and of the buckets,
    those of one stack in one policy as one. Raises ComputeError."""
    api = Project(project)
    marks = {
        one.name if one.kind == "service account" else str(one.body["name"]): one.mark for one in of
    }
    if not marks:
        return
    yield from _bindings("the project", api.policy, api.set_policy, marks)
    for bucket in buckets:
        if api.bucket(bucket) is not None:
            yield from _bindings(
                f"gs://{bucket}",
                lambda bucket=bucket: api.bucket_policy(bucket),
                lambda policy, bucket=bucket: api.set_bucket_policy(bucket, policy),
                marks,
            )


def templates_of(group: Json) -> list[str]:
    """The paths of the templates that a group names."""
    used = [group, *(group.get("versions") or [])]
    return [path_of(one.get("instanceTemplate") or "") for one in used]


def path_of(link: str) -> str:
    """A resource's path below its project, without a version."""
    return link.partition("/projects/")[2].partition("/")[2].partition("?")[0]


def _resource(compute: Compute, kind: str, body: Json, mark: str) -> Resource:
    path = path_of(body["selfLink"])
    return Resource(
        *(kind, path.rpartition("/")[2], mark),
        *(lambda: compute.delete(path, limit_sec=DELETE_SEC), path, body),
    )


def _bindings(
    of: str,
    policy: Callable[[], Json],
    set_policy: Callable[[Json], None],
    marks: Mapping[str, str],
) -> Iterator[Resource]:
    """The policy's bindings of these accounts and roles, whose marks are given."""

    def mark_of(role: str, member: str) -> str:
        return marks.get(role) or marks.get(member.removeprefix("serviceAccount:")) or ""

    found: dict[str, set[str]] = {}
    for binding in policy().get("bindings") or ():
        for member in binding.get("members") or ():
            if mark := mark_of(binding["role"], member):
                name = f"{binding['role']} of {member.removeprefix('serviceAccount:')}"
                found.setdefault(mark, set()).add(name)

    def remove(mark: str) -> None:
        # A policy that has changed since it was read is refused, and read again; a bucket that is
        # gone has none.
        with contextlib.suppress(Missing):
            BRIEF(
                lambda: set_policy(
                    without_members(policy(), lambda role, member: mark_of(role, member) == mark)
                )
            )

    for mark, names in found.items():
        yield Resource(
            f"bindings in {of}:", ", ".join(sorted(names)), mark, lambda mark=mark: remove(mark)
        )
