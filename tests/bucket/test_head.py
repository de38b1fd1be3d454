"""The decision at boot and the outcomes of 412, row by row; then HEAD under bad luck."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.boot import (
    NUMBERS_MAX,
    STOP_ASKED,
    Act,
    Claim,
    LastTerm,
    Missing,
    decide,
    silent_seconds,
)
from outlast.bucket.head import (
    LEVEL_MAX,
    WHEELS_MAX,
    Checkpoint,
    DataFingerprint,
    End,
    Fenced,
    Head,
    HeadEnded,
    HeadError,
    HeadForbidden,
    HeadLost,
    HeadMoved,
    HeadOtherFormat,
    HeadUnreadable,
    Lineage,
    Move,
    NotMember,
    PageRef,
    Phase,
    Result,
    Wheels,
    end_copy,
    is_left,
    new_nonce,
    place_of,
    read_head,
    read_moved_head,
)
from outlast.bucket.headfile import HeadFile, Outcome, resolve
from outlast.bucket.layout import (
    AttemptEnd,
    AttemptStart,
    EndCopy,
    Heartbeat,
    Layout,
)
from outlast.bucket.records import write_record
from outlast.bucket.store import (
    Damaged,
    Forbidden,
    MemoryStore,
    Operation,
    PreconditionFailed,
    Throttled,
    Unavailable,
)
from tests.log_lines import log_lines
from tests.stores import START, FakeClock

DEADLINE = START + timedelta(days=1)
LATER = DEADLINE + timedelta(days=1)
END = End(reason=Reason.USER_FAILED, exit=1, step=10, result=None)


def head(**changes: Any) -> Head:
    known: dict[str, Any] = {
        "owner": "org/demo/dev",
        "resume": 1,
        "placement": 1,
        "term": 4,
        "state": State.OPEN,
        "end": None,
        "started": START,
        "deadline": DEADLINE,
        "chain": (Checkpoint("p/t000003/s000000000010-aa/", 7, "f" * 64, 3, 10, ("best",)),),
        "lineage": (Lineage(1, 0), Lineage(3, 5)),
        "failures": 1,
        "no_progress": 2,
        "data": (DataFingerprint("data/digits", 3, 100, "AAAAAA=="),),
        "nonce": "old",
    }
    return Head(**{**known, **changes})


def ended(state: State, **changes: Any) -> Head:
    return head(state=state, end=END, **changes)


def claim(resume: int = 1, placement: int = 1, owner: str = "org/demo/dev") -> Claim:
    return Claim(owner, resume, placement, LATER)


def decision(look: Any, who: Claim, **named: Any) -> Any:
    known: dict[str, Any] = {"has_attempts": False, "now": START, "nonce": "new"}
    return decide(look, who, **{**known, **named})


# -- the decision at boot ---------------------------------------------------------------------


def test_absent_without_attempts_is_fresh() -> None:
    made = decision(Missing.ABSENT, claim(0, 2))
    assert (made.act, made.message) == (Act.TAKE, "fresh: takes term 1")
    assert made.head == head(
        resume=0,
        placement=2,
        term=1,
        chain=(),
        lineage=(),
        failures=0,
        no_progress=0,
        data=None,
        nonce="new",
        deadline=LATER,
    )


@pytest.mark.parametrize(
    ("look", "named", "reason"),
    [
        (Missing.ABSENT, {"has_attempts": True}, Reason.LOST),
        (Missing.UNREADABLE, {}, Reason.UNREADABLE),
        (Missing.FORBIDDEN, {}, Reason.FORBIDDEN),
        (head(owner="org/other/dev"), {}, Reason.OTHER_OWNER),
        (ended(State.DONE, owner="org/other/dev"), {}, Reason.OTHER_OWNER),
    ],
)
def test_what_cannot_be_trusted_is_refused_and_repair_is_named(
    look: Any, named: dict[str, Any], reason: Reason
) -> None:
    made = decision(look, claim(9, 9), **named)
    assert (made.act, made.reason) == (Act.REFUSE, reason)
    assert "outlast repair" in made.message
    assert made.head == (look if reason is Reason.OTHER_OWNER else None)


@pytest.mark.parametrize("name", ["term", "resume"])
def test_a_head_with_a_forged_number_is_refused(name: str) -> None:
    made = decision(head(**{name: NUMBERS_MAX}), claim())
    assert (made.act, made.reason, made.head) == (Act.REFUSE, Reason.UNREADABLE, None)
    assert made.message == (
        f"HEAD has {name} {NUMBERS_MAX}, which must be less than {NUMBERS_MAX}; `outlast repair` "
        "repairs it, then `outlast resume`"
    )


@pytest.mark.parametrize(("resume", "placement"), [(0, 0), (0, 9), (1, 0)])
@pytest.mark.parametrize("look", [head(), ended(State.FAILED), head(deadline=START)])
def test_a_lower_pair_leaves(resume: int, placement: int, look: Head) -> None:
    made = decision(look, claim(resume, placement))
    assert (made.act, made.reason) == (Act.LEAVE, Reason.SUPERSEDED)


@pytest.mark.parametrize("placement", [1, 2])
@pytest.mark.parametrize("state", [state for state in State if state.ended])
def test_ended_at_this_resume_leaves(state: State, placement: int) -> None:
    made = decision(ended(state), claim(1, placement))
    assert (made.act, made.reason, made.head) == (Act.LEAVE, Reason.ENDED, ended(state))
    assert made.message == f"the run has ended: {state}"


def test_done_leaves_at_any_resume() -> None:
    made = decision(ended(State.DONE), claim(7))
    assert (made.act, made.reason) == (Act.LEAVE, Reason.ENDED)


@pytest.mark.parametrize(
    "look",
    [
        ended(State.FAILED),
        ended(State.STOPPED),
        ended(State.PRUNED),
        head(),
        head(deadline=START - timedelta(days=1)),
        head(no_progress=9),
    ],
)
def test_a_higher_resume_reopens(look: Head) -> None:
    made = decision(look, claim(2, 0), last_term=LastTerm(9e9, None, None))
    assert (made.act, made.message) == (Act.TAKE, "resume 2: takes term 5")
    assert made.head == replace(
        look,
        state=State.OPEN,
        end=None,
        resume=2,
        placement=0,
        term=5,
        failures=0,
        no_progress=0,
        deadline=LATER,
        nonce="new",
    )


@pytest.mark.parametrize("said", [LATER, LATER + timedelta(days=3000)])
def test_a_deadline_that_a_vm_wrote_is_bounded_by_the_pins(said: datetime) -> None:
    """HEAD is the VMs' to write: a forged one gives no attempt more time than its stack does."""
    own = Claim("org/demo/dev", 1, 1, DEADLINE)
    taken = decision(head(deadline=said), own).head
    assert taken.deadline == DEADLINE
    late = decide(head(deadline=said), own, has_attempts=True, now=DEADLINE, nonce="new")
    assert (late.act, late.reason, late.head.deadline) == (Act.END, Reason.LIMIT, DEADLINE)
    earlier = DEADLINE - timedelta(hours=1)
    assert decision(head(deadline=earlier), own).head.deadline == earlier


