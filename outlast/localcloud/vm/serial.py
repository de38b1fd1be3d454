"""Serial output of VMs."""

import os
from pathlib import Path

SERIAL_BYTES = 1 << 20
"""Bytes of serial output that the platform keeps."""


def read_serial(file: Path, start: int) -> tuple[bytes, int, int]:
    """Reads serial output from the byte `start`; a negative one counts from the end. Returns
    (bytes, number of the first byte, number after the last). Only the last SERIAL_BYTES are
    kept."""
    with file.open("rb") as serial:
        end = serial.seek(0, os.SEEK_END)
        first = max(end + start if start < 0 else start, end - SERIAL_BYTES, 0)
        serial.seek(first)
        contents = serial.read(max(end - first, 0))
    return contents, first, first + len(contents)
