"""Chooses what a prune deletes, and what it must not: whatever an open run or a stack that is up
still needs.

An open run needs its bundle, its environments, and each run whose checkpoint or result its settings
name. What it needs is read from the record of its newest attempt, and what a stack needs from its
state. If that cannot be read, everything that might be needed stays.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from outlast.base.codec import canonical_json, format_time
from outlast.base.exits import State
from outlast.base.suggest import choices
from outlast.bucket import inventory, pruning
from outlast.bucket.inventory import BUNDLES, ENVIRONMENTS, Kept, KeptRun
from outlast.bucket.layout import AttemptStart
from outlast.bucket.records import read_record
from outlast.bucket.store import Damaged, NotFound, Object, Store, StoreError
from outlast.bucket.transfer import in_parallel, small_reads
from outlast.cli import engine, experiments
from outlast.cli.audit import owners
from outlast.cli.audit.owners import Owner
from outlast.cli.errors import OperateError, UsageError, about
from outlast.cloud.compute import ComputeError
from outlast.cloud.project import Project
from outlast.costs import existing, pricing
from outlast.spec import labels

STATES = tuple(state.value for state in State if state.ended)
NEWEST = 10
"""How many attempts are tried for a readable record."""
_AGE = re.compile(r"(?P<number>[0-9]+)(?P<unit>[mhdw])")
_GS = re.compile(r"gs://[^\s\"\\#]+")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Rule:
    """What the user asks for."""

    older: timedelta
    states: frozenset[str]
    keep_results: bool = False
    bundles: bool = False
    environments: bool = False
    only: frozenset[str] = frozenset()
    """Experiments; empty for all."""


@dataclass(frozen=True)
class Item:
    """Something to delete."""

    kind: str
    """run, checkpoints, bundle or environment."""
    url: str
    why: str
    size: int
    cost: pricing.Sum
    delete: Any
    """Deletes it. Raises Changed, HeadError and StoreError."""

    @property
    def month(self) -> str:
        return self.cost.said(pricing.HOURS_A_MONTH)

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "url": self.url,
            "why": self.why,
            "bytes": self.size,
            "dollars_month": round(self.cost.month, 4),
            "unknown": list(self.cost.unknown),
        }


@dataclass(frozen=True)
class Left:
    """Something that stays although the rule fits."""

    url: str
    """Of a run, or of an experiment whose bundles and environments stay."""
    why: str

    def as_json(self) -> dict[str, Any]:
        return {"url": self.url, "why": self.why}


@dataclass(frozen=True)
class Plan:
    """What a prune would delete, and what it leaves although the rule fits."""

    items: tuple[Item, ...]
    left: tuple[Left, ...]
    unread: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(one.size for one in self.items)

    @property
    def month(self) -> str:
        return pricing.added(one.cost for one in self.items).said(pricing.HOURS_A_MONTH)

    def as_json(self) -> dict[str, Any]:
        return {
            "items": [one.as_json() for one in self.items],
            "bytes": self.size,
            "prices_of": pricing.date(),
            "left": [one.as_json() for one in self.left],
            "unread": list(self.unread),
        }


def age_of(text: str) -> timedelta:
    """`30d`, `12h`, `2w` or `90m`. Raises UsageError."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--older-than {text!r}: must be a number with m, h, d or w, such as 30d.")
    try:
        return timedelta(**{_UNITS[match["unit"]]: int(match["number"])})
    except (ValueError, OverflowError):  # more digits or days than Python takes
        raise UsageError(f"--older-than {text[:80]!r}: must be at most 1000000d.") from None


def states_of(text: str) -> frozenset[str]:
    """States of runs, separated by commas. Raises UsageError."""
    found = frozenset(one.strip() for one in text.split(",") if one.strip())
    if unknown := sorted(found - {*STATES}):
        raise UsageError(
            f"--state {unknown[0]!r}: must be {', '.join(STATES)}; an open run is never deleted."
        )
    return found


