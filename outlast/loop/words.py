"""What the loop tells whoever watches its terminal."""

import os
import sys


def say(sentence: str) -> None:
    """One line on stderr. Where nobody reads that any more, nothing: Ctrl-C at ``train.py | tee``
    ends the reader too, and what is left to do then is the last checkpoint."""
    try:
        print(f"outlast: {sentence}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _drop()
    except (OSError, ValueError):
        pass


def _drop() -> None:
    """Sends stderr nowhere, as Python's documentation has it for SIGPIPE: what could not be written
    stays in its buffer, and the interpreter would try again at its end, and exit with 120."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
