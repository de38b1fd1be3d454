"""Where the code comes from: what is accepted, and one sentence for everything that is not."""

import json

import pytest

from outlast import settings
from outlast.settings import SettingsError, errors
from outlast.spec.delivery import Git, Remote
from tests.program import stack

COMMIT = "0123456789" * 4
HTTPS = "https://git.example/team/code.git"
SSH = "ssh://git@git.example/team/code.git"
HOST_KEY = "git.example ssh-ed25519 AAAAC3NzaC1lZDI1NTE5"
TOKEN = "ghp_0123456789abcdef0123456789abcdef0123"


def check(**own) -> settings.Settings:
    real = {"gcp:project": "acme-research", "gcp:zone": "europe-west4-a"}
    texts = {f"outlast:{key}": stack.text(value) for key, value in own.items()}
    return settings.check(
        {**stack.defaults(), **real, **texts},
        organization="organization",
        project="outlast",
        stack="dev",
        environ={},
    )


def from_git(**own) -> settings.Settings:
    return check(**{"delivery": "git", "gitUrl": HTTPS, "gitCommit": COMMIT, **own})


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"delivery": "carrier"}, "outlast:delivery 'carrier': must be bucket, image or git"),
        ({"gitUrl": HTTPS}, "outlast:gitUrl beside outlast:delivery bucket: is for code from git"),
        ({"gitSecret": "deploy"}, "outlast:gitSecret beside outlast:delivery bucket"),
        ({"gitHostKeys": [HOST_KEY]}, "outlast:gitHostKeys beside outlast:delivery bucket"),
        ({"delivery": "image", "gitRef": "main"}, "outlast:gitRef beside outlast:delivery image"),
        ({"delivery": "git"}, "outlast:gitUrl: is not set"),
        ({"delivery": "git", "gitUrl": HTTPS, "gitCommit": "0123456"}, "must be all 40"),
        ({"delivery": "git", "gitUrl": HTTPS, "gitCommit": "main"}, "must be all 40"),
        ({"delivery": "git", "gitUrl": HTTPS, "gitRef": "main"}, "run outlast up --latest"),
        ({"delivery": "git", "gitUrl": HTTPS}, "must be all 40"),
    ],
)
def test_an_impossible_delivery_gives_one_sentence(own, expected):
    with pytest.raises(SettingsError) as caught:
        check(**own)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"gitUrl": "http://git.example/code"}, "must be an address such as https://HOST"),
        ({"gitUrl": "git.example/code"}, "must be an address such as https://HOST"),
        ({"gitUrl": "file:///home/code"}, "must be an address such as https://HOST"),
        ({"gitUrl": "https://git.example"}, "must be an address such as https://HOST"),
        ({"gitUrl": "ssh://-oProxyCommand=x/code"}, "must be an address such as https://HOST"),
        ({"gitUrl": "ssh://git@h;id/code"}, "must be an address such as https://HOST"),
        ({"gitUrl": "ssh://git@$(id)/code"}, "must be an address such as https://HOST"),
        ({"gitUrl": "ssh://g`id`@h.example/code"}, "must be an address such as https://HOST"),
        ({"gitUrl": "ssh://a|b@h.example/code"}, "must be an address such as https://HOST"),
        ({"gitUrl": "https://h%0a.example/code"}, "must be an address such as https://HOST"),
        ({"gitUrl": f"{HTTPS}?token=x"}, "has a query or a fragment"),
        ({"gitUrl": SSH}, "outlast:gitHostKeys: is empty"),
        ({"gitUrl": SSH, "gitHostKeys": [HOST_KEY]}, "outlast:gitSecret: is not set"),
        ({"gitUrl": SSH, "gitHostKeys": ["|1|abc= ssh-ed25519 AAAA"]}, "as ssh-keyscan prints it"),
        (
            {"gitUrl": SSH.replace("example/", "example:2222/"), "gitHostKeys": [HOST_KEY]},
            "are not for [git.example]:2222",
        ),
        ({"gitHostKeys": [HOST_KEY]}, "are for ssh hosts"),
        ({"gitSecret": "a secret"}, "must name a secret of Secret Manager"),
        ({"gitSecret": "projects/p/secrets/s/versions/0"}, "must name a secret"),
        ({"gitPath": "../other"}, "without .. in it"),
        ({"gitPath": "/train"}, "without .. in it"),
        ({"requirements": "a/../../b"}, "outlast:requirements 'a/../../b'"),
        ({"gitRef": "-x"}, "must be a branch such as main"),
        ({"gitRef": "a b"}, "must be a branch such as main"),
        ({"source": "examples"}, "name the repository's own in outlast:gitPath"),
        ({"trainer": "my-trainer"}, "must be the name of a Python module"),
        ({"network": "isolated"}, "fetches the code from"),
    ],
)
def test_an_impossible_git_delivery_gives_one_sentence(own, expected):
    with pytest.raises(SettingsError) as caught:
        from_git(**own)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "own",
    [
        {"gitUrl": f"https://bot:{TOKEN}@git.example/code"},
        {"gitUrl": f"https://{TOKEN}@git.example/code"},
        {"gitSecret": TOKEN},
        {"gitSecret": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{TOKEN}"},
        {"gitSecret": "glpat-0123456789abcdefghij"},
    ],
)
def test_a_token_in_the_configuration_is_refused_and_not_repeated(own):
    with pytest.raises(SettingsError) as caught:
        from_git(**own)
    assert "Secret Manager" in str(caught.value)
    assert TOKEN not in str(caught.value) and "glpat" not in str(caught.value)


