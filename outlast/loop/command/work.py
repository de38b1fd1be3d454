"""What a command leaves in the folder that it runs in: its result, where it names no other place.

The folder is listed before the command starts and after it has ended; what is new or changed then
is the command's. Left out are caches, environments, what begins with a dot, what version control
keeps, the run's data and other runs.
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from outlast.loop.command.globs import matches
from outlast.loop.command.kinds import TEMPORARY
from outlast.loop.command.listing import Seen, seen_of

FILES_MAX = 200_000
"""A folder with more is not looked through."""
LOOK_SEC = 20.0
"""Nor one that takes longer."""

LEFT_OUT = (
    *("__pycache__", "*.pyc", "*.pyo", "*.egg-info", "*.dist-info", "node_modules"),
    *("site-packages", "venv", "env", "CVS", "lost+found"),
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


@dataclass(frozen=True)
class Produced:
    """What is new or changed in the folder."""

    files: dict[str, Seen]
    """What becomes the result."""
    data: tuple[str, ...] = ()
    """Folders whose new files look like data and are left out."""

    @property
    def size(self) -> int:
        return sum(seen.size for seen in self.files.values())

    @property
    def is_output(self) -> bool:
        """Whether any of it is more than a trace."""
        return any(not matches(name, TRACES) for name in self.files)

    @property
    def models(self) -> "Produced":
        """Only what looks like a model."""
        found = {name: seen for name, seen in self.files.items() if matches(name, MODELS)}
        return Produced(found)

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

    def __init__(self, root: Path, without: Iterable[Path]) -> None:
        """``without`` are paths that are no result: data, runs, checkpoints."""
        self._root = root
        self._without = {os.path.realpath(path) for path in without}
        self._before: dict[str, Seen] | None = None
        with contextlib.suppress(TooMuch):
            self._before = dict(self._look())

    @property
    def is_known(self) -> bool:
        """Whether it could be looked through."""
        return self._before is not None

    def produced(self) -> Produced:
        """What has come or changed since; nothing where the folder could not be looked through."""
        if self._before is None:
            return NOTHING
        files: dict[str, Seen] = {}
        data: set[str] = set()
        with contextlib.suppress(TooMuch):
            for name, seen in self._look():
                if self._before.get(name) == seen:
                    continue
                folders = name.split("/")[:-1]
                of_data = next((at for at, part in enumerate(folders) if part in DATA), None)
                if of_data is not None and not matches(name, MODELS):
                    data.add("/".join(folders[: of_data + 1]))
                else:
                    files[name] = seen
        return Produced(dict(sorted(files.items())), tuple(sorted(data)))

    def _look(self) -> Iterator[tuple[str, Seen]]:
        until_sec, count = time.monotonic() + LOOK_SEC, 0
        waiting = [""]
        while waiting:
            below = waiting.pop()
            try:
                entries = list(os.scandir(self._root / below))
            except OSError:
                continue
            names = {entry.name for entry in entries}
            environment = "pyvenv.cfg" in names or "conda-meta" in names
            if below and (environment or {"HEAD", "attempts"} <= names):
                continue
            for entry in entries:
                count += 1
                if count > FILES_MAX or time.monotonic() > until_sec:
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