@pytest.mark.parametrize("late", [timedelta(0), timedelta(seconds=1)])
def test_open_past_its_deadline_is_ended(late: timedelta) -> None:
    made = decision(head(), claim(1, 1), now=DEADLINE + late)
    assert (made.act, made.reason) == (Act.END, Reason.LIMIT)
    assert made.message == "the run's deadline has passed"
    assert made.head == head(state=State.FAILED, end=End(Reason.LIMIT, None, 10, None), nonce="new")


@pytest.mark.parametrize("placement", [1, 2])
def test_open_is_taken(placement: int) -> None:
    made = decision(head(), claim(1, placement), now=DEADLINE - timedelta(seconds=1))
    assert (made.act, made.message) == (Act.TAKE, "takes term 5")
    assert made.head == head(term=5, placement=placement, nonce="new")


@pytest.mark.parametrize(
    ("last", "counts"),
    [
        (None, False),
        (LastTerm(30.0, 10.0, None), False),
        (LastTerm(30.1, 10.0, None), True),
        (LastTerm(600.0, None, Reason.PREEMPTED), False),
        (LastTerm(600.1, None, Reason.PREEMPTED), True),
        (LastTerm(0.0, None, Reason.DRIVER), True),
        (LastTerm(0.0, 10.0, Reason.RESTORE_ERROR), True),
        (LastTerm(5.0, 10.0, Reason.PREEMPTED), False),
    ],
)
def test_terms_without_progress_are_counted_by_the_next(
    last: LastTerm | None, counts: bool
) -> None:
    made = decision(head(), claim(), last_term=last)
    assert made.head.no_progress == 2 + counts
    # A term that committed made progress, however it ended.
    committed = head(lineage=(Lineage(4, 5),))
    assert decision(committed, claim(), last_term=last).head.no_progress == 2


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (LastTerm(9e9, None, None), Reason.NO_PROGRESS),
        (LastTerm(9e9, None, Reason.PREEMPTED, message="preempted"), Reason.NO_PROGRESS),
        (LastTerm(0.0, None, Reason.DRIVER), Reason.DRIVER),
        (LastTerm(0.0, None, Reason.RESTORE_ERROR), Reason.RESTORE_ERROR),
    ],
)
def test_the_tenth_term_without_progress_ends_the_run(last: LastTerm, reason: Reason) -> None:
    assert decision(head(no_progress=8), claim(), last_term=last).act is Act.TAKE
    made = decision(head(no_progress=9), claim(), last_term=last)
    assert (made.act, made.reason) == (Act.END, reason)
    assert (made.head.state, made.head.no_progress) == (State.FAILED, 10)
    assert made.message == "10 terms in a row committed nothing"
    # Nor does the run continue if nothing is known of the last one.
    unknown = decision(head(no_progress=10), claim())
    assert (unknown.act, unknown.reason) == (Act.END, Reason.NO_PROGRESS)


@pytest.mark.parametrize(
    ("no_progress", "errors", "act"),
    [(2, 3, Act.END), (2, 2, Act.TAKE), (1, 3, Act.TAKE)],
    ids=["three in a row", "two after another reason", "two since the resume"],
)
def test_the_third_restore_error_in_a_row_ends_the_run(
    no_progress: int, errors: int, act: Act
) -> None:
    last = LastTerm(0.0, None, Reason.RESTORE_ERROR, message="no room", restore_errors=errors)
    made = decision(head(no_progress=no_progress), claim(), last_term=last)
    assert made.act is act
    if act is Act.END:
        assert (made.reason, made.head.no_progress) == (Reason.RESTORE_ERROR, 3)
        assert made.message == "3 terms in a row committed nothing; the last one: no room"


# -- the outcomes of 412 ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (head(nonce="mine"), Outcome.OURS),
        (ended(State.STOPPED, nonce="mine"), Outcome.OURS),
        (ended(State.STOPPED), Outcome.ENDED),
        (ended(State.FAILED, term=9), Outcome.ENDED),
        (head(term=5), Outcome.FENCED),
        (head(), Outcome.ERROR),
        (head(term=3), Outcome.ERROR),
    ],
)
def test_what_a_refused_write_means(found: Head, outcome: Outcome) -> None:
    assert resolve(found, term=4, nonces={"mine", "earlier"}) is outcome


# -- HEAD's own schema ------------------------------------------------------------------------


@pytest.mark.parametrize("known", [head(), ended(State.DONE), head(data=None, chain=())])
def test_head_reads_what_it_wrote(known: Head) -> None:
    assert Head.from_json(known.to_json()) == known
    assert b'"from":5' in known.to_json()


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{}",
        b"\x00\xff",
        head().to_json().replace(b'"term":4', b'"term":0'),
        head().to_json().replace(b'"open"', b'"done"'),
        head().to_json()[:-40],
    ],
)
def test_garbage_is_unreadable(garbage: bytes, memory: MemoryStore, layout: Layout) -> None:
    memory.put(layout.head, garbage)
    with pytest.raises(HeadUnreadable):
        read_head(memory, layout)


