"""What a run has cost so far, counted from its records: every VM's hours at the list's price, and
what preemptions cost.

Not in the records, and not counted: requests, network traffic, images, and storage of the past.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from outlast.base import numbers
from outlast.base.codec import format_time
from outlast.base.exits import INFRASTRUCTURE_REASONS
from outlast.bucket import history, listed, uptime
from outlast.bucket.head import HeadError, is_left
from outlast.bucket.history import Attempt, History
from outlast.bucket.layout import AttemptStart, Layout
from outlast.bucket.store import ReadOnlyStore, StoreError
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.bucket.uptime import within
from outlast.cli import experiments
from outlast.cli.errors import CloudError, OperateError, about
from outlast.cli.runs import ReadPlace
from outlast.costs import pricing

GIB = 2**30


@dataclass(frozen=True)
class Life(uptime.Life):
    """One VM's life, and what it costs."""

    rate: pricing.Sum
    """What it costs an hour."""
    standard: pricing.Sum
    """What the same VM costs an hour on demand."""

    @property
    def is_spot(self) -> bool:
        """Whether its price is that of a Spot VM."""
        return self.rate != self.standard

    def as_json(self) -> dict[str, Any]:
        return {
            "instance": self.instance,
            "zone": self.zone,
            "attempts": [one.term for one in self.attempts],
            "start": format_time(self.start),
            "end": None if self.alive else format_time(self.end),
            "hours": round(self.hours, 4),
            "items": [{"what": item.what, "hour": item.hour} for item in self.rate.items],
            "dollars": round(self.rate.hour * self.hours, 6),
            "unknown": list(self.rate.unknown),
        }


@dataclass(frozen=True)
class Share:
    """The part of a VM's life that belongs to one attempt: from the VM's first record, or the start
    of the attempt, to the start of the VM's next attempt, or its last record. A VM that never came
    to an attempt has one share without one."""

    life: Life
    attempt: Attempt | None
    start: datetime
    end: datetime
    hours: float
    """That are billed."""

    @property
    def dollars(self) -> float:
        return self.life.rate.hour * self.hours

    def as_json(self) -> dict[str, Any]:
        attempt = self.attempt
        return {
            "attempt": attempt.term if attempt else None,
            "instance": self.life.instance,
            "reason": attempt.reason if attempt else None,
            "hours": round(self.hours, 4),
            "dollars": round(self.dollars, 6),
            "committed": attempt.steps - attempt.lost if attempt else 0,
        }


@dataclass(frozen=True)
class Preemptions:
    """What interruptions of the platform cost: the time of lost steps, and boots to continue."""

    count: int
    steps_lost: int
    lost_hours: float
    """In which steps were made that are lost."""
    boot_hours: float
    """From the first record of a VM that continues to its attempt's start, when the checkpoint is
    restored; all hours of a VM that never came to one."""
    dollars: float

    @property
    def hours(self) -> float:
        return self.lost_hours + self.boot_hours

    def as_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "steps_lost": self.steps_lost,
            "lost_hours": round(self.lost_hours, 4),
            "boot_hours": round(self.boot_hours, 4),
            "dollars": round(self.dollars, 6),
        }


