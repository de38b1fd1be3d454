"""Each guarantee is shown something that breaks it, and must say so."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.head import Checkpoint, End, Head, Lineage, Result
from outlast.bucket.history import Attempt, Boot, History
from outlast.bucket.layout import AttemptEnd, Layout
from outlast.bucket.store import MemoryStore
from outlast.cli.rehearsal import guarantees
from outlast.cli.rehearsal.guarantees import GUARANTEES, Verdict
from outlast.cli.rehearsal.seen import (
    Ending,
    Fault,
    ResultRead,
    RunRecord,
    Seen,
    Stall,
    read_result,
)
from outlast.spec.metrics import Last
from outlast.spec.result import ResultFile, ResultManifest

START = datetime(2026, 1, 1, tzinfo=UTC)
LAYOUT = Layout("experiments/dev", "0123456789")
BUCKET = {"name": "b", "objects": 9, "versions": 9}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def attempt(term: int, from_step: int, step: int, lost: int, reason: Reason) -> Attempt:
    return Attempt(
        term=term,
        start=START,
        end=at(1),
        reason=reason,
        instance="vm",
        zone="z",
        from_step=from_step,
        step=step,
        committed=step - lost,
        lost=lost,
    )


def head(**changes) -> Head:
    whole = Head(
        owner="o/p/s",
        resume=0,
        placement=0,
        term=3,
        state=State.DONE,
        end=End(Reason.DONE, 0, 90, None),
        started=START,
        deadline=START + timedelta(days=1),
        chain=(),
        lineage=(Lineage(1, 0), Lineage(2, 30), Lineage(3, 55)),
        failures=0,
        no_progress=0,
        data=None,
        nonce="n",
    )
    return replace(whole, **changes)


def failed(reason: Reason) -> Head:
    return head(state=State.FAILED, end=End(reason, 3, 90, None))


def chain(*terms: int) -> tuple[Checkpoint, ...]:
    return tuple(
        Checkpoint(LAYOUT.snapshot(term, 10 * n, "a"), 1, "b3" * 32, term, 10 * n, ())
        for n, term in enumerate(terms)
    )


ATTEMPTS = (
    attempt(1, 0, 30, 0, Reason.PREEMPTED),
    attempt(2, 30, 60, 5, Reason.VM_LOST),
    attempt(3, 55, 90, 0, Reason.DONE),
)


def book(**changes) -> History:
    whole = History(head=head(), attempts=ATTEMPTS, booted={"boots/1": START}, total=90, rows=())
    return replace(whole, **changes)


def rows(*steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "loss": 1 / step} for step in steps]


RUN = RunRecord(
    history=book(),
    rows=rows(*range(1, 91)),
    result=ResultRead("a"),
    boots=tuple(Boot(str(number), at(number), None) for number in range(3)),
    ended=at(60),
    heads=(
        head(term=1, state=State.OPEN, end=None, chain=chain(1)),
        head(term=2, state=State.OPEN, end=None, chain=chain(1, 2)),
    ),
)
FAULTS = (Fault("preempt", boot=1, attempt=1), Fault("kill", boot=2, attempt=2))
GOOD = Seen(
    expected=Ending("done", "done"),
    run=replace(RUN, history=book(head=head(chain=chain(1, 2, 3)))),
    baseline=replace(RUN, heads=()),
    faults=FAULTS,
    sizes={"dev": 0, "dev-baseline": 0},
    bucket="b",
    audit={"buckets": [BUCKET], "deleted_roles": ["leave"], "vms": []},
)


def ended_as(reason: Reason, **changes) -> AttemptEnd:
    whole = AttemptEnd(
        term=3,
        reason=reason,
        state=State.FAILED,
        exit=3,
        step=90,
        committed=None,
        message="the trainer exited with 3",
        stderr=("no such column",),
        staged_sec=0.0,
        time=START,
    )
    return replace(whole, **changes)


def user_failed(*reasons: Reason, retries: int = 0, end: AttemptEnd | None = None) -> Seen:
    """A run that failed without a fault: its attempts' reasons, and the record of its last."""
    attempts = tuple(attempt(n, 0, 9, 0, reason) for n, reason in enumerate(reasons, 1))
    history = book(head=failed(reasons[-1]), attempts=attempts)
    run = replace(RUN, history=history, ends={3: end or ended_as(reasons[-1])})
    return Seen(Ending("failed", reasons[-1]), run, retries=retries)


