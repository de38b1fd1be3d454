"""A command's checkpoint folder: what lies in it, when it is complete, and copies of it.

A snapshot of it is a folder with the files under ``files/`` and, in ``command.json``, what an
object store does not keep: modes, times, links, empty folders. Nothing in here is read but names,
sizes and bytes: what they mean is the command's own business.

A copy is of one moment or it is none: the folder is listed before and after, and a file that came,
went or changed in between makes it Changed.
"""

import contextlib
import fnmatch
import functools
import json
import os
import shutil
import stat
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from outlast.loop.errors import DoesNotFit, LoopError

FORMAT = 1
FILES = "files"
NOTES = "command.json"
COMPLETE = "COMPLETE"
"""A file of this name says that the folder it is in is complete; it is written last."""

TEMPORARY = (
    *("*.tmp", "*.tmp.*", "*.tmp-*", "*.temp", "tmp-*", ".tmp*", "*~", ".~*", "*.swp", "*.lock"),
    # Downloads that are not over.
    *("*.part", "*.partial", "*.incomplete", "*.crdownload", "*.download"),
    # Orbax and TensorFlow while they save; what network file systems keep of deleted files.
    *("*.orbax-checkpoint-tmp*", "*_temp", "*.tempstate*", ".nfs*", ".fuse_hidden*"),
)
"""Names of files and folders that are never part of a checkpoint."""

LOGS = ("events.out.tfevents.*", "*.log")
"""Names of files that only grow: they are taken as far as they go, and hold nothing up."""

SETTLED_NS = 1_000_000_000
"""A file that had been left alone for so long when it was copied has a change of its own time
with every later write, however coarse the file system's clock is."""

_CHUNK_BYTES = 64 << 20


class Changed(LoopError):
    """The folder changed while it was copied: no copy was made."""


class NoRoom(LoopError):
    """The snapshot does not fit beside those that are on their way."""


