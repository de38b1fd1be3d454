"""QEMU's machine protocol: JSON lines on a pair of pipes.

Source: QEMU Machine Protocol Specification, qemu.org/docs/master/interop/qmp-spec.html, 2026-11."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

ANSWER_SEC = 60.0
"""Seconds in which QEMU answers, also on a busy machine."""
MAX_LINE_BYTES = 1 << 20


class Qmp:
    """One connection; `events` must be read for commands to be answered."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """The process speaks QMP on its input and output."""
        assert process.stdin and process.stdout
        self._input, self._output = process.stdin, process.stdout
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0

    async def open(self) -> None:
        """Reads the greeting and takes up commands. Raises OSError if QEMU ends instead."""
        async with asyncio.timeout(ANSWER_SEC):
            if "QMP" not in await self._read():
                raise OSError("QEMU did not greet")
            self._write({"execute": "qmp_capabilities"})
            while "return" not in await self._read():
                pass

    async def run(self, command: str, **arguments: Any) -> Any:
        """Runs a command and returns its answer. Raises OSError if it is refused or QEMU has
        ended."""
        self._next += 1
        number = self._next
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._write({"execute": command, "arguments": arguments, "id": number})
        try:
            async with asyncio.timeout(ANSWER_SEC):
                found = await answer
        finally:
            self._waiting.pop(number, None)
        if "error" in found:
            raise OSError(f"QEMU refused {command}: {found['error'].get('desc')}")
        return found.get("return")

    def send(self, command: str) -> None:
        """Sends a command without waiting for its answer. Raises OSError if QEMU has ended."""
        self._write({"execute": command})

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yields events until QEMU ends; hands answers to `run`."""
        try:
            while True:
                try:
                    message = await self._read()
                except OSError:
                    return
                if "event" in message:
                    yield message
                    continue
                waiting = self._waiting.get(message.get("id", 0))
                if waiting and not waiting.done():
                    waiting.set_result(message)
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_result({"error": {"desc": "it has ended"}})

    async def _read(self) -> dict[str, Any]:
        try:
            line = await self._output.readline()
            if line:
                return json.loads(line)
        except ValueError as error:  # not JSON, or too long
            raise OSError(f"QEMU answered no JSON: {error}") from None
        raise OSError("QEMU has ended")

    def _write(self, message: dict[str, Any]) -> None:
        try:
            self._input.write(json.dumps(message).encode() + b"\n")
        except RuntimeError as error:  # the pipe is closed
            raise OSError(str(error)) from None
