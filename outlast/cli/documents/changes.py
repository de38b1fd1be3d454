"""What a command changed."""

from typing import TypedDict


class Stopped(TypedDict):
    """A run that was ended."""

    experiment: str
    run: str
    state: str
    """`stopped`, unless it ended otherwise meanwhile"""
    reason: str | None
    step: int
    steps_lost: int
    """steps since its newest checkpoint"""
    how: str
    """`checkpoint`: by its VM; `at-once`: no VM was at work, or --now; `timed-out`: its VM took too
    long"""
    why: str
    """why no checkpoint was taken; else empty"""


class Upped(TypedDict):
    """A stack that is up. Pulumi's own output goes to stderr."""

    experiment: str
    """empty for a foundation"""
    recovered: bool
    """whether an interrupted update was recovered first"""
    commit: str | None
    """the commit that --latest has set"""
    why: str
    """why its group creates no VM; else empty"""


class Destroyed(TypedDict):
    """A stack that was destroyed. Pulumi's own output goes to stderr."""

    experiment: str
    recovered: bool
    """whether an interrupted update was recovered first"""
    left: str
    """what stays of its run, in words; empty for nothing"""


class Recovered(TypedDict):
    """A stack after a recovery."""

    experiment: str
    recovered: bool
    """false: there was nothing to recover"""
    resources: list[str]
    """those that were being created, now in the state if they exist"""


class Resumed(TypedDict):
    """A run that the next up reopens, or that was set back."""

    experiment: str
    resume: int | None
    """the counter's new value; null for a run without a stack"""
    step: int
    """where it resumes"""
    dropped: int
    """newer checkpoints that were given up"""
    keeps_name: bool
    """whether outlast:run keeps its name, because its content changed"""
    changed: list[str]


class Repaired(TypedDict):
    """A run whose HEAD is repaired."""

    experiment: str
    state: str
    step: int
    set_aside: int
    """newer checkpoints that could not be used"""


class HandedOver(TypedDict):
    """A run that belongs to another stack."""

    run: str
    """its path now"""
    owner: str
    before: str
    """the owner until now"""
    step: int
    copied: bool
    """whether it was copied into another bucket"""
