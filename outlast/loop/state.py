"""Turns the state of a training into plain data, and restores it into live objects.

``capture`` turns an object into a *node*, a JSON value in which arrays are references into a list
of raw blobs. ``restore`` puts a node back, in place if the target can be changed in place, so that
references between objects (an optimiser's to its parameters) survive. There is no pickle: only
kinds listed here and in the adapters can be saved, and all others are refused by name.

Nodes: null, booleans, integers, finite floats, strings, lists and objects with plain keys are
themselves; anything else is an object with one ``$`` key: ``$float``, ``$bytes``, ``$tuple``,
``$dict``, ``$same`` (an earlier object, by its path), ``$value`` (an immutable Python value),
``$array`` and ``$scalar`` (numpy), ``$tensor`` (torch), ``$jax`` (a JAX array), ``$object`` (an
object with its own state, named by its adapter), ``$new`` (an object that has taken the place of
another one from the program's start; see outlast.loop.start).

One object in two places is saved once and restored as one object. Two arrays are one if they have
the same memory with the same layout; arrays that overlap in any other way are refused.

An adapter is a module of outlast.loop.adapters. It must have ``capture`` and ``restore``, and may
have ``describe`` (an object's kind, with properties that a restore cannot change, such as a shape),
``is_immutable`` (a restore makes another object) and ``parts`` (pairs a live object's parts with
those of a node, to find the live object for one at two places).
"""

import base64
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from outlast.loop import classes, nodes
from outlast.loop.blobs import DEPTH_MAX, MISSING, Blob, Blobs, Memory, Node, kind_of
from outlast.loop.errors import DoesNotFit, LoopError, StateError
from outlast.loop.frameworks import ADAPTERS, adapter, containers, has_state_dict, loaded
from outlast.loop.nodes import AS_IS, at_key, shown
from outlast.loop.start import Start

__all__ = [
    "MISSING",
    "Blob",
    "Blobs",
    "Memory",
    "Node",
    "at_key",
    "kind_of",
]  # adapters need these too

INLINE_BYTES = 256
"""Longer ``bytes`` are among the arrays, not in the JSON."""
_INT_BITS = 10_000
"""Longer numbers are not JSON numbers, because Python reads and writes at most 4300 decimal
digits."""
_INT_MAX = 1 << 64
_NAMES_SHOWN = 300


_LEAVES = {"$value": "values", "$array": "numpy", "$scalar": "numpy"}
_LEAVES |= {"$tensor": "torch", "$jax": "jax"}
_ARRAYS = ("$array", "$tensor", "$jax")
_MARKS = frozenset({"$float", "$bytes", "$tuple", "$dict", "$same", "$object", "$new", *_LEAVES})
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
"""Types whose values a restore always replaces."""


def check_top(state: Mapping[str, object]) -> None:
    """Raise StateError for values that could be saved but not restored, because they cannot change
    in place."""
    if not state:
        raise StateError("state is empty: name the objects to save, such as {'model': model}")
    adapters = loaded()
    for name, value in state.items():
        if not isinstance(name, str) or not name:
            raise StateError(f"state key {name!r}: must be a non-empty string")
        plain = isinstance(value, (*_PLAIN, tuple))
        if plain or any(getattr(each, "is_immutable", _no)(value) for each in adapters):
            said = " ".join(shown(value).split())
            raise StateError(
                f"state[{name!r}] is {said}, which cannot be restored in place; keep it in a dict "
                f"of your program, such as box = {{{name!r}: …}} with state={{'box': box}}, and "
                f"read and change it there: box[{name!r}] = …"
            )


def survey(state: Mapping[str, object]) -> Start:
    """The objects that the program's start has built; call it before any restore."""
    found = Start()
    _capture_all(state, Blobs(adapters=loaded(), survey=found))
    return found


