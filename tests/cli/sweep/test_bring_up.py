"""`outlast sweep up`: what is missing starts, within `parallel` and the budget, nothing twice."""

import re
import threading
from typing import Any

import pytest
import yaml

from outlast.base.exits import State
from outlast.bucket.store import NotFound
from outlast.cli.errors import OperateError, UsageError
from outlast.cli.sweep import bring_up, finding, lock, plan, states, trials
from outlast.cli.sweep.bring_up import BringUp
from outlast.spec import sweeps
from tests.cli.sweep.made import World

RATES = {"learning-rate": [0.1, 0.2, 0.3, 0.4]}


def started(world: World) -> list[str]:
    """The trials that were brought up, by parameters, in order."""
    known = world.objects.trials()
    runs = [sweeps.run_of("lr", stack) for stack in world.stacks.ups]
    return [bring_up.shown(known[run].parameters) for run in runs if run]


def test_each_trial_is_one_stack_and_what_they_share_is_declared_once(world: World) -> None:
    outcome = world.up(parameters=RATES)
    assert not outcome.failed and len(outcome.done) == 4
    assert world.stacks.ups[0] == "lr--shared" and len(world.stacks.ups) == 5
    shared = world.stacks.known["lr--shared"]
    assert (shared["outlast:part"], shared["outlast:experiment"]) == ("sweep", "lr--shared")
    trial = world.stacks.known[sweeps.trial("lr", world.run_of(learning_rate=0.2))]
    assert trial["outlast:args"] == {"epochs": 2, "learning-rate": 0.2}
    assert trial["outlast:foundation"] == "lr--shared"
    assert trial["outlast:machineType"] == "n2-standard-2"
    assert set(world.states().values()) == {states.STARTING}
    assert not list(world.folder.glob("Pulumi.lr*")), "the user's folder has only the user's stacks"


def test_a_second_up_starts_nothing_twice(world: World) -> None:
    world.up(parameters=RATES)
    world.trains(world.run_of(learning_rate=0.1), State.DONE)
    world.trains(world.run_of(learning_rate=0.2), State.FAILED)
    ups = list(world.stacks.ups)
    assert not world.up(parameters=RATES).done
    assert world.stacks.ups == ups


def test_more_trials_start_only_the_new_ones(world: World) -> None:
    space = {"learning-rate": {"min": 0.001, "max": 1, "log": True}}
    asked: dict[str, Any] = {"parameters": space, "search": "random", "seed": 3, "parallel": 9}
    world.up(trials=2, **asked)
    first = started(world)
    world.up(trials=4, **asked)
    assert started(world)[:2] == first and len(started(world)) == 4


def test_equal_points_are_one_trial(world: World) -> None:
    world.up(parameters={"learning-rate": [0.1, 0.1, 1e-1]})
    assert started(world) == ["learning-rate=0.1"]
    # The default, written out, is the same run.
    assert world.prepared(parameters={"epochs": [2]}).trials[0].run == (
        world.prepared(parameters={"epochs": [2, 2]}).trials[0].run
    )


def test_parallel_bounds_the_open_trials_and_the_rest_wait(world: World) -> None:
    outcome = world.up(parameters=RATES, parallel=2)
    assert started(world) == ["learning-rate=0.1", "learning-rate=0.2"]
    assert list(outcome.waiting.values()) == [plan.PARALLEL] * 2
    assert sorted(world.states().values()) == ["starting", "starting", "waiting", "waiting"]
    world.trains(world.run_of(learning_rate=0.1), State.DONE)
    world.up(parameters=RATES, parallel=2)
    assert started(world)[2:] == ["learning-rate=0.3"]


def test_engines_work_side_by_side_but_no_more_than_asked(world: World) -> None:
    together = threading.Barrier(2, timeout=60)
    world.stacks.during = lambda stack: "shared" in stack or together.wait()
    world.up(jobs=2, parameters=RATES)
    assert world.stacks.most == 2


