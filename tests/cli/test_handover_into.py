"""`outlast handover --to`: a verified copy, and at no moment two runs that may be continued."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket import history, pages
from outlast.bucket.boot import Act, Claim
from outlast.bucket.commit import Committer
from outlast.bucket.head import (
    End,
    HeadError,
    HeadMoved,
    Move,
    Phase,
    read_head,
    read_moved_head,
)
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.restore import Reader
from outlast.bucket.results import fetch_result, put_result
from outlast.bucket.retention import Retention
from outlast.bucket.rows import read_rows
from outlast.bucket.standing import Standing, standing
from outlast.bucket.store import Damaged, MemoryStore, Operation, open_store
from outlast.cli import runs
from outlast.cli.app import cli
from outlast.cli.errors import OperateError, UsageError
from outlast.cli.handover import hand_over, hand_over_into
from tests.cli.records import start_record
from tests.cli.test_resume import COMMITTED, LAYOUT
from tests.localcloud.conftest import bucket as bucket
from tests.localcloud.conftest import cloud as cloud
from tests.localcloud.conftest import shared_cloud as shared_cloud
from tests.localcloud.local_cloud import LocalCloud, make_bucket
from tests.stores import START, FakeClock
from tests.stores import claim as claim
from tests.stores import clock as clock
from tests.stores import layout as layout
from tests.stores import memory as memory

NEW = "org/demo/second"
STEPS = 7


@pytest.fixture
def origin(
    memory: MemoryStore,
    layout: Layout,
    claim: Claim,
    clock: FakeClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> MemoryStore:
    """A bucket with an open run whose VM was lost: most of its checkpoints are in pages."""
    monkeypatch.setattr(pages, "CHAIN_PAGE", 2)
    monkeypatch.setattr(pages, "FAN", 3)
    memory.url = "gs://old"
    head_file = HeadFile(memory, layout, clock)
    head_file.take_term(claim)
    memory.put(layout.attempt_start(1), start_record(1, 0, START).to_json())
    committer = Committer(head_file, retention=Retention(keep_every_steps=1))
    committer.restore(tmp_path / "restored")
    for step in range(1, STEPS + 1):
        clock.sleep(60)
        snapshot = tmp_path / str(step)
        snapshot.mkdir()
        (snapshot / "state").write_text(str(step))
        (snapshot / "same").write_text("in each")
        committer.commit(snapshot, step=step, rows=b'{"step":%d}\n' % step)
    memory.put(f"{layout.term(1)}s000000000009-dropped/state", b"never committed")
    memory.put(f"{layout.attempt(1)}log/000000.log", b"said")
    clock.sleep(3600)
    return memory


@pytest.fixture
def target(clock: FakeClock) -> MemoryStore:
    made = MemoryStore(clock=clock.now)
    made.put("another", b"raises the generations")
    made.url = "gs://new"
    return made


def place(url: str, layout: Layout) -> str:
    return f"{url}/{layout.root.rstrip('/')}"


def contents(store: MemoryStore, layout: Layout, folder: Path) -> dict[int, bytes]:
    """The bytes of each kept checkpoint, as a restore reads and verifies them."""
    head = read_moved_head(store, layout).head
    kept = pages.kept(store, layout, head)
    assert not kept.lost
    reader = Reader(store, HeadFile(store, layout).patience)
    found = {}
    for entry in kept.chain:
        _, path = reader.read(entry, folder / f"{store.url[5:]}-{entry.step}")
        found[entry.step] = (path / "state").read_bytes() + (path / "same").read_bytes()
    return found


def takes(store: MemoryStore, layout: Layout, claim: Claim, clock: FakeClock) -> bool:
    """Whether a VM that boots now would work on the run; on a copy of the bucket, so that asking
    changes nothing."""
    tried = MemoryStore(clock=clock.now)
    tried.url = store.url
    for path, entry in store._objects.items():
        tried._objects[path] = entry
    return HeadFile(tried, layout, clock).take_term(claim).act is Act.TAKE


def test_all_that_the_run_has_is_in_the_new_bucket_and_the_old_one_names_it(
    origin: MemoryStore,
    target: MemoryStore,
    layout: Layout,
    claim: Claim,
    clock: FakeClock,
    tmp_path: Path,
) -> None:
    before = history.read(origin, layout)
    rows, was = read_rows(origin, layout, read_head(origin, layout).head), read_head(origin, layout)
    done = hand_over_into(origin, target, layout, NEW)
    assert (done.before, done.place) == (claim.owner, place("gs://new", layout))

    head = read_head(target, layout).head
    assert (head.owner, head.step, head.state) == (NEW, STEPS, State.OPEN)
    everything = {step: b"%din each" % step for step in range(1, STEPS + 1)}
    assert contents(target, layout, tmp_path) == everything
    assert contents(origin, layout, tmp_path) == everything
    assert read_rows(target, layout, head) == rows
    assert target.get(f"{layout.attempt(1)}log/000000.log")[0] == b"said"
    assert not [one for one in target.list(layout.terms) if "dropped" in one.path]
    now = history.read(target, layout)
    assert now is not None and before is not None
    assert [(a.term, a.start, a.step) for a in now.attempts] == [
        (a.term, a.start, a.step) for a in before.attempts
    ]
    # Its VM is fenced and left no end: it works no more, in either bucket.
    (attempt,) = now.attempts
    assert (attempt.reason, attempt.end) == (Reason.VM_LOST, attempt.seen)
    assert standing(head, attempt, clock.now()) is Standing.INTERRUPTED

    said = (
        f"{place('gs://old', layout)}: the run was handed over to {place('gs://new', layout)}, and"
        " this copy is never continued; name that path, or set outlast:bucket to new"
    )
    for read in (read_head, history.read):
        with pytest.raises(HeadMoved) as refused:
            read(origin, layout)
        assert str(refused.value) == said
    decision = HeadFile(origin, layout, clock).take_term(claim)
    assert (decision.act, decision.reason, decision.message) == (Act.REFUSE, Reason.REFUSED, said)
    taken = HeadFile(target, layout, clock)
    assert taken.take_term(replace(claim, owner=NEW, placement=1)).act is Act.TAKE
    assert taken.term == was.head.term + 2
    restored = Committer(taken).restore(tmp_path / "again")
    assert restored.step == STEPS and not getattr(restored, "skipped", ())

    left = [one for store in (origin, target) for one in store.list("")]
    assert hand_over_into(origin, target, layout, NEW).place == place("gs://new", layout)
    assert left == [one for store in (origin, target) for one in store.list("")]
    with pytest.raises(HeadMoved):
        hand_over(origin, layout, NEW)


def test_an_ended_run_keeps_its_result(
    origin: MemoryStore, target: MemoryStore, layout: Layout, tmp_path: Path
) -> None:
    folder = tmp_path / "result"
    folder.mkdir()
    (folder / "model").write_bytes(b"trained")
    found = read_head(origin, layout)
    result = put_result(origin, layout, 1, folder)
    ended = found.head.ended(State.DONE, End(Reason.DONE, 0, STEPS, result))
    origin.put(layout.head, ended.to_json())
    hand_over_into(origin, target, layout, NEW)
    head = read_head(target, layout).head
    assert head.end is not None and head.end.result is not None and head.term == 1
    (tmp_path / "fetched").mkdir()
    fetch_result(target, head.end.result, tmp_path / "fetched")
    assert (tmp_path / "fetched" / "model").read_bytes() == b"trained"


class Killed(BaseException):
    """The process ends here."""


def killing(at: int, applied: bool) -> tuple[Callable[[Operation, Callable[[], Any]], Any], list]:
    """Kills at the `at`-th write, before or after the store has it."""
    seen: list[Operation] = []

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if not operation.writes:
            return apply()
        seen.append(operation)
        if len(seen) != at:
            return apply()
        if applied:
            apply()
        raise Killed

    return around, seen


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_killed_at_each_write_at_most_one_copy_may_be_continued_and_a_second_call_finishes(
    applied: bool,
    origin: MemoryStore,
    layout: Layout,
    claim: Claim,
    clock: FakeClock,
    tmp_path: Path,
) -> None:
    everything = {step: b"%din each" % step for step in range(1, STEPS + 1)}
    new = replace(claim, owner=NEW, placement=1)
    original = dict(origin._objects)
    at = 0
    ends = False
    phases = set()
    while not ends:
        at += 1
        origin._objects.clear()
        for path, entry in original.items():
            origin._objects[path] = entry
        target = MemoryStore(clock=clock.now)
        around, _ = killing(at, applied)
        views = origin.view(around), target.view(around)
        target.url = "gs://new"
        views[0].url, views[1].url = origin.url, target.url
        try:
            hand_over_into(*views, layout, NEW)
            ends = True
        except Killed:
            pass
        move = read_moved_head(origin, layout).head.move
        phases.add(move and move.phase)
        may = [takes(origin, layout, claim, clock)]
        if list(target.list(layout.root)):
            may.append(takes(target, layout, new, clock))
        assert sum(may) <= 1, (at, may)
        assert may[0] == (move is None), at
        done = hand_over_into(origin, target, layout, NEW)
        assert done.head.owner == NEW and done.head.step == STEPS
        assert contents(target, layout, tmp_path / str(at)) == everything
        assert takes(target, layout, new, clock) and not takes(origin, layout, claim, clock)
    assert phases == {None, Phase.LEAVING, Phase.LEFT} and at > 20


def test_a_vm_that_works_on_the_run_is_fenced(
    origin: MemoryStore, target: MemoryStore, layout: Layout, claim: Claim, clock: FakeClock
) -> None:
    holder = HeadFile(origin, layout, clock)
    holder.take_term(replace(claim, placement=1))
    origin.put(layout.attempt_start(holder.term), start_record(2, 7, START).to_json())
    with pytest.raises(OperateError, match="attempt 2 gave a sign of life .* end its VM first"):
        hand_over_into(origin, target, layout, NEW)
    assert not list(target.list(layout.root)) and read_head(origin, layout).head.move is None
    clock.sleep(3600)  # silent, but not dead
    hand_over_into(origin, target, layout, NEW)
    with pytest.raises(HeadMoved):
        holder.check(term=holder.term)
    with pytest.raises(HeadError):
        holder.swap(lambda head: head, term=holder.term)


def test_a_head_that_a_vm_rewrites_meanwhile_is_not_moved(
    origin: MemoryStore, target: MemoryStore, layout: Layout, claim: Claim, clock: FakeClock
) -> None:
    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.writes and operation.path == layout.head:
            HeadFile(origin, layout, clock).take_term(replace(claim, placement=1))
        return apply()

    view = origin.view(around)
    view.url = origin.url
    with pytest.raises(OperateError, match="HEAD has changed meanwhile, so a VM works on the run"):
        hand_over_into(view, target, layout, NEW)
    assert read_head(origin, layout).head.term == 2
    assert read_moved_head(target, layout).head.move == Move(
        place("gs://old", layout), Phase.ARRIVING
    )


@pytest.mark.parametrize("what", ["gone", "other bytes", "page"])
def test_a_run_with_a_damaged_checkpoint_is_not_published(
    what: str,
    origin: MemoryStore,
    target: MemoryStore,
    layout: Layout,
    claim: Claim,
    clock: FakeClock,
) -> None:
    head = read_head(origin, layout).head
    assert head.older_chain is not None
    path = f"{head.chain[0].path}state"
    if what == "gone":
        del origin._objects[path]
    elif what == "other bytes":
        origin.put(path, b"forged")
    else:
        path = head.older_chain.path
        del origin._objects[path]
    with pytest.raises(Damaged, match=path):
        hand_over_into(origin, target, layout, NEW)
    assert not takes(target, layout, replace(claim, owner=NEW), clock)
    assert not takes(origin, layout, claim, clock)
    with pytest.raises(HeadMoved, match="repeat that outlast handover to finish it, or take it"):
        read_head(origin, layout)
    # It can be taken back.
    hand_over(origin, layout, claim.owner)
    assert takes(origin, layout, replace(claim, placement=1), clock)


def test_bytes_that_arrive_otherwise_are_refused_and_copied_again(
    origin: MemoryStore, target: MemoryStore, layout: Layout
) -> None:
    log = f"{layout.attempt(1)}log/000000.log"

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        found = apply()
        if operation.verb == "take" and operation.path == log:
            return target.put(log, b"damaged")
        return found

    view = target.view(around)
    view.url = target.url
    with pytest.raises(Damaged, match=f"{log}: arrived as"):
        hand_over_into(origin, view, layout, NEW)
    hand_over_into(origin, target, layout, NEW)
    assert target.get(log)[0] == b"said"


def test_a_copy_that_loses_an_object_before_the_end_is_not_published(
    origin: MemoryStore, target: MemoryStore, layout: Layout
) -> None:
    log = f"{layout.attempt(1)}log/000000.log"

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        if operation.verb == "put" and "pages/" in operation.path and log in target._objects:
            del target._objects[log]
        return apply()

    view = target.view(around)
    view.url = target.url
    with pytest.raises(Damaged, match=f"{log}: is missing after the copy"):
        hand_over_into(origin, view, layout, NEW)
    with pytest.raises(HeadMoved, match="this copy is not complete"):
        read_head(target, layout)


@pytest.mark.parametrize("there", ["a run", "objects without HEAD", "another copy"])
def test_a_bucket_that_has_the_run_already_is_refused(
    there: str, origin: MemoryStore, target: MemoryStore, layout: Layout
) -> None:
    head = read_head(origin, layout).head
    if there == "a run":
        target.put(layout.head, replace(head, owner="o/p/theirs").to_json())
        said = "has a run of that name already, of o/p/theirs"
    elif there == "another copy":
        move = Move("gs://third/experiments/demo/0123456789", Phase.ARRIVING)
        target.put(layout.head, replace(head, move=move).to_json())
        said = "has a run of that name already"
    else:
        target.put(layout.attempt_end(1), b"{}")
        said = "has objects of a run, but no HEAD"
    with pytest.raises(OperateError, match=said):
        hand_over_into(origin, target, layout, NEW)
    assert read_head(origin, layout).head == head


def test_where_it_may_not_go(
    origin: MemoryStore, target: MemoryStore, layout: Layout, clock: FakeClock
) -> None:
    with pytest.raises(UsageError, match="the run is there already"):
        hand_over_into(origin, origin, layout, NEW)
    with pytest.raises(UsageError, match="must be organization/project/stack"):
        hand_over_into(origin, target, layout, "second")
    hand_over_into(origin, target, layout, NEW)
    third = MemoryStore(clock=clock.now)
    third.url = "gs://third"
    with pytest.raises(HeadMoved, match=f"handed over to {place('gs://new', layout)}"):
        hand_over_into(origin, third, layout, NEW)
    # From its new place it may be handed over again; its records keep their times.
    hand_over_into(target, third, layout, "org/demo/third")
    found = history.read(third, layout)
    assert found is not None and found.attempts[0].start == START
    assert found.head.owner == "org/demo/third"


def test_the_command_copies_between_buckets(
    cloud: LocalCloud,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    old, new = open_store(f"gs://{bucket}"), open_store(f"gs://{make_bucket(cloud)}")
    head_file = HeadFile(old, LAYOUT)
    head_file.take_term(Claim("o/p/s", 0, 0, COMMITTED.deadline.replace(year=2100)))
    record = start_record(1, 0, START)
    written = old.put(LAYOUT.attempt_start(1), record.to_json())
    old.put(LAYOUT.attempt_end(1), b"{}")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "state").write_bytes(b"state" * 1000)
    committer = Committer(head_file)
    committer.restore(tmp_path / "restored")
    committer.commit(snapshot, step=9)
    here, there = (f"{store.url}/experiments/dev/0123456789" for store in (old, new))
    with pytest.raises(UsageError, match="--to second: must be gs://BUCKET"):
        cli.main(["handover", here, NEW, "--to", "second"], standalone_mode=False)
    with pytest.raises(OperateError, match="there is no such bucket"):
        cli.main(["handover", here, NEW, "--to", "gs://none-at-all"], standalone_mode=False)
    for _ in range(2):
        cli.main(["handover", here, NEW, "--to", new.url], standalone_mode=False)
    said = (
        f"{here}: was copied to {there}, where it is at step 9 and belongs to {NEW}; that stack's"
        f" pulumi up continues it, with outlast:bucket {new.url[5:]}"
    )
    assert capsys.readouterr().out.splitlines() == [said, said]
    assert new.stat(LAYOUT.attempt_start(1)).updated == written.updated
    taken = HeadFile(new, LAYOUT)
    taken.take_term(Claim(NEW, 0, 1, COMMITTED.deadline.replace(year=2100)))
    restored = Committer(taken).restore(tmp_path / "again")
    assert (restored.step, taken.term) == (9, 3)
    with pytest.raises(OperateError, match=f"^{here}: the run was handed over to {there}, and"):
        cli.main(["status", here], standalone_mode=False)
    with pytest.raises(OperateError, match=f"^{here}: the run was handed over to {there}, and"):
        runs.OpenedRun(runs.find(here)).state  # noqa: B018
    with pytest.raises((OperateError, HeadMoved), match="the run was handed over to"):
        cli.main(["repair", here], standalone_mode=False)
