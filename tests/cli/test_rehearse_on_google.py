"""The rehearsal on Google as a person calls it, with a local cloud in the place of Google."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.cli import cloud as clouds
from outlast.cli import engine as engines

pytestmark = pytest.mark.timeout(400)

IMAGE = f"projects/{clouds.PROJECT}/global/images/family/outlast"
SCENARIO = """\
name: two
about: A preemption and a deleted VM.
events:
  - when: {attempt: 1, phase: step, share: 0.1, commits: 1}
    do: {preempt: {}}
  - when: {attempt: 2, phase: step, commits: 1}
    do: {delete: {}}
expect:
  end: {state: done, reason: done}
  guarantees: [same-bytes, reason-recorded, resumed, notice-loses-nothing, committed-kept,
    each-step-once, single-lineage, no-failure-counted, no-vm-left, only-bucket-left,
    no-process-left]
"""
QUICK = """\
from outlast.cli.app import main
from outlast.cli.rehearsal.google import cloud, leftovers, probes
probes.GROUP_LIMIT_SEC, probes.WATCH_SEC = 8.0, 1.0
leftovers.SETTLE_SEC, cloud.GoogleCloud.poll_sec = 0.5, 1.0
main()
"""
"""The same command; it only waits less."""


class Google:
    """A local cloud, and a shell that leads to it."""

    def __init__(self, cloud: clouds.LocalCloud, folder: Path, parts: engines.Parts) -> None:
        self.cloud, self._folder = cloud, folder
        variables = cloud.variables(parts, folder / "pulumi", os.environ["PATH"])
        self._env = {**engines.scrubbed(), **variables}

    def start(self, *words: str) -> subprocess.Popen[str]:
        named = ["rehearse", "--on", "google", "--project", clouds.PROJECT, "--image", IMAGE]
        return subprocess.Popen(
            [sys.executable, "-c", QUICK, *named, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._env,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def left(self) -> dict[str, Any]:
        """What exists. Google keeps the id of a deleted role."""
        found = self.cloud.audit()
        return {kind: there for kind, there in found.items() if there and kind != "deleted_roles"}


@pytest.fixture
def google(tmp_path: Path) -> Iterator[Google]:
    parts = engines.find_parts()
    cloud = clouds.start(tmp_path / "c", parts, dies_with_us=True)
    try:
        yield Google(cloud, tmp_path, parts)
    finally:
        cloud.stop()


def until(process: subprocess.Popen[str], text: str) -> None:
    """Reads what the process prints up to a line with the text."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    pytest.fail(f"never came to {text!r}: {''.join(seen)}{process.communicate()[1]}")


@pytest.mark.rehearsal
def test_a_killed_rehearsal_is_cleaned_up_by_the_next_which_holds_every_guarantee(
    google: Google, tmp_path: Path
):
    with google.start("--probes-only") as killed:
        until(killed, "assumption guest-attributes: holds")
        os.kill(killed.pid, signal.SIGKILL)
    assert {"buckets", "groups", "templates", "service_accounts"} <= google.left().keys()
    (tmp_path / "two.yaml").write_text(SCENARIO)
    words = ("--scenario", str(tmp_path / "two.yaml"), "--epochs", "14", "--json")
    process = google.start(*words)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err + out
    assert "an earlier rehearsal left groups outlast-rehearsal-probe-group" in err
    assert "costs at most $0." in err
    report = json.loads(out)
    assert {one["outcome"] for one in report["assumptions"]} == {"holds"}
    assert len(report["assumptions"]) == 16
    run = report["run"]
    assert [one["verdict"] for one in run["guarantees"]] == ["held"] * len(run["guarantees"])
    reasons = [attempt["reason"] for attempt in run["attempts"]]
    assert reasons == ["preempted", "interrupted", "done"]
    assert report["left"] == [] and google.left() == {}
    assert clouds.PROJECT not in out, "the report may be attached to a public issue"


@pytest.mark.long
@pytest.mark.parametrize("moment", ["pulumi up", "attempt 2 on"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_rehearsal_that_is_cut_off_leaves_nothing_or_the_next_call_deletes_it(
    google: Google, moment: str, number: signal.Signals
):
    process = google.start()
    until(process, moment)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=200)
    if number is signal.SIGINT:
        assert process.returncode == 130, err + out
        assert err.splitlines()[-1] == "outlast: interrupted; everything it started has ended"
        assert google.left() == {}
        return
    assert "buckets" in google.left()
    process = google.start("--clean-up")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err + out
    assert google.left() == {}
