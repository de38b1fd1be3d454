"""Checks whether a run's folder can be trusted: nothing that may lead elsewhere is followed or
written to.

A folder may come from another user of the machine, or out of an archive. For reading, nothing in it
may be a link except the objects themselves; for writing, it must also belong to this user.
"""

import os
import stat
from pathlib import Path

from outlast.bucket.store.contract import Foreign


def check_folder(folder: Path) -> None:
    """Raises Foreign for a link or a file; a missing folder is fine."""
    try:
        mode = folder.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISDIR(mode):
        what = "a link" if stat.S_ISLNK(mode) else "not a folder"
        raise Foreign(f"{folder}: is {what}, which no run has there; do not use this run folder")


def check_way(root: Path, below: str, *, writing: bool = False) -> None:
    """Raises Foreign if a folder from ``root`` down to ``below``, a path in it, is a link or, with
    ``writing``, one that `check_owner` refuses.
    """
    at = str(root)
    for part in below.split(
        "/"
    ):  # Called for each object: without Path, which takes ten times as long.
        if not part:
            continue
        at = f"{at}/{part}"
        try:
            found = os.lstat(at)
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISLNK(found.st_mode):
            check_folder(Path(at))
        if writing and stat.S_ISDIR(found.st_mode):
            _check_owned(at, found)


def check_owner(folder: Path) -> None:
    """Raises Foreign for a folder that belongs to neither this user nor root, or that every user
    may write to.
    """
    _check_owned(folder, folder.stat())


def _check_owned(folder: Path | str, found: os.stat_result) -> None:
    owner = found.st_uid
    if found.st_mode & stat.S_IWOTH:
        raise Foreign(
            f"{folder}: every user of this machine may write there, but only its owner may write "
            "to a run; run chmod o-w on it, or give a folder inside it"
        )
    if owner not in (os.geteuid(), 0):
        raise Foreign(
            f"{folder}: belongs to user {owner}, but only its owner may write to a run; give "
            "another folder, or make it yours (chown)"
        )


def open_file(file: Path, flags: int) -> int:
    """Opens a plain file without following links; Foreign for anything else."""
    try:
        found = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if not file.is_symlink():
            raise
        raise Foreign(f"{file}: is a link, which no run has there") from error
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise Foreign(f"{file}: is not a plain file, which a run has there")
    return found


def check_alone(file: Path, descriptor: int) -> None:
    """Raises Foreign if the open file belongs to another user or has a second name: it is written
    to.
    """
    found = os.fstat(descriptor)
    if found.st_nlink > 1 or found.st_uid not in (os.geteuid(), 0):
        raise Foreign(
            f"{file}: belongs to user {found.st_uid} or has a second name; do not use this run "
            "folder"
        )
