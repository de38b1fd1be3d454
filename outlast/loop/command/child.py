"""Starts, watches, signals and ends the command's processes as one tree."""

import contextlib
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from outlast.base import process_tree
from outlast.loop.command.command import not_started
from outlast.loop.command.errors import CommandError

VARIABLE = "OUTLAST_COMMAND"
"""Environment variable that marks every process that the command starts."""

_LAST_BYTES = 32_768
_WRITES = os.O_WRONLY | os.O_RDWR


class Child:
    """A command and every process that it starts. Use as a context: a guard process ends the tree
    when this one is killed."""

    def __init__(self) -> None:
        self._mark = f"{VARIABLE}={uuid.uuid4().hex}"
        self._orphans = process_tree.Orphans()
        self._process: subprocess.Popen[bytes] | None = None
        self._copiers: list[threading.Thread] = []
        self._said = b""
        self.last_output_sec = 0.0
        self.is_watched = True
        """Whether its output passes through here; otherwise it goes to the terminal, with colours
        and progress bars."""
        self.was_cut = False
        """Whether some of it was still running when it was killed."""
        self.was_killed = False

    def __enter__(self) -> "Child":
        self._reads, self._wake = os.pipe()
        for end in (self._reads, self._wake):
            os.set_blocking(end, False)
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.abspath(process_tree.__file__), self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._orphans.adopt(self._guard.pid)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._guard.stdin is not None
        self._orphans.release()
        self._guard.stdin.close()
        self._guard.wait()
        os.close(self._reads)
        os.close(self._wake)

    def start(self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        """Start the command; CommandError if the system cannot."""
        self.is_watched = not sys.stderr.isatty()
        out = subprocess.PIPE if self.is_watched else None
        name, _, value = self._mark.partition("=")
        try:
            process = self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**environment, name: value},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandError(not_started(argv[0], error, cwd)) from None
        for stream, target in ((process.stdout, 1), (process.stderr, 2)):
            if stream is not None:
                thread = threading.Thread(
                    target=self._pass_on, args=(stream, target), name="output", daemon=True
                )
                thread.start()
                self._copiers.append(thread)
        threading.Thread(target=self._wait, name="command", daemon=True).start()

    def fileno(self) -> int:
        """A file descriptor that is readable once the command has ended."""
        return self._reads

    def drain(self) -> None:
        """Consume the bytes that made ``fileno`` readable."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reads, 4096)

    @property
    def pid(self) -> int:
        """Its process id; -1 before it is started."""
        return -1 if self._process is None else self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        # Not poll(): only the waiting thread may reap it.
        return None if self._process is None else self._process.returncode

    @property
    def rest(self) -> set[int]:
        """The processes of its tree that are running."""
        return self._others()

    def signal(self, number: int) -> None:
        """Send a signal to the whole tree."""
        if self._process is not None:
            process_tree.signal_tree(self._process.pid, self._mark, number, self._orphans.alive())

    def kill(self) -> None:
        """End the whole tree, including the command's background processes."""
        self.was_killed = True
        if self._process is not None:
            # A killed process may have been writing.
            self.was_cut = self.was_cut or self.code is None or bool(self.rest)
            process_tree.kill_tree(self._process.pid, self._mark)
            self._orphans.kill(self._process.pid)
            self._process.wait()
            for copier in self._copiers:
                copier.join(1.0)  # an escaped process may hold the pipe forever

    def has_open(self, paths: Iterable[str]) -> bool:
        """Whether a process of the tree has one of the files open for writing, or mapped; True if
        the system does not say."""
        if self._process is None or not Path("/proc/self/fd").is_dir():
            return True
        paths, wanted = list(paths), set[tuple[int, int]]()
        for path in paths:
            with contextlib.suppress(OSError):
                found = os.stat(path)
                wanted.add((found.st_dev, found.st_ino))
        names = {os.path.realpath(path) for path in paths}
        pids = {self._process.pid, *self._others()}
        return any(_writes(pid, wanted) or _maps(pid, names) for pid in pids)

    def reap(self) -> None:
        """Reap leftover processes of the command that have ended. Call it now and then."""
        if self._process is not None:
            self._orphans.reap(self._process.pid)

    def _others(self) -> set[int]:
        """Live processes that the command started, in any session and environment."""
        assert self._process is not None
        return ({*process_tree.marked(self._mark)} | self._orphans.alive()) - {self._process.pid}

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait()
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\0")

    def _pass_on(self, stream: IO[bytes], target: int) -> None:
        """Copy bytes unchanged: the supervisor interprets them for its log."""
        with stream:
            while said := os.read(stream.fileno(), 65536):
                self.last_output_sec = time.monotonic()
                if target == 2:
                    self._said = (self._said + said)[-_LAST_BYTES:]
                view = memoryview(said)
                with contextlib.suppress(OSError):  # the reader has gone: training continues
                    while view:
                        view = view[os.write(target, view) :]

    @property
    def last_lines(self) -> list[str]:
        """The end of stderr, with the last state of each progress bar; empty if stderr is the
        terminal."""
        lines = self._said.rstrip().split(b"\n")
        if len(self._said) == _LAST_BYTES:
            lines = lines[1:] or lines  # the first may be incomplete
        return [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines]


def _writes(pid: int, wanted: set[tuple[int, int]]) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for number in descriptors:
        with contextlib.suppress(OSError, ValueError, IndexError):
            found = os.stat(f"/proc/{pid}/fd/{number}")
            if (found.st_dev, found.st_ino) in wanted:
                text = Path(f"/proc/{pid}/fdinfo/{number}").read_text()
                if int(text.split("flags:")[1].split()[0], 8) & _WRITES:
                    return True
    return False


def _maps(pid: int, names: set[str]) -> bool:
    """Whether a process has one of the files mapped for writing, which is possible after it was
    closed."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        words = line.split(None, 5)
        if len(words) == 6 and words[1].startswith("rw-s") and words[5] in names:
            return True
    return False
