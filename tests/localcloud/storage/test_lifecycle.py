"""Lists by pattern, and what a bucket's lifecycle rules do when their time has come."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from outlast.bucket.layout import Layout
from outlast.localcloud.base.clock import from_rfc3339, to_rfc3339
from tests.localcloud.local_cloud import LocalCloud, make_bucket

DAY_SEC = 86400


def names(cloud: LocalCloud, bucket: str, **params: str) -> list[str]:
    answer = cloud.call("GET", f"/storage/v1/b/{bucket}/o", params=params)
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json().get("items", [])]


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*", ["a.csv", "b.txt"]),
        ("**", ["a.csv", "b.txt", "d/a.csv", "d/e/c9.csv"]),
        ("**.csv", ["a.csv", "d/a.csv", "d/e/c9.csv"]),
        ("d/*.csv", ["d/a.csv"]),
        ("?.{csv,txt}", ["a.csv", "b.txt"]),
        ("[!b]*", ["a.csv"]),
        ("**/c[0-9].csv", ["d/e/c9.csv"]),
        ("d\\/a.csv", ["d/a.csv"]),
        ("d?a.csv", []),
    ],
)
def test_a_glob_matches_names(cloud: LocalCloud, bucket: str, glob: str, found: list[str]) -> None:
    for name in ("a.csv", "b.txt", "d/a.csv", "d/e/c9.csv"):
        cloud.put(bucket, name)
    assert names(cloud, bucket, matchGlob=glob) == found


@pytest.mark.parametrize("glob", ["[", "[z-a]", "{a", "a\\", "x" * 1025])
def test_an_invalid_glob_is_refused(cloud: LocalCloud, bucket: str, glob: str) -> None:
    answer = cloud.call("GET", f"/storage/v1/b/{bucket}/o", params={"matchGlob": glob})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("Invalid matchGlob")


def rule(action: str, storage_class: str = "", **condition: Any) -> dict[str, Any]:
    kind = {"type": action, **({"storageClass": storage_class} if storage_class else {})}
    return {"action": kind, "condition": condition}


def apply(cloud: LocalCloud, bucket: str, at: float) -> list[tuple[str, str]]:
    answer = cloud.call("POST", "/_local/lifecycle", json={"at": to_rfc3339(at)})
    assert answer.status_code == 200, answer.text
    done = answer.json()["done"]
    return sorted((one["name"], one["action"]) for one in done if one["bucket"] == bucket)


def test_rules_delete_and_move_objects_that_are_old_enough(cloud: LocalCloud) -> None:
    rules = [
        rule("Delete", age=30, matchesPrefix=["tmp/"]),
        rule("SetStorageClass", "NEARLINE", age=10),
        rule("Delete", numNewerVersions=1, daysSinceNoncurrentTime=3),
    ]
    bucket = make_bucket(cloud, lifecycle={"rule": rules})
    made = [cloud.put(bucket, name).json() for name in ("kept", "tmp/a")]
    start = max(from_rfc3339(entry["timeCreated"]) for entry in made)
    assert apply(cloud, bucket, start + 9 * DAY_SEC) == []
    moved = [("kept", "SetStorageClass"), ("tmp/a", "SetStorageClass")]
    assert apply(cloud, bucket, start + 11 * DAY_SEC) == moved
    assert cloud.object("GET", bucket, "kept").json()["storageClass"] == "NEARLINE"
    assert apply(cloud, bucket, start + 11 * DAY_SEC) == []
    assert apply(cloud, bucket, start + 31 * DAY_SEC) == [("tmp/a", "Delete")]
    assert names(cloud, bucket) == ["kept"]
    assert names(cloud, bucket, softDeleted="true") == ["tmp/a"]


def test_rules_delete_replaced_versions(cloud: LocalCloud) -> None:
    rules = [rule("Delete", isLive=False, daysSinceNoncurrentTime=3)]
    bucket = make_bucket(cloud, lifecycle={"rule": rules}, versioning={"enabled": True})
    cloud.put(bucket, "gone")
    cloud.object("DELETE", bucket, "gone")
    start = from_rfc3339(cloud.put(bucket, "live").json()["timeCreated"])
    assert apply(cloud, bucket, start + 2 * DAY_SEC) == []
    assert apply(cloud, bucket, start + 4 * DAY_SEC) == [("gone", "Delete")]
    assert names(cloud, bucket, versions="true") == ["live"]


def test_bad_rules_and_times_are_refused(cloud: LocalCloud, bucket: str) -> None:
    for wrong in (rule("Delete", createdBefore="soon"), rule("SetStorageClass", "COLD", age=1)):
        answer = cloud.call(
            "PATCH", f"/storage/v1/b/{bucket}", json={"lifecycle": {"rule": [wrong]}}
        )
        assert answer.status_code == 400
    for at in ("soon", 5, None):
        answer = cloud.call("POST", "/_local/lifecycle", json={"at": at})
        assert answer.status_code == 400
        assert "must be a time as" in answer.json()["error"]["message"]


def test_the_documented_rule_deletes_old_packages_and_nothing_else(cloud: LocalCloud) -> None:
    page = (Path(__file__).parents[3] / "docs" / "machines.md").read_text()
    (text,) = re.findall(r"```json\n(\{\"rule\".*)\n```", page)
    bucket = make_bucket(cloud, lifecycle=json.loads(text))
    experiment = Layout("experiments/first", "0123456789")
    old = f"{experiment.environments}old.zip"
    kept = [
        *(experiment.head, f"{experiment.snapshot(1, 9, '0')}model.zip", experiment.bundle("a")),
        *(experiment.manifest(1, 9, "0"), f"{experiment.result(1)}environments/model.zip"),
        Layout("experiments/first-2", "0123456789").environments + "theirs.zip",
    ]
    made = [cloud.put(bucket, name).json()["timeCreated"] for name in (old, *kept)]
    assert apply(cloud, bucket, from_rfc3339(min(made)) + 179 * DAY_SEC) == []
    assert apply(cloud, bucket, from_rfc3339(max(made)) + 181 * DAY_SEC) == [(old, "Delete")]
    assert names(cloud, bucket) == sorted(kept)
