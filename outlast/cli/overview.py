"""All runs of a project at a glance, from the buckets alone: each is read once, many at a time.

The number of storage calls for a run depends on its attempts only: six, three more for each of the
newest attempts (at most 63), and one for each 32 older ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from outlast.bucket.layout import Layout
from outlast.bucket.store import Store, StoreError
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.cli import costs, experiments, status
from outlast.cli.errors import CloudError, OperateError, about
from outlast.cli.runs import Place
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
        cost = {"dollars": round(self.dollars, 4), "cost": self.cost, "pricesOf": pricing.date()}
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
        except CloudError:
            raise
        except (StoreError, OperateError) as error:
            unread.append(about(f"gs://{bucket}", error))
            continue
        jobs: list[Callable[[], tuple[list[Line], str]]] = [
            partial(_experiment, store, name, every) for name in names
        ]
        for name, (found, why) in zip(names, in_parallel(jobs, small_reads(store)), strict=True):
            lines += found
            if why:
                unread.append(why)
            elif not found:
                without.append(name)
    lines.sort(key=lambda line: (line.status.state.ended, line.status.experiment))
    return Overview(tuple(lines), tuple(without), tuple(unread))


def _experiment(store: Store, name: str, every: bool) -> tuple[list[Line], str]:
    """Its runs, newest first, and why some could not be read."""
    try:
        found = [
            Place(name, store, Layout(f"{experiments.ROOT}{name}", run))
            for run in store.folders(f"{experiments.ROOT}{name}/")
            if experiments.is_run(run)
        ]
    except StoreError as error:
        return [], about(name, error)
    lines: list[Line] = []
    whys: list[str] = []
    for place in found:
        try:
            lines.append(line_of(place))
        except OperateError as error:
            whys.append(str(error))
    lines.sort(key=lambda line: line.status.started, reverse=True)
    return (lines if every else lines[:1]), "; ".join(whys)


def line_of(place: Place) -> Line:
    """One run. Raises OperateError if it cannot be read."""
    found = status.read(place)
    try:
        lives = costs.lives_of(place.store, place.layout, found.history)
    except StoreError as error:
        raise OperateError(about(place.name, error)) from None
    return Line(found, sum(one.rate.hour * one.hours for one in lives), costs.said(lives))
