"""Batches: up to a hundred calls in one request, each answered as it would be alone."""

import re
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.storage.content import MultipartReader, malformed

MAX_CALLS = 100
MAX_CALL_BYTES = 1 << 20
BOUNDARY = "batch_outlast"
# Clients write a call's lines with Python's mail library, which uses bare newlines.
NEWLINE = re.compile(rb"\r?\n")
BLANK_LINE = re.compile(rb"\r?\n\r?\n")


async def answer_batch(request: Request, app: ASGIApp) -> Response:
    """Answers a multipart/mixed body of HTTP requests with the answers of `app` to each."""
    reader = MultipartReader(request)
    calls: list[tuple[str, bytes]] = []
    while (head := await reader.head()) is not None:
        calls.append((head.get("content-id", ""), await reader.whole_body(MAX_CALL_BYTES)))
        if len(calls) > MAX_CALLS:
            raise ApiError(400, f"A batch has at most {MAX_CALLS} calls.", "invalid")
    if not calls:
        raise malformed()
    parts: list[bytes] = []
    for content_id, raw in calls:
        answered = "<response-" + content_id.removeprefix("<") if content_id else ""
        part = f"--{BOUNDARY}\r\nContent-Type: application/http\r\n"
        part += f"Content-ID: {answered}\r\n\r\n" if answered else "\r\n"
        parts.append(part.encode("latin-1") + await _answer(request, raw, app) + b"\r\n")
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    return Response(body, media_type=f"multipart/mixed; boundary={BOUNDARY}")


async def _answer(outer: Request, raw: bytes, app: ASGIApp) -> bytes:
    scope, body = _read_call(outer, raw)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, content = sent[0], b"".join(message.get("body", b"") for message in sent[1:])
    status = HTTPStatus(start["status"])
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
    lines += [name + b": " + value for name, value in start["headers"]]
    return b"\r\n".join([*lines, b"", content])


def _read_call(outer: Request, raw: bytes) -> tuple[Scope, bytes]:
    """A call of the batch as a separate request, from the sender of the batch."""
    head, body = (*BLANK_LINE.split(raw.lstrip(b"\r\n"), maxsplit=1), b"")[:2]
    first, *lines = NEWLINE.split(head)
    words = first.split()
    if len(words) not in (2, 3):
        raise malformed()
    try:
        method, target = words[0].decode("ascii"), urlsplit(words[1].decode("ascii"))
    except ValueError:
        raise malformed() from None
    headers = [(k.strip().lower(), v.strip()) for k, _, v in (ln.partition(b":") for ln in lines)]
    given = {name for name, _ in headers}
    if b"authorization" not in given and "authorization" in outer.headers:
        headers.append((b"authorization", outer.headers["authorization"].encode("latin-1")))
    scope = {
        **outer.scope,
        "method": method,
        "path": unquote(target.path),
        "raw_path": target.path.encode(),
        "query_string": target.query.encode(),
        "headers": headers,
    }
    return scope, body
