"""The trainer to copy: logistic regression on made-up points, in numpy, done within seconds.

Copy this file to ``trainers/<name>.py``, then go through it from top to bottom and insert your own
model and data. The rest of Outlast finds it by its file name: ``python -m outlast.trainers <name>``
trains here, ``outlast:trainer: <name>`` in a stack.

Keep these rules, whatever you train:

1. *Import frameworks inside functions only.* The Pulumi program uses the parser to check a stack's
   arguments, on a machine that may have no framework.
2. *Everything that changes from step to step is in* ``state_dict``, *and nothing else decides what
   the next step does.* This is why a resumed run ends with the same bytes: no clock, no hash order,
   no global random numbers, no counter elsewhere.
3. *Know where you are in the data by numbers.* ``training.Order`` gives each epoch an order that
   is a function of seed and epoch; saving two numbers saves the position.
4. *No clock, host name or path of this machine in the model's files.* Two runs of one spec are
   compared byte by byte.

You do not write code for saving, resuming, signals, uploads, retries or the table of metrics.
``training.main`` makes the steps inside ``outlast.train``, which does all that.
"""

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.trainers import flags, training

# Frameworks are imported inside functions; only the type checker reads these lines.
if TYPE_CHECKING:
    import numpy as np

    Batch = tuple[np.ndarray, np.ndarray]

NAME = "dummy"
"""The name of this file."""

NEEDS = {"numpy": "numpy"}
"""Modules that the functions below import, and the packages that bring them. If one is missing, the
trainer says so in a sentence before it does anything else."""

MUTABLE = {**flags.MUTABLE, "learning-rate": "any", "step-ms": "any"}
"""Flags that may change in the middle of a run, when it resumes: ``raised`` or to ``any`` value.
List a flag only if the next step uses the new value and the saved state does not contain the old
one. The rate here is read at each step, but most frameworks' optimisers keep their own."""

COLUMNS = 8
ROWS = 1000
TEST_SHARE = 0.2
DATA_SEED = 8
MOMENTUM = 0.9
NOISE = 0.1
MODEL_FILE = "model.npy"


@dataclass(frozen=True)
class Config(flags.Config):
    """The settings of a training. The base class has the flags that all trainers share; a field
    here is the flag of its name (``batch_size`` is ``--batch-size``). All of them identify the run:
    another value makes another run."""

    batch_size: int
    learning_rate: float
    step_ms: float


@dataclass
class State:
    """A training in memory. A resume changes objects *in place*, so keep changing values in arrays,
    dicts or objects, not as bare numbers."""

    config: Config
    train: "Batch"
    """Points of shape (rows, COLUMNS) and their classes, 0 or 1."""
    test: "Batch"
    weights: "np.ndarray"
    """Shape (COLUMNS + 1,); the last is the bias."""
    velocity: "np.ndarray"
    """The optimiser's memory. If ``state_dict`` lacks it, a resumed run has another result."""
    rng: "np.random.Generator"
    """A random generator, whose state is saved too. ``training.seed_of(seed, step)`` works without
    a state."""
    order: training.Order

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.config.epochs * self.order.steps_per_epoch

    @property
    def epoch(self) -> int:
        """Complete epochs, which decide when to evaluate."""
        return self.order.epoch


def parser() -> flags.Parser:
    """The flags: the shared ones with this trainer's defaults, and its own."""
    made = flags.Parser(NAME, "Train a logistic regression on made-up points, as an example.")
    flags.add_common(
        made,
        data=f"CSV of {COLUMNS} numbers and the class, 0 or 1; made-up points where not given",
        epochs=20,
        eval_every=5,
        batch_size=32,
        learning_rate=0.05,
    )
    own = made.add_argument_group("model")
    own.add_argument(
        "--step-ms",
        metavar="MS",
        type=flags.positive,
        default=5.0,
        help="milliseconds that a step lasts at least, as a real model's would",
    )
    return made


def build(config: Config) -> State:
    """A training before its first step. Equal configurations give equal trainings."""
    import numpy as np

    train, test = _load(config)
    return State(
        config=config,
        train=train,
        test=test,
        weights=np.zeros(COLUMNS + 1),
        velocity=np.zeros(COLUMNS + 1),
        rng=np.random.Generator(np.random.PCG64(config.seed)),
        order=training.Order(len(train[1]), config.batch_size, config.seed),
    )


def next_batch(state: State) -> "Batch":
    """The rows for one step; advances the position in the data."""
    points, classes = state.train
    chosen = state.order.next()
    noise = state.rng.normal(0.0, NOISE, size=(len(chosen), COLUMNS))
    return points[chosen] + noise, classes[chosen]


