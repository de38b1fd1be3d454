"""HEAD decides; nothing else does.

One small object per run, always rewritten by compare-and-swap on its generation. Taking the run
raises `term`, the fencing number: from then on every write of the one before names a generation
that no longer exists.

    HeadError                 said loudly; nobody may go on
    ├── Fenced                a higher term holds the run
    ├── HeadEnded             the run has ended
    ├── HeadLost              HEAD is gone
    ├── HeadUnreadable        HEAD is not a HEAD
    ├── HeadForbidden         HEAD may not be read
    └── NotMember             this VM has left its group and may not take a term
"""

import contextlib
import threading
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from outlast.base.clock import SYSTEM_CLOCK, Clock
from outlast.base.exits import (
    MAX_BARREN,
    SHORT_BARREN_REASONS,
    Reason,
    State,
)
from outlast.base.retry import BRIEF, Patience, Trouble, pause_after
from outlast.bucket.layout import (
    AttemptEnd,
    Beat,
    EndCopy,
    Layout,
    Record,
)
from outlast.bucket.store import (
    Damaged,
    Forbidden,
    NotFound,
    Object,
    PreconditionFailed,
    Store,
    StoreError,
    Throttled,
    Unavailable,
)

RETRY_SECONDS = 1.0
"""Before a write is tried again, where its answer names no other time."""

BARREN_SECONDS = 600.0
"""A term without a commit is barren after this long where no time to a commit is known."""

BARREN_FACTOR = 3.0
"""A term without a commit is barren after this many times the last time to a commit."""


class HeadError(Exception):
    """Base of what HEAD says against going on; by itself: HEAD changed in no known way."""


class Fenced(HeadError):
    """A higher term holds the run; this attempt writes and deletes nothing any more."""

    def __init__(self, message: str, head: "Head") -> None:
        super().__init__(message)
        self.head = head


class HeadEnded(HeadError):
    """The run has ended: leave."""

    def __init__(self, message: str, head: "Head") -> None:
        super().__init__(message)
        self.head = head


class HeadLost(HeadError):
    """HEAD is gone though the run once had one."""


class HeadUnreadable(HeadError):
    """HEAD's bytes are no HEAD of this version."""


class HeadForbidden(HeadError):
    """HEAD may not be read, past the time that permissions need to spread."""

    trouble = Trouble.FORBIDDEN


class NotMember(HeadError):
    """This VM is no member of its group any more and may not take a term."""


# ---------------------------------------------------------------------------------------------
# What HEAD contains


@dataclass(frozen=True)
class Checkpoint:
    """One committed checkpoint, as the chain names it."""

    path: str
    """Prefix of its objects, ending in a slash."""
    generation: int
    """Generation of its MANIFEST.json."""
    blake3: str
    """BLAKE3 of its MANIFEST.json."""
    term: int
    step: int
    """Steps of all parts, where the run has parts."""
    tags: tuple[str, ...]
    part: str = field(default="", metadata={"omit": True})
    """Name of the part that it is of; empty in a run without parts."""
    before: int = field(default=0, metadata={"omit": True})
    """Steps of the parts before this one."""

    @property
    def manifest(self) -> str:
        return f"{self.path}MANIFEST.json"


@dataclass(frozen=True)
class Lineage:
    """Term `term` owns the rows after `from_step`, until a later entry's."""

    term: int
    from_step: int = field(metadata={"json": "from"})


@dataclass(frozen=True)
class Result:
    """Where the result of a finished run is."""

    path: str
    """Prefix of its files, ending in a slash."""
    generation: int
    """Generation of its RESULT.json."""
    digest: str


@dataclass(frozen=True)
class End:
    """How a run ended."""

    reason: Reason
    exit: int | None
    step: int
    result: Result | None
    why: str = field(default="", metadata={"omit": True})
    """Why the trainer ended it before all its steps were made, as ``run.finish`` said."""


@dataclass(frozen=True)
class DataFingerprint:
    """What a run found at one path of its data; `outlast/bucket/data.py` says how it is made."""

    name: str
    """The `gs://` path, or a local path's base name."""
    generation: int
    """0 for a local path."""
    size: int
    crc32c: str


