"""The files that `outlast fetch` makes from a run's rows."""

import json
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from outlast.base.whole_file import write_whole
from outlast.bucket import history
from outlast.bucket.history import History
from outlast.bucket.rows import iter_rows
from outlast.cli.errors import OperateError, reading
from outlast.cli.exports import events, notebook_file, picture
from outlast.cli.runs import Place
from outlast.protocol import own_row

ROWS_FILE = "rows.jsonl"


class Extra(StrEnum):
    """A form in which rows can be had."""

    CURVES = "curves"
    NOTEBOOK = "notebook"
    TENSORBOARD = "tensorboard"


def write(
    place: Place,
    folder: Path,
    extras: Collection[Extra],
    *,
    part: str | None = None,
    taken: Collection[str] = (),
) -> list[str]:
    """Writes the extras of a run, or of one part, into a folder, and returns their names. Rows are
    those up to the newest checkpoint or the end. Earlier ones are replaced, but not a notebook,
    which its reader may have edited. `taken`: files of the result, which keep their names.

    Raises OperateError for rows that cannot be read, a name that is taken, or a missing package.
    """
    with reading(place.name):
        book = history.read(place.store, place.layout)
    if book is None:
        raise OperateError(f"{place.name}: no VM has trained yet, so the run has no rows")
    rows = Rows(place, book, part)
    written: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if Extra.CURVES in extras:
            name = _free(picture.FILE, taken)
            with reading(place.name):
                write_whole(folder / name, picture.draw(place.name, rows, book, part))
            written.append(name)
        if Extra.NOTEBOOK in extras:
            name = _free(ROWS_FILE, taken)
            with reading(place.name):
                write_whole(folder / name, lambda path: _write_rows(path, rows))
            page = notebook_file.of(place.name, place.url, ROWS_FILE)
            file = folder / _free(notebook_file.FILE, taken)
            if not file.exists():
                write_whole(file, lambda path: path.write_text(page, encoding="utf-8"))
            elif file.read_text(encoding="utf-8", errors="replace") != page:
                raise OperateError(f"{file}: has other content, so it is kept; move it away")
            written += [name, file.name]
        if Extra.TENSORBOARD in extras:
            with reading(place.name):
                written += events.write(folder, rows, book, taken)
    except OSError as error:
        raise OperateError(f"{folder}: {error.strerror or error}") from None
    return written


class Rows:
    """A run's rows in order, read again with each iteration."""

    def __init__(self, place: Place, book: History, part: str | None) -> None:
        self._place = place
        self._book = book
        self._part = part

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The step counted through all parts, and the row with its part's name and own step.
        Raises StoreError and HeadError."""
        for row in iter_rows(self._place.store, self._place.layout, self._book.head):
            own = own_row(row)
            if self._part is None or own.get("part") == self._part:
                yield row["step"], own


def _write_rows(path: Path, rows: Rows) -> None:
    with path.open("w", encoding="utf-8") as file:
        for _, row in rows:
            file.write(json.dumps(row) + "\n")


def _free(name: str, taken: Collection[str]) -> str:
    if name in taken:
        raise OperateError(
            f"{name}: the result has a file of this name, which is kept; fetch --into another"
            " folder with outlast fetch, and open the run with outlast.open for its rows"
        )
    return name
