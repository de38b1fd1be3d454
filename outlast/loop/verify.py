"""Checks after a restore whether a state equals its snapshot.

Both sides are captures: nodes, and arrays in place. The snapshot's arrays are its mapped file and
the program's are its own memory, so a comparison needs no second copy of either.

A restored state may be on another device, have another memory order, be on a machine with fewer
GPUs, or be in a process whose layers have other numbers. ``check`` ignores such differences;
``prove``, which restores into the same objects that were saved, requires full equality.
"""

import ctypes
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from outlast.loop import snapshot, state
from outlast.loop.adapters import attributes
from outlast.loop.errors import DoesNotFit, StateError
from outlast.loop.snapshot import Saved
from outlast.loop.state import MISSING, Blob, Blobs, Node

_SMALL_BYTES = 1 << 12
_PIECE_BYTES = 1 << 16
"""Bytes compared at a time. Larger pieces exceed the processor's cache, and each gets its memory
from the system."""
_THREADED_BYTES = 1 << 26
_THREADS = min(4, os.cpu_count() or 1)
_ARRAYS = ("$array", "$tensor", "$jax", "$blob")

Capture = tuple[Mapping[str, Node], Blobs]


def check(
    values: Mapping[str, object],
    saved: Saved,
    *,
    names: Collection[str] | None = None,
) -> None:
    """Compare ``values``, or only ``names`` of them, with the snapshot that was restored into them.

    DoesNotFit names the first place that differs, because a run that resumes from there would not
    have the result of an uninterrupted one.
    """
    wanted = {name: node for name, node in saved.nodes.items() if names is None or name in names}
    # In the checkpoint's order, because a capture depends on which name of an object comes first.
    now = state.capture_all({name: values[name] for name in wanted})
    found = difference((wanted, saved.blobs), now, moved=True)
    if found is not None:
        raise DoesNotFit(
            f"{found} is not what the checkpoint of step {saved.step} holds, after it was "
            "restored; make its load_state_dict restore everything that its state_dict returns, or "
            "keep what it consists of in the state; the checkpoint stays as it is"
        )


def prove(
    values: Mapping[str, object],
    before: Capture,
    folder: Path,
    *,
    spare: snapshot.Spare | None = None,
) -> None:
    """Save ``before``, a capture of ``values``, into ``folder``, restore it and compare.

    StateError names an object that differs afterwards. OSError if there is no room; the caller
    removes the folder.
    """
    nodes, blobs = before
    snapshot.write(folder, Saved(0, {}, dict(nodes), blobs), spare=spare)
    if spare is not None:
        spare.unmap()  # else this process would map it twice
    saved = snapshot.read(folder)
    state.restore_all(values, saved.nodes, saved.blobs)
    found = difference((saved.nodes, saved.blobs), state.capture_all(values))
    if found is not None:
        raise StateError(
            f"{found} is not the same after it was saved and restored; "
            "make its load_state_dict restore everything that its state_dict returns"
        )


def difference(before: Capture, after: Capture, *, moved: bool = False) -> str | None:
    """The first place at which two captures of one state differ, such as ``state['box']['w']``, or
    None.

    ``moved``: the second one may be in another process, device or memory order.
    """
    return _Comparison(before[1], after[1], moved=moved).run(before[0], after[0])


