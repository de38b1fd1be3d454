"""Builds the wheel with setuptools, and puts the commit that it is built from into it."""

import subprocess
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent.parent
COMMIT = ROOT / "outlast" / "cli" / "commit.txt"


def build_wheel(wheel_directory: str, *args: Any, **kwargs: Any) -> str:
    """As PEP 517 has it."""
    try:
        COMMIT.write_text(_commit())
        return build_meta.build_wheel(wheel_directory, *args, **kwargs)
    finally:
        COMMIT.unlink(missing_ok=True)


def _commit() -> str:
    """The commit, with a mark if files differ from it; empty without a repository."""
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        done = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
