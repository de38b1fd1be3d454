"""Checks the form of a checkpoint's nodes before anything is built from them.

A checkpoint is untrusted text. ``check`` walks over all of its nodes once and refuses, with the
place: a node of an unknown kind, one with an unknown or missing field or a field of another type, a
reference to an object or an array that is absent or of another kind, and nodes that are nested too
deeply. The adapters check what only a framework knows: its own classes, by closed lists, its
dtypes, and whether a live object is of the node's kind.

Standard library only; a checkpoint cannot make this module import anything.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from outlast.loop.blobs import DEPTH_MAX, Blobs, Node
from outlast.loop.errors import DoesNotFit

AS_IS = frozenset({type(None), bool, int, float, str})
"""Types of nodes that are their own values."""

_DIMENSIONS_MAX = 64
_LEVELS_MAX = DEPTH_MAX + 20
"""The deepest node of a state at the depth limit, including adapters' own parts."""
_SHOWN = 120
_USUAL_KEY = 40
"""Length up to which a key's text is never too long, whatever its characters."""

Rule = Callable[["_Check", Any, str], None]


class _Form(NamedTuple):
    """The fields of one kind of node, in the order in which a restore reads them."""

    needed: dict[str, Rule]
    optional: dict[str, Rule]


class Met(NamedTuple):
    """Nodes found by a check whose live object may be at another place."""

    elsewhere: bool
    """Whether there are references, an array at two places, or an array in a tuple."""
    objects: set[str]
    """The paths of the nodes that contain adapters' objects."""


def check(
    nodes: Iterable[tuple[str, Node]], blobs: Blobs, key_of: Callable[[Node, str], Any]
) -> Met:
    """Check the nodes with their paths, in the order of a restore; DoesNotFit names the place.
    ``key_of`` returns the key for a checked node and its path."""
    whole = list(nodes)
    if not blobs.may_refer:
        try:
            return _Check(blobs, key_of, with_paths=False).all(whole)
        except DoesNotFit:
            pass  # the walk with paths names the place
    return _Check(blobs, key_of).all(whole)


def at_key(path: str, key: object) -> str:
    """The path of an item of the dict at ``path``."""
    if key.__class__ is str and len(key) <= _USUAL_KEY:  # type: ignore[arg-type]
        return f"{path}[{key!r}]"
    return f"{path}[{shown(key)}]"


def shown(value: object) -> str:
    """A value as text for a message, shortened if necessary."""
    try:
        text = repr(value)
    except Exception:  # a number beyond Python's limit for text, or foreign code
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:150]}…{text[-40:]}"


def place_of(path: str, owner: str, name: str) -> str:
    """The path of an attribute of an object at ``path``, or of one inside it, ``owner``."""
    return ".".join(part for part in (path, owner, name) if part)


