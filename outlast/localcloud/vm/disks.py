"""Disks of VMs: folders that look like the root of a machine."""

import os
import shutil
import sys
import tempfile
from collections.abc import Container
from pathlib import Path

from outlast.localcloud.vm import images
from outlast.localcloud.vm.guest_init import TEMPORARY_PREFIX, delete_disk
from outlast.localcloud.vm.machine import Machine

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - folders in it come from mkdtemp
FOLDERS = (
    *("dev", "etc", "home", "opt", "proc/sys/kernel/random", "root", "run", "tmp"),
    *("usr/local/bin", "var/lib", "var/log", "var/tmp"),
)
MODES = {"root": 0o700, "var/tmp": 0o1777}

# The path of a Unix socket has at most 107 bytes. Programs create sockets in TMPDIR; the text here
# is as long as a name of Python's multiprocessing, which does not shorten it.
LONGEST_ROOT = 107 - len("/var/lib/outlast/tmp/pymp-12345678/listener-12345678")


def make_disk(folder: Path, machine: Machine) -> Path:
    """Creates a VM's disk in a folder, from its image; returns the disk's root. Raises OSError."""
    delete_folder(folder)
    root = folder / "root"
    folder.mkdir(parents=True)
    if len(os.fsencode(root)) > LONGEST_ROOT:
        # Only the owner can read the folder; its content has a machine's normal modes.
        short = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY_PREFIX}{machine.id}-", dir="/tmp"))
        root.symlink_to(short / "r")
        root = short / "r"
    if machine.image and images.is_baked(machine.image):
        images.unpack(machine.image, root)
    make_folders(root)
    hostname = root / "etc/hostname"
    hostname.unlink(missing_ok=True)  # it may be a link in the image
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


def make_folders(root: Path) -> None:
    """Creates a disk's folders with their modes on a machine. Raises OSError if one is a link,
    which may lead off the disk: an image may come from another person."""
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


def plug_in_ssds(root: Path, count: int) -> None:
    """Sets up local SSDs as a freshly booted system finds them: by name, empty, not mounted."""
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


def _link_tools(folder: Path, missing: Container[str]) -> None:
    """Fills a folder with links to the system's programs, except the missing ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in map(Path, SYSTEM_PATH.split(":")):
        for tool in path.iterdir() if path.is_dir() else ():
            if tool.name not in missing and not (folder / tool.name).is_symlink():
                (folder / tool.name).symlink_to(tool)


def delete_folder(folder: Path) -> None:
    """Deletes a disk with its folder, and its parts outside of it."""
    delete_disk(folder / "root")
    shutil.rmtree(folder, ignore_errors=True)
