"""Handwritten digits: a small network on the 1,797 scans of 8 by 8 pixels in scikit-learn.

A step is one mini-batch of randomly shifted scans. A fifth of the rows is for testing, drawn once
with a constant seed. The order of the data is a function of seed and epoch, so that a position in
it is two numbers; the random shifts come from a generator that is part of the state.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.loop import snapshot
from outlast.trainers import datasets, flags, training

if TYPE_CHECKING:
    import numpy as np
    from sklearn.neural_network import MLPClassifier

    Batch = tuple[np.ndarray, np.ndarray]

NAME = "digits"
NEEDS = {"sklearn": "scikit-learn", "numpy": "numpy", "threadpoolctl": "threadpoolctl"}
MUTABLE = flags.MUTABLE
"""Flags that may change in a run. The learning rate may not, because the saved optimiser keeps its
own."""
BATCH_SIZE_MOST = 200  # MLPClassifier cuts larger ones into several updates
LAYERS_MOST = 8
LAYER_SIZE_MOST = 4096
MODEL_FILE = "model.json"


@dataclass(frozen=True)
class Config(flags.Config):
    """The settings of a training, from the flags."""

    batch_size: int
    learning_rate: float
    hidden: tuple[int, ...]


@dataclass
class State:
    """A training in memory: its changing parts (model, rng, order) and its constant ones."""

    config: Config
    model: "MLPClassifier"
    rng: "np.random.Generator"
    order: training.Order
    train: "Batch"
    """Pixels of shape (rows, 64), 0 to 1, and digits."""
    test: "Batch"

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.config.epochs * self.order.steps_per_epoch

    @property
    def epoch(self) -> int:
        """Complete epochs."""
        return self.order.epoch


def parser() -> flags.Parser:
    """The flags; imports no framework."""
    made = flags.Parser(NAME, "Train a small network on handwritten digits.")
    flags.add_common(
        made,
        data="CSV of 64 pixels (0 to 16) and the digit; the scans in scikit-learn where not given",
        epochs=150,
        eval_every=5,
        batch_size=64,
        batch_size_most=BATCH_SIZE_MOST,
        learning_rate=0.001,
    )
    model = made.add_argument_group("model")
    model.add_argument(
        "--hidden",
        metavar="SIZES",
        type=flags.layers(LAYERS_MOST, LAYER_SIZE_MOST),
        default=(512, 256),
        help="sizes of the hidden layers, such as 64,32",
    )
    return made


def build(config: Config) -> State:
    """A training before its first step."""
    import numpy as np
    from sklearn.neural_network import MLPClassifier

    split = _load(config)
    model = MLPClassifier(
        config.hidden,
        learning_rate_init=config.learning_rate,
        shuffle=False,  # ``order`` shuffles
        random_state=config.seed,
    )
    return State(
        config=config,
        model=model,
        rng=np.random.Generator(np.random.PCG64(config.seed)),
        order=training.Order(len(split.train[1]), config.batch_size, config.seed),
        train=_flat(split.train),
        test=_flat(split.test),
    )


def next_batch(state: State) -> "Batch":
    """The next rows of the order, each scan shifted by up to one pixel."""
    import numpy as np

    pixels, digits = state.train
    chosen = state.order.next()
    side = datasets.SIDE
    down, right = state.rng.integers(0, 3, size=(2, len(chosen), 1, 1))
    framed = np.pad(pixels[chosen].reshape(-1, side, side), ((0, 0), (1, 1), (1, 1)))
    scan, line, column = np.ogrid[: len(chosen), :side, :side]
    return framed[scan, line + down, column + right].reshape(len(chosen), -1), digits[chosen]


def train_step(state: State, batch: "Batch") -> dict[str, float]:
    """Update the network once; return the batch's loss from before the update."""
    pixels, digits = batch
    state.model.partial_fit(pixels, digits, classes=datasets.CLASSES)
    del state.model.loss_curve_[:-1]  # it gets a value per step, so snapshots would grow
    return {"loss": float(state.model.loss_)}


def evaluate(state: State) -> dict[str, float]:
    """Losses on the training and the test rows, and the accuracy on the test rows."""
    from sklearn.metrics import accuracy_score, log_loss

    def loss(rows: "Batch") -> float:
        chances = state.model.predict_proba(rows[0])
        return float(log_loss(rows[1], chances, labels=datasets.CLASSES))

    return {
        "train_loss": loss(state.train),
        "test_loss": loss(state.test),
        "test_accuracy": float(accuracy_score(state.test[1], state.model.predict(state.test[0]))),
    }


def state_dict(state: State) -> dict[str, object]:
    """The live objects that change, by name; a checkpoint restores them in place."""
    return {"model": state.model, "rng": state.rng, "order": state.order}


def parameters(state: State) -> "dict[str, np.ndarray]":
    """The weights by name, for inspection; empty before the first step."""
    weights = getattr(state.model, "coefs_", [])
    biases = getattr(state.model, "intercepts_", [])
    return {
        f"layer{i}.{kind}": array
        for i, pair in enumerate(zip(weights, biases, strict=True))
        for kind, array in zip(("weight", "bias"), pair, strict=True)
    }


def save_model(state: State, result: Callable[[str], Path]) -> None:
    """Write the estimator's parameters and fitted attributes without pickle: JSON and raw
    arrays."""
    snapshot.write_values(result(MODEL_FILE), {"model": state.model})


def load_model(state: State, folder: Path) -> None:
    """Load the finished model of a result."""
    state.model = snapshot.read_values(folder / MODEL_FILE)["model"]


main = functools.partial(training.main, sys.modules[__name__])
"""Train or evaluate according to a list of flags; return the exit code."""


def _load(config: Config) -> datasets.Split:
    rows = datasets.csv(config.data) if config.data else datasets.scans()
    if not config.eval_data:
        return datasets.split(rows, config.limit_rows)
    return datasets.Split(
        datasets.limited(rows, config.limit_rows),
        datasets.limited(datasets.csv(config.eval_data), config.limit_rows),
    )


def _flat(rows: "Batch") -> "Batch":
    return rows[0].reshape(len(rows[0]), -1).astype(float), rows[1]
