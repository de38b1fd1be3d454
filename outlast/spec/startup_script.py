"""The script that a VM runs at boot: one text, as a VM has one startup script."""

import re
from pathlib import Path

from outlast.base.folders import PACKAGE

STARTUP = PACKAGE / "startup"
_SOURCED = re.compile(
    r'^(?:# shellcheck source=.*\n)?source "\$\{BASH_SOURCE\[0\]%/\*\}/([a-z]+\.sh)"\n',
    re.MULTILINE,
)


def read(name: str, folder: Path = STARTUP) -> str:
    """The text of `boot.sh` or `bake.sh`, with the files that it sources in place of the lines that
    source them."""
    text = (folder / name).read_bytes().decode()
    return _SOURCED.sub(lambda line: _library(folder / line[1]), text)


def _library(file: Path) -> str:
    _, _, text = file.read_bytes().decode().partition("\n")
    return text