def test_lineage_is_written_once_and_only_goes_back() -> None:
    once = head().with_lineage(4, 10)
    assert once.lineage[-1] == Lineage(4, 10)
    assert once.with_lineage(4, 12) == once
    assert once.with_lineage(4, 5).lineage[-1] == Lineage(4, 5)


# -- taking the term --------------------------------------------------------------------------


@pytest.fixture
def head_file(memory: MemoryStore, layout: Layout, clock: FakeClock) -> HeadFile:
    return HeadFile(memory, layout, clock)


def other(head_file: HeadFile, around: Any = None) -> HeadFile:
    """Another process on the same bucket."""
    assert isinstance(head_file.store, MemoryStore)
    return HeadFile(head_file.store.view(around), head_file.layout, head_file.clock)


def failing(verb: str, errors: list[Exception], *, applied: bool) -> Callable[..., Any]:
    """Fails the next operations of a verb, once they were applied or not at all."""

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb != verb or not errors:
            return apply()
        if applied:
            apply()
        raise errors.pop(0)

    return around


def test_terms_rise(head_file: HeadFile, claim: Claim) -> None:
    assert head_file.take_term(claim).act is Act.TAKE
    second = other(head_file)
    second.take_term(claim)
    assert (head_file.term, second.term) == (1, 2)
    for use in (
        lambda: head_file.swap(lambda known: known, term=1),
        lambda: head_file.check(term=1),
    ):
        with pytest.raises(Fenced) as caught:
            use()
        assert caught.value.head.term == 2
        assert str(caught.value) == "term 1: term 2 holds the run now"
    assert second.check(term=2).term == 2


def test_an_earlier_term_of_the_same_process_is_fenced(head_file: HeadFile, claim: Claim) -> None:
    """Term 1 here, term 2 elsewhere, term 3 here again: term 1 writes nothing any more."""
    head_file.take_term(claim)
    other(head_file).take_term(claim)
    head_file.take_term(claim)
    assert head_file.term == 3
    before = read_head(head_file.store, head_file.layout)
    digits = DataFingerprint("data/digits", 3, 100, "AAAAAA==")
    for use in (
        lambda: head_file.swap(lambda known: known, term=1),
        lambda: head_file.check(term=1),
        lambda: head_file.held(1),
        lambda: head_file.count_failure(term=1, before=0, retries=9),
        lambda: head_file.set_data(digits, term=1),
        lambda: head_file.set_wheels("a" * 64, "b" * 64, term=1),
        lambda: head_file.fail(Reason.DRIVER, term=1),
    ):
        with pytest.raises(Fenced, match="term 1: this process took term 3 since") as caught:
            use()
        assert caught.value.head.term == 3
    assert read_head(head_file.store, head_file.layout) == before
    assert head_file.check(term=3) == head_file.held(3)


def test_without_a_term_nothing_is_written(head_file: HeadFile, claim: Claim) -> None:
    other(head_file).take_term(claim)
    with pytest.raises(HeadError, match="^no term was taken; HEAD may not be written$"):
        head_file.swap(lambda known: known, term=1)


@pytest.mark.parametrize("applied", [True, False])
def test_taking_survives_lost_answers(head_file: HeadFile, claim: Claim, applied: bool) -> None:
    unlucky = other(head_file, failing("put", [Unavailable("gone")], applied=applied))
    assert unlucky.take_term(claim).act is Act.TAKE
    assert unlucky.term == 1
    assert unlucky.swap(lambda known: known, term=1).term == 1


def test_a_term_whose_answer_was_lost_is_held_at_its_own_write(
    head_file: HeadFile, claim: Claim
) -> None:
    unlucky = other(head_file, failing("put", [Unavailable("gone")], applied=True))
    unlucky.take_term(claim)
    stranger = replace(unlucky.head, nonce="x")
    head_file.store.put(head_file.layout.head, stranger.to_json())
    with pytest.raises(HeadError, match="rewritten by another process"):
        unlucky.swap(lambda known: known, term=1)


def test_a_lost_race_is_decided_again(head_file: HeadFile, claim: Claim) -> None:
    raced = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb == "put" and not raced:
            raced.append(other(head_file).take_term(claim))
        return apply()

    loser = other(head_file, around)
    loser.take_term(claim)
    assert loser.term == 2


def test_before_a_retry_membership_is_asked(head_file: HeadFile, claim: Claim) -> None:
    unlucky = other(head_file, failing("put", [Throttled("slow")], applied=False))
    with pytest.raises(NotMember) as caught:
        unlucky.take_term(claim, still_member=lambda: False)
    said = "this VM is not a member of its group any more; it may take no term"
    assert str(caught.value) == said
    with pytest.raises(HeadLost):
        read_head(head_file.store, head_file.layout)


def test_before_the_first_write_the_group_is_asked_once(head_file: HeadFile, claim: Claim) -> None:
    asked: list[str] = []

    def orphaned() -> str:
        asked.append("asked")
        return why

    why = "its group is gone"
    with pytest.raises(NotMember, match="^this VM may take no term: its group is gone$"):
        head_file.take_term(claim, orphaned=orphaned)
    with pytest.raises(HeadLost):
        read_head(head_file.store, head_file.layout)
    why = ""
    asked.clear()
    unlucky = other(head_file, failing("put", [Throttled("slow")] * 3, applied=False))
    assert unlucky.take_term(claim, orphaned=orphaned).act is Act.TAKE
    assert asked == ["asked"]


def test_a_term_that_nothing_waits_for_any_more_is_not_taken(
    head_file: HeadFile, claim: Claim
) -> None:
    with pytest.raises(NotMember) as caught:
        head_file.take_term(claim, wanted=lambda: False)
    assert str(caught.value) == "nothing waits for this term any more; it is not taken"
    with pytest.raises(HeadLost):
        read_head(head_file.store, head_file.layout)


