"""What exists of a stack in its project, found without the stack's state, which may be damaged.

Groups, VMs, templates and images are found by the labels of the stack, everything else by the mark
that ends its description (`outlast.spec.labels`), never by name alone, so that another stack's is
left alone. Bindings are found by the service account or the role that they name.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.base.retry import BRIEF
from outlast.cli import engine
from outlast.cli.errors import OperateError
from outlast.cloud.compute import Compute, ComputeError, Json
from outlast.cloud.project import Project, without_members
from outlast.spec import labels

_log = logging.getLogger(__name__)

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


@dataclass(frozen=True)
class Place:
    """Where a stack's resources are, and what they are known by."""

    project: str
    labels: Mapping[str, str]
    bucket: str = ""
    """The stack's bucket, whose policy may name its service account; empty: a foundation's."""

    @property
    def mark(self) -> str:
        return labels.mark(self.labels)


@dataclass(frozen=True)
class Leftover:
    """Something that a stack has made."""

    kind: str
    name: str
    delete: Callable[[], Any]
    """Deletes it, or finds it gone. Raises ComputeError."""


def place_of(stack: str) -> Place | None:
    """From the stack's settings; None if they name no project, or are a foundation's, whose things
    other stacks use. Raises EngineError.
    """
    text = engine.run_engine(["config", "--json", "-s", stack], env=os.environ)
    config = {key: entry.get("value") or "" for key, entry in json.loads(text).items()}
    project = config.get("gcp:project") or os.environ.get("GOOGLE_PROJECT", "")
    if not project or config.get("outlast:part") == "foundation":
        return None
    name = stack.rpartition("/")[2]
    own = labels.of_stack(engine.project_name(), name, config.get("outlast:experiment") or name, {})
    bucket = config.get("outlast:bucket") or f"{project}-outlast"
    return Place(project, own, "" if config.get("outlast:foundation") else bucket)


def delete(place: Place) -> None:
    """Deletes what exists of the stack, and logs what it was.

    Raises OperateError if it cannot be looked for or deleted: something may still be billed. What
    costs nothing (accounts, roles, bindings) is then named in the log.
    """
    try:
        for one in billed(place):
            _delete(one)
    except ComputeError as error:
        wanted = " AND ".join(f"labels.{key}={value}" for key, value in place.labels.items())
        raise OperateError(
            "what the stack's state may have lost could not be looked for or deleted"
            f" ({error}); see what is left, which may be billed: gcloud compute instances list"
            f" --project {place.project} --filter '{wanted}'"
        ) from None
    try:
        for one in identities(place):
            _delete(one)
    except ComputeError as error:
        _log.warning(
            "service accounts, roles and bindings that the stack's state may have lost, which cost"
            f" nothing, were not looked for or not deleted ({error}); see those whose description"
            f" ends in {place.mark}: gcloud iam service-accounts list --project {place.project}"
        )


def billed(place: Place) -> Iterator[Leftover]:
    """Everything in Compute Engine, in an order in which it can be deleted. Raises ComputeError."""
    compute = Compute(place.project)

    def found(kind: str, path: str) -> Leftover:
        return Leftover(
            *(kind, path.rpartition("/")[2]),
            lambda: compute.delete(path, limit_sec=DELETE_SEC),  # A group deletes its VMs.
        )

    templates = {
        template["selfLink"]: template
        for template in compute.aggregated("instanceTemplates")
        if _has(template["properties"].get("labels"), place.labels)
    }
    own = {_path(link) for link in templates}
    for group in compute.aggregated("instanceGroupManagers"):
        used = [group, *(group.get("versions") or [])]
        if any(_path(one.get("instanceTemplate") or "") in own for one in used):
            yield found("group", _path(group["selfLink"]))
    for vm in compute.aggregated("instances"):
        if _has(vm.get("labels"), place.labels):
            yield found("VM", _path(vm["selfLink"]))
    for link in templates:
        yield found("template", _path(link))
    for image in compute.listed("global/images"):
        if _has(image.get("labels"), place.labels):
            yield found("image", _path(image["selfLink"]))
    for kind, path in _MARKED:
        scope, _, collection = path.partition("/")
        listed = compute.aggregated(collection) if scope == "aggregated" else compute.listed(path)
        for one in listed:
            if labels.has_mark(one.get("description"), place.mark):
                yield found(kind, _path(one["selfLink"]))


def identities(place: Place) -> Iterator[Leftover]:
    """The service account, the role, and the bindings of both in the policies of the project and
    the bucket; the bindings first. Raises ComputeError."""
    project = Project(place.project)
    accounts = [
        str(one["email"])
        for one in project.accounts()
        if labels.has_mark(one.get("description"), place.mark)
    ]
    roles = [
        str(one["name"])
        for one in project.roles()
        if labels.has_mark(one.get("description"), place.mark)
    ]
    yield from _bindings("the project", project.policy, project.set_policy, accounts, roles)
    if place.bucket and accounts and project.bucket(place.bucket) is not None:
        yield from _bindings(
            f"gs://{place.bucket}",
            lambda: project.bucket_policy(place.bucket),
            lambda policy: project.set_bucket_policy(place.bucket, policy),
            *(accounts, roles),
        )
    for email in accounts:
        yield Leftover("service account", email, lambda email=email: project.delete_account(email))
    for role in roles:
        name = role.rpartition("/")[2]
        yield Leftover("role", name, lambda role=role: project.delete_role(role))


def _bindings(
    of: str,
    policy: Callable[[], Json],
    set_policy: Callable[[Json], None],
    accounts: list[str],
    roles: list[str],
) -> Iterator[Leftover]:
    """The policy's bindings of these accounts and roles, as one."""

    def is_own(role: str, member: str) -> bool:
        return role in roles or member.removeprefix("serviceAccount:") in accounts

    names = sorted(
        {
            f"{binding['role']} of {member.removeprefix('serviceAccount:')}"
            for binding in policy().get("bindings") or ()
            for member in binding.get("members") or ()
            if is_own(binding["role"], member)
        }
    )

    def remove() -> None:
        # A policy that has changed since it was read is refused, and read again.
        BRIEF(lambda: set_policy(without_members(policy(), is_own)))

    if names:
        yield Leftover(f"bindings in {of}:", ", ".join(names), remove)


def _delete(one: Leftover) -> None:
    _log.info(f"{one.kind} {one.name}: the state did not know it; deleted")
    one.delete()


def _has(given: Json | None, wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= (given or {}).items()


def _path(link: str) -> str:
    """A resource's path below its project, without a version."""
    return link.partition("/projects/")[2].partition("/")[2].partition("?")[0]