@dataclass(frozen=True)
class Head(Record):
    """The content of HEAD."""

    owner: str
    resume: int
    place: int
    term: int
    state: State
    end: End | None
    started: datetime
    deadline: datetime
    chain: tuple[Checkpoint, ...]
    lineage: tuple[Lineage, ...]
    failures: int
    barren: int
    data: tuple[DataFingerprint, ...] | None
    """One entry for each path of data that a trainer asked for, set once; None before the first."""
    nonce: str

    def __post_init__(self) -> None:
        if self.term < 1:
            raise ValueError(f"Head.term {self.term}: must be 1 or more")
        for name in ("resume", "place", "failures", "barren"):
            if getattr(self, name) < 0:
                raise ValueError(f"Head.{name} {getattr(self, name)}: must not be negative")
        if (self.end is not None) != self.state.ended:
            raise ValueError(f"Head.end {self.end!r}: does not go with state {self.state}")

    @property
    def step(self) -> int:
        """Step of the newest checkpoint; 0 before the first."""
        return self.chain[-1].step if self.chain else 0

    def committed_by(self, term: int) -> bool:
        """Whether the term committed anything."""
        return any(entry.term == term for entry in self.lineage)

    def with_lineage(self, term: int, from_step: int) -> "Head":
        """With the term's entry; it moves only where the term itself went back further."""
        others = tuple(entry for entry in self.lineage if entry.term != term)
        own = [entry.from_step for entry in self.lineage if entry.term == term]
        return replace(self, lineage=(*others, Lineage(term, min([from_step, *own]))))

    def with_data(self, found: DataFingerprint) -> "Head":
        """With the fingerprint, unless one of its name is there already."""
        known = self.data or ()
        if any(entry.name == found.name for entry in known):
            return self
        return replace(self, data=(*known, found))

    def ended(self, state: State, end: End) -> "Head":
        """With its end."""
        return replace(self, state=state, end=end)


def new_nonce() -> str:
    """A name for one write or one checkpoint that no other ever has."""
    return uuid.uuid4().hex[:16]


# ---------------------------------------------------------------------------------------------
# The decision at boot


class Missing(Enum):
    """What a look at HEAD gives where it gives no Head."""

    ABSENT = "absent"
    UNREADABLE = "unreadable"
    FORBIDDEN = "forbidden"


Look = Head | Missing
"""What a look at HEAD gives."""


class Act(Enum):
    """What a boot does."""

    TAKE = "take"
    """Swap HEAD to the decision's, then train."""
    END = "end"
    """Swap HEAD to the decision's, which is an end, write the copy, leave."""
    LEAVE = "leave"
    """Write the copy of the end if the decision has one, leave."""
    REFUSE = "refuse"
    """Record the boot's end, leave."""


@dataclass(frozen=True)
class Decision:
    """What a boot does, why, and the HEAD that it writes or leaves behind."""

    act: Act
    reason: Reason | None
    message: str
    head: Head | None = None


@dataclass(frozen=True)
class LastTerm:
    """How the term before ended, for the count of barren ones."""

    lived_seconds: float
    """From its start record to its last beat, both in server time."""
    seconds_to_commit: float | None
    """Of the last term that committed; None where none did."""
    reason: Reason | None
    """Of its end record; None where it was cut."""
    repeats: bool = False
    """Whether its end is one that the next machine meets again."""
    message: str = ""

    @property
    def repeated(self) -> bool:
        """Whether its end counts however short it lived."""
        return self.repeats or self.reason in SHORT_BARREN_REASONS

    @property
    def barren(self) -> bool:
        """Whether it counts, given that it committed nothing."""
        if self.repeated:
            return True
        if self.seconds_to_commit is None:
            return self.lived_seconds > BARREN_SECONDS
        return self.lived_seconds > BARREN_FACTOR * self.seconds_to_commit


@dataclass(frozen=True)
class Claim:
    """Who boots: the VM's own pin, from its metadata."""

    owner: str
    resume: int
    place: int
    deadline: datetime


