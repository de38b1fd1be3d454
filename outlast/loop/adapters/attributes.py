"""Plain attributes of a framework's objects, which their own ``state_dict()`` does not have.

A module may count in ``self.steps``, collect in a list, keep a moving average in a tensor that is
not a buffer, or draw from its own generator. Such attributes are saved with their object and
restored, in place if possible. A view, or the result of a computation, is saved by its values.

A number or a string that still has its value from the program's start is not saved: it may name the
machine's device. An object of another kind cannot be saved; its contents are compared with those at
the start, and a change is refused with the name of its place, unless the state holds that object
elsewhere too. In a library's object only arrays count, because it may keep statistics.
"""

import enum
import hashlib
import random
import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.loop import classes, frameworks, state
from outlast.loop.errors import DoesNotFit
from outlast.loop.nodes import place_of
from outlast.loop.state import MISSING, Blobs, Node

_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_DICTS = (dict, OrderedDict, Counter, defaultdict)
_LISTS = (list, tuple, deque, set, frozenset)
_CODE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    weakref.ReferenceType,
)
"""Types that hold no values of a training."""
_OBJECTS_MAX = 10_000
"""The most values to look at in objects that cannot be saved."""
_DEPTH_MAX = 50


@dataclass
class Framework:
    """How to distinguish a framework's values, for the attributes of one object."""

    is_kept: Callable[[Any], bool | None]
    """Whether a value of the framework can be saved here; None if it is not the framework's."""
    digest: Callable[[Any], str | None]
    """The current digest of a value that cannot be saved; None if it is not the framework's."""


@dataclass
class Owner:
    """One of the framework's objects, and its attributes by name."""

    held: dict[str, Any]
    put: Callable[[str, Any], None]
    """Set an attribute; MISSING removes it."""
    kept: Container[str] = ()
    """The framework's own attributes, which no checkpoint has."""


Owners = Mapping[str, Owner]


def capture(owners: Owners, path: str, blobs: Blobs, framework: Framework) -> dict[str, Node]:
    """The part of a node that holds the attributes; {} if there are none."""
    found: dict[str, dict[str, Node]] = {}
    texts: dict[str, dict[str, str | None]] = {}
    look = _Look(blobs, framework)
    with blobs.values_only():
        for owner, each in owners.items():
            for name, value in each.held.items():
                place = place_of(path, owner, name)
                texts.setdefault(owner, {})[name] = _text(value)
                if _is_kept(value, framework, blobs):
                    node = state.capture(value, place, blobs)
                    found.setdefault(owner, {})[name] = node
                else:
                    look.at(value, place)
                    blobs.loose[place] = value
    look.compare(path)
    # Noted even if there are none, so that an attribute that appears later is recognised as new.
    before = blobs.noted(f"{path} attributes", texts)
    if not texts and not before:
        return {}
    if blobs.begun is None:  # the start is unknown, so nothing can be left to the program
        return {"attributes": found}
    changed = {
        owner: {
            name: node
            for name, node in nodes.items()
            if texts[owner][name] is None or before.get(owner, {}).get(name) != texts[owner][name]
        }
        for owner, nodes in found.items()
    }
    gone = {
        owner: sorted(names.keys() - texts.get(owner, {}).keys())
        for owner, names in before.items()
        if owner in owners and names.keys() - texts.get(owner, {}).keys()
    }
    kept = {owner: nodes for owner, nodes in changed.items() if nodes}
    return {"attributes": kept, **({"began": {"gone": gone}} if gone else {})}


def restore(owners: Owners, node: Any, path: str, blobs: Blobs) -> None:
    """Give the live objects the attributes of a node."""
    for owner, name, item in _all(node):
        place = place_of(path, owner, name)
        if owner not in owners:
            raise DoesNotFit(f"{path} has no {owner}: the checkpoint holds {place}")
        if name in owners[owner].kept or (name.startswith("__") and name.endswith("__")):
            raise DoesNotFit(
                f"{place}: the checkpoint holds it as an attribute, and it belongs to the class"
            )
        old = owners[owner].held.get(name, MISSING)
        new = state.restore(old, item, place, blobs)
        if new is not old:
            owners[owner].put(name, new)
    for owner, names in node.get("began", {}).get("gone", {}).items():
        for name in names:
            each = owners.get(owner)
            if each is not None and name in each.held and name not in each.kept:
                each.put(name, MISSING)


def are_any(owners: Owners) -> bool:
    """Whether there is an attribute that training may change, other than flags and names."""
    flags = (type(None), bool, str)
    return any(type(item) not in flags for each in owners.values() for item in each.held.values())


def parts(owners: Owners, node: Any, path: str) -> Iterator[tuple[Any, Node, str]]:
    """The live attributes at the places in a node."""
    for owner, name, item in _all(node):
        if owner in owners:
            yield owners[owner].held.get(name, MISSING), item, place_of(path, owner, name)


