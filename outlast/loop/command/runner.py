"""Runs a command: restores its files, starts, watches and stops it, and judges its end.

One thread makes the decisions, ten times a second and at every event. Two more copy the command's
output, which is the only other sign of life.
"""

import contextlib
import os
import select
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from outlast.base import exits
from outlast.loop.command import home
from outlast.loop.command.child import Child
from outlast.loop.command.command import Command
from outlast.loop.command.errors import CommandFailed
from outlast.loop.command.folder import Copier
from outlast.loop.command.folders import Folders
from outlast.loop.command.handover import Handover
from outlast.loop.command.hidden import Hidden
from outlast.loop.command.left import Left
from outlast.loop.command.listing import look
from outlast.loop.command.marks import Marks
from outlast.loop.command.notes import Notes
from outlast.loop.command.outcome import Outcome
from outlast.loop.command.saves import Saves
from outlast.loop.command.staging import Staging
from outlast.loop.command.work import WorkFolder
from outlast.loop.errors import LoopError
from outlast.loop.local import STOP_SEC
from outlast.loop.session import Session
from outlast.loop.signals import Interrupts
from outlast.loop.words import say
from outlast.protocol import Welcome, parse_every

POLL_SEC = 0.1
SIGNS_SEC = 5.0
LAST_COPY_SEC = 1.0
"""The least part of the time to stop (at most half) that is kept for the copy after the command's
end."""
LINGER_SEC = 5.0
"""Seconds for the rest of the tree to end after the command was asked to stop or exited with 0."""
STOP_WAIT_SEC = 5.0
"""Seconds to wait for the supervisor's message after its signal to the command."""
DUMP_SEC = 1.0
TOO_LATE = " while its last checkpoint is still being stored"

SAVED_EXITS = frozenset({exits.DONE, exits.INTERRUPTED})
"""Exit codes with which a command that was asked to stop says that it has saved its state."""


class Heard:
    """Notes signals to this process while a supervisor decides what they mean."""

    def __init__(self) -> None:
        self.requested = False

    def note(self, number: int, frame: object) -> None:
        """Signal handler: only set a flag."""
        self.requested = True


@dataclass(frozen=True)
class _Stop:
    """A request to stop the command."""

    kill_at_sec: float
    deadline_sec: float
    hand_over: bool


