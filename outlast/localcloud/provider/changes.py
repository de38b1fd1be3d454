"""Compares two sets of inputs, and inputs with a live resource."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

Change = Literal["add", "delete", "update"]
IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")
UNIQUE_TEMPLATE = re.compile(r"([^/?]+)\?uniqueId=(\d+)$")


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Change]]:
    """Yields (property path, change) of each leaf that differs. None, false, 0 and empty values are
    equal, so an input with the default is not a change; nor is a link in another form."""
    if old == new or (is_empty(old) and is_empty(new)) or _same_link(old, new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), _join(path, key))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            yield from differences(
                old[index] if index < len(old) else None,
                new[index] if index < len(new) else None,
                f"{path}[{index}]",
            )
    else:
        yield path, "add" if is_empty(old) else "delete" if is_empty(new) else "update"


def is_empty(value: Any) -> bool:
    """Whether the value means the same as no value."""
    return value is None or value is False or value in ("", 0, [], {})


def _join(path: str, key: str) -> str:
    name = key if IDENTIFIER.fullmatch(key) else f'["{key}"]'
    return f"{path}.{name}" if path and name == key else f"{path}{name}"


def still_so(inputs: Any, live: Any) -> Any:
    """`inputs` with the values of `live`: fields that the API added are left out, and a value that
    the API only writes in another form stays as given."""
    if isinstance(inputs, dict) and isinstance(live, dict):
        kept = {}
        for key, value in inputs.items():
            if key in live:
                kept[key] = still_so(value, live[key])
            elif is_empty(value) or is_hollow(value):
                kept[key] = value
        return kept
    if isinstance(inputs, list) and isinstance(live, list) and len(inputs) == len(live):
        return [still_so(item, other) for item, other in zip(inputs, live, strict=True)]
    return inputs if _same(inputs, live) else live


def is_hollow(value: Any) -> bool:
    """Whether an object or list holds only empty values."""
    if isinstance(value, Mapping):
        return all(is_hollow(item) or is_empty(item) for item in value.values())
    if isinstance(value, list):
        return all(is_hollow(item) or is_empty(item) for item in value)
    return False


def _same(given: Any, live: Any) -> bool:
    if given == live or (is_empty(given) and is_empty(live)):
        return True
    if isinstance(given, bool) or isinstance(live, bool):
        return str(given).lower() == str(live).lower()
    if not isinstance(given, str) or not isinstance(live, str):
        return str(given) == str(live)
    return any(
        one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")
        for one in _forms(given)
        for other in _forms(live)
    )


def _same_link(one: Any, other: Any) -> bool:
    """Whether both links name one resource: with or without host and version, a template with or
    without its number. Two different numbers are two templates."""
    if not isinstance(one, str) or not isinstance(other, str) or "projects/" not in one:
        return False
    forms, others = _forms(one), _forms(other)
    if len(forms) > 1 and len(others) > 1:
        return forms[0] == others[0]
    return not set(forms).isdisjoint(others)


def _forms(text: str) -> list[str]:
    """The text and, for a template's unique URL, the URLs by name and by number."""
    text = re.sub(r"^https?://[^/]+/compute/(v1|beta)/", "", text)
    unique = UNIQUE_TEMPLATE.search(text)
    if not unique:
        return [text]
    base = text[: unique.start()]
    return [text, base + unique[1], base + unique[2]]
