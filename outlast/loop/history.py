"""Evaluations of a run, kept in its state so that a resumed run reports the same as any other."""

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from outlast.loop.errors import LoopError

Direction = Literal["max", "min"]


class History:
    """One row an evaluation, all with the same columns, and the best value of each judged one."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.best: dict[str, dict[str, Any]] = {}

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Append the evaluation at ``step``; LoopError naming a value or column that differs."""
        for name, value in values.items():
            if type(value) not in (int, float) or not math.isfinite(value):
                raise LoopError(f"eval {name} {value!r}: must be a finite number")
        if "step" in values and values["step"] != step:
            raise LoopError(f"eval step {values['step']}: the loop is at step {step}")
        row = {"step": step, **values}
        if self.rows and set(row) != set(self.rows[0]):
            raise LoopError(
                f"eval {', '.join(sorted(row))}: every eval has the same values, the first had "
                f"{', '.join(sorted(self.rows[0]))}"
            )
        if self.rows and step <= self.rows[-1]["step"]:
            raise LoopError(f"eval at step {step}: this step has one already")
        self.rows.append(row)

    def judge(self, name: str, step: int, value: float, direction: Direction) -> bool:
        """Whether ``value`` is a new best; it is remembered if so. The first value is one."""
        old = self.best.get(name)
        better = old is None or (
            value > old["value"] if direction == "max" else value < old["value"]
        )
        if better:
            self.best[name] = {"value": value, "step": step}
        return better

    def metrics_json(self) -> bytes:
        """The columns of a result's metrics.json; the same bytes for the same evaluations."""
        names = sorted(self.rows[0]) if self.rows else ["step"]
        columns = {name: [row[name] for row in self.rows] for name in names}
        return json.dumps(columns, indent=1, allow_nan=False).encode() + b"\n"

    def to_node(self) -> dict[str, Any]:
        """As JSON, for the snapshot."""
        return {"rows": self.rows, "best": self.best}

    def load_node(self, node: Mapping[str, Any]) -> None:
        """Take over what ``to_node`` gave."""
        self.rows = [dict(row) for row in node["rows"]]
        self.best = {name: dict(entry) for name, entry in node["best"].items()}