def test_a_run_that_another_machine_starts_meanwhile_is_not_lost(
    head_file: HeadFile, claim: Claim
) -> None:
    raced = []

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "list" and not raced:
            first = other(head_file)
            raced.append(first.take_term(claim))
            records(first, 1)
        return perform()

    second = other(head_file, around)
    assert second.take_term(claim).act is Act.TAKE
    assert (len(raced), second.term) == (1, 2)


@pytest.mark.parametrize("call", ["take", "end"])
def test_after_a_lost_race_a_server_gets_the_time_that_it_asks_for(
    head_file: HeadFile, claim: Claim, clock: FakeClock, call: str
) -> None:
    head_file.take_term(claim)
    lost = PreconditionFailed("412")
    lost.retry_after_sec = 40.0
    loser = other(head_file, failing("put", [lost], applied=False))
    before = clock.elapsed
    if call == "take":
        assert loser.take_term(claim).act is Act.TAKE
    else:
        assert loser.end_from_outside(State.STOPPED, Reason.STOPPED).state is State.STOPPED
    assert 40 <= clock.elapsed - before < 60


def test_absent_head_with_attempts_is_lost(head_file: HeadFile, claim: Claim) -> None:
    head_file.store.put(head_file.layout.attempt_start(1), b"{}")
    made = head_file.take_term(claim)
    assert (made.act, made.reason) == (Act.REFUSE, Reason.LOST)


@pytest.mark.parametrize("source", ["heartbeat", "manifests", "term"])
def test_an_older_head_put_back_does_not_start_the_run_from_scratch(
    head_file: HeadFile, claim: Claim, source: str
) -> None:
    head_file.take_term(claim)
    first = head_file.head.to_json()
    if source == "heartbeat":
        now = head_file.store.now()
        heartbeat = Heartbeat(1, 10, None, "training", None, 10, 1.0, (), now)
        write_record(head_file.store, head_file.layout.heartbeat(1), heartbeat)
    elif source == "manifests":
        for step in (10, 20):
            path = head_file.layout.manifest(1, step, new_nonce())
            head_file.store.put(path, b"{}")
    else:
        second = other(head_file)
        second.take_term(claim)
        records(second, 2)
        head_file.store.put(head_file.layout.head, first)
    made = other(head_file).take_term(claim)
    assert (made.act, made.reason) == (Act.REFUSE, Reason.UNREADABLE)
    assert read_head(head_file.store, head_file.layout).head.to_json() == first


def test_a_first_commit_interrupted_at_its_swap_allows_the_next_term(
    head_file: HeadFile, claim: Claim
) -> None:
    head_file.take_term(claim)
    head_file.store.put(head_file.layout.manifest(1, 10, new_nonce()), b"{}")
    second = other(head_file)
    assert second.take_term(claim).act is Act.TAKE and second.term == 2


def test_a_head_that_advances_meanwhile_is_not_taken_for_an_old_one(
    head_file: HeadFile, claim: Claim
) -> None:
    head_file.take_term(claim)
    before = head_file.store.get(head_file.layout.head)[0]
    raced = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        found = apply() if operation.verb == "get" else None
        if operation.path == head_file.layout.head and operation.verb == "get" and not raced:
            raced.append(True)  # between the look at HEAD and that at the records
            second = other(head_file)
            second.take_term(claim)
            records(second, 2)
        return found if operation.verb == "get" else apply()

    third = other(head_file, around)
    made = third.take_term(claim)
    assert raced and head_file.store.get(head_file.layout.head)[0] != before
    assert made.act is Act.TAKE and third.term == 3


def test_forbidden_is_waited_for(head_file: HeadFile, claim: Claim, clock: FakeClock) -> None:
    said = log_lines()
    errors: list[Exception] = [Forbidden("403")] * 4
    patient = other(head_file, failing("get", errors, applied=False))
    assert patient.take_term(claim).act is Act.TAKE
    assert sum("permissions may still be spreading" in line for line in said) == 1
    before = clock.elapsed
    errors += [Forbidden("403")] * 1000
    made = patient.take_term(claim, forbidden_seconds=60)
    assert (made.act, made.reason) == (Act.REFUSE, Reason.FORBIDDEN)
    assert 60 <= clock.elapsed - before < 120


@pytest.mark.parametrize("verb", ["put", "stat"])
def test_forbidden_to_write_or_to_read_records_is_waited_for_too(
    head_file: HeadFile, claim: Claim, clock: FakeClock, memory: MemoryStore, verb: str
) -> None:
    """Bindings spread one by one; a boot must not end each time that one is late."""
    head_file.take_term(claim)
    until = 30.0

    def around(operation: Operation, perform: Any) -> Any:
        if operation.verb == verb and clock.elapsed < until:
            raise Forbidden(f"{operation.path}: 403")
        return perform()

    said = log_lines()
    late = HeadFile(memory.view(around), head_file.layout, clock)
    made = late.take_term(claim, forbidden_seconds=60)
    assert (made.act, made.head and made.head.term) == (Act.TAKE, 2)
    assert clock.elapsed >= 30
    assert sum("permissions may still be spreading" in line for line in said) == 1

    until = float("inf")
    before = clock.elapsed
    made = HeadFile(memory.view(around), head_file.layout, clock).take_term(
        claim, forbidden_seconds=60
    )
    assert (made.act, made.reason) == (Act.REFUSE, Reason.FORBIDDEN)
    assert 60 <= clock.elapsed - before < 120


def test_a_head_whose_bytes_are_damaged_is_unreadable(
    head_file: HeadFile, claim: Claim, clock: FakeClock, memory: MemoryStore
) -> None:
    head_file.take_term(claim)

    def around(operation: Operation, perform: Any) -> Any:
        if operation.verb == "get" and operation.path == head_file.layout.head:
            raise Damaged(f"{operation.path}: crc32c differs")
        return perform()

    made = HeadFile(memory.view(around), head_file.layout, clock).take_term(claim)
    assert (made.act, made.reason) == (Act.REFUSE, Reason.UNREADABLE)


