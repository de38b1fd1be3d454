"""The curves of a run's metrics from its rows, in little memory however long the run is."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.base import numbers
from outlast.bucket.head import Head
from outlast.bucket.layout import Layout
from outlast.bucket.rows import iter_rows
from outlast.bucket.store import Store

BUCKETS = 300
"""A curve has between this number of buckets and twice as many, each with two points at most."""
METRICS_MAX = 200
"""Curves that are kept; a trainer may log any number of names."""
_NOT_METRICS = frozenset({"step", "part"})

Point = tuple[int, float]


class Curve:
    """One metric by step. Of each bucket of steps it keeps the lowest and the highest value, so
    that a spike is never averaged away; the first and the last value are always kept.
    """

    def __init__(self, name: str, buckets: int = BUCKETS) -> None:
        self.name = name
        self.count = 0
        """Finite values."""
        self.not_finite = 0
        """Values that are NaN or infinite; they have no point."""
        self.first_not_finite: int | None = None
        """The step of the first of them."""
        self.first: Point | None = None
        self.last: Point | None = None
        self._width = 1
        self._most = 2 * buckets
        self._buckets: dict[int, tuple[Point, Point]] = {}

    def add(self, step: int, value: float) -> None:
        """Steps rise from call to call."""
        if not math.isfinite(value):
            self.not_finite += 1
            if self.first_not_finite is None:
                self.first_not_finite = step
            return
        point = (step, float(value))
        self.count += 1
        self.first = self.first or point
        self.last = point
        self._put(self._buckets, point, point)
        while len(self._buckets) > self._most:
            self._width *= 2
            wider: dict[int, tuple[Point, Point]] = {}
            for low, high in self._buckets.values():
                self._put(wider, low, high)
            self._buckets = wider

    def _put(self, buckets: dict[int, tuple[Point, Point]], low: Point, high: Point) -> None:
        key = low[0] // self._width
        if (there := buckets.get(key)) is not None:
            low = min(there[0], low, key=lambda point: point[1])
            high = max(there[1], high, key=lambda point: point[1])
        buckets[key] = (low, high)

    @property
    def points(self) -> list[Point]:
        """In the order of their steps."""
        ends = {point for point in (self.first, self.last) if point is not None}
        return sorted(ends.union(*self._buckets.values()))

    @property
    def lowest(self) -> Point | None:
        lows = (low for low, _ in self._buckets.values())
        return min(lows, key=lambda point: point[1], default=None)

    @property
    def highest(self) -> Point | None:
        highs = (high for _, high in self._buckets.values())
        return max(highs, key=lambda point: point[1], default=None)


@dataclass
class Curves:
    """All metrics of a run."""

    by_name: dict[str, Curve] = field(default_factory=dict)
    """In the order in which they were first logged."""
    left_out: int = 0
    """Values of metrics beyond METRICS_MAX."""
    rows: int = 0
    last_step: int = 0
    kept: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The rows of the steps that were asked for."""

    def add(self, row: Mapping[str, Any]) -> None:
        """A row as it is in the bucket: its step counts through all parts."""
        step = row["step"]
        self.rows += 1
        self.last_step = max(self.last_step, step)
        for name, given in row.items():
            # A row has null for a number that is not finite (outlast/loop/rows.py).
            value = math.nan if given is None else numbers.from_json(given)
            if name in _NOT_METRICS or type(value) not in (int, float):
                continue
            curve = self.by_name.get(name)
            if curve is None:
                if len(self.by_name) >= METRICS_MAX:
                    self.left_out += 1
                    continue
                curve = self.by_name[name] = Curve(name)
            try:
                curve.add(step, float(value))
            except OverflowError:  # an integer beyond all floats
                curve.add(step, math.inf)


def read(store: Store, layout: Layout, head: Head, steps: Iterable[int] = ()) -> Curves:
    """The curves of the run's final lineage: each step once, up to the newest checkpoint or the
    end. `steps`: those whose rows are kept whole. Raises StoreError, HeadError.
    """
    found = Curves()
    wanted = set(steps)
    for row in iter_rows(store, layout, head):
        found.add(row)
        if row["step"] in wanted:
            found.kept.setdefault(row["step"], {}).update(row)
    return found
