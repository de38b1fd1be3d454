"""A VM as a QEMU machine, which boots a real Debian or Ubuntu from a guest image.

The guest is the one of Compute Engine as far as Outlast can tell: Google's guest agent asks the
metadata server at 169.254.169.254, a real systemd hears the power button, and the disk, the memory
and the processors are its own.

    address        what the guest reaches
    169.254.169.254:80  its metadata server, through a helper process for each connection
    GATEWAY             this machine's loopback, where the local cloud listens

The boot's environment is on the kernel's command line, which systemd hands to every unit."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from outlast.localcloud.vm.accelerator import QEMU, Accelerator
from outlast.localcloud.vm.guest import Event, Guest
from outlast.localcloud.vm.guest_init import descendants, kill_all
from outlast.localcloud.vm.machine import Machine
from outlast.localcloud.vm.processes import TOKEN_FILE, TOKEN_VARIABLE, processes_below
from outlast.localcloud.vm.qmp import Qmp
from outlast.localcloud.vm.slowness import Slowness

PARENT = Path(__file__).with_name("qemu_parent.py")
RECORD = "guest.json"
"""File in a guest image's folder: {system, disk, format, root}."""
DISK = "disk.qcow2"
METADATA = "169.254.169.254"
GATEWAY = "169.254.169.2"
"""This machine's loopback, as the guest sees it."""
ADDRESS = "169.254.169.15"
"""The guest's own address, which the metadata server tells it too."""
STARTUP_SCRIPT = "instance/attributes/"
"""The folder of the metadata that is read for the startup script."""
LONGEST_COMMAND_LINE = 2047
"""COMMAND_LINE_SIZE of x86 (arch/x86/include/asm/setup.h), without its end."""
LEAST_MEMORY_MB = 512
OUT_OF_REACH = "a VM's processes cannot be reached from outside: its system is its own"


@dataclass
class Host:
    """What the QEMU guests of one local cloud share."""

    accelerator: Accelerator
    slowness: Slowness
    note: Callable[[str], None]
    """Tells the operator one sentence."""

    def give_up_kvm(self, why: str) -> None:
        """Emulates all later VMs."""
        if self.accelerator == "kvm":
            self.accelerator = "tcg"
            self.note(
                f"KVM failed in the middle of a VM's life ({why}); later VMs are emulated (TCG)"
            )


