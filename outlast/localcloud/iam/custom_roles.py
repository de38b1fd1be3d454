"""Custom roles: the API's calls for them."""

import re
import time
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.http.bodies import etag_of, read_json, snake_to_camel
from outlast.localcloud.iam.calls import Row, check_project

ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
PERMISSION = re.compile(r"[a-zA-Z0-9]+(?:\.[a-zA-Z0-9]+){2,}")
MAX_CUSTOM_ROLES = 300
DAY_SEC = 86_400
DELETED_AT = "deletedAt"
"""Our key for the time of a deletion, which the API does not show."""


@dataclass
class Switches:
    """What happens to deleted roles."""

    role_restorable_sec: float = 7 * DAY_SEC
    """Seconds for which a deleted role can be restored (method projects.roles.delete)."""
    role_id_taken_sec: float = 37 * DAY_SEC
    """Seconds for which its id cannot be used again (page "Create and manage custom roles")."""


class CustomRoles:
    """The custom roles of the one project."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._roles = cloud.state.table("iam/roles")
        """Roles by full name; a deleted one stays, marked as deleted."""

        self.switches = Switches()

    def reset(self) -> None:
        """Forgets changed switches."""
        self.switches = Switches()

    def names(self, *, deleted: bool) -> list[str]:
        """The names of the deleted roles, or of the others."""
        roles = self._roles.values()
        return [role["name"] for role in roles if bool(role.get("deleted")) == deleted]

    def routes(self) -> list[Row]:
        """The routes of these calls."""
        roles = "v1/projects/{project}/roles"
        role = roles + "/{role}"
        return [
            ("iam", "POST", roles, self._create_role),
            ("iam", "GET", roles, self._list_roles),
            ("iam", "POST", role + ":undelete", self._undelete_role),
            ("iam", "GET", role, self._get_role),
            ("iam", "PATCH", role, self._patch_role),
            ("iam", "DELETE", role, self._delete_role),
        ]

    def _role(self, request: Request) -> Entry:
        check_project(self._cloud, request)
        name = f"projects/{self._cloud.project}/roles/{request.path_params['role']}"
        self._forget_old()
        if name not in self._roles:
            raise ApiError(404, f"The role named {name} was not found.", "notFound")
        return self._roles[name]

    def _forget_old(self) -> None:
        """Frees the ids of roles that were deleted long ago."""
        for name, role in list(self._roles.items()):
            if self._deleted_sec(role) > self.switches.role_id_taken_sec:
                del self._roles[name]

    def _deleted_sec(self, role: Entry) -> float:
        """Seconds since the deletion; -1 for a role that is not deleted."""
        return time.time() - role[DELETED_AT] if DELETED_AT in role else -1.0

    def _is_lost(self, role: Entry) -> bool:
        """Whether it can no longer be restored; its id is still taken."""
        return self._deleted_sec(role) > self.switches.role_restorable_sec

    def _keep_role(self, role: Entry) -> Entry:
        fields = {k: v for k, v in role.items() if k != "etag"}
        stamp = self._cloud.state.next_number()
        self._roles[role["name"]] = {**fields, "etag": etag_of((stamp, fields))}
        return _shown(self._roles[role["name"]])

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
        check_project(self._cloud, request)
        self._cloud.authorize(request, "iam.roles.create")
        body = await read_json(request)
        role_id = body.get("roleId") or ""
        if not ROLE_ID.fullmatch(role_id):
            raise ApiError(400, f"roleId {role_id!r}: must be 3 to 64 of a-z, A-Z, 0-9, _ and .")
        name = f"projects/{self._cloud.project}/roles/{role_id}"
        self._forget_old()
        if name in self._roles:
            if self._roles[name].get("deleted"):
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
        if sum(not self._is_lost(role) for role in self._roles.values()) >= MAX_CUSTOM_ROLES:
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
        check_project(self._cloud, request)
        self._cloud.authorize(request, "iam.roles.list")
        deleted = request.query_params.get("showDeleted") == "true"
        roles = [
            _shown(role)
            for role in self._roles.values()
            if not role.get("deleted") or (deleted and not self._is_lost(role))
        ]
        return JSONResponse({"roles": roles} if roles else {})

    async def _get_role(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.roles.get")
        return JSONResponse(_shown(self._role(request)))

    async def _patch_role(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.roles.update")
        role = self._role(request)
        self._check_not_lost(role)
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
        return JSONResponse(self._keep_role({**role, "deleted": True, DELETED_AT: time.time()}))

    async def _undelete_role(self, request: Request) -> Response:
        self._cloud.authorize(request, "iam.roles.undelete")
        self._check_not_lost(self._role(request))
        role = {k: v for k, v in self._role(request).items() if k not in ("deleted", DELETED_AT)}
        return JSONResponse(self._keep_role(role))

    def _check_not_lost(self, role: Entry) -> None:
        if self._is_lost(role):
            raise ApiError(
                400,
                f"The role {role['name']} was permanently deleted and cannot be undeleted.",
                "failedPrecondition",
                status_name="FAILED_PRECONDITION",
            )


def _shown(role: Entry) -> Entry:
    """The role as the API shows it."""
    return {key: value for key, value in role.items() if key != DELETED_AT}
