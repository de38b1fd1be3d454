"""How runs, their attempts and their parts stand."""

from typing import Any, NotRequired, TypedDict


class Attempt(TypedDict):
    """One life of a VM on a run."""

    attempt: int
    """its number"""
    start: str
    end: str | None
    """null while it works"""
    reason: str | None
    """why it ended, null while it works"""
    instance: str
    """name of its VM"""
    zone: str
    from_step: int
    """step of the checkpoint that it resumed from; 0 for a fresh start"""
    step: int
    """last step in its records"""
    steps: int
    """steps that it made, including lost ones"""
    steps_lost: int
    """steps that the next attempt repeats"""
    changed: list[str]
    """what changed since the attempt before, in words"""
    why: str
    """message of a failure; else empty"""
    stderr: list[str]
    """last lines of a trainer that failed"""
    warnings: list[str]
    """warnings of the trainer"""
    last_heartbeat: str | None


class Wait(TypedDict):
    """What a run without a working attempt waits for."""

    what: str
    """`waiting`, `booting` or `never-started`"""
    since: str | None
    why: str
    serial: NotRequired[list[str]]
    """last lines on the serial port of a VM that never started"""


class Part(TypedDict):
    """One part of a run."""

    part: str
    step: int
    """its own steps"""
    done: bool


class Status(TypedDict):
    """How a run stands."""

    experiment: str
    run: str
    url: str
    """`gs://…` or a folder"""
    state: str
    """`waiting`, `booting`, `never-started`, `running`, `silent`, `lost`, `interrupted`, `expired`,
    `done`, `failed`, `stopped` or `pruned`"""
    reason: str | None
    """why the run ended"""
    why: str
    """why the trainer ended it before its last step, or that it is past its limit; else empty"""
    step: int
    total: int | None
    """steps of the whole run, null until the trainer has said"""
    boots: int
    """recorded boots of VMs"""
    waits: Wait | None
    """null while an attempt works or nothing is expected"""
    deadline: str | None
    attempts: list[Attempt]
    rate: float | None
    """steps a second"""
    left_sec: int | None
    """seconds for the remaining steps"""
    silent_sec: int | None
    """seconds since the last heartbeat of an attempt that has not ended"""
    metrics: dict[str, Any]
    """last value of each metric"""
    metric_steps: dict[str, int]
    """the step of that value"""
    result: str | None
    """where a finished run's result is"""
    parts: NotRequired[list[Part]]
    """only of a run with parts"""


class Line(Status):
    """A run in a list."""

    dollars: float
    """what its VMs cost so far, as far as prices are known"""
    cost: str
    """the same in words: `$1.23`, `at least $1.23` or `unknown`"""
    prices_of: str
    """date of the price list"""
