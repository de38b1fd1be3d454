"""IAM and Resource Manager."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from outlast.localcloud.base import switches
from outlast.localcloud.base.access import Target
from outlast.localcloud.base.errors import ApiError, not_implemented
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud, Service
from outlast.localcloud.http.bodies import read_json
from outlast.localcloud.iam.accounts import Accounts
from outlast.localcloud.iam.calls import Row, check_project, route
from outlast.localcloud.iam.custom_roles import CustomRoles
from outlast.localcloud.iam.impersonation import Impersonation
from outlast.localcloud.iam.org_policies import OrgPolicies
from outlast.localcloud.iam.policies import Policies
from outlast.localcloud.iam.predefined import PREDEFINED_ROLES

PREDEFINED_ETAG = "AA=="
"""Every predefined role has this etag."""


class Iam(Service):
    """The one project with its policy, its service accounts and its roles."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._project = f"projects/{cloud.project}"
        self.policies = Policies(cloud)
        self._accounts = Accounts(cloud, self.policies)
        self._roles = CustomRoles(cloud)
        self.org_policies = OrgPolicies(cloud)
        self.impersonation = Impersonation(cloud, self._accounts)

    def audit(self) -> Entry:
        return {
            "service_accounts": self._accounts.emails(),
            "roles": self._roles.names(deleted=False),
            "deleted_roles": self._roles.names(deleted=True),
            "bindings": self.policies.account_bindings(),
        }

    def set_switch(self, name: str, value: Any) -> bool | float:
        """Sets one of `custom_roles.Switches`, as `Service.set_switch`."""
        return switches.set_one(self._roles.switches, name, value)

    async def reset(self) -> None:
        self._roles.reset()

    def routes(self) -> list[BaseRoute]:
        """The routes /iam/v1, /iamcredentials/v1 and /cloudresourcemanager/v1, checked against
        their discovery documents."""
        project = "v1/projects/{project}"
        table: list[Row] = [
            *self._accounts.routes(),
            *self._roles.routes(),
            *self.org_policies.routes(),
            *self.impersonation.routes(),
            ("cloudresourcemanager", "POST", project + ":getIamPolicy", self._get_policy),
            ("cloudresourcemanager", "POST", project + ":setIamPolicy", self._set_policy),
            (
                *("cloudresourcemanager", "POST", project + ":testIamPermissions"),
                self._test_permissions,
            ),
            ("cloudresourcemanager", "GET", project, self._get_project),
            ("iam", "GET", "v1/roles", self._list_predefined_roles),
        ]
        return [route(*row) for row in table]

    async def _get_project(self, request: Request) -> Response:
        check_project(self._cloud, request)
        self._cloud.authorize(request, "resourcemanager.projects.get")
        project = {
            "projectNumber": self._cloud.project_number,
            "projectId": self._cloud.project,
            "lifecycleState": "ACTIVE",
            "name": self._cloud.project,
            "createTime": "2026-01-01T00:00:00.000Z",
        }
        return JSONResponse(project)

    async def _list_predefined_roles(self, request: Request) -> Response:
        """The predefined roles that bindings may name, without their permissions: of most, the
        local cloud knows only those that it checks."""
        self._cloud.caller(request)
        if request.query_params.get("view") == "FULL":
            raise not_implemented("GET", f"{request.url.path}?view=FULL")
        roles = [
            {"name": name, "stage": "GA", "etag": PREDEFINED_ETAG}
            for name in sorted(PREDEFINED_ROLES)
        ]
        return JSONResponse({"roles": roles})

    async def _get_policy(self, request: Request) -> Response:
        check_project(self._cloud, request)
        self._cloud.authorize(request, "resourcemanager.projects.getIamPolicy")
        asked = (await read_json(request)).get("options") or {}
        version = int(
            asked.get("requestedPolicyVersion")
            or request.query_params.get("options.requestedPolicyVersion", 1)
        )
        return JSONResponse(self.policies.read(self._project, version))

    async def _set_policy(self, request: Request) -> Response:
        check_project(self._cloud, request)
        self._cloud.authorize(request, "resourcemanager.projects.setIamPolicy")
        body = await read_json(request)
        self.policies.write(self._project, body.get("policy") or {})
        return JSONResponse(self.policies.read(self._project, 3))

    async def _test_permissions(self, request: Request) -> Response:
        check_project(self._cloud, request)
        asked = (await read_json(request)).get("permissions") or []
        if not isinstance(asked, list) or len(asked) > 100:
            raise ApiError(400, "permissions: must be a list of at most 100 permissions")
        held = self.policies.held(self._cloud.caller(request), asked, Target(self._project))
        return JSONResponse({"permissions": held} if held else {})
