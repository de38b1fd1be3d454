"""A run stops at its budget: after a checkpoint, counted over all of its VMs, at pinned prices."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.boot import Claim
from outlast.bucket.layout import AttemptStart, BootRecord
from outlast.bucket.records import read_record, write_record
from outlast.bucket.store import Damaged
from outlast.supervisor.budget import Budget
from outlast.supervisor.metadata import Machine
from tests.cli.records import start_record
from tests.supervisor.test_attempt import finish, stopped_after
from tests.supervisor.world import LAYOUT, SPEC, Life, World, a_world, spec_with

SECOND = {"type": 3600.0}
"""Of the world's machine type: a dollar a second."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    with a_world(monkeypatch, tmp_path) as found:
        yield found


def end_of(world: World) -> tuple[State, Reason | None]:
    head = world.head
    return head.state, head.end.reason if head.end else None


def test_a_run_stops_at_its_budget_with_what_is_done(world: World) -> None:
    # A VM that is to be kept would cost more than the budget.
    spec = spec_with(budget_dollars=15.0, hour_prices=SECOND, keep=3600)
    vm = world.boot(stopped_after(3), spec=spec)
    assert vm.run() == 0
    assert not any("the machine stays" in line for line in vm.said)
    assert end_of(world) == (State.STOPPED, Reason.BUDGET)
    assert [entry.step for entry in world.head.chain] == [3]
    assert world.end_of(1).reason is Reason.BUDGET
    assert "budget of $15.00 is used up; raise outlast:budgetDollars" in world.end_of(1).message
    assert world.cloud.groups["group"] == []


def test_the_limit_comes_first_if_it_is_nearer(world: World) -> None:
    spec = spec_with(budget_dollars=9e5, hour_prices=SECOND)
    deadline = world.store.now() + timedelta(seconds=15)
    assert world.boot(stopped_after(3), spec=replace(spec, deadline=deadline)).run() == 0
    assert end_of(world) == (State.FAILED, Reason.LIMIT)


def test_a_used_up_budget_starts_no_trainer_and_a_higher_one_continues(world: World) -> None:
    def lost(life: Life) -> int:
        life.advance(3)
        life.commit()
        return life.obey()

    # The first VM counts at least its minute: 60 dollars.
    spec = spec_with(budget_dollars=100_000.0, hour_prices=SECOND)
    vm = world.boot(lost, spec=spec).start()
    vm.terminate()
    assert vm.ended() == 75
    second = world.boot(finish, spec=replace(spec, budget_dollars=50.0))
    assert second.run() == 0
    assert second.trainers == [] and end_of(world) == (State.STOPPED, Reason.BUDGET)
    assert "earlier VMs cost $60.00" in world.end_of(2).message
    third = world.boot(finish, spec=replace(spec, budget_dollars=500.0, resume=1))
    assert third.run() == 0
    assert end_of(world) == (State.DONE, Reason.DONE)


def test_each_vm_counts_at_the_price_that_it_recorded(world: World) -> None:
    """Two hours on a machine at 1 dollar, one on another at 4: with 10 dollars, 2 hours at 2 are
    left of the third."""
    vm = world.boot(spec=spec_with(budget_dollars=10.0, hour_prices={"c": 2.0}))
    head_file = vm.boot.head_file
    start = world.store.now()
    clock = {"at": start}
    world.store._clock = lambda: clock["at"]  # type: ignore[attr-defined]

    def life(term: int, instance: str, machine: str, prices: dict, began: float, ended: float):
        clock["at"] = start + timedelta(hours=began)
        record = BootRecord(instance, "b", "vm", "zone", 0, 0, clock["at"])
        write_record(world.store, LAYOUT.boot(instance, "b"), record)
        found = replace(
            start_record(term, 0, start),
            instance_id=instance,
            machine_type=machine,
            spec={"hour_prices": prices},
        )
        world.store.put(LAYOUT.attempt_start(term), found.to_json())
        clock["at"] = start + timedelta(hours=ended)
        record = BootRecord(instance, "c", "vm", "zone", 0, 0, clock["at"])
        write_record(world.store, LAYOUT.boot(instance, "c"), record)

    head_file.take_term(Claim(SPEC.owner, 0, 0, SPEC.deadline))
    life(1, "1", "types/a", {"a": 1.0}, 0, 2)
    life(2, "2", "b", {"b": 4.0, "a": 1.0}, 3, 4)
    life(3, "3", "c", {"c": 2.0}, 5, 5)
    budget = Budget(vm.boot.spec, head_file, Machine("vm", "3", "b", "z", "types/c", "i"))
    assert budget.begin() == ""
    assert budget.deadline == start + timedelta(hours=7)
    assert budget.bought_sec == 5 * 3600


def test_a_machine_without_a_pinned_price_is_refused(world: World) -> None:
    vm = world.boot(spec=spec_with(budget_dollars=10.0, hour_prices={"other": 2.0}))
    assert vm.run() == 75
    end = world.end_of(1)
    assert end.reason is Reason.HOST_ERROR and end.repeats
    assert "no price of machine type type was pinned; run outlast up again" in end.message


@pytest.mark.parametrize("price", [0, -1, "1", 1e9, True, None])
def test_an_impossible_price_is_refused(world: World, price: object) -> None:
    vm = world.boot(spec=spec_with(budget_dollars=10.0, hour_prices={"type": price}))
    budget = Budget(vm.boot.spec, vm.boot.head_file, vm.boot.site.machine)
    vm.boot.head_file.take_term(Claim(SPEC.owner, 0, 0, SPEC.deadline))
    with pytest.raises(Damaged, match="no price of machine type"):
        budget.begin()


def test_without_a_budget_nothing_is_read(world: World) -> None:
    vm = world.boot()
    budget = Budget(SPEC, vm.boot.head_file, vm.boot.site.machine)
    assert budget.begin() == "" and budget.deadline is None


def test_the_record_of_the_start_has_the_price(world: World) -> None:
    spec = spec_with(budget_dollars=9e5, hour_prices=SECOND)
    assert world.boot(finish, spec=spec).run() == 0
    record = read_record(world.store, LAYOUT.attempt_start(1), AttemptStart)
    assert record is not None and record.spec["hour_prices"] == SECOND
    assert record.spec["budget_dollars"] == 9e5
