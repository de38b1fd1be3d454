"""Serial output of VMs."""

import os
from pathlib import Path

SERIAL_BYTES = 1 << 20
"""Of serial output that the platform keeps."""


def read_serial(file: Path, start: int) -> tuple[bytes, int, int]:
    """Serial output from a byte on, below 0 from so many before the end: (bytes, the first one's
    number, the number after the last). What is older than the buffer has gone."""
    with file.open("rb") as serial:
        end = serial.seek(0, os.SEEK_END)
        first = max(end + start if start < 0 else start, end - SERIAL_BYTES, 0)
        serial.seek(first)
        contents = serial.read(max(end - first, 0))
    return contents, first, first + len(contents)
