"""A VM as a process tree with its own root folder.

Each boot starts `guest_init.py` as the tree's first process, with a new environment. Every process
of a VM is below that process, or has the boot's token in its environment. So none outlives its VM,
however it was started."""

import asyncio
import re
import secrets
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from outlast.localcloud.http.peers import has_open, listening_sockets
from outlast.localcloud.vm import images
from outlast.localcloud.vm.disks import SYSTEM_PATH, make_disk, plug_in_ssds
from outlast.localcloud.vm.guest import Event, Guest
from outlast.localcloud.vm.guest_init import (
    KERNEL,
    SIGNAL_ROUND_SEC,
    descendants,
    freeze_all,
    kill_all,
    kill_largest,
    signal_all,
)
from outlast.localcloud.vm.machine import Machine
from outlast.localcloud.vm.processes import (
    TOKEN_FILE,
    TOKEN_VARIABLE,
    command_line,
    has_token,
    holders_of,
    processes_below,
)

INIT = Path(__file__).with_name("guest_init.py")
SHIMS = Path(__file__).with_name("shims")
BROKEN_DRIVER = SHIMS / "broken-driver"
DRIVER = SHIMS / "driver"
PROHIBITED = re.compile(r"^-4 prohibit .*\buidrange (\d+)-(\d+) to 169\.254\.169\.254 ipproto tcp$")
"""A rule that `shims/ip` records."""

INIT_EXIT_SEC = 5.0


class ProcessGuest(Guest):
    """A process tree that looks like a machine to what runs in it."""

    def __init__(self, machine: Machine, folder: Path, grace_sec: float) -> None:
        """`grace_sec`: of a `poweroff` from inside."""
        super().__init__(machine, folder)
        self.root = folder / "root"
        self.token = ""
        self._entered: set[int] = set()
        """Processes that were started in it from outside, as by a login."""
        self._grace_sec = grace_sec

    def make_disk(self) -> None:
        """Creates its root folder."""
        self.root = make_disk(self.folder, self.machine)

    async def start(self, environment: Mapping[str, str]) -> None:
        """Starts its first process."""
        root, machine = self.root, self.machine
        assert self.serial
        # Files in memory do not survive a boot.
        shutil.rmtree(root / "run")
        (root / "run").mkdir()
        (root / "run").chmod(0o755)
        for entry in (root / "dev/shm").iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        plug_in_ssds(root, machine.local_ssds)
        (root / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
        (root / "dev/ttyS0").unlink(missing_ok=True)
        (root / "dev/ttyS0").symlink_to(self.serial.resolve())
        self.token = secrets.token_hex(16)
        self._entered = set()
        (self.folder / TOKEN_FILE).write_text(self.token)
        with self.serial.open("ab") as serial:
            self.process = await asyncio.create_subprocess_exec(
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
                env=self._environment(environment),
                start_new_session=True,
            )

    async def events(self) -> AsyncIterator[Event]:
        """Passes on the reports of the VM's first process."""
        process = self.process
        assert process and process.stdout
        async for line in process.stdout:
            match line.strip():
                case b"running":
                    yield "running"
                case b"stopping":
                    yield "stopping"
        await process.wait()
        # The first process leaves no process behind, unless it was killed itself.
        await asyncio.to_thread(kill_all, partial(holders_of, self.token))

    def stop(self, grace_sec: float) -> None:
        """Asks the VM's first process to stop the others."""
        self._tell(f"stop {grace_sec}")

    async def kill(self) -> None:
        """Kills all processes at one moment."""
        process, exited = self.process, self.exited
        if process is None:
            return
        self._tell("kill")
        await asyncio.to_thread(kill_all, self._below)
        try:
            await asyncio.wait_for(exited.wait(), INIT_EXIT_SEC)
        except TimeoutError:
            signal_all([process.pid], signal.SIGKILL)
            await exited.wait()

    async def freeze(self) -> None:
        """Freezes every process of the VM: none returns from its current system call."""
        await asyncio.to_thread(freeze_all, self._below)

    async def thaw(self) -> None:
        """Continues every process of the VM."""
        signal_all(self._below(), signal.SIGCONT)

    def pids(self) -> set[int]:
        """The first process and all below it."""
        return {self.pid, *self._below()} if self.pid else set()

    def signal(self, pattern: str, number: int) -> int:
        """Sends the signal from outside."""
        meant = [pid for pid in self._below() if re.search(pattern, command_line(pid))]
        signal_all(meant, number)
        return len(meant)

    async def out_of_memory(self) -> int:
        """Kills the largest process; the VM keeps running."""
        killed = await asyncio.to_thread(kill_largest, self._below())
        if killed is None or self.serial is None:
            return 0
        with self.serial.open("a") as serial:
            serial.write(f"{KERNEL}: {killed[1]}\n")
        return killed[0]

    async def withdraw_address(self) -> None:
        """Kills the processes that listen on the address: the loopback has no routes to change."""
        inodes = listening_sockets(str(self.tree.value("instance/network-interfaces/0/ip")))
        listeners = {
            pid for pid in self._below() if any(has_open([pid], inode) for inode in inodes)
        }
        signal_all(listeners, signal.SIGKILL)
        while listeners & self._below():
            await asyncio.sleep(SIGNAL_ROUND_SEC)

    def copy_disk(self, folder: Path) -> None:
        """Copies the files of its root folder."""
        images.bake(self.root, folder)

    def cut_off(self) -> Collection[int]:
        """Reads the rules that `shims/ip` has recorded."""
        try:
            rules = (self.root / "run/ip-rules").read_text().splitlines()
        except FileNotFoundError:
            return set()
        found = (PROHIBITED.search(rule) for rule in rules)
        return {uid for match in found if match for uid in range(int(match[1]), int(match[2]) + 1)}

    def enter(self, pid: int) -> None:
        """Takes a process that has the boot's token in its environment."""
        if not self.pid or not has_token(pid, self.token):
            raise LookupError(f"process {pid}: does not have the environment of this VM")
        self._entered.add(pid)

    def roots(self) -> set[int]:
        """The first process, and those that have entered and still exist."""
        # Other threads ask too, while one enters.
        self._entered -= {pid for pid in tuple(self._entered) if not has_token(pid, self.token)}
        return super().roots().union(tuple(self._entered))

    def _below(self) -> set[int]:
        if not self.pid:
            return set()
        return processes_below(self.pid, self.token).union(*map(descendants, self.roots()))

    def _tell(self, word: str) -> None:
        if self.process and self.process.stdin:
            with suppress(OSError, RuntimeError):  # it is already ending
                self.process.stdin.write(f"{word}\n".encode())

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        assert self.server
        root = str(self.root)
        system = f"{root}/usr/bin" if self.machine.missing_tools else SYSTEM_PATH
        shims = str(SHIMS)
        if self.machine.driver_fails:
            shims = f"{BROKEN_DRIVER}:{shims}"
        elif self.machine.gpus:
            shims = f"{DRIVER}:{shims}"
        return {
            "PATH": f"{shims}:{root}/usr/local/bin:{system}",
            "HOME": f"{root}/root",
            "TMPDIR": f"{root}/tmp",  # noqa: S108 - of the VM's own root
            "LANG": "C.UTF-8",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            "USER": "root",
            "OUTLAST_VM_GPUS": str(self.machine.gpus),
            "OUTLAST_ROOT": root,
            "GCE_METADATA_HOST": self.server.host,
            "GCE_METADATA_IP": self.server.host,  # Google's client uses it to detect GCE
            "METADATA_BASE": f"http://{self.server.host}/computeMetadata/v1",
            **more,
            TOKEN_VARIABLE: self.token,
        }
