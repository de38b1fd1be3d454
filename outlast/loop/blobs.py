"""The arrays and objects that one capture has found or one restore has put back, and their
places."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from outlast.loop import classes, start
from outlast.loop.errors import StateError
from outlast.loop.start import Start

Node = Any  # a JSON value; a recursive alias would make the type errors unreadable

DEPTH_MAX = 100
"""The deepest nesting of containers; deeper ones would exceed Python's recursion limit
somewhere."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""The target of a restore without a live object."""


class Blob(NamedTuple):
    """The raw bytes of one array, in memory order."""

    dtype: str
    """In the notation of the framework that wrote it: numpy's ``<f4``, torch's ``bfloat16``."""
    shape: tuple[int, ...]
    source: memoryview | bytes | Callable[[], memoryview]
    """The bytes, or a function that fetches them from a device when they are written."""
    nbytes: int
    order: tuple[int, ...] | None = None
    """Dimensions from the outermost in memory to the innermost; None for C order."""

    @property
    def data(self) -> memoryview | bytes:
        """The bytes themselves, in this machine's memory."""
        return self.source() if callable(self.source) else self.source


class Memory(NamedTuple):
    """The memory of an array, which distinguishes it from others."""

    device: str
    start: int
    end: int
    layout: tuple[Any, ...]
    """dtype, shape and strides: the same memory with the same layout is one array."""


