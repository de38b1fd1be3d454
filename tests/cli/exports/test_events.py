"""Files for TensorBoard, read by a reader that shares no code with their writer."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.bucket import history
from outlast.cli.errors import OperateError
from outlast.cli.exports import events
from outlast.cli.exports.extras import Rows
from tests.cli.report.planted import ATTEMPTS, START, TOTAL, Planted, accuracy, loss


def crc32c(data: bytes) -> int:
    """By its polynomial, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def unmasked(masked: int) -> int:
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of protocol buffers."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            piece, at = data[at : at + size], at + size
            yield number, piece


def read(file: Path) -> list[tuple[float, int, dict[str, float]]]:
    """Each event: time, step, values. The first names the version."""
    data = file.read_bytes()
    found = []
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (masked,) = struct.unpack_from("<I", data, at + 8)
        assert unmasked(masked) == crc32c(data[at : at + 8])
        body = data[at + 12 : at + 12 + length]
        (masked,) = struct.unpack_from("<I", data, at + 12 + length)
        assert unmasked(masked) == crc32c(body)
        at += 16 + length
        event = dict(fields(body))
        values: dict[str, float] = {}
        for _, value in fields(event.get(5, b"")):
            parts = dict(fields(value))
            values[parts[1].decode()] = struct.unpack("<f", parts[2])[0]
        if not found:
            assert event[3] == b"brain.Event:2"
        found.append((struct.unpack("<d", event[1])[0], event[2], values))
    return found


def written(run: Planted, into: Path) -> list[str]:
    book = history.read(run.store, run.layout)
    assert book is not None
    return events.write(into, Rows(run.place, book, None), book)


def test_each_step_is_there_once_although_some_were_repeated(tmp_path: Path) -> None:
    run = Planted().whole()
    (name,) = written(run, tmp_path)
    assert name == f"tensorboard/{events.FILE}" and "tfevents" in name
    _, *found = read(tmp_path / name)
    assert [step for _, step, _ in found] == list(range(1, TOTAL + 1))
    for _, step, values in found:
        assert values["loss"] == pytest.approx(loss(step), rel=1e-6)
        assert ("test_accuracy" in values) == (step % 100 == 0)
    assert found[99][2]["test_accuracy"] == pytest.approx(accuracy(100), rel=1e-6)
    times = [time - START.timestamp() for time, _, _ in found]
    assert times == sorted(times)
    for _, start, end, first, last, _ in ATTEMPTS:
        within = [at for at, (_, step, _) in zip(times, found, strict=True) if first < step <= last]
        assert start <= within[0] and within[-1] <= max(end, ATTEMPTS[-1][2])
    # Written again, it is replaced, and nothing else is left.
    assert written(run, tmp_path) == [name]
    assert len([*tmp_path.rglob("*tfevents*")]) == 1


def test_each_part_has_its_own_folder_and_steps(tmp_path: Path) -> None:
    rows = [
        (1, {"step": 1, "loss": 1.0, "part": "a"}),
        (2, {"step": 1, "loss": 2.0, "part": "b"}),
        (3, {"step": 2, "loss": "NaN", "part": "a"}),
        (4, {"step": 3, "loss": 1e300, "part": "a", "note": "text", "flag": True}),
        (5, {"step": 4, "loss": None, "part": "a"}),
    ]
    run = Planted().whole()
    book = history.read(run.store, run.layout)
    assert book is not None
    names = events.write(tmp_path, rows, book)
    assert names == [f"tensorboard/{part}/{events.FILE}" for part in "ab"]
    _, *a = read(tmp_path / names[0])
    assert [step for _, step, _ in a] == [1, 2, 3, 4]
    assert math.isnan(a[1][2]["loss"]) and a[2][2] == {"loss": math.inf}
    assert math.isnan(a[3][2]["loss"])


@pytest.mark.parametrize("part", ["../../evil", "/evil", 5, {"a": 1}])
def test_a_part_of_another_form_makes_no_folder(tmp_path: Path, part: Any) -> None:
    run = Planted().whole()
    book = history.read(run.store, run.layout)
    assert book is not None
    good = (1, {"step": 1, "loss": 1.0, "part": "good"})
    with pytest.raises(OperateError, match="a row of the run: part .* must be letters"):
        events.write(tmp_path / "in", [good, (2, {"step": 2, "loss": 1.0, "part": part})], book)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_a_run_without_a_number_says_so(tmp_path: Path) -> None:
    run = Planted().whole()
    book = history.read(run.store, run.layout)
    assert book is not None
    with pytest.raises(OperateError, match="has no metric yet"):
        events.write(tmp_path, [(1, {"step": 1, "note": "text"})], book)
