"""Which checkpoints of a run stay."""

from collections.abc import Iterable
from dataclasses import dataclass

from outlast.bucket.head import Checkpoint

KEEP_LAST = 3
"""Checkpoints that retention keeps at least, newest first."""

BEST_TAG = "best"
"""Tag of a checkpoint with a new best value; the newest one is kept."""


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the last K, each Nth step's, the newest best."""

    keep_last: int = KEEP_LAST
    keep_every_steps: int | None = None

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ValueError(f"keep_last {self.keep_last}: must be 1 or more")
        if self.keep_every_steps is not None and self.keep_every_steps < 1:
            raise ValueError(f"keep_every_steps {self.keep_every_steps}: must be 1 or more")

    def kept(self, chain: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
        """The part of the chain that stays, in its order; doing it again changes nothing."""
        chain = tuple(chain)
        kept = set(chain[-self.keep_last :])
        kept.update([entry for entry in chain if BEST_TAG in entry.tags][-1:])
        if self.keep_every_steps:
            seen = {0}
            for entry in chain:
                interval = entry.step // self.keep_every_steps
                if interval not in seen:
                    seen.add(interval)
                    kept.add(entry)
        return tuple(entry for entry in chain if entry in kept)
