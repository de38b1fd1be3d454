"""A lost HEAD is rebuilt as it was, from manifests and start records; nothing stale comes in."""

import itertools
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.base.exits import Reason, State
from outlast.bucket import pages
from outlast.bucket.boot import NUMBERS_MAX, Act, Claim
from outlast.bucket.commit import Committer
from outlast.bucket.head import Fenced, Head, HeadLost, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.restore import Restored
from outlast.bucket.retention import Retention
from outlast.bucket.store import MemoryStore, open_store
from outlast.cli import repair as repairing
from outlast.cli import rewind, runs
from outlast.cli.app import cli
from outlast.cli.errors import OperateError, UsageError
from outlast.cli.repair import rebuild
from outlast.cli.runs import Place
from tests.cli.records import heartbeat_record, start_record
from tests.loop import programs
from tests.loop.test_local import PROGRAM

START = datetime(2026, 1, 1, tzinfo=UTC)
LAYOUT = Layout("experiments/dev", "0123456789")
OWNER = "o/p/s"
repair = partial(repairing.repair, silent_sec=0)
"""Of a run whose attempts all lived a moment ago."""

CLAIM = Claim(OWNER, 0, 0, START + timedelta(days=36_500))


class Quick:
    """A clock that does not wait."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Machine:
    """One attempt: takes a term, restores, commits the given steps."""

    def __init__(
        self, store: MemoryStore, folder: Path, claim: Claim = CLAIM, every: int | None = None
    ) -> None:
        self.folder = folder
        self.head_file = HeadFile(store, LAYOUT, Quick())
        assert self.head_file.take_term(claim).act is Act.TAKE
        self.committer = Committer(self.head_file, retention=Retention(keep_every_steps=every))
        found = self.committer.restore(folder / f"restored-{self.head_file.term}")
        self.step = found.step
        start = start_record(
            self.head_file.term,
            self.step,
            START,
            restored=found.checkpoint.path if isinstance(found, Restored) else None,
            resume=claim.resume,
        )
        start = replace(start, spec={"keep_every_steps": every or 0})
        store.put(LAYOUT.attempt_start(start.term), start.to_json())

    def commit(self, step: int, *tags: str) -> None:
        snapshot = self.folder / f"snapshot-{self.head_file.term}-{step}"
        snapshot.mkdir()
        (snapshot / "weights").write_bytes(b"%d" % step * 100)
        self.committer.commit(snapshot, step=step, tags=tags)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def lose_head(store: MemoryStore) -> None:
    store.delete(LAYOUT.head, generation=store.stat(LAYOUT.head).generation)


def train(store: MemoryStore, tmp_path: Path) -> Head:
    first = Machine(store, tmp_path)
    for step in (10, 20, 30):
        first.commit(step)
    Machine(store, tmp_path)  # cut before it committed anything
    third = Machine(store, tmp_path)
    third.commit(40)
    third.commit(50)
    return read_head(store, LAYOUT).head


@pytest.mark.parametrize("damage", ["gone", "garbage"])
def test_repair_restores_chain_and_lineage_and_the_run_continues(store, tmp_path, damage):
    before = train(store, tmp_path)
    lose_head(store)
    if damage == "garbage":
        store.put(LAYOUT.head, b"\x00 not a HEAD")
    repaired = repair(store, LAYOUT, OWNER)
    after = read_head(store, LAYOUT).head
    assert repaired.set_aside == 0
    assert (after.chain, after.lineage) == (before.chain, before.lineage)
    assert (after.state, after.owner) == (State.STOPPED, OWNER) and after.term > before.term
    assert after.end is not None and after.end.reason is Reason.STOPPED
    later = Machine(store, tmp_path, replace(CLAIM, resume=1))
    assert later.step == 50


@pytest.mark.parametrize("damage", ["HEAD gone", "newest page gone too"])
def test_checkpoints_kept_forever_are_in_the_chain_again(store, tmp_path, monkeypatch, damage):
    """Pages have the older ones; those after the newest page are found by their objects."""
    monkeypatch.setattr(pages, "CHAIN_PAGE", 4)
    monkeypatch.setattr(pages, "FAN", 2)
    machine = Machine(store, tmp_path, every=10)
    for step in range(10, 210, 10):
        machine.commit(step)
    second = Machine(store, tmp_path, every=10)
    for step in range(210, 310, 10):
        second.commit(step)
    before = read_head(store, LAYOUT).head
    kept = pages.kept(store, LAYOUT, before).chain
    assert [entry.step for entry in kept] == list(range(10, 310, 10))
    lose_head(store)
    if damage == "newest page gone too":
        newest = before.older_chain
        store.delete(newest.path, generation=newest.generation)
    repair(store, LAYOUT, OWNER)
    after = read_head(store, LAYOUT).head
    assert pages.kept(store, LAYOUT, after) == (kept, ())
    third = Machine(store, tmp_path, replace(CLAIM, resume=1), every=10)
    third.commit(310)
    now = pages.kept(store, LAYOUT, read_head(store, LAYOUT).head).chain
    assert now[:-1] == kept
    for entry in kept:
        store.stat(entry.manifest)


@pytest.mark.parametrize("every", [None, 10], ids=["in HEAD", "with pages"])
@pytest.mark.parametrize("best", [20, 25], ids=["that a page may have", "that only HEAD named"])
def test_the_best_checkpoint_comes_back_however_old_it_is(
    store, tmp_path, monkeypatch, every, best
):
    monkeypatch.setattr(pages, "CHAIN_PAGE", 4)
    monkeypatch.setattr(pages, "FAN", 2)
    machine = Machine(store, tmp_path, every=every)
    steps = sorted({*range(10, 210, 10), best})
    for step in steps:
        machine.commit(step, *(["best"] if step in (10, best) else []))
    before = read_head(store, LAYOUT).head
    assert [one.step for one in before.chain if "best" in one.tags] == [best]
    lose_head(store)
    repair(store, LAYOUT, OWNER)
    after = read_head(store, LAYOUT).head
    kept = pages.kept(store, LAYOUT, after)
    assert kept == pages.kept(store, LAYOUT, before)
    assert [one.step for one in after.chain if "best" in one.tags] == [best]
    second = Machine(store, tmp_path, replace(CLAIM, resume=1), every=every)
    second.commit(210)
    (found,) = (one for one in read_head(store, LAYOUT).head.chain if "best" in one.tags)
    store.stat(found.manifest)


def test_a_best_checkpoint_that_was_dropped_and_half_deleted_does_not_come_back(store, tmp_path):
    machine = Machine(store, tmp_path)
    machine.commit(10, "best")
    path = read_head(store, LAYOUT).head.chain[0].path
    for step in range(20, 80, 10):
        machine.commit(step)
    weights = store.stat(f"{path}weights")
    store.delete(weights.path, generation=weights.generation)
    lose_head(store)
    repair(store, LAYOUT, OWNER)
    assert [one.step for one in read_head(store, LAYOUT).head.chain] == [50, 60, 70]


def test_a_run_whose_newest_checkpoints_are_damaged_is_whole_where_a_page_has_a_good_one(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr(pages, "CHAIN_PAGE", 2)
    machine = Machine(store, tmp_path, every=10)
    for step in range(10, 110, 10):
        machine.commit(step)
    for entry in read_head(store, LAYOUT).head.chain:
        store.put(entry.path + "weights", b"flipped")
    with pytest.raises(OperateError, match="nothing to repair"):
        repair(store, LAYOUT, OWNER)


def test_a_damaged_newest_checkpoint_is_set_aside(store, tmp_path):
    before = train(store, tmp_path)
    store.put(before.chain[-1].path + "weights", b"flipped")
    lose_head(store)
    repaired = repair(store, LAYOUT, OWNER)
    assert repaired.set_aside == 1
    assert repaired.head.chain == before.chain[:-1]


def test_a_fenced_attempts_later_step_does_not_come_in(store, tmp_path):
    """Its manifest is whole, but the swap that would have made it a commit was refused."""
    first = Machine(store, tmp_path)
    first.commit(10)
    second = Machine(store, tmp_path)
    second.commit(20)
    with pytest.raises(Exception, match="term 2 holds the run"):
        first.commit(99)
    before = read_head(store, LAYOUT).head
    lose_head(store)
    assert repair(store, LAYOUT, OWNER).head.chain == before.chain


def test_a_fenced_attempts_snapshot_stays_out_though_its_successor_committed_nothing(
    store, tmp_path
):
    first = Machine(store, tmp_path)
    first.commit(10)
    second = Machine(store, tmp_path)
    Machine(store, tmp_path)  # restored at 10, cut before it committed anything
    with pytest.raises(Exception, match="term 3 holds the run"):
        second.commit(99)
    before = read_head(store, LAYOUT).head
    lose_head(store)
    after = repair(store, LAYOUT, OWNER).head
    assert (after.chain, after.lineage) == (before.chain, before.lineage)


def test_a_term_whose_start_record_is_unreadable_is_not_given_again(store, tmp_path):
    train(store, tmp_path)
    store.put(LAYOUT.attempt_start(7), b"garbage")
    lose_head(store)
    assert repair(store, LAYOUT, OWNER).head.term > 7


@pytest.mark.parametrize("damage", ["HEAD gone", "checkpoints damaged"])
def test_a_term_that_left_no_record_is_not_given_again(store, tmp_path, damage):
    """Its machine may live on, and must not take a later attempt's HEAD for its own."""
    before = train(store, tmp_path)
    for placement in (0, 1, 2):
        cut = HeadFile(store, LAYOUT, Quick())  # before it wrote its start record
        cut.take_term(replace(CLAIM, placement=placement))
    if damage == "HEAD gone":
        lose_head(store)
    else:
        for checkpoint in before.chain[1:]:
            store.put(checkpoint.path + "weights", b"flipped")
        head = read_head(store, LAYOUT).head
        store.put(LAYOUT.head, replace(head, chain=head.chain[1:]).to_json())
    repaired = repair(store, LAYOUT, OWNER).head
    assert repaired.term > cut.term
    assert damage == "HEAD gone" or (repaired.resume, repaired.placement) == (0, 2)
    Machine(store, tmp_path, replace(CLAIM, resume=1))
    with pytest.raises(Fenced):
        cut.check(term=cut.term)


