"""Reopens a run: raises the stack's `outlast:resume`; the VM of the next `up` does the rest."""

import os
from dataclasses import dataclass

from outlast.exits import Reason, State
from outlast.operate import engine
from outlast.operate.errors import OperateError
from outlast.operate.stack import Deployed
from outlast.run.head import Head, HeadFile


@dataclass(frozen=True)
class Resumed:
    """What a resume did."""

    head: Head
    resume: int
    """The counter's new value."""


def resume(deployed: Deployed) -> Resumed:
    """Raises the counter past every value that held the run. OperateError: the run is done.

    A run that is open past its deadline is ended as expired first, so that its end is on record.
    Raises HeadError and StoreError where HEAD cannot be read.
    """
    head_file = HeadFile(deployed.store(), deployed.layout)
    head = head_file.read().head
    if head.state is State.DONE:
        raise OperateError(
            f"run {deployed.layout.run}: is done; other args or outlast:rerun make a new run."
        )
    if head.state is State.OPEN and head_file.store.now() >= head.deadline:
        head = head_file.end_from_outside(State.FAILED, Reason.EXPIRED)
    counter = max(head.resume, deployed.resume) + 1
    engine.run_engine(
        ["config", "set", "outlast:resume", str(counter), "-s", deployed.stack], env=os.environ
    )
    return Resumed(head, counter)
