"""IAM and Resource Manager: service accounts, custom roles, policies, and who may do what."""

import base64
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.http import discovery
from outlast.localcloud.http.bodies import parse_object

if TYPE_CHECKING:
    from outlast.localcloud.server import Cloud

Endpoint = Callable[[Request], Awaitable[Response]]

ACCOUNT_ID = re.compile(r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])")
ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
PERMISSION = re.compile(r"[a-zA-Z0-9]+(?:\.[a-zA-Z0-9]+){2,}")
MEMBER = re.compile(
    r"allUsers|allAuthenticatedUsers"
    r"|(?:user|serviceAccount|group|domain|projectOwner|projectEditor|projectViewer):\S+"
    r"|deleted:(?:user|serviceAccount|group):\S+\?uid=\d+"
)
MAX_SERVICE_ACCOUNTS = 100
MAX_CUSTOM_ROLES = 300
MAX_MEMBERS = 1500
MAX_CONDITIONAL_BINDINGS = 20
"""Of one role for one member."""

OBJECT_READ = {"storage.objects.get", "storage.objects.list"}
OBJECT_USE = OBJECT_READ | {
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.move",
    "storage.objects.restore",
    "storage.objects.update",
}
OBJECT_ADMIN = OBJECT_USE | {"storage.objects.getIamPolicy", "storage.objects.setIamPolicy"}
BUCKET_OWN = {
    "storage.buckets.get",
    "storage.buckets.getIamPolicy",
    "storage.buckets.setIamPolicy",
    "storage.buckets.update",
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.list",
}

# The predefined roles whose permissions the local cloud knows. `*` ends a prefix.
PREDEFINED_ROLES: dict[str, set[str]] = {
    "roles/owner": {"*"},
    "roles/editor": {"*"},
    "roles/viewer": {"storage.buckets.list"},
    "roles/storage.admin": {"storage.*"},
    "roles/storage.objectAdmin": OBJECT_ADMIN,
    "roles/storage.objectUser": OBJECT_USE,
    "roles/storage.objectViewer": OBJECT_READ,
    "roles/storage.objectCreator": {"storage.objects.create"},
    "roles/storage.bucketViewer": {"storage.buckets.get", "storage.buckets.list"},
    "roles/storage.legacyBucketReader": {"storage.buckets.get", "storage.objects.list"},
    "roles/storage.legacyBucketWriter": {
        "storage.buckets.get",
        "storage.objects.create",
        "storage.objects.delete",
        "storage.objects.list",
    },
    "roles/storage.legacyBucketOwner": BUCKET_OWN,
    "roles/storage.legacyObjectReader": {"storage.objects.get"},
    "roles/storage.legacyObjectOwner": {
        "storage.objects.get",
        "storage.objects.getIamPolicy",
        "storage.objects.setIamPolicy",
        "storage.objects.update",
    },
    "roles/compute.viewer": {
        "compute.instanceGroupManagers.get",
        "compute.instanceGroupManagers.list",
        "compute.instances.get",
        "compute.instances.list",
    },
    "roles/compute.instanceAdmin.v1": {"compute.*"},
    "roles/compute.admin": {"compute.*"},
    "roles/logging.logWriter": {"logging.logEntries.create"},
    "roles/monitoring.metricWriter": {"monitoring.timeSeries.create"},
    "roles/iam.serviceAccountUser": {"iam.serviceAccounts.actAs"},
    "roles/secretmanager.admin": {"secretmanager.*"},
    "roles/secretmanager.secretAccessor": {"secretmanager.versions.access"},
    "roles/secretmanager.viewer": {
        "secretmanager.secrets.get",
        "secretmanager.secrets.list",
        "secretmanager.versions.get",
        "secretmanager.versions.list",
    },
}

