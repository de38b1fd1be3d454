"""Copies a command's checkpoint folder, and restores it from a copy.

A snapshot is a folder with the files under ``files/``. Its ``command.json`` has what an object
store does not keep: modes, times, links, empty folders, and the names of the files in ``odd/``,
which no object can have. This module looks only at names, sizes and bytes and never interprets the
contents.

A copy is a copy of one moment: the folder is listed before and after, and Changed is raised if a
file appeared, disappeared or changed in between. Logs, by-products and files that only grow are
copied up to their current end.
"""

import contextlib
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from outlast.base import scratch_space
from outlast.loop.command.listing import NO_FLOW, Flow, Listing, Seen, look, seen_of
from outlast.loop.command.notes import NOTES, Entries, Notes, leads_inside, to_text
from outlast.loop.command.putting_back import FILES, ODD, put_back
from outlast.loop.errors import LoopError
from outlast.spec.file_kinds import DEFAULT, Kind, Kinds

SETTLED_NS = 1_000_000_000
"""If a file had been unchanged for this long when it was copied, every later write gives it another
change time, however coarse the file system's clock is."""

NAME_BYTES_MAX = 700
"""Longest path of a file; with the run's prefix it stays below the limit for object names."""

LOG_TRIES = 3
"""Number of copies to try of a log that is rewritten from its beginning meanwhile."""

_CHUNK_BYTES = 64 << 20
_COMPARED_BYTES = 1 << 20
_DATABASE_BYTES = 256 << 20
"""A larger database is copied in pieces, so that its writer can continue."""


class Changed(LoopError):
    """The folder changed while it was copied: no copy was made."""


class NoRoom(LoopError):
    """The snapshot does not fit beside those that are still being committed."""


@dataclass(frozen=True)
class Taken:
    """A copy that was made."""

    folder: Path
    listing: Listing
    """The listing of the folder at the time of the copy."""
    copied: int
    """Bytes that had to be copied; files that are unchanged since the previous copy are linked."""
    cost_sec: float
    links_left: tuple[str, ...] = ()
    """Links that lead out of the folder, which are not kept."""


Accept = Callable[[Listing, Listing], bool]
"""Whether a copy is of one moment although the listings before and after it differ."""


