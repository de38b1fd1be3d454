"""Writes a project that uses the installed package: `outlast init`."""

import contextlib
import os
import re
import sys
from importlib import metadata
from pathlib import Path

from outlast.base.folders import PACKAGE
from outlast.cli.errors import OperateError, UsageError

TEMPLATE = PACKAGE / "cli" / "template"
FILES = {
    "Pulumi.yaml": "Pulumi.yaml",
    "Pulumi.dev.yaml": "Pulumi.dev.yaml",
    "__main__.py": "main.txt",
    "train/mine.py": "train/mine.py",
    ".gitignore": "gitignore",
    ".github/workflows/review.yml": "github/review.yml",
}
"""Files of a project, each with its name among the templates."""
MAY_BE_THERE = frozenset({".git", ".venv", "venv"})
"""Names that a folder for a new project may already contain."""
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,100}")
"""Pattern of a Pulumi project's name."""


def write(folder: Path) -> list[str]:
    """Writes a project into `folder`, which is created if needed; returns the names of its files.

    Raises UsageError if the folder contains other files, is the home folder, or its name cannot be
    a project's, and OperateError if it cannot be written; then nothing is left behind.
    """
    folder = Path(os.path.abspath(folder))
    _check(folder)
    made = not folder.exists()
    written: list[Path] = []
    try:
        for name, text in _texts(folder).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        _remove(folder, written, made)
        raise OperateError(
            f"{error.filename or folder}: cannot be written ({error.strerror}); name a folder that"
            " you can write to."
        ) from None
    return list(FILES)


def _check(folder: Path) -> None:
    if folder == Path.home():
        raise UsageError(
            f"{folder}: is your home folder; name a new one, such as outlast init demo."
        )
    if not _NAME.fullmatch(folder.name):
        raise UsageError(
            f"{folder.name!r}: cannot be a project's name, which has letters, digits, dots, dashes"
            " and underscores; name another folder."
        )
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: is not a folder; name another.")
    try:
        there = sorted(set(os.listdir(folder)) - MAY_BE_THERE) if folder.exists() else []
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read ({error.strerror}); name another.") from None
    if there:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise UsageError(f"{folder}: contains {there[0]}{more}; name a new or an empty folder.")


def _texts(folder: Path) -> dict[str, str]:
    texts = {name: (TEMPLATE / file).read_text() for name, file in FILES.items()}
    texts["Pulumi.yaml"] = texts["Pulumi.yaml"].replace("NAME", folder.name)
    if environment := _environment(folder):
        texts["Pulumi.yaml"] += f"  options:\n    virtualenv: {environment}\n"
    workflow = ".github/workflows/review.yml"
    texts[workflow] = texts[workflow].replace("VERSION", metadata.version("outlast"))
    return texts


def _environment(folder: Path) -> str:
    """The path from the project to the virtual environment that this command runs in."""
    if sys.prefix == sys.base_prefix:
        return ""
    return os.path.relpath(sys.prefix, folder)


def _remove(folder: Path, written: list[Path], made: bool) -> None:
    """Removes the written files and their folders; folders with other files stay."""
    for path in written:
        path.unlink(missing_ok=True)
    below = {parent for name in FILES for parent in (folder / name).parents}
    ours = [each for each in below if folder in each.parents or (made and each == folder)]
    for each in sorted(ours, reverse=True):
        with contextlib.suppress(OSError):
            each.rmdir()
