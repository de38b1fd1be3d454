"""numpy's random generators: their states and the seeds on which ``spawn()`` depends.

The module ``numpy.random`` itself represents its global generator. A state is checked before numpy
gets it, because numpy does not check the position in its table of random words and would read out
of bounds.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from outlast.loop import state
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import MISSING, Blobs, Node

_GENERATORS = {
    cls.__name__: cls
    for cls in (
        *(np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM),
        *(np.random.Philox, np.random.SFC64),
    )
}
_WORDS = {"MT19937": (624, "pos", 624), "Philox": (4, "buffer_pos", 4)}
"""For generators that keep random words: their number, and the name and upper bound of the
position."""
_POOL_MAX = 1024
_SPAWNED_MAX = 1 << 16
"""More children than this are not spawned one by one: a new sequence gets their count."""


def capture(value: Any, path: str, blobs: Blobs) -> Node:
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
    return MISSING


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    match node["$object"]:
        case "numpy.Generator":
            return _restore_generator(target, node, path, blobs)
        case "numpy.BitGenerator":
            return _restore_bit_generator(target, node, path, blobs)
        case "numpy.SeedSequence":
            seeds = state.restore(MISSING, node["state"], path, blobs)
            _check_seeds(seeds, path)
            return _restore_seeds(target, seeds)
    value = state.restore(MISSING, node["state"], f"{path}.state", blobs)
    _check(value, path)
    if target is MISSING:
        target = np.random if node.get("module") else np.random.RandomState()
    if not isinstance(target, np.random.RandomState) and target is not np.random:
        raise DoesNotFit(
            f"{path} is {type(target).__name__}: the checkpoint holds a numpy RandomState"
        )
    target.set_state(value)
    return target


def parts(target: Any, node: Any, path: str) -> Iterator[tuple[Any, Node, str]]:
    """The live bit generator of a generator."""
    if node["$object"] == "numpy.Generator" and isinstance(target, np.random.Generator):
        yield target.bit_generator, node["state"], f"{path}.bit_generator"


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
    _check(value, path)
    if seeds is not None:
        _check_seeds(seeds, path)
    theirs = value["bit_generator"]
    if target is MISSING:
        if theirs not in _GENERATORS:
            raise DoesNotFit(f"{path}: this version of numpy has no generator {theirs}")
        target = _GENERATORS[theirs]()
    ours = type(target).__name__
    if theirs != ours:
        raise DoesNotFit(f"{path} is a {ours} generator: the checkpoint holds a {theirs}")
    if seeds is None or _seeds(target) == seeds:
        target.state = value
    else:  # the results of its spawn() are part of the state
        target.__setstate__((value, _restore_seeds(MISSING, seeds)))
    return target


def _seeds(generator: Any) -> dict[str, Any] | None:
    """The seeds on which the children of a generator depend."""
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
    """A seed sequence that has spawned as many children; ``target`` itself if possible."""
    if type(target) is np.random.SeedSequence:
        missing = value["n_children_spawned"] - target.n_children_spawned
        if 0 <= missing <= _SPAWNED_MAX and {**_seed_state(target), **_spawned(value)} == value:
            target.spawn(missing)
            return target
    return np.random.SeedSequence(**value)


def _spawned(value: dict[str, Any]) -> dict[str, Any]:
    return {"n_children_spawned": value["n_children_spawned"]}


def _check(value: Any, path: str) -> None:
    """Raise DoesNotFit unless the value is a valid state of a generator of random words."""
    name = value.get("bit_generator") if isinstance(value, dict) else None
    inner = value.get("state") if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(inner, dict):
        raise DoesNotFit(f"{path}: the checkpoint holds random numbers that are none of numpy's")
    if name in _WORDS:
        count, place, end = _WORDS[name]
        held = value if name == "Philox" else inner
        words, at = held.get("buffer" if name == "Philox" else "key"), held.get(place)
        fits = isinstance(words, np.ndarray) and words.shape == (count,)
        if not fits or type(at) is not int or not 0 <= at <= end:
            raise DoesNotFit(f"{path}: the checkpoint holds a {name} at word {at!r} of {count}")


def _check_seeds(value: Any, path: str) -> None:
    names = {"entropy", "spawn_key", "pool_size", "n_children_spawned"}
    fits = isinstance(value, dict) and value.keys() == names
    if not fits or not (
        _is_entropy(value["entropy"])
        and isinstance(value["spawn_key"], tuple | list)
        and all(type(item) is int and 0 <= item < 1 << 64 for item in value["spawn_key"])
        and type(value["pool_size"]) is int
        and 4 <= value["pool_size"] <= _POOL_MAX
        and type(value["n_children_spawned"]) is int
        and 0 <= value["n_children_spawned"] < 1 << 32
    ):
        raise DoesNotFit(f"{path}: the checkpoint holds a sequence of seeds that is none")


def _is_entropy(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_entropy, value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iu" and value.ndim == 1
    if isinstance(value, np.integer):
        return True
    return value is None or (type(value) is int and value >= 0)
