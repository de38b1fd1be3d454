"""A scripted short run on a shared memory store, and what must hold however it is disturbed.

The run takes a term, commits three checkpoints with retention 2, writes its result, ends and
leaves. `in_parts` has it do so as two parts. Its state is a hash chain over its steps, so that a
step lost or done twice shows in the result. `play` runs it with one object operation disturbed,
lets a successor finish it where the first attempt did not, and `violations` names every guarantee
that is broken.
"""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

from outlast.base.exits import Reason, State
from outlast.base.retry import Patience
from outlast.bucket import pages
from outlast.bucket.boot import Act, Claim
from outlast.bucket.commit import Committer
from outlast.bucket.head import Checkpoint, Fenced, Head, HeadEnded, HeadError, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import AttemptStart, Layout
from outlast.bucket.part_results import put_manifest
from outlast.bucket.parts import DONE_TAG, is_done, parts_of
from outlast.bucket.records import write_record
from outlast.bucket.restore import Fresh, Restored
from outlast.bucket.retention import Retention
from outlast.bucket.rows import read_rows
from outlast.bucket.store import (
    MemoryStore,
    Operation,
    Store,
    StoreError,
    Unavailable,
)
from outlast.protocol import Hello, row_part
from outlast.spec.result import ResultManifest
from outlast.supervisor.parts import Parts
from tests.log_lines import log_lines
from tests.stores import START, FakeClock

LAYOUT = Layout("experiments/demo", "0123456789")
CLAIM = Claim(owner="org/demo/dev", resume=0, placement=0, deadline=START + timedelta(days=36_500))
STEPS = 6
COMMIT_EVERY = 2
RETENTION = Retention(keep_last=2)
PAGED = Retention(keep_last=1, keep_every_steps=COMMIT_EVERY)
PART_BYTES = 40
"""So that the state, 64 bytes long, goes in two parts."""
WORK = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Thousands of runs write their snapshots here; memory where there is some."""


@contextlib.contextmanager
def paged() -> Iterator[None]:
    """Every checkpoint is kept, and all old entries of HEAD go to pages at once."""
    with (
        mock.patch.object(sys.modules[__name__], "RETENTION", PAGED),
        mock.patch.object(pages, "CHAIN_PAGE", 1),
        mock.patch.object(pages, "LINEAGE_PAGE", 1),
        mock.patch.object(pages, "FAN", 2),
    ):
        yield


PARTS: tuple[tuple[str, int], ...] = ()
"""Name and steps of each part; empty for a run without parts."""


@contextlib.contextmanager
def in_parts() -> Iterator[None]:
    """The run's steps are those of two parts; the second resumes from the state of the first."""
    with mock.patch.object(sys.modules[__name__], "PARTS", (("a", 2), ("b", STEPS - 2))):
        yield


class Crash(BaseException):
    """The machine is lost: no handler runs, as on a real machine."""


