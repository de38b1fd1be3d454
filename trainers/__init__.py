"""The trainers: one module each, all with the same functions, without cloud code or signal
handlers.

A trainer has ``parser()``, a frozen ``Config``, ``build``, ``next_batch``, ``train_step``,
``evaluate``, ``state_dict``, ``parameters``, ``save_model``, ``load_model`` and ``main(argv)``;
``dummy`` explains each of them and is the file to copy; ``MUTABLE``, if present, lists the flags
that may change in the middle of a run. Shared code is in ``flags``, ``training`` and ``datasets``.
A trainer's module imports its framework only inside functions, so that its parser works without it.
"""

import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

_NO_TRAINERS = frozenset({"__main__", "datasets", "flags", "training"})


def names() -> list[str]:
    """The names of all trainers, sorted."""
    return sorted(
        module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NO_TRAINERS
    )


def load(name: str) -> ModuleType:
    """The module of the trainer ``name``, one of ``names()``."""
    return importlib.import_module(f"{__name__}.{name}")


def load_from(path: Path) -> ModuleType:
    """Import the module or package that `path` names without an ending; its folder comes first on
    the path, as for a script. Raises ModuleNotFoundError if it does not exist.
    """
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.name)


def mutable(name: str) -> dict[str, str]:
    """The flags of the trainer ``name`` that may change in the middle of a run, and how."""
    return dict(getattr(load(name), "MUTABLE", {}))
