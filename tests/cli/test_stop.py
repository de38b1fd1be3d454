"""`outlast stop`: a checkpoint first where a VM is at work, at once where none is."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.base.exits import Reason, State
from outlast.bucket.head import End, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import AttemptEnd, StopRequest
from outlast.bucket.records import read_record
from outlast.cli import status, stop
from outlast.cli.app import cli
from outlast.cli.errors import OperateError
from outlast.cli.polling import Pauses
from tests.cli.records import heartbeat_record, start_record
from tests.cli.test_resume import COMMITTED, LAYOUT, InMemory, stack
from tests.log_lines import log_lines

NOW = datetime.now(UTC)
STEP = 305
"""The last step that the VM's heartbeat says."""
WORKING = replace(COMMITTED, started=NOW, deadline=NOW + timedelta(hours=1))


def at_work(phase: str = "train", *, silent_sec: float = 0.0) -> InMemory:
    """A stack whose VM has given its last sign of life so long ago."""
    made = stack(WORKING, now=NOW)
    put_attempt(made, STEP, phase)
    made.memory._clock = lambda: NOW + timedelta(seconds=silent_sec)
    return made


def put_attempt(made: InMemory, step: int, phase: str = "train") -> None:
    made.memory.put(LAYOUT.attempt_start(3), start_record(3, 0, NOW).to_json())
    heartbeat = heartbeat_record(3, step, NOW, total=400, row={"step": step})
    made.memory.put(LAYOUT.heartbeat(3), replace(heartbeat, phase=phase).to_json())


