"""numpy: arrays as raw bytes with dtype, shape and order; scalars; dtypes.

Arrays of records are saved with zeros between their fields, arrays of objects (strings, labels)
element by element, and a read-only array comes back read-only. Random generators: see
outlast.loop.adapters.numpy_random.

The dtypes of ml_dtypes (bfloat16, float8 and so on) are saved like numpy's own, by name.
"""

import functools
import importlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from outlast.loop import state
from outlast.loop.adapters import numpy_random
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.state import MISSING, Blob, Blobs, Memory, Node

_KINDS = "biufcSUmM"  # kinds that consist of their bytes only
_RAW = re.compile(
    r"[<>|=](?:[biufc][0-9]{1,2}|[SUV][0-9]{1,10}|[mM]8(?:\[[0-9]{0,9}[A-Za-z]{1,7}\])?)"
)
_ML_DTYPES = frozenset(
    ["bfloat16", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e4m3"]
    + ["float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"]
    + ["float8_e5m2fnuz", "float8_e8m0fnu", "int1", "int2", "int4", "uint1", "uint2", "uint4"]
)
_RECORDS_MAX = 20
"""The deepest nesting of records."""
_SIZE_MAX = 1 << 40
"""The most elements along one dimension of an array of objects, which may be empty along
another."""


def capture(value: Any, path: str, blobs: Blobs) -> Node:
    if isinstance(value, np.ndarray):
        return _capture_array(value, path, blobs)
    if isinstance(value, np.generic):
        return {"$scalar": _capture_scalar(value, path)}
    if isinstance(value, np.dtype) and not value.hasobject:
        return {"$object": "numpy.dtype", "name": name_of(value)}
    if isinstance(value, type) and issubclass(value, np.generic) and _is_scalar_type(value):
        return {"$object": "numpy.type", "name": value.__name__}
    return numpy_random.capture(value, path, blobs)


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if "$array" in node:
        return _restore_array(target, node, path, blobs)
    if "$scalar" in node:
        return _restore_scalar(node["$scalar"], path)
    match node["$object"]:
        case "numpy.objects":
            return _restore_objects(target, node, path, blobs)
        case "numpy.masked":
            return _restore_masked(target, node, path, blobs)
        case "numpy.dtype":
            return _dtype(node["name"], path)
        case "numpy.type":
            if node["name"] not in _TYPES:
                raise DoesNotFit(f"{path}: numpy has no type {node['name'][:100]}")
            return _TYPES[node["name"]]
    return numpy_random.restore(target, node, path, blobs)


def describe(value: Any) -> str | None:
    """An array's kind with its dtype and shape."""
    if not isinstance(value, np.ndarray):
        return None
    return f"{type(value).__name__} {value.shape} of {value.dtype.str}"  # str(dtype) takes 5 µs


def is_immutable(value: Any) -> bool:
    """Whether the value is a scalar or a read-only array."""
    return isinstance(value, np.generic | np.dtype) or (
        isinstance(value, np.ndarray) and not value.flags.writeable
    )


def parts(target: Any, node: Any, path: str) -> Iterator[tuple[Any, Node, str]]:
    """The live objects of an array of objects."""
    if node["$object"] == "numpy.objects" and isinstance(target, np.ndarray):
        if target.dtype.hasobject and list(target.shape) == node["shape"]:
            for i, (old, item) in enumerate(zip(target.flat, node["items"], strict=False)):
                yield old, item, f"{path}.flat[{i}]"
    else:
        yield from numpy_random.parts(target, node, path)


def as_array(blob: Blob, path: str) -> np.ndarray:
    """The array of a blob, without a copy, in its original memory order."""
    dtype = _dtype(blob.dtype, path)
    if math.prod(blob.shape) * dtype.itemsize != blob.nbytes:
        raise DoesNotFit(
            f"{path}: the checkpoint holds {blob.nbytes} bytes for {tuple(blob.shape)} of "
            f"{blob.dtype[:200]}"
        )
    if not dtype.itemsize:
        return np.zeros(blob.shape, dtype)
    flat = np.frombuffer(blob.data, dtype)
    if blob.order is None:
        return flat.reshape(blob.shape)
    inner = flat.reshape([blob.shape[i] for i in blob.order])
    return inner.transpose(np.argsort(blob.order))


# Arrays


def _capture_array(value: np.ndarray, path: str, blobs: Blobs) -> Node:
    if _is_masked(value) and not value.dtype.hasobject:
        return _capture_masked(value, path, blobs)
    if type(value) is not np.ndarray or not (_is_raw(value.dtype) or value.dtype == object):
        raise StateError(
            f"{path} is {type(value).__name__} of dtype {value.dtype}, which cannot be saved; "
            "use a plain array of numbers, strings or records"
        )
    if value.flags.writeable and _repeats(value):
        raise StateError(
            f"{path} is an array whose elements overlap in memory (strides {value.strides}), "
            "which cannot be saved; copy it"
        )
    node: dict[str, Any] = {} if value.flags.writeable else {"readonly": True}
    if value.dtype == object:
        blobs.claim(_memory(value), path)
        items = [
            state.capture(item, f"{path}.flat[{i}]", blobs) for i, item in enumerate(value.flat)
        ]
        return {"$object": "numpy.objects", "shape": list(value.shape), "items": items, **node}
    if blobs.by_value and value.base is not None:
        value = value.copy(order="K")
    return {"$array": blobs.add(value, _memory(value), path, lambda: blob_of(value)), **node}


def _repeats(array: np.ndarray) -> bool:
    return (
        0 in array.strides
        and array.size > 0
        and any(
            step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)
        )
    )