def decide(
    look: Look,
    claim: Claim,
    *,
    has_attempts: bool,
    now: datetime,
    nonce: str,
    last_term: LastTerm | None = None,
) -> Decision:
    """What a boot with this claim does about HEAD; the design's table, row by row.

    `has_attempts` matters where HEAD is absent, `last_term` where the run is open; `nonce` goes
    into the HEAD that the decision writes.
    """
    if look is Missing.ABSENT:
        if has_attempts:
            return Decision(
                Act.REFUSE,
                Reason.LOST,
                "HEAD is gone while attempts exist; `outlast repair` mends it, then "
                "`outlast resume`",
            )
        return Decision(Act.TAKE, None, "fresh: takes term 1", _first_head(claim, now, nonce))
    if look is Missing.UNREADABLE:
        return Decision(
            Act.REFUSE,
            Reason.UNREADABLE,
            "HEAD cannot be read as one; `outlast repair` mends it, then `outlast resume`",
        )
    if look is Missing.FORBIDDEN:
        return Decision(
            Act.REFUSE,
            Reason.FORBIDDEN,
            "HEAD may not be read by this VM's service account; `pulumi up --refresh` puts the "
            "bucket's bindings back, `outlast repair` tells whether HEAD itself is whole",
        )
    assert isinstance(look, Head)
    return _decide_on(look, claim, now=now, nonce=nonce, last_term=last_term)


def _decide_on(
    head: Head, claim: Claim, *, now: datetime, nonce: str, last_term: LastTerm | None
) -> Decision:
    mine, theirs = (claim.resume, claim.place), (head.resume, head.place)
    if head.owner != claim.owner:
        return Decision(
            Act.REFUSE,
            Reason.OTHER_OWNER,
            f"owner {claim.owner}: HEAD belongs to {head.owner}; choose another experiment or "
            "bucket; `outlast repair` writes over nobody's HEAD but its own stack's",
            head,
        )
    if mine < theirs:
        return Decision(
            Act.LEAVE,
            Reason.SUPERSEDED,
            f"resume {mine[0]}, place {mine[1]}: the run is at resume {theirs[0]}, "
            f"place {theirs[1]}",
        )
    if head.state is State.DONE or (head.state.ended and claim.resume == head.resume):
        return Decision(Act.LEAVE, Reason.ENDED, f"the run has ended: {head.state}", head)
    if claim.resume > head.resume:
        reopened = replace(
            head,
            state=State.OPEN,
            end=None,
            resume=claim.resume,
            place=claim.place,
            term=head.term + 1,
            failures=0,
            barren=0,
            deadline=claim.deadline,
            nonce=nonce,
        )
        return Decision(
            Act.TAKE, None, f"resume {claim.resume}: takes term {reopened.term}", reopened
        )
    if now >= head.deadline:
        return _ending(head, Reason.LIMIT, "the run's deadline has passed", nonce)
    barren = head.barren
    if last_term is not None and last_term.barren and not head.committed_by(head.term):
        barren += 1
    if barren >= MAX_BARREN:
        repeated = last_term if last_term is not None and last_term.repeated else None
        why = f"; the last one: {repeated.message}" if repeated and repeated.message else ""
        return _ending(
            replace(head, barren=barren),
            (repeated.reason if repeated else None) or Reason.BARREN,
            f"{barren} terms in a row committed nothing{why}",
            nonce,
        )
    taken = replace(head, place=claim.place, term=head.term + 1, barren=barren, nonce=nonce)
    return Decision(Act.TAKE, None, f"takes term {taken.term}", taken)


def _first_head(claim: Claim, now: datetime, nonce: str) -> Head:
    return Head(
        owner=claim.owner,
        resume=claim.resume,
        place=claim.place,
        term=1,
        state=State.OPEN,
        end=None,
        started=now,
        deadline=claim.deadline,
        chain=(),
        lineage=(),
        failures=0,
        barren=0,
        data=None,
        nonce=nonce,
    )


def _ending(head: Head, reason: Reason, message: str, nonce: str) -> Decision:
    end = End(reason=reason, exit=None, step=head.step, result=None)
    return Decision(Act.END, reason, message, replace(head.ended(State.FAILED, end), nonce=nonce))


# ---------------------------------------------------------------------------------------------
# The outcomes of 412


class Outcome(Enum):
    """What HEAD means for a write that was refused, or for a holder that looks again."""

    OURS = "ours"
    """This write's own nonce: only the answer was lost."""
    ENDED = "ended"
    FENCED = "fenced"
    ERROR = "error"


