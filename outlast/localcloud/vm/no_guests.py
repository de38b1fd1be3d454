"""VMs without processes, which boot and stop at once: for measurements of the platform alone."""

from collections.abc import Mapping
from pathlib import Path

from outlast.localcloud.vm.guest import Guest
from outlast.localcloud.vm.machine import Machine, Report


class NoGuests:
    """Replaces `outlast.localcloud.vm.hypervisor.Hypervisor`."""

    def __init__(self, report: Report) -> None:
        """`report` gets (instance id, event, reason of a failure)."""
        self._report = report
        self._boots: dict[str, int] = {}
        self._on: set[str] = set()

    async def boot(self, machine: Machine, *, new_disk: bool = True) -> None:
        """Reports `running` at once."""
        self._boots[machine.name] = self.boots(machine.name) + 1
        self._on.add(machine.id)
        self._report(machine.id, "running", "")

    async def stop(self, instance_id: str) -> None:
        """Reports `stopping` and `exited` at once."""
        if instance_id in self._on:
            self._report(instance_id, "stopping", "")
            await self.kill(instance_id)

    async def preempt(
        self, instance_id: str, notice_sec: float | None = None, grace_sec: float | None = None
    ) -> None:
        """Stops the VM, without a notice."""
        await self.stop(instance_id)

    async def kill(self, instance_id: str) -> None:
        """Reports `exited` at once."""
        if instance_id in self._on:
            self._on.remove(instance_id)
            self._report(instance_id, "exited", "")

    async def discard(self, instance_id: str) -> None:
        """Does nothing: there is no disk."""

    async def freeze(self, instance_id: str) -> None:
        """Does nothing: there is no process."""

    def enter(self, instance_id: str, pid: int) -> None:
        """Refuses: there is nothing to enter."""
        raise LookupError("VMs without processes cannot be entered")

    async def open_port(self, instance_id: str, port: int) -> None:
        """Does nothing: there is no network."""

    async def withdraw_address(self, instance_id: str) -> None:
        """Does nothing: there is no listener."""

    async def thaw(self, instance_id: str) -> None:
        """Does nothing: there is no process."""

    def signal(self, instance_id: str, pattern: str, number: int) -> int:
        """Does nothing: there is no process."""
        return 0

    async def out_of_memory(self, instance_id: str) -> int:
        """Does nothing: there is no process."""
        return 0

    def set_attributes(self, instance_id: str, attributes: Mapping[str, str]) -> None:
        """Does nothing: there is no reader."""

    async def close(self) -> None:
        """Forgets the VMs."""
        self._on.clear()

    def holder(self, access_token: str) -> Machine | None:
        """Always None: there are no tokens."""
        return None

    def sender(self, inode: int) -> Machine | None:
        """Always None: no VM sends requests."""
        return None

    def guest(self, instance_id: str) -> Guest | None:
        """Always None."""
        return None

    def boots(self, name: str) -> int:
        """The number of boots of VMs with this name."""
        return self._boots.get(name, 0)

    def serial(self, name: str) -> Path | None:
        """Always None: there is no serial output."""
        return None

    def pids(self, instance_id: str | None = None) -> list[int]:
        """Always empty."""
        return []
