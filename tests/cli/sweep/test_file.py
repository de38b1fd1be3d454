"""The sweep file: what it means, and one sentence for each mistake."""

from pathlib import Path
from typing import Any

import pytest

from outlast.cli.errors import UsageError
from outlast.cli.sweep import file
from outlast.cli.sweep.sampling import Choices, Range

GRID = {"base": "dev", "parameters": {"learning-rate": [0.1, 0.01]}}
RATE = {"min": 0.001, "max": 0.1}


def parsed(**changes: Any) -> file.Sweep:
    return file.parse({**GRID, **changes}, "lr.yaml", name="lr")


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "lr.yaml"
    path.write_text(
        """
base: dev
parameters:
  learning-rate: {min: 1e-4, max: 0.1, log: true}
  batch-size: [32, 64]
  epochs: {min: 1, max: 5}
search: random
seed: 7
trials: 24
parallel: 6
budget: {dollars: 20}
metric: test_accuracy
goal: max
stopping: {rule: median, minStep: 100}
"""
    )
    found = file.read(path)
    assert found.name == "lr"
    assert found.spaces == {
        "learning-rate": Range(1e-4, 0.1, log=True),
        "batch-size": Choices((32, 64)),
        "epochs": Range(1, 5),
    }
    assert len(found.points()) == 24 and found.asked.budget == file.Budget(dollars=20)
    again = file.parse(found.as_document(), "the record")
    assert again.spaces == found.spaces and again.points() == found.points()
    assert again.asked == found.asked.model_copy(update={"name": "lr"})


def test_a_grid_is_in_order_and_may_be_cut() -> None:
    rates = {"learning-rate": [0.1, 0.01], "seed": [1, 2]}
    assert [point for _, point in parsed(parameters=rates).points()] == [
        {"learning-rate": rate, "seed": seed} for rate in (0.1, 0.01) for seed in (1, 2)
    ]
    assert len(parsed(parameters=rates, trials=3).points()) == 3


