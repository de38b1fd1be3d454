"""The hypervisor: a VM is a process tree with its own root folder.

Each boot starts `guest_init.py` as the tree's first process, in an environment made from nothing.
Every process of a VM is below that one, or carries the boot's token in its environment; so none
outlives its VM, however it was started.
"""

import asyncio
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from outlast.localcloud.base.background import Background
from outlast.localcloud.http.peers import (
    has_open,
    listening_sockets,
)
from outlast.localcloud.vm import images
from outlast.localcloud.vm.guest_init import (
    KERNEL,
    SIGNAL_ROUND_SEC,
    TEMPORARY_PREFIX,
    delete_disk,
    descendants,
    freeze_all,
    kill_all,
    kill_largest,
    read_stat,
    signal_all,
)
from outlast.localcloud.vm.metadata import (
    Server,
    Tree,
    Trouble,
    Value,
)

INIT = Path(__file__).with_name("guest_init.py")
SHIMS = Path(__file__).with_name("shims")
BROKEN_DRIVER = SHIMS / "broken-driver"
DRIVER = SHIMS / "driver"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHARED_MEMORY = Path("/dev/shm")
FOLDERS = (
    *("dev", "etc", "home", "opt", "proc/sys/kernel/random", "root", "run", "tmp"),
    *("usr/local/bin", "var/lib", "var/log", "var/tmp"),
)
MODES = {"root": 0o700, "var/tmp": 0o1777}
PROHIBITED = re.compile(r"^-4 prohibit .*\buidrange (\d+)-(\d+) to 169\.254\.169\.254 ipproto tcp$")
"""A line of the rules of `shims/ip`."""
TOKEN_VARIABLE = "OUTLAST_VM_TOKEN"
TOKEN_FILE = "token"

# A Unix socket's path has at most 107 bytes. Programs make sockets in TMPDIR; this is how long
# such a name gets with Python's multiprocessing, which does not shorten it.
LONGEST_ROOT = 107 - len("/var/lib/outlast/tmp/pymp-12345678/listener-12345678")
SERIAL_BYTES = 1 << 20
"""Of serial output that the platform keeps."""
INIT_EXIT_SEC = 5.0

Report = Callable[[str, Literal["running", "stopping", "exited", "failed"], str], None]


@dataclass(frozen=True)
class Machine:
    """What a VM is made of."""

    id: str
    name: str
    values: Mapping[str, Value]
    """Of its metadata server, attributes included."""
    image: Path | None = None
    """The folder that its boot disk starts from; None: an empty disk."""
    notice_sec: float = 0.0
    """From the `preempted` flag to the stop."""
    memory_mb: int = 0
    """Above it the largest process is killed; 0: no limit."""
    missing_tools: tuple[str, ...] = ()
    """Programs of the system that the VM does not have."""
    driver_fails: bool = False
    """Whether `nvidia-smi` says that it cannot reach the driver."""
    gpus: int = 0
    """GPUs that its `nvidia-smi` lists."""
    local_ssds: int = 0
    """Empty at each boot."""
    trouble: Trouble | None = None
    """What its metadata server does before it answers as it should."""


@dataclass
class Guest:
    """A VM that has a disk; a process only between boot and exit."""

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
    """The platform has given it up while it still runs; its disk goes when it exits."""
    exited: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int | None:
        """Of the VM's first process while there is one."""
        return self.process.pid if self.process else None


