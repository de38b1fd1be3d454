"""Experiment and Foundation in a program that someone else wrote."""

from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from outlast import settings
from outlast.components.experiment import Experiment
from outlast.components.foundation import Foundation
from outlast.settings import SettingsError, lookups
from tests.components import inventory
from tests.components.inventory import Recorder
from tests.program import stack
from tests.tools.test_blocks import PROGRAM, blocks

CLOUD = {"gcp:project": "own", "gcp:region": "europe-west4", "gcp:zone": "europe-west4-a"}
ARGS = {"experiment": "mine", "args": {"epochs": 3}, "machine_type": "n2-standard-2"}


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorder]:
    """Runs a program in a stack with these values."""
    for key, value in stack.LOCAL_CLOUD.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(lookups, "find_bucket", lambda config: settings.FoundBucket("here"))

    def run(program: Callable[[], Any], **values: str) -> Recorder:
        pulumi.runtime.set_all_config({**CLOUD, **values})
        return inventory.record(lambda: program() and None)

    return run


def inputs(recorder: Recorder) -> list[tuple[str, str, Any]]:
    return sorted(
        ((one.type, one.name, one.inputs) for one in recorder.declared.values()),
        key=lambda one: one[:2],
    )


def test_arguments_declare_what_the_same_settings_declare(declared) -> None:
    config = {
        "outlast:experiment": "mine",
        "outlast:args": '{"epochs": 3}',
        "outlast:machineType": "n2-standard-2",
    }
    given = declared(lambda: Experiment("experiment", ARGS))
    from_config = declared(lambda: Experiment.from_config("experiment"), **config)
    assert inputs(given) == inputs(from_config)
    assert any(kind.endswith(":InstanceGroupManager") for kind, _, _ in inputs(given))


def test_the_program_on_the_page_declares_an_experiment(declared, monkeypatch) -> None:
    exported: list[str] = []
    monkeypatch.setattr(pulumi, "export", lambda key, value: exported.append(key))
    recorder = declared(lambda: exec(blocks()[PROGRAM], {}))
    kinds = {kind.rpartition(":")[2] for kind, _, _ in inputs(recorder)}
    assert kinds >= {"Experiment", "InstanceTemplate", "InstanceGroupManager"}
    assert {"runPath", "bucket", "group"} <= set(exported)


def test_the_stacks_settings_do_not_reach_an_experiment_with_arguments(declared) -> None:
    other = {"outlast:machineType": "n2-standard-8", "outlast:experiment": "other"}
    recorder = declared(lambda: Experiment("experiment", ARGS), **other)
    assert inputs(recorder) == inputs(declared(lambda: Experiment("experiment", ARGS)))


def test_its_outputs_are_known_to_the_program(declared) -> None:
    seen = {}

    def program() -> None:
        made = Experiment("experiment", ARGS)
        for key in ("bucket", "experiment", "run", "run_path", "group", "service_account"):
            getattr(made, key).apply(lambda value, key=key: seen.update({key: value}))

    declared(program)
    assert seen["bucket"] == "own-outlast" and seen["experiment"] == "mine"
    assert seen["run_path"] == f"experiments/mine/{seen['run']}"
    assert seen["group"] == f"mine-{seen['run']}"
    assert seen["service_account"].endswith("@own.iam.gserviceaccount.com")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            {"machine_typ": "n2-standard-2"},
            "argument machine_typ: is not a setting of Outlast; did",
        ),
        ({"machineType": "n2-standard-2"}, "did you mean machine_type?"),
        ({"qqqqqq": 1}, "docs/configuration.md lists them"),
        ({"args": {"epochs": object()}}, "argument args {'epochs': <object"),
        ({"processes": 0}, "outlast:processes '0': must be a whole number from 1"),
        ({"versioning": "perhaps"}, "outlast:versioning 'perhaps': must be true or false"),
    ],
)
def test_wrong_arguments_are_refused_by_name(declared, args: Any, words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        declared(lambda: Experiment("experiment", args))
    assert words in str(refused.value)


def test_an_output_as_an_argument_is_refused(declared) -> None:
    def program() -> None:
        args: Any = {"bucket": pulumi.Output.from_input("own-bucket")}
        Experiment("experiment", args)

    with pytest.raises(SettingsError, match="argument bucket: is an output, whose value is not"):
        declared(program)


@pytest.mark.parametrize("second", [Experiment, Foundation])
def test_a_second_experiment_in_one_stack_is_refused(declared, second) -> None:
    def program() -> None:
        Experiment("first", ARGS)
        second("second", {"experiment": "other"})

    with pytest.raises(
        SettingsError,
        match=f"{second.__name__} 'second': Experiment 'first' is declared already, and a stack",
    ):
        declared(program)


def test_a_foundation_by_arguments(declared) -> None:
    recorder = declared(lambda: Foundation("foundation", {"network": "isolated"}))
    kinds = {kind.rpartition(":")[2] for kind, _, _ in inputs(recorder)}
    assert kinds >= {"Foundation", "CheckpointBucket", "Network", "LeaveRole", "FoundationGuard"}
    assert "InstanceGroupManager" not in kinds
