"""Judges what exists in a project: what no stack owns, and what outlived its run.

Resources are listed before the states are read. So whatever an `up` of this backend is creating is
in its state by then, or noted there as being created, and is left alone. An `up` of another backend
is recognised by its age: what is younger than `min_age`, and all else of a stack with something as
young, is left alone too. Ages are counted by this machine's clock.
"""

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from outlast.base.codec import format_time
from outlast.bucket import inventory
from outlast.bucket.head import Head, HeadError, HeadLost, Reading, read_head
from outlast.bucket.inventory import Kept, KeptRun
from outlast.bucket.layout import Layout
from outlast.bucket.standing import is_expired
from outlast.bucket.store import NotFound, Object, PreconditionFailed, Store, StoreError
from outlast.bucket.transfer import in_parallel, small_writes
from outlast.cli import endpoint, engine, experiments
from outlast.cli.audit import finder, owners
from outlast.cli.audit.finder import Resource
from outlast.cli.audit.owners import Owner
from outlast.cli.errors import OperateError, about
from outlast.cloud import builder
from outlast.cloud.compute import Compute, ComputeError, Json, Missing
from outlast.cloud.project import Project
from outlast.costs import existing, pricing
from outlast.spec import labels
from outlast.spec.run_spec import BadSpec, Timeouts

_log = logging.getLogger(__name__)

FOUND = 3
"""Exit code of an audit with findings."""
MIN_AGE_MIN = 60
"""Minutes for which a resource is left alone: about what an `up` with a bake takes."""
BUCKET_COMPONENT = "checkpoint-bucket"


@dataclass(frozen=True)
class Finding:
    """Something that no stack owns, or that outlived its run."""

    kind: str
    name: str
    why: str
    cost: pricing.Sum
    delete: Callable[[], Any]
    """Raises ComputeError or StoreError."""
    mark: str = ""
    """The stack that created it; empty for what is in a bucket."""
    path: str = ""
    """Below the project, or the experiment's URL."""
    held: str = ""
    """Why it is not removed without --open-runs; empty if it is."""

    @property
    def month(self) -> str:
        """What it costs a month, in words."""
        return self.cost.said(pricing.HOURS_A_MONTH) if self.cost.items else "nothing"

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "why": self.why,
            "stack": self.mark[1:-1],
            "dollars_month": round(self.cost.month, 4),
            "unknown": list(self.cost.unknown),
            "held": self.held,
        }


@dataclass(frozen=True)
class Audit:
    """What `outlast audit` shows."""

    project: str
    findings: tuple[Finding, ...]
    waiting: tuple[str, ...]
    """What is not judged yet, a sentence each."""
    kept: tuple[str, ...]
    """Runs that a bucket keeps without a stack, a sentence for each bucket."""
    others: Mapping[str, int]
    """How many resources belong to each other Pulumi project."""
    unread: tuple[str, ...]
    """What could not be looked at, a sentence each."""

    @property
    def cost(self) -> pricing.Sum:
        return pricing.added(one.cost for one in self.findings)

    @property
    def exit_code(self) -> int:
        return FOUND if self.findings else 1 if self.unread else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "project": self.project,
            "prices_of": pricing.date(),
            "findings": [one.as_json() for one in self.findings],
            "dollars_month": round(self.cost.month, 4),
            "waiting": list(self.waiting),
            "kept": list(self.kept),
            "other_projects": dict(self.others),
            "unread": list(self.unread),
            "exit_code": self.exit_code,
        }


def read(project: str, *, min_age: timedelta, stack: str = "") -> Audit:
    """Looks at everything with the labels or marks of this folder's Pulumi project. `stack`: whose
    identity reads the buckets.

    Raises OperateError if Compute Engine or the states cannot be read, CloudError if this shell's
    local cloud is stopped.
    """
    endpoint.check_local_cloud()
    audit = _Auditor(project, labels.sanitise(engine.project_name()), min_age)
    return audit.run(stack)


