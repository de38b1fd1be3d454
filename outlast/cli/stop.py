"""Stops a run. A VM at work takes a checkpoint first, so that no step is lost.

The VM is asked by an object in the bucket that it sees with its next heartbeat. The request stays:
if the VM is preempted first, the next one ends the run as soon as it boots. Where no VM is at work,
or it does not end the run in time, HEAD is ended from here.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from outlast.base.exits import Reason, State
from outlast.bucket import history
from outlast.bucket.head import Head, HeadLost
from outlast.bucket.layout import Heartbeat, StopRequest
from outlast.bucket.records import read_record
from outlast.bucket.standing import Standing
from outlast.bucket.store import PreconditionFailed
from outlast.cli import endpoint, status
from outlast.cli.documents import changes
from outlast.cli.errors import OperateError
from outlast.cli.polling import Pauses
from outlast.cli.runs import Place
from outlast.cli.stack import Deployed

_log = logging.getLogger(__name__)

LIMIT_SEC = 600.0
"""How long a VM has for its last checkpoint, unless the user says otherwise."""
VM_SHARE = 0.8
"""The VM's share of that time; the rest is for the heartbeat that sees the request."""
POLL_SEC = 5.0
NEAR_POLL_SEC = 0.5
"""For the local cloud, where a look costs nothing."""
END_RECORD_SEC = 15.0
"""How long to wait for the record of the last attempt's end, which says how many steps it made."""
IDLE_PHASES = ("", "setup", "start")
"""Phases of an attempt that has not made a step."""


class How(StrEnum):
    """How a run was ended."""

    CHECKPOINT = "checkpoint"
    """By its VM, after a last checkpoint, or by the next VM."""
    AT_ONCE = "at-once"
    """From here: no VM is at work on it, or the user wants it so."""
    TIMED_OUT = "timed-out"
    """From here: its VM did not end it in time."""


@dataclass(frozen=True)
class Stopped:
    """The result of a stop."""

    run: str
    head: Head
    lost: int
    """Steps since the newest checkpoint, as far as the records say."""
    how: How
    why: str
    """Why no checkpoint was taken; empty if one was."""

    def as_json(self, experiment: str) -> changes.Stopped:
        end = self.head.end
        return {
            "experiment": experiment,
            "run": self.run,
            "state": self.head.state,
            "reason": end.reason if end else None,
            "step": end.step if end else self.head.step,
            "steps_lost": self.lost,
            "how": self.how,
            "why": self.why,
        }


def stop(
    deployed: Deployed,
    *,
    now: bool = False,
    limit_sec: float = LIMIT_SEC,
    pauses: Pauses | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Stopped:
    """Ends an open run as stopped, and waits for its last checkpoint for `limit_sec` at most, or
    not at all with `now`. Raises OperateError if the run is not open, and HeadError and StoreError.
    """
    head_file, run = deployed.head_file(), deployed.layout.run
    try:
        head = head_file.read().head
    except HeadLost:
        raise OperateError(
            f"run {run}: no VM has started it yet, so there is nothing to stop; outlast destroy"
            f" {deployed.stack} ends the wait for a VM."
        ) from None
    if head.state.ended:
        raise OperateError(f"run {run}: has already ended ({head.state}).")
    why = "--now was given" if now else _idle(deployed)
    how = How.AT_ONCE
    if not why:
        _ask(deployed, head, limit_sec * VM_SHARE)
        _log.info(
            f"{deployed.stack}: its VM takes a checkpoint first, for {limit_sec / 60:g} min at most"
        )
        poll_sec = NEAR_POLL_SEC if endpoint.is_local() else POLL_SEC
        looks, until = pauses or Pauses(poll_sec), clock() + limit_sec
        while not why:
            looks.wait(changed=True)
            head = head_file.read().head
            if head.state.ended:
                break
            why = _idle(deployed)
            if not why and clock() >= until:
                how, why = How.TIMED_OUT, f"its VM did not end it within {limit_sec / 60:g} min"
        # Its VM may have ended it since HEAD was read.
        head = head if head.state.ended else head_file.read().head
    if head.state.ended:
        how, why = How.CHECKPOINT, ""
        _wait_for_record(deployed, head, clock)
    else:
        head = head_file.end_from_outside(State.STOPPED, Reason.STOPPED)
    return Stopped(run, head, lost_steps(deployed, head), how, why)


def _idle(deployed: Deployed) -> str:
    """Why no VM could take a checkpoint now; empty if one can. Raises OperateError."""
    place = Place(
        deployed.stack,
        deployed.store(),
        deployed.layout,
        group=deployed.group,
        resume=deployed.resume,
    )
    found = status.read(place)
    if found.state is not Standing.RUNNING:
        return f"no VM is at work on it (it is {found.state})"
    assert found.history is not None
    if found.history.phase in IDLE_PHASES:
        return "its VM has not begun to train"
    return ""


def _ask(deployed: Deployed, head: Head, seconds: float) -> None:
    """Creates the request; an earlier one of the same resume stays as it is. Raises StoreError."""
    store, path = deployed.store(), deployed.layout.stop_request(head.resume)
    request = StopRequest(head.resume, seconds, store.now())
    with contextlib.suppress(PreconditionFailed):
        store.put(path, request.to_json(), if_generation_match=0)


def _wait_for_record(deployed: Deployed, head: Head, clock: Callable[[], float]) -> None:
    """The VM writes the record just after the run's end."""
    store, until = deployed.store(), clock() + END_RECORD_SEC
    while history.read_end(store, deployed.layout, head.term) is None and clock() < until:
        time.sleep(NEAR_POLL_SEC)


def lost_steps(deployed: Deployed, head: Head) -> int:
    """The steps that its last attempt has made since the newest checkpoint, as far as its records
    say. Raises StoreError.
    """
    store, layout = deployed.store(), deployed.layout
    records = (
        read_record(store, layout.heartbeat(head.term), Heartbeat),
        history.read_end(store, layout, head.term),
    )
    made = max((record.step for record in records if record is not None), default=0)
    return max(0, made - head.step) if head.state is not State.DONE else 0
