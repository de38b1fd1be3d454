"""Checks that the machine's GPUs answer before training.

An image may install its driver at the first boots, so this waits for the driver. A missing driver
is the machine's failure, never the user's.
"""

import logging
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

_log = logging.getLogger(__name__)

ASK_SEC = 60.0
"""`nvidia-smi` takes long to answer if a GPU has fallen off its bus."""
AGAIN_SEC = 5.0

Sleep = Callable[[float], object]


@dataclass(frozen=True)
class NoGpus:
    """Too few GPUs answer."""

    why: str
    installed: bool = True
    """Whether the image has a driver; without one, every VM of it fails."""


def wait_for_gpus(
    count: int,
    *,
    limit_sec: float,
    sleep: Sleep = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> NoGpus | None:
    """Waits until `count` GPUs answer. Returns None, or the problem that remains after
    `limit_sec`."""
    end = clock() + limit_sec
    said: NoGpus | None = None
    while True:
        wrong = _missing(count)
        if wrong is None:
            return None
        left_sec = end - clock()
        if left_sec <= 0:
            why = f"{wrong.why}, after {limit_sec:.0f} s; use an image with the GPU's driver"
            return replace(wrong, why=why)
        if wrong != said:
            said = wrong
            _log.info(f"{wrong.why}; waiting up to {left_sec:.0f} s for the driver")
        sleep(min(AGAIN_SEC, left_sec))


def _missing(count: int) -> NoGpus | None:
    """The problem that keeps the GPUs from being used; None if there is none."""
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--list-gpus"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_SEC,
            check=False,
        )
    except FileNotFoundError:
        return NoGpus("the GPU's driver is not installed (no nvidia-smi)", installed=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return NoGpus(f"the GPU's driver does not answer ({error})")
    lines = (asked.stderr or asked.stdout).strip().splitlines()
    if asked.returncode:
        why = lines[-1] if lines else f"nvidia-smi ended with {asked.returncode}"
        return NoGpus(f"the GPU's driver does not answer ({why})")
    found = sum(line.startswith("GPU ") for line in asked.stdout.splitlines())
    return None if found >= count else NoGpus(f"{found} of {count} GPUs answer")
