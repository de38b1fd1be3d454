"""The front of Compute Engine's API: versions v1 and beta, checks, repeats, operations, refusals.

Request bodies are checked against Google's own discovery documents, and against rules that those do
not state."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
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


FROM_ANY_PROJECT = ("images.get", "images.getFromFamily")
"""Reads of images, which may be of a public project."""


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
        permission: str,
        method: discovery.Method,
    ) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a handler. For those of `FROM_ANY_PROJECT`, other projects let
        everyone in."""

        async def answer(request: Request) -> Response:
            body = await read_json(request)
            query = dict(request.query_params)
            params = request.path_params
            self._let_in(request, permission)
            method.check_query(query)
            method.check_body(body)
            call = Call(version, params, query, rules.cleaned(body), body)
            for one in _needed(permission, call.body):
                self._cloud.authorize(request, one)
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

    def _let_in(self, request: Request, permission: str) -> None:
        params = request.path_params
        project = f"projects/{params['project']}"
        ours = params["project"] in (self._cloud.project, self._cloud.project_number)
        if ours or permission not in FROM_ANY_PROJECT:
            if not ours:
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


def _needed(permission: str, body: Json) -> Iterator[str]:
    """What else a call needs because of its body: methods instances.insert, images.insert and
    instanceTemplates.insert of the reference of the Compute API. From memory
    (docs/assumptions.md)."""
    properties = body.get("properties") or {} if permission == "instanceTemplates.create" else body
    creates = permission in ("instances.create", "instanceTemplates.create")
    if creates and properties.get("serviceAccounts"):
        yield "iam.serviceAccounts.actAs"
    if permission == "instances.create":
        interfaces = body.get("networkInterfaces") or []
        for one, is_needed in (
            ("disks.create", any(disk.get("initializeParams") for disk in body.get("disks") or [])),
            ("instances.setLabels", body.get("labels")),
            ("instances.setMetadata", body.get("metadata")),
            ("instances.setServiceAccount", body.get("serviceAccounts")),
            ("subnetworks.use", interfaces),
            ("subnetworks.useExternalIp", any(one.get("accessConfigs") for one in interfaces)),
        ):
            if is_needed:
                yield f"compute.{one}"
    if permission == "images.create":
        if body.get("sourceDisk"):
            yield "compute.disks.useReadOnly"
        if body.get("labels"):
            yield "compute.images.setLabels"
