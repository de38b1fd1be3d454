"""Applies buckets' lifecycle rules on request.

The platform applies them about once a day; here a rehearsal names the moment."""

from datetime import date, datetime
from typing import Any

from outlast.localcloud.base.clock import from_rfc3339
from outlast.localcloud.base.state import Entry
from outlast.localcloud.storage.store import DAY_SEC, Store, versions_of


def apply(store: Store, at: float) -> list[Entry]:
    """Applies the rules of all buckets as of a moment; returns [{bucket, name, generation,
    action}]. An object that one rule deletes gets no class by another."""
    done: list[Entry] = []
    for bucket in list(store.buckets):
        rules = (store.buckets[bucket].get("lifecycle") or {}).get("rule") or []
        entries = [*store.live(bucket).values(), *store.old(bucket).values()]
        for entry in entries:
            newer = _newer_versions(store, entry)
            due = [r["action"] for r in rules if _holds(r["condition"], entry, newer, at)]
            action = _chosen(due, entry)
            if action is None:
                continue
            if action["type"] == "Delete":
                store.delete(entry, permanently=False)
            else:
                store.change(entry, {**entry, "storageClass": action["storageClass"]})
            named = {key: entry[key] for key in ("bucket", "name", "generation")}
            done.append({**named, "action": action["type"]})
    return done


def _chosen(due: list[Entry], entry: Entry) -> Entry | None:
    deletes = [action for action in due if action["type"] == "Delete"]
    moves = [
        action
        for action in due
        if action["type"] == "SetStorageClass" and action["storageClass"] != entry["storageClass"]
    ]
    return next(iter([*deletes, *moves]), None)


def _newer_versions(store: Store, entry: Entry) -> int:
    bucket, name = entry["bucket"], entry["name"]
    live = store.live(bucket).get(name)
    versions = [*versions_of(store.old(bucket), name), *([live] if live else [])]
    return sum(int(version["generation"]) > int(entry["generation"]) for version in versions)


def _holds(condition: Entry, entry: Entry, newer: int, at: float) -> bool:
    """Whether all of a rule's conditions hold; an unknown condition never does."""
    gone = entry.get("timeDeleted")
    tests: dict[str, Any] = {
        "age": lambda days: _days(entry["timeCreated"], at) >= int(days),
        "createdBefore": lambda day: _day(entry["timeCreated"]) < date.fromisoformat(day),
        "isLive": lambda live: live == (gone is None),
        "numNewerVersions": lambda number: newer >= int(number),
        "daysSinceNoncurrentTime": lambda days: bool(gone) and _days(gone, at) >= int(days),
        "noncurrentTimeBefore": lambda day: bool(gone) and _day(gone) < date.fromisoformat(day),
        "matchesPrefix": lambda starts: entry["name"].startswith(tuple(starts)),
        "matchesSuffix": lambda ends: entry["name"].endswith(tuple(ends)),
        "matchesStorageClass": lambda classes: entry["storageClass"] in classes,
    }
    return all(name in tests and tests[name](value) for name, value in condition.items())


def _days(since: str, at: float) -> float:
    return (at - from_rfc3339(since)) / DAY_SEC


def _day(time: str) -> date:
    return datetime.fromisoformat(time).date()
