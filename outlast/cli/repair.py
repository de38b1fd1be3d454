"""Repairs a HEAD that is lost, unreadable, older than its run, or names no readable checkpoint.

HEAD is rebuilt from the attempts' start records: from the newest attempt backwards, each names the
checkpoint that it was restored from. A checkpoint on that way whose every byte is right is taken up
again; a snapshot beside it, such as one that a fenced attempt left, is not. The repaired run is
stopped, under a term that no attempt ever had; `outlast resume` reopens it. A run without a stack
has no such counter: it is open again, and its own command continues it.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import zip_longest
from shlex import quote

from blake3 import blake3

from outlast.base.codec import OtherFormat
from outlast.base.exits import Reason, State
from outlast.base.names import number_of
from outlast.bucket import pages
from outlast.bucket.boot import NUMBERS_MAX, contradicted
from outlast.bucket.head import (
    Checkpoint,
    End,
    Head,
    HeadLost,
    HeadUnreadable,
    Lineage,
    PageRef,
    new_nonce,
    read_head,
)
from outlast.bucket.layout import AttemptStart, Layout, Manifest
from outlast.bucket.parts import is_done
from outlast.bucket.retention import BEST_TAG, KEEP_LAST, Retention
from outlast.bucket.store import NotFound, PreconditionFailed, Store
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.cli.errors import OperateError
from outlast.cli.runs import Place
from outlast.spec.run_spec import NO_DEADLINE, NO_STACK, Timeouts

UNRECORDED_TERMS = 100
"""A term is taken in HEAD before its attempt writes its first record, so a lost HEAD may have had a
higher term than any record shows; such a number must not be used twice.
"""


LOOKS = 5
"""How often a damaged HEAD is checked again because a running attempt has written it meanwhile."""

_LOOKED_AT = 64
"""How many manifests are read at a time to find the best checkpoint."""


@dataclass(frozen=True)
class Repaired:
    """The result of a repair."""

    head: Head
    set_aside: int
    """Newer checkpoints in the bucket that could not be used."""


def repair_alone(place: Place) -> Repaired:
    """Like `repair`, for a run without a stack, in a folder or a bucket. Raises OperateError if it
    is a stack's.
    """
    owner = _recorded_owner(place.store, place.layout)
    if owner is None:
        what = "no record shows the run's owner; another --run-dir starts from scratch"
        if not _attempts(place.store, place.layout)[0]:
            what = "no run was found; check the name"
        raise OperateError(f"{place.name}: {what}.")
    if not owner.startswith(NO_STACK):
        stack = owner.rpartition("/")[2]
        raise OperateError(
            f"{place.name}: is the run of stack {stack}; outlast repair {quote(stack)}."
        )
    return repair(place.store, place.layout, owner)


def repair(
    store: Store, layout: Layout, owner: str, *, silent_sec: float = Timeouts().successor_silence
) -> Repaired:
    """Rebuilds and writes HEAD. Raises OperateError if it needs no repair, cannot be rebuilt, or an
    attempt that has not ended gave a sign of life within `silent_sec`.

    Raises StoreError if the store does not answer, HeadForbidden if HEAD may not be read, and
    HeadOtherFormat or OperateError if another version of Outlast wrote it or another record.
    """
    try:
        return _repair(store, layout, owner, silent_sec)
    except OtherFormat as error:
        raise OperateError(f"{_run(layout)}: {error}; nothing is changed.") from None


def _repair(store: Store, layout: Layout, owner: str, silent_sec: float) -> Repaired:
    for _ in range(LOOKS):
        expected, known = _damaged_head(store, layout, owner)
        if _generation(store, layout) == expected:
            break
        # A running attempt committed while its older checkpoints were read: that says nothing.
    _refuse_beside_a_holder(store, layout, silent_sec)
    repaired = rebuild(store, layout, owner, store.now(), known)
    try:
        store.put(layout.head, repaired.head.to_json(), if_generation_match=expected)
    except PreconditionFailed:
        raise OperateError(
            f"{_run(layout)}: another process wrote HEAD meanwhile; see outlast status."
        ) from None
    return repaired


def _damaged_head(store: Store, layout: Layout, owner: str) -> tuple[int, Head | None]:
    """HEAD's generation (0 where it is missing), and what can still be trusted of it. Raises
    OperateError if HEAD is intact or belongs to another stack."""
    try:
        look = read_head(store, layout)
    except HeadLost:
        return 0, None
    except HeadUnreadable:
        return _generation(store, layout), None
    if look.head.owner != owner:
        raise OperateError(
            f"owner {owner}: HEAD belongs to {look.head.owner}; repair it from that stack."
        )
    chain = look.head.chain
    kept = pages.newest_first(store, layout, look.head, lost=lambda error: None)
    whole = not chain or any(_verified(store, layout, entry.path) for entry in kept)
    plausible = _plausible(look.head)
    if whole and plausible == look.head and contradicted(store, layout, look.head) is None:
        raise OperateError(
            f"{_run(layout)}: HEAD is intact ({look.head.state}, step {look.head.step}); "
            "nothing to repair."
        )
    return look.object.generation, plausible


def _generation(store: Store, layout: Layout) -> int:
    """HEAD's generation; 0 where it is missing."""
    try:
        return store.stat(layout.head).generation
    except NotFound:
        return 0


