"""What the SDK's host of dynamic providers is given to send for an error, and to do for an
interrupt."""

import sys
import threading
import traceback
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from outlast.cloud import bake
from outlast.cloud.bake import BakeError
from outlast.dynamic import foundation_guard, host


class Servicer:
    """The SDK's, as far as it matters."""

    def Cancel(self, request: object, context: object) -> object:
        return None


def engine_host(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """A main module of this name, as `host` finds it."""
    made = ModuleType("__main__")
    made.__spec__ = ModuleSpec(name, None)
    vars(made)["traceback"] = traceback
    vars(made)["DynamicResourceProviderServicer"] = Servicer
    monkeypatch.setitem(sys.modules, "__main__", made)
    host.repair_host()
    return made


def sent(made: ModuleType, error: Exception) -> str:
    try:
        raise error
    except Exception:
        return vars(made)["traceback"].format_exc()


def test_our_own_errors_are_their_sentence(monkeypatch: pytest.MonkeyPatch):
    made = engine_host(monkeypatch, "pulumi.dynamic.__main__")
    assert sent(made, BakeError("builder b: went off")) == "builder b: went off"
    assert sent(made, foundation_guard.InUse("foundation f: in use")) == "foundation f: in use"


def test_a_mistake_of_the_program_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch):
    said = sent(engine_host(monkeypatch, "pulumi.dynamic.__main__"), KeyError("image"))
    assert said.startswith("Traceback") and "test_host.py" in said


def test_another_main_module_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    assert vars(engine_host(monkeypatch, "pytest.__main__"))["traceback"] is traceback


def test_an_interrupt_of_the_engine_ends_a_bake_at_its_next_look(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bake, "cancelled", threading.Event())
    serves = Servicer().Cancel  # the server holds it before a provider is unpickled
    engine_host(monkeypatch, "pulumi.dynamic.__main__")
    looks = bake._polls(None)
    next(looks)
    serves(None, None)
    with pytest.raises(BakeError, match="bake: was cancelled"):
        next(looks)
