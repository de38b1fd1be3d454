"""Tables that translate a resource's inputs into the fields of its REST body, and back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Value:
    """An input with the value of a field, possibly in another form."""

    field: str
    """Path in the body, with dots."""
    to_body: Callable[[Any], Any] = lambda value: value
    from_body: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Block:
    """An input that is an object, or a list of objects, with its own table."""

    field: str
    table: "Table"
    shape: Literal["object", "list", "only"] = "object"
    """`list`: both are lists; `only`: the input is an object, the field a list with one object."""
    constants: Mapping[str, Any] | None = None
    """Fields that every such object has in the body."""


@dataclass(frozen=True)
class Setting:
    """An input for the provider itself, which is in no body."""


@dataclass(frozen=True)
class Place:
    """An input that is part of the resource's address, which is in no body."""


Field = Value | Block | Setting | Place
Table = Mapping[str, Field]

SETTING = Setting()
PLACE = Place()


def int64(field: str) -> Value:
    """A number that is text in JSON."""
    return Value(field, str, int)


def entries(field: str) -> Value:
    """A map that is a list of {key, value} in the body."""
    return Value(
        field,
        lambda value: [{"key": key, "value": value[key]} for key in sorted(value)],
        lambda value: {item["key"]: item.get("value", "") for item in value},
    )


def to_body(table: Table, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Converts inputs to a body."""
    body: dict[str, Any] = {}
    for key, value in inputs.items():
        field = table.get(key)
        if value is None or field is None or isinstance(field, Setting | Place):
            continue
        _put(body, field.field, _to_field(field, value))
    return body


def _to_field(field: Value | Block, value: Any) -> Any:
    if isinstance(field, Value):
        return field.to_body(value)
    if field.shape == "list":
        return [{**(field.constants or {}), **to_body(field.table, item)} for item in value]
    made = {**(field.constants or {}), **to_body(field.table, value)}
    return [made] if field.shape == "only" else made


def from_body(table: Table, body: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a body to inputs, as far as the table knows them."""
    inputs: dict[str, Any] = {}
    for key, field in table.items():
        if isinstance(field, Setting | Place):
            continue
        value = _get(body, field.field)
        if value is not None:
            inputs[key] = _from_field(field, value)
    return {key: value for key, value in inputs.items() if value is not None}


def _from_field(field: Value | Block, value: Any) -> Any:
    if isinstance(field, Value):
        return field.from_body(value)
    if field.shape == "list":
        return [from_body(field.table, item) for item in value]
    if field.shape == "only":
        return from_body(field.table, value[0]) if value else None
    return from_body(field.table, value)


def unknown_inputs(table: Table, inputs: Mapping[str, Any], path: str = "") -> list[str]:
    """The paths of inputs that are not in the table."""
    found = []
    for key, value in inputs.items():
        field = table.get(key)
        here = f"{path}{key}"
        if field is None:
            found.append(here)
        elif isinstance(field, Block):
            items = value if isinstance(value, list) else [value]
            for index, item in enumerate(items):
                inner = f"{here}[{index}]." if isinstance(value, list) else f"{here}."
                if isinstance(item, dict):
                    found += unknown_inputs(field.table, item, inner)
    return found


def _put(body: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        body = body.setdefault(parent, {})
    body[last] = value


def _get(body: Mapping[str, Any], path: str) -> Any:
    value: Any = body
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value