class Hypervisor:
    """The VMs of one local cloud. All calls on one asyncio loop."""

    def __init__(
        self,
        folder: Path,
        report: Report,
        failed: Callable[[BaseException], None],
        *,
        grace_sec: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Disks are under `folder`/vms, serial output is kept in `folder`/serial. `report` gets
        (instance id, what happened, why it failed), `failed` what the hypervisor itself fails of;
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
        self._sweep_disks()
        for file in self._serials.glob("*.log"):
            name, _, number = file.stem.rpartition("-")
            if number.isdigit():
                self._boots[name] = max(self._boots.get(name, 0), int(number))

    # Commands of the model

    async def boot(self, machine: Machine, *, new_disk: bool = True) -> None:
        """Starts the VM; reports `running`, or `failed` where it could not be started."""
        guest = self._guests.get(machine.id)
        try:
            if guest is None or new_disk:
                root = await asyncio.to_thread(self._new_disk, machine)
                guest = self._guests[machine.id] = Guest(machine, root, Tree(machine.values))
            guest.machine = machine
            await self._power_on(guest)
        except OSError as error:
            if guest:
                await self._power_off(guest)
            self._report(machine.id, "failed", f"The VM could not be booted: {error}")

    async def stop(self, instance_id: str, grace_sec: float | None = None) -> None:
        """Asks the VM's system to go down; it is cut off after the grace."""
        self._tell(instance_id, "stop" if grace_sec is None else f"stop {grace_sec}")

    async def preempt(
        self, instance_id: str, notice_sec: float | None = None, grace_sec: float | None = None
    ) -> None:
        """Raises the flag, then stops the VM after its notice; returns at the flag."""
        guest = self._guests.get(instance_id)
        if guest is None or guest.process is None or guest.preemption:
            return
        guest.tree.set("instance/preempted", "TRUE")
        wait_sec = guest.machine.notice_sec if notice_sec is None else notice_sec
        guest.preemption = self._background.begin(
            self._stop_after_notice(instance_id, wait_sec, grace_sec)
        )

    async def kill(self, instance_id: str) -> None:
        """The VM's host vanishes: no process of it runs when this returns."""
        guest = self._guests.get(instance_id)
        if guest is None or guest.process is None:
            return
        process, exited = guest.process, guest.exited
        self._tell(instance_id, "kill")
        await asyncio.to_thread(kill_all, partial(_below, process.pid, guest.token))
        try:
            await asyncio.wait_for(exited.wait(), INIT_EXIT_SEC)
        except TimeoutError:
            signal_all([process.pid], signal.SIGKILL)
            await exited.wait()

    async def discard(self, instance_id: str) -> None:
        """Deletes the disk of a VM, of one that still runs when it has exited."""
        guest = self._guests.get(instance_id)
        if guest is None:
            return
        guest.discarded = True
        if guest.process is None:
            del self._guests[instance_id]
            self._background.begin(asyncio.to_thread(_delete_folder, self._vms / instance_id))

    async def bake(self, instance_id: str, folder: Path) -> None:
        """Makes `folder` an image of a VM's disk; a VM that runs stands still meanwhile.
        KeyError: there is no such disk; OSError: it cannot be copied."""
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
        """Sends a signal to the VM's processes whose command line matches; how many they are."""
        guest = self._guests.get(instance_id)
        if guest is None or guest.process is None:
            return 0
        below = _below(guest.process.pid, guest.token)
        meant = [pid for pid in below if re.search(pattern, _command_line(pid))]
        signal_all(meant, number)
        return len(meant)

    async def out_of_memory(self, instance_id: str) -> int:
        """The VM's kernel finds no memory: its largest process is killed, and the VM lives on.
        The pid, 0 if none ran."""
        guest = self._guests.get(instance_id)
        if guest is None or guest.process is None or guest.serial is None:
            return 0
        below = _below(guest.process.pid, guest.token)
        killed = await asyncio.to_thread(kill_largest, below)
        if killed is None:
            return 0
        with guest.serial.open("a") as serial:
            serial.write(f"{KERNEL}: {killed[1]}\n")
        return killed[0]

    async def freeze(self, instance_id: str) -> None:
        """Stops every process of the VM in its tracks: none of them comes back from the call of the
        system that it is in."""
        guest = self._guests.get(instance_id)
        if guest and guest.process:
            await asyncio.to_thread(freeze_all, partial(_below, guest.process.pid, guest.token))

    async def thaw(self, instance_id: str) -> None:
        """Lets a frozen VM go on."""
        guest = self._guests.get(instance_id)
        if guest and guest.process:
            signal_all(_below(guest.process.pid, guest.token), signal.SIGCONT)

    async def withdraw_address(self, instance_id: str) -> None:
        """Cuts the VM off from its address, which a successor is about to have. The
        loopback has no routes to change: processes of the VM that listen there are ended."""
        guest = self._guests.get(instance_id)
        if guest is None or guest.process is None:
            return
        inodes = listening_sockets(str(guest.tree.value("instance/network-interfaces/0/ip")))
        find = partial(_below, guest.process.pid, guest.token)
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

    # What is known

    def holder(self, access_token: str) -> Machine | None:
        """The VM that got this token from its metadata server; its death does not end the token."""
        return self._holders.get(access_token)

    def sender(self, inode: int) -> Machine | None:
        """The VM of which a process has this socket open; None: none of them."""
        pids = {i: guest.pid for i, guest in self._guests.items() if guest.pid}
        for instance_id, pid in pids.items():
            if has_open({pid, *descendants(pid)}, inode):
                return self._guests[instance_id].machine
        return None

    def guest(self, instance_id: str) -> Guest | None:
        """The VM, if it has a disk."""
        return self._guests.get(instance_id)

    def boots(self, name: str) -> int:
        """How often a VM of this name was started."""
        return self._boots.get(name, 0)

    def serial(self, name: str) -> Path | None:
        """The serial output of the last boot under this name."""
        number = self._boots.get(name, 0)
        return self._serials / f"{name}-{number}.log" if number else None

    def pids(self, instance_id: str | None = None) -> list[int]:
        """Every live process of a VM, or of all of them."""
        found: set[int] = set()
        for guest in self._guests.values():
            if guest.process and instance_id in (None, guest.machine.id):
                found |= {guest.process.pid, *_below(guest.process.pid, guest.token)}
        return sorted(found)

    # Inside

    def _new_disk(self, machine: Machine) -> Path:
        folder = self._vms / machine.id
        _delete_folder(folder)
        root = folder / "root"
        folder.mkdir(parents=True)
        if len(os.fsencode(root)) > LONGEST_ROOT:
            # The folder is the owner's alone; what is in it has a machine's own rights.
            short = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY_PREFIX}{machine.id}-", dir="/tmp"))
            root.symlink_to(short / "r")
            root = short / "r"
        if machine.image and images.is_baked(machine.image):
            images.unpack(machine.image, root)
        _make_folders(root)
        hostname = root / "etc/hostname"
        hostname.unlink(missing_ok=True)  # the image's may be a link
        hostname.write_text(machine.name + "\n")
        python = root / "usr/local/bin/python3"
        python.unlink(missing_ok=True)
        if python.name not in machine.missing_tools:
            python.symlink_to(os.path.realpath(sys.executable))
        if machine.missing_tools:
            _link_tools(root / "usr/bin", machine.missing_tools)
        if os.access(SHARED_MEMORY, os.W_OK):
            own = tempfile.mkdtemp(prefix=f"{TEMPORARY_PREFIX}{machine.id}-", dir=SHARED_MEMORY)
            memory = Path(own) / "shm"
            memory.mkdir()
            memory.chmod(0o1777)
            (root / "dev/shm").symlink_to(memory)
        else:
            (root / "dev/shm").mkdir()
        if machine.image and (machine.image / "opt/outlast").exists():
            (root / "opt/outlast").symlink_to((machine.image / "opt/outlast").resolve())
        return root

    async def _power_on(self, guest: Guest) -> None:
        root, machine = guest.root, guest.machine
        # What lives in memory does not survive a boot.
        shutil.rmtree(root / "run")
        (root / "run").mkdir()
        (root / "run").chmod(0o755)
        for entry in (root / "dev/shm").iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        _plug_in_ssds(root, machine.local_ssds)
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
                env=self._guest_environment(guest),
                start_new_session=True,
            )
        self._background.begin(self._watch(guest, guest.process))

    def _guest_environment(self, guest: Guest) -> dict[str, str]:
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
            "GCE_METADATA_IP": guest.server.host,  # what Google's client asks if it is on GCE
            "METADATA_BASE": f"http://{guest.server.host}/computeMetadata/v1",
            **self._environment,
            TOKEN_VARIABLE: guest.token,
        }

    async def _watch(self, guest: Guest, process: asyncio.subprocess.Process) -> None:
        """Passes on what the VM's first process says, until it has gone."""
        assert process.stdout
        async for line in process.stdout:
            word = line.strip()
            if word == b"running":
                self._report(guest.machine.id, "running", "")
            elif word == b"stopping":
                self._report(guest.machine.id, "stopping", "")
        await process.wait()
        # The first process leaves nothing behind, unless it was killed itself.
        await asyncio.to_thread(kill_all, partial(_holders, guest.token))
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
            with suppress(OSError, RuntimeError):  # it is ending by itself
                guest.process.stdin.write(f"{word}\n".encode())

    def _sweep_disks(self) -> None:
        """Ends and deletes what a local cloud that was killed has left."""
        for folder in self._vms.iterdir():
            if folder.name.isdigit():  # an instance's id; anything else is not ours
                with suppress(OSError):
                    kill_all(partial(_trees, (folder / TOKEN_FILE).read_text()))
                _delete_folder(folder)


