"""The state folder of a local cloud: checks its owner and modes, and locks it for one process."""

import fcntl
import os
import stat
import sys
from pathlib import Path
from typing import TextIO

from outlast.localcloud.base.errors import UsageError

MARK = ".outlast-local-cloud"
"""File that marks a state folder."""
LOG = "cloud.log"
"""File for the cloud's output, which may exist before the state."""
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS_MAY = stat.S_IRWXG | stat.S_IRWXO


def claim(folder: Path) -> TextIO:
    """Creates the folder, or checks that it is a local cloud's and this user's. Holds it until the
    returned file is closed.

    Raises UsageError if it is a link, another user's, another program's, in use, or if others could
    have written into it. If others may only read it, closes it to them and reports that."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close_to_others(folder)
        mark = folder / MARK
        if not mark.exists() and {entry.name for entry in folder.iterdir()} - {LOG}:
            raise UsageError(
                f"--state {folder}: holds files and is not a local cloud's folder; name an empty"
                " one"
            )
        mark.touch()
    except OSError as error:
        raise UsageError(f"--state {folder}: {error.strerror}; name another") from None
    return _lock(folder)


def _close_to_others(folder: Path) -> None:
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise UsageError(f"--state {folder}: is a link; name the folder itself")
    if found.st_uid != os.geteuid():
        raise UsageError(
            f"--state {folder}: belongs to user {found.st_uid}, not to you; name another"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & OTHERS_MAY_WRITE and any(folder.iterdir()):
        raise UsageError(
            f"--state {folder}: other users may write into it (mode {mode:04o}), so what it holds "
            "may be theirs; delete it, or name another"
        )
    if mode & OTHERS_MAY:
        folder.chmod(0o700)
        print(
            f"local cloud: {folder}: was open to other users (mode {mode:04o}); it is 0700 now",
            file=sys.stderr,
        )


def _lock(folder: Path) -> TextIO:
    file = (folder / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise UsageError(
            f"--state {folder}: in use by the local cloud of process {holder}; stop that or name "
            "another folder"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
