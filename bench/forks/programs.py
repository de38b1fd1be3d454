"""What is trained: trainers that come with Outlast, cut to a few steps, and a run of parts."""

import functools
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlast.loop import train
from outlast.trainers import datasets, training


@dataclass(frozen=True)
class Program:
    """A training and the settings of its run."""

    name: str
    run: Callable[[], int]
    checkpoint_every: str
    keep_every_steps: int = 0
    waits: bool = True
    """Whether the loop waits for each commit, so that each checkpoint has the same step each time.
    Without it training and upload overlap, and a busy upload moves a checkpoint by some steps."""


datasets.scans = functools.cache(datasets.scans)  # each fork would read them from the disk


def _trainer(name: str, *flags: str) -> Callable[[], int]:
    module = importlib.import_module(f"outlast.trainers.{name}")
    return lambda: training.main(module, list(flags))


class Walk:
    """A random walk whose next step depends on all before: position, velocity and generator."""

    def __init__(self, seed: int) -> None:
        import numpy as np

        self.place = np.zeros(16)
        self.velocity = np.zeros(16)
        self.rng = np.random.Generator(np.random.PCG64(seed))

    def advance(self) -> float:
        import numpy as np

        self.velocity *= 0.9
        self.velocity += self.rng.standard_normal(16) - 0.01 * self.place
        self.place += self.velocity
        return float(np.abs(self.place).sum())

    def state(self) -> dict[str, Any]:
        return {"place": self.place, "velocity": self.velocity, "rng": self.rng}


PARTS = (("first", 4), ("second", 6), ("third", 5))


def _parts() -> int:
    """Three trainings, one after the other; each begins where the one before has ended."""
    before = 0.0
    for number, (name, steps) in enumerate(PARTS):
        walk = Walk(number)
        walk.place += before
        with train(walk.state(), total=steps, part=name) as run:
            for step in run.steps():
                run.log(size=walk.advance())
                if step % 3 == 0:
                    run.eval(best="min", of="spread", spread=float(walk.place.std()))
            if not run.done:
                run.result("place.json").write_text(json.dumps(walk.place.tolist()))
        before = float(walk.place[0])
    return 0


PROGRAMS = {
    one.name: one
    for one in (
        Program(
            "dummy",
            _trainer(
                "dummy", "--epochs=3", "--limit-rows=200", "--eval-every=1", "--step-ms=0.001"
            ),
            "3",
        ),
        Program(
            "digits",
            _trainer(
                "digits",
                "--epochs=6",
                "--limit-rows=160",
                "--batch-size=32",
                "--hidden=16",
                "--eval-every=2",
            ),
            "6",
            keep_every_steps=12,
        ),
        Program("parts", _parts, "3"),
        Program(
            "overlapping",
            _trainer("dummy", "--epochs=4", "--limit-rows=200", "--eval-every=2", "--step-ms=1"),
            "2",
            waits=False,
        ),
    )
}
