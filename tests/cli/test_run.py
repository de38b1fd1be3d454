"""`outlast run`: up, watch and fetch in one; Ctrl-C and a failure leave the cloud as it is."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outlast.cli import fetch, recover, runs, up
from outlast.cli.app import cli
from outlast.cli.commands import watch
from outlast.cli.errors import OperateError


class Cloud:
    """Stands for the engine and the bucket: what was called, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.ends = 0
        self.is_damaged = False
        monkeypatch.setattr(recover, "recover", lambda _: None)
        monkeypatch.setattr(up, "up", self.up)
        monkeypatch.setattr(up, "destroy", self.destroy)
        monkeypatch.setattr(watch, "watched", self.watched)
        monkeypatch.setattr(runs, "find", lambda name: name)
        monkeypatch.setattr(fetch, "fetch", self.fetch)

    def up(self, name: str | None, flags: list[str], *, aside: bool = False) -> up.Upped:
        self.calls.append(" ".join(["up", str(name), *flags]))
        return up.Upped(name or "dev", "its group cannot create a VM: STOCKOUT")

    def watched(self, names: tuple[str, ...], *, as_json: bool) -> int:
        self.calls.append(f"watch {' '.join(names)}")
        return self.ends

    def fetch(self, place: str, into: Path) -> fetch.Fetched:
        self.calls.append(f"fetch {place} {into}")
        if self.is_damaged:
            raise OperateError("first: model: sha256 is 0, the committed one is 1")
        return fetch.Fetched("first", "0123456789", into / "first/0123456789", ("a",), None)

    def destroy(self, name: str, *, aside: bool = False) -> str:
        self.calls.append(f"destroy {name}")
        return "run 0123456789 stays in gs://b/, done at step 9"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    return Cloud(monkeypatch)


def outlast(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def test_a_run_from_up_to_destroy(cloud: Cloud) -> None:
    done = outlast("run", "first", "--destroy", "--policy-pack", "policy")
    assert (done.exit_code, done.stdout) == (0, "results/first/0123456789\n"), done.output
    assert cloud.calls == [
        *("up first --policy-pack policy", "watch first", "fetch first results", "destroy first")
    ]
    assert "warning: its group cannot create a VM: STOCKOUT" in done.stderr
    assert "first: run 0123456789 stays in gs://b/" in done.stderr


def test_without_destroy_the_stack_stays_and_json_says_where_the_result_is(cloud: Cloud) -> None:
    done = outlast("run", "first", "--into", "x", "--json")
    assert json.loads(done.stdout)["path"] == "x/first/0123456789"
    assert cloud.calls[-1] == "fetch first x"


@pytest.mark.parametrize("code", [3, 4, 5, 130])
def test_what_is_not_done_is_neither_fetched_nor_destroyed(cloud: Cloud, code: int) -> None:
    cloud.ends = code
    done = outlast("run", "first", "--destroy")
    assert done.exit_code == code and cloud.calls == ["up first", "watch first"]
    assert ("once it is done: outlast fetch first" in done.stderr) == (code == 130)


def test_a_result_that_is_not_whole_here_keeps_the_stack(cloud: Cloud) -> None:
    cloud.is_damaged = True
    done = outlast("run", "first", "--destroy")
    assert isinstance(done.exception, OperateError)
    assert cloud.calls[-1] == "fetch first results"


def test_up_names_the_next_command(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "next: outlast watch first\n" in outlast("up", "first").stderr
    monkeypatch.setattr(up, "up", lambda *_: up.Upped(""))  # a foundation
    assert outlast("up", "base").stderr == ""


def test_a_flag_in_place_of_the_experiment_is_refused(cloud: Cloud) -> None:
    assert outlast("run", "--refresh").exit_code == 2 and not cloud.calls
