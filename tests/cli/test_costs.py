"""What a run has cost: the hours of all its VMs, by the records that they left."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.head import End, Head
from outlast.bucket.layout import AttemptEnd, BootRecord, Layout
from outlast.bucket.store import MemoryStore
from outlast.cli import costs, render
from outlast.cli.errors import OperateError
from outlast.cli.runs import Place
from outlast.costs import pricing
from tests.cli.records import heartbeat_record, start_record

START = datetime(2026, 1, 1, tzinfo=UTC)
LAYOUT = Layout("experiments/dev", "0123456789")
BILLED = {"spot": True, "disk": "pd-balanced", "disk_gb": 73, "ssds": 0, "address": True}
MACHINE = 2 * 0.01208 + 8 * 0.00163
RATE = MACHINE + 73 * 0.11 / 730 + 0.005
"""Of an n2-standard-2 by Spot in europe-west4, with its disk and its address."""


class World:
    """A bucket whose clock stands where a test puts it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.store = MemoryStore(clock=lambda: START + timedelta(seconds=self.seconds))

    def boot(self, vm: int, seconds: float) -> None:
        self.seconds = seconds
        now = START + timedelta(seconds=seconds)
        record = BootRecord(str(vm), f"b{vm}", "vm", "europe-west4-a", 0, 0, now)
        self.store.put(LAYOUT.boot(str(vm), f"b{vm}"), record.to_json())

    def attempt(
        self, term: int, seconds: float, *, billed: dict | None = None, keep: int = 0
    ) -> None:
        """On the VM of the same number."""
        self.seconds = seconds
        spec = {"billed": BILLED if billed is None else billed, "timeouts": {"keep": keep}}
        record = replace(start_record(term, 0, START), spec=spec)
        self.store.put(LAYOUT.attempt_start(term), record.to_json())

    def heartbeat(self, term: int, seconds: float) -> None:
        self.seconds = seconds
        record = heartbeat_record(term, 10, START, total=100, row={"step": 10})
        self.store.put(LAYOUT.heartbeat(term), record.to_json())

    def end(self, term: int, seconds: float, reason: Reason) -> None:
        self.seconds = seconds
        record = AttemptEnd(term, reason, State.OPEN, 75, 10, 10, "", (), 0.0, START)
        self.store.put(LAYOUT.attempt_end(term), record.to_json())

    def head(self, term: int, state: State = State.OPEN) -> None:
        end = End(Reason.DONE, 0, 100, None) if state.ended else None
        deadline = START + timedelta(hours=24)
        head = Head("o/p/s", 0, 0, term, state, end, START, deadline, (), (), 0, 0, None, "n")
        self.store.put(LAYOUT.head, head.to_json())

    def count(self, at: float) -> costs.Costs:
        self.seconds = at
        return costs.count(Place("dev", self.store, LAYOUT))


@pytest.fixture
def world() -> World:
    return World()


def test_every_vm_counts_from_its_first_record_to_its_last(world):
    world.boot(1, 0)
    world.attempt(1, 60)
    world.end(1, 3600, Reason.PREEMPTED)
    world.boot(2, 4000)
    world.attempt(2, 4100)
    world.end(2, 7600, Reason.DONE)
    world.head(2, State.DONE)
    found = world.count(90_000)
    assert [life.hours for life in found.lives] == pytest.approx([1.0, 1.0])
    assert found.lives[0].rate.hour == pytest.approx(RATE)
    assert (found.state, found.unknown) == ("done", ())
    assert found.dollars == pytest.approx(2 * RATE)
    assert found.said == pricing.dollars(2 * RATE)


def test_a_vm_at_work_counts_up_to_now_and_a_silent_one_to_its_last_heartbeat(world):
    world.boot(1, 0)
    world.attempt(1, 0)
    world.heartbeat(1, 1700)
    world.head(1)
    (life,) = world.count(1800).lives
    assert life.alive and life.hours == pytest.approx(0.5)
    (life,) = world.count(36_000).lives
    assert not life.alive and life.hours == pytest.approx(1700 / 3600)


def test_a_boot_that_came_to_nothing_costs_a_minute_of_the_same_machine(world):
    world.boot(1, 0)
    world.boot(2, 1000)
    world.attempt(2, 1000)
    world.end(2, 4600, Reason.DONE)
    world.head(2, State.DONE)
    first, second = world.count(5000).lives
    assert first.hours == pytest.approx(1 / 60) and first.rate == second.rate


def test_a_vm_that_is_kept_is_paid_for(world):
    world.boot(1, 0)
    world.attempt(1, 0, keep=1800)
    world.end(1, 3600, Reason.DONE)
    world.head(1, State.DONE)
    assert world.count(4500).hours == pytest.approx(1.25)  # it is still there
    assert world.count(90_000).hours == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("billed", "hour", "unknown"),
    [
        ({**BILLED, "ssds": 2}, RATE + 2 * 375 * 0.0547 / 730, ()),
        ({**BILLED, "nat": True, "address": False}, RATE - 0.005 + 0.0064, ()),
        ({**BILLED, "accelerator": "nvidia-tesla-t4", "accelerators": 2}, RATE + 0.35, ()),
        ({**BILLED, "disk": "hyperdisk-extreme"}, MACHINE + 0.005, ("73 GiB hyperdisk-extreme",)),
        ({}, 0.0, ("n2-standard-2, whether Spot or not",)),
    ],
)
def test_what_is_beside_the_machine_counts_and_what_is_unknown_is_named(
    world, billed, hour, unknown
):
    world.boot(1, 0)
    world.attempt(1, 0, billed=billed)
    world.end(1, 3600, Reason.DONE)
    world.head(1, State.DONE)
    found = world.count(3600)
    assert found.dollars == pytest.approx(hour)
    assert found.unknown == unknown
    assert found.said.startswith("at least" if unknown and hour else "unknown" if unknown else "$")


def test_costs_are_shown_to_people_and_programs(world, capsys):
    world.boot(1, 0)
    world.attempt(1, 0)
    world.end(1, 3600, Reason.DONE)
    world.head(1, State.DONE)
    world.store.put(LAYOUT.snapshot(1, 10, "a") + "model", b"x" * 2**20)
    found = world.count(3600)
    render.show_costs(found)
    shown = capsys.readouterr().out
    assert f"dev: run 0123456789 is done; its VMs cost {found.said} in 1.00 h so far" in shown
    assert "01-01 00:00:00" in shown and "1.00 MiB in the bucket" in shown
    assert "List prices of" in shown
    document = json.loads(json.dumps(found.as_json()))
    assert document["dollars"] == pytest.approx(RATE, abs=1e-4)
    assert document["vms"][0]["end"] == "2026-01-01T01:00:00Z"


def test_before_any_vm_and_in_a_folder(world):
    found = world.count(0)
    assert (found.lives, found.state, found.said) == ((), "waiting", "$0.00")
    with pytest.raises(OperateError, match="a run in a folder has no VMs"):
        costs.count(Place("run", world.store, LAYOUT, folder=Path("run")))
