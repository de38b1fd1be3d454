"""A supervisor in this process with a trainer that follows a script, for its tests."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast.base.retry import FULL_SEC, SILENT_SEC, Limits, Patience
from outlast.bucket.data import Cache
from outlast.bucket.head import Head, read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import AttemptEnd, BootEnd, Heartbeat, Layout
from outlast.bucket.records import read_record
from outlast.bucket.rows import read_rows
from outlast.bucket.store import MemoryStore, NotFound, Store
from outlast.protocol import (
    COMPLETE_ID,
    VERSION,
    Accepted,
    Busy,
    Channel,
    Closed,
    Committed,
    Complete,
    Ended,
    Hello,
    Message,
    Snapshot,
    Stop,
    Tick,
    Welcome,
    row_part,
)
from outlast.spec.run_spec import RunSpec, Timeouts
from outlast.supervisor.group import find_group
from outlast.supervisor.life import Boot, supervise
from outlast.supervisor.listener import Listener
from outlast.supervisor.metadata import Machine, Metadata, MetadataError
from outlast.supervisor.notice import Interrupted, Notices
from outlast.supervisor.process import Exited
from outlast.supervisor.site import MachineClock, Site
from outlast.supervisor.webhook import Webhook
from tests.log_lines import log_lines
from tests.stores import prove_stale_writes_are_refused
from tests.supervisor.fake_cloud import FakeCloud

WAIT_SEC = 90.0
LAYOUT = Layout("experiments/first", "0123456789")
TIMEOUTS = Timeouts(
    heartbeat=0.1,
    failure_grace=0.2,
    backoff=0.02,
    iam_propagation=0.2,
    successor_silence=0.5,
    notice=5.0,
    stop=5.0,
    stall=60.0,
)
SPEC = RunSpec(
    prefix=LAYOUT.prefix,
    run=LAYOUT.run,
    resume=0,
    placement=0,
    owner="organization/outlast/first",
    trainer="count",
    deadline=datetime.now(UTC) + timedelta(days=1),
    timeouts=TIMEOUTS,
    bucket="runs",
)


def wait_until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Returns the condition's value once it is true."""
    end = time.monotonic() + WAIT_SEC
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come true in {WAIT_SEC:.0f} s"
        time.sleep(0.005)
    return found


class Life:
    """The trainer's side of one connection, for scripts."""

    def __init__(self, channel: Channel, welcome: Welcome, part: str = "") -> None:
        self.channel = channel
        self.welcome = welcome
        self.work = Path(welcome.work)
        self.step = welcome.step
        self.part = part
        self.pushed: list[Message] = []
        self._count = 0

    @property
    def restored(self) -> dict[str, Any] | None:
        if self.welcome.restore is None:
            return None
        return json.loads((Path(self.welcome.restore) / "state.json").read_text())

    def advance(self, steps: int = 1) -> None:
        """Make steps: one row each, one tick."""
        with open(self.welcome.rows, "a") as rows:
            for _ in range(steps):
                self.step += 1
                row = {"step": self.welcome.before + self.step, "term": self.welcome.term}
                row |= {"part": row_part(self.part, self.welcome.before)} if self.part else {}
                rows.write(json.dumps(row) + "\n")
        self.channel.send(Tick(self.step))

    def offer(
        self, tags: list[str] | None = None, *, weight: int = 0, last: bool = False
    ) -> Accepted | Busy:
        """Hand a snapshot over, with ``weight`` random bytes; the supervisor's answer."""
        self._count += 1
        identifier = f"{self._count:06d}"
        folder = self.work / f"snap-{identifier}"
        folder.mkdir()
        (folder / "state.json").write_text(json.dumps({"step": self.step}))
        if weight:
            (folder / "weight.bin").write_bytes(os.urandom(weight))
        size = Path(self.welcome.rows).stat().st_size
        self.channel.send(Snapshot(identifier, str(folder), self.step, tags or [], size, last))
        answer = self.hear(Accepted, Busy)
        assert isinstance(answer, Accepted | Busy)
        return answer

    def commit(self, *, weight: int = 0) -> None:
        """Hand a snapshot over and wait until it is a checkpoint."""
        assert isinstance(self.offer(weight=weight), Accepted)
        self.hear(Committed)

    def complete(self, why: str = "") -> int:
        folder = self.work / "result"
        folder.mkdir()
        (folder / "metrics.json").write_text("{}")
        size = Path(self.welcome.rows).stat().st_size
        self.channel.send(Complete(self.step, str(folder), size, why))
        answer = self.hear(Accepted)
        assert isinstance(answer, Accepted) and answer.id == COMPLETE_ID
        return 0

    def hear(self, *kinds: type) -> Message:
        """The next message of these kinds; others are kept in ``pushed``."""
        for index, message in enumerate(self.pushed):
            if isinstance(message, kinds):
                return self.pushed.pop(index)
        while True:
            message = self.channel.receive(WAIT_SEC)
            assert message is not None, f"{kinds} did not come"
            if isinstance(message, kinds):
                return message
            self.pushed.append(message)

    def next_part(self, name: str) -> Welcome:
        """Begin another part on the same connection."""
        self.channel.send(Hello(VERSION, 0, total=100, part=name))
        welcome = self.hear(Welcome, Ended)
        assert isinstance(welcome, Welcome), welcome
        self.welcome, self.step, self.part = welcome, welcome.step, name
        return welcome

    def end_part(self, **files: str) -> None:
        """The part is over: its record and its result are kept when this returns."""
        folder = self.work / f"part-{self.part}"
        (folder / "result").mkdir(parents=True)
        (folder / "part.json").write_text(json.dumps({"step": self.step}))
        for name, text in files.items():
            (folder / "result" / name).write_text(text)
        size = Path(self.welcome.rows).stat().st_size
        self.channel.send(Complete(self.step, str(folder), size))
        self.hear(Committed)

    def obey(self) -> int:
        """Wait to be stopped, hand over the state, exit as given."""
        self.hear(Stop)
        self.commit()
        return 75

    def hang(self) -> int:
        """Never end by itself."""
        while True:
            self.channel.receive(WAIT_SEC)


