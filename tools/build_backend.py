"""Builds the wheel with setuptools, and records the commit in it."""

import sys
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
sys.path.insert(0, str(ROOT))

from outlast.cli.version import commit_of  # noqa: E402 - of this checkout

COMMIT = ROOT / "outlast" / "cli" / "commit.txt"


def build_wheel(wheel_directory: str, *args: Any, **kwargs: Any) -> str:
    """The hook of PEP 517."""
    try:
        COMMIT.write_text(commit_of(ROOT))
        return build_meta.build_wheel(wheel_directory, *args, **kwargs)
    finally:
        COMMIT.unlink(missing_ok=True)
