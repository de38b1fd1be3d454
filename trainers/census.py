"""Census income: gradient boosted trees on UCI "Adult", with parameters found by random search.

The training has two kinds of steps, one after the other:

1. *Search*: ``--cv-iterations`` candidates, all drawn before the first step, each judged by
   5-fold cross-validation on the training rows. A step is one fold of one candidate, and its
   score is state: an interruption costs the fold in flight, no more.
2. *Final*: the model of the best candidate on all training rows. A step is a *segment* of
   ``SEGMENT_ROUNDS`` boosting rounds.

XGBoost draws its rows and columns from a generator that it neither saves nor lets us set, so a
model continued with ``xgb_model=`` differs from an uninterrupted run's. A segment therefore always
starts from a fresh ``Booster`` made of the saved bytes, with a seed that is a function of the
segment, so a new process makes no difference.

The columns are in ``NUMBERS`` and ``CATEGORIES``. A category is coded as its position in this list,
independent of the order of the rows; XGBoost splits sets of categories by itself. ``?`` is a
missing value. ``fnlwgt`` is read but not used, because it is the number of people that a row
represents.
"""

import functools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.trainers import flags, training

if TYPE_CHECKING:
    import numpy as np
    import xgboost  # pyright: ignore[reportMissingImports]  # an extra

NAME = "census"
NEEDS = {"xgboost": "xgboost-cpu", "sklearn": "scikit-learn", "numpy": "numpy"}
MUTABLE = {"threads": "any"}
"""Flags that may change in a run. Epochs may not, because scored candidates were trained with the
old number."""

FOLDS = 5
SEGMENT_ROUNDS = 10
SPLIT_SEED = 1994
TEST_SHARE = 0.2
ROWS_LEAST = 50
TRAIN_FILE, TEST_FILE = "adult.data", "adult.test"
MODEL_FILE = "model.ubj"
SEARCH_FILE = "search.json"

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
)  # fmt: skip
"""The columns of the file, in order. Income is the label."""

NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
"""Units: years, years of schooling, dollars, dollars, hours."""

CATEGORIES = {
    "workclass": (
        "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov",
        "Without-pay", "Never-worked",
    ),
    "education": (
        "Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th", "HS-grad",
        "Some-college", "Assoc-voc", "Assoc-acdm", "Bachelors", "Masters", "Prof-school",
        "Doctorate",
    ),
    "marital-status": (
        "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed",
        "Married-spouse-absent", "Married-AF-spouse",
    ),
    "occupation": (
        "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial",
        "Prof-specialty", "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical",
        "Farming-fishing", "Transport-moving", "Priv-house-serv", "Protective-serv",
        "Armed-Forces",
    ),
    "relationship": (
        "Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried",
    ),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "native-country": (
        "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany",
        "Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba", "Iran",
        "Honduras", "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico", "Portugal",
        "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti",
        "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia",
        "El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands",
    ),
}  # fmt: skip
MISSING = "?"
LABELS = {"<=50K": 0, ">50K": 1}
FEATURES = (*NUMBERS, *CATEGORIES)

SPACE = {
    "max_depth": [3, 4, 5, 6, 8],
    "learning_rate": [0.03, 0.05, 0.1, 0.2],
    "subsample": [0.6, 0.7, 0.8, 0.9],
    "colsample_bytree": [0.5, 0.6, 0.7, 0.8, 0.9],
    "min_child_weight": [1, 2, 5, 10],
    "reg_lambda": [0.5, 1.0, 2.0, 5.0],
}
"""The values from which candidates are drawn, by parameter."""
CANDIDATES_MOST = 1000


@dataclass(frozen=True)
class Config(flags.Config):
    """The settings of a training, from the flags."""

    cv_iterations: int


class Fold(NamedTuple):
    """A step of the search: trains on four fifths of the training rows and scores the rest."""

    candidate: int
    fold: int


