"""A training in every rank but the first, which makes its steps as rank 0 says."""

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outlast.base import exits, scratch_space
from outlast.base.variables import variables
from outlast.loop import data, ending, ranks, snapshot, state
from outlast.loop.call import Call
from outlast.loop.errors import LoopError, RankLost, RunEnded
from outlast.loop.history import Direction
from outlast.loop.progress import Progress
from outlast.loop.signals import Supervised
from outlast.loop.words import say


class Follower:
    """A rank in a training that rank 0 leads, with the methods of Leading. It keeps none of the
    records that rank 0 keeps, and discards files written to the result."""

    def __init__(self, call: Call, progress: Progress) -> None:
        assert call.world is not None
        self._call = call
        self._progress = progress
        self._rank = call.world.rank
        self._member = ranks.Member(call.world)
        self._signals = Supervised()
        self._result_folder: Path | None = None
        self._result_of_part: Path | None = None
        """The files of the result if the part is already done."""
        self._unproved = False
        self._cleanup = contextlib.ExitStack()

    @property
    def is_done(self) -> bool:
        """Whether the part was done before this start."""
        return self._result_of_part is not None

    def begin(self) -> None:
        """Begin where rank 0 says. RunEnded if the run has ended."""
        # The terminal's Ctrl-C and torchrun's SIGTERM reach every rank; rank 0 decides at the next
        # boundary what they mean. If rank 0 has ended, the watch ends this rank.
        self._signals.install()
        self._cleanup.callback(self._signals.restore)
        state.check_top(self._call.state)
        stopping = lambda: self._signals.requested  # noqa: E731
        said = self._member.join(self._call.alike, stopping)
        if said.kind == ranks.END:
            raise RunEnded(said.body)
        where = said.body
        self._cleanup.enter_context(variables(where["environment"]))
        self._work = Path(where["work"])
        self._result_folder = Path(where["result"]) / f"tmp-result-{ranks.part_name(self._rank)}"
        self._take(where)
        self._member.say(ranks.READY, self._progress.step)

    def _take(self, where: dict[str, Any]) -> None:
        """Take the state that this attempt begins with."""
        restore, is_done = where["restore"], where["done"] is not None
        if is_done:
            self._result_of_part = Path(where["part_result"])
        if is_done and restore is None:
            self._progress.step = where["step"]
        elif restore is not None and not where["init"]:
            saved = snapshot.read(Path(restore))
            self._call.restore(Path(restore), saved)
            self._progress.resume(saved.step, saved.loop.get("over"))
        else:
            if restore is not None:
                self._call.begin_with(Path(restore))
            self._unproved = True
            self._prove_rank_state()
        if is_done:
            self._progress.left_before = True

    def boundary(self) -> None:
        """Follow rank 0's messages at this boundary until it says to make the next step."""
        progress = self._progress
        if self._unproved and progress.step == 1:
            self._prove_rank_state()
            self._unproved = False
        while (said := self._member.word(progress.step)).kind != ranks.GO:
            if said.kind == ranks.END:
                progress.stopped = said.body == exits.INTERRUPTED
                raise SystemExit(said.body)
            if said.kind == ranks.OVER:
                progress.why = progress.why or "rank 0 has ended the loop"
                return
            self._member.say(ranks.WRITTEN, progress.step, self._write_part(Path(said.body)))

    def warn(self, sentences: Iterable[str]) -> None:
        """Print these warnings."""
        for sentence in sentences:
            say(f"warning: {sentence}")

    def judge_best(self, name: str, step: int, value: float, direction: Direction) -> None:
        """Do nothing: the run keeps rank 0's evaluations."""

    def tick(self, phase: str) -> None:
        """Do nothing: rank 0 gives the run's signs of life."""

    def evals(self) -> list[dict[str, Any]]:
        """Raise LoopError: only rank 0 keeps evaluations."""
        raise LoopError(
            f"run.evals in rank {self._rank}: only rank 0 keeps evaluations; read them if "
            "run.rank is 0, and send the other ranks what they need"
        )

    def data(self, path: str | Path) -> Path:
        """The local path of data."""
        found = data.find(path, lambda: None)
        data.take_used()  # rank 0 reports the run's data
        return found

    def result_folder(self) -> Path:
        """The folder to which the program writes its result, or that has the result of a finished
        part."""
        if self._result_of_part is not None:
            return self._result_of_part
        assert self._result_folder is not None
        return self._result_folder

    def loop_left(self) -> None:
        """Do nothing: rank 0 saves the state at the loop's end."""

    def is_stopped(self, over: bool) -> bool:
        """Whether rank 0 has stopped this attempt."""
        return self._progress.stopped

    def _write_part(self, folder: Path) -> tuple[int, str] | None:
        """Write this rank's part of a snapshot; return a full disk's error, so that rank 0 tries
        again."""
        try:
            if self._call.rank_state is not None:
                self.warn(self._call.rank_state.write(folder, self._progress.step))
        except OSError as error:
            if error.errno not in scratch_space.FULL:
                raise
            return error.errno, error.strerror or ""
        return None

    def complete(self) -> None:
        """Report the end to rank 0, and end as rank 0 does."""
        progress = self._progress
        if not (progress.started or self.is_done):
            raise LoopError("the training has made no steps: loop over run.steps()")
        if progress.total not in (None, progress.drawn) and not progress.is_over:
            raise ending.left_early(progress.step, progress.total)
        self._member.say(ranks.FINISHED, progress.step, progress.drawn)
        while (said := self._word_at_end()).kind in (ranks.OVER, ranks.PART):
            if said.kind == ranks.PART:  # of the state at the loop's end
                self._member.say(ranks.WRITTEN, progress.step, self._write_part(Path(said.body)))
        if said.kind != ranks.END:
            raise RankLost(
                f"rank 0 continues after step {progress.step}, where this rank has ended: all "
                "ranks must make the same steps"
            )
        if said.body:
            raise SystemExit(said.body)

    def _word_at_end(self) -> ranks.RankMessage:
        progress = self._progress
        said = self._member.word(progress.step, left=True)
        if progress.drawn is not None and said.step in (progress.drawn - 1, progress.drawn):
            progress.step = said.step
        return said

    def leave_part(self) -> None:
        """Do nothing: rank 0 has already said at the part's end whether to stop."""

    def end(self, error: BaseException | None) -> None:
        """Close the connections; tell the other ranks why if this rank failed."""
        if self._result_folder is not None:
            shutil.rmtree(self._result_folder, ignore_errors=True)
        try:
            if isinstance(error, Exception | KeyboardInterrupt) and not isinstance(error, RankLost):
                self._member.fail(str(error) or type(error).__name__)
            else:
                self._member.close()
        finally:
            self._cleanup.close()

    def _prove_rank_state(self) -> None:
        if self._call.rank_state is not None:
            self._call.rank_state.prove(self._work)