Script = Callable[[Life], int]


class ScriptedTrainer:
    """A trainer as a thread: its script's return value is its exit code."""

    ends_with_connection = False
    restarts = True

    def __init__(
        self, socket: Path, script: Script, part: str = "", *, restore_done: bool = True
    ) -> None:
        """``part`` is the name of its first training, where it trains parts."""
        self._socket = socket
        self._part = part
        self._restore_done = restore_done
        self._script = script
        self._killed = threading.Event()
        self._channel: Channel | None = None
        self.running = threading.Event()
        """Its script has begun."""
        self.ended = threading.Event()
        self.dumped = False

    def start(self, post: Callable[[Exited], None]) -> None:
        def run() -> None:
            code = 1
            try:
                with Channel.connect(self._socket) as channel:
                    self._channel = channel
                    if self._killed.is_set():
                        raise Closed("killed before it began")
                    hello = Hello(VERSION, 0, 100, self._part, self._restore_done)
                    channel.send(hello)
                    welcome = channel.receive(WAIT_SEC)
                    if isinstance(welcome, Ended):
                        code = welcome.exit
                        return
                    assert isinstance(welcome, Welcome), welcome
                    self.running.set()
                    code = self._script(Life(channel, welcome, self._part))
            except Closed:
                code = 1
            finally:
                self.ended.set()
                post(Exited(-9 if self._killed.is_set() else code))

        threading.Thread(target=run, name="scripted trainer", daemon=True).start()

    def kill(self) -> None:
        self._killed.set()
        if self._channel is not None:
            self._channel.close()

    def dump_stacks(self) -> None:
        self.dumped = True

    def last_lines(self) -> tuple[str, ...]:
        return ("last line",)


class QuickClock(MachineClock):
    """Waits between two writes of HEAD are for Cloud Storage, not for these tests."""

    def sleep(self, seconds: float, *, sign: bool = True) -> None:
        super().sleep(min(seconds, 0.02), sign=sign)


@dataclass
class Vm:
    """One boot of one machine."""

    boot: Boot
    notices: Notices
    said: list[str]
    scripts: list[Script]
    console: list[str]
    """What it wrote to its serial port beside the log."""
    trainers: list[ScriptedTrainer] = field(default_factory=list)
    code: "Future[int]" = field(default_factory=Future)

    def start(self) -> "Vm":
        def run() -> None:
            try:
                self.code.set_result(supervise(self.boot))
            except Interrupted:
                self.code.set_result(75)
            except BaseException as error:
                self.code.set_exception(error)

        threading.Thread(target=run, name="supervisor", daemon=True).start()
        return self

    def terminate(self) -> None:
        """SIGTERM, once its first trainer is at work."""
        wait_until(lambda: self.trainers, "a trainer")
        assert self.trainers[0].running.wait(WAIT_SEC)
        self.notices.handle_signal(signal.SIGTERM, None)

    def ended(self) -> int:
        """Its exit code."""
        return self.code.result(WAIT_SEC)

    def run(self) -> int:
        return self.start().ended()


