"""What a process writes to its terminal, whatever happens to it."""

import contextlib
import os
import sys
import traceback

from outlast.base.visible import visible


def write_stderr(text: str) -> None:
    """Write to stderr whatever the text is. Never raises: a full disk behind it, a reader that has
    gone or a closed stderr is not a reason to end a run."""
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


def flush_streams() -> None:
    """Flush stdout and stderr before the process ends. Never raises, as `write_stderr`."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # full, closed, or None
            stream.flush()


def fill_descriptors() -> None:
    """Let the descriptors 0 to 2 that are closed lead nowhere: the next file or socket would get
    such a number, and what is meant for stderr would be written into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest number that is free; and a child has one then, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def fill_streams() -> None:
    """For a process that is Outlast's own: `fill_descriptors`, and streams that lead nowhere for
    those that Python has not got."""
    fill_descriptors()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def crash_report(error: BaseException) -> str:
    """What a supervisor reports about its own crash: the traceback, and one last line with the
    reason."""
    trace = "".join(traceback.format_exception(error))
    return f"{trace}outlast: the supervisor crashed: {reason_of_crash(error)}\n"


def reason_of_crash(error: BaseException) -> str:
    """One line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