class How(Enum):
    """What happens at the disturbed operation."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    ANSWER_LOST = "answer lost"
    """Applied, and the caller hears nothing."""
    NOT_APPLIED = "request lost"
    """Not applied, and the caller hears nothing."""
    DELAYED = "applied late"
    """The caller hears nothing; applied before its next operation."""
    REPLAYED = "replayed"
    """The machine is gone; the operation is applied once the successor has taken over."""
    FROZEN = "frozen"
    """Stopped before the operation; continues once the successor has taken over."""


DEADLY = frozenset({How.CRASH_BEFORE, How.CRASH_AFTER, How.REPLAYED, How.FROZEN})


@dataclass
class Attempt:
    """One life of a machine working on the run, as the supervisor would go about it."""

    store: MemoryStore
    clock: FakeClock
    work: Path
    term: int | None = None
    head_file: HeadFile | None = None
    """Given where an earlier attempt of the same process had it too."""

    def live(self) -> None:
        """From boot to leaving. Raises what the supervisor would end with."""
        head_file = self.head_file or HeadFile(self.store, LAYOUT, self.clock)
        decision = head_file.take_term(CLAIM)
        if decision.act is not Act.TAKE:
            return
        self.term = head_file.term
        committer = Committer(head_file, retention=RETENTION, part_bytes=PART_BYTES)
        restored = committer.restore(self.work / "restored")
        self._write_start(restored.step)
        if PARTS:
            self._train_parts(committer)
        else:
            self._train(committer, restored)

    def _train(self, committer: Committer, restored: Restored | Fresh) -> None:
        state, step = "", restored.step
        if isinstance(restored, Restored):
            state = (restored.path / "state").read_text()
        rows: list[bytes] = []
        while step < STEPS:
            step += 1
            state = advanced(state, step)
            rows.append(json.dumps({"step": step, "state": state}).encode() + b"\n")
            if step % COMMIT_EVERY == 0:
                folder = self._folder(
                    f"snap-{step}", {"state": state, "deep/er": "the same every time"}
                )
                flushed = b"".join(rows)[committer.rows_flushed :]
                committer.commit(folder, step=step, rows=flushed)
                self._check_head(committer)
        result = self._folder("result", {"model": state})
        committer.finish(State.DONE, Reason.DONE, exit=0, result=result)

    def _train_parts(self, committer: Committer) -> None:
        """As the supervisor does for a program that begins one part after the other."""
        parts = Parts(committer.chain, committer.parts())
        state, rows = "", list[bytes]()
        for name, steps in PARTS:
            hello = Hello(1, 0, part=name)
            assert parts.refusal(hello) is None
            begin = parts.begin(hello)
            if begin.state is not None:
                into = committer.read(begin.state, self.work / f"state-{name}")
                state = (into / "state").read_text()
            if begin.end is not None:
                into = committer.read(begin.end, self.work / f"end-{name}")
                assert (into / "result" / "model").read_text() == state
                continue
            for own in range(begin.step + 1, steps + 1):
                state = advanced(state, begin.before + own)
                row = {"step": begin.before + own, "part": row_part(name, begin.before)}
                rows.append(json.dumps({**row, "state": state}).encode() + b"\n")
                if own % COMMIT_EVERY == 0:
                    folder = self._folder(f"snap-{name}-{own}", {"state": state})
                    self._commit_part(committer, parts, folder, own, rows)
            folder = self._folder(f"end-of-{name}", {"part.json": "{}", "result/model": state})
            put_manifest(folder)
            self._commit_part(committer, parts, folder, steps, rows, tags=(DONE_TAG,))
        committer.finish(State.DONE, Reason.DONE, exit=0, parts=parts.known)

    def _commit_part(
        self,
        committer: Committer,
        parts: Parts,
        folder: Path,
        own: int,
        rows: list[bytes],
        tags: tuple[str, ...] = (),
    ) -> None:
        begin = parts.now
        made = committer.commit(
            folder,
            step=begin.before + own,
            tags=tags,
            rows=b"".join(rows)[committer.rows_flushed :],
            part=begin.part,
            before=begin.before,
            whole=bool(tags),
        )
        parts.committed(made)
        self._check_head(committer)

    def _check_head(self, committer: Committer) -> None:
        head_file = committer._head_file
        head_file.patience(lambda: head_file.check(term=committer.term))

    def _write_start(self, step: int) -> None:
        record = AttemptStart(
            term=self.term or 0,
            resume=0,
            placement=0,
            instance="vm",
            instance_id="1",
            boot_id="1",
            zone="z",
            machine_type="m",
            image="i",
            trainer="scripted",
            spec={},
            versions={},
            step=step,
            restored=None,
            time=self.clock.now(),
        )
        write_record(
            self.store, LAYOUT.attempt_start(record.term), record, patience=Patience(self.clock)
        )

    def _folder(self, name: str, files: dict[str, str]) -> Path:
        folder = self.work / name
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder


def unfolded(store: Store, layout: Layout, head: Head) -> Head:
    """HEAD with all entries in itself, those of its pages too. Raises PageLost."""
    found = pages.kept(store, layout, head)
    if found.lost:
        raise pages.PageLost("; ".join(found.lost))
    terms = tuple(pages.lineage(store, layout, head))[::-1]
    return replace(head, chain=found.chain, lineage=terms, older_chain=None, older_lineage=None)


def advanced(state: str, step: int) -> str:
    """The state after one more step; every earlier step is in it."""
    return hashlib.sha256(f"{state}:{step}".encode()).hexdigest()


def final_state() -> str:
    """The state after all steps, undisturbed."""
    state = ""
    for step in range(1, STEPS + 1):
        state = advanced(state, step)
    return state


@dataclass
class Played:
    """The objects that a disturbed run left, for the check."""

    bucket: MemoryStore
    name: str
    error: BaseException | None = None
    """What the disturbed attempt ended with; None if it ended by itself."""
    term: int | None = None
    """The disturbed attempt's term, where it got to know it."""
    survivor: bool = False
    """Whether the disturbed attempt was expected to reach the end by itself."""
    accepted: list[str] = field(default_factory=list)
    """HEADs of an old term that were written after a higher one."""
    lost: list[str] = field(default_factory=list)
    """Objects that HEAD named when they were deleted."""
    successor_errors: list[Exception] = field(default_factory=list)


