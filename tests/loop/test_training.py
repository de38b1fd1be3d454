"""outlast.train against a supervisor in a thread: resume, stop, busy, failure, results."""

import contextlib
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlast
from outlast import protocol
from outlast.loop import CheckpointFailed, DoesNotFit, LoopError, StateError, SupervisorLost
from outlast.protocol import Accepted, Checkpoint, Committed, Ended, Failed, Snapshot, Stop
from tests.loop import programs
from tests.loop.fake_supervisor import FakeSupervisor

TOTAL = 12


class Toy:
    """A random walk: every number depends on all before it."""

    def __init__(self) -> None:
        self.place = np.zeros(3)
        self.rng = np.random.default_rng(4)
        self.counts = {"steps": 0}

    @property
    def state(self) -> dict[str, object]:
        return {"place": self.place, "rng": self.rng, "counts": self.counts}

    def step(self) -> float:
        self.place += self.rng.normal(size=3)
        self.counts["steps"] += 1
        return float(self.place[0])


def walk(each: Callable[[int], None] | None = None, *, hurry: bool = False) -> Toy:
    """One attempt; ``each`` is called in every step after its update.

    Each step waits for the commit of the one before, unless in a ``hurry``.
    """
    toy = Toy()
    with outlast.train(state=toy.state, total=TOTAL) as run:
        for step in run.steps():
            run.log(place=toy.step())
            if step % 4 == 0:
                run.eval(epoch=step // 4, height=float(toy.place.sum()), best="max", of="height")
            if not hurry:
                assert run._side.session.wait_committed(5)
            if each:
                each(step)
        run.result("place.bin").write_bytes(toy.place.tobytes())
    return toy


def stopped(each: Callable[[int], None], *, hurry: bool = False) -> int:
    """The exit code of an attempt that is interrupted."""
    with pytest.raises(SystemExit) as caught:
        walk(each, hurry=hurry)
    return int(str(caught.value.code))


def result_bytes(supervisor: FakeSupervisor) -> dict[str, bytes]:
    assert supervisor.result is not None
    return {path.name: path.read_bytes() for path in supervisor.result.iterdir()}


def test_an_undisturbed_run_hands_over_steps_rows_and_result(supervisor: FakeSupervisor) -> None:
    toy = walk()
    assert supervisor.gone.wait(60)
    assert [snapshot.step for snapshot, _ in supervisor.committed] == list(range(1, TOTAL + 1))
    rows = [json.loads(line) for line in supervisor.rows.splitlines()]
    assert [row["step"] for row in rows] == list(range(1, TOTAL + 1))
    assert set(rows[3]) == {"step", "place", "epoch", "height"}
    files = result_bytes(supervisor)
    assert files["place.bin"] == toy.place.tobytes()
    metrics = json.loads(files["metrics.json"])
    assert metrics["epoch"] == [1, 2, 3] and metrics["step"] == [4, 8, 12]
    assert not list(supervisor.work.iterdir())


def test_every_snapshots_rows_end_at_its_step(supervisor: FakeSupervisor) -> None:
    walk()
    rows = (supervisor.folder / "rows.jsonl").read_bytes()
    for snapshot, _ in supervisor.committed:
        last = rows[: snapshot.rows_offset].splitlines()[-1]
        assert json.loads(last)["step"] == snapshot.step


def test_the_last_rows_are_kept_even_after_the_last_snapshot(
    supervisor: FakeSupervisor,
) -> None:
    def hold(fake: FakeSupervisor, snapshot: Snapshot) -> None:
        fake.push(Accepted(snapshot.id))
        fake.keep(snapshot)  # and never says that it is committed

    supervisor.on_snapshot = hold
    toy = Toy()
    with outlast.train(state=toy.state, total=TOTAL) as run:
        for _ in run.steps():
            run.log(place=toy.step())
    assert supervisor.gone.wait(60)
    rows = [json.loads(line) for line in supervisor.rows.splitlines()]
    assert [row["step"] for row in rows] == list(range(1, TOTAL + 1))


@pytest.mark.parametrize("cut", range(TOTAL + 1))
def test_a_run_resumed_anywhere_ends_with_the_same_bytes(
    supervisor: FakeSupervisor, cut: int
) -> None:
    walk()
    baseline = result_bytes(supervisor)
    supervisor.restore, supervisor.step = None, 0
    if cut:
        supervisor.resume_from(cut - 1)
    steps: list[int] = []
    walk(steps.append)
    assert steps == list(range(cut + 1, TOTAL + 1))
    assert result_bytes(supervisor) == baseline


def test_a_stop_hands_over_between_two_steps_and_exits_75(supervisor: FakeSupervisor) -> None:
    supervisor.every = "1000"

    def each(step: int) -> None:
        if step == 5:
            supervisor.push(Stop(20))

    assert stopped(each) == 75
    assert supervisor.gone.wait(60)
    assert [snapshot.step for snapshot, _ in supervisor.committed] == [4, 5]
    assert supervisor.result is None
    supervisor.resume_from()
    steps: list[int] = []
    walk(steps.append)
    assert steps[0] == 6


def test_a_stop_before_anything_new_hands_nothing_over(supervisor: FakeSupervisor) -> None:
    walk()
    supervisor.resume_from(4)
    before = len(supervisor.committed)
    supervisor.every = "1000"
    supervisor.push_before_welcome = Stop(20)
    assert stopped(lambda step: None) == 75
    assert supervisor.gone.wait(60)
    assert len(supervisor.committed) == before


def test_a_stop_is_handled_while_the_supervisor_is_busy(supervisor: FakeSupervisor) -> None:
    """The supervisor says when it has room again; the best of before goes first."""
    supervisor.every = "3"
    waiting: list[Snapshot] = []

    def slow(fake: FakeSupervisor, snapshot: Snapshot) -> None:
        if waiting:
            fake.push(protocol.Busy(snapshot.id))
            first = waiting.pop()
            fake.push(Committed(first.id, first.step))
            return
        fake.push(Accepted(snapshot.id))
        fake.keep(snapshot)
        if snapshot.step == 3:
            waiting.append(snapshot)
        else:
            fake.push(Committed(snapshot.id, snapshot.step))

    supervisor.on_snapshot = slow

    def each(step: int) -> None:
        if step == 7:
            supervisor.push(Stop(20))

    assert stopped(each, hurry=True) == 75
    assert supervisor.gone.wait(60)
    assert [snapshot.step for snapshot, _ in supervisor.committed] == [3, 7]
    # The best of step 4 was not saved for want of a measured commit: it must not count as saved.
    folder = supervisor.committed[-1][1]
    loop = json.loads((folder / "state.json").read_text())["loop"]
    assert loop["best"] == {} and loop["evaluations"] == 1
    (evaluation,) = (folder / "evaluations-000000.jsonl").read_text().splitlines()
    assert json.loads(evaluation)["step"] == 4


def test_a_stop_with_too_little_time_leaves_in_time(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor.every = "3"
    supervisor.on_snapshot = FakeSupervisor.busy

    def each(step: int) -> None:
        if step == 5:
            supervisor.push(Stop(0.2))

    assert stopped(each, hurry=True) == 75
    assert not list(supervisor.work.iterdir())
    assert "step 5 could not be saved within 0 s" in capsys.readouterr().err


def test_a_busy_answer_is_tried_again_and_leaves_no_files(supervisor: FakeSupervisor) -> None:
    supervisor.on_snapshot = FakeSupervisor.busy
    walk(hurry=True)
    offered = supervisor.of(Snapshot)
    assert offered[0].step == 1
    assert not list(supervisor.work.iterdir())
    assert supervisor.result is not None


def test_one_snapshot_is_in_flight_and_training_does_not_wait(supervisor: FakeSupervisor) -> None:
    flights: list[Snapshot] = []
    taken = threading.Event()

    def never_committed(fake: FakeSupervisor, snapshot: Snapshot) -> None:
        flights.append(snapshot)
        fake.push(Accepted(snapshot.id))
        fake.keep(snapshot)
        taken.set()

    def each(step: int) -> None:
        if step == TOTAL:
            assert taken.wait(60) and len(flights) == 1
            supervisor.push(Committed(flights[0].id, flights[0].step))

    supervisor.on_snapshot = never_committed
    walk(each, hurry=True)
    assert flights[0].step == 1
    assert all(snapshot.step == TOTAL or snapshot.tags == ["best"] for snapshot in flights[1:])


def test_a_best_reached_while_busy_is_saved_as_it_was(supervisor: FakeSupervisor) -> None:
    """The tagged checkpoint is the state that was evaluated, not a later one."""
    supervisor.every = "1000"
    toy = Toy()
    heights = {}
    held: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()

    def hold_first(fake: FakeSupervisor, snapshot: Snapshot) -> None:
        fake.push(Accepted(snapshot.id))
        fake.keep(snapshot)
        if len(fake.committed) == 1:
            held.put(snapshot)
        else:
            fake.push(Committed(snapshot.id, snapshot.step))

    supervisor.on_snapshot = hold_first
    with outlast.train(state=toy.state, total=8) as run:
        for step in run.steps():
            toy.step()
            heights[step] = toy.place.tobytes()
            run.eval(height=float(step if step <= 3 else 0), best="max")
            if step == 6:
                first = held.get(timeout=60)
                supervisor.push(Committed(first.id, first.step))
    tagged = [(message.step, path) for message, path in supervisor.committed if message.tags]
    assert [step for step, _ in tagged] == [1, 3]
    assert tagged[1][1].joinpath("arrays.bin").read_bytes()[:24] == heights[3]
    steps = [message.step for message, _ in supervisor.committed]
    assert steps == sorted(steps), "the newest in the chain must be the furthest"


def test_training_does_not_wait_for_the_answer(supervisor: FakeSupervisor) -> None:
    """The supervisor takes the snapshot of step 1 once step 4 was made: it is of step 1 still, and
    none was written meanwhile; what it then is too busy for is given up or kept as ever."""
    toy, heights = Toy(), {}
    proceed = threading.Event()
    answers = iter([Accepted, protocol.Busy, Accepted])

    def slow(fake: FakeSupervisor, snapshot: Snapshot) -> None:
        assert proceed.wait(60)
        answer = next(answers, Accepted)
        fake.push(answer(snapshot.id))
        if answer is Accepted:
            fake.keep(snapshot)
            fake.push(Committed(snapshot.id, snapshot.step))

    supervisor.on_snapshot = slow
    with outlast.train(state=toy.state, total=TOTAL) as run:
        for step in run.steps():
            toy.step()
            heights[step] = toy.place.tobytes()
            if step == 4:
                assert [folder.name for folder in supervisor.work.glob("snap-*")] == ["snap-000001"]
                proceed.set()
                assert run._side.session.wait_committed(10)
    assert supervisor.gone.wait(60)
    steps = [message.step for message, _ in supervisor.committed]
    assert steps[0] == 1 and steps == sorted(set(steps))
    for message, folder in supervisor.committed:
        assert folder.joinpath("arrays.bin").read_bytes()[:24] == heights[message.step]
    offered = [message.step for message in supervisor.of(Snapshot)]
    assert offered[:2] == [1, 4] and 4 not in steps, "busy: it was let go"
    assert not list(supervisor.work.iterdir())


def test_a_failed_commit_is_raised_at_the_next_call(supervisor: FakeSupervisor) -> None:
    def fail(fake: FakeSupervisor, snapshot: Snapshot) -> None:
        fake.push(Accepted(snapshot.id))
        fake.keep(snapshot)
        fake.push(Failed(snapshot.id, "no room left"))

    supervisor.on_snapshot = fail
    with pytest.raises(CheckpointFailed, match="000001 could not be committed: no room left"):
        walk()
    assert supervisor.gone.wait(60)
    assert [error.kind for error in supervisor.of(protocol.Error)] == ["trainer"]


def test_a_checkpoint_is_given_when_asked_for(supervisor: FakeSupervisor) -> None:
    supervisor.every = "1000"
    toy = Toy()
    with outlast.train(state=toy.state, total=6) as run:
        for step in run.steps():
            toy.step()
            assert run._side.session.wait_committed(5)
            if step == 2:
                supervisor.push(Checkpoint())
    assert [snapshot.step for snapshot, _ in supervisor.committed] == [2, 6]


def test_a_lost_supervisor_ends_the_training_with_a_sentence(supervisor: FakeSupervisor) -> None:
    def each(step: int) -> None:
        if step == 3:
            supervisor.hang_up()

    with pytest.raises(SupervisorLost, match="the supervisor has ended"):
        walk(each)


def test_an_ended_run_is_reported_and_exits_with_its_code(
    supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor.instead_of_welcome = Ended("done", 0, "run 0123456789 is done: 12 steps")
    assert stopped(lambda step: pytest.fail("no step may be made")) == 0
    assert "run 0123456789 is done: 12 steps" in capsys.readouterr().err


def test_a_refusal_is_reported(supervisor: FakeSupervisor) -> None:
    supervisor.instead_of_welcome = protocol.Error("hello version 1: this speaks 2", "protocol")
    with pytest.raises(LoopError, match="this speaks 2"):
        walk()


def test_a_checkpoint_of_another_shape_does_not_fit(supervisor: FakeSupervisor) -> None:
    walk()
    supervisor.resume_from(3)
    with (
        pytest.raises(DoesNotFit, match=r"state\['place'\] is an array \(4,\)"),
        outlast.train(state={**Toy().state, "place": np.zeros(4)}, total=TOTAL),
    ):
        pytest.fail("must not start")
    assert supervisor.gone.wait(60)
    assert [error.kind for error in supervisor.of(protocol.Error)] == ["does-not-fit"]


class Forgetful:
    """Gives one state and takes another, from the step that is its value on."""

    def __init__(self, since: int) -> None:
        self.steps, self.since = 0, since

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, values: dict[str, int]) -> None:
        self.steps = values["steps"] + (values["steps"] >= self.since)


@pytest.mark.parametrize("since", [0, 1])
def test_state_that_does_not_survive_fails_at_once_by_name(
    supervisor: FakeSupervisor, since: int
) -> None:
    model = Forgetful(since)
    made = []
    with (
        pytest.raises(StateError, match=r"state\['model'\]\['steps'\] is not the same after"),
        outlast.train(state={"model": model}, total=5) as run,
    ):
        for step in run.steps():
            model.steps += 1
            made.append(step)
    assert len(made) == since
    assert not supervisor.committed


def test_an_error_in_the_training_is_reported_and_raised(supervisor: FakeSupervisor) -> None:
    def each(step: int) -> None:
        if step == 2:
            raise ZeroDivisionError("no such number")

    with pytest.raises(ZeroDivisionError):
        walk(each)
    assert supervisor.gone.wait(60)
    (error,) = supervisor.of(protocol.Error)
    assert (error.message, error.kind) == ("no such number", "trainer")
    assert error.lines[0] == "Traceback (most recent call last):"
    assert error.lines[-1] == "ZeroDivisionError: no such number"
    assert supervisor.result is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_supervisor_handles_the_signals(
    supervisor: FakeSupervisor, number: signal.Signals
) -> None:
    """Both reach every process of the terminal or of the stopping machine."""
    before = signal.getsignal(number)
    walk(lambda step: os.kill(os.getpid(), number) if step == 3 else None)
    assert supervisor.result is not None
    assert signal.getsignal(number) is before


def test_a_forked_child_still_dies_of_sigterm(supervisor: FakeSupervisor) -> None:
    statuses = []

    def fork_and_end(step: int) -> None:
        if step == 3:
            ready, says_ready = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(says_ready, b"!")
                for _ in range(1000):  # no pause(): the signal may come just before it
                    time.sleep(0.01)
                os._exit(9)
            os.read(ready, 1)  # before that Python drops signals that it finds pending
            os.kill(child, signal.SIGTERM)
            statuses.append(os.waitpid(child, 0)[1])

    walk(fork_and_end)
    assert [os.WTERMSIG(status) for status in statuses] == [signal.SIGTERM]


def test_ticks_tell_the_phase_and_are_few(supervisor: FakeSupervisor) -> None:
    toy = Toy()
    with outlast.train(state=toy.state, total=2) as run:
        for _ in run.steps():
            toy.step()
        for _ in range(1000):
            run.tick("report")
    assert supervisor.gone.wait(60)
    ticks = supervisor.of(protocol.Tick)
    assert protocol.Tick(2, "report") in ticks and len(ticks) < 10


def test_rows_hold_plain_numbers(supervisor: FakeSupervisor) -> None:
    toy = Toy()
    with outlast.train(state=toy.state, total=1) as run:
        for _ in run.steps():
            toy.step()
            run.log(a=np.float32(0.5), b=float("nan"), c="x", d=np.int64(3), e=True)
            run.log(c="y")
    assert json.loads(supervisor.rows) == {
        "step": 1, "a": 0.5, "b": None, "c": "y", "d": 3, "e": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (lambda run: run.log(loss=1), "run.log outside a step"),
        (lambda run: run.result("model.bin"), "write results after the loop"),
        (lambda run: run.data("no/such/file"), "no such file or folder"),
        (lambda run: None, "the training has made no steps"),
        (lambda run: (list(run.steps()), run.steps().__next__()), "a run has one loop"),
        (lambda run: (list(run.steps()), run.result("../x")), "must be a relative path"),
        (
            lambda run: (list(run.steps()), run.result("metrics.json")),
            "automatically from run.eval",
        ),
        (lambda run: [run.log(step=1) for _ in run.steps()], "every row has its step already"),
        (lambda run: [run.log(a=[1]) for _ in run.steps()], "a [1]: must be a number or a string"),
        (lambda run: [run.log(a=np.complex64(1j)) for _ in run.steps()], "not complex64"),
        (lambda run: [run.log(a=np.datetime64("2020")) for _ in run.steps()], "not datetime64"),
        (lambda run: [run.log(a=np.bytes_(b"x")) for _ in run.steps()], "not bytes_"),
        (lambda run: [run.log(a=10**5000) for _ in run.steps()], "must be a number below 2^1024"),
        (lambda run: [run.eval(a="high") for _ in run.steps()], "a 'high': must be a number"),
        (lambda run: [run.eval(a=1, b=2, best="max") for _ in run.steps()], "such as of='a'"),
        (lambda run: [run.eval(a=1, b=2, best="max", of="c") for _ in run.steps()], "are a, b"),
        (lambda run: [run.eval(a=1, best="most") for _ in run.steps()], "must be max or min"),
        (
            lambda run: [run.eval(a=1) or run.eval(a=2) for _ in run.steps()],
            "already has a value of this name",
        ),
    ],
)
def test_misuse_gives_one_sentence(
    supervisor: FakeSupervisor, misuse: Callable[[Any], Any], says: str
) -> None:
    with (
        pytest.raises((LoopError, ValueError)) as caught,
        outlast.train(state=Toy().state, total=3) as run,
    ):
        misuse(run)
    assert says in str(caught.value)


@pytest.mark.parametrize("total", [0, -3, True, 2.0, "5"])
def test_an_invalid_total_of_steps_is_refused(total: Any) -> None:
    with pytest.raises(LoopError, match="must be a number of steps"):
        outlast.train(state={"a": {}}, total=total)


def test_local_data_passes_through(supervisor: FakeSupervisor, tmp_path: Path) -> None:
    with contextlib.suppress(LoopError), outlast.train(state=Toy().state, total=1) as run:
        assert run.data(tmp_path) == tmp_path


@pytest.mark.parametrize("given", ["5 steps", 0, 2.5, None, True])
def test_an_invalid_rhythm_is_refused_by_name(given: Any) -> None:
    with pytest.raises(LoopError, match="^checkpoint_every .*: must be 'auto', seconds such as"):
        outlast.train({"w": np.zeros(1)}, 1, checkpoint_every=given)


def test_a_number_of_steps_is_a_rhythm(tmp_path: Path) -> None:
    box = {"n": 0}
    with outlast.train(
        {"box": box}, 2, run_dir=tmp_path / "run", name="x", arguments={}, checkpoint_every=1
    ) as run:
        for _ in run.steps():
            box["n"] += 1
    assert programs.head(tmp_path / "run")["state"] == "done"