class _Check:
    """One walk over a checkpoint's nodes. Without paths it takes a fraction of the time but refuses
    every reference to a place."""

    def __init__(
        self, blobs: Blobs, key_of: Callable[[Node, str], Any], *, with_paths: bool = True
    ) -> None:
        self.with_paths = with_paths
        self.in_tuple = 0
        self._is_shared = False
        self._objects = 0
        self._items = blobs.items
        self._key_of = key_of
        self._uses: dict[int, str] = {}
        """The use of each array found: numpy's, torch's or JAX's array, or bytes."""
        self._places: set[str] = set()
        """Paths of the containers and objects so far, which ``$same`` may name."""
        self._depth = 0
        self._in_key = 0

    def all(self, nodes: Iterable[tuple[str, Node]]) -> Met:
        found = Met(False, set())
        for path, node in nodes:
            before = self._objects
            self.node(node, path)
            if self._objects > before:
                found.objects.add(path)
        return found._replace(elsewhere=self._is_shared)

    def node(self, node: Node, path: str) -> None:
        kind = node.__class__
        if kind in AS_IS:
            return
        if self._in_key and (kind is list or (kind is dict and not _is_key(node))):
            raise self.refusal(path, "has a key that cannot be hashed")
        self._depth += 1
        if self._depth > _LEVELS_MAX:
            raise self.refusal(path, f"holds more than {_LEVELS_MAX} nodes in each other")
        if kind is list:
            self._list(node, path)
        elif kind is dict:
            self._mapping(node, path)
        else:
            raise self.refusal(path, f"holds a {kind.__name__}, which is not a node")
        self._depth -= 1

    def _list(self, node: list[Any], path: str) -> None:
        if not self.with_paths:
            for item in node:
                if item.__class__ not in AS_IS:
                    self.node(item, path)
            return
        for i, item in enumerate(node):
            if item.__class__ not in AS_IS:
                self.node(item, f"{path}[{i}]")
        self._places.add(path)

    def _mapping(self, node: dict[str, Any], path: str) -> None:
        marks = [key for key in node if key[:1] == "$"]
        if not marks:
            for key, item in node.items():
                if item.__class__ not in AS_IS:
                    self.node(item, at_key(path, key) if self.with_paths else path)
            self._places.add(path)
            return
        if len(node) == 1 and (rule := _ALONE.get(marks[0])) is not None:
            rule(self, node[marks[0]], path)
            if marks[0] == "$dict":
                self._places.add(path)
            return
        mark = marks[0]
        if mark == "$object" and len(marks) == 1:
            self._object(node, path)
        elif mark in _MARKS and set(marks) <= _MARKS[mark].needed.keys():
            self._form(node, _MARKS[mark], mark, path)
        else:
            names = ", ".join(sorted(marks))
            raise self.refusal(path, f"holds a node {names[:_SHOWN]}, which is unknown")
        if mark in ("$object", "$dict"):
            self._places.add(path)

    def _form(self, node: dict[str, Any], form: _Form, called: str, path: str) -> None:
        """Check that a node has the form's fields and no others, each according to its rule."""
        for name, rule in form.needed.items():
            if name not in node:
                raise self.refusal(path, f"holds a {called} without {name}")
            rule(self, node[name], path)
        if len(node) == len(form.needed):
            return
        for name, rule in form.optional.items():
            if name in node:
                rule(self, node[name], path)
        if unknown := [name for name in node if name not in {**form.needed, **form.optional}]:
            raise self.refusal(path, f"holds a {called} with {unknown[0][:_SHOWN]!r}, unknown here")

    def _object(self, node: dict[str, Any], path: str) -> None:
        self._objects += 1
        kind = node["$object"]
        found = OBJECTS.get(kind) if isinstance(kind, str) else None
        if found is None:
            raise self.refusal(path, f"holds {shown(kind)[:_SHOWN]}, unknown here")
        form = found if isinstance(found, _Form) else found(self, node, path)
        self._form(node, form, kind, path)

    def key(self, node: Node, path: str) -> None:
        """Check a key of a dict or a member of a set: a value without arrays and references."""
        self._in_key += 1
        self.node(node, path)
        self._in_key -= 1

    def array(self, index: Any, use: str, path: str) -> None:
        if type(index) is not int or not 0 <= index < len(self._items) or self._in_key:
            raise self.refusal(path, f"names array {shown(index)[:_SHOWN]}, which is not there")
        before = self._uses.get(index)
        if before is None:
            self._uses[index] = use
        elif before != use:
            raise self.refusal(path, f"takes array {index} for {use}, and for {before} elsewhere")
        if self.in_tuple or before is not None:
            self._is_shared = True

    def raw(self, index: Any, path: str) -> None:
        """Check a reference to bytes among the arrays, which only one node may have, because each
        would make a copy."""
        if type(index) is int and index in self._uses:
            raise self.refusal(path, f"names bytes {index} a second time")
        self.array(index, "bytes", path)
        blob = self._items[index]
        if blob.dtype != "bytes" or tuple(blob.shape) != (blob.nbytes,) or blob.order is not None:
            raise self.refusal(path, f"takes array {index} for bytes, which it is not")

    def same(self, place: Any, path: str) -> None:
        if not isinstance(place, str) or place not in self._places or self._in_key:
            raise self.refusal(path, f"has it from {shown(place)[:_SHOWN]}, which it lacks")
        self._is_shared = True

    def value_at(self, key: Node, node: Node, path: str) -> None:
        """Check the value of a dict's item whose key is this checked node."""
        if node.__class__ in AS_IS:
            return
        # Make the key even without paths, because it may be invalid.
        name = self._key_of(key, path) if self.with_paths or key.__class__ is dict else key
        self.node(node, at_key(path, name) if self.with_paths else path)

    @staticmethod
    def refusal(path: str, found: str) -> DoesNotFit:
        return DoesNotFit(f"{path[:1000]}: the checkpoint {found}")


