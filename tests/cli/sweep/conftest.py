"""A project with one bucket, which is in memory."""

from pathlib import Path

import pytest
import yaml

from outlast.bucket.store import MemoryStore
from outlast.cli import experiments
from tests.cli.sweep.made import CONFIG, World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    definition = {"name": "demo", "runtime": "python"}
    (tmp_path / "Pulumi.yaml").write_text(yaml.safe_dump(definition))
    (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": CONFIG}))
    monkeypatch.chdir(tmp_path)
    store = MemoryStore()
    monkeypatch.setattr(experiments, "buckets", lambda: {"acme-research-outlast": ""})
    monkeypatch.setattr(experiments, "open_bucket", lambda *_: store)
    return World(tmp_path, store)
