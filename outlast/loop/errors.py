"""What can go wrong in the loop.

LoopError
├── StateError        a part of the state cannot be saved, by name
│   └── DoesNotFit    a checkpoint is sound but is not of this program's shape
├── CheckpointFailed  the supervisor could not commit a snapshot
└── SupervisorLost    no supervisor answers, or it has gone
"""


class LoopError(Exception):
    """Base of all errors of outlast.loop; the message is one sentence for people."""


class StateError(LoopError):
    """A part of the state cannot be saved and restored; the message names it."""


class DoesNotFit(StateError):
    """A verified checkpoint does not load into the objects that this program has built."""


class CheckpointFailed(LoopError):
    """A snapshot that was handed over could not be committed."""


class SupervisorLost(LoopError):
    """The supervisor cannot be reached, does not answer or has gone.

    ``exit`` is its own exit code where it has ended and that is known; negative for a signal.
    """

    exit: int | None = None
