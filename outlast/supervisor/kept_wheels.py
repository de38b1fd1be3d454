"""Decides which wheels in the bucket a machine may install, so that writers of the bucket
cannot.

If the requirements have hashes, only wheels with these hashes are allowed. Otherwise the first
attempt records one digest for each layer in HEAD, and later attempts install the same bytes or
report that they differ.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from outlast.bucket.headfile import HeadFile
from outlast.spec.requirements import Requirements

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}\.whl")
"""Names of wheel files."""

_IN_ADDRESS = re.compile(r"[#&](sha256|sha384|sha512)=([0-9a-fA-F]+)")


class Recorded(Protocol):
    """The digests of the wheels that a run started with, by the key of their layer."""

    def digest(self, key: str) -> str | None: ...

    def keep(self, key: str, digest: str) -> None:
        """Records the digest, unless the key has one already."""
        ...


class NotRecorded:
    """Records nothing: for a machine without a HEAD."""

    def digest(self, key: str) -> str | None:
        return None

    def keep(self, key: str, digest: str) -> None:
        pass


class InHead:
    """Digests in HEAD, recorded by the holder of the term."""

    def __init__(self, head_file: HeadFile) -> None:
        self._head_file = head_file

    def digest(self, key: str) -> str | None:
        return self._head_file.head.wheels_of(key)

    def keep(self, key: str, digest: str) -> None:
        self._head_file.set_wheels(key, digest, term=self._head_file.term)


def digest_of(wheels: Iterable[Path]) -> str:
    """The SHA-256 of the output of ``sha256sum`` for the wheels, sorted by name."""
    lines = [f"{_hash('sha256', wheel)}  {wheel.name}\n" for wheel in wheels]
    return hashlib.sha256("".join(sorted(lines, key=lambda line: line[66:])).encode()).hexdigest()


def are_named(asked: Requirements | None, wheels: Sequence[Path]) -> bool:
    """Whether the requirements have hashes, and name those of all these wheels."""
    if asked is None or not asked.is_hashed or not wheels:
        return False
    named = {one for wanted in asked.wanted for one in wanted.hashes}
    named |= {
        f"{kind}:{digest.lower()}"
        for wanted in asked.wanted
        for kind, digest in _IN_ADDRESS.findall(wanted.source.url)
    }
    kinds = {one.partition(":")[0] for one in named}
    return all(any(f"{kind}:{_hash(kind, wheel)}" in named for kind in kinds) for wheel in wheels)


def as_requirements(wheels: Iterable[Path]) -> str:
    """A requirements file with which pip installs exactly the bytes of these wheels."""
    lines = [f"{wheel.as_uri()} --hash=sha256:{_hash('sha256', wheel)}\n" for wheel in wheels]
    return "".join(lines)


def _hash(kind: str, file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, kind).hexdigest()
