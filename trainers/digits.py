"""Handwritten digits: a small network on the 1,797 scans of 8 by 8 pixels in scikit-learn.

A step is one mini-batch of randomly shifted scans. Every fifth of the rows is for testing, drawn
once with a constant seed. The order of the data is a function of seed and epoch, so that a
position in it is two numbers; the random shifts come from a generator that is part of the state.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import outlast
from outlast import exits, identity
from outlast.loop import local, snapshot
from trainers import flags

if TYPE_CHECKING:
    import numpy as np
    from sklearn.neural_network import MLPClassifier

NAME = "digits"
SIDE = 8
CLASSES = tuple(range(10))
SPLIT_SEED = 1797
TEST_SHARE = 0.2
BATCH_SIZE_MOST = 200  # MLPClassifier cuts larger ones into several updates
ROWS_LEAST = 50
LAYERS_MOST = 8
LAYER_SIZE_MOST = 4096
MODEL_FILE = "model.json"


@dataclass(frozen=True)
class Config:
    """What is trained, from the flags."""

    data: str
    limit_rows: int
    epochs: int
    eval_every: int
    batch_size: int
    learning_rate: float
    seed: int
    threads: int
    hidden: tuple[int, ...]

    @classmethod
    def of(cls, args: argparse.Namespace) -> "Config":
        """The flags that are part of the training."""
        return cls(**{field.name: getattr(args, field.name) for field in fields(cls)})


@dataclass
class State:
    """A training in memory: what changes (model, rng, position) and what does not."""

    config: Config
    model: "MLPClassifier"
    rng: "np.random.Generator"
    position: dict[str, int]
    """Epoch, and rows of it that are done."""
    train: "tuple[np.ndarray, np.ndarray]"
    test: "tuple[np.ndarray, np.ndarray]"

    @property
    def steps_per_epoch(self) -> int:
        """The last step of an epoch may have fewer rows."""
        return -(-len(self.train[1]) // self.config.batch_size)


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
        threads=1,
    )
    model = made.add_argument_group("model")
    model.add_argument(
        "--hidden",
        metavar="SIZES",
        type=_hidden,
        default=(512, 256),
        help="sizes of the hidden layers, such as 64,32",
    )
    return made


def _hidden(text: str) -> tuple[int, ...]:
    """Layer sizes that fit into a machine, for ``type=``."""
    sizes = flags.sizes(text)
    if len(sizes) > LAYERS_MOST or max(sizes) > LAYER_SIZE_MOST:
        raise argparse.ArgumentTypeError(
            f"{text}: must be at most {LAYERS_MOST} sizes of 1 to {LAYER_SIZE_MOST}"
        )
    return sizes


def build(config: Config) -> State:
    """A training before its first step."""
    import numpy as np
    from sklearn.neural_network import MLPClassifier

    pixels, digits = _load(config)
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(digits))
    test, train = np.split(order, [round(TEST_SHARE * len(order))])
    model = MLPClassifier(
        config.hidden,
        learning_rate_init=config.learning_rate,
        shuffle=False,  # the order is ours
        random_state=config.seed,
    )
    return State(
        config=config,
        model=model,
        rng=np.random.Generator(np.random.PCG64(config.seed)),
        position={"epoch": 0, "row": 0},
        train=(pixels[train], digits[train]),
        test=(pixels[test], digits[test]),
    )


def next_batch(state: State) -> "tuple[np.ndarray, np.ndarray]":
    """The rows at the position, which moves on; each scan shifted by up to one pixel."""
    import numpy as np

    pixels, digits = state.train
    epoch, row = state.position["epoch"], state.position["row"]
    order = np.random.default_rng((state.config.seed, epoch)).permutation(len(digits))
    chosen = order[row : row + state.config.batch_size]
    row += len(chosen)
    state.position.update({"epoch": epoch + 1, "row": 0} if row == len(order) else {"row": row})
    down, right = state.rng.integers(0, 3, size=(2, len(chosen), 1, 1))
    framed = np.pad(pixels[chosen].reshape(-1, SIDE, SIDE), ((0, 0), (1, 1), (1, 1)))
    scan, line, column = np.ogrid[: len(chosen), :SIDE, :SIDE]
    return framed[scan, line + down, column + right].reshape(len(chosen), -1), digits[chosen]


def train_step(state: State, batch: "tuple[np.ndarray, np.ndarray]") -> float:
    """One update of the network; the loss of the batch before it."""
    pixels, digits = batch
    state.model.partial_fit(pixels, digits, classes=CLASSES)
    del state.model.loss_curve_[:-1]  # it keeps a value a step, and snapshots would grow
    return float(state.model.loss_)


def evaluate(state: State) -> dict[str, float]:
    """Losses on the training and the test rows, and the accuracy on the test rows."""
    from sklearn.metrics import accuracy_score, log_loss

    def loss(rows: "tuple[np.ndarray, np.ndarray]") -> float:
        chances = state.model.predict_proba(rows[0])
        return float(log_loss(rows[1], chances, labels=CLASSES))

    return {
        "train_loss": loss(state.train),
        "test_loss": loss(state.test),
        "test_accuracy": float(accuracy_score(state.test[1], state.model.predict(state.test[0]))),
    }


def state_dict(state: State) -> dict[str, object]:
    """The living objects that change, by name; a checkpoint restores them in place."""
    return {"model": state.model, "rng": state.rng, "position": state.position}


def load_state_dict(state: State, values: Mapping[str, Any]) -> None:
    """Take over the objects of another training's ``state_dict``."""
    state.model, state.rng = values["model"], values["rng"]
    state.position = dict(values["position"])