class Copier:
    """Makes snapshots of ``root`` in the first folder of ``scratch`` with enough room, and restores
    one.

    It keeps a hard link to each file of its last copy, for files that are unchanged the next time.
    It never links the command's own files, because they may be overwritten.
    """

    def __init__(self, root: Path, scratch: Sequence[Path], kinds: Kinds = DEFAULT) -> None:
        self._root = root
        self._kinds = kinds
        self._folders = list(scratch)
        self._place = self._folders[0]
        for place in self._folders:
            for left in place.glob("tmp-kept*"):  # from an earlier attempt
                shutil.rmtree(left, ignore_errors=True)
        self._keep = self._place / "tmp-kept"
        self._kept: dict[str, tuple[Seen, Path]] = {}
        self._count = 0

    def take(
        self,
        name: str,
        *,
        folders: Iterable[str] | None = None,
        said: str = "",
        before: Listing | None = None,
        without: Container[str] = (),
        flow: Flow = NO_FLOW,
        notes: Notes | None = None,
        accept: Accept = lambda before, after: False,
    ) -> Taken:
        """Copy the files of a snapshot into a new folder ``name``: all files, or those in
        ``folders``, except those in ``without``.

        ``before`` is a listing that the folder must still equal after the copy, apart from flowing
        files, unless ``accept`` says that the change belongs to a later save. Raises Changed,
        NoRoom, OSError.
        """
        begun_sec, begun_ns = time.monotonic(), time.time_ns()
        before = before or look(self._root, self._kinds)
        roots = None if folders is None else list(folders)
        chosen = _without_companions(before.chosen(roots), flow).without(without)
        self._move_to_room(chosen)
        linked = self._linked(chosen, flow)
        needed = _size(chosen, without=linked)
        temporary = self._place / f"tmp-{name}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            (temporary / FILES).mkdir(parents=True)
            odd = _odd_names(chosen)
            copies: dict[str, Path] = {}
            for file, seen in chosen.files.items():
                target = temporary / (ODD if file in odd else FILES) / odd.get(file, file)
                target.parent.mkdir(parents=True, exist_ok=True)
                if file in linked:
                    os.link(linked[file], target)
                elif not self._copy(file, seen, target, flow):
                    continue
                copies[file] = target
            after = look(self._root, self._kinds)
            same = after.chosen(roots).without(without).stamp_of(flow) == chosen.stamp_of(flow)
            if not same and not accept(before, after):
                raise Changed("files changed while they were copied")
            if not copies and not chosen.links:
                raise Changed("all of its files were deleted while they were copied")
            links = _links_inside(self._root, chosen.links)
            self._write_notes(temporary / NOTES, chosen, links, odd, notes or Notes(said))
            self._remember(copies, chosen, flow, begun_ns)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        folder = self._place / name
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
        left = tuple(sorted(chosen.links.keys() - links.keys()))
        return Taken(folder, before, needed, time.monotonic() - begun_sec, left)

    def put_back(self, snapshot: Path) -> Notes:
        """Fill the empty folder from a verified snapshot; return the snapshot's notes.

        The snapshot's files are moved if possible, because it is read only once. DoesNotFit if it
        is not a command's snapshot, or if it would write outside the folder.
        """
        return put_back(snapshot, self._root)

    def _linked(self, chosen: Listing, flow: Flow) -> dict[str, Path]:
        """The existing copies of files that have not changed since."""
        return {
            file: kept[1]
            for file, seen in chosen.files.items()
            if (kept := self._kept.get(file)) is not None
            and kept[0] == seen
            and file not in flow.databases
        }

    def _move_to_room(self, chosen: Listing) -> None:
        """Choose the folder for the copy: the current one if it has room for twice the size, else
        another that has, else the first in which it fits. Twice, because the first folder is in
        memory and the command needs some."""
        needed = _size(chosen, without=self._linked(chosen, NO_FLOW))
        whole = _size(chosen)
        free = {place: scratch_space.room(place) for place in self._folders}
        needs = {place: needed if place == self._place else whole for place in self._folders}
        order = [self._place, *(place for place in self._folders if place != self._place)]
        fits = [place for place in order if free[place] >= 2 * needs[place]]
        fits += [place for place in order if free[place] >= needs[place]]
        if not fits:
            found = ", ".join(f"{place} has {free[place]}" for place in self._folders)
            raise NoRoom(f"a checkpoint of {needed} bytes does not fit: {found} bytes free")
        if fits[0] != self._place:
            shutil.rmtree(self._keep, ignore_errors=True)
            self._place, self._kept = fits[0], {}

    def _copy(self, name: str, seen: Seen, target: Path, flow: Flow) -> bool:
        """Copy one file; False if it is a by-product that could not be copied, for which a save
        need not wait."""
        kind = self._kinds.of(name)
        if name in flow.databases:
            _copy_database(self._root / name, target)
            return True
        grows = kind is Kind.LOG or name in flow.growing
        try:
            if grows:
                return self._copy_growing(name, seen.size, target)
            with (self._root / name).open("rb") as source, target.open("wb") as copy:
                _copy_bytes(source, copy)
                found = os.fstat(source.fileno())
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            if kind is not Kind.CHECKPOINT:
                return False
            raise Changed(f"{name} was removed while it was copied") from None
        # A file that was replaced meanwhile is still whole; only its change time differs.
        replaced = found.st_nlink == 0 and seen_of(found).version == seen.version
        if (seen_of(found) == seen or replaced) and target.stat().st_size == seen.size:
            return True
        if kind is not Kind.CHECKPOINT:
            target.unlink()
            return False
        raise Changed(f"{name} changed while it was copied")

    def _copy_growing(self, name: str, size: int, target: Path) -> bool:
        """Copy a log up to its current end; False if it was rewritten during each try."""
        for _ in range(LOG_TRIES):
            with (self._root / name).open("rb") as source, target.open("wb") as copy:
                before = seen_of(os.fstat(source.fileno()))
                _copy_bytes(source, copy, size)
                after = seen_of(os.fstat(source.fileno()))
            if after == before or starts_with(self._root / name, target):
                return True
            size = after.size
        target.unlink()
        return False

    def _remember(
        self, copies: Mapping[str, Path], chosen: Listing, flow: Flow, begun_ns: int
    ) -> None:
        """Keep links to this copy's files, for those that will be unchanged the next time."""
        self._count += 1
        keep = self._place / f"tmp-kept-{self._count}"
        kept: dict[str, tuple[Seen, Path]] = {}
        for number, (name, copy) in enumerate(copies.items()):
            seen = chosen.files[name]
            flows = flow.holds(name) or self._kinds.of(name) is Kind.LOG
            if flows or seen.ctime_ns + SETTLED_NS > begun_ns:
                continue
            keep.mkdir(exist_ok=True)
            link = keep / f"{number:06d}"
            with contextlib.suppress(OSError):  # without hard links everything is copied
                os.link(copy, link)
                kept[name] = (seen, link)
        shutil.rmtree(self._keep, ignore_errors=True)
        self._keep, self._kept = keep, kept

    def _write_notes(
        self,
        path: Path,
        chosen: Listing,
        links: Mapping[str, str],
        odd: Mapping[str, str],
        noted: Notes,
    ) -> None:
        modes = {name: stat.S_IMODE(seen.mode) for name, seen in chosen.files.items()}
        folders: dict[str, tuple[int, int, int]] = {}
        for name in chosen.folders:
            with contextlib.suppress(FileNotFoundError):  # a by-products folder, deleted meanwhile
                seen = os.stat(self._root / name)
                folders[name] = (seen.st_mtime_ns, seen.st_ctime_ns, stat.S_IMODE(seen.st_mode))
        entries = Entries(
            folders=folders,
            links=links,
            modes={name: mode for name, mode in modes.items() if mode != 0o644},
            times={name: (seen.mtime_ns, seen.ctime_ns) for name, seen in chosen.files.items()},
            odd=odd,
        )
        path.write_text(to_text(noted, entries), encoding="ascii")


