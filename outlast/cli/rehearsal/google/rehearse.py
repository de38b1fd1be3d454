"""`outlast rehearse --on google`: the budget, the probes, the two runs, the guarantees, the end.

Everything goes through Google's public API. The endpoints may be a local cloud's, as `outlast cloud
start` exports them. Each VM has a run limit before it starts, so that nothing outlives a killed
rehearsal by more than that; a second call finds and deletes the rest.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.base.retry import BRIEF
from outlast.bucket.store import Store, StoreError, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine
from outlast.cli.errors import RehearsalError, about
from outlast.cli.rehearsal import guarantees, scenario
from outlast.cli.rehearsal.cleanup import end_strays, scratch, terminable, uninterrupted
from outlast.cli.rehearsal.google import budget, cloud, lease, names, preflight
from outlast.cli.rehearsal.google.leftovers import Leftovers, said
from outlast.cli.rehearsal.google.probes import Probes
from outlast.cli.rehearsal.google.report import GoogleReport
from outlast.cli.rehearsal.rehearsal import Rehearsal, Watcher
from outlast.cloud import images
from outlast.cloud.compute import Compute
from outlast.cloud.project import Project

ZONE = "us-central1-a"
"""One of the cheapest zones in Outlast's price list."""
MAX_COST = 0.5
"""Dollars."""


@dataclass(frozen=True)
class Order:
    """What the user asks for."""

    project: str
    zone: str = ZONE
    image: str = images.DEBIAN
    scenario: str | None = None
    max_cost: float = MAX_COST
    epochs: int | None = None
    probes_only: bool = False


def rehearse(order: Order, watcher: Watcher) -> GoogleReport:
    """Runs the whole rehearsal and deletes everything. Raises OperateError if it could not be
    carried out; KeyboardInterrupt passes through after the clean-up.
    """
    names.check(order.project, order.zone)
    played = scenario.read(scenario.find(order.scenario or scenario.DEFAULT), engine.find_parts())
    cloud.check(played)
    faults = len(played.document.get("events") or ())
    cost = budget.of(order.zone, faults, probes_only=order.probes_only)
    cost.check(order.max_cost)
    report = GoogleReport(order.project, order.zone, order.image, cost)
    google = _Google(order, watcher)
    preflight.check(google.compute, google.project, order.zone)
    google.clean()
    watcher.say(cost.said())
    with terminable(), scratch() as folder, google.taken(str(folder)):
        probes = Probes(
            *(google.compute, google.project, google.store),
            *(order.zone, order.image, watcher),
        )
        probes.ask()
        if not order.probes_only:
            within_sec = float(names.RUN_MINUTES * 60)
            _run(google, replace(played, within_sec=within_sec), folder, report, probes)
    report.answers = probes.answers(with_run=not order.probes_only)
    report.cleaned = True
    return report


def clean_up(order: Order, watcher: Watcher) -> None:
    """Deletes what an earlier rehearsal left. Raises RehearsalError if one is running, or if
    something could not be deleted.
    """
    names.check(order.project, order.zone)
    if not _Google(order, watcher).clean():
        watcher.say(f"project {order.project}: nothing of a rehearsal exists")


def _run(
    google: "_Google",
    played: scenario.Scenario,
    folder: Path,
    report: GoogleReport,
    probes: Probes,
) -> None:
    """The disturbed run and its baseline."""
    order, began = google.order, time.monotonic()
    config = names.settings_of(order.project, order.zone, order.image, order.epochs)
    _enter_engine(folder)
    playing = Rehearsal(google.cloud, played, config, folder / "stacks", google.watcher)
    report.run, seen = playing.play(names.EXPERIMENT, [])
    seen.strays = end_strays(str(folder))
    report.run.guarantees = guarantees.check(seen, played.guarantees)
    report.run.seconds = time.monotonic() - began
    probes.ask_run(seen)


def _enter_engine(folder: Path) -> None:
    """Sets a backend of this rehearsal alone, and an engine; the user's credentials, plugins and
    endpoints stay.
    """
    variables = engine.backend_variables(folder / "pulumi")
    del variables["PULUMI_HOME"]
    os.environ.update(variables)
    if shutil.which("pulumi") is None:
        path = os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = engine.path_variable(engine.find_parts(), path)


class _Google:
    """The project, and the clients for it."""

    def __init__(self, order: Order, watcher: Watcher) -> None:
        self.order = order
        self.watcher = watcher
        self.compute = Compute(order.project)
        self.project = Project(order.project)
        self.leftovers = Leftovers(self.compute, self.project, order.zone)
        self.cloud = cloud.GoogleCloud(self.compute, self.project, self.leftovers)
        self._bucket = names.bucket_of(order.project)

    @property
    def store(self) -> Store:
        """The rehearsal's bucket."""
        return open_store(f"gs://{self._bucket}")

    def clean(self) -> bool:
        """Deletes what an earlier rehearsal left, and returns whether there was anything. Raises
        RehearsalError if one is running, or if something could not be deleted.
        """
        with preflight.asking(self.order.project):
            found = BRIEF(self.leftovers.find)
        if not any(found.values()):
            return False
        if found["buckets"]:
            self._refuse_running()
        self.watcher.say(f"an earlier rehearsal left {said(found)}")
        with terminable():
            self.leftovers.delete(self.watcher)
        return True

    def _refuse_running(self) -> None:
        """Raises RehearsalError if a rehearsal is running; ends what is left of a killed one."""
        with self._reading():
            holder = lease.read(self.store)
            if holder is None:
                return
            if lease.running(self.store, holder):
                raise RehearsalError(
                    f"project {self.order.project}: {holder} is rehearsing in it; wait for its end,"
                    " or end it and try again."
                )
        if holder.is_here and holder.token:
            end_strays(holder.token)

    @contextmanager
    def taken(self, token: str) -> Iterator[None]:
        """Takes the project for this rehearsal: creates the bucket with the lease; at the end,
        deletes everything, whatever happened. `token`: marks every process that it starts.
        """
        refused = False
        try:
            try:
                self.cloud.make_bucket(self._bucket, names.region_of(self.order.zone))
            except RehearsalError:
                refused = True  # Nothing exists, and a clean-up would hide the reason.
                raise
            os.environ[clouds.TOKEN_VARIABLE] = token
            with self._reading(), lease.held(self.store, lease.Holder.ours(token)):
                yield
        finally:
            if not refused:
                with uninterrupted():
                    end_strays(token)
                    self.leftovers.delete(self.watcher)
                    self.watcher.say(
                        f"project {self.order.project}: nothing of the rehearsal is left"
                    )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise RehearsalError(about(f"gs://{self._bucket}", error)) from None
