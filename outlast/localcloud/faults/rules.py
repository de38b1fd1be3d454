"""Faults on demand: rules that hit the nth matching request before, in the middle of, or after it.

A rule is JSON:

    {"id": "…",                              made up where it is absent
     "match": {"method": "POST",             any where absent
               "path": "regex",              searched in the target as sent, decoded, and for an
                                             upload in /upload/storage/v1/b/BUCKET/o/NAME
               "object": "regex",            searched in the object's name alone
               "vm": "NAME",                 the sender, known by its token
               "nth": 1, "count": 1},        fires from the nth match on, count times (0: always)
     "when": "before" | "after" | "mid-body",
     "do": {"status": 503, "retry_after_sec": 1, "reset": true, "delay_sec": 0.5, "stall": true,
            "bytes_per_sec": 10000, "drop_answer": true,
            "kill_vm": true | "NAME", "preempt_vm": …, "freeze_vm": …}}

Several actions of one rule happen in the order: VMs, delay, then the first of stall, reset,
drop_answer and status. `bytes_per_sec` is the pace of both bodies, with `before`. `after` means
that the request has had its effect; `mid-body` is half of the request's body, or of the answer's
where the request has none.
"""

import asyncio
import json
import re
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qs, unquote

from pydantic import Field, ValidationError, model_validator
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlast.localcloud.base.checked import (
    Count,
    Ordinal,
    Part,
    Pattern,
    Sec,
    sentence_of,
)
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.iam.service import OWNER

if TYPE_CHECKING:
    from outlast.localcloud.server import Cloud

VM_ACTIONS = ("kill_vm", "preempt_vm", "freeze_vm")
UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o$")
OBJECT = re.compile(r"/storage/v1/b/[^/]+/o/([^/?]+)")
PEEK_BYTES = 64 * 1024
LINGER_ZERO = struct.pack("ii", 1, 0)


class Match(Part):
    """Which requests a rule counts, and which of those it hits."""

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] | None = None
    path: Pattern | None = None
    object: Pattern | None = None
    vm: str | None = None
    nth: Ordinal = 1
    count: Count = 1


class Actions(Part):
    """What a rule does."""

    status: Annotated[int, Field(ge=400, le=599)] | None = None
    retry_after_sec: Sec | None = None
    delay_sec: Sec | None = None
    bytes_per_sec: Annotated[float, Field(gt=0)] | None = None
    stall: bool | None = None
    reset: bool | None = None
    drop_answer: bool | None = None
    kill_vm: bool | str | None = None
    preempt_vm: bool | str | None = None
    freeze_vm: bool | str | None = None

    @model_validator(mode="after")
    def _some(self) -> "Actions":
        if self.retry_after_sec is not None and not self.status:
            raise ValueError(f"retry_after_sec {self.retry_after_sec:g}: must be with a status")
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise ValueError("must name at least one action")
        return self


class FaultRule(Part):
    """A rule as it is written."""

    id: str | None = None
    match: Match = Match()
    when: Literal["before", "after", "mid-body"] = "before"
    do: Actions

    @model_validator(mode="after")
    def _possible(self) -> "FaultRule":
        if self.do.drop_answer and self.when != "after":
            raise ValueError(f"when {self.when!r}: must be 'after' for drop_answer")
        if self.do.bytes_per_sec and self.when != "before":
            raise ValueError(f"when {self.when!r}: must be 'before' for bytes_per_sec")
        return self


@dataclass
class Stall:
    """A request that was left hanging."""

    call: "Call"
    waited_sec: float | None = None
    """How long its sender waited before it gave up; None: it still waits."""
    again: bool = False
    """Whether the same VM has asked for the same since."""

    def sees(self, call: "Call") -> None:
        """Another request has come."""
        hung = self.call
        same = call.object == hung.object if hung.object else call.subjects == hung.subjects
        sender = (call.method, call.vm, call.instance) == (hung.method, hung.vm, hung.instance)
        self.again = self.again or (self.waited_sec is not None and same and sender)


