"""The records of many runs, in few requests: a listing says which there are, and each is read once.

Reading an object by its name takes a bucket two requests, one for its generation and one for its
bytes. Here one listing has the generations of all, so each record takes one request, and an absent
one none. How long a run's rows, logs and checkpoints are does not matter: the bucket matches the
names.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial

from outlast.base.names import number_of
from outlast.bucket import blocks
from outlast.bucket.history import BOOT_END
from outlast.bucket.layout import Layout
from outlast.bucket.store import NotFound, Object, ReadOnlyStore, StoreError
from outlast.bucket.transfer import in_parallel, small_reads

_RECORD = re.compile(
    r"(?P<prefix>.+)/(?P<run>[^/]+)/"
    r"(HEAD|(boots|records)/[^/]+\.json|attempts/[^/]+/(start|heartbeat|end)\.json)"
)
"""What is listed."""


class Listed:
    """A store whose listed records are read from memory; everything else is as it is in the store.

    A record that was listed and could not be read raises its error when it is used.
    """

    streams = 1
    """Its records are in memory."""

    def __init__(self, store: ReadOnlyStore) -> None:
        self.url = store.url
        self._store = store
        self._runs: dict[Layout, dict[str, Object]] = {}
        self._read: dict[str, tuple[bytes, Object] | StoreError] = {}

    def add(self, found: Iterable[Object]) -> None:
        """Adds what was listed."""
        for one in found:
            if match := _RECORD.fullmatch(one.path):
                layout = Layout(match["prefix"], match["run"])
                self._runs.setdefault(layout, {})[one.path] = one

    def fetch_all(self, paths: Iterable[str]) -> None:
        """Reads these listed records, many at a time."""
        jobs = [partial(self._fetch, path) for path in paths]
        in_parallel(jobs, small_reads(self._store))

    def runs(self) -> list[Layout]:
        """The runs that have a record."""
        return [*self._runs]

    def needed(self, layout: Layout) -> list[str]:
        """What a reader of the run's history reads, besides its HEAD."""
        found = self._runs[layout]
        terms = {path: _term(path, layout) for path in found if path.startswith(layout.attempts)}
        in_blocks = max(terms.values(), default=0) >= blocks.BLOCK
        kept = [path for path in found if in_blocks and path.startswith(layout.records)]
        numbers = {number_of(path.removeprefix(layout.records)[:-5]) for path in kept}
        ends = [path for path in found if path.startswith(layout.boots) and path.endswith(BOOT_END)]
        left = [path for path, term in terms.items() if term // blocks.BLOCK not in numbers]
        return [*kept, *ends, *left]

    def get(self, path: str, *, generation: int | None = None) -> tuple[bytes, Object]:
        if generation is not None or not _RECORD.fullmatch(path):
            return self._store.get(path, generation=generation)
        if path not in self._read:
            self._fetch(path)
        found = self._read[path]
        if isinstance(found, StoreError):
            raise found
        return found

    def list(self, prefix: str, *, glob: str = "") -> Iterator[Object]:
        if glob or not prefix.endswith(("/boots/", "/records/")):
            return self._store.list(prefix, glob=glob)
        return iter(sorted(self._below(prefix), key=lambda one: one.path))

    def folders(self, prefix: str) -> Iterator[str]:
        if not prefix.endswith("/attempts/"):
            return self._store.folders(prefix)
        names = {one.path.removeprefix(prefix).partition("/")[0] for one in self._below(prefix)}
        return iter(sorted(names))

    def now(self) -> datetime:
        return self._store.now()

    def _below(self, prefix: str) -> Iterator[Object]:
        root, _, _ = prefix.rstrip("/").rpartition("/")
        folder, _, run = root.rpartition("/")
        found = self._runs.get(Layout(folder, run), {})
        return (one for path, one in found.items() if path.startswith(prefix))

    def _fetch(self, path: str) -> None:
        match = _RECORD.fullmatch(path)
        assert match is not None
        listed = self._runs.get(Layout(match["prefix"], match["run"]), {}).get(path)
        try:
            if listed is None:
                raise NotFound(f"{path}: no such object in {self.url}")
            try:
                data, _ = self._store.get(path, generation=listed.generation)
                self._read[path] = (data, listed)  # Its listed time has fractions of a second.
            except NotFound:  # It was rewritten meanwhile.
                self._read[path] = self._store.get(path)
        except StoreError as error:
            self._read[path] = error


def _term(path: str, layout: Layout) -> int:
    """The attempt of a record; one of no attempt is never read, wherever it counts."""
    return number_of(path.removeprefix(layout.attempts).partition("/")[0]) or 0


def read(
    store: ReadOnlyStore, root: str, *, only: Callable[[str], bool] = lambda _: True
) -> Listed:
    """The records of all runs of the experiments below `root`, which ends with a slash; only those
    of some experiments are read, by their names. Raises StoreError if it cannot list.
    """
    found = Listed(store)
    # As for a single run: what HEAD says is read before the attempts are listed.
    heads = [one for one in store.list(root, glob=f"{root}*/*/HEAD") if only(_name(one, root))]
    found.add(heads)
    found.fetch_all(one.path for one in heads)
    globs = (
        f"{root}*/*/{{boots,records}}/*.json",
        f"{root}*/*/attempts/*/{{start,heartbeat,end}}.json",
    )
    jobs = [lambda glob=glob: [*store.list(root, glob=glob)] for glob in globs]
    for listed in in_parallel(jobs, small_reads(store)):
        found.add(one for one in listed if only(_name(one, root)))
    found.fetch_all(path for layout in found.runs() for path in found.needed(layout))
    return found


def _name(one: Object, root: str) -> str:
    return one.path.removeprefix(root).partition("/")[0]
