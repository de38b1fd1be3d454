"""Rows of a run: lines of JSON in pieces, which each term writes for itself.

A piece grows: it is rewritten with new lines until it has `PIECE_BYTES`, then the next one begins.
So a long run has few pieces, a commit writes one object for its rows however old the run is, and
nothing is merged or deleted later. A piece only gains lines, so a reader with an older HEAD finds
everything in it.
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
"""A piece of this size is not rewritten any more. Small compared with the cost of a commit."""

_PIECE = re.compile(r"(?P<index>[0-9]{6,9})(?:\.after-(?P<after>[0-9]{12,15}))?\.jsonl")


# ---------------------------------------------------------------------------------------------
# Writing


@dataclass(frozen=True)
class _Version:
    """A piece to write, and the generation that it replaces."""

    path: str
    content: bytes
    replaces: int


class PieceWriter:
    """Appends whole lines to a term's pieces. For one thread at a time."""

    def __init__(
        self, store: Store, name: Callable[[int, int | None], str], patience: Patience
    ) -> None:
        """`name` returns the path of a piece from its number and, if any, the step after which
        lines of earlier pieces are void.
        """
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
        """Bytes that are certainly in the bucket, counted from the start of the trainer's life."""

    def begin(self, step: int) -> None:
        """A trainer begins at `step`: lines appended from now on replace what this term had
        appended after that step.
        """
        if self._pending is not None or self._open is not None or self._index:
            self._after = step
            self._index += self._open is not None or self._pending is not None
        self._open = self._pending = None
        self.flushed = 0

    def append(self, lines: bytes) -> None:
        """Writes the lines to the bucket. If it raises, `flushed` says what is certainly there;
        give the same lines again, and none is stored twice.
        """
        if lines and not lines.endswith(b"\n"):
            raise BadSnapshot("rows: end in mid-line; only whole lines can be flushed")
        while lines:
            # A write of unknown fate is repeated first, unchanged: it may already be applied.
            added, version = self._pending or (lines, self._with(lines))
            if not lines.startswith(added):
                raise BadSnapshot("rows: do not begin where the last ones of unknown fate began")
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
        """The open piece with these lines added, or a new piece."""
        before = self._open
        if before is not None:
            full = len(before.content) + len(lines) > PIECE_BYTES
            if not full and not self._too_soon():
                return _Version(before.path, before.content + lines, self._generation)
            self._index += 1
        return _Version(self._name(self._index, self._after), lines, 0)

    def _too_soon(self) -> bool:
        """Whether the store would still refuse another write of the same object."""
        if self._written_at is None:
            return False
        return self._clock.monotonic() - self._written_at < self._store.rewrite_sec / 2


# ---------------------------------------------------------------------------------------------
# Reading


def read_rows(store: Store, layout: Layout, head: Head) -> list[dict[str, Any]]:
    """The rows of the final lineage in step order, each step from one term only; in a run with
    parts, part after part with their own steps.
    """
    return [own_row(row) for row in iter_rows(store, layout, head)]


def iter_rows(store: Store, layout: Layout, head: Head) -> Iterator[dict[str, Any]]:
    """The rows as stored in the bucket, with a few pieces in memory at a time. Steps count through
    all parts; `part` is as in `protocol.row_part`.

    A term owns the steps after its `from`, up to that of a later term. Only steps up to the last
    commit, or to the end of a finished run, are final.
    """
    last = head.end.step if head.end else head.step
    owners = _owners(pages.lineage(store, layout, head), last)
    listed = _pieces(store, layout) if owners else {}
    for term, after, until in owners:
        yield from _rows_of_term(store, listed.get(term, ()), after, until)


def _owners(newest_first: Iterator[Lineage], last: int) -> list[tuple[int, int, int]]:
    """(term, after, until) in order: which term owns which steps."""
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
    """The pieces of each term, in order."""
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
    """The term's rows of steps after `after`, up to `until`."""
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
    """Each piece with its current content; reads several at a time if the store is remote.

    A piece may have been rewritten since it was listed; then it only has more lines.
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
    """The rows of a piece; decoding many at once is faster than one by one."""
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
