"""Gives a run to another stack: one that was renamed, or moved to another backend, project or
bucket.

HEAD names the run's owner, and a VM of any other owner refuses the run. The owner is changed only
while no VM works on the run, by a swap of the HEAD that was read before that check.

Into another bucket, HEAD of the old one decides, in five steps, each of which a repeated call finds
done or does:

    1. the new bucket gets a HEAD that is arriving, so that no VM starts the run there
    2. the old HEAD is leaving, under the next term: from here on, no VM works on the run
    3. everything else is copied and compared
    4. the old HEAD has left: it names the new bucket, which is final
    5. the new HEAD becomes the run's

Until the fourth step, the handover can be taken back.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from outlast.base.exits import State
from outlast.base.retry import BRIEF
from outlast.bucket.boot import NUMBERS_MAX
from outlast.bucket.head import (
    Head,
    HeadLost,
    Move,
    Phase,
    Reading,
    new_nonce,
    place_of,
    read_head,
    read_moved_head,
)
from outlast.bucket.layout import Layout
from outlast.bucket.moving import copy_run
from outlast.bucket.store import BucketStore, PreconditionFailed, Store
from outlast.cli.errors import OperateError, UsageError
from outlast.cli.repair import living_attempt
from outlast.spec.run_spec import Timeouts

_OWNER = re.compile(r"[^/\s]+/[^/\s]+/[^/\s]+")


@dataclass(frozen=True)
class HandedOver:
    """The result of a handover."""

    head: Head
    before: str
    """The owner until now."""
    place: str
    """The run's path."""


def hand_over(
    store: Store,
    layout: Layout,
    owner: str,
    *,
    silent_sec: float = Timeouts().successor_silence,
) -> HandedOver:
    """Makes `owner` (organization/project/stack) the run's owner, and takes back a handover into
    another bucket that has not left this one.

    Raises UsageError for another form of owner, OperateError while an attempt that has not ended
    gave a sign of life within `silent_sec`, HeadError and StoreError if HEAD cannot be read or
    written. A repeated call changes nothing.
    """
    found = _found(store, layout, owner)
    before, move = found.head.owner, found.head.move
    if move is not None and move.phase is not Phase.LEAVING:
        BRIEF(lambda: read_head(store, layout))  # raises HeadMoved
    if before == owner and move is None:
        return HandedOver(found.head, before, place_of(store, layout))
    _refuse_beside_an_attempt(store, layout, silent_sec)
    mine = _swap(store, layout, found, lambda head: replace(head, owner=owner, move=None))
    return HandedOver(mine.head, before, place_of(store, layout))


def hand_over_into(
    origin: BucketStore,
    target: BucketStore,
    layout: Layout,
    owner: str,
    *,
    silent_sec: float = Timeouts().successor_silence,
) -> HandedOver:
    """Copies the run into another bucket and makes `owner` its owner there. What it copies stays in
    the old bucket, where HEAD only names the new place.

    Raises as `hand_over` and `copy_run` do, and OperateError if the new bucket has such a run.
    """
    found = _found(origin, layout, owner)
    here, there = place_of(origin, layout), place_of(target, layout)
    before, move = found.head.owner, found.head.move
    if here == there:
        raise UsageError(f"--to {target.url}: the run is there already; name another bucket.")
    if move is not None and (move.other != there or move.phase is Phase.ARRIVING):
        BRIEF(lambda: read_head(origin, layout))  # raises HeadMoved
    if move is not None and move.phase is Phase.LEFT:
        arrived = BRIEF(lambda: read_moved_head(target, layout))
        if arrived.head.move is None:
            return HandedOver(arrived.head, arrived.head.owner, there)
    else:
        if move is None:
            _refuse_beside_an_attempt(origin, layout, silent_sec)
        _reserve(target, layout, replace(found.head, move=Move(here, Phase.ARRIVING)))
        if move is None:
            found = _swap(origin, layout, found, lambda head: _leaving(head, there))
    copied = copy_run(origin, target, layout, found.head)
    if found.head.move != Move(there, Phase.LEFT):
        _swap(origin, layout, found, lambda head: replace(head, move=Move(there, Phase.LEFT)))
    arrived = BRIEF(lambda: read_moved_head(target, layout))
    if arrived.head.move != Move(here, Phase.ARRIVING):
        raise OperateError(f"{there}: its HEAD has changed meanwhile; see outlast status {there}.")
    mine = _swap(target, layout, arrived, lambda _: replace(copied, owner=owner, move=None))
    return HandedOver(mine.head, before, there)


def _found(store: Store, layout: Layout, owner: str) -> Reading:
    if not _OWNER.fullmatch(owner):
        raise UsageError(f"owner {owner!r}: must be organization/project/stack.")
    return BRIEF(lambda: read_moved_head(store, layout))


def _refuse_beside_an_attempt(store: Store, layout: Layout, silent_sec: float) -> None:
    if living := living_attempt(store, layout, silent_sec):
        term, silent = living
        raise OperateError(
            f"run {layout.run}: attempt {term} gave a sign of life {silent:.0f} s ago and has not"
            " ended; end its VM first (pulumi destroy of the stack that has it, or delete the VM's"
            f" group), and hand the run over when it has been silent for {silent_sec:.0f} s."
        )


def _leaving(head: Head, there: str) -> Head:
    """HEAD that no VM may take, under a term that fences one that nevertheless works on the run."""
    if head.term + 1 >= NUMBERS_MAX:
        raise OperateError(
            f"run: HEAD has term {head.term}, which must be less than {NUMBERS_MAX - 1}; outlast"
            " repair repairs it."
        )
    term = head.term + 1 if head.state is State.OPEN else head.term
    return replace(head, term=term, move=Move(there, Phase.LEAVING))


def _reserve(target: BucketStore, layout: Layout, arriving: Head) -> None:
    """Puts a HEAD into the new bucket that no VM may take. Raises OperateError if that has the
    run."""
    place = place_of(target, layout)
    try:
        there = BRIEF(lambda: read_moved_head(target, layout)).head
    except HeadLost:
        there = None
    if there is None:
        if BRIEF(lambda: next(target.list(layout.root), None)) is not None:
            raise OperateError(
                f"{place}: has objects of a run, but no HEAD; delete them (gcloud storage rm"
                f" --recursive {place}), or name another bucket."
            )
        try:
            mine = replace(arriving, nonce=new_nonce())
            target.put(layout.head, mine.to_json(), if_generation_match=0)
            return
        except PreconditionFailed:
            there = BRIEF(lambda: read_moved_head(target, layout)).head
    if there.move != arriving.move:
        raise OperateError(
            f"{place}: has a run of that name already, of {there.owner} ({there.state}, step"
            f" {there.step}); delete it if you do not need it (gcloud storage rm --recursive"
            f" {place}), or name another bucket."
        )


def _swap(store: Store, layout: Layout, found: Reading, change: Callable[[Head], Head]) -> Reading:
    """Replaces the HEAD that was read. Raises OperateError if it has changed meanwhile."""
    mine = replace(change(found.head), nonce=new_nonce())

    def once() -> Reading:
        try:
            written = store.put(
                layout.head, mine.to_json(), if_generation_match=found.object.generation
            )
            return Reading(mine, written)
        except PreconditionFailed:
            now = read_moved_head(store, layout)
            if now.head.nonce == mine.nonce:  # Only the answer was lost.
                return now
            raise OperateError(
                f"run {layout.run}: HEAD has changed meanwhile, so a VM works on the run; end it"
                " first, then hand the run over."
            ) from None

    return BRIEF(once)