def is_own(found: Head, nonces: Collection[str]) -> bool:
    """Whether one of these writes, by now, is what HEAD is: only its answer was lost."""
    return found.nonce in nonces


def resolve(found: Head, *, term: int, nonces: Collection[str]) -> Outcome:
    """The design's table for a 412 on any write of HEAD but taking a term.

    `nonces` are those of this write and of earlier ones whose fate is unknown.
    """
    if is_own(found, nonces):
        return Outcome.OURS
    if found.state.ended:
        return Outcome.ENDED
    if found.term > term:
        return Outcome.FENCED
    return Outcome.ERROR


# ---------------------------------------------------------------------------------------------
# Readers


class Reading(NamedTuple):
    """A HEAD with the generation that it was read in."""

    head: Head
    object: Object


def read_head(store: Store, layout: Layout) -> Reading:
    """HEAD as it is now. Raises HeadLost, HeadUnreadable, HeadForbidden or StoreError.

    HeadLost means only that there is none: a run that has not begun has none either.
    """
    try:
        data, found = store.get(layout.head)
    except NotFound:
        raise HeadLost(f"{store.url}/{layout.head}: no HEAD") from None
    except Forbidden as error:
        raise HeadForbidden(f"{store.url}/{layout.head}: may not be read ({error})") from None
    except Damaged as error:  # it begins with the path
        raise HeadUnreadable(f"{store.url}/{error}") from None
    try:
        head = Head.from_json(data)
        _check_paths(layout, head)
        return Reading(head, found)
    except ValueError as error:
        said = str(error).removeprefix(f"{Head.__name__}: ")
        raise HeadUnreadable(f"{store.url}/{layout.head}: {said}") from None


def _check_paths(layout: Layout, head: Head) -> None:
    """What HEAD names may be deleted one day, so it must lie where this run's things lie."""
    paths: list[tuple[str, int | None]] = [(entry.path, entry.term) for entry in head.chain]
    if head.end and head.end.result:
        paths.append((head.end.result.path, None))
    for path, term in paths:
        place = layout.folder_of(f"{path}MANIFEST.json")
        if place is None or place[1] != path or (term is not None and place[0] != term):
            raise ValueError(f"Head path {path!r}: is no folder of this run")


def last_term(store: Store, layout: Layout, head: Head) -> LastTerm | None:
    """How HEAD's term went, from its records; None where it wrote neither start nor end.

    Times are those at which the store wrote the records, so that no VM's clock counts.
    """
    started = _updated(store, layout.attempt_start(head.term))
    end = None
    with _where_whole():
        end = AttemptEnd.from_json(store.get(layout.attempt_end(head.term))[0])
    reason = end.reason if end else None
    repeats, message = (end.repeats, end.message) if end else (False, "")
    if started is None:
        # The state was never restored: only the reason can count.
        return None if end is None else LastTerm(0.0, None, reason, repeats, message)
    beat = _updated(store, layout.beat(head.term)) or started
    return LastTerm(
        lived_seconds=max((beat - started).total_seconds(), 0.0),
        seconds_to_commit=_seconds_to_commit(store, layout, head),
        reason=reason,
        repeats=repeats,
        message=message,
    )


def contradicted(store: Store, layout: Layout, head: Head) -> str | None:
    """What the records tell that a HEAD without a checkpoint does not know; None where nothing.

    Such a HEAD would begin the run anew. An older one that was put back is one: its own term's
    beat, end or second manifest (a commit begins after the one before was swapped in), or the
    next term's start record, tell of what came after it.
    """
    if head.chain:
        return None
    committed = None
    with _where_whole():
        committed = Beat.from_json(store.get(layout.beat(head.term))[0]).committed
    if committed is None:
        with _where_whole():
            committed = AttemptEnd.from_json(store.get(layout.attempt_end(head.term))[0]).committed
    if committed is not None:
        return f"term {head.term} committed step {committed}"
    if _updated(store, layout.attempt_start(head.term + 1)) is not None:
        return f"term {head.term + 1} has begun"
    manifests = [
        place[0]
        for found in store.list(layout.terms)
        if (place := layout.folder_of(found.path)) and found.path == f"{place[1]}MANIFEST.json"
    ]
    for term in sorted(set(manifests)):
        if manifests.count(term) > 1:
            return f"term {term} left {manifests.count(term)} manifests"
    return None


