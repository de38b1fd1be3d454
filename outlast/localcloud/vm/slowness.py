"""How much slower than a VM of Compute Engine a VM of this machine is."""

import time
from collections.abc import Callable

BOOT_SEC = 10.0
"""Seconds from the power-on to the startup script with KVM on quiet cores, for a stock Debian; what
a VM of Compute Engine takes too."""


class Slowness:
    """Measured once, at the first boot: the time to the startup script decides."""

    def __init__(self, measured: Callable[[float, float], None]) -> None:
        """`measured` gets the seconds that the first boot took, and the factor."""
        self._measured = measured
        self._factor: float | None = None

    @property
    def known(self) -> bool:
        """Whether a boot was measured."""
        return self._factor is not None

    def booted(self, since: float) -> None:
        """Notes that a VM that was powered on at the monotonic time `since` asks for its startup
        script."""
        if self._factor is None:
            took_sec = time.monotonic() - since
            self._factor = max(1.0, took_sec / BOOT_SEC)
            self._measured(took_sec, self._factor)

    def factor(self, since: float) -> float:
        """The factor for a VM that was powered on at `since`; before the first measurement, what is
        certain from the time that this VM has taken until now."""
        if self._factor is None:
            return max(1.0, (time.monotonic() - since) / BOOT_SEC)
        return self._factor
