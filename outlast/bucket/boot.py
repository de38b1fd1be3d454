"""Decides what a boot does: the design's table, and the records that it also reads."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from outlast.base.exits import MAX_NO_PROGRESS, NO_PROGRESS_REASONS, Reason, State
from outlast.bucket.head import End, Head
from outlast.bucket.layout import AttemptEnd, Heartbeat, Layout
from outlast.bucket.store import Forbidden, NotFound, Store, StoreError, Throttled, Unavailable

NO_PROGRESS_SECONDS = 600.0
"""Seconds after which a term without a commit counts as no progress, if no commit time is known."""

NO_PROGRESS_FACTOR = 3.0
"""A term without a commit counts as no progress after this multiple of the last time to a
commit.
"""

RESTORE_ERRORS_MAX = 3
"""If so many machines in a row cannot restore, the checkpoints are damaged, or the machine type's
disks have no room for them.
"""

NUMBERS_MAX = 100_000_000
"""No run has so many terms or resumes: such a HEAD was forged, and its numbers would soon fit into
no record.
"""


STOP_ASKED = "outlast stop asked for the run's end"


class Missing(Enum):
    """The outcomes of reading HEAD without a Head."""

    ABSENT = "absent"
    UNREADABLE = "unreadable"
    FORBIDDEN = "forbidden"


Look = Head | Missing
"""The outcome of reading HEAD."""


class Act(Enum):
    """The actions of a boot."""

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
    """A boot's action, the reason, and the HEAD that it writes or leaves."""

    act: Act
    reason: Reason | None
    message: str
    head: Head | None = None


@dataclass(frozen=True)
class LastTerm:
    """How the previous term ended, for the count of terms without progress."""

    lived_seconds: float
    """Seconds from its start record to its last heartbeat, in server time."""
    seconds_to_commit: float | None
    """Seconds to the first commit of the last term that committed; None if none did."""
    reason: Reason | None
    """Reason in its end record; None if its VM was lost."""
    repeats: bool = False
    """Whether the next machine would end in the same way."""
    message: str = ""
    restore_errors: int = 0
    """Number of terms in a row, up to this one, that could not restore; at most
    RESTORE_ERRORS_MAX."""

    @property
    def repeated(self) -> bool:
        """Whether its end counts however short its life was."""
        return self.repeats or self.reason in NO_PROGRESS_REASONS

    @property
    def no_progress(self) -> bool:
        """Whether it counts as no progress, given that it committed nothing."""
        if self.repeated:
            return True
        if self.seconds_to_commit is None:
            return self.lived_seconds > NO_PROGRESS_SECONDS
        return self.lived_seconds > NO_PROGRESS_FACTOR * self.seconds_to_commit