@dataclass(frozen=True)
class GuestImage:
    """A guest image: a folder with a kernel, its initial RAM disk, and a disk."""

    folder: Path
    system: str
    disk: Path
    format: str
    root: str
    """The kernel's `root=`."""

    @classmethod
    def read(cls, folder: Path | None) -> "GuestImage":
        """Reads the record in a folder. Raises OSError if it is not a guest image's."""
        if folder is None:
            raise OSError("the image has no guest image here; see make guest-image")
        try:
            record = json.loads((folder / RECORD).read_bytes())
            return cls(
                folder,
                record["system"],
                folder / record["disk"],
                record["format"],
                record["root"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OSError(f"{folder}: is not a guest image ({error})") from None


class QemuGuest(Guest):
    """A QEMU machine."""

    def __init__(self, machine: Machine, folder: Path, host: Host) -> None:
        super().__init__(machine, folder)
        self._host = host
        self._image: GuestImage | None = None
        self._qmp: Qmp | None = None
        self._lifeline: int | None = None
        self._token = ""
        self._on_at = 0.0
        """Monotonic time of the power-on."""
        self._ending: asyncio.Task[None] | None = None
        """Kills it after the grace period of a stop."""
        self._look: asyncio.Task[None] | None = None
        """Ends it because of what QEMU reported."""
        self._ports: set[int] = set()

    def make_disk(self) -> None:
        """Creates an overlay over the image's disk."""
        image = GuestImage.read(self.machine.image)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / DISK).unlink(missing_ok=True)
        command = ["create", "-q", "-f", "qcow2", "-b", str(image.disk.resolve())]
        command += ["-F", image.format, str(self.folder / DISK)]
        if self.machine.disk_gb:
            size = _disk_bytes(image)
            command.append(str(max(size, self.machine.disk_gb << 30)))
        _qemu_img(command)

    async def start(self, environment: Mapping[str, str]) -> None:
        """Starts QEMU below a parent that ends it with the cloud."""
        image = self._image = GuestImage.read(self.machine.image)
        command = self._command(image, environment)
        self._token = token_hex(16)
        (self.folder / TOKEN_FILE).write_text(self._token)
        self._ports = set()
        lifeline, self._lifeline = os.pipe()
        try:
            with (self.folder / "qemu.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(PARENT)),
                    *(str(lifeline), str(self.folder), "--", *command),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    limit=1 << 20,
                    pass_fds=(lifeline,),
                    cwd=self.folder,
                    env={"PATH": os.environ.get("PATH", os.defpath), TOKEN_VARIABLE: self._token},
                    start_new_session=True,
                )
        finally:
            os.close(lifeline)
        self.process = process
        self._on_at = time.monotonic()
        self._qmp = Qmp(process)
        try:
            await self._qmp.open()
        except (OSError, TimeoutError):
            await asyncio.to_thread(kill_all, partial(descendants, process.pid))
            self._qmp = None
            await self._end(process)
            raise OSError(f"QEMU did not start: {self._said()[0]}") from None

    def _command(self, image: GuestImage, environment: Mapping[str, str]) -> list[str]:
        machine, kvm = self.machine, self._host.accelerator == "kvm"
        assert self.server and self.serial
        words = [f"root={image.root}", "rw", "console=ttyS0", "net.ifnames=0"]
        words.append(f"systemd.hostname={machine.name}")
        words += [_set(name, value) for name, value in environment.items()]
        line = " ".join(words)
        if len(line) > LONGEST_COMMAND_LINE:
            raise OSError(
                f"the environment of the guest takes {len(line)} characters, at most "
                f"{LONGEST_COMMAND_LINE} fit on the kernel's command line; pass fewer variables"
            )
        forward = f"guestfwd=tcp:{METADATA}:80-cmd:socat - TCP:127.0.0.1:{self.server.port}"
        network = f"user,id=net0,net=169.254.169.0/24,host={GATEWAY},dns=169.254.169.3"
        return [
            *(QEMU, "-nodefaults", "-display", "none", "-no-user-config", "-name", machine.name),
            *("-accel", "kvm" if kvm else "tcg,thread=multi", "-cpu", "host" if kvm else "max"),
            *("-smp", str(min(machine.cpus or 1, os.cpu_count() or 1))),
            *("-m", str(memory_mb(machine.memory_mb))),
            *("-smbios", "type=1,manufacturer=Google,product=Google Compute Engine"),
            *(
                "-kernel",
                str(image.folder / "vmlinuz"),
                "-initrd",
                str(image.folder / "initrd.img"),
            ),
            *("-append", line),
            *("-drive", f"file={self.folder / DISK},if=virtio,format=qcow2,cache=unsafe"),
            *("-netdev", f"{network},dhcpstart={ADDRESS},{forward}"),
            *("-device", "virtio-net-pci,netdev=net0", "-device", "virtio-rng-pci"),
            *("-chardev", f"file,id=serial0,path={self.serial.resolve()},append=on"),
            *("-serial", "chardev:serial0", "-qmp", "stdio"),
        ]

    def asked(self, path: str) -> None:
        """Measures the first boot by its look for the startup script."""
        if path == STARTUP_SCRIPT and not self._host.slowness.known:
            self._host.slowness.booted(self._on_at)

    async def events(self) -> AsyncIterator[Event]:
        """Passes on what QEMU reports."""
        process, qmp = self.process, self._qmp
        assert process and qmp
        yield "running"
        stopping = False
        async for event in qmp.events():
            match event["event"]:
                case "POWERDOWN" | "SHUTDOWN" if not stopping:
                    stopping = True
                    yield "stopping"
                case "BLOCK_IO_ERROR" if event["data"]["action"] == "stop":
                    self._give_up_disk(event["data"])
                case "STOP" if self._host.accelerator == "kvm":
                    # The guest's processor has failed, or it was frozen on purpose.
                    self._look = asyncio.create_task(self._look_at_stop())
        await self._end(process)

    async def _look_at_stop(self) -> None:
        """Ends a VM that KVM can no longer run; later ones are emulated."""
        with suppress(OSError, TimeoutError):
            assert self._qmp
            if (await self._qmp.run("query-status"))["status"] == "internal-error":
                self._host.give_up_kvm("an internal error of its processor")
                await self.kill()

    def _give_up_disk(self, error: Mapping[str, Any]) -> None:
        """Ends a VM that QEMU has frozen because its disk's file cannot be written."""
        if self._look is None or self._look.done():  # it says so for each request in flight
            why = error.get("reason") or "an input or output error"
            self._host.note(
                f"{self.machine.name}: its disk in {self.folder.parent} cannot be written ({why}); "
                "the VM has ended; free some space there"
            )
            self._look = asyncio.create_task(self.kill())

    def stop(self, grace_sec: float) -> None:
        """Presses the ACPI power button; QEMU is killed after the grace period, which is as much
        longer as this machine is slower."""
        if self._ending or self._qmp is None:
            return
        with suppress(OSError):
            self._qmp.send("system_powerdown")
        wait_sec = grace_sec * self._host.slowness.factor(self._on_at)
        self._ending = asyncio.create_task(self._end_after(wait_sec))

    async def _end_after(self, wait_sec: float) -> None:
        await asyncio.sleep(wait_sec)
        await self.kill()

    async def kill(self) -> None:
        """Kills QEMU."""
        process, exited = self.process, self.exited
        if process is None:
            return
        await asyncio.to_thread(kill_all, partial(descendants, process.pid))
        await exited.wait()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Waits for the end of the parent, which comes with that of QEMU, and then frees what this
        boot had: without the lifeline, the parent would delete the disk."""
        await process.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self._ending and self._ending is not asyncio.current_task():
            self._ending.cancel()
        self._ending = None
        # A machine that is switched off ends with 0, one that is killed by the signal.
        failed, said = process.returncode not in (0, 128 + signal.SIGKILL), self._said()[-1]
        if failed and (self._qmp is not None or "kvm" in said.lower()):
            self._host.give_up_kvm(said)

    def _said(self) -> list[str]:
        """What QEMU has said, line by line; at least one."""
        said = (self.folder / "qemu.log").read_text(errors="replace").strip().splitlines()
        return said or ["it said nothing"]

    async def freeze(self) -> None:
        """Stops the machine's processors."""
        await self._command_if_on("stop")

    async def thaw(self) -> None:
        """Continues the machine's processors."""
        await self._command_if_on("cont")

    async def open_port(self, port: int) -> None:
        """Forwards the port of the VM's address on this machine's loopback to the guest."""
        if port not in self._ports:
            self._ports.add(port)
            await self._monitor(
                f"hostfwd_add net0 tcp:{self.machine.address}:{port}-{ADDRESS}:{port}"
            )

    async def withdraw_address(self) -> None:
        """Ends all forwarding to the guest."""
        ports, self._ports = self._ports, set()
        for port in ports:
            await self._monitor(f"hostfwd_remove net0 tcp:{self.machine.address}:{port}")

    def pids(self) -> set[int]:
        """QEMU, its parent, and its helpers."""
        return {self.pid, *processes_below(self.pid, self._token)} if self.pid else set()

    def signal(self, pattern: str, number: int) -> int:
        """Raises LookupError: the processes are the guest's."""
        raise LookupError(OUT_OF_REACH)

    async def out_of_memory(self) -> int:
        """Raises LookupError: the memory is the guest's."""
        raise LookupError(OUT_OF_REACH)

    def copy_disk(self, folder: Path) -> None:
        """Copies the disk with what it is based on, and the kernel."""
        image = self._image or GuestImage.read(self.machine.image)
        draft = folder.with_name(f".{folder.name}.new")
        for old in (draft, folder):
            shutil.rmtree(old, ignore_errors=True)
        draft.mkdir(parents=True)
        try:
            force = ["--force-share"] if self.process else []
            source, target = str(self.folder / DISK), str(draft / DISK)
            _qemu_img(["convert", *force, "-q", "-O", "qcow2", source, target])
            for name in ("vmlinuz", "initrd.img"):
                shutil.copyfile(image.folder / name, draft / name)
            record = {"system": image.system, "disk": DISK, "format": "qcow2", "root": image.root}
            (draft / RECORD).write_text(json.dumps(record))
            draft.rename(folder)
        except OSError:  # perhaps of a full disk
            shutil.rmtree(draft, ignore_errors=True)
            raise

    async def _command_if_on(self, command: str) -> None:
        with suppress(OSError, TimeoutError):  # it is ending
            if self._qmp:
                await self._qmp.run(command)

    async def _monitor(self, line: str) -> None:
        with suppress(OSError, TimeoutError):
            if self._qmp:
                await self._qmp.run("human-monitor-command", **{"command-line": line})


def memory_mb(wanted_mb: int) -> int:
    """The memory of a VM in MB: that of its machine type, but at most half of what this machine has
    available."""
    available_mb = wanted_mb or 2048
    with suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                available_mb = int(line.split()[1]) >> 10
    return max(LEAST_MEMORY_MB, min(wanted_mb or 2048, available_mb // 2))


def _set(name: str, value: str) -> str:
    """A variable on the kernel's command line, for every unit."""
    text = f"systemd.setenv={name}={value}"
    if '"' in text or "\n" in text:
        raise OSError(f"environment variable {name}: must not hold a quote or a line break")
    return f'"{text}"' if shlex.quote(text) != text and " " in text else text


def _disk_bytes(image: GuestImage) -> int:
    """The size of an image's disk in bytes."""
    command = ["info", "--output=json", "-f", image.format, str(image.disk)]
    return int(json.loads(_qemu_img(command))["virtual-size"])


def _qemu_img(arguments: list[str]) -> str:
    """Runs qemu-img; returns what it prints. Raises OSError."""
    done = subprocess.run(["qemu-img", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"qemu-img {arguments[0]}: {done.stderr.strip()}")
    return done.stdout
