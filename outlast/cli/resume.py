"""Reopens a run.

A resume raises the stack's `outlast:resume`; the VM of the next `up` does the rest. If code or
arguments were changed meanwhile, `outlast:run` keeps the run's name, and it continues with them.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.base.exits import State
from outlast.bucket.boot import beyond
from outlast.bucket.head import Head, HeadLost
from outlast.bucket.standing import content_of, end_if_expired
from outlast.cli import engine
from outlast.cli.errors import OperateError
from outlast.cli.review import plan as plans
from outlast.cli.stack import Deployed
from outlast.spec import changes
from outlast.spec.changes import Change


@dataclass(frozen=True)
class Resumed:
    """The result of a resume."""

    head: Head
    resume: int
    """The counter's new value."""
    renamed: bool
    """Whether `outlast:run` now keeps the run's name, because its content would give another."""
    changed: Sequence[Change]
    """The changes since the attempt that made the newest checkpoint, as far as they are known."""


def resume(deployed: Deployed) -> Resumed:
    """Raises the counter above every value that has held the run, and keeps the run's name.

    A preview asks the program what the run would be now, and whether it can continue like that; if
    it refuses, the stack's settings stay as they were. A run that is open past its
    deadline is ended as expired, so that its end is on record. OperateError: the run is done, or
    cannot continue like that. Raises HeadError and StoreError if HEAD cannot be read.
    """
    head_file = deployed.head_file()
    run = deployed.layout.run
    try:
        head = head_file.read().head
    except HeadLost:
        if any(head_file.store.folders(deployed.layout.attempts)):
            raise  # It is lost, and is repaired.
        raise OperateError(
            f"run {run}: has not begun yet, so there is nothing to resume; outlast status "
            f"{deployed.stack} shows what it waits for."
        ) from None
    if head.state is State.DONE:
        raise OperateError(f"run {run}: is done; other args or outlast:rerun make a new run.")
    if said := beyond(head):
        raise OperateError(
            f"run {run}: HEAD has {said}; repair it first: outlast repair {deployed.stack}."
        )
    counter = max(head.resume, deployed.resume) + 1
    with _settings_kept(deployed.stack):
        _set(deployed.stack, "outlast:resume", str(counter))
        _set(deployed.stack, "outlast:run", run)
        planned = _planned(deployed.stack)
        if planned["named"] == run:
            engine.run_engine(["config", "rm", "outlast:run", "-s", deployed.stack], env=os.environ)
    head = end_if_expired(head_file)
    term = head.chain[-1].term if head.chain else None
    before = content_of(head_file.store, deployed.layout, term) if term else None
    changed = changes.between(before, planned["content"]) if before else []
    return Resumed(head, counter, planned["named"] != run, changed)


@contextlib.contextmanager
def _settings_kept(stack: str) -> Iterator[None]:
    """Restores the stack's settings, byte for byte, if the block fails."""
    file = engine.project() / f"Pulumi.{stack}.yaml"
    before = file.read_bytes() if file.exists() else None
    try:
        yield
    except BaseException:
        if before is None:
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(before)
        raise


def _set(stack: str, key: str, value: str) -> None:
    engine.run_engine(["config", "set", key, value, "-s", stack], env=os.environ)


def _planned(stack: str) -> dict[str, Any]:
    """What the program would pin with the stack's current settings."""
    text = engine.run_engine(["preview", "--json", "--show-sames", "-s", stack], env=os.environ)
    pins = [step.new for step in plans.plan(text) if step.type == plans.PIN and step.new]
    if not pins:
        raise OperateError(f"stack {stack}: its program pins no run; run pulumi up first.")
    return dict(pins[-1])