def test_a_damaged_record_of_the_term_before_counts_as_none(
    head_file: HeadFile, claim: Claim, clock: FakeClock, memory: MemoryStore
) -> None:
    head_file.take_term(claim)

    def around(operation: Operation, perform: Any) -> Any:
        if "/attempts/" in operation.path and operation.verb in ("get", "stat"):
            raise Damaged(f"{operation.path}: crc32c differs")
        return perform()

    made = HeadFile(memory.view(around), head_file.layout, clock).take_term(claim)
    assert (made.act, made.head and made.head.term) == (Act.TAKE, 2)


@pytest.mark.parametrize("path", ["", "experiments/demo/", "experiments/other/0/t000001/s1-a/"])
def test_a_head_that_names_what_is_not_this_runs_is_unreadable(
    head_file: HeadFile, claim: Claim, path: str
) -> None:
    """What HEAD names is deleted one day."""
    head_file.take_term(claim)
    foreign = Checkpoint(path, 1, "b3" * 32, 1, 1, ())
    head_file.swap(lambda known: replace(known, chain=(foreign,)), term=1)
    with pytest.raises(HeadUnreadable, match="is not a folder of this run"):
        read_head(head_file.store, head_file.layout)


def test_a_head_that_names_a_folder_of_its_run_is_read_and_one_beside_it_is_not(
    memory: MemoryStore, layout: Layout
) -> None:
    own = layout.snapshot(3, 10, "a")

    def read(path: str, **named: Any) -> Head:
        entry = Checkpoint(path, 1, "f" * 64, **{"term": 3, "step": 10, "tags": (), **named})
        memory.put(layout.head, head(chain=(entry,)).to_json())
        return read_head(memory, layout).head

    assert read(own).chain[0].path == own
    assert read(own, part="first").chain[0].part == "first"
    for path, named in ((f"{own}more/", {}), (own.removesuffix("/"), {}), (own, {"term": 4})):
        with pytest.raises(HeadUnreadable, match=f"Head path '{path}': is not a folder of this"):
            read(path, **named)
    with pytest.raises(HeadUnreadable, match="part"):
        read(own, part="../x")


@pytest.mark.parametrize("name", ["older_chain", "older_lineage"])
def test_a_head_that_names_a_page_of_another_run_is_unreadable(
    memory: MemoryStore, layout: Layout, name: str
) -> None:
    for own in (True, False):
        of = layout if own else Layout("experiments/other", layout.run)
        page = PageRef(of.page(3, "ab" * 32), 1, "f" * 64, 0, 5, 1, 9)
        memory.put(layout.head, head(chain=(), **{name: page}).to_json())
        if own:
            assert getattr(read_head(memory, layout).head, name) == page
        else:
            with pytest.raises(HeadUnreadable, match="Head page '.*': is not a page of this run"):
                read_head(memory, layout)


def test_a_page_has_a_level_and_a_number_of_entries_that_can_be() -> None:
    def page(level: int, entries: int) -> PageRef:
        return PageRef("p", 1, "f" * 64, level, entries, 1, 9)

    assert (page(0, 0).level, page(LEVEL_MAX, 1).level) == (0, LEVEL_MAX)
    for level in (-1, LEVEL_MAX + 1):
        with pytest.raises(ValueError, match=f"PageRef.level {level}: must be 0 to {LEVEL_MAX}"):
            page(level, 1)
    with pytest.raises(ValueError, match="PageRef.entries -1: must not be negative"):
        page(0, -1)


def test_a_run_without_a_head_is_lost_by_its_path(memory: MemoryStore, layout: Layout) -> None:
    with pytest.raises(HeadLost) as caught:
        read_head(memory, layout)
    assert str(caught.value) == f"{memory.url}/{layout.head}: no HEAD"


def test_a_head_that_cannot_be_read_is_named_with_its_reason(
    memory: MemoryStore, layout: Layout
) -> None:
    def said(kind: type[HeadError], store: Any = memory) -> str:
        with pytest.raises(kind) as caught:
            read_head(store, layout)
        return str(caught.value)

    place = f"{memory.url}/{layout.head}"
    memory.put(layout.head, b"[]")
    assert said(HeadUnreadable) == f"{place}: must be a JSON object, found list"
    memory.put(layout.head, head().to_json().replace(b'"format":1', b'"format":2'))
    assert said(HeadOtherFormat) == (
        f"{place}: has format 2, this version of Outlast reads format 1; upgrade Outlast"
    )
    denied = memory.view(failing("get", [Forbidden("403")], applied=False))
    assert said(HeadForbidden, denied) == f"{place}: may not be read (403)"
    damaged = [Damaged(f"{layout.head}: crc32c differs")]
    assert said(HeadUnreadable, memory.view(failing("get", damaged, applied=False))) == (
        f"{place}: crc32c differs"
    )


def test_a_head_contradicts_neither_its_term_nor_its_end() -> None:
    with pytest.raises(ValueError, match="^Head.term 0: must be 1 or more$"):
        head(term=0)
    with pytest.raises(ValueError, match="^Head.end None: does not go with state failed$"):
        head(state=State.FAILED)
    with pytest.raises(ValueError, match="^Head.end End.*: does not go with state open$"):
        head(end=END)


def test_a_nonce_has_sixteen_digits() -> None:
    assert {len(new_nonce()) for _ in range(9)} == {16}
    assert len({new_nonce() for _ in range(9)}) == 9


@pytest.mark.parametrize("name", ["resume", "placement", "failures", "no_progress"])
def test_negative_counters_are_no_head(name: str) -> None:
    with pytest.raises(ValueError, match=f"Head.{name} -1: must not be negative"):
        head(**{name: -1})


def test_the_deadline_ends_the_run_by_server_time(
    head_file: HeadFile, claim: Claim, clock: FakeClock
) -> None:
    head_file.take_term(claim)
    clock.sleep((claim.deadline - clock.now()).total_seconds())
    made = other(head_file).take_term(claim)
    assert (made.act, made.reason) == (Act.END, Reason.LIMIT)
    assert read_head(head_file.store, head_file.layout).head.state is State.FAILED
    copy = EndCopy.from_json(head_file.store.get(head_file.layout.end(0))[0])
    assert (copy.state, copy.reason) == (State.FAILED, Reason.LIMIT)
    with pytest.raises(HeadEnded):
        head_file.check(term=1)


