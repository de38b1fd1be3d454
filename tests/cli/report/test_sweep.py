"""The page about a sweep: its leaderboard, and its trials at equal steps."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outlast.base.exits import State
from outlast.bucket.store import Damaged
from outlast.cli import runs
from outlast.cli.app import cli
from outlast.cli.errors import UsageError
from outlast.cli.report import sweep
from outlast.cli.report.sweep import COLOURS
from tests.cli.report.test_page import HOSTILE, Seen
from tests.cli.sweep.conftest import world  # noqa: F401  a fixture
from tests.cli.sweep.made import World

RATES = [0.3, 0.1, 0.03, 0.01]
ASKED: dict[str, Any] = {
    "parameters": {"learning-rate": RATES, "seed": [1, 2], "batch-size": [64]},
    "metric": "acc",
    "goal": "max",
}


def value(rate: float, seed: int, step: int) -> float:
    best = 0.95 - 0.1 * abs(math.log10(rate / 0.1)) + 0.002 * seed
    return best * (1 - math.exp(-step / 60))


def trained(world: World, rows: int = 20) -> World:  # noqa: F811
    """Eight trials: six done, one pruned, one open."""
    world.up(**ASKED, parallel=8)
    for rate in RATES:
        for seed in (1, 2):
            state = {(0.01, 2): State.PRUNED, (0.03, 2): State.OPEN}.get((rate, seed), State.DONE)
            count = {State.PRUNED: rows // 4, State.OPEN: rows // 2}.get(state, rows)
            steps = [20 * (n + 1) for n in range(count)]
            curve = {step: {"acc": value(rate, seed, step), "loss": 1.0} for step in steps}
            run = world.run_of(learning_rate=rate, seed=seed, batch_size=64)
            world.trains(run, state, rows=curve)
    return world


def outlast(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.stdout


def test_trials_are_compared_and_linked(world: World) -> None:  # noqa: F811
    facts = sweep.read(trained(world).objects)
    text = sweep.html(facts)
    seen = Seen(text)
    best = world.run_of(learning_rate=0.1, seed=2, batch_size=64)
    assert f"The best trial is {best} , with acc {value(0.1, 2, 200):.4g}" in seen.text
    assert "acc, max, compared at step 200, which all compared trials have reached" in seen.text
    assert "trials 8 6 done, 1 pruned, 1 running" in seen.text
    # All trials have a row, in order, and a section that the row leads to.
    rows = re.findall(r'<a href="#trial-([0-9a-f]+)">[0-9a-f]+</a></td>', text)
    order = [one.run for one in facts.entries]
    assert rows == order and rows[0] == best and len({*rows}) == 8
    ids = [one for one in seen.values["id"] if one != "top"]
    assert ids == [f"trial-{run}" for run in order]
    assert {link[1:] for link in seen.values["href"]} == {*ids, "top"}
    # One curve each in the overlay and in its own chart; the pruned one has the common colour.
    assert len(seen.values["points"]) == 16
    pruned = world.run_of(learning_rate=0.01, seed=2, batch_size=64)
    assert [one.rank for one in facts.entries if one.run == pruned] == [COLOURS]
    assert sorted(one.rank for one in facts.entries) == [*range(COLOURS), COLOURS]
    # Only what differs is in the leaderboard; over seeds there are means.
    assert "learning-rate 0.1, seed 2" in seen.text and facts.names == ("learning-rate", "seed")
    assert "Over seeds" in seen.text and "batch-size 64" in seen.text


def test_the_command_finds_it_by_name_and_by_file(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained(world)

    def none(name: str) -> object:
        raise UsageError(f"{name}: there is no run of it")

    monkeypatch.setattr(runs, "find", none)
    for words in (("lr",), ("lr", "--sweep"), ("lr.yaml",)):
        assert outlast("report", *words) == "report-lr.html\n"
        assert Path("report-lr.html").read_text().startswith("<!doctype html>")
        Path("report-lr.html").unlink()
    shown = json.loads(outlast("report", "lr", "--sweep", "--json"))
    assert (shown["sweep"], shown["step"], len(shown["trials"])) == ("lr", 200, 8)
    assert shown["states"] == {"done": 6, "pruned": 1, "running": 1}
    done = CliRunner().invoke(cli, ["report", "nothing"])
    assert str(done.exception) == "nothing: there is no run of it"


def test_parameters_are_text_alone(world: World) -> None:  # noqa: F811
    plain = Seen(sweep.html(sweep.read(trained(world).objects)))
    records = world.objects.trials()
    for run in list(records):
        path = f"{world.objects.root}trials/{run}.json"
        record = json.loads(world.store.get(path)[0])
        record["parameters"] = {"learning-rate": HOSTILE, f"name{HOSTILE}": run}
        world.store.put(path, json.dumps(record).encode())
    text = sweep.html(sweep.read(world.objects))
    hostile = Seen(text)
    assert hostile.shapes <= plain.shapes and hostile.comments == plain.comments
    assert {one[0] for one in hostile.values["href"]} == {"#"}
    assert "name</style></title>" in hostile.text
    assert not [char for char in text if not char.isprintable() and char != "\n"]


def test_a_trial_that_cannot_be_read_is_named(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained(world)
    torn = world.run_of(learning_rate=0.3, seed=1, batch_size=64)
    get = world.store.get

    def broken(path: str, **how: Any) -> Any:
        if torn in path and path.endswith("HEAD"):
            raise Damaged(f"{path}: torn")
        return get(path, **how)

    monkeypatch.setattr(world.store, "get", broken)
    facts = sweep.read(world.objects)
    assert len(facts.problems) == 1 and torn in facts.problems[0]
    assert "Not everything could be read." in Seen(sweep.html(facts)).text


def test_a_sweep_without_a_metric_or_a_run(world: World) -> None:  # noqa: F811
    world.up(parameters={"learning-rate": [0.1, 0.2]})
    seen = Seen(sweep.html(sweep.read(world.objects))).text
    assert "names no metric" in seen and "trials 2 2 starting" in seen
    assert "Over seeds" not in seen
