"""Evaluations of a run, kept in its state so that a resumed run reports the same as any other."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, Literal

from outlast.base import numbers
from outlast.loop.errors import LoopError

Direction = Literal["max", "min"]


def judged_name(best: str, of: str | None, values: Collection[str]) -> str:
    """Which value of an evaluation ``best`` judges; LoopError where that is not said."""
    if best not in ("max", "min"):
        raise LoopError(f"eval best {best!r}: must be max or min")
    if not values:
        raise LoopError(
            f"eval best={best!r}: give the value to judge as well, such as accuracy=0.9"
        )
    names = ", ".join(values)
    if of is not None and of not in values:
        raise LoopError(f"eval of={of!r}: must be one of the values given, which are {names}")
    if of is None and len(values) > 1:
        first = next(iter(values))
        raise LoopError(
            f"eval best={best!r}: there are several values, {names}; say which one is judged, such "
            f"as of={first!r}"
        )
    return next(iter(values)) if of is None else of


class History:
    """One row for each step that was evaluated, and the best value of each judged name."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        """Their cells as JSON has them."""
        self.best: dict[str, dict[str, Any]] = {}

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Note the evaluation at ``step``; one step may be evaluated in several calls, each with
        values of its own. LoopError names a value that is refused."""
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
                    f"eval {name}: step {step} has a value of this name already; evaluate once a "
                    "step, or give the second value another name"
                )
        row.update(cells)

    def judge(self, name: str, step: int, value: float, direction: Direction) -> bool:
        """Whether ``value`` is a new best; it is remembered if so. The first value is one; NaN
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
        """The columns of a result's metrics.json; the same bytes for the same evaluations. A value
        that an evaluation does not have is null."""
        names = sorted({"step"}.union(*self.rows))
        columns = {name: [row.get(name) for row in self.rows] for name in names}
        return json.dumps(columns, indent=1, allow_nan=False).encode() + b"\n"

    def to_node(self) -> dict[str, Any]:
        """As JSON, for the snapshot."""
        best = {
            name: {**entry, "value": numbers.to_json(entry["value"])}
            for name, entry in self.best.items()
        }
        return {"rows": self.rows, "best": best}

    def load_node(self, node: Mapping[str, Any]) -> None:
        """Take over what ``to_node`` gave."""
        self.rows = [dict(row) for row in node["rows"]]
        self.best = {
            name: {**entry, "value": numbers.from_json(entry["value"])}
            for name, entry in node["best"].items()
        }

    def evals(self) -> list[dict[str, Any]]:
        """The evaluations, as they were given."""
        return [{name: numbers.from_json(cell) for name, cell in row.items()} for row in self.rows]
