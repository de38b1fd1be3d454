"""What runs cost."""

from typing import TypedDict


class Price(TypedDict):
    """One item of a price."""

    what: str
    hour: float | None
    """dollars an hour, null if unknown"""


class Life(TypedDict):
    """One VM's life, as far as the bucket has records of it."""

    instance: str
    zone: str
    attempts: list[int]
    """those that it worked on"""
    start: str
    end: str | None
    """null while it works"""
    hours: float
    """billed"""
    items: list[Price]
    dollars: float
    unknown: list[str]
    """what has no known price"""


class Storage(TypedDict):
    """What a run keeps in the bucket."""

    gib: float
    gib_month: float | None
    """dollars a GiB and month, null if unknown"""


class AttemptCost(TypedDict):
    """What one attempt cost, or a VM that never came to one."""

    attempt: int | None
    instance: str
    reason: str | None
    hours: float
    dollars: float
    committed: int
    """its steps that were kept"""


class Preemptions(TypedDict):
    """What interruptions of the platform cost."""

    count: int
    steps_lost: int
    lost_hours: float
    """in which lost steps were made"""
    boot_hours: float
    """of boots after which the run continued"""
    dollars: float


class OnDemand(TypedDict):
    """What the same steps cost without interruptions on VMs that are not Spot."""

    hours: float
    dollars: float


class Costs(TypedDict):
    """What a run has cost so far."""

    experiment: str
    run: str
    state: str
    prices_of: str
    """date of the price list"""
    dollars: float
    hours: float
    unknown: list[str]
    vms: list[Life]
    attempts: list[AttemptCost]
    committed: int
    """step of the newest checkpoint, or the last step of a run that is done"""
    dollars_per_step: float | None
    preemptions: Preemptions
    on_demand: OnDemand | None
    storage: Storage


class ProjectCosts(TypedDict):
    """What all runs cost: with --all."""

    prices_of: str
    dollars: float
    unknown: list[str]
    preemption_dollars: float
    storage_month: float
    unread: list[str]
    """what could not be read, a sentence each"""
    runs: list[Costs]


class RefreshedPrices(TypedDict):
    """A price list from Google's catalog: with --refresh-prices."""

    file: str
    date: str
    prices: int
    """how many it has"""
    regions: int
    ambiguous: int
    """prices with two values, which stay as they were"""
