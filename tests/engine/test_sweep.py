"""A sweep on the local cloud: killed while it comes up, continued, trained, compared, destroyed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.cli import engine as engines
from tests.engine.conftest import Project, checkout_on_a_separate_cloud, until

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(1500)]

RATES = [0.1, 0.2, 0.3, 0.4]


@pytest.fixture
def stack(parts: engines.Parts, tmp_path: Path) -> Iterator[Project]:
    with checkout_on_a_separate_cloud(parts, tmp_path) as made:
        made.configure(trainer="dummy", args={"epochs": 2})
        yield made


def shown(stack: Project, *words: str) -> Any:
    return json.loads(stack.outlast("sweep", *words, "--json"))


def test_a_sweep_of_four(stack: Project) -> None:
    sweep = {
        "base": "dev",
        "parameters": {"learning-rate": RATES},
        "metric": "test_accuracy",
        "goal": "max",
    }
    (stack.folder / "lr.yaml").write_text(yaml.safe_dump(sweep))
    assert len(shown(stack, "preview", "lr.yaml")["trials"]) == 4
    # Everything at once is killed, as in a power cut, while the second trial comes up.
    command = [sys.executable, "-m", "outlast.cli", "sweep", "up", "lr.yaml", "--jobs", "1"]
    killed = subprocess.Popen(
        command, cwd=stack.folder, env=stack.env, stdin=subprocess.DEVNULL, start_new_session=True
    )
    audit = stack.cloud.audit
    until(lambda: len(audit()["templates"]) >= 2 or killed.poll() is not None, "two templates")
    assert killed.poll() is None
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert len(audit()["templates"]) < 4

    said = stack.outlast("sweep", "up", "lr.yaml")
    assert "outlast sweep leaderboard lr" in said
    assert len(audit()["templates"]) == len(audit()["groups"]) == 4
    assert len(audit()["service_accounts"]) == len(audit()["roles"]) == 1
    assert not list(stack.folder.glob("Pulumi.lr*"))
    until(
        lambda: {one["state"] for one in shown(stack, "status", "lr")} == {"done"},
        "the end of all trials",
        limit_sec=900,
    )
    assert shown(stack, "up", "lr.yaml")["done"] == [], "what is done is left alone"
    board = shown(stack, "leaderboard", "lr")
    assert {one["parameters"]["learning-rate"] for one in board["trials"]} == set(RATES)
    assert all(one["compared"] for one in board["trials"]) and board["best"]
    (best,) = shown(stack, "fetch", "lr", "--best")
    assert best["run"] == board["best"] and Path(stack.folder, best["path"]).is_dir()

    stack.outlast("sweep", "destroy", "lr")
    left = audit()
    for kind in ("templates", "groups", "vms", "service_accounts", "roles", "bindings", "declared"):
        assert not left[kind], kind
    assert "lr--" not in stack.pulumi("stack", "ls")
    assert shown(stack, "leaderboard", "lr") == board
