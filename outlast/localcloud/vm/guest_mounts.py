"""Starts a command of a local VM in a mount namespace of the VM, with the mounts of a machine.

    guest_mounts.py RUN TMP SIZE PATH … -- COMMAND …

No program may be executed from the folder RUN, as from /run of a Debian whose initrd is of
initramfs-tools (its `init`: `mount -t tmpfs -o "nodev,noexec,nosuid,…" tmpfs /run`).

The folder TMP is in memory and holds at most SIZE, as /tmp of Debian 13 (systemd's tmp.mount,
`size=50%`). What was in it before is still there.

The VM's other users can reach each PATH: the disk is in folders of the cloud's owner that no other
user may search, and that stays so for the rest of the machine. In the namespace, each such folder
above a PATH can be searched, with the same content and modes.

Needs root; without the right to create a namespace the command is started anyway. Standard library
only, because it must start in milliseconds.
"""

import ctypes
import os
import stat
import sys
from pathlib import Path

CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18


def enter() -> None:
    """Moves this process into a new namespace. Raises OSError if the kernel refuses."""
    _checked(_libc().unshare(CLONE_NEWNS), "unshare")
    _mount("none", "/", "", MS_REC | MS_PRIVATE)


def forbid_execution(folder: str) -> None:
    """Forbids to execute files of a folder, which stays the same one. Raises OSError."""
    _mount(folder, folder, "", MS_BIND)
    _mount("none", folder, "", MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def limit(folder: str, size: str) -> None:
    """Puts a folder into memory, with what it holds, and room for `size` more, as `mount` reads it.
    Raises OSError."""
    _cover(Path(folder), f"mode=1777,size={size}")


def reach(paths: list[str]) -> None:
    """Makes the paths reachable for all users. Raises OSError if the kernel refuses."""
    for path in paths:
        place = Path(os.path.realpath(path))
        for folder in (*reversed(place.parents), place):
            mode = folder.stat().st_mode
            if stat.S_ISDIR(mode) and not mode & stat.S_IXOTH:
                _cover(folder, "mode=0711")


def _cover(folder: Path, options: str) -> None:
    """Mounts memory over a folder, in which all that the folder holds is mounted again."""
    held = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    names = os.listdir(folder)
    _mount("tmpfs", str(folder), "tmpfs", MS_NOSUID | MS_NODEV, options)
    for name in names:
        source, target = f"/proc/self/fd/{held}/{name}", folder / name
        try:
            mode = os.lstat(source).st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(mode):
            target.symlink_to(os.readlink(source))
            continue
        if stat.S_ISDIR(mode):
            target.mkdir()
        else:
            target.touch()
        _mount(source, str(target), "", MS_BIND | MS_REC)
    os.close(held)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = [word.encode() or None for word in (source, target, kind)]
    data = options.encode() or None
    _checked(_libc().mount(*words, ctypes.c_ulong(flags), data), f"mount {target}")


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main(argv: list[str]) -> None:
    """Replaces this process with the command."""
    split = argv.index("--")
    try:
        enter()
        reach(argv[3:split])
        limit(os.path.realpath(argv[1]), argv[2])
        forbid_execution(os.path.realpath(argv[0]))
    except OSError as error:
        print(
            f"guest_mounts: {error}; only root reaches this VM's disk, its /run lets programs be "
            "executed, and its /tmp has no limit",
            file=sys.stderr,
        )
    os.execv(argv[split + 1], argv[split + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
