"""Where a run's time went: every second has one use, and the shares are Google's."""

from dataclasses import replace

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket import goodput, history
from outlast.bucket.goodput import Use
from outlast.bucket.layout import AttemptEnd
from outlast.bucket.store import MemoryStore
from tests.bucket.test_history import (  # noqa: F401  a fixture
    LAYOUT,
    NOW,
    at,
    head,
    put_end,
    put_heartbeat,
    put_start,
    store,  # noqa: F401
)


def put_boot(store: MemoryStore, vm: int, seconds: float, end: float | None = None) -> None:  # noqa: F811
    NOW.seconds = seconds
    store.put(LAYOUT.boot(str(vm), f"b{vm}"), b"{}")
    if end is not None:
        NOW.seconds = end
        store.put(LAYOUT.boot_end(str(vm), f"b{vm}"), b"{}")


def read(store: MemoryStore) -> history.History:  # noqa: F811
    book = history.read(store, LAYOUT)
    assert book is not None
    return book


def seconds(found: goodput.Goodput) -> dict[Use, float]:
    return {use: found.seconds(use) for use in Use if found.seconds(use)}


def test_every_second_has_one_use_and_the_shares_follow(store: MemoryStore) -> None:  # noqa: F811
    put_boot(store, 1, 0)
    put_start(store, 1, 10, 0)
    put_end(store, 1, 50, 40, Reason.PREEMPTED)  # 40 s for 40 steps, of which 10 are lost
    put_boot(store, 9, 60, end=65)  # never came to an attempt
    put_boot(store, 2, 70)
    put_start(store, 2, 80, 30)
    put_end(store, 2, 150, 100, Reason.DONE)
    record = AttemptEnd.from_json(store.get(LAYOUT.attempt_end(2))[0])
    NOW.seconds = 150
    store.put(LAYOUT.attempt_end(2), replace(record, staged_sec=20.0).to_json())
    store.put(LAYOUT.head, head(2, State.DONE).to_json())
    found = goodput.of(read(store))
    assert found is not None
    assert seconds(found) == pytest.approx(
        {
            Use.PRODUCTIVE: 30 + 50,
            Use.LOST: 10,
            Use.DATA: 20,
            Use.STARTUP: 10 + 10,
            Use.FAILED_BOOT: 5,
            Use.WAITING: 10 + 5,
        }
    )
    assert found.wall_sec == 150
    starts = [one.start for one in found.stretches]
    assert starts == sorted(starts) and starts[0] == at(0) and found.stretches[-1].end == at(150)
    assert found.scheduling == pytest.approx(135 / 150)
    assert found.runtime == pytest.approx(80 / 135)
    assert found.share == pytest.approx(found.scheduling * found.runtime)
    shown = found.as_json()
    assert shown["program"] is None and sum(one["sec"] for one in shown["causes"]) == 150


def test_kept_step_seconds_over_the_time_from_first_boot_to_end(store: MemoryStore) -> None:  # noqa: F811
    put_boot(store, 1, 0)
    put_start(store, 1, 10, 0)
    put_end(store, 1, 50, 40, Reason.PREEMPTED)
    put_start(store, 2, 60, 30)
    put_end(store, 2, 100, 100, Reason.DONE)
    store.put(LAYOUT.head, head(2, State.DONE).to_json())
    book = read(store)
    found = goodput.of(book)
    assert book.steps_lost == 10 and found is not None
    assert found.share == pytest.approx((40 * 30 / 40 + 40) / 100)


def test_an_open_run_is_counted_up_to_its_last_sign_of_life_or_up_to_now(
    store: MemoryStore,  # noqa: F811
) -> None:
    put_boot(store, 1, 0)
    put_start(store, 1, 10, 0)
    put_heartbeat(store, 1, 40, 30)
    store.put(LAYOUT.head, head(1).to_json())
    assert goodput.of(read(store)) is None
    working = goodput.of(read(store), at(45))
    assert working is not None and working.wall_sec == 40
    put_end(store, 1, 50, 40, Reason.PREEMPTED)
    waiting = goodput.of(read(store), at(90))
    assert waiting is not None and waiting.wall_sec == 90
    assert seconds(waiting) == pytest.approx({Use.STARTUP: 10, Use.PRODUCTIVE: 40, Use.WAITING: 40})
    put_boot(store, 2, 60, end=65)
    put_boot(store, 3, 70)
    booting = goodput.of(read(store), at(90))
    assert booting is not None and seconds(booting) == pytest.approx(
        {Use.STARTUP: 30, Use.PRODUCTIVE: 40, Use.WAITING: 15, Use.FAILED_BOOT: 5}
    )


def test_a_fenced_attempt_that_ends_after_its_successor_began_is_counted_once(
    store: MemoryStore,  # noqa: F811
) -> None:
    put_boot(store, 1, 0)
    put_start(store, 1, 10, 0)
    put_start(store, 2, 50, 20)
    put_end(store, 1, 70, 40, Reason.FENCED)
    put_end(store, 2, 90, 60, Reason.DONE)
    store.put(LAYOUT.head, head(2, State.DONE).to_json())
    found = goodput.of(read(store))
    assert found is not None and found.wall_sec == 90
    assert seconds(found) == pytest.approx({Use.STARTUP: 10, Use.PRODUCTIVE: 60, Use.LOST: 20})


def test_a_run_without_vms_has_none(store: MemoryStore) -> None:  # noqa: F811
    put_start(store, 1, 0, 0)
    put_end(store, 1, 10, 5, Reason.DONE)
    store.put(LAYOUT.head, head(1, State.DONE).to_json())
    assert goodput.of(read(store)) is None


def test_an_attempt_without_a_step_counts_as_startup(store: MemoryStore) -> None:  # noqa: F811
    put_boot(store, 1, 0)
    put_start(store, 1, 10, 0)
    put_end(store, 1, 30, 0, Reason.SETUP_FAILED)
    store.put(LAYOUT.head, head(1, State.DONE).to_json())
    found = goodput.of(read(store))
    assert found is not None and found.share == 0
    assert seconds(found) == pytest.approx({Use.STARTUP: 10, Use.NO_STEP: 20})
