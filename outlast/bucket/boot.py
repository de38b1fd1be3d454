"""What a boot does about HEAD: the design's table, and the records that it looks at besides."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from outlast.base.exits import MAX_NO_PROGRESS, NO_PROGRESS_REASONS, Reason, State
from outlast.bucket.head import End, Head
from outlast.bucket.layout import AttemptEnd, Heartbeat, Layout
from outlast.bucket.store import Forbidden, Store, StoreError, Throttled, Unavailable

NO_PROGRESS_SECONDS = 600.0
"""A term without a commit counts as no progress after this long if no time to a commit is
known."""

NO_PROGRESS_FACTOR = 3.0
"""A term without a commit counts as no progress after this many times the last time to a commit."""

NUMBERS_MAX = 100_000_000
"""No run has so many terms or resumes: a HEAD that counts so far was written by something else, and
its numbers soon fit into no record."""


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
    """How the term before ended, for the count of terms without progress."""

    lived_seconds: float
    """From its start record to its last heartbeat, both in server time."""
    seconds_to_commit: float | None
    """Of the last term that committed; None if none did."""
    reason: Reason | None
    """Of its end record; None if its VM was lost."""
    repeats: bool = False
    """Whether its end is one that the next machine meets again."""
    message: str = ""

    @property
    def repeated(self) -> bool:
        """Whether its end counts however short it lived."""
        return self.repeats or self.reason in NO_PROGRESS_REASONS

    @property
    def no_progress(self) -> bool:
        """Whether it counts, given that it committed nothing."""
        if self.repeated:
            return True
        if self.seconds_to_commit is None:
            return self.lived_seconds > NO_PROGRESS_SECONDS
        return self.lived_seconds > NO_PROGRESS_FACTOR * self.seconds_to_commit


@dataclass(frozen=True)
class Claim:
    """Who boots: the VM's own pin, from its metadata."""

    owner: str
    resume: int
    placement: int
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
                "HEAD is gone while attempts exist; `outlast repair` repairs it, then "
                "`outlast resume`",
            )
        return Decision(Act.TAKE, None, "fresh: takes term 1", _first_head(claim, now, nonce))
    if look is Missing.UNREADABLE:
        return Decision(
            Act.REFUSE,
            Reason.UNREADABLE,
            "HEAD cannot be read as one; `outlast repair` repairs it, then `outlast resume`",
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
    mine, theirs = (claim.resume, claim.placement), (head.resume, head.placement)
    if head.owner != claim.owner:
        return Decision(
            Act.REFUSE,
            Reason.OTHER_OWNER,
            f"owner {claim.owner}: HEAD belongs to {head.owner}; choose another experiment or "
            "bucket; `outlast repair` writes over its own stack's HEAD only",
            head,
        )
    if said := beyond(head):
        return Decision(
            Act.REFUSE,
            Reason.UNREADABLE,
            f"HEAD has {said}; `outlast repair` repairs it, then `outlast resume`",
        )
    if mine < theirs:
        return Decision(
            Act.LEAVE,
            Reason.SUPERSEDED,
            f"resume {mine[0]}, placement {mine[1]}: the run is at resume {theirs[0]}, "
            f"placement {theirs[1]}",
        )
    if head.state is State.DONE or (head.state.ended and claim.resume == head.resume):
        return Decision(Act.LEAVE, Reason.ENDED, f"the run has ended: {head.state}", head)
    if claim.resume > head.resume:
        reopened = replace(
            head,
            state=State.OPEN,
            end=None,
            resume=claim.resume,
            placement=claim.placement,
            term=head.term + 1,
            failures=0,
            no_progress=0,
            deadline=claim.deadline,
            nonce=nonce,
        )
        return Decision(
            Act.TAKE, None, f"resume {claim.resume}: takes term {reopened.term}", reopened
        )
    # HEAD is the VMs' to write; the stack's own limit, which the pin has, bounds what it says.
    head = replace(head, deadline=min(head.deadline, claim.deadline))
    if now >= head.deadline:
        return _ending(head, Reason.LIMIT, "the run's deadline has passed", nonce)
    no_progress = min(head.no_progress, MAX_NO_PROGRESS)
    if last_term is not None and last_term.no_progress and not head.committed_by(head.term):
        no_progress += 1
    if no_progress >= MAX_NO_PROGRESS:
        repeated = last_term if last_term is not None and last_term.repeated else None
        why = f"; the last one: {repeated.message}" if repeated and repeated.message else ""
        return _ending(
            replace(head, no_progress=no_progress),
            (repeated.reason if repeated else None) or Reason.NO_PROGRESS,
            f"{no_progress} terms in a row committed nothing{why}",
            nonce,
        )
    taken = replace(
        head, placement=claim.placement, term=head.term + 1, no_progress=no_progress, nonce=nonce
    )
    return Decision(Act.TAKE, None, f"takes term {taken.term}", taken)


def beyond(head: Head) -> str | None:
    """The number of HEAD that no run comes to, with its rule; None if there is none."""
    for name in ("term", "resume"):
        if getattr(head, name) >= NUMBERS_MAX:
            return f"{name} {getattr(head, name)}, which must be less than {NUMBERS_MAX}"
    return None


def _first_head(claim: Claim, now: datetime, nonce: str) -> Head:
    return Head(
        owner=claim.owner,
        resume=claim.resume,
        placement=claim.placement,
        term=1,
        state=State.OPEN,
        end=None,
        started=now,
        deadline=claim.deadline,
        chain=(),
        lineage=(),
        failures=0,
        no_progress=0,
        data=None,
        nonce=nonce,
    )


def _ending(head: Head, reason: Reason, message: str, nonce: str) -> Decision:
    end = End(reason=reason, exit=None, step=head.step, result=None)
    return Decision(Act.END, reason, message, replace(head.ended(State.FAILED, end), nonce=nonce))


# ---------------------------------------------------------------------------------------------
# The records of earlier terms


def last_term(store: Store, layout: Layout, head: Head) -> LastTerm | None:
    """How HEAD's term went, from its records; None if it wrote neither start nor end.

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
    heartbeat = _updated(store, layout.heartbeat(head.term)) or started
    return LastTerm(
        lived_seconds=max((heartbeat - started).total_seconds(), 0.0),
        seconds_to_commit=_seconds_to_commit(store, layout, head),
        reason=reason,
        repeats=repeats,
        message=message,
    )


def contradicted(store: Store, layout: Layout, head: Head) -> str | None:
    """What the records tell that HEAD does not know; None if nothing.

    Such a HEAD is an older one that was put back. Its own term's heartbeat or end, or the next
    term's start record, tell of what came after it. One without a checkpoint would start the run
    from scratch; there a second manifest tells too (a commit begins after the one before was
    swapped in).
    """
    committed = None
    with _where_whole():
        committed = Heartbeat.from_json(store.get(layout.heartbeat(head.term))[0]).committed
    if committed is None:
        with _where_whole():
            committed = AttemptEnd.from_json(store.get(layout.attempt_end(head.term))[0]).committed
    known = max((entry.step for entry in head.chain if entry.term == head.term), default=None)
    if committed is not None and (known is None or known < committed):
        return f"term {head.term} committed step {committed}"
    if _updated(store, layout.attempt_start(head.term + 1)) is not None:
        return f"term {head.term + 1} has begun"
    if head.chain:
        return None
    manifests = [
        place[0]
        for found in store.list(layout.terms)
        if (place := layout.folder_of(found.path)) and found.path == f"{place[1]}MANIFEST.json"
    ]
    for term in sorted(set(manifests)):
        if manifests.count(term) > 1:
            return f"term {term} left {manifests.count(term)} manifests"
    return None


def newest(head: Head) -> str:
    """The newest checkpoint that HEAD names, for people."""
    if not head.chain:
        return "no checkpoint"
    return f"step {head.step} of term {head.chain[-1].term} as the newest checkpoint"


def _updated(store: Store, path: str) -> datetime | None:
    """Server time of the object's last write; None if there is none."""
    with _where_whole():
        return store.stat(path).updated
    return None


def _seconds_to_commit(store: Store, layout: Layout, head: Head) -> float | None:
    """What the last term that committed needed for its first commit, as its heartbeat says."""
    for entry in reversed(head.lineage):
        with _where_whole():
            heartbeat = Heartbeat.from_json(store.get(layout.heartbeat(entry.term))[0])
            if heartbeat.seconds_to_commit is not None:
                return heartbeat.seconds_to_commit
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


def silent_seconds(store: Store, layout: Layout, term: int, since: datetime) -> float:
    """Server time since the last sign of life of `term`: its heartbeat, its start, or `since`.

    A fenced attempt that is still a member of its group goes through the table at boot again after
    `timeouts.successor_silence` of it.
    """
    signs = [
        sign
        for path in (layout.heartbeat(term), layout.attempt_start(term))
        if (sign := _updated(store, path)) is not None
    ]
    return (store.now() - max([since, *signs])).total_seconds()
