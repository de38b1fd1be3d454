"""Objects from objects: compose, copy, rewrite and move."""

import asyncio
import secrets
import shutil
import time
from pathlib import Path
from typing import BinaryIO

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast.localcloud.base.access import Caller
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.http.bodies import read_json
from outlast.localcloud.http.discovery import check_body
from outlast.localcloud.storage.conditions import Preconditions, condition_not_met, whole_number
from outlast.localcloud.storage.content import BLOCK, Sink
from outlast.localcloud.storage.resources import OBJECT_FIELDS, checked_metadata
from outlast.localcloud.storage.store import Store

MAX_COMPOSE_SOURCES = 32
REWRITE_QUANTUM = 1 << 20


class Copies:
    """The calls that copy bytes within the cloud, in threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def compose(self, request: Request, bucket: str, name: str) -> Response:
        body = await read_json(request)
        check_body("storage.v1", "ComposeRequest", body)
        caller = self._store.caller(request)
        sources = body.get("sourceObjects") or []
        if not 1 <= len(sources) <= MAX_COMPOSE_SOURCES:
            raise ApiError(
                400,
                f"sourceObjects {len(sources)}: must be 1 to {MAX_COMPOSE_SOURCES} objects",
                "invalid",
            )
        if body.get("deleteSourceObjects"):
            raise ApiError(501, "deleteSourceObjects is not implemented by the local cloud")
        described = {**(body.get("destination") or {}), "name": name}
        _, fields = checked_metadata(described, QueryParams())
        conditions = Preconditions.of(request.query_params)
        self._store.check_write(caller, bucket, name, conditions)
        entries = [self._source(caller, bucket, source or {}) for source in sources]
        components = sum(entry.get("componentCount", 1) for entry in entries)
        sink = self._store.new_upload()
        files = [self._store.open(entry) for entry in entries]  # survives a deletion
        try:
            for file in files:
                await asyncio.to_thread(_pour, file, sink)
            kept = self._store.commit(
                caller, bucket, name, fields, sink, conditions, componentCount=components
            )
        finally:
            for file in files:
                file.close()
            sink.discard()
        return JSONResponse(self._store.shown(kept))

    def _source(self, caller: Caller, bucket: str, source: Entry) -> Entry:
        name = str(source.get("name") or "")
        if not name:
            raise ApiError(400, "Required parameter: sourceObjects.name", "required")
        self._store.require(caller, "storage.objects.get", bucket, name)
        entry = self._store.find(caller, bucket, name, whole_number(source, "generation"))
        wanted = source.get("objectPreconditions") or {}
        Preconditions(generation=whole_number(wanted, "ifGenerationMatch")).check(entry)
        return entry

    async def copy(self, request: Request, source: tuple[str, str], to: tuple[str, str]) -> Entry:
        """Copies the whole object; returns the new one."""
        kept = await self._copied(request, await read_json(request), source, to)
        return self._store.shown(kept)

    async def move(self, request: Request, bucket: str, name: str, new: str) -> Entry:
        """Renames the object; returns it."""
        caller = self._store.caller(request)
        self._store.bucket(bucket)
        self._store.require(caller, "storage.objects.move", bucket, name)
        kept = await self._copied(request, {}, (bucket, name), (bucket, new), moved=True)
        return self._store.shown(kept)

    async def rewrite(
        self, request: Request, source: tuple[str, str], to: tuple[str, str]
    ) -> Entry:
        """Continues a rewrite, which needs more than one call if the location or class changes."""
        body = await read_json(request)
        query, caller = request.query_params, self._store.caller(request)
        _, fields = checked_metadata({**body, "name": to[1]}, QueryParams())
        entry = self._readable(request, source)
        self._store.check_write(caller, *to, Preconditions.of(query))
        size, step = int(entry["size"]), self._step(query, entry, to[0], fields)
        job = {"source": [*source, entry["generation"]], "to": list(to)}
        token = query.get("rewriteToken", "")
        known = self._store.rewrites.get(token)
        if token and (known is None or any(known[key] != job[key] for key in job)):
            raise ApiError(400, f"Invalid rewrite token: {token!r}", "invalid")
        done = min((known["bytes"] if known else 0) + step, size)
        answer: Entry = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(done),
            "objectSize": str(size),
            "done": done == size,
        }
        if done < size:
            token = token or secrets.token_urlsafe(24)
            kept = {**job, "bytes": done, "opened": time.time()}
            self._store.journal.write(("rewrites", token, kept))
            return {**answer, "rewriteToken": token}
        kept = await self._copied(request, body, source, to)
        if token:
            self._store.journal.write(("rewrites", token, None))
        return {**answer, "resource": self._store.shown(kept)}

    def _step(self, query: QueryParams, source: Entry, bucket: str, fields: Entry) -> int:
        """Bytes of the source that one call rewrites. Raises ApiError 400."""
        asked = whole_number(query, "maxBytesRewrittenPerCall")
        if asked is not None and (asked < REWRITE_QUANTUM or asked % REWRITE_QUANTUM):
            raise ApiError(
                400,
                f"maxBytesRewrittenPerCall {asked}: must be a multiple of {REWRITE_QUANTUM}",
                "invalid",
            )
        buckets = self._store.buckets
        here, there = buckets[source["bucket"]], buckets[bucket]
        kind = fields.get("storageClass", there["storageClass"])
        if here["location"] == there["location"] and kind == source["storageClass"]:
            return int(source["size"])
        limit = self._store.switches.rewrite_bytes_per_call
        return limit if asked is None else min(asked, limit)

    def _readable(self, request: Request, source: tuple[str, str]) -> Entry:
        query, caller = request.query_params, self._store.caller(request)
        self._store.bucket(source[0])
        self._store.require(caller, "storage.objects.get", *source)
        entry = self._store.find(caller, *source, whole_number(query, "sourceGeneration"))
        Preconditions.of(query, "ifSource").check(entry)
        return entry

    async def _copied(
        self,
        request: Request,
        body: Entry,
        source: tuple[str, str],
        to: tuple[str, str],
        *,
        moved: bool = False,
    ) -> Entry:
        entry, conditions = self._readable(request, source), Preconditions.of(request.query_params)
        _, fields = checked_metadata({**body, "name": to[1]}, QueryParams())
        if not fields.keys() - {"storageClass"}:
            kept = {k: entry[k] for k in OBJECT_FIELDS if k in entry and k != "storageClass"}
            fields = {**kept, **fields}
        caller = self._store.caller(request)
        self._store.check_write(caller, *to, conditions)
        copied = self._store.uploads / f"direct-{secrets.token_hex(12)}"
        file = self._store.open(entry)
        try:
            await asyncio.to_thread(_copy, file, copied)
            if moved and self._readable(request, source)["generation"] != entry["generation"]:
                raise condition_not_met()
            return self._store.commit_copy(
                caller, *to, fields, entry, copied, conditions, moved=moved
            )
        finally:
            file.close()
            copied.unlink(missing_ok=True)


def _pour(file: BinaryIO, sink: Sink) -> None:
    while block := file.read(BLOCK):
        sink.write(block)


def _copy(file: BinaryIO, to: Path) -> None:
    with to.open("wb") as copied:
        shutil.copyfileobj(file, copied, BLOCK)
