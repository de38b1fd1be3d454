"""What trains: one module a trainer, all of the same shape. No cloud, no signals.

A trainer has ``parser()``, a frozen ``Config``, ``build``, ``next_batch``, ``train_step``,
``evaluate``, ``state_dict``, ``parameters``, ``save_model``, ``load_model`` and ``main(argv)``;
``dummy`` explains each of them and is the file to copy; ``MUTABLE``, if there is one, lists what
may change in the middle of a run. What they share is in ``flags``,
``training`` and ``datasets``. A trainer's module imports its framework only inside functions, so
that the parser can be asked without it.
"""

import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

_NO_TRAINERS = frozenset({"__main__", "datasets", "flags", "training"})


def names() -> list[str]:
    """The trainers there are, sorted."""
    return sorted(
        module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NO_TRAINERS
    )


def load(name: str) -> ModuleType:
    """The module of the trainer ``name``, one of ``names()``."""
    return importlib.import_module(f"{__name__}.{name}")


def load_from(path: Path) -> ModuleType:
    """The module or package that `path` names without an ending; its folder comes first on the
    path, as a script's does. ModuleNotFoundError: it is not there."""
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.name)


def mutable(name: str) -> dict[str, str]:
    """The flags of the trainer ``name`` that may change in the middle of a run, and how."""
    return dict(getattr(load(name), "MUTABLE", {}))
