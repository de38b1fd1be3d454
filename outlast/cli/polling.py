"""How often commands that wait look again: every 30 s, and less often while nothing changes."""

import time
from collections.abc import Callable

POLL_SEC = 30.0
SLOWER = 1.5
"""Each pause without a change is so many times the pause before."""
SLOWEST = 4.0
"""The longest pause is so many times the first."""


class Pauses:
    """Sleeps between looks; the pause grows from `first_sec` to four times that."""

    def __init__(
        self, first_sec: float = POLL_SEC, *, sleep: Callable[[float], object] | None = None
    ) -> None:
        self._first_sec = first_sec
        self._sleep = sleep or time.sleep
        self._next_sec = first_sec

    def wait(self, *, changed: bool) -> None:
        """Sleeps until the next look. `changed`: whether this one showed something new."""
        if changed:
            self._next_sec = self._first_sec
        self._sleep(self._next_sec)
        self._next_sec = min(self._next_sec * SLOWER, self._first_sec * SLOWEST)