@dataclass(frozen=True)
class Seen:
    """What tells one state of a file from another, without reading it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    """No program can set it back."""
    device: int
    inode: int
    mode: int


@dataclass(frozen=True)
class Listing:
    """A folder at one moment. Names are relative, with forward slashes."""

    files: dict[str, Seen] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()

    @property
    def stamp(self) -> object:
        """Equal for two listings between which nothing happened that matters."""
        files = {
            name: None if is_log(name) else (seen.size, seen.mtime_ns, seen.inode)
            for name, seen in self.files.items()
        }
        return files, self.links

    def chosen(self, folders: Iterable[str] | None = None) -> "Listing":
        """What belongs to a snapshot: no temporary names and, where ``folders`` are given,
        nothing outside them (``.`` is everything)."""
        roots = None if folders is None else list(folders)

        def belongs(name: str) -> bool:
            if is_temporary(name):
                return False
            return roots is None or any(
                root == "." or name == root or name.startswith(f"{root}/") for root in roots
            )

        return Listing(
            {name: seen for name, seen in self.files.items() if belongs(name)},
            {name: target for name, target in self.links.items() if belongs(name)},
            frozenset(name for name in self.folders if belongs(name)),
        )

    def complete_folders(self) -> dict[str, Seen]:
        """Folders that hold a COMPLETE file no other file in them is newer than, with it."""
        marks: dict[str, Seen] = {}
        for name, seen in self.files.items():
            path = PurePosixPath(name)
            if path.name == COMPLETE and not is_temporary(name):
                marks[path.parent.as_posix()] = seen
        return {
            folder: mark
            for folder, mark in marks.items()
            if not any(
                seen.mtime_ns > mark.mtime_ns
                for name, seen in self.chosen([folder]).files.items()
                if not is_log(name)
            )
        }

    @property
    def says_complete(self) -> bool:
        """Whether there is a COMPLETE file anywhere."""
        return any(PurePosixPath(name).name == COMPLETE for name in self.files)


@functools.lru_cache(maxsize=65536)
def is_temporary(name: str) -> bool:
    """Whether a file or a folder on the way to it has a temporary name."""
    return any(
        fnmatch.fnmatchcase(part, pattern)
        for part in PurePosixPath(name).parts
        for pattern in TEMPORARY
    )


@functools.lru_cache(maxsize=65536)
def is_log(name: str) -> bool:
    """Whether a file only grows."""
    base = name.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(base, pattern) for pattern in LOGS)


def look(root: Path) -> Listing:
    """The folder now. What vanishes meanwhile was not there; sockets and devices never are."""
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
                    files[name] = _seen(os.stat(entry.path, follow_symlinks=False))
    return Listing(files, links, frozenset(folders))


@dataclass(frozen=True)
class Taken:
    """A copy that was made."""

    folder: Path
    listing: Listing
    """Of the folder it was made of, as it was then."""
    copied: int
    """Bytes that had to be copied: what is unchanged since the copy before is linked."""
    cost_sec: float


class Copier:
    """Makes snapshots of ``root`` in the first of ``places`` that has the room, and puts one back.

    It keeps a link to each file of its last copy, under a name of its own beside it, for files
    that are unchanged the next time. Never to the command's own files: they may be written over.
    """

    def __init__(self, root: Path, places: Sequence[Path]) -> None:
        self._root = root
        self._places = list(places)
        self._place = self._places[0]
        for place in self._places:
            for left in place.glob("tmp-kept*"):  # of an attempt before
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
    ) -> Taken:
        """Copy what belongs to a snapshot into a new folder ``name``; all, or what is in
        ``folders``.

        ``before`` is a listing that the folder must still be equal to afterwards. Raises Changed,
        NoRoom, OSError.
        """
        begun_sec, begun_ns = time.monotonic(), time.time_ns()
        before = before or look(self._root)
        roots = None if folders is None else list(folders)
        chosen = before.chosen(roots)
        self._move_to_room(chosen)
        linked = self._linked(chosen)
        needed = _size(chosen, without=linked)
        temporary = self._place / f"tmp-{name}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            (temporary / FILES).mkdir(parents=True)
            for file, seen in chosen.files.items():
                target = temporary / FILES / file
                target.parent.mkdir(parents=True, exist_ok=True)
                if file in linked:
                    os.link(linked[file], target)
                else:
                    self._copy(file, seen, target)
            after = look(self._root)
            if after.chosen(roots).stamp != chosen.stamp:
                raise Changed("files changed while they were copied")
            self._write_notes(temporary / NOTES, chosen, said)
            self._remember(temporary / FILES, chosen, begun_ns)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        folder = self._place / name
        os.replace(temporary, folder)
        return Taken(folder, before, needed, time.monotonic() - begun_sec)

    def put_back(self, snapshot: Path) -> str:
        """Fill the empty folder from a verified snapshot; how that one was said to be complete.

        The snapshot's files are moved where that is possible: it is read only once. DoesNotFit
        if it is none of a command.
        """
        try:
            notes = json.loads((snapshot / NOTES).read_text(encoding="utf-8"))
            if notes["format"] != FORMAT:
                raise DoesNotFit(
                    f"{NOTES}: format {notes['format']!r}, this version of outlast reads {FORMAT}"
                )
            folders, links, said = notes["folders"], notes["links"], notes["said"]
            times, modes = notes["times"], notes["modes"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DoesNotFit(f"the checkpoint is none of a command ({error!r})") from None
        for name in sorted(folders):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        for name in look(snapshot / FILES).files:
            target = self._root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(snapshot / FILES / name, target)
            target.chmod(modes.get(name, 0o644))
            os.utime(target, ns=(times[name], times[name]))
        for name, link in links.items():
            (self._root / name).parent.mkdir(parents=True, exist_ok=True)
            (self._root / name).symlink_to(link)
        return said

    def _linked(self, chosen: Listing) -> dict[str, Path]:
        """The copies that are there already: of files that are the same as they were then."""
        return {
            file: kept[1]
            for file, seen in chosen.files.items()
            if (kept := self._kept.get(file)) is not None and kept[0] == seen
        }

    def _move_to_room(self, chosen: Listing) -> None:
        """Stay where there is room for twice as much, else go where there is, else where it fits:
        the first place is memory, and the command needs some."""
        needed = _size(chosen, without=self._linked(chosen))
        whole = _size(chosen)
        free = {place: shutil.disk_usage(place).free for place in self._places}
        needs = {place: needed if place == self._place else whole for place in self._places}
        order = [self._place, *(place for place in self._places if place != self._place)]
        fits = [place for place in order if free[place] >= 2 * needs[place]]
        fits += [place for place in order if free[place] >= needs[place]]
        if not fits:
            rooms = ", ".join(f"{place} has {free[place]}" for place in self._places)
            raise NoRoom(f"a checkpoint of {needed} bytes does not fit: {rooms} bytes free")
        if fits[0] != self._place:
            shutil.rmtree(self._keep, ignore_errors=True)
            self._place, self._kept = fits[0], {}

    def _copy(self, name: str, seen: Seen, target: Path) -> None:
        try:
            with (self._root / name).open("rb") as source, target.open("wb") as copy:
                if is_log(name):
                    _copy_bytes(source, copy, seen.size)
                    return
                _copy_bytes(source, copy)
                found = _seen(os.fstat(source.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            raise Changed(f"{name} was deleted while it was copied") from None
        if found != seen or target.stat().st_size != seen.size:
            raise Changed(f"{name} changed while it was copied")

    def _remember(self, copies: Path, chosen: Listing, begun_ns: int) -> None:
        """Links to this copy's files, for those that will be the same the next time."""
        self._count += 1
        keep = self._place / f"tmp-kept-{self._count}"
        kept: dict[str, tuple[Seen, Path]] = {}
        for number, (name, seen) in enumerate(chosen.files.items()):
            if is_log(name) or seen.ctime_ns + SETTLED_NS > begun_ns:
                continue
            keep.mkdir(exist_ok=True)
            link = keep / f"{number:06d}"
            with contextlib.suppress(OSError):  # without hard links everything is copied
                os.link(copies / name, link)
                kept[name] = (seen, link)
        shutil.rmtree(self._keep, ignore_errors=True)
        self._keep, self._kept = keep, kept

    def _write_notes(self, path: Path, chosen: Listing, said: str) -> None:
        root = os.path.abspath(self._root)
        links = {}
        for name, target in chosen.links.items():
            if os.path.isabs(target) and target.startswith(f"{root}/"):
                target = os.path.relpath(target, os.path.dirname(os.path.join(root, name)))
            links[name] = target
        modes = {name: stat.S_IMODE(seen.mode) for name, seen in chosen.files.items()}
        notes: dict[str, Any] = {
            "format": FORMAT,
            "said": said,
            "folders": sorted(chosen.folders),
            "links": links,
            "modes": {name: mode for name, mode in modes.items() if mode != 0o644},
            "times": {name: seen.mtime_ns for name, seen in chosen.files.items()},
        }
        path.write_text(json.dumps(notes, sort_keys=True) + "\n", encoding="utf-8")


