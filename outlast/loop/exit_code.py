"""The exit code that this program is ending with, for what runs at its end (``atexit``).

Python does not say. It is known from the program's outermost frame: whether it returned or, where
``SystemExit`` ended it, with what code. Python 3.11 tells that of ``sys.exit`` alone, and not if
the outermost frame calls it inside of ``try`` or ``with``. What cannot be known is None, and
never 0.
"""

import dis
import sys
import threading
from types import CodeType, FrameType
from typing import Any

_NAME = "outlast"

_outermost: FrameType | None = None
_exit: SystemExit | None = None
"""A copy of what ended the program; the one that was raised holds its frames."""


def watch() -> None:
    """From now on ``find`` has an answer. Called again, nothing changes."""
    global _outermost
    if _outermost is None:
        _outermost = _outermost_frame()
        if not _watch_unwinding(_outermost.f_code):
            _wrap_exit()


def find() -> int | None:
    """What the program ends with, as a shell sees it; None if it is unknown. Only at its end,
    when no frame of it runs any more."""
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
    """Whether a frame that runs no more came to its end; else an exception ended it."""
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return name in ("RETURN_VALUE", "RETURN_CONST")


def _note(error: BaseException) -> None:
    global _exit
    _exit = SystemExit(error.code) if isinstance(error, SystemExit) else None


def _watch_unwinding(outermost: CodeType) -> bool:
    """Note what ends the outermost frame. False if Python cannot say (3.11), or others have
    taken its places for that."""
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
    """What ``sys.exit`` raises from now on. One that ends the program dies with no frame around;
    and where it was handled on its way, it was raised where the outermost frame stands."""

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
