"""`metrics.json` of a result: one column for each value that the trainer evaluated.

Columns are lists of equal length, with one cell for each evaluation; `step` rises from cell to
cell. A value that an evaluation lacks is null; a number that is not finite is the string `NaN`,
`Infinity` or `-Infinity`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.base import numbers
from outlast.base.numbers import Steps
from outlast.spec.result import METRICS_FILE


@dataclass(frozen=True)
class Last:
    """The last value of a metric, and the step that it belongs to."""

    step: Steps
    value: Any
    """A number, string or bool; None for a number in a row that is not finite."""


Table = Mapping[str, Sequence[Any]]


def read_table(data: bytes | str) -> dict[str, list[float | None]]:
    """The columns of a `metrics.json`, with None for a value that an evaluation lacks.

    Raises ValueError with the column, the value found and the rule.
    """
    try:
        table = json.loads(data)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{METRICS_FILE}: is not JSON ({error})") from None
    if not isinstance(table, dict):
        raise ValueError(f"{METRICS_FILE}: must be an object, found {type(table).__name__}")
    steps = table.get("step")
    if not isinstance(steps, list):
        raise ValueError(f"{METRICS_FILE}.step: must be a list of steps, found {steps!r}")
    for column, values in table.items():
        where = f"{METRICS_FILE}.{column[:100] if column.isprintable() else ascii(column)[:100]}"
        if not isinstance(values, list):
            raise ValueError(f"{where}: must be a list, found {str(values)[:100]!r}")
        if len(values) != len(steps):
            raise ValueError(
                f"{where}: has {len(values)} values, "
                f"step has {len(steps)}; all columns must be equally long"
            )
        table[column] = [_cell(where, value) for value in values]
    if any(type(step) is not int for step in steps):
        raise ValueError(f"{METRICS_FILE}.step: must be whole numbers, found {steps}")
    if any(later <= earlier for earlier, later in zip(steps, steps[1:], strict=False)):
        raise ValueError(f"{METRICS_FILE}.step: must rise from row to row, found {steps}")
    return table


def _cell(where: str, value: Any) -> float | None:
    number = numbers.from_json(value)
    if number is None or (isinstance(number, int | float) and not isinstance(number, bool)):
        return number
    raise ValueError(f"{where} {value!r}: must be a number or null")


def last_values(table: Table) -> dict[str, Last]:
    """The last value of each column, with its step."""
    found = {}
    for column, values in table.items():
        if column == "step":
            continue
        cells = zip(reversed(table["step"]), reversed(values), strict=True)
        last = next(((step, value) for step, value in cells if value is not None), None)
        if last is not None:
            found[column] = Last(last[0], numbers.to_json(last[1]))
    return found


def of_attempts(attempts: Iterable[Mapping[str, Last]]) -> dict[str, Last]:
    """The last value of each metric over all attempts, oldest first. A later attempt's value counts
    even at a lower step, because lost steps are repeated.
    """
    found: dict[str, Last] = {}
    for attempt in attempts:
        found |= attempt
    return found