def _updated(store: Store, path: str) -> datetime | None:
    """Server time of the object's last write; None where there is none."""
    with _where_whole():
        return store.stat(path).updated
    return None


def _seconds_to_commit(store: Store, layout: Layout, head: Head) -> float | None:
    """What the last term that committed needed for its first commit, as its beat says."""
    for entry in reversed(head.lineage):
        with _where_whole():
            beat = Beat.from_json(store.get(layout.beat(entry.term))[0])
            if beat.seconds_to_commit is not None:
                return beat.seconds_to_commit
    return None


@contextlib.contextmanager
def _where_whole() -> Iterator[None]:
    """A record that decides nothing counts as none where it is absent or damaged."""
    try:
        yield
    except (Forbidden, Throttled, Unavailable):
        raise
    except (StoreError, ValueError):
        pass


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
    """Creates `END-r<resume>.json` where it is absent; an older one stays as it is."""
    data = end_copy(layout, head).to_json()

    def once() -> None:
        with contextlib.suppress(PreconditionFailed):
            store.put(layout.end(head.resume), data, if_generation_match=0)

    patience(once)


def silent_seconds(store: Store, layout: Layout, term: int, since: datetime) -> float:
    """Server time since the last sign of life of `term`: its beat, its start, or `since`.

    For a fenced attempt that is still a member of its group: after `waits.silent` of it the
    table at boot is gone through again.
    """
    signs = [
        sign
        for path in (layout.beat(term), layout.attempt_start(term))
        if (sign := _updated(store, path)) is not None
    ]
    return (store.now() - max([since, *signs])).total_seconds()


# ---------------------------------------------------------------------------------------------
# The writer


Change = Callable[[Head], Head]


class _Held(NamedTuple):
    """HEAD as the holder wrote it last, and the generation that the next write names."""

    head: Head
    generation: int


