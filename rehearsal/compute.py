"""Compute Engine's REST API, versions v1 and beta, over the model and the hypervisor.

Request bodies are held to Google's own discovery documents and to the rules that those do not say.
"""

import asyncio
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from rehearsal import rules
from rehearsal.answers import Answers, Json, fingerprint, in_version
from rehearsal.catalogue import MACHINE_TYPES, ZONES, Catalogue, has_zone
from rehearsal.clock import Clock, RealClock, to_rfc3339
from rehearsal.discovery import check_body
from rehearsal.errors import ApiError
from rehearsal.guest import Hypervisor, Machine, default_account, service_account
from rehearsal.iam import Caller, read_json
from rehearsal.metadata import Value, vm_values
from rehearsal.model import (
    Boot,
    Command,
    Discard,
    Exists,
    Fault,
    Fleet,
    Group,
    Instance,
    InUse,
    Invalid,
    Kill,
    ModelError,
    NotFound,
    Preempt,
    SetMetadata,
    Stop,
    duration_sec,
)

if TYPE_CHECKING:
    from rehearsal.server import Cloud

VERSIONS = ("v1", "beta")
KEPT_OPERATIONS = 1000
LONGEST_OPERATION_SEC = 60.0
TABLES = ("templates", "groups", "instances")
SERIAL_BYTES = 1_000_000
TEMPLATE_REFERENCE = re.compile(
    r"(?:https?://[^/]+/(?:compute/)?(?:v1|beta)/)?(?:projects/(?P<project>[^/]+)/)?"
    r"(?:global/)?instanceTemplates/(?P<name>[^/?]+)(?:\?uniqueId=(?P<id>\d+))?"
)
MACHINE_TYPE_PATH = "zones/{zone}/machineTypes/{name}"
SUBNETWORK_PATH = "regions/{region}/subnetworks/{name}"
BODY_METHODS = ("POST", "PATCH")
# The schema of a body, by the last segment of its path.
SCHEMAS = {
    "instanceTemplates": "InstanceTemplate",
    "instanceGroupManagers": "InstanceGroupManager",
    "{name}": "InstanceGroupManager",
    "deleteInstances": "InstanceGroupManagersDeleteInstancesRequest",
    "recreateInstances": "InstanceGroupManagersRecreateInstancesRequest",
    "abandonInstances": "InstanceGroupManagersAbandonInstancesRequest",
    "setNamedPorts": "InstanceGroupsSetNamedPortsRequest",
    "setMetadata": "Metadata",
}
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

    def __init__(self, cloud: "Cloud", clock: Clock | None = None) -> None:
        self._cloud = cloud
        self._clock = clock or RealClock()
        options = cloud.options
        self._catalogue = Catalogue(cloud.project, options.images)
        self.fleet = Fleet(
            self._clock,
            project_number=cloud.project_number,
            next_id=cloud.state.next_number,
            vet=self._catalogue.vet,
        )
        self.hypervisor = Hypervisor(
            options.state,
            self._on_report,
            grace_sec=options.grace_sec,
            environment={
                "STORAGE_EMULATOR_HOST": cloud.base_url,
                "OUTLAST_COMPUTE_ENDPOINT": f"{cloud.base_url}/compute/v1/",
                "OUTLAST_RESOURCE_MANAGER_ENDPOINT": f"{cloud.base_url}/cloudresourcemanager/v1/",
                **options.guest_env,
            },
        )
        self._answers = Answers(cloud.project, cloud.project_number, self.fleet)
        self._operations: OrderedDict[str, tuple[Json, Callable[[], bool]]] = OrderedDict()
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        self._executing = asyncio.Lock()
        self._change = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False

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
        self._changed()

    async def stop(self) -> None:
        """Kills every VM's tree and waits for it; the state stays."""
        self._running = False
        async with self._executing:  # what has begun to boot must be known before it is killed
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
        self._operations.clear()
        self._running = True
        self._changed()

    def caller(self, token: str) -> Caller | None:
        """The VM that holds this metadata server's token; None for any other."""
        machine = self.hypervisor.holder(token)
        if machine is None:
            return None
        email = machine.values.get("instance/service-accounts/default/email")
        return Caller(email=str(email or ""), vm=machine.name)

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
        self._changed()
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
        self._changed()

    # The machinery

    def _by_name(self, name: str) -> Instance:
        for instance in self.fleet.instances.values():
            if instance.name == name:
                return instance
        raise KeyError(name)

    def _table(self, name: str) -> Any:
        return self._cloud.state.table(f"compute/{name}")

    def _changed(self) -> None:
        """After each call and event: does what is due, keeps the state, wakes who waits."""
        if not self._running:
            return
        self.fleet.tick()
        for command in self.fleet.take_commands():
            self._commands.put_nowait(command)
        for name, entries in self.fleet.to_json().items():
            table = self._table(name)
            for key in [key for key in table if key not in entries]:
                del table[key]
            for key, entry in entries.items():
                if table.get(key) != entry:
                    table[key] = deepcopy(entry)
        self._change.set()
        self._change = asyncio.Event()

    async def _tick(self) -> None:
        """Wakes the model whenever something is due that nobody announces."""
        while True:
            due = self.fleet.next_time()
            wait_sec = None if due is None else max(0.0, due - self._clock.now())
            change = self._change
            with suppress(TimeoutError):
                await asyncio.wait_for(change.wait(), wait_sec)
                continue
            self._changed()

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
                await hypervisor.preempt(instance_id)
            case Kill(instance_id):
                await hypervisor.kill(instance_id)
            case Discard(instance_id):
                await hypervisor.discard(instance_id)
            case SetMetadata(instance_id):
                if instance := self.fleet.instances.get(instance_id):
                    hypervisor.set_attributes(instance_id, _attributes(instance))

    def _on_report(self, instance_id: str, event: str, why: str) -> None:
        if not self._running:
            return
        instance = self.fleet.instances.get(instance_id)
        name = instance.name if instance else None
        self._cloud.events.write(f"vm-{event}", vm=name, id=instance_id)
        match event:
            case "running":
                self.fleet.running(instance_id)
            case "stopping":
                self.fleet.stopping(instance_id)
            case "exited":
                self.fleet.exited(instance_id)
            case "failed":
                self.fleet.exited(instance_id, Fault("INTERNAL_ERROR", why))
        self._changed()

    def _machine(self, instance: Instance) -> Machine:
        properties = instance.properties
        boot_disk = next((d for d in properties.get("disks") or [] if d.get("boot")), {})
        reference = (boot_disk.get("initializeParams") or {}).get("sourceImage") or ""
        image = self._catalogue.image(reference)
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
        return Machine(
            instance.id,
            instance.name,
            values,
            image=image.folder if image else None,
            notice_sec=self._cloud.options.notice_sec if noticed else 0.0,
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
        template = "global/instanceTemplates"
        group = "zones/{zone}/instanceGroupManagers"
        unmanaged = "zones/{zone}/instanceGroups/{name}"
        vm = "zones/{zone}/instances"
        # Method, path, handler, permission; a patch or a call of a group's members is `update`.
        table: list[tuple[str, str, Handler, str]] = [
            ("GET", "", self._get_project, "projects.get"),
            ("GET", "zones", self._list_zones, "zones.list"),
            ("GET", "zones/{zone}", self._get_zone, "zones.get"),
            ("GET", "regions", self._list_regions, "regions.list"),
            ("GET", "regions/{region}", self._get_region, "regions.get"),
            ("GET", MACHINE_TYPE_PATH, self._get_machine_type, "machineTypes.get"),
            ("GET", "global/networks/{name}", self._get_network, "networks.get"),
            ("GET", SUBNETWORK_PATH, self._get_subnetwork, "subnetworks.get"),
            ("POST", template, self._insert_template, "instanceTemplates.create"),
            ("GET", template, self._list_templates, "instanceTemplates.list"),
            ("GET", template + "/{name}", self._get_template, "instanceTemplates.get"),
            ("DELETE", template + "/{name}", self._delete_template, "instanceTemplates.delete"),
            ("POST", group, self._insert_group, "instanceGroupManagers.create"),
            ("GET", group, self._list_groups, "instanceGroupManagers.list"),
            ("GET", group + "/{name}", self._get_group, "instanceGroupManagers.get"),
            ("PATCH", group + "/{name}", self._patch_group, "instanceGroupManagers.update"),
            ("DELETE", group + "/{name}", self._delete_group, "instanceGroupManagers.delete"),
            ("GET", group + "/{name}/listErrors", self._list_errors, "instanceGroupManagers.get"),
            ("GET", unmanaged, self._get_instance_group, "instanceGroups.get"),
            ("POST", unmanaged + "/setNamedPorts", self._set_named_ports, "instanceGroups.update"),
            ("GET", "aggregated/instances", self._aggregate_instances, "instances.list"),
            ("GET", vm, self._list_instances, "instances.list"),
            ("GET", vm + "/{name}", self._get_instance, "instances.get"),
            ("DELETE", vm + "/{name}", self._delete_instance, "instances.delete"),
            ("GET", "zones/{zone}/disks", self._list_disks, "disks.list"),
            ("GET", "zones/{zone}/operations", self._list_operations, "zoneOperations.list"),
        ]
        group_verbs: dict[str, tuple[Handler, str]] = {
            "resize": (self._resize, "update"),
            "listManagedInstances": (self._list_members, "get"),
            "deleteInstances": (self._delete_members, "update"),
            "recreateInstances": (self._recreate_members, "update"),
            "abandonInstances": (self._abandon_members, "update"),
        }
        for verb, (handler, permission) in group_verbs.items():
            path = group + "/{name}/" + verb
            table.append(("POST", path, handler, f"instanceGroupManagers.{permission}"))
        vm_verbs: dict[str, tuple[str, Handler]] = {
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
            projects = f"/compute/{version}/projects/{{project}}"
            for method, path, handler, permission in table:
                full = f"{projects}/{path}".rstrip("/")
                schema = SCHEMAS.get(path.rpartition("/")[2]) if method in BODY_METHODS else None
                endpoint = self._endpoint(version, handler, f"compute.{permission}", schema)
                routes.append(Route(full, endpoint, methods=[method]))
            for path, handler in (
                ("family/{family}", self._get_image_of_family),
                ("{name}", self._get_image),
            ):
                endpoint = self._endpoint(version, handler, None, None)
                routes.append(Route(f"{projects}/global/images/{path}", endpoint, methods=["GET"]))
        return routes

    def _endpoint(
        self, version: str, handler: Handler, permission: str | None, schema: str | None
    ) -> Callable[[Request], Awaitable[Response]]:
        """`permission` None: a public image, of any project."""

        async def answer(request: Request) -> Response:
            body = await read_json(request)
            params = request.path_params
            if permission:
                own = (self._cloud.project, self._cloud.project_number)
                if params["project"] not in own:
                    raise ApiError(
                        404, f"The resource 'projects/{params['project']}' was not found"
                    )
                self._cloud.authorize(request, permission)
            if "zone" in params and not has_zone(params["zone"]):
                raise _unknown(f"projects/{params['project']}/zones/{params['zone']}")
            if "region" in params and params["region"] not in ZONES:
                raise _unknown(f"projects/{params['project']}/regions/{params['region']}")
            if "filter" in request.query_params:
                raise ApiError(501, "filter: the local cloud lists without filters.")
            if schema:
                check_body(f"compute.{version}", schema, body)
            call = Call(version, params, request.query_params, rules.cleaned(body))
            try:
                content = await handler(call)
            except ModelError as error:
                raise self._refusal(error) from None
            return JSONResponse(in_version(content, version))

        return answer

    def _refusal(self, error: ModelError) -> ApiError:
        path = f"projects/{self._cloud.project}/{error}"
        if isinstance(error, NotFound):
            return _unknown(path.replace("/instanceTemplates", "/global/instanceTemplates"))
        if isinstance(error, Exists):
            path = path.replace("/instanceTemplates", "/global/instanceTemplates")
            return ApiError(409, f"The resource '{path}' already exists", "alreadyExists")
        if isinstance(error, InUse):
            return ApiError(
                400,
                f"The instance_template resource is already being used by '{path}'",
                "resourceInUseByAnotherResource",
            )
        assert isinstance(error, Invalid)
        reason = "resourceNotReady" if str(error).endswith("is not ready") else "invalid"
        return ApiError(400, str(error), reason)

    # Operations

    def _operation(
        self, kind: str, path: str, target_id: str, done: Callable[[], bool] = lambda: True
    ) -> Json:
        """The operation of a call: finished, unless `done` says otherwise."""
        now = self._clock.now()
        name = f"operation-{int(now * 1000)}-{secrets.token_hex(8)}"
        scope = "global" if path.startswith("global/") else "/".join(path.split("/")[:2])
        answer: Json = {
            "kind": "compute#operation",
            "id": str(self._cloud.state.next_number()),
            "name": name,
            "operationType": kind,
            "targetLink": self._answers.link(path),
            "targetId": target_id,
            "user": "owner@local.cloud",
            "insertTime": to_rfc3339(now),
            "startTime": to_rfc3339(now),
            "selfLink": self._answers.link(f"{scope}/operations/{name}"),
        }
        if scope != "global":
            answer[scope.split("/")[0][:-1]] = self._answers.link(scope)
        self._operations[name] = answer, done
        while len(self._operations) > KEPT_OPERATIONS:
            self._operations.popitem(last=False)
        return self._shown_operation(name)

    def _shown_operation(self, name: str) -> Json:
        answer, done = self._operations[name]
        if "endTime" not in answer and done():
            answer["endTime"] = to_rfc3339(self._clock.now())
        finished = "endTime" in answer
        return {
            **answer,
            "status": "DONE" if finished else "RUNNING",
            "progress": 100 if finished else 0,
        }

    async def _get_operation(self, call: Call) -> Json:
        if call["name"] not in self._operations:
            raise _unknown(f"projects/{self._cloud.project}/operations/{call['name']}")
        return self._shown_operation(call["name"])

    async def _wait_operation(self, call: Call) -> Json:
        await self._get_operation(call)
        await self._until(self._operations[call["name"]][1])
        return await self._get_operation(call)

    async def _list_operations(self, call: Call) -> Json:
        zone = self._answers.link(f"zones/{call['zone']}")
        names = [
            name for name, (answer, _) in self._operations.items() if answer.get("zone") == zone
        ]
        return _list("operationList", map(self._shown_operation, reversed(names)))

    def _record_preemption(self, instance: Instance) -> None:
        path = f"zones/{instance.zone}/instances/{instance.name}"
        self._operation("compute.instances.preempted", path, instance.id)

    # What is fixed

    async def _get_project(self, call: Call) -> Json:
        return self._answers.project(default_account(self._cloud.project_number))

    async def _list_zones(self, call: Call) -> Json:
        names = [zone for zones in ZONES.values() for zone in zones]
        return _list("zoneList", map(self._answers.zone, names))

    async def _get_zone(self, call: Call) -> Json:
        return self._answers.zone(call["zone"])

    async def _list_regions(self, call: Call) -> Json:
        return _list("regionList", map(self._answers.region, ZONES))

    async def _get_region(self, call: Call) -> Json:
        return self._answers.region(call["region"])

    async def _get_machine_type(self, call: Call) -> Json:
        if call["name"] not in MACHINE_TYPES:
            path = f"zones/{call['zone']}/machineTypes/{call['name']}"
            raise _unknown(f"projects/{self._cloud.project}/{path}")
        return self._answers.machine_type(call["zone"], call["name"])

    async def _get_network(self, call: Call) -> Json:
        if call["name"] != "default":
            raise _unknown(f"projects/{self._cloud.project}/global/networks/{call['name']}")
        return self._answers.network()

    async def _get_subnetwork(self, call: Call) -> Json:
        if call["name"] != "default":
            path = f"regions/{call['region']}/subnetworks/{call['name']}"
            raise _unknown(f"projects/{self._cloud.project}/{path}")
        return self._answers.subnetwork(call["region"])

    async def _get_image(self, call: Call) -> Json:
        return self._image(f"projects/{call['project']}/global/images/{call['name']}")

    async def _get_image_of_family(self, call: Call) -> Json:
        return self._image(f"projects/{call['project']}/global/images/family/{call['family']}")

    def _image(self, path: str) -> Json:
        image = self._catalogue.image(path)
        if image is None:
            raise _unknown(path)
        return self._answers.image(image)

    # Templates

    async def _insert_template(self, call: Call) -> Json:
        name = rules.check_name("resource.name", call.body.get("name"))
        properties = call.body.get("properties")
        if not properties:
            raise rules.invalid("resource.properties", "", "Properties are required.")
        checked = rules.checked_properties(properties)
        template = self.fleet.add_template(name, checked, call.body.get("description", ""))
        self._changed()
        path = f"global/instanceTemplates/{name}"
        return self._operation("insert", path, template.id)

    async def _get_template(self, call: Call) -> Json:
        return self._answers.template(self.fleet.template(call["name"]))

    async def _list_templates(self, call: Call) -> Json:
        return _list(
            "instanceTemplateList", map(self._answers.template, self.fleet.templates.values())
        )

    async def _delete_template(self, call: Call) -> Json:
        template = self.fleet.delete_template(call["name"])
        self._changed()
        return self._operation("delete", f"global/instanceTemplates/{template.name}", template.id)

    # Groups

    def _group(self, call: Call) -> Group:
        return self.fleet.group(call["zone"], call["name"])

    def _group_operation(
        self, kind: str, group: Group, done: Callable[[], bool] = lambda: True
    ) -> Json:
        self._changed()
        path = f"zones/{group.zone}/instanceGroupManagers/{group.name}"
        return self._operation(kind, path, group.id, done)

    def _versions(self, body: Json) -> list[Json] | None:
        """The versions that a body asks for, each with the template that it means."""
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
                    "Must be the URL of a global instance template of the project.",
                )
            unique = f"?uniqueId={match['id']}" if match["id"] else ""
            template = self.fleet.template(match["name"])
            path = f"global/instanceTemplates/{template.name}"
            version["instanceTemplate"] = self._answers.link(path) + unique
            version["template"] = template.name
            version["template_id"] = match["id"]
        return asked

    async def _insert_group(self, call: Call) -> Json:
        name = rules.check_name("resource.name", call.body.get("name"))
        versions = self._versions(call.body)
        if not versions:
            raise rules.invalid("resource.versions", "", "An instance template is required.")
        size = call.body.get("targetSize")
        if size is None:
            raise rules.invalid("resource.targetSize", "", "The target size is required.")
        if int(size) < 0:
            raise rules.invalid("resource.targetSize", size, "Must be at least 0.")
        body = {key: value for key, value in call.body.items() if key not in OUTPUT_FIELDS}
        rules.check_group(body)
        group = self.fleet.add_group(call["zone"], name, body, versions, int(size))
        group.named_ports = call.body.get("namedPorts") or []
        return self._group_operation("insert", group)

    async def _get_group(self, call: Call) -> Json:
        return self._answers.group(self._group(call))

    async def _list_groups(self, call: Call) -> Json:
        groups = [g for g in self.fleet.groups.values() if g.zone == call["zone"]]
        return _list("instanceGroupManagerList", map(self._answers.group, groups))

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
        body = _merged(group.body, changes)
        rules.check_group(body)
        self.fleet.change_group(group, body, self._versions(call.body))
        if "namedPorts" in call.body:
            group.named_ports = call.body["namedPorts"]
        if "targetSize" in call.body:
            self.fleet.resize(group, int(call.body["targetSize"]))
        return self._group_operation("patch", group)

    async def _delete_group(self, call: Call) -> Json:
        group = self._group(call)
        self.fleet.delete_group(group)
        self._changed()

        def gone() -> bool:
            return self.fleet.groups.get((group.zone, group.name)) is not group

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
        for reference in call.body.get("instances") or []:
            match = re.fullmatch(r"(?:.*/)?zones/([^/]+)/instances/([^/]+)|([^/]+)", str(reference))
            zone, name = (match[1] or group.zone, match[2] or match[3]) if match else ("", "")
            if zone == group.zone and (
                name in group.members or not call.body.get("skipInstancesOnValidationError")
            ):
                names.append(name)
            elif zone != group.zone:
                raise rules.invalid("instances[]", reference, f"Must be in zone {group.zone}.")
        if not names and not call.body.get("skipInstancesOnValidationError"):
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

    async def _get_instance_group(self, call: Call) -> Json:
        return self._answers.instance_group(self._group(call))

    async def _set_named_ports(self, call: Call) -> Json:
        group = self._group(call)
        group.named_ports = call.body.get("namedPorts") or []
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
        self._changed()
        path = f"zones/{instance.zone}/instances/{instance.name}"
        return self._operation(kind, path, instance.id, done)

    def _in_zone(self, zone: str) -> list[Instance]:
        return [i for i in self.fleet.instances.values() if i.zone == zone]

    async def _get_instance(self, call: Call) -> Json:
        return self._shown_instance(self._instance(call))

    async def _list_instances(self, call: Call) -> Json:
        return _list("instanceList", map(self._shown_instance, self._in_zone(call["zone"])))

    async def _aggregate_instances(self, call: Call) -> Json:
        items: Json = {}
        for zone in (zone for zones in ZONES.values() for zone in zones):
            found = [self._shown_instance(instance) for instance in self._in_zone(zone)]
            warning = {
                "code": "NO_RESULTS_ON_PAGE",
                "message": f"There are no results for scope 'zones/{zone}' on this page.",
                "data": [{"key": "scope", "value": f"zones/{zone}"}],
            }
            items[f"zones/{zone}"] = {"instances": found} if found else {"warning": warning}
        return {"kind": "compute#instanceAggregatedList", "items": items}

    async def _delete_instance(self, call: Call) -> Json:
        instance = self._instance(call)
        self.fleet.delete_instance(instance)
        self._changed()

        def gone() -> bool:
            return instance.id not in self.fleet.instances

        await self._until(gone)
        return self._instance_operation("delete", instance, gone)

    async def _stop_instance(self, call: Call) -> Json:
        instance = self._instance(call)
        self.fleet.stop_instance(instance)
        self._changed()

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
        start = int(call.query.get("start") or 0)
        file = self.hypervisor.serial(instance.name)
        data = file.read_bytes() if file else b""
        first = max(start, len(data) - SERIAL_BYTES, 0)
        return {
            "kind": "compute#serialPortOutput",
            "contents": data[first:].decode(errors="replace"),
            "start": str(first),
            "next": str(max(len(data), first)),
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
        if not instance.spot:
            raise ApiError(501, "simulateMaintenanceEvent: the local cloud has it for Spot VMs.")
        self.fleet.preempt_instance(instance)
        self._record_preemption(instance)
        return self._instance_operation("compute.instances.simulateMaintenanceEvent", instance)

    async def _list_disks(self, call: Call) -> Json:
        instances = self._in_zone(call["zone"])
        return _list("diskList", (d for i in instances for d in self._answers.disks(i)))


def _attributes(instance: Instance) -> dict[str, str]:
    items = (instance.properties.get("metadata") or {}).get("items") or []
    return {item["key"]: str(item.get("value") or "") for item in items}


def _unknown(path: str) -> ApiError:
    return ApiError(404, f"The resource '{path}' was not found")


def _list(kind: str, items: Iterable[Json]) -> Json:
    return {"kind": f"compute#{kind}", "id": kind, "items": list(items)}


def _merged(old: Json, changes: Json) -> Json:
    """A patch's effect: objects are merged, anything else replaces what was there."""
    merged = dict(old)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(old.get(key), dict)
        merged[key] = _merged(old[key], value) if both else value
    return merged