def _restore_array(target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    index, readonly = node["$array"], bool(node.get("readonly"))
    blob = blobs.items[index]
    if not isinstance(target, np.ndarray):
        target = blobs.array_homes.get(index, MISSING)
    if isinstance(target, np.ndarray) and (name_of(target.dtype), target.shape) != (
        blob.dtype,
        tuple(blob.shape),
    ):
        raise DoesNotFit(
            f"{path} is an array {target.shape} of {name_of(target.dtype)}: the checkpoint holds "
            f"{tuple(blob.shape)} of {blob.dtype}"
        )
    done = blobs.restored.get(index)
    if done is not None:
        same = isinstance(target, np.ndarray) and _memory(target) == _memory(done)
        return _with_flag(target if same and target.size else done, readonly)
    if isinstance(target, np.ndarray) and target.flags.writeable:
        target = blobs.take(target)
    else:
        target = MISSING
    if target is MISSING:
        target = _bytes_of(as_array(blob, path)).copy(order="K").view(_dtype(blob.dtype, path))
    else:
        _bytes_of(target)[...] = _bytes_of(as_array(blob, path))
    blobs.restored[index] = target
    return _with_flag(target, readonly)


def _with_flag(array: np.ndarray, readonly: bool) -> np.ndarray:
    """The array, or a view of it that cannot be written to."""
    if array.flags.writeable == (not readonly):
        return array
    view = array.view()
    view.flags.writeable = not readonly
    return view


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """An array of records as bytes, because numpy copies only the fields and not the gaps."""
    if array.dtype.names is None:
        return array
    return array.view(np.dtype((np.void, array.dtype.itemsize)))


def _restore_objects(target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    shape = tuple(node["shape"])
    if math.prod(shape) != len(node["items"]) or any(size > _SIZE_MAX for size in shape):
        raise DoesNotFit(f"{path}: the checkpoint holds {len(node['items'])} objects for {shape}")
    if target is not MISSING and (
        not isinstance(target, np.ndarray) or target.dtype != object or target.shape != shape
    ):
        raise DoesNotFit(
            f"{path} is {describe(target) or type(target).__name__}: the checkpoint "
            f"holds an array {shape} of objects"
        )
    olds = [MISSING] * len(node["items"]) if target is MISSING else list(target.flat)
    news = [
        state.restore(old, item, f"{path}.flat[{i}]", blobs)
        for i, (old, item) in enumerate(zip(olds, node["items"], strict=True))
    ]
    if target is MISSING or not target.flags.writeable:
        target = np.empty(shape, object)
    for i, item in enumerate(news):
        target.flat[i] = item
    return _with_flag(target, bool(node.get("readonly")))


def _is_masked(value: object) -> bool:
    return type(value) is np.ma.MaskedArray


def _capture_masked(value: Any, path: str, blobs: Blobs) -> Node:
    mask, fill = value._mask, value._fill_value
    return {
        "$object": "numpy.masked",
        "data": state.capture(np.ma.getdata(value), f"{path}.data", blobs),
        "mask": None if mask is np.ma.nomask else state.capture(mask, f"{path}.mask", blobs),
        "fill": None if fill is None else state.capture_part(fill[()], path, blobs),
        "hard": bool(value._hardmask),
    }


def _restore_masked(target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    if target is not MISSING and not _is_masked(target):
        raise DoesNotFit(f"{path} is {type(target).__name__}: the checkpoint holds a masked array")
    held = MISSING if target is MISSING else np.ma.getdata(target)
    data = state.restore(held, node["data"], f"{path}.data", blobs)
    mask = np.ma.nomask
    if node["mask"] is not None:
        old = MISSING if target is MISSING or target._mask is np.ma.nomask else target._mask
        mask = state.restore(old, node["mask"], f"{path}.mask", blobs)
    plain = isinstance(data, np.ndarray) and data.dtype != object
    if not plain or (mask is not np.ma.nomask and not _masks(mask, data)):
        raise DoesNotFit(f"{path}: the checkpoint holds a masked array that is none")
    if data is not held or target is MISSING:
        target = cast(Any, np.ma.MaskedArray(data))
    target._mask = mask  # not the property, which makes an array of nomask
    target._fill_value = None
    if node["fill"] is not None:
        target.fill_value = state.restore(MISSING, node["fill"], path, blobs)
    target._hardmask = node["hard"]
    return target


def _masks(mask: Any, data: np.ndarray) -> bool:
    """Whether ``mask`` has the shape and dtype of a mask for ``data``, with a flag for each field
    of a record."""
    kind = np.ma.make_mask_descr(data.dtype)
    return isinstance(mask, np.ndarray) and (mask.shape, mask.dtype) == (data.shape, kind)


def blob_of(array: np.ndarray) -> Blob:
    """The bytes of an array in memory order, without a copy if possible."""
    name, shape, order = name_of(array.dtype), array.shape, None
    array = _bytes_of(_without_gaps(array))
    if not array.flags.c_contiguous:
        # Sorted by stride, from the outermost dimension in memory to the innermost.
        dense = [int(i) for i in np.argsort([-step for step in array.strides], kind="stable")]
        if array.transpose(dense).flags.c_contiguous:
            array, order = array.transpose(dense), tuple(dense)
        else:
            array = np.ascontiguousarray(array)
    # Strings and dates have no buffer format, but their bytes do.
    data = array.reshape(-1).view(np.uint8).data if array.nbytes else b""
    return Blob(name, shape, data, array.nbytes, order)


def _without_gaps(array: np.ndarray) -> np.ndarray:
    """Records with zeros in the gaps between fields, so that equal records have equal bytes."""
    if array.dtype.names is None:
        return array
    clean = np.zeros(array.shape, np.dtype((np.void, array.dtype.itemsize))).view(array.dtype)
    for field in array.dtype.names:
        clean[field] = _without_gaps(array[field])
    return clean


def _memory(array: np.ndarray) -> Memory | None:
    if not array.nbytes:
        return None
    if array.flags.c_contiguous:
        start = array.__array_interface__["data"][0]
        end = start + array.nbytes
    else:
        start, end = np.lib.array_utils.byte_bounds(array)
    layout = (name_of(array.dtype), array.shape, array.strides)
    return Memory("cpu", start, end, layout)


# Scalars and dtypes


def _capture_scalar(value: np.generic, path: str) -> Node:
    if isinstance(value, np.str_):  # an array would drop trailing zeros
        return {"str": str(value)}
    if isinstance(value, np.bytes_):
        return {"bytes": bytes(value).hex()}
    if not _is_raw(value.dtype):
        raise StateError(f"{path} is a numpy scalar of dtype {value.dtype}, which cannot be saved")
    return {"dtype": name_of(value.dtype), "hex": value.tobytes().hex()}


def _restore_scalar(node: Any, path: str) -> Any:
    if "str" in node:
        return np.str_(node["str"])
    if "bytes" in node:
        return np.bytes_(bytes.fromhex(node["bytes"]))
    dtype, raw = _dtype(node["dtype"], path), bytearray.fromhex(node["hex"])
    if not raw or len(raw) != dtype.itemsize:
        raise DoesNotFit(f"{path}: the checkpoint holds {len(raw)} bytes for one {dtype}")
    return np.frombuffer(raw, dtype)[0]


def _is_scalar_type(cls: type) -> bool:
    """Whether a class is one of numpy's own types of numbers, dates or strings."""
    return getattr(np, cls.__name__, None) is cls and cls.__module__ == "numpy"


_TYPES = {
    item.__name__: item
    for item in vars(np).values()
    if isinstance(item, type) and issubclass(item, np.generic) and _is_scalar_type(item)
}


def _is_raw(dtype: np.dtype) -> bool:
    """Whether an array of this dtype consists of its bytes only."""
    if dtype.kind == "V" and not dtype.hasobject:
        fields = [dtype[name] for name in dtype.names or ()]
        base = [dtype.subdtype[0]] if dtype.subdtype else []
        return all(map(_is_raw, [*fields, *base]))
    return dtype.kind in _KINDS


def _is_named(dtype: np.dtype) -> bool:
    """Whether this is one of ml_dtypes' types, which numpy knows as bytes without meaning."""
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def name_of(dtype: np.dtype) -> str:
    """The name of a dtype in a checkpoint: numpy's short form, ml_dtypes' name, or JSON for
    records."""
    if dtype.isbuiltin == 1:
        return dtype.str
    if dtype.names is not None:
        return json.dumps(_fields(dtype))
    return dtype.name if _is_named(dtype) else dtype.str


def _fields(dtype: np.dtype) -> Any:
    """The dtype of a record with the offsets of its fields, as JSON."""
    if dtype.subdtype is not None:
        return [_fields(dtype.subdtype[0]), list(dtype.shape)]
    if dtype.names is None:
        return name_of(dtype)
    found: Any = dtype.fields
    fields = [found[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [_fields(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def _dtype(name: str, path: str) -> np.dtype:
    """The dtype of a name that ``name_of`` gave; DoesNotFit for any other."""
    found = _known(name)
    if found is None:
        try:
            found = _record(json.loads(name)) if name[:1] == "{" else None
        except (TypeError, ValueError, KeyError, RecursionError):
            found = None
    if found is None:
        raise DoesNotFit(f"{path}: the checkpoint holds {name[:200]}, unknown here")
    return found


@functools.lru_cache(maxsize=256)
def _known(name: str) -> np.dtype | None:
    """One of numpy's own dtypes of numbers, texts, bytes or times, or one of ml_dtypes."""
    if _RAW.fullmatch(name):
        try:
            return np.dtype(name)
        except (TypeError, ValueError):  # a known kind with an impossible size
            return None
    if name not in _ML_DTYPES:
        return None
    try:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError, TypeError):
        return None


def _record(fields: Any, depth: int = 0) -> np.dtype:
    """The dtype that ``_fields`` describes; ValueError, TypeError or KeyError if it is invalid."""
    if depth > _RECORDS_MAX:
        raise ValueError
    if isinstance(fields, str):
        if (found := _known(fields)) is None:
            raise ValueError
        return found
    if isinstance(fields, list):
        inner, shape = fields
        if math.prod(shape) > _SIZE_MAX or not all(type(size) is int for size in shape):
            raise ValueError
        return np.dtype((_record(inner, depth + 1), tuple(shape)))
    if fields.keys() != {"names", "formats", "offsets", "itemsize", "aligned"}:
        raise ValueError
    plain: Any = {key: fields[key] for key in ("names", "offsets", "itemsize")}
    plain["formats"] = [_record(item, depth + 1) for item in fields["formats"]]
    return np.dtype(plain, align=bool(fields["aligned"]))
