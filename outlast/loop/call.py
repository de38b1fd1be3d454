"""The call of ``outlast.train``: its arguments, and how a checkpoint is restored into them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.loop import local, notes, ranks, snapshot, state, verify
from outlast.loop.errors import LoopError

NOTES = ("evaluations", "best", "unchanged", "drawn", "unsaved")
"""The notes in each snapshot of a training, beside the state."""


@dataclass(frozen=True)
class Call:
    """The checked arguments of ``outlast.train``."""

    state: Mapping[str, object]
    total: int | None
    options: local.Options
    part: str
    """Empty for a training that is the whole run."""
    restore_done: bool
    world: ranks.World | None
    rank_state: ranks.RankState | None
    tracker: str | None
    init_only: Collection[str] | None

    def __post_init__(self) -> None:
        total, only = self.total, self.init_only
        if total is not None and (type(total) is bool or not isinstance(total, int) or total < 1):
            raise LoopError(f"total {total!r}: must be a number of steps, 1 or more, or None")
        if isinstance(only, str) or (only and not set(only) <= set(self.state)):
            raise LoopError(f"init_only {only!r}: must be names in state")

    @property
    def alike(self) -> dict[str, Any]:
        """The arguments that must be equal in every rank."""
        return {
            "part": self.part,
            "total": self.total,
            "rank_state": self.rank_state is not None,
            "restore_done": self.restore_done,
        }

    def restore(self, folder: Path, saved: snapshot.Saved) -> None:
        """Restore the checkpoint in ``folder``, which ``saved`` holds."""
        notes.check(saved.loop, NOTES, "state.json")
        state.restore_all(self.state, saved.nodes, saved.blobs)
        verify.check(self.state, saved)
        if self.rank_state is not None:
            self.rank_state.restore(folder)

    def begin_with(self, folder: Path) -> None:
        """Restore the state of another run, from which this one begins."""
        saved = snapshot.read(folder)
        names = list(self.state) if self.init_only is None else sorted(self.init_only)
        state.restore_named(self.state, saved.nodes, saved.blobs, names)
        verify.check(self.state, saved, names=names)
