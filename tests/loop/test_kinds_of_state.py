"""Kinds of state that need no framework: those that come back (see test_kinds_table.py), those that
are refused by the name of their place, and what a container keeps beside its items.

A kind is what a program starts with, and what training has made of it.
"""

import array
import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import itertools
import pathlib
import random
import threading
import types
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from outlast.loop import snapshot, state
from outlast.loop.errors import StateError


class Move(NamedTuple):
    """One entry of a replay buffer."""

    seen: Any
    reward: float


@dataclasses.dataclass
class Average:
    decay: float
    values: Any = None


@dataclasses.dataclass(frozen=True)
class Fixed:
    name: str
    inner: Average


@dataclasses.dataclass
class Slotted:
    __slots__ = ("n",)
    n: int


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


class Marks(enum.Flag):
    A = 1
    B = 2
    C = 4


class Table(dict):
    """A dict that counts the items set by its own method."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.writes = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.writes += 1


class Log(list):
    """A list that refuses to be shortened."""

    name = "log"

    def clear(self) -> None:
        raise RuntimeError("a log is never cleared")


class Recent(collections.deque):
    """A deque of one's own."""


class Ordered(collections.OrderedDict):
    """An OrderedDict of one's own."""


class Asked:
    """Any attribute raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Metric:
    """State in plain attributes, and nothing of it in state_dict()."""

    total = 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        pass


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


def filled(container: Any, *items: Any) -> Any:
    for key, value in items:
        container[key] = value
    return container


def spawned(number: int) -> np.random.Generator:
    rng = np.random.default_rng(number)
    rng.spawn(number)
    rng.random(number)
    return rng


def readonly(values: Any) -> np.ndarray:
    found = np.array(values)
    found.flags.writeable = False
    return found


def masked(values: list[float], mask: Any) -> Any:
    return np.ma.MaskedArray(values, mask=mask, fill_value=7.0)


RECORD = np.dtype([("id", "u1"), ("x", "<f8", (2,))], align=True)

SAVED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "OrderedDict": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda: collections.OrderedDict(b=3, a=1, c=[1]),
    ),
    "own OrderedDict": (lambda: Ordered(a=1), lambda: Ordered(b=3, a=1)),
    "defaultdict of list": (
        lambda: collections.defaultdict(list),
        lambda: collections.defaultdict(list, x=[1]),
    ),
    "Counter": (collections.Counter, lambda: collections.Counter("aab")),
    "deque": (lambda: collections.deque(maxlen=3), lambda: collections.deque([1, 2, 3], maxlen=3)),
    "own deque": (Recent, lambda: Recent([1, [2]])),
    "replay buffer": (
        lambda: collections.deque(maxlen=2),
        lambda: collections.deque([Move(np.arange(3.0), 1.0), Move(None, 2.0)], maxlen=2),
    ),
    "own dict": (lambda: Table({"a": 1}), lambda: filled(Table({"a": 1}), ("b", 2), ("a", 3))),
    "own list": (lambda: Log([1]), lambda: Log([2, {"a": 3}])),
    "dataclass": (lambda: Average(0.9), lambda: Average(0.5, {"w": np.ones(2)})),
    "slotted dataclass": (lambda: Slotted(1), lambda: Slotted(2)),
    "SimpleNamespace": (
        lambda: types.SimpleNamespace(n=0),
        lambda: types.SimpleNamespace(m=[1], n=2),
    ),
    "ChainMap": (
        lambda: collections.ChainMap({}, {"a": 1}),
        lambda: collections.ChainMap({"b": 2}, {"a": 3}),
    ),
    "UserDict": (lambda: collections.UserDict(a=1), lambda: collections.UserDict(b=2)),
    "UserList": (lambda: collections.UserList([1]), lambda: collections.UserList([1, 2])),
    "set": (set, lambda: {3, "a", (1, 2), None, b"x" * 300}),
    "bytearray": (bytearray, lambda: bytearray(b"xy" * 300)),
    "array.array": (lambda: array.array("d", [1.0]), lambda: array.array("d", [2.0, -0.0])),
    "odd keys": (
        dict,
        lambda: {(1, "a"): 1, None: 2, 1.5: 3, frozenset({1}): 4, Phase.MAIN: 5, Move(1, 2.0): 6},
    ),
    "array": (lambda: np.zeros((2, 3)), lambda: np.arange(6.0).reshape(2, 3)),
    "0-d array": (lambda: np.array(0.0), lambda: np.array(3.5)),
    "array of objects": (
        lambda: np.array([None, None], object),
        lambda: np.array(["yes", ("a", 1)], object),
    ),
    "array of records": (
        lambda: np.zeros(2, RECORD),
        lambda: np.array([(1, (2.0, 3.0)), (4, (5.0, 6.0))], RECORD),
    ),
    "masked array": (
        lambda: masked([0.0, 0.0], False),
        lambda: masked([1.0, 2.0], [True, False]),
    ),
    "random.Random": (lambda: random.Random(1), lambda: random.Random(2)),
    "numpy Generator that spawns": (lambda: spawned(1), lambda: spawned(3)),
    "RandomState": (lambda: np.random.RandomState(1), lambda: np.random.RandomState(2)),
}
"""Kinds at the top of the state: changed in place."""

INSIDE: dict[str, Callable[[], Any]] = {
    "namedtuple": lambda: Move([1], 2.0),
    "nested namedtuples": lambda: Move(Move(np.ones(2), 1.0), 2.0),
    "frozen dataclass": lambda: Fixed("a", Average(0.5, [1])),
    "frozenset": lambda: frozenset({1, frozenset({2})}),
    "enum": lambda: Phase.MAIN,
    "flags": lambda: Marks.A | Marks.C,
    "complex": lambda: complex(-0.0, float("inf")),
    "Decimal": lambda: decimal.Decimal("1.10"),
    "Fraction": lambda: fractions.Fraction(1, 3),
    "dates": lambda: [
        datetime.date(2026, 1, 2),
        datetime.datetime(2026, 1, 2, 3, fold=1, tzinfo=datetime.UTC),
        datetime.time(3, 4, tzinfo=datetime.timezone(datetime.timedelta(hours=1), "here")),
        datetime.timedelta(1, 2, 3),
    ],
    "path": lambda: pathlib.Path("/data/\udce9"),
    "UUID": lambda: uuid.UUID(int=5),
    "slice and range": lambda: [slice(1, None, 2), range(0, 10**30, 7), ...],
    "huge number": lambda: -(10**5000),
    "numpy scalars": lambda: [np.float32(0.1), np.str_("a\0"), np.bytes_(b""), np.bool_(True)],
    "dtype": lambda: [np.dtype("<f4"), RECORD, np.float64, int],
    "read-only array": lambda: readonly([1.0, 2.0]),
    "broadcast array": lambda: np.broadcast_to(np.ones(1), (3,)),
    "SeedSequence": lambda: np.random.SeedSequence(5, spawn_key=(1,)),
    "defaultdict that appears": lambda: collections.defaultdict(int, a=1),
    "generator that appears": lambda: random.Random(5),
    "numpy generator that appears": lambda: np.random.default_rng(5),
}
"""Kinds in a dict that is empty when training begins."""

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "function": (lambda: len, "['v']"),
    "lock": (threading.Lock, "['v']"),
    "file": (io.StringIO, "['v']"),
    "generator": (lambda: (i for i in "ab"), "['v']"),
    "count": (itertools.count, "['v']"),
    "memoryview": (lambda: memoryview(b"x"), "['v']"),
    "mappingproxy": (lambda: types.MappingProxyType({"a": 1}), "['v']"),
    "SystemRandom": (random.SystemRandom, "['v'] is a SystemRandom"),
    "2000 lists deep": (lambda: deep(2000), "['v'][0][0]"),
    "__getattr__ that raises": (Asked, "['v']"),
    "recarray": (lambda: np.zeros(2, RECORD).view(np.recarray), "['v'] is recarray"),
    "empty state_dict": (Metric, "['v'] is tests.loop.test_kinds_of_state.Metric, whose state"),
    "view that repeats": (
        lambda: np.lib.stride_tricks.as_strided(np.ones(1), (3,), (0,)),
        "['v'] is an array whose elements overlap",
    ),
    "subclass of int": (lambda: type("Own", (int,), {})(1), "['v']"),
    "key without a value": (lambda: {object(): 1}, "['v']"),
}

LATE: dict[str, Callable[[], Any]] = {
    "own dict": lambda: Table({"a": 1}),
    "own list": lambda: Log([1]),
    "default known to the program only": lambda: collections.defaultdict(lambda: 3),
    "something with state_dict": lambda: Counting(),
    "class of a function": lambda: _local_namedtuple()(1),
}


class Counting:
    def __init__(self) -> None:
        self.n = 1

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.n = values["n"]


def _local_namedtuple() -> Any:
    return collections.namedtuple("Local", "x")  # noqa: PYI024


def saved(folder: Path, values: dict[str, Any], begun: Any) -> Any:
    snapshot.write(folder, snapshot.Saved(3, {}, *state.capture_all(values, begun)))
    return snapshot.read(folder)


def kinds() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    inside = {
        f"in a dict: {name}": (dict, lambda make=make: {"v": make()})
        for name, make in INSIDE.items()
    }
    return SAVED | inside


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_place(name: str) -> None:
    make, says = REFUSED[name]
    with pytest.raises(StateError) as caught:
        state.survey({"s": {"v": make()}})
    assert f"state['s']{says}" in str(caught.value)


@pytest.mark.parametrize(
    "value", [(1,), Move(1, 2.0), frozenset(), Phase.WARM, Fixed("a", Average(1.0)), readonly([1])]
)
def test_an_immutable_value_at_the_top_is_refused(value: Any) -> None:
    with pytest.raises(StateError, match=r"state\['s'\] is .*cannot be restored in place"):
        state.check_top({"s": value})


@pytest.mark.parametrize("name", LATE)
def test_late_state_that_cannot_be_rebuilt_is_refused(name: str) -> None:
    box: dict[str, Any] = {}
    begun = state.survey({"box": box})
    box["late"] = LATE[name]()
    with pytest.raises(StateError) as caught:
        state.capture_all({"box": box}, begun)
    assert "state['box']['late'] is " in str(caught.value)
    assert "did not exist when training began" in str(caught.value)
    state.capture_all({"box": box}, state.survey({"box": box}))  # there from the start: saved


def test_an_array_that_grows_is_restored_and_a_changed_program_is_not(tmp_path: Path) -> None:
    box = {"losses": np.zeros(2)}
    begun = state.survey({"box": box})
    box["losses"] = np.arange(5.0)
    found = saved(tmp_path / "s", {"box": box}, begun)
    again = {"losses": np.zeros(2)}
    state.restore_all({"box": again}, found.nodes, found.blobs)
    assert again["losses"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(StateError, match=r"is an array \(3,\) of <f8: the checkpoint holds \(5,\)"):
        other = snapshot.read(tmp_path / "s")
        state.restore_all({"box": {"losses": np.zeros(3)}}, other.nodes, other.blobs)


def test_a_late_reference_restores_the_programs_initial_object(
    tmp_path: Path,
) -> None:
    def start() -> dict[str, Any]:
        return {"now": {}, "all": {"one": Counting(), "two": np.zeros(2)}}

    mine, theirs = start(), start()
    begun = state.survey(mine)
    mine["now"] |= mine["all"]
    mine["all"]["one"].n, mine["all"]["two"][:] = 5, 7.0
    held = dict(theirs["all"])
    found = saved(tmp_path / "s", mine, begun)
    state.restore_all(theirs, found.nodes, found.blobs)
    for name, item in held.items():
        assert theirs["all"][name] is theirs["now"][name] is item
    assert held["one"].n == 5 and held["two"].tolist() == [7, 7]


def test_a_module_of_random_numbers_that_appears_is_that_module(tmp_path: Path) -> None:
    found = saved(tmp_path / "s", {"box": {"np": np.random, "py": random}}, None)
    box: dict[str, Any] = {}
    state.restore_all({"box": box}, found.nodes, found.blobs)
    assert box == {"np": np.random, "py": random}


def test_a_subclass_keeps_its_attributes_besides_its_items(tmp_path: Path) -> None:
    mine, theirs = filled(Table(), ("a", 1), ("a", 2)), Table()
    found = saved(tmp_path / "s", {"s": mine}, None)
    state.restore_all({"s": theirs}, found.nodes, found.blobs)
    assert theirs == {"a": 2} and theirs.writes == mine.writes == 2


def test_equal_sets_give_equal_bytes(tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(50)]
    for folder, order in (("one", names), ("two", names[::-1])):
        saved(tmp_path / folder, {"s": {"v": set(order)}}, None)
    one, two = ((tmp_path / name / "state.json").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_deep_copy_is_saved_beside_its_original(tmp_path: Path) -> None:
    mine: dict[str, Any] = {"w": np.ones(2), "best": {"w": None}}
    begun = state.survey(mine)
    mine["best"]["w"] = copy.deepcopy(mine["w"])
    mine["w"][:] = 3
    theirs: dict[str, Any] = {"w": np.ones(2), "best": {"w": None}}
    found = saved(tmp_path / "s", mine, begun)
    state.restore_all(theirs, found.nodes, found.blobs)
    assert theirs["best"]["w"].tolist() == [1, 1] and theirs["w"].tolist() == [3, 3]
