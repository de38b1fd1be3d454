"""What an old run costs beside a young one: commits, heartbeats, rows, `status`.

    python -m bench.ageing --commits 100000

Each figure comes from the code that a run uses. Commits and heartbeats work on a store in memory
that counts operations and whose own time is not counted, with a clock that does not wait; rows,
`status` and evaluations work on a folder. Times are of the processor, so that what else
the machine does counts for little. Exit codes: 0 all targets met, 1 one is not.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import planted
from bench.result import Result, command_line
from bench.sites import scratch
from outlast.base.exits import DONE
from outlast.bucket import blocks, history
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.head import read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.retention import Retention
from outlast.bucket.rows import read_rows
from outlast.bucket.store import FolderStore, MemoryStore, Operation
from outlast.loop import snapshot
from outlast.loop.history import History
from outlast.loop.state import Blobs

FAILED = 1
YOUNG, AROUND = 100, 100
"""A young run's commits: so many around the 100th."""
RATIO_MOST, HEAD_KIB_MOST, ROWS_SEC_MOST = 1.2, 64.0, 3.0
KEPT, ATTEMPTS, PIECES, ROWS_A_PIECE = 10_000, 1000, 4000, 50
EVALUATIONS = (10_000, 100_000, 1_000_000)

COLLECTED_EVERY = 50

Row = dict[str, Any]


