"""Files that TensorBoard reads, from a run's rows.

A trainer that writes such files itself leaves one for each attempt (`LOG_DIR`), and after a
preemption without notice they repeat steps. Rows hold each step once.

A file is a sequence of records: the length (8 bytes), a masked CRC32C of it, the data, a masked
CRC32C of that (tensorflow/core/lib/io/record_writer.h). The data of a record is an `Event` of
tensorflow/core/util/event.proto: 1 wall_time, 2 step, 3 file_version, 5 summary, whose values (1)
have a tag (1) and a number (2). Both files were read on 2026-11-30.

Rows hold no times. Between an attempt's start and its end, they are spread evenly by step.
"""

import bisect
import math
import os
import secrets
import struct
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c

from outlast.base import numbers
from outlast.base.visible import one_line
from outlast.bucket.history import History
from outlast.cli.errors import OperateError
from outlast.protocol import check_part_name

FOLDER = "tensorboard"
FILE = "events.out.tfevents.0000000000.outlast"
"""TensorBoard takes every file with `tfevents` in its name."""
_VERSION = b"brain.Event:2"
_MASK = 0xA282EAD8


def write(
    folder: Path,
    rows: Iterable[tuple[int, dict[str, Any]]],
    book: History,
    taken: Collection[str] = (),
) -> list[str]:
    """Writes `tensorboard/`, for a run with parts a folder in it for each; returns the names of
    its files. Earlier ones are replaced. Raises OperateError if there is no number.
    """
    if any(name.partition("/")[0] == FOLDER for name in taken):
        raise OperateError(
            f"{FOLDER}: the result has files in a folder of this name; fetch --into another folder"
        )
    times = Times(book)
    writer = _Writer(folder / FOLDER)
    try:
        for step, row in rows:
            if values := scalars(row):
                writer.to(row.get("part") or "", times(step))
                writer.write(event(times(step), row["step"], values))
        files = writer.finish()
    finally:
        writer.close()
    if not files:
        raise OperateError("the run has no metric yet that TensorBoard could show")
    return [file.relative_to(folder).as_posix() for file in files]


class _Writer:
    """Writes the file of one part after the other; none has its name before all are complete."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._files: dict[str, tuple[Path, Path]] = {}
        """By part: the file, and its name until then."""
        self._part: str | None = None
        self._stream: BinaryIO | None = None

    def to(self, part: str, time: float) -> None:
        """Takes the part's file for what follows."""
        if part == self._part:
            return
        file = self._home / _folder_of(part) / FILE
        if self._stream is not None:
            self._stream.close()
        is_new = part not in self._files
        if is_new:
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_name(f".{FILE}.{secrets.token_hex(4)}.part")
            self._files[part] = (file, unfinished)
        self._part, self._stream = part, self._files[part][1].open("ab")
        if is_new:
            self.write(event(time, 0, version=True))

    def write(self, data: bytes) -> None:
        assert self._stream is not None
        self._stream.write(record(data))

    def finish(self) -> list[Path]:
        if self._stream is not None:
            self._stream.close()
        for file, unfinished in self._files.values():
            os.replace(unfinished, file)
        return [file for file, _ in self._files.values()]

    def close(self) -> None:
        """Removes what is not finished."""
        if self._stream is not None:
            self._stream.close()
        for _, unfinished in self._files.values():
            unfinished.unlink(missing_ok=True)


def _folder_of(part: str) -> str:
    """A part's name as a folder's. The bucket may hold any name; this is a path."""
    if part:
        try:
            check_part_name(part)
        except ValueError as error:
            raise OperateError(f"a row of the run: {error}") from None
    return part


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row by their names."""
    found = {}
    for name, given in row.items():
        # A row has null for a number that is not finite (outlast/loop/rows.py).
        value = math.nan if given is None else numbers.from_json(given)
        if name != "step" and type(value) in (int, float):
            found[one_line(name)] = value
    return found


class Times:
    """Seconds since 1970 for steps, by what the records of the attempts say."""

    def __init__(self, book: History) -> None:
        self._steps: list[int] = []
        self._times: list[float] = []
        for one in book.attempts:
            end = one.end or one.seen or one.start
            self._add(one.from_step, one.start.timestamp())
            self._add(max(one.from_step, one.step - one.lost), end.timestamp())

    def _add(self, step: int, time: float) -> None:
        while self._steps and self._steps[-1] > step:
            self._steps.pop()
            self._times.pop()
        self._steps.append(step)
        self._times.append(max(time, self._times[-1] if self._times else time))

    def __call__(self, step: int) -> float:
        at = bisect.bisect_left(self._steps, step)
        if at == 0 or at == len(self._steps):
            return self._times[min(at, len(self._times) - 1)] if self._times else 0.0
        low, high = self._steps[at - 1], self._steps[at]
        share = (step - low) / (high - low)
        return self._times[at - 1] + share * (self._times[at] - self._times[at - 1])


# ---------------------------------------------------------------------------------------------
# The format


def record(data: bytes) -> bytes:
    """A record of the file."""
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    masked = ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
    return struct.pack("<I", masked)


def event(
    time: float, step: int, values: dict[str, float] | None = None, *, version: bool = False
) -> bytes:
    """An Event message."""
    data = b"\x09" + struct.pack("<d", time) + b"\x10" + _varint(step)
    if version:
        return data + _field(3, _VERSION)
    summary = b"".join(
        _field(1, _field(1, tag.encode("utf-8", "replace")) + b"\x15" + _float(value))
        for tag, value in (values or {}).items()
    )
    return data + _field(5, summary)


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes, a text or a message."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _float(value: float) -> bytes:
    """What is beyond a single-precision number is infinite."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))
