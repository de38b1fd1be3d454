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


def plan(store: Store, layout: Layout, step: int, *, silent_sec: float = Waits().silent) -> Rewound:
    """What setting the run back to ``step`` would do; nothing is written.

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
    tip = pages.find(store, layout, head, step)
    if tip is None:
        there = _nearest(pages.kept(store, layout, head).chain, step)
        raise OperateError(f"--from {step}: {name} has no checkpoint of that step; it has {there}.")
    before = pages.until(store, layout, head, step)
    before = pages.lineage_until(store, layout, before, tip.term)
    is_alone = head.owner.startswith(NO_STACK)
    end = None if is_alone or head.end is None else replace(head.end, step=step)
    rewound = replace(
        before,
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
    steps = [entry.step for entry in kept]
    if len(steps) <= 2 * NEAREST:
        return ", ".join(map(str, steps)) or "none"
    place = bisect.bisect(steps, step)
    around = steps[max(place - NEAREST, 0) : place + NEAREST]
    said = ", ".join(map(str, around))
    return f"{len(steps)}, of these around it {said} (outlast checkpoints lists them all)"


def _named(layout: Layout) -> str:
    return f"run {layout.run}" if layout.run else "the run"
