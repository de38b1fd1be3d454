"""The control API, `/_local/…`: the calls of a rehearsal, not those of a stack."""

import time
from collections.abc import Awaitable, Callable

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from outlast.localcloud.base.clock import from_rfc3339, to_rfc3339
from outlast.localcloud.base.errors import ApiError, not_found
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.faults.layer import FaultLayer
from outlast.localcloud.http.bodies import read_json
from outlast.localcloud.scenarios.directors import Directors
from outlast.localcloud.scenarios.scenario import ScenarioError, check


class Control:
    """Routes that inspect the cloud and inject faults."""

    def __init__(self, cloud: Cloud, faults: FaultLayer, director: Directors) -> None:
        self._cloud = cloud
        self._faults = faults
        self._director = director

    def routes(self) -> list[BaseRoute]:
        """The routes below /_local."""
        return [
            Route("/_local/vms", self._list_vms, methods=["GET"]),
            Route("/_local/notes", self._list_notes, methods=["GET"]),
            Route("/_local/vms/{name}/processes", self._enter_vm, methods=["POST"]),
            Route("/_local/vms/{name}/{verb}", self._act_on_vm, methods=["POST"]),
            Route("/_local/faults", self._list_faults, methods=["GET"]),
            Route("/_local/faults", self._add_fault, methods=["POST"]),
            Route("/_local/faults", self._clear_faults, methods=["DELETE"]),
            Route("/_local/faults/{rule}", self._remove_fault, methods=["DELETE"]),
            Route("/_local/requests", self._show_requests, methods=["GET"]),
            Route("/_local/requests", self._count_requests, methods=["PUT", "DELETE"]),
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

    async def _list_notes(self, request: Request) -> Response:
        return JSONResponse(self._cloud.notes)

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

    async def _enter_vm(self, request: Request) -> Response:
        """Takes the process `pid`, which has the VM's environment, for one of the VM's."""
        name, pid = request.path_params["name"], (await read_json(request)).get("pid")
        if not isinstance(pid, int) or isinstance(pid, bool):
            raise ApiError(400, f"pid {pid!r}: must be a process id")
        try:
            self._cloud.machines.enter(name, pid)
        except KeyError:
            raise not_found(f"VM {name}") from None
        except LookupError as error:
            raise ApiError(409, f"VM {name}: {error}") from None
        return JSONResponse({})

    async def _list_faults(self, request: Request) -> Response:
        return JSONResponse(self._faults.shown())

    async def _add_fault(self, request: Request) -> Response:
        return JSONResponse({"id": self._faults.add(await read_json(request))})

    async def _clear_faults(self, request: Request) -> Response:
        self._faults.clear()
        return JSONResponse({})

    async def _remove_fault(self, request: Request) -> Response:
        rule = request.path_params["rule"]
        if not self._faults.remove(rule):
            raise not_found(f"fault {rule}")
        return JSONResponse({})

    async def _show_requests(self, request: Request) -> Response:
        """Lists how often which request came since counting began."""
        return JSONResponse(self._faults.counted())

    async def _count_requests(self, request: Request) -> Response:
        """Begins to count requests (PUT), from none, or ends it (DELETE)."""
        self._faults.count(request.method == "PUT")
        return JSONResponse({})

    async def _show_scenario(self, request: Request) -> Response:
        """Shows the scenario of `?target=`, or the one that was started last."""
        return JSONResponse(self._director.shown(request.query_params.get("target")))

    async def _play_scenario(self, request: Request) -> Response:
        """Starts a scenario, beside those of other targets. The body is its document, or
        {document, target}."""
        body = await read_json(request)
        target = ""
        if "document" in body:
            if set(body) - {"document", "target"} or not isinstance(body.get("target", ""), str):
                raise ApiError(400, "scenario: must be {document, target}, the target a text")
            body, target = body["document"], body.get("target", "")
        try:
            self._director.install(check(body), target)
        except ScenarioError as error:
            raise ApiError(400, str(error)) from None
        return JSONResponse(self._director.shown(target))

    async def _end_scenario(self, request: Request) -> Response:
        """Ends the scenario of `?target=`, or all."""
        self._director.remove(request.query_params.get("target"))
        return JSONResponse({})

    async def _apply_lifecycle(self, request: Request) -> Response:
        """Applies the buckets' lifecycle rules as of `at`, a time in RFC 3339; by default now."""
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
                self._cloud.set_switch(name, value)
            except KeyError:
                raise ApiError(400, f"switch {name!r}: no service has it") from None
            except ValueError as error:
                raise ApiError(400, f"switch {name} {value!r}: {error}") from None
        self._cloud.events.write("switches", switches=switches)
        return JSONResponse({})

    async def _audit(self, request: Request) -> Response:
        """Lists everything that exists, over all services."""
        found: Entry = {}
        for service in self._cloud.services.values():
            found |= service.audit()
        return JSONResponse(found)

    async def _reset(self, request: Request) -> Response:
        """Ends every VM and forgets everything except the events."""
        self._director.clear()
        self._faults.clear()
        for service in self._cloud.services.values():
            await service.reset()
        self._cloud.state.clear()
        self._cloud.events.write("reset")
        return JSONResponse({})

    async def _stop(self, request: Request) -> Response:
        return JSONResponse({}, background=BackgroundTask(self._cloud.stop))
