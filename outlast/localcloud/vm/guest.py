"""What the hypervisor needs of a VM's system, whatever runs it: a process tree or QEMU."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Literal

from outlast.localcloud.http.peers import has_open
from outlast.localcloud.vm.guest_init import descendants
from outlast.localcloud.vm.machine import Machine
from outlast.localcloud.vm.metadata import Server, Tree

Event = Literal["running", "stopping"]


class Guest(ABC):
    """A VM that has a disk; it has a process only between boot and exit."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        """`folder` holds its disk and whatever else its guest needs."""
        self.machine = machine
        self.folder = folder
        self.tree = Tree(machine.values)
        self.access_token = ""
        self.server: Server | None = None
        self.process: asyncio.subprocess.Process | None = None
        self.serial: Path | None = None
        self.started = 0.0
        self.preemption: asyncio.Task[None] | None = None
        self.discarded = False
        """Whether the platform has discarded it while it runs; then its disk is deleted when it
        exits."""
        self.exited = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Pid of the VM's first process; None if it has none."""
        return self.process.pid if self.process else None

    def holds(self, inode: int) -> bool:
        """Whether a process of the VM has this socket open."""
        return any(has_open({root, *descendants(root)}, inode) for root in self.roots())

    def roots(self) -> set[int]:
        """The processes above all others of the VM."""
        return {self.pid} if self.pid else set()

    def enter(self, pid: int) -> None:
        """Takes a process of this machine for one of the VM. Raises LookupError if it cannot be
        one."""
        raise LookupError("this VM is a QEMU machine, which no process can enter")

    def asked(self, path: str) -> None:  # noqa: B027 - most guests do not care
        """Notes that the VM has read a path of its metadata."""

    def cut_off(self) -> Collection[int]:
        """The ids of users whom the VM's own rules block from the metadata server."""
        return ()

    async def open_port(self, port: int) -> None:  # noqa: B027 - a process listens by itself
        """Lets the platform's probes reach a port at the VM's address."""

    @abstractmethod
    def make_disk(self) -> None:
        """Creates its disk from its image. Raises OSError."""

    @abstractmethod
    async def start(self, environment: Mapping[str, str]) -> None:
        """Powers it on, with `environment` for everything that runs on it; sets `process`. Its
        serial file and its metadata server are there. Raises OSError."""

    @abstractmethod
    def events(self) -> AsyncIterator[Event]:
        """Yields what the VM reports, until it is off and no process of it is left."""

    @abstractmethod
    def stop(self, grace_sec: float) -> None:
        """Presses its power button; it is killed after the grace period."""

    @abstractmethod
    async def kill(self) -> None:
        """Kills it, as if its host vanished: no process of it runs when this returns."""

    @abstractmethod
    async def freeze(self) -> None:
        """Stops its processors until `thaw`."""

    @abstractmethod
    async def thaw(self) -> None:
        """Lets a frozen VM continue."""

    @abstractmethod
    def pids(self) -> set[int]:
        """The pids of its live processes on this machine."""

    @abstractmethod
    def signal(self, pattern: str, number: int) -> int:
        """Sends a signal to the processes in the VM whose command line matches; returns their
        number. Raises LookupError if the guest's processes cannot be reached from outside."""

    @abstractmethod
    async def out_of_memory(self) -> int:
        """Kills the VM's largest process, as its kernel does when memory is full; returns its pid,
        0 if there is none. Raises LookupError as `signal` does."""

    @abstractmethod
    async def withdraw_address(self) -> None:
        """Takes the VM's address from it, which a successor is about to get."""

    @abstractmethod
    def copy_disk(self, folder: Path) -> None:
        """Creates in `folder` an image of its disk, completely or not at all. Raises OSError."""