def test_a_failed_trial_does_not_affect_the_others(world: World) -> None:
    bad = world.prepared(parameters=RATES).trials[1]
    world.stacks.failing = {bad.stack}
    outcome = world.up(parameters=RATES)
    assert outcome.failed == {bad.stack: "the cloud said no"} and len(outcome.done) == 3
    assert world.states()["learning-rate=0.2"] == "waiting"
    world.stacks.failing = set()
    world.up(parameters=RATES)
    assert started(world)[-1] == "learning-rate=0.2"
    assert world.stacks.recovered == [bad.stack], "one that may be half up is recovered first"


@pytest.mark.parametrize("waits", [False, True])
def test_trials_that_cannot_start_keep_no_place_from_the_others(world: World, waits: bool) -> None:
    prepared = world.prepared(parameters=RATES, parallel=2)
    world.stacks.failing = {trial.stack for trial in prepared.trials[:2]}

    class Ending:
        def wait(self, *, changed: bool) -> None:
            for run, up in world.objects.ups().items():
                if up.done:
                    world.trains(run, State.DONE)

    work = BringUp(prepared, world.objects, world.stacks, jobs=1)
    outcome = work.run(pauses=Ending() if waits else None)  # type: ignore[arg-type]
    assert {*outcome.failed} == world.stacks.failing
    assert outcome.done == [trial.stack for trial in prepared.trials[2:]] and not outcome.waiting


def test_what_keeps_every_trial_from_starting_is_not_asked_for_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bring_up, "REFUSED_MAX", 2)
    world.stacks.failing = {trial.stack for trial in world.prepared(parameters=RATES).trials}
    outcome = world.up(parameters=RATES, parallel=1)
    assert len(outcome.failed) == 2 and list(outcome.waiting.values()) == [plan.PARALLEL] * 2


def test_a_trial_that_would_exceed_the_budget_waits(world: World) -> None:
    hour = plan.worst_of(world.prepared(parameters=RATES).trials[0].settings).hour.hour
    budget = {"dollars": 2.5 * hour}  # each may run for an hour
    outcome = world.up(parameters=RATES, budget=budget)
    assert len(outcome.done) == 2 and list(outcome.waiting.values()) == [plan.BUDGET] * 2
    # One that has ended has cost little, so that its reserve is free.
    world.trains(world.run_of(learning_rate=0.1), State.DONE)
    outcome = world.up(parameters=RATES, budget=budget)
    assert started(world)[2:] == ["learning-rate=0.3"] and len(outcome.waiting) == 1


def test_a_budget_in_hours(world: World) -> None:
    outcome = world.up(parameters=RATES, budget={"hours": 3})
    assert len(outcome.done) == 3 and list(outcome.waiting.values()) == [plan.BUDGET]


def test_a_trials_own_budget_bounds_its_worst_case(world: World) -> None:
    file = world.folder / "Pulumi.dev.yaml"
    config = yaml.safe_load(file.read_text())
    config["config"]["outlast:budgetDollars"] = 0.01
    file.write_text(yaml.safe_dump(config))
    outcome = world.up(parameters=RATES, budget={"dollars": 0.025})
    assert len(outcome.done) == 2 and list(outcome.waiting.values()) == [plan.BUDGET] * 2


def test_a_trials_own_budget_lasts_longest_on_its_cheapest_machine(world: World) -> None:
    file = world.folder / "Pulumi.dev.yaml"
    config = yaml.safe_load(file.read_text())
    config["config"] |= {
        "outlast:machineTypes": ["n2-standard-8"],
        "outlast:zones": ["europe-west4-a", "europe-west4-b"],
        "outlast:maxRunMinutes": 600,
        "outlast:budgetDollars": 0.1,
    }
    file.write_text(yaml.safe_dump(config))
    settings = world.prepared(parameters=RATES).trials[0].settings
    small, large = (one.hour for one in settings.machine_prices.values())
    assert small < large
    worst = plan.worst_of(settings)
    assert worst.dollars == pytest.approx(0.1)
    assert worst.hours == pytest.approx(0.1 / small) and worst.hours < 10


