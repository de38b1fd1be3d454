"""All runs of a project at a glance, from the buckets alone: each is read once, many at a time.

A bucket is listed five times, a thousand names at a time. For each run there is one request for
HEAD, up to three for each of the newest attempts (at most 63), and one for each 32 older ones; a
finished one has two more, for its evaluations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from outlast.bucket import listed
from outlast.bucket.head import is_left
from outlast.bucket.layout import Layout
from outlast.bucket.store import ReadOnlyStore, StoreError
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.cli import costs, experiments, status
from outlast.cli.errors import CloudError, OperateError, about
from outlast.cli.runs import ReadPlace
from outlast.cli.status import Status
from outlast.costs import pricing


@dataclass(frozen=True)
class Line:
    """One run."""

    status: Status
    dollars: float
    """What its VMs have cost so far, as far as their prices are known."""
    cost: str
    """The same in words."""

    def as_json(self) -> dict[str, Any]:
        cost = {"dollars": round(self.dollars, 6), "cost": self.cost, "prices_of": pricing.date()}
        return {**self.status.as_json(), **cost}


@dataclass(frozen=True)
class Overview:
    """What `outlast list` shows."""

    lines: tuple[Line, ...]
    """Open runs first."""
    without: tuple[str, ...]
    """Experiments that no VM has worked on yet."""
    unread: tuple[str, ...]
    """What could not be read, a sentence each."""


def read(*, mine: bool = False, every: bool = False) -> Overview:
    """The newest run of each experiment, or `every` run.

    `mine`: only experiments of stacks that have their settings in this project. Raises OperateError
    if there is no bucket to look into.
    """
    buckets = experiments.known_buckets()
    own = {one.experiment for one in experiments.settings()} if mine else None
    lines: list[Line] = []
    without: list[str] = []
    unread: list[str] = []
    for bucket, stack in buckets.items():
        try:
            store = experiments.open_bucket(bucket, stack)
            names = [name for name in experiments.names(store) if own is None or name in own]
            records = listed.read(store, experiments.ROOT, only=frozenset(names).__contains__)
        except CloudError:
            raise
        except (StoreError, OperateError) as error:
            unread.append(about(f"gs://{bucket}", error))
            continue
        runs: dict[str, list[Layout]] = {name: [] for name in names}
        left: set[str] = set()
        for run in filter(lambda one: experiments.is_run(one.run), records.runs()):
            name = run.prefix.removeprefix(experiments.ROOT)
            if is_left(records, run):  # The other bucket has it.
                left.add(name)
            else:
                runs[name].append(run)
        jobs = [partial(_experiment, records, name, of, every) for name, of in runs.items()]
        for name, (found, why) in zip(names, in_parallel(jobs, small_reads(store)), strict=True):
            lines += found
            if why:
                unread.append(why)
            elif not found and name not in left:
                without.append(name)
    lines.sort(key=lambda line: (line.status.state.ended, line.status.experiment))
    return Overview(tuple(lines), tuple(without), tuple(unread))


def _experiment(
    store: ReadOnlyStore, name: str, runs: Sequence[Layout], every: bool
) -> tuple[list[Line], str]:
    """Its runs, newest first, and why some could not be read."""
    lines: list[Line] = []
    whys: list[str] = []
    for layout in runs:
        try:
            lines.append(line_of(ReadPlace(name, store, layout)))
        except OperateError as error:
            whys.append(str(error))
    lines.sort(key=lambda line: line.status.started, reverse=True)
    return (lines if every else lines[:1]), "; ".join(whys)


def line_of(place: ReadPlace) -> Line:
    """One run. Raises OperateError if it cannot be read."""
    found = status.read(place)
    try:
        lives = costs.lives_of(place.store, place.layout, found.history)
    except StoreError as error:
        raise OperateError(about(place.name, error)) from None
    return Line(found, sum(one.rate.hour * one.hours for one in lives), costs.said(lives))
