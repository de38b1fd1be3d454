"""Unix sockets with paths of any length."""

import contextlib
import errno
import os
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
