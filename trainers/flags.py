"""The flags that all trainers share, and a parser that reports errors in one sentence."""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, Self

from outlast.base import exits
from outlast.base.suggest import did_you_mean
from outlast.protocol import parse_every

MUTABLE = {"epochs": "raised", "eval-every": "any", "threads": "any"}
"""Flags that most trainers can change in the middle of a run, as read by
``outlast/spec/changes.py``. The steps so far are those of a run that had the new values from its
start, except for the evaluations made and for last digits that depend on threads."""

EPOCHS_MOST = 10**9
SHOWN_CHARACTERS = 60
"""The most characters of a flag's value to show in an error."""
THREADS_MOST = 1024
"""More than any machine has; a mistyped larger number would make training extremely slow."""


class UsageError(Exception):
    """A flag's value or the data that it names cannot be used; the message is one sentence, the
    exit code 64."""


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations, which reports bad usage as one sentence on stderr with exit
    code 64."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(
            prog=f"python -m outlast.trainers {name}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        self.name = name

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Like argparse's, but an error about an unknown flag suggests the nearest known one."""
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            flag = extra[0].partition("=")[0]
            if not flag.startswith("-"):
                self.error(f"argument {flag!r}: only flags are taken, such as --seed 1")
            known = [name for action in self._actions for name in action.option_strings]
            hint = did_you_mean(flag, known, "see --help for all flags")
            self.error(f"flag {flag}: unknown; {hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Print one sentence without usage text and exit with 64."""
        print(f"{self.name}: {message.removeprefix('argument ')}", file=sys.stderr)
        raise SystemExit(exits.USAGE)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number within bounds, for ``type=``."""

    def parse(text: str) -> int:
        rule = f"{least} or more" if most is None else f"{least} to {most}"
        try:
            number = int(text)
        except ValueError:
            shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
            raise argparse.ArgumentTypeError(f"{shown!r}: must be a whole number, {rule}") from None
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text}: must be {rule}")
        return number

    return parse


def positive(text: str) -> float:
    """A finite number above 0, for ``type=``."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number above 0")
    return number


def layers(count_most: int, size_most: int) -> Callable[[str], tuple[int, ...]]:
    """Layer sizes such as ``64,32`` that fit into a machine, for ``type=``."""

    def parse(text: str) -> tuple[int, ...]:
        try:
            numbers = tuple(int(part) for part in text.split(","))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 1:
            raise argparse.ArgumentTypeError(
                f"{text!r}: must be whole numbers above 0, such as 64,32"
            )
        if len(numbers) > count_most or max(numbers) > size_most:
            raise argparse.ArgumentTypeError(
                f"{text}: must be at most {count_most} sizes of 1 to {size_most}"
            )
        return numbers

    return parse


def interval(text: str) -> str:
    """A checkpoint interval, for ``type=``."""
    try:
        parse_every(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be auto, seconds such as 30s, or steps such as 200"
        ) from None
    return text


def named(text: str) -> str:
    """A folder's name, for ``type=``; refuses an empty one, as from an unset shell variable."""
    if not text.strip():
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be a folder; leave it out for the default"
        )
    return text


def text_path(text: str) -> str:
    """A path of this machine or of a bucket (``gs://bucket/object``), for ``type=``.

    The training checks whether it exists, perhaps on another machine.
    """
    scheme, found, rest = text.partition("://")
    if found and (scheme != "gs" or not rest.strip("/")):
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be a path of this machine or gs://BUCKET/PATH"
        )
    return text


@dataclass(frozen=True)
class Config:
    """The settings of a training, from the flags; a trainer's own Config adds its fields.

    It does not include the run's place, how often it is saved, and where its model goes.
    """

    data: str
    eval_data: str
    limit_rows: int
    epochs: int
    eval_every: int
    seed: int
    threads: int

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """Make a Config from the flags with its fields' names; JSON lists become tuples."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = getattr(args, field.name)
            values[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    @property
    def thread_count(self) -> int:
        """``threads``, or the number of cores that this process may use if that is 0."""
        if self.threads or not hasattr(os, "sched_getaffinity"):
            return self.threads or os.cpu_count() or 1
        return len(os.sched_getaffinity(0))


def add_common(
    parser: argparse.ArgumentParser,
    *,
    data: str,
    epochs: int,
    eval_every: int,
    data_alias: str | None = None,
    eval_data: str | None = None,
    an_epoch: str = "passes over the data",
    batch_size: int | None = None,
    batch_size_most: int | None = None,
    learning_rate: float | None = None,
    threads: int = 1,
) -> None:
    """Add the flags that all trainers share, with one trainer's defaults.

    ``data`` and ``eval_data`` describe what the trainer reads. Leave out ``batch_size`` and
    ``learning_rate`` if they make no sense for it.
    """
    run = parser.add_argument_group("run", "where and how, not part of the run's identity")
    run.add_argument(
        "--mode",
        choices=("train", "eval"),
        default="train",
        help="train, or evaluate the finished model of --run-dir; the flags are then the run's own "
        "where not given",
    )
    run.add_argument(
        "--run-dir",
        metavar="DIR",
        type=named,
        help="folder of the run, or its gs://BUCKET/experiments/NAME/RUN; runs/NAME-RUN where not "
        "given, not used under a supervisor",
    )
    run.add_argument(
        "--checkpoint-every",
        metavar="EVERY",
        type=interval,
        default="auto",
        help="auto, seconds such as 30s, or steps such as 200",
    )
    run.add_argument(
        "--model-output-path",
        metavar="PATH",
        type=text_path,
        default="",
        help="folder, local or gs://, that gets a copy of the finished result, if absent there",
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--data",
        *([data_alias] if data_alias else []),
        dest="data",
        metavar="PATH",
        type=text_path,
        default="",
        help=f"{data}; local or gs://",
    )
    training.add_argument(
        "--eval-data",
        metavar="PATH",
        type=text_path,
        default="",
        help=f"{eval_data or 'test rows, in the form of --data'}; then all of --data is trained on",
    )
    training.add_argument(
        "--limit-rows",
        metavar="N",
        type=whole(0),
        default=0,
        help="use only the first N rows of the data; 0 for all",
    )
    training.add_argument(
        "--epochs", metavar="N", type=whole(1, EPOCHS_MOST), default=epochs, help=an_epoch
    )
    training.add_argument(
        "--eval-every",
        metavar="N",
        type=whole(1),
        default=eval_every,
        help="evaluate after every Nth epoch and after the last",
    )
    if batch_size is not None:
        training.add_argument(
            "--batch-size",
            metavar="N",
            type=whole(1, batch_size_most),
            default=batch_size,
            help="rows of one step",
        )
    if learning_rate is not None:
        training.add_argument(
            "--learning-rate",
            metavar="RATE",
            type=positive,
            default=learning_rate,
            help="step size of the optimiser",
        )
    training.add_argument(
        "--seed",
        metavar="N",
        type=whole(0, 2**32 - 1),
        default=0,
        help="seed of the weights, the order of the data and the random changes to it",
    )
    training.add_argument(
        "--threads",
        metavar="N",
        type=whole(0, THREADS_MOST),
        default=threads,
        help="threads of the arithmetic, 0 for all cores; another number may give other last "
        "digits",
    )
