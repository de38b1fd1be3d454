"""Writes and reads a snapshot's folder: ``arrays.bin`` with arrays, ``state.json`` with the rest.

``arrays.bin`` has the arrays' raw bytes in sequence, each at a multiple of 64; ``state.json`` has
their dtypes, shapes and offsets. A trainer's model in the result is the same two files, under names
of its choice. There is no pickle and no clock: equal states give equal bytes.

Training halts while a snapshot is written, so each array is copied only once, straight into the
file. If possible the file is a spare one that already has its pages, because getting pages from the
system takes longer than filling them. A spare file in memory stays mapped, and copying into it
takes half the time of a write.
"""

import json
import mmap
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.base import scratch_space
from outlast.base.codec import check_format
from outlast.loop import nodes, state
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import Blob, Blobs, Node

FORMAT = 1
_ALIGN_BYTES = 64
_ENTRY = frozenset({"dtype", "shape", "offset", "bytes"})
_ORDERED_ENTRY = frozenset({*_ENTRY, "order"})
_DIMENSIONS_MAX = 64
_SIZE_MAX = 1 << 62
_EMPTY_MAX = 1 << 24
"""The most elements of an array whose elements have no bytes, such as empty texts."""
_BATCH = 512
"""Arrays per system call; the system takes at most 1024 buffers."""
_BATCH_BYTES = 64 << 20
_COPY_BYTES = 8 << 20
"""Bytes copied at a time, which limits the wait of the trainer's other threads."""


@dataclass(frozen=True)
class Saved:
    """The contents of a snapshot."""

    step: int
    loop: dict[str, Any]
    """The loop's notes: evaluation history, best values and so on."""
    nodes: dict[str, Node]
    blobs: Blobs


class Spare:
    """A file that keeps its pages, for the arrays of one snapshot after another.

    It is overwritten, so use it only while the previous snapshot has no reader.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapped: mmap.mmap | None = None
        self._inode = 0

    @property
    def shared(self) -> bool:
        """Whether the snapshot for which it was written still exists."""
        try:
            return self.path.stat().st_nlink > 1
        except FileNotFoundError:
            return False

    def drop(self) -> None:
        """Remove the file; the snapshot for which it was written keeps its own link."""
        self.unmap()
        self.path.unlink(missing_ok=True)

    def link(self, binary: Path) -> None:
        """Hard-link ``binary`` to the file."""
        try:
            os.link(self.path, binary)
        except OSError:  # a file system without hard links
            self.unmap()
            os.replace(self.path, binary)

    def write(self, items: Sequence[Blob], size: int) -> None:
        """Write exactly these arrays, ``size`` bytes including padding."""
        mapped = self._pages(size)
        if mapped is None:
            _write_file(self.path, items, size)
            return
        at = 0
        for buffer in _stretch(items):
            for start in range(0, len(buffer), _COPY_BYTES):
                piece = buffer[start : start + _COPY_BYTES]
                mapped[at : at + len(piece)] = piece
                at += len(piece)
        os.truncate(self.path, size)

    def _pages(self, size: int) -> mmap.mmap | None:
        """The mapped file if it is in memory and has all pages for ``size`` bytes.

        Otherwise None, because a missing page on a full disk would kill the process, while a write
        raises an error.
        """
        try:
            found = self.path.stat()
            if not 0 < size <= min(found.st_size, found.st_blocks * 512):
                self.unmap()
            elif self._mapped is None or self._inode != found.st_ino or size > len(self._mapped):
                self.unmap()
                if scratch_space.in_memory(self.path.parent):
                    self._mapped, self._inode = _map_pages(self.path, size), found.st_ino
        except OSError:
            self.unmap()
        return self._mapped

    def unmap(self) -> None:
        """Unmap the file until the next write, so that it takes no memory of this process."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None