@pytest.mark.parametrize("destroyed", [False, True])
def test_a_trial_that_cannot_be_read_keeps_its_part_of_the_budget(
    world: World, destroyed: bool
) -> None:
    """It may have a VM, and what it has cost is not known."""
    asked: dict[str, Any] = {"parameters": RATES, "budget": {"hours": 2}, "parallel": 2}
    world.up(**asked)
    run = world.run_of(learning_rate=0.1)
    world.trains(run)
    world.store.put(trials.layout_of("lr", run).head, b"x")
    if destroyed:
        world.objects.mark_down(run)
    outcome = world.up(**asked)
    assert not outcome.done and list(outcome.waiting.values()) == [plan.BUDGET] * 2
    # Without a budget, it has a place as long as it may have a VM.
    outcome = world.up(parameters=RATES, parallel=2)
    assert len(outcome.done) == destroyed


def test_an_up_that_was_cut_off_keeps_its_part_of_the_budget(world: World) -> None:
    """It may have created a VM, whatever the file asks for then."""

    def cut(stack: str) -> None:
        if stack != "lr--shared":
            raise KeyboardInterrupt

    world.stacks.during = cut
    budget = {"hours": 2}
    with pytest.raises(KeyboardInterrupt):
        world.up(parameters={"learning-rate": [0.1]}, budget=budget)
    world.trains(world.run_of(learning_rate=0.1))
    assert world.states() == {"learning-rate=0.1": "running"}
    world.stacks.during = lambda stack: None
    outcome = world.up(parameters={"learning-rate": [0.2, 0.3]}, budget=budget)
    assert len(outcome.done) == 1 and list(outcome.waiting.values()) == [plan.BUDGET]
    # Asked for again, it takes its own part.
    outcome = world.up(parameters={"learning-rate": [0.1, 0.2]}, budget=budget)
    assert started(world)[-1] == "learning-rate=0.1" and len(outcome.done) == 1


def test_a_budget_in_dollars_needs_a_known_price(world: World) -> None:
    config = yaml.safe_load((world.folder / "Pulumi.dev.yaml").read_text())
    config["config"] |= {"outlast:machineType": "z9-new-4", "outlast:allowUnlisted": ["z9-new-4"]}
    (world.folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UsageError, match=r"budget.dollars 5: no price is known for z9-new-4"):
        world.up(parameters=RATES, budget={"dollars": 5})
    assert len(world.up(parameters=RATES, budget={"hours": 50}).done) == 4


def test_a_budget_in_dollars_counts_what_an_ended_trial_may_have_cost(world: World) -> None:
    """On a machine without a price its cost is unknown, which is not 0."""
    hour = plan.worst_of(world.prepared(parameters=RATES).trials[0].settings).hour.hour
    budget = {"dollars": 2.5 * hour}  # each may run for an hour
    assert len(world.up(parameters=RATES, budget=budget).done) == 2
    run = world.run_of(learning_rate=0.1)
    world.trains(run, State.DONE, machine="z9-new-4")
    outcome = world.up(parameters=RATES, budget=budget)
    assert not outcome.done and list(outcome.waiting.values()) == [plan.BUDGET] * 2
    # Once it is destroyed, what it was allowed to cost is not on record any more.
    world.objects.mark_down(run)
    said = f"what trial {run} has cost is unknown .no price is known for z9-new-4"
    with pytest.raises(UsageError, match=f"budget.dollars .*: {said}.*; give budget.hours"):
        world.up(parameters=RATES, budget=budget)
    assert len(world.up(parameters=RATES, budget={"hours": 4}).done) == 2


def test_an_interrupted_up_is_continued(world: World) -> None:
    def interrupt(stack: str) -> None:
        if len(world.stacks.ups) == 3:
            raise KeyboardInterrupt

    world.stacks.during = interrupt
    with pytest.raises(KeyboardInterrupt):
        world.up(parameters=RATES)
    assert len(started(world)) == 2
    world.stacks.during = lambda stack: None
    outcome = world.up(parameters=RATES)
    assert sorted(started(world)) == sorted(
        f"learning-rate={rate}" for rate in RATES["learning-rate"]
    )
    assert len(outcome.done) == 2 and "lr--shared" not in world.stacks.ups[1:]


def test_a_second_up_beside_the_first_is_refused(world: World) -> None:
    refused: list[OperateError] = []

    def beside(stack: str) -> None:
        if stack == "lr--shared":
            return
        with pytest.raises(lock.Busy) as busy:
            BringUp(world.prepared(parameters=RATES), world.objects, world.stacks, jobs=1).run()
        refused.append(busy.value)

    world.stacks.during = beside
    world.up(parameters={"learning-rate": [0.1]})
    (error,) = refused
    assert re.fullmatch(
        r"sweep lr: another outlast sweep works on it: \S+, pid \d+, last heartbeat \d+ s ago; wait"
        r" until it has ended, and run this again\.",
        str(error),
    )
    assert error.exit_code == 1


