"""The steps of a training, resumed and stopped at their boundaries."""

import contextlib
import math
import os
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from outlast.base import exits, scratch_space
from outlast.base.names import check_object_name
from outlast.base.variables import variables
from outlast.loop import (
    data,
    ending,
    local,
    notes,
    parts,
    ranks,
    rows,
    sampler,
    saving,
    schedule,
    snapshot,
    state,
    trackers,
    unchanged,
    unsaved,
    usage,
    verify,
)
from outlast.loop.connection import Connection, check_process, interrupted
from outlast.loop.errors import DoesNotFit, LoopError
from outlast.loop.history import Direction, History, judged_name
from outlast.loop.local import STOP_SEC
from outlast.loop.words import say
from outlast.protocol import Ended, Welcome, parse_every, row_part
from outlast.spec.result import METRICS_FILE

_WHY_MAX = 500
"""Characters kept of the message that ``finish`` gets."""


class RunEnded(SystemExit):
    """The run has ended already; carries the exit code that belongs to its end."""


class Training:
    """One attempt at a training. Use it in ``with``; all methods belong to the thread of the loop.

    A body that raises ends the attempt as failed; one that returns has completed the training,
    where all steps were made, ``finish`` was called, or there is no total.
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
        if total is not None and (not isinstance(total, int) or isinstance(total, bool)):
            raise LoopError(f"total {total!r}: must be a number of steps, 1 or more, or None")
        if total is not None and total < 1:
            raise LoopError(f"total {total!r}: must be a number of steps, 1 or more, or None")
        self._state = state
        self._total = total
        self._part = part
        wrong = isinstance(init_only, str) or (init_only and not set(init_only) <= set(state))
        if wrong:
            raise LoopError(f"init_only {init_only!r}: must be names in state")
        self._init_only = None if init_only is None else sorted(init_only)
        self._world = ranks.world()
        self._leader: ranks.Leader | None = None
        self._rank_state = (
            None
            if rank_state is None
            else ranks.RankState(rank_state, self.rank, self.world_size, constant)
        )
        unsaved.check_constant(constant, state, rank_state)
        inline = usage.is_inline(state)
        self._watch = unchanged.Watch(state, constant, inline=inline)
        self._unsaved = unsaved.Unsaved([state, rank_state], constant)
        self._samplers = sampler.Samplers([state, rank_state])
        self._steps: weakref.ref[Iterator[int]] | None = None
        self._tracker_name = trackers.choose(tracker) if self.rank == 0 else None
        self._tracker: trackers.Tracker | None = None
        self._options = options
        self._restore_done = restore_done
        self._connection = Connection(options, part, restore_done=restore_done)
        self._own = os.getpid()
        self._step = 0
        self._making: int | None = None
        self._marked = False
        """Whether the step being made has shown that its body runs."""
        self._started = self._finished = False
        self._why = ""
        """Why the training is over before its last step, as ``finish`` said."""
        self._left_before = False
        """Whether the loop was over already where this attempt resumes."""
        self._done_in: Path | None = None
        """What this part ended with, where it is done already."""
        self._result_of_part: Path | None = None
        """The files of its result, once they were asked for."""
        self._before = 0
        """Steps of the parts before this one."""
        self._stopped = False
        """Whether a request to stop was carried out."""
        self._row: dict[str, Any] = {}
        self._history = History()
        self._unproved = False
        self._cleanup = contextlib.ExitStack()

    # What a trainer calls.

    @property
    def step(self) -> int:
        """Steps completed so far, in all attempts."""
        return self._step

    @property
    def total(self) -> int | None:
        """Steps of the whole training; None if only the loop knows."""
        return self._total

    @property
    def part(self) -> str | None:
        """Name of this part of the run; None if the training is the whole run."""
        return self._part or None

    @property
    def done(self) -> bool:
        """Whether this part was done before this start: there are no steps, ``evals`` are what they
        were, and ``result`` gives its files. What is written or evaluated again is not kept."""
        return self._done_in is not None

    @property
    def rank(self) -> int:
        """Number of this process among those of the training, from 0."""
        return 0 if self._world is None else self._world.rank

    @property
    def world_size(self) -> int:
        """Processes that make this training together; 1 without ``torchrun``."""
        return 1 if self._world is None else self._world.size

    @property
    def evals(self) -> list[dict[str, Any]]:
        """All evaluations so far, in all attempts: the step and the values of each."""
        return self._history.evals()

    def steps(self) -> Iterator[int]:
        """The steps still to make: their numbers, from one more than what is done up to total.

        Between two of them snapshots are handed over, and a requested stop exits with 75. A step
        counts once the next one is asked for; the last one before the loop is left counts if it
        logged or evaluated anything, or called ``finish``.
        """
        found = self._make_steps()
        self._steps = weakref.ref(found)
        return found

    def _make_steps(self) -> Iterator[int]:
        if self._started:
            raise LoopError("run.steps() was used already; a run has one loop")
        self._started = True
        try:
            self._samplers.first_step(resumed=self._step > 0)
            while not self._left_before:
                self._boundary()
                if self._is_over:
                    return
                self._watch.first_step()
                self._unsaved.first_step(self._steps and self._steps())
                if self._rank_state is not None:
                    self._rank_state.first_step()
                self._making, self._marked = self._step + 1, False
                yield self._making
                self._count_step()
                self._warn(self._samplers.step_made())
        finally:
            self._samplers.end()
            self._leave_loop()

    def _count_step(self) -> None:
        if self._making is not None:
            self._step, self._making = self._making, None

    def _leave_loop(self) -> None:
        """A step that was drawn counts if its body is known to have run: ``zip`` draws one more
        than it uses, and a body may have ended in an error."""
        if self._marked:
            self._count_step()
        self._making = None
        self._finished = True
        if self._started and not self._left_before and hasattr(self, "_saver"):
            self._note_over()
            ended = self._part and (self._total is None or self._is_over)
            if not self._stopped and (self._why or ended):
                # Without `finish`, an error of the body leaves the loop as a `break` does.
                if self._why:
                    with contextlib.suppress(OSError):  # the next flush tries again
                        self._write_row()
                self._saver.write_last(self._step, sure=bool(self._why))
        self._watch.leave_loop()
        if self._rank_state is not None:
            self._rank_state.leave_loop()

    def _note_over(self) -> None:
        """A snapshot after the loop has to say so, unless its step says it."""
        if self._why or (self._finished and self._total is None):
            self._saver.over = self._why

    def finish(self, why: str) -> None:
        """Say that training is over with the step being made, before all steps of the total: early
        stopping, say. Call it once the step's update is done, then leave the loop; a loop that goes
        on ends before its next step. ``why`` is recorded with the end.
        """
        if not isinstance(why, str) or not why.strip():
            raise LoopError(f"finish {why!r}: must say why, such as 'no improvement in 5 evals'")
        if not self._started:
            raise LoopError("run.finish before the loop: call it in or after run.steps()")
        self._why = " ".join(why.split())[:_WHY_MAX]
        self._marked = True

    def log(self, /, **values: Any) -> None:
        """Values of the step being made; one row a step, the last value of a name stands."""
        if self._making is None:
            raise LoopError("run.log outside a step: call it in the body of run.steps()")
        self._check_names("log", values, "step")
        self._marked = True
        for name, value in values.items():
            plain = type(value) is float and math.isfinite(value)
            self._row[name] = value if plain else rows.cell(name, value)

    def eval(
        self, /, *, best: Direction | None = None, of: str | None = None, **values: Any
    ) -> None:
        """An evaluation after this step's update; kept in the state and in metrics.json.

        Values are numbers, of any names; one that is not finite is kept as such, and evaluations
        may have different names. With ``best`` (``max`` or ``min``) a new best value is a
        checkpoint tagged ``best``; ``of`` says which value is judged if there are several. After
        the loop there is no checkpoint to tag, and ``best`` does nothing.
        """
        self._check_names("eval", values)
        cells = {name: rows.scalar(name, value) for name, value in values.items()}
        judged = None if best is None else judged_name(best, of, cells)
        if self.done:
            return
        step = self._making if self._making is not None else self._step
        self._history.add(step, cells)
        if self._making is not None:
            self._marked = True
            self._row.update({name: rows.cell(name, value) for name, value in cells.items()})
            if best is not None and judged is not None:
                self._saver.judge_best(judged, step, cells[judged], best)
        self.tick("eval")

    def _check_names(self, call: str, values: Mapping[str, Any], *taken: str) -> None:
        for name in (*taken, "part") if self._part else taken:
            if name in values:
                raise LoopError(
                    f"run.{call} {name}: every row has its {name} already; use another name"
                )

    def tick(self, phase: str = "train") -> None:
        """A sign of life in a long phase without steps; raises if a checkpoint has failed."""
        self._session.poll()
        self._say_alive(phase)

    def data(self, path: str | Path) -> Path:
        """A local path for training data at a local or ``gs://`` path, as ``outlast.data`` gives
        it, within the training."""
        try:
            found = data.find(path, lambda: self.tick("staging"))
        except LoopError:
            # The terminal's Ctrl-C ended the download, too; it continues the next time.
            if self._connection.is_interrupted():
                self._stopped = True
                raise interrupted() from None
            raise
        self._connection.tell_data()
        return found

    def result(self, name: str) -> Path:
        """Where to write a file of the result; after the loop only, for it is made once. Of a part
        that is done already, where the file is."""
        if not (self._finished or self._why or self.done):
            raise LoopError(f"result {name!r}: write results after the loop of run.steps()")
        check_object_name(name)
        if name == METRICS_FILE:
            raise LoopError(f"result {name!r}: is written from the values given to run.eval")
        if self._done_in is not None and self._result_of_part is None:
            self._result_of_part = self._session.results()
        path = (self._result_of_part or self._result_folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    # The life of the context.

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._own:
            return  # a forked child: the training is its parent's
        self._leave_loop()
        over = error is None or (ending.left_with_0(error) and self._is_over)
        try:
            if self._is_stopped(over):
                ending.say_after_stop(error)
                raise interrupted() from error
            if over:
                self._complete()
                if self._part:
                    self._leave_part()
            elif ending.left_with_0(error):
                raise ending.left_early(self._step, self._total, "sys.exit(0) ended the program")
        except BaseException as late:
            self._end(late)
            raise
        self._end(None if over else error)

    @property
    def _is_over(self) -> bool:
        """Whether the training is known to have come to its end."""
        return self._left_before or bool(self._why) or self._step == self._total

    def _is_stopped(self, over: bool) -> bool:
        """Whether this attempt ends because somebody asked it to, whatever the program made of it.
        A training that has come to its end is complete."""
        if self._stopped or self._connection.signals.impatient:
            return True
        return not (over and self._is_over) and self._connection.stop_asked()

    def _begin(self) -> None:
        state.check_top(self._state)
        check_process()
        if self._world is not None:
            self._leader = ranks.Leader(self._world, before_exit=self._say_lost)
        answer = self._connection.open(self._total)
        self._session = self._connection.session
        if self._leader is not None:
            told = self._connection.told_to_leave
            self._leader.gather(self._call, told)
        if isinstance(answer, Ended):
            say(answer.message)
            raise RunEnded(answer.exit)
        self._connection.tell_data()
        self._cleanup.enter_context(variables(answer.environment()))
        self._work = Path(answer.work)
        self._result_folder = Path(answer.result or answer.work) / saving.RESULT
        self._before = answer.before
        self._rows = self._cleanup.enter_context(rows.Rows(Path(answer.rows)))
        self._saver = saving.Saver(
            self._session,
            self._state,
            self._history,
            self._rows,
            [self._work, *map(Path, answer.scratch)],
            rank_state=self._rank_state,
            leader=self._leader,
            watch=self._watch,
            unsaved=self._unsaved,
        )
        self._cleanup.callback(self._saver.close)
        if answer.restore is not None and not answer.init:
            here = self._rank_state is not None
            ranks.check_parts(Path(answer.restore), self.world_size, here)
        if self._leader is not None:
            begin = {"restore": answer.restore, "init": answer.init, "work": answer.work}
            begin["result"] = answer.result or answer.work
            begin |= {"done": answer.done, "step": answer.step, "part_result": None}
            if answer.done is not None:  # the other ranks cannot ask
                self._result_of_part = self._session.results()
                begin["part_result"] = str(self._result_of_part)
            self._leader.begin({**begin, "environment": answer.environment()})
        if answer.done is not None and answer.restore is None:
            self._step = answer.step
            self._take_end(Path(answer.done))
        elif answer.restore is None or answer.init:
            if answer.restore is not None:
                self._take_init(Path(answer.restore))
            self._saver.prove()
            self._unproved = True  # optimisers make their state in the first step
            self._watch.begin(0)
        else:
            note = self._restore(answer)
            if answer.done is not None:
                self._take_end(Path(answer.done))
            # Only now: nothing of the restore holds what the state does any more.
            self._watch.begin(self._step, note["unchanged"])
            self._unsaved.begin(self._step, note)
        if self._leader is not None:  # before the first tick, which gives the restored folder up
            self._leader.wait_ready(self._step)
        if self._tracker_name is not None:
            arguments = self._options.arguments or {}
            self._tracker = trackers.Tracker(self._tracker_name, answer, arguments)
        # On a laptop, each part's own; the supervisor was started for the first one.
        local_run = self._connection.supervisor is not None
        every = self._options.checkpoint_every if local_run else answer.checkpoint_every
        timing = schedule.Schedule(
            parse_every(every),
            now_sec=time.monotonic(),
            step=self._step,
            age_sec=answer.machine_age_sec,
            commit_sec=answer.commit_sec,
        )
        restored = answer.restore is not None and not answer.init
        self._note_over()
        self._saver.begin(self._step, timing, restored=restored)
        self._connection.describe("stopping after this step")

    @property
    def _call(self) -> dict[str, Any]:
        """What every rank has to be called with alike."""
        return {
            "part": self._part,
            "total": self._total,
            "rank_state": self._rank_state is not None,
            "restore_done": self._restore_done,
        }

    def _take_init(self, folder: Path) -> None:
        """Begin with another run's state."""
        saved = snapshot.read(folder)
        names = list(self._state) if self._init_only is None else self._init_only
        state.restore_named(self._state, saved.nodes, saved.blobs, names)
        verify.check(self._state, saved, names=names)

    def _restore(self, welcome: Welcome) -> dict[str, Any]:
        """Take the checkpoint; gives what it notes of the training."""
        folder = Path(welcome.restore or "")
        saved = snapshot.read(folder)
        if saved.step != welcome.step or saved.step > (self._total or saved.step):
            of = "" if self._total is None else f", of {self._total} in all"
            raise DoesNotFit(
                f"the checkpoint is of step {saved.step}; expected was {welcome.step}{of}"
            )
        notes.check(saved.loop, saving.NOTES, "state.json")
        state.restore_all(self._state, saved.nodes, saved.blobs)
        verify.check(self._state, saved)
        if self._rank_state is not None:
            self._rank_state.restore(folder)
        self._history.read(folder, saved.loop)
        self._step = saved.step
        self._take_over_note(saved.loop)
        return saved.loop

    def _take_over_note(self, loop: Mapping[str, Any]) -> None:
        """Whether the loop was over already where the snapshot was made."""
        if (why := loop.get("over")) is not None:
            self._left_before, self._why = True, why

    def _take_end(self, folder: Path) -> None:
        """This part is done: what it ended with."""
        record = parts.read(folder)
        self._history = History()  # the state's has not what was evaluated after the loop
        self._history.read(folder, record.history)
        self._why, self._left_before, self._done_in = record.why, True, folder
        self._connection.part_done = True

    def _complete(self) -> None:
        if self.done:
            return
        if not self._started:
            raise LoopError("the training has made no steps: loop over run.steps()")
        if self._total is not None and not self._is_over:
            raise ending.left_early(self._step, self._total)
        self._connection.describe("the training is over, and its result is being kept")
        if self._leader is not None:
            if self._why:
                self._leader.over(self._step)
            self._leader.wait_finished(self._step)
        self._write_row()
        self._result_folder.mkdir(parents=True, exist_ok=True)
        (self._result_folder / METRICS_FILE).write_bytes(self._history.metrics_json())
        if self._part:
            self._complete_part()
            return
        result = snapshot.publish(self._result_folder, self._result_folder.with_name("result"))
        self._saver.finish(self._step, STOP_SEC)
        # The last snapshot may have been before the last rows.
        self._session.complete(self._step, result, self._rows.flush(), self._why)

    def _leave_part(self) -> None:
        """Before another part begins: SystemExit 75 where the program was asked to stop."""
        if self._connection.stop_asked():
            raise interrupted()

    def _complete_part(self) -> None:
        """The state first, as the part's end stands on it."""
        self._saver.finish_part(self._step)
        folder = self._result_folder.with_name("part")
        ended = parts.write(folder, self._result_folder, self._step, self._why, self._history)
        self._session.complete_part(self._step, ended, self._rows.flush(), self._why)

    def _end(self, error: BaseException | None) -> None:
        """Close everything; tell the supervisor why if training failed."""
        try:
            if self._started:
                with contextlib.suppress(OSError):  # closing the rows tries again
                    self._write_row()
                    self._rows.flush()
                self._connection.note_step(self._step)
            if (said := ending.report(error)) is not None:
                self._connection.report(*said, ending.traceback_of(error))
            if self._tracker is not None:
                self._tracker.close(interrupted=error is not None)
            self._connection.close(error)
        finally:
            self._cleanup.close()
            self._connection.signals.restore()
            if self._leader is not None:
                self._end_ranks(self._leader, error)

    def _end_ranks(self, leader: ranks.Leader, error: BaseException | None) -> None:
        """The other ranks leave last, with this one's exit code: torchrun, which ends all as soon
        as one fails, must not cut the hand-over short."""
        if error is None:
            leader.end(exits.DONE, self._step)
        elif isinstance(error, SystemExit) and isinstance(error.code, int):
            leader.end(error.code)
        else:
            leader.fail(str(error) or type(error).__name__)

    def _say_lost(self, why: str) -> None:
        """From the ranks' watch, before it ends this process."""
        self._connection.report(why, "trainer")

    # Between two steps.

    def _boundary(self) -> None:
        self._session.check_process()
        self._connection.signals.keep()
        self._write_row()
        self._note_over()
        self._session.poll()
        self._saver.hear_answer()
        if self._step <= unchanged.GLANCES:
            self._watch.glance()
            self._warn(self._unsaved.look())
        if self._unproved and self._step == 1:
            self._saver.prove()
            self._unproved = False
        left_sec = self._connection.stop_in_sec
        if left_sec is not None:
            self._leave(left_sec)
        self._say_alive("train")
        if self._is_over:
            self._saver.save_last(self._step)
        else:
            self._saver.save_due(self._step)
        if self._leader is not None:
            if self._why:
                self._leader.over(self._step)
            else:
                self._leader.go(self._step)

    def _warn(self, sentences: Iterable[str]) -> None:
        for sentence in sentences:
            self._session.warn(sentence)

    def _leave(self, budget_sec: float) -> None:
        """Hand over this step's state within ``budget_sec`` and exit 75."""
        self._stopped = True
        deadline = time.monotonic() + budget_sec
        handed_over = self._saver.hand_over(self._step, deadline)
        if self._connection.supervisor is not None:
            if handed_over and self._session.wait_committed(deadline - time.monotonic()):
                of = "" if self._total is None else f" of {self._total}"
                say(f"stopped after step {self._step}{of}; the same command resumes from there")
            else:
                handed_over = False
        if not handed_over:
            say(
                f"stopped, but step {self._step} could not be saved within "
                f"{budget_sec:.0f} s; the run resumes from the checkpoint before",
            )
        raise interrupted()

    def _say_alive(self, phase: str) -> None:
        if self._session.tick(self._step, phase):
            try:
                self._rows.flush()  # the supervisor shows the last rows with each heartbeat
            except OSError as error:
                if error.errno not in scratch_space.FULL:
                    raise  # else they wait for the next snapshot, which is tried again

    def _write_row(self) -> None:
        if self._row:
            step, (row, self._row) = self._before + self._step, (self._row, {})
            part = {"part": row_part(self._part, self._before)} if self._part else {}
            self._rows.add({"step": step, **part, **row})
            if self._tracker is not None:
                named = {f"{self._part}/{name}": row[name] for name in row} if part else row
                self._tracker.log(step, named)
