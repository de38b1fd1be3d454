"""What an up would do."""

from typing import NotRequired, TypedDict

from outlast.cli.documents.costs import Price


class RunChange(TypedDict):
    """What a change does to one run."""

    run: str
    then: str
    step: int | None
    why: str


class StackCost(TypedDict):
    """The cost of a stack before or after a change."""

    hour: float
    day: float
    limit: float
    """dollars to the run's limit or budget, with the dearest machine type"""
    budget: float | None
    hours: float
    """that it may still run"""
    unknown: list[str]
    items: list[Price]


class CostChange(TypedDict):
    """What a change does to the bill."""

    prices_of: str
    before: StackCost
    after: StackCost
    bakes: list[str]
    storage: list[str]


class Broken(TypedDict):
    """A broken rule."""

    rule: str
    resource: str
    why: str


class Review(TypedDict):
    """What an up would do. A preview that is refused prints `stack`, `refused` and `exit_code`."""

    stack: str
    runs: NotRequired[list[RunChange]]
    changes: NotRequired[dict[str, list[str]]]
    """resources by what happens to them"""
    cost: NotRequired[CostChange]
    warnings: NotRequired[list[str]]
    broken: NotRequired[list[Broken]]
    not_checked: NotRequired[list[str]]
    advice: NotRequired[list[str]]
    refused: NotRequired[str]
    """why no preview was made"""
    exit_code: int
