"""Whether a trainer gets on, and what to do if it does not."""

import logging
import time

from outlast.supervisor.link import Link
from outlast.supervisor.progress import Progress
from outlast.supervisor.site import Site

_log = logging.getLogger(__name__)


class StallWatch:
    """The signs of life of one attempt's trainer. All methods belong to the attempt's one
    thread."""

    def __init__(self, site: Site, progress: Progress, stall_sec: float) -> None:
        """``stall_sec``: how long a trainer may give no sign."""
        self._site = site
        self._progress = progress
        self._stall_sec = stall_sec
        self._sign_at = time.monotonic()
        self._silence_said = False
        self.cause = ""
        """Why the trainer was ended; empty unless it was stuck."""

    def note_sign(self) -> None:
        """Note that the trainer makes progress, so neither it nor this machine counts as stuck."""
        self._sign_at = time.monotonic()
        self._silence_said = False
        self._site.sign()

    def note_wait(self) -> None:
        """The trainer waits for the supervisor: its time does not count."""
        self._sign_at = time.monotonic()

    def is_stalled(self, link: Link) -> bool:
        """Whether to end the trainer, as it gives no sign. One that a person started may be paused
        (Ctrl-Z, a closed lid, a debugger): that is only logged, once."""
        if time.monotonic() - self._sign_at < self._stall_sec:
            return False
        if link.trainer.restarts:
            return True
        if not self._silence_said:
            self._silence_said = True
            _log.info(
                f"no step for {self._stall_sec:.0f} s at step {self._progress.step}; the "
                "program may be paused or stuck, and is left alone"
            )
        return False

    def end(self, link: Link) -> None:
        """End a stuck trainer. Its stacks are in its log then."""
        self.cause = f"no step and no tick for {self._stall_sec:.0f} s"
        _log.info(
            f"{self.cause} at step {self._progress.step}: the trainer is stuck; its stack is in "
            "its log"
        )
        link.trainer.dump_stacks()
        link.kill("was stuck")
