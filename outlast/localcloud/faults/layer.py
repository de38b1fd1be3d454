"""The fault rules of a cloud, and the ASGI layer that applies them and counts requests."""

import json
import re
from collections import Counter
from collections.abc import Callable
from urllib.parse import parse_qs, unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlast.localcloud.base.access import OWNER
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.faults.injection import Injection, reset_connection
from outlast.localcloud.faults.rules import Rule
from outlast.localcloud.http.request_facts import RequestFacts

UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o$")
OBJECT = re.compile(r"/storage/v1/b/[^/]+/o/([^/?]+)")
PEEK_BYTES = 64 * 1024


class FaultLayer:
    """Holds the rules, and applies them to the requests of an app."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._rules: dict[str, Rule] = {}
        self._counted: Counter[tuple[str | None, str, str, str | None]] | None = None
        """Requests by VM, method, path and object; None if they are not counted."""

    def count(self, wanted: bool) -> None:
        """Begins to count requests, from none, or ends it."""
        self._counted = Counter() if wanted else None

    def counted(self) -> list[Entry]:
        """The requests since `count`, those to the same path by the same sender together."""
        return [
            {"vm": vm, "method": method, "path": path, "object": name, "count": count}
            for (vm, method, path, name), count in (self._counted or {}).items()
        ]

    def add(self, document: Entry, applies: Callable[[RequestFacts], bool] | None = None) -> str:
        """Adds a rule, or replaces the one with the same id; returns the id. `applies` restricts
        the requests that it may count and hit."""
        rule = Rule.of(document)
        rule.applies = applies
        self._rules[rule.id] = rule
        return rule.id

    def remove(self, rule_id: str) -> bool:
        """Removes a rule; returns whether it existed."""
        return self._rules.pop(rule_id, None) is not None

    def clear(self) -> None:
        self._rules.clear()

    def shown(self) -> list[Entry]:
        """The rules as they were given, with id, seen, fired, and the state of stalled requests."""
        return [
            {
                **rule.document,
                "id": rule.id,
                "seen": rule.seen,
                "fired": rule.fired,
                "stalls": [
                    {
                        "target": stall.call.object or stall.call.subjects[1],
                        "waited_sec": stall.waited_sec,
                        "again": stall.again,
                    }
                    for stall in rule.stalls
                ],
            }
            for rule in self._rules.values()
        ]

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """The app with the rules applied to every request except those of the control API."""

        async def apply(scope: Scope, receive: Receive, send: Send) -> None:
            director = self._cloud.director
            idle = not self._rules and not director.playing and self._counted is None
            if scope["type"] != "http" or idle or scope["path"].startswith("/_local/"):
                await app(scope, receive, send)
                return
            call, receive = await self._read_call(scope, receive)
            if self._counted is not None:
                self._counted[call.vm, call.method, scope["path"], call.object] += 1
            if director.is_cut_off(call):
                reset_connection(scope)
                return
            for rule in self._rules.values():
                for stall in rule.stalls:
                    stall.sees(call)
            watched = director.watch(call, app)
            # Every rule counts every match; the first that fires acts.
            fired = [rule for rule in self._rules.values() if rule.matches(call) and rule.take()]
            if not fired:
                await watched(scope, receive, send)
                return
            await Injection(self._cloud, fired[0], call, watched, scope, receive, send).run()

        return apply

    async def _read_call(self, scope: Scope, receive: Receive) -> tuple[RequestFacts, Receive]:
        raw, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
        target = f"{raw}?{query}" if query else raw
        subjects = [target, unquote(target)]
        name: str | None = None
        upload = UPLOAD.search(raw)
        if upload:
            fields = parse_qs(query)
            name = (fields.get("name") or [None])[0]
            if not name and "upload_id" in fields:
                name = self._cloud.storage.session_object(fields["upload_id"][0])
            if not name and scope["method"] == "POST":
                name, receive = await _peek_name(receive)
            if name:
                subjects.append(f"/upload/storage/v1/b/{unquote(upload[1])}/o/{name}")
        elif match := OBJECT.search(raw):
            name = unquote(match[1])
        try:
            caller = self._cloud.caller(Request(scope))
        except ApiError:
            caller = OWNER
        return RequestFacts(scope["method"], subjects, name, caller.vm, caller.instance), receive


async def _peek_name(receive: Receive) -> tuple[str | None, Receive]:
    """The `name` in an upload's metadata, and a receive that still returns the whole body."""
    kept: list[Message] = []
    head = b""
    name = None
    while len(head) < PEEK_BYTES:
        message = await receive()
        kept.append(message)
        if message["type"] != "http.request":
            break
        head += message.get("body", b"")
        name = _name_in(head)
        if name is not None or not message.get("more_body"):
            break

    async def replay() -> Message:
        return kept.pop(0) if kept else await receive()

    return name, replay


def _name_in(head: bytes) -> str | None:
    """The name in the first JSON object of an upload's body; None until the object is complete."""
    start = head.find(b"{")
    if start < 0:
        return None
    try:
        metadata, _ = json.JSONDecoder().raw_decode(head[start:].decode(errors="replace"))
    except ValueError:
        return None
    return metadata.get("name")
