"""Objects: reading, listing, changing, deleting and restoring them."""

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime
from email.utils import formatdate

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast.localcloud.base.errors import ApiError, not_implemented
from outlast.localcloud.base.state import Entry
from outlast.localcloud.http.bodies import read_json
from outlast.localcloud.http.discovery import check_body
from outlast.localcloud.storage import pages
from outlast.localcloud.storage.conditions import Preconditions, is_true, whole_number
from outlast.localcloud.storage.content import (
    Gunzipped,
    Media,
    byte_range,
    is_gzip,
)
from outlast.localcloud.storage.globs import compiled
from outlast.localcloud.storage.journal import Table
from outlast.localcloud.storage.lost_buckets import version_key
from outlast.localcloud.storage.resources import (
    HEADER_FIELDS,
    OBJECT_FIELDS,
    check_fields,
    merge,
)
from outlast.localcloud.storage.store import Store, versions_of


class Objects:
    """The calls on objects that upload no bytes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # -- reading -----------------------------------------------------------------------------

    def get(self, request: Request, bucket: str, name: str) -> Response:
        query, caller = request.query_params, self._store.caller(request)
        self._store.bucket(bucket)
        self._store.require(caller, "storage.objects.get", bucket, name)
        generation = whole_number(query, "generation")
        if is_true(query, "softDeleted"):
            if query.get("alt") == "media":
                raise ApiError(400, "A soft-deleted object has no media; restore it.", "invalid")
            entry = self._soft_deleted(bucket, name, generation)
        else:
            entry = self._store.find(caller, bucket, name, generation)
        Preconditions.of(query).check(entry, reading=True)
        if query.get("alt") == "media":
            return self._media(request, entry)
        return JSONResponse(self._store.shown(entry), headers={"etag": entry["etag"]})

    def _soft_deleted(self, bucket: str, name: str, generation: int | None) -> Entry:
        if generation is None:
            raise ApiError(400, "Required parameter: generation", "required")
        self._store.expire(bucket)
        entry = self._store.gone(bucket).get(version_key(name, generation))
        if entry is None:
            raise ApiError(404, f"No such soft-deleted object: {bucket}/{name}#{generation}")
        return entry

    def _media(self, request: Request, entry: Entry) -> Response:
        size = int(entry["size"])
        hashes = [f"crc32c={entry['crc32c']}"]
        if "md5Hash" in entry:
            hashes.append(f"md5={entry['md5Hash']}")
        updated = datetime.fromisoformat(entry["updated"]).timestamp()
        headers = {
            "content-type": entry["contentType"],
            "etag": entry["etag"],
            "last-modified": formatdate(updated, usegmt=True),
            "accept-ranges": "bytes",
            "x-goog-generation": entry["generation"],
            "x-goog-metageneration": entry["metageneration"],
            "x-goog-hash": ",".join(hashes),
            "x-goog-storage-class": entry["storageClass"],
            "x-goog-stored-content-encoding": entry.get("contentEncoding", "identity"),
            "x-goog-stored-content-length": str(size),
        }
        headers |= {name: entry[field] for field, name in HEADER_FIELDS.items() if field in entry}
        if _is_transcoded(request, entry):
            file = self._store.open(entry)
            if is_gzip(file):
                del headers["content-encoding"]
                del headers["accept-ranges"]
                return Gunzipped(file, {**headers, "warning": "214 UploadServer gunzipped"})
            file.close()
        asked = byte_range(request.headers.get("range", ""), size)
        start, end = asked or (0, size)
        if asked:
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
        file = self._store.open(entry)
        # Damaged bytes on the disk are served as they are, in a complete answer: a client should
        # see the damage, not a connection that breaks every time.
        end = min(end, os.fstat(file.fileno()).st_size)
        return Media(file, start, max(end - start, 0), 206 if asked else 200, headers)

    # -- listing -----------------------------------------------------------------------------

    def list_page(self, request: Request, bucket: str) -> Response:
        query = request.query_params
        if query.get("filter"):
            raise not_implemented("GET", f"{request.url.path}?filter")
        if is_true(query, "versions") and is_true(query, "softDeleted"):
            raise ApiError(400, "versions and softDeleted: must not both be true", "invalid")
        self._store.bucket(bucket)
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        glob = compiled(query["matchGlob"]) if query.get("matchGlob") else None
        if glob and delimiter not in ("", "/"):
            raise ApiError(400, f"delimiter {delimiter!r}: must be / beside matchGlob", "invalid")
        caller = self._store.caller(request)
        self._store.require(caller, "storage.objects.list", bucket, listing=prefix)
        if is_true(query, "softDeleted"):
            self._store.expire(bucket)
        limit, after = pages.size(query), pages.start(query)
        end_offset = query.get("endOffset", "")
        items: list[Entry] = []
        prefixes: list[str] = []
        last = ""
        # A page ends after its last item or prefix; the token carries that name.
        for name in self._names(bucket, query, prefix, after):
            if not name.startswith(prefix) or (end_offset and name >= end_offset):
                break
            if glob and not glob.fullmatch(name):
                continue
            rolled = ""
            if delimiter:
                cut = name.find(delimiter, len(prefix))
                rolled = name[: cut + len(delimiter)] if cut >= 0 else ""
            if rolled and rolled in (last, after):
                continue
            if len(items) + len(prefixes) >= limit:
                return JSONResponse(_page(items, prefixes, last))
            last = rolled or name
            if rolled:
                prefixes.append(rolled)
            if not rolled or (rolled == name and is_true(query, "includeTrailingDelimiter")):
                items.extend(self._store.shown(e) for e in self._versions(bucket, name, query))
        return JSONResponse(_page(items, prefixes, None))

    def _names(self, bucket: str, query: QueryParams, prefix: str, after: str) -> Iterator[str]:
        """The names in order from the page's start: live ones; with `versions`, noncurrent ones
        too; with `softDeleted`, only soft-deleted ones."""
        first = max(prefix, query.get("startOffset", ""), after)
        if is_true(query, "softDeleted"):
            names = _names_of([self._store.gone(bucket)], first)
        elif is_true(query, "versions"):
            names = _names_of([self._store.live(bucket), self._store.old(bucket)], first)
        else:
            names = self._store.live(bucket).names_from(first)
        return (name for name in names if name != after or not after)

    def _versions(self, bucket: str, name: str, query: QueryParams) -> list[Entry]:
        if is_true(query, "softDeleted"):
            return versions_of(self._store.gone(bucket), name)
        live = self._store.live(bucket).get(name)
        shown = [live] if live else []
        if is_true(query, "versions"):
            return [*versions_of(self._store.old(bucket), name), *shown]
        return shown

    # -- changing, deleting, restoring -------------------------------------------------------

    async def change(self, request: Request, bucket: str, name: str) -> Response:
        body = await read_json(request)
        check_body("storage.v1", "Object", body)
        check_fields(body)
        query, caller = request.query_params, self._store.caller(request)
        self._store.bucket(bucket)
        self._store.require(caller, "storage.objects.update", bucket, name)
        entry = self._store.find(caller, bucket, name, whole_number(query, "generation"))
        Preconditions.of(query).check(entry)
        if (body.get("storageClass") or entry["storageClass"]) != entry["storageClass"]:
            raise ApiError(
                400, "storageClass: only a rewrite changes the class of an object", "invalid"
            )
        self._store.count_write(bucket, name)
        kept = entry
        if request.method == "PUT":
            kept = {k: v for k, v in entry.items() if k not in OBJECT_FIELDS or k == "storageClass"}
        kept = merge(kept, {key: body[key] for key in OBJECT_FIELDS if key in body})
        kept.setdefault("contentType", "application/octet-stream")
        kept.setdefault("storageClass", entry["storageClass"])
        return JSONResponse(self._store.shown(self._store.change(entry, kept)))

    def delete(self, request: Request, bucket: str, name: str) -> Response:
        query, caller = request.query_params, self._store.caller(request)
        generation = whole_number(query, "generation")
        self._store.bucket(bucket)
        self._store.require(caller, "storage.objects.delete", bucket, name)
        entry = self._store.find(caller, bucket, name, generation)
        Preconditions.of(query).check(entry)
        self._store.delete(entry, permanently=generation is not None)
        return Response(status_code=204)

    async def restore(self, request: Request, bucket: str, name: str) -> Response:
        await read_json(request)
        query, caller = request.query_params, self._store.caller(request)
        self._store.bucket(bucket)
        for permission in ("storage.objects.restore", "storage.objects.create"):
            self._store.require(caller, permission, bucket, name)
        entry = self._soft_deleted(bucket, name, whole_number(query, "generation"))
        conditions = Preconditions.of(query)
        self._store.check_write(caller, bucket, name, conditions)
        copied = self._store.uploads / f"direct-{secrets.token_hex(12)}"
        try:
            await asyncio.to_thread(shutil.copyfile, self._store.path(entry), copied)
            fields = {key: entry[key] for key in OBJECT_FIELDS if key in entry}
            kept = self._store.commit_copy(caller, bucket, name, fields, entry, copied, conditions)
        finally:
            copied.unlink(missing_ok=True)
        return JSONResponse(self._store.shown(kept))


def _names_of(tables: Sequence[Table], first: str) -> Iterator[str]:
    """The names at or after `first` in tables by name or `version_key`, each once."""
    found = {key.partition("\n")[0] for table in tables for key in table.names_from(first)}
    return iter(sorted(found))


def _page(items: list[Entry], prefixes: list[str], last: str | None) -> Entry:
    page: Entry = {"kind": "storage#objects"}
    if items:
        page["items"] = items
    if prefixes:
        page["prefixes"] = prefixes
    if last is not None:
        page["nextPageToken"] = pages.token(last)
    return page


def _is_transcoded(request: Request, entry: Entry) -> bool:
    """Whether a gzip object is served decompressed: to clients that do not accept gzip, unless its
    Cache-Control forbids it. Then a Range is ignored
    (https://cloud.google.com/storage/docs/transcoding)."""
    accepted = request.headers.get("accept-encoding", "")
    return (
        entry.get("contentEncoding") == "gzip"
        and "gzip" not in accepted.lower()
        and "no-transform" not in entry.get("cacheControl", "")
    )
