"""Buckets and their policies."""

import re
import time
from datetime import date

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from outlast.localcloud.base.access import Target
from outlast.localcloud.base.clock import now_text, to_rfc3339
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.http.bodies import etag_of, read_json, without_nulls
from outlast.localcloud.http.discovery import check_body
from outlast.localcloud.storage import pages
from outlast.localcloud.storage.conditions import Preconditions, is_true, whole_number
from outlast.localcloud.storage.resources import check_storage_class, merge
from outlast.localcloud.storage.store import DAY_SEC, Store

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
MULTI_REGIONS = {"US", "EU", "ASIA"}
BUCKET_FIELDS = (
    "autoclass",
    "billing",
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
SOFT_DELETE_SEC = (7 * DAY_SEC, 90 * DAY_SEC)
LIFECYCLE_ACTIONS = ("Delete", "SetStorageClass", "AbortIncompleteMultipartUpload")
MAX_LIFECYCLE_RULES = 100


class Buckets:
    """The calls on buckets."""

    def __init__(self, cloud: Cloud, store: Store) -> None:
        self._cloud = cloud
        self._store = store

    def _check_project(self, request: Request) -> None:
        # Clients of an emulator may send no project, or say that they have none.
        asked = request.query_params.get("project")
        known = (None, "<none>", self._cloud.project, self._cloud.project_number)
        if asked not in known:
            raise ApiError(400, f"Unknown project id: {asked}", "invalid")

    def _shown(self, bucket: Entry) -> Entry:
        base = f"{self._cloud.base_url}/storage/v1/b/{bucket['name']}"
        shown = {key: value for key, value in bucket.items() if key != "policy"}
        return {"kind": "storage#bucket", "selfLink": base, **shown}

    def list_page(self, request: Request) -> Response:
        self._check_project(request)
        self._cloud.authorize(request, "storage.buckets.list")
        prefix = request.query_params.get("prefix", "")
        buckets = list(self._store.buckets.values())
        if is_true(request.query_params, "softDeleted"):
            buckets = self._store.lost.all()
        limit, after = pages.size(request.query_params), pages.start(request.query_params)
        # Several deleted buckets may have the same name.
        found = {
            f"{bucket['name']}\n{bucket['generation']}": bucket
            for bucket in buckets
            if bucket["name"].startswith(prefix)
        }
        keys = sorted(key for key in found if key > after)
        answer: Entry = {"kind": "storage#buckets"}
        if keys:
            answer["items"] = [self._shown(found[key]) for key in keys[:limit]]
        if len(keys) > limit:
            answer["nextPageToken"] = pages.token(keys[limit - 1])
        return JSONResponse(answer)

    async def insert(self, request: Request) -> Response:
        self._check_project(request)
        self._cloud.authorize(request, "storage.buckets.create")
        body = await read_json(request)
        check_body("storage.v1", "Bucket", body)
        name = str(body.get("name") or "")
        if not BUCKET_NAME.fullmatch(name) or ".." in name:
            raise ApiError(400, f"Invalid bucket name: '{name}'", "invalid")
        if name in self._store.buckets:
            raise ApiError(
                409,
                "Your previous request to create the named bucket succeeded and you already own "
                "it.",
            )
        location = str(body.get("location") or "US").upper()
        bucket: Entry = {
            "id": name,
            "name": name,
            "projectNumber": self._cloud.project_number,
            "location": location,
            "locationType": "multi-region" if location in MULTI_REGIONS else "region",
            "storageClass": "STANDARD",
            "generation": str(self._cloud.state.next_number()),
            "metageneration": "0",
            "timeCreated": now_text(),
            "iamConfiguration": {},
            "softDeletePolicy": {},
        }
        if location in MULTI_REGIONS:
            bucket["rpo"] = "DEFAULT"
        body = without_nulls(body)
        given = {key: body[key] for key in BUCKET_FIELDS if key in body}
        _check_bucket(given)
        project = self._cloud.project
        owners = [f"projectEditor:{project}", f"projectOwner:{project}"]
        bindings = [
            {"role": "roles/storage.legacyBucketOwner", "members": owners},
            {"role": "roles/storage.legacyBucketReader", "members": [f"projectViewer:{project}"]},
        ]
        self._cloud.policies.write(f"buckets/{name}", {"bindings": bindings}, initial=True)
        return JSONResponse(self._shown(self._keep({**bucket, **given})))

    def _keep(self, bucket: Entry) -> Entry:
        """Fills in the server's fields, counts the change and stores the bucket."""
        access = bucket["iamConfiguration"]
        uniform = access.get("uniformBucketLevelAccess") or {}
        uniform = {"enabled": bool(uniform.get("enabled")), **uniform}
        if uniform["enabled"] and "lockedTime" not in uniform:
            uniform["lockedTime"] = to_rfc3339(time.time() + 90 * DAY_SEC)
        policy = {"retentionDurationSeconds": 7 * DAY_SEC, **bucket["softDeletePolicy"]}
        policy["retentionDurationSeconds"] = str(policy["retentionDurationSeconds"])
        if policy["retentionDurationSeconds"] != "0":
            policy.setdefault("effectiveTime", now_text())
        kept = {
            **bucket,
            "metageneration": str(int(bucket["metageneration"]) + 1),
            "updated": now_text(),
            "softDeletePolicy": policy,
            "iamConfiguration": {
                "publicAccessPrevention": "inherited",
                **access,
                "bucketPolicyOnly": uniform,
                "uniformBucketLevelAccess": uniform,
            },
        }
        kept["etag"] = etag_of((kept["generation"], kept["metageneration"]))
        self._store.journal.write(("buckets", kept["name"], kept))
        return kept

    def get(self, request: Request, name: str) -> Response:
        if is_true(request.query_params, "softDeleted"):
            self._cloud.authorize(request, "storage.buckets.get")
            return JSONResponse(self._shown(self._lost(request, name)))
        bucket = self._store.bucket(name)
        self._store.require(self._cloud.caller(request), "storage.buckets.get", name)
        Preconditions.of(request.query_params).check(bucket, reading=True)
        return JSONResponse(self._shown(bucket))

    async def change(self, request: Request, name: str) -> Response:
        body = await read_json(request)
        check_body("storage.v1", "Bucket", body)
        bucket = self._store.bucket(name)
        self._store.require(self._cloud.caller(request), "storage.buckets.update", name)
        Preconditions.of(request.query_params).check(bucket)
        for fixed in ("name", "location"):
            if body.get(fixed) and str(body[fixed]).upper() != bucket[fixed].upper():
                raise ApiError(400, f"{fixed} {body[fixed]!r}: a bucket's {fixed} never changes")
        changes = {key: body[key] for key in BUCKET_FIELDS if key in body}
        _check_bucket(changes)
        if request.method == "PUT":
            bucket = {key: v for key, v in bucket.items() if key not in BUCKET_FIELDS}
            bucket = {"storageClass": "STANDARD", **bucket}
        merged = merge(bucket, changes)
        for field in ("iamConfiguration", "softDeletePolicy"):
            merged.setdefault(field, {})
        return JSONResponse(self._shown(self._keep(merged)))

    def delete(self, request: Request, name: str) -> Response:
        bucket = self._store.bucket(name)
        self._store.require(self._cloud.caller(request), "storage.buckets.delete", name)
        Preconditions.of(request.query_params).check(bucket)
        if self._store.live(name) or self._store.old(name):
            raise ApiError(409, "The bucket you tried to delete is not empty.", "conflict")
        self._store.delete_bucket(name)
        return Response(status_code=204)

    def restore(self, request: Request, name: str) -> Response:
        self._cloud.authorize(request, "storage.buckets.restore")
        lost = self._lost(request, name)
        if name in self._store.buckets:
            raise ApiError(409, f"The bucket {name} exists: restore takes the name back.")
        return JSONResponse(self._shown(self._keep(self._store.lost.restore(lost))))

    def _lost(self, request: Request, name: str) -> Entry:
        """The soft-deleted bucket of a name and of the generation in the request. Raises
        ApiError."""
        generation = whole_number(request.query_params, "generation")
        if generation is None:
            raise ApiError(400, "Required parameter: generation", "required")
        return self._store.lost.find(name, generation)

    def get_layout(self, request: Request, name: str) -> Response:
        bucket = self._store.bucket(name)
        prefix = request.query_params.get("prefix", "")
        caller = self._cloud.caller(request)
        self._store.require(caller, "storage.objects.list", name, listing=prefix)
        layout = {
            "kind": "storage#storageLayout",
            "bucket": name,
            "location": bucket["location"],
            "locationType": bucket["locationType"],
            "hierarchicalNamespace": {"enabled": False},
        }
        return JSONResponse(layout)

    def list_caches(self, request: Request, name: str) -> Response:
        self._store.bucket(name)
        self._store.require(self._cloud.caller(request), "storage.buckets.get", name)
        return JSONResponse({"kind": "storage#anywhereCaches"})

    def list_managed_folders(self, request: Request, name: str) -> Response:
        """Always empty: `gcloud storage rm --recursive` lists them before it deletes a bucket."""
        self._store.bucket(name)
        self._store.require(self._cloud.caller(request), "storage.managedFolders.list", name)
        return JSONResponse({"kind": "storage#managedFolders"})

    # -- policies ----------------------------------------------------------------------------

    def _shown_policy(self, bucket: str, version: int) -> Entry:
        policy = self._cloud.policies.read(f"buckets/{bucket}", version)
        return {
            "kind": "storage#policy",
            "resourceId": f"projects/_/buckets/{bucket}",
            **policy,
        }

    def get_policy(self, request: Request, bucket: str) -> Response:
        self._store.bucket(bucket)
        caller = self._cloud.caller(request)
        self._store.require(caller, "storage.buckets.getIamPolicy", bucket)
        version = whole_number(request.query_params, "optionsRequestedPolicyVersion") or 1
        return JSONResponse(self._shown_policy(bucket, version))

    async def set_policy(self, request: Request, bucket: str) -> Response:
        body = await read_json(request)
        check_body("storage.v1", "Policy", body)
        self._store.bucket(bucket)
        caller = self._cloud.caller(request)
        self._store.require(caller, "storage.buckets.setIamPolicy", bucket)
        conditional = any(binding.get("condition") for binding in body.get("bindings") or [])
        if conditional and not self._store.is_uniform(bucket):
            raise ApiError(
                412,
                "A condition needs uniform bucket-level access; enable it on the bucket.",
                "conditionNotMet",
            )
        self._cloud.policies.write(f"buckets/{bucket}", body)
        return JSONResponse(self._shown_policy(bucket, 3))

    def test_permissions(self, request: Request, bucket: str) -> Response:
        self._store.bucket(bucket)
        asked = request.query_params.getlist("permissions")
        target = Target(f"projects/_/buckets/{bucket}")
        caller = self._cloud.caller(request)
        held = self._cloud.policies.held(caller, asked, target, f"buckets/{bucket}")
        answer: Entry = {"kind": "storage#testIamPermissionsResponse"}
        return JSONResponse({**answer, "permissions": held} if held else answer)


def _check_bucket(given: Entry) -> None:
    """Raises ApiError 400 if a bucket's field has a forbidden value."""
    check_storage_class(given.get("storageClass"))
    held = (given.get("softDeletePolicy") or {}).get("retentionDurationSeconds")
    least, most = SOFT_DELETE_SEC
    if held is not None and int(held) != 0 and not least <= int(held) <= most:
        raise ApiError(
            400,
            f"softDeletePolicy.retentionDurationSeconds {held}: must be 0, or {least} to {most}",
            "invalid",
        )
    rules = (given.get("lifecycle") or {}).get("rule") or []
    if len(rules) > MAX_LIFECYCLE_RULES:
        raise ApiError(
            400, f"lifecycle has {len(rules)} rules: must be at most {MAX_LIFECYCLE_RULES}"
        )
    for rule in rules:
        kind = ((rule or {}).get("action") or {}).get("type")
        if kind not in LIFECYCLE_ACTIONS:
            raise ApiError(
                400,
                f"lifecycle action {kind!r}: must be one of {', '.join(LIFECYCLE_ACTIONS)}",
                "invalid",
            )
        if not rule.get("condition"):
            raise ApiError(400, f"lifecycle rule {kind}: must have a condition", "invalid")
        if kind == "SetStorageClass":
            check_storage_class(rule["action"].get("storageClass") or "")
        for field in ("createdBefore", "noncurrentTimeBefore"):
            _check_day(field, rule["condition"].get(field))


def _check_day(field: str, value: object) -> None:
    try:
        date.fromisoformat(str(value or "2026-01-31"))
    except ValueError:
        raise ApiError(
            400, f"lifecycle condition {field} {value!r}: must be a day as 2026-01-31", "invalid"
        ) from None
