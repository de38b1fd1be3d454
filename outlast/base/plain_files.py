"""Lists and opens plain files below a folder that another program writes to, without following
links.

That program may replace a file or a folder by a link at any moment, so each step from the folder
down is opened separately and never followed. With an ``owner``, a file must belong to that user,
which excludes hard links to another user's file.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotPlain(ValueError):
    """The file is a link, a device or another user's, but a plain file was expected."""


@dataclass(frozen=True, order=True)
class PlainFile:
    """A file by its name below a folder; only `open` opens it."""

    folder: Path
    """Only this last part of the path is checked: the caller trusts the folders above it."""
    name: str
    """Parts are separated by slashes; none of them is empty, ``.`` or ``..``."""
    owner: int | None = None
    """User id that the file must have; None for any."""

    def __str__(self) -> str:
        return f"{self.folder}/{self.name}"

    def open(self, mode: str = "rb", buffering: int = -1) -> BinaryIO:
        """Like ``Path.open``, in a binary mode that creates no file: ``rb`` or ``r+b``.

        Raises NotPlain, and OSError if it does not exist.
        """
        flags = {"rb": os.O_RDONLY, "r+b": os.O_RDWR}[mode]
        with _Folders(self.folder, self.name) as at:
            try:
                found = os.open(at.base, flags | _FILE, dir_fd=at.descriptor)
            except OSError as error:
                raise _refused(error, self, at) from None
        try:
            self._check(os.fstat(found))
            return cast(BinaryIO, os.fdopen(found, mode, buffering))
        except BaseException:
            os.close(found)
            raise

    def stat(self) -> os.stat_result:
        """The status of the file that `open` opens; raises the same errors."""
        with self.open("rb", 0) as file:
            return os.fstat(file.fileno())

    def replace(self, data: bytes) -> None:
        """Creates the file for ``owner``, replacing anything with that name."""
        with _Folders(self.folder, self.name) as at:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(at.base, dir_fd=at.descriptor)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
            found = os.open(at.base, flags, 0o644, dir_fd=at.descriptor)
        with os.fdopen(found, "wb") as file:
            if self.owner is not None:
                os.fchown(found, self.owner, self.owner)
            file.write(data)

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise NotPlain(f"{self}: is neither a plain file nor a folder")
        if self.owner is not None and found.st_uid != self.owner:
            raise NotPlain(f"{self}: belongs to user {found.st_uid}, must be user {self.owner}'s")


def plain_files(folder: Path, owner: int | None = None) -> Iterator[PlainFile]:
    """All files below a folder, in any order. Raises NotPlain at the first entry that is neither a
    file nor a folder, and for a ``folder`` that is not one or belongs to another user.
    """
    yield from (file for file, problem in entries(folder, owner) if _none_or_raise(problem))


def entries(folder: Path, owner: int | None = None) -> Iterator[tuple[PlainFile, NotPlain | None]]:
    """Like `plain_files`, but yields the reason why an entry is not a plain file instead of
    raising.
    """
    _check_top(folder, owner)
    for path, _, _, descriptor in os.fwalk(folder, follow_symlinks=False, onerror=_raise):
        below = os.path.relpath(path, folder)
        prefix = "" if below == "." else f"{below}/"
        for name in os.listdir(descriptor):
            file = PlainFile(folder, prefix + name, owner)
            try:
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(found.st_mode):
                continue
            try:
                file._check(found)
            except NotPlain as error:
                yield file, error
            else:
                yield file, None


class _Folders:
    """The folder that holds a file, opened step by step."""

    def __init__(self, folder: Path, name: str) -> None:
        *above, self.base = name.split("/")
        parts = [*above, self.base]
        if any(part in ("", ".", "..") for part in parts):
            raise NotPlain(f"{folder}/{name}: is not a name below a folder")
        self._top, self._above = folder, above

    def __enter__(self) -> "_Folders":
        self.descriptor = self._open(str(self._top), None)
        for part in self._above:
            try:
                below = self._open(part, self.descriptor)
            finally:
                os.close(self.descriptor)
            self.descriptor = below
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def _open(self, part: str, at: int | None) -> int:
        try:
            return os.open(part, _FOLDER, dir_fd=at)
        except NotADirectoryError:
            raise NotPlain(f"{self._top}: {part} is a link or a file, must be a folder") from None


def _check_top(folder: Path, owner: int | None) -> None:
    try:
        found = folder.lstat()
    except (FileNotFoundError, NotADirectoryError):
        raise NotPlain(f"{folder}: is not a folder") from None
    if not stat.S_ISDIR(found.st_mode):
        raise NotPlain(f"{folder}: is not a folder")
    if owner is not None and found.st_uid != owner:
        raise NotPlain(f"{folder}: belongs to user {found.st_uid}, must be user {owner}'s")


def _refused(error: OSError, file: PlainFile, at: _Folders) -> Exception:
    try:
        mode = os.stat(at.base, dir_fd=at.descriptor, follow_symlinks=False).st_mode
    except OSError:
        return error
    if stat.S_ISREG(mode):
        return error
    return NotPlain(f"{file}: is neither a plain file nor a folder")


def _none_or_raise(problem: NotPlain | None) -> bool:
    if problem is not None:
        raise problem
    return True


def _raise(error: OSError) -> None:
    raise error
