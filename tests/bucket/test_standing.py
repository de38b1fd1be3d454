"""How a run stands: one rule, and a closed list."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.history import Attempt, Limits
from outlast.bucket.standing import Standing, standing
from tests.bucket.test_history import head
from tests.cli.records import start_record

START = datetime(2026, 1, 1, tzinfo=UTC)
ATTEMPT = Attempt(
    *(1, START, None, None, "vm", "europe-west4-a", 0, 9, None, 0),
    seen=START,
    limits=Limits(silent=30, lost=600),
)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "running"), (29, "running"), (30, "silent"), (599, "silent"), (600, "lost")],
)
def test_a_vm_is_silent_after_three_heartbeats_and_then_lost(seconds: float, expected: str) -> None:
    now = START + timedelta(seconds=seconds)
    assert standing(head(1), ATTEMPT, now) == expected


@pytest.mark.parametrize("state", [state for state in State if state.ended])
def test_an_end_in_head_decides_alone(state: State) -> None:
    assert standing(head(1, state), ATTEMPT, START) == state
    assert standing(head(1, state), ATTEMPT, START, Standing.WAITING).ended


def test_without_an_end_the_newest_vm_decides() -> None:
    ended = replace(ATTEMPT, reason=Reason.PREEMPTED, end=START)
    assert standing(None, None, START) == "waiting"
    assert standing(None, None, START, Standing.NEVER_STARTED) == "never-started"
    assert standing(head(1), None, START) == "booting"
    assert standing(head(1), ended, START) == "interrupted"
    assert standing(head(1), ended, START, Standing.BOOTING) == "booting"
    late = START + timedelta(hours=2)
    assert standing(head(1), ATTEMPT, late, Standing.WAITING) == "expired"


@pytest.mark.parametrize("state", [State.FAILED, State.STOPPED, State.OPEN])
def test_a_run_that_the_stacks_next_vm_reopens_waits_for_it(state: State) -> None:
    late = START + timedelta(hours=2)  # past the old deadline
    assert standing(head(1, state), ATTEMPT, late, None, 1) == "waiting"
    assert standing(head(1, state), ATTEMPT, late, Standing.BOOTING, 1) == "booting"
    assert standing(head(1, state), ATTEMPT, late, None, 0).ended
    assert standing(head(1, State.DONE), ATTEMPT, late, None, 1) == "done"


def test_every_state_of_head_is_one_of_the_list() -> None:
    assert {state.value for state in State if state.ended} <= {one.value for one in Standing}


@pytest.mark.parametrize(
    ("timeouts", "limits"),
    [
        (None, Limits(30, 600)),
        ({"heartbeat": 1, "successor_silence": 8}, Limits(3, 8)),
        ({"heartbeat": 100, "successor_silence": 60}, Limits(60, 60)),
        ({"heartbeat": "x", "successor_silence": -1}, Limits(30, 600)),
        ({"heartbeat": True, "successor_silence": float("nan")}, Limits(30, 600)),
        ([1], Limits(30, 600)),
    ],
)
def test_limits_are_the_attempts_own_or_the_defaults(timeouts: object, limits: Limits) -> None:
    start = replace(start_record(1, 0, START), spec={"timeouts": timeouts})
    assert Limits.of(start) == limits
