"""Messages to a webhook that no VM can send: a run is silent or lost, its VMs never start, or it
has passed its limit without one.

A VM sends the others itself. Two watchers send the same message twice, with the same id.
"""

import os
from collections.abc import Mapping, Sequence

from outlast.base import webhook
from outlast.base.exits import Reason
from outlast.base.http_client import RequestFailed
from outlast.base.webhook import Announcement, Event
from outlast.bucket.standing import Standing
from outlast.cli.errors import UsageError
from outlast.cli.overview import Line
from outlast.cli.status import Status

ADDRESS_VARIABLE = "OUTLAST_WEBHOOK"
KEY_VARIABLE = "OUTLAST_WEBHOOK_KEY"
WITHIN_SEC = 20.0
"""Seconds for which a message is sent again; then the watching continues."""
_EVENTS = {
    Standing.SILENT: Event.SILENT,
    Standing.LOST: Event.LOST,
    Standing.NEVER_STARTED: Event.STUCK,
    Standing.EXPIRED: Event.FAILED,
}


class Notifier:
    """Sends a message for each run that becomes silent, lost or expired, or never starts."""

    def __init__(self, url: str, key: bytes = b"") -> None:
        self._url = url
        self._key = key
        self._sent: set[str] = set()

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> "Notifier":
        """As the variables OUTLAST_WEBHOOK and OUTLAST_WEBHOOK_KEY say. Raises UsageError."""
        url = environ.get(ADDRESS_VARIABLE, "").strip()
        if not webhook.is_address(url):
            shown = "is not set" if not url else "is not an https address"
            raise UsageError(
                f"--notify: {ADDRESS_VARIABLE} {shown}; set it to the webhook's address"
            )
        return cls(url, environ.get(KEY_VARIABLE, "").strip().encode())

    def look(self, lines: Sequence[Line]) -> tuple[str, ...]:
        """Sends what is new; returns a sentence for each message that could not be delivered, which
        is tried again at the next look."""
        undelivered = []
        for line in lines:
            found = announcement_of(line.status)
            if found is None or found.id in self._sent:
                continue
            try:
                webhook.send(self._url, self._key, found, within_sec=WITHIN_SEC)
                self._sent.add(found.id)
            except RequestFailed as error:
                undelivered.append(f"{error}; the message {found.event} was not delivered")
        return tuple(undelivered)


def announcement_of(status: Status) -> Announcement | None:
    """What to say about a run; None if a VM says it, or if there is nothing to say."""
    event = _EVENTS.get(status.state)
    if event is None:
        return None
    book = status.history
    newest = book.attempts[-1] if book and book.attempts else None
    if event is Event.STUCK:
        message = (status.wait.why if status.wait else "") or "no VM has reached an attempt"
    elif event is Event.FAILED:
        newest = None  # It is said of the run, as a VM says it.
        message = status.why
    else:
        seconds = status.silence.total_seconds() if status.silence is not None else 0.0
        message = f"last heartbeat {seconds:.0f} s ago"
    return Announcement(
        event=event,
        owner=book.head.owner if book else "",
        experiment=status.experiment,
        run=status.run,
        resume=book.head.resume if book else 0,
        attempt=newest.term if newest else 0,
        state=str(status.state),
        reason=Reason.EXPIRED if event is Event.FAILED else "",
        step=book.step if book else 0,
        message=message,
        vm=newest.instance if newest else "",
        zone=newest.zone if newest else "",
    )