def never_started(boots: int, size: int = 0) -> Seen:
    run = RunRecord(boots=tuple(Boot(str(n), at(n), Reason.SETUP_FAILED) for n in range(boots)))
    return Seen(Ending("never-started"), run, sizes={"dev": size})


def with_run(**changes) -> Seen:
    return replace(GOOD, run=replace(GOOD.run, **changes))


def with_book(**changes) -> Seen:
    return with_run(history=book(**changes))


def with_attempts(*attempts: Attempt) -> Seen:
    return with_book(attempts=attempts)


FIRST, SECOND, THIRD = ATTEMPTS
USER = Reason.USER_FAILED

WARNED = replace(
    with_run(history=book(attempts=(THIRD,)), heads=(head(chain=chain(2, 3)),)),
    faults=[Fault("maintenance", boot=1, attempt=3, options={"step": 8})],
)
SPECIAL = {
    *("waits-for-capacity", "retries-as-set", "failure-recorded", "gives-up", "warning-answered"),
    *("changes-zone", "stalls-retried"),
}
"""Guarantees that a run of three attempts says nothing about."""

OWN = replace(FIRST, term=9, reason=USER)
"""An attempt that nothing struck, and that its trainer failed."""
TIMED = [{**row, "seconds": 0.1 * row["step"]} for row in rows(*range(1, 91))]
TIMED_AGAIN = [{**row, "seconds": 0.2 * row["step"]} for row in TIMED]
LOGGED = ended_as(Reason.DONE, metrics={"loss": Last(90, 0.1)})

HELD = [
    *((name, GOOD) for name in GUARANTEES if name not in SPECIAL),
    ("warning-answered", WARNED),
    (
        "warning-answered",
        replace(
            WARNED,
            run=replace(
                WARNED.run, history=book(attempts=(replace(THIRD, reason=Reason.MAINTENANCE),))
            ),
        ),
    ),
    ("changes-zone", with_attempts(FIRST, replace(SECOND, zone="elsewhere"))),
    ("stalls-retried", replace(GOOD, stalls=[Stall("run/HEAD", 3.0, True)])),
    ("waits-for-capacity", replace(GOOD, refusals=["ZONE_RESOURCE_POOL_EXHAUSTED"])),
    ("waits-for-capacity", replace(GOOD, refusals=["QUOTA_EXCEEDED"])),
    ("retries-as-set", user_failed(USER)),
    ("retries-as-set", user_failed(USER, USER, retries=1)),
    ("retries-as-set", user_failed(Reason.USAGE, retries=1)),
    ("retries-as-set", replace(with_attempts(replace(FIRST, reason=USER), THIRD), retries=1)),
    ("failure-recorded", user_failed(USER)),
    (
        "failure-recorded",
        user_failed(Reason.STALLED, end=ended_as(Reason.STALLED, stderr=(), exit=None)),
    ),
    ("gives-up", never_started(10)),
    ("each-step-once", replace(GOOD, baseline=None)),
    ("each-step-once", replace(with_run(rows=rows(1, 3)), baseline=replace(RUN, rows=rows(1, 3)))),
    ("each-step-once", replace(with_run(rows=rows(*range(30, 91, 30))), baseline=None)),
    ("each-step-once", replace(with_run(rows=TIMED), baseline=replace(RUN, rows=TIMED_AGAIN))),
    (
        "each-step-once",
        replace(with_run(rows=rows(*range(1, 91)), ends={3: LOGGED}), baseline=None),
    ),
    ("no-failure-counted", with_book(head=head(failures=1), attempts=(OWN, SECOND, THIRD))),
    ("reason-recorded", replace(GOOD, faults=[*FAULTS, Fault("kill", attempt=3)])),
    ("reason-recorded", replace(GOOD, faults=[*FAULTS, Fault("kill", boot=7)])),
    ("only-faults-end-attempts", with_attempts(THIRD)),
]