def late_copy(head_file: HeadFile, clock: FakeClock, lost: int = 0) -> HeadFile:
    """Another process, for which the store refuses END-r0.json for 300 s; the answers to its first
    writes of HEAD are lost."""
    until = clock.elapsed + 300
    answers = [Unavailable("gone")] * lost

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.path == head_file.layout.end(0) and clock.elapsed < until:
            raise Unavailable("gone")
        done = perform()
        if operation.verb == "put" and operation.path == head_file.layout.head and answers:
            raise answers.pop()
        return done

    return other(head_file, around)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_boot_ends_the_run_if_stop_asks_for_it(
    head_file: HeadFile, claim: Claim, clock: FakeClock, lost: int
) -> None:
    head_file.take_term(claim)
    head_file.store.put(head_file.layout.stop_request(0), b"{}")
    made = late_copy(head_file, clock, lost).take_term(claim)
    assert (made.act, made.reason, made.message) == (Act.END, Reason.STOPPED, STOP_ASKED)
    found = read_head(head_file.store, head_file.layout).head
    assert found.state is State.STOPPED
    copy = EndCopy.from_json(head_file.store.get(head_file.layout.end(0))[0])
    assert copy == end_copy(head_file.layout, found)


def test_a_stop_of_another_resume_ends_nothing(head_file: HeadFile, claim: Claim) -> None:
    head_file.take_term(claim)
    head_file.store.put(head_file.layout.stop_request(1), b"{}")
    assert other(head_file).take_term(claim).act is Act.TAKE


def test_an_ended_run_gets_its_missing_copy(
    head_file: HeadFile, claim: Claim, clock: FakeClock
) -> None:
    head_file.take_term(claim)
    result = Result(head_file.layout.result(1), 3, "d" * 64)
    head_file.swap(lambda known: known.ended(State.DONE, End(Reason.DONE, 0, 6, result)), term=1)
    assert late_copy(head_file, clock).take_term(claim).act is Act.LEAVE
    data, first = head_file.store.get(head_file.layout.end(0))
    assert EndCopy.from_json(data).digest == "d" * 64
    assert other(head_file).take_term(claim).act is Act.LEAVE
    assert head_file.store.stat(head_file.layout.end(0)) == first


def records(head_file: HeadFile, term: int, *, seconds_to_commit: float | None = None) -> Any:
    """Writes a start record now; gives a function that writes a heartbeat."""
    layout, now = head_file.layout, head_file.store.now()
    start = AttemptStart(term, 0, 0, "vm", "1", "b", "z", "m", "i", "digits", {}, {}, 0, None, now)
    write_record(head_file.store, layout.attempt_start(term), start)

    def heartbeat() -> None:
        record = Heartbeat(term, 1, None, "training", None, None, seconds_to_commit, (), now)
        write_record(head_file.store, layout.heartbeat(term), record)

    return heartbeat


def test_no_progress_is_measured_by_the_stores_times(
    head_file: HeadFile, claim: Claim, clock: FakeClock
) -> None:
    head_file.take_term(claim)
    heartbeat = records(head_file, 1)
    clock.sleep(601)
    heartbeat()
    clock.sleep(5000)
    second = other(head_file)
    second.take_term(claim)
    assert second.head.no_progress == 1
    # The second commits after 20 s; the third lives 61 s without: more than three times that.
    heartbeat = records(second, 2, seconds_to_commit=20.0)
    heartbeat()
    second.swap(lambda known: replace(known.with_lineage(2, 0), no_progress=0), term=2)
    third = other(head_file)
    third.take_term(claim)
    assert third.head.no_progress == 0
    heartbeat = records(third, 3)
    clock.sleep(61)
    heartbeat()
    fourth = other(head_file)
    fourth.take_term(claim)
    assert fourth.head.no_progress == 1
    # The fourth wrote nothing at all: it counts neither way.
    fifth = other(head_file)
    fifth.take_term(claim)
    assert fifth.head.no_progress == 1
    now = head_file.store.now()
    end = AttemptEnd(5, Reason.RESTORE_ERROR, State.OPEN, None, 0, None, "", (), 0.0, now)
    write_record(head_file.store, head_file.layout.attempt_end(5), end)
    sixth = other(head_file)
    sixth.take_term(claim)
    assert sixth.head.no_progress == 2


# -- swapping ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "applied"),
    [(Unavailable("gone"), True), (Unavailable("gone"), False), (Throttled("slow"), False)],
)
def test_a_swap_survives_lost_answers(
    head_file: HeadFile, claim: Claim, error: Exception, applied: bool
) -> None:
    errors: list[Exception] = []
    unlucky = other(head_file, failing("put", errors, applied=applied))
    unlucky.take_term(claim)
    errors += [error] * 3
    assert unlucky.count_failure(term=1, before=0, retries=1)
    assert read_head(head_file.store, head_file.layout).head.failures == 1
    assert not unlucky.count_failure(term=1, before=1, retries=1)


@pytest.mark.parametrize(("lost", "applied"), [(0, False), (2, False), (2, True)])
def test_a_change_is_made_once_and_the_next_write_is_still_guarded(
    head_file: HeadFile, claim: Claim, lost: int, applied: bool
) -> None:
    """Lost answers neither repeat a change nor lose the generation that the next one replaces."""

    def counted(known: Head) -> Head:
        return replace(known, failures=known.failures + 1)

    errors: list[Exception] = []
    holder = other(head_file, failing("put", errors, applied=applied))
    holder.take_term(claim)
    taken = holder.head
    errors += [Unavailable("gone")] * lost
    changed = holder.swap(counted, term=1)
    assert (changed.failures, changed.nonce == taken.nonce) == (1, False)
    assert read_head(head_file.store, head_file.layout).head == changed == holder.head
    head_file.store.put(head_file.layout.head, replace(changed, nonce="x").to_json())
    with pytest.raises(HeadError, match="rewritten by another process"):
        holder.swap(counted, term=1)


