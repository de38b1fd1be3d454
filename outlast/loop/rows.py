"""The rows that a trainer logs: plain values, written as lines of JSON."""

import json
import math
from pathlib import Path
from typing import Any, Self

from outlast.loop.errors import LoopError

_ROW = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class Rows:
    """The rows' file. Rows become text when it is flushed, once a second and before a snapshot:
    many at once take far less time than one between two steps."""

    _WAITING_MAX = 1000

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._waiting: list[dict[str, Any]] = []
        self._left = b""
        """Text that the system has not taken: its disk was full."""

    def add(self, row: dict[str, Any]) -> None:
        self._waiting.append(row)
        if len(self._waiting) >= self._WAITING_MAX:
            self.flush()

    def flush(self) -> int:
        """Hand all rows to the system; gives the size of the file with them."""
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


def scalar(name: str, value: Any) -> Any:
    """A plain number or string; numpy's and torch's scalars have ``item``."""
    if type(value) in (bool, int, float, str):
        return value
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):
        raise LoopError(
            f"{name} {value!r}: must be a number or a string, not {type(value).__name__}"
        ) from None


def cell(name: str, value: Any) -> Any:
    """A value as a row has it; numbers that are not finite become null, as JSON has none."""
    plain = scalar(name, value)
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