@dataclass(frozen=True)
class Costs:
    """What `outlast costs` shows."""

    experiment: str
    run: str
    state: str
    lives: tuple[Life, ...]
    gib: float
    """What the run keeps in the bucket now."""
    gib_month: float | None
    """Of that bucket, if it is where the VMs are; None: unknown."""
    committed: int = 0
    """Step of the newest checkpoint, or the last step of a run that is done."""

    @property
    def dollars(self) -> float:
        """Of all VMs, as far as their prices are known."""
        return sum(life.rate.hour * life.hours for life in self.lives)

    @property
    def hours(self) -> float:
        return sum(life.hours for life in self.lives)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What has no known price."""
        return tuple(dict.fromkeys(what for life in self.lives for what in life.rate.unknown))

    @property
    def said(self) -> str:
        """`$1.23`, `at least $1.23` or `unknown`."""
        return said(self.lives)

    @property
    def shares(self) -> tuple[Share, ...]:
        """Every VM's life by its attempts, in their order."""
        return tuple(share for life in self.lives for share in _shares(life))

    @property
    def step_dollars(self) -> float | None:
        """A committed step; None before the first, or if a price is unknown."""
        if not self.committed or self.unknown or not self.lives:
            return None
        return self.dollars / self.committed

    @property
    def preemptions(self) -> Preemptions:
        """Of the platform's interruptions so far."""
        return _preemptions(self.shares)

    @property
    def on_demand(self) -> tuple[float, float] | None:
        """Hours and dollars of the same work on VMs on demand, which are not preempted: without the
        time that preemptions cost. None if no VM was a Spot VM, or if a price is unknown.
        """
        if not any(life.is_spot for life in self.lives):
            return None
        if any(life.rate.unknown or life.standard.unknown for life in self.lives):
            return None
        whole = sum(life.standard.hour * life.hours for life in self.lives)
        hours = max(self.hours - self.preemptions.hours, 0.0)
        return hours, whole * hours / self.hours

    @property
    def sentences(self) -> Iterator[str]:
        """What a step cost, what preemptions cost, and the same work on demand."""
        if self.step_dollars is not None:
            step = pricing.dollars(self.step_dollars)
            yield f"a committed step: {step}, with {self.committed} committed"
        found = self.preemptions
        if found.count:
            least = "at least " if self.unknown else ""
            part = f", {found.dollars / self.dollars:.1%} of it" if self.dollars else ""
            yield (
                f"preemptions: {found.count} cost {least}{pricing.dollars(found.dollars)}{part}:"
                f" {found.lost_hours:.2f} h of {found.steps_lost} lost steps,"
                f" {found.boot_hours:.2f} h of boots"
            )
        if self.on_demand is not None:
            hours, amount = self.on_demand
            less = f", {1 - self.dollars / amount:.0%} less with Spot" if amount else ""
            yield f"on demand: {pricing.dollars(amount)} for the same work in {hours:.2f} h{less}"

    @property
    def storage(self) -> str:
        """What the run's objects cost to keep."""
        amount = numbers.gib(self.gib, least=0.01)
        if self.gib_month is None:
            return f"{amount} in the bucket, at a price that the list does not have"
        month = pricing.dollars(self.gib * self.gib_month)
        return f"{amount} in the bucket, {month} a month if it is where the VMs are"

    def as_json(self) -> dict[str, Any]:
        on_demand, step = self.on_demand, self.step_dollars
        return {
            "experiment": self.experiment,
            "run": self.run,
            "state": self.state,
            "prices_of": pricing.date(),
            "dollars": round(self.dollars, 6),
            "hours": round(self.hours, 4),
            "unknown": list(self.unknown),
            "vms": [life.as_json() for life in self.lives],
            "attempts": [share.as_json() for share in self.shares],
            "committed": self.committed,
            "dollars_per_step": step,
            "preemptions": self.preemptions.as_json(),
            "on_demand": {"hours": round(on_demand[0], 4), "dollars": round(on_demand[1], 6)}
            if on_demand
            else None,
            "storage": {"gib": round(self.gib, 4), "gib_month": self.gib_month},
        }


