"""`tools/setup.py` as a module."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SETUP = Path(__file__).parents[2] / "tools" / "setup.py"


def load_setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("outlast_setup_under_test", SETUP)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, with an empty cache of the test's own."""
    monkeypatch.setenv("OUTLAST_CACHE", str(tmp_path / "cache"))
    return load_setup()
