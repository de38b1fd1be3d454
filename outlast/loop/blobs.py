"""What one capture has met, or one restore has put back: arrays, objects, and where they are."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from outlast.loop import classes, start
from outlast.loop.errors import StateError
from outlast.loop.start import Start

Node = Any  # a JSON value; the type checker has no recursive alias worth its reading

DEPTH_MAX = 100
"""Containers in containers; deeper ones would exceed Python's own limit somewhere."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""The target of a restore if there is nothing to restore into."""


class Blob(NamedTuple):
    """The raw bytes of one array, in the order in which they lie in memory."""

    dtype: str
    """As the framework that wrote it names it: numpy's ``<f4``, torch's ``bfloat16``."""
    shape: tuple[int, ...]
    source: memoryview | bytes | Callable[[], memoryview]
    """The bytes, or what fetches them from a device when they are written."""
    nbytes: int
    order: tuple[int, ...] | None = None
    """Dimensions from the outermost in memory to the innermost; None for C order."""

    @property
    def data(self) -> memoryview | bytes:
        """The bytes themselves, in this machine's memory."""
        return self.source() if callable(self.source) else self.source


class Memory(NamedTuple):
    """Where an array lies: what tells one array from another."""

    device: str
    start: int
    end: int
    layout: tuple[Any, ...]
    """dtype, shape and strides: equal memory of equal layout is one array."""


class Blobs:
    """The arrays and objects that one capture has met, or that one restore has put back."""

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
        """An id or an address is unique only while its owner lives."""
        # while capturing
        self.begun = begun
        """What the program started with; None: not known, nothing is too late."""
        self.survey = survey
        """To be filled with what is met, by a capture that is not to be written."""
        self.seen: dict[int, str] = {}
        self.owned: dict[str, Any] = {}
        """Objects of a program's classes that say themselves what is saved of them, by path."""
        self.loose: dict[str, Any] = {}
        """What stands in attributes of modules and cannot be saved, by path."""
        self.open: set[int] = set()
        self.outside: Exception | None = None
        """An error that came while something was captured, and not from that."""
        self.depth = 0
        self.detached = 0
        """Above 0 within what is restored from plain data, without a live object."""
        self.in_key = False
        self.by_value = 0
        """Above 0 within plain attributes: a view or a computation's result is its values."""
        self._late: dict[int, tuple[str, str, set[str]]] = {}
        self._suspects: list[tuple[list[int], int, str]] = []
        self._index: dict[Memory, int] = {}
        self._extents: list[tuple[str, int, int, int, str]] = []
        """Device, first and last byte, how many were met before, and the path."""
        # while restoring
        self.may_refer = True
        """False if the text of the checkpoint holds no ``$same``: its check builds no paths."""
        self.places: dict[str, Any] = {}
        """Restored objects by their path, for ``$same``."""
        self.restored: dict[int, Any] = {}
        """Restored arrays by their blob."""
        self.homes: dict[str, Any] = {}
        """Live objects by the path at which they were saved, where they live at another."""
        self.array_homes: dict[int, Any] = {}
        """Live arrays by their blob."""
        self._taken: set[int] = set()
        self.is_alone = False
        """Whether no program is there that has its own classes: a result is read."""

    def add(self, owner: object, memory: Memory | None, path: str, make: Callable[[], Blob]) -> int:
        """Index of the blob of the array at ``memory`` (None: of no other array's)."""
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
        """Only a live object of this ``kind`` can take what is captured of ``value``; StateError
        if a resumed program has none at ``path``. ``remedy``: what to do, before ``or``."""
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
        """The object stands at ``path``, too, and a resumed program may have it there."""
        late = self._late.get(id(value))
        if late is not None and late[2] <= (self.begun or Start()).live.get(path, set()):
            del self._late[id(value)]

    def suspect(self, owners: list[int], address: int, sentence: str) -> None:
        """Something has changed that is not saved, unless one of its ``owners`` (ids) or the array
        at ``address`` stands in the state elsewhere."""
        self._suspects.append((owners, address, sentence))

    def refuse_late(self) -> None:
        """StateError naming an object that a resumed program has at none of its places, or what
        has changed and is saved at none."""
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
        """What was noted of ``path`` at the start of the program: ``now`` where it starts now."""
        if self.detached:
            return now
        if self.survey is not None:
            self.survey.notes[path] = now
        return now if self.begun is None else self.begun.notes.get(path, now)

    @contextlib.contextmanager
    def without_target(self) -> Iterator[None]:
        """What is captured meanwhile is restored from plain data, not into a live object."""
        self.detached += 1
        try:
            yield
        finally:
            self.detached -= 1

    @contextlib.contextmanager
    def values_only(self) -> Iterator[None]:
        """What is captured meanwhile are plain attributes."""
        self.by_value += 1
        try:
            yield
        finally:
            self.by_value -= 1

    def take(self, target: Any) -> Any:
        """``target``, or MISSING where something else was restored into it already."""
        if target is MISSING or id(target) in self._taken:
            return MISSING
        self._taken.add(id(target))
        self.keep.append(target)
        return target

    def made(self, value: Any) -> None:
        """``value`` stands restored in its place: it is not a target of another restore."""
        self._taken.add(id(value))
        self.keep.append(value)

    def claim(self, memory: Memory | None, path: str) -> None:
        """StateError if what lies at ``memory``, which is not a blob, is also captured
        elsewhere."""
        if memory is None or self.survey is not None:
            return
        if memory in self._index:
            raise StateError(
                f"{path} is a view of an array that the state also holds in another place; keep one"
            )
        self._extents.append((*memory[:3], len(self._extents), path))
        self._index[memory] = -1

    def refuse_overlaps(self) -> None:
        """StateError naming an array of which another one holds a part."""
        for one, two in itertools.pairwise(sorted(self._extents)):
            if one[0] == two[0] and two[1] < one[2]:
                first, later = sorted((one, two), key=lambda extent: extent[3])
                raise StateError(
                    f"{later[4]} shares a part of its memory with {first[4]}, which cannot be "
                    "saved as two; keep only the array that both are views of, or a copy of one"
                )


def kind_of(value: object) -> str:
    """How a sentence names the kind of a value."""
    if value is MISSING:
        return "absent"
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


class Adapter(Protocol):
    """How one framework's objects are captured and restored (a module of outlast.loop.adapters)."""

    def capture(self, value: object, path: str, blobs: Blobs) -> Node:
        """A node, or MISSING if the object is not this framework's."""

    def restore(self, target: Any, node: Node, path: str, blobs: Blobs) -> Any:
        """The restored object; DoesNotFit if the target is another kind of object."""
