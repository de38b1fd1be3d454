"""Checkpoints and results that someone else wrote: refused by name, and no file is touched."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

from outlast.loop import snapshot, state, verify
from outlast.loop.errors import DoesNotFit, StateError
from tests.loop import hostile

TRANSFORMER = "sklearn.preprocessing._function_transformer.FunctionTransformer"
CALIBRATED = "sklearn.calibration.CalibratedClassifierCV"
MEMMAP = "sklearn.externals.array_api_compat.numpy.memmap"


def estimator(cls: str, params: Any = None, learnt: Any = None) -> dict[str, Any]:
    node = {"$object": "sklearn.estimator", "class": cls}
    return {**node, "params": params or {}, "state": learnt or {}}


def writes(victim: Path, size: int, place: str) -> dict[str, Any]:
    """Nodes that once made a memory-mapped file and had an array written into it."""
    args = [str(victim), "uint8", "w+", 0, [size]]
    again = estimator(TRANSFORMER, {"func": {"$array": 0}})
    return {
        "a": {"$object": "sklearn.object", "class": MEMMAP, "args": args},
        "b": estimator(TRANSFORMER, {"func": {"$same": place % "a"}}),
        "c": estimator(CALIBRATED, {"estimator": {"$same": place % "b"}}, {"estimator": again}),
    }


def write(folder: Path, name: str, head: dict[str, Any], payload: bytes) -> None:
    entry = {"dtype": "|u1", "shape": [len(payload)], "offset": 0, "bytes": len(payload)}
    binary = "arrays.bin" if name == "state.json" else name.replace(".json", ".bin")
    folder.mkdir(exist_ok=True)
    (folder / binary).write_bytes(payload)
    (folder / name).write_text(json.dumps({"format": 1, **head, "arrays": [entry]}))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "home" / ".bashrc"
    file.parent.mkdir()
    file.write_text("# the user's own\n")
    return file


def test_a_result_writes_no_file(tmp_path: Path, victim: Path) -> None:
    write(tmp_path / "s", "model.json", {"values": writes(victim, 9, "%s")}, b"id > /tmp")
    with pytest.raises(DoesNotFit, match="a: the checkpoint holds"):
        snapshot.read_values(tmp_path / "s" / "model.json")
    assert victim.read_text() == "# the user's own\n"


@pytest.mark.parametrize("named", [False, True])
def test_a_checkpoint_writes_no_file(tmp_path: Path, victim: Path, named: bool) -> None:
    cfg = {"lr": 0.1, **writes(victim, 9, "state['cfg'][%r]")}
    head = {"step": 5, "loop": {}, "state": {"cfg": cfg}}
    write(tmp_path / "s", "state.json", head, b"id > /tmp")
    saved = snapshot.read(tmp_path / "s")
    with pytest.raises(DoesNotFit, match=r"state\['cfg'\]\['a'\]: the checkpoint holds"):
        if named:  # as `init` begins with another run's checkpoint
            state.restore_named({"cfg": {"lr": 0.1}}, saved.nodes, saved.blobs, ["cfg"])
        else:
            state.restore_all({"cfg": {"lr": 0.1}}, saved.nodes, saved.blobs)
    assert victim.read_text() == "# the user's own\n"


def test_nothing_is_restored_into_what_the_checkpoint_itself_built(tmp_path: Path) -> None:
    shared = {"$array": 0}
    inner = estimator(TRANSFORMER, {"func": shared})
    values = {"a": shared, "b": inner, "c": estimator(CALIBRATED, {"estimator": {"$same": "b"}})}
    write(tmp_path / "s", "model.json", {"values": values}, b"123")
    found = snapshot.read_values(tmp_path / "s" / "model.json")
    assert found["c"].estimator is found["b"] and found["b"].func is found["a"]
    clash = estimator(CALIBRATED, {"estimator": {"$same": "b"}}, {"estimator": inner})
    write(tmp_path / "s", "model.json", {"values": {**values, "c": clash}}, b"123")
    with pytest.raises(DoesNotFit, match="c: the checkpoint has estimator as a parameter and as"):
        snapshot.read_values(tmp_path / "s" / "model.json")


@pytest.mark.parametrize("text", ['"$same"', '"\\u0024same"'])
def test_a_reference_is_found_in_any_spelling(tmp_path: Path, text: str) -> None:
    write(tmp_path / "s", "model.json", {"values": {"a": [[1]], "b": {"@": "a[0]"}}}, b"1")
    file = tmp_path / "s" / "model.json"
    file.write_text(file.read_text().replace('"@"', text))
    found = snapshot.read_values(file)
    assert found["b"] is found["a"][0]
    file.write_text(file.read_text().replace("a[0]", "a[1]"))
    with pytest.raises(
        DoesNotFit, match=r"^b: the checkpoint has it from 'a\[1\]', which it lacks"
    ):
        snapshot.read_values(file)


def test_one_array_at_two_places_is_one_whose_live_array_is_at_the_other(tmp_path: Path) -> None:
    """Without any ``$same`` too: the places where objects live are looked for all the same."""
    shared = np.arange(3.0)
    folder = tmp_path / "s"
    folder.mkdir()
    saved, blobs = state.capture_all({"box": {"a": None, "b": shared, "c": (shared,)}})
    saved["box"]["a"] = saved["box"]["b"]
    snapshot.write(folder, snapshot.Saved(1, {}, saved, blobs))
    live = np.zeros(3)
    box = {"a": None, "b": live, "c": (live,)}
    found = snapshot.read(folder)
    assert not found.blobs.may_refer
    state.restore_all({"box": box}, found.nodes, found.blobs)
    assert box["a"] is live and box["b"] is live and box["c"][0] is live
    assert live.tolist() == [0.0, 1.0, 2.0]


def test_a_result_holds_no_objects_that_only_a_program_could_restore(tmp_path: Path) -> None:
    class Mine(MLPClassifier):
        pass

    with pytest.raises(StateError, match=r"^model is .*Mine, which cannot be rebuilt"):
        snapshot.write_values(tmp_path / "model.json", {"model": Mine()})
    with pytest.raises(StateError, match=r"which cannot be rebuilt"):
        snapshot.write_values(tmp_path / "model.json", {"model": {"m": hostile.Note("x")}})


@pytest.mark.parametrize("number", range(len(hostile.PYTHON)))
def test_a_hostile_node_of_pythons_is_refused_by_name(number: int) -> None:
    refused(hostile.PYTHON[number], lambda: {"box": {}})


@pytest.mark.parametrize("number", range(len(hostile.NUMPY)))
def test_a_hostile_node_of_numpys_is_refused_by_name(number: int) -> None:
    refused(hostile.NUMPY[number], lambda: {"box": {}})


@pytest.mark.parametrize("number", range(len(hostile.SKLEARN)))
def test_a_hostile_node_of_scikit_learns_is_refused_by_name(number: int) -> None:
    refused(hostile.SKLEARN[number], lambda: {"box": {}})


HARMLESS = ("outlast.", "sklearn.", "tzdata", "importlib.readers")
"""The last two are where zoneinfo looks for a zone."""


def refused(node: Any, start: Callable[[], dict[str, Any]]) -> None:
    """Restored into a program, and read alone: both name the place, and import nothing new."""
    modules = {name for name in sys.modules if not name.startswith(HARMLESS)}
    said = set()
    for may_refer in (True, False):  # the check without paths refuses the same
        blobs = hostile.blobs()
        blobs.may_refer = may_refer
        with pytest.raises(DoesNotFit, match=r"^state\['box'\]") as error:
            state.restore_all(start(), {"box": {"x": node}}, blobs)
        said.add(str(error.value))
        blobs = hostile.blobs()
        blobs.may_refer = may_refer
        with pytest.raises(DoesNotFit, match=r"^x\b"):
            state.restore_new({"x": node}, blobs)
    assert len(said) == 1
    assert {name for name in sys.modules if not name.startswith(HARMLESS)} <= (
        modules | {"ml_dtypes"}
    )


@pytest.mark.parametrize("items", [[], [{"$tuple": []}], [1, 2, 3]])
def test_another_number_of_objects_than_in_the_live_array_is_refused(items: list[Any]) -> None:
    node = {"$object": "numpy.objects", "shape": [2], "items": items}
    live = {"box": {"x": np.array([None, None], object)}}
    with pytest.raises(DoesNotFit, match=r"^state\['box'\]\['x'\]"):
        state.restore_all(live, {"box": {"x": node}}, hostile.blobs())


def test_an_attribute_named_like_an_array_is_compared_as_an_attribute() -> None:
    for name in ("$jax", "$array", "$tensor"):
        node = hostile.estimator(hostile.TREE, state={name: {"a": {"$array": 0}, "b": [1]}})
        saved = snapshot.Saved(5, {}, *state.capture_all({"clf": DecisionTreeClassifier()}))
        saved.nodes["clf"]["state"].update(node["state"])
        saved = snapshot.Saved(5, {}, saved.nodes, hostile.blobs())
        live = {"clf": DecisionTreeClassifier()}
        state.restore_all(live, saved.nodes, saved.blobs)
        verify.check(live, saved)
        assert vars(live["clf"])[name]["b"] == [1]


def test_there_are_fifty_hostile_nodes_of_each_kind() -> None:
    for table in (hostile.PYTHON, hostile.NUMPY, hostile.SKLEARN):
        assert len({json.dumps(node) for node in table}) == len(table) >= 50


def test_valid_checkpoints_are_read(tmp_path: Path) -> None:
    values = {"a": np.arange(3.0), "b": {"c": [1, (2, b"x")], 3: MLPClassifier((4,))}}
    snapshot.write_values(tmp_path / "model.json", values)
    found = snapshot.read_values(tmp_path / "model.json")
    assert found["a"].tolist() == [0, 1, 2] and found["b"]["c"] == [1, (2, b"x")]
    assert found["b"][3].hidden_layer_sizes == (4,)
