"""What a report about a run shows."""

from typing import Any, TypedDict

from outlast.cli.documents.costs import Costs
from outlast.cli.documents.runs import Status


class Use(TypedDict):
    """What a part of a run's time was used for."""

    use: str
    google: str | None
    """Google's category"""
    sec: float


class Goodput(TypedDict):
    """The share of a run's time in which kept steps were made."""

    share: float
    scheduling: float
    """share of the time with a VM"""
    runtime: float
    """share of that in which kept steps were made"""
    program: None
    """not measured"""
    wall_sec: float
    causes: list[Use]


class Best(TypedDict):
    """A best checkpoint."""

    step: int
    part: str
    values: dict[str, Any]


class LogPath(TypedDict):
    """Where an attempt's output is."""

    attempt: int
    path: str


class Facts(Status):
    """What a report shows."""

    made: str
    """when it was read"""
    best: list[Best]
    interruptions: int
    """attempts that the platform ended"""
    steps_lost: int
    goodput: Goodput | None
    costs: Costs | None
    configuration: dict[str, dict[str, str]]
    """tables by their titles"""
    logs: list[LogPath]
    problems: list[str]
    """what could not be read, a sentence each"""
