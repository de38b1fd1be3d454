"""Supported state is restored bit for bit; other state is refused by name."""

import io
import math
import random
import re
import shutil
import struct
import threading
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator
from sklearn.cluster import Birch
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from outlast.base import scratch_space
from outlast.loop import snapshot, state, verify
from outlast.loop.errors import DoesNotFit, StateError


def through_files(folder: Path, source: dict[str, Any], target: dict[str, Any]) -> None:
    """Save ``source`` and restore it into ``target``."""
    nodes, blobs = state.capture_all(source)
    snapshot.write(folder, snapshot.Saved(3, {}, nodes, blobs))
    saved = snapshot.read(folder)
    assert saved.step == 3
    state.restore_all(target, saved.nodes, saved.blobs)
    assert verify.difference((nodes, blobs), state.capture_all(target)) is None


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.just("$tuple"), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=PLAIN)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    nodes, blobs = state.capture_all({"box": {"value": value}})
    box: dict[str, Any] = {"value": None}
    state.restore_all({"box": box}, nodes, blobs)
    assert repr(box["value"]) == repr(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="<i4").reshape(2, 3),
        np.array(3.5),
        np.zeros((0, 4)),
        np.array([1 + 2j, -0.0]),
        np.array([True, False]),
        np.array(["a", "äb"]),
        np.array(["2026-11-27"], dtype="M8[D]"),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(12.0)[::-2],
        np.array([math.nan, math.inf, -0.0], dtype="f2"),
        np.arange(3, dtype=">u2"),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_come_back_raw_and_in_place(tmp_path: Path, array: np.ndarray) -> None:
    target = np.zeros_like(array)
    box: dict[str, Any] = {}
    through_files(tmp_path / "s", {"a": array, "box": {"b": array}}, {"a": target, "box": box})
    for restored in (target, box["b"]):
        assert restored.dtype == array.dtype and restored.shape == array.shape
        assert restored.tobytes() == array.tobytes()
        restored.flags.writeable = True


def test_references_between_objects_survive(tmp_path: Path) -> None:
    weights = np.ones(3)
    shared = np.arange(3.0)
    mine = {"weights": weights, "tied": {"a": shared, "b": shared}}
    held = np.zeros(3)
    theirs: dict[str, Any] = {"weights": held, "tied": {}}
    through_files(tmp_path / "s", mine, theirs)
    assert held.tolist() == [1, 1, 1]
    assert theirs["tied"]["a"] is theirs["tied"]["b"]


def test_one_array_in_two_places_is_saved_once_and_comes_back_as_one(tmp_path: Path) -> None:
    weights = np.arange(6.0).reshape(2, 3)
    mine = {"a": weights, "box": {"same": weights, "view": weights[:], "other": weights.copy()}}
    nodes, blobs = state.capture_all(mine)
    assert len(blobs.items) == 2
    target, box = np.zeros((2, 3)), {"same": np.ones((2, 3)), "other": np.zeros((2, 3))}
    through_files(tmp_path / "s", mine, {"a": target, "box": box})
    assert box["same"] is target and box["view"] is target and box["other"] is not target
    box["same"][0, 0] = 9.0
    assert target[0, 0] == 9.0


def test_one_object_in_two_places_comes_back_as_one(tmp_path: Path) -> None:
    shared, rng = {"n": [1]}, np.random.default_rng(3)
    bits = rng.bit_generator
    mine = {"a": shared, "b": [shared, rng, shared["n"]], "c": {"rng": rng, "bits": bits}}
    theirs: dict[str, Any] = {"a": {}, "b": [{"n": []}], "c": {}}
    through_files(tmp_path / "s", mine, theirs)
    assert theirs["b"][0] is theirs["a"] and theirs["b"][2] is theirs["a"]["n"]
    assert theirs["c"]["rng"] is theirs["b"][1]
    assert theirs["c"]["bits"] is theirs["c"]["rng"].bit_generator
    assert theirs["c"]["rng"].random() == rng.random()