def capture_all(
    state: Mapping[str, object], begun: Start | None = None
) -> tuple[dict[str, Node], Blobs]:
    """The nodes of every named object, and their arrays.

    The arrays are not copied, so they must not change before the blobs are written. ``begun`` is
    the survey of this program's start; with it, a StateError names an object that a resumed program
    could not restore.
    """
    blobs = Blobs(adapters=loaded(), begun=begun)
    found = _capture_all(state, blobs)
    blobs.refuse_late()
    blobs.refuse_overlaps()
    return found, blobs


def capture_new(values: Mapping[str, object]) -> tuple[dict[str, Node], Blobs]:
    """Like ``capture_all``, for ``restore_new``: StateError for an object that only a program could
    restore."""
    blobs = Blobs(adapters=loaded())
    blobs.is_alone = True
    with blobs.without_target():
        found = {name: capture(value, name, blobs) for name, value in values.items()}
    blobs.refuse_overlaps()
    return found, blobs


def _capture_all(state: Mapping[str, object], blobs: Blobs) -> dict[str, Node]:
    return {name: capture(value, f"state[{name!r}]", blobs) for name, value in state.items()}


def restore_all(state: Mapping[str, object], found: Mapping[str, Node], blobs: Blobs) -> None:
    """Put every node into the object of its name; DoesNotFit if the names differ."""
    if missing := sorted(set(found) - set(state)):
        raise DoesNotFit(
            f"state: the checkpoint holds {_few(missing)}, which this program's state "
            "lacks; a changed program is a new run"
        )
    if missing := sorted(set(state) - set(found)):
        raise DoesNotFit(
            f"state: the program has {', '.join(missing)}, which the checkpoint does not hold; "
            "a changed program is a new run"
        )
    restore_named(state, found, blobs, found)


def _few(names: list[str]) -> str:
    """Names from a checkpoint as text, shortened because it may contain many or long ones."""
    text = ", ".join(names)
    return text if len(text) <= _NAMES_SHOWN else f"{text[:_NAMES_SHOWN]}…"


def restore_new(found: Mapping[str, Node], blobs: Blobs) -> dict[str, Any]:
    """Every node as a new object, without a program: numbers, containers, arrays, and objects of
    the adapters' listed classes."""
    nodes.check(found.items(), blobs, restore_key)
    blobs.adapters = blobs.adapters or loaded()
    blobs.is_alone = True
    return {name: restore(MISSING, node, name, blobs) for name, node in found.items()}


def restore_named(
    state: Mapping[str, object], found: Mapping[str, Node], blobs: Blobs, names: Collection[str]
) -> None:
    """Put the nodes of these names into the objects; DoesNotFit if one is not in the checkpoint."""
    if missing := sorted(set(names) - set(found)):
        raise DoesNotFit(
            f"state: the program has {', '.join(missing)}, which the checkpoint does not hold; "
            f"it holds {_few(sorted(found))}"
        )
    blobs.adapters = blobs.adapters or loaded()
    chosen = {name: node for name, node in found.items() if name in names}
    places = {f"state[{name!r}]": name for name in chosen}
    met = nodes.check(((path, chosen[name]) for path, name in places.items()), blobs, restore_key)
    for path, name in places.items():
        if met.elsewhere or path in met.objects:
            _find_homes(state[name], chosen[name], path, blobs)
    for name, node in chosen.items():  # in the checkpoint's order, because $same refers back
        path, target = f"state[{name!r}]", state[name]
        if restore(target, node, path, blobs) is not target:
            raise DoesNotFit(
                f"{path} is {kind_of(target)}: the checkpoint holds something else, or one object "
                "under several names that are several objects here, or vice versa"
            )


