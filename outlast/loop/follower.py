"""``outlast.train`` in every rank but the first: the same steps, at rank 0's word."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outlast.base import exits, scratch_space
from outlast.base.variables import variables
from outlast.loop import ending, notes, ranks, saving, snapshot, state, verify
from outlast.loop.errors import LoopError, RankLost
from outlast.loop.history import Direction
from outlast.loop.signals import Supervised
from outlast.loop.training import RunEnded, Training
from outlast.loop.words import say


class Follower(Training):
    """One rank's part in a training that rank 0 leads. What rank 0 keeps is nothing here: ``log``,
    ``eval`` and ``tick`` do nothing, and what is written to ``result`` is thrown away."""

    _drawn: int | None = None
    """The step that the loop was left in. Whether it counts, rank 0 knows."""

    def log(self, **values: Any) -> None:
        """Nothing: rank 0's rows are the run's."""
        self._marked = True

    def eval(self, *, best: Direction | None = None, of: str | None = None, **values: Any) -> None:
        """Nothing: rank 0's evaluations are the run's."""
        self._marked = True

    @property
    def evals(self) -> list[dict[str, Any]]:
        """LoopError: what rank 0 gave to ``eval`` is not here, and what this rank gave is not
        kept."""
        raise LoopError(
            f"run.evals in rank {self.rank}: only rank 0 keeps evaluations; read them if "
            "run.rank is 0, and send the other ranks what they need"
        )

    def tick(self, phase: str = "train") -> None:
        """Nothing: rank 0's signs of life are the run's."""

    def _begin(self) -> None:
        world = self._world
        assert world is not None
        self._member = ranks.Member(world)
        # The terminal's Ctrl-C and torchrun's SIGTERM reach every rank; what they mean, rank 0
        # says at the next boundary. Where rank 0 has gone, the watch ends this rank.
        self._signals = Supervised()
        self._signals.install()
        self._cleanup.callback(self._signals.restore)
        state.check_top(self._state)
        stopping = lambda: self._signals.requested  # noqa: E731
        said = self._member.join(self._call, stopping)
        if said.kind == ranks.END:
            raise RunEnded(said.body)
        where = said.body
        self._cleanup.enter_context(variables(where["environment"]))
        self._work = Path(where["work"])
        self._result_folder = Path(where["result"]) / f"tmp-result-{ranks.part_name(world.rank)}"
        if where["done"] is not None:
            self._left_before, self._done_in = True, Path(where["done"])
            self._result_of_part = Path(where["part_result"])
        if where["done"] is not None and where["restore"] is None:
            self._step = where["step"]
        elif where["restore"] is not None and not where["init"]:
            folder = Path(where["restore"])
            saved = snapshot.read(folder)
            notes.check(saved.loop, saving.NOTES, "state.json")
            state.restore_all(self._state, saved.nodes, saved.blobs)
            verify.check(self._state, saved)
            if self._rank_state is not None:
                self._rank_state.restore(folder)
            self._step = saved.step
            self._take_over_note(saved.loop)
        else:
            if where["init"]:
                self._take_init(Path(where["restore"]))
            self._unproved = True
            self._prove_rank_state()
        self._member.say(ranks.READY, self._step)

    def _boundary(self) -> None:
        """Do what rank 0 says at this boundary, until it says go on."""
        if self._unproved and self._step == 1:
            self._prove_rank_state()
            self._unproved = False
        while (said := self._member.word(self._step)).kind != ranks.GO:
            if said.kind == ranks.END:
                self._stopped = said.body == exits.INTERRUPTED
                raise SystemExit(said.body)
            if said.kind == ranks.OVER:
                self._why = self._why or "rank 0 has ended the loop"
                return
            self._member.say(ranks.WRITTEN, self._step, self._write_part(Path(said.body)))

    def _warn(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            say(f"warning: {sentence}")

    def _leave_loop(self) -> None:
        self._drawn = self._drawn or self._making
        super()._leave_loop()

    def _is_stopped(self, over: bool) -> bool:
        return self._stopped

    def _write_part(self, folder: Path) -> tuple[int, str] | None:
        """A full disk's error, which is rank 0's to try again, as it is with its own part."""
        try:
            if self._rank_state is not None:
                self._warn(self._rank_state.write(folder, self._step))
        except OSError as error:
            if error.errno not in scratch_space.FULL:
                raise
            return error.errno, error.strerror or ""
        return None

    def _complete(self) -> None:
        if not (self._started or self.done):
            raise LoopError("the training has made no steps: loop over run.steps()")
        if self._total not in (None, self._drawn) and not self._is_over:
            raise ending.left_early(self._step, self._total)
        self._member.say(ranks.FINISHED, self._step, self._drawn)
        while (said := self._word_at_end()).kind in (ranks.OVER, ranks.PART):
            if said.kind == ranks.PART:  # of what the loop was left with
                self._member.say(ranks.WRITTEN, self._step, self._write_part(Path(said.body)))
        if said.kind != ranks.END:
            raise RankLost(
                f"rank 0 goes on after step {self._step}, where this rank has ended: all ranks "
                "must make the same steps"
            )
        if said.body:
            raise SystemExit(said.body)

    def _word_at_end(self) -> ranks.RankMessage:
        said = self._member.word(self._step, left=True)
        if self._drawn is not None and said.step in (self._drawn - 1, self._drawn):
            self._step = said.step
        return said

    def _leave_part(self) -> None:
        """Nothing: rank 0 has said whether to stop, with the part's end."""

    def _end(self, error: BaseException | None) -> None:
        """Leave the others; tell them why if this rank failed."""
        if hasattr(self, "_result_folder"):
            shutil.rmtree(self._result_folder, ignore_errors=True)
        try:
            if isinstance(error, Exception | KeyboardInterrupt) and not isinstance(error, RankLost):
                self._member.fail(str(error) or type(error).__name__)
            else:
                self._member.close()
        finally:
            self._cleanup.close()

    def _prove_rank_state(self) -> None:
        if self._rank_state is not None:
            self._rank_state.prove(self._work)
