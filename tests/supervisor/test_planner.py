"""Which commits are begun in the seconds that are left."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.base.exits import Reason
from outlast.bucket.store import MemoryStore, Operation, Store
from outlast.protocol import Accepted, Busy, Committed, Stop
from outlast.supervisor.planner import (
    SPARE_SHARE,
    Decision,
    Outlook,
    Plan,
    decide,
)
from tests.supervisor.world import (
    Life,
    World,
    a_world,
    spec_with,
    wait_until,
)

MB = 1_000_000


def outlook(**changed: Any) -> Outlook:
    """30 s left at 100 MB/s, a state of 500 MB, no commit in flight."""
    known: dict[str, Any] = {
        "left_sec": 30.0,
        "in_flight_bytes": None,
        "new_bytes": 500 * MB,
        "bytes_per_sec": 100.0 * MB,
        "overhead_sec": 1.0,
        "write_sec": 1.0,
    }
    return Outlook(**{**known, **changed})


@pytest.mark.parametrize(
    ("changed", "plan", "trainer_sec"),
    [
        ({}, Plan.NEW, 21.0),  # of 27 s, 5 go into the bytes and 1 into the rest
        ({"in_flight_bytes": 500 * MB}, Plan.FINISH_AND_NEW, 21.0),
        ({"in_flight_bytes": 2000 * MB}, Plan.FINISH_AND_NEW, 21.0),  # 21 s, and then 6
        ({"in_flight_bytes": 2001 * MB}, Plan.FINISH, 0.0),
        ({"in_flight_bytes": 2600 * MB}, Plan.FINISH, 0.0),
        ({"in_flight_bytes": 2601 * MB}, Plan.NOTHING, 0.0),
        ({"in_flight_bytes": 0}, Plan.FINISH_AND_NEW, 21.0),
        ({"new_bytes": 2500 * MB}, Plan.NEW, 1.0),
        ({"new_bytes": 2501 * MB}, Plan.NOTHING, 0.0),
        ({"write_sec": 21.0}, Plan.NEW, 21.0),
        ({"write_sec": 22.0}, Plan.NOTHING, 0.0),
        ({"left_sec": 120.0, "new_bytes": 9000 * MB}, Plan.NEW, 17.0),
        ({"left_sec": 0.0}, Plan.NOTHING, 0.0),
        ({"left_sec": -5.0}, Plan.NOTHING, 0.0),
        ({"bytes_per_sec": None}, Plan.NEW, 15.0),
        ({"bytes_per_sec": None, "in_flight_bytes": 1}, Plan.FINISH_AND_NEW, 15.0),
    ],
)
def test_the_plan(changed: dict[str, Any], plan: Plan, trainer_sec: float) -> None:
    found = decide(outlook(**changed))
    assert found.plan is plan
    assert found.trainer_sec == pytest.approx(trainer_sec)


SIZES = st.integers(0, 10**13)
SECONDS = st.floats(0, 1e4)


@given(SECONDS, st.none() | SIZES, SIZES, st.floats(1.0, 1e11), SECONDS, SECONDS)
def test_only_commits_that_can_finish_are_begun(
    left_sec: float,
    in_flight: int | None,
    new_bytes: int,
    rate: float,
    overhead_sec: float,
    write_sec: float,
) -> None:
    seen = Outlook(left_sec, in_flight, new_bytes, rate, overhead_sec, write_sec)
    found = decide(seen)
    usable_sec = left_sec * (1 - SPARE_SHARE)
    finish_sec = 0.0 if in_flight is None else in_flight / rate + overhead_sec
    new_sec = new_bytes / rate + overhead_sec
    fits = max(finish_sec, write_sec) + new_sec <= usable_sec and left_sec > 0
    assert found.plan.new == fits
    if found.plan.new:
        assert write_sec <= found.trainer_sec * (1 + 1e-9)
    else:
        assert found == Decision(found.plan, 0.0)
        assert (found.plan is Plan.FINISH) == (
            in_flight is not None and finish_sec <= usable_sec and left_sec > 0
        )


# -- in an attempt ----------------------------------------------------------------------------


WEIGHT = 400_000
UPLOAD_SEC = 0.4
"""A store that is slow enough for its speed to be measured."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as world:
        yield world


