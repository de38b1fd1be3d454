"""Counts the batches that each step takes, to find programs that read ahead of their steps.

A sampler counts a batch when it is given out. A program that keeps it in its own buffer has not
used it yet when a snapshot is made, and a resumed run would lose it without any error. Such a
program takes batches in another thread, which is refused at once. Or the first step of an attempt
fills the buffer and takes more batches than each later step, again after a resume; that is
reported, and refused at the resume.

A buffer that is refilled now and then looks like steps that use different numbers of batches. So
such steps are also reported, and refused at the resume, unless the sampler has ``uneven=True``.
"""

import threading
from collections.abc import Iterator

from outlast.loop.errors import DoesNotFit, LoopError

_SURE = 2
"""Steps after the first one with an equal number of batches, until that number counts as known."""
UNEVEN = "if each step uses all that it takes, make the sampler with BatchSampler(..., uneven=True)"
REMEDY = (
    "a batch in a buffer is lost at a resume; take each batch in the step that uses it, as in "
    "zip(run.steps(), sampler), or fetch ahead with a torch DataLoader in sampler.over(loader)"
)


class Taken:
    """The batches that steps took from one sampler."""

    def __init__(self, *, uneven: bool) -> None:
        """``uneven``: steps take different numbers of batches, and each uses all that it takes."""
        self._uneven = uneven
        self._first = 0
        """Batches in the first step of the first attempt; 0 before it."""
        self._later = 0
        """Batches in each step after an attempt's first; -1 if they differ."""
        self._seen = 0
        """Steps that took ``_later`` batches, up to ``_SURE``."""
        self._thread: int | None = None
        """The thread of the loop; None outside of one."""
        self._elsewhere = self._said = False
        self._resumed = False
        self._steps = self._first_here = self._now = 0

    def note(self) -> list[int]:
        """The numbers for the checkpoint; empty before the first step."""
        return [self._first, self._later, self._seen] if self._first else []

    def take_note(self, note: list[int]) -> None:
        """Take over the numbers from ``note``."""
        self._first, self._later, self._seen = note or (0, 0, 0)

    def begin(self, place: str, *, resumed: bool) -> None:
        """Begin the first step of an attempt, in this thread. DoesNotFit if the steps before its
        checkpoint took different numbers of batches."""
        if not resumed:
            self.take_note([])
        if self._later < 0 and not self._uneven:
            raise DoesNotFit(
                f"{place}: the steps before this checkpoint took different numbers of batches; "
                f"{UNEVEN}, and the run resumes from here; if your program reads ahead, the "
                f"batches that it had read are lost: {REMEDY}, and start over in another run"
            )
        self._resumed, self._thread = resumed, threading.get_ident()
        self._elsewhere = self._said = False
        self._steps = self._first_here = self._now = 0

    def end(self) -> None:
        """Note that the loop is over."""
        self._thread = None

    def add(self) -> None:
        """Count a batch."""
        self._now += 1
        if self._thread not in (None, threading.get_ident()):
            self._elsewhere = True

    def step_made(self, place: str, *, epoch_ends: bool) -> Iterator[str]:
        """Note a complete step; return sentences to print. LoopError if the program reads ahead in
        another thread, DoesNotFit if it reads ahead after a resume. ``epoch_ends``: the step may
        have taken fewer batches than others."""
        if self._elsewhere:
            raise LoopError(
                f"{place}: a thread other than the loop's took batches ahead of the steps; {REMEDY}"
            )
        now, self._now = self._now, 0
        self._steps += 1
        if self._steps == 1:
            self._first, self._first_here = self._first or now, now
        elif not (epoch_ends and now < self._later):
            before = self._later
            self._count(now)
            if self._later < 0 <= before and not self._uneven:
                yield from self._differ(place, before, now)
        sure = 1 if self._resumed else _SURE
        if self._first > self._later >= 0 and self._seen >= sure and not self._uneven:
            yield from self._read_ahead(place)

    def _differ(self, place: str, before: int, now: int) -> Iterator[str]:
        numbers = f"a step took {before} batches and another one {now}"
        if self._resumed:
            raise DoesNotFit(
                f"{place}: {numbers}, after a resume; {UNEVEN}, and the run resumes; if your "
                "program reads ahead, the batches that it had read before the interruption are"
                f" lost: {REMEDY}, "
                "and start from scratch, in another run"
            )
        if not self._said:
            self._said = True
            yield (
                f"{place}: {numbers}, so a resume is refused; {UNEVEN}; if your program reads "
                f"ahead, {REMEDY}"
            )

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
            raise DoesNotFit(
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
