"""The watchers that look for state that a resumed run would lack."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from outlast.loop import ranks, sampler, unchanged, unsaved


class Watchers:
    """All watchers of one training. For the thread of the loop."""

    def __init__(
        self,
        state: Mapping[str, object],
        rank_state: Mapping[str, object] | None,
        watched: ranks.RankState | None,
        constant: Collection[str],
        *,
        inline: bool,
    ) -> None:
        """``watched`` saves the ``rank_state``; for ``inline`` see unchanged.Watch."""
        unsaved.check_constant(constant, state, rank_state)
        self.unchanged = unchanged.Watch(state, constant, inline=inline)
        self.unsaved = unsaved.Unsaved([state, rank_state], constant)
        self._samplers = sampler.Samplers([state, rank_state])
        self._rank_state = watched

    def begin_loop(self, *, resumed: bool) -> None:
        """Note that the program has requested its first step."""
        self._samplers.first_step(resumed=resumed)

    def step(self, steps: Iterator[int] | None) -> None:
        """Note that a step is drawn from ``steps``; only the first one of an attempt has an
        effect."""
        self.unchanged.first_step()
        self.unsaved.first_step(steps)
        if self._rank_state is not None:
            self._rank_state.first_step()

    def step_made(self) -> list[str]:
        """Note a complete step; return sentences to print."""
        return self._samplers.step_made()

    def end_loop(self) -> None:
        """Note that the program requests no more steps."""
        self._samplers.end()

    def leave_loop(self) -> None:
        """Note that the steps are over, so that later uses of the state have no meaning."""
        self.unchanged.leave_loop()
        if self._rank_state is not None:
            self._rank_state.leave_loop()

    def glance(self) -> list[str]:
        """Check after each of the first steps; return sentences to print."""
        self.unchanged.glance()
        return self.unsaved.look()

    def look(self, step: int) -> list[str]:
        """Check before the state is captured after ``step``; return sentences to print."""
        return [*self.unchanged.look(step), *self.unsaved.look()]

    def note(self) -> dict[str, Any]:
        """The snapshot's notes."""
        return {"unchanged": self.unchanged.note(), **self.unsaved.note()}