class Observer:
    """Watches every applied operation, from any sender at any time."""

    def __init__(self, bucket: MemoryStore, played: Played) -> None:
        self._bucket = bucket
        self._played = played
        self._highest = 0

    def apply(self, operation: Operation, apply: Callable[[], Any]) -> Any:
        needed = self._needed() if operation.verb == "delete" else {}
        before = self._generation(operation.path) if operation.verb == "delete" else None
        answer = apply()
        if operation.verb == "delete" and needed.get(operation.path) == before:
            self._played.lost.append(operation.path)
        if operation.verb == "put" and operation.path == LAYOUT.head:
            head = read_head(self._bucket, LAYOUT).head
            if head.term < self._highest:
                self._played.accepted.append(f"term {head.term} after {self._highest}")
            self._highest = max(self._highest, head.term)
        return answer

    def _generation(self, path: str) -> int | None:
        return next((o.generation for o in self._bucket.list(path) if o.path == path), None)

    def _needed(self) -> dict[str, int]:
        """Path and generation of all that HEAD names now."""
        try:
            head = read_head(self._bucket, LAYOUT).head
        except HeadError:
            return {}
        try:
            head = unfolded(self._bucket, LAYOUT, head)
        except StoreError as error:
            self._played.lost.append(str(error))
        folders = [entry.path for entry in head.chain]
        if head.end and head.end.result:
            folders.append(head.end.result.path)
        return {o.path: o.generation for f in folders for o in self._bucket.list(f)}


def play(
    how: How | None, at: int, *, replay_at: int = 0, crash_successor_at: int | None = None
) -> tuple[Played, list[Operation]]:
    """One run disturbed at its operation `at`; also the operations that it sent.

    For REPLAYED and FROZEN, `replay_at` counts the successor's operations, from its taking of the
    term on, before the old one's is applied; a frozen attempt then continues as far as it gets.
    With `crash_successor_at` the first successor is gone after that many of its operations.
    """
    clock = FakeClock()
    bucket = MemoryStore(clock=clock.now)
    played = Played(bucket, f"{how.value if how else 'baseline'} at {at}, {replay_at}")
    observer = Observer(bucket, played)
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        rehearsal = _Rehearsal(clock, bucket, played, observer, Path(folder))
        return _play(rehearsal, how, at, replay_at, crash_successor_at)


def play_retaken(at: int, thaw_at: int) -> Played:
    """The first attempt freezes at its operation `at`; another machine takes the run, commits and
    is gone; the first one's process takes the run again, with the same view of HEAD; the old
    attempt continues after the `thaw_at`-th operation of the new one that holds the term.
    """
    clock = FakeClock()
    bucket = MemoryStore(clock=clock.now)
    played = Played(bucket, f"retaken at {at}, {thaw_at}")
    observer = Observer(bucket, played)
    frozen, thawed = threading.Event(), threading.Event()
    sent = 0
    held: int | None = None

    def thaw() -> None:
        thawed.set()
        life.join(60)
        assert not life.is_alive()

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        nonlocal sent, held
        if threading.current_thread() is life:
            sent += 1
            if sent - 1 == at:
                frozen.set()
                assert thawed.wait(60)
            return observer.apply(operation, apply)
        answer = observer.apply(operation, apply)
        swaps = operation.verb == "put" and operation.path == LAYOUT.head
        if held is not None or swaps:
            held = 0 if held is None else held + 1
            # Two threads' swaps exclude each other; the taking of the term excludes no other.
            if held >= thaw_at and not thawed.is_set() and not (swaps and held):
                thaw()
        return answer

    def crashing(operation: Operation, apply: Callable[[], Any]) -> Any:
        answer = observer.apply(operation, apply)
        if operation.verb == "put" and operation.path == LAYOUT.head:
            committed.append(read_head(bucket, LAYOUT).head)
        if len(committed) == 2:  # taken, and one checkpoint
            raise Crash
        return answer

    committed: list[Head] = []
    with tempfile.TemporaryDirectory(dir=WORK) as name:
        folder = Path(name)
        store = bucket.view(around)
        head_file = HeadFile(store, LAYOUT, clock)
        old = Attempt(store, clock, folder / "old", head_file=head_file)

        def live() -> None:
            try:
                old.live()
            except Exception as error:
                played.error = error
            frozen.set()

        life = threading.Thread(target=live)
        life.start()
        assert frozen.wait(60)
        with contextlib.suppress(Crash):
            Attempt(bucket.view(crashing), clock, folder / "other").live()
        try:
            Attempt(store, clock, folder / "new", head_file=head_file).live()
        except Exception as error:
            played.successor_errors.append(error)
        thaw()
        played.term = old.term
    return played


