"""A multilayer perceptron in Keras 3, on MNIST's files or scikit-learn's scans of digits.

The successor of the estimator example: one model, a training loop over batches, periodic evaluation
and an export. It works with any backend: the one in ``KERAS_BACKEND``, else the first installed of
PyTorch, JAX and TensorFlow. A checkpoint has the model's and the optimiser's variables;
``BackupAndRestore`` is not needed, and would save only at the end of an epoch.

The order of the rows is a function of seed and epoch, and the noise of a step is a function of
seed and step, so no generator has a state to save.
"""

import functools
import importlib.util
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.trainers import datasets, flags, training

if TYPE_CHECKING:
    import keras  # pyright: ignore[reportMissingImports]  # an extra
    import numpy as np

    Batch = tuple[np.ndarray, np.ndarray]

NAME = "keras_mlp"
NEEDS = {"keras": "keras", "sklearn": "scikit-learn", "numpy": "numpy"}
MUTABLE = flags.MUTABLE
"""Flags that may change in a run. The learning rate may not, because the saved optimiser keeps its
own."""
BACKENDS = ("torch", "jax", "tensorflow")
"""Backends, named like their modules; the first installed one is used."""
BACKEND_VARIABLE = "KERAS_BACKEND"
NOISE = 0.05
EVAL_ROWS = 1000
LAYERS_MOST = 8
LAYER_SIZE_MOST = 4096
MODEL_FILE = "model.keras"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Config(flags.Config):
    """The settings of a training, from the flags."""

    batch_size: int
    learning_rate: float
    hidden: tuple[int, ...]


@dataclass
class State:
    """A training in memory: its changing parts (model with its optimiser, order) and its constant
    ones."""

    config: Config
    model: "keras.Model"
    order: training.Order
    train: "Batch"
    """Pixels of shape (rows, side * side), 0 to 1, and digits."""
    test: "Batch"
    device: str
    """Keras's backend, which affects the last digits like a device."""

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
    made = flags.Parser(NAME, "Train a multilayer perceptron on handwritten digits with Keras.")
    flags.add_common(
        made,
        data="folder with MNIST's four files, plain or .gz; the scans in scikit-learn where not "
        "given",
        eval_data="folder whose t10k files are the test rows",
        epochs=20,
        eval_every=5,
        batch_size=32,
        learning_rate=0.001,
    )
    model = made.add_argument_group("model")
    model.add_argument(
        "--hidden",
        metavar="SIZES",
        type=flags.layers(LAYERS_MOST, LAYER_SIZE_MOST),
        default=(256, 128),
        help="sizes of the hidden layers, such as 64,32",
    )
    return made


