"""The buckets and objects, and the rules for every change of one."""

import os
import secrets
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from starlette.requests import Request

from outlast.localcloud.base.access import Caller, Target
from outlast.localcloud.base.clock import from_rfc3339, now_text, to_rfc3339
from outlast.localcloud.base.errors import ApiError, UsageError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.http.bodies import etag_of
from outlast.localcloud.storage.conditions import Preconditions
from outlast.localcloud.storage.content import Sink
from outlast.localcloud.storage.journal import Change, Journal, Table
from outlast.localcloud.storage.lost_buckets import LostBuckets, version_key
from outlast.localcloud.storage.resources import shown_object

DAY_SEC = 86400
SESSION_SEC = 7 * DAY_SEC
"""Seconds for which a resumable upload or a rewrite can continue."""
MAX_WRITES_REMEMBERED = 20_000


@dataclass
class Switches:
    """How strict the storage is, and what Google's documents leave open."""

    write_interval_sec: float = 1.0
    """Minimum seconds between two writes of one name; an earlier one is refused with 429."""
    rewrite_bytes_per_call: int = 1 << 30
    """Bytes per call of a rewrite that changes the location or class."""
    absent_forbidden: bool = False
    """Whether an absent object is 403 for a caller who may list only under a condition. The page
    "Objects: get" promises 404 to callers with storage.objects.list; whether a list that is allowed
    for a prefix counts is documented nowhere, and public reports contradict each other."""


