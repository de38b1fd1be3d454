"""What a command leaves in the folder that it runs in: its result, where it names no other place.

The folder is listed before the command starts and after it has ended; what is new or changed then
is the command's. Left out are caches, environments, what begins with a dot, what version control
keeps, the run's data and other runs.
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
"""A folder that holds more before the command starts is not looked through."""
LOOK_SEC = 20.0
"""Nor one that takes longer."""
FILES_AT_END_MAX = 2_000_000
"""A folder that holds more after the command's end: it takes as long as it takes."""

LEFT_OUT = (
    *("__pycache__", "*.pyc", "*.pyo", "*.egg-info", "*.dist-info", "node_modules"),
    *("site-packages", "venv", "env", "CVS", "lost+found", "outlast-supervisor-*"),
)
"""Names of files and folders that are no result, beside what begins with a dot."""

DATA = ("data", "dataset", "datasets")
"""In folders of these names only what looks like a model is a result."""

MODELS = (
    *("*.pt", "*.pth", "*.ckpt", "*.safetensors", "*.keras", "*.h5", "*.onnx", "*.joblib", "*.pkl"),
    *("*.model", "*.ubj", "*.tflite", "*.gguf", "*.mar"),
)
"""Names of models."""

TRACES = (
    *("*.log", "*.log.*", "log.txt", "*_log.txt", "*-log.txt", "*.out", "*.err", "*.wandb"),
    *("events.out.tfevents.*", "*.yaml", "*.yml", "*.toml", "*.ini", "*.cfg", "*.md", "*.py"),
)
"""Names of files that are kept with a result and are none by themselves: a command that crashed
leaves them, too."""


ENVIRONMENT = frozenset({"pyvenv.cfg", "conda-meta"})
"""What an environment of Python has at its top."""

RUN = frozenset({"HEAD", "attempts"})
"""What the folder of a run has at its top."""


@dataclass(frozen=True)
class Produced:
    """What is new or changed in the folder."""

    files: dict[str, Seen]
    """What becomes the result."""
    data: tuple[str, ...] = ()
    """Folders whose new files look like data and are left out."""
    earlier: frozenset[str] = frozenset()
    """Those files that an earlier attempt of the run left here."""

    @property
    def size(self) -> int:
        return sum(seen.size for seen in self.files.values())

    @property
    def is_output(self) -> bool:
        """Whether this attempt has left more than a trace."""
        return any(not matches(name, TRACES) for name in self.files if name not in self.earlier)

    @property
    def models(self) -> "Produced":
        """Only what looks like a model."""
        found = {name: seen for name, seen in self.files.items() if matches(name, MODELS)}
        return Produced(found, (), self.earlier)

    def largest(self, count: int = 5) -> str:
        """The largest files with their sizes, for a message."""
        order = sorted(self.files, key=lambda name: (-self.files[name].size, name))
        named = [f"{name} ({told_size(self.files[name].size)})" for name in order[:count]]
        rest = len(order) - count
        return ", ".join(named) + (f" and {rest} more" if rest > 0 else "")


NOTHING = Produced({})


class TooMuch(Exception):
    """The folder holds too many files to be looked through."""


class WorkFolder:
    """The folder that a command runs in, as it was before."""

    def __init__(self, root: Path, without: Iterable[Path], *, since_ns: int | None = None) -> None:
        """``without`` are paths that are no result: data, runs, checkpoints. ``since_ns``: when the
        run began here, where files of its earlier attempts are in the folder, too."""
        self._root = root
        self._without = {os.path.realpath(path) for path in without}
        self._since_ns = since_ns
        self._before: dict[str, Seen] | None = None
        with contextlib.suppress(TooMuch):
            self._before = dict(self._look(FILES_MAX, LOOK_SEC))

    @property
    def is_known(self) -> bool:
        """Whether it could be looked through."""
        return self._before is not None

    def produced(self) -> Produced:
        """What has come or changed since the run began; nothing if the folder could not be
        looked through before. Raises TooMuch."""
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


def told_size(size: int) -> str:
    """A size for people."""
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= least:
            return f"{size / least:.1f} {unit}"
    return f"{size} bytes"
