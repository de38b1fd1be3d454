"""What a run has cost: the hours of all its VMs, by the records that they left."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.base.exits import Reason, State
from outlast.bucket.head import End, Head
from outlast.bucket.layout import AttemptEnd, BootRecord, Layout
from outlast.bucket.store import MemoryStore
from outlast.cli import costs, experiments
from outlast.cli.app import cli
from outlast.cli.errors import OperateError
from outlast.cli.runs import Place
from outlast.cli.show.costs import show_costs
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
        self,
        term: int,
        seconds: float,
        *,
        billed: dict | None = None,
        keep: int = 0,
        step: int = 0,
        vm: int | None = None,
    ) -> None:
        """On the VM of the same number, or another."""
        self.seconds = seconds
        spec = {"billed": BILLED if billed is None else billed, "timeouts": {"keep": keep}}
        record = replace(start_record(term, step, START), spec=spec, instance_id=str(vm or term))
        self.store.put(LAYOUT.attempt_start(term), record.to_json())

    def heartbeat(self, term: int, seconds: float) -> None:
        self.seconds = seconds
        record = heartbeat_record(term, 10, START, total=100, row={"step": 10})
        self.store.put(LAYOUT.heartbeat(term), record.to_json())

    def end(self, term: int, seconds: float, reason: Reason, step: int = 10) -> None:
        self.seconds = seconds
        record = AttemptEnd(term, reason, State.OPEN, 75, step, step, "", (), 0.0, START)
        self.store.put(LAYOUT.attempt_end(term), record.to_json())

    def head(
        self,
        term: int,
        state: State = State.OPEN,
        step: int = 100,
        reason: Reason = Reason.DONE,
    ) -> None:
        end = End(reason, 0, step, None) if state.ended else None
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


def test_a_vm_is_not_kept_beyond_its_budget(world):
    world.boot(1, 0)
    world.attempt(1, 0, keep=1800)
    world.end(1, 3600, Reason.BUDGET)
    world.head(1, State.STOPPED, reason=Reason.BUDGET)
    assert world.count(90_000).hours == pytest.approx(1.0)


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
        ({}, 0.0, ("n2-standard-2, whose record does not say whether it was Spot",)),
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
    show_costs(found)
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


def preempted(world: World) -> None:
    """VM 1 boots for 6 minutes and trains an hour, 100 steps, of which 10 are lost. VM 2 comes to
    nothing. VM 3 boots for 6 minutes and trains an hour, to step 200."""
    world.boot(1, 0)
    world.attempt(1, 360)
    world.end(1, 3960, Reason.PREEMPTED, step=100)
    world.boot(2, 4000)
    world.boot(3, 4320)
    world.attempt(3, 4680, step=90)
    world.end(3, 8280, Reason.DONE, step=200)
    world.head(3, State.DONE, step=200)


def test_a_table_equals_what_is_computed_by_hand(world):
    preempted(world)
    found = world.count(9000)
    # An n2-standard-2 Spot VM in europe-west4, an hour, by the list of 2026-11-28:
    #   2 CPUs x 0.01208 + 8 GiB x 0.00163 = 0.02416 + 0.01304 = 0.0372
    #   disk 73 GiB x 0.11 a month / 730 h = 0.011; external address 0.005
    #   0.0372 + 0.011 + 0.005 = 0.0532
    assert [life.rate.hour for life in found.lives] == pytest.approx([0.0532] * 3)
    # VM 1: 6 min + 60 min = 1.1 h x 0.0532 = 0.05852; VM 2 the least, 1 min: 0.0532 / 60 =
    # 0.000886667; VM 3 as VM 1.
    rows = [(one.attempt and one.attempt.term, one.hours, one.dollars) for one in found.shares]
    assert [row[0] for row in rows] == [1, None, 3]
    assert [row[1] for row in rows] == pytest.approx([1.1, 1 / 60, 1.1])
    assert [row[2] for row in rows] == pytest.approx([0.05852, 0.000886667, 0.05852], rel=1e-5)
    # In all 0.05852 + 0.00088667 + 0.05852 = 0.11792667, by 200 committed steps = 0.000589633.
    assert found.dollars == pytest.approx(0.11792667, rel=1e-6)
    assert found.committed == 200
    assert found.step_dollars == pytest.approx(0.000589633, rel=1e-5)
    # The preemption: 10 of the 100 steps of an hour are lost, 0.1 h; then a minute of VM 2, and
    # 0.1 h of VM 3's boot. 0.1 h + 0.016667 h + 0.1 h = 0.216667 h x 0.0532 = 0.01152667.
    lost = found.preemptions
    assert (lost.count, lost.steps_lost) == (1, 10)
    assert (lost.lost_hours, lost.boot_hours) == pytest.approx((0.1, 0.1 + 1 / 60))
    assert lost.dollars == pytest.approx(0.01152667, rel=1e-6)
    # On demand: 2 x 0.034802 + 8 x 0.004664 = 0.106916, with disk and address 0.122916 an hour, for
    # 2.216667 h - 0.216667 h = 2 h: 0.245832.
    assert found.on_demand == pytest.approx((2.0, 0.245832), rel=1e-6)


@pytest.mark.parametrize(("steps", "lost", "hours"), [(0, 50, 0.5), (10, 60, 1.5)])
def test_a_checkpoint_that_is_given_up_costs_the_steps_of_earlier_attempts(
    world, steps, lost, hours
):
    """The second attempt's checkpoint is damaged, so the third resumes before it."""
    world.boot(1, 0)
    world.attempt(1, 0)
    world.end(1, 3600, Reason.PREEMPTED, step=100)
    world.boot(2, 4000)
    world.attempt(2, 4000, step=100)
    world.end(2, 7600, Reason.PREEMPTED, step=100 + steps)
    world.boot(3, 8000)
    world.attempt(3, 8000, step=50)
    world.end(3, 11_600, Reason.DONE, step=200)
    world.head(3, State.DONE, step=200)
    found = world.count(90_000).preemptions
    assert (found.count, found.steps_lost) == (2, lost)
    assert found.lost_hours == pytest.approx(hours)
    assert found.dollars == pytest.approx(hours * RATE)


