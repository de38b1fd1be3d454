"""PyTorch: plain attributes and non-persistent buffers of modules and optimisers.

See outlast.loop.adapters.attributes for which are saved and which are refused.
"""

# The project's environment may lack PyTorch; a type checker would then resolve it to this file.
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false

from collections.abc import Callable, Iterable
from typing import Any

import torch

from outlast.loop.adapters.attributes import Framework, Owner, digest_of
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import MISSING, kind_of

_OF_MODULES = frozenset({*vars(torch.nn.Module()), "_is_torch_compile", "_compiled_call_impl"})
_OF_OPTIMIZERS = frozenset({*vars(torch.optim.SGD([torch.zeros(1)])), "step"})
"""Attributes that every optimiser has; a class or the program has added all others."""
_VALUES = (torch.dtype, torch.device, torch.Size, torch.Generator)


def of_modules(modules: Iterable[tuple[str, torch.nn.Module]]) -> dict[str, Owner]:
    """The attributes of a module and of the modules inside it, by name."""
    return {
        name: Owner(
            _held(module),
            lambda key, value, module=module: _put(module, key, value),
            _OF_MODULES,
        )
        for name, module in modules
    }


def of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Owner]:
    """The attributes that an optimiser's class has added."""
    held = {key: item for key, item in vars(optimizer).items() if key not in _OF_OPTIMIZERS}
    return {"": Owner(held, lambda key, value: _set(vars(optimizer), key, value), _OF_OPTIMIZERS)}


def framework(
    inside: Iterable[object],
    saved: Iterable[object],
    refused: Callable[[torch.Tensor], str | None],
    *,
    live: bool = True,
) -> Framework:
    """How to distinguish tensors and modules in attributes: objects ``inside`` the object itself,
    and tensors ``saved`` with it. ``live``: modules and optimisers may be kept."""
    known = {id(item) for item in inside}
    storages = {_storage(item) for item in saved if isinstance(item, torch.Tensor)} - {0}

    def is_kept(value: Any) -> bool | None:
        if isinstance(value, torch.Tensor):
            return refused(value) is None and _storage(value) not in storages
        if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
            return live and id(value) not in known
        return True if isinstance(value, _VALUES) else None

    def digest(value: Any) -> str | None:
        if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
            return type(value).__name__ if id(value) in known or not live else None
        if not isinstance(value, torch.Tensor):
            return None
        if _storage(value) in storages:
            return f"a view {tuple(value.shape)} of what is saved"
        return f"{value.dtype} {tuple(value.shape)} {_bits(value)}"

    return Framework(is_kept, digest)


def by_value(value: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it covers all of its memory and does not result from a computation, else
    a copy."""
    if _is_whole(value) and not repeats(value):
        return value if value.is_leaf else value.detach()
    return value.detach().clone(memory_format=torch.contiguous_format)


def repeats(value: torch.Tensor) -> bool:
    """Whether several elements share memory."""
    pairs = zip(value.stride(), value.shape, strict=True)
    return any(step == 0 and size > 1 for step, size in pairs)


def _is_whole(value: torch.Tensor) -> bool:
    return value.untyped_storage().nbytes() == value.nbytes


def _held(module: torch.nn.Module) -> dict[str, Any]:
    held = {key: item for key, item in vars(module).items() if key not in _OF_MODULES}
    loose = module._non_persistent_buffers_set
    return held | {key: item for key, item in module._buffers.items() if key in loose}


def _put(module: torch.nn.Module, key: str, value: Any) -> None:
    # Not setattr: a property or the class's own __setattr__ would run.
    if key in module._buffers and not isinstance(value, torch.Tensor | type(MISSING) | None):
        raise DoesNotFit(f"{key} is a buffer: the checkpoint holds {kind_of(value)}")
    _set(module._buffers if key in module._buffers else vars(module), key, value)


def _set(held: dict[str, Any], key: str, value: Any) -> None:
    if value is MISSING:
        del held[key]
    else:
        held[key] = value


def _storage(value: Any) -> int:
    try:
        return value.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, or without memory
        return 0


def _bits(value: torch.Tensor) -> str:
    try:
        value = value.detach()
        if value.layout != torch.strided:
            value = value.coalesce() if value.layout == torch.sparse_coo else value.to_sparse_coo()
            return f"{_bits(value.indices())} {_bits(value.values())}"
        flat = (value.int_repr() if value.is_quantized else value).cpu().contiguous().reshape(-1)
        return digest_of(bytes(flat.resolve_conj().resolve_neg().view(torch.uint8).numpy()))
    except (RuntimeError, NotImplementedError, TypeError):  # no values, as on the meta device
        return "unreadable"
