"""The newest rows that a trainer logs: the last few, and the last value of each metric."""

import collections
import json
import threading
from pathlib import Path
from typing import Any

from outlast.base.plain_files import NotPlain, PlainFile
from outlast.protocol import own_row
from outlast.spec.metrics import Last

ROWS = 5
ROW_BYTES_MAX = 3000
"""A longer row is not shown among the last rows, but its metrics count."""
NAMES_MAX = 200
"""Number of metrics kept: those logged last."""
CHARS_MAX = 200
"""Characters of a name or a text."""
READ_BYTES_MAX = 8 << 20
"""Bytes read at a time. If there are more, only the last are read, so that a heartbeat never waits
for rows."""


class Latest:
    """Follows the file of one attempt's rows."""

    def __init__(self, path: Path | PlainFile) -> None:
        self._path = path
        self._lock = threading.Lock()
        """The last heartbeat and the record of the end may read at the same time."""
        self._offset = 0
        self._rows: collections.deque[dict[str, Any]] = collections.deque(maxlen=ROWS)
        self._metrics: dict[str, Last] = {}

    @property
    def offset(self) -> int:
        """Bytes at the start of the file that are not read again."""
        return self._offset

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """The last rows that `read` has seen, newest last."""
        with self._lock:
            return tuple(self._rows)

    @property
    def metrics(self) -> dict[str, Last]:
        """The last value of each metric that `read` has seen."""
        with self._lock:
            return dict(self._metrics)

    def read(self) -> None:
        """Reads the complete rows that were written since the last call."""
        with self._lock:
            self._read()

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, 2)
                start = self._offset if self._offset <= end else 0
                skips = end - start > READ_BYTES_MAX
                file.seek(end - READ_BYTES_MAX if skips else start)
                data = file.read(min(end - start, READ_BYTES_MAX))
        except (OSError, NotPlain):
            return
        whole, _, rest = data.rpartition(b"\n")
        self._offset = end - len(rest)
        lines = whole.split(b"\n")[1 if skips else 0 :]
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            found = json.loads(line)
            row = own_row(found)
            step = row["step"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return
        if len(line) <= ROW_BYTES_MAX:
            self._rows.append(row)
        if type(step) is not int:
            return
        is_of_part = row.get("part") != found.get("part")
        of, taken = (f"{row['part']}/", ("step", "part")) if is_of_part else ("", ("step",))
        for name, value in row.items():
            if name not in taken and len(of + name) <= CHARS_MAX and _is_cell(value):
                # Moves the name to the end: the first names are dropped first.
                self._metrics.pop(of + name, None)
                self._metrics[of + name] = Last(step, _short(value))
        while len(self._metrics) > NAMES_MAX:
            del self._metrics[next(iter(self._metrics))]


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _short(value: Any) -> Any:
    return value[:CHARS_MAX] if isinstance(value, str) else value