def test_arrays_tied_only_in_the_program_are_untied(tmp_path: Path) -> None:
    both = {"n": 0}
    box = {"a": both, "b": both}
    through_files(tmp_path / "s", {"box": {"a": {"n": 1}, "b": {"n": 2}}}, {"box": box})
    assert box == {"a": {"n": 1}, "b": {"n": 2}}


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (lambda x: {"a": x, "b": x}, lambda x: {"a": x, "b": x.copy()}),
        (lambda x: {"a": x, "b": x.copy()}, lambda x: {"a": x, "b": x}),
    ],
)
@pytest.mark.parametrize("kind", [lambda: np.zeros(2), lambda: {"n": 1}])
def test_differently_tied_names_do_not_fit(mine: Any, theirs: Any, kind: Any) -> None:
    with pytest.raises(DoesNotFit, match="one object under several names"):
        state.restore_all(theirs(kind()), *state.capture_all(mine(kind())))


def test_views_that_overlap_are_named() -> None:
    base = np.arange(10.0)
    for view in (base[2:5], base.reshape(2, 5), base.view("i8"), base[::-1], base[::2]):
        with pytest.raises(StateError) as caught:
            state.capture_all({"x": {"a": base, "b": view}})
        assert "state['x']['b'] shares a part of its memory with state['x']['a']" in str(
            caught.value
        )
    state.capture_all({"x": [base[:5], base[5:], base[:5], base[:0]]})


def test_a_reference_cycle_is_named() -> None:
    box: dict[str, Any] = {"list": []}
    box["list"].append(box)
    with pytest.raises(StateError) as caught:
        state.capture_all({"x": box})
    assert "state['x']['list'][0] is state['x'] again" in str(caught.value)


@pytest.mark.frameworks
@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int4", "uint2"]
)
def test_arrays_of_ml_dtypes_keep_their_bits(tmp_path: Path, name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, name))
    array = np.arange(12, dtype=np.uint8).view(kind).copy().reshape(-1, 2)
    target, box = np.zeros_like(array), {"one": array[0, 0]}
    theirs: dict[str, Any] = {}
    through_files(tmp_path / "s", {"a": array, "box": box}, {"a": target, "box": theirs})
    assert target.dtype == kind and target.tobytes() == array.tobytes()
    assert theirs["one"].dtype == kind and theirs["one"].tobytes() == array[0, 0].tobytes()
    with pytest.raises(DoesNotFit, match=f"the checkpoint holds {re.escape(str(array.shape))}"):
        state.restore_all({"a": np.zeros(array.shape)}, *state.capture_all({"a": array}))


