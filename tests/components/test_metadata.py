"""The instance metadata: what is composed is what the supervisor reads."""

import json
from datetime import UTC, datetime
from typing import Any

import pulumi
import pytest

from outlast.components import metadata
from outlast.spec.run_spec import RunSpec, argv, texts_of
from tests.components import inventory

DEADLINE = "2026-11-27T23:59:59Z"
SPEC: dict[str, Any] = {
    "bucket": "p-outlast",
    "prefix": "experiments/dev",
    "run": "0123456789",
    "resume": 1,
    "placement": 2,
    "owner": "organization/outlast/dev",
    "bundle": "experiments/dev/bundles/00.zip",
    "bundle_sha256": "0" * 64,
    "trainer": "digits",
    "deadline": datetime(2026, 11, 27, 23, 59, 59, tzinfo=UTC),
    "retries_failures": 3,
    "content": {"trainer": "digits", "arguments": {"epochs": 5}},
    "billed": {"disk": "pd-balanced", "disk_gb": 50, "spot": True},
}


def composed(late: dict[str, Any] | None = None, **changes: Any) -> dict[str, str]:
    """The metadata's final texts."""
    found: dict[str, str] = {}
    changes["args"] = texts_of(changes.pop("arguments", {}))

    def program():
        spec = RunSpec(**{**SPEC, **changes})
        items = metadata.compose(spec, script="#!/bin/bash", late=late or {})
        pulumi.Output.all(**items).apply(found.update)

    inventory.record(program)
    return found


def test_the_supervisor_reads_what_is_composed():
    spec = RunSpec.from_metadata(composed(arguments={"epochs": 5, "augment": True, "rate": 1e-3}))
    assert (spec.bucket, spec.prefix, spec.run) == ("p-outlast", "experiments/dev", "0123456789")
    assert (spec.resume, spec.placement, spec.owner) == (1, 2, "organization/outlast/dev")
    assert (spec.trainer, spec.retries_failures) == ("digits", 3)
    assert spec.deadline is not None and f"{spec.deadline:%Y-%m-%dT%H:%M:%SZ}" == DEADLINE
    assert argv(spec.args) == ["--augment", "--epochs=5", "--rate=0.001"]
    assert spec.content == SPEC["content"]
    assert spec.billed == {"disk": "pd-balanced", "disk_gb": 50, "spot": True}
    assert spec.bundle == SPEC["bundle"] and spec.bundle_sha256 == SPEC["bundle_sha256"]


def test_the_machines_gpus_and_the_mode_arrive():
    spec = RunSpec.from_metadata(composed(gpus=2, mode="burst"))
    assert (spec.gpus, spec.mode) == (2, "burst")
    assert "outlast-gpus" not in composed()


def test_a_command_arrives_as_it_was_written():
    items = composed(
        command=("./train.sh", "{data}"),
        checkpoint_quiet_sec=30,
        data=("gs://b/rows/", "gs://b/names"),
    )
    spec = RunSpec.from_metadata(items)
    assert spec.command == ("./train.sh", "{data}") and spec.checkpoint_quiet_sec == 30
    assert spec.data == ("gs://b/rows/", "gs://b/names")
    assert RunSpec.from_metadata(composed()).command is None
    assert not {"outlast-command", "outlast-checkpoint-quiet-sec", "outlast-data"} & set(composed())


@pytest.mark.parametrize(
    ("value", "text"),
    [(5, "5"), (0.1, "0.1"), (1e-05, "1e-05"), (True, "true"), ("a b", "a b"), (-1, "-1")],
)
def test_an_argument_is_text(value, text):
    assert composed(arguments={"x": value})["outlast-arg-x"] == text


def test_a_switch_that_is_off_is_left_out():
    assert "outlast-arg-x" not in composed(arguments={"x": False})


def test_what_is_kept_and_the_trainers_interpreter_are_optional():
    optional = {"outlast-keep-every-steps", "outlast-trainer-python", "outlast-processes"}
    assert not optional & composed().keys()
    given = composed(keep_every_steps=500, trainer_python="/opt/conda/bin/python", processes=4)
    assert RunSpec.from_metadata(given).processes == 4
    assert given["outlast-keep-every-steps"] == "500"
    assert given["outlast-trainer-python"] == "/opt/conda/bin/python"


def test_the_trainers_own_user_reaches_the_vm():
    assert "outlast-trainer-user" not in composed()
    assert RunSpec.from_metadata(composed()).trainer_user == "root"
    assert RunSpec.from_metadata(composed(trainer_user="own")).trainer_user == "own"


def test_a_checkpoint_to_begin_with_is_optional():
    pin = f"gs://b/experiments/e/0123456789/t000001/s000000000010-0a/#{'0' * 64}"
    assert "outlast-init" not in composed()
    assert RunSpec.from_metadata(composed(init=pin)).init == pin


def test_the_supervisor_knows_where_a_copy_of_the_result_goes():
    given = composed(arguments={"model-output-path": "gs://b/experiments/dev/models/"})
    assert RunSpec.from_metadata(given).model_output_path == "gs://b/experiments/dev/models/"


def test_of_secrets_only_the_names_are_there():
    name = "projects/p/secrets/wandb/versions/latest"
    assert not [key for key in composed() if "secret" in key]
    items = composed(secret_env={"WANDB_API_KEY": name}, webhook_secret=name)
    assert json.loads(items["outlast-secret-env"]) == {"WANDB_API_KEY": name}
    assert items["outlast-webhook-secret"] == name


def test_a_webhook_is_optional():
    assert "outlast-webhook" not in composed()
    assert composed(webhook="https://h/x")["outlast-webhook"] == "https://h/x"


def test_what_is_known_later_comes_instead_of_the_specs() -> None:
    late = {"outlast-bucket": pulumi.Output.from_input("made"), "outlast-placement": "7"}
    found = RunSpec.from_metadata(composed(late))
    assert (found.bucket, found.placement, found.run) == ("made", 7, SPEC["run"])


def test_health_and_os_login_are_the_scripts_keys() -> None:
    spec = RunSpec(**SPEC)
    plain = metadata.compose(spec, script="", late={})
    items = metadata.compose(spec, script="", late={}, health="8099 900", oslogin=True)
    assert set(items) - set(plain) == {"outlast-health", "enable-oslogin"}
    assert items["outlast-health"] == "8099 900" and items["enable-oslogin"] == "TRUE"


def test_keys_that_a_project_lets_into_all_its_vms_do_not_open_ours() -> None:
    """On the network `default`, port 22 is open to everyone."""
    for oslogin in (False, True):
        items = metadata.compose(RunSpec(**SPEC), script="", late={}, oslogin=oslogin)
        assert items["block-project-ssh-keys"] == "TRUE"


def test_a_value_may_just_fit():
    assert len(composed(arguments={"x": "a" * metadata.VALUE_LIMIT})["outlast-arg-x"]) == 262_144


def test_size_is_counted_in_bytes():
    with pytest.raises(pulumi.RunError, match="outlast-arg-x: has 262146 bytes, at most 262144"):
        composed(arguments={"x": "ä" * (metadata.VALUE_LIMIT // 2 + 1)})


def test_all_together_have_a_limit_too():
    arguments = {name: "a" * 200_000 for name in "abc"}
    with pytest.raises(pulumi.RunError, match="metadata: has 60.* bytes in all, at most 524288"):
        composed(arguments=arguments)