def rebuild(
    store: Store, layout: Layout, owner: str, now: datetime, known: Head | None = None
) -> Repaired:
    """The HEAD that follows from the bucket's records and manifests; writes nothing.

    `known` is the current HEAD, if it can be read: its term, resume and placement only increase.
    """
    terms, starts = _attempts(store, layout)
    if not terms:
        raise OperateError(
            f"{_run(layout)}: has no attempts; nothing is lost, and the next one starts it."
        )
    manifests = sorted(_manifest_folders(store, layout), reverse=True)
    for term in sorted(starts, reverse=True):
        lineage = _lineage(layout, starts, term)
        if lineage is None:
            continue
        on_the_way = [folder for place, folder in manifests if _owns(lineage, *place)]
        chain: list[Checkpoint] = []
        set_aside = 0
        for folder in on_the_way:
            found = _verified(store, layout, folder)
            if found:
                chain.insert(0, found)
            elif not chain:
                set_aside += 1
            if len(chain) >= KEEP_LAST:
                break
        if not chain:
            continue
        chain.sort(key=_order)
        chain, older_chain = _kept(store, layout, lineage, chain, on_the_way, starts[term])
        if chain[-1].part:
            chain, older_chain, without = _whole_parts(store, layout, chain, older_chain)
            set_aside += without
        if not chain:
            continue
        tip = chain[-1]
        pairs = [(start.resume, start.placement) for start in starts.values()]
        highest = max([*terms, *(place[0] for place, _ in manifests)]) + UNRECORDED_TERMS
        if known is not None:
            pairs.append((known.resume, known.placement))
            highest = max(highest, known.term)  # An older HEAD that was put back knows too little.
        if highest + 1 >= NUMBERS_MAX:
            raise OperateError(
                f"{_run(layout)}: its records count to attempt {highest}, which must be less than "
                f"{NUMBERS_MAX}; {_from_scratch(owner)} to start from scratch."
            )
        resume, placement = max(pairs)
        alone = owner.startswith(NO_STACK)
        head = Head(
            owner=owner,
            resume=resume,
            placement=placement,
            term=highest + 1,
            state=State.OPEN if alone else State.STOPPED,
            end=None if alone else End(Reason.STOPPED, None, tip.step, None),
            started=min(start.time for start in starts.values()),
            deadline=NO_DEADLINE if alone else now,
            chain=tuple(chain),
            older_chain=older_chain,
            lineage=tuple(entry for entry in lineage if entry.term <= tip.term),
            failures=0,
            no_progress=0,
            data=known.data if known is not None else None,
            nonce=new_nonce(),
        )
        return Repaired(head, set_aside)
    raise OperateError(
        f"{_run(layout)}: none of its {len(manifests)} checkpoints can be read; "
        f"{_from_scratch(owner)} to start from scratch."
    )


def _from_scratch(owner: str) -> str:
    return "give another --run-dir" if owner.startswith(NO_STACK) else "set outlast:rerun"


def _plausible(head: Head) -> Head:
    """HEAD without numbers that its run cannot have reached, which are ignored."""
    alone = head.owner.startswith(NO_STACK)
    return replace(
        head,
        term=head.term if head.term < NUMBERS_MAX else 1,
        resume=0 if alone or head.resume >= NUMBERS_MAX else head.resume,
        placement=0 if alone else head.placement,
    )


def _kept(
    store: Store,
    layout: Layout,
    lineage: Sequence[Lineage],
    newest: Sequence[Checkpoint],
    on_the_way: Sequence[str],
    start: AttemptStart,
) -> tuple[list[Checkpoint], PageRef | None]:
    """The checkpoints that the attempt's retention keeps, which may be deleting any other: the
    `newest`, and before them those that pages lead to and later ones all of whose objects are
    there. Their bytes are not read; a restore does, and passes over what is bad."""

    def owns(entry: Checkpoint) -> bool:
        return _owns(lineage, entry.term, entry.step)

    oldest = newest[0]
    held, behind = pages.found_again(store, layout, oldest.step - 1, owns)
    last = max([entry.step for entry in held], default=behind.last if behind else -1)
    known = {entry.path for entry in (*held, *newest)}
    if behind is not None:  # of one step, a page may have some and HEAD the others
        at_last = pages.entries(store, layout, behind, last)
        known |= {entry.path for entry in at_last}
    for folder in reversed(on_the_way):
        if last <= _step_of(folder) <= oldest.step and folder not in known:
            found = _verified(store, layout, folder, read=False)
            held += [found] if found else []
    best = _older_best(store, layout, [*held, *newest], on_the_way)
    if best is not None and not _is_behind(store, layout, behind, best):
        held.append(best)
    return list(_retention(start).kept(sorted([*held, *newest], key=_order), behind)), behind


