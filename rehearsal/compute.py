"""Compute Engine's REST API, versions v1 and beta, over the model and the hypervisor.

Request bodies are held to Google's own discovery documents and to the rules that those do not say.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from rehearsal import discovery, listing, rules
from rehearsal.answers import HOST, Answers, Json, fingerprint, in_version
from rehearsal.catalogue import MACHINE_TYPES, ZONES, Catalogue, has_zone, region_of
from rehearsal.clock import to_rfc3339
from rehearsal.declared import Declared
from rehearsal.errors import ApiError
from rehearsal.fleet import Fleet
from rehearsal.guest import (
    Hypervisor,
    Machine,
    default_account,
    read_serial,
    service_account,
)
from rehearsal.health import probe
from rehearsal.iam import Caller, read_json
from rehearsal.inventory import TABLES
from rehearsal.metadata import Value, vm_values
from rehearsal.model import (
    Announce,
    Boot,
    Command,
    Discard,
    Exists,
    Fault,
    Group,
    HealthCheck,
    Instance,
    InUse,
    Invalid,
    Kill,
    ModelError,
    NotFound,
    Preempt,
    Probe,
    SetMetadata,
    Stop,
    Template,
    duration_sec,
)
from rehearsal.no_guests import NoGuests
from rehearsal.operations import Operations

if TYPE_CHECKING:
    from rehearsal.peers import Address
    from rehearsal.server import Cloud

VERSIONS = ("v1", "beta")
ALL_ZONES = tuple(zone for zones in ZONES.values() for zone in zones)
VM_ADDRESS = "127.0.0.1"
"""All VMs share this machine's loopback address."""
LONGEST_OPERATION_SEC = 60.0
TEMPLATE_REFERENCE = re.compile(
    r"(?:https?://[^/]+/(?:compute/)?(?:v1|beta)/)?(?:projects/(?P<project>[^/]+)/)?"
    r"(?:(?:global|regions/(?P<region>[^/]+))/)?instanceTemplates/(?P<name>[^/?]+)"
    r"(?:\?uniqueId=(?P<id>\d+))?"
)
MACHINE_TYPE_PATH = "zones/{zone}/machineTypes/{name}"
# What a group's answer adds or keeps elsewhere; a body may carry it, for clients send back whole
# answers.
OUTPUT_FIELDS = (
    *("kind", "id", "creationTimestamp", "selfLink", "zone", "region", "instanceGroup", "status"),
    *("currentActions", "fingerprint", "name", "targetSize", "versions", "instanceTemplate"),
    *("namedPorts", "targetStoppedSize", "targetSuspendedSize"),
)


@dataclass(frozen=True)
class Call:
    """A request that was let in."""

    version: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    body: Json

    def __getitem__(self, name: str) -> str:
        return self.params[name]


Handler = Callable[[Call], Awaitable[Json]]


