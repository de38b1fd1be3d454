"""The folders of one attempt of a command."""

import os
import shutil
from pathlib import Path

from outlast.loop.command.command import Command
from outlast.loop.command.errors import CommandError


class Folders:
    """The paths of one attempt. ``data`` is set once the data was found."""

    data: Path

    def __init__(self, command: Command, work: Path) -> None:
        """Derive the paths; ``work`` is the supervisor's folder for snapshots."""
        self.work = work
        self.home = command.home or work / "tmp-command"
        self.cwd = command.cwd or self.home / "source" / command.folder
        self.checkpoint = self.home / "checkpoint"
        if command.checkpoint_dir:
            self.checkpoint = Path(os.path.abspath(self.cwd / command.checkpoint_dir))
        self.result = self.home / "result"


def check_checkpoint_dir(command: Command, run_dir: Path) -> None:
    """Raise CommandError for a checkpoint folder that this machine cannot use."""
    if not command.checkpoint_dir or command.cwd is None:
        return
    place = Path(os.path.realpath(command.cwd / command.checkpoint_dir))
    what = f"checkpoint-dir {command.checkpoint_dir}"
    if place.exists() and not place.is_dir():
        raise CommandError(f"{what}: is a file; name its folder")
    for named, other in (
        ("the working folder", command.cwd),
        ("the run's own folder", run_dir),
        *(("data", Path(path)) for path in command.data if "://" not in path),
    ):
        if Path(os.path.realpath(other)).is_relative_to(place):
            raise CommandError(
                f"{what}: holds {named} {other}; name a folder that contains only checkpoints"
            )


def copy_source(source: Path, target: Path) -> None:
    """Copy the command's own files, writable. A file that begins with ``#!`` becomes executable,
    because a bundle does not keep modes."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    for copy in target.rglob("*"):
        if copy.is_file() and not copy.is_symlink():
            with copy.open("rb") as file:
                program = file.read(2) == b"#!" or copy.stat().st_mode & 0o100
            copy.chmod(0o755 if program else 0o644)
