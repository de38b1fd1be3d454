"""JAX: arrays, random keys, and objects that are pytrees.

``jax.Array``
    the bytes of the whole array, its dtype and whether its type is weak. It cannot change, so a
    restore puts another array into the container that holds it, with the sharding and device of the
    old one. An array that appears later goes to the device that it was committed to if this machine
    has one, else to the default device.
keys of ``jax.random.key``
    the same for their data, with the name of their generator.
``jax.Ref``
    its value; it is changed in place.
other pytrees (flax.struct, equinox, classes that a program registers)
    their children. The program provides everything else, such as the functions and static fields of
    a ``TrainState``. A frozen one is rebuilt from the one that the program starts with.

Python's containers, including namedtuples (optax), are saved as such; see ``containers``.
"""

# The project's environment may lack JAX; a type checker would then resolve it to this file.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

import functools
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlast.loop import classes, frameworks, state, verify
from outlast.loop.adapters import numpy as arrays
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.state import MISSING, Blob, Blobs, Memory, Node, foreign, kind_of

_Ref = getattr(jax, "Ref", ())
_BUILTIN = (type(None), tuple, list, dict)
"""Pytrees that are Python's containers."""


def capture(value: Any, path: str, blobs: Blobs) -> Node:
    if isinstance(value, jax.core.Tracer):
        raise StateError(
            f"{path} is a value of a function that JAX is tracing, which cannot be saved; have the "
            "function return it, and keep what it returns"
        )
    if isinstance(value, jax.Array):
        return _capture_array(value, path, blobs)
    if isinstance(value, _Ref):
        inner = state.capture_part(value[...], f"{path}[...]", blobs)
        return {"$object": "jax.Ref", "value": inner}
    found = None if frameworks.has_state_dict(value) else _children(value)
    return MISSING if found is None else _capture_pytree(value, *found, path, blobs)


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if "$jax" in node:
        return _restore_array(target, node, path, blobs)
    if node["$object"] == "jax.Ref":
        return _restore_ref(target, node, path, blobs)
    return _restore_pytree(target, node, path, blobs)


def describe(value: Any) -> str | None:
    """An array's kind with its dtype and shape."""
    if not isinstance(value, jax.Array):
        return None
    return f"a JAX array {value.shape} of {value.dtype}"


def is_immutable(value: Any) -> bool:
    """Whether the value is an array or a frozen pytree."""
    return isinstance(value, jax.Array) or (_is_frozen(value) and _children(value) is not None)


def parts(target: Any, node: Any, path: str) -> Iterator[tuple[Any, Node, str]]:
    """The children of a live pytree."""
    if node["$object"] == "jax.pytree" and (found := _children(target)) is not None:
        for key, item in found[0].items():
            if key in node["children"]:
                yield item, node["children"][key], f"{path}{key}"


# Arrays


def _capture_array(value: jax.Array, path: str, blobs: Blobs) -> Node:
    if value.is_deleted():
        raise StateError(
            f"{path} is an array that was donated to a JAX function and no longer exists; put what "
            "the function returned into the state"
        )
    if not value.is_fully_addressable:
        raise StateError(
            f"{path} is an array that is spread over several processes, which cannot be saved"
        )
    node: dict[str, Any] = {}
    held = value
    if _is_key(value):
        node["key"] = _generator(value, path)
        held = jax.random.key_data(value)
    devices = value.sharding.device_set
    if len(devices) > 1:
        blobs.need_target(value, path, f"a JAX array over {len(devices)} devices")
    elif value.committed:
        node["device"] = _name(next(iter(devices)))
    if _is_weak(value):
        node["weak"] = True
    # Arrays are immutable, so the object identifies an array, not its memory.
    memory = Memory("jax", id(value), id(value) + 1, ())
    return {"$jax": blobs.add(value, memory, path, lambda: _blob(held)), **node}


def _is_key(value: jax.Array) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _is_weak(value: jax.Array) -> bool:
    return bool(getattr(value, "weak_type", False))


def _generator(key: jax.Array, path: str) -> str:
    found = jax.random.key_impl(key)
    if not isinstance(found, str):
        raise StateError(
            f"{path} is a random key of a generator without a name, which cannot be saved; use "
            "one of JAX's own, such as threefry2x32"
        )
    return found


def _blob(value: jax.Array) -> Blob:
    devices = value.sharding.device_set
    if all(device.platform == "cpu" for device in devices) and len(devices) == 1:
        return arrays.blob_of(_on_host(value))
    name, size = arrays.name_of(np.dtype(value.dtype)), value.nbytes
    return Blob(name, value.shape, lambda: memoryview(arrays.blob_of(_on_host(value)).data), size)


def _on_host(value: jax.Array) -> np.ndarray:
    """The whole array, copied piece by piece, because the array itself would keep the copy."""
    if value.is_fully_replicated:
        return np.asarray(value.addressable_data(0))
    whole = np.empty(value.shape, value.dtype)
    for piece in value.addressable_shards:
        if piece.replica_id == 0:
            whole[piece.index] = np.asarray(piece.data)
    return whole


def _name(device: Any) -> str:
    return f"{device.platform}:{device.id}"


