"""Finds room for snapshots: in memory, on a local SSD or on the boot disk.

Standard library only; used by the loop and by the supervisor.
"""

import ctypes
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from outlast.base.plain_files import PlainFile


class NotPrivate(OSError):
    """A private folder belongs to another user, or is open to others."""


STATES = 2
"""Snapshots that must fit at the same time: one being uploaded, one being written."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk or an exceeded quota."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Modes of Linux's fallocate."""

_MEMORY_TYPES = frozenset({"tmpfs", "ramfs"})


def room(folder: Path) -> int:
    """Free bytes below an existing folder.

    In memory, at most what the machine has left: the file system may report more, and a process
    that used it would be killed.
    """
    free = shutil.disk_usage(folder).free
    if in_memory(folder):
        available = _available_memory()
        free = free if available is None else min(free, available)
    return free


def choose(folders: Sequence[Path], size: int) -> Path:
    """The first folder with room for ``STATES`` snapshots of ``size`` bytes, otherwise the one with
    the most room: one snapshot after the other may still fit.
    """
    rooms = [room(folder) for folder in folders]
    for folder, found in zip(folders, rooms, strict=True):
        if found >= STATES * size:
            return folder
    return folders[rooms.index(max(rooms))]


def on_disk(folders: Sequence[Path]) -> Path:
    """The first folder that is not in memory; the first one if all are."""
    return next((folder for folder in folders if not in_memory(folder)), folders[0])


def give_back(file: Path | PlainFile, until: int) -> None:
    """Frees the disk space of a file's first bytes; its size and the bytes after them stay.

    They then read as zeros. Does nothing if the file system cannot do that.
    """
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None or until <= 0:
        return
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    with file.open("r+b") as opened:
        fallocate(opened.fileno(), _PUNCH_HOLE | _KEEP_SIZE, 0, until)


def describe(folders: Sequence[Path]) -> str:
    """The folders with the room they have, for a message."""
    return ", ".join(f"{folder} has {room(folder)} bytes free" for folder in folders)


def in_memory(folder: Path) -> bool:
    """Whether files below the folder are kept only in memory."""
    return file_system_type(folder) in _MEMORY_TYPES


def file_system_type(folder: Path) -> str | None:
    """Type of the folder's file system; None if unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    best, kind = "", None
    real = os.path.realpath(folder)
    for line in lines:
        before, _, after = line.partition(" - ")
        point = _unescaped(before.split()[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def local_ssds(rooted: Callable[[str], Path]) -> list[Path]:
    """Mount points of a VM's local SSDs, by the names from the guest environment, or of their
    array, made by startup/ssd.sh.

    ``rooted`` maps an absolute path of the VM to where it is found.
    """
    try:
        links = [*rooted("/dev/disk/by-id").glob("google-local-*"), *rooted("/dev/md").glob("*")]
        devices = {os.path.realpath(link) for link in links}
        mounts = rooted("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in mounts:
        device, point, _, options, *_ = line.split()
        writable = "rw" in options.split(",")
        if writable and os.path.realpath(rooted(_unescaped(device))) in devices:
            found.append(rooted(_unescaped(point)))
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), text)


def _available_memory() -> int | None:
    """Bytes of memory available without swapping; None if unknown."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    match = re.search(r"^MemAvailable:\s+([0-9]+) kB$", text, re.MULTILINE)
    return None if match is None else int(match[1]) * 1024


def cache_home(name: str, variable: str) -> Path:
    """A user's cache folder: the environment's ``variable``, else ``name`` below XDG_CACHE_HOME or
    ~/.cache. A user without a home gets one below the temporary folder.
    """
    given = os.environ.get(variable)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    if home:
        return Path(home) / name
    try:
        return Path.home() / ".cache" / name
    except RuntimeError:  # no HOME, and the user is in no passwd file
        return private_folder(Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}")


def private_folder(folder: Path) -> Path:
    """Creates the folder if needed, for this user only. Raises NotPrivate if it is a link, another
    user's, or open to others: any user can create one in a temporary folder.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise NotPrivate(
            f"{folder}: must be this user's folder, closed to all other users; remove it, or "
            "set TMPDIR to another folder"
        )
    return folder
