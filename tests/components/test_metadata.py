"""The instance metadata: every key that a VM reads, its text, and its size."""

import json

import pulumi
import pytest

from outlast.components import metadata
from outlast.supervisor.metadata import parse_spec
from tests.components import inventory

ARGS = {
    "scripts": {"startup-script": "#!/bin/bash\n"},
    "bucket": "p-outlast",
    "prefix": "experiments/dev",
    "run": "0123456789",
    "resume": 1,
    "placement": 2,
    "owner": "organization/outlast/dev",
    "bundle": "experiments/dev/bundles/00.zip",
    "bundle_sha256": "0" * 64,
    "trainer": "digits",
    "arguments": {},
    "deadline": "2026-11-27T23:59:59Z",
    "checkpoint_every": "auto",
    "timeouts": '{"heartbeat":10}',
    "retries_failures": 3,
    "keep_every_steps": 0,
    "trainer_python": "",
    "trainer_user": "root",
    "processes": 1,
    "command": "",
    "quiet_sec": 10,
    "command_options": "",
    "delivery": "bucket",
    "git": "",
    "gpus": 0,
    "mode": "survive",
    "data": (),
    "webhook": "",
    "webhook_secret": "",
    "secret_env": {},
    "init": "",
    "content": {"trainer": "digits", "arguments": {"epochs": 5}},
    "billed": '{"disk":"pd-balanced","disk_gb":50,"spot":true}',
    "health": "",
    "oslogin": False,
}


def composed(**changes) -> dict[str, str]:
    """The metadata's final texts."""
    found: dict[str, str] = {}

    def program():
        items = metadata.compose({**ARGS, **changes})  # type: ignore[typeddict-item]
        pulumi.Output.all(**items).apply(found.update)

    inventory.record(program)
    return found


def test_the_supervisor_reads_what_is_composed():
    spec = parse_spec(composed(arguments={"epochs": 5, "augment": True, "rate": 1e-3}))
    assert (spec.bucket, spec.prefix, spec.run) == ("p-outlast", "experiments/dev", "0123456789")
    assert (spec.resume, spec.placement, spec.owner) == (1, 2, "organization/outlast/dev")
    assert (spec.trainer, spec.retries_failures) == ("digits", 3)
    assert spec.deadline is not None and f"{spec.deadline:%Y-%m-%dT%H:%M:%SZ}" == ARGS["deadline"]
    assert spec.argv() == ["--augment", "--epochs=5", "--rate=0.001"]
    assert spec.content == ARGS["content"]
    assert spec.billed == {"disk": "pd-balanced", "disk_gb": 50, "spot": True}
    assert spec.bundle == ARGS["bundle"] and spec.bundle_sha256 == ARGS["bundle_sha256"]


def test_the_machines_gpus_and_the_mode_arrive():
    spec = parse_spec(composed(gpus=2, mode="burst"))
    assert (spec.gpus, spec.mode) == (2, "burst")
    assert "outlast-gpus" not in composed()


def test_a_command_arrives_as_it_was_written():
    items = composed(
        command='["./train.sh","{data}"]', quiet_sec=30, data=("gs://b/rows/", "gs://b/names")
    )
    spec = parse_spec(items)
    assert spec.command == ("./train.sh", "{data}") and spec.quiet_sec == 30
    assert spec.data == ("gs://b/rows/", "gs://b/names")
    assert parse_spec(composed()).command is None
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
    assert parse_spec(given).processes == 4
    assert given["outlast-keep-every-steps"] == "500"
    assert given["outlast-trainer-python"] == "/opt/conda/bin/python"


def test_the_trainers_own_user_reaches_the_vm():
    assert "outlast-trainer-user" not in composed()
    assert parse_spec(composed()).trainer_user == "root"
    assert parse_spec(composed(trainer_user="own")).trainer_user == "own"


def test_a_checkpoint_to_begin_with_is_optional():
    pin = f"gs://b/experiments/e/0123456789/t000001/s000000000010-0a/#{'0' * 64}"
    assert "outlast-init" not in composed()
    assert parse_spec(composed(init=pin)).init == pin


def test_the_supervisor_knows_where_a_copy_of_the_result_goes():
    given = composed(arguments={"model-output-path": "gs://b/experiments/dev/models/"})
    assert parse_spec(given).model_output_path == "gs://b/experiments/dev/models/"


def test_of_secrets_only_the_names_are_there():
    name = "projects/p/secrets/wandb/versions/latest"
    assert not [key for key in composed() if "secret" in key]
    items = composed(secret_env={"WANDB_API_KEY": name}, webhook_secret=name)
    assert json.loads(items["outlast-secret-env"]) == {"WANDB_API_KEY": name}
    assert items["outlast-webhook-secret"] == name


def test_a_webhook_is_optional():
    assert "outlast-webhook" not in composed()
    assert composed(webhook="https://h/x")["outlast-webhook"] == "https://h/x"


def test_a_place_that_the_engine_made_a_float_is_whole():
    assert composed(placement=2.0)["outlast-placement"] == "2"


def test_a_value_may_just_fit():
    assert len(composed(arguments={"x": "a" * metadata.VALUE_LIMIT})["outlast-arg-x"]) == 262_144


def test_size_is_counted_in_bytes():
    with pytest.raises(pulumi.RunError, match="outlast-arg-x: has 262146 bytes, at most 262144"):
        composed(arguments={"x": "ä" * (metadata.VALUE_LIMIT // 2 + 1)})


def test_all_together_have_a_limit_too():
    arguments = {name: "a" * 200_000 for name in "abc"}
    with pytest.raises(pulumi.RunError, match="metadata: has 60.* bytes in all, at most 524288"):
        composed(arguments=arguments)
