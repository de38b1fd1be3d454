"""The hypervisor: boots, stops and forgets VMs, whatever kind of guest each is.

guest          what it needs of a guest
process_guest  a guest that is a process tree on this machine
qemu_guest     a guest that is a QEMU machine
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from outlast.localcloud.base.background import Background
from outlast.localcloud.vm.disks import delete_folder
from outlast.localcloud.vm.guest import Guest
from outlast.localcloud.vm.guest_init import kill_all
from outlast.localcloud.vm.machine import Machine, Report
from outlast.localcloud.vm.metadata import Server
from outlast.localcloud.vm.process_guest import ProcessGuest
from outlast.localcloud.vm.processes import TOKEN_FILE, trees_of

MakeGuest = Callable[[Machine, Path], Guest]
"""Makes the guest of a VM in a folder; nothing exists there yet."""


class Hypervisor:
    """The VMs of one local cloud. All calls must be on one asyncio loop."""

    def __init__(
        self,
        folder: Path,
        report: Report,
        failed: Callable[[BaseException], None],
        *,
        grace_sec: float,
        environment: Mapping[str, str] | None = None,
        make_guest: MakeGuest | None = None,
    ) -> None:
        """Disks are under `folder`/vms, serial output under `folder`/serial. `report` gets
        (instance id, event, reason of a failure); `failed` gets errors of the hypervisor itself.
        `environment` is added to every guest's. Guests are process trees by default."""
        self._vms = folder / "vms"
        self._serials = folder / "serial"
        self._report = report
        self._grace_sec = grace_sec
        self._environment = dict(environment or {})
        self._make_guest = make_guest or partial(ProcessGuest, grace_sec=grace_sec)
        self._guests: dict[str, Guest] = {}
        self._boots: dict[str, int] = {}
        self._background = Background(failed)
        self._holders: dict[str, Machine] = {}
        self._vms.mkdir(parents=True, exist_ok=True)
        self._serials.mkdir(parents=True, exist_ok=True)
        _sweep(self._vms)
        for file in self._serials.glob("*.log"):
            name, _, number = file.stem.rpartition("-")
            if number.isdigit():
                self._boots[name] = max(self._boots.get(name, 0), int(number))

    # Commands of the model

    async def boot(self, machine: Machine, *, new_disk: bool = True) -> None:
        """Boots the VM; reports `running`, or `failed` if that is impossible."""
        guest = self._guests.get(machine.id)
        try:
            if guest is None or new_disk:
                fresh = self._make_guest(machine, self._vms / machine.id)
                await asyncio.to_thread(fresh.make_disk)
                guest = self._guests[machine.id] = fresh
            guest.machine = machine
            await self._power_on(guest)
        except OSError as error:
            if guest:
                await self._power_off(guest)
            self._report(machine.id, "failed", f"The VM could not be booted: {error}")

    async def stop(self, instance_id: str, grace_sec: float | None = None) -> None:
        """Presses the VM's power button; it is killed after the grace period."""
        if guest := self._running(instance_id):
            guest.stop(self._grace_sec if grace_sec is None else grace_sec)

    async def preempt(
        self, instance_id: str, notice_sec: float | None = None, grace_sec: float | None = None
    ) -> None:
        """Sets the `preempted` flag, and stops the VM after its notice; returns once the flag is
        set."""
        guest = self._running(instance_id)
        if guest is None or guest.preemption:
            return
        guest.tree.set("instance/preempted", "TRUE")
        wait_sec = guest.machine.notice_sec if notice_sec is None else notice_sec
        guest.preemption = self._background.begin(
            self._stop_after_notice(instance_id, wait_sec, grace_sec)
        )

    async def kill(self, instance_id: str) -> None:
        """Kills the VM, as if its host vanished: no process of it runs when this returns."""
        if guest := self._running(instance_id):
            await guest.kill()

    async def discard(self, instance_id: str) -> None:
        """Deletes the disk of a VM; if it still runs, after its exit."""
        guest = self._guests.get(instance_id)
        if guest is None:
            return
        guest.discarded = True
        if guest.process is None:
            del self._guests[instance_id]
            self._background.begin(asyncio.to_thread(delete_folder, self._vms / instance_id))

    async def bake(self, instance_id: str, folder: Path) -> None:
        """Creates in `folder` an image of a VM's disk; a running VM is frozen in the meantime.
        Raises KeyError if there is no such disk, OSError if it cannot be copied."""
        guest = self._guests[instance_id]
        runs = guest.process is not None
        if runs:
            await guest.freeze()
        try:
            await asyncio.to_thread(guest.copy_disk, folder)
        finally:
            if runs and guest.process:
                await guest.thaw()

    def signal(self, instance_id: str, pattern: str, number: int) -> int:
        """Sends a signal to the VM's processes whose command line matches; returns their number.
        Raises LookupError if they cannot be reached."""
        guest = self._running(instance_id)
        return guest.signal(pattern, number) if guest else 0

    async def out_of_memory(self, instance_id: str) -> int:
        """Kills the VM's largest process, as its kernel does when memory is full; the VM keeps
        running. Returns the pid, 0 if there was none. Raises LookupError if it cannot be
        reached."""
        guest = self._running(instance_id)
        return await guest.out_of_memory() if guest else 0

    async def freeze(self, instance_id: str) -> None:
        """Freezes the VM: nothing in it returns from its current system call."""
        if guest := self._running(instance_id):
            await guest.freeze()

    async def thaw(self, instance_id: str) -> None:
        """Lets a frozen VM continue."""
        if guest := self._running(instance_id):
            await guest.thaw()

    def enter(self, instance_id: str, pid: int) -> None:
        """Takes a process of this machine for one of a running VM. Raises LookupError."""
        guest = self._running(instance_id)
        if guest is None:
            raise LookupError("this VM does not run")
        guest.enter(pid)

    async def withdraw_address(self, instance_id: str) -> None:
        """Takes the VM's address from it, which a successor is about to get."""
        if guest := self._running(instance_id):
            await guest.withdraw_address()

    async def open_port(self, instance_id: str, port: int) -> None:
        """Lets the platform's probes reach a port of the VM."""
        if guest := self._running(instance_id):
            await guest.open_port(port)

    def set_attributes(self, instance_id: str, attributes: Mapping[str, str]) -> None:
        """Gives the VM's metadata server exactly these attributes."""
        guest = self._guests.get(instance_id)
        if guest:
            guest.tree.replace("instance/attributes/", attributes)

    async def close(self) -> None:
        """Kills every VM and deletes its disk."""
        await asyncio.gather(*(self.kill(instance_id) for instance_id in list(self._guests)))
        for instance_id in list(self._guests):
            await self.discard(instance_id)
        await self._background.rest()

    # State

    def holder(self, access_token: str) -> Machine | None:
        """The VM that got this token from its metadata server, even if it has ended; None if there
        is none."""
        return self._holders.get(access_token)

    def sender(self, inode: int) -> Machine | None:
        """The VM with a process that has this socket open; None if there is none."""
        holders = (guest for guest in self._guests.values() if guest.holds(inode))
        return next((guest.machine for guest in holders), None)

    def guest(self, instance_id: str) -> Guest | None:
        """The VM if it has a disk, else None."""
        return self._guests.get(instance_id)

    def boots(self, name: str) -> int:
        """The number of boots of VMs with this name."""
        return self._boots.get(name, 0)

    def serial(self, name: str) -> Path | None:
        """The file with the serial output of the last boot with this name; None without one."""
        number = self._boots.get(name, 0)
        return self._serials / f"{name}-{number}.log" if number else None

    def pids(self, instance_id: str | None = None) -> list[int]:
        """The pids of every live process of one VM, or of all VMs."""
        found: set[int] = set()
        for guest in self._guests.values():
            if instance_id in (None, guest.machine.id):
                found |= guest.pids()
        return sorted(found)

    # Inside

    def _running(self, instance_id: str) -> Guest | None:
        """The VM if it is on."""
        guest = self._guests.get(instance_id)
        return guest if guest and guest.process else None

    async def _power_on(self, guest: Guest) -> None:
        machine = guest.machine
        number = self._boots[machine.name] = self._boots.get(machine.name, 0) + 1
        guest.serial = self._serials / f"{machine.name}-{number}.log"
        guest.serial.touch()
        guest.access_token = access_token = f"vm-token-{secrets.token_urlsafe(24)}"
        guest.exited = asyncio.Event()
        guest.started = time.time()
        guest.preemption = None
        guest.tree.set("instance/preempted", "FALSE")
        self._holders[access_token] = machine
        guest.server = Server(
            guest.tree,
            lambda: access_token,
            guest.holds,
            machine.trouble,
            cut_off=guest.cut_off,
            asked=guest.asked,
        )
        await guest.start(self._environment)
        self._background.begin(self._watch(guest))

    async def _watch(self, guest: Guest) -> None:
        """Passes on the VM's reports until it is off."""
        async for event in guest.events():
            self._report(guest.machine.id, event, "")
        await self._power_off(guest)
        if guest.discarded:
            await self.discard(guest.machine.id)
        self._report(guest.machine.id, "exited", "")

    async def _power_off(self, guest: Guest) -> None:
        if guest.preemption:
            guest.preemption.cancel()
        if guest.server:
            await asyncio.to_thread(guest.server.close)
        guest.server = None
        guest.process = None
        guest.exited.set()

    async def _stop_after_notice(
        self, instance_id: str, notice_sec: float, grace_sec: float | None
    ) -> None:
        await asyncio.sleep(notice_sec)
        await self.stop(instance_id, grace_sec)


def _sweep(vms: Path) -> None:
    """Kills the processes and deletes the disks that a killed local cloud has left."""
    for folder in vms.iterdir():
        if folder.name.isdigit():  # an instance's id; other folders are not a VM's
            with suppress(OSError):
                kill_all(partial(trees_of, (folder / TOKEN_FILE).read_text()))
            delete_folder(folder)
