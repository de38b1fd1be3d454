"""PyTorch: tensors, modules, optimisers and random generators.

``torch.nn.Module``
    parameters, persistent buffers and extra state under the names of ``state_dict()``, which
    parameters are frozen and which modules are in evaluation mode. Wrappers (``torch.compile``,
    ``DataParallel``, ``DistributedDataParallel``) are removed and do not appear in a checkpoint.
    Tied parameters are saved once and must be tied in the resumed program too. For plain attributes
    and buffers that are not persistent see outlast.loop.adapters.attributes. Gradients are not
    saved.
``torch.optim.Optimizer``
    its groups in order and the state of each parameter, every tensor in its own dtype.
``torch.Generator``
    its state; the module ``torch.random`` represents the global generators of the CPU and of every
    CUDA device.

Schedulers and scalers have ``state_dict`` and need no special treatment here. Values are restored
onto the device of their target.
"""

# The project's environment may lack PyTorch; a type checker would then resolve it to this file.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

import ctypes
import math
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from outlast.loop import state
from outlast.loop.adapters import attributes, torch_attributes
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.state import MISSING, Blob, Blobs, Memory, Node, foreign, kind_of
from outlast.loop.words import say

_COMPILED = "_orig_mod."
_SHAPES_MAX = 4
_SHARDED = "sharded over the ranks; rank 0 saves what is whole in every rank, use DDP"
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_NAMES = {
    item: str(item).removeprefix("torch.")
    for item in vars(torch).values()
    if isinstance(item, torch.dtype)
}
_DTYPES = {name: value for value, name in _NAMES.items()}


def capture(value: Any, path: str, blobs: Blobs) -> Node:
    if isinstance(value, torch.Tensor):
        return _capture_tensor(value, path, blobs)
    if isinstance(value, torch.nn.Module):
        return _capture_module(value, path, blobs)
    if isinstance(value, torch.optim.Optimizer):
        return _capture_optimizer(value, path, blobs)
    if isinstance(value, torch.Generator):
        inner = state.capture(value.get_state(), f"{path}.state", blobs)
        return {"$object": "torch.Generator", "device": str(value.device), "state": inner}
    if value is torch.random:
        return _capture_global(path, blobs)
    if isinstance(value, torch.amp.GradScaler) and not value.is_enabled():
        blobs.need_target(value, path, f"{kind_of(value)} that is disabled")
        return {"$object": "torch.disabled"}
    if isinstance(value, torch.dtype):
        return {"$object": "torch.dtype", "name": _NAMES[value]}
    if isinstance(value, torch.device):
        return {"$object": "torch.device", "name": str(value)}
    if isinstance(value, torch.Size):
        return {"$object": "torch.Size", "sizes": list(value)}
    return MISSING


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if "$tensor" in node:
        return _restore_tensor(target, node, path, blobs)
    match node["$object"]:
        case "torch.Module":
            return _restore_module(target, node, path, blobs)
        case "torch.Optimizer":
            return _restore_optimizer(target, node, path, blobs)
        case "torch.Generator":
            return _restore_generator(target, node, path, blobs)
        case "torch.random":
            return _restore_global(target, node, path, blobs)
        case "torch.disabled":
            if not isinstance(target, torch.amp.GradScaler) or target.is_enabled():
                raise DoesNotFit(f"{path}: the checkpoint holds a GradScaler that is disabled")
            return target
        case "torch.dtype":
            if node["name"] not in _DTYPES:
                raise DoesNotFit(f"{path}: this torch has no dtype {node['name'][:100]}")
            return _DTYPES[node["name"]]
        case "torch.device":
            return torch.device(node["name"])
        case "torch.Size":
            return torch.Size(node["sizes"])
    raise DoesNotFit(f"{path}: the checkpoint holds {node['$object']}, unknown here")


def describe(value: Any) -> str | None:
    """A tensor's kind with its dtype and shape."""
    if not isinstance(value, torch.Tensor):
        return None
    return f"a tensor {tuple(value.shape)} of {_NAMES[value.dtype]}"


