"""The code that `outlast dev sync` keeps on a VM: what `outlast up` would deliver of a folder.

A folder is looked at twice a second (`git ls-files`, and one `stat` for each file): for a few
thousand files that takes less than a watcher's library is worth, and it also sees network folders.
"""

import hashlib
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.base.names import check_object_name
from outlast.cli.errors import UsageError
from outlast.spec import bundle
from outlast.spec.globs import GlobError, compiled, matches

GRAIN_NS = 50_000_000
Sign = tuple[object, ...]
"""What changes with each write of a file."""


@dataclass(frozen=True)
class File:
    """A file or link as it was read."""

    kind: str
    """As the agent has it: the SHA-256, with x if it is executable, or `-> target`."""
    data: bytes = b""

    @property
    def target(self) -> str | None:
        """Where a link leads; None for a file."""
        return self.kind.removeprefix("-> ") if self.kind.startswith("-> ") else None


class Source:
    """A folder of code. Raises UsageError for what must not or cannot leave this machine."""

    def __init__(self, folder: Path, exclude: Sequence[str] = ()) -> None:
        """`exclude`: globs, as in `outlast.spec.globs`."""
        if not folder.is_dir():
            raise UsageError(f"source {folder}: no such folder; name it with --source")
        try:
            for glob in exclude:
                compiled(glob)
        except GlobError as error:
            raise UsageError(f"--exclude {error}") from None
        self.folder = folder.resolve()
        self._exclude = tuple(exclude)
        self._kinds: dict[str, tuple[Sign, str]] = {}
        """Of each file that was read: its sign then, and its kind."""

    def look(self) -> dict[str, Sign]:
        """The names of all files and links, with their signs."""
        found: dict[str, Sign] = {}
        total = 0
        top = str(self.folder)
        for name in bundle.source_names(self.folder):
            if self._exclude and matches(name, self._exclude):
                continue
            try:
                path = os.path.join(top, name)
                seen = os.lstat(path)
            except OSError:
                continue  # It was deleted meanwhile.
            if stat.S_ISLNK(seen.st_mode):
                found[name] = ("->", os.readlink(path))
            elif stat.S_ISREG(seen.st_mode):
                total += seen.st_size
                executable = bool(seen.st_mode & 0o100)
                # Within the clock's grain another write leaves no trace: it is read again.
                fresh = abs(time.time_ns() - seen.st_mtime_ns) < GRAIN_NS
                found[name] = (seen.st_mtime_ns, seen.st_size, seen.st_ino, executable, fresh)
        if total > bundle.SOURCE_BYTES_MAX:
            raise UsageError(
                f"source {self.folder}: has more than {bundle.SOURCE_BYTES_MAX >> 20} MiB of files;"
                " keep data in the bucket (outlast data push), or --exclude what is not code"
            )
        return found

    def kinds(self, seen: dict[str, Sign]) -> dict[str, str]:
        """The kind of each file. Only files with a new sign are read."""
        found = {}
        for name, sign in seen.items():
            known = self._kinds.get(name)
            if known is None or known[0] != sign:
                file = self.read(name)
                if file is None:
                    continue
                known = (sign, file.kind)
            found[name] = known[1]
            self._kinds[name] = known
        return found

    def read(self, name: str) -> File | None:
        """A file or link as it is now; None if it was deleted meanwhile."""
        path = self.folder / name
        try:
            check_object_name(name, "file")
            if path.is_symlink():
                return File(f"-> {self._target(name)}")
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(handle, "rb") as file:
                data = file.read()
                executable = os.fstat(handle).st_mode & 0o100
            bundle.refuse_keys(name, data)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{name}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise UsageError(str(error)) from None
        return File(hashlib.sha256(data).hexdigest() + ("x" if executable else ""), data)

    def _target(self, name: str) -> str:
        """Where a link leads. Raises UsageError if that is not inside the folder."""
        path = self.folder / name
        target = os.readlink(path)
        try:
            inside = path.resolve().is_relative_to(self.folder)
        except (OSError, RuntimeError):
            inside = False
        if target.startswith("/") or not inside:
            raise UsageError(
                f"{name}: is a link to {target}, which is not below the folder by a relative path;"
                " replace it by the file, or --exclude it"
            )
        return target


def digest_of(kinds: dict[str, str]) -> str:
    """The digest of code; it names the development run."""
    lines = "".join(f"{kind} {name}\n" for name, kind in sorted(kinds.items()))
    return hashlib.sha256(os.fsencode(lines)).hexdigest()
