"""A store that is away, or refuses for a moment, at each moment of an attempt: waited for alike."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast.base import retry
from outlast.base.exits import Reason, State
from outlast.base.retry import SILENT_SEC, Patience
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.headfile import HeadFile
from outlast.bucket.store import Forbidden, MemoryStore, Operation, StoreError, Unavailable
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