def test_the_repaired_head_fences_the_holder_of_the_lost_one(store, tmp_path):
    first = Machine(store, tmp_path)
    first.commit(10)
    lose_head(store)
    repair(store, LAYOUT, OWNER)
    with pytest.raises(Exception, match="has ended: stopped"):
        first.commit(20)
    assert read_head(store, LAYOUT).head.step == 10


def test_an_older_head_put_back_over_the_run_is_repaired(store, tmp_path):
    first = Machine(store, tmp_path)
    stale = store.get(LAYOUT.head)[0]
    for step in (10, 20):
        first.commit(step)
    last = Machine(store, tmp_path)
    last.commit(30)
    store.put(LAYOUT.head, stale)
    repaired = repair(store, LAYOUT, OWNER)
    assert [entry.step for entry in repaired.head.chain] == [10, 20, 30]
    assert repaired.head.state is State.STOPPED and repaired.head.term > last.head_file.term


def test_a_whole_head_and_a_foreign_one_are_left_alone(store, tmp_path):
    train(store, tmp_path)
    before = store.get(LAYOUT.head)
    with pytest.raises(OperateError, match=r"HEAD is intact \(open, step 50\); nothing to repair"):
        repair(store, LAYOUT, OWNER)
    with pytest.raises(OperateError, match="HEAD belongs to o/p/s"):
        repair(store, LAYOUT, "o/p/other")
    assert store.get(LAYOUT.head) == before


