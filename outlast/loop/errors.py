"""The errors of the loop.

LoopError
├── StateError        a part of the state cannot be saved, by name
│   └── DoesNotFit    a checkpoint is sound but is not of this program's shape
├── DataError         data is absent, cannot be fetched, or has changed
├── CheckpointFailed  the supervisor could not commit a snapshot
├── LeftEarly         the loop was left before its last step, and the trainer did not say why
├── NotHere           outlast.train was reached in a process that must not train
├── RankLost          another process of the same training has ended or makes other steps
├── Refused           the supervisor refuses to continue the run
└── SupervisorLost    no supervisor answers, or it has ended
"""

import sys
from types import TracebackType

from outlast.base import exits
from outlast.base.visible import VisibleError
from outlast.loop.words import say


class LoopError(VisibleError):
    """Base of all errors of outlast.loop; the message is one sentence for people."""


class StateError(LoopError):
    """A part of the state cannot be saved and restored; the message names it."""


class DoesNotFit(StateError):
    """A verified checkpoint does not load into the objects that this program has built."""


class DataError(LoopError):
    """Data cannot be used: absent, forbidden, too large for this machine, or changed."""


class CheckpointFailed(LoopError):
    """A snapshot that was handed over could not be committed."""


class LeftEarly(LoopError):
    """The loop was left before all steps were made and without ``run.finish``."""


class NotHere(LoopError):
    """``outlast.train`` was reached in a process that must not train: a multiprocessing child that
    imports the program, a forked child, or a program that has trained this run already."""


class RankLost(LoopError):
    """Another rank has ended, failed, or makes other steps, so this one cannot continue."""


class Refused(LoopError):
    """The supervisor refuses to continue the run; the message has its reason."""


class SupervisorLost(LoopError):
    """The supervisor cannot be reached, does not answer or has ended.

    ``exit`` is its own exit code if it has ended and that is known; negative for a signal.
    """

    exit: int | None = None

    def __str__(self) -> str:
        if self.exit == exits.FENCED:  # starting the run again would only fence the other process
            return "another process works on this folder; end one of them"
        return super().__str__()


class RunEnded(SystemExit):
    """The run has already ended; has the exit code of that end."""


WITHOUT_TRACEBACK = (
    CheckpointFailed,
    DataError,
    DoesNotFit,
    LeftEarly,
    NotHere,
    RankLost,
    Refused,
    SupervisorLost,
)
"""Errors that do not depend on a line of the program, so that a sentence explains them better than
a traceback. The others are bugs in the program, for which the line matters."""


def exit_code(error: LoopError) -> int:
    """The exit code of a program that this error ends."""
    if isinstance(error, DataError | NotHere):
        return exits.USAGE
    if isinstance(error, SupervisorLost):
        # Killed or unknown: the same command continues. Otherwise the supervisor's own code counts.
        return error.exit if error.exit is not None and error.exit > 0 else exits.INTERRUPTED
    return 1


def report_as_sentences() -> None:
    """From now on, report an uncaught error of WITHOUT_TRACEBACK as its sentence on stderr and
    exit with its own code. Other errors, and those raised while another was handled, are not
    affected."""
    before = sys.excepthook
    if getattr(before, "reports_sentences", False):
        return

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        beside = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if not isinstance(error, WITHOUT_TRACEBACK) or beside is not None:
            before(kind, error, trace)
            return
        say(str(error))
        raise SystemExit(exit_code(error))  # a hook's own exit code becomes the program's

    tell.reports_sentences = True  # type: ignore[attr-defined]
    sys.excepthook = tell
