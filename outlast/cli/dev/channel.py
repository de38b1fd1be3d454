"""A connection to the agent on a VM: messages, as `agent.py` has them, over a process's pipes."""

import contextlib
import json
import os
import queue
import select
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.base.visible import one_line
from outlast.cli.dev import agent
from outlast.cli.errors import OperateError

LEASE_SEC = 60.0
"""Seconds without a message after which the agent ends what it has started."""
PING_SEC = 5.0
SILENT_SEC = 30.0
"""Seconds without a message after which a connection counts as lost."""
START_SEC = 90.0
"""Seconds for the connection; a tunnel through IAP takes up to ten, and a key must be spread."""
END_SEC = 12.0
"""Seconds in which the agent ends a development run, after its input has ended."""
LINE_BYTES_MAX = 64 << 20
INBOX_MESSAGES = 2048
PAYLOAD_BYTES_MAX = 1 << 20
BOOTSTRAP = (
    "import sys;n=int(sys.stdin.buffer.raw.readline());s=b''\n"
    "while len(s)<n:s+=sys.stdin.buffer.raw.read(n-len(s))or sys.exit('outlast: cut off')\n"
    "exec(compile(s,'outlast-dev','exec'))"
)
"""Reads the agent from the input, without reading ahead."""
PYTHON = ("python3", "-I", "-S", "-u", "-c", BOOTSTRAP)
COMMAND = "exec " + shlex.join(PYTHON)

Message = dict[str, Any]


class Lost(Exception):
    """The connection ended; a sentence says how."""


class Refused(OperateError):
    """The agent refuses; its sentence says why."""


def decode(line: bytes) -> Message:
    """A message of the agent, with the size of what follows it. Raises Lost for anything else."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise Lost(f"message {line[:80]!r}: is not JSON") from None
    if not isinstance(message, dict):
        raise Lost(f"message {line[:80]!r}: is not a JSON object")
    size = message.get("size", 0)
    if type(size) is not int or not 0 <= size <= PAYLOAD_BYTES_MAX:
        raise Lost(f"message {line[:80]!r}: size must be 0 to {PAYLOAD_BYTES_MAX} bytes")
    return message


class Channel:
    """A running agent. Close it, so that nothing is left there or here."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Starts the process that leads to the VM. Raises OperateError if there is no such
        program."""
        try:
            self._process = subprocess.Popen(
                list(argv),
                env=None if env is None else dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # The terminal's Ctrl-C is for us.
            )
        except OSError as error:
            raise OperateError(f"{argv[0]}: cannot be started ({error.strerror})") from None
        self.pid = self._process.pid
        self._words: deque[str] = deque(maxlen=5)
        self._inbox: queue.Queue[tuple[Message, bytes] | None] = queue.Queue(INBOX_MESSAGES)
        self._heard_at = self._pinged_at = time.monotonic()
        assert self._process.stdin
        os.set_blocking(self._process.stdin.fileno(), False)
        for read in (self._read_messages, self._read_words):
            threading.Thread(target=read, daemon=True).start()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, **begin: Any) -> Message:
        """Sends the agent, and its first message; returns the answer. Raises Lost and Refused."""
        text = Path(agent.__file__).read_bytes()
        self._write(b"%d\n" % len(text) + text)
        self.send("begin", lease=LEASE_SEC, **begin)
        message, _ = self.receive(START_SEC, silent_sec=START_SEC)
        if message.get("kind") != "ready":
            raise Lost(f"gave no answer in {START_SEC:.0f} s")
        return message

    def send(self, do: str, payload: bytes = b"", **message: Any) -> None:
        """Raises Lost."""
        if payload:
            message["size"] = len(payload)
        self._write(json.dumps({"do": do, **message}).encode() + b"\n" + payload)

    def receive(
        self, timeout_sec: float, *, silent_sec: float = SILENT_SEC
    ) -> tuple[Message, bytes]:
        """The next message with its bytes; an empty one after the timeout. Raises Lost if the
        connection has ended or is silent, and Refused for a refusal that ends it."""
        until = time.monotonic() + timeout_sec
        while True:
            self._ping()
            left = until - time.monotonic()
            with contextlib.suppress(queue.Empty):
                found = self._inbox.get(timeout=max(0.0, min(left, PING_SEC)))
                if found is None:
                    raise Lost(self._ended())
                self._heard_at = time.monotonic()
                message, payload = found
                if message.get("kind") == "pong":
                    continue
                if message.get("kind") == "refused" and message.get("fatal"):
                    raise Refused(str(message.get("why")))
                return message, payload
            if time.monotonic() - self._heard_at > silent_sec:
                raise Lost(f"has sent nothing for {silent_sec:.0f} s")
            if left <= 0:
                return {}, b""

    def close(self) -> bool:
        """Ends the agent and the process that leads to it. False if the agent's end was not seen:
        then it ends by itself, after its lease."""
        with contextlib.suppress(OSError):
            assert self._process.stdin
            self._process.stdin.close()
        try:
            self._process.wait(END_SEC)
            clean = True
        except subprocess.TimeoutExpired:
            clean = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return clean

    def _ping(self) -> None:
        if time.monotonic() - self._pinged_at >= PING_SEC:
            self._pinged_at = time.monotonic()
            self.send("ping")

    def _write(self, data: bytes) -> None:
        assert self._process.stdin
        handle, view = self._process.stdin.fileno(), memoryview(data)
        while view:
            _, ready, _ = select.select([], [handle], [], SILENT_SEC)
            if not ready:
                raise Lost(f"has accepted nothing for {SILENT_SEC:.0f} s")
            try:
                view = view[os.write(handle, view) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Lost(self._ended()) from None

    def _ended(self) -> str:
        """Why the connection ended, in the words of the process that leads to it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        said = next((word for word in reversed(self._words) if word.strip()), "")
        code = self._process.poll()
        how = "" if code is None else f" with exit code {code}"
        return f"the connection ended{how}" + (f": {said}" if said else "")

    def _read_messages(self) -> None:
        assert self._process.stdout
        try:
            with self._process.stdout as stream:
                # A login shell may print something first.
                while (line := stream.readline(LINE_BYTES_MAX)) != agent.MAGIC:
                    if not line:
                        return
                while line := stream.readline(LINE_BYTES_MAX):
                    message = decode(line)
                    size = message.get("size", 0)
                    payload = stream.read(size)
                    if len(payload) < size:
                        return
                    self._inbox.put((message, payload))
        except Lost as error:
            self._words.append(str(error))
        except (OSError, ValueError):
            return
        finally:
            self._inbox.put(None)

    def _read_words(self) -> None:
        assert self._process.stderr
        with contextlib.suppress(OSError, ValueError), self._process.stderr as stream:
            for line in stream:
                self._words.append(one_line(line.decode(errors="replace")).strip())