def test_the_short_form_is_the_same_sweep() -> None:
    found = file.short(
        ["learning-rate=0.1,1e-2", "batch-size=32"], "dev", metric="loss", goal="min"
    )
    assert found.name == "dev"
    assert found.spaces == {
        "learning-rate": Choices((0.1, 0.01)),
        "batch-size": Choices((32,)),
    }
    assert found.asked.metric == "loss"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"paralel": 3}, "lr.yaml: paralel: is not known; did you mean parallel?"),
        ({"parameters": {"lr": []}}, "lr.yaml: parameters.lr []: must have a value"),
        ({"parameters": {}}, "lr.yaml: parameters: is empty, and search grid needs one"),
        (
            {"parameters": {"lr": {"min": 0.1, "max": 0.001}}},
            "lr.yaml: parameters.lr: min 0.1 is not below max 0.001; swap them",
        ),
        (
            {"parameters": {"lr": {"min": 0, "max": 1, "log": True}}},
            "lr.yaml: parameters.lr.min 0: a log range must begin above 0",
        ),
        ({"parameters": {"lr": {"min": 1}}}, "lr.yaml: parameters.lr.max: is missing"),
        ({"parameters": {"lr": {**RATE, "stop": 1}}}, "parameters.lr.stop: is not known; did you"),
        ({"parameters": {"lr": {**RATE, "step": 0}}}, "parameters.lr.step 0: must be above 0"),
        (
            {"parameters": {"lr": {**RATE, "step": 0.1, "log": True}}},
            "parameters.lr.step 0.1: a log range has no steps",
        ),
        ({"parameters": {"lr": {**RATE, "log": 1}}}, "parameters.lr.log 1: must be true or false"),
        ({"parameters": {"lr": {"min": "a", "max": 1}}}, "parameters.lr.min 'a': must be a finite"),
        ({"parameters": {"lr": {"min": 0, "max": 10**400}}}, "lr.max 10000"),
        ({"parameters": {"lr": 3}}, "parameters.lr 3: must be a list of values, or a range"),
        ({"parameters": {"lr": [[1]]}}, "parameters.lr [1]: must be a finite number, a text"),
        ({"parameters": {"lr": [float("nan")]}}, "parameters.lr nan: must be a finite number"),
        ({"parameters": {"--lr": [1]}}, "parameters.--lr: must be a flag in lower case"),
        ({"parameters": {"lr": RATE}}, "a grid needs a list or a step"),
        ({"parameters": [1]}, "lr.yaml: parameters [1]: must be a mapping of parameters"),
        ({"search": "bayes"}, "lr.yaml: search 'bayes': must be grid, random or ask"),
        ({"search": "random"}, "lr.yaml: trials: is missing, and search random needs it"),
        ({"search": "ask", "trials": 3}, "lr.yaml: trials 3 beside search ask"),
        (
            {"search": "random", "trials": 1_000_000},
            "lr.yaml: trials 1000000: must be a whole number from 1 to 1000",
        ),
        (
            {"parameters": {"a": {"min": 1, "max": 1000}, "b": {"min": 1, "max": 1000}}},
            "lr.yaml: parameters: their grid has 1000000 trials, and a sweep has at most 1000",
        ),
        ({"trials": 0}, "lr.yaml: trials 0: must be a whole number from 1"),
        ({"parallel": "many"}, "lr.yaml: parallel 'many': must be a whole number from 1"),
        ({"seed": -1}, "lr.yaml: seed -1: must be a whole number, 0 or more"),
        ({"budget": {}}, "lr.yaml: budget: must have either dollars or hours"),
        ({"budget": {"dollars": 1, "hours": 1}}, "budget: must have either dollars or hours"),
        ({"budget": {"eur": 1}}, "lr.yaml: budget.eur: is not known; known are dollars, hours"),
        ({"budget": {"dolars": 1}}, "lr.yaml: budget.dolars: is not known; did you mean dollars?"),
        ({"budget": {"dollars": 0}}, "lr.yaml: budget.dollars 0: must have dollars or hours"),
        ({"metric": "loss"}, "lr.yaml: goal: is missing beside metric"),
        ({"goal": "max"}, "lr.yaml: goal 'max': needs a metric"),
        ({"metric": "loss", "goal": "low"}, "lr.yaml: goal 'low': must be max or min"),
        ({"stopping": {"rule": "median"}}, "lr.yaml: stopping: needs a metric"),
        ({"base": 3}, "lr.yaml: base 3: must name a stack"),
        ({"base": ""}, "lr.yaml: base '': must name a stack"),
        ({"name": "a--b"}, "lr.yaml: name 'a--b': must have 1 to 28 lower-case letters"),
        ({"name": "a" * 29}, "must have 1 to 28"),
    ],
)
def test_mistakes(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parsed(**changes)
    text = str(refused.value)
    assert said in text and "\n" not in text and refused.value.exit_code == 64


def test_a_missing_base() -> None:
    with pytest.raises(UsageError, match="lr.yaml: base: is missing; it must name a stack"):
        file.parse({"parameters": {"a": [1]}}, "lr.yaml", name="lr")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: dev\nbase: other\n", "base: is there twice, in line 2 too"),
        ("parameters:\n  a: [1]\n  a: [2]\n", "a: is there twice, in line 3 too"),
        ("base: [dev\n", "is not YAML ("),
        ("base: dev\nparameters: &all\n  a: *all\n", "parameters.a.a: is not known"),
        ("- base\n", "must be a mapping with base and parameters, found list"),
        ("", "must be a mapping with base and parameters, found NoneType"),
    ],
)
def test_what_is_not_a_sweep_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "lr.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        file.read(path)
    assert said in str(refused.value) and str(path) in str(refused.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        file.read(tmp_path / "lr.yaml")


@pytest.mark.parametrize("text", ["learning-rate", "learning-rate=", "=1", "a=2026-13-45"])
def test_mistakes_of_the_short_form(text: str) -> None:
    with pytest.raises(UsageError):
        file.short([text], "dev")
    with pytest.raises(UsageError, match="is there twice"):
        file.short(["a=1", "a=2"], "dev")
