"""Restores the state with which an attempt begins."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from outlast.loop import parts, snapshot
from outlast.loop.call import Call
from outlast.loop.errors import DoesNotFit
from outlast.loop.history import History
from outlast.loop.progress import Progress
from outlast.loop.recording import Recording
from outlast.loop.watchers import Watchers
from outlast.protocol import Welcome


class Resuming:
    """Restores the supervisor's checkpoint into the objects of the program."""

    def __init__(
        self, call: Call, progress: Progress, recording: Recording, watchers: Watchers
    ) -> None:
        self._call = call
        self._progress = progress
        self._recording = recording
        self._watchers = watchers
        self.done_in: Path | None = None
        """The folder with this part's end, if it is already done."""
        self.is_unproved = False
        """Whether the state after the first step must still be proved."""

    def take(self, answer: Welcome, prove: Callable[[], None]) -> None:
        """Restore the checkpoint that the welcome names. Without one, ``prove`` that the state can
        be saved. DoesNotFit if the checkpoint has another shape."""
        done = None if answer.done is None else Path(answer.done)
        if done is not None and answer.restore is None:
            self._take_end(done, answer.step)
        elif answer.restore is None or answer.init:
            if answer.restore is not None:
                self._call.begin_with(Path(answer.restore))
            prove()
            self.is_unproved = True  # optimisers make their state in the first step
            self._watchers.unchanged.begin(0)
        else:
            note = self._restore(Path(answer.restore), answer.step)
            step = self._progress.step
            if done is not None:
                self._take_end(done, step)
            # Only now, when the restore no longer holds references to the state's objects.
            self._watchers.unchanged.begin(step, note["unchanged"])
            self._watchers.unsaved.begin(step, note)

    def _restore(self, folder: Path, step: int) -> dict[str, Any]:
        """Restore the checkpoint, which must be of ``step``; return its notes on the training."""
        saved, total = snapshot.read(folder), self._call.total
        if saved.step != step or saved.step > (total or saved.step):
            of = "" if total is None else f", of {total} in all"
            raise DoesNotFit(f"the checkpoint is of step {saved.step}; expected was {step}{of}")
        self._call.restore(folder, saved)
        self._recording.history.read(folder, saved.loop)
        self._progress.resume(saved.step, saved.loop.get("over"))
        return saved.loop

    def _take_end(self, folder: Path, step: int) -> None:
        """Take the end of this part, which is done."""
        record = parts.read(folder)
        # The state's history lacks evaluations after the loop.
        self._recording.history = History()
        self._recording.history.read(folder, record.history)
        self._progress.resume(step, record.why)
        self.done_in = folder