def test_a_write_given_up_is_recognised_later(
    head_file: HeadFile, claim: Claim, clock: FakeClock
) -> None:
    """Its answer never arrives; the next change is made on top of it, and counts once."""
    errors: list[Exception] = []
    holder = other(head_file, failing("put", errors, applied=False))
    holder.take_term(claim)
    written: list[Callable[[], Any]] = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb == "put" and not written:
            written.append(apply)
        raise Unavailable("gone")

    assert isinstance(holder.store, MemoryStore)
    working = holder.store
    holder.store = working.view(around)
    with pytest.raises(Unavailable):
        holder.count_failure(term=1, before=0, retries=1)
    holder.store = working
    written[0]()
    assert holder.count_failure(term=1, before=0, retries=1)
    assert read_head(head_file.store, head_file.layout).head.failures == 1


def test_head_is_written_at_most_once_a_second(
    head_file: HeadFile, claim: Claim, clock: FakeClock
) -> None:
    head_file.take_term(claim)
    for written in range(1, 6):
        head_file.swap(lambda known: known, term=1)
        assert clock.elapsed == written
    clock.sleep(20)
    head_file.swap(lambda known: known, term=1)
    assert clock.elapsed == 25


def test_head_gone_under_the_holder_is_lost(head_file: HeadFile, claim: Claim) -> None:
    head_file.take_term(claim)
    found = head_file.store.stat(head_file.layout.head)
    head_file.store.delete(found.path, generation=found.generation)
    with pytest.raises(HeadLost):
        head_file.check(term=1)
    with pytest.raises(HeadLost):
        head_file.swap(lambda known: known, term=1)


def test_a_stranger_in_the_same_term_is_an_error(head_file: HeadFile, claim: Claim) -> None:
    head_file.take_term(claim)
    known = read_head(head_file.store, head_file.layout).head
    head_file.store.put(head_file.layout.head, replace(known, nonce="x").to_json())
    with pytest.raises(HeadError) as caught:
        head_file.swap(lambda known: known, term=1)
    assert type(caught.value) is HeadError
    assert str(caught.value) == (
        "term 1: HEAD is at term 1 and was rewritten by another process; only `outlast repair` "
        "does that"
    )


def test_failures_are_counted_against_the_retries(head_file: HeadFile, claim: Claim) -> None:
    head_file.take_term(claim)
    assert head_file.count_failure(term=1, before=0, retries=2)
    for term, granted in ((2, True), (3, False)):
        holder = other(head_file)
        holder.take_term(claim)
        before = holder.head.failures
        assert holder.count_failure(term=term, before=before, retries=2) is granted


def test_data_is_set_once(head_file: HeadFile, claim: Claim) -> None:
    head_file.take_term(claim)
    digits = DataFingerprint("data/digits", 3, 100, "AAAAAA==")
    faces = DataFingerprint("data/faces", 5, 10, "AAAAAQ==")
    head_file.set_data(digits, term=1)
    written = head_file.read().object.generation
    head_file.set_data(digits, term=1)
    assert head_file.read().object.generation == written
    second = other(head_file)
    second.take_term(claim)
    second.set_data(replace(digits, generation=4), term=2)
    second.set_data(faces, term=2)
    assert second.read().head.data == (digits, faces)


@pytest.mark.parametrize("applied", [True, False])
def test_the_operators_stop_is_seen_by_the_holder(
    head_file: HeadFile, claim: Claim, applied: bool
) -> None:
    head_file.take_term(claim)
    operator = other(head_file, failing("put", [Unavailable("gone")], applied=applied))
    stopped = operator.end_from_outside(State.STOPPED, Reason.STOPPED)
    assert stopped.end == End(Reason.STOPPED, None, 0, None)
    assert stopped.nonce != head_file.head.nonce
    for use in (
        lambda: head_file.check(term=1),
        lambda: head_file.swap(lambda known: known, term=1),
    ):
        with pytest.raises(HeadEnded, match="the run has ended: stopped") as caught:
            use()
        assert caught.value.head == stopped
    again = operator.end_from_outside(State.FAILED, Reason.EXPIRED)
    assert again.state is State.STOPPED


def test_a_forbidden_head_differs_from_a_missing_one(head_file: HeadFile) -> None:
    denied = other(head_file, failing("get", [Forbidden("403")], applied=False))
    with pytest.raises(HeadForbidden):
        denied.read()


def test_silence_is_counted_in_server_time(
    head_file: HeadFile, claim: Claim, clock: FakeClock
) -> None:
    since = head_file.store.now()
    clock.sleep(100)
    assert silent_seconds(head_file.store, head_file.layout, 1, since) == 100
    heartbeat = records(head_file, 1)
    clock.sleep(30)
    assert silent_seconds(head_file.store, head_file.layout, 1, since) == 30
    heartbeat()
    clock.sleep(7)
    assert silent_seconds(head_file.store, head_file.layout, 1, since) == 7


@pytest.mark.parametrize("name", ["failures", "no_progress"])
def test_a_count_that_was_forged_rises_to_no_head_that_cannot_be_read(
    head_file: HeadFile, claim: Claim, name: str
) -> None:
    store, layout = head_file.store, head_file.layout
    head_file.take_term(claim)
    forged = replace(head_file.read().head, **{name: 999_999_999})
    store.put(layout.head, forged.to_json())
    second = head_file.fresh()
    term = 2
    if name == "failures":
        assert second.take_term(claim).act is Act.TAKE
        assert not second.count_failure(term=term, before=forged.failures, retries=10)
    else:
        end = AttemptEnd(
            *(1, Reason.DRIVER, State.OPEN, 1, 0, None, "", (), 0.0, START), repeats=True
        )
        write_record(store, layout.attempt_end(1), end)
        assert second.take_term(claim).act is Act.END
    assert second.read().head.term >= 1


def test_a_head_that_could_not_be_read_again_is_not_written(
    head_file: HeadFile, claim: Claim
) -> None:
    head_file.take_term(claim)
    before = head_file.store.get(head_file.layout.head)[0]
    with pytest.raises(HeadError, match="Head.failures 1000000000: .* `outlast repair` repairs it"):
        head_file.swap(lambda known: replace(known, failures=10**9), term=1)
    assert head_file.store.get(head_file.layout.head)[0] == before


