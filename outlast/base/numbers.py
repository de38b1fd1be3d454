"""Numbers in JSON: those that are not finite are written as strings, and those from outside have
bounds. Amounts of money, bytes, time and things in words.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """The numbers from ``least`` to ``most``, without NaN."""

    least: float
    most: float

    def check(self, value: float, where: str) -> float:
        """Returns ``value``, or raises a ValueError that begins with ``where``."""
        if not self.least <= value <= self.most:
            raise ValueError(f"{where} {value}: must be {self.least} to {self.most}")
        return value


# Fields of a record with these types are checked when the record is read.
Size = Annotated[int, Range(0, (1 << 63) - 1)]
"""A size in bytes, or a generation."""
Steps = Annotated[int, Range(0, 10**15 - 1)]
Ordinal = Annotated[int, Range(0, 999_999_999)]
"""The number of a resume, a placement or an attempt, as the instance template can hold it."""
Seconds = Annotated[float, Range(0, 10**10)]

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any) -> Any:
    """The value itself, or `NaN`, `Infinity`, `-Infinity` as a string."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def from_json(value: Any) -> Any:
    """Reverses `to_json`."""
    return _WORDS.get(value, value) if isinstance(value, str) else value


def dollars(amount: float) -> str:
    """`$0.0000253`, `$0.0123`, `$1.23`, `$1,234`: about three significant digits."""
    if amount and abs(amount) < 0.001:
        return f"${Decimal(f'{amount:.3g}'):f}"
    if amount and abs(amount) < 0.1:
        return f"${amount:.4f}"
    return f"${amount:,.2f}" if abs(amount) < 1000 else f"${amount:,.0f}"


def gib(amount: float, *, digits: int = 2, least: float = 0.1) -> str:
    """`1.25 GiB`, or in MiB below the least amount in GiB."""
    return f"{amount:,.{digits}f} GiB" if amount >= least else f"{amount * 1024:,.{digits}f} MiB"


def count(amount: int, what: str) -> str:
    """`1 file`, `1,200 files`."""
    return f"{amount:,} {what}" + ("" if amount == 1 else "s")


_UNITS = {"d": 86400, "h": 3600, "min": 60, "s": 1}


def duration(seconds: float) -> str:
    """`1 d 2 h`, `5 h`, `3 min 12 s`: the two largest units, without zeros."""
    left = round(seconds)
    amounts = []
    for unit, size in _UNITS.items():
        amount, left = divmod(left, size)
        if amount or amounts:
            amounts.append((amount, unit))
    return " ".join(f"{amount} {unit}" for amount, unit in amounts[:2] if amount) or "0 s"
