"""What may change in the middle of a run, and how messages describe it.

The content of a run (`identity.content`) determines its name; a run that continues under its old
name with other content has changed. Code and packages may change, at the user's risk. An argument
may change if its trainer lists it in `MUTABLE`, in the way that is given there. Everything else
makes another run. Standard library only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

CODE = {"source": "the code", "requirements": "the requirements"}
"""Keys that may always change; the values are digests."""


class How(StrEnum):
    """How an argument may change in the middle of a run."""

    RAISED = "raised"
    """It may only be raised."""
    ANY = "any"


@dataclass(frozen=True)
class Change:
    """One difference between two contents."""

    what: str
    """`args.<flag>`, or another key of the content."""
    before: Any
    now: Any

    @property
    def flag(self) -> str | None:
        """The argument's flag; None if it is not an argument."""
        return self.what.removeprefix("args.") if self.what.startswith("args.") else None

    def __str__(self) -> str:
        if self.what in CODE:
            return f"{CODE[self.what]} {_short(self.before)} → {_short(self.now)}"
        return f"{self.what} {_text(self.before)} → {_text(self.now)}"


def between(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """All differences, arguments first."""
    old, new = _flat(before), _flat(now)
    keys = sorted(old.keys() | new.keys(), key=lambda key: (not key.startswith("args."), key))
    return [Change(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def said(changes: Sequence[Change]) -> str:
    """The changes in one line."""
    return ", ".join(map(str, changes))


def hint(changes: Sequence[Change], now: Mapping[str, Any]) -> str:
    """What counts as changed code, for a run whose code is a folder of the user's; else empty. Only
    Outlast's own trainers count by their meaning."""
    is_own = not {"argv", "command"}.isdisjoint(now.get("arguments") or {})
    changed = any(one.what == "source" for one in changes)
    if not (changed and is_own) or str(now.get("source") or "").startswith("git:"):
        return ""
    return "every byte of outlast:source counts, comments too"


def refusal(changes: Sequence[Change], mutable: Mapping[str, str]) -> str | None:
    """Why a run may not continue with these changes: the first that it cannot take, and those that
    it can.
    """
    for change in changes:
        if change.what in CODE:
            continue
        if change.flag is None:
            return f"{change}: makes another run, and cannot change in the middle of a run"
        how = mutable.get(change.flag)
        if how == How.ANY:
            continue
        if how == How.RAISED:
            if _is_raised(change):
                continue
            return f"{change}: can only be raised in the middle of a run"
        known = ", ".join(sorted(mutable)) or "none"
        return f"{change}: cannot change in the middle of a run; those that can: {known}"
    return None


def _is_raised(change: Change) -> bool:
    numbers = (change.before, change.now)
    return all(type(value) in (int, float) for value in numbers) and change.now > change.before


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content by name: arguments by flag (including the seed), then the rest."""
    flat = {key: value for key, value in content.items() if key not in ("arguments", "seed")}
    arguments = {**(content.get("arguments") or {}), "seed": content.get("seed")}
    # The engine's state returns numbers as floats, which compare equal to integers.
    return {**flat, **{f"args.{key.replace('_', '-')}": value for key, value in arguments.items()}}


def _short(digest: Any) -> str:
    return str(digest)[:10] if digest else "none"


def _text(value: Any) -> str:
    text = "unset" if value is None else str(_whole(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _whole(value: Any) -> Any:
    """Undoes the engine state's conversion of all numbers to floats."""
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
