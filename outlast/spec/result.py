"""The files of a run's result: their names, and the list with their digests that comes with them.

Both sides need it: the trainer's process writes the files, the supervisor lists them.
"""

import hashlib
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from outlast.base.codec import Record
from outlast.base.names import Digest, check_file_names
from outlast.base.numbers import Size

HEAD_FILE = "HEAD"
"""A run's one record, which names its result."""
METRICS_FILE = "metrics.json"
RESULT_FILE = "RESULT.json"
PART_FILE = "part.json"
"""File about a part's end: evaluations, and why it ended before its last step."""
PART_RESULT = "result"
"""Folder with the files of the part's result and their RESULT.json."""


@dataclass(frozen=True)
class ResultFile:
    """One file of a result."""

    name: str
    size: Size
    sha256: Digest


@dataclass(frozen=True)
class ResultManifest(Record):
    """`RESULT.json`: without times, hosts, experiments or attempts, so that results can be
    compared.
    """

    files: tuple[ResultFile, ...]
    digest: Digest

    def __post_init__(self) -> None:
        check_file_names([file.name for file in self.files], "ResultManifest.files")
        if any(file.name == RESULT_FILE for file in self.files):
            raise ValueError(f"ResultManifest.files {RESULT_FILE!r}: the name is the list's own")
        found = result_digest(self.files)
        if self.digest != found:
            raise ValueError(
                f"ResultManifest.digest {self.digest!r}: the files listed give {found}"
            )

    @classmethod
    def of(cls, files: typing.Iterable[ResultFile]) -> Self:
        """The manifest of these files, sorted by name."""
        ordered = tuple(sorted(files, key=lambda file: file.name))
        return cls(files=ordered, digest=result_digest(ordered))


def result_digest(files: typing.Iterable[ResultFile]) -> str:
    """The SHA-256 of what `sha256sum` prints for the files, sorted by name."""
    lines = sorted((file.name, f"{file.sha256}  {file.name}\n") for file in files)
    return hashlib.sha256("".join(line for _, line in lines).encode()).hexdigest()


def check_result(folder: Path) -> ResultManifest:
    """The manifest of the result in a folder. Raises ValueError that names a file that is missing
    or differs from the manifest.
    """
    try:
        manifest = ResultManifest.from_json((folder / RESULT_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{RESULT_FILE}: cannot be read ({error})") from None
    for file in manifest.files:
        try:
            found = hashlib.sha256((folder / file.name).read_bytes()).hexdigest()
        except OSError as error:
            raise ValueError(f"{file.name}: cannot be read ({error.strerror})") from None
        if found != file.sha256:
            raise ValueError(f"{file.name}: has other bytes than the run gave it")
    return manifest
