"""The front of the API: its routes, and the interface for the rest of the cloud."""

from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from outlast.localcloud.base import switches
from outlast.localcloud.base.errors import ApiError, not_implemented
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud, Service
from outlast.localcloud.storage import lifecycle
from outlast.localcloud.storage.batch import answer_batch
from outlast.localcloud.storage.buckets import Buckets
from outlast.localcloud.storage.copies import Copies
from outlast.localcloud.storage.objects import Objects
from outlast.localcloud.storage.resources import check_request
from outlast.localcloud.storage.store import Store
from outlast.localcloud.storage.uploads import Uploads

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Storage(Service):
    """Buckets and objects of the one project."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = Store(cloud)
        self._buckets = Buckets(cloud, self._store)
        self._objects = Objects(self._store)
        self._copies = Copies(self._store)
        self._uploads = Uploads(cloud, self._store)

    # -- for the rest of the cloud -----------------------------------------------------------

    def audit(self) -> Entry:
        """Every bucket as {name, objects (live), versions (noncurrent)}."""
        store = self._store
        buckets = [
            {"name": b, "objects": len(store.live(b)), "versions": len(store.old(b))}
            for b in store.buckets
        ]
        return {"buckets": buckets}

    def session_object(self, upload_id: str) -> str | None:
        """The name of a resumable upload's object, for fault rules; None if unknown."""
        session = self._store.sessions.get(upload_id)
        return session["name"] if session else None

    def content(self, bucket: str, name: str) -> bytes | None:
        """The current bytes of an object; None if it does not exist."""
        entry = self._store.live(bucket).get(name) if bucket in self._store.buckets else None
        if entry is None:
            return None
        with self._store.open(entry) as file:
            return file.read()

    def apply_lifecycle(self, at: float) -> list[Entry]:
        """Applies the buckets' lifecycle rules as of a moment; returns the changes."""
        return lifecycle.apply(self._store, at)

    def set_switch(self, name: str, value: Any) -> bool | float:
        """Sets one of `store.Switches`, as `Service.set_switch`."""
        return switches.set_one(self._store.switches, name, value)

    async def reset(self) -> None:
        """Forgets every bucket, object and upload."""
        self._uploads.reset()
        self._store.reset()

    # -- routes ------------------------------------------------------------------------------

    def routes(self) -> list[BaseRoute]:
        """/storage/v1, /download/…, /upload/…, /resumable/upload/… and /batch/…"""
        return [
            Route("/storage/v1/{rest:path}", self._answer, methods=METHODS),
            Route("/download/storage/v1/{rest:path}", self._answer, methods=METHODS),
            Route("/upload/storage/v1/{rest:path}", self._answer_upload, methods=METHODS),
            Route("/resumable/upload/storage/v1/{rest:path}", self._answer_upload, methods=METHODS),
            Route("/batch/storage/v1", self._answer_batch, methods=["POST"]),
        ]

    async def _answer(self, request: Request) -> Response:
        check_request(request)
        self._check_payers(request)
        # Names may contain escaped slashes: only the raw path shows where segments end.
        match (request.method, *_segments(request)):
            case ("GET", "b"):
                return self._buckets.list_page(request)
            case ("POST", "b"):
                return await self._buckets.insert(request)
            case ("GET", "b", bucket):
                return self._buckets.get(request, bucket)
            case ("PATCH" | "PUT", "b", bucket):
                return await self._buckets.change(request, bucket)
            case ("DELETE", "b", bucket):
                return self._buckets.delete(request, bucket)
            case ("POST", "b", bucket, "restore"):
                return self._buckets.restore(request, bucket)
            case ("GET", "b", bucket, "iam"):
                return self._buckets.get_policy(request, bucket)
            case ("PUT", "b", bucket, "iam"):
                return await self._buckets.set_policy(request, bucket)
            case ("GET", "b", bucket, "iam", "testPermissions"):
                return self._buckets.test_permissions(request, bucket)
            case ("GET", "b", bucket, "storageLayout"):
                return self._buckets.get_layout(request, bucket)
            case ("GET", "b", bucket, "anywhereCaches"):
                return self._buckets.list_caches(request, bucket)
            case ("GET", "b", bucket, "managedFolders"):
                return self._buckets.list_managed_folders(request, bucket)
            case ("GET", "b", bucket, "o"):
                return self._objects.list_page(request, bucket)
            case ("GET", "b", bucket, "o", name):
                return self._objects.get(request, bucket, name)
            case ("PATCH" | "PUT", "b", bucket, "o", name):
                return await self._objects.change(request, bucket, name)
            case ("DELETE", "b", bucket, "o", name):
                return self._objects.delete(request, bucket, name)
            case ("POST", "b", bucket, "o", name, "restore"):
                return await self._objects.restore(request, bucket, name)
            case ("POST", "b", bucket, "o", name, "compose"):
                return await self._copies.compose(request, bucket, name)
            case ("POST", "b", bucket, "o", name, "moveTo", "o", new):
                return JSONResponse(await self._copies.move(request, bucket, name, new))
            case ("POST", "b", bucket, "o", name, "copyTo", "b", other, "o", new):
                return JSONResponse(await self._copies.copy(request, (bucket, name), (other, new)))
            case ("POST", "b", bucket, "o", name, "rewriteTo", "b", other, "o", new):
                rewritten = await self._copies.rewrite(request, (bucket, name), (other, new))
                return JSONResponse(rewritten)
        raise not_implemented(request.method, request.url.path)

    def _check_payers(self, request: Request) -> None:
        """Raises ApiError if no project pays for the request to a bucket that it names."""
        segments = _segments(request)
        for before, bucket in zip(segments, segments[1:], strict=False):
            if before == "b":
                self._store.check_payer(request, bucket)

    async def _answer_upload(self, request: Request) -> Response:
        check_request(request)
        self._check_payers(request)
        kind = request.query_params.get("uploadType")
        match (request.method, kind, *_segments(request)):
            case ("POST", "media", "b", bucket, "o"):
                return await self._uploads.media(request, bucket)
            case ("POST", "multipart", "b", bucket, "o"):
                return await self._uploads.multipart(request, bucket)
            case ("POST", "resumable", "b", bucket, "o") if "upload_id" not in request.query_params:
                return await self._uploads.open_session(request, bucket)
            case ("PUT" | "POST", _, "b", _, "o") if "upload_id" in request.query_params:
                return await self._uploads.resume(request)
            case ("DELETE", _, "b", _, "o") if "upload_id" in request.query_params:
                return self._uploads.cancel(request)
            case ("POST", _, "b", _, "o"):
                raise ApiError(400, f"uploadType {kind!r}: must be media, multipart or resumable")
        raise not_implemented(request.method, request.url.path)

    async def _answer_batch(self, request: Request) -> Response:
        # Fault rules see each call of a batch as a separate request.
        return await answer_batch(request, self._cloud.faults.wrap(self._answer_call))

    async def _answer_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one call of a batch."""
        request = Request(scope, receive)
        try:
            if not scope["path"].startswith("/storage/v1/"):
                raise not_implemented(scope["method"], scope["path"])
            response = await self._answer(request)
        except ApiError as error:
            response = error.response()
        await response(scope, receive, send)


def _segments(request: Request) -> list[str]:
    """The path's segments below /storage/v1, decoded one by one."""
    raw = request.scope["raw_path"].decode("latin-1").partition("/storage/v1/")[2]
    try:
        return [unquote(segment, errors="strict") for segment in raw.split("/")]
    except UnicodeDecodeError:
        raise ApiError(400, "Invalid path: it is not UTF-8", "invalid") from None
