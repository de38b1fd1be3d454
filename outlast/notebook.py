"""``outlast.open`` and ``outlast.load``: a run in a notebook or a script.

Unlike the commands, reading an object of a result may need the loop's format and any of the
frameworks.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outlast.cli.errors import OperateError
from outlast.cli.runs import OpenedRun, find
from outlast.loop import snapshot
from outlast.spec.result import RESULT_FILE

PICKLES = (".joblib", ".pkl", ".pickle")
"""Endings of files that are programs: reading one runs it."""
KERAS_BACKENDS = ("tensorflow", "torch", "jax")


class NotebookRun(OpenedRun):
    """A run that can also load the objects of its result."""

    def load(self, name: str) -> Any:
        """An object of the result, by the name of its file with or without the ending:
        ``load("model")`` reads what our trainers write. ``.json`` with ``.bin`` (of
        outlast.loop.snapshot.write_values) gives the object, ``.safetensors`` and ``.npz`` a dict
        of arrays, ``.npy`` an array, ``.ubj`` and XGBoost's JSON a Booster, ``.keras`` a model,
        ``.pt`` what torch.load(weights_only=True) does, another JSON file its values. Raises
        OperateError if there is none of that name, it is a pickle, or it has another format."""
        folder = self.result()
        files = sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )
        names = [name, *(f"{name}{suffix}" for suffix in (*_READERS, *PICKLES))]
        found = next((folder / file for file in names if file in files), None)
        if found is None:
            there = ", ".join(file for file in files if file != RESULT_FILE)
            raise OperateError(f"{self._place.name}: the result has no {name!r}; it has {there}")
        if found.suffix in PICKLES:
            raise OperateError(
                f"{found.name}: is a pickle, which may run any program when it is read, and is not "
                f"read here; if you trust its author, load {found} yourself"
            )
        if found.suffix not in _READERS:
            raise OperateError(
                f"{found.name}: only {', '.join(_READERS)} are read here; load {found} with the "
                "library that wrote it"
            )
        try:
            return _READERS[found.suffix](found)
        except ImportError as error:
            missing = getattr(error, "name", None) or error
            raise OperateError(
                f"{found.name}: {missing} is not installed; pip install {missing}"
            ) from None
        except Exception as error:  # each library raises its own
            raise OperateError(f"{found}: cannot be read: {error}") from None


def open_run(where: str | Path, *, bucket: str | None = None) -> NotebookRun:
    """Opens a run by an experiment's name, a ``gs://`` path or a folder.

    An experiment is looked for in ``bucket``, else in the bucket that OUTLAST_BUCKET names, else in
    the outputs of the Pulumi stack of that name, else (also after a destroy) in the buckets of this
    project's stacks; of several runs the newest is opened. A ``gs://`` path is a run's or an
    experiment's. Raises UsageError or OperateError if there is no run.
    """
    return NotebookRun(find(where, bucket=bucket))


def load(where: str | Path, name: str = "model", *, bucket: str | None = None) -> Any:
    """An object of a finished run's result: ``outlast.open(where).load(name)``."""
    return open_run(where, bucket=bucket).load(name)


def _values(path: Path) -> Any:
    """JSON from write_values (with a ``.bin`` beside it), from XGBoost, or plain."""
    if path.with_suffix(".bin").is_file():
        _import_frameworks()
        values = snapshot.read_values(path)
        return values[path.stem] if list(values) == [path.stem] else values
    found = json.loads(path.read_bytes())
    if isinstance(found, dict) and {"learner", "version"} <= found.keys():
        return _booster(path)
    return found


def _booster(path: Path) -> Any:
    import xgboost  # type: ignore[import-not-found]

    return xgboost.Booster(model_file=path)


def _safetensors(path: Path) -> Any:
    from safetensors.numpy import load_file  # type: ignore[import-not-found]

    return load_file(path)


def _arrays(path: Path) -> Any:
    import numpy as np

    found = np.load(path, allow_pickle=False)
    return found if path.suffix == ".npy" else dict(found)


def _keras_model(path: Path) -> Any:
    """Chooses an installed backend if the user has chosen none."""
    there = (name for name in KERAS_BACKENDS if importlib.util.find_spec(name))
    os.environ.setdefault("KERAS_BACKEND", next(there, KERAS_BACKENDS[0]))
    import keras  # type: ignore[import-not-found]

    _demand("keras", keras.__version__, (3, 12))
    return keras.models.load_model(path, safe_mode=True)


def _weights(path: Path) -> Any:
    import torch  # type: ignore[import-not-found]

    _demand("torch", torch.__version__, (2, 6))
    return torch.load(path, weights_only=True, map_location="cpu")


def _demand(library: str, version: str, least: tuple[int, int]) -> None:
    """Raises RuntimeError for a library version in which a crafted file can run a program."""
    found = tuple(int(part) for part in re.findall(r"[0-9]+", version)[:2])
    if found < least:
        raise RuntimeError(
            f"{library} {version} runs programs that a crafted file holds; install {library} "
            f"{least[0]}.{least[1]} or later"
        )


_READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": _safetensors,
    ".json": _values,
    ".npy": _arrays,
    ".npz": _arrays,
    ".ubj": _booster,
    ".keras": _keras_model,
    ".pt": _weights,
    ".pth": _weights,
}


def _import_frameworks() -> None:
    """The state's reader knows an object's classes only after they are imported."""
    for name in ("numpy", "sklearn"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
