"""Settings that name secrets, and that no other setting may hold one."""

import json

import pytest

from tests.settings.test_settings import check, refusal

WANDB = "projects/acme-research/secrets/wandb/versions/latest"


HOOK = {"outlast:webhook": "https://hooks.example/outlast"}


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
    key = {"outlast:webhookKeySecret": "wandb"}
    assert check({**HOOK, **key}).secret_owners == [("acme-research", "wandb")]
    assert check({**HOOK, **key}).run_spec("0" * 64).webhook_key_secret == WANDB
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
            {"outlast:webhookKeySecret": "key"},
            "outlast:webhookKeySecret without outlast:webhook: there is no message to sign",
        ),
        ({**HOOK, "outlast:webhookKeySecret": "a b"}, "outlast:webhookKeySecret: its value of 3"),
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
        ("args", '{"token": "SECRET"}', "name a secret in Secret Manager in outlast:secretEnv"),
        ("command", "python t.py --key SECRET", "in outlast:secretEnv and read the variable"),
        ("gitUrl", "https://me:SECRET@h/x", "name that secret in outlast:gitSecret"),
        ("experiment", "SECRET", "set outlast:experiment without --secret"),
        ("labels", '{"a": "SECRET"}', "set outlast:labels without --secret"),
        ("secretEnv", '{"KEY": "SECRET"}', "set it without --secret"),
    ],
)
def test_a_value_set_with_secret_is_refused_with_the_remedy_and_not_shown(key, value, remedy):
    said = refusal({f"outlast:{key}": value}, secret_keys=[f"outlast:{key}", "gcp:credentials"])
    assert said.startswith(f"outlast:{key}: is set with --secret, but would be in plain text")
    assert remedy in said and "SECRET" not in said


def full(**values):
    return {f"outlast:{key}": value for key, value in values.items()}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            full(args='{"wandb-api-key": "abc"}'),
            "outlast:args.wandb-api-key beside outlast:",
        ),
        (full(command="WANDB_API_KEY=abc python t.py"), "outlast:command beside outlast:"),
        (
            full(command="env WANDB_API_KEY='abc' python t.py"),
            "outlast:command beside outlast:",
        ),
        (
            full(command='["env", "WANDB_API_KEY=abc", "python"]'),
            "sets WANDB_API_KEY in plain text",
        ),
        ({"acme:wandbApiKey": "abc"}, "acme:wandbApiKey beside outlast:secretEnv.WANDB_API_KEY"),
    ],
)
def test_a_secret_that_is_also_in_plain_text_is_refused_by_name(values, said):
    found = refusal({**env(WANDB_API_KEY="wandb"), **values})
    assert said in found and "abc" not in found
    if "outlast:args" not in values:  # args of a trainer of ours are checked by their names
        check(values)


def test_a_variable_that_is_only_passed_on_is_not_plain_text():
    own = env(WANDB_API_KEY="wandb")
    for command in ('WANDB_API_KEY="$WANDB_API_KEY" python t.py', "X=$WANDB_API_KEY python t.py"):
        check({**own, **full(command=command)})
    check({**own, "acme:wandbApiKey": "abc"}, secret_keys=["acme:wandbApiKey"])


def test_what_looks_like_a_token_is_warned_of_by_its_setting():
    token = "hf_" + "a1" * 12
    found = check(full(command=f"HF_TOKEN={token} python t.py"))
    assert any(line.startswith("outlast:command: looks like") for line in found.advice)
    assert token not in "".join(found.advice)
    assert not any("looks like" in line for line in check(full(command="python t.py")).advice)


def test_secrets_of_other_namespaces_are_none_of_ours():
    assert check(secret_keys=["gcp:credentials", "aws:secretKey"]).run == check().run
