"""Samples of a sweep's parameters.

A sample depends on the seed, its number and the parameter's name only, so that more trials or more
parameters change no existing value. Only `Random.random` is used, which gives the same numbers on
every version of Python.
"""

import hashlib
import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Value = bool | int | float | str
Number = int | float

DIGITS = 4
"""Significant digits of a drawn number: a name that people can read."""


@dataclass(frozen=True)
class Choices:
    """One of these values."""

    values: tuple[Value, ...]

    def drawn(self, share: float) -> Value:
        """The value at a share of the space, from 0 to below 1."""
        return self.values[int(share * len(self.values))]

    def all(self) -> tuple[Value, ...] | None:
        return self.values


@dataclass(frozen=True)
class Range:
    """A number between two others, both included."""

    least: Number
    most: Number
    step: Number | None = None
    log: bool = False
    """Whether each factor is as probable as any other, as for a learning rate."""

    @property
    def is_whole(self) -> bool:
        """Whether it has whole numbers only."""
        return all(isinstance(one, int) for one in (self.least, self.most, self.step or 1))

    def drawn(self, share: float) -> Value:
        """The value at a share of the space, from 0 to below 1."""
        if self.log:
            low, high = math.log(self.least), math.log(self.most)
            return self._within(math.exp(low + share * (high - low)))
        if self.step is not None or self.is_whole:
            return self._at(int(share * self.count))
        return self._within(self.least + share * (self.most - self.least))

    @property
    def count(self) -> int:
        """Values of a range with steps."""
        length = Decimal(str(self.most)) - Decimal(str(self.least))
        return int(length / Decimal(str(self.step or 1))) + 1

    def all(self) -> tuple[Value, ...] | None:
        """Every value; None if there are too many to tell: no steps, or a log range."""
        if self.log or not (self.step is not None or self.is_whole):
            return None
        return tuple(self._at(number) for number in range(self.count))

    def _at(self, number: int) -> Number:
        # Decimal: 0.1 + 2 * 0.1 is 0.3.
        found = Decimal(str(self.least)) + number * Decimal(str(self.step or 1))
        return int(found) if self.is_whole else float(found)

    def _within(self, value: float) -> Number:
        if self.is_whole:
            return min(max(round(value), int(self.least)), int(self.most))
        return min(max(float(f"{value:.{DIGITS}g}"), float(self.least)), float(self.most))


Space = Choices | Range
Spaces = Mapping[str, Space]


def sample(spaces: Spaces, seed: int, number: int) -> dict[str, Any]:
    """The parameters of one sample."""
    return {name: space.drawn(_share(seed, number, name)) for name, space in spaces.items()}


def _share(seed: int, number: int, name: str) -> float:
    digest = hashlib.sha256(f"{seed}/{number}/{name}".encode()).digest()
    return random.Random(int.from_bytes(digest)).random()


def size(spaces: Spaces) -> int:
    """Points of the grid, which need not be listed for it. The spaces have all their values."""
    return math.prod(
        len(space.values) if isinstance(space, Choices) else space.count
        for space in spaces.values()
    )


def grid(spaces: Spaces) -> Iterator[dict[str, Any]]:
    """Every combination of values; the last parameter changes fastest."""
    values = [space.all() or () for space in spaces.values()]
    for point in itertools.product(*values):
        yield dict(zip(spaces, point, strict=True))
