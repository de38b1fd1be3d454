"""VMs without processes: they boot and stop at once. For the platform's own figures."""

from collections.abc import Mapping
from pathlib import Path

from outlast.localcloud.vm.hypervisor import Guest
from outlast.localcloud.vm.machine import Machine, Report


class NoGuests:
    """Takes the place of `outlast.localcloud.vm.hypervisor.Hypervisor`."""

    def __init__(self, report: Report) -> None:
        """`report` gets (instance id, what happened, why it failed)."""
        self._report = report
        self._boots: dict[str, int] = {}
        self._on: set[str] = set()

    async def boot(self, machine: Machine, *, new_disk: bool = True) -> None:
        """It runs."""
        self._boots[machine.name] = self.boots(machine.name) + 1
        self._on.add(machine.id)
        self._report(machine.id, "running", "")

    async def stop(self, instance_id: str) -> None:
        """It has stopped."""
        if instance_id in self._on:
            self._report(instance_id, "stopping", "")
            await self.kill(instance_id)

    async def preempt(
        self, instance_id: str, notice_sec: float | None = None, grace_sec: float | None = None
    ) -> None:
        """Without a notice."""
        await self.stop(instance_id)

    async def kill(self, instance_id: str) -> None:
        """It is gone."""
        if instance_id in self._on:
            self._on.remove(instance_id)
            self._report(instance_id, "exited", "")

    async def discard(self, instance_id: str) -> None:
        """There is no disk."""

    async def freeze(self, instance_id: str) -> None:
        """Nothing runs."""

    async def withdraw_address(self, instance_id: str) -> None:
        """Does nothing: there is no listener."""

    async def thaw(self, instance_id: str) -> None:
        """Nothing runs."""

    def signal(self, instance_id: str, pattern: str, number: int) -> int:
        """Nothing runs."""
        return 0

    async def out_of_memory(self, instance_id: str) -> int:
        """Nothing runs."""
        return 0

    def set_attributes(self, instance_id: str, attributes: Mapping[str, str]) -> None:
        """Does nothing: there is no reader."""

    async def close(self) -> None:
        """Nothing is left."""
        self._on.clear()

    def holder(self, access_token: str) -> Machine | None:
        """There are no tokens."""
        return None

    def sender(self, inode: int) -> Machine | None:
        """No VM sends anything."""
        return None

    def guest(self, instance_id: str) -> Guest | None:
        """There is none."""
        return None

    def boots(self, name: str) -> int:
        """How often a VM of this name was started."""
        return self._boots.get(name, 0)

    def serial(self, name: str) -> Path | None:
        """There is no writer."""
        return None

    def pids(self, instance_id: str | None = None) -> list[int]:
        """There are none."""
        return []
