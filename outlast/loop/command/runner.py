"""The command's life: restored, started, watched, stopped, and what its end means.

One thread decides, ten times a second and whenever something happens. Two more copy the command's
output, which is the only other sign that it lives.
"""

import contextlib
import difflib
import fcntl
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from outlast.base import exits, tree
from outlast.bucket import layout
from outlast.loop import data
from outlast.loop.command import folder as folders
from outlast.loop.command.mark import SOCKET_VARIABLE as MARK_VARIABLE
from outlast.loop.command.marks import Marks
from outlast.loop.errors import CheckpointFailed, LoopError
from outlast.loop.local import STOP_SEC
from outlast.loop.session import Session
from outlast.loop.signals import Interrupts
from outlast.loop.words import say
from outlast.protocol import SOCKET_VARIABLE, Snapshot, Welcome, parse_every

QUIET_SEC = 10.0
POLL_SEC = 0.1
SCAN_SEC = 0.25
SCAN_COST = 20.0
"""Looking at the folder takes at most one part in so many of the time."""
SIGNS_SEC = 5.0
BUSY_RETRY_SEC = 1.0
NEVER_STILL_SEC = 60.0
PAUSE_SEC = 1.0
"""After a rest of so long (or half of the quiet time) a change is another save."""
MARK_TRIES = 3
LAST_COPY_SEC = 1.0
"""Of the time to stop, at least so long (or half) is kept for the copy after the command's end."""
LINGER_SEC = 5.0
"""After the end of a command that was told to stop, for the rest of its tree to end."""
HAND_OVER_SEC = 30.0
"""After a failure, for a checkpoint that was waiting for its turn."""
STOP_WAIT_SEC = 5.0
"""For the supervisor's word after a signal of its own to the command."""
DUMP_SEC = 1.0
TOO_LATE = " while its last checkpoint is still being stored"
VARIABLE = "OUTLAST_COMMAND"
"""Marks all that the command starts."""

SAVED_EXITS = frozenset({exits.DONE, exits.INTERRUPTED})
"""With these a command that was told to stop says that it has saved what it wanted to."""

FIELDS = ("data", "checkpoint", "result", "output_uri")
_FIELD = re.compile(rf"(?<!\$)\{{({'|'.join(FIELDS)})\}}")


class CommandError(LoopError):
    """The command cannot be started as it is written; the message says what to change."""


@dataclass(frozen=True)
class Command:
    """What is run, and where."""

    argv: tuple[str, ...] = ()
    """The program and its arguments; empty where it is a shell line."""
    line: str = ""
    """A line for the shell."""
    home: Path | None = None
    """This run's folder on this machine, for its checkpoint, its result and its files; nobody
    else's. The path is the same in all attempts, because checkpoints often hold their own path.
    None: in the supervisor's own folder."""
    source: Path | None = None
    """A folder that is copied for the command to run in; None: an empty one, or ``cwd``."""
    folder: str = ""
    """Below ``source``, where the command runs."""
    cwd: Path | None = None
    """Where it runs, without ``source``."""
    programs: Path | None = None
    """A folder of programs that goes before the PATH: the command's own environment."""
    data: tuple[str, ...] = ()
    """Local or gs:// paths. Of one, ``DATA_DIR`` and ``{data}`` are its local path; of several, a
    folder with a link to each by its last name."""
    quiet_sec: float = QUIET_SEC

    @property
    def identity(self) -> dict[str, Any]:
        """What makes the run this run: the words, as they were written, and the data."""
        data = {"data": list(self.data)} if self.data else {}
        return {"command": self.line or list(self.argv), **data}

    def check(self) -> None:
        """CommandError where it cannot be started as it is written, on whatever machine."""
        text = " ".join([self.line, *self.argv])
        if not self.data and "data" in _FIELD.findall(text):
            raise CommandError(
                "command {data}: the run has no data; name it (outlast:dataPaths, or --data on "
                "this machine), or leave {data} out"
            )
        names = [path.rstrip("/").rpartition("/")[2] for path in self.data]
        for path, name in zip(self.data, names, strict=True):
            if names.count(name) > 1:
                raise CommandError(
                    f"data {path}: another one ends in {name} too; name the folder that both are in"
                )

    def near_misses(self) -> Iterator[str]:
        """Sentences about words in braces that look like a mistyped field."""
        words = re.findall(r"(?<!\$)\{([a-z_]+)\}", " ".join([self.line, *self.argv]))
        for word in dict.fromkeys(words):
            near = difflib.get_close_matches(word, FIELDS, n=1, cutoff=0.8)
            if near and word not in FIELDS:
                yield f"command {{{word}}}: stays as it is; did you mean {{{near[0]}}}?"

    def check_program(self) -> None:
        """CommandError where this machine has no such program."""
        if self.line or _FIELD.search(self.argv[0]):
            return
        program, cwd = self.argv[0], self.cwd or Path.cwd()
        named = cwd / program if os.sep in program else None
        found = shutil.which(program if named is None else str(named))
        if found is not None:
            _check_first_line(program, Path(found))
        elif named is not None and named.is_file():
            raise CommandError(
                f"command {program!r}: is not executable; write what runs it before it, as in "
                f"python {program}, or make it executable (chmod +x)"
            )
        else:
            raise CommandError(_not_started(program, FileNotFoundError(), cwd))