def _older_best(
    store: Store, layout: Layout, found: Sequence[Checkpoint], on_the_way: Sequence[str]
) -> Checkpoint | None:
    """The newest best checkpoint, where it is newer than every best one that was found already. No
    page has it: HEAD itself holds it for as long as it is the best."""
    known = {entry.path for entry in found}
    since = max((entry.step for entry in found if BEST_TAG in entry.tags), default=-1)
    rest = [folder for folder in on_the_way if folder not in known and _step_of(folder) > since]
    for start in range(0, len(rest), _LOOKED_AT):
        folders = rest[start : start + _LOOKED_AT]
        looks = [lambda folder=folder: _is_best(store, folder) for folder in folders]
        for folder, is_best in zip(folders, in_parallel(looks, small_reads(store)), strict=True):
            if is_best and (best := _verified(store, layout, folder, read=False)):
                return best
    return None


def _is_best(store: Store, folder: str) -> bool:
    try:
        return BEST_TAG in Manifest.from_json(store.get(f"{folder}MANIFEST.json")[0]).tags
    except OtherFormat:
        raise
    except (NotFound, ValueError):
        return False


def _is_behind(store: Store, layout: Layout, ref: PageRef | None, entry: Checkpoint) -> bool:
    with contextlib.suppress(pages.PageLost):
        if entry.part:  # others of its step may be there, too
            return ref is not None and entry in pages.entries(store, layout, ref, entry.step)
        return pages.find_behind(store, layout, ref, entry.step) == entry
    return False


def _retention(start: AttemptStart) -> Retention:
    """That of an attempt."""
    every = start.spec.get("keep_every_steps")
    every = every if isinstance(every, int) and every > 0 else None
    return Retention(keep_last=KEEP_LAST, keep_every_steps=every)


def _refuse_beside_a_holder(store: Store, layout: Layout, silent_sec: float) -> None:
    """Raises OperateError while the newest attempt may still be writing; earlier ones are fenced,
    even if they could not write their end.
    """
    if living := living_attempt(store, layout, silent_sec):
        term, silent = living
        raise OperateError(
            f"{_run(layout)}: attempt {term} gave a sign of life {silent:.0f} s ago and has "
            f"not ended; repair takes a run that has been silent for {silent_sec:.0f} s, so "
            "end it (delete its VM) or wait until it has noticed the missing HEAD, then repair."
        )


def living_attempt(store: Store, layout: Layout, silent_sec: float) -> tuple[int, float] | None:
    """The newest attempt and the seconds since its last sign of life, if it has not ended and
    gave one within `silent_sec`."""
    signs: dict[int, datetime] = {}
    ended: set[int] = set()
    for item in store.list(layout.attempts):
        number, _, name = item.path.removeprefix(layout.attempts).partition("/")
        if (term := number_of(number)) is None:
            continue
        if name == "end.json":
            ended.add(term)
        elif name in ("start.json", "heartbeat.json"):
            signs[term] = max(item.updated, signs.get(term, item.updated))
    now = store.now()
    term = max(signs, default=0)
    if term in signs and term not in ended:
        # The store's clock is in whole seconds, an object's time is finer.
        silent = max(0.0, (now - signs[term]).total_seconds())
        if silent < silent_sec:
            return term, silent
    return None


def _run(layout: Layout) -> str:
    return f"run {layout.run}" if layout.run else "run"


def _recorded_owner(store: Store, layout: Layout) -> str | None:
    """The run's owner, from HEAD or the newest readable record."""
    with contextlib.suppress(HeadLost, HeadUnreadable):
        return read_head(store, layout).head.owner
    _, starts = _attempts(store, layout)
    owners = [starts[term].spec.get("owner") for term in sorted(starts)]
    return next((owner for owner in reversed(owners) if isinstance(owner, str)), None)


