"""numpy: arrays raw with dtype, shape and order, scalars, and the states of random generators.

Arrays of records are saved with zeros between their fields, arrays of objects (strings, labels)
element by element, and a read-only array comes back read-only. A generator keeps what its
``spawn()`` depends on.

The dtypes of ml_dtypes (bfloat16, float8 and so on) are saved like numpy's own, by name. The
module ``numpy.random`` itself stands for its global generator.
"""

import importlib
import json
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from outlast.loop import state
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.state import MISSING, Blob, Blobs, Memory, Node

_KINDS = "biufcSUmM"  # what is only its bytes


def capture(value: Any, path: str, blobs: Blobs) -> Node:
    if isinstance(value, np.ndarray):
        return _capture_array(value, path, blobs)
    if isinstance(value, np.generic):
        return {"$scalar": _capture_scalar(value, path)}
    if isinstance(value, np.random.Generator):
        if type(value) is not np.random.Generator:
            blobs.need_target(value, path, state.kind_of(value))
        inner = state.capture(value.bit_generator, f"{path}.bit_generator", blobs)
        return {"$object": "numpy.Generator", "state": inner}
    if isinstance(value, np.random.BitGenerator):
        inner = state.capture_part(value.state, f"{path}.state", blobs)
        seeds = state.capture_part(_seeds(value), f"{path}.seed_seq", blobs)
        return {"$object": "numpy.BitGenerator", "state": inner, "seeds": seeds}
    if type(value) is np.random.SeedSequence:
        return {
            "$object": "numpy.SeedSequence",
            "state": state.capture_part(_seed_state(value), path, blobs),
        }
    if isinstance(value, np.random.RandomState) or value is np.random:
        inner = state.capture_part(value.get_state(legacy=False), f"{path}.state", blobs)
        node = {"$object": "numpy.RandomState", "state": inner}
        return {**node, "module": True} if value is np.random else node
    if isinstance(value, np.dtype) and not value.hasobject:
        return {"$object": "numpy.dtype", "name": name_of(value)}
    if isinstance(value, type) and issubclass(value, np.generic) and _is_scalar_type(value):
        return {"$object": "numpy.type", "name": value.__name__}
    return MISSING


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
        case "numpy.Generator":
            return _restore_generator(target, node, path, blobs)
        case "numpy.BitGenerator":
            return _restore_bit_generator(target, node, path, blobs)
        case "numpy.SeedSequence":
            return _restore_seeds(target, state.restore(MISSING, node["state"], path, blobs))
        case "numpy.dtype":
            return _dtype(node["name"], path)
        case "numpy.type":
            found = getattr(np, node["name"], None)
            if not isinstance(found, type) or not _is_scalar_type(found):
                raise DoesNotFit(f"{path}: numpy has no type {node['name']}")
            return found
    value = state.restore(MISSING, node["state"], f"{path}.state", blobs)
    if target is MISSING:
        target = np.random if node.get("module") else np.random.RandomState()
    if not isinstance(target, np.random.RandomState) and target is not np.random:
        raise DoesNotFit(
            f"{path} is {type(target).__name__}: the checkpoint holds a numpy RandomState"
        )
    target.set_state(value)
    return target


def describe(value: Any) -> str | None:
    """An array's kind with its dtype and shape."""
    if not isinstance(value, np.ndarray):
        return None
    return f"{type(value).__name__} {value.shape} of {value.dtype.str}"  # str(dtype) takes 5 µs


def is_immutable(value: Any) -> bool:
    """Scalars and read-only arrays."""
    return isinstance(value, np.generic | np.dtype) or (
        isinstance(value, np.ndarray) and not value.flags.writeable
    )


def parts(target: Any, node: Any, path: str) -> Iterator[tuple[Any, Node, str]]:
    """The live objects of an array of objects."""
    if node["$object"] == "numpy.objects" and isinstance(target, np.ndarray):
        if target.dtype.hasobject and list(target.shape) == node["shape"]:
            for i, (old, item) in enumerate(zip(target.flat, node["items"], strict=True)):
                yield old, item, f"{path}.flat[{i}]"
    elif node["$object"] == "numpy.Generator" and isinstance(target, np.random.Generator):
        yield target.bit_generator, node["state"], f"{path}.bit_generator"


def as_array(blob: Blob, path: str) -> np.ndarray:
    """The array of a blob, without a copy, in the order that it had in memory."""
    dtype = _dtype(blob.dtype, path)
    if not dtype.itemsize:
        return np.zeros(blob.shape, dtype)
    flat = np.frombuffer(blob.data, dtype)
    if blob.order is None:
        return flat.reshape(blob.shape)
    inner = flat.reshape([blob.shape[i] for i in blob.order])
    return inner.transpose(np.argsort(blob.order))