def test_long_bytes_are_stored_with_the_arrays(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4
    box: dict[str, Any] = {}
    through_files(tmp_path / "s", {"box": {"raw": data, "short": b"x"}}, {"box": box})
    assert box == {"raw": data, "short": b"x"}
    assert (tmp_path / "s" / "arrays.bin").read_bytes() == data


def test_memory_orders_are_restored(tmp_path: Path) -> None:
    arrays = [np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.zeros((2, 3, 4)).swapaxes(0, 1)]
    box: dict[str, Any] = {}
    through_files(tmp_path / "s", {"box": {"a": arrays}}, {"box": box})
    for one, two in zip(arrays, box["a"], strict=True):
        assert one.strides == two.strides and (one == two).all()


def test_dicts_of_the_standard_library_keep_their_kind(tmp_path: Path) -> None:
    mine = {
        "box": {"c": Counter("aab"), "o": OrderedDict(b=1, a=2)},
        "d": defaultdict(list, {"x": [1]}),
    }
    theirs: dict[str, Any] = {"box": {}, "d": defaultdict(list)}
    through_files(tmp_path / "s", mine, theirs)
    assert theirs == mine and [*theirs["box"]["o"]] == ["b", "a"]
    assert type(theirs["box"]["c"]) is Counter and theirs["d"]["new"] == []
    captured = state.capture_all({"x": {"d": defaultdict(lambda: 3)}})
    with pytest.raises(DoesNotFit, match="whose default only the program knows"):
        state.restore_all({"x": {}}, *captured)


def test_the_global_generator_of_numpy_is_state(tmp_path: Path) -> None:
    before = np.random.get_state()
    try:
        np.random.seed(5)
        captured = state.capture_all({"numpy": np.random})
        expected = np.random.random()
        state.restore_all({"numpy": np.random}, *captured)
        assert np.random.random() == expected
    finally:
        np.random.set_state(before)


@pytest.mark.parametrize("memory", [True, False])
def test_a_spare_file_gives_the_same_bytes_and_keeps_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: bool
) -> None:
    monkeypatch.setattr(scratch_space, "in_memory", lambda folder: memory)
    path = tmp_path / "spare"
    spare, inode, mapped = snapshot.Spare(path), 0, []
    for number, length in enumerate((300_000, 300_000, 3, 300_000, 400_000, 400_000, 0)):
        folder = tmp_path / f"s{number}"
        arrays = {"a": {"b": np.full(length, number), "c": np.ones(5, "u1"), "d": np.ones(2)}}
        saved = snapshot.Saved(1, {}, *state.capture_all(arrays))
        snapshot.write(folder, saved, spare=spare)
        snapshot.write(tmp_path / "plain", saved)
        for file in ("state.json", "arrays.bin"):
            assert (folder / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()
        inode = inode or path.stat().st_ino
        assert (folder / "arrays.bin").stat().st_ino == path.stat().st_ino == inode
        mapped.append(str(path) in Path("/proc/self/maps").read_text())
        shutil.rmtree(folder)
    # Only over pages that are there: not if the file is new, or was shorter before.
    assert mapped == [memory and pages for pages in (0, 1, 1, 0, 0, 1, 1)]
    spare.drop()
    assert not path.exists() and str(path) not in Path("/proc/self/maps").read_text()


def test_a_spare_file_of_one_snapshot_is_never_that_of_another(tmp_path: Path) -> None:
    spare = snapshot.Spare(tmp_path / "spare")
    saved = snapshot.Saved(1, {}, *state.capture_all({"a": np.ones(9)}))
    assert not spare.shared
    snapshot.write(tmp_path / "s1", saved, spare=spare)
    assert spare.shared
    spare.drop()
    saved = snapshot.Saved(2, {}, *state.capture_all({"a": np.zeros(9)}))
    snapshot.write(tmp_path / "s2", saved, spare=spare)
    assert bytes(snapshot.read(tmp_path / "s1").blobs.items[0].data) == np.ones(9).tobytes()


def test_nan_keeps_its_bits_in_arrays(tmp_path: Path) -> None:
    odd = np.frombuffer(struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF), "<f8").copy()
    target = np.zeros(1)
    through_files(tmp_path / "s", {"a": odd}, {"a": target})
    assert target.tobytes() == odd.tobytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: random.Random(seed),
        lambda seed: np.random.default_rng(seed),
        lambda seed: np.random.Generator(np.random.MT19937(seed)),
        lambda seed: np.random.Generator(np.random.Philox(seed)),
        lambda seed: np.random.Generator(np.random.SFC64(seed)),
        lambda seed: np.random.RandomState(seed),
    ],
)
def test_random_numbers_resume_where_they_were(tmp_path: Path, make: Any) -> None:
    rng, other = make(1), make(2)

    def draw(generator: Any) -> list[float]:
        one = generator.gauss(0, 1) if isinstance(generator, random.Random) else None
        return [one or float(generator.normal()) for _ in range(3)] + [
            float(generator.random()) for _ in range(3)
        ]

    if not isinstance(rng, random.Random):
        rng.normal()  # leaves half of a pair behind, which is state too
    rng.random()
    through_files(tmp_path / "s", {"rng": rng}, {"rng": other})
    assert draw(rng) == draw(other)


def test_the_random_module_itself_is_state(tmp_path: Path) -> None:
    before = random.getstate()
    try:
        random.seed(5)
        nodes, blobs = state.capture_all({"random": random})
        expected = random.random()
        random.seed(6)
        state.restore_all({"random": random}, nodes, blobs)
        assert random.random() == expected
    finally:
        random.setstate(before)


class Counting:
    """Something with its own state, as frameworks have it."""

    def __init__(self) -> None:
        self.values = {"n": 0, "moments": (np.zeros(2), np.float32(0.1))}

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, values: dict[str, Any]) -> None:
        if set(values) != set(self.values):
            raise KeyError("other keys")
        self.values = values


def test_state_dicts_are_read_and_restored(tmp_path: Path) -> None:
    mine, theirs = Counting(), Counting()
    mine.values["n"] = 5
    mine.values["moments"] = (np.arange(2.0), np.float32(0.3))
    through_files(tmp_path / "s", {"c": mine}, {"c": theirs})
    assert theirs.values["n"] == 5 and theirs.values["moments"][1] == np.float32(0.3)
    assert isinstance(theirs.values["moments"], tuple)