def _make_folders(root: Path) -> None:
    """A disk's folders, with the rights that they have on a machine. OSError if one is a link,
    which may lead off the disk: an image may be somebody else's."""
    root.mkdir(exist_ok=True)
    root.chmod(0o755)
    for name in FOLDERS:
        folder = root
        for part in name.split("/"):
            folder /= part
            if folder.is_symlink():
                raise OSError(f"{folder}: is a link in the VM's image, but must be a folder there")
            if not folder.is_dir():
                folder.mkdir()
                folder.chmod(MODES.get(name, 0o755))
    (root / "tmp").chmod(0o1777)


def _cut_off(root: Path) -> set[int]:
    """The users whose packages a VM's own rules keep from the metadata server."""
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


def _below(pid: int, token: str) -> set[int]:
    """Every process of a VM but its first."""
    return (descendants(pid) | _holders(token)) - {pid}


def _holders(token: str) -> set[int]:
    """Every live process that has the token in its environment."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.add(int(entry))
    return {pid for pid in found if (stat := read_stat(pid)) and stat[0] not in "ZX"}


def _plug_in_ssds(root: Path, count: int) -> None:
    """Local SSDs as a system finds them that has just come up: by name, empty, not mounted."""
    if not count:
        return
    for folder in ("dev/disk", "dev/md", "mnt", "proc/self"):
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True)
    (root / "proc/self/mounts").touch()
    (root / "dev/disk/by-id").mkdir()
    for number in range(count):
        (root / f"dev/nvme0n{number + 1}").write_bytes(b"")
        link = root / f"dev/disk/by-id/google-local-nvme-ssd-{number}"
        link.symlink_to(f"../../nvme0n{number + 1}")


def _trees(token: str) -> set[int]:
    """Who has the token, with all below them: the first process of a VM is one."""
    holders = _holders(token)
    return holders.union(*map(descendants, holders))


def _command_line(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def _link_tools(folder: Path, missing: Container[str]) -> None:
    """A folder of what the system's own folders hold, but for the missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in map(Path, SYSTEM_PATH.split(":")):
        for tool in path.iterdir() if path.is_dir() else ():
            if tool.name not in missing and not (folder / tool.name).is_symlink():
                (folder / tool.name).symlink_to(tool)


def _delete_folder(folder: Path) -> None:
    delete_disk(folder / "root")
    shutil.rmtree(folder, ignore_errors=True)


def read_serial(file: Path, start: int) -> tuple[bytes, int, int]:
    """Serial output from a byte on, below 0 from so many before the end: (bytes, the first one's
    number, the number after the last). What is older than the buffer has gone."""
    with file.open("rb") as serial:
        end = serial.seek(0, os.SEEK_END)
        first = max(end + start if start < 0 else start, end - SERIAL_BYTES, 0)
        serial.seek(first)
        contents = serial.read(max(end - first, 0))
    return contents, first, first + len(contents)


def service_account(properties: Mapping[str, Any], project_number: str) -> str:
    """The e-mail of a VM's service account; empty if it has none."""
    accounts = properties.get("serviceAccounts") or []
    if not accounts:
        return ""
    email = accounts[0].get("email") or "default"
    return default_account(project_number) if email == "default" else email


def default_account(project_number: str) -> str:
    """The e-mail of the project's default service account."""
    return f"{project_number}-compute@developer.gserviceaccount.com"