# Random numbers


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
    seeds = state.restore(MISSING, node["seeds"], f"{path}.seed_seq", blobs)
    theirs = value["bit_generator"]
    if target is MISSING:
        cls = getattr(np.random, theirs, None)
        if not isinstance(cls, type) or not issubclass(cls, np.random.BitGenerator):
            raise DoesNotFit(f"{path}: this version of numpy has no generator {theirs}")
        target = cls()
    ours = type(target).__name__
    if theirs != ours:
        raise DoesNotFit(f"{path} is a {ours} generator: the checkpoint holds a {theirs}")
    if seeds is None or _seeds(target) == seeds:
        target.state = value
    else:  # which numbers its spawn() gives is part of the state
        target.__setstate__((value, _restore_seeds(MISSING, seeds)))
    return target


def _seeds(generator: Any) -> dict[str, Any] | None:
    """What the children that a generator spawns depend on."""
    found = getattr(generator, "seed_seq", None)
    return _seed_state(found) if type(found) is np.random.SeedSequence else None


def _seed_state(seeds: Any) -> dict[str, Any]:
    return {
        "entropy": seeds.entropy,
        "spawn_key": seeds.spawn_key,
        "pool_size": seeds.pool_size,
        "n_children_spawned": seeds.n_children_spawned,
    }


def _restore_seeds(target: Any, value: dict[str, Any]) -> Any:
    """A sequence of seeds that has spawned as many children; ``target`` if it can be that."""
    if type(target) is np.random.SeedSequence:
        missing = value["n_children_spawned"] - target.n_children_spawned
        if missing >= 0 and {**_seed_state(target), **_spawned(value)} == value:
            target.spawn(missing)
            return target
    return np.random.SeedSequence(**value)


def _spawned(value: dict[str, Any]) -> dict[str, Any]:
    return {"n_children_spawned": value["n_children_spawned"]}


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
    """An array of records as their bytes: numpy copies the fields and not what lies between."""
    if array.dtype.names is None:
        return array
    return array.view(np.dtype((np.void, array.dtype.itemsize)))


def _restore_objects(target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    shape = tuple(node["shape"])
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
    if data is not held or target is MISSING:
        target = cast(Any, np.ma.MaskedArray(data))
    target._mask = mask  # not the property, which makes an array of nomask
    target._fill_value = None
    if node["fill"] is not None:
        target.fill_value = state.restore(MISSING, node["fill"], path, blobs)
    target._hardmask = node["hard"]
    return target


def blob_of(array: np.ndarray) -> Blob:
    """The bytes of an array as they lie in memory, without a copy wherever that can be."""
    name, shape, order = name_of(array.dtype), array.shape, None
    array = _bytes_of(_without_gaps(array))
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


def _without_gaps(array: np.ndarray) -> np.ndarray:
    """Records with zeros between their fields, where anything may lie: equal ones are the same
    bytes."""
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
    if isinstance(value, np.str_):  # an array of it drops zeros at the end
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
    dtype = _dtype(node["dtype"], path)
    return np.frombuffer(bytearray.fromhex(node["hex"]), dtype)[0]


def _is_scalar_type(cls: type) -> bool:
    """Whether a class is one of numpy's own types of numbers, dates or strings."""
    return getattr(np, cls.__name__, None) is cls and cls.__module__ == "numpy"


def _is_raw(dtype: np.dtype) -> bool:
    """Whether an array of this dtype is its bytes and nothing else."""
    if dtype.kind == "V" and not dtype.hasobject:
        fields = [dtype[name] for name in dtype.names or ()]
        base = [dtype.subdtype[0]] if dtype.subdtype else []
        return all(map(_is_raw, [*fields, *base]))
    return dtype.kind in _KINDS


def _is_named(dtype: np.dtype) -> bool:
    """Whether this is one of ml_dtypes' types, which numpy knows as bytes without meaning."""
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def name_of(dtype: np.dtype) -> str:
    """How a checkpoint names a dtype: numpy's short form, ml_dtypes' name, JSON for records."""
    if dtype.isbuiltin == 1:
        return dtype.str
    if dtype.names is not None:
        return json.dumps(_fields(dtype))
    return dtype.name if _is_named(dtype) else dtype.str


def _fields(dtype: np.dtype) -> Any:
    """The dtype of a record, with where its fields lie, as JSON."""
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
    try:
        if name[0] == "{":
            return _dtype_of(json.loads(name), path)
        if name[0] in "<>|=":
            return np.dtype(name)
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError, TypeError, ValueError, KeyError) as error:
        raise DoesNotFit(f"{path}: the checkpoint holds {name}, unknown here ({error})") from None


def _dtype_of(fields: Any, path: str) -> Any:
    if isinstance(fields, str):
        return _dtype(fields, path)
    if isinstance(fields, list):
        return np.dtype((_dtype_of(fields[0], path), tuple(fields[1])))
    aligned = fields["aligned"]
    plain: Any = {key: item for key, item in fields.items() if key != "aligned"}
    plain["formats"] = [_dtype_of(item, path) for item in fields["formats"]]
    return np.dtype(plain, align=aligned)