# -- ends from outside, other processes, copies -----------------------------------------------


def test_an_end_from_outside_is_put_on_top_of_what_was_written_meanwhile(
    head_file: HeadFile, claim: Claim, clock: FakeClock
) -> None:
    head_file.take_term(claim)
    raced: list[float] = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb == "put" and not raced:
            other(head_file).take_term(claim)
            raced.append(clock.elapsed)
        return apply()

    operator = other(head_file, around)
    stopped = operator.end_from_outside(State.STOPPED, Reason.STOPPED)
    assert (stopped.term, stopped.state) == (2, State.STOPPED)
    assert read_head(head_file.store, head_file.layout).head == stopped
    assert clock.elapsed > raced[0]  # the loser of a race waits before it tries again


def test_a_fresh_one_has_the_clock_and_no_term(head_file: HeadFile, claim: Claim) -> None:
    head_file.take_term(claim)
    another = head_file.fresh()
    assert another.clock is head_file.clock
    assert another.patience.limits == head_file.patience.limits
    with pytest.raises(HeadError, match="^no term was taken; HEAD may not be written$"):
        _ = another.head


def test_an_attempt_that_restored_nothing_ends_the_run_with_its_copy(
    head_file: HeadFile, claim: Claim, clock: FakeClock
) -> None:
    head_file.take_term(claim)
    entry = Checkpoint(head_file.layout.snapshot(1, 10, "a"), 1, "f" * 64, 1, 10, ())
    head_file.swap(lambda known: replace(known, chain=(entry,)), term=1)
    patient = late_copy(head_file, clock)
    patient.take_term(claim)
    patient.fail(Reason.DRIVER, term=2)
    found = read_head(head_file.store, head_file.layout).head
    assert (found.state, found.end) == (State.FAILED, End(Reason.DRIVER, None, 10, None))
    copy = EndCopy.from_json(head_file.store.get(head_file.layout.end(0))[0])
    assert copy == end_copy(head_file.layout, found)


def test_the_copy_of_an_end_says_all_of_it(layout: Layout) -> None:
    result = Result(layout.result(4), 3, "d" * 64)
    done = replace(head(), state=State.DONE, end=End(Reason.DONE, 0, 10, result, "early"))
    assert end_copy(layout, done) == EndCopy(
        *(layout.run, 1, 4, State.DONE, Reason.DONE, 0, 10, result.path, "d" * 64, START, "early")
    )
    without = end_copy(layout, ended(State.FAILED))
    assert (without.result, without.digest, without.exit) == (None, None, 1)
    with pytest.raises(ValueError, match=f"run {layout.run}: is open and has no end to copy"):
        end_copy(layout, head())


# -- packages ---------------------------------------------------------------------------------


def test_wheels_are_set_once_for_each_key(head_file: HeadFile, claim: Claim) -> None:
    head_file.take_term(claim)
    first, second = "a" * 64, "b" * 64
    head_file.set_wheels(first, "1" * 64, term=1)
    written = head_file.read().object.generation
    head_file.set_wheels(first, "2" * 64, term=1)
    assert head_file.read().object.generation == written
    head_file.set_wheels(second, "3" * 64, term=1)
    found = head_file.read().head
    assert found.wheels == (Wheels(first, "1" * 64), Wheels(second, "3" * 64))
    assert found.wheels_of(second) == "3" * 64
    assert found.wheels_of("c" * 64) is None


def test_the_newest_wheels_are_kept() -> None:
    once = head().with_wheels("a" * 64, "1" * 64)
    assert once.with_wheels("a" * 64, "2" * 64) is once
    full = head()
    for number in range(WHEELS_MAX + 1):
        full = full.with_wheels(f"{number:064x}", "d" * 64)
    assert [int(entry.key, 16) for entry in full.wheels] == list(range(1, WHEELS_MAX + 1))


# -- handovers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "said", "left"),
    [
        (
            Phase.LEFT,
            "the run was handed over to gs://other/runs/x, and this copy is never continued; name"
            " that path, or set outlast:bucket to other",
            True,
        ),
        (
            Phase.LEAVING,
            "the run is being handed over to gs://other/runs/x; repeat that outlast handover to"
            " finish it, or take it back with outlast handover without --to",
            False,
        ),
        (
            Phase.ARRIVING,
            "the run is being handed over from gs://other/runs/x, and this copy is not complete;"
            " repeat that outlast handover to finish it",
            False,
        ),
    ],
)
def test_a_run_that_was_moved_says_where_it_is(
    memory: MemoryStore, layout: Layout, claim: Claim, phase: Phase, said: str, left: bool
) -> None:
    moved = head(chain=(), move=Move("gs://other/runs/x", phase))
    memory.put(layout.head, moved.to_json())
    with pytest.raises(HeadMoved) as caught:
        read_head(memory, layout)
    own = f"{memory.url}/{layout.root}".rstrip("/")
    assert str(caught.value) == f"{own}: {said}"
    assert caught.value.found == read_moved_head(memory, layout)
    assert caught.value.is_left is left
    assert is_left(memory, layout) is left
    made = HeadFile(memory, layout).take_term(claim)
    assert (made.act, made.reason, made.message) == (Act.REFUSE, Reason.REFUSED, f"{own}: {said}")


def test_a_run_in_a_folder_is_where_its_store_is() -> None:
    class Place:
        url = "file:///runs/X"

    store: Any = Place()
    assert place_of(store, Layout("", "")) == "file:///runs/X"
    assert place_of(store, Layout("experiments/demo", "X")).startswith("file:///runs/X/exp")


def test_a_run_that_is_here_or_cannot_be_read_has_not_left(
    memory: MemoryStore, layout: Layout
) -> None:
    assert not is_left(memory, layout)
    memory.put(layout.head, head(chain=()).to_json())
    assert not is_left(memory, layout)
    silent = memory.view(failing("get", [Unavailable("gone")], applied=False))
    assert not is_left(silent, layout)
