"""Code that all trainers share besides flags: the loop, the evaluation, order and environment.

A trainer's module defines a model and its data; this module trains it. ``main`` is a trainer's
whole command: it reads the flags, checks the frameworks, builds the training, makes its steps
inside ``outlast.train`` (which saves, resumes and stops it), evaluates at intervals of epochs, and
writes the result. No framework is imported at the top, because parsers need none.
"""

import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from outlast.base import exits
from outlast.loop import DataError, LoopError, local, train, words
from outlast.loop.data import data as local_path
from outlast.spec import identity, metrics
from outlast.spec.result import METRICS_FILE
from outlast.trainers import flags

if TYPE_CHECKING:
    import numpy as np

FROM_SCRATCH = frozenset({"order", "rng", "environment"})
"""State that a run does not take from another run's checkpoint: the position in the data, the
random numbers, and the environment.
"""
CONFIG_FILE = "config.json"
"""Result file with the trainer's name and the flags that it trained with."""


def main(trainer: ModuleType, argv: Sequence[str]) -> int:
    """Train or evaluate according to the flags; return an exit code of outlast/base/exits.py.

    ``trainer`` is a module of the shape that ``trainers/dummy.py`` explains. The object from its
    ``build`` has ``total``, the steps of the whole training, and ``epoch``, the complete epochs; if
    it computes on an accelerator, ``device`` is its name.

    Raises UsageError for data that cannot be used and for a framework that is not installed, and
    LoopError for errors of the run.
    """
    args = trainer.parser().parse_args(argv)
    require(trainer.NEEDS)
    if args.mode == "eval":
        return _evaluate(trainer, args, argv)
    config = trainer.Config.of(args)
    run: dict[str, Any] = {
        "run_dir": args.run_dir,
        "name": trainer.NAME,
        "arguments": arguments(args),
        "source": trainer.__file__,
        "checkpoint_every": args.checkpoint_every,
        "model_output_path": args.model_output_path,
    }
    # Frameworks take seconds to import, in which the supervisor starts.
    with local.starting(local.Options(**run)):
        state = trainer.build(config)
        with limited(config.thread_count):
            return _train(trainer, config, state, run)


def require(needs: Mapping[str, str]) -> None:
    """Raise UsageError that says what to install if a module of ``needs`` cannot be imported."""
    missing = [module for module in needs if importlib.util.find_spec(module) is None]
    if missing:
        packages = " ".join(dict.fromkeys(needs.values()))
        raise flags.UsageError(
            f"{', '.join(missing)}: not installed for {sys.executable}; "
            f"run {sys.executable} -m pip install {packages}"
        )


def _train(
    trainer: ModuleType, config: flags.Config, state: Any, run_options: Mapping[str, Any]
) -> int:
    device = getattr(state, "device", "cpu")
    environment = Environment(trainer.NAME, trainer.NEEDS, config.thread_count, str(device))
    changing = {**trainer.state_dict(state), "environment": environment}
    with train(
        state=changing,
        total=state.total,
        init_only=changing.keys() - FROM_SCRATCH,
        **run_options,
    ) as run:
        for step in run.steps():
            before = state.epoch
            run.log(**trainer.train_step(state, trainer.next_batch(state)))
            if due(before, state.epoch, every=config.eval_every, last=config.epochs):
                report = {"epoch": state.epoch, **trainer.evaluate(state)}
                run.eval(best="max", of="test_accuracy", **report)
                _show({"step": step, **report})
        trainer.save_model(state, run.result)
        recorded = {"trainer": trainer.NAME, "flags": run_options["arguments"]}
        run.result(CONFIG_FILE).write_text(identity.canonical_json(recorded) + "\n")
    return exits.DONE


def _show(values: Mapping[str, Any]) -> None:
    """Print a line of JSON on stdout; if stdout has no reader any more, training continues."""
    try:
        print(json.dumps(values), flush=True)
    except BrokenPipeError:
        words.drop(sys.stdout)


def _evaluate(trainer: ModuleType, args: Any, argv: Sequence[str]) -> int:
    """Print the last row of a finished run's metrics, recomputed from its model."""
    source = Path(trainer.__file__ or "")
    run_dir = args.run_dir or local.default_folder(trainer.NAME, arguments(args), source)
    result = local.finished_result(run_dir)
    parser = trainer.parser()
    parser.set_defaults(**_recorded_flags(trainer.NAME, run_dir, result))
    config = trainer.Config.of(parser.parse_args(argv))
    state = trainer.build(config)
    with limited(config.thread_count):
        trainer.load_model(state, result)
        found = trainer.evaluate(state)
    table = metrics.read_table((result / METRICS_FILE).read_bytes())
    recorded = {name: column[-1] for name, column in table.items()}
    _show({**recorded, **found})
    differing = [name for name, value in found.items() if value != recorded.get(name)]
    if differing:
        facts = ", ".join(
            f"{name} {recorded.get(name)} and not {found[name]}" for name in differing
        )
        print(
            f"{trainer.NAME}: the run recorded {facts}; other data, another machine or another "
            "version of a library evaluates here",
            file=sys.stderr,
        )
    return exits.DONE


