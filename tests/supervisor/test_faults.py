"""Commits and restores over a bucket that misbehaves: retried within a budget, then said."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from google.cloud.storage.retry import DEFAULT_RETRY

from outlast.base.retry import RETRY_AFTER_MAX_SEC, Patience, pause_after
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.head import read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.restore import Restored
from outlast.bucket.store import (
    Doubtful,
    Forbidden,
    GcsStore,
    NotFound,
    Throttled,
    Unavailable,
    gcs,
)
from tests.stores import START, FakeClock

PART = 9 << 20
"""More than the client sends in one piece: it goes up in two chunks."""


class HurriedClock(FakeClock):
    """Waits a little, so that a server which takes one write a second is not worn out."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        time.sleep(min(seconds, 0.1))


class Bucket:
    """A bucket of the local cloud, and its faults."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.store = GcsStore("runs")
        quick = DEFAULT_RETRY.with_delay(initial=0.02, maximum=0.1).with_timeout(20.0)
        self.store._read_retry = gcs._Obedient(quick)
        self.layout = Layout(f"experiments/x{time.time_ns()}", "0123456789")
        self.clock = HurriedClock()

    def fault(self, when: str, do: dict[str, Any], **match: Any) -> None:
        rule = {"match": match, "when": when, "do": do}
        answer = requests.post(f"{self._address}/_local/faults", json=rule, timeout=60)
        assert answer.status_code == 200, answer.text

    def fired(self) -> int:
        """How often the faults have struck."""
        rules = requests.get(f"{self._address}/_local/faults", timeout=60).json()
        return sum(rule["fired"] for rule in rules)

    def recover(self) -> None:
        requests.delete(f"{self._address}/_local/faults", timeout=60)

    def attempt(self) -> Committer:
        head_file = HeadFile(self.store, self.layout, self.clock)
        head_file.take_term(Claim("org/demo/dev", 0, 0, START + timedelta(days=36_500)))
        return Committer(head_file, part_bytes=PART)

    @property
    def steps(self) -> list[int]:
        return [entry.step for entry in read_head(self.store, self.layout).head.chain]


@pytest.fixture
def bucket(storage_api: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    bucket = Bucket(storage_api)
    yield bucket
    bucket.recover()
    bucket.store.close()


LARGE = os.urandom(2 * PART - 6)


def large(name: str) -> bytes:
    return name.encode() + LARGE + name.encode()


def snapshot(folder: Path, name: str) -> Path:
    """Two large parts, which differ from snapshot to snapshot, and a file that does not."""
    (folder / name).mkdir()
    (folder / name / "large").write_bytes(large(name))
    (folder / name / "same").write_bytes(b"same")
    return folder / name


ONE = {"object": "large/000000$"}
OTHER = {"object": "large/000001$"}
COPY = {"path": "/rewriteTo/"}
MANIFEST = {"object": "MANIFEST.json$", "method": "POST"}
HEAD = {"object": "/HEAD$", "method": "POST"}
OPENS, SENDS = {"method": "POST"}, {"method": "PUT"}
SENDS_LAST = {"method": "PUT", "nth": 2}

Fault = tuple[str, dict[str, Any], dict[str, Any]]


@pytest.mark.parametrize(
    "faults",
    [
        [
            ("before", {"status": 429, "retry_after_sec": 1}, {**ONE, **SENDS}),
            ("mid-body", {"reset": True}, {**OTHER, **SENDS}),
            ("after", {"drop_answer": True}, MANIFEST),
            ("before", {"status": 429, "retry_after_sec": 1}, HEAD),
        ],
        [
            ("before", {"status": 503}, {**ONE, **OPENS}),
            ("after", {"drop_answer": True}, {**OTHER, **SENDS_LAST}),  # whole, and not heard
            ("mid-body", {"reset": True}, MANIFEST),
            ("after", {"drop_answer": True}, HEAD),
        ],
        [
            ("after", {"drop_answer": True}, {**ONE, **OPENS}),
            ("before", {"stall": True}, {**OTHER, **SENDS_LAST}),
            ("after", {"drop_answer": True}, COPY),
            ("before", {"status": 503}, MANIFEST),
        ],
        [
            ("before", {"reset": True}, {**ONE, **SENDS}),
            ("after", {"status": 503}, {**OTHER, **SENDS_LAST}),
            ("before", {"status": 503}, COPY),
            ("before", {"stall": True}, HEAD),
        ],
        [
            ("before", {"status": 404}, {**ONE, **SENDS}),  # the upload's session
            ("before", {"status": 410}, {**OTHER, **SENDS_LAST}),
        ],
        [
            ("before", {"status": 400}, {**ONE, **SENDS}),
            ("before", {"status": 409}, {**OTHER, **OPENS}),
            ("before", {"status": 400}, MANIFEST),
            ("before", {"status": 409}, HEAD),
        ],
    ],
    ids=["slow down", "cut", "lost", "stalled", "forgotten", "doubtful"],
)
def test_a_commit_succeeds_despite_faults(
    bucket: Bucket, tmp_path: Path, faults: list[Fault]
) -> None:
    bucket.store._timeout = (5.0, 1.0)  # of a chunk, and of its answer
    committer = bucket.attempt()
    committer.commit(snapshot(tmp_path, "one"), step=1)
    for when, do, match in faults:
        bucket.fault(when, do, **match)
    whole = committer.commit(snapshot(tmp_path, "two"), step=2)
    assert bucket.fired() == len(faults)
    bucket.recover()
    assert bucket.steps == [1, 2]
    restored = committer.restore(tmp_path / "restored")
    assert isinstance(restored, Restored) and restored.checkpoint == whole
    assert (restored.path / "large").read_bytes() == large("two")
    assert (restored.path / "same").read_bytes() == b"same"


def test_a_hanging_request_is_given_up_at_its_time_limit(bucket: Bucket) -> None:
    bucket.fault("before", {"stall": True}, method="POST", object="/HEAD$")
    with closing(GcsStore("runs", stall_sec=0.2)) as hurried:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            hurried.put(bucket.layout.head, b"x")
    assert 0.4 <= time.monotonic() - began < 10


def test_a_restore_succeeds_despite_faults(bucket: Bucket, tmp_path: Path) -> None:
    bucket.store._timeout = (5.0, 1.0)
    committer = bucket.attempt()
    committer.commit(snapshot(tmp_path, "one"), step=1)
    bucket.fault("before", {"status": 503}, path="000000.*alt=media")
    bucket.fault("mid-body", {"reset": True}, path="000000.*alt=media", nth=2)
    bucket.fault("before", {"stall": True}, path="000001.*alt=media")
    restored = committer.restore(tmp_path / "restored")
    assert bucket.fired() == 3
    assert (tmp_path / "restored" / "large").read_bytes() == large("one")
    assert restored.step == 1


@pytest.mark.parametrize(
    ("do", "kind"),
    [
        ({"status": 429}, Throttled),
        ({"status": 503, "retry_after_sec": 5}, Unavailable),
        ({"reset": True}, Unavailable),
        ({"status": 403}, Forbidden),
        ({"status": 404}, NotFound),  # the bucket is gone
        ({"status": 400}, Doubtful),
        ({"status": 409}, Doubtful),
    ],
    ids=str,
)
def test_a_lasting_fault_is_an_error_with_its_reason_and_no_checkpoint(
    bucket: Bucket, tmp_path: Path, do: dict[str, Any], kind: type[Exception]
) -> None:
    committer = bucket.attempt()
    bucket.fault("before", do, object="/state$", method="POST", count=0)
    (tmp_path / "snap").mkdir()
    (tmp_path / "snap" / "state").write_bytes(b"state")
    with pytest.raises(kind):
        committer.commit(tmp_path / "snap", step=2)
    assert bucket.fired() > 0 and bucket.steps == []


def test_a_deleted_bucket_does_not_start_from_scratch(bucket: Bucket) -> None:
    head_file = HeadFile(GcsStore("never-made"), bucket.layout, bucket.clock)
    with pytest.raises(NotFound):
        head_file.take_term(Claim("org/demo/dev", 0, 0, START))


# -- Retry-After --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        (None, 0.5, 1.5),
        (0.1, 0.5, 1.5),
        (7.0, 7.0, 7.0),
        (1e6, RETRY_AFTER_MAX_SEC, RETRY_AFTER_MAX_SEC),
    ],
)
def test_the_requested_pause_is_used_up_to_a_cap(
    asked: float | None, least: float, most: float
) -> None:
    error = Throttled("slow")
    error.retry_after_sec = asked
    assert least <= pause_after(error, 1.0) <= most


def test_a_server_that_asks_for_a_pause_gets_it(bucket: Bucket, clock: FakeClock) -> None:
    """By a writer that repeats the write itself."""
    bucket.fault("before", {"status": 503, "retry_after_sec": 40}, object="/x$", method="POST")
    path = f"{bucket.layout.root}x"
    Patience(clock)(lambda: bucket.store.put(path, b"x", if_generation_match=0))
    assert clock.elapsed == 40


def test_the_clients_own_retries_also_pause_as_asked(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of reads, and of the chunks of large objects."""
    slept: list[float] = []
    monkeypatch.setattr(gcs, "time", Sleepless(slept.append))
    path = f"{bucket.layout.root}x"
    bucket.store.put(path, b"x", if_generation_match=0)
    bucket.fault("before", {"status": 429, "retry_after_sec": 33}, object="/x$", method="GET")
    assert bucket.store.get(path)[0] == b"x"
    assert slept == [33]


class Sleepless:
    """The time, without its sleep."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
