"""numpy: arrays raw with dtype and shape, scalars, and the states of both random generators."""

from typing import Any

import numpy as np

from outlast.loop import state
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.state import MISSING, Blob, Blobs, Node

_KINDS = "biufcSUmM"  # what is only its bytes; objects, records and views of other types are not


def capture(value: object, path: str, blobs: Blobs) -> Node:
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray or value.dtype.kind not in _KINDS:
            raise StateError(
                f"{path} is {type(value).__name__} of dtype {value.dtype}, which cannot be saved; "
                "use a plain array of numbers or of fixed-length strings"
            )
        return {"$array": blobs.add(value, lambda: _blob(value))}
    if isinstance(value, np.generic):
        if value.dtype.kind not in _KINDS:
            raise StateError(f"{path} is a numpy scalar of dtype {value.dtype}, cannot be saved")
        return {"$scalar": {"dtype": value.dtype.str, "hex": value.tobytes().hex()}}
    if isinstance(value, np.random.Generator):
        inner = state.capture(value.bit_generator.state, path, blobs)
        return {"$object": "numpy.Generator", "state": inner}
    if isinstance(value, np.random.RandomState):
        inner = state.capture(value.get_state(legacy=False), path, blobs)
        return {"$object": "numpy.RandomState", "state": inner}
    return MISSING


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if "$array" in node:
        return _restore_array(target, node["$array"], path, blobs)
    if "$scalar" in node:
        data = bytes.fromhex(node["$scalar"]["hex"])
        return np.frombuffer(data, np.dtype(node["$scalar"]["dtype"]))[0]
    kind = node.get("$object")
    if kind not in ("numpy.Generator", "numpy.RandomState"):
        return MISSING
    value = state.restore(MISSING, node["state"], path, blobs)
    if kind == "numpy.Generator":
        if target is MISSING:
            target = np.random.Generator(getattr(np.random, value["bit_generator"])())
        if not isinstance(target, np.random.Generator):
            raise DoesNotFit(
                f"{path} is {type(target).__name__}: the checkpoint holds a numpy Generator"
            )
        theirs, ours = value["bit_generator"], type(target.bit_generator).__name__
        if theirs != ours:
            raise DoesNotFit(f"{path} is a {ours} generator: the checkpoint holds a {theirs}")
        target.bit_generator.state = value
        return target
    if target is MISSING or target is None or isinstance(target, int):
        target = np.random.RandomState()
    if not isinstance(target, np.random.RandomState):
        raise DoesNotFit(
            f"{path} is {type(target).__name__}: the checkpoint holds a numpy RandomState"
        )
    target.set_state(value)
    return target


def _blob(array: np.ndarray) -> Blob:
    flat = np.ascontiguousarray(array)
    # Strings and dates have no buffer format of their own: their bytes have.
    data = flat.reshape(-1).view(np.uint8).data if flat.nbytes else b""
    return Blob(array.dtype.str, array.shape, data)


def _restore_array(target: Any, index: int, path: str, blobs: Blobs) -> Any:
    blob = blobs.items[index]
    if isinstance(target, np.ndarray):
        if (target.dtype.str, target.shape) != (blob.dtype, tuple(blob.shape)):
            raise DoesNotFit(
                f"{path} is an array {target.shape} of {target.dtype.str}: the checkpoint holds "
                f"{tuple(blob.shape)} of {blob.dtype}"
            )
        if target.flags.writeable:
            target[...] = _view(blob)
            return target
    return blobs.once(index, lambda blob: _view(blob).copy())


def _view(blob: Blob) -> np.ndarray:
    return np.frombuffer(blob.data, np.dtype(blob.dtype)).reshape(blob.shape)
