"""The progress of an attempt."""

import time
from dataclasses import dataclass, field

WARNINGS_MAX = 20


@dataclass
class Progress:
    """The progress of an attempt: written by its one thread, read by its heartbeat."""

    step: int = 0
    total: int | None = None
    part: str = ""
    """The part that is being trained; empty if the run has no parts."""
    before: int = 0
    """Steps of the parts before it. `step` includes them."""
    phase: str = "start"
    begun: int = 0
    """Step that this attempt resumed from."""
    committed: int | None = None
    """Step of the newest checkpoint of this attempt."""
    seconds_to_commit: float | None = None
    """Seconds from the trainer's start to the first checkpoint."""
    commit_sec: float | None = None
    """Seconds that the last commit took."""
    warnings: list[str] = field(default_factory=list)
    """The trainer's warnings for people."""
    failure: str = ""
    """Why the trainer ended, while it is not yet known whether the machine is stopping."""
    stderr: tuple[str, ...] = ()
    """The last lines of that trainer's stderr."""
    step_sec: float = 0.0
    """Seconds that a step takes; after a notice, the trainer finishes its current step."""
    greeted: bool = False
    """Whether a training has begun, so that `total` is what it knows."""
    uploaded_at: float = 0.0
    """When an upload last made progress, by the monotonic clock."""
    _stepped_at: tuple[float, int] | None = None

    @property
    def kept(self) -> int:
        """Step of the newest checkpoint, this attempt's or the one that it resumed from."""
        return self.begun if self.committed is None else self.committed

    def begin_part(self, part: str, before: int, total: int | None) -> None:
        """Notes that a training starts; ``total`` is its own number of steps, if known."""
        self.part, self.before = part, before
        self.total = None if total is None else before + total
        self.greeted = True

    def note_warning(self, message: str) -> None:
        """Keeps a warning, each once, and at most WARNINGS_MAX."""
        if message not in self.warnings and len(self.warnings) < WARNINGS_MAX:
            self.warnings.append(message)

    def note_failure(self, message: str, stderr: tuple[str, ...]) -> None:
        """Notes that the trainer has ended, while the verdict is held back."""
        self.failure, self.stderr = message, stderr

    def note_step(self, step: int) -> None:
        """Notes a finished step, and measures how long one takes."""
        now, before = time.monotonic(), self._stepped_at
        if before is None or step < before[1]:
            self._stepped_at = (now, step)
        elif step > before[1]:
            self.step_sec = (now - before[0]) / (step - before[1])
            self._stepped_at = (now, step)
        self.step = step
