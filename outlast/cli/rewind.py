"""Sets a run back to an older checkpoint: HEAD alone changes, by one swap.

HEAD then names the checkpoint as the newest one, under a term that no attempt ever had, so that an
attempt that was not known to live is fenced. The newer checkpoints are swept by the next attempt.
"""

from dataclasses import dataclass, replace

from outlast.base.exits import State
from outlast.bucket.head import Checkpoint, Head, HeadLost, new_nonce, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.store import PreconditionFailed, Store
from outlast.cli.errors import OperateError
from outlast.cli.repair import living_attempt
from outlast.supervisor.metadata import NO_STACK, Waits


@dataclass(frozen=True)
class Rewound:
    """A run that is, or can be, set back."""

    head: Head
    """HEAD as it is written."""
    dropped: tuple[Checkpoint, ...]
    """The newer checkpoints, that HEAD names no more."""
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
    steps = [entry.step for entry in head.chain]
    if step not in steps:
        there = ", ".join(map(str, steps)) or "none"
        raise OperateError(f"--from {step}: {name} has no checkpoint of that step; it has {there}.")
    # Of one step there may be two: the newer one counts.
    place = len(steps) - 1 - steps[::-1].index(step)
    tip = head.chain[place]
    is_alone = head.owner.startswith(NO_STACK)
    end = None if is_alone or head.end is None else replace(head.end, step=step)
    rewound = replace(
        head,
        term=head.term + 1,
        state=State.OPEN if is_alone else head.state,
        end=end,
        chain=head.chain[: place + 1],
        lineage=tuple(entry for entry in head.lineage if entry.term <= tip.term),
        failures=0,
        barren=0,
        nonce=new_nonce(),
    )
    return Rewound(rewound, head.chain[place + 1 :], store, layout, found.object.generation)


def _named(layout: Layout) -> str:
    return f"run {layout.run}" if layout.run else "the run"
