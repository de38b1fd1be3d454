"""The values of which an object's saved state consists, to check whether another state has them
all.

A number or a text includes the name under which it is saved; an array is a digest of samples.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from outlast.loop import frameworks, state
from outlast.loop.state import Blob, Node

SAMPLE_BYTES = 4096


def of(value: Any, *, thin: bool = False) -> set[str] | None:
    """The values of an object's saved state, each with its name; None if it cannot be saved.
    ``thin``: fetch only samples of tensors on a device."""
    try:
        parts = _as_saved(value)
        parts = (
            dict(parts) if isinstance(parts, Mapping) else parts
        )  # its own class does not matter
        nodes, blobs = state.capture_all({"it": {"parts": _thinned(parts) if thin else parts}})
    except Exception:  # foreign code; the capture for a snapshot refuses what cannot be saved
        return None
    return set(of_node(nodes["it"], blobs.items))


def _as_saved(value: Any) -> Any:
    """An object, or its ``state_dict()`` if it has one."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        return frameworks.adapter("torch").unwrapped(value).state_dict()
    return value.state_dict() if frameworks.has_state_dict(value) else value


def _thinned(value: Any) -> Any:
    """A ``state_dict()`` with samples of the tensors on a device."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return value
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu" or value.numel() <= 4 * SAMPLE_BYTES:
            return value
        flat, middle = value.detach().reshape(-1), value.numel() // 2
        return torch.cat([flat[at : at + 1024] for at in (0, middle, value.numel() - 1024)])
    if isinstance(value, dict):
        return {key: _thinned(item) for key, item in value.items()}
    return [_thinned(item) for item in value] if type(value) in (list, tuple) else value


def of_node(node: Node, blobs: list[Blob]) -> Iterator[str]:
    """The values in a captured node."""
    yield from _leaves(node, "", blobs)


def _leaves(node: Any, key: str, blobs: list[Blob]) -> Iterator[str]:
    if isinstance(node, dict):
        index = next((node[name] for name in _BLOBS if name in node), None)
        if isinstance(index, int):
            yield f"array {_sample(blobs[index])}"
            return
        for name, item in node.items():
            if not (name.startswith("$") and isinstance(item, str)):
                yield from _leaves(item, key if name.startswith("$") else name, blobs)
    elif isinstance(node, list):
        for item in node:
            yield from _leaves(item, key, blobs)
    else:
        yield f"{key}={json.dumps(node)}"


_BLOBS = ("$array", "$tensor", "$jax", "$blob")


def _sample(blob: Blob) -> str:
    """A digest of an array, or of samples of a large one."""
    data = memoryview(blob.data)
    digest = hashlib.blake2b(str(len(data)).encode(), digest_size=16)
    if len(data) <= 4 * SAMPLE_BYTES:
        digest.update(data)
    else:
        last = len(data) - SAMPLE_BYTES
        for at in (0, last // 3, last // 2, last):
            digest.update(data[at : at + SAMPLE_BYTES])
    return digest.hexdigest()
