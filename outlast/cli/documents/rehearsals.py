"""Reports of rehearsals."""

from typing import Any, NotRequired, TypedDict

from outlast.cli.documents.runs import Attempt, Part


class Fault(TypedDict):
    """A fault that happened."""

    do: str
    boot: int | None
    """number of the VM's boot"""
    attempt: int | None
    planned: NotRequired[str]
    """what the scenario asks for, where Google has something similar only"""


class Guarantee(TypedDict):
    """A guarantee and whether it was held."""

    name: str
    promise: str
    verdict: str
    """`held`, `broken` or `not exercised`"""
    held: bool
    detail: str


class Rehearsal(TypedDict):
    """The report of a rehearsal."""

    scenario: str
    experiment: str
    run: str
    end: str
    held: bool
    """whether every guarantee was"""
    seconds: float
    metrics: dict[str, Any]
    result: str | None
    """its digest"""
    goodput: float | None
    goodput_baseline: float | None
    faults: list[Fault]
    parts: NotRequired[list[Part]]
    attempts: list[Attempt]
    attempts_baseline: list[Attempt]
    guarantees: list[Guarantee]


class Assumption(TypedDict):
    """An assumption about Google."""

    name: str
    says: str
    outcome: str
    """`holds`, `does not hold` or `could not be asked`"""
    seen: str


class WorstCost(TypedDict):
    """What a rehearsal on Google can cost at most."""

    dollars: float
    parts: dict[str, float]


class OnGoogle(TypedDict):
    """The report of a rehearsal on Google."""

    on: str
    outlast: str
    began: str
    zone: str
    image: str
    machine_type: str
    worst_cost: WorstCost
    assumptions: list[Assumption]
    left: list[str]
    """what may still exist"""
    run: NotRequired[Rehearsal]
