"""`outlast up --latest`: the branch's commit, by this machine's own git, into the configuration;
what `outlast destroy` says of the run that stays."""

import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import click
import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.head import read_head
from outlast.cli import engine, leftovers, recover, stack, up
from outlast.cli.app import cli
from outlast.cli.errors import OperateError, UsageError
from tests.cli import test_resume as runs
from tests.git_host import commit, git, serving


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    commit(tmp_path / "code", {"a": "1\n"})
    return tmp_path / "code"


@pytest.fixture
def address(tmp_path: Path, repository: Path) -> Iterator[str]:
    with serving(tmp_path) as host:
        yield f"{host.url}/code"


class Engine:
    """Stands for pulumi: a configuration, and what it was called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **config: str) -> None:
        self.config = {f"outlast:{key}": {"value": value} for key, value in config.items()}
        self.calls: list[list[str]] = []
        monkeypatch.setattr(engine, "run_engine", self.run)

    def run(self, args: list[str], *, env: object) -> str:
        self.calls.append(args)
        return json.dumps(self.config)


def test_the_commit_of_the_branch_is_written(
    repository: Path, address: str, monkeypatch: pytest.MonkeyPatch
):
    git(repository, "branch", "other")
    newest = commit(repository, {"a": "2\n"})
    pulumi = Engine(monkeypatch, gitUrl=address, gitRef="main", gitCommit="0" * 40)
    assert up.latest("dev") == up.Latest("main", newest, "0" * 40)
    assert pulumi.calls[1:] == [["config", "set", "outlast:gitCommit", newest, "-s", "dev"]]
    assert up.resolve(address, "refs/heads/other") != newest


def test_what_cannot_be_followed_is_a_sentence(address: str, monkeypatch: pytest.MonkeyPatch):
    for config, missing in (({}, "gitUrl"), ({"gitUrl": address}, "gitRef")):
        Engine(monkeypatch, **config)
        with pytest.raises(UsageError, match=f"outlast:{missing}: is not set"):
            up.latest(None)
    with pytest.raises(OperateError, match="gitRef nothing: is not a branch of"):
        up.resolve(address, "nothing")
    with pytest.raises(OperateError, match="cannot be read with this machine's git"):
        up.resolve(address + "-that-is-not-there", "main")


@pytest.mark.parametrize(
    "url",
    [
        "https://me:ghp_SECRETSECRET@127.0.0.1:1/o/r.git",
        f"https://ghp_{'a' * 36}@127.0.0.1:1/o/r.git",
        "ssh://me:SECRETSECRET@127.0.0.1:1/o/r.git",
        "ext::sh -c true SECRETSECRET",
        "--upload-pack=SECRETSECRET",
    ],
)
def test_an_address_with_a_password_reaches_no_program(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """git is a program here that writes down that it was called."""
    called = tmp_path / "called"
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nopen({str(called)!r}, 'w')\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    Engine(monkeypatch, gitUrl=url, gitRef="main")
    with pytest.raises(UsageError, match="^outlast:gitUrl") as caught:
        up.latest("dev")
    assert not called.exists()
    if "@" in url:
        assert "SECRET" not in str(caught.value) and "ghp_" not in str(caught.value)


def test_what_git_says_of_a_rewritten_address_has_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho \"fatal: unable to access 'https://me:SECRET@host/r/'\" >&2\nexit 128\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    with pytest.raises(OperateError, match="cannot be read") as caught:
        up.resolve("https://host/r", "main")
    assert "SECRET" not in str(caught.value) and "https://…@host/r/" in str(caught.value)


@pytest.mark.parametrize(
    ("head", "hours", "says"),
    [
        (
            runs.COMMITTED,
            0,
            "run 0123456789 stays open at step 9 in gs://b/experiments/dev/0123456789/; the next up"
            " resumes it",
        ),
        (
            runs.COMMITTED,
            1,
            "run 0123456789 stays in gs://b/experiments/dev/0123456789/, failed at step 9",
        ),
        (
            runs.FAILED,
            0,
            "run 0123456789 stays in gs://b/experiments/dev/0123456789/, failed at step 9",
        ),
        (None, 0, ""),
    ],
)
def test_destroy_says_what_stays_of_the_run(monkeypatch: pytest.MonkeyPatch, head, hours, says):
    made = runs.stack(head, now=runs.START + timedelta(hours=hours))
    asked: list[list[str]] = []
    monkeypatch.setattr(stack, "find", lambda name: made)
    monkeypatch.setattr(leftovers, "place_of", lambda name: None)
    monkeypatch.setattr(engine, "show_engine", lambda args, env, aside: asked.append(args))
    assert up.destroy("dev") == says
    assert asked == [["destroy", "--yes", "--skip-preview", "-s", "dev"]]
    if hours:  # past its limit: no VM ends it any more
        found = read_head(made.memory, runs.LAYOUT).head
        assert found.end and (found.state, found.end.reason) == (State.FAILED, Reason.EXPIRED)


def test_destroy_of_what_is_not_whole_says_nothing_of_a_run(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise OperateError("stack dev: is not up; run pulumi up first.")

    monkeypatch.setattr(stack, "find", missing)
    monkeypatch.setattr(leftovers, "place_of", lambda name: None)
    monkeypatch.setattr(engine, "show_engine", lambda args, env, aside: None)
    assert up.destroy("dev") == ""


# Flags of Pulumi


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("up twin --policy-pack policy", "up --yes --skip-preview -s twin --policy-pack policy"),
        ("up --refresh", "up --yes --skip-preview --refresh"),
        ("up twin --target=a -p 4", "up --yes --skip-preview -s twin --target=a -p 4"),
        ("destroy twin --refresh -y", "destroy --yes --skip-preview -s twin --refresh"),
    ],
)
def test_flags_of_pulumi_are_passed_on(
    line: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(recover, "recover", lambda stack: None)
    monkeypatch.setattr(leftovers, "place_of", lambda name: None)
    monkeypatch.setattr(engine, "show_engine", lambda args, env, aside: asked.append(args))
    monkeypatch.setattr(stack, "find", lambda name: (_ for _ in ()).throw(OperateError("none")))
    cli.main(line.split(), standalone_mode=False)
    assert asked == [command.split()]


@pytest.mark.parametrize("line", ["up twin -s other", "preview --stack=other", "destroy --refresh"])
def test_a_flag_that_would_choose_another_stack_is_bad_usage(line: str) -> None:
    with pytest.raises(click.UsageError, match="EXPERIMENT"):
        cli.main(line.split(), standalone_mode=False)


@pytest.mark.parametrize(
    ("flags", "looks"),
    [((), True), (("--refresh",), True), (("--target", "x"), False), (("--preview-only",), False)],
)
def test_a_destroy_of_a_part_looks_for_nothing_that_was_lost(
    flags: tuple[str, ...], looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    place = leftovers.Place("p", {})
    monkeypatch.setattr(leftovers, "place_of", lambda name: place)
    monkeypatch.setattr(leftovers, "delete", found.append)
    monkeypatch.setattr(engine, "show_engine", lambda args, env, aside: None)
    monkeypatch.setattr(stack, "find", lambda name: (_ for _ in ()).throw(OperateError("none")))
    up.destroy("dev", flags)
    assert found == ([place] if looks else [])
