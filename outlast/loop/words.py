"""Lines that the loop prints for people at its terminal."""

import contextlib
import os
import sys
from typing import TextIO

from outlast.base.visible import visible


def say(sentence: str) -> None:
    """Write one line on stderr. Do nothing if stderr has no reader any more: Ctrl-C at ``train.py |
    tee`` ends the reader too, and what is left to do then is the last checkpoint."""
    try:
        print(f"outlast: {visible(sentence)}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        drop(sys.stderr)
    except RuntimeError:  # a signal handler, in the middle of another line
        with contextlib.suppress(OSError):
            os.write(2, f"outlast: {visible(sentence)}\n".encode(errors="replace"))
    except (OSError, ValueError, AttributeError):
        pass  # closed, or there is none


def drop(stream: TextIO) -> None:
    """Redirect a stream without a reader to the null device, as Python's documentation has it for
    SIGPIPE: what could not be written stays in its buffer, and the interpreter would try again at
    its end, and exit with 120."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
