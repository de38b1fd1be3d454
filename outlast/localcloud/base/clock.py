"""Time for the local cloud: real when it serves, a test's own in tests."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch. Everything that waits asks a clock what time it is."""

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...


class RealClock:
    """The machine's own time; faster than it from the moment when a speed is set."""

    def __init__(self) -> None:
        self._speed = 1.0
        self._wall_at = self._now_at = time.time()

    def now(self) -> float:
        return self._now_at + (time.time() - self._wall_at) * self._speed

    def set_speed(self, speed: float) -> None:
        """Goes on from now at so many seconds a second."""
        self._now_at = self.now()
        self._wall_at = time.time()
        self._speed = speed

    def wall_sec(self, seconds: float) -> float:
        """How long `seconds` of this clock take on the wall."""
        return seconds / self._speed


def to_rfc3339(seconds: float) -> str:
    """`seconds` since the epoch as the APIs write it: `2026-11-27T23:59:59.000Z`."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def from_rfc3339(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time; ValueError if it has no time zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r}: has no time zone; write it like 2026-11-27T23:59:59Z.")
    return moment.timestamp()


def now_text() -> str:
    """This moment as the APIs write it."""
    return to_rfc3339(time.time())