@pytest.mark.parametrize("destroys", [False, True])
def test_a_lock_that_is_lost_on_the_way_is_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch, destroys: bool
) -> None:
    if destroys:
        world.up(parameters=RATES)
    taken: list[lock.SweepLock] = []
    take = lock.SweepLock.take

    def noted(self: lock.SweepLock) -> None:
        take(self)
        taken.append(self)

    monkeypatch.setattr(lock.SweepLock, "take", noted)

    def lose(stack: str) -> None:
        if stack != "lr--shared":
            taken[-1].lost.set()

    world.stacks.during = lose
    if destroys:
        destroy = world.stacks.destroy
        monkeypatch.setattr(
            world.stacks, "destroy", lambda stack: (destroy(stack), taken[-1].lost.set())
        )
    with pytest.raises(lock.Busy, match="another outlast sweep has taken over, so not everything"):
        if destroys:
            bring_up.destroy(world.objects, world.stacks, jobs=1)
        else:
            world.up(parameters=RATES)
    assert len(world.stacks.known) == (4 if destroys else 2)


def test_waiting_trials_start_as_others_end(world: World) -> None:
    """`--wait`: each look ends what the last one has started."""
    prepared = world.prepared(parameters=RATES, parallel=2)

    class Ending:
        def wait(self, *, changed: bool) -> None:
            for run in world.objects.ups():
                world.trains(run, State.DONE)

    work = BringUp(prepared, world.objects, world.stacks, jobs=1)
    outcome = work.run(pauses=Ending())  # type: ignore[arg-type]
    assert len(outcome.done) == 4 and not outcome.waiting


def test_destroy_leaves_the_bucket_and_a_later_up_continues(world: World) -> None:
    world.up(parameters=RATES)
    world.trains(world.run_of(learning_rate=0.1), State.DONE)
    world.trains(world.run_of(learning_rate=0.2))
    outcome = bring_up.destroy(world.objects, world.stacks, jobs=2)
    assert not world.stacks.known and len(outcome.done) == 5
    assert outcome.done[-1] == "lr--shared", "what is used goes last"
    assert world.states() == {
        "learning-rate=0.1": "done",
        "learning-rate=0.2": "waiting",
        "learning-rate=0.3": "waiting",
        "learning-rate=0.4": "waiting",
    }
    before = len(world.stacks.ups)
    world.up(parameters=RATES)
    assert world.stacks.ups[before] == "lr--shared"
    assert sorted(started(world)[4:]) == [f"learning-rate={rate}" for rate in (0.2, 0.3, 0.4)]


def test_a_destroy_that_fails_keeps_what_the_trials_share(world: World) -> None:
    world.up(parameters=RATES)
    bad = sweeps.trial("lr", world.run_of(learning_rate=0.3))
    world.stacks.failing = {bad}
    outcome = bring_up.destroy(world.objects, world.stacks, jobs=1)
    assert outcome.failed == {bad: "the cloud said no"}
    assert set(world.stacks.known) == {bad, "lr--shared"}
    assert list(world.objects.ups()) == [sweeps.run_of("lr", bad)]