class Runner:
    """One attempt of a command. Call ``run`` once."""

    def __init__(
        self,
        command: Command,
        session: Session,
        welcome: Welcome,
        signals: Interrupts | Heard,
    ) -> None:
        """``signals`` are this process's own: Interrupts stop the command, Heard only notes
        them."""
        self._command = command
        self._session = session
        self._welcome = welcome
        self._signals = signals
        self._is_local = isinstance(signals, Interrupts)
        self._places = Folders(command, Path(welcome.work))
        self._scratch = [self._places.work, *map(Path, welcome.scratch)]
        self._staging = Staging(
            command,
            self._places,
            session,
            welcome,
            is_local=self._is_local,
            interrupted=lambda: self._interrupted,
        )
        every_sec = parse_every(welcome.checkpoint_every).seconds or 0.0
        self._handover = Handover(session, every_sec)
        self._child = Child()
        self._stop: _Stop | None = None
        self._dump = False
        self._exited_at_sec: float | None = None
        self._left = Left()
        """Watches processes that the command left running."""
        self._at_work: str | None = None
        """Names of those that were still at work at its end."""
        self._last_sign_sec = 0.0
        self._signs_at_sec = 0.0
        self._signs: object = None

    def run(self) -> int:
        """Run the command to its end and return the exit code. Raises LoopError and OSError."""
        with contextlib.ExitStack() as cleanup:
            self._command.check()
            for sentence in self._command.words.near_misses():
                say(sentence)
            self._prepare(cleanup)
            self._staging.find_data()
            marks = cleanup.enter_context(contextlib.closing(Marks()))
            cleanup.enter_context(self._child)
            self._start(marks)
            try:
                self._watch(marks)
                self._note_what_is_left()
                self._failed_unnoticed = self._hidden.found(self._child.pid)
            finally:
                self._child.kill()
            return self._judge()

    # Before the command.

    def _prepare(self, cleanup: contextlib.ExitStack) -> None:
        places, restore, kinds = self._places, self._welcome.restore, self._command.kinds
        cleanup.enter_context(home.held(places.home))
        self._staging.clear()
        self._staging.make_ready(restores=restore is not None)
        copier = Copier(places.checkpoint, self._scratch, kinds)
        notes = Notes()
        if restore is not None:
            notes = copier.put_back(Path(restore))
        self._saves = Saves(
            places.checkpoint,
            copier,
            self._handover,
            kinds,
            quiet_sec=self._command.quiet_sec,
            step=0 if self._welcome.init else self._welcome.step,
            has_open=self._child.has_open,
        )
        self._saves.begin(notes, is_new=bool(self._command.checkpoint_dir) and restore is None)
        if sentence := self._command.words.cannot_save(places.cwd):
            say(sentence)
        for sentence in self._command.lost_failures(places.cwd):
            self._session.warn(
                sentence
            )  # also in the status, because the end may look like success
        self._session.tick(self._saves.step, "start")  # releases the restored folder

    def _start(self, marks: Marks) -> None:
        places = self._places
        log_dir = os.environ.get("LOG_DIR") or self._welcome.log_dir
        self._watched = [places.result, *([Path(log_dir)] if log_dir else [])]
        environment = self._staging.environment(marks)
        values = {
            "data": environment["DATA_DIR"],
            "checkpoint": environment["CHECKPOINT_DIR"],
            "result": environment["RESULT_DIR"],
            "output_uri": environment["OUTPUT_URI"],
        }
        argv = self._command.filled(values, places.checkpoint)
        self._outcome = Outcome(
            self._command,
            places,
            self._session,
            self._welcome,
            self._saves,
            self._handover,
            self._work_folder([*self._watched, marks.folder]),
            is_local=self._is_local,
        )
        self._poll = select.poll()
        self._poll.register(self._child, select.POLLIN)
        self._poll.register(marks, select.POLLIN)
        self._hidden = Hidden(marks.folder, places.cwd)
        scripts = self._command.words.scripts(places.cwd)
        old = environment.get("BASH_ENV", "")
        environment |= self._hidden.environment(scripts, old)
        self._child.start(argv, places.cwd, environment)

    def _work_folder(self, without: list[Path]) -> WorkFolder:
        """The command's working folder, whose new files may become the result; ``without`` these
        folders and those that are not the command's."""
        places = self._places
        others = [places.home, places.checkpoint, places.data, *self._scratch]
        found = WorkFolder(
            places.cwd,
            [*others, *without, Path(tempfile.gettempdir()), *map(Path, self._command.data)],
            since_ns=None if self._staging.begun is None else self._staging.begun.at_ns,
        )
        if not found.is_known and not self._command.names_result:
            say(
                f"the working folder {places.cwd} contains too many files to search, so nothing in"
                " it becomes the result: start the command in a folder with fewer files, or let"
                " it write into RESULT_DIR"
            )
        return found

    # While the command runs.

    def _watch(self, marks: Marks) -> None:
        while self._child.code is None or self._lingers():
            self._poll.poll(POLL_SEC * 1000)
            self._child.drain()
            marks.serve(self._saves.marked)
            self._session.poll()
            now_sec = time.monotonic()
            self._heed_stop(now_sec)
            if self._dump:
                self._show_stacks()
            if self._saves.scan(now_sec, stopping=self._stop is not None):
                self._last_sign_sec = now_sec
            if self._exited_at_sec is not None:
                self._left.look(self._child.rest)
            self._handover.offer(stopping=self._stop is not None)
            self._tick(now_sec)

    def _lingers(self) -> bool:
        """Whether to wait for the rest of the tree, which may end by itself after a stop or an exit
        with 0."""
        if self._child.was_killed or (self._stop is None and self._child.code != exits.DONE):
            return False
        if not self._child.rest:
            return False
        now_sec = time.monotonic()
        if self._exited_at_sec is None:
            self._exited_at_sec = now_sec
            self._outcome.note_exit()
        until_sec = self._exited_at_sec + LINGER_SEC
        if self._stop is not None:
            until_sec = min(self._stop.kill_at_sec, until_sec)
        return now_sec < until_sec

    def _note_what_is_left(self) -> None:
        """Note, before the rest of the tree is killed, whether it is still at work."""
        rest = self._child.rest
        if self._exited_at_sec is None or self._stop is not None or not rest:
            return
        self._at_work = self._left.at_work(rest, saves=self._outcome.has_changed)

    def _heed_stop(self, now_sec: float) -> None:
        if self._stop is None:
            left_sec = self._session.stop_in_sec
            hand_over = self._session.last_snapshot_wanted
            if left_sec is None and self._interrupted:
                left_sec = STOP_SEC
            if left_sec is None:
                return
            if hand_over:
                keep_sec = min(left_sec / 2, max(LAST_COPY_SEC, 2 * self._saves.copy_cost_sec))
            else:
                keep_sec = left_sec / 2  # no snapshot is wanted, so end early
            deadline_sec = now_sec + left_sec
            self._stop = _Stop(deadline_sec - keep_sec, deadline_sec, hand_over)
            self._child.signal(signal.SIGTERM)
        elif now_sec >= self._stop.kill_at_sec and not self._child.was_killed:
            say("the command did not end in time after SIGTERM; it is killed")
            self._child.kill()

    @property
    def _interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM on a laptop asks for the stop."""
        return self._is_local and self._signals.requested

    def _show_stacks(self) -> None:
        """Make Python's own handler show where the command hangs, because the supervisor takes it
        for stuck. Raises LoopError."""
        self._child.signal(signal.SIGABRT)
        time.sleep(DUMP_SEC)
        raise LoopError("the command showed no sign of life")

    def dump_stacks(self, number: int, frame: object) -> None:
        """Handler of SIGABRT: only set a flag."""
        self._dump = True

    def _tick(self, now_sec: float) -> None:
        if now_sec >= self._signs_at_sec:
            self._signs_at_sec = now_sec + SIGNS_SEC
            self._child.reap()
            signs = [look(root).files for root in self._watched]
            if signs != self._signs:
                self._signs, self._last_sign_sec = signs, now_sec
        last_sec = max(self._last_sign_sec, self._child.last_output_sec)
        if now_sec - last_sec < SIGNS_SEC or not self._child.is_watched:
            self._session.tick(self._saves.step, "train" if self._stop is None else "stop")

    # After the command's end.

    def _judge(self) -> int:
        code = self._child.code
        assert code is not None
        now_sec = time.monotonic()
        if self._stop is None and self._signals.requested:
            # A stopping system signals every process at once, so the command may have ended because
            # of that.
            left_sec = self._session.stop_in_sec or STOP_WAIT_SEC
            self._stop = _Stop(now_sec, now_sec + left_sec, True)
        if self._stop is not None:
            return self._end_stopped(self._stop, code)
        hidden = None if code != exits.DONE else self._failed_unnoticed
        if code == exits.DONE and hidden is None:
            self._outcome.complete(self._at_work)
            return exits.DONE
        self._saves.take_last(saved=False)
        self._outcome.hand_over_last()
        if hidden is not None:
            say(f"the command exited with 0, but {hidden}")
            lines = [*self._child.last_lines, str(hidden)]
            raise CommandFailed(hidden.code, lines, self._outcome.continues())
        raise CommandFailed(code, self._child.last_lines, self._outcome.continues())

    def _end_stopped(self, stop: _Stop, code: int) -> int:
        """End after a stop; then no exit code means completion, not even 0."""
        if stop.hand_over:
            saved = code in SAVED_EXITS and not self._child.was_cut
            self._saves.take_last(saved=saved)
        if not stop.hand_over or not self._handover.finish(self._saves.step, stop.deadline_sec):
            self._handover.drop()
        if self._interrupted:
            left_sec = stop.deadline_sec - time.monotonic()
            late = "" if self._session.wait_committed(max(0.0, left_sec)) else TOO_LATE
            say(f"stopped{late}; {self._outcome.continues()}")
        return exits.INTERRUPTED
