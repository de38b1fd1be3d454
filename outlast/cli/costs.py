"""What a run has cost so far, counted from its records: every VM's hours at the list's price.

A VM is counted from its first record to its last, so the bill has a few more seconds at both ends:
from its start to its boot script, and from its last record to its end. A VM that is still running
is counted up to now (one that is lost, to its last heartbeat), and one that is kept after the run's
end for as long as it stays. Network traffic is not in the records and not counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outlast.base.codec import format_time
from outlast.bucket import history
from outlast.bucket.head import HeadError
from outlast.bucket.history import History
from outlast.bucket.layout import (
    AttemptStart,
    BootRecord,
    Layout,
)
from outlast.bucket.standing import Standing, standing
from outlast.bucket.store import NotFound, Store, StoreError
from outlast.cli.errors import OperateError, about
from outlast.cli.runs import Place
from outlast.costs import pricing

LEAST = timedelta(minutes=1)
"""What the platform bills of a VM at least."""
GIB = 2**30


@dataclass(frozen=True)
class Life:
    """One VM's life, as far as the bucket has records of it."""

    instance: str
    zone: str
    start: datetime
    end: datetime
    alive: bool
    """Whether it still works on the run."""
    rate: pricing.Sum
    """What it costs an hour."""

    @property
    def hours(self) -> float:
        """That are billed."""
        return max(self.end - self.start, LEAST).total_seconds() / 3600

    def as_json(self) -> dict[str, Any]:
        return {
            "instance": self.instance,
            "zone": self.zone,
            "start": format_time(self.start),
            "end": None if self.alive else format_time(self.end),
            "hours": round(self.hours, 3),
            "items": [{"what": item.what, "hour": item.hour} for item in self.rate.items],
            "dollars": round(self.rate.hour * self.hours, 4),
            "unknown": list(self.rate.unknown),
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
    def storage(self) -> str:
        """What the run's objects cost to keep."""
        amount = f"{self.gib:,.2f} GiB" if self.gib >= 0.01 else f"{self.gib * 1024:,.2f} MiB"
        if self.gib_month is None:
            return f"{amount} in the bucket, at a price that the list does not have"
        month = pricing.dollars(self.gib * self.gib_month)
        return f"{amount} in the bucket, {month} a month if it is where the VMs are"

    def as_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "run": self.run,
            "state": self.state,
            "pricesOf": pricing.date(),
            "dollars": round(self.dollars, 4),
            "hours": round(self.hours, 3),
            "unknown": list(self.unknown),
            "vms": [life.as_json() for life in self.lives],
            "storage": {"gib": round(self.gib, 4), "gibMonth": self.gib_month},
        }


def said(lives: Sequence[Life]) -> str:
    """What VMs cost together: `$1.23`, `at least $1.23` or `unknown`."""
    items = [item for life in lives for item in life.rate.items]
    unknown = sum(len(life.rate.unknown) for life in lives)
    if items and len(items) == unknown:
        return "unknown"
    dollars = sum(life.rate.hour * life.hours for life in lives)
    return ("at least " if unknown else "") + pricing.dollars(dollars)


def count(place: Place) -> Costs:
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
    )


