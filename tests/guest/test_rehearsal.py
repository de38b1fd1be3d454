"""Rehearsals with machines of QEMU and a real Debian: from the first boot to a resume.

Without KVM a VM takes a minute to boot, so each scenario boots as few as it can."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.guest.guest_cloud import machines, processes, wait

pytestmark = [pytest.mark.guest, pytest.mark.timeout(3600)]

HERE = Path(__file__).parent


@contextmanager
def rehearsal(scenario: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A rehearsal in a process, and the folder for its temporary files, which has a short name."""
    command = [sys.executable, "-m", "outlast.cli", "rehearse", "--guest", "vm", "--json"]
    with tempfile.TemporaryDirectory(prefix="guest-", dir="/tmp") as folder:
        process = subprocess.Popen(
            [*command, "--scenario", str(HERE / scenario)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": folder},
            cwd=HERE.parents[1],
        )
        try:
            yield process, folder
        finally:
            process.kill()
            process.communicate()
            # The engine and the local cloud may still write into the folder.
            wait(lambda: not machines(folder), "for the end of the machines")
            wait(lambda: not processes(folder), "for the end of the processes")


def rehearse(scenario: str) -> Mapping[str, Any]:
    """The report of a rehearsal that held, and that left no machine when it ended."""
    with rehearsal(scenario) as (process, folder):
        printed, said = process.communicate()
        assert not machines(folder), "a QEMU machine is left"
    assert printed, said
    assert "VMs are machines of QEMU" in said
    report = json.loads(printed)
    assert process.returncode == 0, ([*report["guarantees"]], said)
    return report


def attempts(report: Mapping[str, Any]) -> list[str]:
    return [attempt["reason"] for attempt in report["attempts"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_rehearsal_leaves_no_machine(number: signal.Signals) -> None:
    with rehearsal("vm-storm.yaml") as (process, folder):
        wait(lambda: machines(folder) or process.poll() is not None, "for a machine")
        assert process.poll() is None, process.communicate()
        process.send_signal(number)
        process.communicate()
        assert process.returncode in (130, -number)
        if number == signal.SIGINT:
            assert not machines(folder)
        # Nothing is left that could end a machine, but its parent and the cloud.
        wait(lambda: not machines(folder), "for the end of the machines")


def test_a_run_resumes_after_the_power_button_and_cuts_with_the_same_bytes() -> None:
    report = rehearse("vm-storm.yaml")
    assert attempts(report) == ["preempted", "vm-lost", "vm-lost", "done"]


def test_a_run_resumes_after_its_service_restarts_and_during_an_upgrade_of_the_system() -> None:
    report = rehearse("system-upgrade.yaml")
    assert attempts(report)[-2:] == ["preempted", "done"] and len(report["attempts"]) >= 3


def test_a_stock_image_trains_at_its_first_boot() -> None:
    report = rehearse("first-boot.yaml")
    assert attempts(report) == ["done"]
