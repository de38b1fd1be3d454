"""Retention: which checkpoints of a run are kept."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outlast.bucket.head import Checkpoint, PageRef
from outlast.bucket.parts import is_done, own_step

KEEP_LAST = 3
"""The least number of checkpoints that retention keeps, the newest ones."""

KEEP_LAST_MAX = 100
"""The most for `keep_last`, because HEAD should stay small; `keep_every_steps` keeps any number."""

BEST_TAG = "best"
"""Tag of a checkpoint with a new best value; the newest one is kept."""


@dataclass(frozen=True)
class Retention:
    """Keeps the last K checkpoints, one for each N steps, and the newest best one."""

    keep_last: int = KEEP_LAST
    keep_every_steps: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.keep_last <= KEEP_LAST_MAX:
            raise ValueError(f"keep_last {self.keep_last}: must be 1 to {KEEP_LAST_MAX}")
        if self.keep_every_steps is not None and self.keep_every_steps < 1:
            raise ValueError(f"keep_every_steps {self.keep_every_steps}: must be 1 or more")

    def kept(
        self, chain: Iterable[Checkpoint], older: PageRef | None = None
    ) -> tuple[Checkpoint, ...]:
        """The entries of HEAD's chain that are kept, in order; `older` refers to those before.
        Repeating it changes nothing.
        """
        chain = tuple(chain)
        kept = {*self._needed(chain), *self._every(chain, older)}
        return tuple(entry for entry in chain if entry in kept)

    def lasting(
        self, chain: Sequence[Checkpoint], older: PageRef | None = None
    ) -> list[Checkpoint]:
        """Entries that no later commit drops and that need not be in HEAD, oldest first. Finished
        parts get no new entries, so what is kept of them stays.
        """
        needed = self._needed(chain)
        now = chain[-1].part if chain else ""
        ended = {entry for entry in needed if entry.part != now}
        lasting = ended | ({*self._every(chain, older)} - needed)
        return [entry for entry in chain if entry in lasting]

    def _needed(self, chain: Sequence[Checkpoint]) -> set[Checkpoint]:
        """The entries that HEAD itself holds: the newest ones and the best; of each finished part,
        its end, its last state and its best one.
        """
        by_part: dict[str, list[Checkpoint]] = {}
        for entry in chain:
            by_part.setdefault(entry.part, []).append(entry)
        found: set[Checkpoint] = set()
        for entries in by_part.values():
            states = [entry for entry in entries if not is_done(entry)]
            keep_last = 1 if is_done(entries[-1]) else self.keep_last
            found |= {entries[-1], *states[-keep_last:], *_newest_best(states)}
        return found

    def _every(self, chain: Sequence[Checkpoint], older: PageRef | None) -> list[Checkpoint]:
        """The first entry of each interval of steps in each part, except the interval that begins
        at 0.
        """
        every = self.keep_every_steps
        if not every:
            return []
        last = 0 if older is None else older.last
        seen: set[tuple[int, int]] = set()
        found = []
        for entry in chain:
            interval = (entry.before, own_step(entry) // every)
            in_pages = max(last - entry.before, 0) // every
            if interval[1] not in (0, in_pages) and interval not in seen and not is_done(entry):
                seen.add(interval)
                found.append(entry)
        return found


def _newest_best(chain: Sequence[Checkpoint]) -> list[Checkpoint]:
    return [entry for entry in chain if BEST_TAG in entry.tags][-1:]