def _restore_array(target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    index = node["$jax"]
    done = blobs.restored.get(index)
    if done is not None:
        return done
    if not isinstance(target, jax.Array):
        target = blobs.array_homes.get(index, MISSING)
    if not isinstance(target, jax.Array):
        target = MISSING
    if target is not MISSING:
        _check_fits(target, node, blobs.items[index], path)
    if _is_that(target, node, blobs.items[index]) and blobs.take(target) is target:
        value = target
    else:
        value = _array(node, blobs.items[index], path)
        place = _place(target, node)
        value = value if place is None else jax.device_put(value, place)
    blobs.restored[index] = value
    return value


def _check_fits(target: jax.Array, node: Any, blob: Blob, path: str) -> None:
    key, saved = node.get("key"), tuple(blob.shape)
    if (ours := _generator(target, path) if _is_key(target) else None) != key:
        said = ["an array" if name is None else f"a random key of {name}" for name in (ours, key)]
        raise DoesNotFit(f"{path} is {said[0]}: the checkpoint holds {said[1]}")
    dtype = blob.dtype if ours else arrays.name_of(np.dtype(target.dtype))
    theirs = saved[:-1] if ours else saved  # the last dimension is a key's words
    if (dtype, target.shape) != (blob.dtype, theirs):
        raise DoesNotFit(
            f"{path} is an array {target.shape} of {dtype}: the checkpoint holds {theirs} of "
            f"{blob.dtype}; a changed model is a new run"
        )


def _is_that(target: Any, node: Any, blob: Blob) -> bool:
    """Whether ``target``, which fits, already equals the saved array."""
    if target is MISSING or target.is_deleted() or _is_weak(target) != bool(node.get("weak")):
        return False
    plain = jax.random.key_data(target) if _is_key(target) else target
    return verify.same(_blob(plain), blob, moved=True)


def _array(node: Any, blob: Blob, path: str) -> jax.Array:
    """The saved array as a new one."""
    # A copy: JAX may take over the memory, which for a snapshot is its file.
    plain = arrays.as_array(blob, path).copy(order="K")
    start = _weak_zeros(plain) if node.get("weak") else None
    with warnings.catch_warnings():  # JAX warns when it narrows a type; that is refused below
        warnings.simplefilter("ignore", UserWarning)
        value = jnp.asarray(plain) if start is None else start
    if value.dtype != plain.dtype:
        raise DoesNotFit(
            f"{path}: the checkpoint holds {plain.dtype}, which JAX makes {value.dtype} here; set "
            "jax_enable_x64 as it was when the run began"
        )
    if start is not None:
        value = start.at[...].set(plain)
    if (key := node.get("key")) is None:
        return value
    wrap = functools.partial(jax.random.wrap_key_data, impl=key)
    return foreign(path, wrap, value, fits=True)


def _weak_zeros(plain: np.ndarray) -> jax.Array:
    """Zeros of a weak type, as JAX makes them from a Python number."""
    return jnp.full(plain.shape, plain.dtype.type(0).item())


def _place(target: Any, node: Any) -> Any:
    """The device or sharding for the array; None for JAX's default."""
    if target is not MISSING:
        return target.sharding if target.committed else None
    return next((each for each in jax.devices() if _name(each) == node.get("device")), None)


def _restore_ref(target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    if target is MISSING:
        return jax.new_ref(state.restore(MISSING, node["value"], f"{path}[...]", blobs))
    if not isinstance(target, _Ref):
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a jax.Ref")
    target[...] = state.restore(target[...], node["value"], f"{path}[...]", blobs)
    return target


# Pytrees


def _children(value: Any) -> tuple[dict[str, Any], Any] | None:
    """The children by key, and the structure, of an object that is registered as a pytree; None for
    any other object."""
    if isinstance(value, _BUILTIN):
        return None
    found, structure = jax.tree_util.tree_flatten_with_path(value, lambda item: item is not value)
    if jax.tree_util.treedef_is_leaf(structure):
        return None
    return {jax.tree_util.keystr(key): item for key, item in found}, structure


def _is_frozen(value: Any) -> bool:
    cls = type(value)
    if isinstance(value, Mapping):
        return not isinstance(value, MutableMapping)
    return classes.is_dataclass(cls) and classes.is_frozen(cls)


def _capture_pytree(
    value: Any, children: dict[str, Any], structure: Any, path: str, blobs: Blobs
) -> Node:
    blobs.need_target(value, path, kind_of(value))
    if blobs.noted(path, structure) != structure:
        raise StateError(
            f"{path} is {kind_of(value)}, in which something has changed that JAX treats as static "
            "(a field without arrays, a number of children): a resumed run could not restore it; "
            "keep what changes in arrays or in a dict of the state"
        )
    return {
        "$object": "jax.pytree",
        "class": classes.name_of(type(value)),
        "children": {
            key: state.capture(item, f"{path}{key}", blobs) for key, item in children.items()
        },
    }


def _restore_pytree(target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    found = None if target is MISSING else _children(target)
    if found is None or classes.name_of(type(target)) != node["class"]:
        raise DoesNotFit(
            f"{path} is {kind_of(target)}: the checkpoint holds {node['class']}, which only a live "
            "object of that class in the state can take"
        )
    children, structure = found
    if list(children) != list(node["children"]):
        raise DoesNotFit(
            f"{path} consists of {', '.join(children)}: the checkpoint's of "
            f"{', '.join(node['children'])}; a changed model is a new run"
        )
    news = {
        key: state.restore(item, node["children"][key], f"{path}{key}", blobs)
        for key, item in children.items()
    }
    if all(news[key] is item for key, item in children.items()):
        return target
    value = foreign(path, jax.tree_util.tree_unflatten, structure, list(news.values()), fits=True)
    if _is_frozen(target):
        return value
    classes.set_attributes(target, classes.attributes(value))
    return target
