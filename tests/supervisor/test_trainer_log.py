"""What a trainer prints: bounded on the disk, whole in the bucket where that keeps up, and in the
way of neither a heartbeat nor a stop."""

import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outlast.base.clock import SYSTEM_CLOCK
from outlast.base.exits import Reason, State
from outlast.base.retry import Patience
from outlast.bucket.headfile import HeadFile
from outlast.bucket.store import MemoryStore, Operation, Unavailable
from outlast.protocol import Tick
from outlast.supervisor import trainer_log
from outlast.supervisor.process import TrainerProcess
from outlast.supervisor.trainer_log import LogUpload, TrainerLog, drop_old_logs
from tests.log_lines import log_lines
from tests.supervisor.world import LAYOUT, Life, World, a_world, wait_until


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as world:
        yield world


def size_on_disk(log: TrainerLog) -> int:
    return sum(path.stat().st_size for path in (log.path, log.older) if path.exists())


def all_of(log: TrainerLog, size: int = 7) -> bytes:
    found = b""
    while data := log.take(size):
        found += data
    return found


def test_output_read_in_time_is_kept_whole(tmp_path: Path) -> None:
    log = TrainerLog(tmp_path / "logs/trainer.log", half_bytes=100)
    wrote = read = b""
    for number in range(200):
        line = f"line {number}\n".encode()
        log.write(line)
        wrote += line
        read += log.take(64)
    log.close()
    assert read + all_of(log) == wrote
    assert size_on_disk(log) < 250


def test_output_not_read_in_time_is_counted(tmp_path: Path) -> None:
    log = TrainerLog(tmp_path / "trainer.log", half_bytes=100)
    for _ in range(100):
        log.write(b"0123456789")
    data = all_of(log)
    dropped = re.match(rb"\n\[outlast: ([0-9]+) bytes of the log were not kept\]\n", data)
    assert dropped is not None
    assert int(dropped[1]) + len(data) - dropped.end() == 1000
    assert data[dropped.end() :] == b"0123456789" * ((len(data) - dropped.end()) // 10)
    assert log.unread == 0 and log.take(10) == b""


@pytest.mark.parametrize("harm", ["full", "removed", "cut"])
def test_a_disk_that_loses_the_log_blocks_no_process(tmp_path: Path, harm: str) -> None:
    log = TrainerLog(tmp_path / "trainer.log")
    if harm == "full":
        log.path.symlink_to("/dev/full")
    log.write(b"x" * 1000)
    if harm == "removed":
        log.path.unlink()
    if harm == "cut":
        os.truncate(log.path, 0)
    assert b"1000 bytes of the log were not kept" in log.take(100)
    assert log.take(100) == b"" and log.unread == 0


class Bucket:
    """Takes pieces; slowly, or not at all."""

    def __init__(self) -> None:
        self.pieces: dict[int, bytes] = {}
        self.trouble: Exception | None = None
        self.tries = 0
        self.gate = threading.Event()
        self.gate.set()
        self.said = log_lines()

    def put(self, index: int, data: bytes) -> None:
        self.tries += 1
        self.gate.wait(60)
        if self.trouble is not None:
            raise self.trouble
        self.pieces[index] = data

    def upload(self, log: TrainerLog) -> LogUpload:
        return LogUpload(log, self.put, Patience(SYSTEM_CLOCK))

    @property
    def text(self) -> bytes:
        assert list(self.pieces) == list(range(len(self.pieces)))
        return b"".join(self.pieces.values())


def test_a_store_that_fails_for_a_while_loses_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_log, "LOOK_SEC", 0.01)
    monkeypatch.setattr(trainer_log, "DUE_SEC", 0.0)
    log, bucket = TrainerLog(tmp_path / "trainer.log"), Bucket()
    bucket.trouble = Unavailable("503")
    upload = bucket.upload(log)
    log.write(b"first\n")
    wait_until(lambda: bucket.tries >= 3, "three tries")
    log.write(b"second\n")
    bucket.trouble = None
    wait_until(lambda: bucket.text == b"first\nsecond\n", "both")
    assert sum("503" in line for line in bucket.said) == 1
    upload.finish(last_words=True)
    upload.join()


def test_the_end_keeps_the_newest_part_and_waits_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_log, "LAST_BYTES", 1000)
    log, bucket = TrainerLog(tmp_path / "trainer.log"), Bucket()
    upload = bucket.upload(log)
    log.write(b"x" * 5000 + b"the last words")
    upload.finish(last_words=True)
    upload.join()
    assert bucket.text.endswith(b"the last words") and b"4014 bytes" in bucket.text
    monkeypatch.setattr(trainer_log, "LAST_SEC", 0.2)
    bucket.gate.clear()
    stuck = bucket.upload(log)
    log.write(b"more")
    began = time.monotonic()
    stuck.finish(last_words=True)
    stuck.join()
    assert time.monotonic() - began < 30
    bucket.gate.set()


def test_much_output_stays_small_on_the_disk(tmp_path: Path) -> None:
    """Random bytes, and a line without an end; without a reader."""
    program = "import os; b = os.urandom(1 << 20)\nfor i in range(200): os.write(1 + i % 2, b)"
    log = TrainerLog(tmp_path / "trainer.log", half_bytes=1 << 20)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    process = TrainerProcess(
        [sys.executable, "-c", program], folder=tmp_path, environment=dict(os.environ), log=log
    )
    process.start(inbox.put)
    assert inbox.get(timeout=90).code == 0
    assert size_on_disk(log) <= 3 << 20
    assert log.unread <= 3 << 20


def test_a_log_faster_than_its_uploads_delays_no_stop(world: World, tmp_path: Path) -> None:
    log = TrainerLog(tmp_path / "trainer.log", half_bytes=4 << 20)
    heartbeats: list[float] = []
    done = threading.Event()

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.verb == "put" and "/log/" in operation.path:
            done.wait(1.0)  # far slower than it grows
        if operation.verb == "put" and operation.path.endswith("heartbeat.json"):
            heartbeats.append(time.monotonic())
        return perform()

    def floods() -> None:
        while not done.is_set():
            log.write(b"x" * 1_000_000)

    def script(life: Life) -> int:
        life.advance()
        life.commit()
        threading.Thread(target=floods, daemon=True).start()
        while not done.wait(0.02):
            life.step += 1
            life.channel.send(Tick(life.step))
        return 0

    assert isinstance(world.store, MemoryStore)
    vm = world.boot(script, store=world.store.view(around))
    vm.boot = replace(vm.boot, site=replace(vm.boot.site, log_of=lambda term: log))
    vm.start()
    try:
        wait_until(lambda: world.exists(LAYOUT.log_piece(1, 1)), "pieces of the log")
        count = len(heartbeats)
        wait_until(lambda: len(heartbeats) >= count + 5, "heartbeats beside them")
        HeadFile(world.store, LAYOUT).end_from_outside(State.STOPPED, Reason.STOPPED)
        assert vm.ended() == 0
    finally:
        done.set()
    assert world.end_of(1).reason is Reason.STOPPED
    assert size_on_disk(log) <= 10_000_000


def test_only_the_newest_logs_of_a_disk_stay(tmp_path: Path) -> None:
    for term in range(1, 8):
        (tmp_path / f"trainer-{term:06d}.log").touch()
        (tmp_path / f"trainer-{term:06d}.log.1").touch()
    (tmp_path / "supervisor.log").touch()
    drop_old_logs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["supervisor.log"]
        + [f"trainer-{n:06d}.log{end}" for n in (4, 5, 6, 7) for end in ("", ".1")]
    )
