"""``command.json`` of a snapshot: the properties of a checkpoint folder that an object store loses.

Anyone who can write to the bucket controls it, so all of it is checked before any of it is used:
names and links stay inside the folder, modes give other users no write access, and no entry is
below a file or a link.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from outlast.base.codec import OtherFormat, check_format
from outlast.base.names import check_relative, fits_file_system
from outlast.loop.errors import DoesNotFit

FORMAT = 1
NOTES = "command.json"

MODES = 0o775
"""The bits of a mode that are kept: no set-user-id, set-group-id or sticky bit, no write access for
others."""

_ODD = re.compile(r"[0-9]{6}")
_NS_MAX = 1 << 62
_KEYS = {"format", "said", "ended", "learned", "folders", "links", "modes", "times", "odd"}
_SAYS = ("", "mark", "complete")


@dataclass(frozen=True)
class Notes:
    """Notes of one attempt for the next one, besides the files."""

    said: str = ""
    """How the command reports a complete checkpoint; empty if it does not."""
    ended: bool = False
    """Whether the command had ended with 0 by itself."""
    learned: Mapping[str, Any] = field(default_factory=dict)
    """What ``Rhythm`` has learned about its saves."""


@dataclass(frozen=True)
class Entries:
    """The folder's entries without their bytes. Times are (mtime_ns, ctime_ns)."""

    folders: Mapping[str, tuple[int, int, int]]
    """Folders with their times and mode."""
    links: Mapping[str, str]
    """Links with their targets, relative to the folder of the link."""
    modes: Mapping[str, int]
    """Modes of the files for which it is not 0644."""
    times: Mapping[str, tuple[int, int]]
    odd: Mapping[str, str]
    """Numbers in place of the file names that no object can have."""


def to_text(notes: Notes, entries: Entries) -> str:
    """The file's content, in ASCII: a name may hold bytes that are not UTF-8."""
    body = {
        "format": FORMAT,
        "said": notes.said,
        "ended": notes.ended,
        "learned": dict(notes.learned),
        "folders": entries.folders,
        "links": entries.links,
        "modes": entries.modes,
        "times": entries.times,
        "odd": entries.odd,
    }
    return json.dumps(body, sort_keys=True) + "\n"


def read(snapshot: Path, files: Iterable[str]) -> tuple[Notes, Entries]:
    """Read the snapshot's ``command.json``; ``files`` are those it keeps under their own names.
    DoesNotFit, with the place, for anything that `to_text` does not write."""
    try:
        body = json.loads((snapshot / NOTES).read_text(encoding="utf-8"))
        if not isinstance(body, dict) or "format" not in body:
            raise ValueError("has no format")
    except (OSError, ValueError, RecursionError) as error:
        raise DoesNotFit(f"{NOTES}: the checkpoint is not a command's ({error!r})") from None
    try:
        check_format(NOTES, body["format"], FORMAT)
        return _parsed(body, set(files))
    except OtherFormat as error:
        raise DoesNotFit(str(error)) from None
    except ValueError as error:
        raise DoesNotFit(f"{NOTES}: {error}; nothing of this checkpoint was used") from None


def leads_inside(name: str, target: str) -> bool:
    """Whether a link of this name leads to a place in the folder, judged by the names alone."""
    if not target or "\0" in target or os.path.isabs(target) or not fits_file_system(target):
        return False
    place = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return place != ".." and not place.startswith("../")


def _parsed(body: dict[str, Any], files: set[str]) -> tuple[Notes, Entries]:
    for key in sorted(body.keys() ^ _KEYS):
        raise ValueError(f"{key} {'is unknown' if key in body else 'is missing'}")
    if body["said"] not in _SAYS:
        raise ValueError(f"said {body['said']!r}: must be one of {', '.join(map(repr, _SAYS))}")
    if not isinstance(body["ended"], bool):
        raise ValueError(f"ended {body['ended']!r}: must be true or false")
    _check_learned(body["learned"])
    notes = Notes(body["said"], body["ended"], body["learned"])
    odd = _names(body, "odd")
    for name, number in odd.items():
        if not isinstance(number, str) or not _ODD.fullmatch(number):
            raise ValueError(f"odd {name!r} is {number!r}: must be 6 digits")
    if len(set(odd.values())) != len(odd):
        raise ValueError("odd: two names have one number")
    links = _names(body, "links")
    for name, target in links.items():
        if not isinstance(target, str) or not leads_inside(name, target):
            raise ValueError(f"link {name!r} leads to {target!r}: must lead into the folder itself")
    folders = _numbers(body, "folders", 3)
    times = _numbers(body, "times", 2)
    modes = {name: one[0] for name, one in _numbers(body, "modes", 1).items()}
    _check_tree(files, odd.keys(), links.keys(), folders.keys())
    stored = files | odd.keys()
    for name in sorted(stored - times.keys()):
        raise ValueError(f"times: {name!r} is missing")
    for what, named in (("times", times), ("modes", modes)):
        for name in sorted(named.keys() - stored):
            raise ValueError(f"{what} {name!r}: the checkpoint has no such file")
    masked = {name: mode & MODES for name, mode in modes.items()}
    held = {name: (at, changed, mode & MODES) for name, (at, changed, mode) in folders.items()}
    return notes, Entries(held, links, masked, times, odd)  # type: ignore[arg-type]


def _names(body: dict[str, Any], key: str) -> dict[str, Any]:
    found = body[key]
    if not isinstance(found, dict):
        raise ValueError(f"{key} {str(found)[:80]!r}: must be an object by names")
    for name in found:
        check_relative(name, key)
    return found


def _numbers(body: dict[str, Any], key: str, count: int) -> dict[str, tuple[int, ...]]:
    """The whole numbers, ``count`` for each name, within the range of a file system."""
    numbers = {}
    for name, found in _names(body, key).items():
        values = [found] if count == 1 else found
        fits = isinstance(values, list) and len(values) == count
        if not fits or any(type(one) is not int or abs(one) > _NS_MAX for one in values):
            raise ValueError(f"{key} {name!r} is {str(found)[:80]}: must be {count} whole numbers")
        numbers[name] = tuple(values)
    return numbers


def _check_tree(files: set[str], *others: Iterable[str]) -> None:
    """Check that no two entries have one name and that none is below a file or a link."""
    odd, links, folders = map(set, others)
    leaves: set[str] = set()
    for kind in (files, odd, links):
        for name in sorted(leaves & kind):
            raise ValueError(f"{name!r}: is there twice")
        leaves |= kind
    for name in sorted(leaves & folders):
        raise ValueError(f"{name!r}: would be a folder and a file or a link")
    for name in sorted(leaves | folders):
        for parent in PurePosixPath(name).parents:
            if str(parent) in leaves:
                raise ValueError(f"{name!r}: is below {str(parent)!r}, a file or a link")


def _check_learned(found: Any) -> None:
    """Check that the value has the form that `Rhythm.learned` returns."""

    def texts(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)

    def member(value: Any) -> bool:
        if not isinstance(value, list) or len(value) != 2:
            return False
        shapes, last = value
        return texts(shapes) and isinstance(last, list) and all(type(one) is int for one in last)

    if found == {}:
        return
    good = (
        isinstance(found, dict)
        and found.keys() == {"shapes", "together", "members"}
        and texts(found["shapes"])
        and (found["together"] is None or texts(found["together"]))
        and isinstance(found["members"], dict)
        and all(map(member, found["members"].values()))
    )
    if not good:
        raise ValueError(f"learned {str(found)[:80]!r}: must be what an attempt learned")