def capture(value: object, path: str, blobs: Blobs) -> Node:
    """The node of one value; StateError naming ``path`` if it cannot be saved."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int and value.bit_length() <= _INT_BITS:  # type: ignore[attr-defined]
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}  # type: ignore[arg-type]
    if kind is bytes:
        return _capture_bytes(value, path, blobs)  # type: ignore[arg-type]
    if blobs.depth >= DEPTH_MAX:
        raise StateError(
            f"{path[:80]}… is a {kind_of(value)} in more than {DEPTH_MAX} others, which cannot be "
            "saved; keep what is in there in a flat list or an array"
        )
    blobs.depth += 1
    try:
        node = _capture_once(value, path, blobs)
    except LoopError:
        raise
    except RecursionError:
        raise StateError(f"{path[:80]}… is nested too deep to be saved; make it flatter") from None
    except Exception as error:  # foreign code may raise anything
        # Except errors from a signal's handler, such as torch's for a killed DataLoader worker.
        if blobs.outside is error or _is_readable(value, path, blobs):
            blobs.outside = error
            raise
        raise StateError(
            f"{path} is {kind_of(value)}, whose state cannot be read: "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        blobs.depth -= 1
    return _placed(value, node, path, blobs)


def _is_readable(value: object, path: str, blobs: Blobs) -> bool:
    """Whether a value that could not be captured can be captured now."""
    fresh = Blobs(adapters=blobs.adapters, begun=blobs.begun)
    return _succeeds(lambda: _capture_once(value, path, fresh))


def _capture_once(value: object, path: str, blobs: Blobs) -> Node:
    if type(value) is tuple:
        return {"$tuple": [capture(item, f"{path}[{i}]", blobs) for i, item in enumerate(value)]}
    me = id(value)
    if me in blobs.seen:
        if me in blobs.open:
            raise StateError(
                f"{path} is {blobs.seen[me]} again, which contains it; break the cycle"
            )
        blobs.meet_again(value, path)
        return {"$same": blobs.seen[me]}
    blobs.seen[me] = path
    blobs.open.add(me)
    node = _capture_object(value, path, blobs)
    blobs.open.discard(me)
    if isinstance(node, dict) and not _LEAVES.keys().isdisjoint(node):
        del blobs.seen[me]  # arrays are distinguished by their memory
    else:
        blobs.keep.append(value)
    return node


def _placed(value: object, node: Node, path: str, blobs: Blobs) -> Node:
    """The node, marked if its value has taken the place of one of another kind."""
    if blobs.detached:
        return node
    if blobs.survey is not None:
        blobs.survey.kinds[path] = _describe(value, blobs)
    elif blobs.begun is not None:
        before = blobs.begun.kinds.get(path)
        if before is not None and before != _describe(value, blobs):
            return {"$new": node, "instead": before}
    return node


def _describe(value: object, blobs: Blobs) -> str:
    """The kind of a value, with properties that a restore into it cannot change."""
    if type(value) not in (list, dict, tuple):
        for adapter in blobs.adapters:
            describe = getattr(adapter, "describe", None)
            if describe is not None and (found := describe(value)) is not None:
                return found
    return kind_of(value)


def _capture_object(value: Any, path: str, blobs: Blobs) -> Node:
    if type(value) is list:
        return [capture(item, f"{path}[{i}]", blobs) for i, item in enumerate(value)]
    if type(value) is dict:
        return _capture_dict(value, path, blobs)
    for each in blobs.adapters:
        node = each.capture(value, path, blobs)
        if node is not MISSING:
            return node
    if _is_python_random(value):
        return _capture_random(value, path, blobs)
    if has_state_dict(value):
        return _capture_state_dict(value, path, blobs)
    node = containers().capture_own(value, path, blobs)
    if node is not MISSING:
        return node
    raise StateError(
        f"{path} is {kind_of(value)}, which cannot be saved; give it state_dict() and "
        "load_state_dict(), or put what matters of it into a dict of numbers, strings and arrays"
    )


def _capture_state_dict(value: Any, path: str, blobs: Blobs) -> Node:
    blobs.need_target(value, path, kind_of(value))
    blobs.owned[path] = value
    inner = foreign(f"{path}.state_dict()", value.state_dict)
    refuse_empty(value, inner, path, blobs)
    return {"$object": "state_dict", "state": capture_part(inner, f"{path}.state_dict()", blobs)}


def refuse_empty(value: object, inner: Any, path: str, blobs: Blobs) -> None:
    """Raise StateError if ``inner``, the state of an object at the start, is empty."""
    empty = inner is None or (isinstance(inner, Mapping | list | tuple) and not inner)
    if not empty or blobs.survey is None:
        return
    # A container that the object itself holds may fill during training.
    if inner is not None and any(item is inner for item in classes.attributes(value).values()):
        return
    raise StateError(
        f"{path} is {kind_of(value)}, whose state_dict() is empty, so nothing of it would be "
        "saved; have state_dict() give all that training changes in it, or leave it out of the "
        "state if that is nothing"
    )


def capture_part(value: object, path: str, blobs: Blobs) -> Node:
    """The node of a value that is restored from plain data, not into a live object."""
    with blobs.without_target():
        return capture(value, path, blobs)


def capture_key(key: object, path: str, blobs: Blobs) -> Node:
    """The node of a key of a dict or a member of a set, which holds no arrays."""
    kind = type(key)
    if kind is str or kind is bool or (kind is int and -_INT_MAX < key < _INT_MAX):  # type: ignore[operator]
        return key
    inner = Blobs(adapters=blobs.adapters, begun=blobs.begun)
    inner.in_key, inner.depth, inner.is_alone = True, blobs.depth, blobs.is_alone
    node = capture_part(key, f"{path}: key {shown(key)}", inner)
    if not _is_value(node):
        raise StateError(
            f"{path}: key {shown(key)} is {kind_of(key)}, must be a string, a number or another "
            "value that cannot change"
        )
    return node


def restore_key(node: Node, path: str) -> Any:
    """The key or member from its node."""
    if not isinstance(node, dict):
        return node
    key = restore(MISSING, node, f"{path}: a key", Blobs(adapters=loaded()))
    try:
        hash(key)
    except TypeError as error:
        raise DoesNotFit(f"{path}: the checkpoint has a key that is none ({error})") from None
    return key


def _is_value(node: Node) -> bool:
    if isinstance(node, list):
        return False
    if not isinstance(node, dict) or not {"$float", "$bytes", "$value", "$scalar"}.isdisjoint(node):
        return True
    inner = node.get("$tuple")
    if inner is None and node.get("$object") in ("containers.namedtuple", "containers.items"):
        inner = node.get("items", node.get("members") if node.get("base") == "frozenset" else None)
    return inner is not None and all(map(_is_value, inner))


def _capture_random(value: Any, path: str, blobs: Blobs) -> Node:
    if isinstance(value, random.SystemRandom):
        raise StateError(
            f"{path} is a SystemRandom, which gets its numbers from the system and cannot "
            "repeat them; use random.Random(seed)"
        )
    if value is not random and type(value) is not random.Random:
        blobs.need_target(value, path, kind_of(value))
    inner = capture_part(value.getstate(), f"{path}.getstate()", blobs)
    node = {"$object": "random", "state": inner}
    return {**node, "module": True} if value is random else node


def _succeeds(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:
        return False
    return True


def foreign(what: str, call: Callable[..., Any], *args: Any, fits: bool = False) -> Any:
    """``call(*args)`` of user code, whose failure becomes a StateError, or DoesNotFit with
    ``fits``. A call without arguments, which reads, is tried again: an error that does not recur
    came from outside and is raised unchanged."""
    try:
        return call(*args)
    except StateError:
        raise
    except Exception as error:  # foreign code may raise anything
        if not (args or fits) and _succeeds(call):
            raise
        kind = DoesNotFit if fits else StateError
        raise kind(f"{what}: {error or type(error).__name__}") from error


def restore(target: Any, node: Node, path: str, blobs: Blobs) -> Any:
    """Put ``node`` into ``target`` (or MISSING) and return the restored object."""
    if node.__class__ is dict and _MARKS.isdisjoint(node):
        value = _restore_dict(_live(target, path, blobs), node, path, blobs)
    elif isinstance(node, list):
        value = _restore_list(_live(target, path, blobs), node, path, blobs)
    elif not isinstance(node, dict):
        return node
    elif leaf := _leaf(node):
        return _by_adapter(_LEAVES[leaf], target, node, path, blobs)
    elif "$same" in node:
        if node["$same"] not in blobs.places:
            raise DoesNotFit(f"{path}: the checkpoint has it from {node['$same']}, which it lacks")
        return blobs.places[node["$same"]]
    elif "$float" in node:
        return float(node["$float"])
    elif "$bytes" in node:
        return _restore_bytes(node["$bytes"], path, blobs)
    elif "$new" in node:
        gone = target is not MISSING and _describe(target, blobs) == node["instead"]
        return restore(MISSING if gone else target, node["$new"], path, blobs)
    elif "$tuple" in node:
        olds = target if isinstance(target, tuple) and len(target) == len(node["$tuple"]) else ()
        return tuple(
            restore(olds[i] if olds else MISSING, item, f"{path}[{i}]", blobs)
            for i, item in enumerate(node["$tuple"])
        )
    elif "$object" in node:
        value = _restore_object(_live(target, path, blobs), node, path, blobs)
    else:  # $dict
        value = _restore_dict(_live(target, path, blobs), node, path, blobs)
    blobs.places[path] = value
    blobs.made(value)  # nothing else is ever restored into it
    return value


def _leaf(node: dict[str, Any]) -> str | None:
    """The mark of a node that an adapter restores without a place for ``$same``."""
    for key in node:
        if key in _LEAVES:
            return key
    return None


def _live(target: Any, path: str, blobs: Blobs) -> Any:
    """The live object for a place: the one there, or the same object at another place."""
    kind = target.__class__
    if kind is not dict and kind is not list and (target is MISSING or isinstance(target, _PLAIN)):
        target = blobs.homes.get(path, MISSING)
    return blobs.take(target)


def _find_homes(target: Any, node: Any, path: str, blobs: Blobs) -> None:
    """Note live objects and arrays that the checkpoint refers to by another place than their
    own."""
    kind = target.__class__
    if kind is not list and kind is not dict and (target is MISSING or isinstance(target, _PLAIN)):
        return
    if node.__class__ is list:
        if isinstance(target, list | tuple):
            for i, (old, item) in enumerate(zip(target, node, strict=False)):
                if item.__class__ not in AS_IS:
                    _find_homes(old, item, f"{path}[{i}]", blobs)
    elif node.__class__ is not dict:
        return
    elif "$same" in node:
        blobs.homes.setdefault(node["$same"], target)
    elif "$new" in node:
        if _describe(target, blobs) != node["instead"]:
            _find_homes(target, node["$new"], path, blobs)
    elif leaf := next((key for key in _ARRAYS if key in node), None):
        blobs.array_homes.setdefault(node[leaf], target)
    else:
        for old, item, place in _parts(target, node, path):
            _find_homes(old, item, place, blobs)


def _parts(target: Any, node: Any, path: str) -> Iterator[tuple[Any, Node, str]]:
    if "$tuple" in node:
        if isinstance(target, list | tuple):
            for i, (old, item) in enumerate(zip(target, node["$tuple"], strict=False)):
                if item.__class__ not in AS_IS:
                    yield old, item, f"{path}[{i}]"
    elif "$object" in node:
        kind = node["$object"].partition(".")[0]
        if kind in ADAPTERS and (parts := getattr(adapter(kind, path), "parts", None)):
            yield from parts(target, node, path)
    elif type(target) is dict:
        for key, item in pairs(node, path):
            if item.__class__ not in AS_IS:
                yield target.get(key, MISSING), item, at_key(path, key)


def itself(node: Node) -> Node:
    """The node without the mark that its value has taken another one's place."""
    return node["$new"] if isinstance(node, dict) and "$new" in node else node