BROKEN = [
    ("same-bytes", with_run(result=ResultRead("b"))),
    ("same-bytes", replace(GOOD, run=replace(RUN, result=ResultRead(None)),
                           baseline=replace(RUN, result=ResultRead(None)))),
    ("reason-recorded", replace(GOOD, faults=[Fault("preempt", boot=1, attempt=2)])),
    ("reason-recorded", replace(GOOD, faults=[Fault("kill", boot=9, attempt=9)])),
    ("resumed", with_attempts(FIRST, SECOND, replace(THIRD, from_step=0))),
    ("notice-loses-nothing", with_attempts(replace(FIRST, lost=1), SECOND, THIRD)),
    ("committed-kept", with_attempts(FIRST, replace(SECOND, committed=58), THIRD)),
    *(("each-step-once", with_run(rows=found)) for found in (
        [], rows(1, 1), rows(2, 1), rows(1), rows(1, 3), rows(*range(1, 90)),
        [*rows(*range(1, 90)), {"step": 90, "loss": 7.0}],
    )),
    ("each-step-once", replace(with_run(rows=TIMED[:89]), baseline=replace(RUN, rows=TIMED))),
    ("each-step-once", with_run(rows=[*rows(*range(1, 60)), {"step": 60, "loss": 7.0},
                                      *rows(*range(61, 91))])),
    ("each-step-once", replace(with_run(rows=rows(*range(1, 31), *range(36, 91))), baseline=None)),
    ("each-step-once", replace(with_run(rows=rows(*range(10, 60, 10), *range(80, 91, 10))),
                               baseline=None)),
    ("each-step-once", replace(with_run(rows=rows(*range(1, 90)), ends={3: LOGGED}),
                               baseline=None)),
    ("each-step-once", replace(with_run(rows=rows(1, 1)), baseline=None)),
    *(("single-lineage", with_book(head=head(lineage=lineage))) for lineage in (
        (), (Lineage(2, 0), Lineage(1, 9)), (Lineage(1, 9), Lineage(2, 5)),
    )),
    ("head-never-goes-back", with_run(heads=(head(term=4), head(term=3)))),
    ("head-never-goes-back",
     with_run(heads=(head(term=2, chain=chain(2)), head(term=3, chain=chain(2, 1))))),
    ("head-never-goes-back",
     with_run(heads=(head(term=2), head(term=3, state=State.OPEN, end=None)))),
    ("only-faults-end-attempts", replace(GOOD, faults=FAULTS[1:])),
    ("only-faults-end-attempts", replace(GOOD, faults=[FAULTS[0], Fault("signal", attempt=2)])),
    ("no-failure-counted", with_book(head=head(failures=1))),
    ("stalls-retried", replace(GOOD, stalls=[Stall("run/HEAD", 3.0, False)])),
    ("stalls-retried", replace(GOOD, stalls=[Stall("run/HEAD", None, False)])),
    ("waits-for-capacity", replace(GOOD, refusals=["QUOTA_EXCEEDED"], run=RunRecord())),
    ("retries-as-set", user_failed(USER, USER)),
    ("retries-as-set", user_failed(USER, retries=1)),
    ("retries-as-set", user_failed(Reason.USAGE, Reason.USAGE, retries=1)),
    ("failure-recorded", user_failed(USER, end=ended_as(USER, stderr=()))),
    ("failure-recorded", user_failed(USER, end=ended_as(Reason.VM_LOST))),
    ("failure-recorded", user_failed(USER, end=ended_as(USER, message=""))),
    ("no-boot-after-end", with_run(boots=(Boot("1", at(61), Reason.ENDED),))),
    ("gives-up", never_started(3)),
    ("gives-up", never_started(11)),
    ("gives-up", never_started(10, size=1)),
    ("done-means-done", with_attempts(replace(FIRST, reason=Reason.DONE))),
    ("warning-answered", replace(WARNED, run=replace(WARNED.run, heads=()))),
    ("warning-answered", replace(
        WARNED, faults=[Fault("maintenance", attempt=3, options={"step": 11})])),
    ("warning-answered", replace(WARNED, run=replace(
        WARNED.run, history=book(attempts=(replace(THIRD, reason=Reason.INTERRUPTED),))))),
    ("changes-zone", with_attempts(FIRST, replace(SECOND, zone=FIRST.zone))),
    ("warning-answered", replace(WARNED, run=replace(
        WARNED.run, history=book(attempts=(replace(THIRD, step=10),))))),
    ("no-vm-left", replace(GOOD, sizes={"dev": 1})),
    ("no-vm-left", replace(GOOD, sizes={"dev": None})),
    ("no-vm-left", replace(GOOD, sizes={})),
    ("no-vm-left", replace(GOOD, vms=["vm"])),
    *(("only-bucket-left", replace(GOOD, audit=audit)) for audit in (
        {"buckets": [BUCKET], "templates": ["t"]},
        {"buckets": [BUCKET], "pids": [7]},
        {"buckets": []},
        {},
    )),
    ("no-process-left", replace(GOOD, strays=["python (7)"])),
]  # fmt: skip