def test_commits_of_a_running_attempt_are_not_taken_for_damage(store, tmp_path, monkeypatch):
    """While repair reads the checkpoints that HEAD names, retention deletes them."""
    running = Machine(store, tmp_path)
    running.commit(10)
    read, steps = pages.newest_first, iter(range(20, 1000, 10))

    def outrun(*args, **kwargs):
        for step in itertools.islice(steps, 4):
            running.commit(step)
        return read(*args, **kwargs)

    monkeypatch.setattr(pages, "newest_first", outrun)
    with pytest.raises(OperateError, match="sign of life 0 s ago"):
        repairing.repair(store, LAYOUT, OWNER, silent_sec=600)  # it never stands still
    slower = iter([outrun, outrun, read])
    monkeypatch.setattr(pages, "newest_first", lambda *args, **keys: next(slower)(*args, **keys))
    with pytest.raises(OperateError, match="HEAD is intact"):
        repair(store, LAYOUT, OWNER)


def test_where_every_checkpoint_is_damaged_it_says_so_and_writes_nothing(store, tmp_path):
    before = train(store, tmp_path)
    for checkpoint in before.chain:
        store.put(checkpoint.path + "weights", b"flipped")
    lose_head(store)
    with pytest.raises(OperateError, match="none of its 3 checkpoints can be read"):
        repair(store, LAYOUT, OWNER)
    with pytest.raises(HeadLost):
        read_head(store, LAYOUT)