def plan(rule: Rule) -> Plan:
    """Reads the buckets of this project and the states of its backend. Raises OperateError without
    a bucket to look into."""
    buckets = experiments.known_buckets()
    known = owners.read()
    unread: list[str] = []
    unknown: list[str] = []
    found: list[_Bucket] = []
    for name, stack in buckets.items():
        try:
            store = experiments.open_bucket(name, stack)
            found.append(_Bucket(name, store, inventory.read(store), store.now()))
        except (StoreError, OperateError) as error:
            unread.append(about(f"gs://{name}", error))
            if not isinstance(error, NotFound):
                unknown.append(f"gs://{name} cannot be read, and an open run there may need it")
    chooser = _Chooser(rule, labels.sanitise(engine.project_name()), known, unknown=unknown)
    for bucket in found:
        chooser.note_needs(bucket)
    items = [item for bucket in found for item in chooser.items(bucket)]
    if rule.only and not unread:
        there = {kept.experiment for bucket in found for kept in bucket.kept}
        if missing := sorted(rule.only - there):
            raise UsageError(
                f"experiment {missing[0]!r}: no bucket of this project has it;"
                f" {choices(missing[0], there)}."
            )
    unread += chooser.unread
    return Plan(tuple(items), tuple(dict.fromkeys(chooser.left)), tuple(unread))


@dataclass
class _Bucket:
    name: str
    store: Store
    kept: list[Kept]
    now: datetime
    """Server time."""
    _location: str | None = None

    @property
    def location(self) -> str:
        """Empty if it cannot be looked up: then its price is unknown."""
        if self._location is None:
            try:
                self._location = str((Project("-").any_bucket(self.name) or {}).get("location", ""))
            except ComputeError:
                self._location = ""
        return self._location


@dataclass
class _Needs:
    """What the open runs of one experiment need."""

    bundles: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    """Of environments."""
    since: list[datetime] = field(default_factory=list)
    """A newer template may name any bundle that was uploaded after these times."""
    unknown: str = ""
    """Why not everything is known; then all stays."""


