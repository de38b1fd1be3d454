"""Whether the machine's GPUs answer, before anything is trained on them.

An image may install its driver at the first boots, so the driver is waited for; one that does not
come is the machine's failure and never the user's.
"""

import logging
import subprocess
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

ASK_SEC = 60.0
"""`nvidia-smi` of a GPU that has fallen off its bus takes long to say so."""
AGAIN_SEC = 5.0

Sleep = Callable[[float], object]


def wait_for_gpus(
    count: int,
    *,
    limit_sec: float,
    sleep: Sleep = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Empty once so many GPUs have answered; what is wrong if they did not within the limit."""
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
    """What keeps the GPUs from being used; empty for nothing."""
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
