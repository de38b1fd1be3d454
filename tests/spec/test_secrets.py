import os

import pytest

from outlast.spec import secrets
from outlast.spec.secrets import SecretNameError


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("wandb", "projects/acme/secrets/wandb/versions/latest"),
        ("wandb/versions/3", "projects/acme/secrets/wandb/versions/3"),
        ("projects/keys/secrets/w", "projects/keys/secrets/w/versions/latest"),
        ("projects/keys/secrets/w/versions/latest", "projects/keys/secrets/w/versions/latest"),
    ],
)
def test_a_secret_is_named_as_gcloud_names_it(given, full):
    assert secrets.check_name("gitSecret", given, "acme") == full
    assert secrets.check_variables({"WANDB_API_KEY": given}, "acme") == {"WANDB_API_KEY": full}


@pytest.mark.parametrize(
    "value",
    [
        "ghp_0123456789abcdefghij0123456789abcdef",
        "0123456789abcdef0123456789abcdef01234567",  # a key of W&B: a secret's name could look so
        "hf_abcdefghijklmnopqrstuvwx",
        "sk-proj-abcdefghijklmnopqrstuvwx",
        "AKIAIOSFODNN7EXAMPLE",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)
def test_a_secret_itself_is_refused_and_never_repeated(value):
    for key, check in (
        ("secretEnv.KEY", lambda: secrets.check_variables({"KEY": value}, "p")),
        ("webhookSecret", lambda: secrets.check_name("webhookSecret", value, "p")),
    ):
        with pytest.raises(SecretNameError, match="looks like a token or a key itself") as caught:
            check()
        assert str(caught.value).startswith(f"{key}: ") and value not in str(caught.value)


def test_an_invalid_name_is_not_repeated_either():
    with pytest.raises(SecretNameError, match="its value of 13 characters must name") as caught:
        secrets.check_variables({"KEY": "my password 1"}, "p")
    assert "my password" not in str(caught.value)
    for value in ("", None, 5, ["wandb"], {"name": "wandb"}):
        with pytest.raises(SecretNameError, match=r"secretEnv\.KEY: must be the name of a secret"):
            secrets.check_variables({"KEY": value}, "p")


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "Path", "LD_PRELOAD", "LD_LIBRARY_PATH", "OUTLAST_SOCKET", "PYTHONPATH"),
        *("PYTHONSTARTUP", "RUN_ID", "ATTEMPT", "LOG_DIR", "CHECKPOINT_DIR", "RESULT_DIR", "RANK"),
        *("LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "METADATA_BASE", "GCE_METADATA_HOST", "IFS"),
        *("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "BASH_ENV", "TMPDIR"),
    ],
)
def test_reserved_variables_are_refused(name):
    with pytest.raises(SecretNameError, match=f"secretEnv '{name}': is a reserved variable"):
        secrets.check_variables({name: "wandb"}, "p")


def test_all_that_the_supervisor_and_the_runner_set_is_reserved(tmp_path):
    """A secret never replaces what the product itself gives a trainer."""
    from outlast.protocol import Welcome
    from outlast.supervisor.process import trainer_environment

    welcome = Welcome(None, 0, "w", "r", 1, "auto", "id", "url", "log")
    ours = {
        name
        for name, value in trainer_environment(tmp_path, tmp_path).items()
        if name not in os.environ
    }
    for name in {*ours, *welcome.environment()}:
        with pytest.raises(SecretNameError, match="reserved"):
            secrets.check_variable(name)


@pytest.mark.parametrize("name", ["WANDB-KEY", "1KEY", "", "A B", "KEY=x", "clé"])
def test_a_variable_has_a_variables_name(name):
    with pytest.raises(SecretNameError, match="must be a variable's name"):
        secrets.check_variables({name: "wandb"}, "p")


def test_there_may_be_so_many_and_no_more():
    names = {f"KEY_{n}": "x" for n in range(secrets.VARIABLES_LIMIT)}
    assert len(secrets.check_variables(names, "p")) == secrets.VARIABLES_LIMIT
    with pytest.raises(SecretNameError, match="names 33 variables, at most 32"):
        secrets.check_variables({**names, "ONE_MORE": "x"}, "p")


def test_the_vm_reads_what_the_program_wrote():
    names = secrets.check_variables({"B_KEY": "b", "A_KEY": "projects/k/secrets/a"}, "p")
    assert secrets.from_json(secrets.to_json(names)) == names
    assert secrets.to_json({}) == "" and secrets.from_json("") == {}
    for text in ("[]", "{", '{"PATH": "projects/p/secrets/x/versions/1"}', '{"KEY": "x"}'):
        with pytest.raises(ValueError, match="secret-env: must be JSON"):
            secrets.from_json(text)
