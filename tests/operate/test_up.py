"""`outlast up --latest`: the branch's commit, by this machine's own git, into the configuration."""

import json
from pathlib import Path

import pytest

from outlast.operate import engine, up
from outlast.operate.errors import OperateError, UsageError
from tests.git_host import commit, git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    commit(tmp_path / "code", {"a": "1\n"})
    return tmp_path / "code"


class Engine:
    """Stands for pulumi: a configuration, and what it was called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **config: str) -> None:
        self.config = {f"outlast:{key}": {"value": value} for key, value in config.items()}
        self.calls: list[list[str]] = []
        monkeypatch.setattr(engine, "run_engine", self.run)

    def run(self, args: list[str], *, env: object) -> str:
        self.calls.append(args)
        return json.dumps(self.config)


def test_the_commit_of_the_branch_is_written(repository: Path, monkeypatch: pytest.MonkeyPatch):
    git(repository, "branch", "other")
    newest = commit(repository, {"a": "2\n"})
    pulumi = Engine(monkeypatch, gitUrl=str(repository), gitRef="main", gitCommit="0" * 40)
    assert up.latest("dev") == up.Latest("main", newest, "0" * 40)
    assert pulumi.calls[1:] == [["config", "set", "outlast:gitCommit", newest, "-s", "dev"]]
    assert up.resolve(str(repository), "refs/heads/other") != newest


def test_what_cannot_be_followed_is_a_sentence(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for config, missing in (({}, "gitUrl"), ({"gitUrl": str(repository)}, "gitRef")):
        Engine(monkeypatch, **config)
        with pytest.raises(UsageError, match=f"outlast:{missing}: is not set"):
            up.latest(None)
    with pytest.raises(OperateError, match="gitRef nothing: is no branch of"):
        up.resolve(str(repository), "nothing")
    with pytest.raises(OperateError, match="cannot be read with this machine's git"):
        up.resolve(str(tmp_path / "nowhere"), "main")
