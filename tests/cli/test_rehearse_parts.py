"""A program of three parts in a rehearsal: preempted and cut in each, and in between."""

import json
from pathlib import Path

import pytest

from tests.cli.folds.folds import FOLDS, STEPS
from tests.cli.test_rehearse import start

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(400)]

SCENARIO = """\
name: folds
about: A cross-validation is preempted in its first part, and cut in its second and in its last.
stack:
  outlast:source: tests/cli/folds
  outlast:trainer: folds
  outlast:checkpointEvery: "3"
  outlast:args: {}
events:
  - when: {attempt: 1, phase: step, commits: 2}
    do: {preempt: {}}
  - when: {attempt: 2, phase: step, part: fold-2, commits: 2}
    do: {kill: {}}
  - when: {attempt: 3, phase: step, part: all, share: 0.5}
    do: {kill: {}}
expect:
  end: {state: done, reason: done}
  guarantees: [same-bytes, reason-recorded, resumed, notice-loses-nothing, committed-kept,
    each-step-once, single-lineage, head-never-goes-back, no-failure-counted, no-vm-left,
    only-bucket-left, no-process-left]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    (tmp_path / "folds.yaml").write_text(SCENARIO)
    return str(tmp_path / "folds.yaml")


def test_a_program_of_parts_is_struck_in_each_and_ends_with_the_undisturbed_bytes(scenario: str):
    process = start("--scenario", scenario, "--json")
    out, err = process.communicate(timeout=380)
    assert process.returncode == 0, err + out
    report = json.loads(out)
    assert report["held"] is True, report["guarantees"]
    assert [attempt["reason"] for attempt in report["attempts"]] == [
        "preempted",
        "vm-lost",
        "vm-lost",
        "done",
    ]
    assert report["parts"] == [{"part": fold, "step": STEPS, "done": True} for fold in FOLDS]
    assert {f"{fold}/end" for fold in FOLDS} <= report["metrics"].keys()