class Meanwhile:
    """What happens in each pause; then nothing."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.acts = list(acts)
        self.seconds = 0.0

    def __call__(self, seconds: float) -> None:
        self.seconds += seconds
        if self.acts:
            self.acts.pop(0)()


def stopped(made: InMemory, *acts: Callable[[], object], **more: Any) -> stop.Stopped:
    meanwhile = Meanwhile(*acts)
    return stop.stop(
        made,
        pauses=Pauses(5.0, sleep=meanwhile),
        clock=lambda: meanwhile.seconds,
        **more,
    )


def vm_ends(made: InMemory, state: State = State.STOPPED, step: int = STEP) -> None:
    """The VM commits its last step, ends the run and writes its record."""
    chain = (replace(WORKING.chain[0], step=step),)
    end = End(Reason(state.value), None, step, None)
    made.memory.put(LAYOUT.head, replace(WORKING, chain=chain).ended(state, end).to_json())
    record = AttemptEnd(3, Reason.STOPPED, state, 75, STEP, step, "", (), 0.0, NOW)
    made.memory.put(LAYOUT.attempt_end(3), record.to_json())


def test_a_vm_at_work_takes_a_checkpoint_and_no_step_is_lost() -> None:
    made = at_work()
    said = log_lines()
    done = stopped(made, lambda: None, lambda: vm_ends(made), limit_sec=100.0)
    assert (done.how, done.why, done.lost) == (stop.How.CHECKPOINT, "", 0)
    assert done.head.step == STEP and done.head.state is State.STOPPED
    request = read_record(made.memory, LAYOUT.stop_request(0), StopRequest)
    assert request is not None and (request.resume, request.seconds) == (0, 80.0)
    assert said == ["dev: its VM takes a checkpoint first, for 1.66667 min at most"]


def test_a_checkpoint_that_lacks_steps_is_said_to() -> None:
    made = at_work()
    done = stopped(made, lambda: vm_ends(made, step=300))
    assert (done.how, done.lost) == (stop.How.CHECKPOINT, 5)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: at_work(silent_sec=40), "no VM is at work on it (it is silent)"),
        (lambda: at_work(silent_sec=700), "no VM is at work on it (it is lost)"),
        (lambda: at_work("setup"), "its VM has not begun to train"),
        (lambda: stack(WORKING, now=NOW), "no VM is at work on it (it is waiting)"),
    ],
)
def test_without_a_vm_at_work_the_run_ends_at_once(made: Any, why: str) -> None:
    found = made()
    done = stopped(found)
    assert (done.how, done.why) == (stop.How.AT_ONCE, why)
    head = read_head(found.memory, LAYOUT).head
    assert (head.state, head.chain) == (State.STOPPED, COMMITTED.chain)
    assert head.end == End(Reason.STOPPED, None, 9, None)
    assert done.lost == (0 if "waiting" in why else STEP - 9)
    assert read_record(found.memory, LAYOUT.stop_request(0), StopRequest) is None


def test_a_vm_that_dies_after_the_request_loses_the_steps_and_that_is_said() -> None:
    made = at_work()

    def dies() -> None:
        made.memory._clock = lambda: NOW + timedelta(seconds=40)

    done = stopped(made, lambda: None, dies)
    assert done.how is stop.How.AT_ONCE and done.why.endswith("(it is silent)")
    assert done.lost == STEP - 9
    assert read_record(made.memory, LAYOUT.stop_request(0), StopRequest) is not None


def test_a_vm_that_takes_too_long_is_not_waited_for() -> None:
    made = at_work()
    done = stopped(made, limit_sec=12.0)
    assert (done.how, done.lost) == (stop.How.TIMED_OUT, STEP - 9)
    assert done.why == "its VM did not end it within 0.2 min"


def test_a_vm_that_ends_the_run_between_two_looks_took_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = at_work()
    looks: list[object] = []
    read = status.read

    def looked(place: Any) -> Any:
        looks.append(place)
        if len(looks) == 2:  # HEAD was open a moment ago.
            vm_ends(made)
        return read(place)

    monkeypatch.setattr(status, "read", looked)
    done = stopped(made)
    assert (done.how, done.why, done.lost) == (stop.How.CHECKPOINT, "", 0)


def test_a_run_that_gets_done_meanwhile_is_not_called_stopped() -> None:
    made = at_work()
    done = stopped(made, lambda: vm_ends(made, State.DONE))
    assert (done.head.state, done.lost) == (State.DONE, 0)


def test_two_stops_at_once_ask_once() -> None:
    made = at_work()
    for _ in range(2):
        stop._ask(made, WORKING, 10.0)
    assert len([*made.memory.list(LAYOUT.stop_request(0))]) == 1


def test_a_run_that_is_not_open_is_refused() -> None:
    made = stack(WORKING)
    HeadFile(made.memory, LAYOUT).end_from_outside(State.STOPPED, Reason.STOPPED)
    with pytest.raises(OperateError, match="has already ended"):
        stop.stop(made)
    with pytest.raises(OperateError, match="no VM has started it yet, so there is nothing to stop"):
        stop.stop(stack(None))


def test_the_command_says_what_is_lost_and_how_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    made = at_work()
    monkeypatch.setattr("outlast.cli.stack.find", lambda _: made)
    done = CliRunner().invoke(cli, ["stop", "dev", "--now"])
    assert done.stdout.splitlines() == [
        "dev: stopped at step 9 without a checkpoint, because --now was given; steps lost: 296",
        "dev: continue with: outlast resume dev",
    ]


def test_ctrl_c_ends_only_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    made = at_work()
    monkeypatch.setattr("outlast.cli.stack.find", lambda _: made)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pauses, "wait", interrupted)
    done = CliRunner().invoke(cli, ["stop", "dev", "--json"])
    assert done.exit_code == 130 and done.stdout == ""
    assert "if a VM was asked, it still stops" in done.stderr
    assert read_head(made.memory, LAYOUT).head.state is State.OPEN
    assert made.memory.stat(LAYOUT.stop_request(0))


def test_the_document_of_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    made = at_work()
    monkeypatch.setattr("outlast.cli.stack.find", lambda _: made)
    done = CliRunner().invoke(cli, ["stop", "dev", "--now", "--json"])
    assert json.loads(done.stdout) == {
        "experiment": "dev",
        "run": LAYOUT.run,
        "state": "stopped",
        "reason": "stopped",
        "step": 9,
        "steps_lost": 296,
        "how": "at-once",
        "why": "--now was given",
    }
