"""What does not fit a type of `outlast/cli/documents`, a sentence each."""

import types
import typing
from typing import Any


def problems(value: Any, kind: Any, at: str = "$") -> list[str]:
    """Where the value, as JSON gives it, is not of the type."""
    if kind is Any:
        return []
    if typing.is_typeddict(kind):
        return _of_document(value, kind, at)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        found = [problems(value, one, at) for one in args]
        return [] if any(not one for one in found) else [one for some in found for one in some]
    if origin is list:
        if not isinstance(value, list):
            return [f"{at}: {value!r} is not a list"]
        return [
            one for n, item in enumerate(value) for one in problems(item, args[0], f"{at}[{n}]")
        ]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{at}: {value!r} is not an object"]
        return [
            one for key, item in value.items() for one in problems(item, args[1], f"{at}.{key}")
        ]
    wanted = (int, float) if kind is float else kind
    if isinstance(value, bool) and kind is not bool:
        return [f"{at}: {value!r} is not {kind.__name__}"]
    return [] if isinstance(value, wanted) else [f"{at}: {value!r} is not {kind}"]


def _of_document(value: Any, kind: Any, at: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{at}: {value!r} is not an object"]
    hints = typing.get_type_hints(kind)
    found = [f"{at}: lacks {key}" for key in sorted(kind.__required_keys__ - value.keys())]
    found += [f"{at}: has {key}, which is not documented" for key in value.keys() - hints.keys()]
    found += [f"{at}: {key} is not snake_case" for key in hints if not key.islower()]
    for key in value.keys() & hints.keys():
        found += problems(value[key], hints[key], f"{at}.{key}")
    return found