class _Comparison:
    """Compares two captures: first the plain values, then the arrays in the order found."""

    def __init__(self, ones: Blobs, twos: Blobs, *, moved: bool) -> None:
        self._ones, self._twos, self._moved = ones.items, twos.items, moved
        self._pairs: dict[int, tuple[int, str]] = {}
        """For each array of the first capture, that of the second one and its path."""
        self._taken: set[int] = set()

    def run(self, before: Mapping[str, Node], after: Mapping[str, Node]) -> str | None:
        for name, node in before.items():
            found = self._walk(node, after.get(name, MISSING), f"state[{name!r}]")
            if found is not None:
                return found
        pairs = [(self._ones[a], self._twos[b], path) for a, (b, path) in self._pairs.items()]
        if sum(one.nbytes for one, _, _ in pairs) < _THREADED_BYTES:
            return _first_of(map(self._compare, pairs))
        with ThreadPoolExecutor(_THREADS) as pool:  # several processors get more memory bandwidth
            return _first_of(pool.map(self._compare_all, _shares(pairs)))

    def _compare_all(self, pairs: Iterable[tuple[Blob, Blob, str]]) -> str | None:
        return _first_of(map(self._compare, pairs))

    def _compare(self, pair: tuple[Blob, Blob, str]) -> str | None:
        one, two, path = pair
        return None if same(one, two, moved=self._moved) else path

    def _walk(self, one: Node, two: Node, path: str) -> str | None:
        one, two = state.itself(one), state.itself(two)
        if isinstance(one, dict) and isinstance(two, dict):
            if "attributes" in one and one.get("$object") in _WITH_ATTRIBUTES:
                one, two = attributes.alike(one, two)
            if self._moved:
                one, two = _placeless(one, two)
            one, two = state.without_history(one), state.without_history(two)
            if list(one) != list(two):
                return path
            # An attribute may have such a name too, but only a node has a number there.
            if key := next((key for key in _ARRAYS if type(one.get(key)) is int), None):
                return self._array(key, one, two, path)
            pairs = [(f"[{key!r}]", one[key], two[key]) for key in one]
            # Name the object, not the parts of its node, which people do not know.
            inside = any(key.startswith("$") for key in one)
        elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
            pairs = [(f"[{i}]", a, b) for i, (a, b) in enumerate(zip(one, two, strict=True))]
            inside = False
        else:
            # repr, not ==: 1, 1.0 and True are equal, and 0.0 equals -0.0
            return None if repr(one) == repr(two) else path
        for suffix, a, b in pairs:
            if found := self._walk(a, b, path if inside else path + suffix):
                return found
        return None

    def _array(
        self, key: str, one: Mapping[str, Any], two: Mapping[str, Any], path: str
    ) -> str | None:
        """Pair two arrays. One array in two places must still be one, and two must still be two;
        otherwise return the path."""
        if {**one, key: 0} != {**two, key: 0} or type(two[key]) is not int:
            return path
        ours, theirs = one[key], two[key]
        if ours not in self._pairs and theirs not in self._taken:
            self._pairs[ours] = theirs, path
            self._taken.add(theirs)
        return None if self._pairs.get(ours, (None, ""))[0] == theirs else path


def _shares(
    pairs: Sequence[tuple[Blob, Blob, str]],
) -> Iterator[Sequence[tuple[Blob, Blob, str]]]:
    """Consecutive pairs in shares of about equal size in bytes, about four for each thread."""
    share = sum(one.nbytes for one, _, _ in pairs) // (4 * _THREADS)
    since = size = 0
    for i, (one, _, _) in enumerate(pairs, 1):
        size += one.nbytes
        if size > share or i == len(pairs):
            yield pairs[since:i]
            since, size = i, 0


def _first_of(found: Iterable[str | None]) -> str | None:
    return next((path for path in found if path is not None), None)


