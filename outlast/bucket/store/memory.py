"""A store in memory, for tests and measurements."""

import bisect
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from outlast.bucket.store.contract import (
    GET_BYTES_MAX,
    Data,
    Fetching,
    Object,
    Sink,
    check_generation,
    check_path,
    checksum_of,
    matcher,
    not_found,
    opened,
    too_large,
    verify,
    whole_range,
)

T = TypeVar("T")


class Operation(NamedTuple):
    """One call of a store: the verb, the path and whether it changes anything."""

    verb: str
    path: str
    writes: bool


Around = Callable[[Operation, Callable[[], Any]], Any]
"""Called with each operation and the function that performs it; may raise before or after it."""


class _Objects(dict[str, tuple[bytes, Object]]):
    """Objects by path, sorted, so that listing a few of many is cheap."""

    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[str] = []

    def __setitem__(self, path: str, entry: tuple[bytes, Object]) -> None:
        if path not in self:
            bisect.insort(self._sorted, path)
        super().__setitem__(path, entry)

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        del self._sorted[bisect.bisect_left(self._sorted, path)]

    def pop(self, path: str) -> tuple[bytes, Object]:  # type: ignore[override]
        entry = self[path]
        del self[path]
        return entry

    def below(self, prefix: str) -> list[Object]:
        """The objects whose path starts with `prefix`, sorted by path."""
        found = []
        for index in range(bisect.bisect_left(self._sorted, prefix), len(self._sorted)):
            path = self._sorted[index]
            if not path.startswith(prefix):
                break
            found.append(self[path][1])
        return found


class MemoryStore(Fetching):
    """A store in this process's memory. Views share the objects but see only their own
    operations.
    """

    url = "memory:"
    streams = 1
    """One at a time, so that a test always disturbs the same operation."""
    rewrite_sec = 1.0

    def __init__(
        self, *, clock: Callable[[], datetime] | None = None, around: Around | None = None
    ) -> None:
        self._objects = _Objects()
        self._generations = itertools.count(1)
        self._lock = threading.RLock()
        self._clock = clock or (lambda: datetime.now(UTC))
        self._around = around

    def view(self, around: Around | None) -> "MemoryStore":
        """A store over the same objects, whose operations pass through `around`."""
        view = MemoryStore(clock=self._clock, around=around)
        view._objects, view._generations = self._objects, self._generations
        view._lock = self._lock
        return view

    def get(self, path: str, *, generation: int | None = None) -> tuple[bytes, Object]:
        data, found = self._perform("get", path, lambda: self._found(path, generation))
        if len(data) > GET_BYTES_MAX:
            raise too_large(path)
        return data, found

    def stream(self, path: str, sink: Sink, *, generation: int | None = None) -> Object:
        data, found = self._perform("fetch", path, lambda: self._found(path, generation))
        sink.write(data)
        return found

    def read_range(self, path: str, start: int, size: int, *, generation: int) -> bytes:
        data, _ = self._perform("read_range", path, lambda: self._found(path, generation))
        return whole_range(path, data[start : start + size], start, size)

    def stat(self, path: str) -> Object:
        return self._perform("stat", path, lambda: self._found(path, None)[1])

    def put(self, path: str, data: Data, *, if_generation_match: int | None = None) -> Object:
        with opened(data) as file:
            content = file.read()

        def apply() -> Object:
            return self._write(path, content, if_generation_match)

        return self._perform("put", path, apply, writes=True)

    def copy(
        self,
        source: str,
        to: str,
        *,
        source_generation: int,
        if_generation_match: int | None = None,
    ) -> Object:
        def apply() -> Object:
            content, found = self._found(source, source_generation)
            verify(found, checksum_of(content))
            return self._write(to, content, if_generation_match)

        return self._perform("copy", to, apply, writes=True)

    def take(self, origin: "MemoryStore", source: Object, *, if_generation_match: int) -> Object:
        def apply() -> Object:
            content, found = origin._found(source.path, source.generation)
            verify(found, checksum_of(content))
            written = self._write(source.path, content, if_generation_match)
            kept = replace(written, updated=found.updated)
            self._objects[source.path] = (content, kept)
            return kept

        return self._perform("take", source.path, apply, writes=True)

    def _write(self, path: str, content: bytes, if_generation_match: int | None) -> Object:
        current = self._objects.get(check_path(path))
        check_generation(path, current[1].generation if current else 0, if_generation_match)
        size, crc32c = checksum_of(content)
        written = Object(path, next(self._generations), size, crc32c, self.now())
        self._objects[path] = (content, written)
        return written

    def delete(self, path: str, *, generation: int) -> None:
        def apply() -> None:
            check_generation(path, self._found(path, None)[1].generation, generation)
            del self._objects[path]

        self._perform("delete", path, apply, writes=True)

    def list(self, prefix: str, *, glob: str = "") -> Iterator[Object]:
        matches = matcher(glob)
        found = self._perform("list", prefix, lambda: self._objects.below(prefix))
        return (one for one in found if matches(one.path))

    def folders(self, prefix: str) -> Iterator[str]:
        rests = (found.path[len(prefix) :] for found in self.list(prefix))
        return iter(sorted({rest.partition("/")[0] for rest in rests if "/" in rest}))

    def now(self) -> datetime:
        return self._clock()

    def _found(self, path: str, generation: int | None) -> tuple[bytes, Object]:
        entry = self._objects.get(check_path(path))
        if entry is None or generation not in (None, entry[1].generation):
            raise not_found(path, generation)
        return entry

    def _perform(self, verb: str, path: str, apply: Callable[[], T], *, writes: bool = False) -> T:
        def locked() -> T:
            with self._lock:
                return apply()

        if self._around is None:
            return locked()
        return self._around(Operation(verb, path, writes), locked)
