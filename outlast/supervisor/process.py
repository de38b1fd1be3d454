"""The trainer as a process: starts it, reads its output, and kills it with everything it
started."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from outlast.base import process_tree
from outlast.base.process_tree import kill_tree
from outlast.protocol import SOCKET_VARIABLE
from outlast.supervisor.secrets import Mask
from outlast.supervisor.trainer_log import TrainerLog
from outlast.supervisor.trainer_user import TrainerUser

LAST_LINES = 100
LINE_BYTES_MAX = 4096
DUMP_SEC = 3.0
PARENT_POLL_SEC = 0.5


@dataclass(frozen=True)
class Exited:
    """The trainer has ended. A negative code is a signal; None if the code is unknown."""

    code: int | None


Post = Callable[[Exited], None]


class Trainer(Protocol):
    """A trainer, as an attempt controls it."""

    ends_with_connection: bool
    """Whether a closed connection means that the trainer has ended; otherwise its process must
    exit."""
    restarts: bool
    """Whether the supervisor can start it again."""

    def start(self, post: Post) -> None:
        """Starts it; ``post`` is called once it has ended."""
        ...

    def kill(self) -> None:
        """Kills it and everything it started, at once."""
        ...

    def dump_stacks(self) -> None:
        """Makes it write its stacks to its log, before it is killed."""
        ...

    def last_lines(self) -> tuple[str, ...]:
        """The last lines of its stderr."""
        ...


class TrainerProcess:
    """A trainer that the supervisor starts, in a separate process group."""

    ends_with_connection = False
    restarts = True

    def __init__(
        self,
        argv: list[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        log: TrainerLog,
        mask: Mask | None = None,
        user: TrainerUser | None = None,
    ) -> None:
        """`mask` is applied to all output before anything reads it. With a `user`, the trainer runs
        as that user and can gain no rights; `folder` must then belong to the user."""
        self._mask = mask or Mask()
        self._argv = argv
        self._folder = folder
        self._environment = dict(environment)
        self._user = user
        if user is not None:
            self._argv = user.argv(argv)
        self._log = log
        self._mark = f"{process_tree.VARIABLE}={environment.get(process_tree.VARIABLE, '')}"
        self._process: subprocess.Popen[bytes] | None = None
        self._tail = _Tail()

    def start(self, post: Post) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        user = self._user
        process = subprocess.Popen(
            self._argv,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            user=None if user is None else user.uid,
            group=None if user is None else user.uid,
            extra_groups=None if user is None else [],
        )
        self._process = process
        assert process.stdout is not None and process.stderr is not None
        readers = [
            threading.Thread(target=self._copy, args=(process.stdout,), daemon=True),
            threading.Thread(target=self._copy, args=(process.stderr, self._tail), daemon=True),
        ]
        for reader in readers:
            reader.start()

        def wait() -> None:
            code = process.wait()
            kill_tree(process.pid, self._mark)
            for reader in readers:
                reader.join(1.0)  # a process that escaped the kill may hold the pipe forever
            self._log.close()
            post(Exited(code))

        threading.Thread(target=wait, name="trainer", daemon=True).start()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            kill_tree(self._process.pid, self._mark)

    def dump_stacks(self) -> None:
        """Sends SIGABRT: with PYTHONFAULTHANDLER, Python writes the stack of every thread and
        dies."""
        if self._process is None or self._process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DUMP_SEC)

    def last_lines(self) -> tuple[str, ...]:
        return self._tail.lines()

    def _copy(self, stream: IO[bytes], tail: "_Tail | None" = None) -> None:
        """Copies a stream to the log, until every process has closed it."""
        masked = self._mask.stream()
        with stream:
            while data := os.read(stream.fileno(), 65536):
                self._keep(masked.feed(data), tail)
            self._keep(masked.end(), tail)

    def _keep(self, data: bytes, tail: "_Tail | None") -> None:
        self._log.write(data)
        if tail is not None:
            tail.feed(data)


class CallingTrainer:
    """The trainer of a run in a folder: it started this supervisor, and has its own terminal."""

    ends_with_connection = True
    restarts = False

    def __init__(self, parent: int) -> None:
        """``parent`` is the trainer's process id, noted when the supervisor started."""
        self._parent = parent
        self._killed = threading.Event()

    def start(self, post: Post) -> None:
        def watch() -> None:
            while os.getppid() == self._parent and not self._killed.wait(PARENT_POLL_SEC):
                pass
            post(Exited(None))

        threading.Thread(target=watch, name="trainer", daemon=True).start()

    def kill(self) -> None:
        """Only asks for the connection to be closed: the process belongs to the user."""
        self._killed.set()

    def dump_stacks(self) -> None:
        pass

    def last_lines(self) -> tuple[str, ...]:
        return ()