UNEXERCISED = [
    ("same-bytes", replace(GOOD, baseline=None)),
    ("reason-recorded", replace(GOOD, faults=[])),
    ("resumed", with_attempts(FIRST)),
    ("notice-loses-nothing", replace(GOOD, faults=FAULTS[1:])),
    ("notice-loses-nothing",
     replace(GOOD, faults=[Fault("preempt", attempt=1, options={"notice_sec": 0})])),
    ("committed-kept", with_attempts(FIRST)),
    ("head-never-goes-back", with_run(heads=())),
    ("only-faults-end-attempts", replace(GOOD, run=RunRecord())),
    ("no-failure-counted", replace(GOOD, run=RunRecord())),
    ("stalls-retried", GOOD),
    ("waits-for-capacity", GOOD),
    ("retries-as-set", GOOD),
    ("failure-recorded", GOOD),
    ("no-boot-after-end", with_run(ended=None)),
    ("gives-up", GOOD),
    ("done-means-done", replace(GOOD, faults=FAULTS[1:])),
    ("warning-answered", GOOD),
    ("changes-zone", with_attempts(FIRST)),
    ("warning-answered",
     replace(WARNED, faults=[Fault("maintenance", boot=1, attempt=1)])),
    ("same-bytes", replace(GOOD, baseline=replace(RUN, history=book(head=failed(USER))))),
    ("same-bytes", with_book(head=failed(USER))),
    ("reason-recorded", replace(GOOD, faults=[Fault("kill", attempt=1, missed="it was gone")])),
    ("reason-recorded", replace(GOOD, faults=[Fault("preempt", boot=3, attempt=3)])),
    ("resumed",
     with_attempts(replace(FIRST, committed=None), replace(SECOND, from_step=0), THIRD)),
    ("notice-loses-nothing",
     replace(GOOD, faults=[Fault("preempt", attempt=1, missed="it was gone")])),
    ("each-step-once", replace(with_run(rows=[]), baseline=None)),
    ("each-step-once", replace(with_run(rows=[]), baseline=replace(RUN, rows=[]))),
    ("each-step-once", with_book(head=failed(USER))),
    ("single-lineage", replace(GOOD, run=RunRecord())),
    ("no-boot-after-end", replace(GOOD, run=RunRecord())),
]  # fmt: skip


def verdict(name: str, seen: Seen) -> guarantees.Guarantee:
    return guarantees.check(seen, [name])[-1]


def test_in_a_run_that_went_well_all_is_held():
    for name, seen in HELD:
        found = verdict(name, seen)
        assert found.held, f"{name}: {found.detail}"
    assert {name for name, _ in HELD} == set(GUARANTEES)


@pytest.mark.parametrize(
    ("name", "seen"), BROKEN, ids=[f"{name}-{n}" for n, (name, _) in enumerate(BROKEN)]
)
def test_what_breaks_a_guarantee_is_said_to(name, seen):
    found = verdict(name, seen)
    assert found.verdict is Verdict.BROKEN, found.detail


