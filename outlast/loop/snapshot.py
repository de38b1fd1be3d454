"""A snapshot's folder: ``arrays.bin`` with the arrays, ``state.json`` with everything else.

The arrays' raw bytes stand one after another, each at a multiple of 64; ``state.json`` holds their
dtypes, shapes and places. The same two files, under names of its choice, make a trainer's model
in the result. No pickle, no clock: equal state gives equal bytes.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.loop import state
from outlast.loop.errors import DoesNotFit
from outlast.loop.state import Blob, Blobs, Node

FORMAT = 1
_ALIGN_BYTES = 64


@dataclass(frozen=True)
class Saved:
    """What a snapshot holds."""

    step: int
    loop: dict[str, Any]
    """The loop's own part: eval history and the best values."""
    nodes: dict[str, Node]
    blobs: Blobs


def write(folder: Path, saved: Saved) -> None:
    """Write a snapshot into ``folder``, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    head = {"step": saved.step, "loop": saved.loop, "state": saved.nodes}
    _write_pair(folder / "state.json", folder / "arrays.bin", head, saved.blobs)


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
    table = []
    with binary.open("wb") as file:
        for blob in blobs.items:
            file.write(b"\0" * (-file.tell() % _ALIGN_BYTES))
            size = len(blob.data)
            table.append(
                {
                    "dtype": blob.dtype,
                    "shape": list(blob.shape),
                    "offset": file.tell(),
                    "bytes": size,
                }
            )
            file.write(blob.data)
    body = {"format": FORMAT, **head, "arrays": table}
    text.write_text(
        json.dumps(body, allow_nan=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


def _read_pair(text: Path, binary: Path) -> tuple[dict[str, Any], Blobs]:
    try:
        head = json.loads(text.read_text(encoding="utf-8"))
        data = memoryview(binary.read_bytes())
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
        items.append(Blob(entry["dtype"], tuple(entry["shape"]), data[start : start + size]))
    return head, Blobs(items)


def publish(temporary: Path, final: Path) -> Path:
    """Rename a finished folder into place; a name is either absent or complete."""
    os.replace(temporary, final)
    return final
