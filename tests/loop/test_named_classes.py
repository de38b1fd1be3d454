"""Classes that a checkpoint names: none is imported, and none of their code runs.

A program is loaded whose classes note each time that code of theirs runs. Nodes of every kind name
them; what is plain data is filled in, everything else is refused.
"""

import enum
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.loop import state
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import Blobs

PROGRAM = """
import abc, collections, dataclasses, enum, typing

ran = []

class Meta(type):
    def __call__(cls, *args, **more):
        ran.append("metaclass call"); return super().__call__(*args, **more)
    def __getattribute__(cls, name):
        ran.append("metaclass " + name); return super().__getattribute__(name)

class Trap:
    def __set__(self, owner, value): ran.append("descriptor")
    def __get__(self, owner, cls=None): ran.append("descriptor"); return 1
    def __delete__(self, owner): ran.append("descriptor")

@dataclasses.dataclass
class Note:
    text: str = ""
    other: int = 0
    def __init__(self, text=""): ran.append("init")
    def __setattr__(self, name, value): ran.append("setattr")
    @property
    def more(self): ran.append("property")
    @more.setter
    def more(self, value): ran.append("property")
    trap = Trap()

@dataclasses.dataclass(frozen=True)
class Frozen:
    text: str
    def __post_init__(self): ran.append("post_init")

@dataclasses.dataclass
class New:
    text: str = ""
    def __new__(cls, *args): ran.append("new"); return object.__new__(cls)

@dataclasses.dataclass
class WithMeta(metaclass=Meta):
    text: str = ""

@dataclasses.dataclass
class Ends:
    text: str = ""
    def __del__(self): ran.append("del")

class Pair(collections.namedtuple("Pair", "a b")):
    def __new__(cls, *args): ran.append("new"); return super().__new__(cls, 1, 2)
    def __init__(self, *args): ran.append("init")

class Typed(typing.NamedTuple):
    a: int

class Color(enum.Enum):
    RED = 1
    @classmethod
    def _missing_(cls, value): ran.append("missing"); return cls.RED

class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    @classmethod
    def _missing_(cls, value): ran.append("missing"); return super()._missing_(value)

class Plain(enum.Flag):
    READ = 1
    WRITE = 2

class Anything:
    def __init__(self): ran.append("init")
    def __getattribute__(self, name):
        ran.append("getattribute")
        return object.__getattribute__(self, name)

one = Anything()

class Outer:
    @dataclasses.dataclass
    class Inner:
        x: int = 0

class Words(dict):
    def __init__(self): ran.append("init")
    def __setitem__(self, key, value): ran.append("setitem")

def __getattr__(name):
    ran.append("module getattr"); raise AttributeError(name)
"""
NAMES = (
    *("Note", "Frozen", "New", "WithMeta", "Ends", "Pair", "Typed", "Color", "Rights", "Plain"),
    *("Anything", "one", "one.x", "Outer", "Outer.Inner", "Words", "Trap", "Meta", "gone", "ran"),
    *("Note.more", "Note.trap", "dataclasses.dataclass", "collections.OrderedDict", "", "."),
)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Any]:
    file = tmp_path / "program_of_theirs.py"
    file.write_text(PROGRAM)
    module = types.ModuleType("program_of_theirs")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    exec(compile(PROGRAM, str(file), "exec"), module.__dict__)
    module.ran.clear()  # type: ignore[attr-defined]
    yield module
    del sys.modules[module.__name__]


def nodes(name: str) -> Iterator[Any]:
    """Every kind of node that names a class."""
    cls = f"program_of_theirs:{name}"
    for attributes in ({"text": "x"}, {"more": 1}, {"trap": 1}, {"x": 1}, {"__class__": 1}, {}):
        yield {"$object": "containers.object", "class": cls, "attributes": attributes}
    for fields in (["a", "b"], ["a"], []):
        items = [1] * len(fields)
        pair = {"$object": "containers.namedtuple", "class": cls, "fields": fields, "items": items}
        yield pair
        yield {**pair, "attributes": {"x": 1}}
    for base in ("dict", "list", "set", "deque", "tuple"):
        yield {"$object": "containers.items", "base": base, "class": cls, "pairs": [["a", 1]]}
        yield {"$object": "containers.items", "base": base, "class": cls, "items": [1]}
    for member in ("RED", "READ", "0x1", "0x3", "0x8", "0x63", "GREEN", "__class__", "mro"):
        yield {"$value": ["enum", cls, member]}


@pytest.mark.parametrize("name", NAMES)
def test_no_code_of_a_named_class_runs(program: Any, name: str) -> None:
    modules = set(sys.modules)
    for node in nodes(name):
        for put in (node, [node, 1], {"a": node}):
            for restore in (
                lambda put=put: state.restore_new({"x": put}, Blobs([])),
                lambda put=put: state.restore_all({"b": {}}, {"b": {"x": put}}, Blobs([])),
            ):
                try:
                    restore()
                except DoesNotFit as error:
                    assert str(error).startswith(("x", "state['b']")), error
                assert program.ran == [], (node, program.ran)
    new = {module for module in sys.modules if not module.startswith("outlast.")} - modules
    assert not new


def test_plain_data_is_restored_without_running_its_code(program: Any) -> None:
    def restored(node: Any) -> Any:
        box: dict[str, Any] = {}
        state.restore_all({"b": box}, {"b": {"x": node}}, Blobs([]))
        return box["x"]

    def named(name: str, **attributes: Any) -> Any:
        cls = f"program_of_theirs:{name}"
        return restored({"$object": "containers.object", "class": cls, "attributes": attributes})

    assert type(named("Frozen", text="x")) is program.Frozen
    assert vars(named("Outer.Inner", x=3)) == {"x": 3}
    pair = {"class": "program_of_theirs:Pair", "fields": ["a", "b"], "items": [3, 4]}
    assert tuple(restored({"$object": "containers.namedtuple", **pair})) == (3, 4)
    both = restored({"$value": ["enum", "program_of_theirs:Plain", "0x3"]})
    assert both is program.Plain.READ | program.Plain.WRITE
    assert restored({"$value": ["enum", "program_of_theirs:Color", "RED"]}) is program.Color.RED
    assert restored({"$value": ["enum", "program_of_theirs:Rights", "0x1"]}) is program.Rights.READ
    assert program.ran == [] and isinstance(both, enum.Flag)


def test_a_class_that_the_trainer_itself_passed_in_is_restored_with_its_own_rules(
    program: Any,
) -> None:
    note = program.Note()
    object.__setattr__(note, "text", "old")
    program.ran.clear()
    saved, blobs = state.capture_all({"n": note})
    object.__setattr__(note, "text", "new")
    state.restore_all({"n": note}, saved, Blobs(blobs.items))
    assert object.__getattribute__(note, "__dict__")["text"] == "old" and program.ran == []


@pytest.mark.parametrize(
    "name", ["antigravity:x", "this:d", "tests.checkout:Checkout", "idlelib:x"]
)
def test_a_module_that_is_not_loaded_stays_so(name: str) -> None:
    module = name.partition(":")[0]
    was = sys.modules.pop(module, None)
    try:
        for node in (
            {"$object": "containers.object", "class": name, "attributes": {}},
            {"$object": "containers.namedtuple", "class": name, "fields": ["a"], "items": [1]},
            {"$value": ["enum", name, "A"]},
        ):
            with pytest.raises(DoesNotFit):
                state.restore_all({"b": {}}, {"b": {"x": node}}, Blobs([]))
            assert module not in sys.modules
    finally:
        if was is not None:
            sys.modules[module] = was
