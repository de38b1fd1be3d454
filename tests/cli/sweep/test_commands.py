"""`outlast sweep`: its commands as a researcher types them, and as an optimiser calls them."""

import json
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from outlast.base.exits import State
from outlast.cli import stack
from outlast.cli.app import cli
from outlast.cli.errors import OperateError, UsageError
from outlast.cli.sweep import finding, plan, stacks
from tests.cli.sweep.made import World

RATES = {"learning-rate": [0.1, 0.2]}
EXAMPLE = Path(__file__).parents[3] / "examples" / "sweeps" / "optuna_sweep.py"


@pytest.fixture(autouse=True)
def fake_engine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "EngineStacks", lambda name: world.stacks)
    monkeypatch.setattr("outlast.settings.allowances.shortages", lambda *_, **__: [])


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, ["sweep", *words], catch_exceptions=False)


def printed(*words: str) -> Any:
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_preview_says_what_it_costs_before_anything_is_created(world: World) -> None:
    path = world.write(parameters=RATES, parallel=1, budget={"dollars": 0.2})
    found = printed("preview", str(path))
    assert [trial["parameters"] for trial in found["trials"]] == [
        {"learning-rate": 0.1},
        {"learning-rate": 0.2},
    ]
    cost = found["cost"]
    assert cost["trial"] == pytest.approx(cost["hour"], rel=0.01), "an hour is its limit"
    assert cost["all"] == pytest.approx(2 * cost["trial"], rel=0.01)
    assert found["hours"] == 2 and found["starts"] == 1
    assert any("1 service account of 100" in one for one in found["limits"])
    text = call("preview", str(path)).output
    for words in (
        "2 trials of dev; to start at the next up: 1, to wait: 1",
        "budget    $0.20",
        "at most",
    ):
        assert words in text
    assert not world.stacks.known and not list(world.store.list(""))


