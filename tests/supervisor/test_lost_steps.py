"""The record of an attempt's end names the steps that a short notice lost."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.base.exits import Reason
from outlast.bucket.store import MemoryStore, Operation
from outlast.protocol import Accepted, Stop
from tests.supervisor.world import Life, World, a_world, spec_with

COMMIT_SEC = 0.8


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as world:
        yield world


def slow_to_commit(store: Any) -> MemoryStore:
    """The store, where each manifest takes its time."""

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "put" and operation.path.endswith("/MANIFEST.json"):
            time.sleep(COMMIT_SEC)
        return perform()

    assert isinstance(store, MemoryStore)
    return store.view(around)


def stopped(world: World, script: Callable[[Life], int], *, notice: float) -> Any:
    """The record of the end of an attempt whose script has its machine stopped."""
    spec = spec_with(notice=notice)
    vm = world.boot(script, spec=spec, store=slow_to_commit(world.store)).start()
    assert vm.ended() == 75
    return world.end_of(1)


def leaves_with(world: World, *, in_flight: bool) -> Callable[[Life], int]:
    """Commits step 2, perhaps hands step 3 over, and makes step 4, after which it is stopped."""

    def script(life: Life) -> int:
        life.advance(2)
        life.commit(weight=1000)
        life.advance()
        if in_flight:
            assert isinstance(life.offer(weight=1000), Accepted)
        life.advance()
        world.cloud.set("instance/preempted", "TRUE")
        stop = life.hear(Stop)
        assert isinstance(stop, Stop)
        if stop.snapshot:
            assert isinstance(life.offer(weight=1000), Accepted)
        return 75

    return script


def test_a_step_lost_for_lack_of_time_is_reported_with_the_times(world: World) -> None:
    """A commit was in flight, and there was no time for another one."""
    end = stopped(world, leaves_with(world, in_flight=True), notice=1.5 * COMMIT_SEC)
    assert (end.reason, end.step, end.committed) == (Reason.PREEMPTED, 4, 3)
    message = re.fullmatch(
        r"the machine stops; step 4 is not committed, step 3 is: (\d\.\d) s were left,"
        r" a commit was in progress, and the last commit took (\d+\.\d) s",
        end.message,
    )
    assert message, end.message
    left, took = map(float, message.groups())
    assert left <= 1.5 * COMMIT_SEC and took >= COMMIT_SEC  # a busy machine makes both worse


def test_a_notice_shorter_than_a_commit_is_reported(world: World) -> None:
    end = stopped(world, leaves_with(world, in_flight=False), notice=0.5 * COMMIT_SEC)
    assert (end.reason, end.step, end.committed) == (Reason.PREEMPTED, 4, 2)
    lost = r"the machine stops; step 4 is not committed, step 2 is: 0\.[0-4] s were left"
    assert re.match(lost, end.message), end.message


def test_a_trainer_that_hands_no_snapshot_over_is_reported_as_the_cause(world: World) -> None:
    def script(life: Life) -> int:
        life.advance(2)
        life.commit(weight=1000)
        life.advance()
        world.cloud.set("instance/preempted", "TRUE")
        life.hear(Stop)
        return 75

    end = stopped(world, script, notice=20 * COMMIT_SEC)
    assert (end.step, end.committed) == (3, 2)
    assert end.message.endswith("the trainer did not hand it over in its share of the time")


def test_without_a_lost_step_no_steps_are_reported(world: World) -> None:
    end = stopped(world, leaves_with(world, in_flight=True), notice=20 * COMMIT_SEC)
    assert (end.step, end.committed, end.message) == (4, 4, "the machine stops")
