"""The leaderboard compares at equal steps, over seeds, and names the best trial."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.base.exits import State
from outlast.bucket.head import read_head
from outlast.cli.app import cli
from outlast.cli.errors import UsageError
from outlast.cli.sweep import bring_up, leaderboard, states, tables
from outlast.cli.sweep.leaderboard import Leaderboard
from tests.cli.sweep.made import World

RATES = {"learning-rate": [0.1, 0.2, 0.3]}
ASKED: dict[str, Any] = {"parameters": RATES, "metric": "acc", "goal": "max"}


def curve(*values: float | str | None, every: int = 10) -> dict[int, dict[str, Any]]:
    return {every * (n + 1): {"acc": value} for n, value in enumerate(values)}


def board(world: World, **named: Any) -> Leaderboard:
    return leaderboard.of(world.objects, states.read(world.objects), **named)


def ranks(found: Leaderboard) -> list[tuple[Any, float | None, bool]]:
    return [
        (line.trial.record.parameters["learning-rate"], line.value, line.compared)
        for line in found.lines
    ]


def up(world: World, curves: Mapping[float, Any], **changes: Any) -> None:
    world.up(**{**ASKED, **changes})
    for rate, (state, rows) in curves.items():
        world.trains(world.run_of(learning_rate=rate), state, rows=rows)


def test_trials_are_compared_at_the_largest_step_that_all_have_reached(world: World) -> None:
    up(
        world,
        {
            0.1: (State.OPEN, curve(0.5, 0.6)),
            0.2: (State.DONE, curve(0.4, 0.7, 0.9)),
            0.3: (State.OPEN, curve(0.7, 0.65, 0.8, 0.95)),
        },
    )
    found = board(world)
    assert found.step == 20
    assert ranks(found) == [(0.2, 0.7, True), (0.3, 0.65, True), (0.1, 0.6, True)]
    assert found.best and found.best.trial.record.parameters == {"learning-rate": 0.2}
    assert [(line.best, line.best_step) for line in found.lines] == [
        (0.9, 30),
        (0.95, 40),
        (0.6, 20),
    ]
    low = board(world, goal="min")
    assert [rate for rate, *_ in ranks(low)] == [0.1, 0.3, 0.2]
    assert [line.best for line in low.lines] == [0.5, 0.65, 0.4]


def test_another_step_leaves_out_trials_that_have_not_reached_it(world: World) -> None:
    up(
        world,
        {
            0.1: (State.OPEN, curve(0.5, 0.6)),
            0.2: (State.DONE, curve(0.4, 0.7, 0.9)),
            0.3: (State.DONE, curve(0.3, 0.8, 0.85)),
        },
    )
    assert ranks(board(world, at=30)) == [(0.2, 0.9, True), (0.3, 0.85, True), (0.1, 0.6, False)]
    # Between two rows, the last one before counts.
    assert ranks(board(world, at=25))[0] == (0.3, 0.8, True)


def test_trials_that_ended_early_are_shown_and_not_compared(world: World) -> None:
    up(
        world,
        {
            0.1: (State.PRUNED, curve(0.99)),
            0.2: (State.FAILED, curve(0.98)),
            0.3: (State.DONE, curve(0.4, 0.5)),
        },
    )
    found = board(world)
    assert found.step == 20
    assert ranks(found) == [(0.3, 0.5, True), (0.1, 0.99, False), (0.2, 0.98, False)]


def test_a_pruned_trial_says_by_which_comparison(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    up(world, {0.1: (State.PRUNED, curve(0.1))})
    run = world.run_of(learning_rate=0.1)
    place = states.place_of(world.objects, run)
    head = read_head(world.store, place.layout).head
    assert head.end is not None
    why = "rung 10 of sweep lr: acc 0.1 is worse than 0.9, the last of the best 1 among 2 trials"
    pruned = replace(head, end=replace(head.end, why=why))
    world.store.put(place.layout.head, pruned.to_json())
    (line,) = [one for one in board(world).as_json()["trials"] if one["id"] == run]
    assert (line["state"], line["why"]) == ("pruned", why)
    tables.show_status(states.read(world.objects))
    assert f"{run} is pruned: {why}" in capsys.readouterr().out.splitlines()


def test_a_value_that_is_not_finite_is_last(world: World) -> None:
    up(
        world,
        {
            0.1: (State.DONE, curve(0.1, "NaN")),
            0.2: (State.DONE, curve(0.1, 0.2)),
            0.3: (State.DONE, curve(0.1, "Infinity")),
        },
    )
    first, *others = board(world).lines
    assert first.value == 0.2 and not any(math.isfinite(line.value or 0) for line in others)
    assert board(world).as_json()["trials"][1]["value"] in ("NaN", "Infinity")


def test_a_trial_that_has_diverged_does_not_rank_by_its_last_finite_value(world: World) -> None:
    """A trainer's rows have null for what is not finite."""
    up(
        world,
        {
            0.1: (State.DONE, curve(0.9, None, None)),
            0.2: (State.DONE, curve(0.1, 0.2, 0.3)),
            0.3: (State.DONE, curve(0.8, 0.7, 0.6)),
        },
    )
    found = board(world)
    assert found.step == 30, "it has rows up to there"
    assert [rate for rate, *_ in ranks(found)] == [0.3, 0.2, 0.1]
    assert math.isnan(found.lines[-1].value or 0.0)
    assert (found.lines[-1].best, found.lines[-1].best_step) == (0.9, 10)
    assert [rate for rate, *_ in ranks(board(world, goal="min"))] == [0.2, 0.3, 0.1]


def test_trials_without_a_value_come_last(world: World) -> None:
    up(world, {0.2: (State.OPEN, curve(0.4))})
    found = board(world)
    assert [line.trial.state for line in found.lines] == ["running", "starting", "starting"]
    assert found.step == 10 and found.lines[1].value is None
    assert board(world, metric="other", goal="min").best is None


