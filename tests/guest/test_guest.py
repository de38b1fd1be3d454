"""VMs as machines of QEMU with a real Debian: from the first boot to a resume.

Needs `make guest-image` and the programs that it names; otherwise these tests are skipped, and
pytest says why. A VM without KVM takes minutes to boot, so each test boots as few as it can."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.guest, pytest.mark.timeout(3600)]

HERE = Path(__file__).parent


def rehearse(scenario: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The report of a rehearsal with machines of QEMU, and what it said; none of them is left."""
    command = [sys.executable, "-m", "outlast.cli", "rehearse", "--guest", "vm", "--json"]
    done = subprocess.run(
        [*command, "--scenario", str(scenario), *options],
        capture_output=True,
        text=True,
        env=os.environ,
        cwd=HERE.parents[1],
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    wrong = [found for found in report["guarantees"] if found["verdict"] == "broken"]
    assert done.returncode == 0, (wrong, done.stderr)
    assert not machines(), "a machine of QEMU is left"
    return report, done.stderr


def machines() -> list[int]:
    """Machines of QEMU that belong to a rehearsal of this test's processes."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"qemu_parent.py" in command and b"outlast-re-" in command:
                found.append(int(folder.name))
    return found


def attempts(report: Mapping[str, Any]) -> list[str]:
    return [attempt["reason"] for attempt in report["attempts"]]


def test_a_run_resumes_after_the_power_button() -> None:
    report, said = rehearse(HERE / "power-button.yaml")
    assert attempts(report) == ["preempted", "done"]
    assert "VMs are machines of QEMU" in said


def test_a_run_resumes_after_the_power_button_and_cuts_with_the_same_bytes() -> None:
    report, _ = rehearse(HERE / "vm-storm.yaml")
    assert attempts(report) == ["preempted", "vm-lost", "vm-lost", "done"]


def test_a_stock_image_trains_at_its_first_boot() -> None:
    report, _ = rehearse(HERE / "first-boot.yaml")
    assert attempts(report) == ["done"]


def test_a_restarted_service_and_an_upgrade_of_the_system_cost_no_step() -> None:
    report, _ = rehearse(HERE / "system-upgrade.yaml")
    assert attempts(report)[-1] == "done" and len(report["attempts"]) >= 2
