"""Errors about settings: a sentence with field, value and rule, then what to do."""

from pathlib import Path
from typing import Any

import pulumi

from outlast.base import folders

NAMESPACE = "outlast"


class SettingsError(pulumi.RunError):
    """A setting breaks a rule; the engine prints the message without a traceback."""


def project() -> Path:
    """The folder of the user's project, to which file names in settings are relative. Raises
    SettingsError.
    """
    try:
        return folders.project()
    except FileNotFoundError as error:
        raise SettingsError(str(error)) from None


def bad(key: str, value: Any, rule: str, otherwise: str = "") -> SettingsError:
    """The error for a value that breaks the rule. `otherwise` follows the key in the remedy."""
    action = f"set {NAMESPACE}:{key}"
    return SettingsError(
        f"{NAMESPACE}:{key} {value!r}: {rule}; {action}{' ' + otherwise if otherwise else ''}"
    )


def first_line(error: BaseException) -> str:
    """An error's message, on one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
