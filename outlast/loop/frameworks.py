"""The adapters of outlast.loop.adapters by name. Each is imported only when its framework is."""

import importlib
import sys
from typing import Any

from outlast.loop.blobs import Adapter
from outlast.loop.errors import DoesNotFit

# An object can only belong to a framework that is already imported. The order matters: with the
# torch backend, Keras's layers are torch modules too; numpy's arrays are the most common.
_PYTHON = ("values", "containers")
_NAMES = ("numpy", *_PYTHON, "keras", "xgboost", "torch", "flax", "jax", "sklearn")
ADAPTERS = {name: f"outlast.loop.adapters.{name}" for name in _NAMES}
"""Module of each adapter."""
_OWN = ("state_dict", "load_state_dict")


def loaded() -> list[Adapter]:
    """The adapters of Python's values and of the frameworks that the program has imported."""
    return [
        importlib.import_module(home)  # type: ignore[misc]
        for name, home in ADAPTERS.items()
        if name in _PYTHON or name in sys.modules
    ]


_imported: dict[str, Any] = {}
"""Cache of the imported adapters, because each array of a checkpoint looks one up."""


def containers() -> Any:
    """The adapter of Python's containers, which also has rules for a trainer's own classes."""
    return adapter("containers")


def adapter(framework: str, path: str = "state") -> Any:
    """The adapter that a node names; imports its framework if necessary."""
    if found := _imported.get(framework):
        return found
    if framework not in ADAPTERS:
        raise DoesNotFit(f"{path}: the checkpoint holds something of {framework}, unknown here")
    try:
        _imported[framework] = importlib.import_module(ADAPTERS[framework])
        return _imported[framework]
    except ImportError as error:
        raise DoesNotFit(f"{path}: the checkpoint needs {framework} ({error})") from None


def has_state_dict(value: object) -> bool:
    """Whether an object defines its own state with ``state_dict`` and ``load_state_dict``."""
    if isinstance(value, type):
        return False
    try:
        return all(callable(getattr(value, name, None)) for name in _OWN)
    except Exception:  # an object whose __getattr__ raises has neither
        return False