def test_mean_and_spread_over_seeds(world: World) -> None:
    parameters = {"learning-rate": [0.1, 0.2], "seed": [1, 2, 3]}
    world.up(parameters=parameters, metric="acc", goal="max", parallel=9)
    values = {0.1: (0.5, 0.6, 0.7), 0.2: (0.9, 0.9, 0.9)}
    for rate, seeds in values.items():
        for seed, value in enumerate(seeds, 1):
            run = world.run_of(learning_rate=rate, seed=seed)
            world.trains(run, State.DONE, rows=curve(value))
    first, second = board(world).groups
    assert first.parameters == {"learning-rate": 0.2} and len(first.runs) == 3
    assert (first.mean, first.spread) == (pytest.approx(0.9), pytest.approx(0))
    assert (second.mean, second.spread) == (pytest.approx(0.6), pytest.approx(0.1))


def test_it_works_after_a_destroy(world: World) -> None:
    up(world, {rate: (State.DONE, curve(rate)) for rate in RATES["learning-rate"]})
    before = board(world).as_json()
    bring_up.destroy(world.objects, world.stacks, jobs=1)
    assert board(world).as_json() == before
    assert before["best"] == world.run_of(learning_rate=0.3) and before["step"] == 10
    assert before["dollars"] > 0


def test_trials_of_an_earlier_file_are_shown_on_request(world: World) -> None:
    up(world, {0.1: (State.DONE, curve(0.9))})
    world.up(**{**ASKED, "parameters": {"learning-rate": [0.2, 0.3]}})
    found = board(world)
    assert len(found.lines) == 2 and found.earlier == 1
    assert len(board(world, every=True).lines) == 3


@pytest.mark.parametrize(("metric", "last"), [("b/val/acc", 0.7), ("a/val/acc", 0.2)])
def test_the_metric_of_a_part_is_found_as_at_a_rung(world: World, metric: str, last: float) -> None:
    """Its name may have a slash, and its steps are the part's."""
    up(world, {}, metric=metric)
    rows = {
        10: {"part": ["a", 0], "val/acc": 0.2},
        11: {"part": ["b", 10], "val/acc": 0.6},
        12: {"part": ["b", 10], "val/acc": 0.7},
    }
    world.trains(world.run_of(learning_rate=0.1), State.DONE, rows=rows)
    line = board(world).lines[0]
    assert (line.value, line.step) == (last, 10 if metric[0] == "a" else 2)
    assert board(world, metric="val/acc", goal="max").best is None


def test_trials_of_earlier_code_are_not_seeds_of_current_ones(world: World) -> None:
    """They may have the same parameters, and the same seed."""
    asked: dict[str, Any] = {**ASKED, "parameters": {"learning-rate": [0.1], "seed": [1, 2]}}
    world.up(**asked)
    for run in world.objects.trials():
        world.trains(run, State.DONE, rows=curve(0.1))
    before = {*world.objects.trials()}
    settings = world.folder / "Pulumi.dev.yaml"
    settings.write_text(settings.read_text().replace("epochs: 2", "epochs: 3"))
    world.up(**asked)
    for run in {*world.objects.trials()} - before:
        world.trains(run, State.DONE, rows=curve(0.5))
    for every in (False, True):
        (group,) = board(world, every=every).groups
        assert (len(group.runs), group.mean) == (2, pytest.approx(0.5)), every


def test_another_metric_needs_its_goal(world: World) -> None:
    up(world, {0.1: (State.DONE, {10: {"acc": 0.9, "loss": 0.2}})})
    with pytest.raises(UsageError, match="--metric loss: is not the metric of sweep lr, which is"):
        board(world, metric="loss")
    assert board(world, metric="acc").goal == "max"
    assert board(world, metric="loss", goal="min").best


def test_a_trial_whose_rows_cannot_be_read_is_named(world: World) -> None:
    """It may be the best one, and has a value that an optimiser must not miss."""
    up(world, {0.1: (State.DONE, curve(0.9)), 0.2: (State.DONE, curve(0.5))})
    run = world.run_of(learning_rate=0.1)
    world.store.put(states.place_of(world.objects, run).layout.metrics_piece(1, 0), b"{\n")
    found = board(world)
    (why,) = found.unread
    assert why.startswith(f"trial {run}: its rows cannot be read (") and "not a row" in why
    (shown,) = [one for one in found.as_json()["trials"] if one["id"] == run]
    assert (shown["value"], f"trial {run}: {shown['why']}") == (None, why)
    for words, said in (
        (["leaderboard", "lr"], "not a row"),
        (["fetch", "lr", "--best"], "the best trial is not known"),
        (["tell", "lr", run], "not a row"),
    ):
        done = CliRunner().invoke(cli, ["sweep", *words])
        assert done.exit_code == 1 and said in f"{done.output} {done.exception}", words


def test_a_run_that_cannot_be_read_is_named_and_not_started_again(world: World) -> None:
    up(world, {0.1: (State.DONE, curve(0.9))})
    run = world.run_of(learning_rate=0.1)
    world.store.put(states.place_of(world.objects, run).layout.head, b"x")
    world.objects.mark_down(run)
    found = {one.state: one for one in states.read(world.objects).trials.values()}
    assert "outlast repair" in found["unread"].why
    assert not world.up(**ASKED).done
    # What it has cost is not known, and there may be a result.
    board_now = board(world)
    assert board_now.is_lower_bound and board_now.unread == (f"trial {run}: {found['unread'].why}",)
    done = CliRunner().invoke(cli, ["sweep", "fetch", "lr"])
    assert "no trial is known to be done; trial" in str(done.exception)
