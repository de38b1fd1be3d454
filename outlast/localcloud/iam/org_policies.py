"""Organization policies of the project, as far as a caller may set and read them."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.http.bodies import etag_of, read_json
from outlast.localcloud.iam.calls import Row, check_project

BOOLEAN = "compute.disable compute.require compute.skip iam.disable storage.uniform storage.public"
"""How the names of constraints begin that are enforced or not; the others list values."""
EXTERNAL_IP = "constraints/compute.vmExternalIpAccess"


class OrgPolicies:
    """The policies of the one project, which has no ancestors here."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._policies = cloud.state.table("iam/org_policies")
        """Policies by constraint."""

    def routes(self) -> list[Row]:
        """The routes of these calls."""
        project = "v1/projects/{project}"
        api = "cloudresourcemanager"
        return [
            (api, "POST", project + ":setOrgPolicy", self._set),
            (api, "POST", project + ":getOrgPolicy", self._get),
            (api, "POST", project + ":getEffectiveOrgPolicy", self._get),
        ]

    def violation(self, properties: Mapping[str, Any]) -> str:
        """Why no VM of these properties may be created, in the platform's words; empty if one may.
        Only external addresses are enforced."""
        policy = (self._policies.get(EXTERNAL_IP) or {}).get("listPolicy") or {}
        interfaces = properties.get("networkInterfaces") or ()
        forbids = policy.get("allValues") == "DENY" or policy.get("allowedValues")
        if not forbids or not any(interface.get("accessConfigs") for interface in interfaces):
            return ""
        return (
            f"Constraint {EXTERNAL_IP} violated for project {self._cloud.project_number}. Add the"
            " instance to the constraint to use external IP with it."
        )

    async def _set(self, request: Request) -> Response:
        check_project(self._cloud, request)
        self._cloud.authorize(request, "orgpolicy.policy.set")
        policy = (await read_json(request)).get("policy") or {}
        name = str(policy.get("constraint") or "")
        if not name.startswith("constraints/"):
            raise ApiError(400, f"constraint {name!r}: must begin with constraints/")
        kept = {**policy, "etag": etag_of((self._cloud.state.next_number(), policy))}
        self._policies[name] = kept
        return JSONResponse(kept)

    async def _get(self, request: Request) -> Response:
        check_project(self._cloud, request)
        self._cloud.authorize(request, "orgpolicy.policy.get")
        name = str((await read_json(request)).get("constraint") or "")
        known = self._policies.get(name)
        if known:
            return JSONResponse(known)
        begins = tuple(f"constraints/{start}" for start in BOOLEAN.split())
        nothing: Entry = {"listPolicy": {"allValues": "ALLOW"}}
        if name.startswith(begins):
            nothing = {"booleanPolicy": {}}
        return JSONResponse({"constraint": name, **nothing})
