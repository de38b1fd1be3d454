"""Handles Ctrl-C and SIGTERM while a training is open.

Python runs handlers only in the main thread; in another thread nothing is installed, and signals
have their usual effect.
"""

import os
import signal
import threading
from types import FrameType
from typing import Any

from outlast.base import exits
from outlast.loop.words import say


class Signals:
    """SIGINT and SIGTERM of a process that trains, from ``install`` to ``restore``.

    A handler that the program installs meanwhile runs too, after the signal was noted here, because
    a program that leaves its loop by a handler was stopped and has not finished. Forked children
    are not affected: signals have their previous effect there.
    """

    def __init__(self) -> None:
        self.requested = False
        """Whether this process was asked to stop."""
        self.impatient = False
        """Whether it was asked a second time, so that it exits at once."""
        self._own = os.getpid()
        self._before: dict[signal.Signals, Any] = {}
        self._programs: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)

    def keep(self) -> None:
        """Between two steps, reinstall our handler if the program has replaced it; the program's
        then runs after ours."""
        for number in self._before:
            found = signal.getsignal(number)
            if found != self._handle:
                self._programs[number] = found
                signal.signal(number, self._handle)

    def restore(self) -> None:
        if os.getpid() != self._own:
            return
        self.keep()
        for number, handler in {**self._before, **self._programs}.items():
            signal.signal(number, handler)
        self._before, self._programs = {}, {}

    def note(self, number: int) -> None:
        """React to a signal; may raise."""
        raise NotImplementedError

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._own:
            before = self._before.get(signal.Signals(number), signal.SIG_DFL)
            signal.signal(number, before if before is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.note(number)
        programs = self._programs.get(signal.Signals(number))
        if callable(programs):
            programs(number, frame)


class Interrupts(Signals):
    """A laptop run: the first signal asks for a stop, the second one exits at once."""

    def __init__(self) -> None:
        super().__init__()
        self.what = "stopping"
        """The effect of the first signal, for the message on the terminal."""

    def note(self, number: int) -> None:
        if self.requested:
            self.impatient = True
            raise SystemExit(exits.INTERRUPTED)
        self.requested = True
        say(f"{self.what}; Ctrl-C again leaves at once, without unsaved work")


class Supervised(Signals):
    """A training under a supervisor. The terminal's Ctrl-C and a stopping system's SIGTERM reach
    every process, but the supervisor decides what they mean and how much time is left."""

    def note(self, number: int) -> None:
        self.requested = self.requested or number == signal.SIGTERM
