"""The flags that all trainers share, in one place, and a parser that answers in one sentence."""

import argparse
import difflib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from outlast import exits
from outlast.loop import schedule

THREADS_MOST = 1024
"""More than any machine has; a slip of the finger would crawl."""


class UsageError(Exception):
    """What the flags name cannot be used; the message is one sentence, the exit code 64."""


class Parser(argparse.ArgumentParser):
    """No abbreviations; bad usage is one sentence on stderr and exit code 64."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(
            prog=f"python -m trainers {name}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        self.name = name

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """As argparse's, but an unknown flag is answered with the nearest known one."""
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            flag = extra[0].partition("=")[0]
            if not flag.startswith("-"):
                self.error(f"argument {flag!r}: only flags are taken, such as --seed 1")
            known = [name for action in self._actions for name in action.option_strings]
            near = difflib.get_close_matches(flag, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "see --help for those there are"
            self.error(f"flag {flag}: unknown; {hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """One sentence, no usage text before it."""
        print(f"{self.name}: {message.removeprefix('argument ')}", file=sys.stderr)
        raise SystemExit(exits.USAGE)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number within bounds, for ``type=``."""

    def parse(text: str) -> int:
        rule = f"{least} or more" if most is None else f"{least} to {most}"
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, {rule}") from None
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


def sizes(text: str) -> tuple[int, ...]:
    """Layer sizes such as ``64,32``, for ``type=``."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be whole numbers above 0, such as 64,32")
    return numbers


def interval(text: str) -> str:
    """A checkpoint interval, for ``type=``."""
    try:
        schedule.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be auto, seconds such as 30s, or steps such as 200"
        ) from None
    return text


def existing(text: str) -> str:
    """A file that is there, for ``type=``; empty where none is named."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text}: only local files are read; copy it to this machine"
        )
    if text and not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text}: no such file")
    return text


def add_common(
    parser: argparse.ArgumentParser,
    *,
    data: str,
    epochs: int,
    eval_every: int,
    batch_size: int,
    batch_size_most: int | None,
    learning_rate: float,
    threads: int,
) -> None:
    """The shared flags, with the defaults that suit a trainer; ``data`` says what it reads."""
    run = parser.add_argument_group("run", "where and how, not part of the run's identity")
    run.add_argument(
        "--mode",
        choices=("train", "eval"),
        default="train",
        help="train, or evaluate the finished result in --run-dir",
    )
    run.add_argument(
        "--run-dir",
        metavar="DIR",
        help="folder of a run on this machine; runs/NAME-RUN where not given, "
        "not used under a supervisor",
    )
    run.add_argument(
        "--checkpoint-every",
        metavar="EVERY",
        type=interval,
        default="auto",
        help="auto, seconds such as 30s, or steps such as 200",
    )
    training = parser.add_argument_group("training")
    training.add_argument("--data", metavar="FILE", type=existing, default="", help=data)
    training.add_argument(
        "--limit-rows",
        metavar="N",
        type=whole(0),
        default=0,
        help="use only the first N rows of the data; 0 for all",
    )
    training.add_argument(
        "--epochs", metavar="N", type=whole(1), default=epochs, help="passes over the data"
    )
    training.add_argument(
        "--eval-every",
        metavar="N",
        type=whole(1),
        default=eval_every,
        help="evaluate after every Nth epoch and after the last",
    )
    training.add_argument(
        "--batch-size",
        metavar="N",
        type=whole(1, batch_size_most),
        default=batch_size,
        help="rows of one step",
    )
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
        type=whole(1, THREADS_MOST),
        default=threads,
        help="threads of the arithmetic; another number may give other last digits",
    )
