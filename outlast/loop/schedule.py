"""When the next snapshot is due: ``auto``, every so many seconds, or every so many steps.

``auto`` follows what a snapshot costs here: the first after 5 s, because young machines are
preempted most, then after twice as long each time up to 60 s, and never so often that writing
snapshots takes more than a twentieth of the time.
"""

import re
from dataclasses import dataclass

FIRST_SEC = 5.0
LONGEST_SEC = 60.0
COST_FACTOR = 20.0

_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)s")
_STEPS = re.compile(r"[0-9]+")


@dataclass(frozen=True)
class Every:
    """A parsed ``--checkpoint-every``; both None means ``auto``."""

    seconds: float | None = None
    steps: int | None = None


def parse(text: str) -> Every:
    """``auto``, ``30s`` or ``200``; a ValueError with a sentence for anything else."""
    if text == "auto":
        return Every()
    if (match := _SECONDS.fullmatch(text)) and float(match[1]) > 0:
        return Every(seconds=float(match[1]))
    if _STEPS.fullmatch(text) and int(text) > 0:
        return Every(steps=int(text))
    raise ValueError(
        f"checkpoint-every {text!r}: must be auto, seconds such as 30s, or steps such as 200"
    )


class Schedule:
    """Decides at each step boundary; the clock is the caller's."""

    def __init__(self, every: Every, *, now_sec: float, step: int) -> None:
        self._every = every
        self._last_sec = now_sec
        self._last_step = step
        self._interval_sec = FIRST_SEC if every.seconds is None else every.seconds

    def due(self, *, now_sec: float, step: int) -> bool:
        """Whether a snapshot should be taken at this boundary. Stays true until one is."""
        if step == self._last_step:
            return False
        if self._every.steps is not None:
            return step // self._every.steps > self._last_step // self._every.steps
        return now_sec - self._last_sec >= self._interval_sec

    def taken(self, *, now_sec: float, step: int, cost_sec: float) -> None:
        """A snapshot was handed over; ``cost_sec`` is how long training stood still for it."""
        self._last_sec, self._last_step = now_sec, step
        if self._every == Every():
            self._interval_sec = max(
                min(2 * self._interval_sec, LONGEST_SEC), COST_FACTOR * cost_sec
            )
