"""Reads and rewrites HEAD for one process, and says what a refused write means."""

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from outlast.base.clock import SYSTEM_CLOCK, Clock
from outlast.base.exits import Reason, State
from outlast.base.retry import Patience
from outlast.bucket.boot import (
    NUMBERS_MAX,
    Act,
    Claim,
    Decision,
    Look,
    Missing,
    contradicted,
    decide,
    last_term,
    newest,
    stop_asked,
)
from outlast.bucket.head import (
    DataFingerprint,
    End,
    Fenced,
    Head,
    HeadEnded,
    HeadError,
    HeadForbidden,
    HeadLost,
    HeadMoved,
    HeadOtherFormat,
    HeadUnreadable,
    NotMember,
    Reading,
    new_nonce,
    read_head,
    write_end_copy,
)
from outlast.bucket.layout import Layout
from outlast.bucket.store import Forbidden, PreconditionFailed, Store, StoreError

_log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Seconds before a write is retried, if the answer names no other time."""

# ---------------------------------------------------------------------------------------------
# The outcomes of 412


class Outcome(Enum):
    """What HEAD means for a refused write, or for a holder that reads it again."""

    OURS = "ours"
    """HEAD has this write's nonce: only the answer was lost."""
    ENDED = "ended"
    FENCED = "fenced"
    ERROR = "error"


def is_own(found: Head, nonces: Collection[str]) -> bool:
    """Whether HEAD is one of these writes: then only its answer was lost."""
    return found.nonce in nonces


