"""Reads a run in a bucket or a folder, for people and programs.

It never writes to the run. Results are copied to a cache folder and verified against their
manifest, whose digest HEAD names, before they are returned.
"""

import html
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.base.exits import State
from outlast.base.suggest import choices, nearest
from outlast.base.visible import one_line, visible
from outlast.bucket import pages
from outlast.bucket.data import CACHE_VARIABLE, DataError, user_cache
from outlast.bucket.fetch import cached_result, place_of
from outlast.bucket.head import Checkpoint, Head, Result, read_head
from outlast.bucket.layout import EXPERIMENT_PATTERN, Layout, is_run_path
from outlast.bucket.part_results import result_of
from outlast.bucket.parts import DONE_TAG, Part, is_done, own_step, parts_of, shown
from outlast.bucket.rows import read_rows
from outlast.bucket.store import ReadOnlyStore, Store, StoreError, open_store
from outlast.cli import experiments
from outlast.cli.errors import (
    CloudError,
    EngineError,
    NoEngine,
    NoStack,
    NotUp,
    OperateError,
    UsageError,
    about,
    reading,
)
from outlast.cloud.compute import Group
from outlast.spec import metrics
from outlast.spec.pin import Pin
from outlast.spec.result import METRICS_FILE

BEST = "best"
SHOWN_ROWS = 20


class Table(Sequence[Mapping[str, Any]]):
    """Rows with named columns; a missing cell is None."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = list(rows)
        self.columns = tuple(dict.fromkeys(name for row in self._rows for name in row))

    def __getitem__(self, index: Any) -> Any:
        """A row by number, a column by name as a list, or the rows of a slice."""
        if isinstance(index, str):
            if index not in self.columns:
                raise KeyError(f"column {index!r}: is not one of {', '.join(self.columns)}")
            return [row.get(index) for row in self._rows]
        return Table(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        lines = [[one_line(name) for name in self.columns], *self._cells()]
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
        """The table as a pandas.DataFrame. Raises OperateError if pandas is not installed."""
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
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))


@dataclass(frozen=True)
class ReadPlace:
    """Where a run is read, such as a view of records that were listed."""

    name: str
    """The name that the user gave."""
    store: ReadOnlyStore
    layout: Layout
    folder: Path | None = None
    """The folder of a run in a folder."""
    group: Group | None = None
    """The deployed group of a stack's run."""
    resume: int | None = None
    """The resume that its next VM will have; above HEAD's, it reopens the run."""

    @property
    def home(self) -> str:
        """What the names of the run's objects are below: a bucket, or a folder."""
        return self.store.url if self.folder is None else str(self.folder)

    @property
    def url(self) -> str:
        """The run's own URL: ``gs://…/`` or a folder."""
        return f"{self.home}/{self.layout.root}" if self.layout.root else self.home


@dataclass(frozen=True)
class Place(ReadPlace):
    """Where a run lives: it can also be written there."""

    store: Store


