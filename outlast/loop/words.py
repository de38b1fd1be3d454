"""What the loop tells whoever watches its terminal."""

import contextlib
import sys


def say(sentence: str) -> None:
    """One line on stderr. Where nobody reads that any more, nothing: Ctrl-C at ``train.py | tee``
    ends the reader too, and what is left to do then is the last checkpoint."""
    with contextlib.suppress(OSError, ValueError):
        print(f"outlast: {sentence}", file=sys.stderr, flush=True)