class Heard:
    """Signals that reached this process while a supervisor decides what they mean."""

    def __init__(self) -> None:
        self.requested = False

    def note(self, number: int, frame: object) -> None:
        """The handler: only a flag."""
        self.requested = True


@dataclass(frozen=True)
class _Stop:
    """The command was told to stop."""

    kill_at_sec: float
    deadline_sec: float
    hand_over: bool


@dataclass
class _Pending:
    """A snapshot that the supervisor does not have yet."""

    taken: folders.Taken
    message: Snapshot


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
        self.checkpoint = self._home / "checkpoint"
        self.result = self._home / "result"
        every = parse_every(welcome.checkpoint_every)
        self._every_sec = every.seconds or 0.0
        self._base = 0 if welcome.init else welcome.step
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._tree_mark = f"{VARIABLE}={uuid.uuid4().hex}"
        self._stop: _Stop | None = None
        self._dump = False
        self._killed = False
        self._cut = False
        """Whether there was anybody to kill."""
        self._exited_at_sec: float | None = None
        self._pending: _Pending | None = None
        self._offered_at_sec = -self._every_sec
        self._retry_at_sec = 0.0
        self._said = ""
        """How the command says that a checkpoint is complete; empty while it has not."""
        self._last_sign_sec = 0.0
        self._last_line = b""
        self._copy_cost_sec = 0.0
        self._warned: set[str] = set()
        self._warned_unsaved = False

    def run(self) -> int:
        """Run the command to its end; the exit code. LoopError and OSError end it."""
        with contextlib.ExitStack() as cleanup:
            self._command.check()
            for sentence in self._command.near_misses():
                say(sentence)
            self._prepare(cleanup)
            self._find_data()
            marks = cleanup.enter_context(contextlib.closing(Marks()))
            self._start(marks, cleanup)
            try:
                self._watch(marks)
            finally:
                self._kill()
            return self._judge()

    # Before the command.

    def _prepare(self, cleanup: contextlib.ExitStack) -> None:
        cleanup.enter_context(_held(self._home))
        for name in ("checkpoint", "result", "source"):
            shutil.rmtree(self._home / name, ignore_errors=True)
            (self._home / name).mkdir()
        self._copier = folders.Copier(
            self.checkpoint, [self._work, *map(Path, self._welcome.places)]
        )
        if self._welcome.restore is not None:
            self._said = self._copier.put_back(Path(self._welcome.restore))
        if self._command.source is not None:
            _copy_source(self._command.source, self._home / "source")
        self._note_restored()
        self._session.tick(self._step, "start")  # gives the restored folder up

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
        shutil.rmtree(self._data, ignore_errors=True)
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

    def _note_restored(self) -> None:
        now_sec = time.monotonic()
        self._listing = folders.look(self.checkpoint)
        self._taken_stamp = self._listing.chosen().stamp
        self._taken_marks = self._listing.complete_folders()
        self._still = folders.Stillness(now_sec, self._listing)
        self._still_sec = 0.0
        self._scan_at_sec = now_sec
        self._signs_at_sec = now_sec
        self._signs: object = None
        self._unsaved_since_sec: float | None = None

    def _start(self, marks: Marks, cleanup: contextlib.ExitStack) -> None:
        environment = self._environment(marks)
        argv = self._argv(environment)
        cwd = self._command.cwd or self._home / "source" / self._command.folder
        reads, self._wake = os.pipe()
        cleanup.callback(os.close, reads)
        cleanup.callback(os.close, self._wake)
        for end in (reads, self._wake):
            os.set_blocking(end, False)
        self._poll = select.poll()
        self._poll.register(reads, select.POLLIN)
        self._poll.register(marks, select.POLLIN)
        self._wakes = reads
        # A person's terminal keeps its colours and bars; a log needs its signs of life.
        self._watched = not sys.stderr.isatty()
        out = subprocess.PIPE if self._watched else None
        guard = _start_guard(self._tree_mark)
        cleanup.callback(_end_guard, guard)
        try:
            process = self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandError(_not_started(argv[0], error, cwd)) from None
        self._copiers = []
        for stream, target in ((process.stdout, 1), (process.stderr, 2)):
            if stream is not None:
                thread = threading.Thread(
                    target=self._pass_on, args=(stream, target), name="output", daemon=True
                )
                thread.start()
                self._copiers.append(thread)
        threading.Thread(target=self._wait_for_end, name="command", daemon=True).start()

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
        name, _, value = self._tree_mark.partition("=")
        return {
            **environment,
            **welcome.environment(),
            "CHECKPOINT_DIR": str(self.checkpoint),
            "RESULT_DIR": str(self.result),
            "DATA_DIR": str(self._data.absolute()),
            "OUTPUT_URI": f"{welcome.run_url}output",
            "PATH": os.pathsep.join(path),
            MARK_VARIABLE: str(marks.path),
            name: value,
        }

    def _argv(self, environment: dict[str, str]) -> list[str]:
        """The command with its fields filled in; braces that are none are left alone."""
        values = {
            "data": environment["DATA_DIR"],
            "checkpoint": environment["CHECKPOINT_DIR"],
            "result": environment["RESULT_DIR"],
            "output_uri": environment["OUTPUT_URI"],
        }
        if self._command.line:
            line = _FIELD.sub(lambda match: shlex.quote(values[match[1]]), self._command.line)
            shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
            return [shell, "-c", line]
        return [_FIELD.sub(lambda match: values[match[1]], word) for word in self._command.argv]

    def _wait_for_end(self) -> None:
        assert self._process is not None
        self._process.wait()
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\0")

    def _pass_on(self, stream: IO[bytes], target: int) -> None:
        """Bytes as they are: what they mean for a log is the supervisor's business."""
        with stream:
            while said := os.read(stream.fileno(), 65536):
                self._last_sign_sec = time.monotonic()
                if target == 2:
                    self._last_line = (self._last_line + said)[-4096:]
                view = memoryview(said)
                with contextlib.suppress(OSError):  # nobody listens any more: not its business
                    while view:
                        view = view[os.write(target, view) :]

    # While it runs.

    @property
    def _step(self) -> int:
        """A command's step: the number of its snapshots, in all attempts."""
        return self._base + self._count

    @property
    def _exited(self) -> bool:
        # Not poll(): the thread that waits is the only one to reap it.
        return self._process is not None and self._process.returncode is not None

    def _watch(self, marks: Marks) -> None:
        while not self._exited or self._lingers():
            self._poll.poll(POLL_SEC * 1000)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakes, 4096)
            marks.serve(self._marked)
            self._session.poll()
            now_sec = time.monotonic()
            self._heed_stop(now_sec)
            if self._dump:
                self._show_stacks()
            if now_sec >= self._scan_at_sec:
                self._scan(now_sec)
            self._offer()
            self._tick(now_sec)

    def _lingers(self) -> bool:
        """After a stop, whether others of the tree are still ending by themselves."""
        if self._stop is None or self._killed:
            return False
        now_sec = time.monotonic()
        if self._exited_at_sec is None:
            self._exited_at_sec = now_sec
        until_sec = min(self._stop.kill_at_sec, self._exited_at_sec + LINGER_SEC)
        return now_sec < until_sec and bool(tree.marked(self._tree_mark))

    def _heed_stop(self, now_sec: float) -> None:
        if self._stop is None:
            left_sec = self._session.stop_in_sec
            hand_over = self._session.last_snapshot_wanted
            if left_sec is None and self._interrupted:
                left_sec = STOP_SEC
            if left_sec is None:
                return
            if hand_over:
                keep_sec = min(left_sec / 2, max(LAST_COPY_SEC, 2 * self._copy_cost_sec))
            else:
                keep_sec = left_sec / 2  # nothing is to be saved: the sooner, the better
            deadline_sec = now_sec + left_sec
            self._stop = _Stop(deadline_sec - keep_sec, deadline_sec, hand_over)
            self._signal(signal.SIGTERM)
        elif now_sec >= self._stop.kill_at_sec and not self._killed:
            say("the command did not end in time after SIGTERM; it is killed")
            self._kill()

    @property
    def _interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM asks for the stop itself, there being no machine that ends."""
        return isinstance(self._signals, Interrupts) and self._signals.requested

    def _signal(self, number: int) -> None:
        if self._process is not None:
            tree.signal_tree(self._process.pid, self._tree_mark, number)

    def _kill(self) -> None:
        """End the whole tree, the command's background processes among them."""
        self._killed = True
        if self._process is not None:
            # Whoever is killed may have been writing.
            self._cut = self._cut or not self._exited or bool(tree.marked(self._tree_mark))
            tree.kill_tree(self._process.pid, self._tree_mark)
            self._process.wait()
            for copier in self._copiers:
                copier.join(1.0)  # what escaped may hold the pipe for ever

    def _show_stacks(self) -> None:
        """The supervisor takes it for stuck and wants to know where: Python's own handler tells."""
        self._signal(signal.SIGABRT)
        time.sleep(DUMP_SEC)
        raise LoopError("the command gave no sign of life")

    def dump_stacks(self, number: int, frame: object) -> None:
        """Handler of SIGABRT: only a flag."""
        self._dump = True

    def _tick(self, now_sec: float) -> None:
        if now_sec >= self._signs_at_sec:
            self._signs_at_sec = now_sec + SIGNS_SEC
            log_dir = os.environ.get("LOG_DIR") or self._welcome.log_dir
            watched = [self.result, *([Path(log_dir)] if log_dir else [])]
            signs = [folders.look(root).files for root in watched]
            if signs != self._signs:
                self._signs, self._last_sign_sec = signs, now_sec
        if now_sec - self._last_sign_sec < SIGNS_SEC or not self._watched:
            self._session.tick(self._step, "train" if self._stop is None else "stop")

    # Snapshots.

    def _scan(self, now_sec: float) -> None:
        """Look at the folder and take what is complete."""
        listing = folders.look(self.checkpoint)
        before_sec, self._still_sec = self._still_sec, self._still.still_sec(now_sec, listing)
        if self._still_sec < before_sec:
            self._last_sign_sec = now_sec
        self._listing = listing
        if listing.says_complete and not self._said:
            self._said = "complete"
        if self._said == "complete":
            self._take_complete(listing)
        elif self._stop is None and not self._said:
            self._take_quiet(now_sec, listing, before_sec)
        cost_sec = time.monotonic() - now_sec
        self._scan_at_sec = now_sec + max(SCAN_SEC, SCAN_COST * cost_sec)

    def _take_complete(self, listing: folders.Listing) -> None:
        """A snapshot of all folders that are complete, once one of them is newly so."""
        marks = listing.complete_folders()
        news = any(self._taken_marks.get(name) != mark for name, mark in marks.items())
        if news and self._take(list(marks), said="complete", before=listing):
            self._taken_marks = marks

    def _take_quiet(self, now_sec: float, listing: folders.Listing, rested_sec: float) -> None:
        """``rested_sec``: how long the folder had held still when it was looked at before."""
        quiet_sec = self._command.quiet_sec
        chosen = listing.chosen()
        if not chosen.files or chosen.stamp == self._taken_stamp:
            self._unsaved_since_sec = None
            return
        if self._still_sec >= quiet_sec:
            if now_sec - self._offered_at_sec >= self._every_sec:
                self._take(None, said="", before=listing)
        elif self._unsaved_since_sec is None:
            self._unsaved_since_sec = now_sec
        elif self._still_sec < rested_sec >= min(PAUSE_SEC, quiet_sec / 2):
            self._warn_unsaved(f"was written to again after {rested_sec:.1f} s of rest")
        elif now_sec - self._unsaved_since_sec >= NEVER_STILL_SEC:
            self._warn_unsaved(f"is being written to since {NEVER_STILL_SEC:.0f} s")

    def _warn_unsaved(self, what: str) -> None:
        if not self._warned_unsaved:
            self._warned_unsaved = True
            say(
                f"CHECKPOINT_DIR {what}, and is only saved once it has held still for "
                f"{self._command.quiet_sec:g} s: call outlast mark after each save, save less "
                "often, or set a shorter time (--quiet-sec, outlast:quietSec)"
            )

    def _take(
        self, chosen: list[str] | None, *, said: str, before: folders.Listing | None
    ) -> folders.Taken | None:
        """Copy; the copy replaces one that the supervisor has not taken over. None: not now."""
        identifier = f"{self._count + 1:06d}"
        try:
            taken = self._copier.take(
                f"snap-{identifier}", folders=chosen, said=said, before=before
            )
        except folders.Changed:
            return None
        except (folders.NoRoom, OSError) as error:
            # Training is worth more than this one checkpoint; what is wrong may pass.
            self._warn(f"no checkpoint could be made: {error}")
            return None
        self._count += 1
        self._said = self._said or said
        self._copy_cost_sec = taken.cost_sec
        self._taken_stamp = taken.listing.chosen().stamp
        self._unsaved_since_sec = None
        self._drop_pending()
        message = Snapshot(identifier, str(taken.folder), self._step, [], 0)
        self._pending = _Pending(taken, message)
        return taken

    def _marked(self, named: str) -> dict[str, object]:
        """What ``outlast mark`` is told: the copy is made while it waits."""
        root = os.path.realpath(self.checkpoint)
        place = os.path.realpath(named) if named else root
        if place != root and not place.startswith(f"{root}{os.sep}"):
            return {
                "error": f"{named}: is not in CHECKPOINT_DIR {self.checkpoint}; save there",
                "code": exits.USAGE,
            }
        if not os.path.isdir(place):
            return {"error": f"{named}: is no folder", "code": exits.USAGE}
        chosen = None if place == root else [os.path.relpath(place, root).replace(os.sep, "/")]
        self._said = "mark"
        for _ in range(MARK_TRIES):
            before = folders.look(self.checkpoint)
            if not before.chosen(chosen).files:
                return {"error": f"{place}: holds no files", "code": 1}
            if self._take(chosen, said="mark", before=before) is not None:
                return {"step": self._step}
        return {
            "error": f"{place}: could not be copied, it changed meanwhile or does not fit; "
            "finish writing before the mark",
            "code": 1,
        }

    def _offer(self) -> None:
        """Hand the newest snapshot over, unless one is in flight or it is too early."""
        now_sec = time.monotonic()
        if self._pending is None or self._session.busy or now_sec < self._retry_at_sec:
            return
        if self._stop is None and now_sec - self._offered_at_sec < self._every_sec:
            return
        if self._session.offer(self._pending.message):
            self._pending = None
            self._offered_at_sec = now_sec
        else:
            self._retry_at_sec = now_sec + BUSY_RETRY_SEC

    def _drop_pending(self) -> None:
        if self._pending is not None:
            shutil.rmtree(self._pending.taken.folder, ignore_errors=True)
            self._pending = None

    def _hand_over(self, deadline_sec: float) -> bool:
        """Whether nothing is waiting any more, at the latest by the deadline."""
        while self._pending is not None and time.monotonic() < deadline_sec:
            if self._session.offer(self._pending.message):
                self._pending = None
                break
            self._session.tick(self._step, "stop")
            self._session.wait_committed(min(0.2, max(0.0, deadline_sec - time.monotonic())))
        return self._pending is None

    # After it.

    def _judge(self) -> int:
        assert self._process is not None
        code = self._process.returncode
        now_sec = time.monotonic()
        if self._stop is None and self._signals.requested:
            # A stopping system tells every process at once: the command may have ended of it.
            left_sec = self._session.stop_in_sec or STOP_WAIT_SEC
            self._stop = _Stop(now_sec, now_sec + left_sec, True)
        if self._stop is not None:
            return self._end_stopped(self._stop, code)
        if code == exits.DONE:
            self._complete()
            return exits.DONE
        self._take_last(saved=False)
        with contextlib.suppress(CheckpointFailed):  # its own failure is what counts
            until_sec = time.monotonic() + HAND_OVER_SEC
            self._hand_over(until_sec)
            if isinstance(self._signals, Interrupts):  # a person reads what the run goes on from
                self._session.wait_committed(max(0.0, until_sec - time.monotonic()))
        self._drop_pending()
        raise CommandFailed(code, self._last_words(), self._goes_on())

    def _end_stopped(self, stop: _Stop, code: int) -> int:
        """After a stop no exit code means completion, 0 included."""
        if stop.hand_over:
            self._take_last(saved=code in SAVED_EXITS)
        if not stop.hand_over or not self._hand_over(stop.deadline_sec):
            self._drop_pending()
        if self._interrupted:
            left_sec = stop.deadline_sec - time.monotonic()
            late = "" if self._session.wait_committed(max(0.0, left_sec)) else TOO_LATE
            say(f"stopped{late}; {self._goes_on()}")
        return exits.INTERRUPTED

    def _goes_on(self) -> str:
        """What the next attempt begins with, for the end of a sentence."""
        session = self._session
        if self._welcome.restore is not None or session.commit_sec is not None or session.busy:
            return "the same command goes on from its last checkpoint"
        if not folders.look(self.checkpoint).chosen().files:
            return "it had written no checkpoint, so the same command begins anew"
        how = f"it holds still for {self._command.quiet_sec:g} s, or outlast mark says so"
        rule = "" if self._said else f" (CHECKPOINT_DIR is once {how})"
        return f"no checkpoint was complete yet{rule}, so the same command begins anew"

    def _take_last(self, *, saved: bool) -> None:
        """What the command has left. One that was cut short may have been writing: then only what
        had held still before."""
        before_sec = self._still_sec
        listing = folders.look(self.checkpoint)
        if self._said == "complete" or (not self._said and listing.says_complete):
            self._take_complete(listing)
        if self._said:
            return
        chosen = listing.chosen()
        if not chosen.files or chosen.stamp == self._taken_stamp:
            return
        saved = saved and not self._cut
        untouched = listing.stamp == self._listing.stamp
        if saved or (untouched and before_sec >= self._command.quiet_sec):
            self._take(None, said="", before=listing)

    def _complete(self) -> None:
        """The true end: the last checkpoint first, because the upload of a result may be cut."""
        self._take_last(saved=True)
        if self._pending is not None:
            self._session.wait_committed(STOP_SEC)
            self._hand_over(time.monotonic() + HAND_OVER_SEC)
            self._drop_pending()
        for sentence in folders.tidy_result(self.result):
            say(sentence)
        if not folders.look(self.result).files:
            self._make_result()
        self._session.complete(self._step, self.result, 0)

    def _make_result(self) -> None:
        """The command left nothing in RESULT_DIR: its last checkpoint is its result."""
        last = folders.look(self.checkpoint).chosen()
        if last.files:
            say("RESULT_DIR is empty: the files of CHECKPOINT_DIR become the result")
        else:
            say("RESULT_DIR and CHECKPOINT_DIR are empty: the result holds no file of the command")
            empty = {column: [] for column in layout.METRICS_COLUMNS}
            (self.result / layout.METRICS_FILE).write_bytes(layout.canonical_json(empty) + b"\n")
        for name in last.files:
            target = self.result / "checkpoint" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self.checkpoint / name, target)

    def _last_words(self) -> str:
        """The last line of stderr, a progress bar's last state."""
        lines = [
            line.rstrip(b"\r").rpartition(b"\r")[2].strip() for line in self._last_line.split(b"\n")
        ]
        said = [line for line in lines if line]
        return said[-1].decode(errors="replace")[:1000] if said else ""

    def _warn(self, sentence: str) -> None:
        """Once each."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            say(sentence)


class CommandFailed(LoopError):
    """The command's own failure; ``code`` is its exit code as a shell gives it."""

    def __init__(self, code: int, last_line: str, goes_on: str) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        super().__init__(last_line or f"the command {how}")
        self.code = code if code >= 0 else 128 - code
        self.sentence = f"the command {how}; {goes_on}"


