"""Runs a process that must end before the supervisor starts the trainer.

It is killed, with everything that it started, if the wait is ended, or if it neither writes nor
computes for `STUCK_SEC`: a build may be silent for an hour, but then it keeps a processor busy.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.supervisor.trainer_user import TrainerUser

POLL_SEC = 0.05
STUCK_SEC = 1800.0
"""Seconds without output and work after which a process is stuck."""
LOOK_SEC = 5.0
"""Seconds between two looks at its work."""
IDLE_SHARE = 0.01
"""A smaller share of a processor does not count as work: a waiting thread wakes up now and then."""


class Stuck(Exception):
    """The process neither wrote nor computed for too long, and was killed."""


@dataclass(frozen=True)
class Done:
    """A process that has ended."""

    code: int
    said: bytes
    """Its standard output; with `both`, its standard error too."""

    def last_line(self) -> str:
        lines = [line for line in self.said.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:400] if lines else f"exit code {self.code}"


def run(
    argv: Sequence[str],
    *,
    pause: Callable[[float], None],
    stdin: bytes = b"",
    both: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user: TrainerUser | None = None,
) -> Done:
    """Runs a process to its end, as `user` if given. An exception from `pause` kills it. Raises
    OSError if it cannot start, and Stuck."""
    # A pipe, not a file, because the input may be a secret. It is small enough for the pipe's
    # buffer.
    reads, writes = os.pipe()
    os.write(writes, stdin)
    os.close(writes)
    with os.fdopen(reads) as asked, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            list(argv) if user is None else user.argv(argv),
            stdin=asked,
            stdout=said,
            stderr=subprocess.STDOUT if both else subprocess.DEVNULL,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
            user=None if user is None else user.uid,
            group=None if user is None else user.uid,
            extra_groups=None if user is None else [],
        )
        work = _Work(process.pid, said.fileno())
        try:
            while process.poll() is None:
                pause(POLL_SEC)
                if work.idle_sec() >= STUCK_SEC:
                    raise Stuck(
                        f"{Path(argv[0]).name} neither wrote nor computed for {STUCK_SEC:.0f} s"
                    )
        finally:
            # Processes that it started may outlive it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        return Done(process.returncode, said.read())


class _Work:
    """The activity of a process and all that it started: output or computing."""

    def __init__(self, session: int, output: int) -> None:
        self._session = session
        self._output = output
        self._looked_at = self._busy_at = time.monotonic()
        self._written, self._cpu_sec = 0, 0.0

    def idle_sec(self) -> float:
        """Seconds since it was last seen active."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SEC:
            self._looked_at = now
            written, cpu_sec = os.fstat(self._output).st_size, _cpu_sec(self._session)
            # The time of ended processes is no longer counted, so a smaller sum is activity too.
            idle = 0 <= cpu_sec - self._cpu_sec < IDLE_SHARE * (now - self._busy_at)
            if written != self._written or not idle:
                self._busy_at, self._written, self._cpu_sec = now, written, cpu_sec
        return now - self._busy_at


def _cpu_sec(session: int) -> float:
    """Processor seconds of the processes of a session, and of their ended children."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The fields after the name, which may hold any character: state ppid pgrp session ...
            # utime at 11.
            fields = stat.read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
