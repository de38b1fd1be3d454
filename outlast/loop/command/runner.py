"""The command's life: restored, started, watched, stopped, and what its end means.

One thread decides, ten times a second and whenever something happens. Two more copy the command's
output, which is the only other sign that it lives.
"""

import contextlib
import os
import select
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from outlast.base import codec, exits
from outlast.loop import data
from outlast.loop.command import home, results
from outlast.loop.command.begun import Begun, begun
from outlast.loop.command.child import Child
from outlast.loop.command.command import Command
from outlast.loop.command.errors import (
    CommandError,
    CommandFailed,
    NoOutput,
    ResultTooLarge,
)
from outlast.loop.command.folder import Copier
from outlast.loop.command.handover import Handover
from outlast.loop.command.hidden import Hidden
from outlast.loop.command.left import Left
from outlast.loop.command.listing import look
from outlast.loop.command.mark import SOCKET_VARIABLE as MARK_VARIABLE
from outlast.loop.command.marks import Marks
from outlast.loop.command.notes import Notes
from outlast.loop.command.own_folder import make_ready
from outlast.loop.command.saves import Saves
from outlast.loop.command.work import (
    FILES_AT_END_MAX,
    Produced,
    TooMuch,
    WorkFolder,
    told_size,
)
from outlast.loop.errors import CheckpointFailed, LoopError
from outlast.loop.local import STOP_SEC
from outlast.loop.session import Session
from outlast.loop.signals import Interrupts
from outlast.loop.words import say
from outlast.protocol import SOCKET_VARIABLE, Welcome, parse_every
from outlast.spec.result import METRICS_FILE

POLL_SEC = 0.1
SIGNS_SEC = 5.0
LAST_COPY_SEC = 1.0
"""Of the time to stop, at least so long (or half) is kept for the copy after the command's end."""
LINGER_SEC = 5.0
"""After the end of a command that was asked to stop, or that has exited with 0, for the rest of
its tree to end."""
HAND_OVER_SEC = 30.0
"""After a failure, for a checkpoint that was waiting for its turn."""
STOP_WAIT_SEC = 5.0
"""Time for the supervisor's message after its signal to the command."""
DUMP_SEC = 1.0
TOO_LATE = " while its last checkpoint is still being stored"

SAVED_EXITS = frozenset({exits.DONE, exits.INTERRUPTED})
"""With these a command that was asked to stop says that it has saved what it wanted to."""


class Heard:
    """Signals that reached this process while a supervisor decides what they mean."""

    def __init__(self) -> None:
        self.requested = False

    def note(self, number: int, frame: object) -> None:
        """The handler: only a flag."""
        self.requested = True


@dataclass(frozen=True)
class _Stop:
    """The command was asked to stop."""

    kill_at_sec: float
    deadline_sec: float
    hand_over: bool