def remove(found: Audit, *, open_runs: bool = False) -> tuple[list[str], list[str]]:
    """Deletes the findings, in an order in which that works, except those that are held, unless
    `open_runs`, and those that a stack owns by now. Returns what was not deleted and why, held ones
    first, and what failed.
    """
    left: list[str] = []
    failed: list[str] = []
    now = owners.read()
    for one in found.findings:
        name = f"{one.kind} {one.name}"
        if one.held and not open_runs:
            left.append(f"{name}: {one.held}")
        elif claim := _claim(found.project, one, now):
            left.append(f"{name}: {claim}")
        else:
            try:
                one.delete()
                _log.info(f"{name}: deleted")
            except (ComputeError, StoreError) as error:
                failed.append(f"{name}: {error}")
    return left, failed


def _claim(project: str, one: Finding, now: Iterable[Owner]) -> str:
    """Which stack owns it now, or may be creating it; empty for none."""
    for owner in now:
        of_stack = one.mark and labels.stack_of(one.mark)[:2] == (owner.project, owner.stack)
        if (project, one.path) in owner.paths:
            return f"stack {owner.name} owns it now"
        if of_stack and owner.busy:
            return f"stack {owner.name} is being brought up"
        if one.path and one.path == _home(owner):
            return f"stack {owner.name} is up now"
        if one.kind == "bucket" and f'"{one.name}"' in owner.text:
            return f"stack {owner.name} uses it now"
    return ""


def _home(owner: Owner) -> str:
    return f"gs://{owner.bucket}/{owner.prefix}" if owner.bucket and owner.prefix else ""


@dataclass
class _Bucket:
    """A bucket that may hold runs of the project."""

    name: str
    body: Json
    """Empty if the project does not list it."""
    store: Store
    kept: Mapping[str, Kept]
    """By experiment."""
    is_empty: bool

    @property
    def location(self) -> str:
        return str(self.body.get("location") or "")

    @functools.cached_property
    def _runs(self) -> Mapping[Layout, KeptRun]:
        return {run.layout: run for kept in self.kept.values() for run in kept.runs}

    def head_of(self, layout: Layout) -> Reading:
        """HEAD of a run, as it was read with all others. Raises HeadError and StoreError."""
        run = self._runs.get(layout)
        if run and run.why:
            raise HeadError(run.why)
        if run and run.head and run.found:
            return Reading(run.head, run.found)
        if not layout.prefix.startswith(inventory.ROOT):
            return read_head(self.store, layout)
        raise HeadLost(f"gs://{self.name}/{layout.head}: is lost")