def without_history(node: Node) -> Node:
    """The node without its notes on the program's start, on which no value depends."""
    node = itself(node)
    if isinstance(node, dict) and "$object" in node and "began" in node:
        node = {key: item for key, item in node.items() if key != "began"}
    return node


def _capture_bytes(value: bytes, path: str, blobs: Blobs) -> Node:
    if len(value) <= INLINE_BYTES or blobs.in_key:
        return {"$bytes": base64.b64encode(value).decode()}
    size = len(value)
    index = blobs.add(value, None, path, lambda: Blob("bytes", (size,), value, size))
    return {"$bytes": {"$blob": index}}


def _restore_bytes(node: Node, path: str, blobs: Blobs) -> bytes:
    if isinstance(node, str):
        try:
            return base64.b64decode(node, validate=True)
        except ValueError:
            raise DoesNotFit(f"{path}: the checkpoint holds bytes that are no base64") from None
    return bytes(blobs.items[node["$blob"]].data)


def _capture_dict(value: dict, path: str, blobs: Blobs) -> Node:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: capture(item, at_key(path, key), blobs) for key, item in value.items()}
    return {
        "$dict": [
            [capture_key(key, path, blobs), capture(item, at_key(path, key), blobs)]
            for key, item in value.items()
        ]
    }