def test_without_attempts_there_is_nothing_to_repair(store):
    with pytest.raises(OperateError, match="has no attempts; nothing is lost"):
        rebuild(store, LAYOUT, OWNER, START)


@pytest.mark.parametrize("over", ["ended", "silent"])
def test_nothing_is_repaired_while_an_attempt_may_be_alive(tmp_path, over):
    """It may be committing still; once it has ended, or was silent for long, it cannot."""
    now = START
    store = MemoryStore(clock=lambda: now)
    Machine(store, tmp_path).commit(10)
    second = Machine(store, tmp_path)
    second.commit(20)
    term = second.head_file.term
    lose_head(store)
    now += timedelta(seconds=700)
    heartbeat = heartbeat_record(term, 20, now, total=50, row={"step": 20})
    store.put(LAYOUT.heartbeat(term), heartbeat.to_json())
    now += timedelta(seconds=30)
    with pytest.raises(OperateError, match="attempt 2 gave a sign of life 30 s ago and has not"):
        repairing.repair(store, LAYOUT, OWNER)
    assert not list(store.list(LAYOUT.head))
    if over == "silent":
        now += timedelta(seconds=570)
    else:
        store.put(LAYOUT.attempt_end(term), b"{}")
    assert repairing.repair(store, LAYOUT, OWNER).head.step == 20


@pytest.mark.parametrize("value", [NUMBERS_MAX, 999_999_998, 999_999_999])
@pytest.mark.parametrize("name", ["term", "resume"])
def test_a_number_that_no_run_comes_to_is_refused_and_repaired(
    store, tmp_path, name: str, value: int
) -> None:
    """Left alone it would rise until no record has room for it, and nothing could be read."""
    before = train(store, tmp_path)
    store.put(LAYOUT.head, replace(before, **{name: value}).to_json())
    # What counts so far is not a record of this run either.
    store.put(LAYOUT.attempt_start(999_999_999), b"{}")
    forged = store.get(LAYOUT.head)[0]
    decision = HeadFile(store, LAYOUT, Quick()).take_term(CLAIM)
    assert (decision.act, decision.reason) == (Act.REFUSE, Reason.UNREADABLE)
    assert f"{name} {value}, which must be less than" in decision.message
    assert "`outlast repair` repairs it" in decision.message
    with pytest.raises(OperateError, match=f"HEAD has {name} {value}, .* repair it first"):
        rewind.plan(store, LAYOUT, 40, silent_sec=0)
    assert store.get(LAYOUT.head)[0] == forged
    repaired = repair(store, LAYOUT, OWNER).head
    assert (repaired.chain, repaired.data) == (before.chain, before.data)
    assert before.term < repaired.term < NUMBERS_MAX and repaired.resume == before.resume
    assert Machine(store, tmp_path, replace(CLAIM, resume=1)).step == 50


def test_records_that_count_to_the_last_number_start_from_scratch(store, tmp_path) -> None:
    train(store, tmp_path)
    lose_head(store)
    store.put(LAYOUT.attempt_start(NUMBERS_MAX - 1), b"{}")
    with pytest.raises(OperateError, match="must be less than 100000000; set outlast:rerun to st"):
        repair(store, LAYOUT, OWNER)
    assert not list(store.list(LAYOUT.head))


