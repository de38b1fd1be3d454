"""Messages to a user's webhook: what they say, how they are signed, and how they are sent.

docs/operating.md describes the body. The VM sends most of them; `outlast watch` and `outlast wait`
send those that no VM can send.
"""

import hashlib
import hmac
import html
import ipaddress
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from outlast.base.clock import SYSTEM_CLOCK
from outlast.base.codec import format_time
from outlast.base.http_client import RequestFailed, ask
from outlast.base.retry import Limits, Patience

VERSION = 1
ANSWER_SEC = 10.0
RETRY_SEC = 60.0
"""Seconds for which a message without an answer is sent again."""
TIMESTAMP_HEADER = "Outlast-Timestamp"
SIGNATURE_HEADER = "Outlast-Signature"


class Event(StrEnum):
    """What has happened to a run."""

    RUNNING = "running"
    """An attempt has begun."""
    INTERRUPTED = "interrupted"
    """An attempt has ended, and the group creates the next VM."""
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    PRUNED = "pruned"
    BUDGET = "budget"
    """The budget is used up; the run has stopped."""
    LOST = "lost"
    """An attempt ended without a record of its end."""
    SILENT = "silent"
    """An attempt has missed three heartbeats."""
    STUCK = "stuck"
    """A trainer makes no progress, or a VM needs a person."""


SENT = frozenset(Event) - {Event.RUNNING, Event.INTERRUPTED, Event.PRUNED}
"""Events that the webhook gets; the serial port gets all."""
_WORDS = {
    Event.FAILED: "has failed",
    Event.STOPPED: "has stopped",
    Event.BUDGET: "has used up its budget",
}
"""Where "is" and the event make no sentence."""
_OF_THE_RUN = frozenset({Event.DONE, Event.FAILED, Event.STOPPED, Event.PRUNED, Event.BUDGET})


@dataclass(frozen=True)
class Announcement:
    """One change of a run's state, for people and programs."""

    event: Event
    owner: str
    """`organization/project/stack`."""
    experiment: str
    run: str
    resume: int
    attempt: int
    """0 if it belongs to the run or the machine."""
    state: str
    """How the run stands then: a state of HEAD, or of `outlast status`."""
    reason: str
    """Why; empty if there is no reason besides the event."""
    step: int
    message: str
    vm: str
    zone: str

    @property
    def id(self) -> str:
        """The same for the same change, from any sender and however often."""
        attempt = 0 if self.event in _OF_THE_RUN else self.attempt
        text = f"{self.owner} {self.run} {self.resume} {attempt} {self.event}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        """A sentence for a chat."""
        why = f" ({self.reason})" if self.reason not in ("", self.event) else ""
        of = f", attempt {self.attempt}" if self.attempt else ""
        said = f": {self.message}" if self.message else ""
        how = _WORDS.get(self.event, f"is {self.event}")
        return f"{self.experiment}: run {self.run}{of} {how}{why} at step {self.step}{said}"

    def body(self, now: datetime) -> dict[str, Any]:
        """The message. Slack and its likes read `text` alone, in which `<!channel>` calls everybody
        and `<address|words>` is a link, unless it is escaped (api.slack.com, "Formatting text for
        app surfaces", read on 2026-11-30); a run's message may have any words.
        """
        return {
            "text": html.escape(self.text, quote=False),
            "version": VERSION,
            "id": self.id,
            "event": self.event.value,
            "time": format_time(now),
            "owner": self.owner,
            "experiment": self.experiment,
            "run": self.run,
            "resume": self.resume,
            "attempt": self.attempt,
            "state": self.state,
            "reason": self.reason,
            "step": self.step,
            "message": self.message,
            "vm": self.vm,
            "zone": self.zone,
        }

    def console_line(self, now: datetime) -> str:
        """One line of JSON for the serial port, whose first key finds it."""
        body = {**self.body(now), "text": self.text}
        return json.dumps({"outlastEvent": body.pop("event"), **body}, separators=(",", ":"))


def sign(key: bytes, timestamp: int, body: bytes) -> str:
    """The value of the signature's header: HMAC-SHA256 over timestamp, a dot, and the body."""
    signed = f"{timestamp}.".encode() + body
    return f"sha256={hmac.new(key, signed, hashlib.sha256).hexdigest()}"


def send(
    url: str, key: bytes, announcement: Announcement, *, within_sec: float | None = None
) -> None:
    """Sends a message until it has an answer. `key` signs it; empty for a webhook that checks
    nothing, such as Slack's. Raises RequestFailed for a refusal, and once `within_sec` (RETRY_SEC)
    have passed without an answer.
    """
    if (urlsplit(url).hostname or "").endswith(".invalid"):
        # A rehearsal's: there is no such name (RFC 2606), and no later try finds one.
        raise RequestFailed(404, "webhook: the address leads nowhere")
    body = json.dumps(announcement.body(datetime.now(UTC))).encode()

    def post() -> None:
        timestamp = int(time.time())
        signed = {
            TIMESTAMP_HEADER: str(timestamp),
            SIGNATURE_HEADER: sign(key, timestamp, body),
        }
        headers = {"Content-Type": "application/json", **(signed if key else {})}
        ask(url, what="webhook", method="POST", body=body, headers=headers, timeout_sec=ANSWER_SEC)

    limits = Limits(silent_sec=RETRY_SEC if within_sec is None else within_sec)
    Patience(SYSTEM_CLOCK, limits=limits)(post, "webhook")


def is_address(url: str) -> bool:
    """Whether a text can be a webhook's address: https, or http with a loopback address."""
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            return False
        if parts.scheme == "http":
            return ipaddress.ip_address(parts.hostname).is_loopback
        return parts.scheme == "https"
    except ValueError:
        return False