def pairs(node: Any, path: str) -> list[tuple[Any, Node]]:
    """The keys of a dict's node, and the nodes of its values."""
    if "$dict" in node:
        return [(restore_key(key, path), item) for key, item in node["$dict"]]
    return list(node.items())


def _restore_dict(target: Any, node: dict, path: str, blobs: Blobs) -> Any:
    _check_kind(target, dict, path)
    olds = {} if target is MISSING else dict(target)
    news = {
        key: item
        if item.__class__ in AS_IS
        else restore(olds.get(key, MISSING), item, at_key(path, key), blobs)
        for key, item in pairs(node, path)
    }
    if target is MISSING:
        return news
    target.clear()  # because the order of keys is part of the state
    target.update(news)
    return target


def _restore_list(target: Any, node: list, path: str, blobs: Blobs) -> Any:
    _check_kind(target, list, path)
    olds = [] if target is MISSING else list(target)
    news = [
        item
        if item.__class__ in AS_IS
        else restore(olds[i] if i < len(olds) else MISSING, item, f"{path}[{i}]", blobs)
        for i, item in enumerate(node)
    ]
    if target is MISSING:
        return news
    target[:] = news
    return target


def _check_kind(target: Any, kind: type, path: str) -> None:
    if target is not MISSING and type(target) is not kind:
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a {kind.__name__}")


