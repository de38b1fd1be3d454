"""Settings that name secrets, and that no other setting may hold one."""

import json

import pytest

from tests.settings.test_settings import check, refusal

WANDB = "projects/acme-research/secrets/wandb/versions/latest"


def env(**names):
    return {"outlast:secretEnv": json.dumps(names)}


def test_a_trainers_secrets_are_named_and_no_part_of_the_run():
    found = check(env(WANDB_API_KEY="wandb", HF_TOKEN="projects/keys/secrets/hf/versions/2"))
    assert found.secret_env == {
        "HF_TOKEN": "projects/keys/secrets/hf/versions/2",
        "WANDB_API_KEY": WANDB,
    }
    assert (found.run, found.content) == (check().run, check().content)
    assert check().secret_env == {} and check().secrets == {} and check().secret_owners == []


def test_each_secret_has_one_binding_whatever_names_it():
    values = env(A="wandb", B="wandb/versions/1", C="projects/keys/secrets/hf")
    found = check({**values, "outlast:webhookSecret": "wandb"})
    assert found.secret_owners == [("acme-research", "wandb"), ("keys", "hf")]
    assert set(found.secrets) == {"secretEnv.A", "secretEnv.B", "secretEnv.C", "webhookSecret"}
    assert found.webhook_secret == WANDB and found.webhook == ""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (env(PATH="x"), "outlast:secretEnv 'PATH': is a reserved variable"),
        (env(LD_PRELOAD="x"), "outlast:secretEnv 'LD_PRELOAD': is a reserved variable"),
        (env(OUTLAST_TREE="x"), "outlast:secretEnv 'OUTLAST_TREE': is a reserved variable"),
        (env(KEY=""), "outlast:secretEnv.KEY: must be the name of a secret"),
        (env(KEY=True), "outlast:secretEnv.KEY: must be the name of a secret"),
        (env(KEY="hf_0123456789012345678901234"), "outlast:secretEnv.KEY: looks like a token"),
        ({"outlast:secretEnv": "wandb"}, "outlast:secretEnv 'wandb': must be an object"),
        ({"outlast:webhookSecret": "a b"}, "outlast:webhookSecret: its value of 3 characters"),
        (
            {"outlast:webhookSecret": "https://hooks.slack.com/services/T0/B0/x"},
            "outlast:webhookSecret: its value of 40 characters must name a secret",
        ),
        (
            {"outlast:webhookSecret": "hook", "outlast:webhook": "https://h/x"},
            "outlast:webhookSecret beside outlast:webhook: both give the address",
        ),
        (
            {**env(KEY="wandb"), "outlast:part": "foundation"},
            "outlast:secretEnv {'KEY': 'wandb'} beside outlast:part foundation: is a run's",
        ),
    ],
)
def test_what_is_refused(values, said):
    assert said in refusal(values)


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("webhook", "https://hooks.example/SECRET", "name that secret in outlast:webhookSecret"),
        ("webhook", "no address: SECRET", "name that secret in outlast:webhookSecret"),
        ("args", '{"token": "SECRET"}', "name a secret of Secret Manager in outlast:secretEnv"),
        ("command", "python t.py --key SECRET", "in outlast:secretEnv and read the variable"),
        ("gitUrl", "https://me:SECRET@h/x", "name that secret in outlast:gitSecret"),
        ("experiment", "SECRET", "set outlast:experiment without --secret"),
        ("labels", '{"a": "SECRET"}', "set outlast:labels without --secret"),
        ("secretEnv", '{"KEY": "SECRET"}', "set it without --secret"),
    ],
)
def test_a_value_set_with_secret_is_refused_with_the_remedy_and_not_shown(key, value, remedy):
    said = refusal({f"outlast:{key}": value}, secret_keys=[f"outlast:{key}", "gcp:credentials"])
    assert said.startswith(f"outlast:{key}: is set with --secret, and would stand in plain text")
    assert remedy in said and "SECRET" not in said


def test_secrets_of_other_namespaces_are_none_of_ours():
    assert check(secret_keys=["gcp:credentials", "aws:secretKey"]).run == check().run
