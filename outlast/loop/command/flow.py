"""Finds files that may be written at any time and do not delay a checkpoint.

One kind is a file to which lines are appended again and again, so that its old content stays its
beginning. The other is a SQLite database, of which SQLite itself makes a copy between two
transactions.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from outlast.loop.command.listing import Flow, Listing, Seen

GROWTHS = 3
"""Number of times that lines must have been appended, over at least the quiet time."""
TEXT_FACTOR = 6
"""Multiple of the quiet time for text with incomplete lines, as a buffer writes it in blocks: it
could be a model in text form, which takes long to write."""

_LINE_ENDS = (b"\n", b"\r")
_TAIL_BYTES = 4096
_DATABASE_SUFFIXES = (".db", ".db3", ".sqlite", ".sqlite3")
_DATABASE_HEADER = b"SQLite format 3\0"


@dataclass
class _Growth:
    seen: Seen
    tail: bytes
    """The last bytes of the file at that time."""
    since_sec: float
    times: int = 0
    lines_since_sec: float = 0.0
    lines: int = 0
    """Number of times in a row since then that whole lines were appended."""


class FlowWatch:
    """Finds the flowing files of a folder from its listings."""

    def __init__(self, root: Path, quiet_sec: float) -> None:
        self._root = root
        self._quiet_sec = quiet_sec
        self._growths: dict[str, _Growth] = {}
        self._databases: dict[tuple[int, int], bool] = {}
        self._growing: set[str] = set()

    def observe(self, now_sec: float, listing: Listing) -> Flow:
        """The flowing files after one more listing."""
        state = listing.state
        self._growths = {name: found for name, found in self._growths.items() if name in state}
        self._growing &= state.keys()
        databases = set()
        for name, seen in state.items():
            if self._is_database(name, seen):
                databases.add(name)
            else:
                self._note_growth(now_sec, name, seen)
        return Flow(frozenset(self._growing), frozenset(databases))

    def _is_database(self, name: str, seen: Seen) -> bool:
        if not name.endswith(_DATABASE_SUFFIXES) or not seen.size:
            return False
        key = (seen.device, seen.inode)
        if key not in self._databases:
            self._databases[key] = self._read(name, 0, 16) == _DATABASE_HEADER
        return self._databases[key]

    def _note_growth(self, now_sec: float, name: str, seen: Seen) -> None:
        known = self._growths.get(name)
        if known is not None and known.seen.version == seen.version:
            return
        tail = self._read(name, max(0, seen.size - _TAIL_BYTES), min(seen.size, _TAIL_BYTES))
        if known is None or not self._only_grew(name, known, seen, tail):
            self._growing.discard(name)
            self._growths[name] = _Growth(seen, tail, now_sec, 0, now_sec)
            return
        growth = _Growth(seen, tail, known.since_sec, known.times + 1, now_sec)
        if self._adds_lines(name, known, tail):
            growth.lines_since_sec, growth.lines = known.lines_since_sec, known.lines + 1
        self._growths[name] = growth
        adds_lines = growth.lines >= GROWTHS and now_sec - growth.lines_since_sec >= self._quiet_sec
        adds_text = (
            growth.times >= GROWTHS and now_sec - growth.since_sec >= TEXT_FACTOR * self._quiet_sec
        )
        if adds_lines or adds_text:
            self._growing.add(name)

    def _only_grew(self, name: str, known: _Growth, seen: Seen, tail: bytes) -> bool:
        """Whether text with line breaks was appended and the old content is unchanged."""
        if seen.inode != known.seen.inode or seen.size <= known.seen.size:
            return False
        if b"\0" in tail or not any(end in tail for end in _LINE_ENDS):
            return False
        return self._read(name, known.seen.size - len(known.tail), len(known.tail)) == known.tail

    def _adds_lines(self, name: str, known: _Growth, tail: bytes) -> bool:
        """Whether whole lines were appended, or the next state of a progress bar, which begins with
        a carriage return."""
        if self._read(name, known.seen.size, 1) == b"\r":
            return True
        return known.tail.endswith(b"\n") and tail.endswith(b"\n")

    def _read(self, name: str, offset: int, size: int) -> bytes:
        with contextlib.suppress(OSError), (self._root / name).open("rb") as file:
            file.seek(offset)
            return file.read(size)
        return b""
