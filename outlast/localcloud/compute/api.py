"""The front of Compute Engine's API: versions v1 and beta, checks, repeats, operations, refusals.

Request bodies are checked against Google's own discovery documents, and against rules that those do
not state."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.compute import listing, rules
from outlast.localcloud.compute.calls import (
    Call,
    Handler,
    Repeats,
    Row,
    aggregated,
    listed,
    unknown,
)
from outlast.localcloud.compute.catalogue import ALL_ZONES, ZONES, has_zone
from outlast.localcloud.compute.fleet.model import Exists, InUse, Invalid, ModelError, NotFound
from outlast.localcloud.compute.links import HOST, Json, in_version
from outlast.localcloud.compute.operations import Operations
from outlast.localcloud.http import discovery
from outlast.localcloud.http.bodies import read_json

VERSIONS = ("v1", "beta")
Until = Callable[[Callable[[], bool]], Awaitable[None]]


ALSO = {
    **{
        f"{kind}.{verb}": ("networks.updatePolicy",)
        for kind in ("firewalls", "routers", "subnetworks")
        for verb in ("create", "delete", "update")
    },
    "instanceGroupManagers.create": ("instances.create", "instanceTemplates.useReadOnly"),
}
"""What else a call needs besides its own permission: methods firewalls.insert, subnetworks.insert,
routers.insert and instanceGroupManagers.insert of the reference of the Compute API. From memory
(docs/assumptions.md)."""


class Api:
    """Authorizes and checks calls, and answers with the result or refusal of their handlers."""

    def __init__(
        self, cloud: Cloud, operations: Operations, until: Until, wake: Callable[[], None]
    ) -> None:
        """`until` waits until a condition is true; `wake` reports that operations have changed."""
        self._cloud = cloud
        self._operations = operations
        self._until = until
        self._wake = wake
        self._repeats = Repeats()

    def forget(self) -> None:
        """Forgets the calls that were answered."""
        self._repeats.clear()

    def routes(self, rows: Sequence[Row]) -> list[BaseRoute]:
        """The routes of the rows and of operations, in every version."""
        table = [
            *rows,
            (
                *("GET", "aggregated/operations", self._aggregate_operations),
                "globalOperations.list",
            ),
        ]
        for scope in ("global", "zones/{zone}", "regions/{region}"):
            kind = scope.partition("/")[0].rstrip("s") + "Operations"
            path = scope + "/operations"
            table.append(("GET", path, self._list_operations(scope), f"{kind}.list"))
            path += "/{name}"
            table.append(("GET", path, self._get_operation, f"{kind}.get"))
            table.append(("POST", path + "/wait", self._wait_operation, f"{kind}.get"))
        routes: list[BaseRoute] = []
        for version in VERSIONS:
            for method, path, handler, permission in table:
                path = f"projects/{{project}}/{path}".rstrip("/")
                described = discovery.method(f"compute.{version}", method, path)
                endpoint = self._endpoint(version, handler, permission, described)
                routes.append(Route(f"/compute/{version}/{path}", endpoint, methods=[method]))
        return routes

    def _endpoint(
        self,
        version: str,
        handler: Handler,
        permission: str | None,
        method: discovery.Method,
    ) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a handler. `permission` is None for images, which may be of any
        project."""

        async def answer(request: Request) -> Response:
            body = await read_json(request)
            query = dict(request.query_params)
            params = request.path_params
            self._let_in(request, permission)
            method.check_query(query)
            method.check_body(body)
            call = Call(version, params, query, rules.cleaned(body), body)
            if permission == "instanceTemplates.create" and _has_account(call.body):
                self._cloud.authorize(request, "iam.serviceAccounts.actAs")
            path = request.url.path.partition(f"/projects/{params['project']}/")[2]
            if request.method == "POST" and isinstance(call.body.get("name"), str):
                path += f"/{call.body['name']}"  # the name of the object to create
            request_id = "" if request.method == "GET" else query.get("requestId", "")
            if request_id:
                rules.check_request_id(request_id)
                key = (request.method, path, request_id)
                content = await self._repeats.once(
                    key, lambda: self._handle(handler, call, request.method, path)
                )
                with suppress(KeyError):  # not an operation, or a forgotten one
                    content = self._operations.shown(content["name"])
            else:
                content = await self._handle(handler, call, request.method, path)
            if content.get("kind", "").endswith("List"):
                whole = f"projects/{params['project']}/{path}"
                content = {**content, "id": whole, "selfLink": f"{HOST}/{version}/{whole}"}
            return JSONResponse(in_version(listing.page(content, query), version))

        return answer

    def _let_in(self, request: Request, permission: str | None) -> None:
        params = request.path_params
        project = f"projects/{params['project']}"
        if permission:
            if params["project"] not in (self._cloud.project, self._cloud.project_number):
                raise unknown(project)
            for one in (permission, *ALSO.get(permission, ())):
                self._cloud.authorize(request, f"compute.{one}")
        if "zone" in params and not has_zone(params["zone"]):
            raise unknown(f"{project}/zones/{params['zone']}")
        if "region" in params and params["region"] not in ZONES:
            raise unknown(f"{project}/regions/{params['region']}")

    async def _handle(self, handler: Handler, call: Call, method: str, path: str) -> Json:
        trouble = None
        if method != "GET":
            trouble = self._operations.trouble(method, path)
        if trouble and trouble.error:
            return self._operations.record(method.lower(), path, "0", error=trouble.error)
        try:
            content = await handler(call)
        except ModelError as error:
            raise self._refusal(error) from None
        if trouble and trouble.delay_sec > 0 and content.get("kind") == "compute#operation":
            content = self._operations.slowed(content, trouble.delay_sec)
            self._wake()
        return content

    def _refusal(self, error: ModelError) -> ApiError:
        path = f"projects/{self._cloud.project}/{error}"
        if isinstance(error, NotFound):
            return unknown(path)
        if isinstance(error, Exists):
            return ApiError(409, f"The resource '{path}' already exists", "alreadyExists")
        if isinstance(error, InUse):
            return ApiError(
                400,
                f"The {error.kind} resource 'projects/{self._cloud.project}/{error.used}' is "
                f"already being used by '{path}'",
                "resourceInUseByAnotherResource",
            )
        assert isinstance(error, Invalid)
        reason = "resourceNotReady" if str(error).endswith("is not ready") else "invalid"
        return ApiError(400, str(error), reason)

    async def _get_operation(self, call: Call) -> Json:
        try:
            return self._operations.shown(call["name"])
        except KeyError:
            raise unknown(f"projects/{self._cloud.project}/operations/{call['name']}") from None

    async def _wait_operation(self, call: Call) -> Json:
        await self._get_operation(call)
        await self._until(lambda: self._operations.finished(call["name"]))
        return await self._get_operation(call)

    def _list_operations(self, scope: str) -> Handler:
        """The handler of the list of a zone, a region or `global`."""

        async def handle(call: Call) -> Json:
            return listed("operationList", self._operations.of(scope.format_map(dict(call.params))))

        return handle

    async def _aggregate_operations(self, call: Call) -> Json:
        places = ["global", *(f"regions/{r}" for r in ZONES), *(f"zones/{z}" for z in ALL_ZONES)]
        scopes = {place: self._operations.of(place) for place in places}
        return aggregated("operation", "operations", scopes, lambda operation: operation)


def _has_account(body: Json) -> bool:
    """Whether VMs of a template run as a service account, which its creator must be allowed to
    use."""
    return bool((body.get("properties") or {}).get("serviceAccounts"))