def _recorded_flags(name: str, run_dir: str | Path, result: Path) -> dict[str, Any]:
    try:
        recorded = json.loads((result / CONFIG_FILE).read_bytes())
        trainer, found = recorded["trainer"], dict(recorded["flags"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoopError(f"run-dir {run_dir}: its {CONFIG_FILE} cannot be read ({error})") from None
    if trainer != name:
        raise flags.UsageError(
            f"run-dir {run_dir}: holds a run of trainer {trainer}; "
            f"run python -m outlast.trainers {trainer} --mode eval"
        )
    return found


def arguments(args: Any) -> dict[str, Any]:
    """The flags that identify the run: all except those for places and frequencies."""
    return {name: value for name, value in vars(args).items() if name not in identity.OPERATIONAL}


def due(before: int, now: int, *, every: int, last: int) -> bool:
    """Whether to evaluate after a step that led from epoch ``before`` to ``now``."""
    return now // every > before // every or before < now == last


def data(path: str) -> Path:
    """The local path of the data that a flag names, fetched if it is in a bucket.

    Raises UsageError for data that cannot be used, LoopError if the supervisor does not answer.
    """
    try:
        return local_path(path)
    except DataError as error:
        raise flags.UsageError(str(error)) from None


def table(path: str, *, columns: int, form: str, least: float, most: float) -> "np.ndarray":
    """The rows of a CSV without header: ``columns`` columns, which are numbers from ``least`` to
    ``most`` and a class, as ``form`` describes them in errors.

    Raises UsageError with the first bad row, LoopError like ``data``.
    """
    import numpy as np

    try:
        with warnings.catch_warnings():  # about a file without rows, which is reported below
            warnings.simplefilter("ignore", UserWarning)
            rows = np.loadtxt(data(path), delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise flags.UsageError(f"data {path}: is not a CSV of numbers ({error})") from None
    if not rows.size:
        raise flags.UsageError(f"data {path}: has no rows")
    if rows.shape[1] != columns:
        raise flags.UsageError(f"data {path}: {rows.shape[1]} columns, must be {form}")
    values = rows[:, :-1]
    wrong = ~(np.isfinite(values) & (values >= least) & (values <= most))
    if wrong.any():
        row, column = (int(place[0]) for place in np.nonzero(wrong))
        raise flags.UsageError(
            f"data {path} row {row + 1}: {values[row, column]}: must be a finite number"
            + ("" if np.isinf(most) else f" from {least:g} to {most:g}")
        )
    return rows


def check_classes(labels: "np.ndarray") -> None:
    """Raise UsageError if there are fewer than two classes."""
    import numpy as np

    found = np.unique(labels)
    if len(found) < 2:
        only = f" all of class {found[0]:g}" if len(found) else ""
        raise flags.UsageError(
            f"{len(labels)} rows to train on,{only}; rows of two classes or more are needed"
        )


@contextlib.contextmanager
def limited(threads: int) -> Iterator[None]:
    """A context that limits the threads of numpy and scikit-learn, if threadpoolctl is installed
    (scikit-learn depends on it). For other frameworks a trainer's ``build`` sets the threads.

    It limits only modules that are already imported, so build first.
    """
    if importlib.util.find_spec("threadpoolctl") is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(threads):
        yield


def seed_of(*numbers: int) -> int:
    """A seed of 31 bits, which every framework accepts, from several numbers.

    ``seed_of(config.seed, step)`` gives each step its own random numbers as a function of its
    number, so there is no generator whose state must be saved.
    """
    import numpy as np

    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 1


@functools.lru_cache(maxsize=2)
def _order_of_epoch(rows: int, seed: int, epoch: int) -> "np.ndarray":
    import numpy as np

    return np.random.default_rng((seed, epoch)).permutation(rows)


class Order:
    """The order of the rows: different in each epoch, a function of seed and epoch.

    Its position is two numbers, and only these are saved.
    """

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self._rows, self._batch_size, self._seed = rows, batch_size, seed
        self.epoch = 0
        """Complete passes."""
        self.row = 0
        """Rows of the current pass given out so far."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch; the last one may have fewer rows."""
        return -(-self._rows // self._batch_size)

    @property
    def step(self) -> int:
        """Batches handed out so far."""
        return self.epoch * self.steps_per_epoch + -(-self.row // self._batch_size)

    def next(self) -> "np.ndarray":
        """Row numbers of the next batch; advances the position."""
        order = _order_of_epoch(self._rows, self._seed, self.epoch)
        chosen = order[self.row : self.row + self._batch_size]
        self.row += len(chosen)
        if self.row == self._rows:
            self.epoch, self.row = self.epoch + 1, 0
        return chosen

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "row": self.row}

    def load_state_dict(self, saved: Mapping[str, int]) -> None:
        self.epoch, self.row = saved["epoch"], saved["row"]


class Environment:
    """The environment, which affects a result's last digits. It is saved with the training and
    compared at a resume.

    Another processor, device, thread count or library version can round differently. The run
    continues, because a finished training is worth more than an equal one, but a message says so.
    """

    def __init__(
        self, name: str, needs: Mapping[str, str], threads: int, device: str = "cpu"
    ) -> None:
        self._name = name
        self.found = {
            "threads": str(threads),
            "device": device,
            "processor": _processor(),
            **{module: _version(package) for module, package in needs.items()},
        }

    def state_dict(self) -> dict[str, str]:
        return dict(self.found)

    def load_state_dict(self, saved: Mapping[str, str]) -> None:
        """Report changes on stderr; the current environment is saved from now on."""
        changed = [
            f"{part} {saved.get(part, 'unknown')} then and {value} now"
            for part, value in self.found.items()
            if saved.get(part) != value
        ]
        if changed:
            print(
                f"{self._name}: continues in another environment ({'; '.join(changed)}); the last "
                "digits of its result may differ from those of an uninterrupted run",
                file=sys.stderr,
                flush=True,
            )


def _processor() -> str:
    """The processor's model, which decides which instructions the arithmetic uses."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # the module is from a package of another name