class Store:
    """Buckets, objects, their bytes, and uploads in progress."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        folder = cloud.state.folder("storage")
        if (folder / "buckets").exists():
            raise UsageError(
                f"--state {cloud.options.state}: was made by an earlier version of the local "
                "cloud; delete it or name another"
            )
        self.journal = Journal(folder / "journal")
        self.buckets = self.journal.table("buckets")
        self.sessions = self.journal.table("sessions")
        self.rewrites = self.journal.table("rewrites")
        self.bytes = cloud.state.folder("storage/bytes")
        self.lost = LostBuckets(cloud, self.journal, self.bytes)
        self.uploads = cloud.state.folder("storage/uploads")
        self.switches = Switches()
        self._last_write: dict[tuple[str, str], float] = {}
        self._sweep()

    def _sweep(self) -> None:
        """Deletes unreachable data: expired sessions, bytes without an entry, uploads without a
        session."""
        for name in ("sessions", "rewrites"):
            for key, value in list(self.journal.table(name).items()):
                if time.time() - value["opened"] > SESSION_SEC:
                    self.journal.write((name, key, None))
        self.lost.expire()
        for bucket in (*self.buckets, *self.lost.names()):
            self.expire(bucket)
        known = {
            entry["generation"]
            for bucket in (*self.buckets, *self.lost.names())
            for table in (self.live(bucket), self.old(bucket), self.gone(bucket))
            for entry in table.values()
        }
        for folder, names in ((self.bytes, known), (self.uploads, set(self.sessions))):
            for file in folder.iterdir():
                if file.name not in names:
                    file.unlink()

    def reset(self) -> None:
        """Forgets every bucket, object and upload."""
        for bucket in self.buckets:
            self.drop_bucket(bucket)
        self.lost.clear()
        for table in ("sessions", "rewrites"):
            self.journal.write(*((table, key, None) for key in self.journal.table(table)))
        self._last_write.clear()
        self.switches = Switches()
        for folder in (self.bytes, self.uploads):
            shutil.rmtree(folder)
            folder.mkdir()

    # -- tables ------------------------------------------------------------------------------

    def live(self, bucket: str) -> Table:
        """The live objects, by name."""
        return self.journal.table(f"live/{bucket}")

    def old(self, bucket: str) -> Table:
        """The noncurrent versions, by `version_key`."""
        return self.journal.table(f"old/{bucket}")

    def gone(self, bucket: str) -> Table:
        """The soft-deleted objects, by `version_key`."""
        return self.journal.table(f"gone/{bucket}")

    def expire(self, bucket: str) -> None:
        """Deletes soft-deleted objects whose time is over."""
        now = time.time()
        for key, entry in list(self.gone(bucket).items()):
            if from_rfc3339(entry["hardDeleteTime"]) <= now:
                self.journal.write((f"gone/{bucket}", key, None))
                self.path(entry).unlink(missing_ok=True)

    def path(self, entry: Entry) -> Path:
        """The file of an object's bytes."""
        return self.bytes / entry["generation"]

    def open(self, entry: Entry) -> BinaryIO:
        return self.path(entry).open("rb")

    def new_upload(self) -> Sink:
        """A sink for the bytes of one request."""
        return Sink(self.uploads / f"direct-{secrets.token_hex(12)}")

    def shown(self, entry: Entry) -> Entry:
        return shown_object(self._cloud.base_url, entry)

    # -- buckets -----------------------------------------------------------------------------

    def bucket(self, name: str) -> Entry:
        """The bucket; raises ApiError 404."""
        if name not in self.buckets:
            raise ApiError(404, "The specified bucket does not exist.")
        return self.buckets[name]

    def drop_bucket(self, bucket: str) -> None:
        """Deletes the bucket with its content, without soft delete."""
        entries: list[Entry] = []
        for table in (self.live(bucket), self.old(bucket), self.gone(bucket)):
            entries.extend(table.values())
        tables = (f"{kind}/{bucket}" for kind in ("live", "old", "gone"))
        self.journal.write(("buckets", bucket, None), *((table, None, None) for table in tables))
        self._cloud.policies.drop(f"buckets/{bucket}")
        for entry in entries:
            self.path(entry).unlink(missing_ok=True)

    def delete_bucket(self, name: str) -> None:
        """Deletes an empty bucket; soft delete keeps it with its soft-deleted objects."""
        if int(self.buckets[name]["softDeletePolicy"]["retentionDurationSeconds"]):
            self.lost.hold(self.buckets[name])
        else:
            self.drop_bucket(name)

    def is_versioned(self, bucket: str) -> bool:
        return bool((self.buckets[bucket].get("versioning") or {}).get("enabled"))

    def is_uniform(self, bucket: str) -> bool:
        """Whether the bucket has uniform access: only its policy counts."""
        return self.bucket(bucket)["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]

    # -- permissions -------------------------------------------------------------------------

    def require(
        self, caller: Caller, permission: str, bucket: str, name: str = "", listing: str = ""
    ) -> None:
        """Raises ApiError 403 unless the caller has the permission on the object or the bucket."""
        if caller.email is None:
            return
        resource = f"projects/_/buckets/{bucket}" + (f"/objects/{name}" if name else "")
        target = Target(resource, listing)
        if not self._cloud.policies.permits(caller, permission, target, f"buckets/{bucket}"):
            kind = "object" if name else "bucket"
            raise ApiError(
                403,
                f"{caller.email} does not have {permission} access to the Google Cloud Storage "
                f"{kind}. Permission '{permission}' denied on resource (or it may not exist).",
            )

    def check_payer(self, request: Request, name: str) -> None:
        """Raises ApiError if no project pays for a request to the bucket or its objects.

        A bucket whose requesters pay needs a project in the request, in which the caller may use
        services, or a caller that may bill the bucket's own project (page "Requester Pays",
        requirements, read in November 2026). A project that is named is checked in any case.
        """
        caller, project = self.caller(request), f"projects/{self._cloud.project}"
        payer = request.query_params.get("userProject") or request.headers.get(
            "x-goog-user-project", ""
        )
        permits = self._cloud.policies.permits
        if payer:
            known = payer in (self._cloud.project, self._cloud.project_number)
            use = "serviceusage.services.use"
            if not known or not permits(caller, use, Target(project)):
                raise ApiError(
                    403,
                    f"{caller.email or 'owner'} does not have {use} access to the Google Cloud"
                    f" project. Permission '{use}' denied on resource (or it may not exist).",
                )
            return
        bucket = self.buckets.get(name) or {}
        if not (bucket.get("billing") or {}).get("requesterPays"):
            return
        if not permits(caller, "resourcemanager.projects.createBillingAssignment", Target(project)):
            raise ApiError(
                400, "Bucket is a requester pays bucket but no user project provided.", "required"
            )

    def caller(self, request: Request) -> Caller:
        return self._cloud.caller(request)

    # -- objects -----------------------------------------------------------------------------

    def find(self, caller: Caller, bucket: str, name: str, generation: int | None) -> Entry:
        """The live object or the version of this generation. Raises ApiError 404, or 403 if the
        caller may not list."""
        self.bucket(bucket)
        live = self.live(bucket).get(name)
        entry = live
        if generation is not None and (live is None or int(live["generation"]) != generation):
            entry = self.old(bucket).get(version_key(name, generation))
        if entry is None:
            # A caller that may not list must not learn that an object is absent.
            hidden = "" if self.switches.absent_forbidden else name
            self.require(caller, "storage.objects.list", bucket, hidden)
            version = "" if generation is None else f"#{generation}"
            raise ApiError(404, f"No such object: {bucket}/{name}{version}")
        return entry

    def check_write(
        self, caller: Caller, bucket: str, name: str, conditions: Preconditions
    ) -> Entry | None:
        """Checks the permissions and preconditions of a write; returns the object that it would
        replace. Raises ApiError."""
        self.bucket(bucket)
        self.require(caller, "storage.objects.create", bucket, name)
        live = self.live(bucket).get(name)
        if live:
            self.require(caller, "storage.objects.delete", bucket, name)
        conditions.check(live)
        return live

    def count_write(self, bucket: str, name: str) -> None:
        """Remembers the write; raises ApiError 429 if the name was written within the interval."""
        now, interval = time.monotonic(), self.switches.write_interval_sec
        if now - self._last_write.get((bucket, name), float("-inf")) < interval:
            raise ApiError(
                429,
                f"The object {bucket}/{name} exceeded the rate limit for object mutation "
                "operations (create, update, and delete). Please reduce your request rate.",
                "rateLimitExceeded",
            )
        if len(self._last_write) >= MAX_WRITES_REMEMBERED:
            self._last_write = {
                key: at for key, at in self._last_write.items() if now - at < interval
            }
        self._last_write[bucket, name] = now

    def commit(
        self,
        caller: Caller,
        bucket: str,
        name: str,
        fields: Entry,
        sink: Sink,
        conditions: Preconditions,
        **more: Any,
    ) -> Entry:
        """Makes the sink's bytes the live object, without an await. `more` are server fields that
        this kind of write adds. Raises ApiError."""
        live = self.check_write(caller, bucket, name, conditions)
        self.count_write(bucket, name)
        entry = self._fresh(bucket, name, fields)
        entry |= {"size": str(sink.size), "crc32c": sink.crc32c, **more}
        if "componentCount" not in more:
            entry["md5Hash"] = sink.md5
        sink.move(self.path(entry))
        self._replace(bucket, live, entry)
        return entry

    def commit_copy(
        self,
        caller: Caller,
        bucket: str,
        name: str,
        fields: Entry,
        source: Entry,
        bytes_at: Path,
        conditions: Preconditions,
        *,
        moved: bool = False,
    ) -> Entry:
        """Makes the file `bytes_at`, which holds the source's bytes, the live object; if `moved`,
        deletes the source in the same change. Raises ApiError."""
        live = self.check_write(caller, bucket, name, conditions)
        self.count_write(bucket, name)
        same = ("size", "crc32c", "md5Hash", "componentCount")
        entry = self._fresh(bucket, name, fields)
        entry |= {key: source[key] for key in same if key in source}
        os.rename(bytes_at, self.path(entry))
        self._replace(bucket, live, entry, source if moved else None)
        return entry

    def _fresh(self, bucket: str, name: str, fields: Entry) -> Entry:
        now, generation = now_text(), str(self._cloud.state.next_number())
        return {
            "storageClass": self.buckets[bucket]["storageClass"],
            "contentType": "application/octet-stream",
            **fields,
            "name": name,
            "bucket": bucket,
            "generation": generation,
            "metageneration": "1",
            "etag": etag_of((generation, 1)),
            "timeCreated": now,
            "updated": now,
            "timeStorageClassUpdated": now,
            "timeFinalized": now,
        }

    def _replace(
        self, bucket: str, live: Entry | None, entry: Entry, moved: Entry | None = None
    ) -> None:
        leaving = [each for each in (live, moved) if each]
        changes = [change for each in leaving for change in self._removal(each)]
        self.journal.write(*changes, (f"live/{bucket}", entry["name"], entry))
        self._drop_bytes(leaving)

    def change(self, entry: Entry, kept: Entry) -> Entry:
        """Stores new metadata of a live or noncurrent version; returns it."""
        kept = {
            **kept,
            "metageneration": str(int(entry["metageneration"]) + 1),
            "updated": now_text(),
        }
        kept["etag"] = etag_of((kept["generation"], kept["metageneration"]))
        self.journal.write((*_place(entry), kept))
        return kept

    def delete(self, entry: Entry, *, permanently: bool) -> None:
        """Deletes a version. A live one in a bucket with versioning becomes noncurrent unless
        `permanently`; soft delete keeps the others for a time."""
        self.journal.write(*self._removal(entry, permanently=permanently))
        self._drop_bytes([entry])

    def _removal(self, entry: Entry, *, permanently: bool = False) -> list[Change]:
        """The changes that remove a version from its table, and keep it in another one if it must
        be kept."""
        bucket, name = entry["bucket"], entry["name"]
        removal: Change = (*_place(entry), None)
        if "timeDeleted" not in entry and not permanently and self.is_versioned(bucket):
            kept = {**entry, "timeDeleted": now_text()}
            return [removal, (*_place(kept), kept)]
        held_sec = int(self.buckets[bucket]["softDeletePolicy"]["retentionDurationSeconds"])
        if not held_sec:
            return [removal]
        now = time.time()
        times = {"softDeleteTime": to_rfc3339(now), "hardDeleteTime": to_rfc3339(now + held_sec)}
        key = version_key(name, int(entry["generation"]))
        return [removal, (f"gone/{bucket}", key, {**entry, **times})]

    def _drop_bytes(self, entries: Iterable[Entry]) -> None:
        """Deletes the bytes of entries that are in no table any more."""
        for entry in entries:
            key = version_key(entry["name"], int(entry["generation"]))
            if key not in self.old(entry["bucket"]) and key not in self.gone(entry["bucket"]):
                self.path(entry).unlink(missing_ok=True)


def versions_of(table: Table, name: str) -> list[Entry]:
    """The entries of this name in a table by `version_key`, the oldest first."""
    found: list[Entry] = []
    for key in table.names_from(f"{name}\n"):
        if not key.startswith(f"{name}\n"):
            break
        found.append(table[key])
    return found


def _place(entry: Entry) -> tuple[str, str]:
    """The table and key of a live or noncurrent version."""
    if "timeDeleted" in entry:
        return f"old/{entry['bucket']}", version_key(entry["name"], int(entry["generation"]))
    return f"live/{entry['bucket']}", entry["name"]