def fitted(model: Any, steps: int) -> Any:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = rng.normal(size=(20, 4))
        labels = (rows.sum(axis=1) > 0).astype(int)
        if isinstance(model, MLPRegressor):
            model.partial_fit(rows, labels)
        else:
            model.partial_fit(rows, labels, classes=[0, 1])
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: MLPClassifier((8, 4), random_state=np.random.RandomState(3)),
        lambda: MLPClassifier((8,), solver="sgd", random_state=3),
        lambda: MLPRegressor(hidden_layer_sizes=(8,), random_state=3),
        lambda: GaussianNB(),
        lambda: StandardScaler(),
    ],
)
@pytest.mark.parametrize("target_steps", [0, 2])
def test_estimators_resume_as_if_never_stopped(
    tmp_path: Path, make: Any, target_steps: int
) -> None:
    def train_on(model: Any, steps: int) -> Any:
        if isinstance(model, StandardScaler):
            for i in range(steps):
                model.partial_fit(np.random.default_rng(i).normal(size=(9, 4)))
            return model
        return fitted(model, steps)

    mine, theirs = train_on(make(), 3), train_on(make(), target_steps)
    through_files(tmp_path / "s", {"m": mine}, {"m": theirs})
    nodes = [state.capture_all({"m": train_on(model, 2)}) for model in (mine, theirs)]
    assert verify.difference(nodes[0], nodes[1]) is None


def test_a_saved_estimator_is_read_without_its_program(tmp_path: Path) -> None:
    model = fitted(MLPClassifier((8,), random_state=3), 3)
    snapshot.write_values(tmp_path / "model.json", {"model": model})
    again = snapshot.read_values(tmp_path / "model.json")["model"]
    rows = np.random.default_rng(1).normal(size=(5, 4))
    assert (again.predict_proba(rows) == model.predict_proba(rows)).all()


