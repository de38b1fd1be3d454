"""Connections of the local cloud: identifies their other end, and checks every request."""

import asyncio
import json
import os
import sys
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

import h11
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from outlast.localcloud.base.access import OWNER
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.cloud import ADDRESSED
from outlast.localcloud.http.admission import check_content_type, check_no_page, check_target, hosts
from outlast.localcloud.http.peers import far_end
from outlast.localcloud.http.senders import Senders

NAMES = ("127.0.0.1", "localhost")
MAX_BODY_BYTES = 10 << 20
"""Maximum size of a request's body in bytes, except an object's bytes."""
MAX_HEAD_BYTES = 64 << 10
"""Maximum size of a request's line and headers together, in bytes."""
CORK_BYTES = 16 << 10
STRANGER_SEC = 5.0
"""Seconds that another user's connection is kept."""


class Listener:
    """Checks every request: it must come from the owner or a VM, not from a web page; only the
    owner may use the control API; and bodies that are kept in memory are limited."""

    def __init__(
        self, senders: Senders, app: ASGIApp, port: int, names: Collection[str] = NAMES
    ) -> None:
        """`names`: the names in the Host headers of its clients."""
        self._senders = senders
        self._app = app
        self._hosts = hosts(names, port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            self._check(request)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        ADDRESSED.set(f"http://{request.headers['host'].strip()}")
        await self._app(scope, _bounded(receive) if _is_kept(request) else receive, send)

    def _check(self, request: Request) -> None:
        self._senders.admit(request)
        headers = request.headers
        target = request.scope["raw_path"].decode("latin-1")
        check_target(target, headers.getlist("host"), self._hosts)
        check_no_page(headers.get("origin"), headers.get("sec-fetch-site"))
        local = request.scope["path"].startswith("/_local/")
        if local and self._senders.caller(request) is not OWNER:
            raise ApiError(403, "The control API of the local cloud is not for its VMs.")
        length = headers.get("content-length", "")
        if _is_kept(request) and length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise _too_large()
        check_content_type(request)


def _is_kept(request: Request) -> bool:
    """Whether the body is kept in memory. An object's bytes are not: they go to the disk as they
    arrive."""
    query = request.query_params
    if "upload_id" in query:
        return request.method != "PUT"
    return query.get("uploadType") not in ("media", "multipart")


def _bounded(receive: Receive) -> Receive:
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise _too_large()
        return message

    return bounded


def _too_large() -> ApiError:
    text = f"Request Entity Too Large: at most {MAX_BODY_BYTES} bytes."
    return ApiError(413, text, headers={"connection": "close"})


class _Corked:
    """A transport that sends an answer's head and a small body in one piece. Two system calls, and
    two reads by the client, would cost more than the rest of a small answer."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held += data
        if len(self._held) > CORK_BYTES:  # then the sender waits until the client has read it
            self._flush()

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, bytearray()
            self._transport.write(held)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._flush()
        self._transport.abort()


class Protocol(H11Protocol):
    """Puts a request's connection into `scope["state"]`: `transport`, and `connection` for facts
    about it.

    At first `connection` holds only `far`, the socket at the other end; None if that is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        corked: Any = _Corked(transport)
        super().connection_made(corked)
        self._known: dict[str, Any] = {"far": far_end(transport.get_extra_info("socket"))}
        self.app_state = {**self.app_state, "transport": corked, "connection": self._known}
        far = self._known["far"]
        if far is None or far.uid != os.geteuid():
            self.loop.call_later(STRANGER_SEC, self._end_stranger)

    def _end_stranger(self) -> None:
        """Closes a connection that belongs neither to a VM nor to the owner: connections are
        limited."""
        if "sender" not in self._known:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not a request. Called while that error is handled, which has the
        status."""
        if self.cycle and not self.cycle.response_complete:  # the error is in a request's body
            self.cycle.disconnected = True  # its own answer would be a second one
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # part of another answer was sent
            return
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        body = json.dumps(ApiError(status, msg).body()).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