@dataclass(frozen=True)
class ProjectCosts:
    """What all runs in the project's buckets have cost: `outlast costs --all`."""

    runs: tuple[Costs, ...]
    """The most expensive first."""
    unread: tuple[str, ...]
    """What could not be read, a sentence each."""

    @property
    def lives(self) -> tuple[Life, ...]:
        return tuple(life for run in self.runs for life in run.lives)

    @property
    def said(self) -> str:
        """As of one run; `at least` too if something could not be read."""
        found = said(self.lives)
        return f"at least {found}" if self.unread and found.startswith("$") else found

    @property
    def preempted(self) -> float:
        """Dollars that preemptions cost in all of them."""
        return sum(run.preemptions.dollars for run in self.runs)

    @property
    def month(self) -> float:
        """Dollars a month for what all of them keep in buckets, as far as the prices are known."""
        return sum(run.gib * (run.gib_month or 0.0) for run in self.runs)

    @property
    def month_said(self) -> str:
        unknown = any(run.gib and run.gib_month is None for run in self.runs)
        return ("at least " if unknown else "") + pricing.dollars(self.month)

    def as_json(self) -> dict[str, Any]:
        return {
            "prices_of": pricing.date(),
            "dollars": round(sum(run.dollars for run in self.runs), 6),
            "unknown": list(dict.fromkeys(what for run in self.runs for what in run.unknown)),
            "preemption_dollars": round(self.preempted, 6),
            "storage_month": round(self.month, 6),
            "unread": list(self.unread),
            "runs": [run.as_json() for run in self.runs],
        }


def said(lives: Sequence[Life]) -> str:
    """What VMs cost together: `$1.23`, `at least $1.23` or `unknown`."""
    items = [item for life in lives for item in life.rate.items]
    unknown = sum(len(life.rate.unknown) for life in lives)
    if items and len(items) == unknown:
        return "unknown"
    dollars = sum(life.rate.hour * life.hours for life in lives)
    return ("at least " if unknown else "") + pricing.dollars(dollars)


def count(place: ReadPlace) -> Costs:
    """The costs of a run in a bucket. OperateError: it cannot be read, or has no VMs."""
    if place.folder is not None:
        raise OperateError(f"{place.name}: a run in a folder has no VMs, and nothing is counted")
    try:
        book = history.read(place.store, place.layout)
        lives = lives_of(place.store, place.layout, book)
        size = sum(item.size for item in place.store.list(place.layout.root))
    except (HeadError, StoreError) as error:
        raise OperateError(about(place.name, error)) from None
    except ValueError as error:
        raise OperateError(f"{place.name}: a record of its run cannot be read: {error}") from None
    region = pricing.region_of(lives[-1].zone) if lives else ""
    return Costs(
        place.name,
        place.layout.run,
        str(book.head.state) if book else "waiting",
        lives,
        size / GIB,
        pricing.storage_gib_month(region),
        _committed(book),
    )


def count_all() -> ProjectCosts:
    """The costs of every run in the buckets that the project's stacks use. OperateError if there is
    no bucket to look into.
    """
    found: list[Costs] = []
    unread: list[str] = []
    for bucket, stack in experiments.known_buckets().items():
        try:
            store = experiments.open_bucket(bucket, stack)
            names = experiments.names(store)
            layouts = experiments.layouts_of(store, [f"{experiments.ROOT}{one}" for one in names])
            records = listed.read(store, experiments.ROOT, only=frozenset(names).__contains__)
        except CloudError:
            raise
        except (StoreError, OperateError) as error:
            unread.append(about(f"gs://{bucket}", error))
            continue
        jobs = [
            partial(_counted, ReadPlace(run.prefix.removeprefix(experiments.ROOT), records, run))
            for run in layouts
            if not is_left(records, run)  # The other bucket has it, with all of its records.
        ]
        for one in in_parallel(jobs, small_reads(store)):
            if isinstance(one, Costs):
                found.append(one)
            else:
                unread.append(one)
    found.sort(key=lambda one: one.dollars, reverse=True)
    return ProjectCosts(tuple(found), tuple(unread))


def _counted(place: ReadPlace) -> Costs | str:
    """A run's costs, or why they could not be read."""
    try:
        return count(place)
    except CloudError:
        raise
    except OperateError as error:
        return str(error)


def _committed(book: History | None) -> int:
    if book is None:
        return 0
    return book.head.end.step if book.head.end else book.head.step


