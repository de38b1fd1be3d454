"""Outlast: training on preemptible VMs that survives preemption.

Public names, imported on first use so that ``import outlast`` costs nothing:

``train``
    the loop of a trainer, see :mod:`outlast.loop`.
``data``
    a local path for a local or gs:// path, see :mod:`outlast.loop.data`.
``BatchSampler``
    batches in an order whose position is one number, see :mod:`outlast.loop.sampler`.
``open``, ``load``
    a run, or an object of its result, for notebooks and scripts, see :mod:`outlast.notebook`.
``save``
    objects into a file of the result, for ``load`` to read, see :mod:`outlast.loop.snapshot`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast.loop import train
    from outlast.loop.data import data
    from outlast.loop.sampler import BatchSampler
    from outlast.loop.snapshot import write_values as save
    from outlast.notebook import load
    from outlast.notebook import open_run as open

__all__ = ["BatchSampler", "data", "load", "open", "save", "train"]

_HOMES = {
    "BatchSampler": "outlast.loop.sampler",
    "data": "outlast.loop.data",
    "load": "outlast.notebook",
    "open": "outlast.notebook",
    "save": "outlast.loop.snapshot",
    "train": "outlast.loop",
}
_NAMES = {"open": "open_run", "save": "write_values"}
"""The name inside the module, if it differs from the public name."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    return getattr(importlib.import_module(home), _NAMES.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
