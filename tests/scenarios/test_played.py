"""Scenarios played for real: one of the named, and a stack of one's own with its data."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.scenarios.play import play
from tests.scenarios.twins import copy_of_checkout

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(300)]

LIMIT_SEC = 230

POINTS = "".join(f"{n % 7},{n % 5},{n % 3},0.5,0.25,{n % 2},1,0,{n % 2}\n" for n in range(200))


def test_a_zombie_changes_nothing():
    played = play("zombie", limit_sec=LIMIT_SEC)  # says how far it came, before pytest ends it
    assert (played.held, played.broken, played.error) == (True, (), "")


def rehearse(root: Path, *args: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "outlast.cli.app", "rehearse", *args, "--json"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_a_stack_of_ones_own_is_rehearsed_with_its_trainer_and_data(tmp_path: Path):
    root = copy_of_checkout(tmp_path / "checkout")
    example = (root / "trainers/dummy.py").read_text()
    (root / "trainers/mine.py").write_text(example.replace('NAME = "dummy"', 'NAME = "mine"'))
    settings = {
        "gcp:project": "my-project",
        "gcp:zone": "europe-west4-b",
        "outlast:trainer": "mine",
        "outlast:args": {"data": "gs://my-project-outlast/data/points.csv", "epochs": 3},
    }
    (root / "Pulumi.mine.yaml").write_text(yaml.safe_dump({"config": settings}))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "points.csv").write_text(POINTS)
    report = rehearse(
        root,
        *("--stack", "mine", "--scenario", "calm", "--limit-rows", "100"),
        *("--data", f"gs://my-project-outlast/data={tmp_path / 'data'}"),
    )
    assert [g for g in report["guarantees"] if not g["held"]] == []
    assert report["experiment"] == "mine"
    (attempt,) = report["attempts"]
    assert attempt["zone"] == "europe-west4-b"
    assert attempt["steps"] == 3 * 3  # 80 of 100 rows to train on, in batches of 32
