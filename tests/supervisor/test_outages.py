"""A store that is away, or refuses for a moment, at each moment of an attempt: waited for alike."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outlast.base import exits, retry
from outlast.base.exits import Reason, State
from outlast.base.retry import SILENT_SEC, Patience
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.headfile import HeadFile
from outlast.bucket.store import Forbidden, MemoryStore, Operation, StoreError, Unavailable
from outlast.supervisor import group, heartbeat
from outlast.supervisor.progress import Progress
from tests.log_lines import log_lines
from tests.stores import START, FakeClock
from tests.supervisor.world import LAYOUT, Life, World, a_world, spec_with, wait_until

CLAIM = Claim("org/demo/dev", 0, 0, START + timedelta(days=36_500))


class Away:
    """A store that does not answer for as long as is asked."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.until = 0.0
        self.said = log_lines()
        self.store = MemoryStore(clock=self.clock.now).view(self._around)
        self.folder = folder
        self.snapshot = folder / "snapshot"
        self.snapshot.mkdir()
        (self.snapshot / "state").write_bytes(b"x" * 100)
        self._steps = 0
        Committer(self.taken()).commit(self.snapshot, step=1)

    def _around(self, operation: Operation, perform: Callable[[], Any]) -> Any:
        if self.clock.elapsed < self.until:
            raise Unavailable(f"{operation.path}: 503")
        return perform()

    def head_file(self) -> HeadFile:
        return HeadFile(self.store, LAYOUT, patience=Patience(self.clock))

    def taken(self) -> HeadFile:
        head_file = self.head_file()
        head_file.take_term(CLAIM)
        return head_file

    def phase(self, name: str) -> Callable[[], object]:
        """The work of an attempt's phase during an outage of the store."""
        if name == "boot":
            return lambda: self.head_file().take_term(CLAIM)
        committer = Committer(self.taken())
        if name == "restore":
            return lambda: committer.restore(self.folder / "restored")
        committer.restore(self.folder / "restored")
        if name == "commit":
            return lambda: committer.commit(self.snapshot, step=2)
        return lambda: committer.finish(
            State.DONE, Reason.DONE, exit=0, step=1, result=self.snapshot
        )


PHASES = ("boot", "restore", "commit", "end")


@pytest.fixture
def away(tmp_path: Path) -> Away:
    return Away(tmp_path)


@pytest.mark.parametrize("phase", PHASES)
def test_an_outage_of_ten_minutes_is_survived(away: Away, phase: str) -> None:
    act = away.phase(phase)
    away.until = away.clock.elapsed + 600.0
    act()
    assert away.clock.elapsed >= away.until
    started = [line for line in away.said if "trying again for up to 15 min" in line]
    assert len(started) == 1 and any("succeeded at try" in line for line in away.said)
    assert len(away.said) < 12


@pytest.mark.parametrize("phase", PHASES)
def test_an_outage_of_an_hour_is_given_up_after_fifteen_minutes(away: Away, phase: str) -> None:
    act = away.phase(phase)
    began = away.clock.elapsed
    away.until = began + 3600.0
    with pytest.raises(StoreError):
        act()
    assert SILENT_SEC <= away.clock.elapsed - began < SILENT_SEC + 60.0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    monkeypatch.setattr(retry, "PAUSE_SEC", 0.05)
    with a_world(monkeypatch, tmp_path) as made:
        yield made


def stops(life: Life) -> int:
    life.advance(3)
    life.commit()
    return life.obey()


def continues(life: Life) -> int:
    life.advance(2)
    life.commit()
    return life.complete()


@pytest.mark.parametrize(
    "where",
    [
        "get .*/HEAD$",
        "get .*000001/end.json",
        "get .*MANIFEST",
        "fetch .*state.json",
        "put .*000002/start.json",
        "put .*t000002/.*state.json",
        "put .*/HEAD$",
        "put .*heartbeat",
        "put .*000002/end.json",
        "put .*metrics",
        "put .*result.*",
    ],
)
@pytest.mark.parametrize("kind", [Forbidden, Unavailable])
def test_one_refusal_anywhere_costs_nothing(
    world: World, where: str, kind: type[StoreError]
) -> None:
    first = world.boot(stops).start()
    wait_until(lambda: world.exists(LAYOUT.head) and world.head.chain, "a commit")
    first.terminate()
    first.ended()
    hits: list[str] = []

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if not hits and re.search(where, f"{operation.verb} {operation.path}"):
            hits.append(operation.path)
            raise kind(f"{operation.path}: refused")
        return perform()

    assert isinstance(world.store, MemoryStore)
    vm = world.boot(continues, store=world.store.view(around), spec=spec_with(iam_propagation=30.0))
    assert vm.run() == 0 and hits
    assert world.head.state is State.DONE and world.end_of(2).reason is Reason.DONE


