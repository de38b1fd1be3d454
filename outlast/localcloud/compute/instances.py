"""VMs: the API's calls for them."""

import re
from collections.abc import Callable
from copy import deepcopy

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.compute import rules
from outlast.localcloud.compute.answers import label_fingerprint, tags_fingerprint
from outlast.localcloud.compute.attached import attached, check_free, detached
from outlast.localcloud.compute.calls import (
    TEMPLATE_REFERENCE,
    Call,
    Handler,
    Row,
    aggregated,
    listed,
    unknown,
)
from outlast.localcloud.compute.catalogue import ALL_ZONES
from outlast.localcloud.compute.fleet.model import Fault, Instance
from outlast.localcloud.compute.links import Json, fingerprint
from outlast.localcloud.compute.platform import Platform
from outlast.localcloud.compute.vm_disks import VmDisks
from outlast.localcloud.vm.serial import read_serial

# These errors are reported by the operation, not by the call.
LACKS = ("ZONE_RESOURCE_POOL_EXHAUSTED", "QUOTA_EXCEEDED")
CHANGED_WHILE_RUNNING = {"automaticRestart", "onHostMaintenance"}


class Instances:
    """Answers the API's calls for VMs."""

    def __init__(
        self, platform: Platform, disks: VmDisks, disk_path: Callable[[str, str], str]
    ) -> None:
        """`disk_path` returns the path of the declared disk of a zone that a `source` names."""
        self._platform = platform
        self._disks = disks
        self._disk_path = disk_path
        self._fleet = platform.fleet
        self._answers = platform.answers
        self._operations = platform.operations

    def routes(self) -> list[Row]:
        """The routes of these calls."""
        vm = "zones/{zone}/instances"
        table: list[Row] = [
            ("GET", "aggregated/instances", self._aggregate_instances, "instances.list"),
            ("POST", vm, self._insert_instance, "instances.create"),
            ("GET", vm, self._list_instances, "instances.list"),
            ("GET", vm + "/{name}", self._get_instance, "instances.get"),
            ("DELETE", vm + "/{name}", self._delete_instance, "instances.delete"),
        ]
        verbs: dict[str, tuple[str, Handler]] = {
            "start": ("POST", self._start_instance),
            "stop": ("POST", self._stop_instance),
            "reset": ("POST", self._reset_instance),
            "setMetadata": ("POST", self._set_metadata),
            "setLabels": ("POST", self._set_labels),
            "setTags": ("POST", self._set_tags),
            "setScheduling": ("POST", self._set_scheduling),
            "setMachineType": ("POST", self._set_machine_type),
            "attachDisk": ("POST", self._attach_disk),
            "detachDisk": ("POST", self._detach_disk),
            "simulateMaintenanceEvent": ("POST", self._simulate_maintenance),
            "getGuestAttributes": ("GET", self._get_guest_attributes),
        }
        for verb, (method, handler) in verbs.items():
            table.append((method, vm + "/{name}/" + verb, handler, f"instances.{verb}"))
        path = vm + "/{name}/serialPort"
        table.append(("GET", path, self._get_serial_output, "instances.getSerialPortOutput"))
        return table

    def _instance(self, call: Call) -> Instance:
        name = call["name"]
        if name.isdigit() and name in self._fleet.instances:
            return self._fleet.instances[name]
        return self._fleet.vms.instance(call["zone"], name)

    def _shown_instance(self, instance: Instance) -> Json:
        return self._answers.instance(instance, self._platform.account_of(instance))

    def _instance_operation(
        self, kind: str, instance: Instance, done: Callable[[], bool] = lambda: True
    ) -> Json:
        self._platform.changed()
        path = f"zones/{instance.zone}/instances/{instance.name}"
        return self._operations.record(kind, path, instance.id, done)

    def _refused(self, kind: str, zone: str, name: str, number: str, fault: Fault) -> Json:
        """The failed operation of an authorized call that found no room or quota."""
        path = f"zones/{zone}/instances/{name}"
        return self._operations.record(kind, path, number, error=fault)

    async def _get_instance(self, call: Call) -> Json:
        return self._shown_instance(self._instance(call))

    async def _insert_instance(self, call: Call) -> Json:
        """Creates a VM without a group. Unlike a group's VM, it is refused if it cannot be
        created."""
        name = rules.check_name("resource.name", call.body.get("name"))
        body = {key: value for key, value in call.body.items() if key not in ("name", "zone")}
        reference = call.query.get("sourceInstanceTemplate")
        if reference:
            match = TEMPLATE_REFERENCE.fullmatch(reference)
            if not match:
                raise rules.invalid("sourceInstanceTemplate", reference, "Must be a template.")
            given = self._fleet.blueprints.template(match["name"], match["region"] or "").properties
            body = {**deepcopy(given), **body}
        body["machineType"] = str(body.get("machineType") or "").rpartition("/")[2]
        properties = rules.checked_properties(body, "resource")
        for disk in properties["disks"]:
            if disk.get("source"):
                disk["source"] = self._free_disk(call["zone"], disk)
        fault = self._fleet.refusal(properties, call["zone"])
        if fault and fault.code in LACKS:
            return self._refused("insert", call["zone"], name, "0", fault)
        if fault:
            raise _refusal(fault)
        instance = self._fleet.vms.add_instance(call["zone"], name, properties)
        self._platform.changed()

        def started() -> bool:
            return instance.status not in ("PROVISIONING", "STAGING")

        await self._platform.until(started)
        return self._instance_operation("insert", instance, started)

    async def _list_instances(self, call: Call) -> Json:
        return listed(
            "instanceList", map(self._shown_instance, self._fleet.vms.in_zone(call["zone"]))
        )

    async def _aggregate_instances(self, call: Call) -> Json:
        scopes = {f"zones/{zone}": self._fleet.vms.in_zone(zone) for zone in ALL_ZONES}
        return aggregated("instance", "instances", scopes, self._shown_instance)

    async def _delete_instance(self, call: Call) -> Json:
        instance = self._instance(call)
        self._fleet.vms.delete_instance(instance)
        self._platform.changed()

        def gone() -> bool:
            return instance.id not in self._fleet.instances

        await self._platform.until(gone)
        return self._instance_operation("delete", instance, gone)

    async def _start_instance(self, call: Call) -> Json:
        instance = self._instance(call)
        lack = None
        if not instance.live:
            lack = self._fleet.refusal(instance.properties, instance.zone)
        if lack and lack.code in LACKS:
            return self._refused("start", instance.zone, instance.name, instance.id, lack)
        self._fleet.vms.start_instance(instance)
        return self._instance_operation("start", instance)

    async def _stop_instance(self, call: Call) -> Json:
        instance = self._instance(call)
        self._fleet.vms.stop_instance(instance)
        self._platform.changed()

        def stopped() -> bool:
            return not instance.live or instance.id not in self._fleet.instances

        await self._platform.until(stopped)
        return self._instance_operation("stop", instance, stopped)

    async def _reset_instance(self, call: Call) -> Json:
        instance = self._instance(call)
        self._fleet.vms.reset_instance(instance)
        return self._instance_operation("reset", instance)

    async def _set_metadata(self, call: Call) -> Json:
        instance = self._instance(call)
        _check_fingerprint(
            call.body.get("fingerprint"),
            fingerprint(instance.fingerprint),
            "Supplied fingerprint does not match current metadata fingerprint.",
        )
        items = call.body.get("items") or []
        rules.check_metadata("metadata", items)
        self._fleet.vms.set_metadata(instance, items)
        return self._instance_operation("setMetadata", instance)

    async def _set_labels(self, call: Call) -> Json:
        instance, labels = self._instance(call), call.body.get("labels") or {}
        _check_fingerprint(
            call.body.get("labelFingerprint"),
            label_fingerprint(instance),
            "Labels fingerprint either invalid or resource labels have changed",
        )
        rules.check_labels("labels", labels)
        self._fleet.vms.change_instance(instance, labels=labels)
        return self._instance_operation("setLabels", instance)

    async def _set_tags(self, call: Call) -> Json:
        instance, items = self._instance(call), call.body.get("items") or []
        _check_fingerprint(
            call.body.get("fingerprint"),
            tags_fingerprint(instance),
            "Supplied fingerprint does not match current tags fingerprint.",
        )
        rules.check_tags("tags", items)
        self._fleet.vms.change_instance(instance, tags={"items": items})
        return self._instance_operation("setTags", instance)

    async def _set_scheduling(self, call: Call) -> Json:
        """Changes a VM's scheduling. Only its reaction to the end of its host may change while it
        runs."""
        instance = self._instance(call)
        changes = {
            key: value for key, value in call.body.items() if value != instance.scheduling.get(key)
        }
        if set(changes) - CHANGED_WHILE_RUNNING:
            self._must_be_stopped(instance, "scheduling")
        scheduling = rules.checked_scheduling({**instance.scheduling, **changes}, "scheduling")
        fault = self._platform.vet({**instance.properties, "scheduling": scheduling}, instance.zone)
        if fault:
            raise _refusal(fault)
        self._fleet.vms.change_instance(instance, scheduling=scheduling)
        return self._instance_operation("setScheduling", instance)

    async def _set_machine_type(self, call: Call) -> Json:
        instance = self._instance(call)
        name = str(call.body.get("machineType") or "").rpartition("/")[2]
        if not name:
            raise rules.missing("machineType")
        self._must_be_stopped(instance, "machineType")
        fault = self._platform.vet({**instance.properties, "machineType": name}, instance.zone)
        if fault:
            raise _refusal(fault)
        self._fleet.vms.change_instance(instance, machineType=name)
        return self._instance_operation("setMachineType", instance)

    async def _attach_disk(self, call: Call) -> Json:
        instance = self._instance(call)
        source = self._free_disk(instance.zone, call.body)
        disks = attached(instance.properties["disks"], call.body, source)
        self._fleet.vms.change_instance(instance, disks=disks)
        return self._instance_operation("attachDisk", instance)

    def _free_disk(self, zone: str, body: Json) -> str:
        """The link of the declared disk that a body's `source` names. Raises ApiError if it does
        not exist or another VM uses it."""
        path = self._disk_path(zone, str(body.get("source") or ""))
        project = f"projects/{self._platform.project}"
        users = [(f"{project}/{user}", disk) for user, disk in self._disks.users_of(path)]
        check_free(f"{project}/{path}", str(body.get("mode") or "READ_WRITE"), users)
        return self._answers.link(path)

    async def _detach_disk(self, call: Call) -> Json:
        instance = self._instance(call)
        disks = detached(instance.properties["disks"], call.query.get("deviceName", ""))
        self._fleet.vms.change_instance(instance, disks=disks)
        return self._instance_operation("detachDisk", instance)

    def _must_be_stopped(self, instance: Instance, field: str) -> None:
        if instance.live:
            path = f"projects/{self._platform.project}/zones/{instance.zone}/instances"
            raise ApiError(
                400,
                f"The resource '{path}/{instance.name}' is {instance.status}: its {field} can be "
                "changed only while it is TERMINATED; stop it first.",
                "resourceNotReady",
            )

    async def _get_serial_output(self, call: Call) -> Json:
        instance = self._instance(call)
        port, start = call.query.get("port", "1"), call.query.get("start", "0")
        if port not in ("1", "2", "3", "4"):
            raise rules.invalid("port", port, "Must be between 1 and 4.")
        if not re.fullmatch(r"-?\d{1,19}", start):
            raise rules.invalid("start", start, "Must be a whole number.")
        contents, first, end = b"", 0, 0
        file = self._platform.hypervisor.serial(instance.name)
        if file and port == "1":  # a guest's system writes only to the first port
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
        guest = self._platform.hypervisor.guest(instance.id)
        values = guest.tree.items("instance/guest-attributes/") if guest else {}
        items = []
        for path, value in sorted(values.items()):
            namespace, _, key = path.partition("/")
            if path == asked or path.startswith(asked if asked.endswith("/") else asked + "/"):
                items.append({"namespace": namespace, "key": key, "value": str(value)})
        if not items:
            raise unknown(f"zones/{instance.zone}/instances/{instance.name}/{asked}")
        return {
            "kind": "compute#guestAttributes",
            "queryPath": asked,
            "queryValue": {"items": items},
        }

    async def _simulate_maintenance(self, call: Call) -> Json:
        instance = self._instance(call)
        self._fleet.vms.maintain_instance(instance)
        if instance.spot:
            self._platform.record_preemption(instance)
        return self._instance_operation("compute.instances.simulateMaintenanceEvent", instance)


def _check_fingerprint(asked: object, current: str, message: str) -> None:
    if asked != current:
        raise ApiError(412, message, "conditionNotMet")


def _refusal(fault: Fault) -> ApiError:
    return ApiError(404 if fault.code == "RESOURCE_NOT_FOUND" else 400, fault.message)