def on_vm(found: settings.Settings) -> str:
    """The commit in the VM's metadata; empty if there is none."""
    return found.run_spec("").to_metadata().get("outlast-git", "")


def test_the_vm_gets_the_secrets_name_and_may_read_that_secret():
    found = from_git(gitSecret="deploy", gitPath="train/", requirements=".")
    assert Git.from_json(on_vm(found)) == Git(
        HTTPS, COMMIT, "train", ".", "projects/acme-research/secrets/deploy/versions/latest"
    )
    assert found.secret_owners == [("acme-research", "deploy")]
    elsewhere = from_git(gitSecret="projects/keys/secrets/s/versions/3")
    assert json.loads(on_vm(elsewhere))["secret"] == "projects/keys/secrets/s/versions/3"
    assert elsewhere.secret_owners == [("keys", "s")]
    assert from_git().secrets == {} and on_vm(check()) == ""
    ssh = from_git(gitUrl="git@git.example:team/code", gitSecret="key", gitHostKeys=[HOST_KEY])
    assert ssh.git and ssh.git.host_keys == (HOST_KEY,)


def test_a_run_from_git_is_named_by_commit_folder_and_raw_arguments():
    named = from_git(trainer="mine", args={"epochs": 5})
    assert named.content["source"] == f"git:{COMMIT}:"
    assert named.content["arguments"] == {"argv": ["--epochs=5"]}
    # The repository's address, and how it is read, are not part of the identity.
    moved = from_git(trainer="mine", args={"epochs": 5}, gitUrl="https://other.example/code")
    assert moved.run == named.run
    secret = from_git(trainer="mine", args={"epochs": 5}, gitSecret="deploy", gitRef="main")
    assert secret.run == named.run
    others = [
        from_git(trainer="mine", args={"epochs": 5}, gitCommit="f" * 40),
        from_git(trainer="mine", args={"epochs": 5}, gitPath="train"),
        from_git(trainer="mine", args={"epochs": 6}),
        from_git(trainer="mine", args={"epochs": 5}, requirements="needs.txt"),
        from_git(command="python mine.py"),
    ]
    assert len({named.run, *(other.run for other in others)}) == 6


def test_a_trainer_of_a_folder_is_named_by_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "project", lambda: tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/mine.py").write_text("1\n")
    first = check(trainer="mine", source="code", args={"epochs": 5})
    baked = check(trainer="mine", source="code", args={"epochs": 5}, delivery="image")
    assert baked.run == first.run
    (tmp_path / "code/mine.py").write_text("2\n")
    assert check(trainer="mine", source="code", args={"epochs": 5}).run != first.run
    with pytest.raises(SettingsError, match="the VM may not read it"):
        check(trainer="mine", source="code", args={"data": "gs://other/x"})
    with pytest.raises(SettingsError, match="neither pyproject.toml nor requirements.txt"):
        check(trainer="mine", source="code", requirements="code")
    (tmp_path / "code/pyproject.toml").write_text("[project]\nname='mine'\n")
    assert check(trainer="mine", source="code", requirements="code").run != first.run


@pytest.mark.parametrize(
    ("url", "remote"),
    [
        ("https://bot@h.example:8443/a/b", Remote("https", "bot", "h.example", 8443, "/a/b")),
        ("git@h.example:a/b.git", Remote("ssh", "git", "h.example", None, "a/b.git")),
        ("ssh://git@h.example:2222/a/b", Remote("ssh", "git", "h.example", 2222, "/a/b")),
        ("http://127.0.0.1:8000/a", Remote("http", "", "127.0.0.1", 8000, "/a")),
    ],
)
def test_an_address_has_its_parts(url, remote):
    assert Remote.parse(url) == remote
