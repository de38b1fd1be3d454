"""A multilayer perceptron in JAX with optax, on MNIST's files or scikit-learn's scans of digits.

JAX's arrays cannot change, so one dict holds everything that training changes: a step takes the
values out and puts those for the next step in. The learning rate falls with the steps, which optax
counts in its own state. The order of the rows is a function of seed and epoch; the random numbers
(dropout) come from a key in the dict.
"""

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.trainers import datasets, flags, training

if TYPE_CHECKING:
    import jax  # pyright: ignore[reportMissingImports]  # an extra
    import numpy as np

    Batch = tuple[np.ndarray, np.ndarray]
    Params = list[dict[str, jax.Array]]

NAME = "jax_mlp"
NEEDS = {"jax": "jax", "optax": "optax", "sklearn": "scikit-learn", "numpy": "numpy"}
MUTABLE = flags.MUTABLE
"""Flags that may change in a run. The learning rate may not, as in all trainers with an
optimiser."""
DROPOUT = 0.2
DECAY = 0.95
"""Factor for the learning rate after each epoch."""
LAYERS_MOST = 8
LAYER_SIZE_MOST = 4096
MODEL_FILE = "model.npz"


@dataclass(frozen=True)
class Config(flags.Config):
    """The settings of a training, from the flags."""

    batch_size: int
    learning_rate: float
    hidden: tuple[int, ...]


@dataclass
class State:
    """A training in memory: its changing parts (``now``, order) and its constant ones."""

    config: Config
    now: dict[str, Any]
    """``params``, optax's ``opt_state`` and the random ``key`` for the next step."""
    update: Callable[..., tuple[dict[str, Any], "jax.Array"]]
    """Compiled function from ``now`` and a batch to the next ``now`` and the loss."""
    order: training.Order
    train: "Batch"
    """Pixels of shape (rows, side * side), 0 to 1, and digits."""
    test: "Batch"
    device: str
    """``cpu``, or the name of the accelerator."""

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
    made = flags.Parser(NAME, "Train a multilayer perceptron on handwritten digits with JAX.")
    flags.add_common(
        made,
        data="folder with MNIST's four files, plain or .gz; the scans in scikit-learn where not "
        "given",
        eval_data="folder whose t10k files are the test rows",
        epochs=20,
        eval_every=5,
        batch_size=32,
        learning_rate=0.002,
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
    """A training before its first step, on an accelerator if there is one."""
    # JAX reads its number of CPU threads, on which the last digits depend, at its first
    # computation.
    os.environ["NPROC"] = os.environ["PJRT_NPROC"] = str(config.thread_count)
    import jax  # pyright: ignore[reportMissingImports]  # an extra
    import optax  # pyright: ignore[reportMissingImports]  # an extra

    split = datasets.images(config)
    train, test = _flat(split.train), _flat(split.test)
    order = training.Order(len(train[1]), config.batch_size, config.seed)
    rate = optax.exponential_decay(config.learning_rate, order.steps_per_epoch, DECAY)
    optimizer = optax.adam(rate)
    key, own = jax.random.split(jax.random.key(training.seed_of(config.seed)))
    sizes = (train[0].shape[1], *config.hidden, len(datasets.CLASSES))
    params = _params(own, sizes)
    device = jax.devices()[0]
    return State(
        config=config,
        now={"params": params, "opt_state": optimizer.init(params), "key": key},
        update=jax.jit(functools.partial(_update, optimizer)),
        order=order,
        train=train,
        test=test,
        device="cpu" if device.platform == "cpu" else device.device_kind,
    )


def next_batch(state: State) -> "Batch":
    """The next rows of the order."""
    pixels, digits = state.train
    chosen = state.order.next()
    return pixels[chosen], digits[chosen]


def train_step(state: State, batch: "Batch") -> dict[str, float]:
    """Update the network once; return the batch's loss from before the update."""
    news, loss = state.update(state.now, *batch)
    state.now.update(news)  # in place, because the state refers to this dict
    return {"loss": float(loss)}


def evaluate(state: State) -> dict[str, float]:
    """Losses on the training and the test rows, and the accuracy on the test rows."""
    train_loss, _ = _judge(state, state.train)
    test_loss, accuracy = _judge(state, state.test)
    return {"train_loss": train_loss, "test_loss": test_loss, "test_accuracy": accuracy}


def state_dict(state: State) -> dict[str, object]:
    """The live objects that change, by name; a checkpoint restores them in place."""
    return {"now": state.now, "order": state.order}


def parameters(state: State) -> "dict[str, np.ndarray]":
    """The weights by name, for inspection."""
    import numpy as np

    layers = enumerate(state.now["params"])
    return {f"{i}.{name}": np.asarray(each) for i, layer in layers for name, each in layer.items()}


def save_model(state: State, result: Callable[[str], Path]) -> None:
    """Write the weights as a numpy archive."""
    import numpy as np

    with result(MODEL_FILE).open("wb") as file:
        np.savez(file, **parameters(state))  # type: ignore[arg-type]


def load_model(state: State, folder: Path) -> None:
    """Load the finished model of a result."""
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]  # an extra
    import numpy as np

    with np.load(folder / MODEL_FILE) as held:
        state.now["params"] = [
            {name: jnp.asarray(held[f"{i}.{name}"]) for name in layer}
            for i, layer in enumerate(state.now["params"])
        ]


