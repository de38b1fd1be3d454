"""Fetches a run's result, or its best checkpoint, into a folder with a stable path, and writes
files from its rows beside it (`exports`).

Every file is verified against the run's own list before it gets its name, and an interrupted fetch
continues where it stopped.
"""

import contextlib
import re
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.base.names import check_object_name
from outlast.base.retry import BRIEF
from outlast.bucket.head import read_head
from outlast.bucket.parts import own_step
from outlast.bucket.restore import Reader
from outlast.bucket.results import complete_result
from outlast.cli.errors import OperateError, reading
from outlast.cli.runs import OpenedRun, Place

if TYPE_CHECKING:
    from outlast.cli.exports.extras import Extra

NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Fetched:
    """What is in a folder now."""

    experiment: str
    run: str
    path: Path
    files: tuple[str, ...]
    step: int | None
    """Of the checkpoint; None for a result."""
    written: tuple[str, ...] = ()
    """Files that were made from the rows."""
    without: str = ""
    """Why the result is missing beside them."""

    def as_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "run": self.run,
            "path": str(self.path),
            "files": list(self.files),
            "step": self.step,
            "written": list(self.written),
            "without": self.without,
        }


def fetch(
    place: Place,
    into: Path,
    *,
    part: str | None = None,
    best: bool = False,
    extras: "Collection[Extra]" = (),
) -> Fetched:
    """Fetches the result of a finished run or part, or the best checkpoint so far, and writes the
    extras, which a run without a result has too.

    Returns `into/<experiment>/<run>`, for a part with its name, and for a checkpoint with
    `best-step-<step>`. Raises OperateError if there is none, it is damaged, or a file there has
    other bytes.
    """
    found = _fetch(place, into, part, best, without_result=bool(extras))
    if not extras:
        return found
    from outlast.cli.exports import extras as exports

    written = exports.write(place, found.path, extras, part=part, taken=found.files)
    return replace(found, written=tuple(written))


def _fetch(
    place: Place, into: Path, part: str | None, best: bool, *, without_result: bool
) -> Fetched:
    experiment, run = names(place)
    folder = into / experiment / run
    if part is not None:
        folder = folder / check_object_name(part)
    opened = OpenedRun(place)
    try:
        with reading(place.name):
            if best:
                return _best(place, opened, part, folder, experiment, run)
            try:
                result = opened.named_result(part)
            except OperateError as error:
                if not without_result:
                    raise
                return Fetched(experiment, run, folder, (), None, without=str(error))
            manifest = complete_result(place.store, result, folder)
    except FileExistsError as error:
        raise OperateError(f"{error}; move it away, or fetch --into another folder") from None
    except OSError as error:
        raise OperateError(f"{folder}: {error.strerror or error}") from None
    files = tuple(file.name for file in manifest.files)
    return Fetched(experiment, run, folder, files, None)


@contextlib.contextmanager
def verified(place: Place, checkpoint: str | None, part: str | None = None) -> Iterator[Path]:
    """A folder with the verified files of the result, or of the `best` or `newest` checkpoint.
    Raises OperateError if there is none.
    """
    opened = OpenedRun(place)
    if checkpoint is None:
        yield opened.result(part)
        return
    with tempfile.TemporaryDirectory(prefix="outlast-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch) / "checkpoint"
        with reading(place.name):
            best = checkpoint == "best"
            found = opened.best_checkpoint(part) if best else opened.newest_checkpoint(part)
            Reader(place.store, BRIEF).read(found, folder)
        yield folder


def _best(
    place: Place, opened: OpenedRun, part: str | None, folder: Path, experiment: str, run: str
) -> Fetched:
    checkpoint = opened.best_checkpoint(part)
    step = own_step(checkpoint)
    folder = folder / f"best-step-{step}"
    reader = Reader(place.store, BRIEF)
    if not reader.has(checkpoint, folder):
        if folder.exists():
            raise FileExistsError(f"{folder}: has other bytes than the checkpoint")
        reader.read(checkpoint, folder)
    there = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    return Fetched(experiment, run, folder, tuple(there), step)


def names(place: Place) -> tuple[str, str]:
    """The names of a run's experiment and of the run, for a path. A run in a folder has its name
    only in HEAD, and its folder's for an experiment. Raises OperateError.
    """
    if place.folder is None:
        found = (place.layout.prefix.rpartition("/")[2], place.layout.run)
    else:
        with reading(place.name):
            owner = read_head(place.store, place.layout).head.owner
        found = (place.folder.resolve().name, owner.rpartition("/")[2])
    for name in found:
        if not NAME.fullmatch(name):
            raise OperateError(f"{place.name}: its name {name!r} cannot be a folder's")
    return found