def test_the_bucket_of_a_new_project_comes_with_the_shared_stack(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock needs it, and there is no bucket before."""
    get, put = world.store.get, world.store.put

    def without(call: Any) -> Any:
        def called(*words: Any, **named: Any) -> Any:
            if "lr--shared" not in world.stacks.known:
                raise NotFound("gs://b: no such bucket")
            return call(*words, **named)

        return called

    monkeypatch.setattr(world.store, "get", without(get))
    monkeypatch.setattr(world.store, "put", without(put))
    assert len(world.up(parameters=RATES).done) == 4
    assert world.stacks.ups.count("lr--shared") == 1


def test_a_parameter_that_the_trainer_does_not_have(world: World) -> None:
    with pytest.raises(UsageError) as refused:
        world.up(parameters={"learning-rat": [0.1]})
    said = str(refused.value)
    assert "learning-rat: is not a flag of trainer dummy; did you mean learning-rate?" in said
    assert said.startswith("lr.yaml: base dev: ") and not world.stacks.ups


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("dve", "lr.yaml: base 'dve': this project has no stack of that name; did you mean dev?"),
        ("shared/dev", "this project has no stack of that name"),
    ],
)
def test_a_base_that_does_not_exist(world: World, base: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        world.up(base=base, parameters=RATES)
    assert said in str(refused.value) and str(refused.value).endswith("known are dev.")


def test_a_base_without_a_run(world: World) -> None:
    document = {"config": {"gcp:project": "acme-research", "outlast:part": "foundation"}}
    (world.folder / "Pulumi.net.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(UsageError, match="base 'net': is a foundation, must be an experiment's"):
        world.up(base="net", parameters=RATES)


def test_a_command_gets_its_parameters_where_it_names_them(world: World) -> None:
    config = yaml.safe_load((world.folder / "Pulumi.dev.yaml").read_text())["config"]
    for key in ("outlast:trainer", "outlast:args"):
        del config[key]
    config["outlast:command"] = "python3 t.py --lr {learning-rate} --name {name} --to {result}"
    (world.folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": config}))
    parameters = {"learning-rate": [0.1], "name": ["a b"]}
    world.up(parameters=parameters)
    (stack,) = set(world.stacks.known) - {"lr--shared"}
    command = world.stacks.known[stack]["outlast:command"]
    assert command == "python3 t.py --lr 0.1 --name 'a b' --to {result}"
    with pytest.raises(UsageError, match=r"parameters.depth: the command of stack dev does not"):
        world.up(parameters={"depth": [1]})
    config["outlast:command"] = ["python3", "t.py", "{learning-rate}", "{name}"]
    (world.folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": config}))
    found = trials.config_of(
        (prepared := world.prepared(parameters=parameters)).base, prepared.trials[0], {}, ""
    )
    assert found["outlast:command"] == '["python3", "t.py", "0.1", "a b"]'


def test_what_the_trials_share_is_not_in_their_settings(world: World) -> None:
    config = yaml.safe_load((world.folder / "Pulumi.dev.yaml").read_text())["config"]
    config |= {
        "outlast:network": "isolated",
        "outlast:nat": True,
        "outlast:versioning": True,
        "outlast:bucket": "rows",
        "outlast:serviceAccount": "own@acme-research.iam.gserviceaccount.com",
    }
    document = {"config": config, "encryptionsalt": "v1:x"}
    (world.folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump(document))
    prepared = world.prepared(parameters=RATES)
    assert prepared.bucket == "rows" and prepared.base.document == {"encryptionsalt": "v1:x"}
    world.up(parameters=RATES)
    shared = world.stacks.known.pop("lr--shared")
    assert shared["outlast:network"] == "isolated" and shared["outlast:bucket"] == "rows"
    for config in world.stacks.known.values():
        assert not {"network", "nat", "versioning", "bucket", "serviceAccount"} & {
            key.removeprefix("outlast:") for key in config
        }


def test_early_stopping_reaches_every_trial(world: World) -> None:
    stopping = {"rule": "median", "minStep": 100}
    asked: dict[str, Any] = {"metric": "loss", "goal": "min", "stopping": stopping}
    world.up(parameters=RATES, **asked)
    assert "outlast:sweep" not in world.stacks.known.pop("lr--shared")
    for config in world.stacks.known.values():
        found = config["outlast:sweep"]
        assert (found["name"], found["metric"], found["goal"]) == ("lr", "loss", "min")
        assert (found["rule"], found["minStep"]) == ("median", 100)
    with pytest.raises(UsageError, match=r"lr.yaml: stopping.rule 'best': must be"):
        world.up(parameters=RATES, **{**asked, "stopping": {"rule": "best", "minStep": 1}})


def test_a_sweep_is_found_by_its_name_after_it_was_up(world: World) -> None:
    world.up(parameters=RATES)
    assert finding.prepared("lr").trials == world.prepared(parameters=RATES).trials
    with pytest.raises(UsageError, match="no bucket of this project has it; did you mean lr?"):
        finding.named("lrr")
