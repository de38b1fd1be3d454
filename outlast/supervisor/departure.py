"""How a trainer is asked to stop, and what it may still hand over."""

import logging
import time
from dataclasses import replace

from outlast.base.exits import Reason
from outlast.protocol import Stop
from outlast.supervisor.link import Link
from outlast.supervisor.shutdown import Leaving, Outlooks

_log = logging.getLogger(__name__)


class Departure:
    """The stop of one attempt's trainer. All methods belong to the attempt's one thread."""

    def __init__(self, outlooks: Outlooks) -> None:
        self._outlooks = outlooks
        self.leaving: Leaving | None = None
        """The stop that counts now; None until there is one."""

    def begin(self, reason: Reason, message: str, until: float, *, in_flight: bool) -> bool:
        """Plan the time until the machine ends. ``in_flight``: a commit is on its way. Returns
        False if an earlier stop has said the same to the trainer."""
        before = self.leaving
        leaving, plan = self._outlooks.leaving(
            reason, message, until, in_flight=in_flight, before=before
        )
        self.leaving = leaving
        if (
            before is not None
            and leaving.trainer_until == before.trainer_until
            and leaving.snapshot == before.snapshot
        ):
            return False
        trainer_sec = max(0.0, leaving.trainer_until - time.monotonic())
        _log.info(f"{reason}: {message}; plan: {plan.value}, the trainer has {trainer_sec:.1f} s")
        return True

    def tell(self, link: Link) -> None:
        """Tell the trainer to stop, if it has to."""
        if self.leaving is not None:
            left_sec = max(0.0, self.leaving.trainer_until - time.monotonic())
            link.send(Stop(left_sec, self.leaving.snapshot))

    def fits(self, link: Link, *, in_flight: bool) -> bool:
        """Whether a commit that begins now can finish before the machine ends. If not, the log says
        so, and the trainer gets a stop without a snapshot."""
        leaving = self.leaving
        if leaving is None:
            return True
        left_sec = leaving.until - time.monotonic()
        if not leaving.snapshot or (
            self._outlooks.plan(left_sec, in_flight=in_flight, written=True).plan.new
        ):
            return leaving.snapshot
        _log.info("a snapshot handed over now could not be committed in time: not begun")
        no_time = self._outlooks.no_time(left_sec, in_flight=in_flight)
        self.leaving = replace(leaving, snapshot=False, no_time=no_time)
        self.tell(link)
        return False
