"""The disks of VMs, the VMs that use declared disks, and the copy of a disk for an image."""

from pathlib import Path

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.compute.links import Json
from outlast.localcloud.compute.platform import Platform
from outlast.localcloud.vm.hypervisor import Hypervisor


class VmDisks:
    """The disks of the project's VMs."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def of_zone(self, zone: str) -> list[Json]:
        """The disks that were created with the VMs of a zone."""
        platform = self._platform
        return [
            disk for i in platform.fleet.vms.in_zone(zone) for disk in platform.answers.disks(i)
        ]

    def users_of(self, path: str) -> list[tuple[str, Json]]:
        """The paths of the VMs that a declared disk is attached to, and how each has attached
        it."""
        link = self._platform.answers.link(path)
        return [
            (f"zones/{instance.zone}/instances/{instance.name}", disk)
            for instance in self._platform.fleet.instances.values()
            for disk in instance.properties.get("disks") or []
            if disk.get("source") == link
        ]

    async def bake(self, zone: str, disk: str, folder: Path, force: bool) -> None:
        """Copies the content of a VM's disk; the VM must be stopped unless `force`. Raises
        ApiError."""
        instance = next(
            i
            for i in self._platform.fleet.vms.in_zone(zone)
            if disk in [d["name"] for d in self._platform.answers.disks(i)]
        )
        if instance.live and not force:
            path = f"projects/{self._platform.project}/zones/{zone}"
            raise ApiError(
                400,
                f"The disk resource '{path}/disks/{disk}' is already being used by "
                f"'{path}/instances/{instance.name}'",
                "resourceInUseByAnotherResource",
            )
        if isinstance(self._platform.hypervisor, Hypervisor):
            try:
                await self._platform.hypervisor.bake(instance.id, folder)
            except KeyError:
                raise ApiError(
                    400, f"The resource '{instance.name}' is not ready", "resourceNotReady"
                ) from None
            except OSError as error:
                raise ApiError(500, f"The disk '{disk}' could not be copied: {error}") from None
