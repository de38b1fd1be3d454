"""Rows of a run: lines of JSON in pieces of the bucket, written by each term for itself.

A piece grows: it is rewritten with what is new until it has `PIECE_BYTES`, then the next one
begins. So a long run has few pieces, a commit writes one object for its rows however old the run
is, and nothing is merged or deleted later. A piece only ever gains lines, so that a reader with an
older HEAD finds in it all that it looks for.
"""

import contextlib
import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from outlast.base.names import number_of
from outlast.base.retry import BRIEF, Patience
from outlast.bucket import pages
from outlast.bucket.errors import BadSnapshot
from outlast.bucket.head import Head, Lineage
from outlast.bucket.layout import Layout
from outlast.bucket.store import Damaged, Object, Store, put_new
from outlast.bucket.transfer import small_reads
from outlast.protocol import own_row

PIECE_BYTES = 1 << 16
"""A piece that has as much is not rewritten any more. Small beside what a commit costs anyway."""

_PIECE = re.compile(r"(?P<index>[0-9]{6,9})(?:\.after-(?P<after>[0-9]{12,15}))?\.jsonl")


# ---------------------------------------------------------------------------------------------
# Writing


@dataclass(frozen=True)
class _Version:
    """A piece as it is to be, and the generation that it replaces."""

    path: str
    content: bytes
    replaces: int


class PieceWriter:
    """Appends whole lines to a term's pieces. One thread at a time."""

    def __init__(
        self, store: Store, name: Callable[[int, int | None], str], patience: Patience
    ) -> None:
        """`name` gives the path of a piece, by its number and the step after which the lines of
        the pieces before it are void, if any."""
        self._store = store
        self._name = name
        self._patience = patience
        self._clock = patience.clock
        self._index = 0
        self._after: int | None = None
        self._open: _Version | None = None
        self._generation = 0
        self._written_at: float | None = None
        self._pending: tuple[bytes, _Version] | None = None
        self.flushed = 0
        """Bytes that are in the bucket for sure, since the trainer's life began."""

    def begin(self, step: int) -> None:
        """A trainer begins at `step`: what is appended from now on stands for what this term has
        appended after that step before."""
        if self._pending is not None or self._open is not None or self._index:
            self._after = step
            self._index += self._open is not None or self._pending is not None
        self._open = self._pending = None
        self.flushed = 0

    def append(self, lines: bytes) -> None:
        """Puts the lines into the bucket. Where it raises, `flushed` tells what is there for sure;
        the same lines are given again, and none is there twice."""
        if lines and not lines.endswith(b"\n"):
            raise BadSnapshot("rows: end in mid-line; only whole lines can be flushed")
        while lines:
            # A write of unknown fate goes first and unchanged: it may be applied by now.
            added, version = self._pending or (lines, self._with(lines))
            if not lines.startswith(added):
                raise BadSnapshot("rows: do not go on where the last ones of unknown fate began")
            self._pending = added, version
            written = put_new(
                self._store,
                version.path,
                version.content,
                replaces=version.replaces,
                patience=self._patience,
            )
            self._pending = self._after = None
            self._open, self._generation = version, written.generation
            self._written_at = self._clock.monotonic()
            self.flushed += len(added)
            lines = lines[len(added) :]

    def _with(self, lines: bytes) -> _Version:
        """The open piece with these lines more, or a new one."""
        before = self._open
        if before is not None:
            full = len(before.content) + len(lines) > PIECE_BYTES
            if not full and not self._too_soon():
                return _Version(before.path, before.content + lines, self._generation)
            self._index += 1
        return _Version(self._name(self._index, self._after), lines, 0)

    def _too_soon(self) -> bool:
        """Whether the store would not take another write of the same object yet."""
        if self._written_at is None:
            return False
        return self._clock.monotonic() - self._written_at < self._store.rewrite_sec / 2


# ---------------------------------------------------------------------------------------------
# Reading


def read_rows(store: Store, layout: Layout, head: Head) -> list[dict[str, Any]]:
    """The rows of the final lineage in the order of their steps, each step from one term only; of a
    run with parts, part after part with their own steps."""
    return [own_row(row) for row in iter_rows(store, layout, head)]