def parts(target: Any, node: Any, path: str) -> Iterator[tuple[Any, Node, str]]:
    """The tensors of a live module."""
    if node["$object"] == "torch.Module" and isinstance(target, torch.nn.Module):
        held = unwrapped(target).state_dict(keep_vars=True)
        for key, item in held.items():
            name = key.replace(_COMPILED, "")
            if name in node["entries"]:
                yield item, node["entries"][name], f"{path}.{name}"
        yield from attributes.parts(_owners(target), node, path)
    elif node["$object"] == "torch.Optimizer" and isinstance(target, torch.optim.Optimizer):
        yield from attributes.parts(torch_attributes.of_optimizer(target), node, path)


# Tensors


def _capture_tensor(value: torch.Tensor, path: str, blobs: Blobs) -> Node:
    if blobs.by_value and why_refused(value) is None:
        value = torch_attributes.by_value(value)
    _refuse(value, path)
    memory = _memory(value)
    node: dict[str, Any] = {"$tensor": blobs.add(value, memory, path, lambda: _blob(value, path))}
    if value.device.type != "cpu":
        node["device"] = str(value.device)
    if value.requires_grad:
        node["grad"] = True
    if isinstance(value, torch.nn.Parameter):
        node["parameter"] = True
    return node


def _refuse(value: torch.Tensor, path: str) -> None:
    why = why_refused(value)
    if why is None and not value.is_leaf:
        why = "the result of a computation that gradients flow through; detach it"
    elif why is None and torch_attributes.repeats(value):
        why = "expanded: several elements are one in memory; clone it"
    if why:
        raise StateError(f"{path} is {kind_of(value)}, which cannot be saved: it is {why}")


def why_refused(value: torch.Tensor) -> str | None:
    """Why even the values of a tensor cannot be saved, or None."""
    if value.is_quantized:
        return "quantised; save the module before it is quantised"
    if torch.nn.parameter.is_lazy(value):
        return "not initialised; run one batch through the module first"
    if _is_of(value, "torch.distributed.tensor", "DTensor"):
        return _SHARDED
    if type(value) not in _PLAIN_TENSORS:
        return "a special kind of tensor; save its parts"
    if value.layout != torch.strided:
        return f"of layout {value.layout}; save its indices and values"
    if value.device.type == "meta":
        return "on the meta device and has no values; create it on a real device"
    if value.is_conj() or value.is_neg():
        return "a conjugated or negated view; resolve it"
    return None


def _is_of(value: object, module: str, name: str) -> bool:
    """Whether a value is of a torch class that is not imported with torch itself."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _memory(value: torch.Tensor) -> Memory | None:
    if not value.numel():
        return None
    start, shape, strides = value.data_ptr(), value.shape, value.stride()
    if value.is_contiguous():
        end = start + value.nbytes
        layout = (value.dtype, shape)
    else:
        last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        end = start + (last + 1) * value.element_size()
        layout = (value.dtype, shape, strides)
    return Memory(str(value.device), start, end, layout)


def _blob(value: torch.Tensor, path: str) -> Blob:
    shape, order = tuple(value.shape), None
    value = value.detach()
    if not value.is_contiguous():
        # Channels-last and other permutations keep their memory order.
        strides = value.stride()
        dense = sorted(range(value.dim()), key=lambda i: -strides[i])
        if value.permute(dense).is_contiguous():
            value, order = value.permute(dense), tuple(dense)
        else:
            value = value.contiguous()
    name, nbytes = _NAMES[value.dtype], value.nbytes
    if not nbytes:
        return Blob(name, shape, b"", 0, order)
    if value.device.type == "cpu":
        return Blob(name, shape, _bytes_of(value), nbytes, order)
    return Blob(name, shape, lambda: _bytes_of(value.cpu()), nbytes, order)


def _bytes_of(value: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU, without a copy and without numpy."""
    array = (ctypes.c_ubyte * value.nbytes).from_address(value.data_ptr())
    array._owner = value  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def _view(blob: Blob, path: str) -> torch.Tensor:
    """The tensor of a blob on the CPU, without a copy."""
    dtype = _DTYPES.get(blob.dtype)
    if dtype is None:
        raise DoesNotFit(f"{path}: the checkpoint holds {blob.dtype}, which this torch lacks")
    if math.prod(blob.shape) * dtype.itemsize != blob.nbytes:
        raise DoesNotFit(
            f"{path}: the checkpoint holds {blob.nbytes} bytes for {tuple(blob.shape)} of "
            f"{blob.dtype}"
        )
    order = range(len(blob.shape)) if blob.order is None else blob.order
    inner = [blob.shape[i] for i in order]
    if not blob.nbytes:
        flat = torch.empty(inner, dtype=dtype)
    else:
        flat = torch.frombuffer(blob.data, dtype=torch.uint8).view(dtype).reshape(inner)
    return flat.permute([list(order).index(i) for i in range(len(inner))])


