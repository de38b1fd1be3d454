"""Custom roles: the API's calls for them."""

import re

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


class CustomRoles:
    """The custom roles of the one project."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._roles = cloud.state.table("iam/roles")
        """Roles by full name; a deleted one stays, marked as deleted."""

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
        if name not in self._roles:
            raise ApiError(404, f"The role named {name} was not found.", "notFound")
        return self._roles[name]

    def _keep_role(self, role: Entry) -> Entry:
        fields = {k: v for k, v in role.items() if k != "etag"}
        stamp = self._cloud.state.next_number()
        self._roles[role["name"]] = {**fields, "etag": etag_of((stamp, fields))}
        return self._roles[role["name"]]

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
        if len(self._roles) >= MAX_CUSTOM_ROLES:
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
        roles = [role for role in self._roles.values() if deleted or not role.get("deleted")]
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