class Compute:
    """The compute part of a local cloud: its routes, its groups, its VMs."""

    def __init__(self, cloud: "Cloud") -> None:
        self._cloud = cloud
        self._clock = cloud.clock
        options = cloud.options
        self.catalogue = Catalogue(cloud.project, options.images)
        self.fleet = Fleet(
            self._clock,
            project_number=cloud.project_number,
            next_id=cloud.state.next_number,
            vet=self._vet,
        )
        self.hypervisor = self._hypervisor()
        self._answers = Answers(cloud.project, cloud.project_number, self.fleet)
        self.operations = Operations(self._clock, self._answers.link, cloud.state.next_number)
        self._declared = Declared(
            cloud.state,
            self._answers,
            self.catalogue,
            self._clock.now,
            self.operations.record,
            self._disks,
            self._bake,
        )
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        self._executing = asyncio.Lock()
        self._change = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._probes: set[asyncio.Task[None]] = set()
        self._running = False

    def _hypervisor(self) -> Hypervisor | NoGuests:
        options, base_url = self._cloud.options, self._cloud.base_url
        if not options.guests:
            return NoGuests(self._on_report)
        return Hypervisor(
            options.state,
            self._on_report,
            grace_sec=options.grace_sec,
            environment={
                "STORAGE_EMULATOR_HOST": base_url,
                "OUTLAST_COMPUTE_ENDPOINT": f"{base_url}/compute/v1/",
                "OUTLAST_RESOURCE_MANAGER_ENDPOINT": f"{base_url}/cloudresourcemanager/v1/",
                **options.guest_env,
            },
        )

    # What the rest of the cloud asks (`rehearsal.server.Machines`)

    async def start(self) -> None:
        """Takes up the groups of the state, whose VMs have lost their hosts."""
        tables = {name: dict(self._table(name)) for name in TABLES}
        self.fleet.take_up(deepcopy(tables))
        self._running = True
        self._tasks = [
            asyncio.create_task(self._execute_commands()),
            asyncio.create_task(self._tick()),
        ]
        self.changed()

    async def stop(self) -> None:
        """Kills every VM's tree and waits for it; the state stays."""
        self._running = False
        async with self._executing:  # what has begun to boot must be known before it is killed
            for task in (*self._tasks, *self._probes):
                task.cancel()
        await asyncio.gather(*self._tasks, *self._probes, return_exceptions=True)
        self._tasks = []
        await self.hypervisor.close()

    async def reset(self) -> None:
        """Kills every VM and forgets everything."""
        self._running = False
        self.fleet.clear()
        async with self._executing:
            while not self._commands.empty():
                self._commands.get_nowait()
                self._commands.task_done()
            await self.hypervisor.close()
        self._declared.clear()
        self.operations.forget()
        self._running = True
        self.changed()

    def caller(self, token: str) -> Caller | None:
        """The VM that holds this metadata server's token; None for any other."""
        machine = self.hypervisor.holder(token)
        if machine is None:
            return None
        return _caller_of(machine)

    def sender(self, far: "Address", near: "Address") -> Caller | None:
        """The VM whose process is at the far end of a connection. LookupError: nobody any more."""
        machine = self.hypervisor.sender(far, near)
        return machine and _caller_of(machine)

    def vms(self) -> list[Json]:
        """What exists: {name, id, group, zone, status, pid, pids, boots, started}."""
        answer = []
        for instance in self.fleet.instances.values():
            guest = self.hypervisor.guest(instance.id)
            answer.append(
                {
                    "name": instance.name,
                    "id": instance.id,
                    "group": instance.group,
                    "zone": instance.zone,
                    "status": instance.status,
                    "pid": guest.pid if guest else None,
                    "pids": self.hypervisor.pids(instance.id),
                    "boots": self.hypervisor.boots(instance.name),
                    "started": None if instance.started is None else to_rfc3339(instance.started),
                }
            )
        return answer

    async def kill(self, name: str) -> None:
        """SIGKILL of the VM's whole tree: its host has vanished. KeyError: no such VM."""
        await self.hypervisor.kill(self._by_name(name).id)

    async def preempt(self, name: str) -> None:
        """Starts a preemption, of a standard VM too; returns at the flag."""
        instance = self._by_name(name)
        self.fleet.preempt_instance(instance)
        self.changed()
        self._record_preemption(instance)
        await self._commands.join()

    async def freeze(self, name: str) -> None:
        """SIGSTOP of the whole tree."""
        await self.hypervisor.freeze(self._by_name(name).id)

    async def thaw(self, name: str) -> None:
        """SIGCONT of the whole tree."""
        await self.hypervisor.thaw(self._by_name(name).id)

    def audit(self) -> Json:
        """Everything that exists, and every process that lives for it."""
        instances = self.fleet.instances.values()
        return {
            "templates": sorted(self.fleet.templates),
            "health_checks": sorted(self.fleet.health_checks),
            "declared": self._declared.paths(),
            "groups": [name for _, name in sorted(self.fleet.groups)],
            "vms": sorted(instance.name for instance in instances),
            "disks": sorted(disk["name"] for i in instances for disk in self._answers.disks(i)),
            "pids": self.hypervisor.pids(),
        }

    def set_switch(self, name: str, value: Any) -> None:
        """Sets one of `rehearsal.model.Switches`. KeyError: no such; ValueError: wrong type."""
        switches = self.fleet.switches
        known = {field.name: type(getattr(switches, field.name)) for field in fields(switches)}
        kind = known[name]
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, bool | int | float):
            raise ValueError(f"{name} {value!r}: must be a {kind.__name__}.")
        setattr(switches, name, kind(value))
        self.changed()

    # The machinery

    def _vet(self, properties: Mapping[str, Any], zone: str) -> Fault | None:
        """What keeps a VM of these properties from being created, whatever room there is."""
        self._cloud.director.trying(properties)
        return self.catalogue.vet(properties, zone)

    def _by_name(self, name: str) -> Instance:
        for instance in self.fleet.instances.values():
            if instance.name == name:
                return instance
        raise KeyError(name)

    def _table(self, name: str) -> Any:
        return self._cloud.state.table(f"compute/{name}")

    def changed(self) -> None:
        """After each call and event: does what is due, keeps the state, wakes who waits."""
        if not self._running:
            return
        self.fleet.tick()
        for command in self.fleet.take_commands():
            self._commands.put_nowait(command)
        for name, entries in self.fleet.take_changes().items():
            table = self._table(name)
            for key, entry in entries.items():
                if entry is not None:
                    table[key] = entry
                elif key in table:
                    del table[key]
        self._wake()

    def _wake(self) -> None:
        """Wakes everybody who waits for a change."""
        self._change.set()
        self._change = asyncio.Event()

    async def _tick(self) -> None:
        """Wakes the model whenever something is due that nobody announces."""
        while True:
            times = (self.fleet.next_time(), self.operations.next_time())
            due = min((time for time in times if time is not None), default=None)
            wait_sec = None
            if due is not None:
                wait_sec = max(0.0, self._clock.wall_sec(due - self._clock.now()))
            change = self._change
            with suppress(TimeoutError):
                await asyncio.wait_for(change.wait(), wait_sec)
                continue
            self.changed()

    async def _execute_commands(self) -> None:
        while True:
            command = await self._commands.get()
            async with self._executing:
                try:
                    await self._execute(command)
                finally:
                    self._commands.task_done()

    async def _execute(self, command: Command) -> None:
        hypervisor = self.hypervisor
        match command:
            case Boot(instance_id, new_disk):
                if instance := self.fleet.instances.get(instance_id):
                    await hypervisor.boot(self._machine(instance), new_disk=new_disk)
            case Stop(instance_id):
                await hypervisor.stop(instance_id)
            case Preempt(instance_id):
                await hypervisor.preempt(instance_id, *self._cloud.director.notice(instance_id))
            case Kill(instance_id):
                await hypervisor.kill(instance_id)
            case Discard(instance_id):
                await hypervisor.discard(instance_id)
            case SetMetadata(instance_id):
                if instance := self.fleet.instances.get(instance_id):
                    hypervisor.set_attributes(instance_id, _attributes(instance))
            case Announce(instance_id, event):
                if guest := hypervisor.guest(instance_id):
                    guest.tree.set("instance/maintenance-event", event)
            case Probe(instance_id, key):
                if check := self.fleet.health_checks.get(key):
                    self._in_background(self._probe(instance_id, check))

    async def _probe(self, instance_id: str, check: HealthCheck) -> None:
        # Without processes every VM is well.
        healthy = not self._cloud.options.guests or await probe(check, VM_ADDRESS)
        if self._running:
            self.fleet.probed(instance_id, healthy)
            self.changed()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    def _on_report(self, instance_id: str, event: str, why: str) -> None:
        if not self._running:
            return
        instance = self.fleet.instances.get(instance_id)
        name = instance.name if instance else None
        self._cloud.events.write(f"vm-{event}", vm=name, id=instance_id)
        self._cloud.director.on_report(instance_id, event)
        match event:
            case "running":
                self.fleet.running(instance_id)
            case "stopping":
                self.fleet.stopping(instance_id)
            case "exited":
                self.fleet.exited(instance_id)
            case "failed":
                self.fleet.exited(instance_id, Fault("INTERNAL_ERROR", why))
        self.changed()

    def _machine(self, instance: Instance) -> Machine:
        properties = instance.properties
        boot_disk = next((d for d in properties.get("disks") or [] if d.get("boot")), {})
        reference = (boot_disk.get("initializeParams") or {}).get("sourceImage") or ""
        image = self.catalogue.image(reference)
        values: dict[str, Value] = vm_values(
            project=self._cloud.project,
            project_number=self._cloud.project_number,
            instance_id=instance.id,
            name=instance.name,
            zone=instance.zone,
            properties=properties,
            service_account=self._account_of(instance),
            image=image.path if image else "",
        )
        values |= {f"instance/attributes/{k}": v for k, v in _attributes(instance).items()}
        noticed = duration_sec(instance.scheduling.get("preemptionNoticeDuration")) > 0
        machine_type = MACHINE_TYPES.get(str(properties.get("machineType")))
        return Machine(
            instance.id,
            instance.name,
            values,
            image=image.folder if image else None,
            notice_sec=self._cloud.options.notice_sec if noticed else 0.0,
            memory_mb=machine_type.memory_mb if machine_type else 0,
            **self._cloud.director.booting(instance),
        )

    def _account_of(self, instance: Instance) -> str:
        return service_account(instance.properties, self._cloud.project_number)

    async def _until(self, done: Callable[[], bool]) -> None:
        """Waits for the model; an operation that takes too long is answered as running."""
        deadline = asyncio.get_running_loop().time() + LONGEST_OPERATION_SEC
        while not done() and self._running:
            left_sec = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._change.wait(), max(0.0, left_sec))
            except TimeoutError:
                return

    # Routes

    def routes(self) -> list[BaseRoute]:
        """Every path of both versions; they raise ApiError."""
        vm = "zones/{zone}/instances"
        # Method, path, handler, permission; a patch or a call of a group's members is `update`.
        table: list[tuple[str, str, Handler, str | None]] = [
            *self._declared.routes(),
            ("GET", "", self._get_project, "projects.get"),
            ("GET", "zones", self._list_zones, "zones.list"),
            ("GET", "zones/{zone}", self._get_zone, "zones.get"),
            ("GET", "regions", self._list_regions, "regions.list"),
            ("GET", "regions/{region}", self._get_region, "regions.get"),
            ("GET", "zones/{zone}/machineTypes", self._list_machine_types, "machineTypes.list"),
            ("GET", MACHINE_TYPE_PATH, self._get_machine_type, "machineTypes.get"),
            ("GET", "aggregated/instances", self._aggregate_instances, "instances.list"),
            ("POST", vm, self._insert_instance, "instances.create"),
            ("GET", vm, self._list_instances, "instances.list"),
            (
                *("GET", "aggregated/instanceGroupManagers", self._aggregate_groups),
                "instanceGroupManagers.list",
            ),
            (
                *("GET", "aggregated/instanceTemplates", self._aggregate_templates),
                "instanceTemplates.list",
            ),
            ("GET", vm + "/{name}", self._get_instance, "instances.get"),
            ("DELETE", vm + "/{name}", self._delete_instance, "instances.delete"),
            ("GET", "zones/{zone}/operations", self._list_operations, "zoneOperations.list"),
        ]
        for place in ("global", "regions/{region}"):
            table += self._declared_routes(place)
        for place in ("zones/{zone}", "regions/{region}"):
            table += self._group_routes(place)
        vm_verbs: dict[str, tuple[str, Handler]] = {
            "start": ("POST", self._start_instance),
            "stop": ("POST", self._stop_instance),
            "reset": ("POST", self._reset_instance),
            "setMetadata": ("POST", self._set_metadata),
            "simulateMaintenanceEvent": ("POST", self._simulate_maintenance),
            "getGuestAttributes": ("GET", self._get_guest_attributes),
        }
        for verb, (method, handler) in vm_verbs.items():
            table.append((method, vm + "/{name}/" + verb, handler, f"instances.{verb}"))
        path = vm + "/{name}/serialPort"
        table.append(("GET", path, self._get_serial_output, "instances.getSerialPortOutput"))
        for scope in ("global", "zones/{zone}", "regions/{region}"):
            kind = scope.partition("/")[0].rstrip("s") + "Operations"
            path = scope + "/operations/{name}"
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

    def _declared_routes(self, place: str) -> list[tuple[str, str, Handler, str]]:
        """Templates and health checks, global or of a region."""
        template = place + "/instanceTemplates"
        check = place + "/healthChecks"
        named = check + "/{name}"
        return [
            ("POST", template, self._insert_template, "instanceTemplates.create"),
            ("GET", template, self._list_templates, "instanceTemplates.list"),
            ("GET", template + "/{name}", self._get_template, "instanceTemplates.get"),
            ("DELETE", template + "/{name}", self._delete_template, "instanceTemplates.delete"),
            ("POST", check, self._insert_health_check, "healthChecks.create"),
            ("GET", check, self._list_health_checks, "healthChecks.list"),
            ("GET", named, self._get_health_check, "healthChecks.get"),
            ("PUT", named, self._replace_health_check, "healthChecks.update"),
            ("PATCH", named, self._patch_health_check, "healthChecks.update"),
            ("DELETE", named, self._delete_health_check, "healthChecks.delete"),
        ]

    def _group_routes(self, place: str) -> list[tuple[str, str, Handler, str]]:
        """Groups of a zone or of a region."""
        group = place + "/instanceGroupManagers"
        named = group + "/{name}"
        unmanaged = place + "/instanceGroups/{name}"
        table: list[tuple[str, str, Handler, str]] = [
            ("POST", group, self._insert_group, "create"),
            ("GET", group, self._list_groups, "list"),
            ("GET", named, self._get_group, "get"),
            ("PATCH", named, self._patch_group, "update"),
            ("DELETE", named, self._delete_group, "delete"),
            ("GET", named + "/listErrors", self._list_errors, "get"),
            ("POST", named + "/resize", self._resize, "update"),
            ("POST", named + "/listManagedInstances", self._list_members, "get"),
            ("POST", named + "/deleteInstances", self._delete_members, "update"),
            ("POST", named + "/recreateInstances", self._recreate_members, "update"),
            ("POST", named + "/abandonInstances", self._abandon_members, "update"),
            ("POST", named + "/applyUpdatesToInstances", self._update_members, "update"),
        ]
        return [
            *(
                (method, path, handler, f"instanceGroupManagers.{permission}")
                for method, path, handler, permission in table
            ),
            ("GET", unmanaged, self._get_instance_group, "instanceGroups.get"),
            ("POST", unmanaged + "/setNamedPorts", self._set_named_ports, "instanceGroups.update"),
        ]

    def _endpoint(
        self,
        version: str,
        handler: Handler,
        permission: str | None,
        method: discovery.Method,
    ) -> Callable[[Request], Awaitable[Response]]:
        """`permission` None: a public image, of any project."""

        async def answer(request: Request) -> Response:
            body = await read_json(request)
            query = dict(request.query_params)
            params = request.path_params
            if permission:
                own = (self._cloud.project, self._cloud.project_number)
                if params["project"] not in own:
                    raise ApiError(
                        404, f"The resource 'projects/{params['project']}' was not found"
                    )
                self._cloud.authorize(request, f"compute.{permission}")
            if "zone" in params and not has_zone(params["zone"]):
                raise _unknown(f"projects/{params['project']}/zones/{params['zone']}")
            if "region" in params and params["region"] not in ZONES:
                raise _unknown(f"projects/{params['project']}/regions/{params['region']}")
            method.check_query(query)
            method.check_body(body)
            call = Call(version, params, query, rules.cleaned(body))
            path = request.url.path.partition(f"/projects/{params['project']}/")[2]
            if request.method == "POST" and isinstance(call.body.get("name"), str):
                path += f"/{call.body['name']}"  # of what is to be created
            trouble = None
            if request.method != "GET":
                trouble = self.operations.trouble(request.method, path)
            if trouble and trouble.error:
                kind = request.method.lower()
                content = self.operations.record(kind, path, "0", error=trouble.error)
            else:
                try:
                    content = await handler(call)
                except ModelError as error:
                    raise self._refusal(error) from None
            if trouble and trouble.delay_sec > 0 and content.get("kind") == "compute#operation":
                content = self.operations.slowed(content, trouble.delay_sec)
                self._wake()
            if content.get("kind", "").endswith("List"):
                whole = f"projects/{params['project']}/{path}"
                content = {**content, "id": whole, "selfLink": f"{HOST}/{version}/{whole}"}
            return JSONResponse(in_version(listing.page(content, query), version))

        return answer

    def _refusal(self, error: ModelError) -> ApiError:
        path = f"projects/{self._cloud.project}/{error}"
        if isinstance(error, NotFound):
            return _unknown(path)
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

    # Operations

    async def _get_operation(self, call: Call) -> Json:
        try:
            return self.operations.shown(call["name"])
        except KeyError:
            raise _unknown(f"projects/{self._cloud.project}/operations/{call['name']}") from None

    async def _wait_operation(self, call: Call) -> Json:
        await self._get_operation(call)
        await self._until(lambda: self.operations.finished(call["name"]))
        return await self._get_operation(call)

    async def _list_operations(self, call: Call) -> Json:
        return _list("operationList", self.operations.of(f"zones/{call['zone']}"))

    def _record_preemption(self, instance: Instance) -> None:
        path = f"zones/{instance.zone}/instances/{instance.name}"
        self.operations.record("compute.instances.preempted", path, instance.id)

    # What is fixed

    async def _get_project(self, call: Call) -> Json:
        return self._answers.project(default_account(self._cloud.project_number))

    async def _list_zones(self, call: Call) -> Json:
        return _list("zoneList", map(self._answers.zone, ALL_ZONES))

    async def _get_zone(self, call: Call) -> Json:
        return self._answers.zone(call["zone"])

    async def _list_regions(self, call: Call) -> Json:
        return _list("regionList", map(self._answers.region, ZONES))

    async def _get_region(self, call: Call) -> Json:
        return self._answers.region(call["region"])

    async def _list_machine_types(self, call: Call) -> Json:
        types = (self._answers.machine_type(call["zone"], name) for name in MACHINE_TYPES)
        return _list("machineTypeList", types)

    async def _get_machine_type(self, call: Call) -> Json:
        if call["name"] not in MACHINE_TYPES:
            path = f"zones/{call['zone']}/machineTypes/{call['name']}"
            raise _unknown(f"projects/{self._cloud.project}/{path}")
        return self._answers.machine_type(call["zone"], call["name"])

    # Templates

    async def _insert_template(self, call: Call) -> Json:
        name = rules.check_name("resource.name", call.body.get("name"))
        properties = call.body.get("properties")
        if not properties:
            raise rules.invalid("resource.properties", "", "Properties are required.")
        checked = rules.checked_properties(properties)
        region = call.params.get("region", "")
        template = self.fleet.add_template(name, checked, call.body.get("description", ""), region)
        self.changed()
        return self.operations.record("insert", template.path, template.id)

    async def _get_template(self, call: Call) -> Json:
        return self._answers.template(self._template(call))

    def _template(self, call: Call) -> Template:
        return self.fleet.template(call["name"], call.params.get("region", ""))

    async def _list_templates(self, call: Call) -> Json:
        region = call.params.get("region", "")
        templates = [t for t in self.fleet.templates.values() if t.region == region]
        return _list("instanceTemplateList", map(self._answers.template, templates))

    async def _delete_template(self, call: Call) -> Json:
        region = call.params.get("region", "")
        template = self.fleet.delete_template(call["name"], region)
        self.changed()
        return self.operations.record("delete", template.path, template.id)

    # Health checks

    def _health_check(self, call: Call) -> HealthCheck:
        return self.fleet.health_check(call["name"], call.params.get("region", ""))

    def _health_check_operation(self, kind: str, check: HealthCheck) -> Json:
        self.changed()
        return self.operations.record(kind, check.path, check.id)

    async def _insert_health_check(self, call: Call) -> Json:
        name = rules.check_name("resource.name", call.body.get("name"))
        body = rules.checked_health_check(call.body)
        check = self.fleet.add_health_check(name, body, call.params.get("region", ""))
        return self._health_check_operation("insert", check)

    async def _get_health_check(self, call: Call) -> Json:
        return self._answers.health_check(self._health_check(call))

    async def _list_health_checks(self, call: Call) -> Json:
        region = call.params.get("region", "")
        checks = [c for c in self.fleet.health_checks.values() if c.region == region]
        return _list("healthCheckList", map(self._answers.health_check, checks))

    async def _replace_health_check(self, call: Call) -> Json:
        check = self._health_check(call)
        self.fleet.change_health_check(check, rules.checked_health_check(call.body))
        return self._health_check_operation("update", check)

    async def _patch_health_check(self, call: Call) -> Json:
        check = self._health_check(call)
        body = rules.checked_health_check(rules.merged(check.body, call.body))
        self.fleet.change_health_check(check, body)
        return self._health_check_operation("patch", check)

    async def _delete_health_check(self, call: Call) -> Json:
        check = self._health_check(call)
        self.fleet.delete_health_check(check)
        return self._health_check_operation("delete", check)

    # Groups

    def _group(self, call: Call) -> Group:
        regional = "region" in call.params
        return self.fleet.group(_place(call), call["name"], regional=regional)

    def _group_operation(
        self, kind: str, group: Group, done: Callable[[], bool] = lambda: True
    ) -> Json:
        self.changed()
        return self.operations.record(kind, group.path, group.id, done)

    def _versions(self, call: Call) -> list[Json] | None:
        """The versions that a body asks for, each with the template that it means."""
        body, region = call.body, call.params.get("region") or region_of(call["zone"])
        if body.get("versions"):
            asked = [dict(version) for version in body["versions"]]
        elif body.get("instanceTemplate"):
            asked = [{"instanceTemplate": body["instanceTemplate"]}]
        else:
            return None
        if len(asked) > 1:
            raise ApiError(501, "versions: the local cloud has groups of one version.")
        for version in asked:
            reference = str(version.get("instanceTemplate") or "")
            match = TEMPLATE_REFERENCE.fullmatch(reference)
            own = (None, self._cloud.project, self._cloud.project_number)
            if not match or match["project"] not in own:
                raise rules.invalid(
                    "resource.versions[0].instanceTemplate",
                    reference,
                    "Must be the URL of an instance template of the project.",
                )
            unique = f"?uniqueId={match['id']}" if match["id"] else ""
            template = self.fleet.template(match["name"], match["region"] or "")
            if template.region not in ("", region):
                raise rules.invalid(
                    "resource.versions[0].instanceTemplate",
                    reference,
                    f"A regional instance template must be of the group's region {region}.",
                )
            version["instanceTemplate"] = self._answers.link(template.path) + unique
            version["template"] = template.key
            version["template_id"] = match["id"]
        return asked

    async def _insert_group(self, call: Call) -> Json:
        name = rules.check_name("resource.name", call.body.get("name"))
        versions = self._versions(call)
        if not versions:
            raise rules.invalid("resource.versions", "", "An instance template is required.")
        size = call.body.get("targetSize")
        if size is None:
            raise rules.invalid("resource.targetSize", "", "The target size is required.")
        if int(size) < 0:
            raise rules.invalid("resource.targetSize", size, "Must be at least 0.")
        body = {key: value for key, value in call.body.items() if key not in OUTPUT_FIELDS}
        region = call.params.get("region")
        zones = rules.checked_zones(body, region, ZONES[region]) if region else None
        rules.check_group(body, zones)
        group = self.fleet.add_group(_place(call), name, body, versions, int(size), zones)
        self.fleet.set_named_ports(group, call.body.get("namedPorts") or [])
        return self._group_operation("insert", group)

    async def _get_group(self, call: Call) -> Json:
        return self._answers.group(self._group(call))

    async def _list_groups(self, call: Call) -> Json:
        groups = [g for g in self.fleet.groups.values() if g.location == _place(call)]
        kind = (
            "regionInstanceGroupManagerList"
            if "region" in call.params
            else ("instanceGroupManagerList")
        )
        return _list(kind, map(self._answers.group, groups))

    async def _patch_group(self, call: Call) -> Json:
        group = self._group(call)
        asked = call.body.get("fingerprint")
        if asked and asked != fingerprint(group.fingerprint):
            raise ApiError(
                412,
                "Supplied fingerprint does not match current instance group manager",
                "conditionNotMet",
            )
        if call.body.get("name") not in (None, group.name):
            raise rules.invalid("resource.name", call.body["name"], "A name cannot be changed.")
        changes = {key: value for key, value in call.body.items() if key not in OUTPUT_FIELDS}
        body = rules.merged(group.body, changes)
        zones = group.zones if group.regional else None
        if zones and rules.checked_zones(body, group.location, zones) != zones:
            raise rules.invalid(
                "resource.distributionPolicy.zones", zones, "The zones cannot be changed."
            )
        rules.check_group(body, zones)
        self.fleet.change_group(group, body, self._versions(call))
        if "namedPorts" in call.body:
            self.fleet.set_named_ports(group, call.body["namedPorts"])
        if "targetSize" in call.body:
            self.fleet.resize(group, int(call.body["targetSize"]))
        return self._group_operation("patch", group)

    async def _delete_group(self, call: Call) -> Json:
        group = self._group(call)
        self.fleet.delete_group(group)
        self.changed()

        def gone() -> bool:
            return self.fleet.groups.get(group.key) is not group

        await self._until(gone)
        return self._group_operation("delete", group, gone)

    async def _resize(self, call: Call) -> Json:
        size = call.query.get("size", "")
        if not re.fullmatch(r"-?\d+", size):
            raise rules.invalid("size", size, "Must be a whole number.")
        group = self._group(call)
        self.fleet.resize(group, int(size))
        return self._group_operation("compute.instanceGroupManagers.resize", group)

    async def _list_members(self, call: Call) -> Json:
        group = self._group(call)
        answers = [self._answers.member(group, member) for member in group.members.values()]
        return {"managedInstances": answers}

    async def _list_errors(self, call: Call) -> Json:
        return {"items": self._answers.group_errors(self._group(call))}

    def _named(self, call: Call, group: Group) -> list[str]:
        """The members that a call names by URL."""
        names = []
        lenient = bool(call.body.get("skipInstancesOnValidationError"))
        for reference in call.body.get("instances") or []:
            match = re.fullmatch(r"(?:.*/)?zones/([^/]+)/instances/([^/]+)|([^/]+)", str(reference))
            zone, name = (match[1], match[2] or match[3]) if match else ("", "")
            member = group.members.get(name)
            if zone is not None and zone not in group.zones:
                raise rules.invalid(
                    "instances[]", reference, f"Must be in {' or '.join(group.zones)}."
                )
            if member and zone not in (None, member.zone):
                member = None  # another VM of that name
                name = f"{zone}/{name}"
            if member or not lenient:
                names.append(name)
        if not names and not lenient:
            raise rules.invalid("instances", "", "At least one instance is required.")
        return names

    async def _delete_members(self, call: Call) -> Json:
        group = self._group(call)
        self.fleet.delete_members(group, self._named(call, group))
        return self._group_operation("compute.instanceGroupManagers.deleteInstances", group)

    async def _recreate_members(self, call: Call) -> Json:
        group = self._group(call)
        self.fleet.recreate_members(group, self._named(call, group))
        return self._group_operation("compute.instanceGroupManagers.recreateInstances", group)

    async def _abandon_members(self, call: Call) -> Json:
        group = self._group(call)
        self.fleet.abandon_members(group, self._named(call, group))
        return self._group_operation("compute.instanceGroupManagers.abandonInstances", group)

    async def _update_members(self, call: Call) -> Json:
        group = self._group(call)
        names = None if call.body.get("allInstances") else self._named(call, group)
        minimal = call.body.get("minimalAction") or "NONE"
        most = call.body.get("mostDisruptiveAllowedAction") or "REPLACE"
        self.fleet.update_members(group, names, minimal, most)
        return self._group_operation("compute.instanceGroupManagers.applyUpdatesToInstances", group)

    async def _get_instance_group(self, call: Call) -> Json:
        return self._answers.instance_group(self._group(call))

    async def _set_named_ports(self, call: Call) -> Json:
        group = self._group(call)
        self.fleet.set_named_ports(group, call.body.get("namedPorts") or [])
        return self._group_operation("setNamedPorts", group)

    # VMs

    def _instance(self, call: Call) -> Instance:
        name = call["name"]
        if name.isdigit() and name in self.fleet.instances:
            return self.fleet.instances[name]
        return self.fleet.instance(call["zone"], name)

    def _shown_instance(self, instance: Instance) -> Json:
        return self._answers.instance(instance, self._account_of(instance))

    def _instance_operation(
        self, kind: str, instance: Instance, done: Callable[[], bool] = lambda: True
    ) -> Json:
        self.changed()
        path = f"zones/{instance.zone}/instances/{instance.name}"
        return self.operations.record(kind, path, instance.id, done)

    def _disks(self, zone: str) -> list[Json]:
        return [disk for i in self._in_zone(zone) for disk in self._answers.disks(i)]

    async def _bake(self, zone: str, disk: str, folder: Path, force: bool) -> None:
        """Copies what the disk of a VM holds, which must be stopped unless `force`."""
        instance = next(
            i for i in self._in_zone(zone) if disk in [d["name"] for d in self._answers.disks(i)]
        )
        if instance.live and not force:
            path = f"projects/{self._cloud.project}/zones/{zone}"
            raise ApiError(
                400,
                f"The disk resource '{path}/disks/{disk}' is already being used by "
                f"'{path}/instances/{instance.name}'",
                "resourceInUseByAnotherResource",
            )
        if isinstance(self.hypervisor, Hypervisor):
            try:
                await self.hypervisor.bake(instance.id, folder)
            except KeyError:
                raise ApiError(
                    400, f"The resource '{instance.name}' is not ready", "resourceNotReady"
                ) from None
            except OSError as error:
                raise ApiError(500, f"The disk '{disk}' could not be copied: {error}") from None

    def _in_zone(self, zone: str) -> list[Instance]:
        return [i for i in self.fleet.instances.values() if i.zone == zone]

    async def _get_instance(self, call: Call) -> Json:
        return self._shown_instance(self._instance(call))

    async def _insert_instance(self, call: Call) -> Json:
        """A VM of no group. Unlike a group's it is refused where it cannot be created."""
        name = rules.check_name("resource.name", call.body.get("name"))
        body = {key: value for key, value in call.body.items() if key not in ("name", "zone")}
        reference = call.query.get("sourceInstanceTemplate")
        if reference:
            match = TEMPLATE_REFERENCE.fullmatch(reference)
            if not match:
                raise rules.invalid("sourceInstanceTemplate", reference, "Must be a template.")
            given = self.fleet.template(match["name"], match["region"] or "").properties
            body = {**deepcopy(given), **body}
        body["machineType"] = str(body.get("machineType") or "").rpartition("/")[2]
        properties = rules.checked_properties(body, "resource")
        fault = self._vet(properties, call["zone"])
        if fault:
            status = 404 if fault.code == "RESOURCE_NOT_FOUND" else 400
            raise ApiError(status, fault.message)
        instance = self.fleet.add_instance(call["zone"], name, properties)
        self.changed()

        def started() -> bool:
            return instance.status not in ("PROVISIONING", "STAGING")

        await self._until(started)
        return self._instance_operation("insert", instance, started)

    async def _list_instances(self, call: Call) -> Json:
        return _list("instanceList", map(self._shown_instance, self._in_zone(call["zone"])))

    async def _aggregate_instances(self, call: Call) -> Json:
        scopes = {f"zones/{zone}": self._in_zone(zone) for zone in ALL_ZONES}
        return _aggregated("instance", "instances", scopes, self._shown_instance)

    async def _aggregate_groups(self, call: Call) -> Json:
        groups = list(self.fleet.groups.values())
        places = [f"zones/{zone}" for zone in ALL_ZONES] + [f"regions/{name}" for name in ZONES]
        scopes = {place: [g for g in groups if g.place == place] for place in places}
        kind = "instanceGroupManager"
        return _aggregated(kind, "instanceGroupManagers", scopes, self._answers.group)

    async def _aggregate_templates(self, call: Call) -> Json:
        templates = list(self.fleet.templates.values())
        scopes = {"global": [t for t in templates if not t.region]}
        scopes |= {f"regions/{name}": [t for t in templates if t.region == name] for name in ZONES}
        return _aggregated("instanceTemplate", "instanceTemplates", scopes, self._answers.template)

    async def _delete_instance(self, call: Call) -> Json:
        instance = self._instance(call)
        self.fleet.delete_instance(instance)
        self.changed()

        def gone() -> bool:
            return instance.id not in self.fleet.instances

        await self._until(gone)
        return self._instance_operation("delete", instance, gone)

    async def _start_instance(self, call: Call) -> Json:
        instance = self._instance(call)
        self.fleet.start_instance(instance)
        return self._instance_operation("start", instance)

    async def _stop_instance(self, call: Call) -> Json:
        instance = self._instance(call)
        self.fleet.stop_instance(instance)
        self.changed()

        def stopped() -> bool:
            return not instance.live or instance.id not in self.fleet.instances

        await self._until(stopped)
        return self._instance_operation("stop", instance, stopped)

    async def _reset_instance(self, call: Call) -> Json:
        instance = self._instance(call)
        self.fleet.reset_instance(instance)
        return self._instance_operation("reset", instance)

    async def _set_metadata(self, call: Call) -> Json:
        instance = self._instance(call)
        asked = call.body.get("fingerprint")
        if asked != fingerprint(instance.fingerprint):
            raise ApiError(
                412,
                "Supplied fingerprint does not match current metadata fingerprint.",
                "conditionNotMet",
            )
        items = call.body.get("items") or []
        rules.check_metadata("metadata", items)
        self.fleet.set_metadata(instance, items)
        return self._instance_operation("setMetadata", instance)

    async def _get_serial_output(self, call: Call) -> Json:
        instance = self._instance(call)
        port, start = call.query.get("port", "1"), call.query.get("start", "0")
        if port not in ("1", "2", "3", "4"):
            raise rules.invalid("port", port, "Must be between 1 and 4.")
        if not re.fullmatch(r"-?\d{1,19}", start):
            raise rules.invalid("start", start, "Must be a whole number.")
        contents, first, end = b"", 0, 0
        file = self.hypervisor.serial(instance.name)
        if file and port == "1":  # a guest's system writes to the first alone
            contents, first, end = read_serial(file, int(start))
        return {
            "kind": "compute#serialPortOutput",
            "contents": contents.decode(errors="replace"),
            "start": str(first),
            "next": str(end),
            "selfLink": self._answers.link(
                f"zones/{instance.zone}/instances/{instance.name}/serialPort"
            ),
        }

    async def _get_guest_attributes(self, call: Call) -> Json:
        instance = self._instance(call)
        asked = call.query.get("queryPath", "")
        guest = self.hypervisor.guest(instance.id)
        values = guest.tree.items("instance/guest-attributes/") if guest else {}
        items = []
        for path, value in sorted(values.items()):
            namespace, _, key = path.partition("/")
            if path == asked or path.startswith(asked if asked.endswith("/") else asked + "/"):
                items.append({"namespace": namespace, "key": key, "value": str(value)})
        if not items:
            raise _unknown(f"zones/{instance.zone}/instances/{instance.name}/{asked}")
        return {
            "kind": "compute#guestAttributes",
            "queryPath": asked,
            "queryValue": {"items": items},
        }

    async def _simulate_maintenance(self, call: Call) -> Json:
        instance = self._instance(call)
        self.fleet.maintain_instance(instance)
        if instance.spot:
            self._record_preemption(instance)
        return self._instance_operation("compute.instances.simulateMaintenanceEvent", instance)


