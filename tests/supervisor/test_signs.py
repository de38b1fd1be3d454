"""Which of a supervisor's doings are signs of progress."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outlast.base.exits import State
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.restore import Restored
from outlast.bucket.store import MemoryStore
from outlast.spec.run_spec import Timeouts
from outlast.supervisor import site as site_module
from outlast.supervisor.notice import Interrupted, Notices
from outlast.supervisor.site import MachineClock
from tests.supervisor.world import (
    Life,
    Vm,
    World,
    a_world,
    spec_with,
)

STALL_SEC = 1.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as world:
        yield world


def signs_of(vm: Vm) -> list[float]:
    """Their times, as they come."""
    found: list[float] = []
    site = replace(vm.boot.site, sign=lambda: found.append(time.monotonic()))
    vm.boot = replace(vm.boot, site=site)
    return found


def finish(life: Life) -> int:
    life.advance(10 - life.step)
    life.commit()
    return life.complete()


def test_steps_and_commits_are_signs_of_progress_but_a_hung_trainer_gives_none(
    world: World,
) -> None:
    def hang(life: Life) -> int:
        life.advance(2)
        life.commit()
        return life.hang()

    vm = world.boot(hang, finish, spec=spec_with(stall=STALL_SEC, retries_failures=1))
    signs = signs_of(vm)
    assert vm.run() == 0 and world.head.state is State.DONE
    longest = max(later - sooner for sooner, later in zip(signs, signs[1:], strict=False))
    assert longest >= 0.9 * STALL_SEC  # it hung, and nothing else made up for it
    assert len(signs) > 4


def test_a_restore_is_a_sign_for_each_object(store: MemoryStore, tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(name.encode())
    head_file = HeadFile(store, Layout("experiments/demo", "0123456789"))
    deadline = datetime.now(UTC) + timedelta(hours=1)
    head_file.take_term(Claim("owner", 0, 0, deadline), still_member=lambda: True)
    Committer(head_file).commit(folder, step=1)
    signs: list[int] = []
    restored = Committer(head_file, sign=lambda: signs.append(1)).restore(tmp_path / "into")
    assert isinstance(restored, Restored) and len(signs) == 3


def test_a_deliberate_sleep_gives_signs_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "SLEEP_SIGN_SEC", 0.02)
    signs: list[int] = []
    clock = MachineClock(Notices(Timeouts()), lambda: signs.append(1))
    clock.sleep(2.0)
    assert len(signs) >= 3
    clock.training = True
    clock.sleep(0.0)


def test_a_sleep_still_ends_with_sigterm() -> None:
    notices = Notices(Timeouts())
    notices.handle_signal(15, None)
    with pytest.raises(Interrupted):
        MachineClock(notices).sleep(30.0)
