"""Names another run's checkpoint, by its place and digest."""

import re
from dataclasses import dataclass
from typing import Self

_PIN = re.compile(
    r"(?P<root>(?:[^#]*/)?)(?P<folder>t[0-9]{6,9}/s[0-9]{12,15}-[0-9a-z]+/)#(?P<digest>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class Pin:
    """A checkpoint of any run, named by its place and digest:
    `gs://BUCKET/experiments/NAME/RUN/t000001/s000000000010-0a1b/#<digest>`, or in a run's folder.
    """

    root: str
    """`gs://…/` or the run's folder, ending in a slash."""
    folder: str
    """Prefix of its objects below the root, ending in a slash."""
    digest: str
    """BLAKE3 of its manifest, 64 hexadecimal digits."""

    def __str__(self) -> str:
        return f"{self.path}#{self.digest}"

    @property
    def path(self) -> str:
        return self.root + self.folder

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError with a sentence for anything else."""
        match = _PIN.fullmatch(text)
        if match is None:
            raise ValueError(
                f"init {text!r}: must name a checkpoint with its digest, as `outlast checkpoints`"
                " prints it"
            )
        return cls(match["root"], match["folder"], match["digest"])
