"""A state through the files of a snapshot, as the proof and a resumed run take it."""

from pathlib import Path
from typing import Any

from outlast.loop import snapshot, state, verify


def save(folder: Path, source: dict[str, Any]) -> Path:
    state.check_top(source)
    snapshot.write(folder, snapshot.Saved(3, {}, *state.capture_all(source)))
    return folder


def load(folder: Path, target: dict[str, Any]) -> None:
    saved = snapshot.read(folder)
    state.restore_all(target, saved.nodes, saved.blobs)
    assert verify.difference((saved.nodes, saved.blobs), state.capture_all(target)) is None


def same(one: dict[str, Any], two: dict[str, Any]) -> str | None:
    """The place where two states differ; None if every bit is the same."""
    return verify.difference(state.capture_all(one), state.capture_all(two))
