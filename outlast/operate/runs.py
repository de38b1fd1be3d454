"""``outlast.open``: a run as notebooks and scripts read it, in a bucket or in a folder.

Nothing of the run is written here. Results are copied to a cache folder, verified against their
manifest, whose digest HEAD names, before anybody gets to see them.
"""

import contextlib
import html
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.exits import State
from outlast.layout import EXPERIMENT_PATTERN, METRICS_FILE, Layout, Pin
from outlast.loop import snapshot
from outlast.loop.errors import LoopError
from outlast.operate.errors import OperateError, UsageError, reading
from outlast.run.commit import read_rows
from outlast.run.data import CACHE_VARIABLE, user_cache
from outlast.run.fetch import MANIFEST_FILE, cached_result
from outlast.run.head import Checkpoint, Head, Result, read_head
from outlast.run.store import NotFound, Store, StoreError, open_store

BUCKET_VARIABLE = "OUTLAST_BUCKET"
SHOWN_ROWS = 20


class Table(Sequence[Mapping[str, Any]]):
    """Rows with named columns; a cell that a row does not have is None."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = list(rows)
        self.columns = tuple(dict.fromkeys(name for row in self._rows for name in row))

    def __getitem__(self, index: Any) -> Any:
        """The row of a number, the column of a name as a list, or the rows of a slice."""
        if isinstance(index, str):
            if index not in self.columns:
                raise KeyError(f"column {index!r}: there are {', '.join(self.columns)}")
            return [row.get(index) for row in self._rows]
        return Table(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        lines = [list(self.columns), *self._cells()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        text = "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        )
        return f"{text}{self._more()}"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>"
            for line in self._cells()
        )
        return f"<table><tr>{head}</tr>{body}</table>{html.escape(self._more())}"

    def to_pandas(self) -> Any:
        """A pandas.DataFrame; OperateError where pandas is not installed."""
        try:
            import pandas  # type: ignore[import-not-found]
        except ImportError:
            raise OperateError("to_pandas: pandas is not installed; pip install pandas") from None
        return pandas.DataFrame({name: self[name] for name in self.columns})

    def _cells(self) -> list[list[str]]:
        shown = self._rows[-SHOWN_ROWS:]
        return [[_shown(row.get(name)) for name in self.columns] for row in shown]

    def _more(self) -> str:
        if len(self._rows) <= SHOWN_ROWS:
            return ""
        return f"\n({len(self._rows)} rows, the last {SHOWN_ROWS} are shown)"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class _Place:
    """Where a run lives."""

    name: str
    """As its user called it."""
    store: Store
    layout: Layout
    folder: Path | None
    """Of a run in a folder."""


class OpenedRun:
    """A run, read anew with each call: one that is still training shows what it has by then."""

    def __init__(self, place: _Place) -> None:
        self._place = place

    def __repr__(self) -> str:
        return f"<run {self.url}: {self.state} at step {self.step}>"

    @property
    def url(self) -> str:
        """Where it lives: ``gs://…/`` or a folder."""
        root = self._place.layout.root
        return f"{self._place.store.url}/{root}" if root else str(self._place.folder)

    @property
    def state(self) -> str:
        """``open``, ``done``, ``failed``, ``stopped`` or ``pruned``."""
        return self._head().state.value

    @property
    def step(self) -> int:
        """Steps that are safe: of the end, or of the newest checkpoint."""
        return _safe_step(self._head())

    def rows(self) -> list[dict[str, Any]]:
        """All rows of ``run.log`` and ``run.eval`` up to the newest checkpoint or the end, each
        step once, in order."""
        head = self._head()
        with self._reading():
            return read_rows(self._place.store, self._place.layout, head)

    def metrics(self) -> Table:
        """The evaluations of a finished run (its metrics.json), else all rows so far."""
        if self._head().state is not State.DONE:
            return Table(self.rows())
        file = self.result() / METRICS_FILE
        if not file.exists():  # a command's result is what it wrote itself
            return Table(self.rows())
        columns = json.loads(file.read_bytes())
        rows = zip(*columns.values(), strict=True)
        return Table([dict(zip(columns, row, strict=True)) for row in rows])

    def checkpoints(self) -> Table:
        """The checkpoints that are kept, oldest first: step, term, tags, path, and the name
        (``init``) by which another run begins with one."""
        return Table(
            [{**_checkpoint(entry), "init": self._pinned(entry)} for entry in self._head().chain]
        )

    def best(self) -> dict[str, Any]:
        """The newest checkpoint with the tag ``best``: its step, term, tags and path, and the row
        of its step. OperateError: there is none."""
        tagged = [entry for entry in self._head().chain if "best" in entry.tags]
        if not tagged:
            raise OperateError(
                f"{self._place.name}: has no best checkpoint; the trainer names one with "
                "run.eval(…, best='max')"
            )
        best = _checkpoint(tagged[-1])
        row = next((row for row in self.rows() if row["step"] == best["step"]), {})
        return {**row, **best}

    def result(self) -> Path:
        """A folder with the verified files of the finished run's result; do not write to it."""
        head = self._head()
        result = head.end.result if head.end else None
        if result is None:
            raise OperateError(
                f"{self._place.name}: the run is {head.state.value} at step {self.step} and has "
                "no result; it has one once it is done"
            )
        return self._cached(result)

    def load(self, name: str) -> Any:
        """An object of the result: ``load("model")`` reads model.json with model.bin as
        outlast.loop.snapshot.write_values wrote them, model.safetensors as a dict of arrays, or
        a plain JSON file. OperateError: there is none of that name, or it has another format."""
        folder = self.result()
        files = sorted(path.name for path in folder.iterdir() if path.is_file())
        names = [name, f"{name}.safetensors", f"{name}.json"]
        found = next((folder / file for file in names if file in files), None)
        if found is None:
            there = ", ".join(file for file in files if file != MANIFEST_FILE)
            raise OperateError(f"{self._place.name}: the result has no {name!r}; it has {there}")
        if found.suffix == ".safetensors":
            return _safetensors(found)
        if found.suffix != ".json":
            raise OperateError(
                f"{found.name}: only .json with .bin, .safetensors and plain JSON are read here; "
                f"load {found} with the library that wrote it"
            )
        if not found.with_suffix(".bin").is_file():
            return json.loads(found.read_bytes())
        _import_frameworks()
        try:
            values = snapshot.read_values(found)
        except LoopError as error:
            raise OperateError(f"{found}: {error}") from None
        return values[found.stem] if list(values) == [found.stem] else values

    def _pinned(self, entry: Checkpoint) -> str:
        """The checkpoint by where it is and what it is, as ``outlast:init`` takes it."""
        home = self._place.store.url if self._place.folder is None else self._place.folder
        path = f"{home}/{entry.path}"
        root = path.removesuffix(entry.path.removeprefix(self._place.layout.root))
        return str(Pin(root, path.removeprefix(root), entry.blake3))

    def _head(self) -> Head:
        with self._reading():
            return read_head(self._place.store, self._place.layout).head

    def _reading(self) -> Any:
        return reading(self._place.name)

    def _cached(self, result: Result) -> Path:
        """The result's files in the cache folder, under their digest; checked anew each time."""
        home = user_cache()
        try:
            with self._reading():
                return cached_result(self._place.store, result, home)
        except OSError as error:
            raise OperateError(
                f"cache folder {home}: {error.strerror}; name another in {CACHE_VARIABLE}"
            ) from None