def resolve(found: Head, *, term: int, nonces: Collection[str]) -> Outcome:
    """The design's table for a 412 on any write of HEAD except taking a term.

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
# The writer


Change = Callable[[Head], Head]


def _readable(head: Head) -> bytes:
    """HEAD's JSON. Raises HeadError if it could not be read again: a number in a forged HEAD may be
    too large to increase.
    """
    data = head.to_json()
    try:
        Head.from_json(data)
    except ValueError as error:
        raise HeadError(
            f"{error}; such a HEAD is not written, `outlast repair` repairs it"
        ) from None
    return data


class _Held(NamedTuple):
    """HEAD as its holder last wrote it, and the generation that the next write replaces."""

    head: Head
    generation: int


class HeadFile:
    """HEAD as one process reads and rewrites it; safe to use from several threads.

    A writer that holds the term remembers the generation that it wrote last and swaps from there,
    so it never overwrites a HEAD that it has not seen.

    One process may take several terms, one attempt each. Code that reads or writes for an attempt
    passes the attempt's term: if this process has taken a later one, that raises Fenced too.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        clock: Clock = SYSTEM_CLOCK,
        *,
        patience: Patience | None = None,
    ) -> None:
        """``patience``: how long to retry when the store fails, in every read and write of this
        run.
        """
        self.store = store
        self.layout = layout
        self.patience = patience or Patience(clock)
        self.clock = self.patience.clock
        self._lock = threading.RLock()
        self._held: _Held | None = None
        self._unsure: set[str] = set()
        self._last_write: float | None = None

    def fresh(self) -> "HeadFile":
        """Another one for the same run, without a term; shares nothing with this one."""
        return HeadFile(self.store, self.layout, patience=self.patience.fresh())

    @property
    def head(self) -> Head:
        """HEAD as this process last wrote it; only for the holder of the term."""
        return self._holding().head

    @property
    def term(self) -> int:
        """The term that this process took."""
        return self._holding().head.term

    def read(self) -> Reading:
        """Reads HEAD with retries; raises as `read_head` does."""
        return self._read(self.patience)

    def _read(self, patience: Patience) -> Reading:
        return patience(lambda: read_head(self.store, self.layout))

    def held(self, term: int) -> Head:
        """HEAD as last written for the term. Raises Fenced if this process has taken another."""
        return self._holding(term).head

    def check(self, *, term: int) -> Head:
        """Reads HEAD with each heartbeat, for the holder of the term.

        Raises HeadEnded or Fenced as after a 412, HeadLost and the others as `read_head` does,
        StoreError if the store does not answer now.
        """
        self._holding(term)
        found = read_head(self.store, self.layout).head
        if found.state.ended or found.term != term:
            raise _refusal(found, term)
        return found

    def take_term(
        self,
        claim: Claim,
        *,
        still_member: Callable[[], bool] = lambda: True,
        orphaned: Callable[[], str] = lambda: "",
        wanted: Callable[[], bool] = lambda: True,
        forbidden_seconds: float = 600.0,
    ) -> Decision:
        """Goes through the boot table until a decision holds, and writes what the table says.

        After a TAKE, this object holds the term; after an END, the end and its copy are written.
        Before the first write it asks `orphaned`, before every retry `still_member`, and before
        every write whether the term is still `wanted`; a reason or False raises NotMember. It
        retries a store that does not answer as long as the patience allows, and a 401 or 403 for
        `forbidden_seconds`.
        """
        tried: dict[str, Decision] = {}
        asked = False
        patience = self.patience.permitting(forbidden_seconds)
        with patience.spell() as spell:
            while True:
                try:
                    look, generation = self._look(patience)
                    if isinstance(look, Head) and is_own(look, tried):
                        return self._settled(tried[look.nonce], generation, patience)
                    decision = self._decision(look, claim, patience)
                    if (
                        decision.reason is Reason.LOST
                        and self._look(patience)[0] is not Missing.ABSENT
                    ):
                        # Another machine started the run after this one had looked for HEAD.
                        continue
                    if decision.act is Act.TAKE and isinstance(look, Head):
                        stale = patience(
                            lambda look=look: contradicted(self.store, self.layout, look)
                        )
                        if stale is not None:
                            again = self._look(patience)[0]
                            if not isinstance(again, Head) or again.nonce != look.nonce:
                                continue  # HEAD has changed meanwhile.
                            decision = Decision(
                                Act.REFUSE,
                                Reason.UNREADABLE,
                                f"HEAD is older than the run: it names {newest(look)}, and "
                                f"{stale}; `outlast repair` repairs it, then `outlast resume`",
                            )
                    if decision.act is Act.LEAVE and decision.head is not None:
                        write_end_copy(self.store, self.layout, decision.head, patience=patience)
                    if decision.act in (Act.LEAVE, Act.REFUSE):
                        return decision
                    assert decision.head is not None
                    if not asked and (why := orphaned()):
                        raise NotMember(f"this VM may take no term: {why}")
                    asked = True
                    self._pace()
                    if not wanted():
                        raise NotMember("nothing waits for this term any more; it is not taken")
                    tried[decision.head.nonce] = decision
                    written = self.store.put(
                        self.layout.head, decision.head.to_json(), if_generation_match=generation
                    )
                except PreconditionFailed as error:
                    spell.pause(error)
                    self._demand_member(still_member)
                except (HeadMoved, HeadOtherFormat) as error:
                    return Decision(Act.REFUSE, Reason.REFUSED, str(error))
                except (HeadForbidden, StoreError) as error:
                    # Bindings take effect one by one: reading may be allowed long before writing.
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
                "this VM is not a member of its group any more; it may take no term"
            ) from None

    def swap(self, change: Change, *, term: int) -> Head:
        """Rewrites HEAD as the holder of the term, and returns the new HEAD.

        Raises Fenced, HeadEnded, HeadLost or HeadError by the table for 412, Fenced also if this
        process has taken another term, and Unavailable if the fate of the write stays unknown.
        """
        with self._lock:
            while True:
                held = self._holding(term)
                wanted = replace(change(held.head), nonce=new_nonce())
                self._unsure.add(wanted.nonce)
                if self._applied(wanted, held.generation):
                    self._unsure.clear()
                    return wanted
                # An earlier write of unknown fate was applied after all: the change is made on top
                # of it.

    def count_failure(self, *, term: int, before: int, retries: int) -> bool:
        """Counts the trainer's failure before a retry; True if the retry is granted.

        `before` is the count when the term was taken, so a second try after one of unknown fate
        does not count the failure twice.
        """
        failures = min(before + 1, NUMBERS_MAX)
        counted = self.swap(lambda head: replace(head, failures=failures), term=term)
        return counted.failures <= retries

    def set_data(self, fingerprint: DataFingerprint, *, term: int) -> None:
        """Records the fingerprint of a path of the run's data, unless HEAD has one."""
        held = self.held(term)
        if held.with_data(fingerprint) != held:
            self.swap(lambda head: head.with_data(fingerprint), term=term)

    def set_wheels(self, key: str, digest: str, *, term: int) -> None:
        """Records the digest of a layer of packages, unless HEAD has one."""
        if self.held(term).wheels_of(key) is None:
            self.swap(lambda head: head.with_wheels(key, digest), term=term)

    def fail(self, reason: Reason, *, term: int) -> None:
        """Ends the run as failed, for a holder of the term whose attempt has restored nothing."""

        def change(head: Head) -> Head:
            return head.ended(
                State.FAILED, End(reason=reason, exit=None, step=head.step, result=None)
            )

        after = self.swap(change, term=term)
        write_end_copy(self.store, self.layout, after, patience=self.patience)

    def end_from_outside(self, state: State, reason: Reason) -> Head:
        """Ends an open run for the operator (stopped, expired); an ended run stays as it is.

        Committed checkpoints are kept. The attempt that holds the term sees the end with its next
        heartbeat.
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
                    spell.pause(error)
                except StoreError as error:
                    # If the answer to our own write was lost, the next read finds the end.
                    spell.wait(error)

    def _look(self, patience: Patience) -> tuple[Look, int]:
        """Reads HEAD with retries; returns it with the generation to swap from, 0 if it is
        absent.
        """
        try:
            found = self._read(patience)
            return found.head, found.object.generation
        except HeadLost:
            return Missing.ABSENT, 0
        except HeadUnreadable as error:
            _log.info(str(error))
            return Missing.UNREADABLE, 0

    def _decision(self, look: Look, claim: Claim, patience: Patience) -> Decision:
        previous = None
        has_attempts = asked = False
        if isinstance(look, Head):
            if not look.state.ended:
                previous = patience(lambda: last_term(self.store, self.layout, look))
                asked = patience(lambda: stop_asked(self.store, self.layout, look.resume))
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
            stop_asked=asked,
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
        """Writes `wanted`; False if an earlier write of ours was applied instead.

        Each try sends the same bytes for the same generation, so at most one is applied, however
        late an answer or a replay comes.
        """
        data = _readable(wanted)
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
                        raise _refusal(found.head, wanted.term) from None
                    self._held = _Held(found.head, found.object.generation)
                    return found.head.nonce == wanted.nonce
                except StoreError as error:
                    spell.wait(error)

    def _holding(self, term: int | None = None) -> _Held:
        held = self._held
        if held is None:
            raise HeadError("no term was taken; HEAD may not be written")
        if term is not None and held.head.term != term:
            raise Fenced(f"term {term}: this process took term {held.head.term} since", held.head)
        return held

    def _pace(self) -> None:
        """Waits until the store accepts another write of HEAD after this process's last one."""
        now = self.clock.monotonic()
        if self._last_write is not None:
            wait = self._last_write + self.store.rewrite_sec - now
            if wait > 0:
                self.clock.sleep(wait)
        self._last_write = self.clock.monotonic()


def _refusal(found: Head, term: int) -> HeadError:
    if found.state.ended:
        return HeadEnded(f"the run has ended: {found.state}", found)
    if found.term > term:
        return Fenced(f"term {term}: term {found.term} holds the run now", found)
    return HeadError(
        f"term {term}: HEAD is at term {found.term} and was rewritten by another process; "
        "only `outlast repair` does that"
    )
