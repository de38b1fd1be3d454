"""Checks documents that people write against a closed set of keys; the first mistake is reported in
one sentence."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

LONGEST_SHOWN = 80
"""Maximum number of characters of a value in a sentence."""


class Part(BaseModel):
    """A mapping with a closed set of keys, without conversions between numbers and text."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _pattern(value: Any) -> Any:
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        raise ValueError(f"must be a regular expression ({error})") from None
    return value


Sec = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Ordinal = Annotated[int, Field(ge=1)]
Pattern = Annotated[str, BeforeValidator(_pattern)]


def sentence_of(error: ValidationError, what: str) -> str:
    """A sentence about the first mistake, with its place; `what` names the whole document."""
    # An unknown key explains more than the keys that are missing because of it.
    found = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    return _sentence(found[0], what)


def _sentence(error: ErrorDetails, what: str) -> str:
    place = _place(error["loc"])
    match error["type"]:
        case "extra_forbidden":
            return (
                f"{place}: is not a key of a {what}; docs/scenarios.md lists those that there are"
            )
        case "missing":
            return f"{place}: is missing; docs/scenarios.md says what it is"
        case "value_error":
            rule, kinds = error["msg"].removeprefix("Value error, "), False
        case _:
            rule, kinds = re.sub(r"^(Input|String|List|Value) should", "must", error["msg"]), True
            rule = re.sub(r"a valid (dictionary( or instance of \w+)?|\w+)", _plainly, rule)
    return f"{place or what}{_shown(error['input'], kinds)}: {rule}"


def _place(steps: tuple[int | str, ...]) -> str:
    place = ""
    for index, step in enumerate(steps):
        if isinstance(step, int) and steps[index + 1 :][:1] != ("[key]",):
            place += f"[{step}]"
        elif step != "[key]":
            place += f".{step}" if place else str(step)
    return place


def _plainly(match: re.Match[str]) -> str:
    kinds = {"integer": "a whole number", "string": "text", "dictionary": "a mapping"}
    return kinds.get(match[1].split()[0], f"a {match[1]}")


def _shown(value: Any, kinds: bool) -> str:
    """The value, shortened if it is long; for a list or a mapping only its type, if `kinds`."""
    if isinstance(value, str | int | float | bool):
        text = repr(value)
        return f" {text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + '…'}"
    if value is None:
        return " null"
    kind = {list: " (a list)", dict: " (a mapping)"}.get(type(value), "")
    return kind if kinds else ""
