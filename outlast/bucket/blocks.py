"""Blocks: the records of `BLOCK` old attempts in one object, so that reading a run's history takes
few reads however many attempts it had.

A block only repeats the attempts' own records, and decides nothing. If a block is missing or cannot
be read, the records themselves are read. An attempt writes missing blocks after its first commit,
but not for the last `BLOCK` attempts: a machine that was believed dead may still write its end
record.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from outlast.base.codec import Record
from outlast.base.names import number_of
from outlast.base.retry import BRIEF, Patience
from outlast.bucket.layout import (
    AttemptEnd,
    AttemptStart,
    Heartbeat,
    Layout,
)
from outlast.bucket.store import NotFound, PreconditionFailed, ReadOnlyStore, Store
from outlast.bucket.transfer import in_parallel, small_reads

BLOCK = 32
"""Attempts of one block."""

WRITTEN_AT_ONCE = 2
"""The most blocks that one attempt writes: many may be missing after a repair."""

AnyAttemptRecord = AttemptStart | Heartbeat | AttemptEnd


class Found(NamedTuple):
    """A record, and when the store wrote it."""

    record: Any
    updated: datetime


Records = Mapping[int, Mapping[type[AnyAttemptRecord], Found]]
"""Records by attempt and kind."""


@dataclass(frozen=True)
class Entry:
    """One record of a block."""

    term: int
    kind: str
    text: str
    """The record's bytes, which are ASCII."""
    updated: str
    """ISO 8601, to the microsecond."""


@dataclass(frozen=True)
class Block(Record):
    """`records/000000.json`: the records of the attempts 0 to 31, and so on."""

    run: str
    number: int
    entries: tuple[Entry, ...]


def read(store: ReadOnlyStore, layout: Layout, *, patience: Patience = BRIEF) -> Records:
    """The records of all attempts. Raises StoreError, and ValueError for a damaged record."""
    there = _terms(store, layout)
    # No block is written before the second one's attempts have begun.
    numbers = _numbers(store, layout) if max(there, default=0) >= BLOCK else []
    blocks = in_parallel(
        [lambda number=number: _block(store, layout, number, patience) for number in numbers],
        small_reads(store),
    )
    found = {term: records for block in blocks for term, records in block.items() if term in there}
    left = _entries(store, layout, there - found.keys(), patience)
    return {**found, **_decoded(left)}


def write_missing(
    store: Store, layout: Layout, term: int, *, patience: Patience = BRIEF
) -> list[int]:
    """Writes the missing blocks of attempts long before `term`, the writer's, and returns their
    numbers. Records that cannot be read are left to a later attempt. Raises StoreError.
    """
    complete = max(0, (term - BLOCK) // BLOCK)
    if not complete:
        return []
    missing = sorted(set(range(complete)) - set(_numbers(store, layout)))[:WRITTEN_AT_ONCE]
    there = _terms(store, layout) if missing else set()
    written = []
    for number in missing:
        terms = there & set(range(number * BLOCK, (number + 1) * BLOCK))
        with contextlib.suppress(ValueError, PreconditionFailed):
            entries = _entries(store, layout, terms, patience)
            _decoded(entries)
            block = Block(layout.run, number, tuple(entries)).to_json()
            path = layout.records_block(number)
            patience(lambda: store.put(path, block, if_generation_match=0))  # noqa: B023
            written.append(number)
    return written


_KINDS: Mapping[str, type[AnyAttemptRecord]] = {
    "start": AttemptStart,
    "heartbeat": Heartbeat,
    "end": AttemptEnd,
}


def _path(layout: Layout, term: int, kind: str) -> str:
    paths = {
        "start": layout.attempt_start,
        "heartbeat": layout.heartbeat,
        "end": layout.attempt_end,
    }
    return paths[kind](term)


def _terms(store: ReadOnlyStore, layout: Layout) -> set[int]:
    """Every attempt that left a record."""
    numbers = map(number_of, store.folders(layout.attempts))
    return {number for number in numbers if number is not None}


def _numbers(store: ReadOnlyStore, layout: Layout) -> list[int]:
    names = (item.path.removeprefix(layout.records) for item in store.list(layout.records))
    numbers = (number_of(name[:-5]) for name in names if name.endswith(".json"))
    return sorted(number for number in numbers if number is not None)


def _block(store: ReadOnlyStore, layout: Layout, number: int, patience: Patience) -> Records:
    """The block's records; none if it is missing or damaged."""
    try:
        data, _ = patience(lambda: store.get(layout.records_block(number)))
        block = Block.from_json(data)
        if (block.run, block.number) == (layout.run, number):
            return _decoded(block.entries)
    except (NotFound, ValueError, KeyError):
        pass
    return {}


def _entries(
    store: ReadOnlyStore, layout: Layout, terms: Iterable[int], patience: Patience
) -> list[Entry]:
    """The attempts' own records, as they are now."""

    def one(term: int, kind: str) -> Entry | None:
        path = _path(layout, term, kind)
        try:
            data, found = patience(lambda: store.get(path))
        except NotFound:
            return None
        try:
            text = data.decode("ascii")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: is not JSON ({error})") from None
        return Entry(term, kind, text, found.updated.isoformat())

    jobs = [
        lambda term=term, kind=kind: one(term, kind) for term in sorted(terms) for kind in _KINDS
    ]
    return [entry for entry in in_parallel(jobs, small_reads(store)) if entry is not None]


def _decoded(entries: Iterable[Entry]) -> dict[int, dict[type[AnyAttemptRecord], Found]]:
    found: dict[int, dict[type[AnyAttemptRecord], Found]] = {}
    for entry in entries:
        kind = _KINDS[entry.kind]
        updated = datetime.fromisoformat(entry.updated)
        if updated.tzinfo is None:
            raise ValueError(f"Block.entries {entry.updated!r}: has no time zone")
        found.setdefault(entry.term, {})[kind] = Found(kind.from_json(entry.text), updated)
    return found