def alike(one: dict[str, Any], two: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both nodes of one object; the second omits what the first (saved) one leaves to the
    program."""
    saved, now = one.get("attributes", {}), two.get("attributes", {})
    both = {
        owner: {name: now.get(owner, {})[name] for name in held if name in now.get(owner, {})}
        for owner, held in saved.items()
    }
    return {**one, "attributes": saved}, {**two, "attributes": both}


def _all(node: Any) -> Iterator[tuple[str, str, Node]]:
    for owner, held in node.get("attributes", {}).items():
        for name, item in held.items():
            yield owner, name, item


def _text(value: Any) -> str | None:
    """The text of a value that can be left to the program (number, string, device), else None."""
    if type(value) in _SCALARS or isinstance(value, enum.Enum):
        return repr(value)
    if type(value).__module__ == "torch" and type(value).__name__ in ("device", "dtype", "Size"):
        return repr(value)
    return None


def digest_of(data: Any) -> str:
    """A digest of raw bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


# What can be saved


def _is_kept(value: Any, framework: Framework, blobs: Blobs, depth: int = 0) -> bool:
    kind = type(value)
    if kind in _SCALARS or isinstance(value, enum.Enum):
        return True
    if id(value) in blobs.open or depth > _DEPTH_MAX:
        return False
    found = framework.is_kept(value)
    if found is not None:
        return found
    if kind in _DICTS or kind in _LISTS or classes.is_plain(kind):
        if kind is defaultdict and value.default_factory not in (None, int, float, list, dict, set):
            return False
        inside = _inside(value)
        keys = value.keys() if kind in _DICTS else ()
        return all(_is_key(key) for key in keys) and all(
            _is_kept(item, framework, blobs, depth + 1) for _, item in inside
        )
    return _is_array(value) or _is_random(value) or frameworks.has_state_dict(value)


def _is_key(key: Any) -> bool:
    return (
        type(key) in _SCALARS
        or isinstance(key, enum.Enum)
        or (type(key) is tuple and all(map(_is_key, key)))
    )


def _is_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return False
    if isinstance(value, numpy.generic):
        return True
    return type(value) is numpy.ndarray and not value.dtype.hasobject


def _is_random(value: Any) -> bool:
    if type(value) is random.Random:
        return True
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and type(value) in (numpy.random.Generator, numpy.random.RandomState)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """The values in a container or an object, with the end of their path."""
    if isinstance(value, dict):
        for key, item in dict.items(value):
            yield f"[{str(key)[:80]!r}]", item
    elif isinstance(value, set | frozenset):
        yield "", tuple(value) if all(map(_is_key, value)) else ()
    elif isinstance(value, list | tuple | deque):
        for i, item in enumerate(value):
            yield f"[{i}]", item
    for name, item in classes.attributes(value).items():
        yield f".{name}", item


# What cannot be saved


@dataclass
class _Look:
    """The contents of attributes that cannot be saved, by place."""

    blobs: Blobs
    framework: Framework
    found: dict[str, str] = field(default_factory=dict)
    chains: dict[str, tuple[list[int], int]] = field(default_factory=dict)
    _seen: dict[int, Any] = field(default_factory=dict)

    def at(self, value: Any, place: str, chain: tuple[int, ...] = (), own: bool = True) -> None:
        if len(self._seen) >= _OBJECTS_MAX or len(chain) > _DEPTH_MAX or isinstance(value, _CODE):
            return
        text = _text(value)
        if text is not None:
            if own:
                self._note(place, text, chain)
            return
        if id(value) in self._seen or id(value) in self.blobs.open:
            return
        self._seen[id(value)] = value
        chain = (*chain, id(value))
        if (digest := self.framework.digest(value)) is not None:
            self._note(place, digest, chain, getattr(value, "data_ptr", lambda: 0))
        elif (digest := _digest_of_array(value)) is not None:
            address = getattr(value, "__array_interface__", {"data": (0,)})["data"][0]
            self._note(place, digest, chain, lambda: address)
        elif _is_random(value):
            numbers = (
                value.bit_generator.state
                if hasattr(value, "bit_generator")
                else (value.get_state() if hasattr(value, "get_state") else value.getstate())
            )
            self._note(place, digest_of(repr(numbers).encode()), chain)
        else:
            own = own and (isinstance(value, (*_DICTS, *_LISTS)) or classes.is_own(type(value)))
            if own and isinstance(value, (*_DICTS, *_LISTS)):
                self._note(f"len({place})", str(len(value)), chain)
            for suffix, item in _inside(value):
                self.at(item, place + suffix, chain, own)

    def _note(
        self, place: str, text: str, chain: tuple[int, ...], address: Callable[[], int] = lambda: 0
    ) -> None:
        self.found[place] = text
        try:
            start = address()
        except RuntimeError:  # a tensor without memory
            start = 0
        self.chains[place] = ([*chain], start)

    def compare(self, path: str) -> None:
        """Note the places, or those that have changed since the program started."""
        before: dict[str, str] = self.blobs.noted(f"{path} watched", self.found)
        if before is self.found:
            return
        for place in [*self.found, *(gone for gone in before if gone not in self.found)]:
            if self.found.get(place) != before.get(place):
                chain, address = self.chains.get(place, ([], 0))
                self.blobs.suspect(
                    chain,
                    address,
                    f"{place} changes during training, and is in an object that cannot be saved; "
                    "give that object state_dict() and load_state_dict() and put it into the "
                    "state, or keep the value in a number, an array, a list or a dict of the class"
                    " itself",
                )


def _digest_of_array(value: Any) -> str | None:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic):
        return None
    if value.dtype.hasobject:
        return f"{value.dtype} {value.shape}"
    return f"{value.dtype} {value.shape} {digest_of(numpy.ascontiguousarray(value).data)}"