def iter_rows(store: Store, layout: Layout, head: Head) -> Iterator[dict[str, Any]]:
    """The rows as they are in the bucket, a few pieces in memory at a time. Steps count through all
    parts of a run, and `part` is as `protocol.row_part` gives it.

    A term owns the steps after its `from` until a later term's. Only steps up to the last
    commit, or up to the end of a finished run, are final.
    """
    last = head.end.step if head.end else head.step
    owners = _owners(pages.lineage(store, layout, head), last)
    listed = _pieces(store, layout) if owners else {}
    for term, after, until in owners:
        yield from _rows_of_term(store, listed.get(term, ()), after, until)


def _owners(newest_first: Iterator[Lineage], last: int) -> list[tuple[int, int, int]]:
    """(term, after, until): who owns which steps, in their order."""
    found = []
    until = last
    for entry in newest_first:
        if until <= 0:
            break
        if entry.from_step < until:
            found.append((entry.term, entry.from_step, until))
            until = entry.from_step
    return found[::-1]


@dataclass(frozen=True)
class _Piece:
    object: Object
    index: int
    after: int | None


def _pieces(store: Store, layout: Layout) -> dict[int, list[_Piece]]:
    """The pieces of each term, in their order."""
    found: dict[int, list[_Piece]] = defaultdict(list)
    for item in store.list(layout.rows):
        folder, _, name = item.path.removeprefix(layout.rows).rpartition("/")
        match = _PIECE.fullmatch(name)
        if match is None or folder[:1] != "t":
            continue
        term, index = number_of(folder[1:]), number_of(match["index"])
        after = number_of(match["after"], 12, 15) if match["after"] else None
        if term is not None and index is not None and (after is None) == (match["after"] is None):
            found[term].append(_Piece(item, index, after))
    for pieces in found.values():
        pieces.sort(key=lambda piece: piece.index)
    return found


def _rows_of_term(
    store: Store, pieces: Sequence[_Piece], after: int, until: int
) -> Iterator[dict[str, Any]]:
    """The term's rows of the steps after `after`, up to `until`."""
    valid = [until] * len(pieces)
    for index in range(len(pieces) - 1, 0, -1):
        voids = pieces[index].after
        valid[index - 1] = min(valid[index], valid[index - 1] if voids is None else voids)
    reached = -1
    for (piece, data), valid_until in zip(_read_ahead(store, pieces), valid, strict=True):
        rows = _decoded(piece.object.path, data)
        rows = [row for row in rows if row["step"] <= valid_until]
        rows.sort(key=lambda row: row["step"])
        if not rows:
            continue
        if rows[0]["step"] <= reached:
            raise Damaged(
                f"{piece.object.path}: begins with step {rows[0]['step']}, the piece before it "
                f"ends with step {reached}"
            )
        reached = rows[-1]["step"]
        yield from (row for row in rows if row["step"] > after)


def _read_ahead(store: Store, pieces: Sequence[_Piece]) -> Iterator[tuple[_Piece, bytes]]:
    """Each piece with its content as it is now, several on their way where the store can do that.

    A piece may have been rewritten since it was listed: it has the same lines and more.
    """

    def read(piece: _Piece) -> bytes:
        return BRIEF(lambda: store.get(piece.object.path)[0])

    streams = small_reads(store)
    if streams == 1:
        for piece in pieces:
            yield piece, read(piece)
        return
    with contextlib.ExitStack() as stack:
        pool = ThreadPoolExecutor(streams, "rows")
        stack.callback(pool.shutdown, cancel_futures=True)
        under_way: deque[tuple[_Piece, Future[bytes]]] = deque()
        for piece in pieces:
            under_way.append((piece, pool.submit(read, piece)))
            if len(under_way) >= streams:
                first, future = under_way.popleft()
                yield first, future.result()
        for first, future in under_way:
            yield first, future.result()


def _decoded(path: str, data: bytes) -> list[dict[str, Any]]:
    """The rows of a piece; many at once take less time than one after another."""
    lines = data.splitlines()
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
        if len(rows) == len(lines) and all(type(row["step"]) is int for row in rows):
            return rows
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return [_row(path, line) for line in lines]


def _row(path: str, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
        step = row["step"]
        if type(row) is not dict:
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Damaged(f"{path}: holds a line that is not a row: {line[:80]!r}") from None
    if type(step) is not int:
        raise Damaged(f"{path}: step {step!r}: must be a whole number")
    return row
