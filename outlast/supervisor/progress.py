"""How far an attempt has come."""

import time
from dataclasses import dataclass, field

WARNINGS_MAX = 20


@dataclass
class Progress:
    """How far an attempt has come: its one thread writes it, its heartbeat reads it."""

    step: int = 0
    total: int | None = None
    part: str = ""
    """The part of the run that is trained; empty if the run has none."""
    before: int = 0
    """Steps of the parts before it. The steps here count them."""
    phase: str = "start"
    begun: int = 0
    """Step that this attempt resumed from."""
    committed: int | None = None
    """Step of the newest checkpoint of this attempt."""
    seconds_to_commit: float | None = None
    """From the trainer's start to the first checkpoint."""
    commit_sec: float | None = None
    """What the last commit took."""
    warnings: list[str] = field(default_factory=list)
    """What the trainer said that people should look at."""
    failure: str = ""
    """Why the trainer ended, while it is still open whether the machine is stopping."""
    stderr: tuple[str, ...] = ()
    """The last lines of that trainer's stderr."""
    step_sec: float = 0.0
    """What a step takes; after a notice the trainer finishes the one it is in."""
    _stepped_at: tuple[float, int] | None = None

    @property
    def kept(self) -> int:
        """Step of the newest checkpoint, this attempt's or the one that it resumed from."""
        return self.begun if self.committed is None else self.committed

    def begin_part(self, part: str, before: int, total: int | None) -> None:
        """A training begins; ``total`` is its own number of steps, where it knows it."""
        self.part, self.before = part, before
        self.total = None if total is None else before + total

    def note_warning(self, message: str) -> None:
        """The trainer has said this; the first few are kept, and each once."""
        if message not in self.warnings and len(self.warnings) < WARNINGS_MAX:
            self.warnings.append(message)

    def note_failure(self, message: str, stderr: tuple[str, ...]) -> None:
        """The trainer has ended, and the verdict is held back."""
        self.failure, self.stderr = message, stderr

    def note_step(self, step: int) -> None:
        """The trainer has made this step; measures how long one takes."""
        now, before = time.monotonic(), self._stepped_at
        if before is None or step < before[1]:
            self._stepped_at = (now, step)
        elif step > before[1]:
            self.step_sec = (now - before[0]) / (step - before[1])
            self._stepped_at = (now, step)
        self.step = step