@dataclass
class _Auditor:
    """One audit; its parts fill the lists."""

    project: str
    """The Google project."""
    own: str
    """The Pulumi project, as labels have it."""
    min_age: timedelta
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    waiting: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    owners: Sequence[Owner] = ()
    """The backend's stacks."""
    by_labels: Mapping[tuple[str, str], Owner] = field(default_factory=dict)
    """The same by the labels of project and stack; of several organizations' stacks with the same
    labels, one that is being brought up."""
    owned: frozenset[str] = frozenset()
    """What they own of the Google project."""
    buckets: Mapping[str, _Bucket] = field(default_factory=dict)
    waits: Mapping[str, str] = field(default_factory=dict)
    """Marks of stacks whose group may still begin a run, and why it may."""
    young: frozenset[str] = frozenset()
    """Marks of stacks that have something younger than the least age."""

    def run(self, stack: str) -> Audit:
        try:
            found = [*finder.billed(self.project), *self._tried(finder.apart, "disks, addresses")]
        except ComputeError as error:
            raise OperateError(
                f"project {self.project}: cannot be looked at ({error}); use an account that may"
                " list its resources, such as one with roles/viewer."
            ) from None
        principals = self._tried(finder.principals, "service accounts, roles")
        bodies = self._bucket_bodies()
        # Read last: see the top of this file.
        self.owners = owners.read()
        ordered = sorted(self.owners, key=lambda one: (one.busy, one.bakes))
        self.by_labels = {(one.project, one.stack): one for one in ordered}
        self.owned = frozenset(
            path for one in self.owners for cloud, path in one.paths if cloud == self.project
        )
        self.buckets = {one.name: one for one in self._open_buckets(bodies, found, stack)}
        self.young = self._young_marks([*found, *principals])
        self.waits = dict(self._waiting_groups(found))
        disks = {str(one.body["selfLink"]): one.body for one in found if one.kind == "disk"}
        findings = [f for one in found if (f := self._judged(one, disks))]
        leaked = [(one, f) for one in principals if (f := self._judged(one, {}))]
        bound = self._tried(
            lambda project: finder.bindings(project, self.buckets, [one for one, _ in leaked]),
            "bindings",
        )
        findings += [f for one in bound if (f := self._judged(one, {}))]
        findings += [f for _, f in leaked]
        findings += self._of_buckets()
        return Audit(
            *(self.project, tuple(findings), tuple(dict.fromkeys(self.waiting))),
            *(tuple(self.kept), dict(self.others), tuple(self.unread)),
        )

    def _tried(self, find: Callable[[str], Iterable[Resource]], what: str) -> list[Resource]:
        try:
            return list(find(self.project))
        except ComputeError as error:
            self.unread.append(f"{what}: not looked at ({error})")
            return []

    # Resources of the project

    def _judged(self, one: Resource, disks: Mapping[str, Json]) -> Finding | None:
        """The finding; None if the resource is owned, of another project, or not judged yet."""
        project, stack, _ = labels.stack_of(one.mark)
        if project != self.own:
            self.others[project] += 1
            return None
        owner = self.by_labels.get((project, stack))
        if one.path in self.owned or one.is_attached:
            return None
        if one.kind == "VM" and (group := _group_of(one.body)) in self.owned:
            return self._outlived(one, group, disks)
        if one.kind == "image" and owner and owner.bakes and _is_baked(one.body):
            return None
        if why := self._too_early(one, owner):
            self.waiting.append(f"{one.kind} {one.name}: {why}")
            return None
        return Finding(
            *(one.kind, one.name, _unowned(f"{project}/{stack}", owner)),
            *(existing.of(one.kind, one.body, disks), one.delete, one.mark, one.path),
            held="" if owner else self._held(one.mark),
        )

    def _young_marks(self, found: Sequence[Resource]) -> frozenset[str]:
        young = {one.mark for one in found if one.created and self._is_young(one.created)}
        marks: dict[str, set[str]] = {}
        for one in found:
            marks.setdefault(labels.stack_of(one.mark)[2], set()).add(one.mark)
        for bucket in self.buckets.values():
            for kept in bucket.kept.values():
                times = [one.updated for one in (*kept.bundles, *kept.environments)]
                if any(map(self._is_young, times)):
                    young |= marks.get(kept.experiment, set())
        return frozenset(young)

    def _is_young(self, moment: datetime) -> bool:
        return self.now - moment < self.min_age

    def _too_early(self, one: Resource, owner: Owner | None) -> str:
        """Why it cannot be judged yet; empty if it can."""
        if owner and owner.busy:
            return (
                f"an up of stack {owner.name} is in progress or was interrupted; outlast recover"
                f" {owner.stack} finishes an interrupted one"
            )
        minutes = f"{self.min_age.total_seconds() / 60:.0f} minutes"
        if one.created and self._is_young(one.created):
            return f"is younger than {minutes}, so an up may be creating it"
        if owner is None and one.mark in self.young:
            return f"its stack has something younger than {minutes}, so an up may be creating it"
        return ""

    def _held(self, mark: str) -> str:
        """Why what a stack of no known backend created may still be needed; empty if it is not."""
        project, stack, experiment = labels.stack_of(mark)
        if waits := self.waits.get(mark):
            return f"{waits}, so a stack of another backend may own it; --open-runs removes it too"
        for bucket in self.buckets.values():
            kept = bucket.kept.get(experiment)
            for run in kept.runs if kept else ():
                of = _labels_of(run.head.owner) if run.head else (project, stack)
                if of == (project, stack) and run.is_open(self.now):
                    return (
                        f"gs://{bucket.name}/{run.layout.root} is open, so a stack of another"
                        " backend may own it; --open-runs removes it too"
                    )
        if self.unread:
            return "not everything could be read, so a run may be open; --open-runs removes it too"
        return ""

    def _waiting_groups(self, found: Iterable[Resource]) -> Iterator[tuple[str, str]]:
        """The marks of groups that want a VM whose run has not begun: the bucket has nothing of it
        that would be open. A group may wait for capacity for days."""
        templates = {one.path: one.body["properties"] for one in found if one.kind == "template"}
        for one in found:
            if one.kind != "group" or not int(one.body.get("targetSize") or 0):
                continue
            for used in finder.templates_of(one.body):
                properties = templates.get(used, {})
                until = (properties.get("scheduling") or {}).get("terminationTime")
                if until and datetime.fromisoformat(until) <= self.now:
                    continue  # The platform creates no VM any more.
                if why := self._not_begun(_metadata(properties)):
                    yield one.mark, f"group {one.name} waits for a VM, and {why}"

    def _not_begun(self, items: Mapping[str, str]) -> str:
        """Why a VM with this metadata may still begin its run, or its run's next resume; empty if
        it has begun, which its HEAD says more of."""
        layout = Layout(items.get("outlast-prefix", ""), items.get("outlast-run", ""))
        if not layout.run:
            return ""
        url = f"gs://{items.get('outlast-bucket', '')}/{layout.root}"
        bucket = self.buckets.get(items.get("outlast-bucket", ""))
        if bucket is None:
            return ""  # There is none, or it could not be read, which holds everything.
        try:
            head, _ = bucket.head_of(layout)
            resume = int(items.get("outlast-resume") or 0)
        except HeadLost:
            return f"{url} has not begun"
        except (HeadError, StoreError, ValueError):
            return ""  # It counts as open.
        return f"{url} has not begun resume {resume}" if head.resume < resume else ""

    def _outlived(self, vm: Resource, group: str, disks: Mapping[str, Json]) -> Finding | None:
        """A VM of a stack's group whose run has ended."""
        items = _metadata(vm.body)
        bucket = self.buckets.get(items.get("outlast-bucket", ""))
        layout = Layout(items.get("outlast-prefix", ""), items.get("outlast-run", ""))
        if bucket is None or not layout.run:
            return None
        try:
            head, written = bucket.head_of(layout)
            keep = timedelta(seconds=Timeouts.parse(items.get("outlast-timeouts") or "{}").keep)
            resume = int(items.get("outlast-resume") or 0)
        except (HeadError, StoreError, BadSpec, ValueError):
            return None  # Its run has not begun, or outlast status says what is wrong with it.
        why = _end_of(head, written, resume, self.now)
        since = written.updated if head.state.ended else head.deadline
        if not why or self.now - since < self.min_age + keep:
            return None

        def resize() -> None:
            with contextlib.suppress(Missing):  # the group is gone, and its VM with it
                path = f"{group}/resize?size=0"
                Compute(self.project).order("POST", path, limit_sec=finder.DELETE_SEC)

        return Finding(
            *("VM", vm.name, f"outlived its run: {layout.prefix}/{layout.run} {why}"),
            existing.of("VM", vm.body, disks),
            resize,
            vm.mark,
            vm.path,
        )

    # Buckets

    def _bucket_bodies(self) -> dict[str, Json]:
        """The project's buckets that Outlast created."""
        try:
            return {
                str(one["name"]): one
                for one in Project(self.project).buckets()
                if (one.get("labels") or {}).get("managed-by") == labels.MANAGED_BY
                and (one.get("labels") or {}).get("component") == BUCKET_COMPONENT
            }
        except ComputeError as error:
            self.unread.append(f"buckets: not looked at ({error})")
            return {}

    def _open_buckets(
        self, bodies: Mapping[str, Json], found: Iterable[Resource], stack: str
    ) -> Iterator[_Bucket]:
        """These, those of stacks and settings, and those that VMs and templates name."""
        here = (one for one in experiments.settings() if one.project == self.project)
        names = {*bodies, *(one.bucket for one in here)}
        names |= {one.bucket for one in self.owners if one.cloud == self.project}
        for one in found:
            names.add(_metadata(one.body.get("properties") or one.body).get("outlast-bucket", ""))
        for name in sorted(names - {""}):
            try:
                if name not in bodies and Project(self.project).any_bucket(name) is None:
                    continue
                store = experiments.open_bucket(name, stack)
                kept = {one.experiment: one for one in inventory.read(store)}
                empty = not kept and next(iter(store.list("")), None) is None
                yield _Bucket(name, bodies.get(name, {}), store, kept, empty)
            except (ComputeError, StoreError, OperateError) as error:
                self.unread.append(about(f"gs://{name}", error))

    def _of_buckets(self) -> Iterator[Finding]:
        homes = {_home(one) for one in self.owners}
        for bucket in self.buckets.values():
            if bucket.is_empty and bucket.body and (finding := self._empty(bucket)):
                yield finding
            runs, size = 0, 0
            for kept in bucket.kept.values():
                if f"gs://{bucket.name}/{kept.prefix}" in homes:
                    continue
                others = {project for project, _ in map(_labels_of, kept.owners)} - {self.own}
                if others or any(run.is_open(self.now) for run in kept.runs):
                    continue
                if not kept.owners:
                    self.waiting.append(
                        f"gs://{bucket.name}/{kept.prefix}: no run in it says whose it is"
                    )
                    continue
                runs += len(kept.runs)
                size += sum(run.size for run in kept.runs)
                yield from self._shared(bucket, kept)
            if runs:
                cost = existing.stored(size, bucket.location)
                self.kept.append(
                    f"gs://{bucket.name} keeps {runs} ended runs of stacks that are not up:"
                    f" {size / 2**30:,.2f} GiB, {cost.said(pricing.HOURS_A_MONTH)} a month;"
                    " outlast prune deletes them by rule"
                )

    def _shared(self, bucket: _Bucket, kept: Kept) -> Iterator[Finding]:
        """The bundles and environments of an experiment whose runs have all ended."""
        home = f"gs://{bucket.name}/{kept.prefix}"
        for kind, objects in (("bundles", kept.bundles), ("environments", kept.environments)):
            if not objects:
                continue
            if any(self._is_young(one.updated) for one in objects):
                self.waiting.append(f"{kind} of {home}: one is younger than --min-age")
                continue
            yield Finding(
                *(kind, f"{home}/{kind}/", "its stack is not up, and all its runs have ended"),
                existing.stored(sum(one.size for one in objects), bucket.location),
                partial(_delete_objects, bucket.store, objects),
                path=home,
            )

    def _empty(self, bucket: _Bucket) -> Finding | None:
        if any(one.bucket == bucket.name for one in self.owners):
            return None
        if self._is_young(datetime.fromisoformat(str(bucket.body["timeCreated"]))):
            self.waiting.append(f"bucket {bucket.name}: is younger than --min-age")
            return None
        return Finding(
            *("bucket", bucket.name, "it is empty, and no stack of this backend uses it"),
            *(pricing.Sum(), lambda: Project(self.project).delete_bucket(bucket.name)),
        )