def _placeless(one: dict[str, Any], two: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both nodes without the parts that depend on the device, the process and so on."""
    kind = one.get("$object")
    if kind is not None and kind == two.get("$object"):
        one, two = _KINDS.get(kind, lambda a, b: (a, b))(dict(one), dict(two))
    if "$tensor" in one or "$jax" in one or kind is not None:
        one = {key: item for key, item in one.items() if key != "device"}
        two = {key: item for key, item in two.items() if key != "device"}
    return one, two


Nodes = tuple[dict[str, Any], dict[str, Any]]


def _module(one: dict[str, Any], two: dict[str, Any]) -> Nodes:
    """Ignores the versions of classes and the order of names."""
    for node in (one, two):
        node.pop("versions")
        node["entries"] = dict(sorted(node["entries"].items()))
    return one, two


def _optimizer(one: dict[str, Any], two: dict[str, Any]) -> Nodes:
    """Ignores additional group settings, which later versions of PyTorch have."""
    for node in (one, two):
        node["params"] = [shape for shape, _ in node["params"]]
    ours, theirs = one["state"].get("param_groups"), two["state"].get("param_groups")
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        groups = [
            {key: group[key] for key in old if key in group}
            for old, group in zip(ours, theirs, strict=True)
        ]
        two["state"] = {**two["state"], "param_groups": groups}
    return one, two


def _random(one: dict[str, Any], two: dict[str, Any]) -> Nodes:
    """Ignores random numbers of GPUs that only one of the machines has."""
    both = min(len(one["state"]), len(two["state"]))
    return {**one, "state": one["state"][:both]}, {**two, "state": two["state"][:both]}


def _keras(one: dict[str, Any], two: dict[str, Any]) -> Nodes:
    """Ignores the numbers that Keras gives to layers, and metrics, which Keras makes with the first
    batch, if only one side has them."""
    if len(one.get("metrics", ())) != len(two.get("metrics", ())):
        for node in (one, two):
            node.pop("metrics", None)
    for node in (one, two):
        for part in ("variables", "metrics"):
            if part in node:
                node[part] = [{**item, "path": _role(item["path"])} for item in node[part]]
    return one, two


def _role(path: str) -> str:
    return re.sub(r"_\d+", "", path.rpartition("/")[2])


_WITH_ATTRIBUTES = (
    *("torch.Module", "torch.Optimizer"),
    *("keras.Layer", "keras.Metric", "keras.Optimizer"),
)
_KINDS = {
    "torch.Module": _module,
    "torch.Optimizer": _optimizer,
    "torch.random": _random,
    **{
        f"keras.{name}": _keras
        for name in ("Layer", "Optimizer", "Metric", "SeedGenerator", "Variable")
    },
}


# Bytes


def same(a: Blob, b: Blob, *, moved: bool = False) -> bool:
    """Whether two arrays are equal bit by bit; ``moved``: in any memory order."""
    if (a.dtype, tuple(a.shape), a.nbytes) != (b.dtype, tuple(b.shape), b.nbytes):
        return False
    if a.order == b.order:
        return same_bytes(a.data, b.data)
    return moved and same_bytes(_in_c_order(a), _in_c_order(b))


def same_bytes(a: memoryview | bytes, b: memoryview | bytes) -> bool:
    """Whether two buffers of equal size are equal, without a copy of either."""
    one, two = memoryview(a), memoryview(b)
    size = len(one)
    if size <= _SMALL_BYTES:
        return bytes(one) == bytes(two)
    if not (one.readonly or two.readonly):
        kind = ctypes.c_char * size
        return not _memcmp(kind.from_buffer(one), kind.from_buffer(two), size)
    return all(  # bytes, because memoryviews compare element by element
        bytes(one[at : at + _PIECE_BYTES]) == bytes(two[at : at + _PIECE_BYTES])
        for at in range(0, size, _PIECE_BYTES)
    )


def _memcmp_of_libc() -> Any:
    found = ctypes.CDLL(None).memcmp
    found.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return found


_memcmp = _memcmp_of_libc()


def _in_c_order(blob: Blob) -> memoryview:
    """A copy of one array's bytes in C order."""
    order = range(len(blob.shape)) if blob.order is None else blob.order
    count = 1
    for size in blob.shape:
        count *= size
    inner = [*(blob.shape[i] for i in order), blob.nbytes // max(count, 1)]
    back = [*(list(order).index(i) for i in range(len(inner) - 1)), len(inner) - 1]
    if "numpy" in sys.modules:
        import numpy as np

        flat = np.frombuffer(blob.data, np.uint8).reshape(inner).transpose(back)
        return np.ascontiguousarray(flat).reshape(-1).data
    import torch  # type: ignore[import-not-found]  # else the array is a tensor

    flat = torch.frombuffer(blob.data, dtype=torch.uint8).reshape(inner).permute(back).contiguous()
    return memoryview(bytes(flat.flatten().tolist()))
