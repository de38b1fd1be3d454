"""What a program builds before its first step: what a restore will find at each place.

A resumed program starts like the first one, and only then gets the state of a checkpoint. So an
object without a rule to rebuild it (an optimiser, a module, a class of the trainer's) can be saved
only if the program's own start puts one of its kind, and what takes another's place later is
marked in the checkpoint with what it replaces.
"""

import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Start:
    """Places of the state before training, before a checkpoint is restored into it."""

    kinds: dict[str, str] = field(default_factory=dict)
    """What stands at a place, as ``describe`` says it; numbers, strings and None are left out."""
    live: dict[str, set[str]] = field(default_factory=dict)
    """Objects that only a live object can take, by place: what fits there."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What an adapter has to know later of an object as it was at the start."""
    modules: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))
    """Loaded modules: a resumed program finds classes in these."""


def too_late(path: str, kind: str, remedy: str) -> str:
    """The sentence about an object that a resumed program could not rebuild."""
    instead = "create it before outlast.train, or keep what matters of it in a dict of numbers"
    return (
        f"{path} is {kind}, which did not exist when training began: a resumed run could not "
        f"rebuild it; {remedy} {instead}, strings and arrays".replace("  ", " ")
    )


def changed(path: str, kind: str, before: set[str]) -> str:
    """The sentence about an object that has become another kind than the program starts with."""
    return (
        f"{path} is {kind}, and was {' and '.join(sorted(before))} when training began: a resumed "
        "run could not restore it; create it in its final form before outlast.train"
    )


def not_rebuilt(path: str, kind: str, remedy: str) -> str:
    """The sentence about an object inside of something that is restored from plain data."""
    return (
        f"{path} is {kind}, which cannot be rebuilt from a checkpoint; {remedy} put it into the "
        "state itself, or keep what matters of it as numbers, strings and arrays"
    ).replace("  ", " ")
