"""What a boot reads of the terms before it, record by record."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.boot import (
    NUMBERS_MAX,
    LastTerm,
    beyond,
    contradicted,
    last_term,
    newest,
    silent_seconds,
    stop_asked,
)
from outlast.bucket.head import Checkpoint, Head, Lineage
from outlast.bucket.layout import AttemptEnd, AttemptStart, Heartbeat, Layout
from outlast.bucket.records import write_record
from outlast.bucket.store import Forbidden, MemoryStore, Operation, Throttled, Unavailable
from tests.bucket.test_head import head
from tests.stores import START, FakeClock


class Records:
    """Writes the records of terms, at the store's time."""

    def __init__(self, store: MemoryStore, layout: Layout) -> None:
        self.store, self.layout = store, layout

    def start(self, term: int) -> None:
        record = AttemptStart(
            *(term, 0, 0, "vm", "1", "b", "z", "m", "i", "digits", {}, {}, 0, None, START)
        )
        write_record(self.store, self.layout.attempt_start(term), record)

    def heartbeat(
        self, term: int, committed: int | None = None, seconds_to_commit: float | None = None
    ) -> None:
        record = Heartbeat(
            *(term, 1, None, "training", None, committed, seconds_to_commit, (), START)
        )
        write_record(self.store, self.layout.heartbeat(term), record)

    def end(
        self, term: int, reason: Reason = Reason.PREEMPTED, *, committed: Any = None, **more: Any
    ) -> None:
        known = {"message": "", "stderr": (), "staged_sec": 0.0, "time": START, **more}
        record = AttemptEnd(term, reason, State.OPEN, None, 0, committed, **known)
        write_record(self.store, self.layout.attempt_end(term), record)


@pytest.fixture
def records(memory: MemoryStore, layout: Layout) -> Records:
    return Records(memory, layout)


def committed(layout: Layout, *of: tuple[int, int]) -> Head:
    """HEAD in its last term, with a checkpoint for each term and step."""
    chain = [
        Checkpoint(layout.snapshot(term, step, "a"), 1, "f" * 64, term, step, ())
        for term, step in of
    ]
    return head(chain=tuple(chain))


# -- how the term before ended ----------------------------------------------------------------


def test_a_term_without_records_says_nothing(memory: MemoryStore, layout: Layout) -> None:
    assert last_term(memory, layout, head()) is None


def test_of_a_term_that_never_started_only_the_end_counts(
    memory: MemoryStore, layout: Layout, records: Records
) -> None:
    records.end(4, Reason.RESTORE_ERROR, message="no room", repeats=True)
    expected = LastTerm(0.0, None, Reason.RESTORE_ERROR, True, "no room", 1)
    assert last_term(memory, layout, head()) == expected


def test_a_term_whose_vm_was_lost_lived_until_its_last_heartbeat(
    memory: MemoryStore, layout: Layout, records: Records, clock: FakeClock
) -> None:
    records.start(4)
    assert last_term(memory, layout, head()) == LastTerm(0.0, None, None, False, "", 0)
    clock.sleep(40)
    records.heartbeat(4)
    clock.sleep(5)
    assert last_term(memory, layout, head()) == LastTerm(40.0, None, None, False, "", 0)


def test_a_whole_term_is_read_with_its_end(
    memory: MemoryStore, layout: Layout, records: Records, clock: FakeClock
) -> None:
    records.start(4)
    clock.sleep(40)
    records.heartbeat(4)
    records.end(4, Reason.RESTORE_ERROR, message="no room", repeats=True)
    expected = LastTerm(40.0, None, Reason.RESTORE_ERROR, True, "no room", 1)
    assert last_term(memory, layout, head()) == expected


@pytest.mark.parametrize(
    ("failing", "expected"),
    [((), 0), ((4,), 1), ((3,), 0), ((4, 2), 1), ((4, 3), 2), ((4, 3, 2), 3), ((4, 3, 2, 1), 3)],
)
def test_restore_errors_are_counted_back_to_the_first_other_end(
    memory: MemoryStore, layout: Layout, records: Records, failing: tuple[int, ...], expected: int
) -> None:
    for term in range(1, 5):
        records.end(term, Reason.RESTORE_ERROR if term in failing else Reason.PREEMPTED)
    found = last_term(memory, layout, head())
    assert found and found.restore_errors == expected


def test_restore_errors_of_the_first_terms_are_counted(
    memory: MemoryStore, layout: Layout, records: Records
) -> None:
    records.end(1, Reason.RESTORE_ERROR)
    records.end(2, Reason.RESTORE_ERROR)
    for term in (1, 2):
        found = last_term(memory, layout, head(term=term, lineage=()))
        assert found and found.restore_errors == term