def train_step(state: State, batch: "Batch") -> dict[str, float]:
    """Make one update. Return the values of this step's row; each step has exactly one row, however
    often the run is interrupted."""
    points, classes = batch
    time.sleep(state.config.step_ms / 1000)
    chances = _chances(state.weights, points)
    slope = _with_bias(points).T @ (chances - classes) / len(classes)
    state.velocity *= MOMENTUM
    state.velocity -= state.config.learning_rate * slope
    state.weights += state.velocity  # in place, because the state refers to this array
    return {"loss": _loss(chances, classes)}


def evaluate(state: State) -> dict[str, float]:
    """``train_loss``, ``test_loss`` and ``test_accuracy``: the columns of metrics.json. You may add
    more, but return the same ones each time. It changes nothing in ``state``, so that training does
    not depend on how often it is evaluated."""
    chances = _chances(state.weights, state.test[0])
    return {
        "train_loss": _loss(_chances(state.weights, state.train[0]), state.train[1]),
        "test_loss": _loss(chances, state.test[1]),
        "test_accuracy": float(((chances > 0.5) == state.test[1]).mean()),
    }


def state_dict(state: State) -> dict[str, object]:
    """The live objects that change, by name. A checkpoint is made of these, and a resumed run puts
    its values back into them. It may have numpy arrays and generators, dicts, lists, and objects
    with ``state_dict`` and ``load_state_dict``; an object that cannot be saved is named before the
    first step."""
    return {
        "weights": state.weights,
        "velocity": state.velocity,
        "rng": state.rng,
        "order": state.order,
    }


def parameters(state: State) -> "dict[str, np.ndarray]":
    """The model's weights by name, for inspection."""
    return {"weight": state.weights[:-1], "bias": state.weights[-1:]}


def save_model(state: State, result: Callable[[str], Path]) -> None:
    """Write the finished model; ``result(name)`` is the path of a file of the result."""
    import numpy as np

    np.save(result(MODEL_FILE), state.weights, allow_pickle=False)


def load_model(state: State, folder: Path) -> None:
    """Put the finished model of a result's folder into ``state``, for ``--mode eval``."""
    import numpy as np

    state.weights[:] = np.load(folder / MODEL_FILE, allow_pickle=False)


main = functools.partial(training.main, sys.modules[__name__])
"""Train or evaluate according to a list of flags; return the exit code."""


def _load(config: Config) -> "tuple[Batch, Batch]":
    """Rows to train on and rows to test on.

    ``training.data(path)`` returns a local path for a local or gs:// one. Raise UsageError for data
    that cannot be used: it becomes one sentence and exit code 64, which is never retried.
    """
    rows = _read(config.data, config) if config.data else _made_up()[: config.limit_rows or None]
    if config.eval_data:
        train, test = rows, _read(config.eval_data, config)
    else:
        count = round(len(rows) * TEST_SHARE)  # split by a fixed rule, not by the seed
        if count < 1:
            raise flags.UsageError(f"{len(rows)} rows: 3 or more are needed")
        train, test = rows[count:], rows[:count]
    training.check_classes(train[:, -1])
    return _halves(train), _halves(test)


def _halves(rows: "np.ndarray") -> "Batch":
    return rows[:, :-1], rows[:, -1]


def _read(path: str, config: Config) -> "np.ndarray":
    import numpy as np

    form = f"{COLUMNS} numbers and a class, 0 or 1"
    rows = training.table(path, columns=COLUMNS + 1, form=form, least=-np.inf, most=np.inf)
    if not np.isin(rows[:, -1], (0, 1)).all():
        raise flags.UsageError(f"data {path}: the last column must be a class, 0 or 1")
    return rows[: config.limit_rows or None]


def _made_up() -> "np.ndarray":
    """Points on either side of a plane, some of them on the wrong one."""
    import numpy as np

    generator = np.random.default_rng(DATA_SEED)  # constant, because --seed is for the training
    points = generator.normal(size=(ROWS, COLUMNS))
    plane = generator.normal(size=COLUMNS)
    classes = points @ plane + generator.normal(size=ROWS) > 0
    return np.column_stack([points, classes])


def _with_bias(points: "np.ndarray") -> "np.ndarray":
    import numpy as np

    return np.column_stack([points, np.ones(len(points))])


def _chances(weights: "np.ndarray", points: "np.ndarray") -> "np.ndarray":
    import numpy as np

    return 1 / (1 + np.exp(-(_with_bias(points) @ weights)))


def _loss(chances: "np.ndarray", classes: "np.ndarray") -> float:
    import numpy as np

    right = np.where(classes == 1, chances, 1 - chances)
    return float(-np.log(np.clip(right, 1e-12, None)).mean())
