"""Attempts and what follows them, with a supervisor in this process and a scripted trainer."""

import dataclasses
import errno
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast.base import exits, scratch_space
from outlast.base.exits import (
    BOOT_REASONS,
    MAX_NO_PROGRESS,
    Reason,
    State,
)
from outlast.bucket import upload as upload_module
from outlast.bucket.boot import STOP_ASKED, Claim
from outlast.bucket.head import End, Head, HeadLost, Move, Phase, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import (
    AttemptEnd,
    AttemptStart,
    BootEnd,
    EndCopy,
    Heartbeat,
    StopRequest,
)
from outlast.bucket.records import read_record, write_record
from outlast.bucket.store import (
    Damaged,
    Forbidden,
    MemoryStore,
    NotFound,
    Operation,
    PreconditionFailed,
    Store,
    Throttled,
    Unavailable,
    Unsupported,
)
from outlast.protocol import (
    VERSION,
    Accepted,
    Busy,
    Channel,
    Checkpoint,
    Error,
    Failed,
    Hello,
    Stop,
)
from outlast.supervisor import jobs, trainer_loop
from outlast.supervisor.budget import Budget
from outlast.supervisor.code import CodeRefused, CodeUnavailable
from outlast.supervisor.life import record_boot_end
from outlast.supervisor.progress import Progress
from outlast.supervisor.shutdown import Limit
from tests.supervisor.world import (
    LAYOUT,
    SPEC,
    Life,
    Vm,
    World,
    a_world,
    spec_with,
    wait_until,
)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as world:
        yield world


def finish(life: Life) -> int:
    """Ten steps in all, a checkpoint, the result."""
    life.advance(10 - life.step)
    life.commit()
    return life.complete()


def finish_when(proceed: threading.Event) -> Callable[[Life], int]:
    def script(life: Life) -> int:
        assert proceed.wait(60)
        return finish(life)

    return script


def stopped_after(steps: int) -> Callable[[Life], int]:
    def script(life: Life) -> int:
        life.advance(steps)
        return life.obey()

    return script


def exits_with(code: int, *, steps: int = 0, error: Error | None = None) -> Callable[[Life], int]:
    """Fails after steps and a checkpoint of them."""

    def script(life: Life) -> int:
        if steps:
            life.advance(steps)
            life.commit()
        if error is not None:
            life.channel.send(error)
        return code

    return script


# -- the ordinary life ---------------------------------------------------------------------------


def test_a_run_trains_commits_and_ends(world: World) -> None:
    vm = world.boot(finish)
    assert vm.run() == 0
    head = world.head
    assert head.state is State.DONE and head.end is not None and head.end.step == 10
    assert world.exists(LAYOUT.end(0)) and world.exists(LAYOUT.result_manifest(1))
    assert world.steps() == list(range(1, 11))
    start = read_record(world.store, LAYOUT.attempt_start(1), AttemptStart)
    assert start is not None and start.restored is None and start.image == "image"
    end = world.end_of(1)
    assert (end.reason, end.state, end.exit, end.step, end.committed) == (
        Reason.DONE,
        State.DONE,
        0,
        10,
        10,
    )
    assert end.stderr == ("last line",)
    assert world.cloud.groups["group"] == []
    assert world.cloud.calls[-1] == "deleteInstances"
    assert not any(vm.boot.site.work.iterdir())
    assert world.boot_end_of(vm) is None


def test_every_nth_checkpoint_is_kept_beside_the_last(world: World) -> None:
    def script(life: Life) -> int:
        for _ in range(6):
            life.advance(1)
            life.commit()
        return life.complete()

    assert world.boot(script, spec=spec_with(keep_every_steps=2)).run() == 0
    assert [checkpoint.step for checkpoint in world.head.chain] == [2, 4, 5, 6]


def test_the_next_boot_of_a_finished_run_only_leaves(world: World) -> None:
    world.boot(finish).run()
    head = world.head
    vm = world.boot()
    assert vm.run() == 0
    end = world.boot_end_of(vm)
    assert end is not None and end.reason is Reason.ENDED
    assert world.head == head and world.cloud.groups["group"] == []


def test_a_notice_saves_the_last_step_and_the_next_machine_resumes(world: World) -> None:
    first = world.boot(stopped_after(3)).start()
    wait_until(lambda: first.trainers)
    assert first.trainers[0].running.wait(60)
    world.cloud.set("instance/preempted", "TRUE")
    assert first.ended() == 75
    end = world.end_of(1)
    assert (end.reason, end.state, end.exit, end.committed) == (
        Reason.PREEMPTED,
        State.OPEN,
        75,
        3,
    )
    assert "deleteInstances" not in world.cloud.calls  # the group shall recreate it
    seen: list[Any] = []

    def second(life: Life) -> int:
        seen.append(life.restored)
        return finish(life)

    assert world.boot(second).run() == 0
    assert seen == [{"step": 3}]
    assert world.steps() == list(range(1, 11))
    assert [entry.term for entry in world.head.lineage] == [1, 2]


def test_a_change_during_the_run_is_recorded_with_both_contents(world: World) -> None:
    old = {"arguments": {"epochs": 5}, "source": "a" * 64, "trainer": "count"}
    new = {**old, "arguments": {"epochs": 7}, "source": "b" * 64}
    first = world.boot(stopped_after(3), spec=spec_with(content=old)).start()
    wait_until(lambda: first.trainers)
    assert first.trainers[0].running.wait(60)
    world.cloud.set("instance/preempted", "TRUE")
    assert first.ended() == 75
    world.cloud.set("instance/preempted", "FALSE")
    second = world.boot(finish, spec=spec_with(content=new))
    assert second.run() == 0
    starts = [read_record(world.store, LAYOUT.attempt_start(t), AttemptStart) for t in (1, 2)]
    recorded = [(s.spec["content"], s.spec.get("before")) for s in starts if s]
    assert recorded == [(old, None), (new, old)]
    assert any(
        "continues with changes: args.epochs 5 → 7, the code aaaaaaaaaa → bbbbbbbbbb" in line
        for line in second.said
    )


def test_a_trainer_hears_of_its_checkpoint_before_the_old_one_is_deleted(
    world: World,
) -> None:
    heard = threading.Event()

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "delete":
            assert heard.wait(60), "deleted before its notice"
        return perform()

    assert isinstance(world.store, MemoryStore)

    def script(life: Life) -> int:
        for _ in range(4):
            life.advance(1)
            life.commit()
        heard.set()
        return life.complete()

    assert world.boot(script, store=world.store.view(around)).run() == 0
    assert [entry.step for entry in world.head.chain] == [2, 3, 4]
    kept = {LAYOUT.folder_of(found.path) for found in world.store.list(LAYOUT.terms)}
    assert {(1, entry.path) for entry in world.head.chain} == {
        place for place in kept if place and "/s" in place[1]
    }


