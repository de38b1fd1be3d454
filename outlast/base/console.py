"""What a process writes to its terminal, whatever happens to it."""

import contextlib
import os
import sys
import traceback

from outlast.base.visible import visible


def write_stderr(text: str) -> None:
    """Writes any text to stderr. Never raises: a full disk, a reader that has exited or a closed
    stderr must not end a run.
    """
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
    """Flushes stdout and stderr before the process ends. Never raises, like `write_stderr`."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # full, closed, or None
            stream.flush()


def fill_descriptors() -> None:
    """Opens closed descriptors 0 to 2 on /dev/null: otherwise the next file or socket would get
    such a number, and text for stderr would be written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number; children inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def fill_streams() -> None:
    """For Outlast's own processes: `fill_descriptors`, and null streams for those that Python
    lacks.
    """
    fill_descriptors()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def crash_report(error: BaseException) -> str:
    """Reports the supervisor's own crash: the traceback, and a last line with the reason."""
    trace = "".join(traceback.format_exception(error))
    return f"{trace}outlast: the supervisor crashed: {reason_of_crash(error)}\n"


def reason_of_crash(error: BaseException) -> str:
    """One line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
