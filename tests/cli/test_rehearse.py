"""The rehearsal as a person calls it: whole, in a hostile shell, and cut off at any moment."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_plugin import fake_plugin

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(300)]

SHORT = ("--epochs", "40")
HOSTILE = {
    "PULUMI_BACKEND_URL": "s3://nobodys-bucket",
    "PULUMI_ACCESS_TOKEN": "pul-0000",
    "GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent/key.json",
    "GOOGLE_PROJECT": "production",
    "CLOUDSDK_CORE_PROJECT": "production",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
}


def start(*args: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "outlast.cli.app", "rehearse", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        start_new_session=True,  # Ctrl-C reaches a whole foreground group; so does ours
        # As in a foreground shell: what runs in the background begins with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def processes_of(token: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and token.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A short folder of the test's own, so that no other rehearsal's is taken for its."""
    with tempfile.TemporaryDirectory(prefix="re", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


def scratch_folders() -> set[Path]:
    return set(Path(os.environ["TMPDIR"]).glob("outlast-re-*"))


def test_three_preemptions_and_every_guarantee_held_in_a_hostile_shell():
    before = scratch_folders()
    process = start(*SHORT, "--json", env=HOSTILE)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err + out
    report = json.loads(out)
    assert report["held"] is True
    assert [g["name"] for g in report["guarantees"] if not g["held"]] == []
    assert "same-bytes" in [g["name"] for g in report["guarantees"]]
    reasons = [attempt["reason"] for attempt in report["attempts"]]
    assert reasons == ["preempted", "vm-lost", "vm-lost", "done"]
    assert report["attempts"][0]["steps_lost"] == 0
    assert all(attempt["from_step"] > 0 for attempt in report["attempts"][1:])
    assert 0 < report["goodput"] < 1
    assert scratch_folders() <= before


SECRETS = """\
name: secrets
about: A command with two secrets and a webhook is preempted, and has them again.
stack:
  outlast:command: >-
    test "$ONE" = of-my-shell && test "$TWO" = rehearsal-stand-in-for-TWO || exit 3;
    n=$(cat {checkpoint}/n || echo 0); echo "try $n with $ONE";
    while [ $n -lt 8 ]; do n=$((n + 1)); echo $n > {checkpoint}/n; outlast mark; sleep 0.5; done;
    seq $n > {result}/numbers
  outlast:secretEnv: {ONE: projects/of-others/secrets/one/versions/3, TWO: two}
  outlast:webhookSecret: hook
events:
  - when: {attempt: 1, phase: committed}
    do: {preempt: {}}
expect:
  end: {state: done, reason: done}
  guarantees: [same-bytes, reason-recorded, resumed, single-lineage, no-vm-left, only-bucket-left]
"""


def test_a_trainers_secrets_and_the_webhooks_are_there_as_on_the_cloud(tmp_path: Path):
    (tmp_path / "secrets.yaml").write_text(SECRETS)
    process = start(
        "--scenario", str(tmp_path / "secrets.yaml"), env={"ONE": "of-my-shell", "TWO": ""}
    )
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err + out
    assert "secretEnv.ONE: your environment's value" in out
    assert "secretEnv.TWO: a stand-in" in out and "webhookSecret: an address that leads" in out
    assert "of-my-shell" not in out + err


MOMENTS = ["pulumi up", "run ", "attempt 1 on", "preempt: attempt 1", "destroying"]
FOR_EACH_CHANGE = {"pulumi up", "preempt: attempt 1"}


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    yield from process.stdout


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(moment, marks=[pytest.mark.long] if moment not in FOR_EACH_CHANGE else [])
        for moment in MOMENTS
    ],
)
def test_ctrl_c_at_any_moment_leaves_no_process_port_or_folder(moment):
    before = scratch_folders()
    process = start(*SHORT)
    seen = []
    for line in lines_of(process):
        seen.append(line)
        if moment in line:
            break
    else:
        pytest.fail(f"never came to {moment!r}: {''.join(seen)}{process.communicate()[1]}")
    (scratch,) = scratch_folders() - before
    port = json.loads((scratch / "c" / "endpoint.json").read_text())["port"]
    assert processes_of(str(scratch))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err + out
    assert err.splitlines()[-1] == "outlast: interrupted; everything it started has ended"
    assert "Traceback" not in err
    assert processes_of(str(scratch)) == []
    assert not scratch.exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_ctrl_c_in_the_first_moment_leaves_nothing():
    before = scratch_folders()
    process = start(*SHORT)
    deadline = time.monotonic() + 30
    while not scratch_folders() - before and time.monotonic() < deadline:
        time.sleep(0.005)
    (scratch,) = scratch_folders() - before
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert processes_of(str(scratch)) == []
    assert not scratch.exists()


def test_a_killed_rehearsal_takes_its_local_cloud_vms_and_plugin_with_it(tmp_path: Path):
    """The plugin is a fake that the engine starts as it starts Google's."""
    before = scratch_folders()
    seen = fake_plugin(tmp_path / "bin")
    path = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    process = start(*SHORT, "--provider", "plugin", env=path)
    lines = lines_of(process)
    assert f"provider: {seen.parent}/pulumi-resource-gcp" in next(lines)
    assert any("attempt 1 on" in line for line in lines)
    assert "PULUMI_DEBUG_PROVIDERS" not in seen.read_text()
    (scratch,) = scratch_folders() - before
    process.kill()
    process.communicate(timeout=120)
    deadline = time.monotonic() + 30
    while (left := processes_of(str(scratch))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    import shutil

    shutil.rmtree(scratch)  # no process was left to do it
