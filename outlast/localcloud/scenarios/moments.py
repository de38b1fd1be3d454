"""The moments of a VM's life, as the cloud sees them in the requests that it serves."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from outlast.localcloud.cloud import Cloud
from outlast.localcloud.faults.injection import Injection
from outlast.localcloud.faults.rules import Actions, Rule
from outlast.localcloud.http.request_facts import RequestFacts
from outlast.localcloud.scenarios.lives import Life, Lives


@dataclass(frozen=True)
class Moment:
    """A request by which a VM shows how far it is."""

    phase: str
    at: Literal["before", "mid-body", "after"]
    """When it counts: the request has arrived, half of its body has, or it has taken effect."""
    pattern: re.Pattern[str]
    """Searched in the name of the object that the VM writes or, for `leaving`, in the path that it
    calls; may give `term` and `step`."""
    upload: bool = True


SNAPSHOT = r"/t(?P<term>\d{6,})/s(?P<step>\d{12,})-[0-9a-z]+/"
MOMENTS = (
    Moment("setup", "after", re.compile(r"/boots/[^/]+(?<!\.end)\.json$")),
    Moment("step", "after", re.compile(r"/attempts/(?P<term>\d{6,})/(start|heartbeat)\.json$")),
    Moment("snapshot", "before", re.compile(SNAPSHOT)),
    Moment("upload", "mid-body", re.compile(SNAPSHOT)),
    Moment("commit", "after", re.compile(SNAPSHOT + r"MANIFEST\.json$")),
    Moment("committed", "after", re.compile(r"/HEAD$")),
    Moment("final-upload", "mid-body", re.compile(r"/t(?P<term>\d{6,})/result/")),
    Moment("end", "after", re.compile(r"/END-r\d+\.json$")),
    Moment(
        "leaving",
        "before",
        re.compile(r"/instanceGroupManagers/[^/]+/(deleteInstances|resize)\b"),
        upload=False,
    ),
)
"""In the order in which one request reaches them; `boot` comes from the hypervisor."""

Reached = Callable[[Life, str], Awaitable[None]]
"""Called with a VM and the phase that it has reached."""


class Moments:
    """Notices the moments of the target's VMs, and keeps the facts in their requests."""

    def __init__(self, cloud: Cloud, lives: Lives, reached: Reached) -> None:
        self._cloud = cloud
        self._lives = lives
        self._reached = reached

    def watch(self, call: RequestFacts, app: ASGIApp) -> ASGIApp:
        """The app, which also notices the moments of a VM's request."""
        life = self._lives.of(call)
        if life is None or not self._lives.is_ours(life) or call.method not in ("POST", "PUT"):
            return app
        for moment in reversed(MOMENTS):
            subject = (call.object or "") if moment.upload else call.subjects[0]
            uploads = "/upload/storage/" in call.subjects[0]
            opens = "uploadType=resumable" in call.subjects[0] and call.method == "POST"
            match = moment.pattern.search(subject) if uploads == moment.upload else None
            # The bytes of a resumable upload come after the call that opens it.
            if match and not (opens and moment.at != "before"):
                app = self._watched(life, moment, match, call, app)
        return app

    def _watched(
        self, life: Life, moment: Moment, match: re.Match[str], call: RequestFacts, app: ASGIApp
    ) -> ASGIApp:
        async def arrive() -> bool:
            await self._see(life, moment, match.groupdict(), call)
            return not (life.ended or life.cut_off)

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            await _Sight(self._cloud, moment, call, app, (scope, receive, send), arrive).run()

        return watched

    async def _see(
        self, life: Life, moment: Moment, found: Mapping[str, str | None], call: RequestFacts
    ) -> None:
        """Keeps the facts of a request, and plays the events that are due."""
        if found.get("term"):
            life.term = int(found["term"] or 0)
        if found.get("step"):
            life.step = int(found["step"] or 0)
        match moment.phase:
            case "step":
                self._read_heartbeat(life, call)
            case "commit":
                life.committing = True
            case "committed":
                if not life.committing:
                    return
                life.committing = False
                life.commits += 1
        await self._reached(life, moment.phase)
        if moment.phase == "snapshot":  # it has the step, between two heartbeats
            await self._reached(life, "step")

    def _read_heartbeat(self, life: Life, call: RequestFacts) -> None:
        bucket = re.search(r"/b/([^/]+)/o", call.subjects[1])
        content = self._cloud.storage.content(bucket[1], call.object or "") if bucket else None
        with suppress(ValueError, TypeError, AttributeError):
            heartbeat = json.loads(content or b"{}")
            life.step = int(heartbeat.get("step") or life.step)
            life.total = int(heartbeat["total"]) if heartbeat.get("total") else life.total
            life.part, life.before = (
                str(heartbeat.get("part") or ""),
                int(heartbeat.get("before") or 0),
            )
        if life.total is None:  # an earlier attempt may have reported it
            totals = [other.total for other in self._lives.all() if self._lives.is_ours(other)]
            life.total = next((total for total in reversed(totals) if total), None)


class _Sight(Injection):
    """One request with a moment; it is reset if its VM ends at that moment."""

    def __init__(
        self,
        cloud: Cloud,
        moment: Moment,
        call: RequestFacts,
        app: ASGIApp,
        connection: tuple[Scope, Receive, Send],
        arrive: Callable[[], Awaitable[bool]],
    ) -> None:
        rule = Rule(id=moment.phase, when=moment.at, do=Actions.model_construct())
        super().__init__(cloud, rule, call, app, *connection)
        self._arrive = arrive

    async def run(self) -> None:
        headers = Headers(scope=self._scope)
        empty = not int(headers.get("content-length") or 0) and "transfer-encoding" not in headers
        if self._rule.when == "mid-body" and empty:  # a query of an upload's state
            await self._app(self._scope, self._receive, self._send)
        else:
            await super().run()

    async def _inject(self) -> bool:
        self._injected = True
        refused = self._rule.when == "after" and not 200 <= self._status < 300
        if not refused and not await self._arrive():
            self._cut = True
            self._reset()
        return not self._cut
