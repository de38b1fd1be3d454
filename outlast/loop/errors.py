"""What can go wrong in the loop.

LoopError
├── StateError        a part of the state cannot be saved, by name
│   └── DoesNotFit    a checkpoint is sound but is not of this program's shape
├── DataError         data that is not there, cannot be fetched, or is not what it was
├── CheckpointFailed  the supervisor could not commit a snapshot
├── RankLost          another process of the same training has gone, or does something else
└── SupervisorLost    no supervisor answers, or it has gone
"""

from outlast import exits


class LoopError(Exception):
    """Base of all errors of outlast.loop; the message is one sentence for people."""


class StateError(LoopError):
    """A part of the state cannot be saved and restored; the message names it."""


class DoesNotFit(StateError):
    """A verified checkpoint does not load into the objects that this program has built."""


class DataError(LoopError):
    """Data cannot be used: absent, forbidden, too large for this machine, or changed."""


class CheckpointFailed(LoopError):
    """A snapshot that was handed over could not be committed."""


class RankLost(LoopError):
    """Another rank has ended, failed, or makes other steps: this one cannot go on without it."""


class SupervisorLost(LoopError):
    """The supervisor cannot be reached, does not answer or has gone.

    ``exit`` is its own exit code where it has ended and that is known; negative for a signal.
    """

    exit: int | None = None

    def __str__(self) -> str:
        if self.exit == exits.FENCED:  # starting the same run again would only fence the other
            return "another process works on this folder; end one of them"
        return super().__str__()
