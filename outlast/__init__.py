"""Outlast: training on preemptible VMs so that preemption does not matter.

Public names, imported on first use so that ``import outlast`` costs nothing:

``train``
    the loop of a trainer, see :mod:`outlast.loop`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast.loop import train

__all__ = ["train"]

_HOMES = {"train": "outlast.loop"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
