"""A training's connection to its supervisor, and the requests to stop the training.

The supervisor is the one that ``OUTLAST_SOCKET`` names or, without it, one that is started for a
folder.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

from outlast.base import exits
from outlast.loop import data, local, parts
from outlast.loop.errors import LoopError, NotHere, SupervisorLost
from outlast.loop.session import Session, connect
from outlast.loop.signals import Interrupts, Signals, Supervised
from outlast.protocol import SOCKET_VARIABLE, Channel, Ended, Welcome

ENDED_SEC = 10.0
"""Seconds that a stopped trainer waits until its supervisor has recorded the end."""

_completed: set[parts.Key] = set()
"""The runs that this process has completed, each as one training without a part name."""


class Connection:
    """Opened and closed with a training; after a completed part it is kept for the next part."""

    def __init__(
        self, options: local.Options, part: str = "", *, restore_done: bool = True
    ) -> None:
        """``part`` names the part of the run to train; ``restore_done`` says whether to restore its
        state even if it is done."""
        self._options = options
        self._part = part
        self._restore_done = restore_done
        self._program: parts.Program | None = None
        """For a part: the parts of the run that this program trains."""
        self.part_done = False
        """Whether the part is done, whatever the program does afterwards."""
        socket_path = os.environ.get(SOCKET_VARIABLE)
        self._socket_path = socket_path
        self.signals: Signals = Supervised() if socket_path else Interrupts()
        self.supervisor: local.LocalSupervisor | None = None
        self._session: Session | None = None
        self._welcomed = False
        self._run: parts.Key | None = None
        """The key of the run in this program."""

    @property
    def session(self) -> Session:
        if self._session is None:
            raise LoopError("the training has not started: use `with outlast.train(…) as run`")
        return self._session

    def open(self, total: int | None) -> Welcome | Ended:
        """Connect and return the supervisor's answer; SystemExit 75 if Ctrl-C comes first."""
        check_process()
        self.signals.install()
        run = self._run = self._named_run()
        if run in _completed and not local.in_notebook():
            raise NotHere(
                f"run {run[2]}: this program has already completed it, and calls outlast.train a "
                "second time; make each of its trainings a part of the run (part='a name'), or "
                "give each its own name= or run_dir="
            )
        if self._part:
            self._program = parts.begin(run, self._part, self._options)
        else:
            parts.refuse_unnamed(run)
        self._session = Session(
            self._channel(), total=total, part=self._part, restore_done=self._restore_done
        )
        answer = self._session.welcome(stopped=self.is_interrupted)
        self._welcomed = True
        if isinstance(answer, Ended) and self._program is not None:
            self._program.active = self._program = None  # the run has nothing left to train
        return answer

    def _named_run(self) -> parts.Key:
        if self._socket_path is not None:
            return "", "", self._socket_path
        run = local.named(self._options)
        return run.trainer, run.run, os.path.abspath(run.folder)

    def _channel(self) -> Channel:
        """The previous part's connection, or a new one."""
        if self._program is not None and self._program.channel is not None:
            channel, self.supervisor = self._program.take()
            return channel
        if self._socket_path is not None:
            return connect(self._socket_path)
        self.supervisor = local.start(self._options)
        if self._program is not None:
            parts.finish_at_exit()
        try:
            return connect(self.supervisor.socket_path)
        finally:
            self.supervisor.forget_socket()

    def is_interrupted(self) -> bool:
        """Whether Ctrl-C was pressed during a training on a laptop."""
        return self.supervisor is not None and self.signals.requested

    def asked_to_leave(self) -> bool:
        """Whether a signal asked this process to stop; before the first step, that loses
        nothing."""
        return self.signals.requested

    @property
    def stop_in_sec(self) -> float | None:
        """Seconds left for the training to end; None without a request to stop."""
        left_sec = self.session.stop_in_sec
        return local.STOP_SEC if left_sec is None and self.is_interrupted() else left_sec

    def stop_asked(self) -> bool:
        """Whether a signal or the supervisor has asked this training to stop, as known by now."""
        return self.signals.requested or self.session.look_for_stop()

    def tell_data(self) -> None:
        """On a laptop, report the data in use, so that another attempt with different data is
        refused."""
        used = data.take_used()
        if self.supervisor is not None:
            for url, path in used.items():
                local.check_apart(url, self.supervisor.run_dir)
                self.session.fetch(url, path, stopped=self.is_interrupted)

    def describe(self, what: str) -> None:
        """Set the text that describes the effect of the first Ctrl-C, for the terminal."""
        if isinstance(self.signals, Interrupts):
            self.signals.what = what

    def note_step(self, step: int) -> None:
        """Report the last step to the supervisor before the training ends."""
        if self._session is not None:
            with contextlib.suppress(SupervisorLost):
                self._session.tick(step, "train", last=True)

    def report(self, message: str, kind: str, lines: Sequence[str] = ()) -> None:
        """Tell the supervisor, if there is one, why training ends."""
        if self._session is not None:
            self._session.report(message, kind, lines)

    def close(self, error: BaseException | None) -> None:
        """Hang up and wait until the supervisor has finished its work. After a completed part, do
        neither. SupervisorLost if a completed training's result was not kept."""
        if self._program is not None:
            if error is None:
                self._program.keep(self.session.channel, self.supervisor)
                return
            self._program.give_up(done=self.part_done)
        if self._session is not None:
            self._session.close()
        supervisor = self.supervisor
        if supervisor is None:
            return
        if not self._welcomed:
            # It may be waiting for an unavailable store, and would hold the run when the user tries
            # again.
            supervisor.abandon()
        if self.signals.impatient:
            return
        if error is None:
            code = supervisor.wait(None)
        elif isinstance(error, SystemExit) or not self._welcomed:
            code = supervisor.wait(ENDED_SEC)
        else:
            requested = self.signals.requested
            self.signals.requested = False
            code = supervisor.wait_for_commit(lambda: self.signals.requested)
            self.signals.requested = requested or self.signals.requested
        if isinstance(error, SupervisorLost) and error.exit is None:
            error.exit = code
        if error is None:
            local.check_end(code)
            if self._run is not None:
                _completed.add(self._run)


def check_process() -> None:
    """Raise NotHere if a multiprocessing child reaches ``outlast.train`` because it imports the
    program, as with ``spawn``: it would take over its parent's run."""
    frame = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "<module>" and module == "__mp_main__":
            raise NotHere(
                "outlast.train was reached while a multiprocessing child imports the program; put "
                'the training below `if __name__ == "__main__":`'
            )
        frame = frame.f_back


def interrupted() -> SystemExit:
    """The exception that ends a program whose training was asked to stop."""
    return SystemExit(exits.INTERRUPTED)
