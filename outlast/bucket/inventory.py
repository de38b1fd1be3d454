"""What a bucket holds of each experiment: its runs with their sizes, its bundles and environments.

One listing of everything below `experiments/`, and one request for each HEAD.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from outlast.bucket.head import Head, HeadError, HeadLost, HeadMoved, read_head
from outlast.bucket.layout import EXPERIMENT_PATTERN, Layout
from outlast.bucket.listed import Listed
from outlast.bucket.standing import is_expired
from outlast.bucket.store import Object, ReadOnlyStore, Store, StoreError
from outlast.bucket.transfer import in_parallel, small_reads

ROOT = "experiments/"
BUNDLES, ENVIRONMENTS = "bundles", "environments"
SHARED = (BUNDLES, ENVIRONMENTS)
"""What an experiment has beside its runs."""


@dataclass(frozen=True)
class KeptRun:
    """One run's objects, and its HEAD."""

    layout: Layout
    size: int
    """Bytes of all objects."""
    checkpoints: int
    """Bytes of the checkpoints among them."""
    changed: datetime
    """When its newest object was written."""
    head: Head | None
    """None if there is none, or if it cannot be read."""
    found: Object | None
    """HEAD in the generation that was read, or else as it was listed; None if there is none."""
    why: str = ""
    """Why HEAD cannot be read; empty if there is none."""
    pruning: Object | None = None
    """Its mark, if a prune of it was interrupted."""
    is_left: bool = False
    """Whether it was handed over into another bucket: this copy is never continued."""

    def is_open(self, now: datetime) -> bool:
        """Whether a VM may still continue it; an unreadable HEAD counts as open."""
        if self.head is None:
            return bool(self.why) and not self.is_left
        return not self.head.state.ended and not is_expired(self.head, now)


@dataclass
class Kept:
    """What one experiment has in the bucket."""

    experiment: str
    runs: list[KeptRun] = field(default_factory=list)
    bundles: list[Object] = field(default_factory=list)
    environments: list[Object] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        return f"{ROOT}{self.experiment}"

    @property
    def owners(self) -> set[str]:
        """The owners that the HEADs of its runs name."""
        return {run.head.owner for run in self.runs if run.head}


@dataclass
class _Seen:
    """What was listed of a run so far."""

    size: int = 0
    checkpoints: int = 0
    changed: datetime | None = None
    head: Object | None = None
    pruning: Object | None = None


def read(store: Store) -> list[Kept]:
    """Of every experiment, sorted by name. Raises StoreError."""
    found: dict[str, Kept] = {}
    seen: dict[Layout, _Seen] = {}
    for one in store.list(ROOT):
        parts = one.path.split("/")
        if len(parts) < 4 or not EXPERIMENT_PATTERN.fullmatch(parts[1]):
            continue
        kept = found.setdefault(parts[1], Kept(parts[1]))
        if parts[2] in SHARED:
            (kept.bundles if parts[2] == BUNDLES else kept.environments).append(one)
        else:
            _note(seen, Layout(kept.prefix, parts[2]), one)
    records = Listed(store)
    records.add(one.head for one in seen.values() if one.head)
    jobs: list[Callable[[], KeptRun]] = [
        partial(_run, records, layout, one) for layout, one in seen.items()
    ]
    for run in in_parallel(jobs, small_reads(store)):
        found[run.layout.prefix.removeprefix(ROOT)].runs.append(run)
    return [found[name] for name in sorted(found)]


def _note(seen: dict[Layout, _Seen], layout: Layout, one: Object) -> None:
    so_far = seen.setdefault(layout, _Seen())
    so_far.size += one.size
    if layout.is_of_snapshot(one.path):
        so_far.checkpoints += one.size
    if so_far.changed is None or one.updated > so_far.changed:
        so_far.changed = one.updated
    if one.path == layout.head:
        so_far.head = one
    if one.path == layout.pruning:
        so_far.pruning = one


def _run(store: ReadOnlyStore, layout: Layout, seen: _Seen) -> KeptRun:
    head, found, why, is_left = None, seen.head, "", False
    if seen.head is not None:
        try:
            head, found = read_head(store, layout)
        except HeadLost:
            pass  # Deleted since.
        except (HeadError, StoreError) as error:
            why = str(error)
            is_left = isinstance(error, HeadMoved) and error.is_left
    assert seen.changed is not None
    return KeptRun(
        *(layout, seen.size, seen.checkpoints, seen.changed, head, found, why, seen.pruning),
        is_left=is_left,
    )
