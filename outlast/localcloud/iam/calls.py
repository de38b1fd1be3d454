"""Helpers for the calls of IAM and Resource Manager."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.http import discovery
from outlast.localcloud.http.bodies import read_json

Endpoint = Callable[[Request], Awaitable[Response]]
Row = tuple[str, str, str, Endpoint]
"""API, method, path, handler."""


def route(api: str, method: str, path: str, handler: Endpoint) -> Route:
    """The route of a call, which is first checked against its discovery document."""
    described = discovery.method(f"{api}.v1", method, path)

    async def answer(request: Request) -> Response:
        described.check_query(request.query_params)
        described.check_body(await read_json(request))
        return await handler(request)

    return Route(f"/{api}/{path}", answer, methods=[method])


def check_project(cloud: Cloud, request: Request, *, wildcard: bool = False) -> None:
    """Raises ApiError 403 unless a call is for the one project; with `wildcard`, `-` is accepted
    too."""
    asked = request.path_params["project"]
    if asked not in (cloud.project, cloud.project_number) and not (wildcard and asked == "-"):
        raise ApiError(
            403, f"The caller does not have permission on project {asked!r} (or it may not exist)."
        )