def write(folder: Path, saved: Saved, *, spare: Spare | None = None) -> None:
    """Write a snapshot into ``folder``, which is recreated; its arrays overwrite those of
    ``spare``, a file beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    head = {"step": saved.step, "loop": saved.loop, "state": saved.nodes}
    _write_pair(folder / "state.json", folder / "arrays.bin", head, saved.blobs, spare)


def read(folder: Path) -> Saved:
    """The snapshot in ``folder``; DoesNotFit if this version cannot read it."""
    fields = ("step", "loop", "state")
    head, blobs = _read_pair(folder / "state.json", folder / "arrays.bin", fields)
    step, loop, found = (head[name] for name in fields)
    if type(step) is not int or not 0 <= step < _SIZE_MAX:
        raise DoesNotFit(f"state.json: step {nodes.shown(step)}, must be a number of steps")
    if type(loop) is not dict or type(found) is not dict:
        raise DoesNotFit("state.json: not a snapshot, for loop and state must be objects")
    return Saved(step, loop, found, blobs)


def write_values(path: Path, values: Mapping[str, object]) -> None:
    """Write named values, including arrays, as ``path`` (JSON) and a ``.bin`` file beside it.

    StateError names an object that ``read_values`` could not make, such as one of the program's
    class."""
    found, blobs = state.capture_new(values)
    _write_pair(path, path.with_suffix(".bin"), {"values": found}, blobs)


def read_values(path: Path) -> dict[str, Any]:
    """Read the values that ``write_values`` wrote, as new objects."""
    head, blobs = _read_pair(path, path.with_suffix(".bin"), ("values",))
    if not isinstance(head["values"], dict):
        raise DoesNotFit(f"{path.name}: values must be an object of names and nodes")
    return state.restore_new(head["values"], blobs)


def _write_pair(
    text: Path, binary: Path, head: dict[str, Any], blobs: Blobs, spare: Spare | None = None
) -> None:
    table, place = [], 0
    for blob in blobs.items:
        place += -place % _ALIGN_BYTES
        entry: dict[str, Any] = {"dtype": blob.dtype, "shape": list(blob.shape)}
        if blob.order is not None:
            entry["order"] = list(blob.order)
        table.append({**entry, "offset": place, "bytes": blob.nbytes})
        place += blob.nbytes
    if spare is None:
        _write_file(binary, blobs.items, place)
    else:
        spare.write(blobs.items, place)
        spare.link(binary)
    body = {"format": FORMAT, **head, "arrays": table}
    text.write_text(
        json.dumps(body, allow_nan=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


def _stretch(items: Sequence[Blob]) -> Iterator[memoryview]:
    """The bytes of the arrays in order, with the padding between them."""
    place = 0
    for blob in items:
        padding = -place % _ALIGN_BYTES
        if padding:
            yield memoryview(bytes(padding))
        if blob.nbytes:
            yield memoryview(blob.data)
        place += padding + blob.nbytes


def _write_file(path: Path, items: Sequence[Blob], size: int) -> None:
    # Not truncated first, which would release the pages of a spare file.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        batch, waiting = [], 0
        for buffer in _stretch(items):
            batch.append(buffer)
            waiting += len(buffer)
            if len(batch) >= _BATCH or waiting >= _BATCH_BYTES:
                _write_all(file, batch)
                batch, waiting = [], 0
        _write_all(file, batch)
        os.ftruncate(file, size)
    finally:
        os.close(file)


def _write_all(file: int, buffers: Sequence[memoryview]) -> None:
    left = list(buffers)
    while left:
        written = os.writev(file, left)
        while left and written >= len(left[0]):  # one call takes at most 2 GiB
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _read_pair(text: Path, binary: Path, fields: Collection[str]) -> tuple[dict[str, Any], Blobs]:
    """The object in ``text``, which has these fields besides its format and arrays, and its arrays;
    DoesNotFit if this version cannot read it."""
    try:
        written = text.read_text(encoding="utf-8")
        head = json.loads(written, parse_constant=_refuse_constant)
        data = _mapped(binary)
    except RecursionError:
        raise DoesNotFit(f"{text.name}: is nested too deep") from None
    except (OSError, ValueError) as error:
        raise DoesNotFit(f"{text.name} and {binary.name}: cannot be read ({error})") from None
    try:
        check_format(text.name, head.get("format") if isinstance(head, dict) else None, FORMAT)
    except ValueError as error:
        raise DoesNotFit(str(error)) from None
    if odd := sorted(head.keys() ^ {"format", "arrays", *fields}):
        said = "unknown here" if odd[0] in head else "which it lacks"
        raise DoesNotFit(f"{text.name}: not a snapshot, for {odd[0][:100]!r}, {said}")
    blobs = Blobs(_array_table(head["arrays"], data, text.name, binary.name))
    blobs.may_refer = '"$same"' in written
    return head, blobs


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _array_table(table: Any, data: memoryview, name: str, binary: str) -> list[Blob]:
    """The arrays of a snapshot, which must be in sequence as they were written; else DoesNotFit."""
    if type(table) is not list:
        raise DoesNotFit(f"{name}: arrays must be a list")
    items, place = [], 0
    for number, entry in enumerate(table):
        if why := _entry_refused(entry):
            raise DoesNotFit(f"{name}: array {number} {why}")
        start, size = entry["offset"], entry["bytes"]
        place += -place % _ALIGN_BYTES
        if start != place:
            raise DoesNotFit(f"{name}: array {number} begins at byte {start}, not at {place}")
        place += size
        if place > len(data):
            raise DoesNotFit(f"{binary}: {len(data)} bytes, an array ends at {place}")
        order = tuple(entry["order"]) if "order" in entry else None
        items.append(Blob(entry["dtype"], tuple(entry["shape"]), data[start:place], size, order))
    return items


def _entry_refused(entry: Any) -> str | None:
    """Why an array's table entry is invalid, or None."""
    if type(entry) is not dict or not _ENTRY <= entry.keys() <= _ORDERED_ENTRY:
        return f"must have {', '.join(sorted(_ENTRY))}"
    if type(entry["dtype"]) is not str:
        return "must name its dtype"
    if type(entry["offset"]) is not int or type(entry["bytes"]) is not int or entry["bytes"] < 0:
        return "must have numbers as its place"
    shape = entry["shape"]
    if type(shape) is not list or len(shape) > _DIMENSIONS_MAX:
        return "must have a list as its shape"
    count, too_large = 1, False
    for size in shape:
        if type(size) is not int or size < 0:
            return f"has the shape {nodes.shown(shape)}"
        too_large = too_large or size > _SIZE_MAX
        count *= size
    # An element has at least one byte, except empty texts and records.
    if too_large or count > max(entry["bytes"], _EMPTY_MAX):
        return f"has {entry['bytes']} bytes for the shape {nodes.shown(shape)}"
    if "order" in entry and (
        type(entry["order"]) is not list
        or any(type(axis) is not int for axis in entry["order"])
        or sorted(entry["order"]) != list(range(len(shape)))
    ):
        return "has an order that is none of its dimensions"
    return None


def _map_pages(file: Path, size: int) -> mmap.mmap:
    """Map the first ``size`` bytes of a file for writing, with all pages present. Child processes
    do not get the mapping, which would keep the pages alive after the file."""
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(descriptor)
    mapped.madvise(mmap.MADV_DONTFORK)
    return mapped


def _mapped(file: Path) -> memoryview:
    """The file's bytes, read on use; writes to them do not change the file."""
    with file.open("rb") as opened:
        if not os.fstat(opened.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))


def publish(temporary: Path, final: Path) -> Path:
    """Rename a finished folder into place; a name is either absent or complete."""
    os.replace(temporary, final)
    return final
