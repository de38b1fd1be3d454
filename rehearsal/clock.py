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
    """The machine's own time."""

    def now(self) -> float:
        return time.time()


def to_rfc3339(seconds: float) -> str:
    """`seconds` since the epoch as the APIs write it: `2026-11-27T23:59:59.000Z`."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def from_rfc3339(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time; ValueError where it has no time zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r}: has no time zone; write it like 2026-11-27T23:59:59Z.")
    return moment.timestamp()