class HeadFile:
    """HEAD as one process sees and rewrites it; safe to use from several threads.

    A writer that holds the term keeps the generation it wrote last and swaps from there: it never
    writes over a HEAD that it has not seen.

    One process may take several terms, one attempt each. Whoever reads or writes for an attempt
    says the attempt's own term: once this process took a later one, that is Fenced too.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        clock: Clock = SYSTEM_CLOCK,
        *,
        patience: Patience | None = None,
    ) -> None:
        """``patience``: how the store's troubles are met, in every read and write of this run."""
        self.store = store
        self.layout = layout
        self.patience = patience or Patience(clock)
        self.clock = self.patience.clock
        self._lock = threading.RLock()
        self._held: _Held | None = None
        self._unsure: set[str] = set()
        self._last_write: float | None = None

    def fresh(self) -> "HeadFile":
        """Another for the same run, which holds no term yet and shares nothing with this one."""
        return HeadFile(self.store, self.layout, patience=self.patience.fresh())

    @property
    def head(self) -> Head:
        """HEAD as this process wrote it last; only for the holder of the term."""
        return self._holding().head

    @property
    def term(self) -> int:
        """The term that this process took."""
        return self._holding().head.term

    def read(self) -> Reading:
        """HEAD as it is now, asked for patiently; see `read_head` for what it raises."""
        return self._read(self.patience)

    def _read(self, patience: Patience) -> Reading:
        return patience(lambda: read_head(self.store, self.layout))

    def held(self, term: int) -> Head:
        """HEAD as it was written last for the term; Fenced where this process took another."""
        return self._holding(term).head

    def check(self, *, term: int) -> Head:
        """The look at HEAD of the term's holder, with each beat.

        Raises HeadEnded or Fenced as after a 412, HeadLost and its kind as `read_head` does;
        StoreError where the store does not answer now.
        """
        self._holding(term)
        found = read_head(self.store, self.layout).head
        if found.state.ended or found.term != term:
            raise self._refusal(found, term)
        return found

    def take_term(
        self,
        claim: Claim,
        *,
        still_member: Callable[[], bool] = lambda: True,
        wanted: Callable[[], bool] = lambda: True,
        forbidden_seconds: float = 600.0,
        say: Callable[[str], None] = lambda message: None,
    ) -> Decision:
        """Goes through the table at boot until it is settled; writes what the table says.

        After a TAKE this object holds the term; after an END the end and its copy are written.
        Before every retry `still_member` is asked, and before every write whether the term is still
        `wanted`; False raises NotMember. A store that does not
        answer is waited for as long as the patience has it, a 401 or 403 for `forbidden_seconds`;
        both are said by `say`.
        """
        tried: dict[str, Decision] = {}
        patience = self.patience.permitting(forbidden_seconds).saying(say)
        with patience.spell() as spell:
            while True:
                try:
                    look, generation = self._look(patience, say)
                    if isinstance(look, Head) and is_own(look, tried):
                        return self._settled(tried[look.nonce], generation, patience)
                    decision = self._decision(look, claim, patience)
                    if (
                        decision.reason is Reason.LOST
                        and self._look(patience, say)[0] is not Missing.ABSENT
                    ):
                        # Another machine began the run after this one had looked for HEAD.
                        continue
                    if decision.act is Act.TAKE and isinstance(look, Head):
                        stale = self._contradicted(look, patience)
                        if stale is not None:
                            again = self._look(patience, say)[0]
                            if not isinstance(again, Head) or again.nonce != look.nonce:
                                continue  # HEAD went on meanwhile
                            decision = Decision(
                                Act.REFUSE,
                                Reason.UNREADABLE,
                                f"HEAD is older than the run: it names no checkpoint, and {stale}; "
                                "`outlast repair` mends it, then `outlast resume`",
                            )
                    if decision.act is Act.LEAVE and decision.head is not None:
                        write_end_copy(self.store, self.layout, decision.head, patience=patience)
                    if decision.act in (Act.LEAVE, Act.REFUSE):
                        return decision
                    assert decision.head is not None
                    self._pace()
                    if not wanted():
                        raise NotMember("nothing waits for this term any more; it is not taken")
                    tried[decision.head.nonce] = decision
                    written = self.store.put(
                        self.layout.head, decision.head.to_json(), if_generation_match=generation
                    )
                except PreconditionFailed as error:
                    self.clock.sleep(pause_after(error, 1.0))
                    self._demand_member(still_member)
                except (HeadForbidden, StoreError) as error:
                    # Bindings spread one by one: reading may be allowed long before writing.
                    try:
                        spell.wait(error)
                    except (HeadForbidden, Forbidden):
                        return self._decision(Missing.FORBIDDEN, claim, patience)
                    if not isinstance(error, HeadForbidden | Forbidden):
                        self._demand_member(still_member)
                else:
                    spell.over()
                    return self._settled(decision, written.generation, patience)

    def _demand_member(self, still_member: Callable[[], bool]) -> None:
        if not still_member():
            raise NotMember(
                "this VM is no member of its group any more; it may take no term"
            ) from None

    def _contradicted(self, look: Head, patience: Patience) -> str | None:
        return patience(lambda: contradicted(self.store, self.layout, look))

    def swap(self, change: Change, *, term: int) -> Head:
        """Rewrites HEAD by the term's holder; gives what it is then.

        Raises Fenced, HeadEnded, HeadLost or HeadError by the table for 412, Fenced too where
        this process took another term, Unavailable where the fate of the write stayed unknown.
        """
        with self._lock:
            while True:
                held = self._holding(term)
                wanted = replace(change(held.head), nonce=new_nonce())
                self._unsure.add(wanted.nonce)
                if self._applied(wanted, held.generation):
                    self._unsure.clear()
                    return wanted
                # An earlier write, given up as unknown, was applied after all and is held now:
                # the change is made on top of it.

    def count_failure(self, *, term: int, before: int, retries: int) -> bool:
        """Counts the term's user failure before its retry; True where the retry is granted.

        `before` are those that HEAD had when the term was taken: a second try, after one of
        unknown fate, counts the same failure.
        """
        counted = self.swap(lambda head: replace(head, failures=before + 1), term=term)
        return counted.failures <= retries

    def set_data(self, fingerprint: DataFingerprint, *, term: int) -> None:
        """Keeps the fingerprint of a path of the run's data; one that is there already stays."""
        held = self.held(term)
        if held.with_data(fingerprint) != held:
            self.swap(lambda head: head.with_data(fingerprint), term=term)

    def end_from_outside(self, state: State, reason: Reason) -> Head:
        """Ends an open run for the operator (stopped, expired); an ended one stays as it is.

        Keeps what was committed. The attempt that holds the term sees it with its next beat.
        """
        with self.patience.spell() as spell:
            while True:
                found = self.read()
                if found.head.state.ended:
                    return found.head
                end = End(reason=reason, exit=None, step=found.head.step, result=None)
                mine = replace(found.head.ended(state, end), nonce=new_nonce())
                try:
                    self._pace()
                    self.store.put(
                        self.layout.head,
                        mine.to_json(),
                        if_generation_match=found.object.generation,
                    )
                    return mine
                except PreconditionFailed as error:
                    self.clock.sleep(pause_after(error, RETRY_SECONDS))
                except StoreError as error:
                    # An own write with a lost answer is found as the end on the next look.
                    spell.wait(error)

    def _look(self, patience: Patience, say: Callable[[str], None]) -> tuple[Look, int]:
        """A patient look at HEAD, and the generation to swap from; 0 where it is absent."""
        try:
            found = self._read(patience)
            return found.head, found.object.generation
        except HeadLost:
            return Missing.ABSENT, 0
        except HeadUnreadable as error:
            say(str(error))
            return Missing.UNREADABLE, 0

    def _decision(self, look: Look, claim: Claim, patience: Patience) -> Decision:
        previous = None
        has_attempts = False
        if isinstance(look, Head):
            if not look.state.ended:
                previous = patience(lambda: last_term(self.store, self.layout, look))
        elif look is Missing.ABSENT:
            has_attempts = patience(
                lambda: next(self.store.list(self.layout.attempts), None) is not None
            )
        return decide(
            look,
            claim,
            has_attempts=has_attempts,
            now=patience(self.store.now),
            nonce=new_nonce(),
            last_term=previous,
        )

    def _settled(self, decision: Decision, generation: int, patience: Patience) -> Decision:
        assert decision.head is not None
        if decision.act is Act.END:
            write_end_copy(self.store, self.layout, decision.head, patience=patience)
            return decision
        with self._lock:
            self._held = _Held(decision.head, generation)
            self._unsure.clear()
        return decision

    def _applied(self, wanted: Head, generation: int) -> bool:
        """Whether HEAD is `wanted` now; False where an own earlier write had gone before it.

        The same bytes against the same generation in every try: at most one is applied, however
        late an answer or a replay comes.
        """
        data = wanted.to_json()
        with self.patience.spell() as spell:
            while True:
                try:
                    self._pace()
                    written = self.store.put(self.layout.head, data, if_generation_match=generation)
                    self._held = _Held(wanted, written.generation)
                    spell.over()
                    return True
                except PreconditionFailed:
                    found = self.read()
                    outcome = resolve(found.head, term=wanted.term, nonces=self._unsure)
                    if outcome is not Outcome.OURS:
                        raise self._refusal(found.head, wanted.term) from None
                    self._held = _Held(found.head, found.object.generation)
                    return found.head.nonce == wanted.nonce
                except StoreError as error:
                    spell.wait(error)

    def _refusal(self, found: Head, term: int) -> HeadError:
        if found.state.ended:
            return HeadEnded(f"the run has ended: {found.state}", found)
        if found.term > term:
            return Fenced(f"term {term}: term {found.term} holds the run now", found)
        return HeadError(
            f"term {term}: HEAD is at term {found.term} and was rewritten by somebody else; "
            "only `outlast repair` does that"
        )

    def _holding(self, term: int | None = None) -> _Held:
        held = self._held
        if held is None:
            raise HeadError("no term was taken; HEAD may not be written")
        if term is not None and held.head.term != term:
            raise Fenced(f"term {term}: this process took term {held.head.term} since", held.head)
        return held

    def _pace(self) -> None:
        """Waits until the store may be given HEAD again after this process's last write."""
        now = self.clock.monotonic()
        if self._last_write is not None:
            wait = self._last_write + self.store.rewrite_sec - now
            if wait > 0:
                self.clock.sleep(wait)
        self._last_write = self.clock.monotonic()
