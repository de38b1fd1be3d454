"""The engine's texts, read by type, and how a setting is refused.

`keys` declares keys and defaults. Every refusal is a SettingsError:
one sentence with the field, the value and the rule, then what to do; the engine prints it as it is.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi

from outlast.base import folders
from outlast.base.suggest import did_you_mean
from outlast.machines import machines

NAMESPACE = "outlast"


class SettingsError(pulumi.RunError):
    """Configuration that breaks a rule; the engine prints the message and no traceback."""


def project() -> Path:
    """The folder of the user's project, which settings name files of. Raises SettingsError."""
    try:
        return folders.project()
    except FileNotFoundError as error:
        raise SettingsError(str(error)) from None


class Reader:
    """Typed reading of the engine's texts; a setting without one has its default."""

    def __init__(self, values: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> None:
        prefix = f"{NAMESPACE}:"
        self._values = {
            key.removeprefix(prefix): value
            for key, value in values.items()
            if key.startswith(prefix)
        }
        self._known = known

    def refuse_unknown(self) -> None:
        for key in sorted(self._values):
            if key not in self._known:
                raise SettingsError(
                    f"{NAMESPACE}:{key}: is not a setting of Outlast;"
                    f" {did_you_mean(key, self._known, 'docs/configuration.md lists them')}"
                )

    def text(self, key: str) -> str:
        text = self._plain(key)
        if _holds(text, dict) or (_holds(text, list) and key != "command"):
            raise bad(key, text, "must be a text")
        return text

    def integer(self, key: str, least: int, most: int | None = None) -> int:
        text = self._plain(key)
        rule = f"must be a whole number, {least} or more"
        if most is not None:
            rule = f"must be a whole number from {least} to {most}"
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise bad(key, text, rule)
        if int(text) < least or (most is not None and int(text) > most):
            raise bad(key, text, rule)
        return int(text)

    def boolean(self, key: str) -> bool:
        text = self._plain(key).lower()
        if text not in ("true", "false"):
            raise bad(key, text, "must be true or false")
        return text == "true"

    def choice(self, key: str, *known: str) -> str:
        text = self._plain(key)
        if text not in known:
            rule = f"must be {machines.either([one for one in known if one])}"
            raise bad(key, text, rule, "or leave it empty" if "" in known else "")
        return text

    def array(self, key: str) -> list[Any]:
        value = self._value(key)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, list):
            how = f"by its items: pulumi config set --path '{NAMESPACE}:{key}[0]' VALUE"
            raise bad(key, self._value(key), "must be a list", how)
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._value(key)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, dict):
            how = f"by its parts: pulumi config set --path {NAMESPACE}:{key}.NAME VALUE"
            raise bad(key, self._value(key), "must be an object", how)
        return value

    def _plain(self, key: str) -> str:
        return str(self._value(key)).strip()

    def _value(self, key: str) -> Any:
        if key in self._values:
            return self._values[key]
        default = self._known[key]["default"]
        return default if isinstance(default, str) else json.dumps(default)


def _holds(text: str, kind: type) -> bool:
    """Whether the engine has made the text of a list or of an object."""
    try:
        return text.startswith(("[", "{")) and isinstance(json.loads(text), kind)
    except ValueError:
        return False


def matching(key: str, value: str, pattern: re.Pattern[str], rule: str) -> str:
    if not pattern.fullmatch(value):
        raise bad(key, value, rule)
    return value


def bad(key: str, value: Any, rule: str, otherwise: str = "") -> SettingsError:
    action = f"set {NAMESPACE}:{key}"
    return SettingsError(
        f"{NAMESPACE}:{key} {value!r}: {rule}; {action}{' ' + otherwise if otherwise else ''}"
    )


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
