"""A small convolutional network in PyTorch, on MNIST's files or scikit-learn's scans of digits.

The order of the rows is a function of seed and epoch, and the random numbers of a step (dropout)
are a function of seed and step, so no generator has a state to save. Algorithms are deterministic
and the number of threads is fixed, so the same processor or GPU gives the same bytes.
"""

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.trainers import datasets, flags, training

if TYPE_CHECKING:
    import numpy as np
    import torch  # pyright: ignore[reportMissingImports]  # an extra

    Batch = tuple[torch.Tensor, torch.Tensor]

NAME = "torch_cnn"
NEEDS = {
    "torch": "torch",
    "safetensors": "safetensors",
    "sklearn": "scikit-learn",
    "numpy": "numpy",
}
MUTABLE = flags.MUTABLE
"""Flags that may change in a run. The learning rate may not, because the saved optimiser keeps its
own."""
CHANNELS = (32, 64)
HIDDEN = 128
DROPOUT = 0.25
EVAL_ROWS = 1000
MODEL_FILE, EXPORT_FILE = "model.safetensors", "model.pt"


@dataclass(frozen=True)
class Config(flags.Config):
    """The settings of a training, from the flags."""

    batch_size: int
    learning_rate: float


@dataclass
class State:
    """A training in memory: its changing parts (model, optimizer, order) and its constant ones."""

    config: Config
    model: "torch.nn.Module"
    optimizer: "torch.optim.Optimizer"
    order: training.Order
    train: "Batch"
    """Pixels of shape (rows, 1, side, side), 0 to 1, and digits."""
    test: "Batch"
    device: str
    """``cpu``, or the name of the GPU."""

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
    made = flags.Parser(NAME, "Train a small convolutional network on handwritten digits.")
    flags.add_common(
        made,
        data="folder with MNIST's four files, plain or .gz; the scans in scikit-learn where not "
        "given",
        eval_data="folder whose t10k files are the test rows",
        epochs=5,
        eval_every=1,
        batch_size=32,
        learning_rate=0.002,
    )
    return made


def build(config: Config) -> State:
    """A training before its first step, on a GPU if there is one."""
    # CUDA reads this at its start; without it cuBLAS has no deterministic algorithm.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch  # pyright: ignore[reportMissingImports]  # an extra

    split = datasets.images(config)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(config.thread_count)
    place = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(training.seed_of(config.seed))
    model = _network(split.train[0].shape[-1]).to(place)
    return State(
        config=config,
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=config.learning_rate),
        order=training.Order(len(split.train[1]), config.batch_size, config.seed),
        train=_tensors(split.train, place),
        test=_tensors(split.test, place),
        device=torch.cuda.get_device_name() if place == "cuda" else "cpu",
    )


def next_batch(state: State) -> "Batch":
    """The next rows of the order."""
    import torch  # pyright: ignore[reportMissingImports]  # an extra

    pixels, digits = state.train
    chosen = torch.from_numpy(state.order.next()).to(pixels.device)
    return pixels[chosen], digits[chosen]


def train_step(state: State, batch: "Batch") -> dict[str, float]:
    """Update the network once; return the batch's loss from before the update."""
    import torch  # pyright: ignore[reportMissingImports]  # an extra

    pixels, digits = batch
    state.model.train()
    # Dropout draws from the process's generators. Their positions are restored afterwards, so that
    # a checkpoint need not save them.
    gpus = range(torch.cuda.device_count()) if pixels.is_cuda else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(training.seed_of(state.config.seed, state.order.step - 1))
        loss = torch.nn.functional.cross_entropy(state.model(pixels), digits)
    state.optimizer.zero_grad()
    loss.backward()
    state.optimizer.step()
    state.model.eval()
    return {"loss": loss.item()}


def evaluate(state: State) -> dict[str, float]:
    """Losses on the training and the test rows, and the accuracy on the test rows."""
    train_loss, _ = _judge(state, state.train)
    test_loss, accuracy = _judge(state, state.test)
    return {"train_loss": train_loss, "test_loss": test_loss, "test_accuracy": accuracy}


def state_dict(state: State) -> dict[str, object]:
    """The live objects that change, by name; a checkpoint restores them in place."""
    return {"model": state.model, "optimizer": state.optimizer, "order": state.order}


def parameters(state: State) -> "dict[str, np.ndarray]":
    """The weights by name, for inspection."""
    return {name: value.numpy() for name, value in _weights(state).items()}


def save_model(state: State, result: Callable[[str], Path]) -> None:
    """Write the weights as safetensors, and again for ``torch.load(weights_only=True)``."""
    import torch  # pyright: ignore[reportMissingImports]  # an extra
    from safetensors.torch import save_file  # pyright: ignore[reportMissingImports]  # an extra

    weights = _weights(state)
    save_file(weights, result(MODEL_FILE))
    torch.save(weights, result(EXPORT_FILE))


def load_model(state: State, folder: Path) -> None:
    """Load the finished model of a result."""
    from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]  # an extra

    state.model.load_state_dict(load_file(folder / MODEL_FILE))


main = functools.partial(training.main, sys.modules[__name__])
"""Train or evaluate according to a list of flags; return the exit code."""


def _network(side: int) -> "torch.nn.Module":
    """Two convolutions, a pooling and two dense layers, for images of ``side`` by ``side``."""
    from torch import nn  # pyright: ignore[reportMissingImports]  # an extra

    first, second = CHANNELS
    return nn.Sequential(
        nn.Conv2d(1, first, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(DROPOUT),
        nn.Flatten(),
        nn.Linear(second * (side // 2) ** 2, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, len(datasets.CLASSES)),
    )


def _tensors(rows: "tuple[np.ndarray, np.ndarray]", place: str) -> "Batch":
    import torch  # pyright: ignore[reportMissingImports]  # an extra

    pixels, digits = rows
    return torch.from_numpy(pixels).unsqueeze(1).to(place), torch.from_numpy(digits).to(place)


def _judge(state: State, rows: "Batch") -> tuple[float, float]:
    """Mean loss and accuracy over ``rows``, in pieces that fit into a GPU."""
    import torch  # pyright: ignore[reportMissingImports]  # an extra

    loss, right = 0.0, 0
    state.model.eval()
    with torch.no_grad():
        for pixels, digits in zip(rows[0].split(EVAL_ROWS), rows[1].split(EVAL_ROWS), strict=True):
            scores = state.model(pixels)
            loss += torch.nn.functional.cross_entropy(scores, digits, reduction="sum").item()
            right += int((scores.argmax(1) == digits).sum().item())
    return loss / len(rows[1]), right / len(rows[1])


def _weights(state: State) -> "dict[str, torch.Tensor]":
    return {
        name: value.detach().cpu().contiguous() for name, value in state.model.state_dict().items()
    }
