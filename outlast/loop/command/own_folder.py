"""The user's own checkpoint folder: ``--checkpoint-dir``, ``outlast:checkpointDir``.

The first attempt uses it unchanged. Later it holds the files of the previous attempt, which may be
half of a save; they are moved to a folder beside it, never deleted.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from outlast.base.names import check_relative
from outlast.loop.command.errors import CommandError
from outlast.loop.command.listing import look

ASIDE = ".outlast-aside"
"""Name of the file that marks a folder moved aside for a checkpoint."""

_NOT_RENAMED = (errno.EBUSY, errno.EXDEV)
_OF_THE_SYSTEM = "lost+found"


def make_ready(
    folder: Path,
    *,
    attempt: int,
    restores: bool,
    is_copy: bool,
    before: Mapping[str, tuple[int, int]],
) -> str | None:
    """Prepare the folder for an attempt: empty if a checkpoint is restored into it, else as the run
    found it. Return a sentence for the user if files were moved.

    ``is_copy``: it is in a fresh copy of the command's files. ``before`` are the files that the run
    found in it, with size and mtime_ns.
    """
    if (is_copy or attempt == 1) and not restores:
        folder.mkdir(parents=True, exist_ok=True)
        return None
    if is_copy:
        shutil.rmtree(folder, ignore_errors=True)
    found = look(folder)
    if not found.files and not found.links:
        folder.mkdir(parents=True, exist_ok=True)
        return None
    place = Path(os.path.realpath(folder))
    aside = _move_aside(place, attempt - 1)
    if not restores:
        _put_back(place, aside, before)
    return f"checkpoint-dir {folder}: what the attempt before left is now in {aside}"


def _move_aside(place: Path, attempt: int) -> Path:
    """Move the folder aside; only the last one moved is kept."""
    for older in place.parent.glob(f"{place.name}.attempt-*"):
        if (older / ASIDE).exists():
            shutil.rmtree(older, ignore_errors=True)
    aside = place.with_name(f"{place.name}.attempt-{attempt}")
    try:
        try:
            place.rename(aside)
            place.mkdir()
        except OSError as error:
            if error.errno not in _NOT_RENAMED:
                raise
            _move_entries(place, aside)
        (aside / ASIDE).touch()
    except OSError as error:
        raise CommandError(
            f"checkpoint-dir {place}: what the attempt before left cannot be moved to {aside} "
            f"({error.strerror}); move it away, or name a folder in {place}"
        ) from None
    return aside


def _move_entries(place: Path, aside: Path) -> None:
    """Move the entries one by one, because the top of a file system cannot be renamed."""
    aside.mkdir()
    for entry in list(place.iterdir()):
        if entry.name != _OF_THE_SYSTEM:
            shutil.move(entry, aside / entry.name)


def _put_back(place: Path, aside: Path, before: Mapping[str, tuple[int, int]]) -> None:
    """Restore the files that the run found, if they are unchanged."""
    for name, seen in before.items():
        with contextlib.suppress(OSError, ValueError):
            check_relative(name, "own_files")
            found = (aside / name).stat(follow_symlinks=False)
            if (found.st_size, found.st_mtime_ns) == seen:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(aside / name, place / name)
