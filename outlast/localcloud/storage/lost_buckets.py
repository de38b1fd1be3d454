"""Soft-deleted buckets, which are kept for a time."""

import time
from pathlib import Path

from outlast.localcloud.base.clock import from_rfc3339, to_rfc3339
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.base.state import Entry
from outlast.localcloud.cloud import Cloud
from outlast.localcloud.storage.journal import Journal


class LostBuckets:
    """The buckets that can be restored, each with its policy and its soft-deleted objects."""

    def __init__(self, cloud: Cloud, journal: Journal, folder: Path) -> None:
        """`folder` holds the bytes of objects, in files named by generation."""
        self._cloud = cloud
        self._journal = journal
        self._bytes = folder
        self._lost = journal.table("lost")
        """By `version_key`."""

    def all(self) -> list[Entry]:
        """The soft-deleted buckets whose time is not over."""
        self.expire()
        return list(self._lost.values())

    def names(self) -> list[str]:
        """The names of their tables of objects; no bucket has such a name."""
        return [_held_name(lost) for lost in self._lost.values()]

    def hold(self, bucket: Entry) -> None:
        """Soft-deletes an empty bucket."""
        name, now = bucket["name"], time.time()
        held_sec = int(bucket["softDeletePolicy"]["retentionDurationSeconds"])
        lost = {
            **bucket,
            "softDeleteTime": to_rfc3339(now),
            "hardDeleteTime": to_rfc3339(now + held_sec),
            "policy": self._cloud.policies.kept(f"buckets/{name}"),
        }
        gone = self._journal.table(f"gone/{name}")
        self._journal.write(
            ("buckets", name, None),
            *((f"{kind}/{name}", None, None) for kind in ("live", "old", "gone")),
            ("lost", version_key(name, int(bucket["generation"])), lost),
            *((f"gone/{_held_name(lost)}", key, entry) for key, entry in gone.items()),
        )
        self._cloud.policies.drop(f"buckets/{name}")

    def find(self, name: str, generation: int) -> Entry:
        """A soft-deleted bucket; raises ApiError 404."""
        self.expire()
        found = self._lost.get(version_key(name, generation))
        if found is None:
            raise ApiError(404, f"No such soft-deleted bucket: {name}#{generation}")
        return found

    def restore(self, lost: Entry) -> Entry:
        """Restores a bucket, with its policy and its soft-deleted objects."""
        name, key = lost["name"], version_key(lost["name"], int(lost["generation"]))
        held = _held_name(lost)
        gone = self._journal.table(f"gone/{held}")
        own = ("softDeleteTime", "hardDeleteTime", "policy")
        bucket = {field: value for field, value in lost.items() if field not in own}
        self._journal.write(
            ("lost", key, None),
            (f"gone/{held}", None, None),
            ("buckets", name, bucket),
            *((f"gone/{name}", k, entry) for k, entry in gone.items()),
        )
        policy = {"version": 3, "bindings": lost["policy"].get("bindings", [])}
        self._cloud.policies.write(f"buckets/{name}", policy, initial=True)
        return bucket

    def expire(self) -> None:
        """Deletes the buckets whose time is over."""
        now = time.time()
        for key, lost in list(self._lost.items()):
            if from_rfc3339(lost["hardDeleteTime"]) <= now:
                self._forget(key)

    def clear(self) -> None:
        """Deletes all of them."""
        for key in list(self._lost):
            self._forget(key)

    def _forget(self, key: str) -> None:
        name = _held_name(self._lost[key])
        entries = list(self._journal.table(f"gone/{name}").values())
        self._journal.write(("lost", key, None), (f"gone/{name}", None, None))
        for entry in entries:
            (self._bytes / entry["generation"]).unlink(missing_ok=True)


def version_key(name: str, generation: int) -> str:
    """The key of a version: all versions of a name are adjacent, in order. No name contains a
    newline."""
    return f"{name}\n{generation:020d}"


def _held_name(lost: Entry) -> str:
    return f"{lost['name']}#{lost['generation']}"
