"""A campaign for real, in a copy of the checkout with a planted mutant: it fails, prints its seed,
and writes a scenario that fails too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.mutants import MUTANTS, copy_of_checkout
from tests.scenarios.play import play

SEED = 66
"""All that its first run meets: it is frozen after a commit, and a successor resumes."""

pytestmark = [pytest.mark.rehearsal, pytest.mark.long, pytest.mark.timeout(2400)]


def test_a_mutant_is_found_and_shown_alone(tmp_path: Path) -> None:
    root = copy_of_checkout(tmp_path / "checkout")
    (mutant,) = MUTANTS["daily-preemption"]
    for edit in mutant.edits:
        edit.apply(root)
    words = ["--seed", str(SEED), "--seconds", "1", "--job", "dummy", "--out", str(tmp_path)]
    figures = tmp_path / "figures.json"
    words += ["--json", str(figures)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaign.run", *words, "--reduce-seconds", "120"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = done.stdout
    assert done.returncode == 1, said
    assert f"seed {SEED}: m0-dummy: same-bytes: " in said, said
    file = tmp_path / f"campaign-{SEED}-0.yaml"
    assert f"{file}: fails alone, with " in said, said
    kept = json.loads(figures.read_text())
    assert kept["outcome"] == "does not hold"
    assert any(part.startswith("FAILED: m0-dummy: same-bytes: ") for part in kept["parts"])
    assert f"outlast rehearse --scenario {file}: broken: each-step-once, same-bytes\n" in said, said
    unchanged = play(str(file))
    assert unchanged.verdicts.get("same-bytes") == "held", unchanged