@pytest.mark.parametrize(
    "damage", ["gone", "garbage", "checkpoints", "term", "resume", "placement"]
)
def test_a_folders_run_is_open_again_and_its_command_resumes(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "walk.py"
    program.write_text(PROGRAM)
    run_dir = tmp_path / "run"
    argv = [sys.executable, str(program), str(run_dir), "1.0"]
    baseline = programs.run(tmp_path, [*argv[:2], str(tmp_path / "baseline"), "1.0"])
    assert baseline.returncode == 0, baseline.stderr
    failed = programs.run(tmp_path, argv, FAIL_AT="40", PACE="0.05")
    chain = programs.head(run_dir)["chain"]
    assert failed.returncode == 1 and len(chain) > 1
    if damage == "gone":
        (run_dir / "HEAD").unlink()
    elif damage == "garbage":
        (run_dir / "HEAD").write_text("{bad")
    elif damage == "checkpoints":
        for file in (run_dir / chain[-1]["path"]).iterdir():
            file.unlink()
    else:
        store = open_store(str(run_dir))
        store.put("HEAD", json.dumps({**programs.head(run_dir), damage: 999_999_999}).encode())
    monkeypatch.chdir(tmp_path)
    if damage == "checkpoints":  # one of them is whole: the training itself goes back to it
        refused = CliRunner().invoke(cli, ["repair", "run"])
        assert "run: HEAD is intact (open" in str(refused.exception)
    else:
        refused = programs.run(tmp_path, argv)
        assert refused.returncode == 64 and f"repair it: outlast repair {run_dir}" in refused.stderr
        repaired = CliRunner().invoke(cli, ["repair", "run"])
        assert repaired.exit_code == 0, repaired.exception
        step = chain[-1]["step"]
        assert repaired.output == (
            f"run: HEAD is repaired, at step {step}; its own command resumes from there\n"
        )
    again = programs.run(tmp_path, argv)
    assert again.returncode == 0, again.stderr
    assert "resumes at step" in again.stderr
    assert programs.result_of(run_dir) == programs.result_of(tmp_path / "baseline")


def test_a_stacks_run_and_a_folder_without_a_run_are_named(store, tmp_path):
    train(store, tmp_path)
    place = Place("gs://b/experiments/dev/0123456789", store, LAYOUT)
    with pytest.raises(OperateError, match="is the run of stack s; outlast repair s"):
        repairing.repair_alone(place)
    with pytest.raises(OperateError, match="no run was found; check the name"):
        repairing.repair_alone(Place("gs://b/x/y", store, Layout("x", "y")))
    with pytest.raises(UsageError, match="the folder holds no run"):
        runs.find_damaged(str(tmp_path))
    for takes_a_stack in ("resume", "stop"):
        said = CliRunner().invoke(cli, [takes_a_stack, str(tmp_path)]).exception
        assert "you run its own command again" in str(said)


def test_an_older_head_that_was_put_back_reuses_no_term_and_is_repaired(store, tmp_path):
    """Its own term committed more, or a later term has begun: neither may be written over."""
    first = Machine(store, tmp_path)
    first.commit(10)
    older = store.get(LAYOUT.head)[0]
    first.commit(20)
    old = store.get(LAYOUT.head)[0]
    heartbeat = heartbeat_record(1, 20, START, total=100, row={})
    store.put(LAYOUT.heartbeat(1), replace(heartbeat, committed=20).to_json())
    store.put(LAYOUT.head, older)
    decision = HeadFile(store, LAYOUT, Quick()).take_term(CLAIM)
    assert (decision.act, decision.reason) == (Act.REFUSE, Reason.UNREADABLE)
    assert "names step 10 of term 1 as the newest checkpoint, and term 1 committed step 20" in (
        decision.message
    )
    store.put(LAYOUT.head, old)
    second = Machine(store, tmp_path)
    second.commit(30)
    before = read_head(store, LAYOUT).head
    begun = store.get(LAYOUT.attempt_start(2))
    store.put(LAYOUT.head, old)
    decision = HeadFile(store, LAYOUT, Quick()).take_term(CLAIM)
    assert decision.act is Act.REFUSE and "term 2 has begun" in decision.message
    assert "`outlast repair` repairs it" in decision.message
    assert store.get(LAYOUT.attempt_start(2)) == begun
    repaired = repair(store, LAYOUT, OWNER)
    assert repaired.head.chain == before.chain and repaired.head.term > 2
    assert Machine(store, tmp_path, replace(CLAIM, resume=1)).step == 30
