"""Mends a HEAD that is gone, unreadable, or names no checkpoint that can be read.

HEAD is rebuilt from what only it can otherwise tell: the newest manifest whose every byte is right,
and from there backwards over the attempts' start records, each of which names the checkpoint that
it was restored from. So nothing of an attempt that was fenced comes in. The mended run is stopped,
under a term that no attempt ever had; `outlast resume` reopens it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from blake3 import blake3

from outlast.exits import Reason, State
from outlast.layout import AttemptStart, Layout, Manifest
from outlast.operate.errors import OperateError
from outlast.run.commit import KEEP_LAST
from outlast.run.head import (
    Checkpoint,
    End,
    Head,
    HeadLost,
    HeadUnreadable,
    Lineage,
    new_nonce,
    read_head,
)
from outlast.run.store import NotFound, PreconditionFailed, Store


@dataclass(frozen=True)
class Mended:
    """What a repair did."""

    head: Head
    set_aside: int
    """Newer checkpoints in the bucket that could not be used."""


def repair(store: Store, layout: Layout, owner: str) -> Mended:
    """Rebuilds and writes HEAD. OperateError: it needs no repair or cannot be rebuilt.

    Raises StoreError where the store does not answer, HeadForbidden where HEAD may not be read.
    """
    expected = 0
    try:
        look = read_head(store, layout)
    except HeadLost:
        pass
    except HeadUnreadable:
        expected = store.stat(layout.head).generation
    else:
        if look.head.owner != owner:
            raise OperateError(
                f"owner {owner}: HEAD belongs to {look.head.owner}; repair it from that stack."
            )
        chain = look.head.chain
        if not chain or any(_verified(store, layout, c.path) for c in chain):
            raise OperateError(
                f"run {layout.run}: HEAD is whole ({look.head.state}, step {look.head.step}); "
                "nothing to mend."
            )
        expected = look.object.generation
    mended = rebuild(store, layout, owner, store.now())
    try:
        store.put(layout.head, mended.head.to_json(), if_generation_match=expected)
    except PreconditionFailed:
        raise OperateError(
            f"run {layout.run}: somebody wrote HEAD meanwhile; look at it with outlast status."
        ) from None
    return mended


def rebuild(store: Store, layout: Layout, owner: str, now: datetime) -> Mended:
    """The HEAD that the bucket's records and manifests give; nothing is written."""
    starts = _starts(store, layout)
    if not starts:
        raise OperateError(
            f"run {layout.run}: has no attempts; nothing is lost, and the next boot starts it."
        )
    folders = sorted(_manifest_folders(store, layout), reverse=True)
    for skipped, (_, folder) in enumerate(folders):
        tip = _verified(store, layout, folder)
        lineage = _lineage(layout, starts, tip) if tip else None
        if tip is None or lineage is None:
            continue
        older = (
            found
            for _, other in folders[skipped + 1 :]
            if (found := _verified(store, layout, other)) and _owns(lineage, found)
        )
        chain = [tip]
        for found in older:
            if len(chain) == KEEP_LAST:
                break
            chain.append(found)
        newest = max(starts.values(), key=lambda start: (start.resume, start.place))
        terms = [*starts, *(place[0] for place in (_place(layout, f) for _, f in folders))]
        head = Head(
            owner=owner,
            resume=newest.resume,
            place=newest.place,
            term=max(terms) + 1,
            state=State.STOPPED,
            end=End(Reason.STOPPED, None, tip.step, None),
            started=min(start.time for start in starts.values()),
            deadline=now,
            chain=tuple(reversed(chain)),
            lineage=lineage,
            failures=0,
            barren=0,
            data=None,
            nonce=new_nonce(),
        )
        return Mended(head, skipped)
    raise OperateError(
        f"run {layout.run}: none of its {len(folders)} checkpoints can be read; "
        "outlast:rerun begins it anew."
    )


def _starts(store: Store, layout: Layout) -> dict[int, AttemptStart]:
    found = {}
    for item in store.list(layout.attempts):
        if item.path.endswith("/start.json"):
            try:
                start = AttemptStart.from_json(store.get(item.path)[0])
            except ValueError:
                continue  # what it would tell is told by no other; its term is left out
            found[start.term] = start
    return found


def _manifest_folders(store: Store, layout: Layout) -> Iterator[tuple[tuple[int, int], str]]:
    """((term, step), folder) of each snapshot that got as far as its manifest."""
    for item in store.list(layout.terms):
        place = layout.folder_of(item.path)
        if place and item.path == f"{place[1]}MANIFEST.json":
            step = int(place[1].rstrip("/").rpartition("/s")[2].partition("-")[0])
            yield (place[0], step), place[1]


def _place(layout: Layout, folder: str) -> tuple[int, str]:
    place = layout.folder_of(f"{folder}MANIFEST.json")
    assert place is not None
    return place


def _verified(store: Store, layout: Layout, folder: str) -> Checkpoint | None:
    """The checkpoint in the folder where every byte of it is what its manifest says."""
    try:
        data, found = store.get(f"{folder}MANIFEST.json")
        manifest = Manifest.from_json(data)
        for entry in manifest.objects:
            content, _ = store.get(folder + entry.name, generation=entry.generation)
            if blake3(content).hexdigest() != entry.blake3:
                return None
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
    )


def _lineage(
    layout: Layout, starts: Mapping[int, AttemptStart], tip: Checkpoint
) -> tuple[Lineage, ...] | None:
    """Which terms led to the checkpoint; None where a start record on the way is missing."""
    entries: list[Lineage] = []
    term: int | None = tip.term
    while term is not None:
        start = starts.get(term)
        if start is None:
            return None
        entries.insert(0, Lineage(term, start.step))
        if start.restored is None:
            return tuple(entries)
        place = layout.folder_of(f"{start.restored.rstrip('/')}/MANIFEST.json")
        if place is None or place[0] >= term:
            return None
        term = place[0]
    return None


def _owns(lineage: tuple[Lineage, ...], found: Checkpoint) -> bool:
    """Whether the checkpoint is one on the way to the newest: its term owned that step."""
    later = [*lineage[1:], None]
    for entry, after in zip(lineage, later, strict=True):
        if entry.term == found.term:
            return found.step > entry.from_step and (after is None or found.step <= after.from_step)
    return False
