"""What looks for state that a resumed run would lack."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from outlast.loop import ranks, sampler, unchanged, unsaved


class Watchers:
    """All that watch one training. They belong to the thread of the loop."""

    def __init__(
        self,
        state: Mapping[str, object],
        rank_state: Mapping[str, object] | None,
        watched: ranks.RankState | None,
        constant: Collection[str],
        *,
        inline: bool,
    ) -> None:
        """``watched`` is the ``rank_state`` as it is saved; ``inline`` as unchanged.Watch has
        it."""
        unsaved.check_constant(constant, state, rank_state)
        self.unchanged = unchanged.Watch(state, constant, inline=inline)
        self.unsaved = unsaved.Unsaved([state, rank_state], constant)
        self._samplers = sampler.Samplers([state, rank_state])
        self._rank_state = watched

    def begin_loop(self, *, resumed: bool) -> None:
        """The program has asked for its first step."""
        self._samplers.first_step(resumed=resumed)

    def step(self, steps: Iterator[int] | None) -> None:
        """A step is drawn from ``steps``; the first one of an attempt matters."""
        self.unchanged.first_step()
        self.unsaved.first_step(steps)
        if self._rank_state is not None:
            self._rank_state.first_step()

    def step_made(self) -> list[str]:
        """A step is complete; gives what is to be said."""
        return self._samplers.step_made()

    def end_loop(self) -> None:
        """The program asks for no more steps."""
        self._samplers.end()

    def leave_loop(self) -> None:
        """The steps are over: what the program does with its state now means nothing."""
        self.unchanged.leave_loop()
        if self._rank_state is not None:
            self._rank_state.leave_loop()

    def glance(self) -> list[str]:
        """After each of the first steps; gives what is to be said."""
        self.unchanged.glance()
        return self.unsaved.look()

    def look(self, step: int) -> list[str]:
        """Before the state is captured after ``step``; gives what is to be said."""
        return [*self.unchanged.look(step), *self.unsaved.look()]

    def note(self) -> dict[str, Any]:
        """For the snapshot."""
        return {"unchanged": self.unchanged.note(), **self.unsaved.note()}