def _unowned(name: str, owner: Owner | None) -> str:
    if owner is None:
        return f"this backend has no stack {name}"
    if not owner.bucket:
        return f"stack {name} is not up"
    return f"stack {name} is up and does not declare it"


def _end_of(head: Head, written: Object, resume: int, now: datetime) -> str:
    """How the VM's run has ended; empty if it has not."""
    if head.state.ended and head.resume >= resume:
        return f"is {head.state} since {format_time(written.updated)}"
    if is_expired(head, now):
        return f"has passed its deadline, {format_time(head.deadline)}"
    return ""


def _group_of(vm: Json) -> str:
    """The path of the group that created the VM; empty for none."""
    return _metadata(vm).get("created-by", "").partition("projects/")[2].partition("/")[2]


def _metadata(of_vm: Json) -> dict[str, str]:
    """The instance metadata of a VM, or of a template's properties."""
    items = (of_vm.get("metadata") or {}).get("items") or ()
    return {one["key"]: str(one.get("value", "")) for one in items}


def _is_baked(image: Json) -> bool:
    return (image.get("labels") or {}).get("component") == builder.COMPONENT


def _labels_of(owner: str) -> tuple[str, str]:
    """Project and stack of a HEAD's owner, as labels have them."""
    parts = owner.split("/")
    return labels.sanitise(parts[-2] if len(parts) > 1 else ""), labels.sanitise(parts[-1])


def _delete_objects(store: Store, objects: Sequence[Object]) -> None:
    """Each in the generation that was listed. Raises StoreError."""

    def delete(one: Object) -> None:
        try:
            store.delete(one.path, generation=one.generation)
        except (NotFound, PreconditionFailed):
            return  # It is gone, or newer, and then in use.

    in_parallel([partial(delete, one) for one in objects], small_writes(store))
