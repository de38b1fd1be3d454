"""A project, a bucket in memory and stacks without an engine, for tests of sweeps."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from outlast.base.exits import Reason, State
from outlast.bucket.head import Checkpoint, End, Head, Lineage
from outlast.bucket.layout import AttemptEnd, BootRecord
from outlast.bucket.store import MemoryStore, Store
from outlast.bucket.sweeps import SweepObjects
from outlast.cli.errors import EngineError
from outlast.cli.sweep import bring_up, file, states
from outlast.cli.sweep.bring_up import BringUp, Outcome
from outlast.cli.sweep.trials import layout_of
from tests.cli.records import heartbeat_record, start_record

CONFIG = {
    "gcp:project": "acme-research",
    "gcp:zone": "europe-west4-a",
    "outlast:trainer": "dummy",
    "outlast:machineType": "n2-standard-2",
    "outlast:maxRunMinutes": 60,
    "outlast:args": {"epochs": 2},
}
REASONS = {
    State.DONE: Reason.DONE,
    State.FAILED: Reason.USER_FAILED,
    State.STOPPED: Reason.STOPPED,
    State.PRUNED: Reason.PRUNED,
}
BILLED = {"spot": True, "disk": "pd-balanced", "disk_gb": 50, "ssds": 0, "address": True}


@dataclass
class FakeStacks:
    """Stacks that are up at once."""

    store: Store
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Their settings."""
    ups: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    during: Callable[[str], Any] = lambda stack: None
    """Called while a stack is being brought up."""
    most: int = 0
    """Stacks that were worked on at the same time."""
    working: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def names(self) -> set[str]:
        return set(self.known)

    def up(
        self, stack: str, config: Mapping[str, Any], document: Mapping[str, Any], *, exists: bool
    ) -> None:
        with self.lock:
            self.working += 1
            self.most = max(self.most, self.working)
        try:
            assert exists == (stack in self.known)
            if exists:
                self.recovered.append(stack)
            self.known[stack] = dict(config)
            self.during(stack)
            if stack in self.failing:
                raise EngineError(f"stack {stack}: the cloud said no")
            self.ups.append(stack)
        finally:
            with self.lock:
                self.working -= 1

    def destroy(self, stack: str) -> None:
        if stack in self.failing:
            raise EngineError(f"stack {stack}: the cloud said no")
        del self.known[stack]


class World:
    """One project with one bucket."""

    def __init__(self, folder: Path, store: MemoryStore) -> None:
        self.folder = folder
        self.store = store
        self.stacks = FakeStacks(store)

    def write(self, name: str = "lr.yaml", **document: Any) -> Path:
        """A sweep file of base dev."""
        path = self.folder / name
        path.write_text(yaml.safe_dump({"base": "dev", **document}, sort_keys=False))
        return path

    def prepared(self, **document: Any) -> bring_up.Prepared:
        path = self.write(**document)
        return bring_up.prepare(file.read(path), path.name)

    def up(self, jobs: int = 1, **document: Any) -> Outcome:
        work = BringUp(self.prepared(**document), self.objects, self.stacks, jobs=jobs)
        return work.run()

    @property
    def objects(self) -> SweepObjects:
        return SweepObjects(self.store, "lr")

    def states(self) -> dict[str, str]:
        """State by parameters."""
        found = states.read(self.objects)
        return {shown(one.record.parameters): one.state for one in found.trials.values()}

    def run_of(self, **parameters: Any) -> str:
        """The trial with these parameters."""
        for run, one in self.objects.trials().items():
            if {k.replace("-", "_"): v for k, v in one.parameters.items()} == parameters:
                return run
        raise KeyError(parameters)

    def trains(
        self,
        run: str,
        state: State = State.OPEN,
        *,
        rows: Mapping[int, Mapping[str, Any]] | None = None,
        machine: str = "n2-standard-2",
    ) -> None:
        """A trial's run in the bucket, with one attempt."""
        layout = layout_of("lr", run)
        now = datetime.now(UTC)
        rows = rows or {10: {"loss": 1.0}}
        last = max(rows)
        boot = BootRecord("1", "b1", "vm", "europe-west4-a", 0, 0, now)
        self.store.put(layout.boot("1", "b1"), boot.to_json())
        start = replace(start_record(1, 0, now), spec={"billed": BILLED}, machine_type=machine)
        self.store.put(layout.attempt_start(1), start.to_json())
        row = {"step": last, **rows[last]}
        self.store.put(
            layout.heartbeat(1), heartbeat_record(1, last, now, total=100, row=row).to_json()
        )
        lines = "".join(json.dumps({"step": step, **row}) + "\n" for step, row in rows.items())
        self.store.put(layout.metrics_piece(1, 0), lines.encode())
        end = None
        if state.ended:
            reason = REASONS[state]
            end = End(reason, 0, last, None)
            done = AttemptEnd(1, reason, state, 0, last, None, "", (), 0.0, now)
            self.store.put(layout.attempt_end(1), done.to_json())
        head = Head(
            *("organization/demo/x", 0, 0, 1, state, end, now, now + timedelta(days=1)),
            *((), (Lineage(1, 0),), 0, 0, None, "n"),
        )
        if end is None:  # open rows count up to the newest checkpoint
            head = replace(head, chain=(checkpoint(layout.root, last),))
        self.store.put(layout.head, head.to_json())


def checkpoint(root: str, step: int) -> Checkpoint:
    return Checkpoint(f"{root}t000001/s{step:012d}-0/", 1, "0" * 64, 1, step, ())


def shown(parameters: Mapping[str, Any]) -> str:
    return bring_up.shown(parameters)
