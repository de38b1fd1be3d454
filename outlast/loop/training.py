"""The steps of a training, resumed and stopped at their boundaries."""

import os
import weakref
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from outlast.base.names import check_object_name
from outlast.loop import ending, local, ranks, trackers, usage
from outlast.loop.call import Call
from outlast.loop.connection import interrupted
from outlast.loop.errors import LoopError
from outlast.loop.follower import Follower
from outlast.loop.history import Direction, judged_name
from outlast.loop.leading import Leading
from outlast.loop.progress import Progress
from outlast.loop.recording import Recording
from outlast.loop.watchers import Watchers
from outlast.spec.result import METRICS_FILE


class Training:
    """One attempt of a training. Use it in ``with``; all methods belong to the thread of the loop.

    If the body raises, the attempt has failed. If it returns, the training is complete, provided
    that all steps were made, ``finish`` was called, or there is no total.

    Under ``torchrun`` only rank 0 records the calls of ``log``, ``eval`` and ``tick``.
    """

    def __init__(
        self,
        state: Mapping[str, object],
        total: int | None,
        options: local.Options,
        *,
        part: str = "",
        restore_done: bool = True,
        rank_state: Mapping[str, object] | None = None,
        tracker: str | None = None,
        init_only: Collection[str] | None = None,
        constant: Collection[str] = (),
    ) -> None:
        world = ranks.world()
        self._rank, self._size = (0, 1) if world is None else (world.rank, world.size)
        own = None
        if rank_state is not None:
            own = ranks.RankState(rank_state, self._rank, self._size, constant)
        tracker = trackers.choose(tracker) if self._rank == 0 else None
        call = Call(state, total, options, part, restore_done, world, own, tracker, init_only)
        inline = usage.is_inline(state)
        self._watchers = Watchers(state, rank_state, own, constant, inline=inline)
        self._progress = Progress(total)
        self._part = part
        self._recording = Recording(part)
        self._steps: weakref.ref[Iterator[int]] | None = None
        self._own = os.getpid()
        self._side: Leading | Follower
        if self._rank == 0:
            self._side = Leading(call, self._progress, self._recording, self._watchers)
        else:
            self._side = Follower(call, self._progress)

    @property
    def step(self) -> int:
        """Steps completed so far, in all attempts."""
        return self._progress.step

    @property
    def total(self) -> int | None:
        """Steps of the whole training; None if only the loop knows."""
        return self._progress.total

    @property
    def part(self) -> str | None:
        """Name of this part of the run; None if the training is the whole run."""
        return self._part or None

    @property
    def done(self) -> bool:
        """Whether this part was already done before this start. Then there are no steps, ``evals``
        are the earlier ones, and ``result`` returns its files. New files and evaluations are not
        kept."""
        return self._side.is_done

    @property
    def rank(self) -> int:
        """Number of this process in the training, from 0."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of processes of this training; 1 without ``torchrun``."""
        return self._size

    @property
    def evals(self) -> list[dict[str, Any]]:
        """All evaluations so far, in all attempts: the step and the values of each. LoopError in
        ranks other than 0, which do not keep them."""
        return self._side.evals()

    def steps(self) -> Iterator[int]:
        """The numbers of the remaining steps, from the first one not yet done up to ``total``.

        Between two steps, snapshots are handed over, and a requested stop exits with 75. A step
        counts once the next one is requested; the last one before the loop is left counts if it
        logged or evaluated anything, or called ``finish``.
        """
        found = self._make_steps()
        self._steps = weakref.ref(found)
        return found

    def _make_steps(self) -> Iterator[int]:
        progress = self._progress
        if progress.started:
            raise LoopError("run.steps() was already used; a run has one loop")
        progress.started = True
        try:
            self._watchers.begin_loop(resumed=progress.step > 0)
            while not progress.left_before:
                self._side.boundary()
                if progress.is_over:
                    return
                self._watchers.step(self._steps and self._steps())
                yield progress.draw()
                progress.count()
                if said := self._watchers.step_made():
                    self._side.warn(said)
        finally:
            self._watchers.end_loop()
            self._leave_loop()

    def _leave_loop(self) -> None:
        self._progress.leave()
        self._side.loop_left()
        self._watchers.leave_loop()

    def finish(self, why: str) -> None:
        """End the training with the current step, before all steps are made, as in early stopping.
        Call it after the step's update, then leave the loop; a loop that continues ends before its
        next step. ``why`` is recorded with the end.
        """
        self._progress.finish(why)

    def log(self, /, **values: Any) -> None:
        """Log values of the current step. Each step has one row, with the last value of each
        name."""
        progress = self._progress
        if self._rank:
            progress.marked = True
            return
        if progress.making is None:
            raise LoopError("run.log outside a step: call it in the body of run.steps()")
        self._recording.log(values)
        progress.marked = True

    def eval(
        self, /, *, best: Direction | None = None, of: str | None = None, **values: Any
    ) -> None:
        """Record an evaluation after this step's update, in the state and in metrics.json.

        Values are numbers with any names, also numbers that are not finite; evaluations may have
        different names. With ``best`` (``max`` or ``min``) a new best value makes a checkpoint
        tagged ``best``; ``of`` names the value to judge if there are several. After the loop
        ``best`` has no effect, because there is no checkpoint to tag.
        """
        progress = self._progress
        if self._rank:
            progress.marked = True
            return
        cells = self._recording.cells(values)
        judged = None if best is None else judged_name(best, of, cells)
        if self.done:
            return
        in_loop = progress.making is not None
        step = progress.making if progress.making is not None else progress.step
        self._recording.add_eval(step, cells, in_row=in_loop)
        if in_loop:
            progress.marked = True
            if best is not None and judged is not None:
                self._side.judge_best(judged, step, cells[judged], best)
        self.tick("eval")

    def tick(self, phase: str = "train") -> None:
        """Give a sign of life in a long phase without steps; CheckpointFailed if a commit
        failed."""
        self._side.tick(phase)

    def data(self, path: str | Path) -> Path:
        """A local path for training data at a local or ``gs://`` path. Like ``outlast.data``, but
        within the training."""
        return self._side.data(path)

    def result(self, name: str) -> Path:
        """The path to which to write a file of the result; only after the loop, because the result
        is made once. For a part that is already done, the path of the existing file."""
        if not (self._progress.finished or self._progress.why or self.done):
            raise LoopError(f"result {name!r}: write results after the loop of run.steps()")
        check_object_name(name)
        if name == METRICS_FILE:
            raise LoopError(f"result {name!r}: is written automatically from run.eval")
        path = self._side.result_folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    # The context manager.

    def __enter__(self) -> Self:
        try:
            self._side.begin()
        except BaseException as error:
            self._side.end(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._own:
            return  # a forked child, whose parent has the training
        self._leave_loop()
        progress = self._progress
        over = error is None or (ending.left_with_0(error) and progress.is_over)
        try:
            if self._side.is_stopped(over):
                ending.say_after_stop(error)
                raise interrupted() from error
            if over:
                self._side.complete()
                if self._part:
                    self._side.leave_part()
            elif ending.left_with_0(error):
                raise ending.left_early(
                    progress.step, progress.total, "sys.exit(0) ended the program"
                )
        except BaseException as late:
            self._side.end(late)
            raise
        self._side.end(None if over else error)
