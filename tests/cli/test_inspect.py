"""`outlast inspect`: parameters and trees, from files that are read as data only."""

import json
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from outlast.cli import inspecting, ubjson
from outlast.cli.app import cli
from outlast.cli.errors import OperateError
from outlast.loop import snapshot
from tests.loop import programs

PROGRAM = """
import numpy as np, outlast
from outlast.loop import snapshot
state = {"w": np.full((3, 4), 2.0), "box": {"bias": [np.ones(2, np.float32)], "raw": b"q" * 5000,
         "by": {1: np.zeros(2, bool)}}}
with outlast.train(state=state, total=3, run_dir="run", arguments={}) as run:
    for step in run.steps():
        run.eval(score=step, best="max", of="score")
    snapshot.write_values(run.result("model.json"), {"model": state})
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspected")
    done = programs.run(folder, [sys.executable, "-c", PROGRAM])
    assert done.returncode == 0, done.stderr
    programs.wait_until_alone(folder)
    return folder / "run"


def outlast(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.stdout


def named(text: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(text)["parameters"]}


def test_a_result_and_checkpoints_by_name_shape_count_and_norm(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_CACHE", str(tmp_path))
    result = json.loads(outlast("inspect", str(trained), "--json"))
    found = {one["name"]: one for one in result["parameters"]}
    assert [*found] == ["model.w", "model.box.bias[0]", "model.box.raw", "model.box.by[1]"]
    w = found["model.w"]
    assert (w["shape"], w["count"], w["dtype"], w["norm"]) == ([3, 4], 12, "<f8", 48**0.5)
    assert found["model.box.raw"]["norm"] is None and found["model.box.by[1]"]["norm"] == 0
    assert result["count"] == 12 + 2 + 2 and set(result["others"]) == {
        "RESULT.json",
        "metrics.json",
    }
    for which in ("--best", "--newest"):
        assert named(outlast("inspect", str(trained), which, "--json"))["w"]["norm"] == 48**0.5
    shown = outlast("inspect", str(trained)).splitlines()
    assert shown[1].split() == [*["model.json", "model.w", "3", "x", "4", "<f8", "12", "6.9282"]]
    assert "16 numbers in 4 arrays" in shown


def tensors(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_other_formats_are_read_without_their_libraries(tmp_path: Path) -> None:
    half = np.array([1.0, -2.0], "<f4").view("<u4") >> 16
    header = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "BF16", "shape": [2], "data_offsets": [8, 12]},
        "c": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [12, 14]},
        "__metadata__": {"format": "pt"},
    }
    data = np.array([3, 4], "<f4").tobytes() + half.astype("<u2").tobytes() + b"xx"
    tensors(tmp_path / "m.safetensors", header, data)
    np.save(tmp_path / "one.npy", np.eye(2))
    np.savez(tmp_path / "two.npz", x=np.array([3 + 4j]), y=np.array(["text"]))
    found = {(one.file, one.name): one.norm for one in inspecting.inspect(tmp_path).parameters}
    assert found == {
        ("m.safetensors", "a"): 5.0,
        ("m.safetensors", "b"): 5**0.5,
        ("m.safetensors", "c"): None,
        ("one.npy", ""): 2**0.5,
        ("two.npz", "x"): 5.0,
        ("two.npz", "y"): None,
    }


TREE = {"left_children": [1, 3, -1, -1, -1], "right_children": [2, 4, -1, -1, -1]}
LEAF = {"left_children": [-1], "right_children": [-1]}


def model(trees: list[dict[str, Any]]) -> dict[str, Any]:
    learner = {
        "gradient_booster": {"model": {"trees": trees}, "name": "gbtree"},
        "learner_model_param": {"num_feature": "7"},
        "objective": {"name": "reg:squarederror"},
    }
    return {"learner": learner, "version": [3, 0, 0]}


def test_an_xgboost_models_trees(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps(model([TREE, LEAF])))
    (found,) = inspecting.inspect(tmp_path).trees
    assert found == inspecting.Trees("model.json", 2, 6, 2, 7, "reg:squarederror")


def ubj(value: Any) -> bytes:
    """As XGBoost writes it: lengths of 64 bits, and numbers of one type together."""
    if isinstance(value, str):
        return b"S" + length(len(value)) + value.encode()
    if isinstance(value, bool):
        return b"T" if value else b"F"
    if isinstance(value, int):
        return b"l" + struct.pack(">i", value)
    if isinstance(value, list) and all(type(one) is int for one in value):
        return b"[$l#" + length(len(value)) + struct.pack(f">{len(value)}i", *value)
    if isinstance(value, list):
        return b"[#" + length(len(value)) + b"".join(map(ubj, value))
    assert isinstance(value, dict)
    pairs = (length(len(key)) + key.encode() + ubj(one) for key, one in value.items())
    return b"{" + b"".join(pairs) + b"}"


def length(number: int) -> bytes:
    return b"L" + struct.pack(">q", number)


def test_a_binary_models_trees_need_no_xgboost(tmp_path: Path) -> None:
    (tmp_path / "m.ubj").write_bytes(ubj(model([TREE, LEAF])))
    (found,) = inspecting.inspect(tmp_path).trees
    assert found == inspecting.Trees("m.ubj", 2, 6, 2, 7, "reg:squarederror")


def test_every_kind_of_value_of_universal_binary_json() -> None:
    values = b"ZTFi\xffU\xffI\x01\x00Cxd\x3f\x80\x00\x00D\x3f\xf8" + bytes(6) + b"SU\x02ab"
    assert ubjson.loads(b"[N" + values + b"]") == [
        *(None, True, False, -1, 255, 256, "x", 1.0, 1.5, "ab"),
    ]
    assert ubjson.loads(b"{$U#U\x01U\x01a\x07") == {"a": 7}
    assert ubjson.loads(b"[$T#U\x02") == [True, True]
    assert ubjson.loads(b"[$S#U\x01U\x01a") == ["a"]


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    for name in ("m.pkl", "m.joblib", "m.pt"):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    others = dict(inspecting.inspect(tmp_path).others)
    assert len(others) == 3 and all("it is not read" in why for why in others.values())
    np.save(tmp_path / "objects.npy", np.array([Bomb()], dtype=object))
    with pytest.raises(OperateError, match=r"objects.npy: .* allow_pickle=False"):
        inspecting.inspect(tmp_path)


def damaged_pairs() -> list[dict[str, Any]]:
    entry = {"dtype": "<f8", "shape": [2], "offset": 0, "bytes": 16}
    return [
        {**entry, "offset": 8},
        {**entry, "shape": [3]},
        {**entry, "shape": [-1]},
        {**entry, "shape": [2.0]},
        {**entry, "dtype": "O"},
        {**entry, "bytes": 1 << 62},
        {**entry, "offset": "x"},
        {"dtype": "<f8"},
    ]


@pytest.mark.parametrize("entry", damaged_pairs(), ids=str)
def test_a_table_that_does_not_fit_its_file_is_refused(
    tmp_path: Path, entry: dict[str, Any]
) -> None:
    snapshot.write_values(tmp_path / "m.json", {"x": np.ones(2)})
    document = json.loads((tmp_path / "m.json").read_text())
    (tmp_path / "m.json").write_text(json.dumps({**document, "arrays": [entry]}))
    with pytest.raises(OperateError, match=r"m\.json: cannot be read as what its name says"):
        inspecting.inspect(tmp_path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.npz", b"PK\x03\x04cut"),
        ("a.npy", b""),
        ("a.safetensors", b"\xff" * 9),
        ("a.safetensors", struct.pack("<Q", 2) + b"[]"),
        ("a.json", b"{"),
        ("a.json", json.dumps(model([{"left_children": [0], "right_children": [0]}])).encode()),
        ("a.json", json.dumps({"learner": 1, "version": 2}).encode()),
        ("a.ubj", b""),
        ("a.ubj", ubj(model([TREE]))[:-9]),
        ("a.ubj", b"[$l#L" + b"\x7f" * 8),
        ("a.ubj", b"[$T#L" + b"\x7f" * 8),
        ("a.ubj", b"[$l\x00"),
        ("a.ubj", b"[#i\xff"),
        ("a.ubj", b"[" * 5000),
        ("a.ubj", b"?"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(OperateError, match=rf"{name}: cannot be read as what its name says"):
        inspecting.inspect(tmp_path)


def test_two_choices_are_one_too_many() -> None:
    assert CliRunner().invoke(cli, ["inspect", "x", "--best", "--newest"]).exit_code == 2
