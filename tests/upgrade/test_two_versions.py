"""A stack's run that a newer version of Outlast has taken, as the older version's commands see
it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.base.retry import BRIEF
from outlast.bucket.layout import Layout
from outlast.bucket.store import open_store
from outlast.cli import engine as engines
from tests.engine.conftest import Project, checkout_on_a_separate_cloud
from tests.engine.test_preview import train_to

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

SENTENCE = "has format 2, this version of Outlast reads format 1; upgrade Outlast"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Project]:
    """In a cloud whose VMs do nothing."""
    with checkout_on_a_separate_cloud(engines.find_parts(), tmp_path, guests=False) as made:
        yield made


def test_each_command_names_both_formats_and_changes_nothing(
    stack: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stack.cloud.url)
    stack.configure(trainer="dummy")
    stack.up()
    outputs = stack.outputs()
    train_to(400, outputs)
    store = open_store(f"gs://{outputs['bucket']}")
    head = Layout(outputs["prefix"], outputs["run"]).head
    newer = {**json.loads(store.get(head)[0]), "format": 2, "added": []}
    BRIEF(lambda: store.put(head, json.dumps(newer).encode()))  # one write a second is allowed
    before = {item.path: item.generation for item in store.list("")}

    def refused(said: str) -> None:
        assert SENTENCE in said and "Traceback" not in said and "outlast repair" not in said

    refused(stack.pulumi("preview", "-s", "dev", fails=True))
    refused(stack.up(fails=True))
    for words in (
        ["preview", "dev"],
        ["up", "dev"],
        ["status", "dev"],
        ["costs", "dev"],
        ["checkpoints", "dev"],
        ["stop", "dev"],
        ["resume", "dev"],
        ["resume", "dev", "--from", "400"],
        ["repair", "dev"],
    ):
        refused(stack.outlast(*words, fails=True))
    stack.configure(args={"epochs": 7})
    refused(stack.pulumi("preview", "-s", "dev", fails=True))
    assert {item.path: item.generation for item in store.list("")} == before

    stack.configure(onNewRun="replace")
    assert "replace" in stack.pulumi("preview", "-s", "dev")