# -- a silence that does not end -------------------------------------------------------------------


class Silent:
    """A store that gives no answer while `silent`."""

    def __init__(self, world: World) -> None:
        assert isinstance(world.store, MemoryStore)
        self.silent = False
        self.store = world.store.view(self._around)

    def _around(self, operation: Operation, perform: Callable[[], Any]) -> Any:
        if self.silent:
            raise Unavailable(f"{operation.path}: 503")
        return perform()


def test_storage_that_dies_during_training_costs_one_silence(world: World) -> None:
    """The trainer offers no checkpoint: the heartbeats find out."""
    found = Silent(world)
    world.silent_sec = 0.5

    def script(life: Life) -> int:
        life.advance(2)
        life.commit()
        found.silent = True
        return life.hang()

    vm = world.boot(script, store=found.store, spec=spec_with(silence=0.5))
    assert vm.run() == exits.DONE
    assert world.cloud.groups["group"] == []
    assert any("no answer for 0 s, so this VM leaves its group" in line for line in vm.said)
    assert world.head.state is State.OPEN and world.head.step == 2


def test_storage_that_is_dead_at_the_boot_costs_one_silence(world: World) -> None:
    found = Silent(world)
    found.silent = True
    world.silent_sec = 0.5
    vm = world.boot(store=found.store, spec=spec_with(silence=0.5))
    assert vm.run() == exits.DONE
    assert world.cloud.groups["group"] == []


def test_storage_that_answers_again_at_the_end_makes_no_vm_leave(world: World) -> None:
    """A commit was not answered for too long; the end is recorded, and the next VM resumes."""

    def around(operation: Operation, perform: Callable[[], Any]) -> Any:
        if operation.path.endswith("MANIFEST.json"):
            raise Unavailable(f"{operation.path}: 503")
        return perform()

    world.silent_sec = 0.5
    assert isinstance(world.store, MemoryStore)
    spec = spec_with(silence=0.5)
    assert world.boot(stops, store=world.store.view(around), spec=spec).run() == exits.INTERRUPTED
    assert world.end_of(1).reason is Reason.HOST_ERROR
    assert world.cloud.groups["group"] != []
    assert world.boot(continues).run() == exits.DONE and world.head.state is State.DONE


def test_a_machine_that_stops_in_a_silence_does_not_leave(world: World) -> None:
    found = Silent(world)

    def script(life: Life) -> int:
        life.advance(2)
        life.commit()
        found.silent = True
        return life.hang()

    vm = world.boot(script, store=found.store, spec=spec_with(silence=60.0, stop=0.5)).start()
    wait_until(lambda: found.silent, "the silence")
    vm.terminate()
    assert vm.ended() == exits.INTERRUPTED
    assert world.cloud.groups["group"] != []


def test_a_slow_line_that_uploads_does_not_count_as_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([100.0, 700.0, 1000.0, 1600.0, 1601.0])
    # The module itself would change the time of every thread.
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: next(times)))
    sender = object.__new__(heartbeat.HeartbeatSender)
    sender._progress = Progress()
    sender._silence_sec, sender._silent_since = 900.0, None
    assert not sender._is_silent(Unavailable("503"))
    sender._progress.uploaded_at = 700.0
    assert not sender._is_silent(Unavailable("503"))
    assert not sender._is_silent(Unavailable("503"))  # 900 s after the first, 300 after the upload
    assert sender._is_silent(Unavailable("503"))
    assert not sender._is_silent(Forbidden("403"))


def test_an_ended_run_without_a_token_does_not_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It powers off; the next VM may get a token, finds the end and leaves."""
    monkeypatch.setattr(group, "WITHOUT_TOKEN_SEC", 0.1)
    token = "instance/service-accounts/default/token"

    def script(life: Life) -> int:
        cast("Any", vm.boot.site.group)._metadata.forget_token()
        del world.cloud.values[token]
        return continues(life)

    vm = world.boot(script)
    assert vm.run() == exits.INTERRUPTED
    assert world.head.state is State.DONE and world.cloud.groups["group"] != []
    assert any("without a token this VM cannot leave its group" in line for line in vm.said)
    after = world.boot()
    assert after.run() == exits.DONE and world.cloud.groups["group"] == []
