"""Writes a file whole: it is there as it was before, or as it is now, and never half."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Has ``write`` write a file beside ``path``, and gives it this name once it is complete.
    Raises what ``write`` raises, and OSError; then nothing is left beside it.
    """
    part = path.with_name(f".{secrets.token_hex(8)}.part")  # short, however long the name is
    try:
        write(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