class OpenedRun:
    """A run, read again with each call, so that a run in training shows its current state."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __repr__(self) -> str:
        return f"<run {self.url}: {self.state} at step {self.step}>"

    @property
    def url(self) -> str:
        """Where it lives: ``gs://…/`` or a folder."""
        return self._place.url

    @property
    def state(self) -> str:
        """``open``, ``done``, ``failed``, ``stopped`` or ``pruned``."""
        return self._head().state.value

    @property
    def step(self) -> int:
        """The committed step: that of the end, or of the newest checkpoint; counted through all
        parts.
        """
        return _safe_step(self._head())

    def rows(self) -> list[dict[str, Any]]:
        """All rows of ``run.log`` and ``run.eval`` up to the newest checkpoint or the end, each
        step once, in order. Rows of a part have its name as ``part``, and its own steps.
        """
        head = self._head()
        with self._reading():
            return read_rows(self._place.store, self._place.layout, head)

    def metrics(self) -> Table:
        """The evaluations of a finished run (its metrics.json, or that of each part), else all rows
        so far."""
        head = self._head()
        if head.state is not State.DONE:
            return Table(self.rows())
        folder = self.result()
        if names := [part.name for part in self._parts(head)]:
            try:
                tables = [(name, _evaluations(folder / name / METRICS_FILE)) for name in names]
            except (OSError, ValueError) as error:
                raise OperateError(
                    f"{self._place.name}: evaluations of its parts: {error}"
                ) from None
            return Table([{"part": name, **row} for name, rows in tables for row in rows])
        if not (folder / METRICS_FILE).exists():  # a command's result is what it wrote itself
            return Table(self.rows())
        try:
            return Table(_evaluations(folder / METRICS_FILE))
        except ValueError:  # a command's own file of that name has its own form
            return Table(self.rows())

    def parts(self) -> Table:
        """The parts of the run that have a checkpoint, in the order in which they began: name,
        committed steps, and whether each is done. Empty for a run without parts.
        """
        found = self._parts(self._head())
        return Table([{"part": p.name, "step": p.step, "done": p.done} for p in found])

    def checkpoints(self) -> Table:
        """The kept checkpoints, oldest first: part (if the run has parts), step, term, tags, path,
        and the name (``init``) by which another run can start from it. Only the newest best one of
        each part is tagged ``best``; the last one of a finished part is tagged ``done``.
        """
        kept = pages.kept(self._place.store, self._place.layout, self._head())
        for lost in kept.lost:
            warnings.warn(visible(lost), stacklevel=2)
        chain = kept.chain
        best = {entry.part: entry for entry in chain if BEST in entry.tags}
        done = {part.state for part in parts_of(chain) if part.done}
        rows = []
        for entry in chain:
            if is_done(entry):
                continue  # it has no state; a tag of the one before says it
            tags = [tag for tag in entry.tags if tag != BEST or entry is best[entry.part]]
            tags += [DONE_TAG] if entry in done else []
            described = {**_checkpoint(entry), "tags": ",".join(tags)}
            rows.append({**described, "init": self._pinned(entry)})
        return Table(rows)

    def best(self, part: str | None = None) -> dict[str, Any]:
        """The newest checkpoint with the tag ``best``: its step, term, tags and path, and the row
        of its step. Raises OperateError if there is none, or if the run has parts and none is
        named.
        """
        head = self._head()
        best = _checkpoint(self._best_of(head, part))
        at = {name: best[name] for name in ("part", "step") if name in best}
        row = next((row for row in self.rows() if at.items() <= row.items()), {})
        return {**row, **best}

    def best_checkpoint(self, part: str | None = None) -> Checkpoint:
        """The same checkpoint as HEAD's chain names it. Raises as `best` does."""
        return self._best_of(self._head(), part)

    def newest_checkpoint(self, part: str | None = None) -> Checkpoint:
        """The newest checkpoint of the run, or of a part. Raises OperateError if there is none."""
        head = self._head()
        if part is not None:
            found = self._part(head, part).state
        else:
            found = head.chain[-1] if head.chain else None
        if found is None:
            raise OperateError(f"{self._place.name}: has no checkpoint yet, or none is kept")
        return found

    def _best_of(self, head: Head, part: str | None) -> Checkpoint:
        place = self._place
        if part is not None:
            self._part(head, part)
        elif names := [one.name for one in self._parts(head)]:
            raise OperateError(
                f"{place.name}: the run has parts; name one of them (--part): {shown(names)}"
            )
        # The newest one is in HEAD itself, unless the run was set back behind it.
        tagged = _best_of(head.chain, part or "")
        if not tagged and head.older_chain is not None:
            kept = pages.kept(place.store, place.layout, head)
            tagged = _best_of(kept.chain, part or "")
            if not tagged and kept.lost:
                raise OperateError("; ".join(kept.lost))
        if not tagged:
            raise OperateError(
                f"{self._place.name}: has no best checkpoint; the trainer names one with "
                "run.eval(…, best='max')"
            )
        return tagged[-1]

    def result(self, part: str | None = None) -> Path:
        """A folder with the verified files of the result of a finished run or part; do not write to
        it. The result of a run with parts has a folder for each part.
        """
        return self._cached(self.named_result(part))

    def named_result(self, part: str | None = None) -> Result:
        """Where the result of the finished run or part is, as HEAD names it."""
        head = self._head()
        if part is not None:
            return self._result_of(head, part)
        result = head.end.result if head.end else None
        if result is None:
            why = f" ({head.end.why})" if head.end and head.end.why else ""
            then = (
                "outlast fetch --best fetches its best checkpoint, and outlast resume continues it"
                if head.state.ended
                else "it has one once it is done; outlast wait waits for that"
            )
            raise OperateError(
                f"{self._place.name}: the run is {head.state.value} at step {self.step}{why} and "
                f"has no result; {then}"
            )
        return result

    def _parts(self, head: Head) -> tuple[Part, ...]:
        with self._reading():
            return pages.parts(self._place.store, self._place.layout, head)

    def _part(self, head: Head, name: str) -> Part:
        parts = self._parts(head)
        for part in parts:
            if part.name == name:
                return part
        names = shown(part.name for part in parts) or "no parts"
        raise OperateError(f"{self._place.name}: has no part {name!r}; it has {names}")

    def _result_of(self, head: Head, name: str) -> Result:
        part = self._part(head, name)
        if not part.done:
            raise OperateError(
                f"{self._place.name}: part {name!r} is at step {part.step} and not done; it has a "
                "result once it is"
            )
        with self._reading():
            return result_of(self._place.store, part.newest)

    def _pinned(self, entry: Checkpoint) -> str:
        """The checkpoint's name for ``outlast:init``."""
        path = f"{self._place.home}/{entry.path}"
        root = path.removesuffix(entry.path.removeprefix(self._place.layout.root))
        return str(Pin(root, path.removeprefix(root), entry.blake3))

    def _head(self) -> Head:
        with self._reading():
            return read_head(self._place.store, self._place.layout).head

    def _reading(self) -> Any:
        return reading(self._place.name)

    def _cached(self, result: Result) -> Path:
        """The result's files in the cache folder, under their digest, verified each time."""
        home = user_cache()
        try:
            with self._reading():
                return cached_result(self._place.store, result, home)
        except OSError as error:
            raise OperateError(
                f"cache folder {home}: {error.strerror}; name another in {CACHE_VARIABLE}"
            ) from None