def test_the_time_to_a_commit_is_that_of_the_last_term_that_committed(
    memory: MemoryStore, layout: Layout, records: Records
) -> None:
    for term, seconds in ((1, 10.0), (2, 20.0), (3, None), (4, 40.0)):
        records.start(term)
        records.heartbeat(term, seconds_to_commit=seconds)
    known = head(lineage=(Lineage(1, 0), Lineage(2, 5), Lineage(3, 7)))
    found = last_term(memory, layout, known)
    assert found and found.seconds_to_commit == 20.0
    found = last_term(memory, layout, replace(known, lineage=(Lineage(3, 7),)))
    assert found and found.seconds_to_commit is None


@pytest.mark.parametrize("error", [Forbidden, Throttled, Unavailable])
def test_a_store_that_does_not_answer_differs_from_a_missing_record(
    memory: MemoryStore, layout: Layout, error: type[Exception]
) -> None:
    def around(operation: Operation, perform: Any) -> Any:
        raise error(f"{operation.path}: not now")

    with pytest.raises(error):
        last_term(memory.view(around), layout, head())


# -- an older HEAD that was put back ----------------------------------------------------------


@pytest.mark.parametrize("source", ["heartbeat", "end"])
def test_a_terms_own_record_shows_a_commit_that_head_does_not_know(
    memory: MemoryStore, layout: Layout, records: Records, source: str
) -> None:
    assert contradicted(memory, layout, head(chain=(), lineage=())) is None
    records.heartbeat(4, committed=20 if source == "heartbeat" else None)
    records.end(4, committed=20 if source == "end" else None)
    said = "term 4 committed step 20"
    assert contradicted(memory, layout, committed(layout)) == said
    # Only the term's own checkpoints answer for it.
    assert contradicted(memory, layout, committed(layout, (3, 20))) == said
    assert contradicted(memory, layout, committed(layout, (3, 30), (4, 10))) == said
    assert contradicted(memory, layout, committed(layout, (3, 10), (4, 20))) is None
    assert contradicted(memory, layout, committed(layout, (4, 20), (4, 30))) is None


def test_the_heartbeat_is_believed_before_the_end(
    memory: MemoryStore, layout: Layout, records: Records
) -> None:
    records.heartbeat(4, committed=20)
    records.end(4, committed=10)
    said = contradicted(memory, layout, committed(layout, (4, 10)))
    assert said == "term 4 committed step 20"


def test_the_next_terms_start_shows_it(
    memory: MemoryStore, layout: Layout, records: Records
) -> None:
    records.start(3)
    assert contradicted(memory, layout, committed(layout, (4, 10))) is None
    records.start(5)
    assert contradicted(memory, layout, committed(layout, (4, 10))) == "term 5 has begun"


def test_a_second_manifest_shows_it_if_head_has_no_checkpoint(
    memory: MemoryStore, layout: Layout
) -> None:
    for term, step in ((2, 5), (3, 10)):
        memory.put(layout.manifest(term, step, "a"), b"{}")
        memory.put(f"{layout.snapshot(term, step, 'a')}state.bin", b"")
        memory.put(f"{layout.snapshot(term, step, 'a')}more/MANIFEST.json", b"")
    memory.put(f"{layout.terms}stray", b"")
    assert contradicted(memory, layout, committed(layout)) is None
    memory.put(layout.manifest(3, 20, "b"), b"{}")
    assert contradicted(memory, layout, committed(layout)) == "term 3 left 2 manifests"
    assert contradicted(memory, layout, committed(layout, (4, 10))) is None


def test_the_newest_checkpoint_in_words(layout: Layout) -> None:
    assert newest(committed(layout)) == "no checkpoint"
    said = newest(committed(layout, (1, 5), (2, 10), (3, 20)))
    assert said == "step 20 of term 3 as the newest checkpoint"


# -- requests, forged numbers, silence --------------------------------------------------------


def test_a_stop_counts_for_its_own_resume(memory: MemoryStore, layout: Layout) -> None:
    memory.put(layout.stop_request(1), b"{}")
    assert [stop_asked(memory, layout, resume) for resume in (0, 1, 2)] == [False, True, False]


@pytest.mark.parametrize("name", ["term", "resume"])
def test_a_number_that_no_run_reaches_is_named_with_its_limit(name: str) -> None:
    assert beyond(head(**{name: NUMBERS_MAX - 1})) is None
    said = f"{name} {NUMBERS_MAX}, which must be less than {NUMBERS_MAX}"
    assert beyond(head(**{name: NUMBERS_MAX})) == said


def test_the_newest_sign_of_life_counts(
    memory: MemoryStore, layout: Layout, records: Records, clock: FakeClock
) -> None:
    def silent(since: datetime) -> float:
        return silent_seconds(memory, layout, 4, since)

    records.heartbeat(4)
    clock.sleep(10)
    assert silent(START - timedelta(seconds=90)) == 10
    assert silent(START + timedelta(seconds=4)) == 6