def test_the_last_snapshot_of_a_loop_is_queued(world: World) -> None:
    """The best one and the last state are accepted behind the one in flight, and their uploads
    outlive the trainer, which evaluates as it is stopped."""
    lined_up, proceed = threading.Event(), threading.Event()

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "put" and operation.path.endswith("state.json"):
            proceed.wait(60)
        return perform()

    assert isinstance(world.store, MemoryStore)

    def script(life: Life) -> int:
        life.advance(3)
        assert isinstance(life.offer(), Accepted)
        life.advance(1)
        assert isinstance(life.offer(["best"]), Busy)
        assert isinstance(life.offer(["best"], last=True), Accepted)
        life.advance(1)
        assert isinstance(life.offer(last=True), Accepted)
        assert isinstance(life.offer(last=True), Busy)  # bounded
        lined_up.set()
        return life.hang()

    vm = world.boot(script, store=world.store.view(around), spec=spec_with(stop=2.0)).start()
    assert lined_up.wait(60)
    vm.terminate()
    wait_until(lambda: vm.trainers[0].ended.is_set())
    proceed.set()
    assert vm.ended() == 75
    assert [entry.step for entry in world.head.chain] == [3, 4, 5]
    assert world.end_of(1).reason is Reason.INTERRUPTED


def test_sigterm_during_an_upload_saves_both_snapshots(world: World) -> None:
    """The second is accepted while the first is in flight, and its upload outlives the trainer."""
    refused, proceed = threading.Event(), threading.Event()

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "put" and operation.path.endswith("state.json"):
            proceed.wait(60)
        return perform()

    assert isinstance(world.store, MemoryStore)

    def script(life: Life) -> int:
        life.advance(3)
        assert isinstance(life.offer(), Accepted)
        life.advance(1)
        assert isinstance(life.offer(), Busy)
        refused.set()
        life.hear(Stop)
        assert isinstance(life.offer(), Accepted)
        assert isinstance(life.offer(), Busy)  # bounded: one in flight, one waiting
        return 75

    vm = world.boot(script, store=world.store.view(around)).start()
    refused.wait(60)
    vm.terminate()
    wait_until(lambda: vm.trainers[0].ended.is_set())
    proceed.set()
    assert vm.ended() == 75
    assert [entry.step for entry in world.head.chain] == [3, 4]
    assert world.end_of(1).reason is Reason.INTERRUPTED


def test_a_trainer_that_does_not_stop_is_killed_in_time(world: World) -> None:
    def script(life: Life) -> int:
        life.advance(2)
        life.commit()
        return life.hang()

    vm = world.boot(script, spec=spec_with(stop=1.0)).start()
    wait_until(lambda: world.exists(LAYOUT.head) and world.head.chain)
    vm.notices.handle_signal(15, None)
    assert vm.ended() == 75
    assert world.end_of(1).committed == 2


def test_exit_0_after_a_stop_is_not_completion(world: World) -> None:
    def script(life: Life) -> int:
        life.hear(Stop)
        return 0

    vm = world.boot(script).start()
    vm.terminate()
    assert vm.ended() == 75
    assert world.head.state is State.OPEN


def test_a_declared_completion_counts_after_a_stop(world: World) -> None:
    def script(life: Life) -> int:
        life.hear(Stop)
        life.advance(10)
        life.complete()
        return 75

    vm = world.boot(script).start()
    vm.terminate()
    assert vm.ended() == 0
    assert world.head.state is State.DONE


