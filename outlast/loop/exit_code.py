"""The exit code with which this program is ending, for functions that run at its end (``atexit``).

Python does not expose it, but the program's outermost frame shows whether it returned or which code
``SystemExit`` had. With Python 3.11 this works for ``sys.exit`` only, and not if the outermost
frame calls it inside ``try`` or ``with``. An unknown code is None, never 0.
"""

import dis
import sys
import threading
from types import CodeType, FrameType
from typing import Any

_NAME = "outlast"

_outermost: FrameType | None = None
_exit: SystemExit | None = None
"""A copy of the exception that ended the program; the original would keep its frames alive."""


def watch() -> None:
    """Start watching, so that ``find`` can answer. Further calls have no effect."""
    global _outermost
    if _outermost is None:
        _outermost = _outermost_frame()
        if not _watch_unwinding(_outermost.f_code):
            _wrap_exit()


def find() -> int | None:
    """The program's exit code as a shell sees it; None if unknown. Call it only at the program's
    end, when none of its frames runs any more."""
    if _outermost is None:
        return None
    if _has_returned(_outermost):
        return 0
    if _exit is None:
        return None
    code = _exit.code
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _outermost_frame() -> FrameType:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def _has_returned(frame: FrameType) -> bool:
    """Whether a finished frame returned; otherwise an exception ended it."""
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return name in ("RETURN_VALUE", "RETURN_CONST")


def _note(error: BaseException) -> None:
    global _exit
    _exit = SystemExit(error.code) if isinstance(error, SystemExit) else None


def _watch_unwinding(outermost: CodeType) -> bool:
    """Note the exception that ends the outermost frame. False if Python cannot report it (3.11) or
    all of its tool ids are in use."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return False
    free = [tool for tool in (3, 4) if monitoring.get_tool(tool) is None]
    if not free:
        return False

    def on_unwind(code: CodeType, offset: int, error: BaseException) -> None:
        if code is outermost:
            _note(error)

    monitoring.use_tool_id(free[0], _NAME)
    monitoring.register_callback(free[0], monitoring.events.PY_UNWIND, on_unwind)
    monitoring.set_events(free[0], monitoring.events.PY_UNWIND)
    return True


class _Exit(SystemExit):
    """The exception that ``sys.exit`` raises from now on. One that ends the program is deleted when
    no frame runs any more, and its traceback, if it has one, begins at the instruction where the
    outermost frame stopped."""

    def __del__(self) -> None:
        if sys._getframe().f_back is not None or _outermost is None:
            return
        trace = self.__traceback__
        ended_it = trace is None or (trace.tb_frame, trace.tb_lasti) == (
            _outermost,
            _outermost.f_lasti,
        )
        if ended_it and threading.current_thread() is threading.main_thread():
            _note(self)


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"


def _wrap_exit() -> None:
    def exit(status: Any = None, /) -> Any:
        raise _Exit(status)

    exit.__doc__ = sys.exit.__doc__
    sys.exit = exit