@pytest.mark.parametrize(
    ("name", "seen"), UNEXERCISED, ids=[f"{name}-{n}" for n, (name, _) in enumerate(UNEXERCISED)]
)
def test_what_nothing_put_to_the_test_is_neither_held_nor_broken(name, seen):
    found = verdict(name, seen)
    assert found.verdict is Verdict.NOT_EXERCISED and found.detail, found.detail


@pytest.mark.parametrize(
    ("name", "seen", "said"),
    [
        ("each-step-once", with_run(rows=rows(*range(1, 60), *range(65, 91))),
         "85 rows of 90 steps; without step 60, 61, 62 and 2 more, which the undisturbed run has"),
        ("each-step-once", with_run(rows=rows(1, 1)), "step 1 is recorded twice"),
        ("each-step-once", replace(with_run(rows=TIMED), baseline=replace(RUN, rows=TIMED_AGAIN)),
         "90 rows of 90 steps; not compared, because they vary in each run: seconds"),
        ("each-step-once", replace(with_run(rows=rows(30, 60, 90)), baseline=None), "3 rows of 90"),
        ("each-step-once", replace(with_run(rows=rows(*range(1, 31), *range(36, 91))),
                                   baseline=None),
         "no row between step 30 and step 36, where an attempt took over"),
        ("same-bytes", with_run(result=ResultRead("b", {"m.txt": b"one", "n": b""}),
                                rows=[{"step": 1, "loss": 0.5}]),
         "m.txt differs (value line 1: 'one', undisturbed 'two'); 1 other file is equal; the rows "
         "differ before anything interrupted the run: loss of step 1 is 0.5, undisturbed 1; if"),
        ("reason-recorded", replace(GOOD, faults=[Fault("preempt", boot=3, attempt=3)]),
         "preempt: attempt 3 ended as done, because it was complete before it was stopped"),
        ("resumed",
         with_attempts(replace(FIRST, committed=None), replace(SECOND, from_step=0), THIRD),
         "attempt 1 had no checkpoint yet when it ended: make checkpoints more often"),
        ("no-failure-counted", with_book(head=head(failures=1), attempts=(OWN, THIRD)),
         "1 failure counted, 1 of the trainer's own"),
        ("notice-loses-nothing",
         with_run(history=book(attempts=(replace(FIRST, lost=1), SECOND, THIRD)),
                  ends={1: replace(ended_as(Reason.PREEMPTED), term=1, message="no time")}),
         "1 step lost; attempt 1: no time"),
    ],
)  # fmt: skip
def test_a_verdict_says_what_was_seen(name, seen, said):
    if seen.baseline is not None and not seen.baseline.result.files:
        result = ResultRead("a", {"m.txt": b"two", "n": b""})
        seen = replace(seen, baseline=replace(seen.baseline, result=result))
    assert said in verdict(name, seen).detail


def test_every_guarantee_is_shown_something_that_breaks_it():
    assert {name for name, _ in BROKEN} == set(GUARANTEES)


def test_every_guarantee_is_printed_as_a_promise():
    for guarantee in guarantees.check(GOOD, GUARANTEES):
        assert guarantee.promise and guarantee.detail, guarantee.name


@pytest.mark.parametrize(
    ("seen", "detail"),
    [
        (replace(GOOD, expected=Ending("failed")), "done (done), must be failed; baseline"),
        (user_failed(USER, Reason.STALLED), "failed (stalled)"),
        (replace(user_failed(USER), expected=Ending("failed", "usage")), "must be failed (usage)"),
        (replace(GOOD, run=RunRecord()), "waiting, must be done (done)"),
        (replace(GOOD, run=never_started(2).run), "never-started, must be done"),
        (
            replace(with_book(head=head(state=State.OPEN, end=None)), within_sec=300.0),
            "open after 300 s, must be done (done)",
        ),
    ],
)
def test_another_end_than_the_expected_breaks(seen, detail):
    found = guarantees.check(seen, [])[0]
    assert (found.name, found.held) == ("ends-as-expected", "must" not in detail)
    assert detail in found.detail