def test_maintenance_is_a_warning(world: World) -> None:
    def script(life: Life) -> int:
        life.advance(1)
        life.hear(Checkpoint)
        life.commit()
        return finish(life)

    vm = world.boot(script).start()
    wait_until(lambda: world.exists(LAYOUT.heartbeat(1)))
    world.cloud.set("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    assert vm.ended() == 0
    assert world.head.state is State.DONE


def test_heartbeats_show_the_progress(world: World) -> None:
    heartbeats: list[Heartbeat] = []

    def script(life: Life) -> int:
        life.advance(7)
        life.commit()

        def heartbeat() -> Heartbeat | None:
            found = read_record(world.store, LAYOUT.heartbeat(1), Heartbeat)
            return found if found is not None and found.committed == 7 else None

        heartbeats.append(wait_until(heartbeat))
        return finish(life)

    assert world.boot(script).run() == 0
    (heartbeat,) = heartbeats
    assert (heartbeat.step, heartbeat.total, heartbeat.phase) == (7, 100, "train")
    assert [row["step"] for row in heartbeat.rows] == [3, 4, 5, 6, 7]
    assert heartbeat.seconds_to_commit is not None


def test_the_next_trainer_hears_what_a_commit_took(world: World) -> None:
    """And how old its machine is: young ones are preempted most."""

    def commits(life: Life) -> int:
        life.advance(2)
        life.commit()
        return life.obey()

    def measured() -> float | None:
        heartbeat = read_record(world.store, LAYOUT.heartbeat(1), Heartbeat)
        return None if heartbeat is None else heartbeat.commit_sec

    first = world.boot(commits).start()
    wait_until(measured, "a heartbeat after the commit")
    first.terminate()
    assert first.ended() == 75
    known = measured()
    heard: list[Any] = []

    def script(life: Life) -> int:
        heard.append((life.welcome.commit_sec, life.welcome.machine_age_sec))
        return finish(life)

    second = world.boot(script)
    second.boot = replaced_site(second, machine_age_sec=lambda: 1234.5)
    assert second.run() == 0
    assert known is not None and known > 0 and heard == [(known, 1234.5)]


def replaced_site(vm: Vm, **changed: Any) -> Any:
    return dataclasses.replace(vm.boot, site=dataclasses.replace(vm.boot.site, **changed))


def test_snapshots_may_be_in_another_folder_that_ends_with_the_attempt(
    world: World, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"

    def script(life: Life) -> int:
        assert life.welcome.scratch == [str(disk / "t000001")]
        life.work = disk / "t000001"
        return finish(life)

    vm = world.boot(script)
    vm.boot = replaced_site(vm, scratch=(disk,))
    assert vm.run() == 0
    assert [entry.step for entry in world.head.chain] == [10]
    assert f"snapshots are written to {disk / 't000001'}" in vm.said
    assert list(disk.iterdir()) == []


def test_a_checkpoint_is_restored_into_a_folder_with_room(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.boot(stopped_after(2)).start()
    first.terminate()
    first.ended()
    disk = tmp_path / "disk"
    rooms = {disk / "t000002": 1000}
    monkeypatch.setattr(scratch_space, "room", lambda folder: rooms.get(folder, 1))
    restored: list[str | None] = []

    def script(life: Life) -> int:
        restored.append(life.welcome.restore)
        assert life.restored == {"step": 2}
        return finish(life)

    second = world.boot(script)
    second.boot = replaced_site(second, scratch=(disk,))
    assert second.run() == 0
    assert restored == [str(disk / "t000002" / "restored")]


def test_a_snapshot_outside_the_work_folder_is_refused(world: World, tmp_path: Path) -> None:
    def script(life: Life) -> int:
        life.work = tmp_path / "elsewhere"
        life.work.mkdir()
        life.advance(1)
        life.offer()
        failed = life.hear(Failed)
        assert isinstance(failed, Failed) and "must be a folder in" in failed.message
        return 64

    assert world.boot(script).run() == 0
    assert world.head.chain == ()


def test_a_short_outage_of_the_store_is_survived(world: World) -> None:
    failures = iter([True] * 3)

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.path.endswith("MANIFEST.json") and next(failures, False):
            raise Unavailable("away")
        return perform()

    assert isinstance(world.store, MemoryStore)
    assert world.boot(finish, store=world.store.view(around)).run() == 0
    assert world.head.state is State.DONE


def raising(error: Exception, path_end: str, *, verb: str = "put", times: int = 10**9) -> Any:
    """Fails these operations before they are applied."""
    left = iter(range(times))

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if (
            operation.verb == verb
            and operation.path.endswith(path_end)
            and next(left, None) is not None
        ):
            raise error
        return perform()

    return around


def disturbed(world: World, around: Any) -> MemoryStore:
    assert isinstance(world.store, MemoryStore)
    return world.store.view(around)


def offers_one(life: Life) -> int:
    life.advance(2)
    life.offer()
    return life.hang()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Unavailable("away"), "the store does not answer: away"),
        (Throttled("slow"), "the store does not answer: slow"),
        (Forbidden("403"), "the store refuses: 403"),
        (NotFound("no bucket"), "the store refuses: no bucket"),
        (PreconditionFailed("taken"), "the store refuses: taken"),
        (Damaged("bits"), "the store refuses: bits"),
        (Unsupported("nfs"), "the store refuses: nfs"),
        (OSError(errno.EIO, "disk"), "disk"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_commit_that_keeps_failing_ends_the_attempt(
    world: World, error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the machine's: it powers off, and the group tries again."""
    world.silent_sec = 0.3
    spec = spec_with(iam_propagation=0.3)
    store = disturbed(world, raising(error, "state.json"))
    monkeypatch.setattr(upload_module, "put_new", put_once)  # not a minute of patience for each
    vm = world.boot(offers_one, store=store, spec=spec)
    assert vm.run() == 75
    end = world.end_of(1)
    assert end.reason is Reason.HOST_ERROR and says in end.message
    assert (world.head.state, world.head.failures) == (State.OPEN, 0)
    retried = any("trying again" in line for line in vm.said)
    assert retried is isinstance(error, Unavailable | Throttled | Forbidden)
    assert "deleteInstances" not in world.cloud.calls


def put_once(store: Store, path: str, data: bytes | Path, **_: Any) -> Any:
    return store.put(path, data, if_generation_match=0)


def test_permissions_may_spread_during_a_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disturbed(world, raising(Forbidden("403"), "MANIFEST.json", times=2))
    assert world.boot(finish, store=store, spec=spec_with(iam_propagation=10.0)).run() == 0
    assert world.head.state is State.DONE


def test_a_failure_whose_record_has_an_unknown_result_is_counted_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count was written, no answer came; the second try finds its own."""
    lost = iter([True])

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        found = perform()
        counts = operation.verb == "put" and operation.path == LAYOUT.head and world.head.failures
        if counts and next(lost, False):
            raise Unavailable("no answer")
        return found

    spec = spec_with(retries_failures=1)
    vm = world.boot(exits_with(3), finish, store=disturbed(world, around), spec=spec)
    assert vm.run() == 0
    assert (world.head.state, world.head.failures) == (State.DONE, 1)


def test_an_end_is_recorded_despite_store_errors(world: World) -> None:
    store = disturbed(world, raising(Unavailable("503"), "end.json", times=2))
    vm = world.boot(stopped_after(1), store=store).start()
    wait_until(lambda: vm.trainers)
    assert vm.trainers[0].running.wait(60)
    world.cloud.set("instance/preempted", "TRUE")
    assert vm.ended() == 75
    assert world.end_of(1).reason is Reason.PREEMPTED


def test_recording_an_end_stops_at_the_machines_end(world: World) -> None:
    store = disturbed(world, raising(Unavailable("503"), "end.json"))
    vm = world.boot(stopped_after(1), store=store, spec=spec_with(stop=2.0)).start()
    vm.terminate()
    begun = time.monotonic()
    assert vm.ended() == 75
    assert time.monotonic() - begun < 20.0
    assert any("was not recorded" in line for line in vm.said)


def test_a_checkpoint_without_room_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.boot(stopped_after(2)).start()
    first.terminate()
    first.ended()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MemoryStore, "stream", full)
    world.full_sec = 1.0
    vm = world.boot()
    assert vm.run() == 75
    end = world.end_of(2)
    assert end.reason is Reason.RESTORE_ERROR and vm.trainers == []
    assert str(vm.boot.site.work) in end.message
    assert "No space left" in end.message and "the checkpoint needs 11 bytes" in end.message
    assert f"{vm.boot.site.work} has " in end.message


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (exits_with(3), Reason.USER_FAILED),
        (exits_with(0), Reason.USER_FAILED),
        (exits_with(-9), Reason.OUT_OF_MEMORY),
        (exits_with(137), Reason.OUT_OF_MEMORY),
        (exits_with(-6), Reason.USER_FAILED),
        (exits_with(-2), Reason.USER_FAILED),
        (exits_with(64), Reason.USAGE),
        (exits_with(75, steps=2), Reason.USER_FAILED),
        (exits_with(1, error=Error("too small", "does-not-fit")), Reason.DOES_NOT_FIT),
        (exits_with(1, error=Error("no state", "usage")), Reason.USAGE),
    ],
)
def test_a_failure_ends_the_run(world: World, script: Any, reason: Reason) -> None:
    assert world.boot(script).run() == 0
    head = world.head
    assert head.state is State.FAILED and head.end is not None
    assert head.end.reason is reason and world.end_of(1).reason is reason
    assert world.cloud.groups["group"] == []


def test_the_reason_for_an_early_end_is_recorded(world: World) -> None:
    def script(life: Life) -> int:
        life.advance(4)
        return life.complete(why="no improvement in 3 evals")

    assert world.boot(script).run() == 0
    end = world.head.end
    assert end is not None and (end.step, end.why) == (4, "no improvement in 3 evals")
    assert world.end_of(1).message == "done at step 4: no improvement in 3 evals"
    copy = EndCopy.from_json(world.store.get(LAYOUT.end(0))[0])
    assert copy.why == "no improvement in 3 evals"


def test_the_record_of_a_complete_training_has_no_reason(world: World) -> None:
    assert world.boot(finish).run() == 0
    assert b"why" not in world.store.get(LAYOUT.head)[0]


def test_a_second_training_in_one_program_is_refused_and_its_run_is_not_done(
    world: World,
) -> None:
    def script(life: Life) -> int:
        life.advance(10)
        life.complete()
        life.channel.close()
        with Channel.connect(vm.boot.site.listener.socket_path) as again:
            again.send(Hello(VERSION, 1, 10))
            answer = again.receive(30)
            assert isinstance(answer, Error) and answer.kind == "usage"
        return 1

    vm = world.boot(script)
    assert vm.run() == 0
    assert world.head.state is State.FAILED
    assert world.end_of(1).reason is Reason.USAGE
    assert "outlast.train was called a second time" in world.end_of(1).message


def test_a_program_that_hangs_after_its_training_is_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_loop, "AFTER_SEC", 0.3)

    def script(life: Life) -> int:
        finish(life)
        return life.hang()

    assert world.boot(script).run() == 0
    assert world.head.state is State.DONE


def test_the_trainers_output_is_kept(world: World) -> None:
    world.boot(exits_with(1, error=Error("loss is NaN", "trainer"))).run()
    assert "loss is NaN" in world.end_of(1).message


def test_a_failure_is_counted_before_its_retry_in_a_new_term(world: World) -> None:
    vm = world.boot(exits_with(3, steps=4), finish, spec=spec_with(retries_failures=1))
    assert vm.run() == 0
    head = world.head
    assert (head.state, head.failures, head.term) == (State.DONE, 1, 2)
    assert world.end_of(1).reason is Reason.USER_FAILED
    assert world.steps() == list(range(1, 11))


def test_retries_count_across_machines(world: World) -> None:
    spec = spec_with(retries_failures=1)
    first = world.boot(exits_with(3, steps=1), stopped_after(1), spec=spec).start()
    wait_until(lambda: len(first.trainers) == 2)
    assert first.trainers[1].running.wait(60)
    first.notices.handle_signal(15, None)
    assert first.ended() == 75
    assert world.boot(exits_with(3), spec=spec).run() == 0
    assert (world.head.state, world.head.failures) == (State.FAILED, 2)


def test_thirty_preemptions_leave_the_only_retry_to_the_trainer(world: World) -> None:
    """Nor do they end the run, though none of these attempts commits anything."""
    spec = spec_with(retries_failures=1)
    for term in range(1, 31):
        vm = world.boot(lambda life: life.obey(), spec=spec).start()
        wait_until(lambda vm=vm: vm.trainers)
        vm.terminate()
        assert vm.ended() == 75
        assert (world.head.term, world.head.state) == (term, State.OPEN)
        assert (world.head.failures, world.head.no_progress) == (0, 0)
    assert world.boot(exits_with(3), finish, spec=spec).run() == 0
    assert (world.head.state, world.head.failures) == (State.DONE, 1)


def test_bad_usage_is_never_retried(world: World) -> None:
    assert world.boot(exits_with(64), spec=spec_with(retries_failures=5)).run() == 0
    assert world.head.state is State.FAILED


def test_a_preemption_counts_as_the_cause_of_the_failure(world: World) -> None:
    """The notice comes while the verdict is held back."""
    vm = world.boot(exits_with(-9, steps=2), spec=spec_with(failure_grace=15.0)).start()
    wait_until(lambda: any("holding the verdict" in line for line in vm.said))
    heartbeat = wait_until(
        lambda: (heartbeat := world.heartbeat_of(1)) and heartbeat.failure and heartbeat
    )
    assert heartbeat.failure == "the trainer was killed by signal 9"
    assert heartbeat.stderr == ("last line",)
    world.cloud.set("instance/preempted", "TRUE")
    assert vm.ended() == 75
    assert (world.head.state, world.head.failures) == (State.OPEN, 0)
    assert world.end_of(1).reason is Reason.PREEMPTED


def test_a_flag_without_a_listener_is_read_before_the_verdict(world: World) -> None:
    def script(life: Life) -> int:
        world.cloud.values["instance/preempted"] = "TRUE"  # without waking the waiter
        return 1

    assert world.boot(script).run() == 75
    assert world.head.state is State.OPEN


def test_a_stuck_trainer_counts_as_failed(world: World) -> None:
    def script(life: Life) -> int:
        life.advance(2)
        life.commit()
        return life.hang()

    vm = world.boot(script, finish, spec=spec_with(stall=0.7, retries_failures=1))
    assert vm.run() == 0
    assert vm.trainers[0].dumped
    assert world.end_of(1).reason is Reason.STALLED
    assert (world.head.state, world.head.failures) == (State.DONE, 1)


def test_ticks_keep_a_slow_trainer_alive(world: World) -> None:
    def script(life: Life) -> int:
        end = threading.Event()
        for _ in range(15):
            life.advance(0)
            end.wait(0.1)
        return finish(life)

    assert world.boot(script, spec=spec_with(stall=0.7)).run() == 0
    assert world.head.state is State.DONE


def test_the_deadline_ends_the_run_with_what_is_done(world: World) -> None:
    deadline = datetime.now(UTC) + timedelta(seconds=3)
    assert world.boot(stopped_after(3), spec=spec_with(deadline=deadline)).run() == 0
    head = world.head
    assert head.state is State.FAILED and head.end is not None
    assert head.end.reason is Reason.LIMIT and [entry.step for entry in head.chain] == [3]
    assert datetime.now(UTC) < deadline + timedelta(seconds=1)
    assert world.cloud.groups["group"] == []


def test_a_machine_that_may_not_leave_does_not_train(world: World) -> None:
    permissions, world.cloud.permissions = world.cloud.permissions, []
    vm = world.boot(finish).start()
    wait_until(lambda: sum(line.startswith("stuck-leaving") for line in vm.said) > 2)
    assert vm.trainers == [] and not vm.code.done()
    assert world.end_of(1).reason is Reason.REFUSED
    # The run is open: if this VM left the group, no other would continue it.
    assert not {"deleteInstances", "resize"} & set(world.cloud.calls)
    world.cloud.permissions = permissions
    assert vm.ended() == 0
    assert (world.head.state, world.head.term) == (State.DONE, 2)
    assert world.cloud.groups["group"] == []


def test_a_machine_that_may_not_leave_sees_the_end_of_its_run(world: World) -> None:
    world.cloud.permissions = []
    vm = world.boot().start()
    wait_until(lambda: any(line.startswith("stuck-leaving") for line in vm.said))
    HeadFile(world.store, LAYOUT).end_from_outside(State.STOPPED, Reason.STOPPED)
    assert vm.ended() == 0
    assert vm.trainers == [] and world.cloud.groups["group"] == []


def test_a_machine_that_may_not_leave_yields_to_its_successor(world: World) -> None:
    world.cloud.permissions = []
    vm = world.boot().start()
    wait_until(lambda: any(line.startswith("stuck-leaving") for line in vm.said))
    world.cloud.groups["group"] = [{"id": "7", "name": "group-0001"}]
    assert vm.ended() == 76
    assert vm.trainers == [] and world.head.term == 1
    assert "deleteInstances" not in world.cloud.calls


# -- the table at boot, acted on -------------------------------------------------------------------


def test_a_lower_placement_leaves(world: World) -> None:
    first = world.boot(stopped_after(1), spec=spec_with(placement=1)).start()
    first.terminate()
    first.ended()
    vm = world.boot()
    assert vm.run() == 0
    end = world.boot_end_of(vm)
    assert end is not None and end.reason is Reason.SUPERSEDED
    assert world.cloud.groups["group"] == [] and world.head.placement == 1


def damaged(head: bytes | None) -> Callable[[World], None]:
    def damage(world: World) -> None:
        found = world.store.stat(LAYOUT.head)
        if head is None:
            world.store.delete(LAYOUT.head, generation=found.generation)
        else:
            world.store.put(LAYOUT.head, head)

    return damage


def owned_by_another(world: World) -> None:
    world.store.put(LAYOUT.head, dataclasses.replace(world.head, owner="someone").to_json())


def moved(world: World) -> None:
    """As `outlast handover --to` begins: under the next term."""
    head, move = world.head, Move("gs://new/experiments/e/r", Phase.LEAVING)
    world.store.put(LAYOUT.head, dataclasses.replace(head, term=head.term + 1, move=move).to_json())


def test_an_attempt_on_a_run_that_is_handed_over_ends_and_its_vm_leaves(world: World) -> None:
    def script(life: Life) -> int:
        life.advance(1)
        life.commit()
        moved(world)
        return life.hang()

    vm = world.boot(script)
    assert vm.run() == 0
    end = world.end_of(1)
    assert end.reason is Reason.FENCED
    assert "is being handed over to gs://new/experiments/e/r" in end.message
    assert world.cloud.groups["group"] == []
    again = world.boot()
    assert again.run() == 0 and again.trainers == []
    refused = world.boot_end_of(again)
    assert refused is not None and refused.reason is Reason.REFUSED
    assert "is being handed over to" in refused.message


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damaged(b"garbage"), Reason.UNREADABLE),
        (damaged(None), Reason.LOST),
        (owned_by_another, Reason.OTHER_OWNER),
    ],
)
def test_an_untrusted_head_ends_the_boot(
    world: World, damage: Callable[[World], None], reason: Reason
) -> None:
    first = world.boot(stopped_after(1)).start()
    first.terminate()
    first.ended()
    damage(world)
    vm = world.boot()
    assert vm.run() == 0
    end = world.boot_end_of(vm)
    assert end is not None and end.reason is reason and "outlast repair" in end.message
    assert world.cloud.groups["group"] == []


def test_an_unreadable_head_ends_the_boot(world: World) -> None:
    first = world.boot(stopped_after(1)).start()
    first.terminate()
    first.ended()
    before = world.head
    store = disturbed(world, raising(Forbidden("403"), LAYOUT.head, verb="get"))
    vm = world.boot(store=store)
    assert vm.run() == 0
    end = world.boot_end_of(vm)
    assert end is not None and end.reason is Reason.FORBIDDEN and "outlast repair" in end.message
    assert sum("may still be spreading" in line for line in vm.said) == 1
    assert vm.trainers == [] and world.head == before
    assert world.cloud.groups["group"] == []


def test_a_head_deleted_during_an_attempt_ends_it(world: World) -> None:
    def script(life: Life) -> int:
        life.advance(1)
        life.commit()
        damaged(None)(world)
        return life.hang()

    vm = world.boot(script)
    assert vm.run() == 0
    assert world.end_of(1).reason is Reason.LOST
    assert not world.exists(LAYOUT.head) and world.cloud.groups["group"] == []


def test_a_run_with_only_damaged_checkpoints_does_not_start_from_scratch(world: World) -> None:
    first = world.boot(stopped_after(2)).start()
    first.terminate()
    first.ended()
    (checkpoint,) = world.head.chain
    world.store.put(checkpoint.path + "state.json", b"{}")
    vm = world.boot()
    assert vm.run() == 75
    assert vm.trainers == [] and world.end_of(2).reason is Reason.RESTORE_ERROR
    assert world.head.state is State.OPEN


def test_the_third_restore_error_ends_the_run(world: World) -> None:
    first = world.boot(stopped_after(2)).start()
    first.terminate()
    first.ended()
    (checkpoint,) = world.head.chain
    world.store.put(checkpoint.path + "state.json", b"{}")
    for _ in range(3):
        assert world.boot().run() == 75
    vm = world.boot()
    assert vm.run() == 0
    end, head = world.boot_end_of(vm), world.head
    assert end is not None and end.reason is Reason.RESTORE_ERROR
    assert head.end is not None and head.end.reason is Reason.RESTORE_ERROR
    assert world.cloud.groups["group"] == []


def test_the_end_of_a_boot_is_recorded_despite_store_errors(world: World) -> None:
    world.boot(finish).run()
    vm = world.boot(store=disturbed(world, raising(Unavailable("503"), ".end.json", times=2)))
    assert vm.run() == 0
    end = world.boot_end_of(vm)
    assert end is not None and end.reason is Reason.ENDED


def test_a_boot_ends_only_with_a_boots_reasons(world: World) -> None:
    vm = world.boot()
    for reason in set(Reason) - BOOT_REASONS:
        with pytest.raises(ValueError, match=f"reason {reason}: is none of a boot's end"):
            record_boot_end(vm.boot, reason, 0, "")
    assert world.boot_end_of(vm) is None


def test_the_operators_stop_ends_the_attempt(world: World) -> None:
    def script(life: Life) -> int:
        life.advance(2)
        life.commit()
        return life.hang()

    vm = world.boot(script).start()
    wait_until(lambda: world.exists(LAYOUT.head) and world.head.chain)
    HeadFile(world.store, LAYOUT).end_from_outside(State.STOPPED, Reason.STOPPED)
    assert vm.ended() == 0
    assert world.end_of(1).reason is Reason.STOPPED
    assert [entry.step for entry in world.head.chain] == [2]
    assert world.cloud.groups["group"] == []


def ask_to_stop(world: World, seconds: float = 30.0) -> None:
    """As `outlast stop` asks."""
    request = StopRequest(0, seconds, world.store.now())
    world.store.put(LAYOUT.stop_request(0), request.to_json(), if_generation_match=0)


def test_a_stop_request_takes_a_checkpoint_and_ends_the_run(world: World) -> None:
    vm = world.boot(stopped_after(7)).start()
    wait_until(lambda: vm.trainers)
    assert vm.trainers[0].running.wait(60)
    ask_to_stop(world)
    assert vm.ended() == 0
    head = world.head
    assert (head.state, head.step, head.term) == (State.STOPPED, 7, 1)
    assert head.end == End(Reason.STOPPED, None, 7, None) and world.exists(LAYOUT.end(0))
    end = world.end_of(1)
    assert (end.reason, end.state, end.step, end.committed) == (
        *(Reason.STOPPED, State.STOPPED, 7, 7),
    )
    assert end.message == STOP_ASKED and world.cloud.groups["group"] == []
    # It was for this resume only.
    assert world.boot(finish, spec=spec_with(resume=1)).run() == 0
    assert world.head.state is State.DONE and world.steps() == list(range(1, 11))


def test_a_trainer_that_does_not_obey_a_stop_request_loses_its_steps_and_it_is_said(
    world: World,
) -> None:
    def script(life: Life) -> int:
        life.advance(2)
        life.commit()
        life.advance(3)
        ask_to_stop(world, seconds=0.5)
        return life.hang()

    assert world.boot(script).run() == 0
    assert (world.head.state, world.head.step) == (State.STOPPED, 2)
    end = world.end_of(1)
    assert end.reason is Reason.STOPPED and "step 5 is not committed, step 2 is" in end.message


def test_a_request_that_cannot_be_read_stops_too_and_silences_no_heartbeat(world: World) -> None:
    world_store = world.store
    vm = world.boot(stopped_after(3)).start()
    wait_until(lambda: vm.trainers)
    assert vm.trainers[0].running.wait(60)
    world_store.put(LAYOUT.stop_request(0), b"{")
    assert vm.ended() == 0
    assert (world.head.state, world.head.step) == (State.STOPPED, 3)


def test_a_run_that_gets_done_after_a_stop_request_is_done(world: World) -> None:
    def script(life: Life) -> int:
        ask_to_stop(world)
        life.hear(Stop)
        return finish(life)

    assert world.boot(script).run() == 0
    assert world.head.state is State.DONE


def test_a_preempted_vm_leaves_the_stop_request_to_its_successor(world: World) -> None:
    """The notice comes first, so the attempt ends as preempted; the next boot ends the run."""

    def script(life: Life) -> int:
        life.advance(4)
        vm.notices.handle_signal(15, None)
        life.hear(Stop)
        ask_to_stop(world)
        life.commit()
        return 75

    vm = world.boot(script)
    assert vm.run() == 75
    assert world.head.state is State.OPEN and world.end_of(1).reason is Reason.INTERRUPTED
    successor = world.boot(finish)
    assert successor.run() == 0
    assert successor.trainers == [] and (world.head.term, world.head.step) == (1, 4)
    assert world.head.end == End(Reason.STOPPED, None, 4, None)
    end = world.boot_end_of(successor)
    assert end is not None and (end.reason, end.message) == (Reason.STOPPED, STOP_ASKED)
    assert world.cloud.groups["group"] == []


def test_a_fenced_vm_does_not_heed_a_stop_request(world: World) -> None:
    """Its successor does: HEAD is read before each look for a request."""

    def script(life: Life) -> int:
        life.advance(1)
        life.commit()
        world.cloud.groups["group"] = [{"id": "7", "name": "group-0001"}]
        taken_over(world)
        ask_to_stop(world)
        return life.hang()

    assert world.boot(script).run() == 76
    assert world.end_of(1).reason is Reason.FENCED
    assert world.head.nonce == "successor" and world.head.state is State.OPEN


# -- fenced ----------------------------------------------------------------------------------------


def taken_over(world: World) -> Head:
    """A successor has taken the term, as another machine would."""
    head = dataclasses.replace(world.head, term=world.head.term + 1, nonce="successor")
    world.store.put(LAYOUT.head, head.to_json())
    return head


def fenced_script(world: World, *, members: list[dict[str, str]] | None) -> Any:
    def script(life: Life) -> int:
        life.advance(1)
        life.commit()
        if members is not None:
            world.cloud.groups["group"] = members
        taken_over(world)
        return life.hang()

    return script


def open_run(world: World) -> Head:
    """An open run with a checkpoint, which no VM holds any more."""

    def script(life: Life) -> int:
        life.advance(1)
        life.commit()
        life.advance(1)
        return 75

    vm = world.boot(script)
    vm.start().terminate()
    assert vm.ended() == 75
    return world.head


def boot_end(world: World, vm: Vm) -> BootEnd:
    machine = vm.boot.site.machine
    path = LAYOUT.boot_end(machine.instance_id, machine.boot_id)
    end = read_record(world.store, path, BootEnd)
    assert end is not None
    return end


def test_a_late_vm_whose_group_is_gone_takes_no_term_of_an_open_run(world: World) -> None:
    """Its stack was destroyed before it came up: it powers off instead of training unseen."""
    before = open_run(world)
    late = world.boot()
    del world.cloud.groups["group"]
    world.cloud.calls.clear()
    assert late.run() == 76
    assert world.head == before
    end = boot_end(world, late)
    assert (end.reason, end.exit) == (Reason.FENCED, 76)
    assert "there is no group group" in end.message
    assert set(world.cloud.calls) == {"listManagedInstances"}


def test_a_late_vm_whose_group_is_gone_starts_and_ends_no_run(world: World) -> None:
    """It has no HEAD to read yet, or one that it would end: both are writes of HEAD too."""
    late = world.boot()
    del world.cloud.groups["group"]
    assert late.run() == 76
    with pytest.raises(HeadLost):
        read_head(world.store, LAYOUT)
    before = open_run(world)
    past = dataclasses.replace(SPEC, deadline=world.store.now() - timedelta(hours=1))
    late = world.boot(spec=past)
    del world.cloud.groups["group"]
    assert late.run() == 76
    assert world.head == before


def test_a_vm_that_its_group_replaced_takes_no_term(world: World) -> None:
    before = open_run(world)
    replaced = world.boot()
    world.cloud.groups["group"] = [{"id": "7", "name": "group-0001"}]
    assert replaced.run() == 76
    assert world.head == before
    assert "has no instance" in boot_end(world, replaced).message


def test_a_list_of_members_that_lags_behind_costs_no_vm(world: World) -> None:
    """A VM that was just created may not be in the list yet, so it asks twice."""
    vm = world.boot(finish)
    members, world.cloud.groups["group"] = world.cloud.groups["group"], []
    vm.start()
    wait_until(lambda: any("asking again" in line for line in vm.said))
    world.cloud.groups["group"] = members
    assert vm.ended() == 0
    assert world.head.state is State.DONE


def test_a_vm_stays_if_its_group_cannot_be_asked(world: World) -> None:
    world.cloud.answers["listManagedInstances"] = [403, 0]
    vm = world.boot(finish)
    assert vm.run() == 0
    assert world.head.state is State.DONE
    assert any("continues as one" in line for line in vm.said)


def test_membership_is_asked_once_for_each_term(world: World) -> None:
    asked: list[int] = []

    def script(life: Life) -> int:
        asked.append(world.cloud.calls.count("listManagedInstances"))
        life.advance(5)
        life.commit()
        asked.append(world.cloud.calls.count("listManagedInstances"))
        return finish(life)

    assert world.boot(script).run() == 0
    assert asked == [1, 1]


def test_a_fenced_vm_outside_its_group_leaves(world: World) -> None:
    vm = world.boot(fenced_script(world, members=[{"id": "7", "name": "group-0001"}]))
    assert vm.run() == 76
    assert world.end_of(1).reason is Reason.FENCED
    assert world.head.nonce == "successor"
    assert "deleteInstances" not in world.cloud.calls


def test_a_fenced_vm_waits_while_its_membership_is_unknown(world: World) -> None:
    world.cloud.answers["listManagedInstances"] = [503]
    vm = world.boot(fenced_script(world, members=[])).start()
    wait_until(lambda: any("asking again" in line for line in vm.said))
    assert not vm.code.done()
    del world.cloud.answers["listManagedInstances"]
    assert vm.ended() == 76


def test_a_member_takes_over_from_a_silent_successor(world: World) -> None:
    vm = world.boot(fenced_script(world, members=None), finish)
    assert vm.run() == 0
    assert any("no sign" in line for line in vm.said)
    assert (world.head.state, world.head.term) == (State.DONE, 3)
    assert world.steps() == list(range(1, 11))


def test_a_member_takes_over_from_a_successor_whose_attempt_has_ended(world: World) -> None:
    """The successor is not a member and was deleted: its silence does not matter."""
    vm = world.boot(
        fenced_script(world, members=None), finish, spec=spec_with(successor_silence=1000.0)
    ).start()
    wait_until(lambda: any("watching the higher term" in line for line in vm.said))
    assert not vm.code.done()
    end = AttemptEnd(2, Reason.PREEMPTED, State.OPEN, 75, 1, None, "", (), 0.0, world.store.now())
    write_record(world.store, LAYOUT.attempt_end(2), end)
    assert vm.ended() == 0
    assert "the higher term has ended (preempted)" in vm.said
    assert (world.head.state, world.head.term) == (State.DONE, 3)
    assert world.steps() == list(range(1, 11))


def test_a_member_watches_a_living_successor_to_its_end(world: World) -> None:
    vm = world.boot(fenced_script(world, members=None)).start()
    wait_until(lambda: any("watching the higher term" in line for line in vm.said))
    heartbeat = read_record(world.store, LAYOUT.heartbeat(1), Heartbeat)
    assert heartbeat is not None
    for _ in range(8):  # longer than `silent`
        write_record(world.store, LAYOUT.heartbeat(2), dataclasses.replace(heartbeat, term=2))
        threading.Event().wait(0.1)
        assert not vm.code.done()
    HeadFile(world.store, LAYOUT).end_from_outside(State.STOPPED, Reason.STOPPED)
    assert vm.ended() == 0
    assert world.head.term == 2 and world.cloud.groups["group"] == []


def test_a_fenced_attempt_deletes_and_commits_nothing(world: World) -> None:
    """Frozen in mid-commit: what it still writes is under its own term and in no chain."""
    frozen, thaw = threading.Event(), threading.Event()

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "put" and operation.path.endswith("MANIFEST.json"):
            frozen.set()
            thaw.wait(60)
        return perform()

    assert isinstance(world.store, MemoryStore)
    old_store = world.store.view(around)

    def script(life: Life) -> int:
        life.advance(2)
        life.offer()
        return life.hang()

    old = world.boot(script, store=old_store, spec=spec_with(heartbeat=1000.0)).start()
    frozen.wait(60)
    new = world.boot(finish_when(proceed := threading.Event())).start()
    wait_until(lambda: world.head.term == 2)
    head = world.head
    thaw.set()
    assert old.ended() == 76
    assert world.head == head
    assert world.end_of(1).reason is Reason.FENCED
    proceed.set()
    assert new.ended() == 0
    assert world.steps() == list(range(1, 11)) and {entry.term for entry in world.head.chain} == {2}


def test_an_upload_of_an_earlier_term_is_not_committed_in_a_later_one(world: World) -> None:
    """Frozen in mid-commit while its process is fenced and takes the run again."""
    frozen, thaw, proceed = threading.Event(), threading.Event(), threading.Event()
    uploading: list[threading.Thread] = []

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        manifest = operation.verb == "put" and operation.path.endswith("MANIFEST.json")
        if manifest and not uploading:
            uploading.append(threading.current_thread())
            frozen.set()
            thaw.wait(60)
        return perform()

    store = disturbed(world, around)
    vm = world.boot(offers_one, finish_when(proceed), store=store).start()
    assert frozen.wait(60)
    taken_over(world)
    wait_until(lambda: len(vm.trainers) == 2)
    assert vm.trainers[1].running.wait(60)
    head = world.head
    assert head.term == 3
    thaw.set()
    uploading[0].join(60)
    assert world.head == head
    proceed.set()
    assert vm.ended() == 0
    assert {entry.term for entry in world.head.chain} == {3}
    assert world.steps() == list(range(1, 11))


def test_a_failed_machine_frozen_before_it_left_harms_no_resumed_run(world: World) -> None:
    """The operator resumes in a new group; the old VM thaws, finds no group, and ends."""
    frozen, thaw = threading.Event(), threading.Event()

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        result = perform()
        if operation.verb == "put" and operation.path == LAYOUT.attempt_end(1):
            frozen.set()
            thaw.wait(60)
        return result

    assert isinstance(world.store, MemoryStore)
    old = world.boot(exits_with(3, steps=2), store=world.store.view(around)).start()
    frozen.wait(60)
    assert world.head.state is State.FAILED
    del world.cloud.groups["group"]
    proceed = threading.Event()
    new = world.boot(finish_when(proceed), group="group-r1", spec=spec_with(resume=1)).start()
    wait_until(lambda: new.trainers)
    assert new.trainers[0].running.wait(60)
    thaw.set()
    assert old.ended() == 0
    assert len(world.cloud.groups["group-r1"]) == 1
    proceed.set()
    assert new.ended() == 0
    assert (world.head.state, world.head.resume) == (State.DONE, 1)
    assert world.steps() == list(range(1, 11))


def test_a_stop_ends_the_wait_for_permission(world: World) -> None:
    world.cloud.permissions = []
    vm: Vm = world.boot(spec=spec_with(iam_propagation=60.0)).start()
    wait_until(lambda: any("may still be spreading" in line for line in vm.said))
    vm.notices.handle_signal(15, None)
    assert vm.ended() == 75
    assert vm.trainers == [] and world.end_of(1).reason is Reason.INTERRUPTED


# -- code that cannot be had ----------------------------------------------------------------------


def without_code(vm: Vm, error: Exception) -> Vm:
    """The machine, whose code cannot be made ready."""

    def prepare(_recorded: object) -> None:
        raise error

    site = dataclasses.replace(vm.boot.site, prepare_code=prepare)
    vm.boot = dataclasses.replace(vm.boot, site=site)
    return vm


def test_code_that_does_not_exist_ends_the_run(world: World) -> None:
    vm = without_code(world.boot(), CodeRefused("gitCommit 0: is not in the repository"))
    assert vm.run() == 0
    head = world.head
    assert head.state is State.FAILED and head.end is not None
    assert head.end.reason is Reason.USAGE and vm.trainers == []
    end = world.end_of(1)
    assert (end.reason, end.message) == (Reason.USAGE, "gitCommit 0: is not in the repository")
    assert world.cloud.groups["group"] == []


def test_unreachable_code_is_tried_on_ten_machines(world: World) -> None:
    for boot in range(1, MAX_NO_PROGRESS + 1):
        vm = without_code(world.boot(), CodeUnavailable("git host x: timed out"))
        assert vm.run() == exits.INTERRUPTED
        assert world.end_of(boot).reason is Reason.SETUP_FAILED
        assert world.head.state is State.OPEN
    vm = without_code(world.boot(), CodeUnavailable("git host x: timed out"))
    assert vm.run() == 0
    head = world.head
    assert head.state is State.FAILED and head.end is not None
    assert head.end.reason is Reason.SETUP_FAILED


@pytest.mark.parametrize(
    ("minute", "commit_min", "stops_at"), [(25, 20, 30), (10, 17, 30), (10, 5, 45), (10, 0, 58)]
)
def test_the_margin_of_the_limit_leaves_half_of_the_time_to_training(
    world: World, monkeypatch: pytest.MonkeyPatch, minute: int, commit_min: int, stops_at: int
) -> None:
    """An hour in all; what is left before the trainer is stopped, in minutes."""
    boot = world.boot().boot
    head_file = boot.head_file
    head_file.take_term(Claim(SPEC.owner, SPEC.resume, SPEC.placement, SPEC.deadline))
    held = dataclasses.replace(
        head_file.head, deadline=head_file.head.started + timedelta(minutes=60)
    )
    monkeypatch.setattr(HeadFile, "held", lambda self, term: held)
    monkeypatch.setattr(
        world.store, "now", lambda: held.started + timedelta(minutes=minute), raising=False
    )
    progress = Progress()
    progress.commit_sec = commit_min * 60.0
    limit = Limit(head_file, head_file.term, progress, Budget(SPEC, head_file, boot.site.machine))
    assert round(limit.left_sec / 60) == stops_at - minute


def test_rows_and_results_do_not_stay_in_memory(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    monkeypatch.setattr(scratch_space, "in_memory", lambda folder: not folder.is_relative_to(disk))
    seen = []

    def script(life: Life) -> int:
        seen.append(life.welcome)
        return finish(life)

    vm = world.boot(script)
    vm.boot = replaced_site(vm, scratch=(disk,))
    assert vm.run() == 0
    (welcome,) = seen
    assert Path(welcome.result).is_relative_to(disk) and Path(welcome.rows).is_relative_to(disk)
    assert not Path(welcome.work).is_relative_to(disk)


def taken(file: Path) -> int:
    """Bytes that a file takes on the disk."""
    return file.stat().st_blocks * 512


def test_uploaded_rows_free_their_disk_space(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(1 << 16))
    scratch_space.give_back(probe, 1 << 16)
    if taken(probe):
        pytest.skip("this file system keeps the room of a file's first bytes")
    monkeypatch.setattr(jobs, "ROWS_DROP_BYTES", 1 << 12)

    def script(life: Life) -> int:
        rows = Path(life.welcome.rows)
        for _ in range(40):
            life.advance(1000)
            life.commit()
        # The next commit's rows begin where the ones before were given back.
        wait_until(lambda: life.commit() or taken(rows) < rows.stat().st_size / 4)
        life.advance(3)
        return life.complete()

    assert world.boot(script).run() == 0
    assert world.steps() == list(range(1, 40_004))
