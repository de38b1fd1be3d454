"""The version of Outlast, with the commit that it was built from."""

import subprocess
from importlib import metadata

from outlast.base.folders import PACKAGE


def text() -> str:
    """As `outlast --version` shows it: `0.1.0 (0123456789ab)`; without the commit if it is not
    known."""
    commit = _commit()
    return metadata.version("outlast") + (f" ({commit})" if commit else "")


def _commit() -> str:
    built = PACKAGE / "cli" / "commit.txt"
    if built.is_file():
        return built.read_text().strip()
    if not (PACKAGE.parent / "tools").is_dir():  # not a checkout
        return ""
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        done = subprocess.run(
            describe, cwd=PACKAGE.parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
