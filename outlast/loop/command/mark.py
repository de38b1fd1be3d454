"""``outlast mark [DIR]``, with which a command reports that a checkpoint is complete.

A program in one file without dependencies, which the runner puts on the command's PATH as
``outlast``. It returns once the checkpoint has been copied, so that the command may write and
delete files again.

Exit codes: 0 copied, 64 bad usage, 1 it could not be copied; the sentence is on stderr.
"""

import contextlib
import json
import os
import socket
import sys
from typing import TextIO

SOCKET_VARIABLE = "OUTLAST_MARK_SOCKET"
USAGE = """usage: outlast mark [DIR]

Says that the checkpoint in DIR is complete: all of CHECKPOINT_DIR by default, or one folder in it.

  outlast mark
"""
BAD_USAGE = 64


def main(argv: list[str]) -> int:
    """Run the program; ``argv`` begins with ``mark``."""
    if argv[:1] != ["mark"] or len(argv) > 2 or (len(argv) == 2 and argv[1].startswith("-")):
        asked = argv[:1] == ["mark"] and argv[1:] in (["-h"], ["--help"])
        _write(sys.stdout if asked else sys.stderr, USAGE)
        return 0 if asked else BAD_USAGE
    address = os.environ.get(SOCKET_VARIABLE)
    if not address:
        return _refuse("mark: is for a command that outlast runs; start it with outlast train")
    folder = os.path.abspath(argv[1]) if len(argv) == 2 else ""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            # Use the name alone: a socket's path has at most about 100 bytes, and TMPDIR may be
            # longer.
            os.chdir(os.path.dirname(address))
            connection.connect(os.path.basename(address))
            connection.sendall(json.dumps({"folder": folder}).encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n") and (data := connection.recv(65536)):
                answer += data
    except OSError as error:
        return _refuse(f"mark: the supervisor cannot be reached ({error})", 1)
    if not answer:
        return _refuse("mark: the supervisor has ended", 1)
    said = json.loads(answer)
    return _refuse(f"mark: {said['error']}", int(said["code"])) if "error" in said else 0


def _refuse(sentence: str, code: int = BAD_USAGE) -> int:
    _write(sys.stderr, f"outlast: {sentence}\n")
    return code


def _write(stream: TextIO | None, text: str) -> None:
    """Print the text, if the stream is open; the exit code says the same."""
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            stream.write(text)
            stream.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