@dataclass
class Counted:
    """Operations of a store, and the time that they took."""

    operations: int = 0
    seconds: float = 0.0

    def around(self, operation: Operation, apply: Callable[[], Any]) -> Any:
        self.operations += 1
        begun = time.process_time()
        try:
            return apply()
        finally:
            self.seconds += time.process_time() - begun


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("bench.ageing", __doc__)
    made.add_argument("--commits", type=int, default=100_000, help="of the old run")
    made.add_argument("--keep", type=Path, help="folder to leave what was run in")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure as the flags say."""
    args, result = parser().parse_args(argv), Result("bench.ageing", argv)
    with scratch(args.keep) as work:
        rows = [*_commits(work / "commits", args.commits), *_rows(work / "rows")]
        rows += [*_status(work / "status"), *_evaluations(work / "evaluations")]
    result.table("An old run beside a young one", rows)
    missed = [row["what"] for row in rows if row["met"] is False]
    result.say(f"targets missed: {', '.join(missed) or 'none'}")
    return result.end(args.json, FAILED if missed else DONE)


def _row(what: str, young: float | None, old: float, most: float | None = None) -> Row:
    """One figure; `most` is for the ratio where there is a young one, else for the old one."""
    ratio = old / young if young else None
    held = ratio if ratio is not None else old
    met = None if most is None else held <= most
    return {"what": what, "young": young, "old": old, "ratio": ratio, "at most": most, "met": met}


# ---------------------------------------------------------------------------------------------
# Commits and heartbeats


def _commits(work: Path, commits: int) -> Iterator[Row]:
    every = max(1, commits // KEPT)
    for what, retention in (
        ("last 3 kept", Retention()),
        (f"{commits // every} kept", Retention(keep_every_steps=every)),
    ):
        young, old = (_Run(work / f"{what}-{age}", retention) for age in ("young", "old"))
        for run, age in ((old, commits), (young, YOUNG)):
            while run.step < age - AROUND // 2:
                run.commit()
        # By turns: on a shared machine two moments are not alike.
        pairs = [(young.commit(), old.commit()) for _ in range(AROUND)]
        (young_ms, young_operations), (old_ms, old_operations) = (
            (statistics.median(ms), statistics.mean(operations))
            for ms, operations in (zip(*side, strict=True) for side in zip(*pairs, strict=True))
        )
        looks = [(young.look(), old.look()) for _ in range(AROUND)]
        young_look, old_look = map(statistics.median, zip(*looks, strict=True))
        size = len(read_head(old.store, old.layout).head.to_json())
        yield _row(f"commit, {what}: ms beside the store's", young_ms, old_ms, RATIO_MOST)
        yield _row(f"commit, {what}: operations", young_operations, old_operations, RATIO_MOST)
        yield _row(f"heartbeat's look at HEAD, {what}: ms", young_look, old_look)
        yield _row(f"HEAD, {what}: KiB", None, size / 1024, HEAD_KIB_MOST)


class _Run:
    """A run of one-number checkpoints in memory, which counts what each commit costs."""

    def __init__(self, work: Path, retention: Retention) -> None:
        self.counted, self.layout = Counted(), Layout("experiments/old", "0123456789")
        self.store = MemoryStore().view(self.counted.around)
        self.head_file = HeadFile(self.store, self.layout, planted.Quick())
        self.head_file.take_term(Claim("o/p/s", 0, 0, datetime(2100, 1, 1, tzinfo=UTC)))
        self._committer = Committer(self.head_file, retention=retention)
        self._committer.restore(work / "restored")
        self._folder = work / "snapshot"
        self._folder.mkdir(parents=True)
        self.step = 0

    def commit(self) -> tuple[float, int]:
        """(ms beside the store's, operations) of the next commit."""
        self.step += 1
        if self.step % COLLECTED_EVERY == 1:
            gc.collect()
            gc.freeze()  # what the store holds in this process costs no commit
        (self._folder / "state").write_text(str(self.step))
        before = self.counted.operations, self.counted.seconds
        begun = time.process_time()
        rows = b'{"step":%d,"loss":0.5}\n' % self.step
        self._committer.commit(self._folder, step=self.step, rows=rows)
        took = time.process_time() - begun - (self.counted.seconds - before[1])
        return 1000 * took, self.counted.operations - before[0]

    def look(self) -> float:
        """Milliseconds of a heartbeat's look at HEAD."""
        begun = time.process_time()
        self.head_file.check(term=self.head_file.term)
        return 1000 * (time.process_time() - begun)


# ---------------------------------------------------------------------------------------------
# Rows


def _rows(work: Path) -> Iterator[Row]:
    """Pieces as they were before they grew: one a commit."""
    store, layout = FolderStore(work), Layout("", "")
    head_file = HeadFile(store, layout, planted.Quick())
    head_file.take_term(Claim("o/p/s", 0, 0, datetime(2100, 1, 1, tzinfo=UTC)))
    last = PIECES * ROWS_A_PIECE
    with _unsynced():
        for piece in range(PIECES):
            steps = range(piece * ROWS_A_PIECE + 1, (piece + 1) * ROWS_A_PIECE + 1)
            lines = "".join(f'{{"step":{step},"loss":0.5}}\n' for step in steps)
            store.put(layout.metrics_piece(1, piece, None), lines.encode())
    committer = Committer(head_file)
    committer.restore(work / "restored")
    folder = work / "snapshot"
    folder.mkdir()
    (folder / "state").write_text("1")
    committer.commit(folder, step=last)
    head = read_head(store, layout).head
    wall, processor = [], []
    for _ in range(3):
        begun, processor_begun = time.perf_counter(), time.process_time()
        found = read_rows(store, layout, head)
        wall.append(time.perf_counter() - begun)
        processor.append(time.process_time() - processor_begun)
    assert len(found) == last
    yield _row(f"{last} rows from {PIECES} pieces: s", None, min(processor), ROWS_SEC_MOST)
    yield _row(f"{last} rows from {PIECES} pieces: s by the clock", None, min(wall))


@contextmanager
def _unsynced() -> Iterator[None]:
    """What is only made to be read need not survive a loss of power."""
    from outlast.bucket.store import folder

    kept, folder._Syncs.sync = folder._Syncs.sync, lambda self, *folders: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        folder._Syncs.sync = kept  # type: ignore[method-assign]


# ---------------------------------------------------------------------------------------------
# status


def _status(work: Path) -> Iterator[Row]:
    young, old = (_history(attempts) for attempts in (10, ATTEMPTS))
    yield _row(f"status of 10 and {ATTEMPTS} attempts: operations", young[1], old[1])
    yield _row(f"status of 10 and {ATTEMPTS} attempts: ms", young[0], old[0])


# ---------------------------------------------------------------------------------------------
# Evaluations


def _evaluations(work: Path) -> Iterator[Row]:
    for count in EVALUATIONS:
        history = History()
        history.rows = [{"step": step, "loss": step * 1.1, "acc": 0.3} for step in range(count)]
        took = _still(work / str(count), history)
        yield _row(f"standing still for {count} evaluations: ms", None, took)


def _still(work: Path, history: History) -> float:
    """Milliseconds of a snapshot of next to nothing but the evaluations, the second of two."""
    took = 0.0
    for _ in range(2):
        history.add(history.rows[-1]["step"] + 1, {"loss": 0.5, "acc": 0.3})
        begun = time.process_time()
        saved = snapshot.Saved(1, history.summary(), {}, Blobs())
        snapshot.write(work / "snapshot", saved)
        history.write(work / "snapshot", work / "full")
        took = time.process_time() - begun
    return 1000 * took


def _history(attempts: int) -> tuple[float, float]:
    """(ms, operations) of reading the history of a run with so many attempts, ten steps each."""
    counted, layout = Counted(), Layout("experiments/old", "0123456789")
    bucket = MemoryStore()
    head_file = HeadFile(bucket, layout, planted.Quick())
    head_file.take_term(Claim("o/p/s", 0, 0, datetime(2100, 1, 1, tzinfo=UTC)))
    for term in range(1, attempts + 1):
        for path, record in planted.records(layout, term):
            bucket.put(path, record.to_json())
        blocks.write_missing(bucket, layout, term)
    found = []
    for _ in range(5):
        counted.operations = 0
        begun = time.process_time()
        book = history.read(bucket.view(counted.around), layout)
        found.append(time.process_time() - begun)
        assert book is not None and len(book.attempts) == attempts
    return 1000 * statistics.median(found), counted.operations


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
