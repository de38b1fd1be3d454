"""Finds the files that a command leaves in its working folder, which are its result if it names no
other place.

The folder is listed before the command starts and after it has ended; new and changed files are the
command's. Caches, environments, names that begin with a dot, files under version control, the run's
data and other runs are left out.
"""

import contextlib
import math
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from outlast.loop.command.listing import Seen, seen_of
from outlast.loop.command.own_folder import ASIDE
from outlast.spec.file_kinds import TEMPORARY
from outlast.spec.globs import matches

FILES_MAX = 200_000
"""A folder with more files than this before the command starts is not searched."""
LOOK_SEC = 20.0
"""A folder that takes longer to list is not searched either."""
FILES_AT_END_MAX = 2_000_000
"""The same limit after the command's end, when there is no time limit."""

LEFT_OUT = (
    *("__pycache__", "*.pyc", "*.pyo", "*.egg-info", "*.dist-info", "node_modules"),
    *("site-packages", "venv", "env", "CVS", "lost+found", "outlast-supervisor-*"),
)
"""Names of files and folders that are not results, besides those that begin with a dot."""

DATA = ("data", "dataset", "datasets")
"""Names of folders in which only files that look like a model are results."""

MODELS = (
    *("*.pt", "*.pth", "*.ckpt", "*.safetensors", "*.keras", "*.h5", "*.onnx", "*.joblib", "*.pkl"),
    *("*.model", "*.ubj", "*.tflite", "*.gguf", "*.mar"),
)
"""Name patterns of models."""

TRACES = (
    *("*.log", "*.log.*", "log.txt", "*_log.txt", "*-log.txt", "*.out", "*.err", "*.wandb"),
    *("events.out.tfevents.*", "*.yaml", "*.yml", "*.toml", "*.ini", "*.cfg", "*.md", "*.py"),
)
"""Name patterns of files that are kept with a result but do not make one, because a crashed command
leaves them too."""


ENVIRONMENT = frozenset({"pyvenv.cfg", "conda-meta"})
"""Names at the top of a Python environment."""

RUN = frozenset({"HEAD", "attempts"})
"""Names at the top of a run's folder."""


@dataclass(frozen=True)
class Produced:
    """The new and changed files in the folder."""

    files: dict[str, Seen]
    """The files that become the result."""
    data: tuple[str, ...] = ()
    """Folders that are left out because their new files look like data."""
    earlier: frozenset[str] = frozenset()
    """Those of the files that an earlier attempt of the run left here."""

    @property
    def size(self) -> int:
        return sum(seen.size for seen in self.files.values())

    @property
    def is_output(self) -> bool:
        """Whether this attempt has left more than traces."""
        return any(not matches(name, TRACES) for name in self.files if name not in self.earlier)

    @property
    def models(self) -> "Produced":
        """Only the files that look like models."""
        found = {name: seen for name, seen in self.files.items() if matches(name, MODELS)}
        return Produced(found, (), self.earlier)

    def largest(self, count: int = 5) -> str:
        """The largest files with their sizes, for a message."""
        order = sorted(self.files, key=lambda name: (-self.files[name].size, name))
        named = [f"{name} ({size_text(self.files[name].size)})" for name in order[:count]]
        rest = len(order) - count
        return ", ".join(named) + (f" and {rest} more" if rest > 0 else "")


NOTHING = Produced({})


class TooMuch(Exception):
    """The folder has too many files to search."""


class WorkFolder:
    """A command's working folder, with its listing from before the run."""

    def __init__(self, root: Path, without: Iterable[Path], *, since_ns: int | None = None) -> None:
        """``without`` are paths that are not results: data, runs, checkpoints. ``since_ns``: when
        the run began here, if the folder also has files of its earlier attempts."""
        self._root = root
        self._without = {os.path.realpath(path) for path in without}
        self._since_ns = since_ns
        self._before: dict[str, Seen] | None = None
        with contextlib.suppress(TooMuch):
            self._before = dict(self._look(FILES_MAX, LOOK_SEC))

    @property
    def is_known(self) -> bool:
        """Whether it could be searched."""
        return self._before is not None

    def produced(self) -> Produced:
        """The files that appeared or changed since the run began; none if the folder could not be
        searched before. Raises TooMuch."""
        if self._before is None:
            return NOTHING
        files: dict[str, Seen] = {}
        data: set[str] = set()
        earlier: set[str] = set()
        for name, seen in self._look(FILES_AT_END_MAX):
            if self._before.get(name) == seen:
                if self._since_ns is None or seen.ctime_ns <= self._since_ns:
                    continue
                earlier.add(name)
            folders = name.split("/")[:-1]
            of_data = next((at for at, part in enumerate(folders) if part in DATA), None)
            if of_data is not None and not matches(name, MODELS):
                data.add("/".join(folders[: of_data + 1]))
            else:
                files[name] = seen
        return Produced(dict(sorted(files.items())), tuple(sorted(data)), frozenset(earlier))

    def _look(self, files_max: int, look_sec: float = math.inf) -> Iterator[tuple[str, Seen]]:
        until_sec, count = time.monotonic() + look_sec, 0
        waiting = [""]
        while waiting:
            below = waiting.pop()
            try:
                entries = list(os.scandir(self._root / below))
            except OSError:
                continue
            names = {entry.name for entry in entries}
            if below and (ENVIRONMENT & names or names >= RUN or ASIDE in names):
                continue
            for entry in entries:
                count += 1
                if count > files_max or time.monotonic() > until_sec:
                    raise TooMuch
                name = f"{below}{entry.name}"
                if self._is_left_out(entry):
                    continue
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(f"{name}/")
                    elif stat.S_ISREG(found.st_mode):
                        yield name, seen_of(found)

    def _is_left_out(self, entry: "os.DirEntry[str]") -> bool:
        if entry.name.startswith(".") or matches(entry.name, LEFT_OUT):
            return True
        if matches(entry.name, TEMPORARY):
            return True
        return os.path.realpath(entry.path) in self._without


def size_text(size: int) -> str:
    """A size in a readable form."""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= least:
            return f"{size / least:.1f} {unit}"
    return f"{size} bytes"
