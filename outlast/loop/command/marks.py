"""The runner's side of ``outlast mark``: a socket, and a program ``outlast`` on the PATH."""

import contextlib
import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from outlast.base import unix_socket
from outlast.loop.command import mark

READ_SEC = 5.0

Answer = Callable[[str], dict[str, object]]
"""Maps the named folder (absolute, or empty) to the answer that the program gets."""


class Marks:
    """Receives a command's marks. Single-threaded: ``serve`` answers the waiting connections."""

    def __init__(self) -> None:
        # Not in the run's folder, because some file systems have no sockets.
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-"))
        self.path = self.folder / "marks.sock"
        self.programs = self.folder / "bin"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with unix_socket.address(self.path) as address:
                self._socket.bind(address)
            self._socket.listen(64)
            self._socket.setblocking(False)
            self._write_program()
        except BaseException:
            self.close()
            raise

    def _write_program(self) -> None:
        """Write the program ``outlast``, which runs one file with this interpreter, whatever the
        command's own Python is. It leaves other subcommands to an ``outlast`` further down the
        PATH."""
        python, file = shlex.quote(sys.executable), shlex.quote(os.path.abspath(mark.__file__))
        own = shlex.quote(str(self.programs))
        self.programs.mkdir()
        program = self.programs / "outlast"
        program.write_text(
            "#!/bin/sh\n"
            f'[ "$1" = mark ] && exec {python} -I -S {file} "$@"\n'
            f'PATH="$(printf %s "$PATH" | tr : "\\n" | grep -vxF {own} | paste -sd : -)"\n'
            'exec outlast "$@"\n'
        )
        program.chmod(0o755)

    def fileno(self) -> int:
        return self._socket.fileno()

    def serve(self, answer: Answer) -> None:
        """Answer all waiting connections."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                connection.settimeout(READ_SEC)
                line = b""
                while not line.endswith(b"\n") and (data := connection.recv(65536)):
                    line += data
                said = answer(str(json.loads(line)["folder"]))
                connection.sendall(json.dumps(said).encode() + b"\n")

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)