class Blobs:
    """The arrays and objects that one capture has found or one restore has put back."""

    def __init__(
        self,
        items: list[Blob] | None = None,
        *,
        adapters: "list[Adapter] | None" = None,
        begun: Start | None = None,
        survey: Start | None = None,
    ) -> None:
        self.items: list[Blob] = [] if items is None else items
        self.adapters: list[Adapter] = adapters or []
        self.keep: list[object] = []
        """Keeps owners alive, because an id or an address is unique only while its owner lives."""
        # while capturing
        self.begun = begun
        """What the program started with; None if unknown, and then no object is refused as too
        late."""
        self.survey = survey
        """Filled by a capture that only surveys the state and is not written."""
        self.seen: dict[int, str] = {}
        self.owned: dict[str, Any] = {}
        """Objects of the program's classes with their own ``state_dict``, by path."""
        self.loose: dict[str, Any] = {}
        """Contents of modules' attributes that cannot be saved, by path."""
        self.open: set[int] = set()
        self.outside: Exception | None = None
        """An error that occurred during a capture but was not caused by it."""
        self.depth = 0
        self.detached = 0
        """Above 0 inside objects that are restored from plain data, without a live object."""
        self.in_key = False
        self.by_value = 0
        """Above 0 inside plain attributes, where a view or a computation's result is saved by
        value."""
        self._late: dict[int, tuple[str, str, set[str]]] = {}
        self._suspects: list[tuple[list[int], int, str]] = []
        self._index: dict[Memory, int] = {}
        self._extents: list[tuple[str, int, int, int, str]] = []
        """Device, first and last byte, the number of arrays found before, and the path."""
        # while restoring
        self.may_refer = True
        """False if the checkpoint has no ``$same``, so that its check need not build paths."""
        self.places: dict[str, Any] = {}
        """Restored objects by their path, for ``$same``."""
        self.restored: dict[int, Any] = {}
        """Restored arrays by their blob."""
        self.homes: dict[str, Any] = {}
        """Live objects at another path than their saved one, by their saved path."""
        self.array_homes: dict[int, Any] = {}
        """Live arrays by their blob."""
        self._taken: set[int] = set()
        self.is_alone = False
        """Whether a result is read, without a program that has its own classes."""

    def add(self, owner: object, memory: Memory | None, path: str, make: Callable[[], Blob]) -> int:
        """Index of the blob of the array at ``memory`` (None: memory that no other array has)."""
        if self.survey is not None:
            return 0
        if memory is not None:
            index = self._index.get(memory)
            if index is not None:
                return index
            self._extents.append((*memory[:3], len(self._extents), path))
            self._index[memory] = len(self.items)
        self.items.append(make())
        self.keep.append(owner)
        return len(self.items) - 1

    def need_target(self, value: object, path: str, kind: str, remedy: str = "") -> None:
        """Note that only a live object of this ``kind`` can take the captured state of ``value``;
        StateError if a resumed program has none at ``path``. ``remedy`` is advice that ends before
        ``or``."""
        if self.survey is not None and not self.detached:
            self.survey.live.setdefault(path, set()).add(kind)
        if self.detached:
            raise StateError(start.not_rebuilt(path, kind, remedy))
        if self.begun is None or self.survey is not None:
            return
        before = self.begun.live.get(path, set())
        if kind in before:
            return
        sentence = start.changed(path, kind, before) if before else ""
        late = (path, sentence or start.too_late(path, kind, remedy), set())
        self._late.setdefault(id(value), late)[2].add(kind)

    def meet_again(self, value: object, path: str) -> None:
        """Note that the object is at ``path`` too, where a resumed program may have it."""
        late = self._late.get(id(value))
        if late is not None and late[2] <= (self.begun or Start()).live.get(path, set()):
            del self._late[id(value)]

    def suspect(self, owners: list[int], address: int, sentence: str) -> None:
        """Note a change that is not saved, unless the state holds one of its ``owners`` (ids) or
        the array at ``address`` elsewhere."""
        self._suspects.append((owners, address, sentence))

    def refuse_late(self) -> None:
        """Raise StateError if a resumed program has an object at none of its places, or if a noted
        change is saved nowhere; the message names the place."""
        for _, sentence, _ in self._late.values():
            raise StateError(sentence)
        starts = {memory.start for memory in self._index} if self._suspects else set()
        for owners, address, sentence in self._suspects:
            if self.seen.keys().isdisjoint(owners) and address not in starts:
                raise StateError(sentence)

    def finds(self, cls: type) -> bool:
        """Whether a resumed program finds a class by its name."""
        return not self.is_alone and classes.is_findable(
            cls, None if self.begun is None else self.begun.modules
        )

    def find(self, name: str) -> type | None:
        """The program's own class of that name, if it has one that is plain data."""
        return None if self.is_alone else classes.find(name)

    def noted(self, path: str, now: Any) -> Any:
        """The note about ``path`` from the start of the program; ``now`` if this is the start."""
        if self.detached:
            return now
        if self.survey is not None:
            self.survey.notes[path] = now
        return now if self.begun is None else self.begun.notes.get(path, now)

    @contextlib.contextmanager
    def without_target(self) -> Iterator[None]:
        """A context whose captures are restored from plain data, not into a live object."""
        self.detached += 1
        try:
            yield
        finally:
            self.detached -= 1

    @contextlib.contextmanager
    def values_only(self) -> Iterator[None]:
        """A context whose captures are plain attributes."""
        self.by_value += 1
        try:
            yield
        finally:
            self.by_value -= 1

    def take(self, target: Any) -> Any:
        """``target``, or MISSING if something else was already restored into it."""
        if target is MISSING or id(target) in self._taken:
            return MISSING
        self._taken.add(id(target))
        self.keep.append(target)
        return target

    def made(self, value: Any) -> None:
        """Note that ``value`` is restored, so that it is not the target of another restore."""
        self._taken.add(id(value))
        self.keep.append(value)

    def claim(self, memory: Memory | None, path: str) -> None:
        """Raise StateError if ``memory``, which is not a blob's, is also captured elsewhere."""
        if memory is None or self.survey is not None:
            return
        if memory in self._index:
            raise StateError(
                f"{path} is a view of an array that the state also holds in another place; keep one"
            )
        self._extents.append((*memory[:3], len(self._extents), path))
        self._index[memory] = -1

    def refuse_overlaps(self) -> None:
        """Raise StateError if two arrays share a part of their memory; the message names both."""
        for one, two in itertools.pairwise(sorted(self._extents)):
            if one[0] == two[0] and two[1] < one[2]:
                first, later = sorted((one, two), key=lambda extent: extent[3])
                raise StateError(
                    f"{later[4]} shares a part of its memory with {first[4]}, which cannot be "
                    "saved as two; keep only the array that both are views of, or a copy of one"
                )


def kind_of(value: object) -> str:
    """The kind of a value, for a message."""
    if value is MISSING:
        return "absent"
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


class Adapter(Protocol):
    """Captures and restores the objects of one framework (a module of outlast.loop.adapters)."""

    def capture(self, value: object, path: str, blobs: Blobs) -> Node:
        """A node, or MISSING if the object is not this framework's."""

    def restore(self, target: Any, node: Node, path: str, blobs: Blobs) -> Any:
        """The restored object; DoesNotFit if the target is another kind of object."""
