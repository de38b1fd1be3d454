"""Announces each change of a run's state: a line of JSON on the serial port, and a message to the
user's webhook for those that a person may want to know at once.
"""

import contextlib
import logging
import time
from datetime import UTC, datetime

from outlast.base.exits import Reason, State
from outlast.base.webhook import Announcement, Event
from outlast.bucket.head import Head
from outlast.bucket.layout import AttemptEnd, Heartbeat, Layout
from outlast.bucket.records import read_record
from outlast.bucket.store import Store, StoreError
from outlast.spec.run_spec import RunSpec
from outlast.supervisor.site import Site
from outlast.supervisor.webhook import LAST_WORDS_SEC

_log = logging.getLogger(__name__)

_EVENTS = {
    State.DONE: Event.DONE,
    State.FAILED: Event.FAILED,
    State.STOPPED: Event.STOPPED,
    State.PRUNED: Event.PRUNED,
}


class Announcements:
    """The announcements of one machine about its run."""

    def __init__(self, spec: RunSpec, layout: Layout, site: Site) -> None:
        self._spec = spec
        self._layout = layout
        self._site = site

    def began(self, term: int, step: int) -> None:
        """An attempt begins, from a step."""
        self._say(Event.RUNNING, State.OPEN, attempt=term, step=step)

    def ended(self, end: AttemptEnd) -> None:
        """An attempt has ended, and the run perhaps with it."""
        event = Event.STUCK if end.reason is Reason.STALLED else Event.INTERRUPTED
        if end.state.ended:
            event = Event.BUDGET if end.reason is Reason.BUDGET else _EVENTS[end.state]
        self._say(
            event,
            end.state,
            reason=end.reason,
            attempt=end.term,
            step=end.step,
            message=end.message,
        )

    def ended_at_boot(self, head: Head, message: str) -> None:
        """A boot has ended the run: its limit has passed, or no attempt made progress."""
        reason = head.end.reason if head.end else ""
        self._say(_EVENTS[head.state], head.state, reason=reason, step=head.step, message=message)

    def lost(self, store: Store, term: int, restored: int) -> None:
        """Says so if an earlier attempt left no record of its end. `restored`: the step from which
        its successor continues. Never raises: the successor matters more."""
        with contextlib.suppress(StoreError):
            path = self._layout
            if read_record(store, path.attempt_end(term), AttemptEnd) is None:
                heartbeat = read_record(store, path.heartbeat(term), Heartbeat)
                step = max(restored, heartbeat.step if heartbeat else 0)
                message = "its VM left no record of its end; the next attempt has begun"
                self._say(Event.LOST, State.OPEN, Reason.VM_LOST, term, step, message)

    def stuck(self, reason: Reason, message: str) -> None:
        """This machine waits for a person."""
        self._say(Event.STUCK, "", reason=reason, message=message)

    def close(self) -> None:
        """Waits a while for the last message, but not beyond the end of this machine."""
        stopping = self._site.notices.stopping
        left_sec = LAST_WORDS_SEC if stopping is None else stopping.until - time.monotonic()
        self._site.webhook.close(min(LAST_WORDS_SEC, left_sec))

    def _say(
        self,
        event: Event,
        state: str,
        reason: str = "",
        attempt: int = 0,
        step: int = 0,
        message: str = "",
    ) -> None:
        machine = self._site.machine
        found = Announcement(
            event=event,
            owner=self._spec.owner,
            experiment=self._layout.prefix.rpartition("/")[2],
            run=self._layout.run,
            resume=self._spec.resume,
            attempt=attempt,
            state=str(state),
            reason=str(reason),
            step=step,
            message=self._site.mask.text(message),
            vm=machine.instance,
            zone=machine.zone.rpartition("/")[2],
        )
        self._site.console(found.console_line(datetime.now(UTC)))
        self._site.webhook.post(found)
