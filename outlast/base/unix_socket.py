"""Unix sockets with paths of any length."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

PATH_BYTES_MAX = 100  # the kernel's own limit is 108 on Linux, 104 on macOS


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """A name for ``path`` that fits into a socket address, valid for one call.

    Raises OSError (ENAMETOOLONG) if the path is too long and the system has no shorter name.
    """
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir():
        raise OSError(
            errno.ENAMETOOLONG,
            f"longer than {PATH_BYTES_MAX} bytes; use a shorter folder",
            str(path),
        )
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket | OSError:
    """A connection to the listener at ``path``, or why nothing listens there now. Raises OSError
    for what waiting does not change."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address(path) as name:
            connection.connect(name)
        return connection
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
        connection.close()
        return error
    except BaseException:
        connection.close()
        raise
