"""Checks texts from outside that become part of a path, a pattern or a command.

The author of a bucket, a record, an archive or a header chooses these texts. Each is checked when
it is parsed, by its alphabet and its length, and never corrected: a text that breaks its rule
raises a `ValueError` that says where it is and what it must be. Standard library only.
"""

import functools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

_BAD = re.compile(r"[\\\x00]")
_CONTROL = re.compile(r"[\x01-\x1f\x7f]")
_USUAL = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""Pattern of ordinary names: a short name that matches needs no further check."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


@dataclass(frozen=True)
class Form:
    """A rule for texts: the whole text matches ``pattern``; ``rule`` describes it in words."""

    pattern: str
    rule: str

    def matches(self, text: object) -> bool:
        return isinstance(text, str) and bool(_compiled(self.pattern).fullmatch(text))

    def check(self, text: str, where: str) -> str:
        """Returns ``text``, or raises a ValueError that begins with ``where``."""
        if not self.matches(text):
            shown = repr(text) if len(str(text)) <= 200 else f"{str(text)[:200]!r}…"
            raise ValueError(f"{where} {shown}: must be {self.rule}")
        return text


DIGEST = Form(r"[0-9a-f]{64}", "64 hexadecimal digits in lower case")
CRC32C = Form(r"[A-Za-z0-9+/]{1,6}={0,2}", "a CRC32C in base64")
NONCE = Form(r"[0-9a-z]{1,64}", "1 to 64 small letters and digits")
ID = Form(r"[A-Za-z0-9-]{0,64}", "at most 64 letters, digits and '-'")
ZONE = Form(r"[a-z0-9-]{0,64}", "at most 64 small letters, digits and '-'")
HOST = Form(r"[A-Za-z0-9._-]{0,253}", "at most 253 letters, digits, '.', '_' and '-'")
BUCKET = Form(r"[a-z0-9][-_.a-z0-9]{0,221}", "the name of a bucket")
LABEL = Form(
    r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}|",
    "at most 40 letters, digits, '_', '.' and '-', and begin with a letter or a digit",
)
RUN = Form(r"[a-z0-9][a-z0-9-]{0,62}", "1 to 63 small letters, digits and '-'")

# Fields of a record with these types are checked when the record is read.
Digest = Annotated[str, DIGEST]
"""A SHA-256 or BLAKE3 in hexadecimal digits."""
Crc32c = Annotated[str, CRC32C]
Nonce = Annotated[str, NONCE]
Id = Annotated[str, ID]
"""Id of an instance or a boot; empty on a machine that is not a VM."""
Zone = Annotated[str, ZONE]
"""Empty on a machine that is not a VM."""
Host = Annotated[str, HOST]
"""Name of a machine."""
Label = Annotated[str, LABEL]
"""Name of a part, or a tag; empty for none."""
RunName = Annotated[str, RUN]


_NAME_BYTES_MAX = 255
"""The most bytes of a file's name on Linux."""
_PATH_BYTES_MAX = 1024
"""The most bytes of an object's name in a bucket."""


def number_of(name: str, width: int = 6, most: int = 9) -> int | None:
    """Parses a number with at least ``width`` and at most ``most`` digits, exactly as this package
    writes it; None for any other name, such as one with other digits or more zeros.
    """
    if not re.fullmatch(r"[0-9]+", name) or len(name) > most:
        return None
    number = int(name)
    return number if name == f"{number:0{width}d}" else None


def check_relative(name: str, what: str) -> str:
    """Returns `name` if it is a relative path; a file's name may contain any byte but NUL."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{what} {name[:200]!r}: must be a relative path without '.' and '..'")
    if not fits_file_system(name):
        raise ValueError(f"{what} {name[:80]!r}…: must be a path that a file system of Linux takes")
    return name


def fits_file_system(path: str, most: int = 4095) -> bool:
    """Whether a path can be encoded, has at most this many bytes, and no part that is too long for
    a file system.
    """
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return len(encoded) <= most and all(
        len(part) <= _NAME_BYTES_MAX for part in encoded.split(b"/")
    )


def check_object_name(name: str, what: str = "object name") -> str:
    """Returns `name` if it is a plain relative path; a restore makes it a file."""
    if len(name) <= _NAME_BYTES_MAX and _USUAL.fullmatch(name):
        return name
    if any(part in ("", ".", "..") for part in name.split("/")) or _BAD.search(name):
        raise ValueError(
            f"{what} {name!r}: must be a relative path without '..' and backslashes; rename it"
        )
    if _CONTROL.search(name):
        raise ValueError(f"{what} {name!r}: must have no control characters; rename it")
    if _SURROGATE.search(name):
        raise ValueError(f"{what} {name!r}: must be valid UTF-8; rename it")
    if not fits_file_system(name, _PATH_BYTES_MAX):
        raise ValueError(
            f"{what} {name[:80]!r}…: must have at most {_PATH_BYTES_MAX} bytes, and "
            f"{_NAME_BYTES_MAX} between two slashes; shorten it"
        )
    return name


def check_file_names(names: Iterable[str], what: str = "object name") -> None:
    """Checks names for one folder: each passes `check_object_name`, none is there twice, and none
    is both a file and the folder of another.
    """
    known: set[str] = set()
    for name in names:
        if check_object_name(name) in known:
            raise ValueError(f"{what} {name!r}: is there twice; keep one")
        known.add(name)
    for name in known:
        parent = name.rpartition("/")[0]
        while parent:
            if parent in known:
                raise ValueError(
                    f"{what} {name!r}: {parent!r} would be a file and a folder; rename one"
                )
            parent = parent.rpartition("/")[0]
