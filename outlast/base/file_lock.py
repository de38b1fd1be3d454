"""A lock on an open file that only one process holds."""

import fcntl
from typing import IO


def try_lock(file: int | IO[bytes] | IO[str]) -> bool:
    """Take the lock, which closing the file gives back; False if another process has it. Raises
    OSError if the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