@dataclass
class Rule:
    """A fault rule with its counts."""

    id: str
    when: str
    do: Actions
    match: Match = field(default_factory=Match)
    seen: int = 0
    fired: int = 0
    stalls: list[Stall] = field(default_factory=list)
    document: Entry = field(default_factory=dict)
    applies: "Callable[[Call], bool] | None" = None
    """Which requests it may hit at all; None: any."""

    @classmethod
    def of(cls, document: Entry) -> "Rule":
        """From JSON; ApiError 400 says what is wrong with it."""
        try:
            written = FaultRule.model_validate(document)
        except ValidationError as error:
            raise ApiError(400, sentence_of(error, "fault rule")) from None
        return cls(
            id=written.id or secrets.token_hex(4),
            when=written.when,
            do=written.do,
            match=written.match,
            document=document,
        )

    def matches(self, call: "Call") -> bool:
        """Whether the request is one of those that the rule counts."""
        wanted = self.match
        if wanted.method and wanted.method != call.method:
            return False
        if self.applies and not self.applies(call):
            return False
        if wanted.vm and wanted.vm != call.vm:
            return False
        if wanted.path and not any(re.search(wanted.path, subject) for subject in call.subjects):
            return False
        return not wanted.object or re.search(wanted.object, call.object or "") is not None

    def take(self) -> bool:
        """Counts one match; whether this one fires."""
        self.seen += 1
        if self.seen < self.match.nth or (self.match.count and self.fired >= self.match.count):
            return False
        self.fired += 1
        return True


@dataclass
class Call:
    """A request as rules see it."""

    method: str
    subjects: list[str]
    object: str | None
    vm: str | None
    instance: str | None = None
    """Id of the VM that has sent it; a name may have two VMs at once."""


class Faults:
    """The rules of a cloud, and the ASGI layer that applies them."""

    def __init__(self, cloud: "Cloud") -> None:
        self._cloud = cloud
        self._rules: dict[str, Rule] = {}

    def add(self, document: Entry, applies: Callable[[Call], bool] | None = None) -> str:
        """Adds a rule, or replaces the one of the same id; returns the id. `applies` says which
        requests it may hit at all."""
        rule = Rule.of(document)
        rule.applies = applies
        self._rules[rule.id] = rule
        return rule.id

    def remove(self, rule_id: str) -> bool:
        """Whether there was such a rule."""
        return self._rules.pop(rule_id, None) is not None

    def clear(self) -> None:
        self._rules.clear()

    def shown(self) -> list[Entry]:
        """The rules as they were given, with id, seen and fired, and what became of stalls."""
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
        """The app with the rules applied to every request but the control API's."""

        async def apply(scope: Scope, receive: Receive, send: Send) -> None:
            director = self._cloud.director
            idle = not self._rules and not director.playing
            if scope["type"] != "http" or idle or scope["path"].startswith("/_local/"):
                await app(scope, receive, send)
                return
            call, receive = await self._read_call(scope, receive)
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

    async def _read_call(self, scope: Scope, receive: Receive) -> tuple[Call, Receive]:
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
        return Call(scope["method"], subjects, name, caller.vm, caller.instance), receive


async def _peek_name(receive: Receive) -> tuple[str | None, Receive]:
    """The `name` of an upload's metadata, and a receive that still gives the whole body."""
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
    """The name in the first JSON object of an upload's body, once all of it is there."""
    start = head.find(b"{")
    if start < 0:
        return None
    try:
        metadata, _ = json.JSONDecoder().raw_decode(head[start:].decode(errors="replace"))
    except ValueError:
        return None
    return metadata.get("name")


def reset_connection(scope: Scope) -> None:
    """Ends a request's connection so that the client sees a reset, not an orderly end."""
    transport: asyncio.Transport = scope["state"]["transport"]
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    transport.abort()


