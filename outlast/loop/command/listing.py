"""A command's checkpoint folder at one moment: names, sizes and times, without the contents."""

import contextlib
import os
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from outlast.spec.file_kinds import DEFAULT, Kind, Kinds

COMPLETE = "COMPLETE"
"""Name of the file, written last, that marks its folder as complete."""

COMPANIONS = ("-journal", "-wal", "-shm")
"""Suffixes of the files that SQLite keeps beside a database while it is written."""


@dataclass(frozen=True)
class Seen:
    """The properties that distinguish two states of a file without reading it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    """Change time, which no program can set back."""
    device: int
    inode: int
    mode: int

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that stays equal while the file is not written."""
        return self.size, self.mtime_ns, self.inode


@dataclass(frozen=True)
class Flow:
    """Files of a checkpoint that may be written at any time without delaying it."""

    growing: frozenset[str] = frozenset()
    """Files to which lines are appended; copied up to their current end."""
    databases: frozenset[str] = frozenset()
    """SQLite databases; copied between two transactions."""

    def holds(self, name: str) -> bool:
        """Whether the file is one of them or a part of one."""
        return name in self.growing or name in self.databases or self.is_companion(name)

    def is_companion(self, name: str) -> bool:
        """Whether the file belongs to a database but is not needed in its copy."""
        return any(
            name.endswith(end) and name.removesuffix(end) in self.databases for end in COMPANIONS
        )


NO_FLOW = Flow()


@dataclass(frozen=True)
class Listing:
    """A folder at one moment. Names are relative, with forward slashes."""

    files: dict[str, Seen] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    kinds: Kinds = Kinds()

    @property
    def stamp(self) -> object:
        """A value that stays equal while nothing relevant changes."""
        return self.stamp_of(NO_FLOW)

    def stamp_of(self, flow: Flow) -> object:
        """The stamp without the flowing files."""
        return self._stamp_of(flow, lambda seen: seen.version)

    def touched_of(self, flow: Flow) -> object:
        """The same with the files' change times, because a file may be written and get its old
        mtime back. A rename, a link and a new mode change them too."""
        return self._stamp_of(flow, lambda seen: (seen.version, seen.ctime_ns))

    def _stamp_of(self, flow: Flow, state: Callable[[Seen], object]) -> object:
        ignored = (Kind.LOG, Kind.BY_PRODUCT)
        files = {
            name: state(seen)
            for name, seen in self.files.items()
            if self.kinds.of(name) not in ignored and not flow.holds(name)
        }
        links = {
            name: target
            for name, target in self.links.items()
            if self.kinds.of(name) not in ignored
        }
        return files, links

    @property
    def state(self) -> dict[str, Seen]:
        """The checkpoint files."""
        return {
            name: seen
            for name, seen in self.files.items()
            if self.kinds.of(name) is Kind.CHECKPOINT
        }

    def chosen(self, folders: Iterable[str] | None = None) -> "Listing":
        """The entries that belong to a snapshot: no temporary names and, if ``folders`` are given,
        only entries in them (``.`` is everything). ``folders`` may also name files."""
        roots = None if folders is None else set(folders)

        def belongs(name: str) -> bool:
            if self.kinds.of(name) is Kind.TEMPORARY:
                return False
            if roots is None or "." in roots or name in roots:
                return True
            return any(parent in roots for parent in _above(name))

        files = {name: seen for name, seen in self.files.items() if belongs(name)}
        above = {parent for name in files for parent in _above(name)}
        return Listing(
            files,
            {name: target for name, target in self.links.items() if belongs(name)},
            frozenset(name for name in self.folders if belongs(name) or name in above),
            self.kinds,
        )

    def without(self, names: Container[str]) -> "Listing":
        """The listing without these files and folders."""
        return Listing(
            {name: seen for name, seen in self.files.items() if name not in names},
            {name: target for name, target in self.links.items() if name not in names},
            frozenset(name for name in self.folders if name not in names),
            self.kinds,
        )

    def complete_folders(self) -> dict[str, Seen]:
        """Folders whose COMPLETE file is at least as new as all their other files apart from logs
        and by-products, with that file."""
        marks: dict[str, Seen] = {}
        for name, seen in self.files.items():
            path = PurePosixPath(name)
            if path.name == COMPLETE and self.kinds.of(name) is not Kind.TEMPORARY:
                marks[path.parent.as_posix()] = seen
        return {
            folder: mark
            for folder, mark in marks.items()
            if not any(
                seen.mtime_ns > mark.mtime_ns
                for name, seen in self.chosen([folder]).files.items()
                if self.kinds.of(name) not in (Kind.LOG, Kind.BY_PRODUCT)
            )
        }

    @property
    def says_complete(self) -> bool:
        """Whether there is a COMPLETE file anywhere."""
        return any(name.rpartition("/")[2] == COMPLETE for name in self.files)


def look(root: Path, kinds: Kinds = DEFAULT) -> Listing:
    """List the folder now, without files that vanish meanwhile and without sockets and devices."""
    files: dict[str, Seen] = {}
    links: dict[str, str] = {}
    folders: set[str] = set()
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            entries = list(os.scandir(root / below))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            name = f"{below}{entry.name}"
            with contextlib.suppress(FileNotFoundError):
                if entry.is_symlink():
                    links[name] = os.readlink(entry.path)
                elif entry.is_dir():
                    folders.add(name)
                    waiting.append(f"{name}/")
                elif entry.is_file():
                    files[name] = seen_of(os.stat(entry.path, follow_symlinks=False))
    return Listing(files, links, frozenset(folders), kinds)


def seen_of(found: os.stat_result) -> Seen:
    """A file's state from its ``stat``."""
    return Seen(
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_dev,
        found.st_ino,
        found.st_mode,
    )


def _above(name: str) -> Iterable[str]:
    place = name.rfind("/")
    while place > 0:
        yield name[:place]
        place = name.rfind("/", 0, place)


class Stillness:
    """Measures how long the folder has been unchanged, by this machine's clock."""

    def __init__(self, now_sec: float, listing: Listing) -> None:
        self._stamp = listing.touched_of(NO_FLOW)
        self._since_sec = now_sec

    def still_sec(self, now_sec: float, listing: Listing, flow: Flow = NO_FLOW) -> float:
        """Seconds since the last change that delays a checkpoint. Temporary files count, because
        one that grows is an unfinished save."""
        stamp = listing.touched_of(flow)
        if stamp != self._stamp:
            self._stamp, self._since_sec = stamp, now_sec
        return now_sec - self._since_sec
