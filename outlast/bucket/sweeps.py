"""The operator's objects of a sweep: what was asked for, its trials, and who works on it.

The trials' VMs may not write these; what they write is in other folders of `sweeps/<name>/`.

    sweeps/<name>/SWEEP.json         what was asked for last
    sweeps/<name>/trials/<run>.json  a trial's parameters; created once
    sweeps/<name>/up/<run>.json      its up has begun; deleted when it is destroyed
    sweeps/<name>/LOCK               who works on the sweep (`outlast.cli.sweep.lock`)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, TypeVar

from outlast.base.codec import Record
from outlast.base.names import Form
from outlast.base.numbers import Ordinal, Range
from outlast.bucket.records import read_record, write_record
from outlast.bucket.store import NotFound, PreconditionFailed, Store, delete_quietly, put_new
from outlast.bucket.transfer import in_parallel, small_reads, small_writes
from outlast.spec import sweeps

R = TypeVar("R", bound=Record)

ROOT = "sweeps/"
Name = Annotated[str, Form(sweeps.NAME_PATTERN.pattern, sweeps.NAME_RULE)]
Run = Annotated[str, Form("[0-9a-f]{10}", "ten hexadecimal digits")]
Dollars = Annotated[float, Range(0, 1e12)]
Hours = Annotated[float, Range(0, 1e7)]


@dataclass(frozen=True)
class SweepRecord(Record):
    """`SWEEP.json`: what the last `outlast sweep up` asked for."""

    name: Name
    document: dict[str, Any]
    """The sweep file, as `outlast.cli.sweep.file` reads it."""
    trials: tuple[Run, ...]
    """The trials that the file asks for, in their order."""
    shared: str
    """Digest of the settings with which the shared stack is up; empty if it is not."""
    time: datetime


@dataclass(frozen=True)
class TrialRecord(Record):
    """`trials/<run>.json`: one trial."""

    run: Run
    number: Ordinal
    """Of the sample, or of the question for it."""
    parameters: dict[str, Any]
    asked: bool
    """Whether another optimiser asked for it."""


@dataclass(frozen=True)
class UpRecord(Record):
    """`up/<run>.json`: the trial's stack is up, or an `up` of it has begun."""

    run: Run
    dollars: Dollars | None
    """What it costs at most, by the prices of that time; None if they are unknown."""
    hours: Hours
    """That its VMs live together at most."""
    time: datetime
    done: bool = True
    """false: its `up` has not ended well, so that it may have a VM or not."""


class SweepObjects:
    """Reads and writes the objects of one sweep. Raises StoreError, Damaged for what is not a
    record.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.root = f"{ROOT}{name}/"
        self.lock = f"{self.root}LOCK"
        self._record = f"{self.root}SWEEP.json"

    def record(self) -> SweepRecord | None:
        """None if the sweep was never up."""
        return read_record(self.store, self._record, SweepRecord)

    def write(self, record: SweepRecord) -> None:
        write_record(self.store, self._record, record)

    def trials(self) -> dict[str, TrialRecord]:
        """Every trial that was ever recorded, by its run, in order."""
        found = self._all("trials", TrialRecord)
        return {one.run: one for one in sorted(found, key=lambda one: (one.asked, one.number))}

    def add(self, trials: Sequence[TrialRecord]) -> None:
        """Records trials; one that is there already stays as it is."""

        def create(trial: TrialRecord) -> None:
            try:
                put_new(self.store, f"{self.root}trials/{trial.run}.json", trial.to_json())
            except PreconditionFailed:
                return

        in_parallel([partial(create, trial) for trial in trials], small_writes(self.store))

    def ups(self) -> dict[str, UpRecord]:
        """The trials whose stacks are up or may be, by their runs."""
        return {one.run: one for one in self._all("up", UpRecord)}

    def mark_up(self, record: UpRecord) -> None:
        write_record(self.store, self._up(record.run), record)

    def mark_down(self, run: str) -> None:
        try:
            found = self.store.stat(self._up(run))
        except NotFound:
            return
        delete_quietly(self.store, found.path, found.generation)

    def _up(self, run: str) -> str:
        return f"{self.root}up/{run}.json"

    def _all(self, folder: str, kind: type[R]) -> list[R]:
        paths = [item.path for item in self.store.list(f"{self.root}{folder}/")]
        jobs = [partial(read_record, self.store, path, kind) for path in paths]
        found = in_parallel(jobs, small_reads(self.store))
        return [one for one in found if one is not None]  # None: deleted meanwhile


def names(store: Store) -> list[str]:
    """The sweeps of a bucket. Raises StoreError."""
    return [name for name in store.folders(ROOT) if sweeps.NAME_PATTERN.fullmatch(name)]
