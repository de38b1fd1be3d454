"""The hypervisor: a VM is a process tree with its own root folder.

Each boot starts `guest_init.py` as the tree's first process, with a new environment. Every process
of a VM is below that process, or has the boot's token in its environment. So none outlives its VM,
however it was started."""

import asyncio
import re
import secrets
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from outlast.localcloud.base.background import Background
from outlast.localcloud.http.peers import (
    has_open,
    listening_sockets,
)
from outlast.localcloud.vm import images
from outlast.localcloud.vm.disks import SYSTEM_PATH, delete_folder, make_disk, plug_in_ssds
from outlast.localcloud.vm.guest_init import (
    KERNEL,
    SIGNAL_ROUND_SEC,
    descendants,
    freeze_all,
    kill_all,
    kill_largest,
    signal_all,
)
from outlast.localcloud.vm.machine import Machine, Report
from outlast.localcloud.vm.metadata import (
    Server,
    Tree,
)
from outlast.localcloud.vm.processes import (
    TOKEN_VARIABLE,
    command_line,
    holders_of,
    processes_below,
    trees_of,
)

INIT = Path(__file__).with_name("guest_init.py")
TOKEN_FILE = "token"
SHIMS = Path(__file__).with_name("shims")
BROKEN_DRIVER = SHIMS / "broken-driver"
DRIVER = SHIMS / "driver"
PROHIBITED = re.compile(r"^-4 prohibit .*\buidrange (\d+)-(\d+) to 169\.254\.169\.254 ipproto tcp$")
"""A rule that `shims/ip` records."""

INIT_EXIT_SEC = 5.0


