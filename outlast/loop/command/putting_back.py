"""Restores a snapshot of a checkpoint folder and never writes outside it, even if the snapshot asks
for that.

No link is followed meanwhile: each folder is opened relative to its parent, and links are made
last.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from outlast.loop.command.listing import look
from outlast.loop.command.notes import NOTES, Entries, Notes, read
from outlast.loop.errors import DoesNotFit

FILES = "files"
ODD = "odd"

_APART_MAX = 100
"""The most change times to keep distinct, because the file system's clock has ticks of up to 10
ms."""


def put_back(snapshot: Path, root: Path) -> Notes:
    """Fill the empty folder ``root`` from a verified snapshot; return the snapshot's notes.

    The snapshot's files are moved if possible, because it is read only once. DoesNotFit if it is
    not a command's snapshot, or if it would write outside the folder.
    """
    kept = look(snapshot / FILES)
    for name in sorted(kept.links):
        raise DoesNotFit(f"{FILES}/{name}: is a link; the checkpoint is not a command's")
    notes, entries = read(snapshot, kept.files)
    stored = {name: snapshot / FILES / name for name in kept.files}
    odd = look(snapshot / ODD).files
    for name, number in entries.odd.items():
        if number not in odd:
            raise DoesNotFit(f"{NOTES}: odd {name!r}: the checkpoint has no file {ODD}/{number}")
        stored[name] = snapshot / ODD / number
    try:
        _fill(root, entries, stored)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise DoesNotFit(
            f"{NOTES}: {str(error.filename)[:80]!r}…: is longer than a file name may be on this"
            " system"
        ) from None
    return notes


def _fill(root: Path, entries: Entries, stored: Mapping[str, Path]) -> None:
    with contextlib.closing(_Tree(root)) as tree:
        for name in sorted(entries.folders):
            tree.make_folder(name)
        for name, copy in stored.items():
            tree.move_in(copy, name, entries.modes.get(name, 0o644))
        tree.link(entries.links)
        for name, (_, _, mode) in entries.folders.items():
            tree.set_folder_mode(name, mode | stat.S_IRWXU)
    _set_times(
        root,
        {name: entries.times[name] for name in stored}
        | {name: (at_ns, changed_ns) for name, (at_ns, changed_ns, _) in entries.folders.items()},
    )


class _Tree:
    """A folder in which entries are made without following links or overwriting anything."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self._fd)

    def make_folder(self, name: str) -> None:
        with self._folder(name):
            pass

    def move_in(self, source: Path, name: str, mode: int) -> None:
        """Move a file of the snapshot to its place."""
        folder, _, base = name.rpartition("/")
        with self._folder(folder) as at:
            if _is_there(base, at):
                raise DoesNotFit(f"{NOTES}: {name!r} is there already; one name, two entries")
            _move_in(source, base, at)
            file = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
            try:
                os.fchmod(file, mode)
            finally:
                os.close(file)

    def link(self, links: Mapping[str, str]) -> None:
        """Make the links; remove all of them if one leads out of the folder through others."""
        made: list[str] = []
        try:
            for name, target in links.items():
                folder, _, base = name.rpartition("/")
                with self._folder(folder) as at:
                    try:
                        os.symlink(target, base, dir_fd=at)
                    except FileExistsError:
                        raise DoesNotFit(
                            f"{NOTES}: link {name!r} is there already; one name, two entries"
                        ) from None
                made.append(name)
            top = Path(os.path.realpath(self._root))
            for name, target in links.items():
                if not Path(os.path.realpath(self._root / name)).is_relative_to(top):
                    raise DoesNotFit(
                        f"{NOTES}: link {name!r} leads to {target!r}, which is outside the folder"
                    )
        except BaseException:
            for name in made:
                folder, _, base = name.rpartition("/")
                with contextlib.suppress(OSError), self._folder(folder) as at:
                    os.unlink(base, dir_fd=at)
            raise

    def set_folder_mode(self, name: str, mode: int) -> None:
        with self._folder(name) as at:
            os.fchmod(at, mode)

    @contextlib.contextmanager
    def _folder(self, name: str) -> Iterator[int]:
        """Open the folder of this name, making it and its parents; links on the way are refused."""
        at = os.dup(self._fd)
        try:
            for part in name.split("/") if name else ():
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=at)
                try:
                    below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    raise DoesNotFit(
                        f"{NOTES}: {name!r} goes through {part!r}, a link or a file"
                    ) from None
                os.close(at)
                at = below
            yield at
        finally:
            os.close(at)


def _is_there(base: str, at: int) -> bool:
    try:
        os.stat(base, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _move_in(source: Path, base: str, at: int) -> None:
    """Move a file into the folder ``at``. Copy it instead if it has a second name, whose mode and
    times must stay, or if it is on another file system."""
    if source.lstat().st_nlink == 1:
        try:
            os.rename(source, base, dst_dir_fd=at)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with (
        open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as original,
        open(os.open(base, flags, 0o600, dir_fd=at), "wb") as copy,
    ):
        shutil.copyfileobj(original, copy, 1 << 20)
    source.unlink()


def _set_times(root: Path, times: Mapping[str, tuple[int, int]]) -> None:
    """Set each file's mtime. The change time cannot be set and becomes now, so the files are
    processed in the order of their old change times, by which many scripts find the newest file.

    ``times`` has (mtime_ns, ctime_ns) by name.
    """
    order = sorted(times, key=lambda name: times[name][1])
    gaps = {
        later: times[later][1] - times[name][1]
        for name, later in zip(order, order[1:], strict=False)
    }
    apart = set(sorted(gaps, key=lambda name: -gaps[name])[:_APART_MAX])
    last_ns = 0
    for name in order:
        path, own_ns = root / name, times[name][0]
        os.utime(path, ns=(own_ns, own_ns), follow_symlinks=False)
        while name in apart and gaps[name] and path.lstat().st_ctime_ns <= last_ns:
            os.utime(
                path, ns=(own_ns, own_ns), follow_symlinks=False
            )  # the file system's clock has ticks
        last_ns = path.lstat().st_ctime_ns
