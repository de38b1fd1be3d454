"""The owners of resources come from the states of a backend's stacks, many of them in few calls."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.bucket.store import GcsStore
from outlast.cli import engine
from outlast.cli.audit import owners
from tests.stores import BUCKET, storage_api  # noqa: F401  a fixture

STACKS = 12
ODD = {"stack-03": None, "stack-04": "", "stack-05": '{"version": 4, "checkpoint": {}}', "new": "{"}
"""Stacks without a file of their name, such as a packed one, or with one that is not understood."""


def deployment(name: str) -> dict[str, Any]:
    id = f"projects/p/zones/z/instanceGroupManagers/{name}"
    return {"resources": [{"type": "group", "id": id}], "pending_operations": None}


class Backend:
    """Stacks of two projects as their files, and what the engine says of them."""

    def __init__(self, url: str, put: Callable[[str, str], Any]) -> None:
        own = [f"stack-{number:02}" for number in range(STACKS)]
        self.url = url
        self.stacks = [*own, "new", "organization/other/stack-00"]
        self.exported: list[str] = []
        for name in self.stacks:
            project = "other" if "/" in name else "Mine"
            checkpoint = {"stack": name, "latest": deployment(name)}
            text = ODD.get(name, json.dumps({"version": 3, "checkpoint": checkpoint}))
            if text is not None:
                put(f".pulumi/stacks/{project}/{name.rpartition('/')[2]}.json", text)

    def run(self, args: list[str], **_: Any) -> str:
        if args[:2] == ["stack", "ls"]:
            return json.dumps([{"name": name} for name in self.stacks])
        if args == ["whoami", "--json"]:
            return json.dumps({"user": "me", "url": self.url})
        self.exported.append(args[-1])
        return json.dumps({"version": 3, "deployment": deployment(args[-1])})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Backend], tuple[owners.Owner, ...]]:
    monkeypatch.setattr(engine, "project_name", lambda: "Mine")

    def read(backend: Backend) -> tuple[owners.Owner, ...]:
        monkeypatch.setattr(engine, "run_engine", backend.run)
        return owners.read()

    return read


def expected(backend: Backend) -> tuple[owners.Owner, ...]:
    states = ((name, {"deployment": deployment(name)}) for name in backend.stacks)
    return tuple(owners.owner_of(name, state, "Mine") for name, state in states)


def test_a_folders_states_are_read_from_its_files_and_odd_ones_by_the_engine(
    tmp_path: Path, seen: Callable[[Backend], tuple[owners.Owner, ...]]
) -> None:
    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    backend = Backend(f"file://{tmp_path}?no_tmp_dir=true", put)
    assert seen(backend) == expected(backend)
    assert sorted(backend.exported) == sorted(ODD)


def test_a_buckets_states_are_read_from_it(
    storage_api: str,  # noqa: F811
    seen: Callable[[Backend], tuple[owners.Owner, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    store = GcsStore(BUCKET)
    for prefix in ("", "states/"):
        where = f"{BUCKET}/{prefix}".rstrip("/")
        backend = Backend(
            f"gs://{where}",
            lambda path, text, prefix=prefix: store.put(prefix + path, text.encode()),
        )
        assert seen(backend) == expected(backend)
        assert sorted(backend.exported) == sorted(ODD)
    store.close()


@pytest.mark.parametrize("url", ["https://api.pulumi.com", "s3://states", "gs://no-such-bucket"])
def test_other_backends_are_left_to_the_engine(
    url: str,
    storage_api: str,  # noqa: F811
    seen: Callable[[Backend], tuple[owners.Owner, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_api)
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    backend = Backend(url, lambda path, text: None)
    assert seen(backend) == expected(backend)
    assert sorted(backend.exported) == sorted(backend.stacks)
