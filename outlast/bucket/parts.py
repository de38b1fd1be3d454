"""The parts of a run, from HEAD's chain: trainings of one program, one after the other.

A finished part has two entries of the same step: its state after the last step, and the one tagged
`DONE_TAG`, with `PART_FILE` and `PART_RESULT` (`part_results.py`). Steps of entries and rows count
through all parts; `before` is the number of steps of the earlier parts. Entries of finished parts
move to pages (`pages.parts` finds them).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from outlast.bucket.head import Checkpoint

DONE_TAG = "done"
"""Tag of the entry that ends a part."""

NAMES_SHOWN = 8
"""The most parts that a message names."""


@dataclass(frozen=True)
class Part:
    """One part with its kept entries."""

    name: str
    before: int
    """Steps of the parts before it."""
    newest: Checkpoint
    """Its newest entry."""
    state: Checkpoint | None = None
    """Its newest entry with a state; None if only its end is left."""

    @property
    def done(self) -> bool:
        return is_done(self.newest)

    @property
    def step(self) -> int:
        """Its committed steps, counted in the part itself."""
        return own_step(self.newest)


def is_done(entry: Checkpoint) -> bool:
    """Whether the entry ends a part."""
    return bool(entry.part) and DONE_TAG in entry.tags


def own_step(entry: Checkpoint) -> int:
    """The entry's step within its part; in a run without parts, its step."""
    return entry.step - entry.before


def parts_of(chain: Iterable[Checkpoint]) -> tuple[Part, ...]:
    """The parts that have a checkpoint, in the order in which they began."""
    found: dict[str, Part] = {}
    for entry in chain:
        if not entry.part:
            continue
        part = found.get(entry.part) or Part(entry.part, entry.before, entry)
        part = replace(part, newest=entry)
        found[entry.part] = part if is_done(entry) else replace(part, state=entry)
    return tuple(found.values())


def table(
    parts: Iterable[Part], *, now: str = "", before: int = 0, step: int = 0
) -> list[dict[str, Any]]:
    """Each part's name, its own steps, and whether it is done. The steps of the part that is
    trained `now` are computed from `step`, which counts through all parts.
    """
    found = {one.name: {"part": one.name, "step": one.step, "done": one.done} for one in parts}
    if now and not found.get(now, {}).get("done"):
        found[now] = {"part": now, "step": step - before, "done": False}
    return list(found.values())


def shown(names: Iterable[str], around: str | None = None) -> str:
    """Names of parts for a message; if there are many, those `around` one, or the last ones."""
    names = list(names)
    if len(names) <= NAMES_SHOWN:
        return ", ".join(names)
    at = names.index(around) if around in names else len(names) - 1
    begin = min(max(at - NAMES_SHOWN // 2, 0), len(names) - NAMES_SHOWN)
    some = names[begin : begin + NAMES_SHOWN]
    dots = ("… " if begin else "", " …" if begin + NAMES_SHOWN < len(names) else "")
    return f"{len(names)} in all: {dots[0]}{', '.join(some)}{dots[1]}"
