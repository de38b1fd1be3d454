"""Lines that the loop prints for people at its terminal."""

import contextlib
import os
import sys
from typing import TextIO

from outlast.base.visible import visible


def say(sentence: str) -> None:
    """Write one line to stderr. Do nothing if stderr has no reader any more: Ctrl-C at ``train.py |
    tee`` ends the reader too, and the last checkpoint must still be saved."""
    try:
        print(f"outlast: {visible(sentence)}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        drop(sys.stderr)
    except RuntimeError:  # in a signal handler, during another write
        with contextlib.suppress(OSError):
            os.write(2, f"outlast: {visible(sentence)}\n".encode(errors="replace"))
    except (OSError, ValueError, AttributeError):
        pass  # closed, or there is none


def drop(stream: TextIO) -> None:
    """Redirect a stream without a reader to the null device, as Python's documentation recommends
    for SIGPIPE. Otherwise the interpreter would try to write the rest of the buffer at its end, and
    exit with 120."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
