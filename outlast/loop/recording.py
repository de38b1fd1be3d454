"""Records the steps of a training: rows, evaluations, and a tracker's copy of the rows."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlast.loop import rows, trackers
from outlast.loop.errors import LoopError
from outlast.loop.history import History
from outlast.protocol import row_part


class Recording:
    """The row of the current step, and all evaluations; ``open`` sets the file for rows."""

    def __init__(self, part: str) -> None:
        self.history = History()
        self.tracker: trackers.Tracker | None = None
        self._part = part
        self._before = 0
        """Steps of the previous parts."""
        self._row: dict[str, Any] = {}

    def open(self, path: Path, before: int) -> rows.Rows:
        """Write rows into this file, with ``before``, the steps of the previous parts, added to
        their step."""
        self._rows, self._before = rows.Rows(path), before
        return self._rows

    def log(self, values: Mapping[str, Any]) -> None:
        """Add values to the row of the current step."""
        self._check_names("log", values, "step")
        for name, value in values.items():
            plain = type(value) is float and math.isfinite(value)
            self._row[name] = value if plain else rows.cell(name, value)

    def cells(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of an evaluation in the form in which it is kept."""
        self._check_names("eval", values)
        return {name: rows.scalar(name, value) for name, value in values.items()}

    def add_eval(self, step: int, cells: Mapping[str, Any], *, in_row: bool) -> None:
        """Keep an evaluation after ``step``; ``in_row``: also in the row of the current step."""
        self.history.add(step, cells)
        if in_row:
            self._row.update({name: rows.cell(name, value) for name, value in cells.items()})

    def _check_names(self, call: str, values: Mapping[str, Any], *taken: str) -> None:
        for name in (*taken, "part") if self._part else taken:
            if name in values:
                raise LoopError(
                    f"run.{call} {name}: every row has its {name} already; use another name"
                )

    def write_row(self, step: int) -> None:
        """Write the row of a complete step, if it has one."""
        if self._row:
            step, (row, self._row) = self._before + step, (self._row, {})
            part = {"part": row_part(self._part, self._before)} if self._part else {}
            self._rows.add({"step": step, **part, **row})
            if self.tracker is not None:
                named = {f"{self._part}/{name}": row[name] for name in row} if part else row
                self.tracker.log(step, named)

    def flush(self) -> int:
        """Write the remaining rows; return the size of their file in bytes."""
        return self._rows.flush()