class Runner:
    """One attempt of a command. Use once: ``run``."""

    def __init__(
        self,
        command: Command,
        session: Session,
        welcome: Welcome,
        signals: Interrupts | Heard,
    ) -> None:
        """``signals`` are this process's own: Interrupts decide, Heard only tell."""
        self._command = command
        self._session = session
        self._welcome = welcome
        self._signals = signals
        self._work = Path(welcome.work)
        self._home = command.home or self._work / "tmp-command"
        self.cwd = command.cwd or self._home / "source" / command.folder
        self.checkpoint = self._home / "checkpoint"
        if command.checkpoint_dir:
            self.checkpoint = Path(os.path.abspath(self.cwd / command.checkpoint_dir))
        self.result = self._home / "result"
        self._base = 0 if welcome.init else welcome.step
        every_sec = parse_every(welcome.checkpoint_every).seconds or 0.0
        self._handover = Handover(session, every_sec)
        self._child = Child()
        self._stop: _Stop | None = None
        self._dump = False
        self._exited_at_sec: float | None = None
        self._left = Left()
        """What the command left running."""
        self._at_work: str | None = None
        """Of that what was still at work at its end, named."""
        self._saved_at_exit: object = None
        self._result_at_exit: object = None
        """Its result when the command had exited; None if there was none."""
        self._last_sign_sec = 0.0
        self._signs_at_sec = 0.0
        self._signs: object = None
        self._begun: Begun | None = None
        """Of a run in the user's own folder."""

    def run(self) -> int:
        """Run the command to its end; the exit code. LoopError and OSError end it."""
        with contextlib.ExitStack() as cleanup:
            self._command.check()
            for sentence in self._command.words.near_misses():
                say(sentence)
            self._prepare(cleanup)
            self._find_data()
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
        cleanup.enter_context(home.held(self._home))
        for name in ("checkpoint", "result", "source"):
            home.remove(self._home / name)
            (self._home / name).mkdir()
        if self._command.source is not None:
            _copy_source(self._command.source, self._home / "source")
        restore = self._welcome.restore
        self._make_ready(restores=restore is not None)
        kinds = self._command.kinds
        scratch = [self._work, *map(Path, self._welcome.scratch)]
        copier = Copier(self.checkpoint, scratch, kinds)
        notes = Notes()
        if restore is not None:
            notes = copier.put_back(Path(restore))
        self._saves = Saves(
            self.checkpoint,
            copier,
            self._handover,
            kinds,
            quiet_sec=self._command.quiet_sec,
            step=self._base,
            has_open=self._child.has_open,
        )
        self._saves.begin(notes, is_new=bool(self._command.checkpoint_dir) and restore is None)
        if sentence := self._command.words.cannot_save(self.cwd):
            say(sentence)
        for sentence in self._command.lost_failures(self.cwd):
            self._session.warn(sentence)  # in the status too: the end may look like success
        self._session.tick(self._step, "start")  # gives the restored folder up

    def _make_ready(self, *, restores: bool) -> None:
        """The folders that are the user's own; a VM's are fresh in every attempt."""
        command, term = self._command, self._welcome.term
        own = self.checkpoint if command.checkpoint_dir else None
        if command.cwd is not None:
            is_first = term == 1 and not restores
            self._begun = begun(self._home.parent, own, is_first=is_first)
        if own is not None:
            before = {} if self._begun is None else self._begun.own_files
            is_copy = command.source is not None
            moved = make_ready(own, attempt=term, restores=restores, is_copy=is_copy, before=before)
            if moved:
                say(moved)

    def _find_data(self) -> None:
        """Fetched once a boot by the supervisor, or into this user's cache."""
        found = {path: data.find(path, self._wait_for_data) for path in self._command.data}
        used = data.take_used()
        if isinstance(self._signals, Interrupts):  # else the supervisor knows: it was asked
            for path, place in used.items():
                self._session.fetch(path, place, stopped=lambda: self._interrupted)
        if len(found) == 1:
            (self._data,) = found.values()
            return
        self._data = self._home / "data"
        home.remove(self._data)
        self._data.mkdir()
        for path, place in found.items():
            link = self._data / path.rstrip("/").rpartition("/")[2]
            link.symlink_to(place.absolute())

    def _wait_for_data(self) -> None:
        """A sign of life; nothing is lost by a stop that comes before the command's start."""
        self._session.poll()
        if self._session.stop_in_sec is not None or self._interrupted:
            raise SystemExit(exits.INTERRUPTED)
        self._session.tick(self._step, "staging")

    def _start(self, marks: Marks) -> None:
        log_dir = os.environ.get("LOG_DIR") or self._welcome.log_dir
        self._watched = [self.result, *([Path(log_dir)] if log_dir else [])]
        environment = self._environment(marks)
        values = {
            "data": environment["DATA_DIR"],
            "checkpoint": environment["CHECKPOINT_DIR"],
            "result": environment["RESULT_DIR"],
            "output_uri": environment["OUTPUT_URI"],
        }
        argv = self._command.filled(values, self.checkpoint)
        scratch = [self._work, *map(Path, self._welcome.scratch), marks.folder]
        without = [self._home, self.checkpoint, self._data, *self._watched, *scratch]
        without.append(Path(tempfile.gettempdir()))
        self._workplace = WorkFolder(
            self.cwd,
            [*without, *map(Path, self._command.data)],
            since_ns=None if self._begun is None else self._begun.at_ns,
        )
        if not self._workplace.is_known and not self._command.names_result:
            say(
                f"the working folder {self.cwd} holds too many files to be looked through, so that "
                "nothing in it becomes the result: start the command in a folder that holds less, "
                "or let it write into RESULT_DIR"
            )
        self._poll = select.poll()
        self._poll.register(self._child, select.POLLIN)
        self._poll.register(marks, select.POLLIN)
        self._hidden = Hidden(marks.folder, self.cwd)
        scripts = self._command.words.scripts(self.cwd)
        old = environment.get("BASH_ENV", "")
        environment |= self._hidden.environment(scripts, old)
        self._child.start(argv, self.cwd, environment)

    def _environment(self, marks: Marks) -> dict[str, str]:
        welcome, command = self._welcome, self._command
        environment = dict(os.environ)
        if environment.pop(SOCKET_VARIABLE, None):
            # The supervisor's own code is none of the command's business.
            environment.pop("PYTHONPATH", None)
            environment.pop("OUTLAST_BUNDLE_DIR", None)
        path = [str(marks.programs)]
        if command.programs is not None:
            path.append(str(command.programs))
            environment["VIRTUAL_ENV"] = str(command.programs.parent)
        path.append(environment.get("PATH", os.defpath))
        return {
            **environment,
            **welcome.environment(),
            "CHECKPOINT_DIR": str(self.checkpoint),
            "RESULT_DIR": str(self.result),
            "DATA_DIR": str(self._data.absolute()),
            "OUTPUT_URI": f"{welcome.run_url}output",
            "PATH": os.pathsep.join(path),
            MARK_VARIABLE: str(marks.path),
        }

    # While it runs.

    @property
    def _step(self) -> int:
        """A command's step: the number of its snapshots, in all attempts."""
        return self._saves.step if hasattr(self, "_saves") else self._base

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
        """After a stop or an exit with 0, whether others of the tree are still running: they may
        end by themselves."""
        if self._child.was_killed or (self._stop is None and self._child.code != exits.DONE):
            return False
        if not self._child.rest:
            return False
        now_sec = time.monotonic()
        if self._exited_at_sec is None:
            self._exited_at_sec = now_sec
            self._saved_at_exit = self._saved_now()
            self._result_at_exit = self._result_now()
        until_sec = self._exited_at_sec + LINGER_SEC
        if self._stop is not None:
            until_sec = min(self._stop.kill_at_sec, until_sec)
        return now_sec < until_sec

    def _note_what_is_left(self) -> None:
        """Before it is ended: whether it is still at work."""
        rest = self._child.rest
        if self._exited_at_sec is None or self._stop is not None or not rest:
            return
        saves = (
            self._saved_now() != self._saved_at_exit or self._result_now() != self._result_at_exit
        )
        self._at_work = self._left.at_work(rest, saves=saves)

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
                keep_sec = left_sec / 2  # nothing is to be saved: the sooner, the better
            deadline_sec = now_sec + left_sec
            self._stop = _Stop(deadline_sec - keep_sec, deadline_sec, hand_over)
            self._child.signal(signal.SIGTERM)
        elif now_sec >= self._stop.kill_at_sec and not self._child.was_killed:
            say("the command did not end in time after SIGTERM; it is killed")
            self._child.kill()

    @property
    def _interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM asks for the stop itself, as no machine ends."""
        return isinstance(self._signals, Interrupts) and self._signals.requested

    def _show_stacks(self) -> None:
        """The supervisor takes it for stuck and wants to know where: Python's own handler tells."""
        self._child.signal(signal.SIGABRT)
        time.sleep(DUMP_SEC)
        raise LoopError("the command gave no sign of life")

    def dump_stacks(self, number: int, frame: object) -> None:
        """Handler of SIGABRT: only a flag."""
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
            self._session.tick(self._step, "train" if self._stop is None else "stop")

    # After it.

    def _judge(self) -> int:
        code = self._child.code
        assert code is not None
        now_sec = time.monotonic()
        if self._stop is None and self._signals.requested:
            # A stopping system tells every process at once: the command may have ended of it.
            left_sec = self._session.stop_in_sec or STOP_WAIT_SEC
            self._stop = _Stop(now_sec, now_sec + left_sec, True)
        if self._stop is not None:
            return self._end_stopped(self._stop, code)
        hidden = None if code != exits.DONE else self._failed_unnoticed
        if code == exits.DONE and hidden is None:
            self._complete()
            return exits.DONE
        self._saves.take_last(saved=False)
        self._hand_over_last()
        if hidden is not None:
            say(f"the command exited with 0, but {hidden}")
            lines = [*self._child.last_lines, str(hidden)]
            raise CommandFailed(hidden.code, lines, self._goes_on())
        raise CommandFailed(code, self._child.last_lines, self._goes_on())

    def _hand_over_last(self) -> None:
        """After a failure, what was kept before it."""
        with contextlib.suppress(CheckpointFailed):  # its own failure is what counts
            until_sec = time.monotonic() + HAND_OVER_SEC
            self._handover.finish(self._step, until_sec)
            if isinstance(self._signals, Interrupts):  # a person reads what the run resumes from
                self._session.wait_committed(max(0.0, until_sec - time.monotonic()))
        self._handover.drop()

    def _end_stopped(self, stop: _Stop, code: int) -> int:
        """After a stop no exit code means completion, 0 included."""
        if stop.hand_over:
            saved = code in SAVED_EXITS and not self._child.was_cut
            self._saves.take_last(saved=saved)
        if not stop.hand_over or not self._handover.finish(self._step, stop.deadline_sec):
            self._handover.drop()
        if self._interrupted:
            left_sec = stop.deadline_sec - time.monotonic()
            late = "" if self._session.wait_committed(max(0.0, left_sec)) else TOO_LATE
            say(f"stopped{late}; {self._goes_on()}")
        return exits.INTERRUPTED

    def _goes_on(self) -> str:
        """What the next attempt begins with, for the end of a sentence."""
        session = self._session
        if self._welcome.restore is not None or session.commit_sec is not None or session.busy:
            return "the same command resumes from its last checkpoint"
        if not look(self.checkpoint, self._command.kinds).chosen().state:
            return "it had written no checkpoint, so the same command starts from scratch"
        how = f"it holds still for {self._command.quiet_sec:g} s, or outlast mark says so"
        rule = "" if self._saves.said else f" (CHECKPOINT_DIR is once {how})"
        return f"no checkpoint was complete yet{rule}, so the same command starts from scratch"

    def _complete(self) -> None:
        """The true end: the last checkpoint first, because the upload of a result may be cut."""
        if self._at_work is not None and not self._says_its_end:
            self._saves.take_last(saved=False)
            self._hand_over_last()
            raise LoopError(self._left_at_work(self._at_work))
        for sentence in results.tidy_result(self.result, without=self._data):
            say(sentence)
        try:
            produced = self._workplace.produced()
        except TooMuch:
            self._hand_over_last()
            raise ResultTooLarge(self._too_many()) from None
        has_result = bool(look(self.result).files)
        limit = int(self._command.result_gb_max * 10**9)
        is_large = produced.size > limit
        # On a laptop the files stay where they are.
        if has_result and (is_large or self._command.cwd is not None):
            if is_large and self._command.cwd is None:
                say(
                    f"the working folder has {told_size(produced.size)} of new files beside "
                    f"RESULT_DIR; only models among them are kept, not {produced.largest()}"
                )
            produced = produced.models
        from_checkpoint = not has_result and not produced.is_output
        allowed = self._command.allow_no_output
        self._saves.take_last(saved=True, ended=True, is_result=from_checkpoint, even_old=allowed)
        had_ended = self._saves.had_ended and bool(look(self.checkpoint).files)
        has_output = self._saves.has_new or has_result or produced.is_output or had_ended
        try:
            if not has_output and not allowed:
                raise NoOutput(self._no_output())
            if produced.size > limit:
                raise ResultTooLarge(self._too_large(produced, limit))
        except LoopError:
            self._hand_over_last()
            raise
        if self._handover.is_waiting:
            self._session.wait_committed(STOP_SEC)
            self._handover.finish(self._step, time.monotonic() + HAND_OVER_SEC)
            self._handover.drop()
        self._make_result(produced, with_checkpoint=not has_result)
        self._session.complete(self._step, self.result, 0)

    @property
    def _says_its_end(self) -> bool:
        """Whether its result was there when the command exited, and is unchanged since."""
        return self._result_at_exit is not None and self._result_now() == self._result_at_exit

    def _saved_now(self) -> object:
        return look(self.checkpoint, self._command.kinds).state

    def _result_now(self) -> object:
        """What is in RESULT_DIR, or else new in the working folder: models, where there are some.
        None if there is nothing."""
        found = look(self.result)
        if found.files or found.links:
            return found.files, found.links
        with contextlib.suppress(TooMuch):
            produced = self._workplace.produced()
            if produced.is_output:
                return produced.models.files or produced.files
        return None

    def _no_output(self) -> str:
        resumed = self._welcome.restore is not None
        since = " since it resumed" if resumed else ""
        reason = "it had finished before" if resumed else "it should leave nothing"
        return (
            f"the command exited with 0 and left nothing{since}: no new checkpoint, RESULT_DIR is "
            f"empty, and its working folder has no new file. If {reason}, allow that "
            "(--allow-no-output, outlast:allowNoOutput)"
        )

    def _left_at_work(self, named: str) -> str:
        return (
            f"the command exited with 0 while what it had started was still at work: {named}. Let "
            "it wait for that (wait), or write its result into RESULT_DIR before it exits"
        )

    def _too_large(self, produced: Produced, limit: int) -> str:
        return (
            f"the new files in the working folder {self.cwd} have {told_size(produced.size)}, more "
            f"than the {told_size(limit)} that become a result by themselves: "
            f"{produced.largest()}. Let the command write what is wanted into RESULT_DIR, or raise "
            "the limit (--result-gb, outlast:resultGb)"
        )

    def _too_many(self) -> str:
        return (
            f"the working folder {self.cwd} holds more than {FILES_AT_END_MAX} files, too many to "
            "become a result by themselves; let the command write what is wanted into RESULT_DIR, "
            "and unpack data elsewhere"
        )

    def _make_result(self, produced: Produced, *, with_checkpoint: bool) -> None:
        """What was left elsewhere than in RESULT_DIR."""
        own = self._command.source is not None
        last = look(self.checkpoint, self._command.kinds).chosen()
        if with_checkpoint and last.files:
            say("RESULT_DIR is empty: the files of CHECKPOINT_DIR become the result")
            keeps = bool(self._command.checkpoint_dir) and not own
            results.add_checkpoint(self.result, self.checkpoint, last, move=not keeps)
        if produced.files:
            results.add_work(self.result, self.cwd, produced, move=own)
            names = ", ".join(list(produced.files)[:3]) + (", …" if len(produced.files) > 3 else "")
            say(f"new files in the working folder become the result: {names}")
        if produced.data:
            say(f"new files in {', '.join(produced.data)} are data, and left out of the result")
        results.tidy_result(self.result, without=self._data)
        if not look(self.result).files:
            say("the result holds no file of the command")
            no_metrics = codec.canonical_json({"step": []}) + b"\n"
            (self.result / METRICS_FILE).write_bytes(no_metrics)
        for kind, glob in self._saves.unmatched_globs:
            say(f"glob {glob!r} ({kind}): matched no file of CHECKPOINT_DIR")


def check_checkpoint_dir(command: Command, run_dir: Path) -> None:
    """CommandError for a checkpoint folder that cannot be one on this machine."""
    if not command.checkpoint_dir or command.cwd is None:
        return
    place = Path(os.path.realpath(command.cwd / command.checkpoint_dir))
    what = f"checkpoint-dir {command.checkpoint_dir}"
    if place.exists() and not place.is_dir():
        raise CommandError(f"{what}: is a file; name the folder that it is in")
    for named, other in (
        ("the working folder", command.cwd),
        ("the run's own folder", run_dir),
        *(("data", Path(path)) for path in command.data if "://" not in path),
    ):
        if Path(os.path.realpath(other)).is_relative_to(place):
            raise CommandError(
                f"{what}: holds {named} {other}; name a folder that holds checkpoints alone"
            )


def _copy_source(source: Path, target: Path) -> None:
    """The command's own files, writable; what begins with ``#!`` is a program, because a bundle
    keeps no modes."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    for copy in target.rglob("*"):
        if copy.is_file() and not copy.is_symlink():
            with copy.open("rb") as file:
                program = file.read(2) == b"#!" or copy.stat().st_mode & 0o100
            copy.chmod(0o755 if program else 0o644)
