"""Compute Engine: its API over the platform, and its VMs as the rest of the cloud uses them."""

from typing import Any

from starlette.routing import BaseRoute

from outlast.localcloud.base import switches
from outlast.localcloud.base.access import Caller
from outlast.localcloud.base.clock import to_rfc3339
from outlast.localcloud.cloud import Cloud, Service
from outlast.localcloud.compute.api import Api
from outlast.localcloud.compute.declared import Declared
from outlast.localcloud.compute.fleet.model import Instance
from outlast.localcloud.compute.given import Given
from outlast.localcloud.compute.groups import Groups
from outlast.localcloud.compute.instances import Instances
from outlast.localcloud.compute.links import Json
from outlast.localcloud.compute.platform import Platform
from outlast.localcloud.compute.project_images import ProjectImages
from outlast.localcloud.compute.special_calls import SpecialCalls
from outlast.localcloud.compute.templates import Templates
from outlast.localcloud.compute.vm_disks import VmDisks
from outlast.localcloud.vm.machine import Machine


class Compute(Service):
    """The compute part of a local cloud: its routes, its groups, its VMs."""

    def __init__(self, cloud: Cloud) -> None:
        self.platform = Platform(cloud)
        self._disks = VmDisks(self.platform)
        capacity = self.platform.fleet.capacity
        links, operations = self.platform.links, self.platform.operations
        self._given = Given(cloud.project, cloud.project_number, links, capacity)
        images = ProjectImages(cloud.state, self.platform.catalogue, self._disks.bake)
        self._declared = Declared(
            cloud.state,
            links,
            self._given,
            cloud.clock.now,
            operations.record,
            self._disks.of_zone,
            lambda path: [user for user, _ in self._disks.users_of(path)],
            images,
        )
        table = cloud.state.table("compute/declared")
        self._special = SpecialCalls(self._declared, images, self._given, table)
        self._api = Api(cloud, operations, self.platform.until, self.platform.wake)

    def routes(self) -> list[BaseRoute]:
        """The routes of both versions; they raise ApiError."""
        return self._api.routes(
            [
                *self._special.routes(),
                *self._declared.routes(),
                *Instances(self.platform, self._disks, self._declared.disk_path).routes(),
                *Groups(self.platform).routes(),
                *Templates(self.platform).routes(),
                *self._given.routes(),
            ]
        )

    async def start(self) -> None:
        self.platform.start()

    async def stop(self) -> None:
        await self.platform.stop()

    async def reset(self) -> None:
        await self.platform.clear()
        self._declared.clear()
        self._api.forget()
        self.platform.resume()

    def audit(self) -> Json:
        """Everything that exists, and every process of its VMs."""
        fleet, answers = self.platform.fleet, self.platform.answers
        instances = fleet.instances.values()
        return {
            "templates": sorted(fleet.templates),
            "health_checks": sorted(fleet.health_checks),
            "declared": self._declared.paths(),
            "groups": [name for _, name in sorted(fleet.groups)],
            "vms": sorted(instance.name for instance in instances),
            "disks": sorted(disk["name"] for i in instances for disk in answers.disks(i)),
            "pids": self.platform.hypervisor.pids(),
        }

    def set_switch(self, name: str, value: Any) -> bool | float:
        """Sets one of `model.Switches`, as `Service.set_switch`."""
        former = switches.set_one(self.platform.fleet.switches, name, value)
        self.changed()
        return former

    # For the rest of the cloud (`outlast.localcloud.cloud.Machines`)

    def changed(self) -> None:
        """Does what is due."""
        self.platform.changed()

    def caller(self, token: str) -> Caller | None:
        """The VM to which its metadata server gave this token; None if there is none."""
        machine = self.platform.hypervisor.holder(token)
        return machine and _caller_of(machine)

    def sender(self, inode: int) -> Caller | None:
        """The VM with a process that has this socket open; None if there is none."""
        machine = self.platform.hypervisor.sender(inode)
        return machine and _caller_of(machine)

    def vms(self) -> list[Json]:
        """The VMs: {name, id, group, zone, status, pid, pids, boots, started}."""
        hypervisor = self.platform.hypervisor
        answer = []
        for instance in self.platform.fleet.instances.values():
            guest = hypervisor.guest(instance.id)
            answer.append(
                {
                    "name": instance.name,
                    "id": instance.id,
                    "group": instance.group,
                    "zone": instance.zone,
                    "status": instance.status,
                    "pid": guest.pid if guest else None,
                    "pids": hypervisor.pids(instance.id),
                    "boots": hypervisor.boots(instance.name),
                    "started": None if instance.started is None else to_rfc3339(instance.started),
                }
            )
        return answer

    async def kill(self, name: str) -> None:
        """Kills the VM's whole process tree with SIGKILL, as if its host vanished. Raises KeyError
        for an unknown name."""
        await self.platform.hypervisor.kill(self._by_name(name).id)

    async def preempt(self, name: str) -> None:
        """Starts a preemption, even of a standard VM; returns when the flag is set."""
        instance = self._by_name(name)
        self.platform.fleet.vms.preempt_instance(instance)
        self.changed()
        self.platform.record_preemption(instance)
        await self.platform.commanded()

    async def freeze(self, name: str) -> None:
        """Sends SIGSTOP to the VM's whole process tree."""
        await self.platform.hypervisor.freeze(self._by_name(name).id)

    async def thaw(self, name: str) -> None:
        """Sends SIGCONT to the VM's whole process tree."""
        await self.platform.hypervisor.thaw(self._by_name(name).id)

    def enter(self, name: str, pid: int) -> None:
        """Takes a process of this machine for one of the VM. Raises KeyError for an unknown name,
        LookupError if the process cannot be one."""
        self.platform.hypervisor.enter(self._by_name(name).id, pid)

    def _by_name(self, name: str) -> Instance:
        for instance in self.platform.fleet.instances.values():
            if instance.name == name:
                return instance
        raise KeyError(name)


def _caller_of(machine: Machine) -> Caller:
    email = machine.values.get("instance/service-accounts/default/email")
    return Caller(email=str(email or ""), vm=machine.name, instance=machine.id)
