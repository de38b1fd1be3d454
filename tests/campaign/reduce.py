"""Reduces a run of a campaign that broke something to a scenario file that shows it alone.

The scenario is played again and again on a separate local cloud, each time with fewer faults, as
long as it breaks the same. What is left goes into a file for `outlast rehearse --scenario`.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tests.campaign.sampling import FOREVER_SEC, SWEEP, Member, Operator, job_of

Document = Mapping[str, Any]
Piece = tuple[str, Any]
"""A fault of a scenario: `events`, `faults` or `ages` with an index, or `world` with a key."""


def pieces(document: Document) -> list[Piece]:
    """All that can be taken out of a scenario."""
    world = document.get("world") or {}
    ages = (world.get("lifetimes") or {}).get("ages_sec") or ()
    return [
        *(("events", index) for index in range(len(document.get("events") or ()))),
        *(("faults", index) for index in range(len(world.get("faults") or ()))),
        *(("world", key) for key in world if key not in ("faults", "lifetimes")),
        *(("ages", index) for index, age in enumerate(ages) if age < FOREVER_SEC),
    ]


def only(document: Document, kept: Sequence[Piece]) -> dict[str, Any]:
    """The scenario with just these pieces."""
    made: dict[str, Any] = deepcopy(dict(document))
    found = made.get("world") or {}
    world = {key: value for key, value in found.items() if ("world", key) in kept}
    if faults := [one for n, one in enumerate(found.get("faults") or ()) if ("faults", n) in kept]:
        world["faults"] = faults
    lifetimes = found.get("lifetimes") or {}
    last = max((n for kind, n in kept if kind == "ages"), default=-1)
    ages = [
        age if ("ages", n) in kept else FOREVER_SEC
        for n, age in enumerate((lifetimes.get("ages_sec") or ())[: last + 1])
    ]
    if ages:
        world["lifetimes"] = {**lifetimes, "ages_sec": ages}
    made["world"] = world
    events = [one for n, one in enumerate(made.get("events") or ()) if ("events", n) in kept]
    made["events"] = events
    return {key: value for key, value in made.items() if value or key == "seed"}


def smallest(found: Sequence[Piece], fails: Callable[[Sequence[Piece]], bool]) -> list[Piece]:
    """A part of the pieces that still fails, and of which none can be left out.

    Delta debugging (Zeller and Hildebrandt, TSE 2002). `fails`: whether these fail."""
    kept, size = list(found), (len(found) + 1) // 2
    while size:
        at = 0
        while at < len(kept):
            fewer = [*kept[:at], *kept[at + size :]]
            if fails(fewer):
                kept = fewer
            else:
                at += size
        size //= 2
    return kept


@dataclass(frozen=True)
class Reduced:
    """What came of a reduction."""

    document: Document
    alone: bool
    """Whether it fails by itself."""
    plays: int


def reduce(
    member: Member,
    at: int,
    broken: Sequence[str],
    play: Callable[[Member], Sequence[str]],
    *,
    seconds: float,
) -> Reduced:
    """Reduces the scenario `at` of a member that broke something.

    `play` plays a member alone and returns what it breaks; none of it: it held. No further play
    starts after `seconds`; what is left then may be more than is needed.
    """
    whole = _named(member.scenarios[at], member, broken)
    deadline = time.monotonic() + seconds
    plays = 0

    def fails(kept: Sequence[Piece]) -> bool:
        nonlocal plays
        if plays and time.monotonic() > deadline:
            return False
        plays += 1
        alone = replace(
            member,
            name=f"r{plays}-{member.job}",
            job=member.job,
            scenarios=(only(whole, kept),),
            operator=Operator(),
        )
        return bool(set(broken) & set(play(alone)))

    every = pieces(whole)
    if not fails(every) and not fails(every):
        return Reduced(only(whole, every), False, plays)
    return Reduced(only(whole, smallest(every, fails)), True, plays)


def _named(document: Document, member: Member, broken: Sequence[str]) -> dict[str, Any]:
    """The scenario, which asks only for what was broken."""
    asked = [name for name in document["expect"]["guarantees"] if name in broken]
    expect = {**document["expect"], "guarantees": asked}
    about = f"{document['about']} Broken: {', '.join(broken)}."
    return {**document, "about": about, "expect": expect}


def write(document: Document, folder: Path) -> Path:
    """Writes a scenario file; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document['name']}.yaml"
    plain = json.loads(json.dumps(document))
    path.write_text(yaml.safe_dump(plain, sort_keys=False, width=100))
    return path


def playable(member: Member) -> Member:
    """The member as one run: a sweep's trial is one of the dummy trainer."""
    return member if member.job != SWEEP else replace(member, job=job_of("dummy").name)