def _restore_object(target: Any, node: dict, path: str, blobs: Blobs) -> Any:
    kind = node["$object"]
    if kind not in ("random", "state_dict"):
        return _by_adapter(kind.partition(".")[0], target, node, path, blobs)
    if kind == "random":
        value = restore(MISSING, node["state"], path, blobs)
        if target is MISSING:
            target = random if node.get("module") else random.Random()
        if not _is_python_random(target):
            raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a random.Random")
        foreign(f"{path}.setstate", target.setstate, value, fits=True)
        return target
    if not has_state_dict(target):
        raise DoesNotFit(f"{path} is {kind_of(target)}: the checkpoint holds a state_dict")
    value = restore(MISSING, node["state"], f"{path}.state_dict()", blobs)
    foreign(f"{path}.load_state_dict", target.load_state_dict, value, fits=True)
    return target


def _by_adapter(name: str, target: Any, node: Any, path: str, blobs: Blobs) -> Any:
    """Restore with the adapter; an error of the framework becomes DoesNotFit."""
    found = adapter(name, path)
    try:
        return found.restore(target, node, path, blobs)
    except (LoopError, MemoryError, OSError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise DoesNotFit(f"{path}: cannot take what the checkpoint holds ({said})") from error


def _is_python_random(value: object) -> bool:
    return isinstance(value, random.Random) or value is random


def _no(value: object) -> bool:
    return False