def build(config: Config) -> State:
    """A training before its first step."""
    backend = _choose_backend(config.thread_count)
    import keras  # pyright: ignore[reportMissingImports]  # an extra

    split = datasets.images(config)
    train, test = _flat(split.train), _flat(split.test)
    keras.utils.set_random_seed(training.seed_of(config.seed))
    model = keras.Sequential(
        [
            keras.Input((train[0].shape[1],)),
            *(keras.layers.Dense(size, activation="relu") for size in config.hidden),
            keras.layers.Dense(len(datasets.CLASSES)),
        ],
        name=NAME,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(config.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return State(
        config=config,
        model=model,
        order=training.Order(len(train[1]), config.batch_size, config.seed),
        train=train,
        test=test,
        device=f"keras with {backend}",
    )


def next_batch(state: State) -> "Batch":
    """The next rows of the order, with some noise."""
    import numpy as np

    pixels, digits = state.train
    generator = np.random.default_rng((state.config.seed, state.order.step))
    chosen = state.order.next()
    noise = generator.normal(0.0, NOISE, size=pixels[chosen].shape)
    return (pixels[chosen] + noise).astype(np.float32), digits[chosen]


def train_step(state: State, batch: "Batch") -> dict[str, float]:
    """Update the network once; return the batch's loss from before the update."""
    state.model.reset_metrics()  # Keras's loss is a running mean; restart it for this batch
    return {"loss": float(state.model.train_on_batch(*batch))}


def evaluate(state: State) -> dict[str, float]:
    """Losses on the training and the test rows, and the accuracy on the test rows."""
    train_loss, _ = _judge(state, state.train)
    test_loss, accuracy = _judge(state, state.test)
    return {"train_loss": train_loss, "test_loss": test_loss, "test_accuracy": accuracy}


def state_dict(state: State) -> dict[str, object]:
    """The live objects that change, by name; a compiled model includes its optimiser."""
    return {"model": state.model, "order": state.order}


def parameters(state: State) -> "dict[str, np.ndarray]":
    """The weights by name, for inspection."""
    import keras  # pyright: ignore[reportMissingImports]  # an extra

    return {weight.path: keras.ops.convert_to_numpy(weight) for weight in state.model.weights}


def save_model(state: State, result: Callable[[str], Path]) -> None:
    """Write the model for ``keras.models.load_model``, without the times that Keras writes into
    it."""
    import keras  # pyright: ignore[reportMissingImports]  # an extra

    with tempfile.TemporaryDirectory() as folder:
        dated = Path(folder) / MODEL_FILE
        # Not compiled, because only the checkpoint needs the optimiser.
        finished = keras.models.clone_model(state.model)
        finished.set_weights(state.model.get_weights())
        finished.save(dated)
        _undated(dated, result(MODEL_FILE))


def load_model(state: State, folder: Path) -> None:
    """Load the finished model of a result."""
    import keras  # pyright: ignore[reportMissingImports]  # an extra

    state.model.set_weights(keras.models.load_model(folder / MODEL_FILE).get_weights())


main = functools.partial(training.main, sys.modules[__name__])
"""Train or evaluate according to a list of flags; return the exit code."""


def _choose_backend(threads: int) -> str:
    """Choose Keras's backend, before the import of Keras, which reads it once."""
    chosen = os.environ.get(BACKEND_VARIABLE)
    if not chosen:
        chosen = next((name for name in BACKENDS if importlib.util.find_spec(name)), None)
        if chosen is None:
            raise flags.UsageError(
                f"keras: none of its backends {', '.join(BACKENDS)} is installed for "
                f"{sys.executable}; run {sys.executable} -m pip install torch"
            )
        os.environ[BACKEND_VARIABLE] = chosen
    elif chosen not in BACKENDS or importlib.util.find_spec(chosen) is None:
        raise flags.UsageError(
            f"{BACKEND_VARIABLE} {chosen!r}: must be one of {', '.join(BACKENDS)}, and installed"
        )
    if chosen == "torch":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        import torch  # pyright: ignore[reportMissingImports]  # an extra

        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(threads)
    elif chosen == "tensorflow":
        import tensorflow  # pyright: ignore  # an extra

        tensorflow.config.experimental.enable_op_determinism()
        tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
        tensorflow.config.threading.set_inter_op_parallelism_threads(1)
    return chosen


def _judge(state: State, rows: "Batch") -> tuple[float, float]:
    """Mean loss and accuracy over ``rows``."""
    import numpy as np

    # Not predict(): with PyTorch it begins a DataLoader, which draws from torch.random.
    starts = range(0, len(rows[0]), EVAL_ROWS)
    batches = [state.model.predict_on_batch(rows[0][at : at + EVAL_ROWS]) for at in starts]
    scores = np.concatenate(batches).astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    chances = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    loss = -chances[np.arange(len(rows[1])), rows[1]].mean()
    return float(loss), float((scores.argmax(axis=1) == rows[1]).mean())


def _flat(rows: "Batch") -> "Batch":
    return rows[0].reshape(len(rows[0]), -1), rows[1]


def _undated(dated: Path, path: Path) -> None:
    """Rewrite a ``.keras`` file with constant times."""
    with zipfile.ZipFile(dated) as source, zipfile.ZipFile(path, "w") as target:
        for name in sorted(source.namelist()):
            content = source.read(name)
            if name == "metadata.json":
                metadata = {**json.loads(content), "date_saved": "1980-01-01@00:00:00"}
                content = json.dumps(metadata).encode()
            target.writestr(zipfile.ZipInfo(name, _EPOCH), content)