def _attempts(store: Store, layout: Layout) -> tuple[set[int], dict[int, AttemptStart]]:
    """Every term with a record, and the readable start records."""
    terms: set[int] = set()
    starts: dict[int, AttemptStart] = {}
    for item in store.list(layout.attempts):
        number, _, name = item.path.removeprefix(layout.attempts).partition("/")
        # No boot takes a later term; one that is named here was written by something else.
        if (term := number_of(number)) is None or term > NUMBERS_MAX:
            continue
        terms.add(term)
        if name == "start.json":
            try:
                starts[term] = AttemptStart.from_json(store.get(item.path)[0])
            except OtherFormat:
                raise
            except (ValueError, NotFound):
                continue  # what an unreadable one says is in no other record
    return terms, starts


def _manifest_folders(store: Store, layout: Layout) -> Iterator[tuple[tuple[int, int], str]]:
    """((term, step), folder) of each snapshot that got as far as its manifest."""
    for item in store.list(layout.terms):
        place = layout.folder_of(item.path)
        if place and item.path == f"{place[1]}MANIFEST.json" and place[0] <= NUMBERS_MAX:
            yield (place[0], _step_of(place[1])), place[1]


def _step_of(folder: str) -> int:
    return int(folder.rstrip("/").rpartition("/s")[2].partition("-")[0])


def _place(layout: Layout, folder: str) -> tuple[int, str]:
    place = layout.folder_of(f"{folder}MANIFEST.json")
    assert place is not None
    return place


class _Digest:
    """A sink that keeps only an object's digest."""

    def __init__(self) -> None:
        self.blake3 = blake3()

    def write(self, data: bytes) -> int:
        self.blake3.update(data)
        return len(data)


def _verified(store: Store, layout: Layout, folder: str, *, read: bool = True) -> Checkpoint | None:
    """The checkpoint in the folder where every byte of it is what its manifest says; with `read`
    False, where each object is there in its generation and size."""
    try:
        data, found = store.get(f"{folder}MANIFEST.json")
        manifest = Manifest.from_json(data)
        there = {item.path: item for item in store.list(folder)} if not read else {}
        for entry in manifest.objects:
            if not read:
                item = there.get(folder + entry.name)
                if item is None or (item.generation, item.size) != (entry.generation, entry.size):
                    return None
                continue
            digest = _Digest()
            store.stream(folder + entry.name, digest, generation=entry.generation)
            if digest.blake3.hexdigest() != entry.blake3:
                return None
    except OtherFormat:
        raise
    except (NotFound, ValueError):
        return None
    if manifest.run != layout.run or manifest.term != _place(layout, folder)[0]:
        return None
    return Checkpoint(
        path=folder,
        generation=found.generation,
        blake3=blake3(data).hexdigest(),
        term=manifest.term,
        step=manifest.step,
        tags=manifest.tags,
        part=manifest.part,
        before=manifest.before,
    )


def _order(entry: Checkpoint) -> tuple[int, int, int, bool]:
    """Of one step may be the last state of a part, its end, and the beginning of the next part."""
    return entry.term, entry.step, entry.before, is_done(entry)


def _whole_parts(
    store: Store, layout: Layout, chain: list[Checkpoint], older: PageRef | None
) -> tuple[list[Checkpoint], PageRef | None, int]:
    """The entries of parts up to where one is missing that those after it stand on, which is the
    end of each part that came before; and how many were left out."""
    behind = () if older is None else pages.entries(store, layout, older)
    entries = [*behind, *chain]
    whole = 0
    done_at = 0
    for entry in entries:
        if entry.before != done_at and not (whole and entries[whole - 1].part == entry.part):
            break
        whole += 1
        done_at = entry.step if is_done(entry) else done_at
    if whole == len(entries):
        return chain, older, 0
    if not whole:
        return [], None, len(entries)
    step = entries[whole - 1].step
    without = [entry for entry in entries[whole:] if entry.step == step]
    chain, older = pages.cut(store, layout, chain, older, step, without=without)
    return chain, older, len(entries) - whole


def _lineage(
    layout: Layout, starts: Mapping[int, AttemptStart], newest: int
) -> tuple[Lineage, ...] | None:
    """The terms that led to the newest attempt; None if a start record on the path is missing."""
    entries: list[Lineage] = []
    term = newest
    while (start := starts.get(term)) is not None:
        entries.insert(0, Lineage(term, start.step))
        if start.restored is None:
            return tuple(entries)
        place = layout.folder_of(f"{start.restored.rstrip('/')}/MANIFEST.json")
        if place is None or place[0] >= term:
            return None
        term = place[0]
    return None


def _owns(lineage: Sequence[Lineage], term: int, step: int) -> bool:
    """Whether a checkpoint is on the way: its term owned that step. The end of a part is of the
    step of its last state, which the attempt may have resumed from."""
    for entry, later in zip_longest(lineage, lineage[1:]):
        if entry.term == term:
            return step >= entry.from_step and (later is None or step <= later.from_step)
    return False
