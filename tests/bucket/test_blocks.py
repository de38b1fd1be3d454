"""Records of old attempts in blocks: the same history, read with few operations."""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from outlast.base.exits import Reason
from outlast.bucket import blocks, history
from outlast.bucket.store import MemoryStore, Operation
from tests.bucket.test_history import LAYOUT, NOW, at, head, put_end, put_heartbeat, put_start

ATTEMPTS = 200


@pytest.fixture
def store() -> MemoryStore:
    """A run of many attempts, each of which made ten steps; every third was cut."""
    store = MemoryStore(clock=lambda: at(NOW.seconds))
    for term in range(1, ATTEMPTS + 1):
        put_attempt(store, term)
    store.put(LAYOUT.head, head(ATTEMPTS).to_json())
    return store


def put_attempt(store: MemoryStore, term: int) -> None:
    put_start(store, term, 100 * term, 10 * (term - 1))
    put_heartbeat(store, term, 100 * term + 50, 10 * term)
    if term % 3:
        put_end(store, term, 100 * term + 60, 10 * term, Reason.PREEMPTED)


def counted(store: MemoryStore, action: Callable[[MemoryStore], Any]) -> tuple[Any, int]:
    """What the action gives, and how many operations it took."""
    seen: Counter[str] = Counter()

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        seen[operation.verb] += 1
        return apply()

    return action(store.view(around)), seen.total()


def write_all(store: MemoryStore) -> None:
    while blocks.write_missing(store, LAYOUT, ATTEMPTS):
        pass


def test_the_history_is_the_same_and_takes_few_reads(store: MemoryStore) -> None:
    before, many = counted(store, lambda view: history.read(view, LAYOUT))
    write_all(store)
    after, few = counted(store, lambda view: history.read(view, LAYOUT))
    assert after == before and len(after.attempts) == ATTEMPTS
    assert many > 3 * ATTEMPTS
    assert few < 3 * 2 * blocks.BLOCK + ATTEMPTS / blocks.BLOCK + 10


def test_the_last_attempts_are_in_no_block_and_few_are_written_at_once(store: MemoryStore) -> None:
    assert blocks.write_missing(store, LAYOUT, blocks.BLOCK) == []
    assert blocks.write_missing(store, LAYOUT, 2 * blocks.BLOCK - 1) == []
    assert blocks.write_missing(store, LAYOUT, 2 * blocks.BLOCK) == [0]
    _, operations = counted(store, lambda view: blocks.write_missing(view, LAYOUT, ATTEMPTS))
    assert operations < blocks.WRITTEN_AT_ONCE * (3 * blocks.BLOCK + 1) + 3
    write_all(store)
    numbers = {item.path.rpartition("/")[2] for item in store.list(LAYOUT.records)}
    assert len(numbers) == ATTEMPTS // blocks.BLOCK - 1
    # A machine that was taken for dead ends late: it is seen.
    late = ATTEMPTS - blocks.BLOCK + 1
    late -= late % 3
    put_end(store, late, 10**6, 10 * late, Reason.MAINTENANCE)
    found = history.read(store, LAYOUT)
    assert found is not None and found.attempts[late - 1].reason is Reason.MAINTENANCE


@pytest.mark.parametrize("damage", [b"", b"garbage", b'{"format":1}'])
def test_where_a_block_is_damaged_the_records_are_read(store: MemoryStore, damage: bytes) -> None:
    before = history.read(store, LAYOUT)
    write_all(store)
    store.put(LAYOUT.records_block(1), damage)
    assert history.read(store, LAYOUT) == before


@pytest.mark.parametrize("damage", [b"garbage", b"\xff"])
def test_a_damaged_record_goes_into_no_block_and_is_named(
    store: MemoryStore, damage: bytes
) -> None:
    store.put(LAYOUT.attempt_start(40), damage)
    write_all_but = [blocks.write_missing(store, LAYOUT, ATTEMPTS) for _ in range(3)]
    assert [1] not in write_all_but
    assert LAYOUT.records_block(1) not in {item.path for item in store.list(LAYOUT.records)}
    with pytest.raises(ValueError, match=r"AttemptStart: is not JSON|codec"):
        history.read(store, LAYOUT)


def test_terms_that_left_no_record_are_no_attempts(store: MemoryStore) -> None:
    """A repair skips a hundred of them."""
    far = ATTEMPTS + 100
    put_attempt(store, far)
    while blocks.write_missing(store, LAYOUT, far):
        pass
    found = history.read(store, LAYOUT)
    assert found is not None
    assert [attempt.term for attempt in found.attempts] == [*range(1, ATTEMPTS + 1), far]


class Cut(BaseException):
    """The writer's machine is gone."""


@pytest.mark.parametrize("when", ["before", "after", "late"])
def test_a_writer_cut_or_frozen_at_any_operation_changes_no_history(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`late`: it is frozen before the operation, and continues when its successor is done."""
    monkeypatch.setattr(blocks, "BLOCK", 4)
    last = 16

    def run() -> MemoryStore:
        store = MemoryStore(clock=lambda: at(NOW.seconds))
        for term in range(1, last + 1):
            put_attempt(store, term)
        store.put(LAYOUT.head, head(last).to_json())
        return store

    def write(store: MemoryStore, term: int) -> None:
        while blocks.write_missing(store, LAYOUT, term):
            pass

    before = history.read(run(), LAYOUT)
    whole = run()
    _, operations = counted(whole, lambda view: write(view, last))
    written = {item.path: whole.get(item.path)[0] for item in whole.list(LAYOUT.records)}
    assert len(written) == last // 4 - 1
    for cut_at in range(operations):
        store, sent = run(), 0

        def around(operation: Operation, apply: Callable[[], Any], *, store=store) -> Any:  # noqa: B023
            nonlocal sent
            sent += 1
            if sent != cut_at + 1:  # noqa: B023
                return apply()
            if when == "late":
                write(store, last)
                return apply()
            if when == "after":
                apply()
            raise Cut

        with contextlib.suppress(Cut):
            write(store.view(around), last)
        assert history.read(store, LAYOUT) == before
        write(store, last)
        assert history.read(store, LAYOUT) == before
        found = {item.path: store.get(item.path)[0] for item in store.list(LAYOUT.records)}
        assert found == written, f"operation {cut_at}"
