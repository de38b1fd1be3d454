"""GPUs that must answer before anything is trained, and a VM that is kept after the end."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outlast.base.exits import MAX_NO_PROGRESS, Reason, State
from outlast.supervisor.driver import wait_for_gpus
from tests.log_lines import log_lines
from tests.supervisor.test_attempt import finish, stopped_after
from tests.supervisor.world import (
    LAYOUT,
    World,
    a_world,
    spec_with,
    wait_until,
)

WORKS = "echo 'GPU 0: NVIDIA L4 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA L4 (UUID: GPU-2)'"
FAILS = "echo 'NVIDIA-SMI has failed' >&2; exit 9"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts an `nvidia-smi` with these lines first on the path; no lines, no program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def put(script: str) -> None:
        (folder / "nvidia-smi").write_text(f"#!/bin/bash\n{script}\n")
        (folder / "nvidia-smi").chmod(0o755)

    return put


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as world:
        yield world


def asked(count: int, limit_sec: float = 0.0, **more) -> str:
    found = wait_for_gpus(count, limit_sec=limit_sec, **more)
    return found.why if found else ""


def test_gpus_that_answer_cause_no_wait(smi):
    smi(WORKS)
    assert asked(2) == "" and asked(1) == ""


def test_a_driver_problem_is_reported(smi):
    assert "not installed (no nvidia-smi), after 0 s; use an image with the GPU's driver" in asked(
        1
    )
    smi(FAILS)
    assert "does not answer (NVIDIA-SMI has failed)" in asked(1)
    smi(WORKS)
    assert asked(4).startswith("2 of 4 GPUs answer")


def test_a_driver_that_is_being_installed_is_waited_for(smi):
    now, said = [0.0], log_lines()

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] >= 20:
            smi(WORKS)

    assert wait_for_gpus(2, limit_sec=60, sleep=sleep, clock=lambda: now[0]) is None
    assert now[0] == 20
    assert said == [
        "the GPU's driver is not installed (no nvidia-smi); waiting up to 60 s for the driver"
    ]


def test_a_vm_whose_gpus_do_not_answer_trains_nothing(world: World, smi):
    smi(FAILS)
    spec = spec_with(driver_install=0.0, gpus=1)
    vm = world.boot(spec=spec)
    assert vm.run() == 75
    assert vm.trainers == []
    assert world.end_of(1).reason is Reason.DRIVER
    assert world.head.state is State.OPEN and world.head.failures == 0
    smi(WORKS)
    assert world.boot(finish, spec=spec).run() == 0
    assert world.head.state is State.DONE


def test_an_image_without_a_driver_ends_the_run_at_once(world: World, smi):
    first = world.boot(stopped_after(2)).start()
    first.terminate()
    assert first.ended() == 75
    before = world.head
    vm = world.boot(spec=spec_with(driver_install=0.0, gpus=1))
    assert vm.run() == 0 and vm.trainers == []
    head = world.head
    assert head.state is State.FAILED and head.end is not None
    assert (head.end.reason, head.end.step) == (Reason.DRIVER, 2)
    # What a resume with another image continues from.
    assert (head.chain, head.lineage) == (before.chain, before.lineage)
    assert "no nvidia-smi" in world.end_of(2).message
    assert world.cloud.groups["group"] == []


def test_ten_driver_failures_in_a_row_end_the_run(world: World, smi):
    smi(FAILS)
    spec = spec_with(driver_install=0.0, gpus=1)
    for _ in range(MAX_NO_PROGRESS):
        assert world.boot(spec=spec).run() == 75
    assert world.boot(spec=spec).run() == 0
    head = world.head
    assert head.state is State.FAILED and head.end is not None
    assert head.end.reason is Reason.DRIVER
    assert world.cloud.groups["group"] == []


# -- kept


def test_a_kept_vm_stays_and_then_leaves(world: World):
    vm = world.boot(finish, spec=spec_with(keep=1.0)).start()
    wait_until(lambda: world.exists(LAYOUT.end(0)))
    assert world.cloud.groups["group"] != []
    assert vm.ended() == 0
    assert world.cloud.groups["group"] == []
    assert "the machine stays for 1 s" in vm.said


def test_it_leaves_before_the_runs_limit(world: World):
    soon = datetime.now(UTC) + timedelta(seconds=121)
    spec = spec_with(keep=3600.0, deadline=soon)
    vm = world.boot(finish, spec=spec)
    assert vm.run() == 0
    (said,) = [line for line in vm.said if "the machine stays for" in line]
    assert float(said.split()[-2]) <= 1
    assert world.cloud.groups["group"] == []


def test_its_successor_does_not_stay(world: World):
    vm = world.boot(finish, spec=spec_with(keep=600.0)).start()
    wait_until(lambda: any("the machine stays" in line for line in vm.said))
    vm.terminate()
    assert vm.ended() == 75
    after = world.boot(spec=spec_with(keep=600.0))
    assert after.run() == 0
    assert after.trainers == [] and world.cloud.groups["group"] == []
