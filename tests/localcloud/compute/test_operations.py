"""Operations that are slow or fail."""

import itertools

import pytest

from outlast.localcloud.compute.operations import Operations
from tests.localcloud.compute.fleet.world import FakeClock

PATH = "zones/europe-west4-a/instanceGroupManagers/g1"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def operations(clock: FakeClock) -> Operations:
    numbers = itertools.count(1)
    return Operations(clock, lambda path: f"https://host/{path}", lambda: next(numbers))


def test_an_operation_is_done_when_its_work_is_done(operations: Operations) -> None:
    done = False
    name = operations.record("delete", PATH, "7", lambda: done)["name"]
    assert operations.shown(name)["status"] == "RUNNING"
    done = True
    shown = operations.shown(name)
    assert (shown["status"], shown["zone"]) == ("DONE", "https://host/zones/europe-west4-a")
    assert operations.of("zones/europe-west4-a") == [shown]
    assert operations.of("global") == []


def test_slow_operation_runs_until_its_time_has_passed(
    operations: Operations, clock: FakeClock
) -> None:
    operations.add("POST zones/.*/instanceGroupManagers/g1", delay_sec=5)
    trouble = operations.trouble("POST", PATH)
    assert trouble
    slowed = operations.slowed(operations.record("insert", PATH, "7"), trouble.delay_sec)
    assert slowed["status"] == "RUNNING"
    assert operations.next_time() == clock.now() + 5
    clock.advance(5)
    assert operations.shown(slowed["name"])["status"] == "DONE"
    assert operations.next_time() is None


def test_a_fault_applies_to_its_calls_as_often_as_it_says(operations: Operations) -> None:
    operations.add("DELETE .*", error=("QUOTA_EXCEEDED", "no"), times=1)
    operations.add("POST .*", delay_sec=1, applies=lambda path: path.endswith("/g2"))
    assert operations.trouble("POST", PATH) is None
    assert operations.trouble("POST", PATH.replace("g1", "g2"))
    trouble = operations.trouble("DELETE", PATH)
    assert trouble and trouble.error
    assert operations.trouble("DELETE", PATH) is None
    shown = operations.record("delete", PATH, "7", error=trouble.error)
    assert shown["status"] == "DONE"
    assert shown["error"] == {"errors": [{"code": "QUOTA_EXCEEDED", "message": "no"}]}
    assert (shown["httpErrorStatusCode"], shown["httpErrorMessage"]) == (403, "FORBIDDEN")
    operations.clear()
    assert operations.trouble("POST", PATH.replace("g1", "g2")) is None


def test_error_of_a_slow_operation_is_reported_at_its_end(
    operations: Operations, clock: FakeClock
) -> None:
    operations.add(".*", delay_sec=3, error=("INTERNAL_ERROR", "no"))
    trouble = operations.trouble("DELETE", PATH)
    assert trouble
    recorded = operations.record("delete", PATH, "0", error=trouble.error)
    assert "error" not in operations.slowed(recorded, trouble.delay_sec)
    clock.advance(3)
    assert operations.shown(recorded["name"])["error"]
