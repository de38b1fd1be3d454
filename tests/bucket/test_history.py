"""What a run's records say, read as the judge and `outlast status` read them."""

from datetime import UTC, datetime, timedelta

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket import goodput, history
from outlast.bucket.head import Checkpoint, End, Head, Lineage
from outlast.bucket.layout import AttemptEnd, Layout
from outlast.bucket.store import MemoryStore
from tests.cli.records import heartbeat_record, start_record

START = datetime(2026, 1, 1, tzinfo=UTC)
LAYOUT = Layout("experiments/dev", "0123456789")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def head(term: int, state: State = State.OPEN) -> Head:
    end = End(Reason.DONE, 0, 100, None) if state.ended else None
    return Head(
        owner="o/p/s",
        resume=0,
        placement=0,
        term=term,
        state=state,
        end=end,
        started=START,
        deadline=at(3600),
        chain=(Checkpoint(LAYOUT.snapshot(1, 10, "a"), 1, "b3" * 32, 1, 10, ()),),
        lineage=(Lineage(1, 0),),
        failures=0,
        no_progress=0,
        data=None,
        nonce="n",
    )


def put_start(store: MemoryStore, term: int, seconds: float, step: int) -> None:
    NOW.seconds = seconds
    # Its writer's clock is off and counts for nothing.
    record = start_record(term, step, at(seconds + 500), restored="x" if step else None)
    store.put(LAYOUT.attempt_start(term), record.to_json())


def put_heartbeat(store: MemoryStore, term: int, seconds: float, step: int) -> None:
    NOW.seconds = seconds
    row = {"step": step, "loss": 0.5}
    record = heartbeat_record(term, step, at(seconds + 500), total=100, row=row)
    store.put(LAYOUT.heartbeat(term), record.to_json())


def put_end(store: MemoryStore, term: int, seconds: float, step: int, reason: Reason) -> None:
    NOW.seconds = seconds
    record = AttemptEnd(
        term=term,
        reason=reason,
        state=State.OPEN,
        exit=75,
        step=step,
        committed=step,
        message="",
        stderr=(),
        staged_sec=0.0,
        time=at(seconds + 500),  # its writer's clock, which counts for nothing
    )
    store.put(LAYOUT.attempt_end(term), record.to_json())


class Moment:
    """The store's clock: records are as old as the store says, not as their writers say."""

    seconds = 0.0

    def __call__(self) -> datetime:
        return at(self.seconds)


NOW = Moment()


@pytest.fixture
def store() -> MemoryStore:
    NOW.seconds = 0.0
    return MemoryStore(clock=NOW)


def test_a_run_that_no_vm_has_taken_has_no_history(store):
    assert history.read(store, LAYOUT) is None


def test_a_term_without_a_start_record_is_not_yet_an_attempt(store):
    store.put(LAYOUT.head, head(1).to_json())
    book = history.read(store, LAYOUT)
    assert book is not None
    assert (book.attempts, book.step, book.total, book.rows) == ((), 0, None, ())


def test_an_attempt_without_an_end_reads_as_lost_at_its_last_heartbeat_and_its_lost_steps_count(
    store,
):
    put_start(store, 1, 10, 0)
    put_heartbeat(store, 1, 40, 30)
    put_start(store, 2, 60, 25)
    put_heartbeat(store, 2, 61, 26)
    store.put(LAYOUT.head, head(2).to_json())
    book = history.read(store, LAYOUT)
    assert book is not None
    first, second = book.attempts
    assert (first.reason, first.end, first.step, first.lost) == (Reason.VM_LOST, at(40), 30, 5)
    assert (second.reason, second.end, second.from_step, second.lost) == (None, None, 25, 0)
    assert book.total == 100
    assert book.rows == ({"step": 26, "loss": 0.5},)
    assert goodput.of(book) is None  # open


def test_an_attempt_that_ended_with_a_notice_lost_nothing(store):
    put_start(store, 1, 10, 0)
    put_heartbeat(store, 1, 39, 28)
    put_end(store, 1, 40, 30, Reason.PREEMPTED)
    put_start(store, 2, 60, 30)
    store.put(LAYOUT.head, head(2).to_json())
    book = history.read(store, LAYOUT)
    assert book is not None
    assert (book.attempts[0].reason, book.attempts[0].lost) == (Reason.PREEMPTED, 0)


@pytest.mark.parametrize(
    ("state", "lost"), [(State.STOPPED, 20), (State.FAILED, 20), (State.DONE, 0)]
)
def test_the_last_attempt_lost_what_a_resume_would_do_again(store, state, lost):
    """HEAD names a checkpoint of step 10."""
    put_start(store, 1, 0, 0)
    put_end(store, 1, 40, 30, Reason.STOPPED)
    store.put(LAYOUT.head, head(1, state).to_json())
    book = history.read(store, LAYOUT)
    assert book is not None
    (last,) = book.attempts
    assert (last.step, last.lost) == (30, lost)
