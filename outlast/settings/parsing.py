"""Parses the engine's texts into Keys, and rewords pydantic's errors."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from outlast.base.suggest import did_you_mean
from outlast.settings.errors import NAMESPACE, SettingsError, bad
from outlast.settings.keys import Keys, declared, limits

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def parse(values: Mapping[str, Any]) -> Keys:
    """The settings among the engine's values (full key to text), each checked separately. Raises
    SettingsError for the first wrong one.
    """
    prefix = f"{NAMESPACE}:"
    given = {
        key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)
    }
    try:
        return Keys.model_validate({key: _typed(key, value) for key, value in given.items()})
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0], given) from None


def _typed(key: str, value: Any) -> Any:
    """Converts an engine's text to its setting's type; returns the text if it cannot."""
    text = str(value).strip() if isinstance(value, str | int | float) else json.dumps(value)
    kind = type(declared()[key]["default"]) if key in declared() else str
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind is int:
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
    if kind is float:
        return float(text) if re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", text) else text
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = text
    if kind is str:
        # The engine passes lists and objects as texts. A command may be a list.
        allowed = (str, list) if key == "command" else (str,)
        return (
            parsed if isinstance(parsed, list | dict) and not isinstance(parsed, allowed) else text
        )
    return tuple(parsed) if isinstance(parsed, list) else parsed


def _refusal(error: "ErrorDetails", given: Mapping[str, Any]) -> SettingsError:
    """Pydantic's error in our words."""
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(key, declared(), "docs/configuration.md lists them")
        return SettingsError(f"{NAMESPACE}:{key}: is not a setting of Outlast; {hint}")
    if error["type"] == "rule":
        words = error.get("ctx", {})
        return bad(key, words["value"], words["rule"], words["otherwise"])
    value = given[key].strip() if isinstance(given[key], str) else given[key]
    kind = error["type"].partition("_")[0]
    rules = {
        "string": ("must be a text", ""),
        "bool": ("must be true or false", ""),
        "tuple": (
            "must be a list",
            f"by its items: pulumi config set --path '{NAMESPACE}:{key}[0]' VALUE",
        ),
        "dict": (
            "must be an object",
            f"by its parts: pulumi config set --path {NAMESPACE}:{key}.NAME VALUE",
        ),
    }
    allowed = limits(key)
    joint = " " if allowed.startswith("from") else ", " if allowed else ""
    whole = "" if type(declared()[key]["default"]) is float else "whole "
    number = f"must be a {whole}number{joint}{allowed}"
    return bad(key, value, *rules.get(kind, (number, "")))