def test_an_undisturbed_run_that_is_not_done_breaks():
    baseline = replace(RUN, history=book(head=failed(USER)))
    assert not guarantees.check(replace(GOOD, baseline=baseline), [])[0].held


def test_a_fault_that_never_came_was_not_exercised():
    found = guarantees.check(replace(GOOD, pending=["event 3 (kill at share 0.8)"]), [])[1]
    assert (found.name, found.verdict) == ("all-happened", Verdict.NOT_EXERCISED)
    assert found.detail == (
        "preempt: attempt 1; kill: attempt 2; the run ended at step 90 before event 3 (kill at "
        "share 0.8); train longer, or name earlier moments"
    )
    early = with_run(history=book(total=None))
    found = guarantees.check(replace(early, pending=["event 1 (kill at share 0.8)"]), [])[1]
    assert found.detail.endswith("gives no total, so there is no share: name commits instead")
    lost = with_book(head=failed(USER))
    found = guarantees.check(replace(lost, pending=["event 1 (kill at share 0.8)"]), [])[1]
    assert found.detail.endswith("the run ended at step 90 before event 1 (kill at share 0.8)")
    missed = replace(GOOD, faults=[Fault("thaw", boot=2, missed="no VM has begun attempt 9")])
    found = guarantees.check(missed, [])[1]
    assert found.verdict is Verdict.NOT_EXERCISED
    assert found.detail == "thaw: boot 2 (missed: no VM has begun attempt 9)"
    quiet = guarantees.check(replace(GOOD, faults=[], disturbed_requests=2), [])[1]
    assert (quiet.held, quiet.detail) == (True, "2 requests were disturbed")


def finished(store: MemoryStore, files: dict[str, bytes]) -> Head:
    folder = LAYOUT.result(3)
    listed = []
    for name, data in files.items():
        store.put(folder + name, data)
        listed.append(ResultFile(name, len(data), hashlib.sha256(data).hexdigest()))
    manifest = ResultManifest.of(listed)
    put = store.put(folder + "RESULT.json", manifest.to_json())
    return head(end=End(Reason.DONE, 0, 90, Result(folder, put.generation, manifest.digest)))


def test_the_result_is_hashed_from_its_own_bytes():
    store = MemoryStore()
    whole = finished(store, {"model.bin": b"weights", "notes.txt": b"x"})
    read = read_result(store, whole)
    lines = "".join(
        f"{hashlib.sha256(data).hexdigest()}  {name}\n"
        for name, data in (("model.bin", b"weights"), ("notes.txt", b"x"))
    )
    assert read.digest == hashlib.sha256(lines.encode()).hexdigest()
    assert read.files == {"model.bin": b"weights", "notes.txt": b"x"}


def test_a_result_whose_bytes_changed_after_the_record_has_no_digest():
    store = MemoryStore()
    whole = finished(store, {"model.bin": b"weights"})
    store.put(LAYOUT.result(3) + "model.bin", b"weightz")
    assert read_result(store, whole).digest is None


def test_an_end_without_a_result_has_no_digest():
    assert read_result(MemoryStore(), head()).digest is None


@pytest.mark.parametrize(
    ("users", "verdict", "detail"),
    [
        ((True, True), Verdict.HELD, "2 attempts"),
        ((True, False), Verdict.BROKEN, "attempt 2 ran as the supervisor's user"),
        ((False, False), Verdict.NOT_EXERCISED, "the local cloud does not run as root"),
        ((None, None), None, ""),
    ],
)
def test_a_trainers_own_user_is_checked_where_the_stack_asks_for_it(users, verdict, detail):
    attempts = [
        replace(attempt(term, 0, 5, 0, Reason.VM_LOST), own_user=user)
        for term, user in enumerate(users, 1)
    ]
    book = GOOD.run.history
    assert book is not None
    seen = replace(GOOD, run=replace(GOOD.run, history=replace(book, attempts=tuple(attempts))))
    found = {one.name: one for one in guarantees.check(seen, [])}
    if verdict is None:
        assert "own-user" not in found
    else:
        assert found["own-user"].verdict is verdict and detail in found["own-user"].detail
