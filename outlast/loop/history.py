"""Evaluations of a run, kept in its state so that a resumed run reports the same evaluations.

In a snapshot they are lines of JSON in separate files. A full file never changes, so a long run
formats each evaluation once, writes it to this machine once, and uploads it once. Later snapshots
have hard links to the same file, and a commit copies it inside the bucket.
"""

import json
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from outlast.base import numbers
from outlast.loop import notes
from outlast.loop.errors import DoesNotFit, LoopError

Direction = Literal["max", "min"]

FILE_BYTES = 1 << 20
"""Size at which a file of evaluations is full."""

_LINE = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def judged_name(best: str, of: str | None, values: Collection[str]) -> str:
    """The name of the value that ``best`` judges; LoopError if that is ambiguous."""
    if best not in ("max", "min"):
        raise LoopError(f"eval best {best!r}: must be max or min")
    if not values:
        raise LoopError(
            f"eval best={best!r}: also give the value to judge by, such as accuracy=0.9"
        )
    names = ", ".join(values)
    if of is not None and of not in values:
        raise LoopError(f"eval of={of!r}: must be one of the values given, which are {names}")
    if of is None and len(values) > 1:
        first = next(iter(values))
        raise LoopError(
            f"eval best={best!r}: there are several values, {names}; say which one decides, such "
            f"as of={first!r}"
        )
    return next(iter(values)) if of is None else of


class History:
    """One row for each step that was evaluated, and the best value of each judged name."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        """Rows whose cells are JSON values."""
        self.best: dict[str, dict[str, Any]] = {}
        self._full: list[bytes] = []
        """Contents of the full files, which have the first evaluations."""
        self._open = bytearray()
        """Contents of the next file, without the last evaluation."""
        self._settled = 0
        """Number of evaluations already formatted; never the last one, which may get more
        values."""

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add an evaluation at ``step``; several calls may evaluate one step, each with its own
        values. LoopError names a refused value."""
        if "step" in values and values["step"] != step:
            raise LoopError(f"eval step {values['step']}: the loop is at step {step}")
        for name, value in values.items():
            if type(value) not in (int, float):
                raise LoopError(f"eval {name} {value!r}: must be a number; log text with run.log")
        cells = {name: numbers.to_json(value) for name, value in values.items()}
        row = self.rows[-1] if self.rows else {}
        if row.get("step") != step:
            self.rows.append({"step": step, **cells})
            return
        for name in values:
            if name in row and name != "step":
                raise LoopError(
                    f"eval {name}: step {step} already has a value of this name; evaluate once a "
                    "step, or give the second value another name"
                )
        row.update(cells)

    def judge(self, name: str, step: int, value: float, direction: Direction) -> bool:
        """Whether ``value`` is a new best, which is then remembered. The first value is one; NaN
        never is."""
        if math.isnan(value):
            return False
        old = self.best.get(name)
        better = old is None or (
            value > old["value"] if direction == "max" else value < old["value"]
        )
        if better:
            self.best[name] = {"value": value, "step": step}
        return better

    def metrics_json(self) -> bytes:
        """The columns of a result's metrics.json; equal evaluations give equal bytes. A value that
        an evaluation lacks is null."""
        names = sorted({"step"}.union(*self.rows))
        columns = {name: [row.get(name) for row in self.rows] for name in names}
        return json.dumps(columns, indent=1, allow_nan=False).encode() + b"\n"

    def summary(self) -> dict[str, Any]:
        """The summary for a snapshot's ``state.json``: the number of evaluations and the best
        values."""
        return {"evaluations": len(self.rows), "best": self._best_node()}

    def write(self, folder: Path, full: Path | None = None) -> None:
        """Write the evaluations as files of the snapshot in ``folder``. Full files are kept in the
        folder ``full``, and the snapshot has hard links to them."""
        self._settle()
        for number, text in enumerate(self._full):
            if full is None:
                _file(folder, number).write_bytes(text)
            else:
                _link(_file(full, number), _file(folder, number), text)
        last = b"".join(_line(row) for row in self.rows[self._settled :])
        if self._open or last:
            _file(folder, len(self._full)).write_bytes(bytes(self._open) + last)

    def read(self, folder: Path, summary: Mapping[str, Any]) -> None:
        """Read the files that ``write`` wrote. DoesNotFit if they do not match the ``summary``."""
        rows: list[dict[str, Any]] = []
        try:
            while len(rows) < summary["evaluations"]:
                file = _file(folder, len(self._full))
                text = file.read_bytes()
                rows += [json.loads(line) for line in text.splitlines()]
                self._full.append(text)
        except (OSError, ValueError, RecursionError) as error:
            raise DoesNotFit(f"{file.name}: cannot be read ({error})") from None
        if not all(map(notes.is_row, rows)):
            raise DoesNotFit(f"{file.name}: holds a line that is not an evaluation")
        if len(rows) != summary["evaluations"]:
            raise DoesNotFit(
                f"{file.name}: ends with evaluation {len(rows)}, "
                f"the state has {summary['evaluations']}"
            )
        # The last file may be full, but its last evaluation may still get more values.
        self._open = bytearray(self._full.pop() if self._full else b"")
        self.rows, self._settled = rows, max(0, len(rows) - 1)
        del self._open[self._open.rfind(b"\n", 0, max(0, len(self._open) - 1)) + 1 :]
        self.best = {
            name: {**entry, "value": numbers.from_json(entry["value"])}
            for name, entry in summary["best"].items()
        }

    def _settle(self) -> None:
        for row in self.rows[self._settled : -1]:
            self._open += _line(row)
            self._settled += 1
            if len(self._open) >= FILE_BYTES:
                self._full.append(bytes(self._open))
                self._open.clear()

    def _best_node(self) -> dict[str, Any]:
        return {
            name: {**entry, "value": numbers.to_json(entry["value"])}
            for name, entry in self.best.items()
        }

    def evals(self) -> list[dict[str, Any]]:
        """The evaluations with their original values."""
        return [{name: numbers.from_json(cell) for name, cell in row.items()} for row in self.rows]


def _line(row: Mapping[str, Any]) -> bytes:
    return _LINE.encode(row).encode() + b"\n"


def _link(kept: Path, file: Path, text: bytes) -> None:
    """Hard-link ``file`` to ``kept``, which is written first if it is absent."""
    try:
        os.link(kept, file)
        return
    except FileNotFoundError:
        kept.parent.mkdir(exist_ok=True)
    except OSError:  # a file system without hard links, or too many links
        file.write_bytes(text)
        return
    part = kept.with_name(f"{kept.name}.part")
    part.write_bytes(text)  # a full disk leaves no half file under the final name
    os.replace(part, kept)
    _link(kept, file, text)


def _file(folder: Path, number: int) -> Path:
    return folder / f"evaluations-{number:06d}.jsonl"
