"""HEAD: its content, its errors, and how readers read it.

HEAD is one small object per run, and it alone decides. It is always rewritten by compare-and-swap
on its generation. Taking the run raises `term`, the fencing number: from then on, every write of
the previous holder names a generation that no longer exists.

    HeadError                 reported; no process may continue
    ├── Fenced                a higher term holds the run
    ├── HeadEnded             the run has ended
    ├── HeadLost              HEAD does not exist, although the run once had one
    ├── HeadUnreadable        HEAD is not a HEAD
    ├── HeadOtherFormat       another version of Outlast wrote HEAD
    ├── HeadForbidden         HEAD may not be read
    ├── HeadMoved             the run is in another bucket, or on its way
    └── NotMember             this VM has left its group and may not take a term
"""

import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from outlast.base.codec import OtherFormat, Record
from outlast.base.exits import Reason, State
from outlast.base.names import Crc32c, Digest, Label, Nonce
from outlast.base.numbers import Ordinal, Size, Steps
from outlast.base.retry import BRIEF, Patience, Trouble
from outlast.base.visible import VisibleError
from outlast.bucket.layout import (
    EndCopy,
    Layout,
)
from outlast.bucket.store import (
    Damaged,
    Forbidden,
    NotFound,
    Object,
    PreconditionFailed,
    ReadOnlyStore,
    Store,
    StoreError,
)
from outlast.protocol import check_part_name

LEVEL_MAX = 60
"""The highest level of a page: so many levels hold more entries than any number can count."""


class HeadError(VisibleError):
    """Base of the reasons in HEAD to stop; by itself: HEAD changed in an unknown way."""


class Fenced(HeadError):
    """A higher term holds the run; this attempt must not write or delete anything any more."""

    def __init__(self, message: str, head: "Head") -> None:
        super().__init__(message)
        self.head = head


class HeadEnded(HeadError):
    """The run has ended: leave."""

    def __init__(self, message: str, head: "Head") -> None:
        super().__init__(message)
        self.head = head


class HeadLost(HeadError):
    """HEAD does not exist, although the run once had one."""


class HeadUnreadable(HeadError):
    """HEAD's bytes are not a HEAD of this version."""


class HeadOtherFormat(HeadError):
    """Another version of Outlast wrote HEAD: this one may neither continue nor repair it."""


class HeadForbidden(HeadError):
    """HEAD may not be read, even after the time that new permissions need."""

    trouble = Trouble.FORBIDDEN


class HeadMoved(HeadError):
    """`outlast handover` has moved the run between buckets: this copy may not be continued."""

    def __init__(self, message: str, found: "Reading") -> None:
        super().__init__(message)
        self.found = found

    @property
    def is_left(self) -> bool:
        """Whether the other bucket has the run, so that this copy is never continued."""
        move = self.found.head.move
        return move is not None and move.phase is Phase.LEFT


class NotMember(HeadError):
    """This VM is not a member of its group any more and may not take a term."""


# ---------------------------------------------------------------------------------------------
# What HEAD contains


@dataclass(frozen=True)
class Checkpoint:
    """One committed checkpoint, as the chain names it."""

    path: str
    """Prefix of its objects, ending in a slash."""
    generation: Size
    """Generation of its MANIFEST.json."""
    blake3: Digest
    """BLAKE3 of its MANIFEST.json."""
    term: Ordinal
    step: Steps
    """The step; if the run has parts, counted through all of them."""
    tags: tuple[Label, ...]
    part: Label = field(default="", metadata={"omit": True})
    """Name of its part; empty in a run without parts."""
    before: Steps = field(default=0, metadata={"omit": True})
    """Steps of the parts before this one."""

    @property
    def manifest(self) -> str:
        return f"{self.path}MANIFEST.json"


@dataclass(frozen=True)
class Lineage:
    """Term `term` owns the rows after `from_step`, until a later entry's."""

    term: Ordinal
    from_step: Steps = field(metadata={"json": "from"})


@dataclass(frozen=True)
class PageRef:
    """Where older entries of HEAD are stored; `outlast/bucket/pages.py` reads them."""

    path: str
    generation: Size
    blake3: Digest
    level: Ordinal
    """Level of the page; the lower-level pages that it names are included in what follows."""
    entries: Size
    """Number of entries in all of these pages."""
    first: Steps
    """The lowest step in them."""
    last: Steps
    """The highest step in them."""

    def __post_init__(self) -> None:
        if not 0 <= self.level <= LEVEL_MAX:
            raise ValueError(f"PageRef.level {self.level}: must be 0 to {LEVEL_MAX}")
        if self.entries < 0:
            raise ValueError(f"PageRef.entries {self.entries}: must not be negative")


@dataclass(frozen=True)
class Result:
    """Where the result of a finished run is."""

    path: str
    """Prefix of its files, ending in a slash."""
    generation: Size
    """Generation of its RESULT.json."""
    digest: Digest