def test_equal_state_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        model = fitted(MLPClassifier((8,), random_state=3), 3)
        snapshot.write(tmp_path / name, snapshot.Saved(3, {}, *state.capture_all({"model": model})))
    for file in ("state.json", "arrays.bin"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


class Counted(dict):
    """A dict that holds more than its items, and that cannot be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Broken(Counting):
    """Says that it cannot give its state."""

    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("out of order")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (3, "state['x'] is 3, which cannot be restored in place"),
        ((1, 2), "state['x'] is (1, 2), which cannot be restored in place"),
        (None, "state['x'] is None, which cannot be restored in place"),
        ({"a": [0, object()]}, "state['x']['a'][1] is object, which cannot be saved"),
        ({"f": print}, "state['x']['f'] is builtin_function_or_method"),
        ({(1, object()): 1}, "cannot be saved"),
        ({"a": memoryview(b"x")}, "state['x']['a'] is memoryview"),
        ({"a": (i for i in ())}, "state['x']['a'] is generator"),
        ({"a": lambda: 0}, "state['x']['a'] is function"),
        ({"a": Counted()}, "state['x']['a'].lock is _thread.lock, which cannot be saved"),
        ({"a": Broken()}, "state['x']['a'].state_dict(): out of order"),
        ({"a": Counting}, "state['x']['a'] is type"),
        ({"a": io.StringIO()}, "state['x']['a'] is _io."),
        (np.array([object()]), "state['x'].flat[0] is object, which cannot be saved"),
        (np.zeros(2, dtype=[("a", "O")]), "of dtype [('a', 'O')]"),
        (Birch().partial_fit(np.eye(3)), "state['x'].root_ is sklearn.cluster._birch._CFNode"),
        (make_pipeline(StandardScaler()), None),
    ],
)
def test_unsavable_state_is_refused_by_name(value: Any, says: str | None) -> None:
    if says is None:
        state.capture_all({"x": value})
        return
    with pytest.raises(StateError) as caught:
        state.check_top({"x": value})
        state.capture_all({"x": value})
    assert says in str(caught.value)


def test_an_empty_state_is_refused() -> None:
    with pytest.raises(StateError, match="name the objects to save"):
        state.check_top({})


@pytest.mark.parametrize(
    ("mine", "theirs", "says"),
    [
        ({"a": np.zeros(3)}, {"a": np.zeros(4)}, "state['a'] is an array (4,) of <f8"),
        ({"a": np.zeros(3)}, {"a": np.zeros(3, "f4")}, "the checkpoint holds (3,) of <f8"),
        ({"a": np.zeros(3)}, {"a": {}}, "state['a'] is dict"),
        ({"a": {}}, {"a": np.zeros(3)}, "state['a'] is numpy.ndarray"),
        ({"a": {}}, {"b": {}}, "the checkpoint holds a, which this program's state lacks"),
        (
            {"a": {}},
            {"a": {}, "b": {}},
            "state: the program has b, which the checkpoint does not hold",
        ),
        ({"a": np.random.default_rng()}, {"a": random.Random()}, "holds a numpy Generator"),
        (
            {"a": np.random.default_rng()},
            {"a": np.random.Generator(np.random.Philox())},
            "state['a'].bit_generator is a Philox generator: the checkpoint holds a PCG64",
        ),
        ({"a": random.Random()}, {"a": np.random.default_rng()}, "holds a random.Random"),
        ({"a": Counting()}, {"a": [1]}, "the checkpoint holds a state_dict"),
        (
            {"a": MLPClassifier((8,))},
            {"a": MLPClassifier((9,))},
            "state['a'] has hidden_layer_sizes=(9,): the checkpoint's is (8,)",
        ),
        ({"a": MLPClassifier()}, {"a": MLPRegressor()}, "MLPRegressor: the checkpoint holds"),
    ],
)
def test_a_mismatch_is_refused_by_name(mine: Any, theirs: Any, says: str) -> None:
    with pytest.raises(DoesNotFit) as caught:
        state.restore_all(theirs, *state.capture_all(mine))
    assert says in str(caught.value)


def test_only_scikit_learns_own_classes_are_built() -> None:
    class Mine(BaseEstimator):
        pass

    nodes, blobs = state.capture_all({"box": {"m": Mine()}})
    with pytest.raises(DoesNotFit, match="cannot be rebuilt"):
        state.restore_all({"box": {}}, nodes, blobs)


@pytest.mark.parametrize(
    ("file", "data", "says"),
    [
        ("state.json", b"{", "cannot be read"),
        ("state.json", b'{"format":99}', "format 99"),
        ("state.json", b'{"format":1,"arrays":[]}', "not a snapshot"),
        ("arrays.bin", b"", "an array ends at 24"),
    ],
)
def test_a_folder_without_a_snapshot_is_reported(
    tmp_path: Path, file: str, data: bytes, says: str
) -> None:
    folder = tmp_path / "s"
    snapshot.write(folder, snapshot.Saved(1, {}, *state.capture_all({"a": np.zeros(3)})))
    (folder / file).write_bytes(data)
    with pytest.raises(DoesNotFit, match=says):
        snapshot.read(folder)


def test_differences_are_found_by_path() -> None:
    def captured(value: Any) -> Any:
        return state.capture_all({"x": {"deep": [value]}})

    assert verify.difference(captured(1), captured(1)) is None
    for one, two in [(1, 1.0), (0.0, -0.0), (np.zeros(2), np.zeros(3)), ((1,), [1]), (True, 1)]:
        assert verify.difference(captured(one), captured(two)) == "state['x']['deep'][0]"


class Interrupted:
    """Its state can be read, but a signal's handler raises the first time."""

    def __init__(self, errors: int) -> None:
        self.errors = errors

    def state_dict(self) -> dict[str, int]:
        if self.errors:
            self.errors -= 1
            raise RuntimeError("DataLoader worker (pid 9) is killed by signal: Killed.")
        return {"n": 1}

    def load_state_dict(self, values: dict[str, int]) -> None:
        raise NotImplementedError


def test_an_error_from_outside_is_not_one_of_the_state() -> None:
    """The state is sound: what ends the run is another failure, which may be retried."""
    places: list[dict[str, Any]] = [{"x": Interrupted(1)}, {"x": {"in": [Interrupted(1)]}}]
    for values in places:
        with pytest.raises(RuntimeError, match=r"^DataLoader worker \(pid 9\)"):
            state.capture_all(values)
        assert state.capture_all(values)[0]
    with pytest.raises(state.StateError, match=r"state\['x'\]\['in'\].*DataLoader worker"):
        state.capture_all({"x": {"in": Interrupted(1000)}})