class Segment(NamedTuple):
    """Consecutive boosting rounds: a step of the final model."""

    start: int
    rounds: int


@dataclass
class State:
    """A training in memory: its changing parts (scores, model) and its constant ones."""

    config: Config
    train: "xgboost.DMatrix"
    test: "xgboost.DMatrix"
    rows: "tuple[np.ndarray, np.ndarray]"
    """The training rows for the folds: values of shape (rows, features), and labels."""
    candidates: list[dict[str, Any]]
    search: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"scores": []})
    """One score for each finished fold, in order."""
    final: dict[str, Any] = field(default_factory=lambda: {"model": None, "rounds": 0})
    """The model's bytes after the finished rounds."""

    @property
    def total(self) -> int:
        """Folds of the search and segments of the final model."""
        return len(self.candidates) * FOLDS + -(-self.config.epochs // SEGMENT_ROUNDS)

    @property
    def epoch(self) -> int:
        """Boosting rounds of the final model; 0 during the search."""
        return self.final["rounds"]


def parser() -> flags.Parser:
    """The flags; imports no framework."""
    made = flags.Parser(NAME, "Find and train boosted trees on UCI census income (Adult).")
    flags.add_common(
        made,
        data="UCI's adult.data, of which every fifth row is held out for testing, or a folder "
        "with adult.data and adult.test",
        data_alias="--census-data-path",
        eval_data="test rows, such as UCI's adult.test",
        epochs=150,
        an_epoch="boosting rounds of each model",
        eval_every=50,
        threads=0,
    )
    search = made.add_argument_group("search")
    search.add_argument(
        "--cv-iterations",
        metavar="N",
        type=flags.whole(1, CANDIDATES_MOST),
        default=10,
        help=f"candidates of the random search, each judged by {FOLDS}-fold cross-validation",
    )
    return made


def build(config: Config) -> State:
    """A training before its first step."""
    from sklearn.model_selection import ParameterSampler

    train, test = _load(config)
    sampler = ParameterSampler(SPACE, config.cv_iterations, random_state=config.seed)
    return State(
        config=config,
        train=_matrix(config, *train),
        test=_matrix(config, *test),
        rows=train,
        candidates=[dict(sorted(candidate.items())) for candidate in sampler],
    )


def next_batch(state: State) -> Fold | Segment:
    """The next step."""
    done = len(state.search["scores"])
    if done < len(state.candidates) * FOLDS:
        return Fold(*divmod(done, FOLDS))
    return _segment(state.final["rounds"], state.config.epochs)


def train_step(state: State, batch: Fold | Segment) -> dict[str, float]:
    """Run one fold of the search, or one segment of the final model."""
    if isinstance(batch, Fold):
        score = _score(state, batch)
        state.search["scores"].append(score)
        return score
    best = state.candidates[results(state)["best"]]
    model = _boosted(state.config, best, state.train, state.final["model"], batch)
    state.final["model"] = _bytes(model)
    state.final["rounds"] += batch.rounds
    return {"loss": _loss(model, state.train)}


def evaluate(state: State) -> dict[str, float]:
    """Losses on the training and the test rows, and the accuracy on the test rows."""
    model = _booster(state.config, {}, state.final["model"])
    return {
        "train_loss": _loss(model, state.train),
        "test_loss": _loss(model, state.test),
        "test_accuracy": _accuracy(model, state.test),
    }


def results(state: State) -> dict[str, Any]:
    """The search so far: each completely scored candidate with its folds' scores and their mean,
    and ``best``, the number of the first one with the highest mean accuracy.
    """
    import numpy as np

    scores = state.search["scores"]
    judged = []
    for number, parameters in enumerate(state.candidates[: len(scores) // FOLDS]):
        folds = scores[number * FOLDS : (number + 1) * FOLDS]
        accuracies = [score["fold_accuracy"] for score in folds]
        judged.append(
            {
                "parameters": parameters,
                "fold_accuracy": accuracies,
                "fold_loss": [score["fold_loss"] for score in folds],
                "mean_accuracy": float(np.mean(accuracies)),
                "std_accuracy": float(np.std(accuracies)),
            }
        )
    means = [entry["mean_accuracy"] for entry in judged]
    return {"best": means.index(max(means)) if means else None, "candidates": judged}


def state_dict(state: State) -> dict[str, object]:
    """The live objects that change, by name; a checkpoint restores them in place."""
    return {"search": state.search, "final": state.final}


def parameters(state: State) -> "dict[str, np.ndarray]":
    """The mean gain of each column's splits, for inspection; empty before the final model."""
    import numpy as np

    if state.final["model"] is None:
        return {}
    gains = _booster(state.config, {}, state.final["model"]).get_score(importance_type="gain")
    return {f"gain.{column}": np.asarray(gain) for column, gain in gains.items()}


def save_model(state: State, result: Callable[[str], Path]) -> None:
    """Write the model in XGBoost's own format, and the results of the search as JSON."""
    result(MODEL_FILE).write_bytes(state.final["model"].tobytes())
    text = json.dumps(results(state), indent=1, allow_nan=False) + "\n"
    result(SEARCH_FILE).write_text(text)


def load_model(state: State, folder: Path) -> None:
    """Load the finished model of a result."""
    import numpy as np

    state.final["model"] = np.frombuffer((folder / MODEL_FILE).read_bytes(), np.uint8)


main = functools.partial(training.main, sys.modules[__name__])
"""Train or evaluate according to a list of flags; return the exit code."""


def _score(state: State, batch: Fold) -> dict[str, Any]:
    """Train without the fold's rows and score them. A row's number decides its fold."""
    import numpy as np

    values, labels = state.rows
    held_out = np.arange(len(labels)) % FOLDS == batch.fold
    train = _matrix(state.config, values[~held_out], labels[~held_out])
    test = _matrix(state.config, values[held_out], labels[held_out])
    candidate, rounds = state.candidates[batch.candidate], state.config.epochs
    saved = None
    for start in range(0, rounds, SEGMENT_ROUNDS):
        segment = _segment(start, rounds)
        saved = _bytes(_boosted(state.config, candidate, train, saved, segment))
    model = _booster(state.config, {}, saved)
    return {
        "candidate": batch.candidate,
        "fold": batch.fold,
        "fold_loss": _loss(model, test),
        "fold_accuracy": _accuracy(model, test),
    }


def _boosted(
    config: Config,
    candidate: Mapping[str, Any],
    train: "xgboost.DMatrix",
    saved: "np.ndarray | None",
    segment: Segment,
) -> "xgboost.Booster":
    """The model after one more segment."""
    seed = training.seed_of(config.seed, segment.start)
    model = _booster(config, {**candidate, "seed": seed}, saved, train)
    for number in range(segment.start, segment.start + segment.rounds):
        model.update(train, iteration=number)
    return model


def _segment(start: int, rounds: int) -> Segment:
    return Segment(start, min(SEGMENT_ROUNDS, rounds - start))


def _booster(
    config: Config,
    candidate: Mapping[str, Any],
    saved: "np.ndarray | None",
    train: "xgboost.DMatrix | None" = None,
) -> "xgboost.Booster":
    """A model from the saved bytes, or a new one for the rows of ``train``."""
    import xgboost  # pyright: ignore[reportMissingImports]  # an extra

    fixed = {
        "objective": "binary:logistic",
        "tree_method": "hist",
        "device": "cpu",
        "nthread": config.thread_count,
        "verbosity": 1,
    }
    return xgboost.Booster(
        {**fixed, **candidate},
        cache=None if train is None else [train],
        model_file=None if saved is None else bytearray(saved),
    )


def _bytes(model: "xgboost.Booster") -> "np.ndarray":
    import numpy as np

    return np.frombuffer(bytes(model.save_raw("ubj")), np.uint8)


def _loss(model: "xgboost.Booster", rows: "xgboost.DMatrix") -> float:
    from sklearn.metrics import log_loss

    return float(log_loss(rows.get_label(), model.predict(rows), labels=[0, 1]))


def _accuracy(model: "xgboost.Booster", rows: "xgboost.DMatrix") -> float:
    return float(((model.predict(rows) > 0.5) == rows.get_label()).mean())


def _matrix(config: Config, values: "np.ndarray", labels: "np.ndarray") -> "xgboost.DMatrix":
    import xgboost  # pyright: ignore[reportMissingImports]  # an extra

    return xgboost.DMatrix(
        values,
        labels,
        feature_names=list(FEATURES),
        feature_types=["float"] * len(NUMBERS) + ["c"] * len(CATEGORIES),
        enable_categorical=True,
        nthread=config.thread_count,
    )


# ---------------------------------------------------------------------------------------------
# The data


def _load(config: Config) -> "tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]":
    """Training and test rows, each values of shape (rows, features) and labels."""
    import numpy as np

    if not config.data:
        raise flags.UsageError(
            f"data: is not given; name UCI's {TRAIN_FILE}, or a folder with it and {TEST_FILE}"
        )
    found = training.data(config.data)
    train_file, test_file = found, None
    if found.is_dir():
        train_file, test_file = found / TRAIN_FILE, found / TEST_FILE
        if not train_file.is_file():
            raise flags.UsageError(f"data {config.data}: has no {TRAIN_FILE} in it")
    if config.eval_data:
        test_file = training.data(config.eval_data)
    train = read(train_file, config.limit_rows)
    if test_file is not None and test_file.is_file():
        return train, read(test_file, config.limit_rows)
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(train[1]))
    test_rows, train_rows = np.split(order, [round(TEST_SHARE * len(order))])
    return (
        (train[0][train_rows], train[1][train_rows]),
        (train[0][test_rows], train[1][test_rows]),
    )


def read(file: Path, limit_rows: int = 0) -> "tuple[np.ndarray, np.ndarray]":
    """Values (NaN where missing) and labels of a file in UCI's form.

    Lines that are empty or begin with ``|`` are comments; labels may end in a full stop, as those
    of adult.test do. Raises UsageError with the line if it does not have this form.
    """
    import numpy as np

    codes = {
        column: {MISSING: np.nan, **{name: float(code) for code, name in enumerate(names)}}
        for column, names in CATEGORIES.items()
    }
    values: list[list[float]] = []
    labels: list[int] = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise flags.UsageError(f"data {file}: cannot be read ({error})") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.split(",")]
        where = f"data {file} line {number}"
        if len(cells) != len(COLUMNS):
            raise flags.UsageError(
                f"{where}: {len(cells)} columns, must be the {len(COLUMNS)} of UCI's Adult"
            )
        row: dict[str, str] = dict(zip(COLUMNS, cells, strict=True))
        values.append(
            [_number(row[column], where, column) for column in NUMBERS]
            + [_code(row[column], where, column, codes[column]) for column in CATEGORIES]
        )
        labels.append(int(_code(row["income"].removesuffix("."), where, "income", LABELS)))
        if len(labels) == limit_rows:
            break
    if len(labels) < ROWS_LEAST or len(set(labels)) < len(LABELS):
        raise flags.UsageError(
            f"data {file}: {len(labels)} rows used; {ROWS_LEAST} or more are needed, of both labels"
        )
    return np.asarray(values, np.float32), np.asarray(labels, np.float32)


def _number(text: str, where: str, column: str) -> float:
    try:
        return float("nan") if text == MISSING else float(int(text))
    except ValueError:
        raise flags.UsageError(f"{where}: {column} {text!r}: must be a whole number") from None


def _code(text: str, where: str, column: str, codes: Mapping[str, float]) -> float:
    code = codes.get(text)
    if code is None:
        raise flags.UsageError(f"{where}: {column} {text!r}: must be one of {', '.join(codes)}")
    return code