def test_preview_knows_what_is_done_and_names_quotas(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = world.write(parameters=RATES)
    call("up", str(path))
    world.trains(world.run_of(learning_rate=0.1), State.DONE)
    short = [("IN_USE_ADDRESSES", " in europe-west4", 1.0, 2.0)]
    monkeypatch.setattr("outlast.settings.allowances.shortages", lambda *_, **__: short)
    found = printed("preview", str(path))
    assert [trial["state"] for trial in found["trials"]] == ["done", "starting"]
    assert any("quota IN_USE_ADDRESSES in europe-west4: 2 trials at once" in one
               for one in found["limits"])  # fmt: skip
    assert found["starts"] == 0 and found["cost"]["all"] == 0


def test_a_preview_calls_what_was_spent_a_lower_bound_if_a_price_is_unknown(world: World) -> None:
    path = world.write(parameters=RATES)
    call("up", str(path))
    assert printed("preview", str(path))["cost"]["spent_known"] is True
    world.trains(world.run_of(learning_rate=0.1), State.DONE, machine="z9-new-4")
    assert printed("preview", str(path))["cost"]["spent_known"] is False
    assert "spent     at least $" in call("preview", str(path)).output


def test_preview_needs_no_cloud(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> Any:
        raise OperateError("gs://b: cannot be read")

    monkeypatch.setattr(finding.experiments, "open_bucket", away)
    monkeypatch.setattr("outlast.settings.allowances.shortages", lambda *_, **__: None)
    found = printed("preview", str(world.write(parameters=RATES)))
    assert len(found["trials"]) == 2
    assert found["warnings"] == [
        "which trials have ended is not known: gs://b: cannot be read",
        "quotas of project acme-research: could not be read, so not checked",
    ]


def test_the_short_form(world: World) -> None:
    words = ("--grid", "learning-rate=0.1,0.2", "--base", "dev", "--name", "lr")
    found = printed("up", *words)
    assert len(found["done"]) == 2
    assert {one["state"] for one in printed("status", "lr")} == {"starting"}
    for wrong in (("--grid", "a=1"), ("--base", "dev"), (), ("f.yaml", "--grid", "a=1")):
        assert call("up", *wrong).exit_code == 2


def test_a_failed_trial_is_in_the_exit_code_and_the_table(world: World) -> None:
    path = world.write(parameters=RATES)
    world.stacks.failing = {world.prepared(parameters=RATES).trials[0].stack}
    done = call("up", str(path))
    assert done.exit_code == 1 and "failed: the cloud said no" in done.output
    assert "waiting" in call("status", "lr").output


def test_status_leaderboard_and_fetch(world: World) -> None:
    path = world.write(parameters=RATES, metric="acc", goal="max")
    call("up", str(path))
    text = call("leaderboard", str(path)).output
    assert "no trial has a value of acc yet" in text
    world.trains(world.run_of(learning_rate=0.1), State.DONE, rows={10: {"acc": 0.5}})
    world.trains(world.run_of(learning_rate=0.2), State.DONE, rows={10: {"acc": 0.7}})
    text = call("leaderboard", "lr").output
    assert "best: lr--" in text and "with acc 0.7 at step 10 (max)" in text
    assert printed("leaderboard", "lr")["best"] == world.run_of(learning_rate=0.2)
    assert "2 done" in call("status", "lr").output
    assert "lr--shared" in printed("destroy", "lr")["done"] and not world.stacks.known
    assert printed("leaderboard", "lr")["step"] == 10
    with pytest.raises(OperateError, match="lr--.*has no result"):
        call("fetch", "lr", "--best")  # it has no files here


def test_unknown_sweeps_and_trials(world: World) -> None:
    with pytest.raises(UsageError, match="no bucket of this project has it; there is none"):
        call("leaderboard", "lr")
    call("up", str(world.write(parameters=RATES)))
    with pytest.raises(UsageError, match="trial 'abc': is not a trial of sweep lr"):
        call("tell", "lr", "abc")


def test_another_optimiser_asks_and_is_answered(world: World) -> None:
    path = str(world.write(search="ask", metric="acc", goal="max",
                           parameters={"learning-rate": {"min": 0.01, "max": 1}}))  # fmt: skip
    with pytest.raises(UsageError, match="--params rate: is not a parameter of the sweep"):
        call("ask", path, "--params", '{"rate": 1}')
    with pytest.raises(UsageError, match="is not JSON"):
        call("ask", path, "--params", "{")
    with pytest.raises(UsageError, match="must be a JSON object"):
        call("ask", path, "--params", "[1]")
    with pytest.raises(UsageError, match="learning-rate nan: must be a finite number"):
        call("ask", path, "--params", '{"learning-rate": NaN}')
    assert printed("up", path)["done"] == []
    first = printed("ask", path, "--params", '{"learning-rate": 0.5}')
    assert first["new"] and not printed("ask", path, "--params", '{"learning-rate": 0.5}')["new"]
    assert printed("tell", "lr", first["id"])[0]["state"] == "waiting"
    assert printed("up", path)["done"] == [first["experiment"]]
    world.trains(first["id"], State.DONE, rows={10: {"acc": 0.5}, 20: {"acc": 0.4}})
    (answer,) = printed("tell", "lr", first["id"], "--wait")
    assert (answer["state"], answer["value"], answer["best"]) == ("done", 0.4, 0.5)
    assert "done, 0.4 at step 20" in call("tell", "lr").output


def test_an_asked_trial_of_changed_code_is_not_started(world: World) -> None:
    path = world.write(search="ask")
    call("up", str(path))
    asked = printed("ask", str(path), "--params", '{"learning-rate": 0.5}')
    file = world.folder / "Pulumi.dev.yaml"
    file.write_text(file.read_text().replace("epochs: 2", "epochs: 3"))
    done = call("up", str(path))
    assert done.exit_code == 1 and "ask again" in done.output
    assert asked["experiment"] not in world.stacks.known


def test_a_trials_commands_act_as_the_identity_of_its_settings(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.folder / ".outlast" / "sweeps" / "lr" / "lr--0123456789"
    folder.mkdir(parents=True)
    values = {"gcp:impersonateServiceAccount": "deployer@p.iam.gserviceaccount.com"}
    (folder / "Pulumi.lr--0123456789.yaml").write_text(yaml.safe_dump({"config": values}))
    asked: list[Any] = []

    def run_engine(command: list[str], *, env: Any, cwd: Any = None) -> str:
        asked.append((command[-1], cwd))
        return json.dumps({key: {"value": value} for key, value in values.items()})

    used: list[Any] = []
    monkeypatch.setattr(stack.engine, "run_engine", run_engine)
    monkeypatch.setattr(stack.credentials, "use_settings", used.append)
    stack.take_identity("lr--0123456789")
    assert asked == [("lr--0123456789", folder)] and used == [values]
    stack.take_identity("lr--gone")
    assert used[1:] == [{}]


class Study:
    """As much of optuna as the example uses: a search that tries fixed values."""

    def __init__(self, direction: str) -> None:
        self.direction = direction
        self.values = iter((0.1, 0.2, 0.3, 0.4))
        self.results: dict[int, Any] = {}

    def ask(self) -> Any:
        number, value = len(self.results), next(self.values)
        self.results[number] = None
        trial = types.SimpleNamespace(number=number, params={"learning-rate": value})
        trial.suggest_float = lambda name, low, high, log: value
        return trial

    def tell(self, trial: Any, value: float | None = None, *, state: Any = None) -> None:
        self.results[trial.number] = state if value is None else value

    @property
    def best_value(self) -> float:
        return max(one for one in self.results.values() if isinstance(one, float))

    best_params: dict[str, Any] = {}


def test_optuna_drives_a_sweep(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example, with optuna where it is installed and a stub elsewhere."""
    path = world.write(search="ask", metric="acc", goal="max", parallel=2)
    studies: list[Any] = []
    try:
        import optuna  # type: ignore[import-not-found]

        create = optuna.create_study
        optuna.logging.set_verbosity(optuna.logging.WARNING)
    except ModuleNotFoundError:
        optuna = types.ModuleType("optuna")
        optuna.trial = types.SimpleNamespace(  # type: ignore[attr-defined]
            TrialState=types.SimpleNamespace(PRUNED="pruned", FAIL="fail")
        )
        optuna.Study = Study  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "optuna", optuna)
        create = Study

    def made(direction: str) -> Any:
        studies.append(create(direction=direction))
        return studies[0]

    monkeypatch.setattr(optuna, "create_study", made, raising=False)

    def outlast(*words: str) -> Any:
        """Trains what was asked for as soon as its result is waited for."""
        if words[0] == "tell":
            for run in world.objects.ups():
                rate = world.objects.trials()[run].parameters["learning-rate"]
                state = State.PRUNED if rate == 0.3 else State.DONE
                world.trains(run, state, rows={10: {"acc": 1 - abs(rate - 0.2)}})
        return printed(*words)

    example = runpy.run_path(str(EXAMPLE))
    best = example["search"](str(path), trials=4, at_once=2, outlast=outlast)
    assert len(world.objects.trials()) == 4
    values = [
        1 - abs(one.parameters["learning-rate"] - 0.2)
        for one in world.objects.trials().values()
        if one.parameters["learning-rate"] != 0.3
    ]
    assert best.best_value == pytest.approx(max(values))
    assert studies == [best]


def test_help_has_an_example_for_each_command() -> None:
    for command in ("preview", "up", "status", "leaderboard", "fetch", "destroy", "ask", "tell"):
        text = call(command, "--help").output
        assert f"\n  outlast sweep {command} " in text, command
        assert plan.PARALLEL