def open_run(where: str | Path, *, bucket: str | None = None) -> OpenedRun:
    """The run of an experiment's name, a ``gs://`` path or a folder.

    An experiment is looked for in ``bucket``, else in the bucket that OUTLAST_BUCKET names, else
    in the outputs of the Pulumi stack of that name; of several runs the newest is opened. A
    ``gs://`` path is a run's or an experiment's. UsageError, OperateError: there is no run.
    """
    text = os.fspath(where)
    if text.startswith("gs://"):
        name, _, path = text.removeprefix("gs://").partition("/")
        return OpenedRun(_in_bucket(text, name, path.strip("/")))
    if isinstance(where, Path) or os.sep in text or (Path(text) / "HEAD").exists():
        return OpenedRun(_in_folder(Path(text)))
    if not EXPERIMENT_PATTERN.fullmatch(text):
        raise UsageError(
            f"{text!r}: is no experiment, folder or gs:// path; an experiment's name matches "
            f"{EXPERIMENT_PATTERN.pattern}, a folder in this one is written ./{text}"
        )
    bucket = bucket or os.environ.get(BUCKET_VARIABLE)
    if bucket:
        name = bucket.removeprefix("gs://").strip("/")
        return OpenedRun(_in_bucket(text, name, f"experiments/{text}"))
    from outlast.operate import stack

    deployed = stack.find(text)
    return OpenedRun(_Place(text, deployed.store(), deployed.layout, None))


def load(where: str | Path, name: str = "model", *, bucket: str | None = None) -> Any:
    """An object of a finished run's result: ``outlast.open(where).load(name)``."""
    return open_run(where, bucket=bucket).load(name)


def _in_folder(folder: Path) -> _Place:
    # Looked at first: opening a folder as a store would make it.
    if not (folder / "HEAD").exists():
        what = "holds no run" if folder.is_dir() else "no such folder"
        raise UsageError(f"{folder}: {what}; give the run-dir that a training was given")
    try:
        return _Place(str(folder), open_store(str(folder)), Layout("", ""), folder)
    except (StoreError, OSError) as error:
        raise OperateError(f"{folder}: cannot be read: {error}") from None


def _in_bucket(name: str, bucket: str, path: str) -> _Place:
    try:
        store = open_store(f"gs://{bucket}")
        found = [
            item
            for item in store.list(f"{path}/" if path else "experiments/")
            if item.path.rpartition("/")[2] == "HEAD"
        ]
    except NotFound:
        raise OperateError(f"{name}: there is no bucket gs://{bucket}") from None
    except Exception as error:  # credentials and addresses fail in their libraries' own ways
        raise OperateError(f"{name}: gs://{bucket} cannot be read: {error}") from None
    if not found:
        raise OperateError(f"{name}: no run is in gs://{bucket}/{path}; look at its name again")
    newest = max(found, key=lambda item: item.updated)
    prefix, _, run = newest.path.removesuffix("/HEAD").rpartition("/")
    return _Place(name, store, Layout(prefix, run), None)


def _safe_step(head: Head) -> int:
    if head.end is not None and head.state is State.DONE:
        return head.end.step
    return head.chain[-1].step if head.chain else 0


def _checkpoint(entry: Checkpoint) -> dict[str, Any]:
    return {
        "step": entry.step,
        "term": entry.term,
        "tags": ",".join(entry.tags),
        "path": entry.path,
    }


def _safetensors(path: Path) -> Any:
    try:
        from safetensors.numpy import load_file  # type: ignore[import-not-found]
    except ImportError:
        raise OperateError(
            f"{path.name}: safetensors is not installed; pip install safetensors"
        ) from None
    return load_file(path)


def _import_frameworks() -> None:
    """What a saved object may need is known to the state's reader once it is imported."""
    for name in ("numpy", "sklearn"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
