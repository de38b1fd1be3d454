"""A process that the supervisor waits for before there is a trainer.

It is killed with all that it started where the wait is ended.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_SEC = 0.05


@dataclass(frozen=True)
class Done:
    """It has ended."""

    code: int
    said: bytes
    """Its standard output, and with `both` what it wrote as errors too."""

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
) -> Done:
    """Run it to its end. What `pause` raises while waiting ends it. OSError: it cannot start."""
    # A pipe, not a file: it may be a secret. It is small enough to fit in whole.
    reads, writes = os.pipe()
    os.write(writes, stdin)
    os.close(writes)
    with os.fdopen(reads) as asked, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            list(argv),
            stdin=asked,
            stdout=said,
            stderr=subprocess.STDOUT if both else subprocess.DEVNULL,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                pause(POLL_SEC)
        finally:
            # What it started may outlive it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        return Done(process.returncode, said.read())