@dataclass(frozen=True)
class End:
    """How a run ended."""

    reason: Reason
    exit: int | None
    step: Steps
    result: Result | None
    why: str = field(default="", metadata={"omit": True})
    """Why it ended before its last step: as given to ``run.finish``, or by which comparison its
    sweep pruned it."""


@dataclass(frozen=True)
class DataFingerprint:
    """The fingerprint of one path of a run's data; `outlast/bucket/data.py` says how it is
    computed.
    """

    name: str
    """The `gs://` path, or a local path's base name."""
    generation: Size
    """0 for a local path."""
    size: Size
    crc32c: Crc32c


@dataclass(frozen=True)
class Wheels:
    """Packages that a run started with; `outlast/supervisor/kept_wheels.py` computes the digest."""

    key: Digest
    """Digest of the requirements and the interpreter."""
    digest: Digest


WHEELS_MAX = 100
"""The number that is kept, the newest: each change of a project's own code adds one."""


class Phase(StrEnum):
    """How far a handover into another bucket is, as the HEAD of one of the two copies says."""

    LEAVING = "leaving"
    """In the old bucket: no VM may take a term, and the objects are being copied."""
    LEFT = "left"
    """In the old bucket: the run is in the other one, which is final."""
    ARRIVING = "arriving"
    """In the new bucket: the copy is not complete."""


@dataclass(frozen=True)
class Move:
    """A handover into another bucket."""

    other: str
    """The run's path in the other bucket, `gs://…`."""
    phase: Phase


@dataclass(frozen=True)
class Head(Record):
    """The content of HEAD."""

    owner: str
    resume: Ordinal
    placement: Ordinal
    term: Ordinal
    state: State
    end: End | None
    started: datetime
    deadline: datetime
    chain: tuple[Checkpoint, ...]
    """The newest committed checkpoints, newest last; older kept ones are in pages."""
    lineage: tuple[Lineage, ...]
    """The newest terms that committed; older ones are in pages."""
    failures: Ordinal
    no_progress: Ordinal
    data: tuple[DataFingerprint, ...] | None
    """One entry for each path of data that a trainer asked for, set once; None before the first."""
    nonce: Nonce
    older_chain: PageRef | None = None
    """The checkpoints before those of `chain`."""
    older_lineage: PageRef | None = None
    """The entries before those of `lineage`."""
    wheels: tuple[Wheels, ...] = field(default=(), metadata={"omit": True})
    """One entry for each layer of packages that was installed, set once."""
    move: Move | None = field(default=None, metadata={"omit": True})
    """Set while this copy of the run may not be continued."""

    def __post_init__(self) -> None:
        if self.term < 1:
            raise ValueError(f"Head.term {self.term}: must be 1 or more")
        for name in ("resume", "placement", "failures", "no_progress"):
            if getattr(self, name) < 0:
                raise ValueError(f"Head.{name} {getattr(self, name)}: must not be negative")
        if (self.end is not None) != self.state.ended:
            raise ValueError(f"Head.end {self.end!r}: does not go with state {self.state}")

    @property
    def step(self) -> int:
        """Step of the newest checkpoint; 0 before the first."""
        return self.chain[-1].step if self.chain else 0

    @property
    def kept(self) -> int:
        """How many checkpoints are kept, including those in pages; none is in both."""
        return len(self.chain) + (self.older_chain.entries if self.older_chain else 0)

    def committed_by(self, term: int) -> bool:
        """Whether the term committed anything."""
        return any(entry.term == term for entry in self.lineage)

    def with_lineage(self, term: int, from_step: int) -> "Head":
        """HEAD with the term's entry, which moves only if the term itself went back further."""
        others = tuple(entry for entry in self.lineage if entry.term != term)
        own = [entry.from_step for entry in self.lineage if entry.term == term]
        return replace(self, lineage=(*others, Lineage(term, min([from_step, *own]))))

    def with_data(self, found: DataFingerprint) -> "Head":
        """HEAD with the fingerprint, unless it has one of that name."""
        known = self.data or ()
        if any(entry.name == found.name for entry in known):
            return self
        return replace(self, data=(*known, found))

    def wheels_of(self, key: str) -> str | None:
        """The digest of the wheels that the run started with; None if none is recorded."""
        return next((entry.digest for entry in self.wheels if entry.key == key), None)

    def with_wheels(self, key: str, digest: str) -> "Head":
        """HEAD with the digest, unless it has one of that key."""
        if self.wheels_of(key) is not None:
            return self
        return replace(self, wheels=(*self.wheels, Wheels(key, digest))[-WHEELS_MAX:])

    def ended(self, state: State, end: End) -> "Head":
        """HEAD with its end."""
        return replace(self, state=state, end=end)


def new_nonce() -> str:
    """A unique name for one write or one checkpoint."""
    return uuid.uuid4().hex[:16]


# ---------------------------------------------------------------------------------------------
# Readers


