"""How a process says a sentence to people: a function that takes the sentence."""

import sys
import traceback
from collections.abc import Callable

from outlast.base.visible import visible

Say = Callable[[str], None]


def write_stderr(text: str) -> None:
    """Write to stderr whatever the text is. Never raises: a full disk behind it, a reader that has
    gone or a closed stderr is no reason to end a run."""
    stream = sys.stderr
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            stream.write(text.encode("ascii", "backslashreplace").decode())
        stream.flush()
    except (OSError, ValueError, AttributeError):  # full, closed, or None
        pass


def write_line(text: str) -> None:
    """One line to stderr, as `write_stderr`."""
    write_stderr(f"{visible(text)}\n")


def crash_report(error: BaseException) -> str:
    """What a supervisor says of its own crash: the traceback, and one last line with the reason."""
    trace = "".join(traceback.format_exception(error))
    return f"{trace}outlast: the supervisor crashed: {reason_of_crash(error)}\n"


def reason_of_crash(error: BaseException) -> str:
    """One line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
