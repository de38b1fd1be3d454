"""A snapshot's folder: ``arrays.bin`` with the arrays, ``state.json`` with everything else.

The arrays' raw bytes stand one after another, each at a multiple of 64; ``state.json`` holds their
dtypes, shapes and places. The same two files, under names of its choice, make a trainer's model
in the result. No pickle, no clock: equal state gives equal bytes.

Training stands still while a snapshot is written, so each array is copied once, from where it is
straight into the file; and into a file whose pages exist already, where one is to spare, because
getting pages from the system takes longer than filling them.
"""

import json
import mmap
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.loop import state
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import Blob, Blobs, Node

FORMAT = 2
_ALIGN_BYTES = 64
_BATCH = 512
"""Arrays that one system call writes; the system takes at most 1024 buffers."""
_BATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class Saved:
    """What a snapshot holds."""

    step: int
    loop: dict[str, Any]
    """The loop's own part: eval history and the best values."""
    nodes: dict[str, Node]
    blobs: Blobs


def write(folder: Path, saved: Saved, *, spare: Path | None = None) -> None:
    """Write a snapshot into ``folder``, which is made anew.

    ``spare`` names a file beside it that is overwritten for the arrays and stays linked under
    that name, so that the next snapshot finds its pages: give it only while nobody reads the
    snapshot before.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    binary = folder / "arrays.bin"
    head = {"step": saved.step, "loop": saved.loop, "state": saved.nodes}
    _write_pair(folder / "state.json", spare or binary, head, saved.blobs)
    if spare is not None:
        try:
            os.link(spare, binary)
        except OSError:  # a file system without hard links
            os.replace(spare, binary)


def read(folder: Path) -> Saved:
    """The snapshot in ``folder``; DoesNotFit if it is none that this version can read."""
    head, blobs = _read_pair(folder / "state.json", folder / "arrays.bin")
    try:
        return Saved(int(head["step"]), head["loop"], head["state"], blobs)
    except (KeyError, TypeError, ValueError) as error:
        raise DoesNotFit(f"{folder.name}/state.json: not a snapshot ({error!r})") from None


def write_values(path: Path, values: Mapping[str, object]) -> None:
    """Write named values, arrays among them, as ``path`` (JSON) and its neighbour ``.bin``."""
    nodes, blobs = state.capture_all(values)
    _write_pair(path, path.with_suffix(".bin"), {"values": nodes}, blobs)


def read_values(path: Path) -> dict[str, Any]:
    """What ``write_values`` wrote, as new objects."""
    head, blobs = _read_pair(path, path.with_suffix(".bin"))
    return {
        name: state.restore(state.MISSING, node, name, blobs)
        for name, node in head["values"].items()
    }


def _write_pair(text: Path, binary: Path, head: dict[str, Any], blobs: Blobs) -> None:
    table, place = [], 0
    for blob in blobs.items:
        place += -place % _ALIGN_BYTES
        entry: dict[str, Any] = {"dtype": blob.dtype, "shape": list(blob.shape)}
        if blob.order is not None:
            entry["order"] = list(blob.order)
        table.append({**entry, "offset": place, "bytes": blob.nbytes})
        place += blob.nbytes
    # Not truncated first: that would give the pages of a spare file back.
    file = os.open(binary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _write_arrays(file, blobs.items)
        os.ftruncate(file, place)
    finally:
        os.close(file)
    body = {"format": FORMAT, **head, "arrays": table}
    text.write_text(
        json.dumps(body, allow_nan=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


def _write_arrays(file: int, items: Sequence[Blob]) -> None:
    batch, size, place = [], 0, 0
    for blob in items:
        padding = -place % _ALIGN_BYTES
        if padding:
            batch.append(bytes(padding))
        if blob.nbytes:
            batch.append(blob.data)
        place += padding + blob.nbytes
        size += padding + blob.nbytes
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            _write_all(file, batch)
            batch, size = [], 0
    _write_all(file, batch)


def _write_all(file: int, buffers: Sequence[memoryview | bytes]) -> None:
    left = [memoryview(buffer) for buffer in buffers]
    while left:
        written = os.writev(file, left)
        while left and written >= len(left[0]):  # one call takes at most 2 GiB
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _read_pair(text: Path, binary: Path) -> tuple[dict[str, Any], Blobs]:
    try:
        head = json.loads(text.read_text(encoding="utf-8"))
        data = _mapped(binary)
    except (OSError, ValueError) as error:
        raise DoesNotFit(f"{text.name} and {binary.name}: cannot be read ({error})") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        found = head.get("format") if isinstance(head, dict) else type(head).__name__
        raise DoesNotFit(f"{text.name}: format {found!r}, this version of outlast reads {FORMAT}")
    items = []
    for entry in head["arrays"]:
        start, size = entry["offset"], entry["bytes"]
        if start + size > len(data):
            raise DoesNotFit(f"{binary.name}: {len(data)} bytes, an array ends at {start + size}")
        order = tuple(entry["order"]) if "order" in entry else None
        source = data[start : start + size]
        items.append(Blob(entry["dtype"], tuple(entry["shape"]), source, size, order))
    return head, Blobs(items)


def _mapped(file: Path) -> memoryview:
    """The file's bytes, read when they are used; writing to them does not reach the file."""
    with file.open("rb") as opened:
        if not os.fstat(opened.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))


def publish(temporary: Path, final: Path) -> Path:
    """Rename a finished folder into place; a name is either absent or complete."""
    os.replace(temporary, final)
    return final
