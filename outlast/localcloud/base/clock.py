"""Time for the local cloud: real in a served cloud, and a test's own in tests."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The time as seconds since the epoch; all waits use a clock."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...


class RealClock:
    """The machine's time, or a faster one after `set_speed`."""

    def __init__(self) -> None:
        self._speed = 1.0
        self._wall_at = self._now_at = time.time()

    def now(self) -> float:
        return self._now_at + (time.time() - self._wall_at) * self._speed

    def set_speed(self, speed: float) -> None:
        """Lets the clock run at `speed` seconds per second from now on."""
        self._now_at = self.now()
        self._wall_at = time.time()
        self._speed = speed

    def wall_sec(self, seconds: float) -> float:
        """The real seconds that `seconds` of this clock take."""
        return seconds / self._speed


def to_rfc3339(seconds: float) -> str:
    """Formats seconds since the epoch as the APIs do: `2026-11-27T23:59:59.000Z`."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def from_rfc3339(text: str) -> float:
    """Parses an RFC 3339 time into seconds since the epoch; raises ValueError if it has no time
    zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r}: has no time zone; write it like 2026-11-27T23:59:59Z.")
    return moment.timestamp()


def now_text() -> str:
    """The current time in the format of the APIs."""
    return to_rfc3339(time.time())