def _caller_of(machine: Machine) -> Caller:
    email = machine.values.get("instance/service-accounts/default/email")
    return Caller(email=str(email or ""), vm=machine.name, instance=machine.id)


def _attributes(instance: Instance) -> dict[str, str]:
    items = (instance.properties.get("metadata") or {}).get("items") or []
    return {item["key"]: str(item.get("value") or "") for item in items}


def _place(call: Call) -> str:
    """The name of the zone or region of a call."""
    return call.params.get("region") or call["zone"]


def _unknown(path: str) -> ApiError:
    return ApiError(404, f"The resource '{path}' was not found")


def _aggregated(
    kind: str, name: str, scopes: Mapping[str, Sequence[Any]], shown: Callable[[Any], Json]
) -> Json:
    """A list of everything by zone and region; of one without anything it says so."""
    items: Json = {}
    for scope, found in scopes.items():
        warning = {
            "code": "NO_RESULTS_ON_PAGE",
            "message": f"There are no results for scope '{scope}' on this page.",
            "data": [{"key": "scope", "value": scope}],
        }
        items[scope] = {name: list(map(shown, found))} if found else {"warning": warning}
    return {"kind": f"compute#{kind}AggregatedList", "items": items}


def _list(kind: str, items: Iterable[Json]) -> Json:
    return {"kind": f"compute#{kind}", "items": list(items)}
