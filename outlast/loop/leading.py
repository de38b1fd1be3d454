"""A training in the process that talks to the supervisor: the only process, or rank 0."""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outlast.base import exits, scratch_space
from outlast.base.variables import variables
from outlast.loop import (
    data,
    ending,
    parts,
    ranks,
    schedule,
    snapshot,
    state,
    trackers,
    unchanged,
    writing,
)
from outlast.loop.call import Call
from outlast.loop.connection import Connection, check_process, interrupted
from outlast.loop.errors import LoopError, RunEnded
from outlast.loop.history import Direction
from outlast.loop.local import STOP_SEC
from outlast.loop.progress import Progress
from outlast.loop.recording import Recording
from outlast.loop.resuming import Resuming
from outlast.loop.saving import Saver
from outlast.loop.watchers import Watchers
from outlast.loop.words import say
from outlast.protocol import Ended, Welcome
from outlast.spec.result import METRICS_FILE


class Leading:
    """Everything besides the loop itself: the connection to the supervisor, snapshots, the other
    ranks, and the end. Call ``begin`` first and ``end`` in any case."""

    def __init__(
        self, call: Call, progress: Progress, recording: Recording, watchers: Watchers
    ) -> None:
        self._call = call
        self._progress = progress
        self._recording = recording
        self._watchers = watchers
        self._connection = Connection(call.options, call.part, restore_done=call.restore_done)
        self._leader: ranks.Leader | None = None
        self._saver: Saver | None = None
        self._result_of_part: Path | None = None
        """The files of a finished part's result, once requested."""
        self._resuming = Resuming(call, progress, recording, watchers)
        self._cleanup = contextlib.ExitStack()

    @property
    def is_done(self) -> bool:
        """Whether the part was done before this start."""
        return self._resuming.done_in is not None

    # The beginning.

    def begin(self) -> None:
        """Connect to the supervisor, and take the checkpoint that it has restored. RunEnded if the
        run has ended."""
        state.check_top(self._call.state)
        check_process()
        if self._call.world is not None:
            self._leader = ranks.Leader(self._call.world, before_exit=self._say_lost)
        answer = self._connection.open(self._call.total)
        self.session = self._connection.session
        if self._leader is not None:
            self._leader.gather(self._call.alike, self._connection.asked_to_leave)
        if isinstance(answer, Ended):
            say(answer.message)
            raise RunEnded(answer.exit)
        self._connection.tell_data()
        self._cleanup.enter_context(variables(answer.environment()))
        self._result_folder = Path(answer.result or answer.work) / writing.RESULT
        rows = self._recording.open(Path(answer.rows), answer.before)
        self._cleanup.enter_context(rows)
        saver = self._saver = self._open_saver(answer)
        if answer.restore is not None and not answer.init:
            here = self._call.rank_state is not None
            size = 1 if self._call.world is None else self._call.world.size
            ranks.check_parts(Path(answer.restore), size, here)
        if self._leader is not None:
            self._begin_ranks(self._leader, answer)
        self._resuming.take(answer, saver.prove)
        self._connection.part_done = self.is_done
        if self._leader is not None:  # before the first tick, which releases the restored folder
            self._leader.wait_ready(self._progress.step)
        if self._call.tracker is not None:
            arguments = self._call.options.arguments or {}
            self._recording.tracker = trackers.Tracker(self._call.tracker, answer, arguments)
        restored = answer.restore is not None and not answer.init
        saver.over = self._progress.over
        # On a laptop each part has its own interval; the supervisor was started with the first
        # one's.
        local_run = self._connection.supervisor is not None
        every = self._call.options.checkpoint_every if local_run else answer.checkpoint_every
        step = self._progress.step
        saver.begin(step, schedule.begin(every, step, answer), restored=restored)
        self._connection.describe("stopping after this step")

    def _open_saver(self, answer: Welcome) -> Saver:
        saver = Saver(
            self.session,
            self._call,
            self._recording,
            self._watchers,
            [Path(place) for place in (answer.work, *answer.scratch)],
            leader=self._leader,
        )
        self._cleanup.callback(saver.close)
        return saver

    def _begin_ranks(self, leader: ranks.Leader, answer: Welcome) -> None:
        """Tell the other ranks, which have no supervisor, where they begin."""
        part_result = None if answer.done is None else str(self.result_folder_of_part())
        begin = {
            "restore": answer.restore,
            "init": answer.init,
            "work": answer.work,
            "result": answer.result or answer.work,
            "done": answer.done,
            "step": answer.step,
            "part_result": part_result,
        }
        leader.begin({**begin, "environment": answer.environment()})

    def _say_lost(self, why: str) -> None:
        """Report why the ranks' watch ends this process, just before it does."""
        self._connection.report(why, "trainer")

    # Between two steps.

    def boundary(self) -> None:
        """Make and hand over due snapshots; SystemExit 75 if the training was asked to stop."""
        saver, step = self._saver, self._progress.step
        assert saver is not None
        self.session.check_process()
        self._connection.signals.keep()
        self._recording.write_row(step)
        saver.over = self._progress.over
        self.session.poll()
        saver.hear_answer()
        if step <= unchanged.GLANCES:
            self.warn(self._watchers.glance())
        if step == 1 and self._resuming.is_unproved:
            saver.prove()
            self._resuming.is_unproved = False
        left_sec = self._connection.stop_in_sec
        if left_sec is not None:
            self._stop(saver, left_sec)
        self._say_alive("train")
        if self._progress.is_over:
            saver.save_last(step)
        else:
            saver.save_due(step)
        if self._leader is not None:
            if self._progress.why:
                self._leader.over(step)
            else:
                self._leader.go(step)

    def warn(self, sentences: Iterable[str]) -> None:
        """Print these warnings, here and in the run's status."""
        for sentence in sentences:
            self.session.warn(sentence)

    def judge_best(self, name: str, step: int, value: float, direction: Direction) -> None:
        """Judge a value evaluated in the current step; a new best is saved after the step."""
        assert self._saver is not None
        self._saver.judge_best(name, step, value, direction)

    def _stop(self, saver: Saver, budget_sec: float) -> None:
        """Hand over this step's state within ``budget_sec`` and exit 75."""
        progress = self._progress
        progress.stopped = True
        deadline = time.monotonic() + budget_sec
        handed_over = saver.hand_over(progress.step, deadline)
        if self._connection.supervisor is not None:
            if handed_over and self.session.wait_committed(deadline - time.monotonic()):
                of = "" if progress.total is None else f" of {progress.total}"
                say(f"stopped after step {progress.step}{of}; the same command resumes from there")
            else:
                handed_over = False
        if not handed_over:
            say(
                f"stopped, but step {progress.step} could not be saved within "
                f"{budget_sec:.0f} s; the run resumes from the checkpoint before",
            )
        raise interrupted()

    def tick(self, phase: str) -> None:
        """Give a sign of life; CheckpointFailed if a commit failed."""
        self._connection.session.poll()
        self._say_alive(phase)

    def _say_alive(self, phase: str) -> None:
        if self.session.tick(self._progress.step, phase):
            try:
                # The supervisor shows the last rows with each heartbeat.
                self._recording.flush()
            except OSError as error:
                if error.errno not in scratch_space.FULL:
                    raise  # on a full disk, rows wait for the next snapshot, which retries

    # Other requests of the program.

    def evals(self) -> list[dict[str, Any]]:
        """All evaluations so far, in all attempts."""
        return self._recording.history.evals()

    def data(self, path: str | Path) -> Path:
        """The local path of data."""
        try:
            found = data.find(path, lambda: self.tick("staging"))
        except LoopError:
            # The terminal's Ctrl-C ended the download too; the next attempt continues it.
            if self._connection.is_interrupted():
                self._progress.stopped = True
                raise interrupted() from None
            raise
        self._connection.tell_data()
        return found

    def result_folder(self) -> Path:
        """The folder to which the program writes its result, or that has the result of a finished
        part."""
        return self.result_folder_of_part() if self.is_done else self._result_folder

    def result_folder_of_part(self) -> Path:
        """The folder with the result of this part, which is done."""
        if self._result_of_part is None:
            self._result_of_part = self.session.results()
        return self._result_of_part

    # The end.

    def loop_left(self) -> None:
        """After the loop was left, save its state before the program continues with it."""
        progress, saver = self._progress, self._saver
        if not progress.started or progress.left_before or saver is None:
            return
        saver.over = progress.over
        ended = self._call.part and (progress.total is None or progress.is_over)
        if not progress.stopped and (progress.why or ended):
            # Without `finish`, an error in the body looks like a `break`.
            if progress.why:
                with contextlib.suppress(OSError):  # the next flush tries again
                    self._recording.write_row(progress.step)
            saver.write_last(progress.step, sure=bool(progress.why))

    def is_stopped(self, over: bool) -> bool:
        """Whether this attempt ends because of a request to stop, even if the program ignored it. A
        training that has finished its steps is complete instead."""
        if self._progress.stopped or self._connection.signals.impatient:
            return True
        return not (over and self._progress.is_over) and self._connection.stop_asked()

    def complete(self) -> None:
        """Hand over the last state and the result of a training that is over."""
        progress, saver = self._progress, self._saver
        if self.is_done:
            return
        if not progress.started or saver is None:
            raise LoopError("the training has made no steps: loop over run.steps()")
        if progress.total is not None and not progress.is_over:
            raise ending.left_early(progress.step, progress.total)
        self._connection.describe("the training is over, and its result is being kept")
        if self._leader is not None:
            if progress.why:
                self._leader.over(progress.step)
            self._leader.wait_finished(progress.step)
        self._recording.write_row(progress.step)
        folder = self._result_folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / METRICS_FILE).write_bytes(self._recording.history.metrics_json())
        if self._call.part:
            self._complete_part(saver)
            return
        result = snapshot.publish(folder, folder.with_name("result"))
        saver.finish(progress.step, STOP_SEC)
        # The last snapshot may have come before the last rows.
        self.session.complete(progress.step, result, self._recording.flush(), progress.why)

    def _complete_part(self, saver: Saver) -> None:
        """Complete a part; its state goes first, because the end of the part refers to it."""
        step, why = self._progress.step, self._progress.why
        saver.finish_part(step)
        folder = self._result_folder.with_name("part")
        ended = parts.write(folder, self._result_folder, step, why, self._recording.history)
        self.session.complete_part(step, ended, self._recording.flush(), why)

    def leave_part(self) -> None:
        """Raise SystemExit 75 before another part if the program was asked to stop."""
        if self._connection.stop_asked():
            raise interrupted()

    def end(self, error: BaseException | None) -> None:
        """Close everything; tell the supervisor why if training failed."""
        progress = self._progress
        try:
            if progress.started:
                with contextlib.suppress(OSError):  # closing the rows tries again
                    self._recording.write_row(progress.step)
                    self._recording.flush()
                self._connection.note_step(progress.step)
            if (said := ending.report(error)) is not None:
                self._connection.report(*said, ending.traceback_of(error))
            if self._recording.tracker is not None:
                self._recording.tracker.close(interrupted=error is not None)
            self._connection.close(error)
        finally:
            self._cleanup.close()
            self._connection.signals.restore()
            if self._leader is not None:
                self._end_ranks(self._leader, error)

    def _end_ranks(self, leader: ranks.Leader, error: BaseException | None) -> None:
        """End the other ranks last, with this one's exit code: torchrun ends all ranks as soon as
        one fails, which must not interrupt the hand-over."""
        if error is None:
            leader.end(exits.DONE, self._progress.step)
        elif isinstance(error, SystemExit) and isinstance(error.code, int):
            leader.end(error.code)
        else:
            leader.fail(str(error) or type(error).__name__)
