"""The fields in braces in a command's words, and their values.

``{checkpoint}``, ``{result}``, ``{data}`` and ``{output_uri}`` always have a value.
``{latest:GLOB}`` is the newest file or folder of the checkpoint that matches; while none matches,
its word and the flag before it are dropped, or replaced by WORD with ``{latest:GLOB:WORD}``.
``{resume:WORDS}`` is WORDS once there is a checkpoint file, and nothing before.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from outlast.loop.command import shell
from outlast.loop.command.listing import look
from outlast.loop.command.rhythm import numbers_in
from outlast.spec.command_words import CHANGING, FIELD, glob_of
from outlast.spec.file_kinds import Kinds
from outlast.spec.globs import compiled


def fill_words(
    words: Sequence[str], values: Mapping[str, str], checkpoint: Path, kinds: Kinds
) -> list[str]:
    """The words of a program with their fields filled in; other braces stay."""
    filled: list[str] = []
    for word in words:
        is_dropped = False
        for found in reversed(list(CHANGING.finditer(word))):
            value = _value(found, checkpoint, kinds)
            if value is None:
                is_dropped = True
                if found[0] == word and filled and re.fullmatch(r"--?[A-Za-z][\w-]*", filled[-1]):
                    filled.pop()  # the flag with this value
                break
            word = f"{word[: found.start()]}{value}{word[found.end() :]}"
            is_dropped = not word
        if not is_dropped:
            filled.append(word)
    return [FIELD.sub(lambda match: values[match[1]], word) for word in filled]


def fill_line(line: str, values: Mapping[str, str], checkpoint: Path, kinds: Kinds) -> str:
    """A shell line with its fields filled in; a path stays one word, inside quotes too."""
    for found in reversed(list(CHANGING.finditer(line))):
        value = _value(found, checkpoint, kinds)
        if value is None:
            line = shell.drop(line, *found.span())
        elif found["resume"] is not None:
            line = f"{line[: found.start()]}{value}{line[found.end() :]}"
        else:
            line = shell.put(line, *found.span(), value)
    for found in reversed(list(FIELD.finditer(line))):
        line = shell.put(line, *found.span(), values[found[1]])
    return line


def newest(checkpoint: Path, text: str, kinds: Kinds) -> str | None:
    """The newest file or folder in a checkpoint folder that matches the glob of ``{latest:…}``; an
    empty glob matches every checkpoint file."""
    listing = look(checkpoint, kinds).chosen()
    if not text:
        found = {name: seen.mtime_ns for name, seen in listing.state.items()}
    else:
        pattern = compiled(glob_of(text))
        entries = {name: seen.mtime_ns for name, seen in listing.files.items()}
        for folder in listing.folders:
            inside = [at for name, at in entries.items() if name.startswith(f"{folder}/")]
            if inside:  # cannot resume from an empty folder
                entries = {**entries, folder: max(inside)}
        found = {
            name: at
            for name, at in entries.items()
            if pattern.fullmatch(name) and not _is_inside_match(name, pattern)
        }
    if not found:
        return None
    name = max(found, key=lambda name: (found[name], numbers_in(name), name))
    return str(checkpoint / name)


def _is_inside_match(name: str, pattern: re.Pattern[str]) -> bool:
    """Whether a parent folder already matches."""
    parts = name.split("/")
    return any(pattern.fullmatch("/".join(parts[:count])) for count in range(1, len(parts)))


def _value(found: re.Match[str], checkpoint: Path, kinds: Kinds) -> str | None:
    if found["resume"] is not None:
        return found["resume"] if look(checkpoint, kinds).chosen().state else ""
    return newest(checkpoint, found["glob"] or "", kinds) or found["instead"]