def find(where: str | Path, *, bucket: str | None = None) -> Place:
    """Finds a run by an experiment's name, a ``gs://`` path or a folder.

    An experiment is looked for in ``bucket``, else in the bucket that OUTLAST_BUCKET names, else in
    the outputs of the Pulumi stack of that name, else (also after a destroy) in the buckets that
    the settings of this project's stacks name; of several runs, the newest one is used. A ``gs://``
    path is a run's or an experiment's. Raises UsageError or OperateError if there is no
    run.
    """
    text = os.fspath(where)
    if text.startswith("gs://"):
        name, _, path = text.removeprefix("gs://").partition("/")
        return _in_bucket(text, name, path.strip("/"))
    if is_run_path(where):
        return _in_folder(Path(text))
    if not EXPERIMENT_PATTERN.fullmatch(text):
        raise UsageError(
            f"{text!r}: is not an experiment, folder or gs:// path; an experiment's name matches "
            f"{EXPERIMENT_PATTERN.pattern}, a folder in this one is written ./{text}"
        )
    if bucket or os.environ.get(experiments.BUCKET_VARIABLE):
        name = experiments.bucket_name(bucket or os.environ[experiments.BUCKET_VARIABLE])
        return _in_bucket(text, name, f"{experiments.ROOT}{text}")
    return _of_experiment(text)


def _of_experiment(name: str) -> Place:
    """The run of the stack of that name; without such a stack, or if it is not up, the
    experiment's newest run in the buckets that this project's stacks use.
    """
    from outlast.cli import stack

    try:
        deployed = stack.find(name)
        return Place(
            name, deployed.store(), deployed.layout, group=deployed.group, resume=deployed.resume
        )
    except NotUp:
        why = "the stack of that name is not up"
    except NoEngine:
        why = "pulumi is not on PATH, so stacks were not looked for"
    except NoStack:
        why = "no stack has that name"
    except EngineError as error:
        raise EngineError(
            f"{name}: {_no_run(Path(name))}, and no stack of that name was found: {error}"
        ) from None
    by_stack = {one.stack: one for one in experiments.settings()}
    experiment = by_stack[name].experiment if name in by_stack else name
    known = {*by_stack}
    looked: list[str] = []
    unread: list[str] = []
    for bucket, of in experiments.buckets().items():
        try:
            store = experiments.open_bucket(bucket, of)
            if place := _newest(name, store, f"{experiments.ROOT}{experiment}"):
                return place
            known.update(experiments.names(store))
            looked.append(store.url)
        except CloudError:
            raise
        except (StoreError, OperateError) as error:
            unread.append(about(f"gs://{bucket}", error))
    why = f"{name}: {_no_run(Path(name))}, and {why}"
    if looked:
        why += f"; {' and '.join(looked)} has no run of it"
    if unread:  # It may be there.
        raise OperateError("; ".join([why, *unread]))
    raise UsageError(f"{why}; {_instead(name, sorted(known))}")