_SLICE_IS_KEY = slice.__hash__ is not None
"""True since Python 3.12."""


def _is_key(node: dict[str, Any]) -> bool:
    if "$value" in node:
        return (
            _SLICE_IS_KEY or not isinstance(node["$value"], list) or node["$value"][:1] != ["slice"]
        )
    if "$scalar" in node:  # a record is mutable
        held = node["$scalar"]
        return not isinstance(held, dict) or not str(held.get("dtype")).startswith(("|V", "{"))
    if "$float" in node or "$bytes" in node:
        return True
    kind = node.get("$object")
    if kind in ("containers.namedtuple", "containers.items"):
        return "members" in node or ("fields" in node and "attributes" not in node)
    return "$tuple" in node


# Rules for single fields


def _node(check: _Check, value: Any, path: str) -> None:
    check.node(value, path)


def _at(end: str) -> Rule:
    """The rule for a node whose path gets this ending."""
    return lambda check, value, path: check.node(value, path + end)


def _typed(*kinds: type) -> Rule:
    called = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)

    def rule(check: _Check, value: Any, path: str) -> None:
        if type(value) not in kinds:
            raise check.refusal(path, f"holds {shown(value)[:_SHOWN]} where {called} must be")

    return rule


_text, _flag = _typed(str), _typed(bool)
_true: Rule = _flag


def _whole(least: int, most: int) -> Rule:
    def rule(check: _Check, value: Any, path: str) -> None:
        if type(value) is not int or not least <= value <= most:
            raise check.refusal(path, f"holds {shown(value)[:_SHOWN]}, must be {least} to {most}")

    return rule


def _one_of(*texts: str) -> Rule:
    def rule(check: _Check, value: Any, path: str) -> None:
        if not isinstance(value, str) or value not in texts:
            raise check.refusal(path, f"holds {shown(value)[:_SHOWN]}, must be {', '.join(texts)}")

    return rule


_list_here, _dict_here = _typed(list), _typed(dict)


def _listed(value: Any, check: _Check, path: str) -> list[Any]:
    if value.__class__ is not list:
        _list_here(check, value, path)
    return value


def _mapped(value: Any, check: _Check, path: str) -> dict[str, Any]:
    if value.__class__ is not dict:
        _dict_here(check, value, path)
    return value


def _all(rule: Rule) -> Rule:
    """The rule for a list whose items follow ``rule``."""

    def of_list(check: _Check, value: Any, path: str) -> None:
        for item in _listed(value, check, path):
            rule(check, item, path)

    return of_list


def _each(rule: Rule) -> Rule:
    """The rule for an object whose values follow ``rule``."""

    def of_mapping(check: _Check, value: Any, path: str) -> None:
        for item in _mapped(value, check, path).values():
            rule(check, item, path)

    return of_mapping


def _either(kind: type, rule: Rule) -> Rule:
    """The rule for a value of this type, or one that follows ``rule``."""
    return lambda check, value, path: None if type(value) is kind else rule(check, value, path)


def _items(ending: Callable[[int], str]) -> Rule:
    """The rule for a list of nodes; ``ending`` returns the end of each path."""

    def rule(check: _Check, value: Any, path: str) -> None:
        with_paths = check.with_paths
        for i, item in enumerate(_listed(value, check, path)):
            if item.__class__ not in AS_IS:
                check.node(item, path + ending(i) if with_paths else path)

    return rule


_numbered = _items(lambda i: f"[{i}]")


def _tuple(check: _Check, value: Any, path: str) -> None:
    check.in_tuple += 1
    _numbered(check, value, path)
    check.in_tuple -= 1


def _named(ending: Callable[[str], str]) -> Rule:
    """The rule for an object of nodes; ``ending`` returns the end of each path from its name."""

    def rule(check: _Check, value: Any, path: str) -> None:
        for name, item in _mapped(value, check, path).items():
            check.node(item, path + ending(name))

    return rule


_by_name = _named(lambda name: f".{name}")
_by_key = _named(lambda key: key)


def _pairs(check: _Check, value: Any, path: str) -> None:
    for pair in _listed(value, check, path):
        if type(pair) is not list or len(pair) != 2:
            raise check.refusal(path, "holds a pair that is none")
        check.key(pair[0], path)
        check.value_at(pair[0], pair[1], path)


