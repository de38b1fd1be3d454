"""Describes the files of a checkpoint or result: each parameter's shape, type, count and norm; an
XGBoost model's trees.

Nothing is unpickled, and no object is made: arrays are read from the files' own tables.
"""

import json
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.cli import ubjson
from outlast.cli.errors import OperateError

PICKLES = (".joblib", ".pkl", ".pickle", ".pt", ".pth")
"""Endings of files that hold pickles: reading one may run a program."""
CHUNK = 1 << 20
"""Elements that a norm is computed from at a time."""
HEADER_BYTES_MAX = 100 << 20
DEPTH_MAX = 1000
_BFLOAT16 = ("bfloat16", "BF16")
_SAFETENSORS = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2"},
    **{"I8": "|i1", "U8": "|u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "|b1"},
}


@dataclass(frozen=True)
class Parameter:
    """One array of a file."""

    file: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    norm: float | None
    """The square root of the sum of squares; None for what has none, such as bytes."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def as_json(self) -> dict[str, Any]:
        finite = self.norm is not None and math.isfinite(self.norm)
        return {
            "file": self.file,
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "count": self.count,
            "norm": self.norm if finite else None,
        }


@dataclass(frozen=True)
class Trees:
    """An XGBoost model."""

    file: str
    trees: int
    nodes: int
    depth: int
    """Of the deepest tree; 0 for a tree that is one leaf."""
    features: int
    objective: str

    def as_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclass(frozen=True)
class Inspected:
    """What a folder holds."""

    parameters: tuple[Parameter, ...]
    trees: tuple[Trees, ...]
    others: tuple[tuple[str, str], ...]
    """Files that are not described, with the reason."""

    @property
    def count(self) -> int:
        """Elements of all parameters that are numbers."""
        return sum(one.count for one in self.parameters if one.norm is not None)


def inspect(folder: Path) -> Inspected:
    """Describes every file of the folder. Raises OperateError for one that is damaged."""
    parameters: list[Parameter] = []
    trees: list[Trees] = []
    others: list[tuple[str, str]] = []
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    binaries = {_binary_of(path) for path in files if path.suffix == ".json"}
    for path in files:
        name = path.relative_to(folder).as_posix()
        if path in binaries:
            continue
        try:
            found = _described(path, name)
        except _DAMAGED as error:
            raise OperateError(f"{name}: cannot be read as what its name says: {error}") from None
        if isinstance(found, str):
            others.append((name, found))
        elif isinstance(found, Trees):
            trees.append(found)
        else:
            parameters += found
    return Inspected(tuple(parameters), tuple(trees), tuple(others))


_DAMAGED = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError, OSError, RecursionError),
    *(EOFError, zipfile.BadZipFile),
)
"""What reading a damaged file raises."""


def _binary_of(path: Path) -> Path:
    """The file of arrays that belongs to a JSON file."""
    return path.with_name("arrays.bin") if path.name == "state.json" else path.with_suffix(".bin")


def _described(path: Path, name: str) -> Sequence[Parameter] | Trees | str:
    if path.suffix in PICKLES:
        return "may hold a pickle, which runs a program when it is read; it is not read"
    if path.suffix == ".json":
        if _binary_of(path).is_file():
            return list(_pair(path, _binary_of(path), name))
        found = json.loads(path.read_bytes())
        if isinstance(found, dict) and {"learner", "version"} <= found.keys():
            return _trees(found, name)
        return "JSON values"
    if path.suffix == ".ubj":
        return _trees(ubjson.loads(path.read_bytes()), name)
    if path.suffix == ".safetensors":
        return list(_safetensors(path, name))
    if path.suffix in (".npy", ".npz"):
        return list(_numpy(path, name))
    return f"{path.stat().st_size} bytes"


# ---------------------------------------------------------------------------------------------
# Arrays


def _pair(text: Path, binary: Path, file: str) -> Iterator[Parameter]:
    """A file of values, or a snapshot's, and its arrays."""
    document = json.loads(text.read_bytes())
    table = document["arrays"]
    names: dict[int, str] = {}
    for key in ("state", "values"):
        if key in document:
            _name(document[key], "", names, 0)
    for index, entry in enumerate(table):
        yield _parameter(
            *(file, names.get(index, f"#{index}"), binary),
            shape=entry["shape"],
            dtype=entry["dtype"],
            offset=entry["offset"],
            size=entry["bytes"],
        )


def _name(node: Any, path: str, names: dict[int, str], depth: int) -> None:
    """Finds where each array is in a tree of nodes; the first place names it."""
    if depth > DEPTH_MAX:
        raise ValueError(f"is nested deeper than {DEPTH_MAX} levels")
    if isinstance(node, list):
        for index, one in enumerate(node):
            _name(one, f"{path}[{index}]", names, depth + 1)
    elif isinstance(node, dict):
        for key, one in node.items():
            if key in _REFERENCES and type(one) is int:
                names.setdefault(one, path)
            elif key == "$dict" and isinstance(one, list):
                for pair in one:
                    _name(pair[1], f"{path}[{json.dumps(pair[0])}]", names, depth + 1)
            else:
                inner = path if key.startswith("$") else f"{path}.{key}" if path else key
                _name(one, inner, names, depth + 1)


_REFERENCES = ("$array", "$blob", "$tensor", "$jax", "array", "blob", "data")


def _safetensors(path: Path, file: str) -> Iterator[Parameter]:
    with path.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > HEADER_BYTES_MAX:
            raise ValueError(f"its header would have {size} bytes")
        header = json.loads(opened.read(size))
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            dtype = entry["dtype"]
            yield _parameter(
                *(file, name, path),
                shape=entry["shape"],
                dtype=_SAFETENSORS.get(dtype, dtype),
                offset=8 + size + start,
                size=end - start,
            )


def _numpy(path: Path, file: str) -> Iterator[Parameter]:
    import numpy as np

    with path.open("rb") as opened:
        found = np.load(opened, allow_pickle=False)
        names = [""] if path.suffix == ".npy" else found.files
        for name in names:
            array = found[name] if name else found
            yield Parameter(file, name, array.shape, array.dtype.str, _norm(array))


def _parameter(
    file: str, name: str, binary: Path, *, shape: Any, dtype: Any, offset: Any, size: Any
) -> Parameter:
    """One array of raw bytes. Raises ValueError if the table does not fit the file."""
    import numpy as np

    numbers = [*shape, offset, size]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"{name}: its shape, offset and size must be whole numbers")
    if offset + size > binary.stat().st_size:
        raise ValueError(f"{name}: ends at byte {offset + size}, past the file's end")
    found = tuple(shape)
    if dtype == "bytes":
        return Parameter(file, name, found, dtype, None)
    raw = "<u2" if dtype in _BFLOAT16 else dtype
    try:
        kind = np.dtype(raw)
    except TypeError:
        return Parameter(file, name, found, str(dtype), None)
    if kind.hasobject or kind.itemsize * math.prod(found) != size:
        raise ValueError(f"{name}: {size} bytes are not an array {found} of {dtype}")
    if not size:
        return Parameter(file, name, found, str(dtype), 0.0)
    values = np.memmap(binary, kind, "r", offset, (size // kind.itemsize,))
    return Parameter(file, name, found, str(dtype), _norm(values, dtype in _BFLOAT16))


def _norm(values: Any, is_bfloat16: bool = False) -> float | None:
    import numpy as np

    if values.dtype.kind not in "biufc":
        return None
    flat, total = values.reshape(-1), 0.0
    for start in range(0, flat.size, CHUNK):
        piece = np.asarray(flat[start : start + CHUNK])
        if is_bfloat16:
            piece = (piece.astype("<u4") << 16).view("<f4")
        wide = np.abs(piece).astype("f8") if piece.dtype.kind == "c" else piece.astype("f8")
        with np.errstate(over="ignore", invalid="ignore"):
            total += float(np.dot(wide, wide))
    return math.sqrt(total) if total >= 0 else total


# ---------------------------------------------------------------------------------------------
# XGBoost


def _trees(model: Mapping[str, Any], file: str) -> Trees | str:
    learner = model["learner"]
    booster = learner["gradient_booster"]
    booster = booster.get("gbtree", booster)  # DART has it inside
    if "trees" not in booster.get("model", {}):
        return "an XGBoost model without trees"
    trees = booster["model"]["trees"]
    return Trees(
        file,
        len(trees),
        sum(len(tree["left_children"]) for tree in trees),
        max((_depth(tree) for tree in trees), default=0),
        int(learner["learner_model_param"]["num_feature"]),
        str(learner["objective"]["name"]),
    )


def _depth(tree: Mapping[str, Any]) -> int:
    left, right = tree["left_children"], tree["right_children"]
    depth, level, seen = 0, [0] if left else [], 0
    while level:
        seen += len(level)
        if seen > len(left):
            raise ValueError("its trees share nodes or have cycles")
        below = [child for node in level for child in (left[node], right[node]) if child >= 0]
        depth, level = depth + bool(below), below
    return depth