def test_what_preemptions_cost_is_shown(world, capsys):
    preempted(world)
    found = world.count(9000)
    show_costs(found)
    shown = capsys.readouterr().out
    assert "a committed step: $0.00059, with 200 committed" in shown
    assert (
        "preemptions: 1 cost $0.0115, 9.8% of it: 0.10 h of 10 lost steps, 0.12 h of boots" in shown
    )
    assert "on demand: $0.25 for the same work in 2.00 h, 52% less with Spot" in shown
    assert "not counted: requests, traffic, images" in shown
    document = json.loads(json.dumps(found.as_json()))
    assert document["preemptions"]["dollars"] == pytest.approx(0.01152667, rel=1e-3)
    assert [one["attempt"] for one in document["attempts"]] == [1, None, 3]


def test_attempts_on_one_vm_share_its_life(world):
    world.boot(1, 0)
    world.attempt(1, 600)
    world.end(1, 1800, Reason.USER_FAILED)
    world.attempt(2, 1800, vm=1)
    world.end(2, 3600, Reason.DONE)
    world.head(2, State.DONE)
    found = world.count(9000)
    # Half an hour each: the boot is the first one's. The trainer's failure counts as no preemption.
    assert [one.hours for one in found.shares] == pytest.approx([0.5, 0.5])
    assert found.preemptions.count == 0 and found.preemptions.dollars == 0.0


def test_no_number_hides_an_unknown_price(world, capsys):
    world.boot(1, 0)
    world.attempt(1, 0, billed={**BILLED, "disk": "hyperdisk-extreme"})
    world.end(1, 3600, Reason.PREEMPTED, step=100)
    world.head(1)
    found = world.count(3600)
    assert found.step_dollars is None and found.on_demand is None
    show_costs(found)
    assert "cost at least $" in capsys.readouterr().out


def test_a_projects_runs_are_added_up(world, monkeypatch, capsys):
    preempted(world)
    monkeypatch.setenv("OUTLAST_BUCKET", "b")
    monkeypatch.setattr(experiments, "open_bucket", lambda bucket, stack="": world.store)
    world.store.put("experiments/other/aaaaaaaaaa/HEAD", b"no head")
    world.seconds = 9000
    answer = CliRunner().invoke(cli, ["costs", "--all", "--json"])
    document = json.loads(answer.stdout)
    assert document["dollars"] == pytest.approx(0.1179, abs=1e-4)
    assert [run["experiment"] for run in document["runs"]] == ["dev"]
    # What could not be read is said, and the sum is a lower bound.
    assert answer.exit_code == 1 and len(document["unread"]) == 1
    answer = CliRunner().invoke(cli, ["costs", "--all"])
    assert "1 run: VMs cost at least $0.12, of which $0.0115 for preemptions" in answer.stdout


@pytest.mark.parametrize("words", [[], ["dev", "--all"], ["--all", "--refresh-prices"]])
def test_one_thing_at_a_time_is_counted(words):
    answer = CliRunner().invoke(cli, ["costs", *words])
    assert answer.exit_code == 2 and "name one EXPERIMENT" in answer.output
