"""What of a rehearsal exists in a project: finds it by label and name, and deletes it.

Everything that can have the rehearsal's label is found by that alone, and the rest by its fixed
name. No record of what was created is needed, so that a second call cleans up after a killed one
from any machine.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from outlast.base.retry import Limits, Patience
from outlast.cli.errors import RehearsalError
from outlast.cli.rehearsal.google import names
from outlast.cli.rehearsal.google.preflight import asking, meaning
from outlast.cli.rehearsal.rehearsal import Watcher
from outlast.cloud.compute import Compute, ComputeError, Json, Missing
from outlast.cloud.project import Project, without_members

ORDER = ("groups", "vms", "templates", "disks", "bindings", "service_accounts", "roles", "buckets")
"""The kinds, in the order in which they can be deleted. The bucket is last: a killed clean-up is
recognised by it."""
BESIDES_BUCKET = ORDER[:-1]
CLEAN_SEC = 900.0
"""A clean-up that needs longer has failed. A group with its VM takes about three minutes."""
DELETE_SEC = 300.0
SETTLE_SEC = 5.0
"""Seconds between the two looks that must find nothing: a call that was cut off may still create
something."""

_PATIENCE = Patience(limits=Limits(silent_sec=CLEAN_SEC))
"""A network that fails for minutes must not leave VMs behind."""

Found = dict[str, list[str]]
"""Names or paths by kind; every kind has an entry."""


class Leftovers:
    """Everything of a rehearsal in one project."""

    def __init__(self, compute: Compute, project: Project, zone: str) -> None:
        self._compute = compute
        self._project = project
        self._zone = zone
        self._bucket = names.bucket_of(project.project)
        self.settle_sec = SETTLE_SEC

    def find(self) -> Found:
        """What exists, by kind. Raises ComputeError."""
        templates = {
            str(one["name"])
            for one in self._compute.listed("global/instanceTemplates")
            if _is_labelled(one["properties"])
        }
        return {
            "groups": [
                _path(one)
                for one in self._compute.aggregated("instanceGroupManagers")
                if _is_named(str(one["name"])) and _templates_of(one) & templates
            ],
            "vms": [_path(one) for one in self._labelled(self._compute.aggregated("instances"))],
            "templates": [f"global/instanceTemplates/{name}" for name in sorted(templates)],
            "disks": [
                _path(one)
                for one in self._labelled(self._compute.listed(f"zones/{self._zone}/disks"))
            ],
            "bindings": sorted(self._members(self._project.policy())),
            "service_accounts": [
                str(one["email"])
                for one in self._project.accounts()
                if one["email"] in names.accounts_of(self._project.project)
            ],
            "roles": [
                str(role["name"])
                for role in self._project.roles()
                if role["name"].rpartition("/")[2].startswith(names.ROLE)
            ],
            "buckets": [self._bucket] if self.bucket() else [],
        }

    def bucket(self) -> Json | None:
        """The rehearsal's bucket; None if there is none. Raises ComputeError, and RehearsalError if
        a bucket of that name is not a rehearsal's.
        """
        found = self._project.bucket(self._bucket)
        if found and not _is_labelled(found):
            raise RehearsalError(
                f"bucket {self._bucket}: has no label {names.LABEL}={names.VALUE}, so it is not a"
                " rehearsal's and would not be deleted; rename it, or name another --project."
            )
        return found

    def delete(self, watcher: Watcher) -> Found:
        """Deletes everything, looks again until nothing is left, and returns that last look. Raises
        RehearsalError that names what could not be deleted.
        """
        deadline = time.monotonic() + CLEAN_SEC
        trouble: dict[str, str] = {}
        clean = 0
        while True:
            with asking(self._project.project):
                found = _PATIENCE(self.find)
            if not any(found.values()):
                clean += 1
                if clean == 2:
                    return found
                time.sleep(self.settle_sec)
                continue
            clean = 0
            if time.monotonic() > deadline:
                raise RehearsalError(self._left(found, trouble))
            watcher.say(f"deleting {said(found)}")
            trouble = self._round(found)

    def _round(self, found: Found) -> dict[str, str]:
        """Tries to delete each thing once; returns why some could not be. A thing that another one
        still uses is deleted in a later round.
        """
        trouble = {}
        for kind in ORDER:
            for name in found[kind]:
                try:
                    self._delete(kind, name)
                except Missing:
                    continue
                except ComputeError as error:
                    if error.status == 401:
                        raise RehearsalError(
                            f"{meaning(self._project.project, error)} Left: {said(found)}; each VM"
                            " is deleted at its run limit."
                        ) from None
                    trouble[name] = str(error)
            if trouble:
                # What comes later needs what came before to be gone.
                break
        if trouble:
            time.sleep(self.settle_sec)
        return trouble

    def _delete(self, kind: str, name: str) -> None:
        if kind == "bindings":
            policy = self._project.policy()
            self._project.set_policy(without_members(policy, lambda _, member: member == name))
        elif kind == "service_accounts":
            self._project.delete_account(name)
        elif kind == "roles":
            self._project.delete_role(name)
        elif kind == "buckets":
            self._project.empty_bucket(name)
            self._project.delete_bucket(name)
        else:
            self._compute.order("DELETE", name, limit_sec=DELETE_SEC)

    def _labelled(self, items: Iterator[Json]) -> Iterator[Json]:
        return (one for one in items if _is_labelled(one))

    def _members(self, policy: Mapping[str, Any]) -> set[str]:
        """The members of the policy that are accounts of a rehearsal, deleted ones too."""
        return {
            member
            for binding in policy.get("bindings") or ()
            for member in binding.get("members") or ()
            if member.rpartition("serviceAccount:")[2].partition("?")[0]
            in names.accounts_of(self._project.project)
        }

    def _left(self, found: Found, trouble: Mapping[str, str]) -> str:
        why = "; ".join(f"{name}: {error}" for name, error in trouble.items())
        return (
            f"project {self._project.project}: could not delete {said(found)} in"
            f" {CLEAN_SEC / 60:.0f} minutes ({why or 'it comes back'}); run the same command with"
            " --clean-up, or delete it by hand. Each VM is deleted at its run limit."
        )


def said(found: Found) -> str:
    """What was found, in words."""
    return ", ".join(
        f"{kind.replace('_', ' ')} {' '.join(name.rpartition('/')[2] for name in found[kind])}"
        for kind in ORDER
        if found[kind]
    )


def _is_labelled(thing: Mapping[str, Any]) -> bool:
    return (thing.get("labels") or {}).get(names.LABEL) == names.VALUE


def _is_named(name: str) -> bool:
    """Whether it may be a rehearsal's group, which has no labels itself."""
    return name.startswith((f"{names.EXPERIMENT}-", names.PROBE))


def _templates_of(group: Mapping[str, Any]) -> set[str]:
    links = [one.get("instanceTemplate") for one in group.get("versions") or ()]
    links.append(group.get("instanceTemplate"))
    return {str(link).partition("?")[0].rpartition("/")[2] for link in links if link}


def _path(thing: Mapping[str, Any]) -> str:
    """Its path below the project."""
    return str(thing["selfLink"]).partition("/projects/")[2].partition("/")[2]
