"""The files that a command's run found on this machine when it began, for its later attempts.

A VM has a fresh copy of the command's files in every attempt. On a laptop they stay as the previous
attempt left them, so only this record shows what was there before the run.
"""

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from outlast.loop.command.listing import look

NOTE = "command.json"
"""Name of the record in the run's folder on this machine."""


@dataclass(frozen=True)
class Begun:
    """The beginning of a run on this machine."""

    at_ns: int
    """Time of the beginning by the file system's clock, so that files that change later have a
    higher ctime."""
    own_files: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Files in the user's own checkpoint folder: size and mtime_ns by name."""


def begun(folder: Path, checkpoint: Path | None, *, is_first: bool) -> Begun:
    """The run's beginning: now in its first attempt, else the record that the first attempt made in
    ``folder``.

    ``checkpoint`` is the user's own checkpoint folder, if there is one. Without a record, as on a
    different machine, the run begins here now.
    """
    note = folder / NOTE
    if not is_first:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            files = json.loads(note.read_text(encoding="ascii"))["own_files"]
            own = {name: (int(size), int(at_ns)) for name, (size, at_ns) in files.items()}
            return Begun(note.stat().st_mtime_ns, own)
    files = look(checkpoint).files if checkpoint is not None and is_first else {}
    own = {name: (seen.size, seen.mtime_ns) for name, seen in files.items()}
    temporary = note.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)  # the existing file may be another user's link
    with temporary.open("x", encoding="ascii") as file:
        file.write(json.dumps({"own_files": own}) + "\n")
    os.replace(temporary, note)
    return Begun(note.stat().st_mtime_ns, own)