def _members(check: _Check, value: Any, path: str) -> None:
    for member in _listed(value, check, path):
        check.key(member, path)


def _array(use: str) -> Rule:
    return lambda check, value, path: check.array(value, use, path)


def _bytes(check: _Check, value: Any, path: str) -> None:
    if isinstance(value, dict) and list(value) == ["$blob"]:
        check.raw(value["$blob"], path)
    else:
        _text(check, value, path)


def _value(check: _Check, value: Any, path: str) -> None:
    if not _listed(value, check, path) or type(value[0]) is not str:
        raise check.refusal(path, "holds a value without its kind")


def _scalar(check: _Check, value: Any, path: str) -> None:
    names = list(_mapped(value, check, path))
    if names not in (["str"], ["bytes"], ["dtype", "hex"]):
        raise check.refusal(path, "holds a numpy scalar that is none")
    _each(_text)(check, value, path)


def _shape(check: _Check, value: Any, path: str) -> None:
    if len(_listed(value, check, path)) > _DIMENSIONS_MAX:
        raise check.refusal(path, f"holds a shape of {len(value)} dimensions")
    _all(_whole(0, 1 << 62))(check, value, path)


def _attributes(check: _Check, value: Any, path: str) -> None:
    """Check attributes of an object and of the objects inside it, by owner and name."""
    for owner, held in _mapped(value, check, path).items():
        for name, item in _mapped(held, check, path).items():
            check.node(item, place_of(path, owner, name))


def _gone(check: _Check, value: Any, path: str) -> None:
    if list(_mapped(value, check, path)) != ["gone"]:
        raise check.refusal(path, "holds another start than that of attributes")
    _each(_all(_text))(check, value["gone"], path)


def _variables(check: _Check, value: Any, path: str) -> None:
    for entry in _listed(value, check, path):
        if type(entry) is not dict or set(entry) != {"path", "value"}:
            raise check.refusal(path, "holds a variable that is none")
        _text(check, entry["path"], path)
        check.node(entry["value"], f"{path}.{entry['path']}")


def _parameters(check: _Check, value: Any, path: str) -> None:
    for entry in _listed(value, check, path):
        if type(entry) is not list or len(entry) != 2:
            raise check.refusal(path, "holds a parameter that is none")
        _shape(check, entry[0], path)
        _text(check, entry[1], path)


def _optimizer(check: _Check, value: Any, path: str) -> None:
    """Check the form of a torch optimiser's ``state_dict()``."""
    path += ".state_dict()"
    check.node(value, path)
    groups = value.get("param_groups") if isinstance(value, dict) else None
    states = value.get("state") if isinstance(value, dict) else None
    if not (
        isinstance(groups, list)
        and all(
            isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups
        )
        and isinstance(states, dict)
    ):
        raise check.refusal(path, "holds a torch optimiser without its state and param_groups")


# Kinds of nodes

_MARKS: dict[str, _Form] = {
    "$float": _Form({"$float": _one_of("nan", "inf", "-inf")}, {}),
    "$bytes": _Form({"$bytes": _bytes}, {}),
    "$new": _Form({"instead": _text, "$new": _node}, {}),
    "$tuple": _Form({"$tuple": _tuple}, {}),
    "$dict": _Form({"$dict": _pairs}, {}),
    "$same": _Form({"$same": lambda check, value, path: check.same(value, path)}, {}),
    "$value": _Form({"$value": _value}, {}),
    "$scalar": _Form({"$scalar": _scalar}, {}),
    "$array": _Form({"$array": _array("an array of numpy")}, {"readonly": _true}),
    "$tensor": _Form(
        {"$tensor": _array("a tensor of torch")},
        {"device": _text, "grad": _true, "parameter": _true},
    ),
    "$jax": _Form(
        {"$jax": _array("an array of JAX")}, {"key": _text, "device": _text, "weak": _true}
    ),
}

_ALONE = {mark: form.needed[mark] for mark, form in _MARKS.items() if len(form.needed) == 1}
"""The rules for nodes whose only field is their mark."""

_KIND: dict[str, Rule] = {"$object": _text}
_STATE: dict[str, Rule] = {"attributes": _attributes, "began": _gone}


def _form(needed: dict[str, Rule], optional: dict[str, Rule] | None = None) -> _Form:
    return _Form(_KIND | needed, optional or {})