def trainer_argv(
    trainer: str | Path, flags: Iterable[str], *, python: str = "", processes: int = 1
) -> list[str]:
    """The command that starts a trainer: one of the bundle, or a path. `python` is its interpreter;
    empty: this one. Several processes are started by torch's own launcher, which the trainer's
    interpreter has."""
    launcher = ["outlast.loop.launch", str(processes)] if processes > 1 else []
    return [
        python or sys.executable,
        "-P",
        "-m",
        *launcher,
        "outlast.trainers",
        str(trainer),
        *flags,
    ]


def command_argv(
    command: str | tuple[str, ...],
    *,
    home: Path,
    quiet_sec: int,
    data: Iterable[str] = (),
    more: Mapping[str, Any] | None = None,
    **options: Path | str | None,
) -> list[str]:
    """The command line of the runner, in this interpreter; the command's own interpreter is on its
    PATH.

    ``options`` are the runner's: ``source``, ``folder`` and ``programs``. ``more`` are the user's
    options by their flags: True for a bare flag, a list for a repeated one."""
    argv = [sys.executable, "-P", "-m", "outlast.loop.command", "--home", str(home)]
    argv += ["--checkpoint-quiet-sec", repr(quiet_sec)]
    argv += [f"--data={url}" for url in data]
    for name, value in (more or {}).items():
        values = value if isinstance(value, list) else [value]
        argv += [f"--{name}" if one is True else f"--{name}={one}" for one in values]
    for name, path in options.items():
        if path:
            argv += [f"--{name}", str(path)]
    if isinstance(command, str):
        return [*argv, "--shell", "--", command]
    return [*argv, "--", *command]


def trainer_environment(socket: Path, bundle: Path) -> dict[str, str]:
    """The environment of a trainer: the bundle comes first on its path."""
    return {
        **os.environ,
        SOCKET_VARIABLE: str(socket),
        process_tree.VARIABLE: str(socket),
        "PYTHONPATH": str(bundle),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        # A trainer that iterates over a set of strings must use the same order in every attempt.
        "PYTHONHASHSEED": "0",
    }


class _Tail:
    """The last lines of a stream. A progress bar's carriage returns leave only its last state."""

    def __init__(self) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._open = b""
        self._lock = threading.Lock()

    def feed(self, data: bytes) -> None:
        with self._lock:
            *whole, last = (self._open + data).split(b"\n")
            for line in whole:
                self._lines.append(_shown(line))
            # Only the text after an endless line's last carriage return will be shown.
            cut = last[:-1].rfind(b"\r") + 1
            self._open = last[cut:][-LINE_BYTES_MAX:]

    def lines(self) -> tuple[str, ...]:
        with self._lock:
            lines = [*self._lines, *([_shown(self._open)] if self._open else [])]
        return tuple(lines[-LAST_LINES:])


def _shown(line: bytes) -> str:
    return line.rstrip(b"\r").rpartition(b"\r")[2][-LINE_BYTES_MAX:].decode(errors="replace")
