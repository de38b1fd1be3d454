"""The judge says broken where it is: each guarantee is shown something that breaks it."""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outlast.exits import Reason, State
from outlast.layout import Layout, ResultFile, ResultManifest
from outlast.operate import judge
from outlast.operate.judge import Misfortune, ResultRead
from outlast.operate.ledger import Attempt, Ledger
from outlast.run.head import End, Head, Lineage, Result
from outlast.run.store import MemoryStore

START = datetime(2026, 1, 1, tzinfo=UTC)
LAYOUT = Layout("experiments/dev", "0123456789")
BUCKET = {"name": "b", "objects": 9, "versions": 9}


def attempt(term: int, from_step: int, step: int, lost: int, reason: Reason) -> Attempt:
    return Attempt(
        term=term,
        start=START,
        end=START + timedelta(seconds=1),
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
        place=0,
        term=3,
        state=State.DONE,
        end=End(Reason.DONE, 0, 90, None),
        started=START,
        deadline=START + timedelta(days=1),
        chain=(),
        lineage=(Lineage(1, 0), Lineage(2, 30), Lineage(3, 55)),
        failures=0,
        barren=0,
        data=None,
        nonce="n",
    )
    return replace(whole, **changes)


def book(**changes) -> Ledger:
    whole = Ledger(
        head=head(),
        attempts=(
            attempt(1, 0, 30, 0, Reason.PREEMPTED),
            attempt(2, 30, 60, 5, Reason.CUT),
            attempt(3, 55, 90, 0, Reason.DONE),
        ),
        boots=3,
        first_boot=START,
        total=90,
        rows=(),
    )
    return replace(whole, **changes)


MISFORTUNES = [
    Misfortune("notice", 0.1, Reason.PREEMPTED, term=1),
    Misfortune("cut", 0.5, Reason.CUT, term=2),
]


def test_what_went_well_is_held():
    good = book()
    assert judge.both_done(good, good).held
    assert judge.told_as_planned(good, MISFORTUNES).held
    assert judge.always_resumed(good).held
    assert judge.notice_lost_nothing(good, MISFORTUNES).held
    assert judge.one_line(good).held
    assert judge.nothing_runs({"dev": 0, "calm": 0}, []).held
    kept = {"buckets": [BUCKET], "deleted_roles": ["leave"], "vms": []}
    assert judge.bucket_alone_is_left(kept, "b").held
    rows = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.4}]
    assert judge.each_step_once(rows, list(rows), 2).held
    assert judge.cuts_lost_the_uncommitted_only(good).held


def test_a_run_that_failed_is_not_done():
    failed = book(head=head(state=State.FAILED))
    assert not judge.both_done(failed, book()).held
    assert not judge.both_done(book(), failed).held


def test_a_misfortune_that_never_struck_or_is_told_wrongly_breaks():
    never = [*MISFORTUNES, Misfortune("upload", 0.9, Reason.CUT)]
    assert not judge.told_as_planned(book(), never).held
    wrong = [Misfortune("notice", 0.1, Reason.PREEMPTED, term=2)]
    assert not judge.told_as_planned(book(), wrong).held
    assert not judge.told_as_planned(book(), []).held


def test_a_silent_restart_breaks():
    attempts = (*book().attempts[:2], attempt(3, 0, 90, 0, Reason.DONE))
    assert not judge.always_resumed(book(attempts=attempts)).held
    assert not judge.always_resumed(book(attempts=attempts[:1])).held


def test_a_lost_step_after_a_notice_breaks():
    attempts = (attempt(1, 0, 30, 1, Reason.PREEMPTED), *book().attempts[1:])
    assert not judge.notice_lost_nothing(book(attempts=attempts), MISFORTUNES).held
    assert not judge.notice_lost_nothing(book(), MISFORTUNES[1:]).held


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"step": 1}, {"step": 1}],
        [{"step": 2}, {"step": 1}],
        [{"step": 1}],
        [{"step": 1}, {"step": 3}],
    ],
)
def test_a_missing_or_doubled_row_breaks(rows):
    assert not judge.each_step_once(rows, [{"step": 1}, {"step": 2}], 2).held
    assert not judge.each_step_once(rows, rows, 2).held  # wrong on both sides alike


def test_a_committed_step_that_the_next_attempt_did_again_breaks():
    first, second, third = book().attempts
    forgot = replace(second, committed=58)  # the third went on from 55
    assert not judge.cuts_lost_the_uncommitted_only(book(attempts=(first, forgot, third))).held
    assert not judge.cuts_lost_the_uncommitted_only(book(attempts=(first,))).held


@pytest.mark.parametrize(
    "lineage",
    [(), (Lineage(2, 0), Lineage(1, 9)), (Lineage(1, 9), Lineage(2, 5))],
)
def test_a_lineage_that_goes_back_breaks(lineage):
    assert not judge.one_line(book(head=head(lineage=lineage))).held


def test_what_still_runs_or_is_left_breaks():
    assert not judge.nothing_runs({"dev": 1}, []).held
    assert not judge.nothing_runs({"dev": None}, []).held
    assert not judge.nothing_runs({"dev": 0}, ["vm"]).held
    assert not judge.bucket_alone_is_left({"buckets": [BUCKET], "templates": ["t"]}, "b").held
    assert not judge.bucket_alone_is_left({"buckets": [BUCKET], "pids": [7]}, "b").held
    assert not judge.bucket_alone_is_left({"buckets": []}, "b").held
    assert not judge.no_process(["python (7)"]).held


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
    read = judge.read_result(store, whole)
    lines = "".join(
        f"{hashlib.sha256(data).hexdigest()}  {name}\n"
        for name, data in (("model.bin", b"weights"), ("notes.txt", b"x"))
    )
    assert read.digest == hashlib.sha256(lines.encode()).hexdigest()
    assert judge.same_bytes(read, read).held


def test_a_result_whose_bytes_changed_after_the_record_breaks():
    store = MemoryStore()
    whole = finished(store, {"model.bin": b"weights"})
    store.put(LAYOUT.result(3) + "model.bin", b"weightz")
    read = judge.read_result(store, whole)
    assert read.digest is None
    assert not judge.same_bytes(read, read).held


def test_different_results_and_missing_ones_break():
    assert not judge.same_bytes(ResultRead("a"), ResultRead("b")).held
    assert not judge.same_bytes(ResultRead(None), ResultRead(None)).held
    assert judge.read_result(MemoryStore(), head()).digest is None
