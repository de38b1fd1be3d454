"""How many batches each step takes, which shows a program that reads ahead of its steps.

A sampler counts a batch when it is given out. A program that keeps it in a buffer of its own has
not used it yet when a snapshot is made, and a resumed run would lose it without any error. Two
things show such a program: another thread takes the batches; or the first step of an attempt takes
more than each step after it, as it fills the buffer, and does so again after a resume. The first is
refused at once, the second is reported and then refused at the resume. Steps that take different
numbers of batches in another way may be right (groups of different sizes): that is reported.
"""

import threading
from collections.abc import Iterator

from outlast.loop.errors import LoopError

_SURE = 2
"""Steps of one number after the first step, before that number counts as known."""
REMEDY = (
    "a batch in a buffer is lost at a resume; take each batch in the step that uses it, as in "
    "zip(run.steps(), sampler), or fetch ahead with a torch DataLoader in sampler.over(loader)"
)


class Taken:
    """The batches that steps took from one sampler."""

    def __init__(self) -> None:
        self._first = 0
        """Batches in the first step of the first attempt; 0 before it."""
        self._later = 0
        """Batches in each step after an attempt's first; -1 where they differ."""
        self._seen = 0
        """Steps that took so many, up to ``_SURE``."""
        self._thread: int | None = None
        """The thread of the loop; None outside of one."""
        self._elsewhere = self._said = False
        self._resumed = False
        self._steps = self._first_here = self._now = 0

    def note(self) -> list[int]:
        """For the checkpoint; empty before the first step."""
        return [self._first, self._later, self._seen] if self._first else []

    def take_note(self, note: list[int]) -> None:
        """What ``note`` gave."""
        self._first, self._later, self._seen = note or (0, 0, 0)

    def begin(self, *, resumed: bool) -> None:
        """The first step of an attempt begins, in this thread."""
        if not resumed:
            self.take_note([])
        self._resumed, self._thread = resumed, threading.get_ident()
        self._elsewhere = self._said = False
        self._steps = self._first_here = self._now = 0

    def end(self) -> None:
        """The loop is over."""
        self._thread = None

    def add(self) -> None:
        """A batch is given out."""
        self._now += 1
        if self._thread not in (None, threading.get_ident()):
            self._elsewhere = True

    def step_made(self, place: str, *, epoch_ends: bool) -> Iterator[str]:
        """A step is complete; gives what is to be said. LoopError for a program that reads ahead.
        ``epoch_ends``: the step may have taken fewer batches than others."""
        if self._elsewhere:
            raise LoopError(
                f"{place}: a thread besides that of the loop took batches, ahead of the steps; "
                f"{REMEDY}"
            )
        now, self._now = self._now, 0
        self._steps += 1
        if self._steps == 1:
            self._first, self._first_here = self._first or now, now
        elif not (epoch_ends and now < self._later):
            before = self._later
            self._count(now)
            if self._later < 0 <= before and not self._said:
                self._said = True
                yield (
                    f"{place}: a step took {before} batches and another one {now}; if your program "
                    f"reads ahead, {REMEDY}"
                )
        if self._first > self._later > 0 and self._seen >= _SURE:
            yield from self._read_ahead(place)

    def _count(self, now: int) -> None:
        if self._later < 0:
            return
        if not self._seen:
            self._later, self._seen = now, 1
        elif now == self._later:
            self._seen = min(self._seen + 1, _SURE)
        else:
            self._later = -1

    def _read_ahead(self, place: str) -> Iterator[str]:
        if self._resumed and self._first_here > self._later:
            raise LoopError(
                f"{place}: the first step after this resume took {self._first_here} batches and "
                f"others take {self._later}, so the program reads ahead, and the batches that it "
                f"had read before the interruption are lost; {REMEDY}; then start from scratch, in "
                "another run"
            )
        if not self._resumed and not self._said:
            self._said = True
            yield (
                f"{place}: the first step took {self._first} batches and others take {self._later}"
                f"; if your program reads ahead, a resume is refused: {REMEDY}"
            )