def lives_of(store: ReadOnlyStore, layout: Layout, book: History | None) -> tuple[Life, ...]:
    """As `uptime.lives_of`, each with its price."""
    return tuple(
        Life(
            **{name: getattr(life, name) for name in life.__dataclass_fields__},
            rate=_rate(life.record, life.zone),
            standard=_rate(life.record, life.zone, spot=False),
        )
        for life in uptime.lives_of(store, layout, book)
    )


def _shares(life: Life) -> Iterator[Share]:
    if not life.attempts:
        yield Share(life, None, life.start, life.end, life.hours)
        return
    starts = [life.start, *(attempt.start for attempt in life.attempts[1:])]
    ends = [*starts[1:], life.end]
    left = life.hours
    for attempt, start, end in zip(life.attempts, starts, ends, strict=True):
        is_last = attempt is life.attempts[-1]
        hours = left if is_last else (end - start).total_seconds() / 3600
        left -= hours
        yield Share(life, attempt, start, end, hours)


@dataclass(frozen=True)
class _Made:
    """Steps that one attempt made."""

    begin: int
    until: int
    step_hours: float
    hour: float
    """Dollars."""


def _undone(made: list[_Made], kept: int) -> tuple[float, float]:
    """Takes away the steps after `kept`; returns the hours and dollars in which they were made."""
    hours = dollars = 0.0
    while made and made[-1].until > kept:
        last = made.pop()
        begin = max(last.begin, kept)
        lost = (last.until - begin) * last.step_hours
        hours += lost
        dollars += lost * last.hour
        if last.begin < begin:
            made.append(replace(last, until=begin))
    return hours, dollars


def _preemptions(shares: Sequence[Share]) -> Preemptions:
    count = steps_lost = 0
    lost_hours = boot_hours = dollars = 0.0
    made: list[_Made] = []
    """What is not lost so far: a damaged checkpoint may undo steps of earlier attempts too."""
    interrupted = False
    """Whether the platform ended the attempt before."""
    for share in shares:
        hour, attempt = share.life.rate.hour, share.attempt
        if interrupted:
            # A share begins with its attempt, unless it is its VM's first.
            booted = (attempt.start - share.start).total_seconds() / 3600 if attempt else None
            hours = share.hours if booted is None else booted
            boot_hours += hours
            dollars += hours * hour
        if attempt is None:
            continue
        if attempt.end and attempt.steps > 0:
            worked = (attempt.end - attempt.start).total_seconds() / 3600
            made.append(_Made(attempt.from_step, attempt.step, worked / attempt.steps, hour))
        hours, amount = _undone(made, attempt.step - attempt.lost)
        interrupted = attempt.reason in INFRASTRUCTURE_REASONS
        if not interrupted:
            continue
        count += 1
        steps_lost += attempt.lost
        lost_hours += hours
        dollars += amount
    return Preemptions(count, steps_lost, lost_hours, boot_hours, dollars)


_BILLED_MAX = {"disk_gb": 65536, "ssds": 64, "accelerators": 64}


def _rate(start: AttemptStart | None, zone: str, *, spot: bool | None = None) -> pricing.Sum:
    """What such a VM costs an hour. `spot`: as such a VM or on demand, instead of as it was."""
    if start is None:
        return pricing.Sum((pricing.Item("a VM that left no record of its kind", None),))
    billed = start.spec.get("billed") or {}
    name = start.machine_type.rpartition("/")[2]
    if not isinstance(billed, Mapping) or not all(
        within(billed.get(key) or 0, most) is not None for key, most in _BILLED_MAX.items()
    ):
        what = f"{name}, whose record is impossible for a VM"
        return pricing.Sum((pricing.Item(what, None),))
    if not billed:
        return pricing.Sum(
            (pricing.Item(f"{name}, whose record does not say whether it was Spot", None),)
        )
    given = billed if spot is None else {**billed, "spot": spot}
    return pricing.billed_vm(given, start.machine_type, zone)
