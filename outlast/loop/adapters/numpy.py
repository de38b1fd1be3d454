"""numpy: arrays raw with dtype, shape and order, scalars, and the states of random generators.

The dtypes of ml_dtypes (bfloat16, float8 and so on) are saved like numpy's own, by name. The
module ``numpy.random`` itself stands for its global generator.
"""

import importlib
from typing import Any

import numpy as np

from outlast.loop import state
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.state import MISSING, Blob, Blobs, Memory, Node

_KINDS = "biufcSUmM"  # what is only its bytes; objects, records and views of other types are not


def capture(value: Any, path: str, blobs: Blobs) -> Node:
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray or not _is_raw(value.dtype):
            raise StateError(
                f"{path} is {type(value).__name__} of dtype {value.dtype}, which cannot be saved; "
                "use a plain array of numbers or of fixed-length strings"
            )
        return {"$array": blobs.add(value, _memory(value), path, lambda: _blob(value))}
    if isinstance(value, np.generic):
        if not _is_raw(value.dtype):
            raise StateError(f"{path} is a numpy scalar of dtype {value.dtype}, cannot be saved")
        return {"$scalar": {"dtype": _name(value.dtype), "hex": value.tobytes().hex()}}
    if isinstance(value, np.random.Generator):
        inner = state.capture(value.bit_generator, f"{path}.bit_generator", blobs)
        return {"$object": "numpy.Generator", "state": inner}
    if isinstance(value, np.random.BitGenerator):
        inner = state.capture(value.state, f"{path}.state", blobs)
        return {"$object": "numpy.BitGenerator", "state": inner}
    if isinstance(value, np.random.RandomState) or value is np.random:
        inner = state.capture(value.get_state(legacy=False), f"{path}.state", blobs)
        return {"$object": "numpy.RandomState", "state": inner}
    return MISSING


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if "$array" in node:
        return _restore_array(target, node["$array"], path, blobs)
    if "$scalar" in node:
        data = bytes.fromhex(node["$scalar"]["hex"])
        return np.frombuffer(data, _dtype(node["$scalar"]["dtype"], path))[0]
    match node["$object"]:
        case "numpy.Generator":
            return _restore_generator(target, node, path, blobs)
        case "numpy.BitGenerator":
            return _restore_bit_generator(target, node, path, blobs)
    value = state.restore(MISSING, node["state"], f"{path}.state", blobs)
    if target is MISSING or target is None or isinstance(target, int):
        target = np.random.RandomState()
    if not isinstance(target, np.random.RandomState) and target is not np.random:
        raise DoesNotFit(
            f"{path} is {type(target).__name__}: the checkpoint holds a numpy RandomState"
        )
    target.set_state(value)
    return target


def as_array(blob: Blob, path: str) -> np.ndarray:
    """The array of a blob, without a copy, in the order that it had in memory."""
    flat = np.frombuffer(blob.data, _dtype(blob.dtype, path))
    if blob.order is None:
        return flat.reshape(blob.shape)
    inner = flat.reshape([blob.shape[i] for i in blob.order])
    return inner.transpose(np.argsort(blob.order))


def _restore_generator(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if target is not MISSING and not isinstance(target, np.random.Generator):
        raise DoesNotFit(
            f"{path} is {type(target).__name__}: the checkpoint holds a numpy Generator"
        )
    inner = MISSING if target is MISSING else target.bit_generator
    restored = state.restore(inner, node["state"], f"{path}.bit_generator", blobs)
    return target if restored is inner else np.random.Generator(restored)


def _restore_bit_generator(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    value = state.restore(MISSING, node["state"], f"{path}.state", blobs)
    theirs = value["bit_generator"]
    if target is MISSING:
        cls = getattr(np.random, theirs, None)
        if not isinstance(cls, type) or not issubclass(cls, np.random.BitGenerator):
            raise DoesNotFit(f"{path}: this version of numpy has no generator {theirs}")
        target = cls()
    ours = type(target).__name__
    if theirs != ours:
        raise DoesNotFit(f"{path} is a {ours} generator: the checkpoint holds a {theirs}")
    target.state = value
    return target


def _restore_array(target: Any, index: int, path: str, blobs: Blobs) -> Any:
    blob = blobs.items[index]
    if isinstance(target, np.ndarray) and (_name(target.dtype), target.shape) != (
        blob.dtype,
        tuple(blob.shape),
    ):
        raise DoesNotFit(
            f"{path} is an array {target.shape} of {_name(target.dtype)}: the checkpoint holds "
            f"{tuple(blob.shape)} of {blob.dtype}"
        )
    done = blobs.restored.get(index)
    if done is not None:
        same = isinstance(target, np.ndarray) and _memory(target) == _memory(done)
        return target if same and target.size else done
    if isinstance(target, np.ndarray) and target.flags.writeable:
        target = blobs.take(target)
    else:
        target = MISSING
    if target is MISSING:
        target = as_array(blob, path).copy(order="K")
    else:
        target[...] = as_array(blob, path)
    blobs.restored[index] = target
    return target


def _blob(array: np.ndarray) -> Blob:
    name, shape, order = _name(array.dtype), array.shape, None
    if not array.flags.c_contiguous:
        # Strides from the outermost to the innermost: the dimensions as they lie in memory.
        dense = [int(i) for i in np.argsort([-step for step in array.strides], kind="stable")]
        if array.transpose(dense).flags.c_contiguous:
            array, order = array.transpose(dense), tuple(dense)
        else:
            array = np.ascontiguousarray(array)
    # Strings and dates have no buffer format of their own: their bytes have.
    data = array.reshape(-1).view(np.uint8).data if array.nbytes else b""
    return Blob(name, shape, data, array.nbytes, order)


def _memory(array: np.ndarray) -> Memory | None:
    if not array.size:
        return None
    start, end = np.lib.array_utils.byte_bounds(array)
    layout = (_name(array.dtype), array.shape, array.strides)
    return Memory("cpu", start, end, layout)


def _is_raw(dtype: np.dtype) -> bool:
    return dtype.kind in _KINDS or (dtype.kind == "V" and _is_named(dtype))


def _is_named(dtype: np.dtype) -> bool:
    """Whether this is one of ml_dtypes' types, which numpy knows as bytes without meaning."""
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def _name(dtype: np.dtype) -> str:
    return dtype.name if _is_named(dtype) else dtype.str


def _dtype(name: str, path: str) -> np.dtype:
    try:
        if name[0] in "<>|=":
            return np.dtype(name)
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError, TypeError) as error:
        raise DoesNotFit(f"{path}: the checkpoint holds {name}, unknown here ({error})") from None