# The one form of condition that is understood: names of objects, their prefixes and those of
# listings, or-ed.
CLAUSE = re.compile(
    r"""\s*(?:(?:
      (?P<name>resource\.name)
      | api\.getAttribute\(\s*(['"])storage\.googleapis\.com/objectListPrefix\2\s*,\s*(?:''|"")\s*\)
    )\.startsWith\(\s*(['"])(?P<prefix>[^'"\\]*)\3\s*\)
    | resource\.name\s*==\s*(['"])(?P<whole>[^'"\\]*)\5
    )\s*""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Caller:
    """Who sends a request: the project's owner, or a VM by its service account."""

    email: str | None = None
    """None: the owner, who may do everything."""
    vm: str | None = None
    """The VM's name, for fault rules; known wherever the token was a VM's."""
    instance: str | None = None
    """The VM's id; a name may have two VMs at once."""


OWNER = Caller()


@dataclass(frozen=True)
class Clause:
    """`attribute.startsWith(prefix)`, or equal to it."""

    attribute: str
    """`name` or `list`."""
    prefix: str
    whole: bool = False

    def holds(self, target: "Target") -> bool:
        value = target.name if self.attribute == "name" else target.list_prefix
        return value == self.prefix if self.whole else value.startswith(self.prefix)


@dataclass(frozen=True)
class Target:
    """What a permission is asked for, as conditions see it."""

    name: str
    """`projects/_/buckets/B/objects/O`, `projects/_/buckets/B` or `projects/P`."""
    list_prefix: str = ""


def parse_condition(expression: str) -> list[Clause]:
    """The clauses of an or-expression; ApiError 400 names an expression of any other form."""
    clauses: list[Clause] = []
    at = 0
    while True:
        match = CLAUSE.match(expression, at)
        if not match:
            raise ApiError(
                400,
                f"condition {expression!r}: the local cloud knows only resource.name.startsWith(…) "
                "and == …, and the objectListPrefix attribute's startsWith(…), joined by ||",
            )
        if match["whole"] is not None:
            clauses.append(Clause("name", match["whole"], whole=True))
        else:
            clauses.append(Clause("name" if match["name"] else "list", match["prefix"]))
        at = match.end()
        if at == len(expression):
            return clauses
        if not expression.startswith("||", at):
            at = len(expression)  # whatever follows is not understood
            continue
        at += 2


def holds(condition: Entry | None, target: Target) -> bool:
    """Whether a binding's condition is true for the target."""
    if not condition:
        return True
    return any(clause.holds(target) for clause in parse_condition(condition["expression"]))


def _binding_key(resource: str, binding: Entry, member: str) -> tuple[str, ...]:
    """What tells the grant of a role to a member from any other grant."""
    return resource, binding["role"], member, (binding.get("condition") or {}).get("expression", "")


def _binding_keys(resource: str, bindings: Iterable[Entry]) -> set[tuple[str, ...]]:
    return {
        _binding_key(resource, binding, member)
        for binding in bindings
        for member in binding["members"]
    }


def etag_of(value: Any) -> str:
    """An etag that changes with the value."""
    digest = hashlib.sha256(repr(value).encode()).digest()
    return base64.b64encode(digest[:8]).decode()


class Iam:
    """Service accounts, roles and policies of the one project."""

    def __init__(self, cloud: "Cloud") -> None:
        self._cloud = cloud
        self.accounts = cloud.state.table("iam/accounts")
        """By email."""
        self.roles = cloud.state.table("iam/roles")
        """By full name; a deleted one stays, marked."""
        self.policies = cloud.state.table("iam/policies")
        """By resource: `projects/P`, `buckets/B`, `serviceAccounts/EMAIL`."""

    # -- who may do what ---------------------------------------------------------------------

    def permits(self, caller: Caller, permission: str, target: Target, *resources: str) -> bool:
        """Whether the policies of the project and of these resources grant the permission."""
        if caller.email is None:
            return True
        account = self.accounts.get(caller.email)
        if account is None or account.get("disabled"):
            return False
        members = {f"serviceAccount:{caller.email}", "allUsers", "allAuthenticatedUsers"}
        return any(
            self.grants(binding["role"], permission)
            # Conditions know names of buckets and objects; of a group's permission none is true.
            and (permission.startswith("storage.") or not binding.get("condition"))
            and holds(binding.get("condition"), target)
            and any(
                self._cloud.director.in_force(_binding_key(resource, binding, member), caller)
                for member in members.intersection(binding["members"])
            )
            for resource in (f"projects/{self._cloud.project}", *resources)
            for binding in self.policies.get(resource, {}).get("bindings", [])
        )

    def require(self, caller: Caller, permission: str) -> None:
        """ApiError 403 unless the caller has the permission on the project."""
        project = f"projects/{self._cloud.project}"
        if not self.permits(caller, permission, Target(project)):
            raise ApiError(
                403,
                f"Required '{permission}' permission for '{project}' (caller {caller.email})",
            )

    def grants(self, role: str, permission: str) -> bool:
        """Whether the role, predefined or custom, includes the permission."""
        if role in self.roles:
            custom = self.roles[role]
            return not custom.get("deleted") and permission in custom["includedPermissions"]
        return any(
            permission.startswith(known[:-1]) if known.endswith("*") else permission == known
            for known in PREDEFINED_ROLES.get(role, ())
        )

    # -- policies ----------------------------------------------------------------------------

    def read_policy(self, resource: str, version: int) -> Entry:
        """The policy as a reader that asks for this version sees it.

        Below version 3 a conditional binding has no condition and a role that cannot be written
        back, as in the real API.
        """
        policy = self.policies.get(resource, {"bindings": []})
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

    def write_policy(self, resource: str, policy: Any, *, initial: bool = False) -> None:
        """Replaces a policy after checking it; a stale etag is 409 ABORTED."""
        if not initial:
            current = self.policies.get(resource, {}).get("etag", "ACAB")
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
            - _binding_keys(resource, self.policies.get(resource, {}).get("bindings", []))
        )
        stamp = self._cloud.state.next_number()
        self.policies[resource] = {"bindings": bindings, "etag": etag_of((stamp, bindings))}

    def drop_policy(self, resource: str) -> None:
        """Forgets the policy of a resource that is gone."""
        self.policies.pop(resource, None)

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
        if role in self.roles:
            return not self.roles[role].get("deleted")
        return role in PREDEFINED_ROLES

    def _check_member(self, member: str) -> None:
        if not MEMBER.fullmatch(member):
            raise ApiError(400, f"Invalid member {member!r}: the type of the member is unknown.")
        kind, _, email = member.partition(":")
        ours = email.endswith(f"@{self._cloud.project}.iam.gserviceaccount.com")
        if kind == "serviceAccount" and ours and email not in self.accounts:
            raise ApiError(400, f"Service account {email} does not exist.")

    def _forget_member(self, account: Entry) -> None:
        """Renames a deleted account in every policy, as the real IAM does."""
        old = f"serviceAccount:{account['email']}"
        new = f"deleted:{old}?uid={account['uniqueId']}"
        for resource, policy in list(self.policies.items()):
            if any(old in binding["members"] for binding in policy["bindings"]):
                bindings = [
                    {**b, "members": [new if m == old else m for m in b["members"]]}
                    for b in policy["bindings"]
                ]
                self.policies[resource] = {"bindings": bindings, "etag": etag_of(bindings)}

    def account_bindings(self) -> list[Entry]:
        """[{resource, role, member}] of every member that is a service account; for audits."""
        return [
            {"resource": resource, "role": binding["role"], "member": member}
            for resource, policy in self.policies.items()
            for binding in policy["bindings"]
            for member in binding["members"]
            if "serviceAccount:" in member
        ]

    # -- routes ------------------------------------------------------------------------------

    def routes(self) -> list[BaseRoute]:
        """/iam/v1 and /cloudresourcemanager/v1, held to their discovery documents."""
        accounts = "v1/projects/{project}/serviceAccounts"
        account = accounts + "/{account}"
        roles = "v1/projects/{project}/roles"
        role = roles + "/{role}"
        project = "v1/projects/{project}"
        table: list[tuple[str, str, str, Endpoint]] = [
            ("iam", "POST", accounts, self._create_account),
            ("iam", "GET", accounts, self._list_accounts),
            ("iam", "POST", account + ":enable", self._enable_account),
            ("iam", "POST", account + ":disable", self._disable_account),
            ("iam", "POST", account + ":getIamPolicy", self._get_policy),
            ("iam", "POST", account + ":setIamPolicy", self._set_policy),
            ("iam", "GET", account, self._get_account),
            ("iam", "PATCH", account, self._patch_account),
            ("iam", "DELETE", account, self._delete_account),
            ("iam", "POST", roles, self._create_role),
            ("iam", "GET", roles, self._list_roles),
            ("iam", "POST", role + ":undelete", self._undelete_role),
            ("iam", "GET", role, self._get_role),
            ("iam", "PATCH", role, self._patch_role),
            ("iam", "DELETE", role, self._delete_role),
            ("cloudresourcemanager", "POST", project + ":getIamPolicy", self._get_policy),
            ("cloudresourcemanager", "POST", project + ":setIamPolicy", self._set_policy),
            (
                *("cloudresourcemanager", "POST", project + ":testIamPermissions"),
                self._test_permissions,
            ),
            ("cloudresourcemanager", "GET", project, self._get_project),
        ]
        return [
            Route(
                f"/{api}/{path}",
                _checked(discovery.method(f"{api}.v1", method, path), handler),
                methods=[method],
            )
            for api, method, path, handler in table
        ]

    def _check_project(self, request: Request, *, wildcard: bool = False) -> None:
        asked = request.path_params["project"]
        known = {self._cloud.project, self._cloud.project_number}
        if asked not in known and not (wildcard and asked == "-"):
            raise ApiError(
                403,
                f"The caller does not have permission on project {asked!r} (or it may not exist).",
            )

    # -- service accounts

    def _account(self, request: Request) -> Entry:
        self._check_project(request, wildcard=True)
        asked = request.path_params["account"]
        for account in self.accounts.values():
            if asked in (account["email"], account["uniqueId"]):
                return account
        raise ApiError(404, f"Unknown service account: {asked}", "notFound")

    async def _create_account(self, request: Request) -> Response:
        self._check_project(request)
        self._cloud.authorize(request, "iam.serviceAccounts.create")
        body = await read_json(request)
        account_id = body.get("accountId") or ""
        if not ACCOUNT_ID.fullmatch(account_id):
            raise ApiError(
                400,
                f"accountId {account_id!r}: must be 6 to 30 of a-z, 0-9 and -, begin with a "
                "letter and not end with a dash",
            )
        project = self._cloud.project
        email = f"{account_id}@{project}.iam.gserviceaccount.com"
        if email in self.accounts:
            raise ApiError(
                409,
                f"Service account {account_id} already exists within project projects/{project}.",
                "alreadyExists",
            )
        if len(self.accounts) >= MAX_SERVICE_ACCOUNTS:
            raise ApiError(429, "Maximum number of service accounts on project reached.")
        unique = str(self._cloud.state.next_number()).rjust(21, "1")
        given = body.get("serviceAccount") or {}
        account = {
            "name": f"projects/{project}/serviceAccounts/{email}",
            "projectId": project,
            "uniqueId": unique,
            "email": email,
            "oauth2ClientId": unique,
            **{k: given[k] for k in ("displayName", "description") if given.get(k)},
        }
        return JSONResponse(self._keep_account(account))

    def _keep_account(self, account: Entry) -> Entry:
        fields = {k: v for k, v in account.items() if k != "etag"}
        self.accounts[account["email"]] = {**fields, "etag": etag_of(fields)}
        return self.accounts[account["email"]]

    async def _list_accounts(self, request: Request) -> Response:
        self._check_project(request)
        self._cloud.authorize(request, "iam.serviceAccounts.list")
        accounts = list(self.accounts.values())
        return JSONResponse({"accounts": accounts} if accounts else {})

    async def _get_account(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.serviceAccounts.get")
        return JSONResponse(self._account(request))

    async def _patch_account(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.serviceAccounts.update")
        account = self._account(request)
        body = await read_json(request)
        given = body.get("serviceAccount") or {}
        mask = [snake_to_camel(f) for f in (body.get("updateMask") or "").split(",") if f]
        for name in mask or ("displayName", "description"):
            if name not in ("displayName", "description"):
                raise ApiError(400, f"updateMask {name!r}: only displayName and description change")
            if name in given:
                account = {**account, name: given[name]}
        return JSONResponse(self._keep_account(account))

    async def _enable_account(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.serviceAccounts.enable")
        account = {k: v for k, v in self._account(request).items() if k != "disabled"}
        self._keep_account(account)
        return JSONResponse({})

    async def _disable_account(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.serviceAccounts.disable")
        self._keep_account({**self._account(request), "disabled": True})
        return JSONResponse({})

    async def _delete_account(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.serviceAccounts.delete")
        account = self._account(request)
        del self.accounts[account["email"]]
        self.drop_policy(f"serviceAccounts/{account['email']}")
        self._forget_member(account)
        return JSONResponse({})

    # -- custom roles

    def _role(self, request: Request) -> Entry:
        self._check_project(request)
        name = f"projects/{self._cloud.project}/roles/{request.path_params['role']}"
        if name not in self.roles:
            raise ApiError(404, f"The role named {name} was not found.", "notFound")
        return self.roles[name]

    def _keep_role(self, role: Entry) -> Entry:
        fields = {k: v for k, v in role.items() if k != "etag"}
        stamp = self._cloud.state.next_number()
        self.roles[role["name"]] = {**fields, "etag": etag_of((stamp, fields))}
        return self.roles[role["name"]]

    def _check_role(self, role: Entry, etag: str | None = None) -> None:
        for permission in role.get("includedPermissions") or []:
            if not PERMISSION.fullmatch(permission):
                raise ApiError(400, f"Permission {permission} is not valid.")
        given = role.get("etag")
        if given and etag and given != etag:
            raise ApiError(
                409, "There were concurrent role changes.", "aborted", status_name="ABORTED"
            )

    async def _create_role(self, request: Request) -> Response:
        self._check_project(request)
        self._cloud.authorize(request, "iam.roles.create")
        body = await read_json(request)
        role_id = body.get("roleId") or ""
        if not ROLE_ID.fullmatch(role_id):
            raise ApiError(400, f"roleId {role_id!r}: must be 3 to 64 of a-z, A-Z, 0-9, _ and .")
        name = f"projects/{self._cloud.project}/roles/{role_id}"
        if name in self.roles:
            if self.roles[name].get("deleted"):
                raise ApiError(
                    400,
                    f"You can't create a role with role_id ({role_id}) where there is an existing "
                    "role with that role_id in a deleted state.",
                    "failedPrecondition",
                    status_name="FAILED_PRECONDITION",
                )
            raise ApiError(
                409,
                f"A role named {role_id} in projects/{self._cloud.project} already exists.",
                "alreadyExists",
            )
        if len(self.roles) >= MAX_CUSTOM_ROLES:
            raise ApiError(429, "Maximum number of custom roles on project reached.")
        given = body.get("role") or {}
        self._check_role(given)
        role = {
            "name": name,
            "title": given.get("title") or role_id,
            "includedPermissions": sorted(set(given.get("includedPermissions") or [])),
            "stage": given.get("stage") or "GA",
        }
        if given.get("description"):
            role["description"] = given["description"]
        return JSONResponse(self._keep_role(role))

    async def _list_roles(self, request: Request) -> Response:
        self._check_project(request)
        self._cloud.authorize(request, "iam.roles.list")
        deleted = request.query_params.get("showDeleted") == "true"
        roles = [role for role in self.roles.values() if deleted or not role.get("deleted")]
        return JSONResponse({"roles": roles} if roles else {})

    async def _get_role(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.roles.get")
        return JSONResponse(self._role(request))

    async def _patch_role(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.roles.update")
        role = self._role(request)
        body = await read_json(request)
        self._check_role(body, role["etag"])
        fields = ("title", "description", "includedPermissions", "stage")
        mask = [snake_to_camel(f) for f in request.query_params.get("updateMask", "").split(",")]
        for name in fields:
            if name in body and (mask == [""] or name in mask):
                role = {**role, name: body[name]}
        role["includedPermissions"] = sorted(set(role["includedPermissions"] or []))
        return JSONResponse(self._keep_role(role))

    async def _delete_role(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.roles.delete")
        role = self._role(request)
        if role.get("deleted"):
            raise ApiError(
                400,
                f"The role {role['name']} is already deleted.",
                "failedPrecondition",
                status_name="FAILED_PRECONDITION",
            )
        return JSONResponse(self._keep_role({**role, "deleted": True}))

    async def _undelete_role(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.roles.undelete")
        role = {k: v for k, v in self._role(request).items() if k != "deleted"}
        return JSONResponse(self._keep_role(role))

    # -- the project and its policy

    async def _get_project(self, request: Request) -> Response:
        self._check_project(request)
        self._cloud.authorize(request, "resourcemanager.projects.get")
        project = {
            "projectNumber": self._cloud.project_number,
            "projectId": self._cloud.project,
            "lifecycleState": "ACTIVE",
            "name": self._cloud.project,
            "createTime": "2026-01-01T00:00:00.000Z",
        }
        return JSONResponse(project)

    def _policy_subject(self, request: Request) -> tuple[str, str]:
        """The resource of a policy call and the prefix of its permissions."""
        if "account" in request.path_params:
            return f"serviceAccounts/{self._account(request)['email']}", "iam.serviceAccounts"
        self._check_project(request)
        return f"projects/{self._cloud.project}", "resourcemanager.projects"

    async def _get_policy(self, request: Request) -> Response:
        resource, prefix = self._policy_subject(request)
        self._cloud.authorize(request, f"{prefix}.getIamPolicy")
        asked = (await read_json(request)).get("options") or {}
        version = int(
            asked.get("requestedPolicyVersion")
            or request.query_params.get("options.requestedPolicyVersion", 1)
        )
        return JSONResponse(self.read_policy(resource, version))

    async def _set_policy(self, request: Request) -> Response:
        resource, prefix = self._policy_subject(request)
        self._cloud.authorize(request, f"{prefix}.setIamPolicy")
        body = await read_json(request)
        self.write_policy(resource, body.get("policy") or {})
        return JSONResponse(self.read_policy(resource, 3))

    async def _test_permissions(self, request: Request) -> Response:
        self._check_project(request)
        asked = (await read_json(request)).get("permissions") or []
        if not isinstance(asked, list) or len(asked) > 100:
            raise ApiError(400, "permissions: must be a list of at most 100 permissions")
        project = f"projects/{self._cloud.project}"
        held = self.held(self._cloud.caller(request), asked, Target(project))
        return JSONResponse({"permissions": held} if held else {})

    def held(
        self, caller: Caller, permissions: Iterable[str], target: Target, *resources: str
    ) -> list[str]:
        """Those of the permissions that the caller has."""
        return [p for p in permissions if self.permits(caller, p, target, *resources)]


def _checked(method: discovery.Method, handler: Endpoint) -> Endpoint:
    """The handler behind the checks of its method's query and body."""

    async def answer(request: Request) -> Response:
        method.check_query(request.query_params)
        method.check_body(await read_json(request))
        return await handler(request)

    return answer


async def read_json(request: Request) -> Entry:
    """The request's JSON object; {} for none, ApiError 400 for anything else."""
    return parse_object(await request.body())


def snake_to_camel(name: str) -> str:
    """`included_permissions` as `includedPermissions`; field masks come in either form."""
    first, *rest = name.strip().split("_")
    return "".join(itertools.chain([first], (word.capitalize() for word in rest)))


def utc_text(moment: datetime | None = None) -> str:
    """RFC 3339 with milliseconds, as Google writes times."""
    moment = moment or datetime.now(UTC)
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