def _restore_tensor(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    index = node["$tensor"]
    blob = blobs.items[index]
    if isinstance(target, torch.Tensor):
        _check_fits(target, blob, path)
    done = blobs.restored.get(index)
    if done is not None:
        same = isinstance(target, torch.Tensor) and _memory(target) == _memory(done)
        return target if same and target.numel() else _alias(done, node)
    home: Any = blobs.array_homes.get(index)
    if not isinstance(target, torch.Tensor) and isinstance(home, torch.Tensor):
        _check_fits(home, blob, path)
        with torch.no_grad():
            home.copy_(_view(blob, path))
        blobs.restored[index] = home
        return _alias(home, node)
    whole = isinstance(target, torch.Tensor) and not torch_attributes.repeats(target)
    target = blobs.take(target) if whole else MISSING
    if target is MISSING:
        target = _view(blob, path).clone(memory_format=torch.preserve_format)
        if node.get("device") and torch.device(node["device"]).type in _devices():
            target = target.to(node["device"])
        if node.get("parameter"):
            target = torch.nn.Parameter(target, requires_grad=node.get("grad", False))
        elif node.get("grad"):
            target.requires_grad_()
    else:
        with torch.no_grad():
            target.copy_(_view(blob, path))
    blobs.restored[index] = target
    return target


def _alias(tensor: torch.Tensor, node: Any) -> torch.Tensor:
    """Another tensor with the same memory, as ``state_dict()`` returns for a parameter."""
    grad = bool(node.get("grad"))
    if node.get("parameter"):
        same = isinstance(tensor, torch.nn.Parameter)
        return tensor if same else torch.nn.Parameter(tensor.detach(), requires_grad=grad)
    if not isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad == grad:
        return tensor
    return tensor.detach().requires_grad_(grad)


def _devices() -> set[str]:
    return {"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"}


def _check_fits(target: torch.Tensor, blob: Blob, path: str) -> None:
    ours, theirs = (_NAMES[target.dtype], tuple(target.shape)), (blob.dtype, tuple(blob.shape))
    if ours != theirs:
        raise DoesNotFit(
            f"{path} is a tensor {ours[1]} of {ours[0]}: the checkpoint holds {theirs[1]} of "
            f"{theirs[0]}; a changed model is a new run"
        )


# Modules


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself, without torch.compile's and the data-parallel wrappers."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(module, wrappers):
            module = module.module
        elif "_orig_mod" in module._modules:
            module = module._modules["_orig_mod"]  # type: ignore[assignment]
        else:
            return module


def _capture_module(value: torch.nn.Module, path: str, blobs: Blobs) -> Node:
    module, value = value, unwrapped(value)
    for name, inner in value.named_modules():
        # Its state_dict() waits for all ranks, and its optimiser holds only a part of the state.
        if _is_of(inner, "torch.distributed.fsdp", "FullyShardedDataParallel"):
            place = f"{path}.{name}" if name else path
            raise StateError(
                f"{place} is {kind_of(inner)}, which cannot be saved: it is {_SHARDED}"
            )
    tensors = foreign(f"{path}.state_dict()", lambda: value.state_dict(keep_vars=True))
    held = _owners(value)
    if not attributes.are_any(held):
        state.refuse_empty(value, tensors, path, blobs)
    entries = {
        key: state.capture_part(item, f"{path}.{key}", blobs) for key, item in _named(tensors, path)
    }
    blobs.need_target(module, path, _kind_of_module(value, tensors))
    return {
        "$object": "torch.Module",
        "entries": entries,
        # Some modules read their state by the version that wrote it.
        "versions": state.capture_part(
            {_plain(name): dict(item) for name, item in _versions(tensors)},
            f"{path}.state_dict()._metadata",
            blobs,
        ),
        "eval": [name for name, inner in dict(_modules(value)).items() if not inner.training],
        **attributes.capture(
            held,
            path,
            blobs,
            torch_attributes.framework(value.modules(), tensors.values(), why_refused),
        ),
    }


def _owners(module: torch.nn.Module) -> dict[str, attributes.Owner]:
    return torch_attributes.of_modules(_modules(unwrapped(module)))


def _restore_module(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if not isinstance(target, torch.nn.Module):
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a torch module")
    module = unwrapped(target)
    held = module.state_dict(keep_vars=True)
    names = {key.replace(_COMPILED, ""): key for key in held}
    _check_keys(path, theirs=node["entries"], ours=names)
    values: dict[str, Any] = {}
    for name, entry in node["entries"].items():
        place, ours = f"{path}.{name}", held[names[name]]
        if isinstance(entry, dict) and "$tensor" in entry and isinstance(ours, torch.Tensor):
            blob, index = blobs.items[entry["$tensor"]], entry["$tensor"]
            _check_fits(ours, blob, place)
            tied = blobs.restored.setdefault(index, ours)
            if tied is not ours and _memory(tied) != _memory(ours):
                raise DoesNotFit(
                    f"{place} is a separate tensor: the checkpoint holds it tied to another; "
                    "a changed model is a new run"
                )
            values[names[name]] = _view(blob, place)
            ours.requires_grad_(entry.get("grad", False))
        elif isinstance(ours, torch.Tensor):
            raise DoesNotFit(f"{place} is a tensor: the checkpoint holds something else")
        else:
            values[names[name]] = state.restore(MISSING, entry, place, blobs)
    _check_untied(path, node["entries"], {name: held[key] for name, key in names.items()})
    versions = state.restore(MISSING, node["versions"], f"{path}.state_dict()._metadata", blobs)
    full = {_plain(name): name for name, _ in _versions(held)}
    loaded = _WithVersions(values)
    loaded._metadata = {str(full.get(name, name)): item for name, item in versions.items()}
    foreign(f"{path}.load_state_dict", module.load_state_dict, loaded, fits=True)
    asleep = set(node["eval"])
    for name, inner in _modules(module):
        inner.training = name not in asleep
    attributes.restore(_owners(module), node, path, blobs)
    return target


def _kind_of_module(value: torch.nn.Module, tensors: Any) -> str:
    """The kind of a module with the shapes of its tensors, which a restore cannot change."""
    shapes = [
        f"{name} {tuple(item.shape)}" for name, item in tensors.items() if hasattr(item, "shape")
    ]
    if len(shapes) <= _SHAPES_MAX:
        return f"{kind_of(value)} with {', '.join(shapes)}"
    digest = zlib.crc32("\n".join(shapes).encode())
    return f"{kind_of(value)} with {len(shapes)} tensors (shapes {digest:08x})"


class _WithVersions(dict):
    """Input for load_state_dict: the values, and the versions of the modules that wrote them."""

    _metadata: dict[str, Any]


def _named(tensors: Any, path: str) -> Iterable[tuple[str, Any]]:
    for key, item in tensors.items():
        if not isinstance(key, str):
            raise StateError(f"{path}.state_dict() has the key {key!r}: must be a string")
        yield key.replace(_COMPILED, ""), item


def _versions(tensors: Any) -> Iterable[tuple[str, Any]]:
    return getattr(tensors, "_metadata", {}).items()


def _modules(module: torch.nn.Module) -> Iterable[tuple[str, torch.nn.Module]]:
    return ((_plain(name), inner) for name, inner in module.named_modules())


def _plain(name: str) -> str:
    """The name of a module without the parts that torch.compile inserts."""
    return f"{name}.".replace(_COMPILED, "").removesuffix(".")


def _check_keys(path: str, *, theirs: Iterable[str], ours: Iterable[str]) -> None:
    lacking, extra = sorted(set(theirs) - set(ours)), sorted(set(ours) - set(theirs))
    if lacking or extra:
        says = [f"the checkpoint holds {_few(lacking)}, which it lacks"] if lacking else []
        says += [f"it has {_few(extra)}, which the checkpoint does not hold"] if extra else []
        raise DoesNotFit(f"{path}: {'; '.join(says)}; a changed model is a new run")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_untied(path: str, entries: Node, held: dict[str, Any]) -> None:
    """Check that tensors that are tied here are tied in the checkpoint too."""
    first: dict[Memory, str] = {}
    for name, item in held.items():
        memory = _memory(item) if isinstance(item, torch.Tensor) else None
        if memory is None:
            continue
        other = first.setdefault(memory, name)
        one, two = (
            each.get("$tensor") if isinstance(each, dict) else each
            for each in (entries[other], entries[name])
        )
        if one != two:
            raise DoesNotFit(
                f"{path}.{name} is tied to {other}: the checkpoint holds two; "
                "a changed model is a new run"
            )


# Optimisers


def _capture_optimizer(value: torch.optim.Optimizer, path: str, blobs: Blobs) -> Node:
    inner = foreign(f"{path}.state_dict()", value.state_dict)
    if not isinstance(inner, dict) or not {"state", "param_groups"} <= inner.keys():
        raise StateError(
            f"{path}.state_dict() has no state and param_groups, as those of torch.optim have; "
            "put the optimiser that it wraps into the state"
        )
    sizes = ", ".join(str(len(group["params"])) for group in value.param_groups)
    blobs.need_target(value, path, f"{kind_of(value)} with groups of {sizes} parameters")
    return {
        "$object": "torch.Optimizer",
        "params": [[list(p.shape), str(p.device)] for p in _parameters(value)],
        "state": state.capture_part(inner, f"{path}.state_dict()", blobs),
        **attributes.capture(
            torch_attributes.of_optimizer(value),
            path,
            blobs,
            torch_attributes.framework([value], _tensors(value), why_refused, live=False),
        ),
    }


def _tensors(optimizer: torch.optim.Optimizer) -> Iterable[Any]:
    yield from _parameters(optimizer)
    for held in optimizer.state.values():
        if isinstance(held, dict):
            yield from held.values()


def _restore_optimizer(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    if not isinstance(target, torch.optim.Optimizer):
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a torch optimiser")
    params = list(_parameters(target))
    # Into the existing tensors: a second copy would be the trainer's peak of memory.
    olds = _fitting(target, node["state"], blobs)
    value = state.restore(olds, node["state"], f"{path}.state_dict()", blobs)
    theirs = [len(group["params"]) for group in value["param_groups"]]
    ours = [len(group["params"]) for group in target.param_groups]
    if theirs != ours:
        raise DoesNotFit(
            f"{path} has groups of {ours} parameters: the checkpoint's has {theirs}; "
            "a changed model is a new run"
        )
    for i, (param, (shape, _)) in enumerate(zip(params, node["params"], strict=True)):
        if list(param.shape) != shape:
            raise DoesNotFit(
                f"{path}: parameter {i} is {tuple(param.shape)}, the checkpoint's is "
                f"{tuple(shape)}; a changed model is a new run"
            )
    foreign(f"{path}.load_state_dict", target.load_state_dict, value, fits=True)
    # load_state_dict casts values to the parameters' dtype, and moves them.
    names = [name for group in value["param_groups"] for name in group["params"]]
    for param, name, (_, device) in zip(params, names, node["params"], strict=True):
        held = target.state.get(param, {})
        for key, saved in value["state"].get(name, {}).items():
            held[key] = _placed(saved, held.get(key), torch.device(device), param.device)
    attributes.restore(torch_attributes.of_optimizer(target), node, path, blobs)
    return target


def _fitting(target: torch.optim.Optimizer, node: Node, blobs: Blobs) -> dict[str, Any]:
    """The tensors of a live optimiser's state into which saved ones fit, by place."""
    nodes = dict(state.pairs(node["state"], ""))
    found: dict[Any, Any] = {}
    for name, held in target.state_dict()["state"].items():
        items = nodes.get(name)
        if isinstance(held, dict) and isinstance(items, dict):
            found[name] = {
                key: old for key, old in held.items() if _fits(old, items.get(key), blobs)
            }
    return {"state": found}


def _fits(old: Any, node: Any, blobs: Blobs) -> bool:
    if not (isinstance(old, torch.Tensor) and isinstance(node, dict) and "$tensor" in node):
        return False
    blob = blobs.items[node["$tensor"]]
    theirs = (blob.dtype, tuple(blob.shape), node.get("device", "cpu"), blob.order)
    ours = (_NAMES[old.dtype], tuple(old.shape), str(old.device), None)
    return ours == theirs and old.is_contiguous() and not isinstance(old, torch.nn.Parameter)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (param for group in optimizer.param_groups for param in group["params"])


def _placed(saved: Any, held: Any, was: torch.device, now: torch.device) -> Any:
    """A value of a parameter's state in its own dtype, on the parameter's device if it was there
    before.

    A number (Adam's step) stays on the device that load_state_dict chose for it.
    """
    if isinstance(saved, torch.Tensor):
        device = now if saved.device == was or was.type not in _devices() else saved.device
        if isinstance(held, torch.Tensor) and not saved.dim():
            device = held.device
        kept = isinstance(held, torch.Tensor) and (held.dtype, held.device) == (saved.dtype, device)
        return held if kept else saved.to(device)
    if isinstance(saved, list):
        return [_placed(item, None, was, now) for item in saved]
    return saved


# Random numbers


def _capture_global(path: str, blobs: Blobs) -> Node:
    states: list[torch.Tensor] = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    inner = state.capture(states, f"{path}.states", blobs)
    return {"$object": "torch.random", "state": inner}


def _restore_global(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    found = state.restore(MISSING, node["state"], f"{path}.states", blobs)
    if not found or not all(isinstance(item, torch.Tensor) for item in found):
        raise DoesNotFit(f"{path}: the checkpoint holds random numbers that are no tensors")
    cpu, *cuda = found
    if target is MISSING:
        target = torch.random
    if target is not torch.random:
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds torch.random")
    torch.set_rng_state(cpu)
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, item in enumerate(cuda[:here]):
        torch.cuda.set_rng_state(item, device)
    if len(cuda) > here:
        say(
            f"{path} holds the random numbers of {len(cuda)} GPUs, but this machine has "
            f"{here}; random numbers drawn on them will differ",
        )
    return target


def _restore_generator(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    value = state.restore(MISSING, node["state"], f"{path}.state", blobs)
    if target is MISSING:
        target = torch.Generator(node["device"])
    if not isinstance(target, torch.Generator):
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a torch.Generator")
    foreign(f"{path}.set_state", target.set_state, value, fits=True)
    return target
