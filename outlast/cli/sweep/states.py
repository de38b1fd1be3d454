"""How the trials of a sweep stand, from the bucket alone: it works from any machine, and after a
destroy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from outlast.bucket import listed
from outlast.bucket.listed import Listed
from outlast.bucket.standing import Standing
from outlast.bucket.store import StoreError
from outlast.bucket.sweeps import SweepObjects, SweepRecord, TrialRecord, UpRecord
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.cli import costs, experiments, status
from outlast.cli.errors import OperateError, about
from outlast.cli.runs import Place, ReadPlace
from outlast.cli.status import Status
from outlast.cli.sweep.trials import layout_of
from outlast.spec import sweeps

WAITING = "waiting"
"""Not started, or destroyed before its end: the next `outlast sweep up` starts it if it can."""
STARTING = "starting"
"""Its stack is up, and its group has no VM yet."""
UNREAD = "unread"


@dataclass(frozen=True)
class TrialState:
    """One trial, as the bucket has it."""

    sweep: str
    record: TrialRecord
    up: UpRecord | None
    """None if no `up` of its stack has begun."""
    status: Status | None
    """None if no VM has worked on it, or its records cannot be read."""
    dollars: float = 0.0
    """What its VMs have cost so far, as far as their prices are known."""
    hours: float = 0.0
    unknown: bool = False
    """Whether a part of that has no known price, or cannot be read."""
    unpriced: tuple[str, ...] = ()
    """What has no known price."""
    why: str = ""
    """Why its records cannot be read."""

    @property
    def stack(self) -> str:
        return sweeps.trial(self.sweep, self.record.run)

    @property
    def said(self) -> str:
        """Why it cannot be read, or why it ended early, such as by which comparison it was pruned;
        empty for neither."""
        return self.why or (self.status.why if self.status else "")

    @property
    def has_ended(self) -> bool:
        """Whether nothing continues it by itself. One that cannot be read counts as ended: it must
        not be started again."""
        return bool(self.why) or (self.status is not None and self.status.state.ended)

    @property
    def is_up(self) -> bool:
        """Whether its stack is up; one whose `up` was cut off is brought up again."""
        return self.up is not None and self.up.done

    @property
    def is_open(self) -> bool:
        """Whether its stack is up and may have a VM now, also if its records cannot be read."""
        return self.is_up and (bool(self.why) or not self.has_ended)

    @property
    def state(self) -> str:
        """The closed list of `Standing`, and those of this module."""
        if self.why:
            return UNREAD
        if self.has_ended:
            assert self.status is not None
            return str(self.status.state)
        if self.up is None:
            return WAITING
        if self.status is None or self.status.state is Standing.WAITING:
            return STARTING if self.is_up else WAITING
        return str(self.status.state)

    @property
    def step(self) -> int:
        book = self.status.history if self.status else None
        return book.step if book else 0

    @property
    def resume(self) -> int:
        """How often it was reopened."""
        book = self.status.history if self.status else None
        return book.head.resume if book else 0

    @property
    def reserved_dollars(self) -> float:
        """What it takes of a budget: its worst case while it may have a VM or if its cost is not
        known, else what it has cost."""
        worst = self.up.dollars if self.up and (self._may_cost or self.unknown) else None
        return max(worst or 0.0, self.dollars)

    @property
    def reserved_hours(self) -> float:
        worst = self.up.hours if self._may_cost and self.up else 0.0
        return max(worst, self.hours)

    @property
    def _may_cost(self) -> bool:
        """Whether it may have a VM now, or had one of which nothing can be read."""
        return self.up is not None and (bool(self.why) or not self.has_ended)


@dataclass(frozen=True)
class SweepState:
    """A sweep, as the bucket has it."""

    name: str
    record: SweepRecord | None
    """None if it was never up."""
    trials: Mapping[str, TrialState]
    """By run: every trial that was ever recorded, in order."""

    @property
    def current(self) -> list[TrialState]:
        """The trials that the file asked for last, and those that an optimiser asked for."""
        named = set(self.record.trials if self.record else ())
        return [one for one in self.trials.values() if one.record.asked or one.record.run in named]


def read(objects: SweepObjects) -> SweepState:
    """The sweep and all of its trials. Raises StoreError."""
    records = objects.trials()
    ups = objects.ups()
    stacks = {run: sweeps.trial(objects.name, run) for run in records}
    begun = {*experiments.names(objects.store)}.intersection(stacks.values()) if records else set()
    view = listed.read(objects.store, experiments.ROOT, only=begun.__contains__) if begun else None
    jobs: list[Callable[[], TrialState]] = [
        partial(_read, objects, one, ups.get(run), view if stacks[run] in begun else None)
        for run, one in records.items()
    ]
    found = in_parallel(jobs, small_reads(objects.store))
    return SweepState(objects.name, objects.record(), {one.record.run: one for one in found})


def _read(
    objects: SweepObjects, record: TrialRecord, up: UpRecord | None, view: Listed | None
) -> TrialState:
    if view is None:
        return TrialState(objects.name, record, up, None)
    run = record.run
    place = ReadPlace(sweeps.trial(objects.name, run), view, layout_of(objects.name, run))
    try:
        found = status.read(place)
        lives = costs.lives_of(place.store, place.layout, found.history)
    except (StoreError, OperateError) as error:
        why = str(error) if isinstance(error, OperateError) else about(place.name, error)
        return TrialState(objects.name, record, up, None, unknown=True, why=why)
    return TrialState(
        objects.name,
        record,
        up,
        found,
        dollars=sum(one.rate.hour * one.hours for one in lives),
        hours=sum(one.hours for one in lives),
        unknown=any(one.rate.unknown for one in lives),
        unpriced=tuple(dict.fromkeys(what for one in lives for what in one.rate.unknown)),
    )


def place_of(objects: SweepObjects, run: str) -> Place:
    """Where a trial's run is."""
    return Place(sweeps.trial(objects.name, run), objects.store, layout_of(objects.name, run))
