"""The loop of a trainer, which saves, stops and resumes by itself and loses nothing in between.

::

    with outlast.train(state={"model": model, "rng": rng}, total=steps) as run:
        for step in run.steps():              # the next step to make, 1 to total
            ...
            run.log(loss=loss)                # a row for this step, none lost, none twice
            run.eval(accuracy=a, best="max")  # a new best is a tagged checkpoint
        ...
        model.save(run.result("model.bin"))   # a file of the result

Runs in the trainer's process, single-threaded, between two steps. Another process, the supervisor,
stores everything durable: the one that ``OUTLAST_SOCKET`` names or, without it, one that the loop
starts for a folder on this machine.
"""

from outlast.loop.entry import train
from outlast.loop.errors import (
    CheckpointFailed,
    DataError,
    DoesNotFit,
    LeftEarly,
    LoopError,
    NotHere,
    RunEnded,
    StateError,
    SupervisorLost,
)
from outlast.loop.training import Training

__all__ = [
    "CheckpointFailed",
    "DataError",
    "DoesNotFit",
    "LeftEarly",
    "LoopError",
    "NotHere",
    "Training",
    "RunEnded",
    "StateError",
    "SupervisorLost",
    "train",
]
