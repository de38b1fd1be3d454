"""`outlast ssh`: through IAP on Google, a shell in the VM's folder on the local cloud."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outlast.base.http_client import Answer
from outlast.cli import boots, endpoint, experiments, ssh
from outlast.cli.boots import Seen, Vm
from outlast.cli.errors import CloudError, OperateError
from outlast.cloud.compute import Group

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GROUP = Group("my-project", "regions/us-central1", "first-group")
VM = Vm("first-x1", "7", NOW, "zones/us-central1-b/instances/first-x1")


@pytest.fixture(autouse=True)
def group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group with one VM, asked from a shell without a local cloud."""
    monkeypatch.setattr(boots, "look", lambda _: Seen(NOW, 1, VM))
    monkeypatch.setattr(experiments, "settings", tuple)
    monkeypatch.delenv(endpoint.VARIABLE, raising=False)


@pytest.fixture
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gcloud that records its words; the record."""
    record, program = tmp_path / "words", tmp_path / "bin" / "gcloud"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{record}\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return record


def become(found: ssh.Session) -> "subprocess.CompletedProcess[str]":
    """In a separate process, as the command does."""
    session = (list(found.argv), None if found.cwd is None else str(found.cwd), dict(found.env))
    code = (
        "import sys, json; from pathlib import Path; from outlast.cli import ssh;"
        "argv, cwd, env = json.loads(sys.stdin.readline());"
        "ssh.become(ssh.Session(tuple(argv), cwd and Path(cwd), env, 'vm'))"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(session) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_gcloud_opens_the_tunnel_to_the_groups_vm(gcloud: Path) -> None:
    done = become(ssh.session("first", GROUP))
    assert done.returncode == 3, done.stderr
    words = ["compute", "ssh", "first-x1", "--zone", "us-central1-b", "--project", "my-project"]
    assert gcloud.read_text().splitlines() == [*words, "--tunnel-through-iap"]
    become(ssh.session("first", GROUP, ("ls", "a b")))
    assert gcloud.read_text().splitlines()[-2:] == ["--command", "ls 'a b'"]


def test_without_gcloud_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(OperateError, match="^gcloud: is not on PATH, .* install the Google Cloud"):
        ssh.session("first", GROUP)


@pytest.mark.parametrize(("way", "warns"), [("", True), ("iap", False)])
def test_a_stack_without_the_firewall_rule_is_warned(
    gcloud: Path, monkeypatch: pytest.MonkeyPatch, way: str, warns: bool
) -> None:
    own = experiments.Settings("first", "b", "first", way)
    monkeypatch.setattr(experiments, "settings", lambda: (own,))
    note = ssh.session("first", GROUP).note
    assert ("pulumi config set outlast:ssh iap -s first" in note) is warns


def test_a_group_without_a_vm_or_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boots, "look", lambda _: Seen(NOW, 1, None))
    with pytest.raises(OperateError, match="first: its group has no VM now; outlast status first"):
        ssh.session("first", GROUP)
    monkeypatch.setattr(boots, "look", lambda _: None)
    with pytest.raises(OperateError, match="first: its group cannot be asked"):
        ssh.session("first", GROUP)
    with pytest.raises(OperateError, match="first: its group cannot be asked"):
        ssh.session("first", None)


# -- the local cloud -------------------------------------------------------------------------------


@pytest.fixture
def vm(tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """The first process of a VM that is a process tree."""
    env = {"OUTLAST_ROOT": str(tmp_path), "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", "MINE": "1"}
    process = subprocess.Popen(["sleep", "600"], env=env)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, vm: Any) -> list[dict[str, Any]]:
    """What the local cloud lists."""
    vms = [{"name": "other", "pid": 1}, {"name": VM.name, "pid": vm.pid}]
    monkeypatch.setenv(endpoint.VARIABLE, "http://127.0.0.1:1/")
    answer = lambda url, **_: Answer("vms", {}, json.dumps(vms).encode())  # noqa: E731
    monkeypatch.setattr(ssh, "ask", answer)
    return vms


def test_a_local_vm_is_a_shell_with_its_environment_in_its_folder(
    listed: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = ssh.session("first", GROUP, ("sh", "-c", "pwd; echo $MINE $HOME"))
    done = become(found)
    assert done.stdout.splitlines() == [str(tmp_path), "1"], done.stderr
    shell = ssh.session("first", GROUP)
    assert shell.argv == ("/bin/sh",) and shell.env["OUTLAST_ROOT"] == str(tmp_path)
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in shell.env and "MINE" in shell.env


def test_a_machine_of_qemu_is_refused_with_what_to_use(
    listed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_environment", lambda _: {"PATH": "/bin"})
    with pytest.raises(OperateError, match="is a QEMU machine .* outlast logs first --boot"):
        ssh.session("first", GROUP)


def test_a_local_vm_that_has_just_gone(listed: list[dict[str, Any]]) -> None:
    listed[1]["pid"] = 2**22 + 1
    with pytest.raises(CloudError, match="of the VM: its environment cannot be read .No such file"):
        ssh.session("first", GROUP)
    listed[1] = {**listed[1], "pid": None}
    with pytest.raises(CloudError, match="VM first-x1: is not running now"):
        ssh.session("first", GROUP)


def test_a_program_that_cannot_be_started_is_one_sentence(tmp_path: Path) -> None:
    found = ssh.Session((str(tmp_path / "gone"),), None, {}, "vm")
    with pytest.raises(OperateError, match="gone: No such file"):
        ssh.become(found)
    with pytest.raises(OperateError, match="No such file"):
        ssh.become(replace(found, argv=("/bin/true",), cwd=tmp_path / "none"))