main = functools.partial(training.main, sys.modules[__name__])
"""Train or evaluate according to a list of flags; return the exit code."""


def _params(key: "jax.Array", sizes: Sequence[int]) -> "Params":
    import jax  # pyright: ignore[reportMissingImports]  # an extra
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]  # an extra

    pairs = list(zip(sizes, sizes[1:], strict=False))
    draw = jax.nn.initializers.he_normal()
    keys = jax.random.split(key, len(pairs))
    return [
        {"w": draw(each, pair), "b": jnp.zeros(pair[1])}
        for each, pair in zip(keys, pairs, strict=True)
    ]


def _scores(params: "Params", pixels: "jax.Array", key: "jax.Array | None" = None) -> "jax.Array":
    """The scores of each class; with a ``key``, some hidden units are dropped."""
    import jax  # pyright: ignore[reportMissingImports]  # an extra

    *hidden, last = params
    for layer in hidden:
        pixels = jax.nn.relu(pixels @ layer["w"] + layer["b"])
        if key is not None:
            key, own = jax.random.split(key)
            kept = jax.random.bernoulli(own, 1 - DROPOUT, pixels.shape)
            pixels = pixels * kept / (1 - DROPOUT)
    return pixels @ last["w"] + last["b"]


def _update(
    optimizer: Any, now: Mapping[str, Any], pixels: "jax.Array", digits: "jax.Array"
) -> "tuple[dict[str, Any], jax.Array]":
    import jax  # pyright: ignore[reportMissingImports]  # an extra
    import optax  # pyright: ignore[reportMissingImports]  # an extra

    key, own = jax.random.split(now["key"])

    def loss_of(params: "Params") -> "jax.Array":
        scores = _scores(params, pixels, own)
        return optax.softmax_cross_entropy_with_integer_labels(scores, digits).mean()

    loss, grads = jax.value_and_grad(loss_of)(now["params"])
    changes, opt_state = optimizer.update(grads, now["opt_state"], now["params"])
    params = optax.apply_updates(now["params"], changes)
    return {"params": params, "opt_state": opt_state, "key": key}, loss


def _judge(state: State, rows: "Batch") -> tuple[float, float]:
    """Mean loss and accuracy over ``rows``."""
    import numpy as np

    scores = np.asarray(_scores(state.now["params"], rows[0]), np.float64)  # type: ignore[arg-type]
    scores -= scores.max(axis=1, keepdims=True)
    chances = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    loss = -chances[np.arange(len(rows[1])), rows[1]].mean()
    return float(loss), float((scores.argmax(axis=1) == rows[1]).mean())


def _flat(rows: "Batch") -> "Batch":
    return rows[0].reshape(len(rows[0]), -1), rows[1]
