"""Uploads: media, multipart and resumable."""

import asyncio
import os
import re
import secrets
import time
from urllib.parse import urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from outlast.localcloud.base.access import Caller
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.http.bodies import parse_object
from outlast.localcloud.storage.conditions import SESSION_QUERY, Preconditions
from outlast.localcloud.storage.content import (
    MultipartReader,
    Sink,
    check_hashes,
    check_length,
    malformed,
)
from outlast.localcloud.storage.resources import checked_metadata
from outlast.localcloud.storage.store import Store

CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,19})-([0-9]{1,19})|\*)/([0-9]{1,19}|\*)")
CHUNK_QUANTUM = 256 * 1024
"""Bytes; a resumable upload keeps whole multiples of this, except at its end."""
MAX_METADATA_BYTES = 1 << 20
MAX_HASHES_KEPT = 1000


class Uploads:
    """The calls that send an object's bytes."""

    def __init__(self, cloud: Cloud, store: Store) -> None:
        self._cloud = cloud
        self._store = store
        # The hashes of uploads in progress; they can be computed again.
        self._sinks: dict[str, Sink] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def reset(self) -> None:
        """Forgets the uploads in progress."""
        for sink in self._sinks.values():
            sink.drop()
        self._sinks.clear()
        self._locks.clear()

    async def media(self, request: Request, bucket: str) -> Response:
        caller, query = self._cloud.caller(request), request.query_params
        check_length(request.headers)
        name, fields = checked_metadata({}, query)
        content_type = request.headers.get("content-type")
        if content_type:
            fields["contentType"] = content_type
        conditions = Preconditions.of(query)
        sink = self._store.new_upload()
        try:
            async for chunk in request.stream():
                sink.write(chunk)
            check_hashes({}, request.headers, sink)
            entry = self._store.commit(caller, bucket, name, fields, sink, conditions)
        except BaseException:
            sink.discard()
            raise
        return JSONResponse(self._store.shown(entry))

    async def multipart(self, request: Request, bucket: str) -> Response:
        caller, query = self._cloud.caller(request), request.query_params
        check_length(request.headers)
        reader = MultipartReader(request)
        if await reader.head() is None:
            raise malformed()
        metadata = parse_object(await reader.whole_body(MAX_METADATA_BYTES), "metadata")
        name, fields = checked_metadata(metadata, query)
        part = await reader.head()
        if part is None:
            raise malformed()
        if "contentType" not in fields and part.get("content-type"):
            fields["contentType"] = part["content-type"]
        conditions = Preconditions.of(query)
        sink = self._store.new_upload()
        try:
            async for chunk in reader.body():
                sink.write(chunk)
            await reader.drain()
            check_hashes(metadata, request.headers, sink)
            entry = self._store.commit(caller, bucket, name, fields, sink, conditions)
        except BaseException:
            sink.discard()
            raise
        return JSONResponse(self._store.shown(entry))

    # -- resumable ---------------------------------------------------------------------------

    async def open_session(self, request: Request, bucket: str) -> Response:
        caller, query = self._cloud.caller(request), request.query_params
        check_length(request.headers)
        metadata = parse_object(await request.body(), "metadata")
        name, fields = checked_metadata(metadata, query)
        content_type = request.headers.get("x-upload-content-type")
        if content_type:
            fields.setdefault("contentType", content_type)
        self._store.check_write(caller, bucket, name, Preconditions.of(query))
        upload_id = secrets.token_urlsafe(24)
        (self._store.uploads / upload_id).touch()
        session = {
            "bucket": bucket,
            "name": name,
            "fields": fields,
            "declared": {k: metadata[k] for k in ("crc32c", "md5Hash") if metadata.get(k)},
            "query": {key: query[key] for key in SESSION_QUERY if key in query},
            "email": caller.email,
            "vm": caller.vm,
            "opened": time.time(),
        }
        self._store.journal.write(("sessions", upload_id, session))
        args = urlencode({"uploadType": "resumable", "name": name, "upload_id": upload_id})
        location = f"{self._cloud.base_url}/upload/storage/v1/b/{bucket}/o?{args}"
        headers = {"location": location, "x-guploader-uploadid": upload_id}
        return Response(status_code=200, headers=headers)

    def _session(self, request: Request) -> tuple[str, Entry]:
        upload_id = request.query_params["upload_id"]
        if upload_id not in self._store.sessions:
            raise ApiError(404, "No such resumable upload.", "notFound")
        return upload_id, self._store.sessions[upload_id]

    async def resume(self, request: Request) -> Response:
        """Receives more bytes of a session, or answers how many it has. Raises ApiError."""
        upload_id, _ = self._session(request)
        check_length(request.headers)
        async with self._locks.setdefault(upload_id, asyncio.Lock()):
            _, session = self._session(request)
            if "entry" in session:
                async for _ in request.stream():
                    pass
                return JSONResponse(self._store.shown(session["entry"]))
            sink = await self._sink(upload_id)
            asked = _content_range(request)
            if asked is None:
                await self._append(request, upload_id, sink, 0, None, None)
                return self._finish(request, upload_id, session, sink)
            first, last, total = asked
            if first is None:  # a query of the status, or the end without more bytes
                if total is None or total != sink.size:
                    return _incomplete(sink.size)
                return self._finish(request, upload_id, session, sink)
            await self._append(request, upload_id, sink, first, last, total)
            if total is not None and sink.size == total:
                return self._finish(request, upload_id, session, sink)
            return _incomplete(sink.size)

    async def _sink(self, upload_id: str) -> Sink:
        if upload_id not in self._sinks:
            path = self._store.uploads / upload_id
            # Hashing the bytes that an earlier process received may take long, so it is done in a
            # thread.
            self._sinks[upload_id] = await asyncio.to_thread(Sink.resume, path)
            for other in list(self._sinks)[:-MAX_HASHES_KEPT]:
                if not self._locks[other].locked():
                    del self._sinks[other], self._locks[other]
        return self._sinks[upload_id]

    async def _append(
        self,
        request: Request,
        upload_id: str,
        sink: Sink,
        first: int,
        last: int | None,
        total: int | None,
    ) -> None:
        """Receives the bytes of one request. After an interruption, whole multiples of the quantum
        stay. Raises ApiError 400."""
        if first > sink.size:
            raise ApiError(
                400,
                f"Invalid Content-Range: begins at {first}, the upload has {sink.size} bytes",
                "invalid",
            )
        final = last is None or (total is not None and last + 1 == total)
        if last is not None and not final and (last + 1 - first) % CHUNK_QUANTUM:
            raise ApiError(
                400,
                f"A chunk that is not the last must be a multiple of {CHUNK_QUANTUM} bytes.",
                "invalid",
            )
        skip = sink.size - first  # the client may repeat bytes that have arrived
        expected = None if last is None else max(last + 1, sink.size)
        try:
            async for chunk in request.stream():
                taken = chunk[skip:] if skip else chunk
                skip = max(skip - len(chunk), 0)
                if expected is not None and sink.size + len(taken) > expected:
                    raise ApiError(400, "The body is longer than its Content-Range says.")
                sink.write(taken)
            if expected is not None and sink.size != expected:
                raise ApiError(400, "The body is shorter than its Content-Range says.")
            sink.save()
        except (ClientDisconnect, ApiError, OSError, asyncio.CancelledError):
            self._sinks.pop(upload_id, None)
            sink.save()
            os.truncate(sink.path, sink.size // CHUNK_QUANTUM * CHUNK_QUANTUM)
            raise

    def _finish(self, request: Request, upload_id: str, session: Entry, sink: Sink) -> Response:
        check_hashes(session["declared"], request.headers, sink)
        entry = self._store.commit(
            Caller(session["email"], session["vm"]),
            session["bucket"],
            session["name"],
            session["fields"],
            sink,
            Preconditions.of(session["query"]),
        )
        self._store.journal.write(("sessions", upload_id, {**session, "entry": entry}))
        self._sinks.pop(upload_id, None)
        self._locks.pop(upload_id, None)
        return JSONResponse(self._store.shown(entry))

    def cancel(self, request: Request) -> Response:
        upload_id, session = self._session(request)
        if "entry" not in session:
            sink = self._sinks.pop(upload_id, None)
            if sink:
                sink.drop()
            (self._store.uploads / upload_id).unlink(missing_ok=True)
        self._store.journal.write(("sessions", upload_id, None))
        return Response(status_code=499)


def _content_range(request: Request) -> tuple[int | None, int, int | None] | None:
    """First, last and total of a Content-Range; None without one. First is None in a query of the
    status. Raises ApiError 400."""
    text = request.headers.get("content-range")
    if text is None:
        return None
    match = CONTENT_RANGE.fullmatch(text)
    total = int(match[3]) if match and match[3] != "*" else None
    if match and match[1] is None:
        return None, 0, total
    if not match or int(match[2]) < int(match[1]) or (total is not None and int(match[2]) >= total):
        raise ApiError(400, f"Invalid Content-Range: {text!r}", "invalid")
    return int(match[1]), int(match[2]), total


def _incomplete(received: int) -> Response:
    """The 308 that names in Range the bytes received so far."""
    headers = {"range": f"bytes=0-{received - 1}"} if received else {}
    return Response(status_code=308, headers=headers)