def throttled(
    world: World, *, upload_sec: float = UPLOAD_SEC, after: threading.Event | None = None
) -> tuple[Store, list[str]]:
    """The world's store, where a weight takes so long, and which ones were begun. With ``after``
    the second one begins to flow once that is set."""
    begun: list[str] = []

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "put" and operation.path.endswith("weight.bin"):
            begun.append(operation.path)
            if after is not None and len(begun) == 2:
                assert after.wait(60)
            time.sleep(upload_sec)  # this is the throttle
        return perform()

    assert isinstance(world.store, MemoryStore)
    return world.store.view(around), begun


@pytest.mark.parametrize(("stop_sec", "wanted"), [(5.0, True), (0.2, False)])
def test_a_snapshot_is_requested_only_if_it_can_be_committed(
    world: World, stop_sec: float, wanted: bool
) -> None:
    store, begun = throttled(world)
    heard: list[bool] = []

    def script(life: Life) -> int:
        life.advance(1)
        life.commit(weight=WEIGHT)
        life.advance(1)
        measured.set()
        stop = life.hear(Stop)
        assert isinstance(stop, Stop)
        heard.append(stop.snapshot)
        if stop.snapshot:
            life.commit(weight=WEIGHT)
        else:
            assert isinstance(life.offer(weight=WEIGHT), Busy)  # nor is it taken
        return 75

    measured = threading.Event()
    vm = world.boot(script, spec=spec_with(stop=stop_sec), store=store).start()
    assert measured.wait(60)
    vm.terminate()
    assert vm.ended() == 75
    assert heard == [wanted]
    assert len(begun) == (2 if wanted else 1)
    assert [entry.step for entry in world.head.chain] == ([1, 2] if wanted else [1])
    assert world.end_of(1).reason is Reason.INTERRUPTED
    assert any(f"plan: {'new' if wanted else 'nothing'}" in line for line in vm.said)


def test_the_commit_in_flight_is_finished_and_no_other_begun(world: World) -> None:
    """One fits into the time left, two do not."""
    proceed, offered = threading.Event(), threading.Event()
    store, begun = throttled(world, upload_sec=4.0, after=proceed)

    def script(life: Life) -> int:
        life.advance(1)
        life.commit(weight=WEIGHT)
        life.advance(1)
        assert isinstance(life.offer(weight=WEIGHT), Accepted)
        life.advance(1)
        offered.set()
        stop = life.hear(Stop)
        assert isinstance(stop, Stop) and not stop.snapshot
        proceed.set()
        assert isinstance(life.offer(weight=WEIGHT), Busy)
        life.hear(Committed)
        return 75

    vm = world.boot(script, spec=spec_with(stop=6.5), store=store).start()
    assert offered.wait(60)
    wait_until(lambda: len(begun) == 2, "the second upload")
    vm.terminate()
    assert vm.ended() == 75
    assert [entry.step for entry in world.head.chain] == [1, 2]
    assert any("plan: finish," in line for line in vm.said)


def test_a_commit_that_became_too_late_is_not_begun(world: World) -> None:
    """There was time for two when the notice came; the first one has not moved since."""
    proceed, offered = threading.Event(), threading.Event()
    store, begun = throttled(world, upload_sec=1.2, after=proceed)

    def script(life: Life) -> int:
        life.advance(1)
        life.commit(weight=WEIGHT)
        life.advance(1)
        assert isinstance(life.offer(weight=WEIGHT), Accepted)
        life.advance(1)
        offered.set()
        stop = life.hear(Stop)
        assert isinstance(stop, Stop) and stop.snapshot
        time.sleep(stop.seconds * 0.9)
        assert isinstance(life.offer(weight=WEIGHT), Busy)
        refused = life.hear(Stop)
        assert isinstance(refused, Stop) and not refused.snapshot
        proceed.set()
        return 75

    vm = world.boot(script, spec=spec_with(stop=6.0), store=store).start()
    assert offered.wait(60)
    wait_until(lambda: len(begun) == 2, "the second upload")
    vm.terminate()
    assert vm.ended() == 75
    assert len(begun) == 2
    assert [entry.step for entry in world.head.chain] == [1, 2]
