"""The control API, `/_local/…`: what a rehearsal does to the cloud, not what a stack asks of it."""

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from outlast.localcloud.base.clock import from_rfc3339, to_rfc3339
from outlast.localcloud.base.errors import ApiError, not_found
from outlast.localcloud.base.state import Entry
from outlast.localcloud.iam.service import read_json
from outlast.localcloud.scenarios.scenario import ScenarioError, check

if TYPE_CHECKING:
    from outlast.localcloud.server import Cloud


class Control:
    """Routes to look at the cloud and to do it harm."""

    def __init__(self, cloud: "Cloud") -> None:
        self._cloud = cloud

    def routes(self) -> list[BaseRoute]:
        """Everything below /_local."""
        return [
            Route("/_local/vms", self._list_vms, methods=["GET"]),
            Route("/_local/vms/{name}/{verb}", self._act_on_vm, methods=["POST"]),
            Route("/_local/faults", self._list_faults, methods=["GET"]),
            Route("/_local/faults", self._add_fault, methods=["POST"]),
            Route("/_local/faults", self._clear_faults, methods=["DELETE"]),
            Route("/_local/faults/{rule}", self._remove_fault, methods=["DELETE"]),
            Route("/_local/scenario", self._show_scenario, methods=["GET"]),
            Route("/_local/scenario", self._play_scenario, methods=["PUT"]),
            Route("/_local/scenario", self._end_scenario, methods=["DELETE"]),
            Route("/_local/lifecycle", self._apply_lifecycle, methods=["POST"]),
            Route("/_local/switches", self._set_switches, methods=["POST"]),
            Route("/_local/audit", self._audit, methods=["GET"]),
            Route("/_local/reset", self._reset, methods=["POST"]),
            Route("/_local/stop", self._stop, methods=["POST"]),
        ]

    async def _list_vms(self, request: Request) -> Response:
        return JSONResponse(self._cloud.machines.vms())

    async def _act_on_vm(self, request: Request) -> Response:
        name, verb = request.path_params["name"], request.path_params["verb"]
        machines = self._cloud.machines
        verbs: dict[str, Callable[[str], Awaitable[None]]] = {
            "kill": machines.kill,
            "preempt": machines.preempt,
            "freeze": machines.freeze,
            "thaw": machines.thaw,
        }
        if verb not in verbs:
            raise ApiError(400, f"verb {verb!r}: must be one of {', '.join(verbs)}")
        self._cloud.events.write("control", verb=verb, vm=name)
        try:
            await verbs[verb](name)
        except KeyError:
            raise not_found(f"VM {name}") from None
        return JSONResponse({})

    async def _list_faults(self, request: Request) -> Response:
        return JSONResponse(self._cloud.faults.shown())

    async def _add_fault(self, request: Request) -> Response:
        return JSONResponse({"id": self._cloud.faults.add(await read_json(request))})

    async def _clear_faults(self, request: Request) -> Response:
        self._cloud.faults.clear()
        return JSONResponse({})

    async def _remove_fault(self, request: Request) -> Response:
        rule = request.path_params["rule"]
        if not self._cloud.faults.remove(rule):
            raise not_found(f"fault {rule}")
        return JSONResponse({})

    async def _show_scenario(self, request: Request) -> Response:
        return JSONResponse(self._cloud.director.shown())

    async def _play_scenario(self, request: Request) -> Response:
        """The body is a scenario's document, or {document, target}."""
        body = await read_json(request)
        target = ""
        if "document" in body:
            if set(body) - {"document", "target"} or not isinstance(body.get("target", ""), str):
                raise ApiError(400, "scenario: must be {document, target}, the target a text")
            body, target = body["document"], body.get("target", "")
        try:
            scenario = check(body)
        except ScenarioError as error:
            raise ApiError(400, str(error)) from None
        self._cloud.director.install(scenario, target)
        return JSONResponse(self._cloud.director.shown())

    async def _end_scenario(self, request: Request) -> Response:
        self._cloud.director.remove()
        return JSONResponse({})

    async def _apply_lifecycle(self, request: Request) -> Response:
        """The buckets' lifecycle rules as at `at`, a time in RFC 3339; by default now."""
        body = await read_json(request)
        at = body.get("at", to_rfc3339(time.time()))
        try:
            moment = from_rfc3339(at)
        except (TypeError, ValueError, AttributeError):
            raise ApiError(400, f"at {at!r}: must be a time as 2026-01-31T12:00:00Z") from None
        done = self._cloud.storage.apply_lifecycle(moment)
        self._cloud.events.write("lifecycle", at=at, done=done)
        return JSONResponse({"done": done})

    async def _set_switches(self, request: Request) -> Response:
        switches = await read_json(request)
        for name, value in switches.items():
            try:
                self._set_switch(name, value)
            except KeyError:
                raise ApiError(400, f"switch {name!r}: there is no such switch") from None
            except ValueError as error:
                raise ApiError(400, f"switch {name} {value!r}: {error}") from None
        self._cloud.events.write("switches", switches=switches)
        return JSONResponse({})

    def _set_switch(self, name: str, value: Any) -> None:
        try:
            self._cloud.storage.set_switch(name, value)
        except KeyError:
            self._cloud.machines.set_switch(name, value)

    async def _audit(self, request: Request) -> Response:
        return JSONResponse(self.audit())

    def audit(self) -> Entry:
        """Everything that exists in the cloud, over all services."""
        iam = self._cloud.iam
        roles = iam.roles.values()
        return {
            "buckets": self._cloud.storage.audit(),
            "secrets": self._cloud.secrets.audit(),
            "service_accounts": list(iam.accounts),
            "roles": [role["name"] for role in roles if not role.get("deleted")],
            "deleted_roles": [role["name"] for role in roles if role.get("deleted")],
            "bindings": iam.account_bindings(),
            **self._cloud.machines.audit(),
        }

    async def _reset(self, request: Request) -> Response:
        await self._cloud.reset()
        return JSONResponse({})

    async def _stop(self, request: Request) -> Response:
        return JSONResponse({}, background=BackgroundTask(self._cloud.stop))