def lives_of(store: Store, layout: Layout, book: History | None) -> tuple[Life, ...]:
    """Every VM that booted for the run, oldest first, from a history that was just read. Only the
    records of VMs that never came to an attempt are read here. Raises StoreError.
    """
    seen: dict[str, list[datetime]] = {}
    """By instance id: the times of its records."""
    what: dict[str, tuple[str, str]] = {}
    """By instance id: its name and zone."""
    machines: dict[str, AttemptStart] = {}
    alive: set[str] = set()
    if book is None:
        booted = {item.path: item.updated for item in store.list(layout.boots)}
    else:
        booted = book.booted
    for path, updated in booted.items():
        instance_id = path.removeprefix(layout.boots).partition("-")[0]
        seen.setdefault(instance_id, []).append(updated)
    now = store.now()
    for attempt in book.attempts if book else ():
        assert book is not None
        start = book.starts[attempt.term]
        machines[start.instance_id] = start
        what[start.instance_id] = (start.instance, start.zone)
        times = seen.setdefault(start.instance_id, [])
        times += [attempt.start, attempt.end or attempt.seen or attempt.start]
        if standing(book.head, attempt, now) in (Standing.RUNNING, Standing.SILENT):
            times.append(now)
            alive.add(start.instance_id)
    for path in booted:
        instance_id = path.removeprefix(layout.boots).partition("-")[0]
        if instance_id not in what and not path.endswith(".end.json"):
            record = _read(store, path)
            if record is not None:
                what[instance_id] = (record.instance, record.zone)
    if book and book.attempts and book.head.state.ended:
        _keep(seen, machines, book, now)
    lives = []
    last = machines.get(next(reversed(machines), ""))
    for instance_id, times in seen.items():
        instance, zone = what.get(instance_id, (instance_id, ""))
        # One that never came to an attempt is of the kind of the others.
        rate = _rate(machines.get(instance_id, last), zone)
        lives.append(Life(instance, zone, min(times), max(times), instance_id in alive, rate))
    return tuple(sorted(lives, key=lambda life: life.start))


def _keep(
    seen: Mapping[str, list[datetime]],
    machines: dict[str, AttemptStart],
    book: History,
    now: datetime,
) -> None:
    """The last VM, where it stays after the run's end."""
    end = book.attempts[-1].end
    instance_id, start = next(reversed(machines.items()))
    timeouts = start.spec.get("timeouts")
    stays_sec = _within(timeouts.get("keep") if isinstance(timeouts, dict) else 0, _STAYS_SEC_MAX)
    if end and stays_sec:
        until = min(end + timedelta(seconds=stays_sec), book.head.deadline, now)
        seen[instance_id].append(max(until, end))


def _read(store: Store, path: str) -> BootRecord | None:
    try:
        return BootRecord.from_json(store.get(path)[0])
    except (NotFound, ValueError):  # gone between list and get, or cut while it was written
        return None


_STAYS_SEC_MAX = 120 * 86400.0
"""No VM lives longer than 120 days."""
_BILLED_MAX = {"disk_gb": 65536, "ssds": 64, "accelerators": 64}


def _within(value: Any, most: float) -> float | None:
    """A number of a record, which a VM wrote, if it can be one; None otherwise."""
    fits = type(value) in (int, float) and 0 <= value <= most
    return value if fits else None


def _rate(start: AttemptStart | None, zone: str) -> pricing.Sum:
    """What such a VM costs an hour."""
    if start is None:
        return pricing.Sum((pricing.Item("a VM that left no record of its kind", None),))
    billed = start.spec.get("billed") or {}
    name = start.machine_type.rpartition("/")[2]
    if not isinstance(billed, dict) or not all(
        _within(billed.get(key) or 0, most) is not None for key, most in _BILLED_MAX.items()
    ):
        what = f"{name}, whose record says what no VM has"
        return pricing.Sum((pricing.Item(what, None),))
    if not billed:
        return pricing.Sum((pricing.Item(f"{name}, whether Spot or not", None),))
    template = {
        "machineType": start.machine_type,
        "scheduling": {"provisioningModel": "SPOT" if billed.get("spot") else "STANDARD"},
        "disks": [
            {"diskType": billed.get("disk"), "diskSizeGb": billed.get("disk_gb")},
            *({"type": "SCRATCH"} for _ in range(int(billed.get("ssds") or 0))),
        ],
        "networkInterfaces": [{"accessConfigs": [{}] if billed.get("address") else []}],
    }
    if billed.get("accelerator"):
        template["guestAccelerators"] = [
            {"type": billed["accelerator"], "count": billed.get("accelerators")}
        ]
    parts = [pricing.vm(template, zone)]
    if billed.get("nat"):
        parts.append(pricing.nat())
    return pricing.added(parts)
