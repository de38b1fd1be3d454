"""The folder for a command's files on this machine: ``live`` in a run's folder, or one of the VM.

It is emptied before each attempt, so it must be this user's folder and not a link.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from outlast.loop.command.errors import CommandError


@contextlib.contextmanager
def held(home: Path) -> Iterator[None]:
    """A context in which only this process uses the folder; it waits for a fenced process to
    end."""
    while True:
        folder = _opened(home)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            # The previous process may have removed it when it ended.
            if home.exists() and os.path.samestat(os.fstat(folder), os.stat(home)):
                yield
                return
        finally:
            os.close(folder)


def _opened(home: Path) -> int:
    """Open the folder, and make it if it is absent. CommandError for a link or another user's
    folder, because its contents are removed."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        held = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
            raise
        raise CommandError(
            f"{home}: is a link or a file, must be a folder; remove it, or give another run folder"
        ) from None
    owner = os.fstat(held).st_uid
    if owner not in (os.geteuid(), 0):
        os.close(held)
        raise CommandError(f"{home}: belongs to user {owner}; give another run folder")
    return held


def remove_home(home: Path) -> None:
    """Remove the folder unless another process works in it."""
    with contextlib.suppress(OSError):
        held = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(home, ignore_errors=True)
        finally:
            os.close(held)


def remove(folder: Path) -> None:
    """Remove what an earlier attempt left; a command may have put a link in its place."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
