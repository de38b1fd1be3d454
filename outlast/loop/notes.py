"""Checks the notes that a snapshot has beside the state.

The notes are in ``state.json`` and in the record of a part's end. A checkpoint is untrusted, so it
is refused unless each note has the form in which it was written.
"""

import math
from collections.abc import Callable, Collection
from typing import Any

from outlast.base import numbers
from outlast.loop.errors import DoesNotFit
from outlast.loop.nodes import shown

_SHOWN = 200
_COUNT_MAX = 1 << 62

Rule = Callable[[Any], bool]


def check(found: Any, needed: Collection[str], file: str) -> dict[str, Any]:
    """``found`` itself if it has the notes ``needed`` and all are well-formed; else DoesNotFit."""
    if type(found) is not dict:
        raise DoesNotFit(f"{file}: the notes are {shown(found)[:_SHOWN]}, must be an object")
    for name in needed:
        if name not in found:
            raise DoesNotFit(f"{file}: the note {name} is missing")
    for name, value in found.items():
        rule = RULES.get(name)
        if rule is None:
            raise DoesNotFit(f"{file}: the note {name[:_SHOWN]!r} is unknown here")
        if not rule(value):
            raise DoesNotFit(
                f"{file}: the note {name} is {shown(value)[:_SHOWN]}, which it cannot be"
            )
    return found


def is_count(value: Any) -> bool:
    """Whether a value is a count: a whole number from 0."""
    return type(value) is int and 0 <= value < _COUNT_MAX


def is_number(value: Any) -> bool:
    """Whether a value is a JSON number, or a string for a number that is not finite."""
    if type(value) is str:
        return numbers.from_json(value) is not value
    return type(value) is int or (type(value) is float and math.isfinite(value))


def is_row(value: Any) -> bool:
    """Whether a value is the row of one evaluation."""
    return (
        type(value) is dict
        and is_count(value.get("step"))
        and all(type(name) is str and is_number(cell) for name, cell in value.items())
    )


def _is_text(value: Any) -> bool:
    return type(value) is str


def _are_texts(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _is_best(value: Any) -> bool:
    return type(value) is dict and all(
        type(entry) is dict
        and entry.keys() == {"value", "step"}
        and is_number(entry["value"])
        and is_count(entry["step"])
        for entry in value.values()
    )


def _is_unchanged(value: Any) -> bool:
    return (
        type(value) is dict
        and value.keys() - {"stopped"} == {"changed", "rebound"}  # older notes lack it
        and _are_texts(value["changed"])
        and _are_texts(value.get("stopped", []))
        and type(value["rebound"]) is dict
        and all(map(_is_text, value["rebound"].values()))
    )


RULES: dict[str, Rule] = {
    "evaluations": is_count,
    "best": _is_best,
    "unchanged": _is_unchanged,
    "drawn": _are_texts,
    "unsaved": lambda value: type(value) is dict and all(map(_is_text, value.values())),
    "over": _is_text,
}
"""The rule for each note."""
