"""The version of Outlast, with the commit that it was built from."""

import subprocess
from importlib import metadata
from pathlib import Path

from outlast.base.folders import PACKAGE


def text() -> str:
    """The text of `outlast --version`: `0.1.0 (0123456789ab)`, without the commit if unknown."""
    commit = _commit()
    return metadata.version("outlast") + (f" ({commit})" if commit else "")


def _commit() -> str:
    built = PACKAGE / "cli" / "commit.txt"
    if built.is_file():
        return built.read_text().strip()
    return commit_of(PACKAGE.parent) if (PACKAGE.parent / "tools").is_dir() else ""


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, with a mark if files differ from it; empty without a repository."""
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        done = subprocess.run(describe, cwd=checkout, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
