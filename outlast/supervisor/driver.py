"""Checks that the machine's GPUs answer before training.

An image may install its driver at the first boots, so this waits for the driver. A missing driver
is the machine's failure, never the user's.
"""

import logging
import subprocess
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

ASK_SEC = 60.0
"""`nvidia-smi` takes long to answer if a GPU has fallen off its bus."""
AGAIN_SEC = 5.0

Sleep = Callable[[float], object]


def wait_for_gpus(
    count: int,
    *,
    limit_sec: float,
    sleep: Sleep = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Waits until `count` GPUs answer. Returns an empty text, or the problem that remains after
    `limit_sec`."""
    end = clock() + limit_sec
    said = ""
    while True:
        wrong = _missing(count)
        if not wrong:
            return ""
        left_sec = end - clock()
        if left_sec <= 0:
            return f"{wrong}, after {limit_sec:.0f} s; use an image with the GPU's driver"
        if wrong != said:
            said = wrong
            _log.info(f"{wrong}; waiting up to {left_sec:.0f} s for the driver")
        sleep(min(AGAIN_SEC, left_sec))


def _missing(count: int) -> str:
    """The problem that keeps the GPUs from being used; empty if there is none."""
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
        return "the GPU's driver is not installed (no nvidia-smi)"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the GPU's driver does not answer ({error})"
    lines = (asked.stderr or asked.stdout).strip().splitlines()
    if asked.returncode:
        why = lines[-1] if lines else f"nvidia-smi ended with {asked.returncode}"
        return f"the GPU's driver does not answer ({why})"
    found = sum(line.startswith("GPU ") for line in asked.stdout.splitlines())
    return "" if found >= count else f"{found} of {count} GPUs answer"
