"""Cloud Storage's JSON API: buckets, objects with generations and preconditions, uploads, media.

Bytes of an object lie in a file named by its generation; its metadata is an entry of a table. An
object exists from the moment that its entry is in the table: bytes are complete before that, and
bytes without an entry are swept at the next start. Checks and the change that they allow happen
without an await between them, so that a compare-and-swap is one.
"""

import asyncio
import base64
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote, unquote, urlencode

import google_crc32c
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from rehearsal.discovery import check_body
from rehearsal.errors import ApiError, not_implemented
from rehearsal.iam import Caller, Target, etag_of, read_json, utc_text
from rehearsal.state import Entry

if TYPE_CHECKING:
    from rehearsal.server import Cloud

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
RANGE = re.compile(r"bytes=(\d*)-(\d*)")
BOUNDARY = re.compile(r'boundary=(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)
MULTI_REGIONS = {"US", "EU", "ASIA"}
DAY_SEC = 86400

WRITE_INTERVAL_SEC = 1.0
"""An object's name takes one write in this time; an earlier one is refused with 429."""
MAX_WRITES_REMEMBERED = 20_000
CHUNK_QUANTUM = 256 * 1024
"""Resumable uploads keep whole multiples of this, except at their end."""
BLOCK = 256 * 1024
MAX_MULTIPART_HEAD = 1024 * 1024
MAX_COMPOSE_SOURCES = 32
MAX_PAGE = 1000

# What a client may set on an object; everything else belongs to the server.
OBJECT_FIELDS = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "metadata",
    "storageClass",
)
UNKNOWN_OBJECT_FIELDS = ("temporaryHold", "eventBasedHold", "retention", "kmsKeyName", "contexts")
BUCKET_FIELDS = (
    "autoclass",
    "cors",
    "defaultEventBasedHold",
    "encryption",
    "hierarchicalNamespace",
    "iamConfiguration",
    "labels",
    "lifecycle",
    "logging",
    "rpo",
    "softDeletePolicy",
    "storageClass",
    "versioning",
    "website",
)
SESSION_QUERY = (
    "ifGenerationMatch",
    "ifGenerationNotMatch",
    "ifMetagenerationMatch",
    "ifMetagenerationNotMatch",
)


@dataclass(frozen=True)
class Preconditions:
    """The if… parameters of a request."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None
    not_metageneration: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], prefix: str = "if") -> "Preconditions":
        """From a query; `prefix` is `ifSource` for the source of a copy."""

        def number(name: str) -> int | None:
            return whole_number(query, f"{prefix}{name}")

        return cls(
            number("GenerationMatch"),
            number("GenerationNotMatch"),
            number("MetagenerationMatch"),
            number("MetagenerationNotMatch"),
        )

    def check(self, live: Entry | None, *, reading: bool = False) -> None:
        """ApiError 412, or 304 where a reader has what there is; None is an absent object."""
        generation = int(live["generation"]) if live else 0
        metageneration = int(live["metageneration"]) if live else None
        if self.generation is not None and self.generation != generation:
            raise condition_not_met()
        if self.metageneration is not None and self.metageneration != metageneration:
            raise condition_not_met()
        same = self.not_generation is not None and self.not_generation == generation
        same |= self.not_metageneration is not None and self.not_metageneration == metageneration
        if same:
            raise NotModified() if reading else condition_not_met()


class NotModified(ApiError):
    """304: the reader's generation is the live one."""

    def __init__(self) -> None:
        super().__init__(304, "Not Modified", "notModified")

    def response(self) -> Response:
        return Response(status_code=304)


def condition_not_met() -> ApiError:
    """412, as every failed precondition answers."""
    return ApiError(
        412,
        "At least one of the pre-conditions you specified did not hold.",
        "conditionNotMet",
    )


def whole_number(query: Mapping[str, str], name: str) -> int | None:
    """A parameter that must be a whole number where it is given."""
    text = query.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"-?\d{1,19}", text):
        raise ApiError(400, f"Invalid value for {name}: {text!r} is no whole number")
    return int(text)


class Sink:
    """A file that bytes are written to, hashed on the way."""

    def __init__(self, path: Path, *, existing: bool = False) -> None:
        self.path = path
        self.size = 0
        self._crc = google_crc32c.Checksum()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._file: BinaryIO
        if existing:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    self._hash(block)
            self._file = path.open("ab")
        else:
            self._file = path.open("wb")

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash(bytes(data))

    def _hash(self, data: bytes) -> None:
        self._crc.update(data)
        self._md5.update(data)
        self.size += len(data)

    def flush(self) -> None:
        """Hands everything written to the system; it survives the process from then on."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        """Closes and deletes the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    @property
    def crc32c(self) -> str:
        return base64.b64encode(self._crc.digest()).decode()

    @property
    def md5(self) -> str:
        return base64.b64encode(self._md5.digest()).decode()


class Media(Response):
    """An object's bytes, streamed from an open file: a deletion meanwhile does not cut it."""

    def __init__(
        self, file: BinaryIO, start: int, length: int, status: int, headers: Mapping[str, str]
    ) -> None:
        super().__init__(status_code=status, headers=headers)
        self.headers["content-length"] = str(length)
        self._file = file
        self._start = start
        self._length = length

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file as file:
            file.seek(self._start)
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            left = self._length
            while left > 0 and (block := file.read(min(BLOCK, left))):
                left -= len(block)
                await send({"type": "http.response.body", "body": block, "more_body": left > 0})
            if self._length == 0:
                await send({"type": "http.response.body", "body": b""})


