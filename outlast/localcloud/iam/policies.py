"""Policies: stores and checks them, and decides about permissions."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from outlast.localcloud.base.access import Caller, Target
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.http.bodies import etag_of, without_nulls
from outlast.localcloud.iam.conditions import holds, parse_condition
from outlast.localcloud.iam.predefined import PREDEFINED_ROLES

MEMBER = re.compile(
    r"allUsers|allAuthenticatedUsers"
    r"|(?:user|serviceAccount|group|domain|projectOwner|projectEditor|projectViewer):\S+"
    r"|deleted:(?:user|serviceAccount|group):\S+\?uid=\d+"
)
MAX_MEMBERS = 1500
MAX_CONDITIONAL_BINDINGS = 20
"""Conditional bindings of one role for one member."""


class Policies:
    """The policies of the project and its resources."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._accounts = cloud.state.table("iam/accounts")
        self._roles = cloud.state.table("iam/roles")
        self._policies = cloud.state.table("iam/policies")
        """Policies by resource: `projects/P`, `buckets/B`, `secrets/S`."""

    def permits(self, caller: Caller, permission: str, target: Target, *resources: str) -> bool:
        """Whether the policies of the project and of these resources grant the permission."""
        if caller.email is None:
            return True
        account = self._accounts.get(caller.email)
        if account is None or account.get("disabled"):
            return False
        members = {f"serviceAccount:{caller.email}", "allUsers", "allAuthenticatedUsers"}
        return any(
            self.grants(binding["role"], permission)
            # Conditions name buckets and objects, so they are never true for other permissions.
            and (permission.startswith("storage.") or not binding.get("condition"))
            and holds(binding.get("condition"), target)
            and any(
                self._cloud.director.in_force(_binding_key(resource, binding, member), caller)
                for member in members.intersection(binding["members"])
            )
            for resource in (f"projects/{self._cloud.project}", *resources)
            for binding in self._policies.get(resource, {}).get("bindings", [])
        )

    def require(self, caller: Caller, permission: str) -> None:
        """Raises ApiError 403 unless the caller has the permission on the project."""
        project = f"projects/{self._cloud.project}"
        if not self.permits(caller, permission, Target(project)):
            raise ApiError(
                403,
                f"Required '{permission}' permission for '{project}' (caller {caller.email})",
            )

    def grants(self, role: str, permission: str) -> bool:
        """Whether the role, predefined or custom, includes the permission."""
        if role in self._roles:
            custom = self._roles[role]
            return not custom.get("deleted") and permission in custom["includedPermissions"]
        return any(
            permission.startswith(known[:-1]) if known.endswith("*") else permission == known
            for known in PREDEFINED_ROLES.get(role, ())
        )

    def read(self, resource: str, version: int) -> Entry:
        """The policy as shown to a reader that requests this version.

        Below version 3, a conditional binding has no condition and a role that cannot be written
        back, as in the real API."""
        policy = self._policies.get(resource, {"bindings": []})
        bindings = policy["bindings"]
        conditional = any("condition" in binding for binding in bindings)
        if conditional and version < 3:
            bindings = [
                {
                    "role": f"{b['role']}_withcond_{etag_of(b['condition'])}",
                    "members": b["members"],
                }
                if "condition" in b
                else b
                for b in bindings
            ]
        shown = 3 if conditional and version >= 3 else 1
        return {"version": shown, "etag": policy.get("etag", "ACAB"), "bindings": bindings}

    def write(self, resource: str, policy: Any, *, initial: bool = False) -> None:
        """Checks and replaces a policy. Raises ApiError 400, or 409 ABORTED for a stale etag."""
        policy = without_nulls(policy)
        if not initial:
            current = self._policies.get(resource, {}).get("etag", "ACAB")
            etag = policy.get("etag")
            if etag and etag != current:
                raise ApiError(
                    409,
                    "There were concurrent policy changes. Please retry the whole "
                    "read-modify-write with exponential backoff.",
                    "aborted",
                    status_name="ABORTED",
                )
        bindings = self._checked_bindings(policy)
        self._cloud.director.bound(
            _binding_keys(resource, bindings)
            - _binding_keys(resource, self._policies.get(resource, {}).get("bindings", []))
        )
        stamp = self._cloud.state.next_number()
        self._policies[resource] = {"bindings": bindings, "etag": etag_of((stamp, bindings))}

    def kept(self, resource: str) -> Entry:
        """The stored policy; empty if there is none."""
        return self._policies.get(resource, {})

    def drop(self, resource: str) -> None:
        """Forgets the policy of a deleted resource."""
        self._policies.pop(resource, None)

    def _checked_bindings(self, policy: Any) -> list[Entry]:
        merged: dict[tuple[str, str], Entry] = {}
        for binding in policy.get("bindings") or []:
            role, condition = binding.get("role", ""), binding.get("condition") or None
            if not self._role_exists(role):
                raise ApiError(400, f"Role {role} is not supported for this resource.")
            if condition:
                if policy.get("version") != 3:
                    raise ApiError(
                        400,
                        f"version {policy.get('version')}: must be 3 in a policy with a condition",
                    )
                if not condition.get("title"):
                    raise ApiError(400, "condition.title '': a condition must have a title")
                parse_condition(condition.get("expression", ""))
            key = (role, repr(sorted((condition or {}).items())))
            kept = merged.setdefault(key, {"role": role, "members": []})
            if condition:
                kept["condition"] = condition
            for member in binding.get("members") or []:
                self._check_member(member)
                if member not in kept["members"]:
                    kept["members"].append(member)
        bindings = [binding for binding in merged.values() if binding["members"]]
        count = sum(len(binding["members"]) for binding in bindings)
        if count > MAX_MEMBERS:
            raise ApiError(400, f"members {count}: a policy has at most {MAX_MEMBERS}")
        conditional = Counter(
            (binding["role"], member)
            for binding in bindings
            if "condition" in binding
            for member in binding["members"]
        )
        for (role, member), count in conditional.items():
            if count > MAX_CONDITIONAL_BINDINGS:
                raise ApiError(
                    400,
                    f"{member} has {count} conditional bindings of {role}: must be at most "
                    f"{MAX_CONDITIONAL_BINDINGS}",
                )
        return bindings

    def _role_exists(self, role: str) -> bool:
        if role in self._roles:
            return not self._roles[role].get("deleted")
        return role in PREDEFINED_ROLES

    def _check_member(self, member: str) -> None:
        if not MEMBER.fullmatch(member):
            raise ApiError(400, f"Invalid member {member!r}: the type of the member is unknown.")
        kind, _, email = member.partition(":")
        ours = email.endswith(f"@{self._cloud.project}.iam.gserviceaccount.com")
        if kind == "serviceAccount" and ours and email not in self._accounts:
            raise ApiError(400, f"Service account {email} does not exist.")

    def forget_member(self, account: Entry) -> None:
        """Renames a deleted account in every policy, as the real IAM does."""
        old = f"serviceAccount:{account['email']}"
        new = f"deleted:{old}?uid={account['uniqueId']}"
        for resource, policy in list(self._policies.items()):
            if any(old in binding["members"] for binding in policy["bindings"]):
                bindings = [
                    {**b, "members": [new if m == old else m for m in b["members"]]}
                    for b in policy["bindings"]
                ]
                self._policies[resource] = {"bindings": bindings, "etag": etag_of(bindings)}

    def account_bindings(self) -> list[Entry]:
        """[{resource, role, member}] of every member that is a service account; for audits."""
        return [
            {"resource": resource, "role": binding["role"], "member": member}
            for resource, policy in self._policies.items()
            for binding in policy["bindings"]
            for member in binding["members"]
            if "serviceAccount:" in member
        ]

    def held(
        self, caller: Caller, permissions: Iterable[str], target: Target, *resources: str
    ) -> list[str]:
        """The permissions among these that the caller has."""
        return [p for p in permissions if self.permits(caller, p, target, *resources)]


def _binding_key(resource: str, binding: Entry, member: str) -> tuple[str, ...]:
    """The identity of the grant of a role to a member."""
    return resource, binding["role"], member, (binding.get("condition") or {}).get("expression", "")


def _binding_keys(resource: str, bindings: Iterable[Entry]) -> set[tuple[str, ...]]:
    return {
        _binding_key(resource, binding, member)
        for binding in bindings
        for member in binding["members"]
    }
