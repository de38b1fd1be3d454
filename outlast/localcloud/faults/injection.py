"""The effect of a fault rule on one request."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.faults.rules import Rule, Stall
from outlast.localcloud.http.request_facts import RequestFacts

VM_ACTIONS = ("kill_vm", "preempt_vm", "freeze_vm")
LINGER_ZERO = struct.pack("ii", 1, 0)


def reset_connection(scope: Scope) -> None:
    """Ends a request's connection so that the client sees a reset, not an orderly end."""
    transport: asyncio.Transport = scope["state"]["transport"]
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
    transport.abort()


class Injection:
    """One request for which a rule fires."""

    def __init__(
        self,
        cloud: Cloud,
        rule: Rule,
        call: RequestFacts,
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
        """Whether the request has been read to its end."""
        self._injected = False
        self._cut = False
        """Whether the client gets nothing more from the app."""
        self._answering = False
        self._status = 0
        """The status of the app's answer, once it has started."""

    async def _receive(self) -> Message:
        message = await self._source()
        self._received = message["type"] != "http.request" or not message.get("more_body")
        return message

    async def _receive_slowly(self) -> Message:
        return await self._paced(await self._receive())

    async def _send_slowly(self, message: Message) -> None:
        await self._send(await self._paced(message))

    async def _paced(self, message: Message) -> Message:
        """Returns the message after the time that its bytes take at the rule's rate."""
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
        """Applies the rule; returns whether the request continues."""
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
            if self._answering:  # part of an answer was sent: only a reset can end it
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
        # The whole request is read first: a client that still sends would see a reset instead.
        while not self._received:
            await self._receive()
        headers = {}
        if self._rule.do.retry_after_sec is not None:
            headers["retry-after"] = f"{self._rule.do.retry_after_sec:g}"
        words = self._rule.do.message or f"fault {self._rule.id} of the local cloud"
        error = ApiError(status, words, headers=headers)
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
