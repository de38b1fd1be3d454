"""What a rehearsal has in place of the secrets that a stack names."""

import pytest

from outlast.cli.errors import UsageError
from outlast.cli.rehearsal.secrets import take_over


def test_each_variable_gets_the_shells_value_or_a_stand_in():
    config = {
        "outlast:secretEnv": {"HF_TOKEN": "projects/keys/secrets/hf/versions/2", "KEY": "key"},
        "outlast:webhookSecret": "hook",
        "outlast:args": {"epochs": 1},
    }
    found, held = take_over(config, {"HF_TOKEN": "of-my-shell", "OTHER": "x"})
    assert found == {
        "outlast:secretEnv": {"HF_TOKEN": "HF_TOKEN", "KEY": "KEY"},
        "outlast:webhookSecret": "rehearsal-webhook",
        "outlast:args": {"epochs": 1},
    }
    assert held.values == {
        "HF_TOKEN": b"of-my-shell",
        "KEY": b"rehearsal-stand-in-for-KEY",
        "rehearsal-webhook": b"https://webhook.invalid/rehearsal",
    }
    assert [note.partition(",")[0] for note in held.notes] == [
        "secretEnv.HF_TOKEN: your environment's value",
        "secretEnv.KEY: a stand-in",
        "webhookSecret: an address that leads nowhere",
    ]
    assert "of-my-shell" not in repr(held) + "".join(held.notes)


def test_the_key_of_the_messages_has_a_stand_in_too():
    config = {"outlast:webhookSecret": "hook", "outlast:webhookKeySecret": "projects/p/secrets/key"}
    found, held = take_over(config, {})
    assert found == {
        "outlast:webhookSecret": "rehearsal-webhook",
        "outlast:webhookKeySecret": "rehearsal-webhook-key",
    }
    assert set(held.values) == {"rehearsal-webhook", "rehearsal-webhook-key"}


def test_the_list_of_leftovers_omits_the_secrets():
    _, held = take_over({"outlast:secretEnv": {"KEY": "key"}}, {})
    left = {"buckets": [{"name": "b"}], "secrets": ["KEY", "another"]}
    assert held.without(left) == {"buckets": [{"name": "b"}], "secrets": ["another"]}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"outlast:secretEnv": {}},
        {"outlast:secretEnv": {"PATH": "x"}},
        {"outlast:secretEnv": {"KEY": "hf_0123456789012345678901234"}},
        {"outlast:secretEnv": "wandb"},
        {"outlast:webhookSecret": "a b"},
    ],
)
def test_what_the_program_refuses_is_left_to_it(config):
    found, held = take_over(config, {})
    assert found == config and not held.values and not held.notes


def test_a_token_for_git_has_no_stand_in():
    with pytest.raises(
        UsageError, match="outlast:gitSecret 'deploy': a rehearsal does not have your token"
    ):
        take_over({"outlast:gitSecret": "deploy"}, {})