@dataclass(frozen=True)
class _Rehearsal:
    clock: FakeClock
    bucket: MemoryStore
    played: Played
    observer: Observer
    folder: Path


def _play(
    rehearsal: _Rehearsal, how: How | None, at: int, replay_at: int, crash_successor_at: int | None
) -> tuple[Played, list[Operation]]:
    clock, bucket, played = rehearsal.clock, rehearsal.bucket, rehearsal.played
    observer, folder = rehearsal.observer, rehearsal.folder
    sent: list[Operation] = []
    late: list[Callable[[], Any]] = []

    def apply_late() -> None:
        while late:
            apply = late.pop()
            try:
                apply()
            except StoreError:
                continue

    def succeed(during: Callable[[], None] | None = None, crash_after: int | None = None) -> None:
        """A successor takes over and runs to the end; `during` happens on its way."""
        taken = 0
        done = 0

        def around(operation: Operation, apply: Callable[[], Any]) -> Any:
            nonlocal taken, done
            if done == crash_after:
                raise Crash
            done += 1
            if during and taken == replay_at + 1:
                taken += 1
                during()
            answer = observer.apply(operation, apply)
            if taken or (operation.verb == "put" and operation.path == LAYOUT.head):
                taken += 1
            return answer

        successor = Attempt(bucket.view(around), clock, folder / "successor")
        try:
            successor.live()
        except Crash:
            return
        except Exception as error:
            played.successor_errors.append(error)
        if during:
            during()

    def around(operation: Operation, apply: Callable[[], Any]) -> Any:
        apply_late()
        sent.append(operation)
        if how is None or len(sent) - 1 != at:
            return observer.apply(operation, apply)
        if how is How.CRASH_BEFORE:
            raise Crash
        if how is How.CRASH_AFTER:
            observer.apply(operation, apply)
            raise Crash
        if how is How.ANSWER_LOST:
            observer.apply(operation, apply)
            raise Unavailable("the answer was lost")
        if how is How.NOT_APPLIED:
            raise Unavailable("the request was lost")
        if how is How.DELAYED:
            late.append(lambda: observer.apply(operation, apply))
            raise Unavailable("no answer yet")
        if how is How.REPLAYED:
            late.append(lambda: observer.apply(operation, apply))
            raise Crash
        frozen.set()
        assert thawed.wait(60)
        return observer.apply(operation, apply)

    frozen, thawed = threading.Event(), threading.Event()
    attempt = Attempt(bucket.view(around), clock, folder / "first")

    def live() -> None:
        try:
            attempt.live()
        except (Crash, Exception) as error:
            played.error = error
        played.term = attempt.term
        frozen.set()

    def thaw() -> None:
        thawed.set()
        life.join(60)
        assert not life.is_alive()

    life = threading.Thread(target=live)
    played.survivor = how not in DEADLY
    if how is How.FROZEN:
        life.start()
        assert frozen.wait(60)
        succeed(during=thaw)
        thaw()
    else:
        live()
    if how is How.REPLAYED:
        succeed(during=apply_late)
    elif how is not None:
        apply_late()
        if crash_successor_at is not None:
            succeed(crash_after=crash_successor_at)
        succeed()
    # Every later boot of a finished run leaves at once and changes nothing.
    succeed()
    return played, sent


