"""Shell lines: finds the shell that runs one, and puts values into its words."""

import os
import re
import shlex
import shutil
import subprocess
from enum import Enum

from outlast.loop.command.errors import CommandError

_DELIMITERS = frozenset(" \t\n;|&<>()`")
_FLAG_BEFORE = re.compile(r"(?:^|(?<=\s))--?[A-Za-z][\w-]*\s+$")


def shell_of(line: str) -> list[str]:
    """The shell for a line, with pipefail if it has that: otherwise a crash that is piped into tee
    would end with 0. CommandError if the line has a | and no shell on this machine has pipefail."""
    bash = shutil.which("bash") or "/bin/bash"
    if os.access(bash, os.X_OK):
        return [bash, "-o", "pipefail", "-c"]
    asked = subprocess.run(
        ["/bin/sh", "-o", "pipefail", "-c", ":"], stdin=subprocess.DEVNULL, capture_output=True
    )
    if asked.returncode == 0:
        return ["/bin/sh", "-o", "pipefail", "-c"]
    if "|" in line:
        raise CommandError(
            "command: the line has a | and this machine has no bash, so a failure before the | "
            "would look like success; install bash, or write the line without it"
        )
    return ["/bin/sh", "-c"]


class Quoting(Enum):
    """The quotes around a place in a line."""

    PLAIN = "plain"
    SINGLE = "single"
    DOUBLE = "double"


def put(line: str, begin: int, end: int, value: str) -> str:
    """The line with ``value`` in place of ``line[begin:end]``, quoted so that the shell gets the
    same text whether or not the place is inside quotes."""
    quoting = quoting_at(line, begin)
    if quoting is Quoting.SINGLE:
        value = value.replace("'", "'\\''")
    elif quoting is Quoting.DOUBLE:
        value = re.sub(r'([\\"$`])', r"\\\1", value)
    else:
        value = shlex.quote(value)
    return f"{line[:begin]}{value}{line[end:]}"


def drop(line: str, begin: int, end: int) -> str:
    """The line without the word that contains ``line[begin:end]`` and, if that is the whole word,
    without the flag before it."""
    first, last = begin, end
    while True:
        while first and line[first - 1] not in _DELIMITERS and line[first - 1] not in "'\"":
            first -= 1
        while last < len(line) and line[last] not in _DELIMITERS and line[last] not in "'\"":
            last += 1
        around = line[first - 1 : first], line[last : last + 1]
        if not around[0] or around[0] != around[1] or around[0] not in "'\"":
            break
        first, last = first - 1, last + 1
    if line[first:last].strip("'\"") == line[begin:end]:
        flag = _FLAG_BEFORE.search(line[:first])
        first = flag.start() if flag else first
    return line[:first] + line[last:]


def quoting_at(line: str, place: int) -> Quoting:
    """The quotes around a place as a shell reads them, inside ``$(…)`` too."""
    stack: list[str] = []
    at = 0
    while at < place:
        step = _step(line, at, stack)
        at += step
    inner = stack[-1] if stack else ""
    if inner in ("'", "$'"):
        return Quoting.SINGLE
    return Quoting.DOUBLE if inner == '"' else Quoting.PLAIN


def _step(line: str, at: int, stack: list[str]) -> int:
    """Read the item at this place; return its length in characters."""
    letter, inner = line[at], stack[-1] if stack else ""
    if inner == "'":
        if letter == "'":
            stack.pop()
        return 1
    if letter == "\\":
        return 2
    if inner == "$'":
        if letter == "'":
            stack.pop()
        return 1
    if line.startswith("$(", at):
        stack.append("(")
        return 2
    if letter == "`" or (letter == '"' and inner == '"'):
        stack.pop() if inner == letter else stack.append(letter)
    elif inner != '"':
        return _step_plain(line, at, stack)
    return 1


def _step_plain(line: str, at: int, stack: list[str]) -> int:
    letter = line[at]
    if line.startswith("$'", at):
        stack.append("$'")
        return 2
    if letter == "#" and (not at or line[at - 1] in " \t\n;|&("):
        end = line.find("\n", at)
        return (end if end >= 0 else len(line)) - at
    if letter in "'\"(":
        stack.append(letter)
    elif letter == ")" and stack and stack[-1] == "(":
        stack.pop()
    return 1