def parameters(state: State) -> "dict[str, np.ndarray]":
    """The weights by name, for inspection; empty before the first step."""
    weights = getattr(state.model, "coefs_", [])
    biases = getattr(state.model, "intercepts_", [])
    return {
        f"layer{i}.{kind}": array
        for i, pair in enumerate(zip(weights, biases, strict=True))
        for kind, array in zip(("weight", "bias"), pair, strict=True)
    }


def main(argv: Sequence[str]) -> int:
    """Train or evaluate as the flags say."""
    from threadpoolctl import threadpool_limits

    args = parser().parse_args(argv)
    state = build(Config.of(args))
    with threadpool_limits(state.config.threads):  # limits only what build has imported
        return _train(args, state) if args.mode == "train" else _evaluate(args, state)


def _train(args: argparse.Namespace, state: State) -> int:
    config = state.config
    with outlast.train(
        state=state_dict(state),
        total=config.epochs * state.steps_per_epoch,
        run_dir=args.run_dir,
        name=NAME,
        arguments=_arguments(args),
        source=__file__,
        checkpoint_every=args.checkpoint_every,
    ) as run:
        for step in run.steps():
            run.log(loss=train_step(state, next_batch(state)))
            epoch = state.position["epoch"]
            if state.position["row"] == 0 and (
                epoch % config.eval_every == 0 or epoch == config.epochs
            ):
                report = {"epoch": epoch, **evaluate(state)}
                run.eval(best="max", of="test_accuracy", **report)
                print(json.dumps({"step": step, **report}), flush=True)
        snapshot.write_values(run.result(MODEL_FILE), {"model": state.model})
    return exits.DONE


def _evaluate(args: argparse.Namespace, state: State) -> int:
    folder = args.run_dir or local.default_folder(NAME, _arguments(args), Path(__file__))
    result = local.finished_result(Path(folder))
    load_state_dict(state, {**state_dict(state), **snapshot.read_values(result / MODEL_FILE)})
    print(json.dumps(evaluate(state)))
    return exits.DONE


def _arguments(args: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if name not in identity.OPERATIONAL}


def _load(config: Config) -> "tuple[np.ndarray, np.ndarray]":
    import numpy as np

    if config.data:
        try:
            table = np.loadtxt(config.data, delimiter=",", ndmin=2)
        except ValueError as error:
            raise flags.UsageError(f"data {config.data}: is no CSV of numbers ({error})") from None
        if table.shape[1] != SIDE * SIDE + 1 or not np.isin(table[:, -1], CLASSES).all():
            raise flags.UsageError(
                f"data {config.data}: {table.shape[1]} columns, must be 64 pixels and a digit"
            )
        pixels, digits = table[:, :-1], table[:, -1].astype(int)
    else:
        from sklearn.datasets import load_digits

        pixels, digits = load_digits(return_X_y=True)
    rows = config.limit_rows or len(digits)
    if rows < ROWS_LEAST or len(digits) < ROWS_LEAST:
        raise flags.UsageError(
            f"limit-rows {config.limit_rows} of {len(digits)} rows: {ROWS_LEAST} or more are needed"
        )
    return pixels[:rows] / 16.0, digits[:rows]
