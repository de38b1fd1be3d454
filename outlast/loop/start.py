"""Records what a program builds before its first step, because a restore finds that at each place.

A resumed program starts like the first one, and only then gets the state of a checkpoint. So an
object that cannot be rebuilt from data (an optimiser, a module, an object of the trainer's class)
can be saved only if the program's start makes one of its kind there. An object that later takes
another one's place is marked in the checkpoint with the kind that it replaces.
"""

import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Start:
    """Places of the state before training, before a checkpoint is restored into it."""

    kinds: dict[str, str] = field(default_factory=dict)
    """The kind of the object at each place, from ``describe``, without numbers, strings and
    None."""
    live: dict[str, set[str]] = field(default_factory=dict)
    """Kinds of live objects by place, if only a live object can be restored there."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Adapters' notes on objects at the start, by path."""
    modules: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))
    """Loaded modules, in which a resumed program finds classes."""


def too_late(path: str, kind: str, remedy: str) -> str:
    """The message about an object that a resumed program could not rebuild."""
    instead = "create it before outlast.train, or keep what matters of it in a dict of numbers"
    return (
        f"{path} is {kind}, which did not exist when training began: a resumed run could not "
        f"rebuild it; {remedy} {instead}, strings and arrays".replace("  ", " ")
    )


def changed(path: str, kind: str, before: set[str]) -> str:
    """The message about an object whose kind differs from the one at the program's start."""
    return (
        f"{path} is {kind}, and was {' and '.join(sorted(before))} when training began: a resumed "
        "run could not restore it; create it in its final form before outlast.train"
    )


def not_rebuilt(path: str, kind: str, remedy: str) -> str:
    """The message about an object inside one that is restored from plain data."""
    return (
        f"{path} is {kind}, which cannot be rebuilt from a checkpoint; {remedy} put it into the "
        "state itself, or keep what matters of it as numbers, strings and arrays"
    ).replace("  ", " ")
