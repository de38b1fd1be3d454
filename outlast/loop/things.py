"""Objects that a program may hold and must save: generators, optimisers and so on.

This module finds the kind of such an object, a mark to detect changes, and whether a state has
everything that would be saved of it.
"""

import functools
import hashlib
import random
import sys
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

from outlast.loop import frameworks, generators, leaves, state
from outlast.loop.generators import Held, Position


def kind(value: Any) -> str | None:
    """The kind of an object that must be saved, for messages; None for all others."""
    try:
        known = not isinstance(value, type) and (
            generator_position(value) is not None or _is_stateful(value)
        )
    except Exception:  # foreign code, such as a proxy's
        return None
    return f"a {state.kind_of(value)}" if known else None


def _is_stateful(value: Any) -> bool:
    cls = type(value)
    library = cls.__module__.partition(".")[0]
    if all(callable(getattr(cls, name, None)) for name in ("state_dict", "load_state_dict")):
        return True
    sklearn: Any = sys.modules.get("sklearn.base")
    keras: Any = sys.modules.get("keras")
    xgboost: Any = sys.modules.get("xgboost")
    if library == "xgboost" and isinstance(value, getattr(xgboost, "Booster", ())):
        return True
    return (sklearn is not None and isinstance(value, sklearn.BaseEstimator)) or (
        keras is not None
        and isinstance(value, keras.optimizers.Optimizer | keras.Layer)
        and bool(value.built)
    )


def generator_position(value: Any) -> Position | None:
    """The position of a random generator; None for other objects and for the process's global
    generators."""
    cls = type(value)
    if isinstance(value, random.Random):
        own = value is not getattr(random, "_inst", None)
        return generators.of_random(value) if own and _draws_again(value) else None
    library = cls.__module__.partition(".")[0]
    if library == "numpy":
        return _of_numpy(value)
    torch: Any = sys.modules.get("torch")
    if library == "torch" and torch is not None and isinstance(value, torch.Generator):
        return None if _is_default(value, torch) else generators.of_torch(value.get_state())
    keras: Any = sys.modules.get("keras")
    if library == "keras" and isinstance(value, keras.random.SeedGenerator):
        own = value is not frameworks.adapter("keras").global_generator()
        return generators.of_keras(value) if own else None
    return None


def _draws_again(value: random.Random) -> bool:
    return not isinstance(value, random.SystemRandom)


def _of_numpy(value: Any) -> Position | None:
    numpy: Any = sys.modules["numpy"]
    value = token_of(value)
    if not isinstance(value, numpy.random.BitGenerator):
        return None
    own = value is not numpy.random.mtrand._rand._bit_generator
    return generators.of_numpy(value.state) if own else None


def _is_default(value: Any, torch: Any) -> bool:
    return value is torch.default_generator or any(
        value is each for each in torch.cuda.default_generators
    )


def token_of(value: Any) -> Any:
    """The object that all objects with a shared position have in common."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return value.bit_generator
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return value._bit_generator
    return value


def reference(value: Any, token: Any) -> Callable[[], Any]:
    """A weak reference if possible, because the number of strong ones shows how the program uses an
    object; else a reference to ``token``."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: token


def mark(value: Any) -> Any:
    """A mark of an object's current contents, for comparison; None if that is impossible."""
    position = generator_position(value)
    if position is not None:
        return hash(position)
    found = leaves.of(value, thin=True)
    if found is None:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for leaf in sorted(found):
        digest.update(leaf.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


class Saved:
    """The contents of the states in any form; they are captured on first use."""

    def __init__(self, states: Collection[Mapping[str, object]]) -> None:
        self._states = states

    @functools.cached_property
    def _captures(self) -> list[Any]:
        return [state.capture_all(values) for values in self._states]

    @functools.cached_property
    def owned(self) -> dict[str, Any]:
        """Objects with their own ``state_dict``, by path."""
        return {path: item for _, blobs in self._captures for path, item in blobs.owned.items()}

    @functools.cached_property
    def loose(self) -> dict[str, Any]:
        """Contents of modules' attributes that cannot be saved, by path."""
        return {path: item for _, blobs in self._captures for path, item in blobs.loose.items()}

    @functools.cached_property
    def _objects(self) -> dict[int, Any]:
        kept = [item for _, blobs in self._captures for item in blobs.keep]
        return {id(token): token for token in map(token_of, kept)}

    def has_object(self, token: Any) -> bool:
        """Whether the object itself is in the states."""
        return id(token) in self._objects

    @functools.cached_property
    def leaves(self) -> set[str]:
        """All saved values, each with its name."""
        return {
            leaf
            for nodes, blobs in self._captures
            for node in nodes.values()
            for leaf in leaves.of_node(node, blobs.items)
        }

    @functools.cached_property
    def _held(self) -> Held:
        return Held.by(self._states)

    def has(self, value: Any) -> bool:
        """Whether the states have everything that would be saved of an object."""
        position = generator_position(value)
        if position is not None:
            return self._held.has(position)
        found = leaves.of(value)
        return found is None or found <= self.leaves
