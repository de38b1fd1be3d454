"""The local cloud in a shell: start, `pulumi up`, kill, preempt, status, repair, stop."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.base import exits
from outlast.base.folders import PACKAGE
from outlast.cli import cloud as clouds
from outlast.cli.engine import PLUGIN, find_parts
from outlast.cli.errors import CloudError
from outlast.cli.parts import cache_dir
from tests.fake_plugin import fake_plugin

ROOT = PACKAGE.parent

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(300)]

LEFTOVERS = {"PULUMI_ACCESS_TOKEN": "pul-0000", "GOOGLE_PROJECT": "production"}
GCLOUD = {"CLOUDSDK_CORE_PROJECT": "production", "CLOUDSDK_CONFIG": "/home/someone/gcloud"}
WAIT_SEC = 60


class Shell:
    """A shell in the checkout that has taken over what `outlast cloud start` printed."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.env = {**os.environ, **LEFTOVERS, **GCLOUD}

    def outlast(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "outlast.cli.app", *args]
        return subprocess.run(
            command, cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=120
        )

    def cloud(self, *args: str) -> str:
        done = self.outlast("cloud", *args, "--state", str(self.state))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def take_over(self, printed: str) -> None:
        for line in printed.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["export"]:
                name, _, value = words[1].partition("=")
                self.env[name] = value
            elif words[:1] == ["unset"]:
                self.env.pop(words[1], None)

    def pulumi(self, *args: str) -> str:
        done = subprocess.run(
            ["pulumi", *args, "--non-interactive", "--color=never"],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        done = self.outlast("status", "dev", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path / "state")
    yield made
    found = clouds.find(made.state)
    if found:
        found.stop()


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_SEC
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not in {WAIT_SEC} s"
        time.sleep(0.1)
    return found


def committed_in(shell: Shell, attempt: int) -> bool:
    attempts = shell.status()["attempts"]
    return len(attempts) >= attempt and attempts[attempt - 1]["step"] > 200


def test_what_the_rehearsal_does_done_by_hand(shell: Shell):
    example = (ROOT / "Pulumi.dev.yaml").read_bytes()
    printed = shell.cloud("start")
    shell.take_over(printed)
    assert not LEFTOVERS.keys() & shell.env.keys()
    assert all(shell.env[name] != value for name, value in GCLOUD.items())
    exports = [line for line in printed.splitlines() if not line.startswith("unset")]
    assert shell.cloud("start").splitlines() == exports  # running already: the same once more
    shell.pulumi("up", "--yes", "--skip-preview")
    assert "unchanged" in shell.pulumi("up", "--yes", "--skip-preview")
    (line,) = [line for line in shell.cloud("status").splitlines() if "RUNNING" in line]
    vm = line.split()[0]

    wait_until(lambda: committed_in(shell, 1), "steps of attempt 1")
    shell.cloud("preempt", vm)
    wait_until(lambda: committed_in(shell, 2), "steps of attempt 2")
    for action in ("kill", "preempt", "freeze", "thaw"):
        wrong = shell.outlast("cloud", action, f"{vm}x", "--state", str(shell.state))
        assert f"no such VM; did you mean {vm}? known are {vm}." in wrong.stderr
    assert shell.cloud("kill") == f"{vm}: killed\n"  # the only one
    wait_until(lambda: committed_in(shell, 3), "steps of attempt 3")
    assert [a["reason"] for a in shell.status()["attempts"][:2]] == ["preempted", "vm-lost"]
    (line,) = [line for line in shell.cloud("status").splitlines() if "RUNNING" in line]
    vm = line.split()[0]
    shell.cloud("freeze", vm)
    wait_until(lambda: shell.status()["state"] == "silent", "a frozen VM is silent")
    shell.cloud("thaw", vm)
    wait_until(lambda: shell.status()["state"] in ("running", "done"), "the VM works again")

    found = clouds.find(shell.state)
    assert found is not None
    status = shell.status()
    head = status["url"].removeprefix("gs://").split("/", 1)[1] + "HEAD"
    bucket = status["url"].split("/")[2]
    assert "HEAD is intact" in shell.outlast("repair", "dev").stderr
    found.call("DELETE", f"/storage/v1/b/{bucket}/o/{head.replace('/', '%2F')}")
    lost = shell.outlast("resume", "dev")
    assert (lost.returncode, lost.stdout) == (1, "")
    assert "no HEAD" in lost.stderr and "Traceback" not in lost.stderr
    repairs = [
        shell.outlast("repair", "dev")
    ]  # refused while the VM holds the run, as far as it knows
    assert repairs[0].returncode == 0 or "gave a sign of life" in repairs[0].stderr

    def repaired() -> bool:
        repairs.append(shell.outlast("repair", "dev"))
        return repairs[-1].returncode == 0

    if repairs[0].returncode:
        wait_until(repaired, "the VM finds HEAD gone, and the run is repaired")
    assert "outlast resume dev" in repairs[-1].stdout
    wait_until(lambda: not found.vms(), "the group is empty")
    assert shell.status()["state"] == "stopped"

    shell.pulumi("destroy", "--yes", "--skip-preview")
    assert shell.status()["state"] == "stopped", "by its name, from the bucket"
    assert shell.status()["run"] in shell.outlast("list").stdout
    shell.cloud("stop")
    for command in (["status", "dev"], ["list"], ["logs", "dev"], ["up", "dev"], ["stop", "dev"]):
        said = shell.outlast(*command)
        assert said.returncode == 1 and "local cloud of this shell" in said.stderr, command
        assert "is stopped" in said.stderr and len(said.stderr.splitlines()) == 1
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", found.port)) != 0
    assert (ROOT / "Pulumi.dev.yaml").read_bytes() == example


def test_a_crash_loses_nothing_and_a_reset_everything(shell: Shell):
    shell.take_over(shell.cloud("start"))
    crashed = running(shell)
    crashed.make_bucket("kept-bucket", "us-central1")
    crashed.call("POST", "/upload/storage/v1/b/kept-bucket/o?uploadType=media&name=a", {"b": 1})
    os.kill(crashed.pid, signal.SIGKILL)
    wait_until(lambda: clouds.find(shell.state) is None, "the cloud is dead")
    for command in ("status", "stop", "reset"):
        done = shell.outlast("cloud", command, "--state", str(shell.state))
        (sentence,) = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (1, "")
        assert f"none is running on {shell.state}; start one: outlast cloud start" in sentence

    shell.take_over(shell.cloud("start"))
    assert running(shell).call("GET", "/storage/v1/b/kept-bucket/o/a?alt=media") == {"b": 1}
    said = shell.cloud("status").splitlines()
    assert said[0].endswith(f"state in {shell.state}")
    assert "no VMs" in said and "bucket kept-bucket: 1 object" in said

    shell.pulumi("stack", "init", "another")
    (ROOT / "Pulumi.another.yaml").unlink()
    assert "empty" in shell.cloud("reset")
    assert "kept-bucket" not in shell.cloud("status")
    stacks = json.loads(shell.pulumi("stack", "ls", "--json"))
    assert [stack["name"] for stack in stacks] == ["dev"]


def test_the_reason_of_a_refusal_is_not_what_another_cloud_prints(tmp_path: Path):
    log = tmp_path / "log"
    refusal = "--state x: in use by the local cloud of process 1"
    for other in ("local cloud on http://127.0.0.1:1 (process 1)", f"{clouds.NOTE}a note"):
        log.write_text(f"earlier\n{refusal}\n{other}\n")
        assert clouds._last_line(log, len("earlier\n")) == refusal


def test_of_two_clouds_on_one_folder_the_second_is_refused(shell: Shell):
    command = [sys.executable, "-m", "outlast.cli.app", "cloud", "start"]
    command += ["--state", str(shell.state)]
    both = [
        subprocess.Popen(
            command, cwd=ROOT, env=shell.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120) for process in both]
    codes = [process.returncode for process in both]
    first = running(shell)
    assert 0 in codes
    for code, (out, err) in zip(codes, said, strict=True):
        if code:  # both looked before either ran
            (sentence,) = err.decode().splitlines()
            assert f"in use by the local cloud of process {first.pid}" in sentence
            assert out == b""
        else:
            assert str(first.pid) in out.decode()
    with pytest.raises(CloudError, match="already running"):
        clouds.start(shell.state, find_parts(), dies_with_us=True)
    assert running(shell) == first and first.vms() == []


def running(shell: Shell) -> clouds.LocalCloud:
    found = clouds.find(shell.state)
    assert found
    return found


def test_google_s_plugin_takes_the_place_of_the_stand_in(shell: Shell, tmp_path: Path):
    shell.take_over(shell.cloud("start"))
    assert shell.env["PULUMI_DEBUG_PROVIDERS"].startswith("gcp:")
    shell.env |= {"HOME": str(tmp_path), "OUTLAST_CACHE": str(cache_dir())}
    folders = shell.env["PATH"].split(":")  # this machine may have the plugin
    folders = [folder for folder in folders if not Path(folder, PLUGIN).exists()]
    shell.env["PATH"] = ":".join(folders)
    done = shell.outlast("cloud", "start", "--state", str(shell.state), "--provider", "plugin")
    assert done.returncode == 1 and done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert "--provider plugin: pulumi-resource-gcp is neither on PATH nor in" in sentence

    fake_plugin(tmp_path / "bin")
    shell.env["PATH"] = f"{shell.env['PATH']}:{tmp_path}/bin"
    printed = shell.cloud("start", "--provider", "plugin")
    assert f"# provider: {tmp_path}/bin/pulumi-resource-gcp" in printed.splitlines()
    shell.take_over(printed)
    assert "PULUMI_DEBUG_PROVIDERS" not in shell.env
    assert shell.env["PATH"].startswith(f"{tmp_path}/bin:")


def test_a_port_in_use_is_one_sentence(shell: Shell):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = shell.outlast("cloud", "start", "--port", str(port), "--state", str(shell.state))
    assert done.returncode == 1 and done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert f"port {port}" in sentence and "in use" in sentence
    assert clouds.find(shell.state) is None


def test_a_folder_with_a_users_files_is_refused_and_left_as_it_was(shell: Shell):
    kept = shell.state / "vms" / "web" / "a.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("x")
    done = shell.outlast("cloud", "start", "--state", str(shell.state))
    assert done.returncode == 1
    assert "holds files and is not a local cloud's folder; name an empty one" in done.stderr
    assert [path for path in shell.state.rglob("*") if path.is_file()] == [kept]


@pytest.mark.parametrize("state", ["/dev/null/x", "/proc/x"])
def test_a_folder_that_cannot_be_is_one_sentence(shell: Shell, state: str):
    done = shell.outlast("cloud", "start", "--state", state)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert f"state {state}" in sentence and "name another folder" in sentence


@pytest.mark.parametrize("content", ["[]", "{}", "x", '{"pid": 1}'])
def test_an_endpoint_file_that_is_none_reads_as_no_cloud(tmp_path: Path, content: str):
    (tmp_path / "endpoint.json").write_text(content)
    assert clouds.find(tmp_path) is None


def test_a_vm_that_does_not_exist_is_named(shell: Shell):
    shell.cloud("start")
    for vm in ("a b", "ü", "../x"):
        done = shell.outlast("cloud", "kill", vm, "--state", str(shell.state))
        assert done.returncode == exits.USAGE
        assert f"VM {vm}: the local cloud has no such VM; there is none." in done.stderr
    done = shell.outlast("cloud", "thaw", "--state", str(shell.state))
    assert (done.returncode, "VM: say which; there is none." in done.stderr) == (exits.USAGE, True)


def test_a_folder_that_others_can_read_is_closed_and_said(shell: Shell):
    shell.cloud("start")
    shell.cloud("stop")
    shell.state.chmod(0o755)
    done = shell.outlast("cloud", "start", "--state", str(shell.state))
    assert done.returncode == 0
    (sentence,) = done.stderr.splitlines()
    assert f"{shell.state}: was open to other users (mode 0755); it is 0700 now" in sentence
    assert shell.state.stat().st_mode & 0o777 == 0o700


def test_a_link_is_refused_and_nothing_is_written_through_it(shell: Shell, tmp_path: Path):
    kept = tmp_path / "home"
    kept.mkdir()
    shell.state.symlink_to(kept)
    done = shell.outlast("cloud", "start", "--state", str(shell.state))
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert f"state {shell.state}: is a link" in sentence
    assert list(kept.iterdir()) == []


def test_a_log_that_is_a_link_is_not_written_through(shell: Shell, tmp_path: Path):
    kept = tmp_path / "id_ed25519"
    kept.write_text("key")
    shell.state.mkdir(mode=0o700)
    (shell.state / "cloud.log").symlink_to(kept)
    done = shell.outlast("cloud", "start", "--state", str(shell.state))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert kept.read_text() == "key"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_another_users_folder_is_not_taken_for_a_cloud(shell: Shell):
    shell.cloud("start")
    found = running(shell)
    os.chown(shell.state, 65534, 65534)
    try:
        assert clouds.find(shell.state) is None
        assert (
            "none is running" in shell.outlast("cloud", "stop", "--state", str(shell.state)).stderr
        )
    finally:
        os.chown(shell.state, 0, 0)
    assert running(shell) == found


def test_nothing_is_sent_to_a_program_that_took_the_port_of_a_dead_cloud(shell: Shell):
    shell.cloud("start")
    found = running(shell)
    os.kill(found.pid, signal.SIGKILL)
    wait_until(lambda: clouds.find(shell.state) is None, "the cloud is dead")

    def squat() -> socket.socket | None:
        with contextlib.suppress(OSError):  # its sockets are closed a moment after it has gone
            return socket.create_server(("127.0.0.1", found.port))
        return None

    with wait_until(squat, "the port is free") as squatter:
        squatter.setblocking(False)
        with pytest.raises(CloudError, match="has ended"):
            found.call("POST", "/_local/reset", {"secret": "x"})
        with pytest.raises(BlockingIOError):
            squatter.accept()


@pytest.mark.parametrize("imitates", [False, True])
def test_stop_ends_no_process_that_got_the_clouds_number(
    shell: Shell, tmp_path: Path, imitates: bool
):
    """As if the cloud had died, and its number were another process's by now."""
    shell.state.mkdir(mode=0o700)
    words = ["-m", "outlast.localcloud", "serve", "--state", str(shell.state / "other")]
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    stranger = subprocess.Popen([*command, *(words if imitates else [])], cwd=tmp_path)
    try:
        endpoint = {"pid": stranger.pid, "port": 1, "provider_port": 2}
        (shell.state / "endpoint.json").write_text(json.dumps(endpoint))
        done = shell.outlast("cloud", "stop", "--state", str(shell.state))
        assert done.returncode == 1 and "none is running on" in done.stderr
        clouds.LocalCloud(shell.state, stranger.pid, 1, 2).stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