def violations(played: Played) -> list[str]:
    """Every guarantee that is broken, in words; empty if all hold."""
    broken: list[str] = []

    def hold(condition: bool, guarantee: str) -> None:
        if not condition:
            broken.append(f"{played.name}: {guarantee}")

    for error in played.successor_errors:
        # An attempt that was frozen before it took a term may take it from the successor.
        fenced = isinstance(error, Fenced | HeadEnded) and played.error is None
        hold(fenced, f"the successor ends the run ({error!r})")
    if played.survivor:
        hold(played.error is None, f"a lost answer ends no attempt ({played.error!r})")
    elif isinstance(played.error, Exception):
        hold(isinstance(played.error, Fenced | HeadEnded), f"fenced means 76 ({played.error!r})")
    hold(not played.accepted, f"nothing of an old term is accepted ({played.accepted})")
    hold(not played.lost, f"nothing that HEAD names is deleted ({played.lost})")
    try:
        head = read_head(played.bucket, LAYOUT).head
    except HeadError as error:
        return [*broken, f"{played.name}: HEAD can be read ({error})"]
    hold(head.state is State.DONE and head.end is not None, f"HEAD is done ({head.state})")
    try:
        rows = read_rows(played.bucket, LAYOUT, head)
    except StoreError as error:
        return [*broken, f"{played.name}: the rows can be read ({error})"]
    made = [(row.get("part"), row["step"]) for row in rows]
    parts = PARTS or ((None, STEPS),)
    every = [(name, step) for name, steps in parts for step in range(1, steps + 1)]
    hold(made == every, f"each step is there once ({made})")
    hold(bool(rows) and rows[-1]["state"] == final_state(), "the rows are those undisturbed")
    _check_result(played, head, hold)
    _check_chain(played, head, hold)
    return broken


def _check_result(played: Played, head: Head, hold: Callable[[bool, str], None]) -> None:
    result = head.end.result if head.end else None
    if result is None:
        hold(False, "HEAD names the result")
        return
    try:
        data, _ = played.bucket.get(f"{result.path}RESULT.json", generation=result.generation)
        of = f"{PARTS[-1][0]}/" if PARTS else ""
        model, _ = played.bucket.get(f"{result.path}{of}model")
    except StoreError as error:
        hold(False, f"the result can be read ({error})")
        return
    digest = ResultManifest.from_json(data).digest
    hold(digest == result.digest == baseline_digest(), "the result's digest is that undisturbed")
    hold(model.decode() == final_state(), "the model is that undisturbed")
    try:
        played.bucket.stat(LAYOUT.end(0))
    except StoreError:
        hold(False, "the end has its copy")


def _check_chain(played: Played, head: Head, hold: Callable[[bool, str], None]) -> None:
    """Reopened, the run restores each checkpoint that the chain names."""
    hold(bool(head.chain) and head.chain[-1].step == STEPS, "the newest checkpoint is the last")
    try:
        head = unfolded(played.bucket, LAYOUT, head)
    except StoreError as error:
        hold(False, f"every kept checkpoint is found ({error})")
        return
    if RETENTION == PAGED:
        steps = list(range(COMMIT_EVERY, STEPS + 1, COMMIT_EVERY))
        states = [entry.step for entry in head.chain if not is_done(entry)]
        hold(states == steps, "every checkpoint is kept")
    ended = [(part.name, part.step) for part in parts_of(head.chain) if part.done]
    hold(ended == [*PARTS], f"every part is done, and is there ({ended})")
    for checkpoint in head.chain:
        alone = _reopened(head, checkpoint)
        store = MemoryStore(clock=played.bucket.now)
        for found in played.bucket.list(""):
            data, _ = played.bucket.get(found.path)
            store._objects[found.path] = (data, found)
        store.put(LAYOUT.head, alone.to_json())
        head_file = HeadFile(store, LAYOUT, FakeClock())
        claim = Claim(CLAIM.owner, 1, 0, CLAIM.deadline)
        head_file.take_term(claim)
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            said = log_lines("outlast.bucket")
            try:
                restored = Committer(head_file).restore(Path(folder) / "into")
            except Exception as error:
                hold(False, f"{checkpoint.path} restores ({error})")
                continue
            hold(restored.step == checkpoint.step and not said, f"{checkpoint.path} restores")


def _reopened(head: Head, checkpoint: Checkpoint) -> Head:
    alone = replace(head, chain=(checkpoint,), older_chain=None)
    return replace(alone, state=State.OPEN, end=None)


_BASELINE: dict[tuple[tuple[str, int], ...], str] = {}


def baseline_digest() -> str:
    """The result's digest of the undisturbed run."""
    if PARTS not in _BASELINE:
        played, _ = play(None, -1)
        end = read_head(played.bucket, LAYOUT).head.end
        assert end is not None and end.result is not None
        _BASELINE[PARTS] = end.result.digest
    return _BASELINE[PARTS]
