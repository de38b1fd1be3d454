"""A project with one bucket, which is in memory."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from outlast.bucket.store import MemoryStore
from outlast.cli import experiments
from outlast.cli.commands import sweep as commands
from outlast.cli.commands.output import Form, JsonOption, say_json
from tests.cli.json_documents import problems
from tests.cli.sweep.made import CONFIG, World


@pytest.fixture(autouse=True)
def _documented(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints with `--json` is the document that its option declares."""

    def checked(document: Any, *, line: bool = False) -> None:
        params = click.get_current_context().command.params
        (option,) = (one for one in params if isinstance(one, JsonOption))
        text = json.loads(json.dumps(document))
        for shown in text if option.form is Form.LIST else [text]:
            wrong = [problems(shown, kind) for kind in option.document]
            assert [] in wrong, wrong
        say_json(document, line=line)

    monkeypatch.setattr(commands, "say_json", checked)


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