class Reading(NamedTuple):
    """A HEAD with the generation that it was read in."""

    head: Head
    object: Object


def read_head(store: ReadOnlyStore, layout: Layout) -> Reading:
    """Reads HEAD. Raises HeadLost, HeadUnreadable, HeadOtherFormat, HeadForbidden, HeadMoved or
    StoreError.

    HeadLost only means that there is none: a run that has not started has none either.
    """
    found = read_moved_head(store, layout)
    if found.head.move is not None:
        raise HeadMoved(f"{place_of(store, layout)}: {said_of(found.head.move)}", found)
    return found


def is_left(store: ReadOnlyStore, layout: Layout) -> bool:
    """Whether the run was handed over into another bucket; False if that cannot be read."""
    try:
        read_head(store, layout)
    except HeadMoved as moved:
        return moved.is_left
    except (HeadError, StoreError):
        return False
    return False


def place_of(store: ReadOnlyStore, layout: Layout) -> str:
    """The run's own path."""
    return f"{store.url}/{layout.root}".rstrip("/")


def said_of(move: Move) -> str:
    """The rest of a sentence: where the run is, and the remedy."""
    bucket = move.other.removeprefix("gs://").partition("/")[0]
    if move.phase is Phase.LEFT:
        return (
            f"the run was handed over to {move.other}, and this copy is never continued; name that"
            f" path, or set outlast:bucket to {bucket}"
        )
    if move.phase is Phase.LEAVING:
        return (
            f"the run is being handed over to {move.other}; repeat that outlast handover to finish"
            " it, or take it back with outlast handover without --to"
        )
    return (
        f"the run is being handed over from {move.other}, and this copy is not complete; repeat"
        " that outlast handover to finish it"
    )


def read_moved_head(store: ReadOnlyStore, layout: Layout) -> Reading:
    """Like `read_head`, also for a run that a handover has moved. Only a handover needs this."""
    try:
        data, found = store.get(layout.head)
    except NotFound:
        raise HeadLost(f"{store.url}/{layout.head}: no HEAD") from None
    except Forbidden as error:
        raise HeadForbidden(f"{store.url}/{layout.head}: may not be read ({error})") from None
    except Damaged as error:  # The message begins with the path.
        raise HeadUnreadable(f"{store.url}/{error}") from None
    try:
        head = Head.from_json(data)
        _check_paths(layout, head)
        return Reading(head, found)
    except OtherFormat as error:
        said = str(error).removeprefix(f"{Head.__name__}: ")
        raise HeadOtherFormat(f"{store.url}/{layout.head}: {said}") from None
    except ValueError as error:
        said = str(error).removeprefix(f"{Head.__name__}: ")
        raise HeadUnreadable(f"{store.url}/{layout.head}: {said}") from None


def _check_paths(layout: Layout, head: Head) -> None:
    """Objects that HEAD names may be deleted later, so they must be this run's."""
    check_chain(layout, head.chain)
    check_pages(layout, [ref for ref in (head.older_chain, head.older_lineage) if ref])
    if head.end and head.end.result:
        _check_folder(layout, head.end.result.path, None)


def check_chain(layout: Layout, chain: Iterable[Checkpoint]) -> None:
    """Raises ValueError for a checkpoint outside of this run."""
    for entry in chain:
        _check_folder(layout, entry.path, entry.term)
        if entry.part:
            check_part_name(entry.part)


def check_pages(layout: Layout, refs: Iterable[PageRef]) -> None:
    """Raises ValueError for a page outside of this run."""
    for ref in refs:
        if layout.page_of(ref.path) is None:
            raise ValueError(f"Head page {ref.path!r}: is not a page of this run")


def _check_folder(layout: Layout, path: str, term: int | None) -> None:
    place = layout.folder_of(f"{path}MANIFEST.json")
    if place is None or place[1] != path or (term is not None and place[0] != term):
        raise ValueError(f"Head path {path!r}: is not a folder of this run")


def end_copy(layout: Layout, head: Head) -> EndCopy:
    """The copy of an end, for people."""
    if head.end is None:
        raise ValueError(f"run {layout.run}: is open and has no end to copy")
    result = head.end.result
    return EndCopy(
        run=layout.run,
        resume=head.resume,
        term=head.term,
        state=head.state,
        reason=head.end.reason,
        exit=head.end.exit,
        step=head.end.step,
        result=result.path if result else None,
        digest=result.digest if result else None,
        started=head.started,
        why=head.end.why,
    )


def write_end_copy(store: Store, layout: Layout, head: Head, *, patience: Patience = BRIEF) -> None:
    """Creates `END-r<resume>.json` if it is absent; an existing one stays as it is."""
    data = end_copy(layout, head).to_json()

    def once() -> None:
        with contextlib.suppress(PreconditionFailed):
            store.put(layout.end(head.resume), data, if_generation_match=0)

    patience(once)
