"""Text of a run without tokens and keys.

A VM masks the secrets that its stack gives it. What a person wrote into a command line, or a
program printed from elsewhere, is only recognized by its form.
"""

import re
from collections.abc import Iterable

from outlast.spec import keys

_NAMED = re.compile(
    r"(?i)(?:^|[-_.])(?:token|secrets?|passwords?|passwd|credentials?|webhook|"
    r"(?:api|access|private)[-_]?keys?)(?:$|[-_.])"
)
_GIVEN = re.compile(
    r"(?i)((?:token|secret|password|passwd|credentials?|(?:api|access|private)[-_]?key)"
    r"[\"']?(?:\s*[=:]\s*|\s+))(?:\"[^\"]*\"|'[^']*'|\S+)"
)
_BEGIN = re.compile(r"-----BEGIN |---- BEGIN ")
_END = re.compile(r"-----END |---- END ")


def is_secret_name(name: str) -> bool:
    """Whether a flag or variable of that name probably holds a secret."""
    return _NAMED.search(name) is not None


def text(value: str, name: str = "") -> str:
    """A value, or what it is if it is a token or a key."""
    if name and is_secret_name(name):
        return "(not shown: the name says that it is a secret)"
    found = keys.find(value)
    if found is not None:
        return f"(not shown: {found.what})"
    return keys.without_person(value)


def command(line: str) -> str:
    """A command line without the values of flags and variables that name secrets."""
    return text(_GIVEN.sub(r"\1…", line))


def lines(given: Iterable[str]) -> list[str]:
    """Lines of a log; all lines of a key's block are hidden."""
    shown = []
    inside = False
    for line in given:
        begins = _BEGIN.search(line) is not None
        if inside or begins:
            if begins:
                shown.append("(not shown: a key)")
            inside = _END.search(line) is None
            continue
        shown.append(text(line))
    return shown