class _Reader(Metadata):
    """A machine's metadata server. Once its world has ended, who waits for a change waits without
    end: hundreds of threads that ask a dead server each second would take this process's time."""

    def __init__(self, cloud: FakeCloud) -> None:
        super().__init__()
        self._cloud = cloud

    def wait_for_change(self, *args: Any, **options: Any) -> tuple[str, str]:
        try:
            return super().wait_for_change(*args, **options)
        except MetadataError:
            if self._cloud.closed:
                threading.Event().wait()
            raise


class World:
    """A bucket, a cloud and the machines that work there."""

    def __init__(self, cloud: FakeCloud, folder: Path) -> None:
        self.cloud = cloud
        self.folder = folder
        prove_stale_writes_are_refused(MemoryStore())
        self.store: Store = MemoryStore()
        self.data: Store = MemoryStore()
        """All buckets of data."""
        self.patience_sec = 60.0
        self.silent_sec = SILENT_SEC
        self.full_sec = FULL_SEC
        self._boots = 0
        self._listeners: list[Listener] = []

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    def boot(
        self,
        *scripts: Script,
        group: str = "group",
        spec: RunSpec = SPEC,
        part: str = "",
        store: Store | None = None,
        metadata: bool = True,
        restore_done: bool = True,
    ) -> Vm:
        """A new machine of the group; its trainers follow the scripts, one each."""
        self._boots += 1
        identifier = str(100 + self._boots)
        root = self.folder / identifier
        self.cloud.boot(group, identifier, {})
        reader = _Reader(self.cloud)
        said, console = log_lines(), list[str]()
        notices = Notices(spec.timeouts, reader if metadata else None)
        notices.start()
        clock = QuickClock(notices)
        vm: Vm

        def make_trainer(term: int) -> ScriptedTrainer:
            trainer = ScriptedTrainer(
                listener.socket_path, vm.scripts.pop(0), part, restore_done=restore_done
            )
            vm.trainers.append(trainer)
            return trainer

        listener = Listener(root / "socket")
        self._listeners.append(listener)
        site = Site(
            machine=Machine("vm", identifier, f"boot-{identifier}", "zone", "type", "image"),
            group=find_group(reader, reader.attributes()),
            notices=notices,
            listener=listener,
            work=root / "work",
            make_trainer=make_trainer,
            log_of=lambda term: None,
            clock=clock,
            webhook=Webhook(spec.webhook, key=b"a key" if spec.webhook_key_secret else b""),
            console=console.append,
            data=Cache(
                root / "cache",
                opener=lambda url: self.data,
                patience=Patience(clock, limits=Limits(silent_sec=self.patience_sec)),
            ),
        )
        limits = Limits(self.silent_sec, spec.timeouts.iam_propagation, self.full_sec)
        patience = Patience(clock.unsigned, limits=limits)
        head_file = HeadFile(store or self.store, LAYOUT, patience=patience)
        boot = Boot(spec, head_file, site, records=True)
        vm = Vm(boot, notices, said, list(scripts), console)
        return vm

    @property
    def head(self) -> Head:
        return read_head(self.store, LAYOUT).head

    def end_of(self, term: int) -> AttemptEnd:
        end = read_record(self.store, LAYOUT.attempt_end(term), AttemptEnd)
        assert end is not None, f"term {term} has no end record"
        return end

    def heartbeat_of(self, term: int) -> Heartbeat | None:
        return read_record(self.store, LAYOUT.heartbeat(term), Heartbeat)

    def boot_end_of(self, vm: Vm) -> BootEnd | None:
        machine = vm.boot.site.machine
        path = LAYOUT.boot_end(machine.instance_id, machine.boot_id)
        return read_record(self.store, path, BootEnd)

    def steps(self) -> list[int]:
        """Steps of the rows of the final lineage."""
        return [row["step"] for row in read_rows(self.store, LAYOUT, self.head)]

    def exists(self, path: str) -> bool:
        try:
            self.store.stat(path)
        except NotFound:
            return False
        return True


def spec_with(**timeouts_or_fields: Any) -> RunSpec:
    """SPEC with other timeouts or fields."""
    names = Timeouts.__dataclass_fields__
    timeouts = {key: value for key, value in timeouts_or_fields.items() if key in names}
    fields = {key: value for key, value in timeouts_or_fields.items() if key not in names}
    return replace(SPEC, timeouts=replace(TIMEOUTS, **timeouts), **fields)


@contextmanager
def a_world(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[World]:
    from tests.supervisor.fake_cloud import fake_cloud

    with fake_cloud(monkeypatch) as cloud:
        world = World(cloud, folder)
        try:
            yield world
        finally:
            world.close()
