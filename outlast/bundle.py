"""The bundle: one reproducible zip of the code that a VM runs.

It holds `outlast/` without `operate/`, the whole `trainers/` package and `requirements/vm.txt`:
stored, sorted, with fixed times and modes, so that the same sources give the same bytes in every
checkout. Only Python sources are taken, by name, so that a key, an `.env` or a `.git` that lies
among them never leaves the machine.
"""

import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("outlast", "trainers")
LEFT_OUT = frozenset({"outlast/operate"})
"""Runs on the user's machine only."""
REQUIREMENTS = "requirements/vm.txt"

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_UNIX = 3


class BundleError(ValueError):
    """A checkout of which no bundle can be made; the message is a sentence."""


@dataclass(frozen=True)
class Bundle:
    """A written bundle."""

    path: Path
    sha256: str


def build(root: Path, into: Path) -> Bundle:
    """Write the bundle of the checkout `root` to `into/<sha256>.zip`; written once, whole.

    Raises BundleError where the checkout lacks a part.
    """
    data = pack(root)
    sha256 = hashlib.sha256(data).hexdigest()
    path = into / f"{sha256}.zip"
    if not path.exists():
        into.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=into, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    return Bundle(path, sha256)


def pack(root: Path) -> bytes:
    """The bundle's bytes; a function of the sources' names and bytes alone."""
    names = sorted(members(root))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in names:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = _MODE
            entry.create_system = _UNIX  # else the bytes would name the packing system
            archive.writestr(entry, (root / name).read_bytes())
    return buffer.getvalue()


def members(root: Path) -> Iterator[str]:
    """The bundle's files, as paths below `root` with forward slashes."""
    for package in PACKAGES:
        if not (root / package / "__init__.py").is_file():
            raise BundleError(
                f"{package}: is no package of {root}; run from a whole checkout of Outlast"
            )
        yield from _sources(root, package)
    if not (root / REQUIREMENTS).is_file():
        raise BundleError(
            f"{REQUIREMENTS}: is missing in {root}; restore it, a VM installs from it"
        )
    yield REQUIREMENTS


def _sources(root: Path, folder: str) -> Iterator[str]:
    for entry in os.scandir(root / folder):
        name = f"{folder}/{entry.name}"
        if entry.name.startswith(".") or entry.is_symlink() or name in LEFT_OUT:
            continue
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _sources(root, name)
        elif entry.name.endswith(".py") or entry.name == "py.typed":
            yield name
