"""The rows that a trainer logs, written as lines of JSON with plain values."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any, Self

from outlast.loop.errors import LoopError

_ROW = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class Rows:
    """The file of the rows. They are formatted together when it is flushed, once a second and
    before a snapshot, which takes far less time than one row between two steps."""

    _WAITING_MAX = 1000

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._waiting: list[dict[str, Any]] = []
        self._left = b""
        """Text that is not written yet, because the disk was full."""

    def add(self, row: dict[str, Any]) -> None:
        self._waiting.append(row)
        if len(self._waiting) >= self._WAITING_MAX:
            self.flush()

    def flush(self) -> int:
        """Write all rows; return the size of the file."""
        if self._waiting:
            lines = "".join([f"{_ROW.encode(row)}\n" for row in self._waiting])
            self._waiting.clear()
            self._left += lines.encode()
        while self._left:
            self._left = self._left[self._file.write(self._left) :]
        return self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            self._file.close()


INT_MAX = 2**1024
"""Larger whole numbers have no float, and JSON readers refuse them."""


def scalar(name: str, value: Any) -> Any:
    """A plain number or string; numpy's and torch's scalars have ``item``."""
    kinds = (bool, int, float, str)
    plain = value
    if type(value) not in kinds:
        with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
            plain = value.item()
    if isinstance(plain, int) and abs(plain) >= INT_MAX:
        raise LoopError(f"{name}: must be a number below 2^1024; log it as a string")
    if type(plain) not in kinds:
        raise LoopError(
            f"{name} {value!r}: must be a number or a string, not {type(value).__name__}"
        )
    return plain


def cell(name: str, value: Any) -> Any:
    """A value for a row; numbers that are not finite become null, because JSON lacks them."""
    plain = scalar(name, value)
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