class Injection:
    """One request that a rule has hit."""

    def __init__(
        self,
        cloud: "Cloud",
        rule: Rule,
        call: Call,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._cloud = cloud
        self._rule = rule
        self._call = call
        self._app = app
        self._scope = scope
        self._source = receive
        self._send = send
        self._received = False
        """The request has been read to its end."""
        self._injected = False
        self._cut = False
        """The client gets nothing more from the app."""
        self._answering = False
        self._status = 0
        """Of the app's answer, once it has begun."""

    async def _receive(self) -> Message:
        message = await self._source()
        self._received = message["type"] != "http.request" or not message.get("more_body")
        return message

    async def _receive_slowly(self) -> Message:
        return await self._paced(await self._receive())

    async def _send_slowly(self, message: Message) -> None:
        await self._send(await self._paced(message))

    async def _paced(self, message: Message) -> Message:
        """The message, once the time that its bytes take has passed."""
        if rate := self._rule.do.bytes_per_sec:
            await asyncio.sleep(len(message.get("body", b"")) / rate)
        return message

    async def run(self) -> None:
        if self._rule.when == "before":
            if await self._inject():
                await self._app(self._scope, self._receive_slowly, self._send_slowly)
        elif self._rule.when == "after":
            await self._app(self._scope, self._receive, self._send_after)
        else:
            await self._run_mid_body()

    async def _inject(self) -> bool:
        """Does what the rule says; whether the request goes on."""
        self._injected = True
        do = self._rule.do
        self._cloud.events.write(
            "fault",
            id=self._rule.id,
            method=self._call.method,
            target=self._call.subjects[1],
            object=self._call.object,
            vm=self._call.vm,
            when=self._rule.when,
            do=do.model_dump(exclude_none=True),
        )
        await self._act_on_vms()
        if do.delay_sec:
            await asyncio.sleep(do.delay_sec)
        if do.stall:
            self._cut = True
            await self._wait_for_disconnect()
        elif do.reset or do.drop_answer:
            self._cut = True
            self._reset()
        elif do.status:
            self._cut = True
            if self._answering:  # part of an answer is out: only the connection can end it now
                self._reset()
            else:
                await self._answer(do.status)
        return not self._cut

    async def _act_on_vms(self) -> None:
        machines = self._cloud.machines
        verbs: dict[str, Callable[[str], Any]] = {
            "kill_vm": machines.kill,
            "preempt_vm": machines.preempt,
            "freeze_vm": machines.freeze,
        }
        for key in VM_ACTIONS:
            target = getattr(self._rule.do, key)
            if not target:
                continue
            name = self._call.vm if target is True else str(target)
            try:
                if name is None:
                    raise KeyError("the sender is not a VM")
                await verbs[key](name)
            except KeyError as error:
                self._cloud.events.write(
                    "fault-missed", id=self._rule.id, action=key, reason=str(error)
                )

    async def _wait_for_disconnect(self) -> None:
        stall = Stall(self._call)
        self._rule.stalls.append(stall)
        began = time.monotonic()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        stall.waited_sec = round(time.monotonic() - began, 1)

    def _reset(self) -> None:
        reset_connection(self._scope)

    async def _answer(self, status: int) -> None:
        # The whole request is read first: a client in mid-send would see a reset instead.
        while not self._received:
            await self._receive()
        headers = {}
        if self._rule.do.retry_after_sec is not None:
            headers["retry-after"] = f"{self._rule.do.retry_after_sec:g}"
        error = ApiError(status, f"fault {self._rule.id} of the local cloud", headers=headers)
        await error.response()(self._scope, self._receive, self._send)

    async def _send_after(self, message: Message) -> None:
        self._status = message.get("status", self._status)
        if not self._injected:
            await self._inject()
        if not self._cut:
            await self._send(message)

    async def _run_mid_body(self) -> None:
        headers = Headers(scope=self._scope)
        length = int(headers.get("content-length") or 0)
        if length or "transfer-encoding" in headers:
            await self._app(
                self._scope, self._cut_request(max(length // 2, 1)), self._send_unless_cut
            )
        else:
            await self._app(self._scope, self._receive, self._cut_answer())

    async def _send_unless_cut(self, message: Message) -> None:
        if not self._cut:
            await self._send(message)

    def _cut_request(self, half: int) -> Receive:
        received = 0
        rest: Message | None = None

        async def receive() -> Message:
            nonlocal received, rest
            if self._cut:
                return {"type": "http.disconnect"}
            if received >= half and not self._injected and not await self._inject():
                return {"type": "http.disconnect"}
            if rest is not None:
                message, rest = rest, None
                return message
            message = await self._receive()
            body = message.get("body", b"")
            if not self._injected and received + len(body) > half:
                first = half - received
                rest = {**message, "body": body[first:]}
                message = {**message, "body": body[:first], "more_body": True}
            received += len(message.get("body", b""))
            return message

        return receive

    def _cut_answer(self) -> Send:
        sent = half = 0

        async def send(message: Message) -> None:
            nonlocal sent, half
            if self._cut:
                return
            if message["type"] == "http.response.start":
                length = Headers(raw=message["headers"]).get("content-length")
                half = int(length or 0) // 2
                self._answering = True
                await self._send(message)
                return
            body = message.get("body", b"")
            if not self._injected and sent + len(body) >= half:
                first = half - sent
                await self._send({**message, "body": body[:first], "more_body": True})
                sent += first
                if not await self._inject():
                    return
                body = body[first:]
            sent += len(body)
            await self._send({**message, "body": body})

        return send