class MultipartReader:
    """multipart/related in order, with bounded memory: `head()`, then `body()`, for each part."""

    def __init__(self, request: Request) -> None:
        match = BOUNDARY.search(request.headers.get("content-type", ""))
        if not match:
            raise ApiError(400, "Missing multipart boundary in the Content-Type header")
        self._delimiter = b"--" + (match[1] or match[2]).encode()
        self._stream = request.stream()
        self._buffer = bytearray()

    async def head(self) -> Headers:
        """The headers of the next part."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MAX_MULTIPART_HEAD or not await self._fill():
                raise malformed()
        first, *lines = bytes(self._buffer[:end]).lstrip(b"\r\n").split(b"\r\n")
        if first.rstrip() != self._delimiter:
            raise malformed()
        del self._buffer[: end + 4]
        pairs = (line.partition(b":") for line in lines)
        return Headers(raw=[(k.strip().lower(), v.strip()) for k, _, v in pairs])

    async def body(self) -> AsyncIterator[bytes]:
        """The bytes of the part up to the next delimiter."""
        marker = b"\r\n" + self._delimiter
        while (end := self._buffer.find(marker)) < 0:
            ready = len(self._buffer) - len(marker) + 1
            if ready > 0:
                yield bytes(self._buffer[:ready])
                del self._buffer[:ready]
            if not await self._fill():
                raise malformed()
        yield bytes(self._buffer[:end])
        del self._buffer[:end]

    async def drain(self) -> None:
        """Reads what follows the last part."""
        while await self._fill():
            self._buffer.clear()

    async def _fill(self) -> bool:
        async for chunk in self._stream:
            self._buffer += chunk
            return True
        return False


def malformed() -> ApiError:
    return ApiError(400, "Malformed multipart body.", "badRequest")


class Storage:
    """Buckets and objects of the one project."""

    def __init__(self, cloud: "Cloud") -> None:
        self._cloud = cloud
        self._buckets = cloud.state.table("storage/buckets")
        self._sessions = cloud.state.table("storage/sessions")
        self._bytes = cloud.state.folder("storage/bytes")
        self._uploads = cloud.state.folder("storage/uploads")
        self._open_uploads: dict[str, Sink] = {}
        self._session_locks: dict[str, asyncio.Lock] = {}
        self._last_write: dict[tuple[str, str], float] = {}
        self._sweep()

    def _sweep(self) -> None:
        """Deletes what a cut write left: bytes without an entry, uploads without a session."""
        known = {
            entry["generation"]
            for bucket in self._buckets
            for table in (self._live(bucket), self._old(bucket))
            for entry in table.values()
        }
        for folder, names in ((self._bytes, known), (self._uploads, set(self._sessions))):
            for file in folder.iterdir():
                if file.name not in names:
                    file.unlink()

    def _live(self, bucket: str) -> Any:
        return self._cloud.state.table(f"storage/live/{bucket}")

    def _old(self, bucket: str) -> Any:
        """Noncurrent versions, by `NAME#GENERATION`."""
        return self._cloud.state.table(f"storage/old/{bucket}")

    # -- for the rest of the cloud -----------------------------------------------------------

    def audit(self) -> list[Entry]:
        """[{name, objects (live), versions (noncurrent)}] of every bucket."""
        return [
            {"name": b, "objects": len(self._live(b)), "versions": len(self._old(b))}
            for b in self._buckets
        ]

    def session_object(self, upload_id: str) -> str | None:
        """The object's name of a resumable upload, for fault rules."""
        session = self._sessions.get(upload_id)
        return session["name"] if session else None

    def reset(self) -> None:
        """Forgets every bucket, object and upload."""
        for sink in self._open_uploads.values():
            sink.close()
        self._open_uploads.clear()
        for bucket in self._buckets:
            self._drop_bucket(bucket)
        self._sessions.clear()
        self._last_write.clear()
        for folder in (self._bytes, self._uploads):
            shutil.rmtree(folder)
            folder.mkdir()

    def _drop_bucket(self, bucket: str) -> None:
        del self._buckets[bucket]
        self._cloud.iam.drop_policy(f"buckets/{bucket}")
        self._cloud.state.drop_table(f"storage/live/{bucket}")
        self._cloud.state.drop_table(f"storage/old/{bucket}")

    # -- routes ------------------------------------------------------------------------------

    def routes(self) -> list[BaseRoute]:
        """/storage/v1, /download/storage/v1, /upload/storage/v1 and /resumable/upload/…"""
        return [
            Route("/storage/v1/{rest:path}", self._answer, methods=METHODS),
            Route("/download/storage/v1/{rest:path}", self._answer, methods=METHODS),
            Route("/upload/storage/v1/{rest:path}", self._answer_upload, methods=METHODS),
            Route("/resumable/upload/storage/v1/{rest:path}", self._answer_upload, methods=METHODS),
        ]

    async def _answer(self, request: Request) -> Response:
        # Names hold escaped slashes: only the path as it was sent says where segments end.
        match (request.method, *_segments(request)):
            case ("GET", "b"):
                return self._list_buckets(request)
            case ("POST", "b"):
                return await self._insert_bucket(request)
            case ("GET", "b", bucket):
                return self._get_bucket(request, bucket)
            case ("PATCH" | "PUT", "b", bucket):
                return await self._change_bucket(request, bucket)
            case ("DELETE", "b", bucket):
                return self._delete_bucket(request, bucket)
            case ("GET", "b", bucket, "iam"):
                return self._get_policy(request, bucket)
            case ("PUT", "b", bucket, "iam"):
                return await self._set_policy(request, bucket)
            case ("GET", "b", bucket, "iam", "testPermissions"):
                return self._test_permissions(request, bucket)
            case ("GET", "b", bucket, "storageLayout"):
                return self._get_layout(request, bucket)
            case ("GET", "b", bucket, "anywhereCaches"):
                self._bucket(bucket)
                return JSONResponse({"kind": "storage#anywhereCaches"})
            case ("GET", "b", bucket, "o"):
                return self._list_objects(request, bucket)
            case ("GET", "b", bucket, "o", name):
                return self._get_object(request, bucket, name)
            case ("PATCH" | "PUT", "b", bucket, "o", name):
                return await self._change_object(request, bucket, name)
            case ("DELETE", "b", bucket, "o", name):
                return self._delete_object(request, bucket, name)
            case ("POST", "b", bucket, "o", name, "compose"):
                return await self._compose(request, bucket, name)
            case ("POST", "b", bucket, "o", name, "rewriteTo" | "copyTo" as verb, *to):
                if len(to) == 4 and (to[0], to[2]) == ("b", "o"):
                    return await self._copy(request, (bucket, name), (to[1], to[3]), verb)
        raise not_implemented(request.method, request.url.path)

    async def _answer_upload(self, request: Request) -> Response:
        kind = request.query_params.get("uploadType")
        match (request.method, kind, *_segments(request)):
            case ("POST", "media", "b", bucket, "o"):
                return await self._upload_media(request, bucket)
            case ("POST", "multipart", "b", bucket, "o"):
                return await self._upload_multipart(request, bucket)
            case ("POST", "resumable", "b", bucket, "o") if "upload_id" not in request.query_params:
                return await self._open_session(request, bucket)
            case ("PUT" | "POST", _, "b", _, "o") if "upload_id" in request.query_params:
                return await self._continue_session(request)
            case ("DELETE", _, "b", _, "o") if "upload_id" in request.query_params:
                return self._cancel_session(request)
            case ("POST", _, "b", _, "o"):
                raise ApiError(400, f"uploadType {kind!r}: must be media, multipart or resumable")
        raise not_implemented(request.method, request.url.path)

    # -- permissions -------------------------------------------------------------------------

    def _permits(
        self, caller: Caller, permission: str, bucket: str, name: str = "", listing: str = ""
    ) -> bool:
        resource = f"projects/_/buckets/{bucket}" + (f"/objects/{name}" if name else "")
        target = Target(resource, listing)
        return self._cloud.iam.permits(caller, permission, target, f"buckets/{bucket}")

    def _require(
        self, caller: Caller, permission: str, bucket: str, name: str = "", listing: str = ""
    ) -> None:
        if not self._permits(caller, permission, bucket, name, listing):
            kind = "object" if name else "bucket"
            raise ApiError(
                403,
                f"{caller.email} does not have {permission} access to the Google Cloud Storage "
                f"{kind}. Permission '{permission}' denied on resource (or it may not exist).",
            )

    # -- buckets -----------------------------------------------------------------------------

    def _bucket(self, bucket: str) -> Entry:
        if bucket not in self._buckets:
            raise ApiError(404, "The specified bucket does not exist.")
        return self._buckets[bucket]

    def _check_project(self, request: Request) -> None:
        # Clients of an emulator may send no project, or say that they have none.
        asked = request.query_params.get("project")
        known = (None, "<none>", self._cloud.project, self._cloud.project_number)
        if asked not in known:
            raise ApiError(400, f"Unknown project id: {asked}", "invalid")

    def _shown_bucket(self, bucket: Entry) -> Entry:
        base = f"{self._cloud.base_url}/storage/v1/b/{bucket['name']}"
        return {"kind": "storage#bucket", "selfLink": base, **bucket}

    def _list_buckets(self, request: Request) -> Response:
        self._check_project(request)
        self._cloud.authorize(request, "storage.buckets.list")
        prefix = request.query_params.get("prefix", "")
        items = [self._shown_bucket(b) for n, b in self._buckets.items() if n.startswith(prefix)]
        answer: Entry = {"kind": "storage#buckets"}
        return JSONResponse({**answer, "items": items} if items else answer)

    async def _insert_bucket(self, request: Request) -> Response:
        self._check_project(request)
        self._cloud.authorize(request, "storage.buckets.create")
        body = await read_json(request)
        check_body("storage.v1", "Bucket", body)
        name = body.get("name") or ""
        if not BUCKET_NAME.fullmatch(name) or ".." in name:
            raise ApiError(400, f"Invalid bucket name: '{name}'", "invalid")
        if name in self._buckets:
            raise ApiError(
                409,
                "Your previous request to create the named bucket succeeded and you already own "
                "it.",
            )
        location = (body.get("location") or "US").upper()
        bucket: Entry = {
            "id": name,
            "name": name,
            "projectNumber": self._cloud.project_number,
            "location": location,
            "locationType": "multi-region" if location in MULTI_REGIONS else "region",
            "storageClass": "STANDARD",
            "generation": str(self._cloud.state.next_number()),
            "metageneration": "0",
            "timeCreated": utc_text(),
            "iamConfiguration": {},
            "softDeletePolicy": {},
        }
        if location in MULTI_REGIONS:
            bucket["rpo"] = "DEFAULT"
        given = {key: body[key] for key in BUCKET_FIELDS if body.get(key) is not None}
        kept = self._keep_bucket({**bucket, **given})
        project = self._cloud.project
        owners = [f"projectEditor:{project}", f"projectOwner:{project}"]
        bindings = [
            {"role": "roles/storage.legacyBucketOwner", "members": owners},
            {"role": "roles/storage.legacyBucketReader", "members": [f"projectViewer:{project}"]},
        ]
        self._cloud.iam.write_policy(f"buckets/{name}", {"bindings": bindings}, initial=True)
        return JSONResponse(self._shown_bucket(kept))

    def _keep_bucket(self, bucket: Entry) -> Entry:
        """Completes what the server decides, counts the change and stores it."""
        access = bucket["iamConfiguration"]
        uniform = access.get("uniformBucketLevelAccess") or {}
        uniform = {"enabled": bool(uniform.get("enabled")), **uniform}
        if uniform["enabled"] and "lockedTime" not in uniform:
            uniform["lockedTime"] = _later(90 * DAY_SEC)
        policy = {"retentionDurationSeconds": str(7 * DAY_SEC), **bucket["softDeletePolicy"]}
        policy["retentionDurationSeconds"] = str(policy["retentionDurationSeconds"])
        if policy["retentionDurationSeconds"] != "0":
            policy.setdefault("effectiveTime", utc_text())
        kept = {
            **bucket,
            "metageneration": str(int(bucket["metageneration"]) + 1),
            "updated": utc_text(),
            "softDeletePolicy": policy,
            "iamConfiguration": {
                "publicAccessPrevention": "inherited",
                **access,
                "bucketPolicyOnly": uniform,
                "uniformBucketLevelAccess": uniform,
            },
        }
        kept["etag"] = etag_of((kept["generation"], kept["metageneration"]))
        self._buckets[kept["name"]] = kept
        return kept

    def _get_bucket(self, request: Request, name: str) -> Response:
        bucket = self._bucket(name)
        self._require(self._cloud.caller(request), "storage.buckets.get", name)
        Preconditions.of(request.query_params).check(bucket, reading=True)
        return JSONResponse(self._shown_bucket(bucket))

    async def _change_bucket(self, request: Request, name: str) -> Response:
        body = await read_json(request)
        check_body("storage.v1", "Bucket", body)
        bucket = self._bucket(name)
        self._require(self._cloud.caller(request), "storage.buckets.update", name)
        Preconditions.of(request.query_params).check(bucket)
        for fixed in ("name", "location"):
            if body.get(fixed) and body[fixed].upper() != bucket[fixed].upper():
                raise ApiError(400, f"{fixed} {body[fixed]!r}: a bucket's {fixed} never changes")
        changes = {key: body[key] for key in BUCKET_FIELDS if key in body}
        if request.method == "PUT":
            bucket = {key: v for key, v in bucket.items() if key not in BUCKET_FIELDS}
            bucket = {"storageClass": "STANDARD", **bucket}
        merged = merge(bucket, changes)
        merged.setdefault("iamConfiguration", {})
        merged.setdefault("softDeletePolicy", {})
        return JSONResponse(self._shown_bucket(self._keep_bucket(merged)))

    def _delete_bucket(self, request: Request, name: str) -> Response:
        bucket = self._bucket(name)
        self._require(self._cloud.caller(request), "storage.buckets.delete", name)
        Preconditions.of(request.query_params).check(bucket)
        if self._live(name) or self._old(name):
            raise ApiError(409, "The bucket you tried to delete is not empty.", "conflict")
        self._drop_bucket(name)
        return Response(status_code=204)

    def _get_layout(self, request: Request, name: str) -> Response:
        bucket = self._bucket(name)
        self._require(self._cloud.caller(request), "storage.objects.list", name)
        layout = {
            "kind": "storage#storageLayout",
            "bucket": name,
            "location": bucket["location"],
            "locationType": bucket["locationType"],
            "hierarchicalNamespace": {"enabled": False},
        }
        return JSONResponse(layout)

    def _shown_policy(self, bucket: str, version: int) -> Entry:
        policy = self._cloud.iam.read_policy(f"buckets/{bucket}", version)
        return {
            "kind": "storage#policy",
            "resourceId": f"projects/_/buckets/{bucket}",
            **policy,
        }

    def _get_policy(self, request: Request, bucket: str) -> Response:
        self._bucket(bucket)
        self._require(self._cloud.caller(request), "storage.buckets.getIamPolicy", bucket)
        version = whole_number(request.query_params, "optionsRequestedPolicyVersion") or 1
        return JSONResponse(self._shown_policy(bucket, version))

    async def _set_policy(self, request: Request, bucket: str) -> Response:
        body = await read_json(request)
        check_body("storage.v1", "Policy", body)
        kept = self._bucket(bucket)
        self._require(self._cloud.caller(request), "storage.buckets.setIamPolicy", bucket)
        uniform = kept["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]
        if not uniform and any(b.get("condition") for b in body.get("bindings") or []):
            raise ApiError(
                412,
                "A condition needs uniform bucket-level access; enable it on the bucket.",
                "conditionNotMet",
            )
        self._cloud.iam.write_policy(f"buckets/{bucket}", body)
        return JSONResponse(self._shown_policy(bucket, 3))

    def _test_permissions(self, request: Request, bucket: str) -> Response:
        self._bucket(bucket)
        asked = request.query_params.getlist("permissions")
        target = Target(f"projects/_/buckets/{bucket}")
        caller = self._cloud.caller(request)
        held = self._cloud.iam.held(caller, asked, target, f"buckets/{bucket}")
        answer: Entry = {"kind": "storage#testIamPermissionsResponse"}
        return JSONResponse({**answer, "permissions": held} if held else answer)

    # -- reading objects ---------------------------------------------------------------------

    def _shown(self, entry: Entry) -> Entry:
        bucket, name, generation = (
            entry["bucket"],
            quote(entry["name"], safe=""),
            entry["generation"],
        )
        tail = f"/storage/v1/b/{bucket}/o/{name}"
        return {
            "kind": "storage#object",
            "id": f"{bucket}/{entry['name']}/{generation}",
            "selfLink": f"{self._cloud.base_url}{tail}",
            "mediaLink": f"{self._cloud.base_url}/download{tail}?generation={generation}&alt=media",
            **entry,
        }

    def _find(self, caller: Caller, bucket: str, name: str, generation: int | None) -> Entry:
        """The live object or the version asked for; 403 or 404 as the caller may know."""
        self._bucket(bucket)
        live = self._live(bucket).get(name)
        entry = live
        if generation is not None and (live is None or int(live["generation"]) != generation):
            entry = self._old(bucket).get(f"{name}#{generation}")
        if entry is None:
            # Whoever may not list must not learn what is absent.
            self._require(caller, "storage.objects.list", bucket, name)
            raise ApiError(404, f"No such object: {bucket}/{name}")
        return entry

    def _get_object(self, request: Request, bucket: str, name: str) -> Response:
        query = request.query_params
        if query.get("softDeleted") == "true":
            raise not_implemented("GET", f"{request.url.path}?softDeleted=true")
        caller = self._cloud.caller(request)
        self._bucket(bucket)
        self._require(caller, "storage.objects.get", bucket, name)
        entry = self._find(caller, bucket, name, whole_number(query, "generation"))
        Preconditions.of(query).check(entry, reading=True)
        if query.get("alt") == "media":
            return self._media(request, entry)
        return JSONResponse(self._shown(entry), headers={"etag": entry["etag"]})

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
        for field, header in (
            ("contentEncoding", "content-encoding"),
            ("contentDisposition", "content-disposition"),
            ("contentLanguage", "content-language"),
            ("cacheControl", "cache-control"),
        ):
            if field in entry:
                headers[header] = entry[field]
        start, end = 0, size
        status = 200
        match = RANGE.fullmatch(request.headers.get("range", ""))
        if match and (match[1] or match[2]):
            status = 206
            if match[1]:
                start = int(match[1])
                end = min(int(match[2]) + 1, size) if match[2] else size
            else:
                start = max(size - int(match[2]), 0)
            if start >= size or end <= start:
                raise ApiError(
                    416,
                    "The requested range cannot be satisfied.",
                    headers={"content-range": f"bytes */{size}"},
                )
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
        file = (self._bytes / entry["generation"]).open("rb")
        # Bytes that were damaged on the disk are served as they are, in an answer that is whole:
        # a client shall see damage, not a connection that breaks for ever.
        end = min(end, os.fstat(file.fileno()).st_size)
        return Media(file, start, max(end - start, 0), status, headers)

    def _list_objects(self, request: Request, bucket: str) -> Response:
        query = request.query_params
        for name in ("matchGlob", "filter"):
            if query.get(name):
                raise not_implemented("GET", f"{request.url.path}?{name}")
        if query.get("softDeleted") == "true":
            raise not_implemented("GET", f"{request.url.path}?softDeleted=true")
        self._bucket(bucket)
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        self._require(self._cloud.caller(request), "storage.objects.list", bucket, listing=prefix)
        limit = min(whole_number(query, "maxResults") or MAX_PAGE, MAX_PAGE)
        if limit < 1:
            raise ApiError(400, f"maxResults {limit}: must be at least 1")
        after = _page_start(query)
        end_offset = query.get("endOffset", "")
        items: list[Entry] = []
        prefixes: list[str] = []
        last = ""
        # A page ends after its last item or prefix; the token carries that name.
        for name in self._names(bucket, query, prefix, after):
            if not name.startswith(prefix) or (end_offset and name >= end_offset):
                break
            rolled = ""
            if delimiter:
                cut = name.find(delimiter, len(prefix))
                rolled = name[: cut + len(delimiter)] if cut >= 0 else ""
            if rolled and rolled in (last, after):
                continue
            if len(items) + len(prefixes) >= limit:
                return JSONResponse(self._page(items, prefixes, last))
            last = rolled or name
            if rolled:
                prefixes.append(rolled)
            if not rolled or (rolled == name and query.get("includeTrailingDelimiter") == "true"):
                items.extend(self._versions(bucket, name, query))
        return JSONResponse(self._page(items, prefixes, None))

    def _names(self, bucket: str, query: QueryParams, prefix: str, after: str) -> Any:
        """Object names in order from the page's start; with `versions` those gone as well."""
        first = max(prefix, query.get("startOffset", ""), after)
        names = self._live(bucket).names_from(first)
        if query.get("versions") == "true":
            gone = {entry["name"] for entry in self._old(bucket).values()}
            names = sorted({n for n in gone if n >= first} | set(names))
        return (name for name in names if name != after or not after)

    def _versions(self, bucket: str, name: str, query: QueryParams) -> list[Entry]:
        live = self._live(bucket).get(name)
        shown = [self._shown(live)] if live else []
        if query.get("versions") != "true":
            return shown
        old = (e for e in self._old(bucket).values() if e["name"] == name)
        return [*(self._shown(e) for e in sorted(old, key=lambda e: int(e["generation"]))), *shown]

    def _page(self, items: list[Entry], prefixes: list[str], last: str | None) -> Entry:
        page: Entry = {"kind": "storage#objects"}
        if items:
            page["items"] = items
        if prefixes:
            page["prefixes"] = prefixes
        if last is not None:
            page["nextPageToken"] = base64.urlsafe_b64encode(last.encode()).decode()
        return page

    # -- writing objects ---------------------------------------------------------------------

    def _check_name(self, name: str) -> None:
        length = len(name.encode(errors="surrogatepass"))
        bad = name in (".", "..") or "\r" in name or "\n" in name
        if not 1 <= length <= 1024 or bad or name.startswith(".well-known/acme-challenge/"):
            raise ApiError(400, f"Invalid object name: {name[:80]!r}", "invalid")

    def _checked_metadata(self, metadata: Entry, query: QueryParams) -> tuple[str, Entry]:
        """The object's name and what the client sets on it."""
        check_body("storage.v1", "Object", metadata)
        for field in UNKNOWN_OBJECT_FIELDS:
            if metadata.get(field):
                raise ApiError(501, f"{field} of an object is not implemented by the local cloud")
        name = query.get("name") or metadata.get("name") or ""
        if not name:
            raise ApiError(400, "Required parameter: name", "required")
        self._check_name(name)
        fields = {key: metadata[key] for key in OBJECT_FIELDS if metadata.get(key) is not None}
        if "contentEncoding" in query:
            fields["contentEncoding"] = query["contentEncoding"]
        return name, fields

    def _check_write(
        self, caller: Caller, bucket: str, name: str, conditions: Preconditions
    ) -> Entry | None:
        """Permissions and preconditions of a write; the object that it would replace."""
        self._bucket(bucket)
        self._require(caller, "storage.objects.create", bucket, name)
        live = self._live(bucket).get(name)
        if live:
            self._require(caller, "storage.objects.delete", bucket, name)
        conditions.check(live)
        return live

    def _count_write(self, bucket: str, name: str) -> None:
        """Remembers the write; ApiError 429 where the name was written within the interval."""
        now = time.monotonic()
        if now - self._last_write.get((bucket, name), float("-inf")) < WRITE_INTERVAL_SEC:
            raise ApiError(
                429,
                f"The object {bucket}/{name} exceeded the rate limit for object mutation "
                "operations (create, update, and delete). Please reduce your request rate.",
                "rateLimitExceeded",
            )
        if len(self._last_write) >= MAX_WRITES_REMEMBERED:
            self._last_write = {
                key: at for key, at in self._last_write.items() if now - at < WRITE_INTERVAL_SEC
            }
        self._last_write[(bucket, name)] = now

    def _commit(
        self,
        caller: Caller,
        bucket: str,
        name: str,
        fields: Entry,
        sink: Sink,
        conditions: Preconditions,
        *,
        components: int | None = None,
    ) -> Entry:
        """Makes the sink's bytes the live object; no await in here."""
        live = self._check_write(caller, bucket, name, conditions)
        self._count_write(bucket, name)
        sink.close()
        now = utc_text()
        generation = str(self._cloud.state.next_number())
        entry: Entry = {
            "storageClass": self._buckets[bucket]["storageClass"],
            "contentType": "application/octet-stream",
            **fields,
            "name": name,
            "bucket": bucket,
            "generation": generation,
            "metageneration": "1",
            "size": str(sink.size),
            "crc32c": sink.crc32c,
            "etag": etag_of((generation, 1)),
            "timeCreated": now,
            "updated": now,
            "timeStorageClassUpdated": now,
            "timeFinalized": now,
        }
        if components:
            entry["componentCount"] = components
        else:
            entry["md5Hash"] = sink.md5
        os.rename(sink.path, self._bytes / generation)
        if live and self._versioned(bucket):
            self._keep_version(live)
        self._live(bucket)[name] = entry
        if live and not self._versioned(bucket):
            (self._bytes / live["generation"]).unlink(missing_ok=True)
        return entry

    def _versioned(self, bucket: str) -> bool:
        return bool((self._buckets[bucket].get("versioning") or {}).get("enabled"))

    def _keep_version(self, live: Entry) -> None:
        key = f"{live['name']}#{live['generation']}"
        self._old(live["bucket"])[key] = {**live, "timeDeleted": utc_text()}

    def _new_upload(self) -> Sink:
        return Sink(self._uploads / f"direct-{secrets.token_hex(12)}")

    async def _upload_media(self, request: Request, bucket: str) -> Response:
        caller, query = self._cloud.caller(request), request.query_params
        name, fields = self._checked_metadata({}, query)
        content_type = request.headers.get("content-type")
        if content_type:
            fields["contentType"] = content_type
        conditions = Preconditions.of(query)
        sink = self._new_upload()
        try:
            async for chunk in request.stream():
                sink.write(chunk)
            self._check_hashes({}, request.headers, sink)
            entry = self._commit(caller, bucket, name, fields, sink, conditions)
        except BaseException:
            sink.discard()
            raise
        return JSONResponse(self._shown(entry))

    async def _upload_multipart(self, request: Request, bucket: str) -> Response:
        caller, query = self._cloud.caller(request), request.query_params
        reader = MultipartReader(request)
        await reader.head()
        described = b"".join([chunk async for chunk in reader.body()])
        metadata = parse_object(described)
        name, fields = self._checked_metadata(metadata, query)
        part = await reader.head()
        if "contentType" not in fields and part.get("content-type"):
            fields["contentType"] = part["content-type"]
        conditions = Preconditions.of(query)
        sink = self._new_upload()
        try:
            async for chunk in reader.body():
                sink.write(chunk)
            await reader.drain()
            self._check_hashes(metadata, request.headers, sink)
            entry = self._commit(caller, bucket, name, fields, sink, conditions)
        except BaseException:
            sink.discard()
            raise
        return JSONResponse(self._shown(entry))

    def _check_hashes(self, declared: Entry, headers: Mapping[str, str], sink: Sink) -> None:
        """ApiError 400 where the bytes are not those that the client says it sent."""
        claims = [("CRC32C", declared.get("crc32c")), ("MD5", declared.get("md5Hash"))]
        claims.append(("MD5", headers.get("content-md5")))
        for item in headers.get("x-goog-hash", "").split(","):
            kind, _, value = item.strip().partition("=")
            claims.append((kind.upper(), value))
        for kind, claimed in claims:
            found = {"CRC32C": sink.crc32c, "MD5": sink.md5}.get(kind)
            if claimed and found and claimed != found:
                raise ApiError(
                    400,
                    f'Provided {kind} hash "{claimed}" doesn\'t match calculated {kind} hash '
                    f'"{found}".',
                    "invalid",
                )

    # -- resumable uploads -------------------------------------------------------------------

    async def _open_session(self, request: Request, bucket: str) -> Response:
        caller, query = self._cloud.caller(request), request.query_params
        metadata = parse_object(await request.body())
        name, fields = self._checked_metadata(metadata, query)
        content_type = request.headers.get("x-upload-content-type")
        if content_type:
            fields.setdefault("contentType", content_type)
        self._check_write(caller, bucket, name, Preconditions.of(query))
        upload_id = secrets.token_urlsafe(24)
        Sink(self._uploads / upload_id).close()
        self._sessions[upload_id] = {
            "bucket": bucket,
            "name": name,
            "fields": fields,
            "declared": {k: metadata[k] for k in ("crc32c", "md5Hash") if metadata.get(k)},
            "query": {key: query[key] for key in SESSION_QUERY if key in query},
            "email": caller.email,
            "vm": caller.vm,
        }
        args = urlencode({"uploadType": "resumable", "name": name, "upload_id": upload_id})
        location = f"{self._cloud.base_url}/upload/storage/v1/b/{bucket}/o?{args}"
        headers = {"location": location, "x-guploader-uploadid": upload_id}
        return Response(status_code=200, headers=headers)

    def _session(self, request: Request) -> tuple[str, Entry]:
        upload_id = request.query_params["upload_id"]
        if upload_id not in self._sessions:
            raise ApiError(404, "No such resumable upload.", "notFound")
        return upload_id, self._sessions[upload_id]

    async def _continue_session(self, request: Request) -> Response:
        upload_id, _ = self._session(request)
        async with self._session_locks.setdefault(upload_id, asyncio.Lock()):
            _, session = self._session(request)
            if "entry" in session:
                async for _ in request.stream():
                    pass
                return JSONResponse(self._shown(session["entry"]))
            sink = await self._session_sink(upload_id)
            text = request.headers.get("content-range")
            if text is None:
                first, last, total = 0, None, None
            else:
                match = CONTENT_RANGE.fullmatch(text)
                if not match:
                    raise ApiError(400, f"Invalid Content-Range: {text!r}", "invalid")
                total = None if match[3] == "*" else int(match[3])
                if match[1] is None:  # a query of the status, or the end of an empty rest
                    if total is not None and total == sink.size:
                        return self._finish_session(request, upload_id, session, sink)
                    return _incomplete(sink.size)
                first, last = int(match[1]), int(match[2])
            await self._append(request, upload_id, sink, first, last, total)
            if text is None or (total is not None and sink.size == total):
                return self._finish_session(request, upload_id, session, sink)
            return _incomplete(sink.size)

    async def _session_sink(self, upload_id: str) -> Sink:
        if upload_id not in self._open_uploads:
            path = self._uploads / upload_id
            # Hashing what an earlier process received may take long: not on the loop.
            self._open_uploads[upload_id] = await asyncio.to_thread(Sink, path, existing=True)
        return self._open_uploads[upload_id]

    async def _append(
        self,
        request: Request,
        upload_id: str,
        sink: Sink,
        first: int,
        last: int | None,
        total: int | None,
    ) -> None:
        """Takes the bytes of one request; what came before a cut stays, to the quantum."""
        if first > sink.size:
            raise ApiError(
                400, f"Invalid Content-Range: begins at {first}, the upload has {sink.size} bytes"
            )
        final = last is None or (total is not None and last + 1 == total)
        if last is not None and not final and (last + 1 - first) % CHUNK_QUANTUM:
            raise ApiError(
                400, f"A chunk that is not the last must be a multiple of {CHUNK_QUANTUM} bytes."
            )
        skip = sink.size - first  # the client may send again what has arrived
        expected = None if last is None else last + 1
        try:
            async for chunk in request.stream():
                taken = chunk[skip:] if skip else chunk
                skip = max(skip - len(chunk), 0)
                if expected is not None and sink.size + len(taken) > expected:
                    raise ApiError(400, "The body is longer than its Content-Range says.")
                sink.write(taken)
            if expected is not None and sink.size != expected:
                raise ApiError(400, "The body is shorter than its Content-Range says.")
        except (ClientDisconnect, ApiError, asyncio.CancelledError):
            self._open_uploads.pop(upload_id).close()
            os.truncate(sink.path, sink.size // CHUNK_QUANTUM * CHUNK_QUANTUM)
            raise
        sink.flush()

    def _finish_session(
        self, request: Request, upload_id: str, session: Entry, sink: Sink
    ) -> Response:
        self._check_hashes(session["declared"], request.headers, sink)
        entry = self._commit(
            Caller(session["email"], session["vm"]),
            session["bucket"],
            session["name"],
            session["fields"],
            sink,
            Preconditions.of(session["query"]),
        )
        self._open_uploads.pop(upload_id, None)
        self._session_locks.pop(upload_id, None)
        self._sessions[upload_id] = {**session, "entry": entry}
        return JSONResponse(self._shown(entry))

    def _cancel_session(self, request: Request) -> Response:
        upload_id, session = self._session(request)
        if "entry" not in session:
            sink = self._open_uploads.pop(upload_id, None)
            if sink:
                sink.close()
            (self._uploads / upload_id).unlink(missing_ok=True)
        del self._sessions[upload_id]
        return Response(status_code=499)

    # -- changing, deleting, copying ---------------------------------------------------------

    async def _change_object(self, request: Request, bucket: str, name: str) -> Response:
        body = await read_json(request)
        check_body("storage.v1", "Object", body)
        query, caller = request.query_params, self._cloud.caller(request)
        self._bucket(bucket)
        self._require(caller, "storage.objects.update", bucket, name)
        entry = self._find(caller, bucket, name, whole_number(query, "generation"))
        Preconditions.of(query).check(entry)
        for field in UNKNOWN_OBJECT_FIELDS:
            if body.get(field):
                raise ApiError(501, f"{field} of an object is not implemented by the local cloud")
        if "timeDeleted" in entry:
            raise not_implemented(request.method, f"{request.url.path} of a noncurrent version")
        self._count_write(bucket, name)
        kept = entry
        if request.method == "PUT":
            kept = {k: v for k, v in entry.items() if k not in OBJECT_FIELDS or k == "storageClass"}
        kept = merge(kept, {key: body[key] for key in OBJECT_FIELDS if key in body})
        kept.setdefault("contentType", "application/octet-stream")
        kept["metageneration"] = str(int(entry["metageneration"]) + 1)
        kept["updated"] = utc_text()
        kept["etag"] = etag_of((kept["generation"], kept["metageneration"]))
        self._live(bucket)[name] = kept
        return JSONResponse(self._shown(kept))

    def _delete_object(self, request: Request, bucket: str, name: str) -> Response:
        query, caller = request.query_params, self._cloud.caller(request)
        generation = whole_number(query, "generation")
        self._bucket(bucket)
        self._require(caller, "storage.objects.delete", bucket, name)
        entry = self._find(caller, bucket, name, generation)
        Preconditions.of(query).check(entry)
        if "timeDeleted" in entry:
            del self._old(bucket)[f"{name}#{entry['generation']}"]
        else:
            if generation is None and self._versioned(bucket):
                self._keep_version(entry)
                del self._live(bucket)[name]
                return Response(status_code=204)
            del self._live(bucket)[name]
        (self._bytes / entry["generation"]).unlink(missing_ok=True)
        return Response(status_code=204)

    async def _compose(self, request: Request, bucket: str, name: str) -> Response:
        body = await read_json(request)
        check_body("storage.v1", "ComposeRequest", body)
        caller = self._cloud.caller(request)
        sources = body.get("sourceObjects") or []
        if not 1 <= len(sources) <= MAX_COMPOSE_SOURCES:
            raise ApiError(
                400, f"sourceObjects {len(sources)}: must be 1 to {MAX_COMPOSE_SOURCES} objects"
            )
        _, fields = self._checked_metadata(
            {**(body.get("destination") or {}), "name": name}, QueryParams()
        )
        entries = []
        for source in sources:
            self._bucket(bucket)
            self._require(caller, "storage.objects.get", bucket, source["name"])
            generation = whole_number(source, "generation")
            entry = self._find(caller, bucket, source["name"], generation)
            Preconditions(
                generation=whole_number(
                    source.get("objectPreconditions") or {}, "ifGenerationMatch"
                )
            ).check(entry)
            entries.append(entry)
        components = sum(entry.get("componentCount", 1) for entry in entries)
        sink = self._new_upload()
        try:
            for entry in entries:
                self._copy_bytes(entry, sink)
            conditions = Preconditions.of(request.query_params)
            kept = self._commit(
                caller, bucket, name, fields, sink, conditions, components=components
            )
        except BaseException:
            sink.discard()
            raise
        return JSONResponse(self._shown(kept))

    def _copy_bytes(self, entry: Entry, sink: Sink) -> None:
        with (self._bytes / entry["generation"]).open("rb") as file:
            while block := file.read(BLOCK):
                sink.write(block)

    async def _copy(
        self, request: Request, source: tuple[str, str], to: tuple[str, str], verb: str
    ) -> Response:
        body = await read_json(request)
        query, caller = request.query_params, self._cloud.caller(request)
        self._bucket(source[0])
        self._require(caller, "storage.objects.get", *source)
        entry = self._find(caller, *source, whole_number(query, "sourceGeneration"))
        Preconditions.of(query, "ifSource").check(entry)
        _, fields = self._checked_metadata({**body, "name": to[1]}, QueryParams())
        if not fields:
            fields = {key: entry[key] for key in OBJECT_FIELDS if key in entry}
        sink = self._new_upload()
        try:
            self._copy_bytes(entry, sink)
            kept = self._commit(caller, *to, fields, sink, Preconditions.of(query))
        except BaseException:
            sink.discard()
            raise
        if verb == "copyTo":
            return JSONResponse(self._shown(kept))
        rewritten = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": kept["size"],
            "objectSize": kept["size"],
            "done": True,
            "resource": self._shown(kept),
        }
        return JSONResponse(rewritten)


def _segments(request: Request) -> list[str]:
    """The path's segments below /storage/v1, decoded one by one."""
    raw = request.scope["raw_path"].decode("ascii").partition("/storage/v1/")[2]
    return [unquote(segment) for segment in raw.split("/")]


def _incomplete(received: int) -> Response:
    """308: the upload goes on after the bytes named in Range."""
    headers = {"range": f"bytes=0-{received - 1}"} if received else {}
    return Response(status_code=308, headers=headers)


def _page_start(query: QueryParams) -> str:
    token = query.get("pageToken", "")
    try:
        return base64.urlsafe_b64decode(token).decode()
    except ValueError:
        raise ApiError(400, f"Invalid page token: {token!r}", "invalid") from None


def _later(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() + seconds))


def parse_object(raw: bytes) -> Entry:
    """An object's JSON metadata; {} for nothing."""
    try:
        metadata = json.loads(raw) if raw.strip() else {}
    except ValueError:
        raise ApiError(400, "Parse Error: the metadata is not JSON", "parseError") from None
    if not isinstance(metadata, dict):
        raise ApiError(400, "Parse Error: the metadata is not a JSON object", "parseError")
    return metadata


def merge(entry: Entry, changes: Entry) -> Entry:
    """JSON merge patch: null removes, objects merge, all else replaces."""
    merged = dict(entry)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged
