"""Finds where two results differ: the file and, in formats that can be read without running code,
the array or value in it.
"""

import io
import json
import math
import pickletools
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

Files = Mapping[str, bytes]

FILES_SHOWN = 3
PARTS_SHOWN = 3
PICKLES = (".joblib", ".pkl", ".pickle")
UNPACKED_BYTES_MAX = 256 << 20
"""Of an archive, or `UNPACKED_TIMES_MAX` times its own size if that is more: its maker must
have sent what fills the memory. An archive of weights is hardly compressed."""
UNPACKED_TIMES_MAX = 4


@dataclass(frozen=True)
class Array:
    """The bytes of an array; its dtype as numpy writes it, or None if numpy has no such."""

    shape: tuple[int, ...]
    dtype: str | None
    data: bytes


Parts = Mapping[str, Any]
"""The content of a file by name: arrays, bytes of other members, JSON's values."""


def difference(found: Files, baseline: Files) -> str:
    """The files in which two results differ, and where; empty if all are equal."""
    names = sorted({*found, *baseline})
    differing = [name for name in names if found.get(name) != baseline.get(name)]
    if not differing:
        return ""
    sentences = [_of_file(name, found, baseline) for name in differing[:FILES_SHOWN]]
    if len(differing) > FILES_SHOWN:
        sentences.append(f"and {len(differing) - FILES_SHOWN} more files")
    equal = len(names) - len(differing)
    sentences.append(_count(equal, "other file is equal", "other files are equal"))
    return "; ".join(sentences)


def _of_file(name: str, found: Files, baseline: Files) -> str:
    if name not in baseline:
        return f"{name} is not in the undisturbed result"
    if name not in found:
        return f"{name} is only in the undisturbed result"
    try:
        one, other = _parts(name, found), _parts(name, baseline)
        if one is not None and other is not None:
            return f"{name} differs ({_of_parts(one, other, found[name], baseline[name])})"
    except Exception as error:  # A damaged file may raise anything.
        return f"{name} differs ({_bytes(found[name], baseline[name])}; cannot be read: {error})"
    pickled = "a pickle, which is not read; " if _suffix(name) in PICKLES else ""
    return f"{name} differs ({pickled}{_bytes(found[name], baseline[name])})"


def _of_parts(one: Parts, other: Parts, data: bytes, baseline: bytes) -> str:
    names = list(dict.fromkeys([*one, *other]))
    missing = object()
    sentences = []
    for name in names:
        here, there = one.get(name, missing), other.get(name, missing)
        if here is missing or there is missing:
            sentences.append(f"{_named(name, there if here is missing else here)} is in one only")
        elif not _same(here, there):
            sentences.append(f"{_named(name, here)}: {_of_values(here, there)}")
    if not sentences:
        return f"its content is equal, but not its bytes: {_bytes(data, baseline)}"
    more = len(sentences) - PARTS_SHOWN
    return ", ".join(sentences[:PARTS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _named(name: str, value: Any) -> str:
    kind = "array" if isinstance(value, Array) else "part" if isinstance(value, bytes) else "value"
    return f"{kind} {name}" if name else kind


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and one == other


def _of_values(one: Any, other: Any) -> str:
    if isinstance(one, Array) and isinstance(other, Array):
        return _of_arrays(one, other)
    if isinstance(one, bytes) and isinstance(other, bytes):
        return _bytes(one, other)
    return f"{_short(one)}, undisturbed {_short(other)}"


def _of_arrays(one: Array, other: Array) -> str:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        kinds = (f"{list(array.shape)} {array.dtype}" for array in (one, other))
        return ", undisturbed ".join(kinds)
    count = math.prod(one.shape)
    if one.dtype is None or not count:
        return _bytes(one.data, other.data)
    import numpy as np

    width = len(one.data) // count
    rows = [np.frombuffer(array.data, np.uint8).reshape(count, width) for array in (one, other)]
    differing = (rows[0] != rows[1]).any(axis=1)
    difference = f"{int(differing.sum())} of {count} values differ"
    values = [np.frombuffer(array.data, one.dtype)[differing] for array in (one, other)]
    if values[0].dtype.kind in "fiu":
        with np.errstate(all="ignore"):
            most = float(np.abs(values[0].astype(float) - values[1].astype(float)).max())
        difference += f", by up to {most:.3g}"
    return difference


def _bytes(one: bytes, other: bytes) -> str:
    shared = min(len(one), len(other))
    step = 1 << 16
    start = next((n for n in range(0, shared, step) if one[n : n + step] != other[n : n + step]), 0)
    first = next((n for n in range(start, shared) if one[n] != other[n]), shared)
    if len(one) == len(other):
        return f"first at byte {first} of {len(one)}"
    return f"first at byte {first}, {len(one)} bytes, undisturbed {len(other)}"


def _short(value: Any) -> str:
    if isinstance(value, Array):
        return f"an array {list(value.shape)} {value.dtype}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    text = json.dumps(value) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


# Reads a file's content. None if its format cannot be read here.


def _parts(name: str, files: Files, *, in_archive: bool = False) -> Parts | None:
    data, suffix = files[name], _suffix(name)
    stem = name.removesuffix(PurePosixPath(name).suffix)
    if suffix == ".bin" and f"{stem}.json" in files:
        return _stored_arrays(json.loads(files[f"{stem}.json"]), data)
    if suffix == ".npy":
        return {"": _npy(data)}
    if suffix == ".safetensors":
        return _safetensors(data)
    if suffix == ".json":
        return dict(_leaves(json.loads(data), ""))
    if not in_archive and zipfile.is_zipfile(io.BytesIO(data)):
        return _archive(data)
    if suffix in _TEXTS:
        return {f"line {n}": line for n, line in enumerate(data.decode().splitlines(), 1)}
    return None


_TEXTS = (".txt", ".csv", ".tsv", ".jsonl", ".yaml", ".yml", ".md", ".log", ".py", ".toml")


def _leaves(node: Any, path: str) -> Iterable[tuple[str, Any]]:
    """A document's values by path."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list) and node:
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}[{index}]")
    else:
        yield path, node


def _stored_arrays(document: Mapping[str, Any], data: bytes) -> Parts:
    """What `outlast.loop.snapshot.write_values` wrote, each array by its first place."""
    names: dict[int, str] = {}
    for path, value in _leaves(document["values"], ""):
        if path.endswith("$array"):
            names.setdefault(value, path.removesuffix(".$array"))
    parts = {}
    for index, entry in enumerate(document["arrays"]):
        part = data[entry["offset"] : entry["offset"] + entry["bytes"]]
        array = Array(tuple(entry["shape"]), _numpy_name(entry["dtype"]), part)
        parts[names.get(index, f"number {index}")] = array
    return parts


def _numpy_name(dtype: str) -> str | None:
    import numpy as np

    try:
        return np.dtype(dtype).str
    except TypeError:
        return None


def _npy(data: bytes) -> Any:
    import numpy as np

    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except ValueError:  # of Python's objects
        return data
    return Array(array.shape, array.dtype.str, np.ascontiguousarray(array).tobytes())


_SAFETENSORS = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2"},
    **{"I8": "|i1", "U8": "|u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "|b1"},
}


def _safetensors(data: bytes) -> Parts:
    start = 8 + int.from_bytes(data[:8], "little")
    parts: dict[str, Any] = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            parts |= _leaves(entry, name)
            continue
        begin, end = entry["data_offsets"]
        dtype = _SAFETENSORS.get(entry["dtype"])
        parts[name] = Array(tuple(entry["shape"]), dtype, data[start + begin : start + end])
    return parts


def _archive(data: bytes) -> Parts:
    """A zip file's members: the arrays of `numpy.savez`, the tensors of `torch.save`, and
    each other member as one part, also an archive in it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(info.file_size for info in archive.infolist())
        if size > (most := max(UNPACKED_BYTES_MAX, UNPACKED_TIMES_MAX * len(data))):
            raise ValueError(f"unpacked it has {size} bytes, more than {most}")
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    pickled = next((name for name in members if name.endswith("/data.pkl")), None)
    storages = _tensor_names(members[pickled]) if pickled else {}
    parts: dict[str, Any] = {}
    for name, member in members.items():
        folder, _, key = name.rpartition("/")
        if pickled and "/.data/" in name:
            continue  # what torch derives from the rest
        if pickled and folder.endswith("/data") and key in storages:
            tensor, dtype = storages[key]
            count = len(member) // _WIDTHS[dtype] if dtype in _WIDTHS else len(member)
            parts[tensor] = Array((count,), dtype, member)
            continue
        inner = _parts(name, {name: member}, in_archive=True)
        if inner is None:
            parts[name] = member
        elif _suffix(name) == ".npy":
            parts[name.removesuffix(".npy")] = inner[""]
        else:
            parts |= {f"{name}: {part}": value for part, value in inner.items()}
    return parts


_WIDTHS = {"<f8": 8, "<f4": 4, "<f2": 2, "<i8": 8, "<i4": 4, "<i2": 2, "|i1": 1, "|u1": 1}
_TORCH = {
    **{"DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2"},
    **{"LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2"},
    **{"CharStorage": "|i1", "ByteStorage": "|u1"},
}


def _tensor_names(pickled: bytes) -> dict[str, tuple[str, str | None]]:
    """By the key of its storage, the name and dtype of each tensor in the pickle of `torch.save`,
    which is read as text and not run: a persistent id is (storage, its class, key, place, size),
    and the text before it is the tensor's name in its dict."""
    names: dict[str, tuple[str, str | None]] = {}
    memo: dict[Any, tuple[bool, str] | None] = {}
    texts: list[tuple[bool, str]] = []
    """What was read since the last tensor, with whether it is the name of a class or function."""
    last: tuple[bool, str] | None = None
    for code, argument, _ in pickletools.genops(pickled):
        if code.name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
            memo[len(memo) if code.name == "MEMOIZE" else argument] = last
            continue
        if code.name in ("BINGET", "LONG_BINGET", "GET"):
            last = memo.get(argument)
        elif code.name == "GLOBAL":
            last = (True, str(argument))
        elif code.name in ("BINUNICODE", "SHORT_BINUNICODE", "UNICODE"):
            last = (False, str(argument))
        else:
            last = None
        if last is not None:
            texts.append(last)
        if code.name == "BINPERSID" and len(texts) >= 4:
            *before, _, (_, storage), (_, key), _ = texts
            name = next((text for known, text in reversed(before) if not known), f"storage {key}")
            names.setdefault(key, (name, _TORCH.get(storage.rpartition(" ")[2])))
            texts.clear()
    return names