@dataclass
class Guest:
    """A VM that has a disk; it has a process only between boot and exit."""

    machine: Machine
    root: Path
    tree: Tree
    token: str = ""
    access_token: str = ""
    server: Server | None = None
    process: asyncio.subprocess.Process | None = None
    serial: Path | None = None
    started: float = 0.0
    preemption: asyncio.Task[None] | None = None
    discarded: bool = False
    """Whether the platform has discarded it while it runs; then its disk is deleted when it
    exits."""
    exited: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int | None:
        """Pid of the VM's first process; None if it has none."""
        return self.process.pid if self.process else None


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
    ) -> None:
        """Disks are under `folder`/vms, serial output under `folder`/serial. `report` gets
        (instance id, event, reason of a failure); `failed` gets errors of the hypervisor itself.
        `environment` is added to every guest's."""
        self._vms = folder / "vms"
        self._serials = folder / "serial"
        self._report = report
        self._grace_sec = grace_sec
        self._environment = dict(environment or {})
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
                root = await asyncio.to_thread(make_disk, self._vms / machine.id, machine)
                guest = self._guests[machine.id] = Guest(machine, root, Tree(machine.values))
            guest.machine = machine
            await self._power_on(guest)
        except OSError as error:
            if guest:
                await self._power_off(guest)
            self._report(machine.id, "failed", f"The VM could not be booted: {error}")

    async def stop(self, instance_id: str, grace_sec: float | None = None) -> None:
        """Asks the VM's system to stop; it is killed after the grace period."""
        self._tell(instance_id, "stop" if grace_sec is None else f"stop {grace_sec}")

    async def preempt(
        self, instance_id: str, notice_sec: float | None = None, grace_sec: float | None = None
    ) -> None:
        """Sets the `preempted` flag, and stops the VM after its notice; returns once the flag is
        set."""
        guest = self._guests.get(instance_id)
        if guest is None or guest.process is None or guest.preemption:
            return
        guest.tree.set("instance/preempted", "TRUE")
        wait_sec = guest.machine.notice_sec if notice_sec is None else notice_sec
        guest.preemption = self._background.begin(
            self._stop_after_notice(instance_id, wait_sec, grace_sec)
        )

    async def kill(self, instance_id: str) -> None:
        """Kills the VM, as if its host vanished: no process of it runs when this returns."""
        guest = self._guests.get(instance_id)
        if guest is None or guest.process is None:
            return
        process, exited = guest.process, guest.exited
        self._tell(instance_id, "kill")
        await asyncio.to_thread(kill_all, partial(processes_below, process.pid, guest.token))
        try:
            await asyncio.wait_for(exited.wait(), INIT_EXIT_SEC)
        except TimeoutError:
            signal_all([process.pid], signal.SIGKILL)
            await exited.wait()

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
            await self.freeze(instance_id)
        try:
            await asyncio.to_thread(images.bake, guest.root, folder)
        finally:
            if runs:
                await self.thaw(instance_id)

    def signal(self, instance_id: str, pattern: str, number: int) -> int:
        """Sends a signal to the VM's processes whose command line matches; returns their number."""
        guest = self._guests.get(instance_id)
        if guest is None or guest.process is None:
            return 0
        found = processes_below(guest.process.pid, guest.token)
        meant = [pid for pid in found if re.search(pattern, command_line(pid))]
        signal_all(meant, number)
        return len(meant)

    async def out_of_memory(self, instance_id: str) -> int:
        """Kills the VM's largest process, as its kernel does when memory is full; the VM keeps
        running. Returns the pid, 0 if there was none."""
        guest = self._guests.get(instance_id)
        if guest is None or guest.process is None or guest.serial is None:
            return 0
        found = processes_below(guest.process.pid, guest.token)
        killed = await asyncio.to_thread(kill_largest, found)
        if killed is None:
            return 0
        with guest.serial.open("a") as serial:
            serial.write(f"{KERNEL}: {killed[1]}\n")
        return killed[0]

    async def freeze(self, instance_id: str) -> None:
        """Freezes every process of the VM: none returns from its current system call."""
        guest = self._guests.get(instance_id)
        if guest and guest.process:
            await asyncio.to_thread(
                freeze_all, partial(processes_below, guest.process.pid, guest.token)
            )

    async def thaw(self, instance_id: str) -> None:
        """Lets a frozen VM continue."""
        guest = self._guests.get(instance_id)
        if guest and guest.process:
            signal_all(processes_below(guest.process.pid, guest.token), signal.SIGCONT)

    async def withdraw_address(self, instance_id: str) -> None:
        """Takes the VM's address from it, which a successor is about to get. The loopback has no
        routes to change, so processes of the VM that listen on it are killed."""
        guest = self._guests.get(instance_id)
        if guest is None or guest.process is None:
            return
        inodes = listening_sockets(str(guest.tree.value("instance/network-interfaces/0/ip")))
        find = partial(processes_below, guest.process.pid, guest.token)
        listeners = {pid for pid in find() if any(has_open([pid], inode) for inode in inodes)}
        signal_all(listeners, signal.SIGKILL)
        while listeners & find():
            await asyncio.sleep(SIGNAL_ROUND_SEC)

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
        pids = {i: guest.pid for i, guest in self._guests.items() if guest.pid}
        for instance_id, pid in pids.items():
            if has_open({pid, *descendants(pid)}, inode):
                return self._guests[instance_id].machine
        return None

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
            if guest.process and instance_id in (None, guest.machine.id):
                found |= {guest.process.pid, *processes_below(guest.process.pid, guest.token)}
        return sorted(found)

    # Inside

    async def _power_on(self, guest: Guest) -> None:
        root, machine = guest.root, guest.machine
        # Files in memory do not survive a boot.
        shutil.rmtree(root / "run")
        (root / "run").mkdir()
        (root / "run").chmod(0o755)
        for entry in (root / "dev/shm").iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        plug_in_ssds(root, machine.local_ssds)
        (root / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
        number = self._boots[machine.name] = self._boots.get(machine.name, 0) + 1
        guest.serial = self._serials / f"{machine.name}-{number}.log"
        guest.serial.touch()
        (root / "dev/ttyS0").unlink(missing_ok=True)
        (root / "dev/ttyS0").symlink_to(guest.serial.resolve())
        guest.token = secrets.token_hex(16)
        (self._vms / machine.id / TOKEN_FILE).write_text(guest.token)
        guest.access_token = f"vm-token-{secrets.token_urlsafe(24)}"
        guest.exited = asyncio.Event()
        guest.started = time.time()
        guest.preemption = None
        guest.tree.set("instance/preempted", "FALSE")
        access_token = guest.access_token
        self._holders[access_token] = machine
        guest.server = Server(
            guest.tree,
            lambda: access_token,
            lambda inode: _is_inside(guest, inode),
            machine.trouble,
            cut_off=lambda: _cut_off(root),
        )
        with guest.serial.open("ab") as serial:
            guest.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(INIT),
                str(root),
                str(self._grace_sec),
                str(machine.memory_mb),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=serial,
                cwd=root,
                env=_environment(guest, self._environment),
                start_new_session=True,
            )
        self._background.begin(self._watch(guest, guest.process))

    async def _watch(self, guest: Guest, process: asyncio.subprocess.Process) -> None:
        """Passes on the reports of the VM's first process until it has ended."""
        assert process.stdout
        async for line in process.stdout:
            word = line.strip()
            if word == b"running":
                self._report(guest.machine.id, "running", "")
            elif word == b"stopping":
                self._report(guest.machine.id, "stopping", "")
        await process.wait()
        # The first process leaves no process behind, unless it was killed itself.
        await asyncio.to_thread(kill_all, partial(holders_of, guest.token))
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

    def _tell(self, instance_id: str, word: str) -> None:
        guest = self._guests.get(instance_id)
        if guest and guest.process and guest.process.stdin:
            with suppress(OSError, RuntimeError):  # it is already ending
                guest.process.stdin.write(f"{word}\n".encode())


