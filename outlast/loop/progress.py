"""The progress of a training: its steps, and whether it is over."""

from outlast.loop.errors import LoopError

_WHY_MAX = 500
"""The most characters kept of the message for ``finish``."""


class Progress:
    """The steps of one training. All numbers count from its beginning, in all attempts."""

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.step = 0
        """Number of completed steps."""
        self.making: int | None = None
        """The current step; None between two steps."""
        self.marked = False
        """Whether the body of that step is known to run."""
        self.drawn: int | None = None
        """The step in which the loop was left, whether or not it counts."""
        self.started = self.finished = False
        """Whether the loop has begun, and whether it was left."""
        self.why = ""
        """Why the training is over before its last step, from ``finish``."""
        self.left_before = False
        """Whether the loop was already over at the point from which this attempt resumes."""
        self.stopped = False
        """Whether a request to stop was carried out."""

    @property
    def is_over(self) -> bool:
        """Whether the training is known to be over."""
        return self.left_before or bool(self.why) or self.step == self.total

    @property
    def over(self) -> str | None:
        """Why the loop is over, if a snapshot's step does not imply it; otherwise None."""
        return self.why if self.why or (self.finished and self.total is None) else None

    def draw(self) -> int:
        """Begin the next step; return its number."""
        self.making, self.marked = self.step + 1, False
        return self.making

    def count(self) -> None:
        """Count the current step as complete."""
        if self.making is not None:
            self.step, self.making = self.making, None

    def leave(self) -> None:
        """Leave the loop. A step that was drawn counts if its body is known to have run: ``zip``
        draws one more than it uses, and a body may have ended in an error."""
        self.drawn = self.drawn or self.making
        if self.marked:
            self.count()
        self.making = None
        self.finished = True

    def finish(self, why: str) -> None:
        """Finish the training, see ``Training.finish``."""
        if not isinstance(why, str) or not why.strip():
            raise LoopError(f"finish {why!r}: must say why, such as 'no improvement in 5 evals'")
        if not self.started:
            raise LoopError("run.finish before the loop: call it in or after run.steps()")
        self.why = " ".join(why.split())[:_WHY_MAX]
        self.marked = True

    def resume(self, step: int, why: str | None) -> None:
        """Continue after ``step``; ``why`` says why the loop was already over there, or is None."""
        self.step = step
        if why is not None:
            self.left_before, self.why = True, why
