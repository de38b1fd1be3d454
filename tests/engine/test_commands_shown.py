"""The pages' commands that write a stack's settings, run by the real engine, page by page; and
gcloud's, run against the local cloud."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.engine.conftest import Project, until
from tests.tools.shown import commands
from tests.tools.test_commands_shown import CONFIGURED, is_by_name
from tests.tools.test_docs import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

STAND_INS = {"git": "echo 0123456789012345678901234567890123456789", "ssh-keyscan": "echo a key"}


def bash(line: str, folder: Path, env: dict[str, str]) -> str:
    """What a line that succeeds says on stderr."""
    done = subprocess.run(
        ["bash", "-ec", line],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stderr


def test_the_settings_of_the_pages_are_written_by_the_engine(
    project: Project, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "Pulumi.yaml", project.folder)
    for name, line in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    env = {**project.env, "PATH": f"{tmp_path}:{project.env['PATH']}"}
    project.pulumi("login", env["PULUMI_BACKEND_URL"])
    project.pulumi("stack", "init", "page")
    shown = [one for one in commands() if is_by_name(one, CONFIGURED)]
    # One that lacks its last word is a sentence about the command; what comes after && is the
    # program's.
    whole = [one.line.partition(" && ")[0] for one in shown if len(one.words) > 3]
    lines = dict.fromkeys(line for line in whole if ":KEY" not in line and "--secret" not in line)
    assert len(lines) > 30
    for line in sorted(lines, key=lambda line: line.startswith("pulumi stack rm")):
        bash(f"{line} --yes" if line.startswith("pulumi stack rm") else line, project.folder, env)
    declared = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    for file in project.folder.glob("Pulumi.*.yaml"):
        for key in yaml.safe_load(file.read_text()).get("config", {}):
            assert key.startswith("gcp:") or key.removeprefix("outlast:") in declared, key


SERVED = ("compute instances list", "compute instance-groups managed list ", "secrets", "storage")
"""What of gcloud the local cloud serves."""
LISTS = ("compute operations", "compute disks", "iam service-accounts", "iam roles")
"""Lists that are on no page, but that people look at."""
ORDER = ("create", "add", "cp", "list", "update", "rm")
"""A secret is there before its version, and the bucket goes last."""


@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud_runs_against_the_local_cloud(project: Project, tmp_path: Path) -> None:
    env = {**project.env, "PATH": f"{project.env['PATH']}:{os.environ['PATH']}"}
    bucket, folder = "outlast-rehearsal-outlast", project.folder
    project.cloud.call("POST", "/storage/v1/b?project=outlast-rehearsal", {"name": bucket})
    (folder / "mnist").mkdir()
    (folder / "mnist/rows.gz").write_bytes(b"rows")
    (folder / "deploy_key").write_text("key")
    rules = re.findall(
        r'^```json\n(\{"rule".+)\n```$', (ROOT / "docs/machines.md").read_text(), re.MULTILINE
    )
    (folder / "packages.json").write_text("".join(rules))
    shown = {
        " ".join(one.words)
        for one in commands()
        if one.words[0] == "gcloud" and f"{' '.join(one.words[1:])} ".startswith(SERVED)
    } - {"gcloud storage cp"}
    assert len(shown) > 6
    secrets: set[str] = set()
    for line in sorted(shown, key=lambda line: next(n for n in ORDER if n in line.split())):
        words = line.split()
        if words[1:3] == ["secrets", "create"]:
            secrets.add(words[3])
    for name in {line.split()[4] for line in shown if "versions add" in line} - secrets:
        bash(f"gcloud secrets create {name}", folder, env)
    for line in sorted(shown, key=lambda line: [n in line.split() for n in ORDER].index(True)):
        line = line.replace("gs://BUCKET", f"gs://{bucket}").replace(
            "my-project", "outlast-rehearsal"
        )
        bash(f"printf token | {line}" if line.endswith("=-") else line, folder, env)
    for kind in LISTS:
        # gcloud succeeds with a warning if a part of a list was refused.
        assert "not" not in bash(f"gcloud {kind} list", folder, env)

    speak(project, "zones/europe-west4-a")
    port = "gcloud compute instances get-serial-port-output speaker --zone europe-west4-a"

    def heard() -> bool:
        bash(f"{port} > port.txt", folder, env)
        return "startup said this" in (folder / "port.txt").read_text()

    until(heard, "the serial port of a VM")
    # Other tests count the VMs of this cloud.
    bash("gcloud compute instances delete speaker --zone europe-west4-a --quiet", folder, env)
    until(lambda: not project.cloud.audit()["vms"], "the VM is gone")


def speak(project: Project, zone: str) -> None:
    """Creates a VM whose startup script writes to its serial port."""
    image = "projects/outlast-rehearsal/global/images/family/outlast"
    script = "#!/bin/bash\necho startup said this\n"
    body = {
        "name": "speaker",
        "machineType": f"{zone}/machineTypes/e2-small",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": image}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "metadata": {"items": [{"key": "startup-script", "value": script}]},
    }
    project.cloud.call("POST", f"/compute/v1/projects/outlast-rehearsal/{zone}/instances", body)
