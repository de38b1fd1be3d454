"""The platform behind the API: the fleet, the VMs' hypervisor, and the tasks that drive both.

Calls and events change the fleet. `changed` stores its state and passes its commands to the
hypervisor, whose reports change the fleet again."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from outlast.localcloud.base.background import Background
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.compute.accounts import service_account
from outlast.localcloud.compute.answers import Answers
from outlast.localcloud.compute.catalogue import Catalogue, machine_type
from outlast.localcloud.compute.firewalls import Firewalls
from outlast.localcloud.compute.fleet.capacity import gpus_of
from outlast.localcloud.compute.fleet.fleet import Fleet
from outlast.localcloud.compute.fleet.inventory import TABLES
from outlast.localcloud.compute.fleet.model import (
    Announce,
    Boot,
    Command,
    Discard,
    Fault,
    HealthCheck,
    Instance,
    Kill,
    Preempt,
    Probe,
    Restless,
    SetMetadata,
    Stop,
    duration_sec,
)
from outlast.localcloud.compute.health import SOURCES, port_of, probe, vm_address
from outlast.localcloud.compute.links import Links
from outlast.localcloud.compute.operations import Operations
from outlast.localcloud.vm.accelerator import find as find_accelerator
from outlast.localcloud.vm.hypervisor import Hypervisor
from outlast.localcloud.vm.machine import Machine
from outlast.localcloud.vm.metadata import Value, vm_values
from outlast.localcloud.vm.no_guests import NoGuests
from outlast.localcloud.vm.qemu_guest import ADDRESS as VM_ADDRESS
from outlast.localcloud.vm.qemu_guest import GATEWAY, Host, QemuGuest
from outlast.localcloud.vm.slowness import Slowness

LONGEST_OPERATION_SEC = 60.0
HOST = "127.0.0.1"


class Platform:
    """The state and actions behind the calls for groups, VMs and templates."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._clock = cloud.clock
        self.project = cloud.project
        self.project_number = cloud.project_number
        self.catalogue = Catalogue(cloud.project, cloud.options.images)
        self.fleet = Fleet(
            self._clock,
            project_number=cloud.project_number,
            next_id=cloud.state.next_number,
            vet=self.vet,
        )
        self.hypervisor = self._hypervisor()
        self.links = Links(cloud.project)
        self.answers = Answers(self.links, self.fleet, self._address_of)
        self.operations = Operations(self._clock, self.links.link, cloud.state.next_number)
        self._firewalls = Firewalls(cloud.state.table("compute/declared"))
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        self._executing = asyncio.Lock()
        self._change = asyncio.Event()
        self._background = Background(cloud.fail)
        self._running = False

    def _hypervisor(self) -> Hypervisor | NoGuests:
        options, base_url = self._cloud.options, self._cloud.base_url
        if not options.guests:
            return NoGuests(self._on_report)
        make_guest = None
        if options.guest == "vm":
            make_guest = partial(QemuGuest, host=self._qemu_host())
            base_url = base_url.replace(HOST, GATEWAY)
        return Hypervisor(
            options.state,
            self._on_report,
            self._cloud.fail,
            grace_sec=options.grace_sec,
            environment={
                "STORAGE_EMULATOR_HOST": base_url,
                "OUTLAST_COMPUTE_ENDPOINT": f"{base_url}/compute/v1/",
                "OUTLAST_RESOURCE_MANAGER_ENDPOINT": f"{base_url}/cloudresourcemanager/v1/",
                "OUTLAST_SECRET_MANAGER_ENDPOINT": f"{base_url}/secretmanager/",
                **options.guest_env,
            },
            make_guest=make_guest,
        )

    def _qemu_host(self) -> Host:
        """Finds out how this machine runs QEMU's machines, and says so."""
        kernel = next(iter(self._cloud.options.images.values())) / "vmlinuz"
        accelerator, why = find_accelerator(kernel)
        if accelerator == "kvm":
            self._cloud.note("VMs are machines of QEMU, run by KVM")
        else:
            self._cloud.note(f"VMs are machines of QEMU, emulated (TCG), because {why}")
        return Host(accelerator, Slowness(self._note_slowness), self._cloud.note)

    def _note_slowness(self, took_sec: float, factor: float) -> None:
        self._cloud.note(
            f"the first VM took {took_sec:.0f} s to its startup script, {factor:.1f} times a VM of "
            f"Compute Engine; grace periods are {factor:.1f} times as long"
        )

    # Start and stop

    def start(self) -> None:
        """Loads the groups of the stored state, whose VMs have lost their hosts, and starts the
        tasks."""
        tables = {name: dict(self._table(name)) for name in TABLES}
        self.fleet.take_up(deepcopy(tables))
        self._background.begin(self._execute_commands())
        self._background.begin(self._tick())
        self.resume()

    def resume(self) -> None:
        """Starts to do what is due, after `start` or `clear`."""
        self._running = True
        self.changed()

    async def stop(self) -> None:
        """Kills every VM's process tree and waits for its end; keeps the stored state."""
        self._running = False
        async with self._executing:  # a VM that began to boot must be known before it is killed
            self._background.cancel()
        await self._background.rest()
        await self.hypervisor.close()

    async def clear(self) -> None:
        """Kills every VM, forgets everything, and does nothing until `resume`."""
        self._running = False
        self.fleet.clear()
        async with self._executing:
            while not self._commands.empty():
                self._commands.get_nowait()
                self._commands.task_done()
            await self.hypervisor.close()
        self.operations.forget()

    # For calls

    def changed(self) -> None:
        """Does what is due, stores the state and wakes waiters; call it after each call and
        event."""
        if not self._running:
            return
        try:
            self.fleet.tick()
        except Restless as error:
            self._cloud.events.write("defect", message=str(error))
            print(f"rehearsal: {error}", file=sys.stderr, flush=True)
            raise
        for command in self.fleet.take_commands():
            self._commands.put_nowait(command)
        for name, entries in self.fleet.take_changes().items():
            table = self._table(name)
            for key, entry in entries.items():
                if entry is not None:
                    table[key] = entry
                elif key in table:
                    del table[key]
        self.wake()

    async def until(self, done: Callable[[], bool]) -> None:
        """Waits until `done` is true, for a limited time; a longer operation is answered as
        RUNNING."""
        deadline = asyncio.get_running_loop().time() + LONGEST_OPERATION_SEC
        while not done() and self._running:
            left_sec = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._change.wait(), max(0.0, left_sec))
            except TimeoutError:
                return

    async def commanded(self) -> None:
        """Waits until the hypervisor has executed every command so far."""
        await self._commands.join()

    def vet(self, properties: Mapping[str, Any], zone: str) -> Fault | None:
        """The reason that a VM of these properties cannot be created, apart from room; None if it
        can."""
        self._cloud.director.trying(properties)
        if violation := self._cloud.org_policies.violation(properties):
            return Fault("CONDITION_NOT_MET", violation)
        return self.catalogue.vet(properties, zone)

    def account_of(self, instance: Instance) -> str:
        """The address of a VM's service account."""
        return service_account(instance.properties, self._cloud.project_number)

    def record_preemption(self, instance: Instance) -> None:
        """Records the operation of a preemption."""
        path = f"zones/{instance.zone}/instances/{instance.name}"
        self.operations.record("compute.instances.preempted", path, instance.id)

    def wake(self) -> None:
        """Wakes all waiters for a change."""
        self._change.set()
        self._change = asyncio.Event()

    # Tasks

    async def _tick(self) -> None:
        """Runs the model whenever something becomes due with time."""
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
                    self._background.begin(self._probe(instance_id, check))

    async def _probe(self, instance_id: str, check: HealthCheck) -> None:
        instance = self.fleet.instances.get(instance_id)
        if instance is None:
            return
        # Without processes, every VM is healthy.
        healthy = not self._cloud.options.guests or (
            self._firewalls.lets_in(
                instance.properties, self.account_of(instance), SOURCES, port_of(check)
            )
            and await self._answers_probe(instance, check)
        )
        if self._running:
            self.fleet.vms.probed(instance_id, healthy)
            self.changed()

    async def _answers_probe(self, instance: Instance, check: HealthCheck) -> bool:
        await self.hypervisor.open_port(instance.id, port_of(check))
        return await probe(check, self._address_of(instance))

    def _on_report(self, instance_id: str, event: str, why: str) -> None:
        if not self._running:
            return
        instance = self.fleet.instances.get(instance_id)
        name = instance.name if instance else None
        self._cloud.events.write(f"vm-{event}", vm=name, id=instance_id)
        self._cloud.director.on_report(instance_id, event)
        match event:
            case "running":
                self.fleet.vms.running(instance_id)
            case "stopping":
                self.fleet.vms.stopping(instance_id)
            case "exited":
                self.fleet.vms.exited(instance_id)
            case "failed":
                self.fleet.vms.exited(instance_id, Fault("INTERNAL_ERROR", why))
        self.changed()

    def _machine(self, instance: Instance) -> Machine:
        properties = instance.properties
        boot_disk = next((d for d in properties.get("disks") or [] if d.get("boot")), {})
        parameters = boot_disk.get("initializeParams") or {}
        reference = parameters.get("sourceImage") or ""
        address = self._address_of(instance)
        image = self.catalogue.image(reference)
        values: dict[str, Value] = vm_values(
            project=self._cloud.project,
            project_number=self._cloud.project_number,
            instance_id=instance.id,
            name=instance.name,
            zone=instance.zone,
            properties=properties,
            service_account=self.account_of(instance),
            image=image.path if image else "",
            address=VM_ADDRESS if self._cloud.options.guest == "vm" else address,
        )
        values |= {f"instance/attributes/{k}": v for k, v in _attributes(instance).items()}
        noticed = duration_sec(instance.scheduling.get("preemptionNoticeDuration")) > 0
        kind = machine_type(str(properties.get("machineType")))
        disks = properties.get("disks") or []
        return Machine(
            instance.id,
            instance.name,
            values,
            image=image.folder if image else None,
            notice_sec=self._cloud.options.notice_sec if noticed else 0.0,
            memory_mb=kind.memory_mb if kind else 0,
            cpus=kind.cpus if kind else 0,
            disk_gb=int(parameters.get("diskSizeGb") or 0),
            address=address,
            gpus=sum(count for _, count in gpus_of(properties)),
            local_ssds=sum(disk.get("type") == "SCRATCH" for disk in disks),
            **self._cloud.director.booting(instance),
        )

    def _address_of(self, instance: Instance) -> str:
        return vm_address(urlsplit(self._cloud.base_url).port or 0, instance.address)

    def _table(self, name: str) -> Any:
        return self._cloud.state.table(f"compute/{name}")


def _attributes(instance: Instance) -> dict[str, str]:
    items = (instance.properties.get("metadata") or {}).get("items") or []
    return {item["key"]: str(item.get("value") or "") for item in items}
