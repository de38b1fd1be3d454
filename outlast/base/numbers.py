"""Numbers in JSON, which has none that are not finite: those are written as strings."""

import math
from typing import Any

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any) -> Any:
    """The value itself, or `NaN`, `Infinity`, `-Infinity` as a string."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def from_json(value: Any) -> Any:
    """What `to_json` was given."""
    return _WORDS.get(value, value) if isinstance(value, str) else value
