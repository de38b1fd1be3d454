"""The named scenarios: each is a right file, asks for known guarantees, and has a mutant that fits.

Without a VM. `make scenarios` plays them all, and their mutants.
"""

import shutil
from pathlib import Path

import pytest

from outlast import settings
from outlast.cli.rehearsal import scenario
from outlast.cli.rehearsal.scenario import Scenario
from outlast.cli.rehearsal.settings import LOCAL_PLACE, LOCAL_SETTINGS
from outlast.localcloud.scenarios import scenario as cloud_side
from tests.program import stack
from tests.scenarios.mutants import MUTANTS, ROOT, Mutant

NEEDED = {
    *(
        "baseline",
        "storm",
        "no-notice",
        "daily-preemption",
        "stockout",
        "quota",
        "zombie",
        "flaky-storage",
    ),
    *("death-in-setup", "never-started", "hung-trainer", "out-of-memory", "user-error"),
    *("failed-self-removal", "storage-gone", "maintenance", "burst-fails", "exit-0-on-sigterm"),
    *("maintenance-moved", "zone-failover", "command-storm", "death-in-boot", "gpu-lost"),
}


def read(name: str) -> Scenario:
    """As `python -m outlast.localcloud check` gives it to the operator's side."""
    return scenario.of(cloud_side.read(scenario.find(name)).document())


def test_all_are_there():
    assert set(scenario.names()) >= NEEDED


def test_each_has_a_mutant():
    assert set(MUTANTS) == set(scenario.names())
    assert all(MUTANTS.values())


@pytest.mark.parametrize(
    ("name", "guarantee"),
    [
        ("flaky-storage", "stalls-retried"),
        ("gpu-lost", "no-failure-counted"),
        ("death-in-boot", "resumed"),
    ],
)
def test_what_a_scenario_is_about_is_what_its_mutant_breaks(name: str, guarantee: str):
    assert guarantee in {mutant.breaks for mutant in MUTANTS[name]}


@pytest.mark.parametrize("name", scenario.names())
def test_the_local_cloud_takes_it_and_the_judge_knows_its_guarantees(name: str):
    found = read(name)
    assert found.name == name
    assert found.about.endswith(".")
    assert {"no-vm-left", "only-bucket-left", "no-process-left"} <= set(found.guarantees)


@pytest.mark.parametrize("name", scenario.names())
def test_the_program_takes_its_settings(name: str):
    found = read(name)
    rehearsed = {**LOCAL_PLACE, **LOCAL_SETTINGS, **found.stack}
    texts = {key: stack.text(value) for key, value in rehearsed.items()}
    checked = settings.check(
        {**stack.defaults(), **texts},
        organization="organization",
        project="outlast",
        stack="dev",
        environ=stack.LOCAL_CLOUD,
        foundation_outputs=None,
        secret_keys=(),
    )
    assert checked.experiment == "dev"


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        pytest.param(name, mutant, id=f"{name}-{number}")
        for name, mutants in MUTANTS.items()
        for number, mutant in enumerate(mutants, 1)
    ],
)
def test_its_mutant_fits_the_source_and_breaks_what_it_asks_for(
    name: str, mutant: Mutant, tmp_path: Path
):
    for edit in mutant.edits:
        copy = tmp_path / edit.file
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / edit.file, copy)
        edit.apply(tmp_path)
        if copy.suffix == ".py":
            compile(copy.read_text(), str(copy), "exec")
    assert mutant.breaks in read(name).guarantees