@dataclass(frozen=True)
class Claim:
    """The booting VM's claim: the pin from its metadata."""

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
    stop_asked: bool = False,
) -> Decision:
    """Decides what a boot with this claim does; the design's table, row by row.

    `has_attempts` matters if HEAD is absent, `last_term` if the run is open, and `stop_asked`,
    whether `outlast stop` asks for the end of HEAD's resume; `nonce` goes into the HEAD that the
    decision writes.
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
            "HEAD may not be read by this VM's service account; `pulumi up --refresh` restores the "
            "bucket's bindings, `outlast repair` shows whether HEAD itself is intact",
        )
    assert isinstance(look, Head)
    return _decide_on(look, claim, now=now, nonce=nonce, last_term=last_term, stop_asked=stop_asked)


def _decide_on(
    head: Head,
    claim: Claim,
    *,
    now: datetime,
    nonce: str,
    last_term: LastTerm | None,
    stop_asked: bool,
) -> Decision:
    mine, theirs = (claim.resume, claim.placement), (head.resume, head.placement)
    if head.owner != claim.owner:
        return Decision(
            Act.REFUSE,
            Reason.OTHER_OWNER,
            f"owner {claim.owner}: HEAD belongs to {head.owner}; choose another experiment or "
            "bucket; `outlast repair` overwrites only its own stack's HEAD",
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
    # VMs can write HEAD; the stack's own limit, from the pin, bounds its deadline.
    head = replace(head, deadline=min(head.deadline, claim.deadline))
    if now >= head.deadline:
        return _ending(head, Reason.LIMIT, "the run's deadline has passed", nonce)
    if stop_asked:
        return _ending(head, Reason.STOPPED, STOP_ASKED, nonce, State.STOPPED)
    no_progress = min(head.no_progress, MAX_NO_PROGRESS)
    if last_term is not None and last_term.no_progress and not head.committed_by(head.term):
        no_progress += 1
    restore_errors = last_term.restore_errors if last_term is not None else 0
    if no_progress >= MAX_NO_PROGRESS or min(no_progress, restore_errors) >= RESTORE_ERRORS_MAX:
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
    """The number in HEAD that no run can reach, with the rule; None if all are possible."""
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


def _ending(
    head: Head, reason: Reason, message: str, nonce: str, state: State = State.FAILED
) -> Decision:
    end = End(reason=reason, exit=None, step=head.step, result=None)
    return Decision(Act.END, reason, message, replace(head.ended(state, end), nonce=nonce))


# ---------------------------------------------------------------------------------------------
# The records of earlier terms


def stop_asked(store: Store, layout: Layout, resume: int) -> bool:
    """Whether `outlast stop` has asked for the end of this resume. Raises StoreError."""
    try:
        store.stat(layout.stop_request(resume))
    except NotFound:
        return False
    return True


def last_term(store: Store, layout: Layout, head: Head) -> LastTerm | None:
    """How HEAD's term ended, from its records; None if it wrote neither start nor end.

    Times are the store's write times of the records, so no VM's clock counts.
    """
    started = _updated(store, layout.attempt_start(head.term))
    end = _end(store, layout, head.term)
    reason = end.reason if end else None
    repeats, message = (end.repeats, end.message) if end else (False, "")
    errors = _restore_errors(store, layout, head.term, end)
    if started is None:
        # The state was never restored, so only the reason can count.
        if end is None:
            return None
        return LastTerm(0.0, None, reason, repeats, message, errors)
    heartbeat = _updated(store, layout.heartbeat(head.term)) or started
    return LastTerm(
        lived_seconds=max((heartbeat - started).total_seconds(), 0.0),
        seconds_to_commit=_seconds_to_commit(store, layout, head),
        reason=reason,
        repeats=repeats,
        message=message,
        restore_errors=errors,
    )


def _end(store: Store, layout: Layout, term: int) -> AttemptEnd | None:
    with _where_whole():
        return AttemptEnd.from_json(store.get(layout.attempt_end(term))[0])
    return None


def _restore_errors(store: Store, layout: Layout, term: int, end: AttemptEnd | None) -> int:
    count = 0
    while end is not None and end.reason is Reason.RESTORE_ERROR:
        count += 1
        if count == RESTORE_ERRORS_MAX:
            break
        end = _end(store, layout, term - count)
    return count


def contradicted(store: Store, layout: Layout, head: Head) -> str | None:
    """What the records show that HEAD does not know; None if nothing.

    Such a HEAD is an older one that was put back. Its own term's heartbeat or end, or the next
    term's start record, shows what came after it. A HEAD without a checkpoint would start the run
    from scratch; there a second manifest shows it too, because a commit begins only after the
    previous one was swapped in.
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
    """The newest checkpoint that HEAD names, in words."""
    if not head.chain:
        return "no checkpoint"
    return f"step {head.step} of term {head.chain[-1].term} as the newest checkpoint"


def _updated(store: Store, path: str) -> datetime | None:
    """Server time of the object's last write; None if there is none."""
    with _where_whole():
        return store.stat(path).updated
    return None


def _seconds_to_commit(store: Store, layout: Layout, head: Head) -> float | None:
    """Seconds that the last term with a commit needed for its first one, from its heartbeat."""
    for entry in reversed(head.lineage):
        with _where_whole():
            heartbeat = Heartbeat.from_json(store.get(layout.heartbeat(entry.term))[0])
            if heartbeat.seconds_to_commit is not None:
                return heartbeat.seconds_to_commit
    return None


@contextlib.contextmanager
def _where_whole() -> Iterator[None]:
    """Reads a record that decides nothing; None if it is absent or damaged."""
    try:
        yield
    except (Forbidden, Throttled, Unavailable):
        raise
    except (StoreError, ValueError):
        pass


def silent_seconds(store: Store, layout: Layout, term: int, since: datetime) -> float:
    """Server time since the last sign of life of `term`: its heartbeat, its start, or `since`.

    After `timeouts.successor_silence` of silence, a fenced attempt that is still a member of its
    group goes through the boot table again.
    """
    signs = [
        sign
        for path in (layout.heartbeat(term), layout.attempt_start(term))
        if (sign := _updated(store, path)) is not None
    ]
    return (store.now() - max([since, *signs])).total_seconds()