def _environment(guest: Guest, more: Mapping[str, str]) -> dict[str, str]:
    assert guest.server
    root = str(guest.root)
    system = f"{root}/usr/bin" if guest.machine.missing_tools else SYSTEM_PATH
    shims = str(SHIMS)
    if guest.machine.driver_fails:
        shims = f"{BROKEN_DRIVER}:{shims}"
    elif guest.machine.gpus:
        shims = f"{DRIVER}:{shims}"
    return {
        "PATH": f"{shims}:{root}/usr/local/bin:{system}",
        "HOME": f"{root}/root",
        "TMPDIR": f"{root}/tmp",
        "LANG": "C.UTF-8",
        "LOGNAME": "root",
        "SHELL": "/bin/bash",
        "USER": "root",
        "OUTLAST_VM_GPUS": str(guest.machine.gpus),
        "OUTLAST_ROOT": root,
        "GCE_METADATA_HOST": guest.server.host,
        "GCE_METADATA_IP": guest.server.host,  # Google's client uses it to detect GCE
        "METADATA_BASE": f"http://{guest.server.host}/computeMetadata/v1",
        **more,
        TOKEN_VARIABLE: guest.token,
    }


def _sweep(vms: Path) -> None:
    """Kills the processes and deletes the disks that a killed local cloud has left."""
    for folder in vms.iterdir():
        if folder.name.isdigit():  # an instance's id; other folders are not a VM's
            with suppress(OSError):
                kill_all(partial(trees_of, (folder / TOKEN_FILE).read_text()))
            delete_folder(folder)


def _cut_off(root: Path) -> set[int]:
    """The ids of users that a VM's own rules block from the metadata server."""
    try:
        rules = (root / "run/ip-rules").read_text().splitlines()
    except FileNotFoundError:
        return set()
    found = (PROHIBITED.search(rule) for rule in rules)
    return {uid for match in found if match for uid in range(int(match[1]), int(match[2]) + 1)}


def _is_inside(guest: Guest, inode: int) -> bool:
    """Whether a process of the VM has this socket open."""
    pid = guest.pid
    return pid is not None and has_open({pid, *descendants(pid)}, inode)