def _links_inside(root: Path, links: Mapping[str, str]) -> dict[str, str]:
    """The links that lead into the folder, as relative paths that are valid anywhere."""
    found = {}
    tops = {os.path.abspath(root), os.path.realpath(root)}
    real = Path(os.path.realpath(root))
    for name, target in links.items():
        for top in tops:
            if target == top or target.startswith(f"{top}/"):
                place = os.path.relpath(target, top)
                target = os.path.relpath(place, os.path.dirname(name) or ".")
                break
        inside = Path(os.path.realpath(root / name)).is_relative_to(real)
        if inside and leads_inside(name, target):
            found[name] = target
    return found


def is_plain(name: str) -> bool:
    """Whether an object can have this file's name, which must not contain a backslash, a line break
    or bytes that are not UTF-8."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return False
    return len(encoded) <= NAME_BYTES_MAX and "\\" not in name and name.isprintable()


def starts_with(file: Path, copy: Path) -> bool:
    """Whether the file begins with all of the copy's bytes."""
    with copy.open("rb") as one, file.open("rb") as other:
        while data := one.read(_COMPARED_BYTES):
            if other.read(len(data)) != data:
                return False
    return True


def _odd_names(chosen: Listing) -> dict[str, str]:
    """Numbers in place of the file names that no object can have."""
    odd = sorted((name for name in chosen.files if not is_plain(name)), key=os.fsencode)
    return {name: f"{number:06d}" for number, name in enumerate(odd)}


def _without_companions(chosen: Listing, flow: Flow) -> Listing:
    files = {name: seen for name, seen in chosen.files.items() if not flow.is_companion(name)}
    return Listing(files, chosen.links, chosen.folders, chosen.kinds)


def _size(chosen: Listing, without: Container[str] = ()) -> int:
    return sum(seen.size for file, seen in chosen.files.items() if file not in without)


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database as of one moment while others use it; Changed if SQLite cannot."""
    pages = -1 if source.stat().st_size < _DATABASE_BYTES else 4096
    address = f"file:{quote(os.fsencode(source))}?mode=rw"
    try:
        with (
            contextlib.closing(sqlite3.connect(address, uri=True, timeout=5.0)) as database,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            database.backup(copy, pages=pages)
    except sqlite3.Error as error:
        raise Changed(f"{source.name}: SQLite gave no copy of it ({error})") from None


def _copy_bytes(source: Any, copy: Any, limit: int | None = None) -> None:
    """Copy all bytes, or the first ``limit``, inside the kernel; it may make a clone."""
    left = limit
    try:
        while left is None or left > 0:
            size = _CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES)
            done = os.copy_file_range(source.fileno(), copy.fileno(), size)
            if not done:
                return
            left = None if left is None else left - done
    except (OSError, AttributeError) as error:
        # Not supported here, or between these file systems; a full disk fails again below.
        if os.lseek(copy.fileno(), 0, os.SEEK_CUR):
            raise OSError(getattr(error, "errno", None) or 0, f"copying: {error}") from error
        while left is None or left > 0:
            data = source.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
            if not data:
                return
            copy.write(data)
            left = None if left is None else left - len(data)
