"""Sets a run back to an older checkpoint: HEAD alone changes, by one swap.

HEAD then names the checkpoint as the newest one, under a term that no attempt ever had, so that an
attempt that was not known to live is fenced. The newer checkpoints are swept by the next attempt.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outlast.base.exits import State
from outlast.bucket import pages
from outlast.bucket.head import Checkpoint, Head, HeadLost, new_nonce, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.parts import own_step, parts_of
from outlast.bucket.store import PreconditionFailed, Store
from outlast.cli.errors import OperateError
from outlast.cli.repair import living_attempt
from outlast.supervisor.metadata import NO_STACK, Waits

NEAREST = 5
"""Steps on each side that a refusal names, of a run with many checkpoints."""


@dataclass(frozen=True)
class Rewound:
    """A run that is, or can be, set back."""

    head: Head
    """HEAD as it is written."""
    dropped: int
    """How many newer checkpoints HEAD no longer names."""
    store: Store
    layout: Layout
    generation: int

    def write(self) -> None:
        """Swap HEAD. OperateError: it was written meanwhile, and nothing has changed."""
        try:
            self.store.put(
                self.layout.head, self.head.to_json(), if_generation_match=self.generation
            )
        except PreconditionFailed:
            raise OperateError(
                f"{_named(self.layout)}: HEAD was written meanwhile, nothing was set back; look at "
                "it with outlast status."
            ) from None


def parse(text: str) -> tuple[str, int]:
    """The part and the step of ``STEP`` or ``PART:STEP``; without a part it is empty. ValueError
    with a sentence for anything else."""
    part, _, step = text.rpartition(":")
    if not step.isascii() or not step.isdigit() or len(step) > 15 or (":" in text and not part):
        raise ValueError(f"--from {text!r}: must be a step, or a part's as PART:STEP")
    return part, int(step)


def plan(
    store: Store, layout: Layout, where: str | int, *, silent_sec: float = Waits().silent
) -> Rewound:
    """What setting the run back to ``where``, as ``parse`` takes it, would do; nothing is written.

    OperateError: there is no such checkpoint, the run is done, or an attempt works on it. Raises
    StoreError where the store does not answer.
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
            f"{name}: attempt {term} works on it (its last sign of life was {silent:.0f} s ago); "
            "end it first (outlast stop, or Ctrl-C where it runs)."
        )
    part, own = parse(str(where))
    before = next((one.before for one in parts_of(head.chain) if one.name == part), 0)
    tip = pages.find(store, layout, head, before + own)
    if tip is None or (tip.part, own_step(tip)) != (part, own):
        there = _nearest(pages.kept(store, layout, head).chain, before + own)
        raise OperateError(
            f"--from {where}: {name} has no checkpoint of that step; it has {there}."
        )
    back = pages.until(store, layout, head, tip.step)
    back = pages.lineage_until(store, layout, back, tip.term)
    is_alone = head.owner.startswith(NO_STACK)
    end = None if is_alone or head.end is None else replace(head.end, step=tip.step)
    rewound = replace(
        back,
        term=head.term + 1,
        state=State.OPEN if is_alone else head.state,
        end=end,
        failures=0,
        barren=0,
        nonce=new_nonce(),
    )
    dropped = head.kept - rewound.kept
    return Rewound(rewound, dropped, store, layout, found.object.generation)


def _nearest(kept: Sequence[Checkpoint], step: int) -> str:
    """The steps of the kept checkpoints; of many, those around the one that was asked for."""
    names = list(dict.fromkeys(map(said, kept)))
    if len(kept) <= 2 * NEAREST:
        return ", ".join(names) or "none"
    place = bisect.bisect([entry.step for entry in kept], step)
    around = kept[max(place - NEAREST, 0) : place + NEAREST]
    near = ", ".join(dict.fromkeys(map(said, around)))
    return f"{len(names)}, of these around it {near} (outlast checkpoints lists them all)"


def said(entry: Checkpoint) -> str:
    """A checkpoint as ``parse`` takes it."""
    return f"{entry.part}:{own_step(entry)}" if entry.part else str(entry.step)


def _named(layout: Layout) -> str:
    return f"run {layout.run}" if layout.run else "the run"
