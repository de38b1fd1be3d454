"""Globs of file names: how they match, and whether two of them can match the same name.

A glob without a slash matches a file or a folder of that name anywhere, one with a slash the path
from the top. A matching folder covers everything in it. ``*`` and ``?`` do not match a slash,
``**`` matches any number of folders, ``[abc]`` one character of a set.
"""

import functools
import re
import string
from collections.abc import Iterable, Iterator

_SPECIAL = frozenset("*?[")


class GlobError(ValueError):
    """A glob that cannot be used; the message is one sentence for people."""


@functools.lru_cache(maxsize=1024)
def compiled(glob: str) -> re.Pattern[str]:
    """The glob as a regular expression for whole paths. Raises GlobError."""
    return re.compile("".join(_as_regex(part) for part in _parts(glob)), re.DOTALL)


def matches(name: str, globs: Iterable[str]) -> bool:
    """Whether any of the globs matches the relative path ``name``."""
    return any(compiled(glob).fullmatch(name) for glob in globs)


@functools.lru_cache(maxsize=1024)
def common_name(one: str, other: str) -> str | None:
    """A short path that both globs match as a whole; None if there is none."""
    first, second = _Machine(_parts(one)[:-1]), _Machine(_parts(other)[:-1])
    alphabet = sorted({*first.letters, *second.letters, *_unused(first, second)})
    begin = (first.closed({0}), second.closed({0}))
    waiting, seen = [(begin, "")], {begin}
    for (left, right), name in waiting:
        if first.end in left and second.end in right and _is_plain(name):
            return name
        for letter in alphabet:
            then = (first.after(left, letter), second.after(right, letter))
            if then[0] and then[1] and then not in seen:
                seen.add(then)
                waiting.append((then, name + letter))
    return None


# One part of a glob: (kind, characters). "one" matches one of the characters, "not" any other,
# "many" any number, "folders" any number of whole folders, "any" the rest; the last part is always
# "below": nothing more, or everything in a folder of this name.
_Part = tuple[str, frozenset[str] | None]


def _parts(glob: str) -> tuple[_Part, ...]:
    text = glob.removeprefix("./").rstrip("/")
    if not text or glob.startswith("/") or ".." in text.split("/"):
        raise GlobError(
            f"glob {glob!r}: must be a file's name or a path below the folder, such as *.log or "
            "logs/**"
        )
    found: list[_Part] = [] if "/" in text else [("folders", None)]
    pieces = text.split("/")
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        if piece == "**":
            found.append(("any", None) if last else ("folders", None))
            continue
        found += _of_piece(glob, piece)
        if not last:
            found.append(("one", frozenset("/")))
    return (*found, ("below", None))


def _of_piece(glob: str, piece: str) -> Iterator[_Part]:
    place = 0
    while place < len(piece):
        letter = piece[place]
        place += 1
        if letter == "*":
            while piece[place : place + 1] == "*":
                place += 1
            yield ("many", None)
        elif letter == "?":
            yield ("one", None)
        elif letter == "[":
            end = piece.find("]", place + 2 if piece[place : place + 1] in "!^" else place + 1)
            if end < 0:
                raise GlobError(f"glob {glob!r}: has a [ without its ]")
            yield _of_set(piece[place:end])
            place = end + 1
        else:
            yield ("one", frozenset(letter))


def _of_set(text: str) -> _Part:
    negated = text[0] in "!^"
    body = text[1:] if negated else text
    letters = set()
    place = 0
    while place < len(body):
        if body[place + 1 : place + 2] == "-" and place + 2 < len(body):
            letters.update(map(chr, range(ord(body[place]), ord(body[place + 2]) + 1)))
            place += 3
        else:
            letters.add(body[place])
            place += 1
    return ("not" if negated else "one", frozenset(letters - {"/"}))


def _as_regex(part: _Part) -> str:
    what, letters = part
    if what == "folders":
        return "(?:.*/)?"
    if what == "any":
        return ".+"
    if what == "below":
        return "(?:/.*)?"
    if what == "many":
        return "[^/]*"
    if what == "not":
        return f"[^/{''.join(map(re.escape, sorted(letters or ())))}]"
    if letters is None:
        return "[^/]"
    return f"[{''.join(map(re.escape, sorted(letters)))}]" if letters else "(?!)"


class _Machine:
    """The glob as states between its parts, for the search of a common name."""

    def __init__(self, parts: tuple[_Part, ...]) -> None:
        self._parts = parts
        self.end = len(parts)
        self.letters = {"/"}.union(*(letters or () for _, letters in parts))

    def closed(self, states: Iterable[int]) -> frozenset[int]:
        """Adds the states that are reached without a character."""
        found = set(states)
        waiting = list(found)
        while waiting:
            state = waiting.pop()
            skips = 0 <= state < self.end and self._parts[state][0] in ("folders", "many")
            if skips and state + 1 not in found:
                found.add(state + 1)
                waiting.append(state + 1)
        return frozenset(found)

    def after(self, states: frozenset[int], letter: str) -> frozenset[int]:
        return self.closed(
            {then for state in states if state >= 0 for then in self._step(state, letter)}
            | {then for state in states if state < 0 for then in self._inside(state, letter)}
        )

    def _step(self, state: int, letter: str) -> Iterator[int]:
        if state >= self.end:
            return
        what, letters = self._parts[state]
        if what == "folders":
            yield from self._inside(-state - 1, letter)
        elif what == "any":
            yield state
            yield state + 1
        elif what == "many":
            if letter != "/":
                yield state
        elif what == "not":
            if letter != "/" and letter not in (letters or ()):
                yield state + 1
        elif letter != "/" if letters is None else letter in letters:
            yield state + 1

    def _inside(self, state: int, letter: str) -> Iterator[int]:
        """Within what ``folders`` takes: a state below 0."""
        yield state
        if letter == "/":
            yield -state


def _unused(*machines: _Machine) -> Iterator[str]:
    """A character that neither names, for what takes any."""
    used = set().union(*(machine.letters for machine in machines))
    yield next(letter for letter in string.ascii_lowercase + string.digits if letter not in used)


def _is_plain(name: str) -> bool:
    return bool(name) and "" not in name.split("/")
