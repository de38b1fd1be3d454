"""Switches: a service's behaviour that the real cloud leaves open, or that a rehearsal wants worse
than usual. Each service declares its own in a dataclass.
"""

import sys
from dataclasses import fields
from typing import Any


def names(kind: type) -> list[str]:
    """The names of the switches that a dataclass declares."""
    return [known.name for known in fields(kind)]


def checked(kind: type, name: str, value: Any) -> bool | float:
    """The checked value of a switch of the dataclass. Raises KeyError for an unknown name,
    ValueError with the rule for a wrong value."""
    default: Any = {known.name: known.default for known in fields(kind)}[name]
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= sys.float_info.max):
        raise ValueError("must be a finite number, 0 or more")
    if isinstance(default, int) and value != int(value):
        raise ValueError("must be a whole number, 0 or more")
    return type(default)(value)


def set_one(switches: Any, name: str, value: Any) -> bool | float:
    """Sets a switch and returns its former value. Raises as `checked` does."""
    new, former = checked(type(switches), name, value), getattr(switches, name)
    setattr(switches, name, new)
    return former
