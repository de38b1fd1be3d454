"""Sets a run back to an older checkpoint, by one swap of HEAD.

``PART:STEP`` names a state of a part, whose end is repeated even if it is the last state;
``PART:0`` names the end of the part before, so that the part starts from scratch.

HEAD then names the checkpoint as its newest, under a term that no attempt has had, so that an
unknown live attempt is fenced. The next attempt deletes the newer checkpoints.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outlast.base.exits import State
from outlast.bucket import pages
from outlast.bucket.boot import beyond
from outlast.bucket.head import Checkpoint, Head, HeadLost, new_nonce, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.parts import is_done, own_step, parts_of, shown
from outlast.bucket.store import PreconditionFailed, Store
from outlast.cli.errors import OperateError
from outlast.cli.repair import living_attempt
from outlast.spec.run_spec import NO_STACK, Timeouts

NEAREST = 5
"""How many steps on each side a refusal lists, if a run has many checkpoints."""


@dataclass(frozen=True)
class Rewound:
    """A run that is, or can be, set back."""

    head: Head
    """The HEAD to write."""
    dropped: int
    """How many newer checkpoints HEAD no longer names."""
    store: Store
    layout: Layout
    generation: int

    def write(self) -> None:
        """Swaps HEAD. Raises OperateError, changing nothing, if HEAD was written meanwhile."""
        try:
            self.store.put(
                self.layout.head, self.head.to_json(), if_generation_match=self.generation
            )
        except PreconditionFailed:
            raise OperateError(
                f"{_named(self.layout)}: HEAD was written meanwhile, nothing was set back; check "
                "it with outlast status."
            ) from None


def parse(text: str) -> tuple[str, int]:
    """Parses ``STEP`` or ``PART:STEP`` into part (or empty) and step. Raises ValueError with a
    sentence for anything else.
    """
    part, _, step = text.rpartition(":")
    if not step.isascii() or not step.isdigit() or len(step) > 15 or (":" in text and not part):
        raise ValueError(f"--from {text!r}: must be a step, or a part's as PART:STEP")
    return part, int(step)


def plan(
    store: Store,
    layout: Layout,
    where: str | int,
    *,
    silent_sec: float = Timeouts().successor_silence,
) -> Rewound:
    """Plans to set the run back to ``where``, in the form of ``parse``; writes nothing.

    Raises OperateError if there is no such checkpoint, the run is done, or an attempt is working on
    it, and StoreError if the store does not answer.
    """
    name = _named(layout)
    try:
        found = read_head(store, layout)
    except HeadLost:
        raise OperateError(f"{name}: has no HEAD, and so no checkpoint.") from None
    head = found.head
    if head.state is State.DONE:
        raise OperateError(f"{name}: is done; its result stays as it is.")
    if not head.state.ended and (living := living_attempt(store, layout, silent_sec)):
        term, silent = living
        raise OperateError(
            f"{name}: attempt {term} is working on it (its last sign of life was {silent:.0f} s "
            "ago); end it first (outlast stop, or Ctrl-C where it is running)."
        )
    if said := beyond(head):
        raise OperateError(f"{name}: HEAD has {said}; repair it first: outlast repair.")
    part, own = parse(str(where))
    if part or (head.chain and head.chain[-1].part):
        tip, without = _in_part(store, layout, head, part, own, name)
    else:
        tip, without = _of_step(store, layout, head, own, name), []
    back = pages.until(store, layout, head, tip.step, without=without)
    back = pages.lineage_until(store, layout, back, tip.term)
    is_alone = head.owner.startswith(NO_STACK)
    end = None if is_alone or head.end is None else replace(head.end, step=tip.step)
    rewound = replace(
        back,
        term=head.term + 1,
        state=State.OPEN if is_alone else head.state,
        end=end,
        failures=0,
        no_progress=0,
        nonce=new_nonce(),
    )
    dropped = head.kept - rewound.kept
    return Rewound(rewound, dropped, store, layout, found.object.generation)


def _of_step(store: Store, layout: Layout, head: Head, step: int, name: str) -> Checkpoint:
    tip = pages.find(store, layout, head, step)
    if tip is None:
        there = _nearest(pages.kept(store, layout, head).chain, step)
        raise OperateError(f"--from {step}: {name} has no checkpoint of that step; it has {there}.")
    return tip


def _in_part(
    store: Store, layout: Layout, head: Head, part: str, own: int, name: str
) -> tuple[Checkpoint, list[Checkpoint]]:
    """The checkpoint that ``part:own`` names, and those of its step that come after it."""
    where = f"{part}:{own}" if part else str(own)
    kept = pages.kept(store, layout, head)
    if kept.lost:
        raise pages.PageLost("; ".join(kept.lost))
    parts = {one.name: one for one in parts_of(kept.chain)}
    if not parts:
        there = _nearest(kept.chain, own)
        raise OperateError(f"--from {where}: {name} has no parts; give a step, it has {there}.")
    if not part:
        last = parts[head.chain[-1].part]
        raise OperateError(
            f"--from {where}: {name} has parts ({shown(parts)}), each with its own steps; write "
            f"--from PART:STEP, such as {last.name}:{0 if last.state is None else last.step}."
        )
    if part not in parts:
        raise OperateError(f"--from {where}: {name} has no part {part!r}; it has {shown(parts)}.")
    places = [
        place
        for place, entry in enumerate(kept.chain)
        if (entry.part, own_step(entry)) == (part, own) and not is_done(entry)
    ]
    first = next(place for place, entry in enumerate(kept.chain) if entry.part == part)
    if not places and own == 0:
        places = [first - 1] if first else []
        if not places:
            raise OperateError(
                f"--from {where}: {part} is the first part of {name}, which would start from "
                "scratch; start another run instead."
            )
    if not places:
        own_ones = [one for one in kept.chain if one.part == part and not is_done(one)]
        there = _nearest(own_ones, parts[part].before + own)
        raise OperateError(
            f"--from {where}: part {part} has no checkpoint of that step; it has {there}, and "
            f"{part}:0 starts it from scratch."
        )
    tip = kept.chain[places[-1]]
    return tip, [entry for entry in kept.chain[places[-1] + 1 :] if entry.step == tip.step]


def _nearest(kept: Sequence[Checkpoint], step: int) -> str:
    """The steps of the kept checkpoints; if there are many, those around the requested one."""
    names = list(dict.fromkeys(map(said, kept)))
    if len(kept) <= 2 * NEAREST:
        return ", ".join(names) or "none"
    place = bisect.bisect([entry.step for entry in kept], step)
    around = kept[max(place - NEAREST, 0) : place + NEAREST]
    near = ", ".join(dict.fromkeys(map(said, around)))
    return f"{len(names)}, of these around it {near} (outlast checkpoints lists them all)"


def said(entry: Checkpoint) -> str:
    """A checkpoint in words: in the form of ``parse``, or the end of a part."""
    if is_done(entry):
        return f"the end of part {entry.part}"
    return f"{entry.part}:{own_step(entry)}" if entry.part else str(entry.step)


def _named(layout: Layout) -> str:
    return f"run {layout.run}" if layout.run else "the run"