def _items_form(check: _Check, node: dict[str, Any], path: str) -> _Form:
    """The form of a container with items, by its base class."""
    base = node.get("base")
    if base in ("list", "deque"):
        needed: dict[str, Rule] = {"items": _numbered}
    elif base in ("set", "frozenset"):
        needed = {"members": _members}
    elif base in ("dict", "OrderedDict", "Counter", "defaultdict"):
        needed = {"pairs": _pairs}
    else:
        raise check.refusal(path, f"holds a {shown(base)[:_SHOWN]}, unknown here")
    if base == "deque":
        needed["maxlen"] = _either(type(None), _whole(0, (1 << 63) - 1))
    if base == "defaultdict":
        needed["default"] = _default
    return _form({"base": _text, **needed}, {"class": _text, "attributes": _by_name})


def _default(check: _Check, value: Any, path: str) -> None:
    if value is not None and type(value) is not str and value != {"live": True}:
        raise check.refusal(path, "holds a default that is none")


def _namedtuple_form(check: _Check, node: dict[str, Any], path: str) -> _Form:
    fields, items = node.get("fields"), node.get("items")
    _all(_text)(check, fields, path)
    if not isinstance(items, list) or len(items) != len(fields or ()):
        raise check.refusal(path, "holds a namedtuple with other items than fields")
    names = list(fields or ())
    return _form(
        {"class": _text, "fields": _all(_text), "items": _items(lambda i: f".{names[i]}")},
        {"attributes": _by_name},
    )


OBJECTS: dict[str, _Form | Callable[[_Check, dict[str, Any], str], _Form]] = {
    "random": _form({"state": _node}, {"module": _true}),
    "state_dict": _form({"state": _at(".state_dict()")}),
    "containers.items": _items_form,
    "containers.namedtuple": _namedtuple_form,
    "containers.object": _form({"class": _text}, {"attributes": _by_name}),
    "containers.bytearray": _form({"raw": _node}),
    "containers.array": _form({"type": _text, "raw": _node}),
    "numpy.objects": _form(
        {"shape": _shape, "items": _items(lambda i: f".flat[{i}]")}, {"readonly": _true}
    ),
    "numpy.masked": _form(
        {"data": _at(".data"), "mask": _at(".mask"), "fill": _node, "hard": _flag}
    ),
    "numpy.Generator": _form({"state": _at(".bit_generator")}),
    "numpy.BitGenerator": _form({"state": _at(".state"), "seeds": _at(".seed_seq")}),
    "numpy.SeedSequence": _form({"state": _node}),
    "numpy.RandomState": _form({"state": _at(".state")}, {"module": _true}),
    "numpy.dtype": _form({"name": _text}),
    "numpy.type": _form({"name": _text}),
    "torch.Module": _form(
        {
            "entries": _by_name,
            "versions": _at(".state_dict()._metadata"),
            "eval": _all(_text),
        },
        _STATE,
    ),
    "torch.Optimizer": _form({"params": _parameters, "state": _optimizer}, _STATE),
    "torch.Generator": _form({"device": _text, "state": _at(".state")}),
    "torch.random": _form({"state": _items(lambda i: f".states[{i}]")}),
    "torch.disabled": _form({}),
    "torch.dtype": _form({"name": _text}),
    "torch.device": _form({"name": _text}),
    "torch.Size": _form({"sizes": _shape}),
    "xgboost.Booster": _form({"raw": _node, "config": _node}),
    "flax.Variable": _form({"class": _text, "value": _at(".value")}),
    "flax.Module": _form({"parts": _by_name, "plain": _node}, {"began": _each(_text)}),
    "jax.Ref": _form({"value": _at("[...]")}),
    "jax.pytree": _form({"class": _text, "children": _by_key}),
    "sklearn.object": _form(
        {"class": _text, "args": _all(_typed(type(None), bool, int, float, str))}
    ),
    "sklearn.estimator": _form(
        {"class": _text, "params": _by_name, "state": _by_name}, {"began": _each(_text)}
    ),
    "keras.random": _form({"state": _at(".state")}),
    **{
        f"keras.{name}": _form(
            {"variables": _variables},
            {"optimizer": _at(".optimizer"), "metrics": _variables, **_STATE},
        )
        for name in ("Layer", "Optimizer", "Metric", "SeedGenerator", "Variable")
    },
}