@dataclass
class _Chooser:
    rule: Rule
    own: str
    """The Pulumi project, as labels have it."""
    owners: Sequence[Owner]
    needs: dict[tuple[str, str], _Needs] = field(default_factory=lambda: defaultdict(_Needs))
    """By bucket and experiment."""
    named: set[str] = field(default_factory=set)
    """The paths in buckets that open runs and stacks name."""
    unknown: list[str] = field(default_factory=list)
    """Open runs and unread buckets that may need any other run."""
    left: list[Left] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for one in self.owners:
            self.named |= _named_in(one.text)

    def note_needs(self, bucket: _Bucket) -> None:
        """Reads what the bucket's open runs need."""
        runs = [(kept, run) for kept in bucket.kept for run in kept.runs if run.is_open(bucket.now)]
        jobs = [partial(_newest_start, bucket.store, run) for _, run in runs]
        starts = in_parallel(jobs, small_reads(bucket.store))
        for (kept, run), start in zip(runs, starts, strict=True):
            needs = self.needs[bucket.name, kept.experiment]
            url = f"gs://{bucket.name}/{run.layout.root}"
            if start is None:
                needs.unknown = f"{url} is open, and what it needs cannot be read"
                self.unknown.append(needs.unknown)
                continue
            assert run.head is not None
            self.named |= _named_in(canonical_json(start.spec).decode())
            needs.bundles.add(str(start.spec.get("bundle") or ""))
            needs.keys |= {one.key for one in run.head.wheels}
            needs.since.append(start.time)

    def items(self, bucket: _Bucket) -> Iterator[Item]:
        """What of the bucket is deleted: runs first."""
        wanted = [
            one for one in bucket.kept if not self.rule.only or one.experiment in self.rule.only
        ]
        for kept in wanted:
            for run in kept.runs:
                if item := self._run(bucket, run):
                    yield item
        for kept in wanted:
            if self.rule.bundles or self.rule.environments:
                yield from self._shared(bucket, kept)

    # Runs

    def _run(self, bucket: _Bucket, run: KeptRun) -> Item | None:
        url = f"gs://{bucket.name}/{run.layout.root}"
        if run.head is None:
            return self._interrupted(bucket, run, url)
        head, ended = run.head, run.found
        assert ended is not None
        if head.state.value not in self.rule.states or not self._is_old(bucket, ended.updated):
            return None
        if why := self._why_kept(run, url, head.owner):
            self.left.append(Left(url, why))
            return None
        why = f"{head.state} since {format_time(ended.updated)}"
        if not (self.rule.keep_results and head.state is State.DONE):
            delete = partial(pruning.delete_run, bucket.store, run.layout, head, ended.generation)
            return self._item("run", bucket, url, why, run.size, delete)
        if not run.checkpoints:
            return None
        if any(entry.part for entry in head.chain):
            self.left.append(Left(url, "has parts, whose list is among its checkpoints"))
            return None
        delete = partial(pruning.drop_checkpoints, bucket.store, run.layout)
        return self._item("checkpoints", bucket, url, why, run.checkpoints, delete)

    def _interrupted(self, bucket: _Bucket, run: KeptRun, url: str) -> Item | None:
        """The rest of a run whose deletion was interrupted, whatever the rule."""
        if run.why:
            self.left.append(Left(url, run.why.removeprefix(f"{url}HEAD: ")))
        if run.why or run.pruning is None:
            return None
        try:
            owner = pruning.owner_of(bucket.store, run.pruning)
        except StoreError as error:
            self.unread.append(f"{url}: {error}")
            return None
        if not self._is_own(owner):
            return None
        delete = partial(pruning.delete_run, bucket.store, run.layout, None, 0)
        why = "an earlier prune of it was interrupted"
        return self._item("run", bucket, url, why, run.size, delete)

    def _why_kept(self, run: KeptRun, url: str, owner: str) -> str:
        """Why it stays although the rule fits; empty if it does not."""
        if not self._is_own(owner):
            return f"belongs to {owner}"
        path = url.removesuffix("/")
        if any(f'"{run.layout.root.rstrip("/")}"' in one.text for one in self.owners):
            return "its stack is up; destroy that first"
        if any(_meet(path, named) for named in self.named):
            return "an open run or a stack needs it"
        return self.unknown[0] if self.unknown else ""

    # Bundles and environments

    def _shared(self, bucket: _Bucket, kept: Kept) -> Iterator[Item]:
        needs = self.needs[bucket.name, kept.experiment]
        home = f"gs://{bucket.name}/{kept.prefix}"
        others = sorted(one for one in kept.owners if not self._is_own(one))
        why = needs.unknown or (f"belongs to {others[0]}" if others else "")
        if not kept.owners and kept.experiment not in self.rule.only:
            why = "no run says whose it is; name the experiment to prune it"
        if why:
            self.left.append(Left(f"{home}/", why))
            return
        for kind, objects in ((BUNDLES, kept.bundles), (ENVIRONMENTS, kept.environments)):
            if not getattr(self.rule, kind):
                continue
            for one in objects:
                if self._is_old(bucket, one.updated) and not self._is_needed(one, needs):
                    delete = partial(pruning.delete_all, bucket.store, [one])
                    url, said = f"gs://{bucket.name}/{one.path}", "no open run or stack uses it"
                    yield self._item(kind.removesuffix("s"), bucket, url, said, one.size, delete)

    def _is_needed(self, one: Object, needs: _Needs) -> bool:
        key = one.path.rpartition("/")[2].removesuffix(".zip")
        if one.path in needs.bundles or key in needs.keys:
            return True
        if f"/{BUNDLES}/" in one.path and any(one.updated >= since for since in needs.since):
            return True
        return any(one.path in owner.text for owner in self.owners)

    # Both

    def _is_own(self, owner: str) -> bool:
        parts = owner.split("/")
        return len(parts) > 1 and labels.sanitise(parts[-2]) == self.own

    def _is_old(self, bucket: _Bucket, moment: datetime) -> bool:
        # Server time has whole seconds only.
        return not self.rule.older or bucket.now - moment >= self.rule.older

    def _item(self, kind: str, bucket: _Bucket, url: str, why: str, size: int, delete: Any) -> Item:
        return Item(kind, url, why, size, existing.stored(size, bucket.location), delete)


def _newest_start(store: Store, run: KeptRun) -> AttemptStart | None:
    """The record of its newest attempt that has one; None if none of the newest can be read."""
    if run.head is None:
        return None
    for term in range(run.head.term, max(run.head.term - NEWEST, 0), -1):
        try:
            found = read_record(store, run.layout.attempt_start(term), AttemptStart)
        except (Damaged, StoreError):
            return None
        if found is not None:
            return found
    return None


def _named_in(text: str) -> set[str]:
    return {one.rstrip("/") for one in _GS.findall(text)}


def _meet(path: str, named: str) -> bool:
    """Whether one of the two paths of runs or folders of runs is the other, or in it."""
    if f"/{inventory.ROOT}" not in f"{named}/":
        return False
    return f"{named}/".startswith(f"{path}/") or f"{path}/".startswith(f"{named}/")


def both(first: Plan, second: Plan) -> Iterable[Item]:
    """What the second plan still has of the first."""
    shown: Mapping[tuple[str, str], Item] = {(one.kind, one.url): one for one in first.items}
    return [one for one in second.items if (one.kind, one.url) in shown]