def _instead(name: str, known: Sequence[str]) -> str:
    """What to do about a name without runs, and which names there are."""
    if name in known:
        return f"outlast up {name} starts one"
    if near := _near(Path(name)):
        return near
    if known:
        return choices(name, known)
    return f"name a stack, the folder of a run, or gs://BUCKET/{experiments.ROOT}{name}"


def find_damaged(where: str) -> Place:
    """Finds the run at a folder or ``gs://`` path, even without a HEAD. Raises UsageError or
    OperateError if there is none.
    """
    folder = None if where.startswith("gs://") else Path(where)
    if folder is not None and not (folder / "attempts").is_dir():
        return find(folder)
    try:
        home, layout = place_of(where)
        return Place(where, open_store(home, reading=True), layout, folder)
    except DataError as error:
        raise UsageError(str(error)) from None
    except (StoreError, OSError) as error:
        raise OperateError(about(where, error)) from None


def _in_folder(folder: Path) -> Place:
    # Checked first, because opening a folder as a store would create it.
    if not (folder / "HEAD").exists():
        if (folder / "attempts").is_dir():
            raise UsageError(
                f"{folder}: its HEAD is missing, but attempts exist; repair it with: "
                f"outlast repair {folder}"
            )
        near = _near(folder) or "name the folder that a training was started with (--run-dir)"
        raise UsageError(f"{folder}: {_no_run(folder)}; {near}")
    try:
        return Place(str(folder), open_store(str(folder), reading=True), Layout("", ""), folder)
    except (StoreError, OSError) as error:
        raise OperateError(f"{folder}: cannot be read: {error}") from None


def _no_run(folder: Path) -> str:
    if not folder.exists():
        return "no such folder"
    return "the folder holds no run" if folder.is_dir() else "is not a folder"


def _near(folder: Path) -> str:
    """A question that suggests run folders on this machine with a similar name."""
    places = {folder, folder.parent, Path(), Path("runs")}
    runs = sorted(
        {head.parent for place in places for head in place.glob("*/HEAD") if head.is_file()}
    )
    inside = [run for run in runs if run.parent == folder]
    names = {str(run): run for run in runs} | {run.name: run for run in runs}
    meant = inside[:3] or [names[name] for name in nearest(folder, names)]
    return f"did you mean {' or '.join(map(str, meant))}?" if meant else ""


def _in_bucket(name: str, bucket: str, path: str) -> Place:
    try:
        store = experiments.open_bucket(bucket)
        if place := _newest(name, store, path):
            return place
        known = [] if name.startswith("gs://") else experiments.names(store)
    except StoreError as error:  # it names the bucket
        raise OperateError(about(name, error)) from None
    where = "" if name.startswith("gs://") else f" in gs://{bucket}/{path}"
    meant = choices(name, known) if known else "check the name"
    raise UsageError(f"{name}: no run was found{where}; {meant}")


def _newest(name: str, store: Store, path: str) -> Place | None:
    """The run at a path whose HEAD is newest. Raises StoreError."""
    paths = [path] if path else [f"{experiments.ROOT}{one}" for one in experiments.names(store)]
    found = experiments.runs_of(store, paths)
    if not found:
        return None
    return Place(name, store, max(found, key=lambda run: run.head.updated).layout)


def _safe_step(head: Head) -> int:
    if head.end is not None and head.state is State.DONE:
        return head.end.step
    return head.chain[-1].step if head.chain else 0


def _evaluations(file: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.json. Raises ValueError for a file of another form."""
    columns = metrics.read_table(file.read_bytes())
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _best_of(chain: Sequence[Checkpoint], part: str) -> list[Checkpoint]:
    return [entry for entry in chain if BEST in entry.tags and entry.part == part]


def _checkpoint(entry: Checkpoint) -> dict[str, Any]:
    return {
        **({"part": entry.part} if entry.part else {}),
        "step": own_step(entry),
        "term": entry.term,
        "tags": ",".join(entry.tags),
        "path": entry.path,
    }
