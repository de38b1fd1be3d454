"""The lock of a sweep: held by one process, taken over from a dead one."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from outlast.bucket.store import MemoryStore
from outlast.bucket.sweeps import SweepObjects
from outlast.cli.sweep import lock
from outlast.cli.sweep.lock import Busy, LockRecord, SweepLock
from tests.stores import FakeClock, clock  # noqa: F401  a fixture


@pytest.fixture
def objects(clock: FakeClock) -> SweepObjects:  # noqa: F811
    return SweepObjects(MemoryStore(clock=clock.now), "lr")


def held_by(objects: SweepObjects, **changes: Any) -> None:
    now = objects.store.now()
    record = replace(LockRecord("ann", "elsewhere", 7, "n", now), **changes)
    objects.store.put(objects.lock, record.to_json())


def taken(objects: SweepObjects) -> LockRecord:
    held = SweepLock(objects)
    held.take()
    with held:
        found = LockRecord.from_json(objects.store.get(objects.lock)[0])
    assert not list(objects.store.list(objects.lock)), "it is given back"
    return found


def test_it_names_its_holder(objects: SweepObjects) -> None:
    found = taken(objects)
    assert (found.host, found.pid) == (socket.gethostname(), os.getpid())


def test_a_living_holder_keeps_it(objects: SweepObjects) -> None:
    held_by(objects, host=socket.gethostname(), pid=os.getpid())
    with pytest.raises(Busy):
        SweepLock(objects).take()


def test_a_dead_holder_of_this_machine_loses_it_at_once(objects: SweepObjects) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    held_by(objects, host=socket.gethostname(), pid=child.pid)
    assert taken(objects).pid == os.getpid()


def test_a_silent_holder_of_another_machine_loses_it(
    objects: SweepObjects,
    clock: FakeClock,  # noqa: F811
) -> None:
    held_by(objects)
    clock.elapsed += lock.STALE_SEC - 1
    with pytest.raises(Busy, match=r"ann@elsewhere, pid 7, last heartbeat 89 s ago"):
        SweepLock(objects).take()
    clock.elapsed += 2
    taken(objects)


def test_a_torn_lock_is_not_passed_over_at_once(objects: SweepObjects, clock: FakeClock) -> None:  # noqa: F811
    objects.store.put(objects.lock, b"{")
    with pytest.raises(Busy, match="is not JSON"):
        SweepLock(objects).take()
    clock.elapsed += lock.STALE_SEC + 1
    taken(objects)


def test_of_two_at_the_same_moment_one_gets_it(
    objects: SweepObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = objects.store.put

    def after_another(path: str, data: bytes, **named: Any) -> Any:
        monkeypatch.setattr(objects.store, "put", put)
        held_by(objects)
        return put(path, data, **named)

    monkeypatch.setattr(objects.store, "put", after_another)
    with pytest.raises(Busy, match="has just begun to work on it"):
        SweepLock(objects).take()


def test_it_is_kept_alive_and_a_lost_one_says_so(
    objects: SweepObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SEC", 0.01)
    held = SweepLock(objects)
    held.take()
    with held:
        first = objects.store.stat(objects.lock).generation
        while objects.store.stat(objects.lock).generation == first:
            held.lost.wait(0.01)
        assert not held.lost.is_set()
        held_by(objects)
        assert held.lost.wait(60)
    assert LockRecord.from_json(objects.store.get(objects.lock)[0]).user == "ann"


def test_a_lost_lock_ends_the_work_of_its_holder(objects: SweepObjects) -> None:
    """`each` begins nothing more."""
    from outlast.cli.sweep import bring_up

    held = SweepLock(objects)
    done: list[int] = []

    def job() -> None:
        if not held.lost.is_set():
            done.append(1)
            held.lost.set()

    bring_up.each([job] * 5, 1, held.lost)
    assert done == [1]


def test_a_clock_that_is_behind_gives_no_negative_age(
    objects: SweepObjects,
    clock: FakeClock,  # noqa: F811
) -> None:
    held_by(objects)
    clock.elapsed -= timedelta(seconds=5).total_seconds()
    with pytest.raises(Busy, match="last heartbeat 0 s ago"):
        SweepLock(objects).take()