class Stillness:
    """Since when the folder is as it is, by this machine's own looking."""

    def __init__(self, now_sec: float, listing: Listing) -> None:
        self._stamp = listing.stamp
        self._since_sec = now_sec

    def still_sec(self, now_sec: float, listing: Listing) -> float:
        """How long nothing has changed, temporary files included: one that grows is a save that
        is not over."""
        stamp = listing.stamp
        if stamp != self._stamp:
            self._stamp, self._since_sec = stamp, now_sec
        return now_sec - self._since_sec


def tidy_result(folder: Path) -> list[str]:
    """Make ``folder`` plain: links to files become files, everything else that is neither file
    nor folder goes. Sentences about what a person should know."""
    said = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            target = path.resolve()
            path.unlink()
            if target.is_file():
                shutil.copyfile(target, path)
            else:
                said.append(f"{path.name}: a link to no file, left out of the result")
        elif path.name in ("RESULT.json", "MANIFEST.json") and path.parent == folder:
            path.rename(path.with_name(f"command-{path.name}"))
            said.append(f"{path.name}: the name is taken in a result, kept as command-{path.name}")
        elif not path.is_file() and not path.is_dir():
            path.unlink()
    return said


def _size(chosen: Listing, without: Container[str] = ()) -> int:
    return sum(seen.size for file, seen in chosen.files.items() if file not in without)


def _copy_bytes(source: Any, copy: Any, limit: int | None = None) -> None:
    """All bytes, or the first ``limit``; inside the kernel, and as a clone where it makes them."""
    left = limit
    try:
        while left is None or left > 0:
            size = _CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES)
            done = os.copy_file_range(source.fileno(), copy.fileno(), size)
            if not done:
                return
            left = None if left is None else left - done
    except (OSError, AttributeError) as error:
        # Not between these file systems, or not on this system; a full disk is said again below.
        if os.lseek(copy.fileno(), 0, os.SEEK_CUR):
            raise OSError(getattr(error, "errno", None) or 0, f"copying: {error}") from error
        while left is None or left > 0:
            data = source.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
            if not data:
                return
            copy.write(data)
            left = None if left is None else left - len(data)


def _seen(found: os.stat_result) -> Seen:
    return Seen(
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_dev,
        found.st_ino,
        found.st_mode,
    )