@contextlib.contextmanager
def _held(home: Path) -> Iterator[None]:
    """The folder for this process alone: one that was fenced needs a moment to end."""
    while True:
        home.mkdir(parents=True, exist_ok=True)
        held = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(held, fcntl.LOCK_EX)
            # The other may have removed it when it ended.
            if home.exists() and os.path.samestat(os.fstat(held), os.stat(home)):
                yield
                return
        finally:
            os.close(held)


def remove_home(home: Path) -> None:
    """Remove what a command's life on this machine left, unless another process works there."""
    with contextlib.suppress(OSError):
        held = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(home, ignore_errors=True)
        finally:
            os.close(held)


def _copy_source(source: Path, target: Path) -> None:
    """The command's own files, writable; what begins with ``#!`` is a program, because a bundle
    keeps no modes."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    for copy in target.rglob("*"):
        if copy.is_file() and not copy.is_symlink():
            with copy.open("rb") as file:
                program = file.read(2) == b"#!" or copy.stat().st_mode & 0o100
            copy.chmod(0o755 if program else 0o644)


def _start_guard(mark: str) -> "subprocess.Popen[bytes]":
    """A process that ends the command's tree when this one is killed."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", os.path.abspath(tree.__file__), mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end_guard(guard: "subprocess.Popen[bytes]") -> None:
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()


def _check_first_line(program: str, file: Path) -> None:
    """CommandError for a text that the system cannot start, for want of what reads it."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(256)
    except OSError:
        return  # a program that may be run and not read
    if begin.startswith(b"#!"):
        words = begin[2:].partition(b"\n")[0].decode(errors="replace").split()
        if words and not os.path.exists(words[0]):
            raise CommandError(
                f"command {program!r}: its first line names {words[0]}, which is not there; mend "
                "that line"
            )
    elif b"\0" not in begin:
        raise CommandError(
            f"command {program!r}: is a text without a line #! that says what runs it; write "
            f"that before it, as in python {program}"
        )


def _not_started(program: str, error: OSError, cwd: Path) -> str:
    if not cwd.is_dir():
        return f"command {program!r}: its folder {cwd} is not there"
    if isinstance(error, FileNotFoundError):
        return (
            f"command {program!r}: no such program on the PATH or in {cwd}; check the spelling, "
            "and that the machine has it"
        )
    return f"command {program!r}: cannot be started ({error.strerror}); check the file"
