"""One trainer, by each way that code comes to a VM: from the bucket, from the image, from a private
repository, and as a project with its own packages. The results are the same bytes."""

import base64
import dataclasses
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from outlast.base.exits import Reason, State
from outlast.bucket.layout import AttemptStart
from outlast.bucket.store import Store, open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests import git_host
from tests.engine.conftest import Project, Watch, checkout_on, environments, holding, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

TOKEN = "a-token-of-a-test-0123456789"

PROJECT = """
[project]
name = "mine"
version = "1"
dependencies = ["numpy", "threadpoolctl"]

[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

# Makes a wheel with nothing but zipfile, so that no build needs a package of others.
BACKEND = """
import zipfile

NAME = "mine-1-py3-none-any.whl"


def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/{NAME}", "w") as wheel:
        wheel.write("helping.py")
        info = "mine-1.dist-info/"
        tags = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: mine\\nVersion: 1\\n")
        wheel.writestr(info + "WHEEL", tags)
        wheel.writestr(info + "RECORD", "")
    return NAME
"""


class Index:
    """A package index of wheels in a folder; counts its requests."""

    def __init__(self, wheels: Path) -> None:
        self.asked: list[str] = []
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                index.asked.append(self.path)

            def do_GET(self) -> None:  # noqa: N802
                word = self.path.strip("/").split("/")[-1]
                body, kind = (wheels / word).read_bytes() if word.endswith(".whl") else b"", ""
                if not body:
                    start = word.replace("-", "_") + "-"
                    names = [w.name for w in wheels.iterdir() if w.name.lower().startswith(start)]
                    body = "".join(f'<a href="/{name}">{name}</a>' for name in names).encode()
                    kind = "text/html"
                self.send_response(200)
                self.send_header("Content-Type", kind or "application/octet-stream")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/simple/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def index(parts: engines.Parts) -> Iterator[Index]:
    found = Index(Path(parts.wheels))
    yield found
    found.stop()


@pytest.fixture
def image(parts: engines.Parts, tmp_path: Path) -> Path:
    """An image of the test's own, into which it may put a bundle."""
    root = tmp_path / "image"
    shutil.copytree(parts.image, root, copy_function=os.link, symlinks=True)
    return root


@pytest.fixture
def local(
    parts: engines.Parts, tmp_path: Path, index: Index, image: Path
) -> Iterator[clouds.LocalCloud]:
    env = {"PIP_INDEX_URL": index.url, "PIP_CONFIG_FILE": os.devnull}
    own = dataclasses.replace(parts, image=str(image))
    started = clouds.start(tmp_path / "cloud", own, guest_env=env, dies_with_us=True)
    yield started
    started.stop()


@pytest.fixture
def stack(local: clouds.LocalCloud, parts: engines.Parts, tmp_path: Path) -> Project:
    made = checkout_on(local, parts, tmp_path)
    folder = made.folder
    dummy = (folder / "trainers/dummy.py").read_text()
    (folder / "code").mkdir()
    mine = dummy.replace('NAME = "dummy"', 'NAME = "mine"').replace(
        "from outlast.trainers import", "from helping import HELPS\nfrom outlast.trainers import"
    )
    (folder / "code/mine.py").write_text(mine)
    (folder / "code/helping.py").write_text("HELPS = True\n")
    (folder / "code/pyproject.toml").write_text(PROJECT)
    (folder / "code/backend.py").write_text(BACKEND)
    made.set("outlast:trainer", "mine")
    made.set("outlast:args.epochs", "2")
    made.set("outlast:source", "code")
    return made


class Runs:
    """The results of the stack's runs."""

    def __init__(self, stack: Project, store: Store) -> None:
        self.stack, self.store = stack, store
        self.count = 0

    def up(self, **settings: str) -> Watch:
        """A separate run with these settings; an empty one is taken back."""
        self.count += 1
        for key, value in {**settings, "rerun": str(self.count)}.items():
            if value:
                self.stack.set(f"outlast:{key}", value)
            else:
                self.stack.pulumi("config", "rm", "-s", "dev", f"outlast:{key}")
        self.stack.up()
        return Watch(self.stack, self.store)

    def result(self, run: Watch) -> dict[str, bytes]:
        """The run's result, when it is there."""
        run.wait_until_gone()
        end = run.done().end
        assert end is not None and end.result is not None
        folder = end.result.path
        found = {
            item.path.removeprefix(folder): self.store.get(item.path)[0]
            for item in self.store.list(folder)
        }
        return {name: data for name, data in found.items() if name != "RESULT.json"}


def test_the_same_trainer_gives_the_same_bytes_by_every_delivery(
    stack: Project,
    local: clouds.LocalCloud,
    image: Path,
    index: Index,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", local.url)
    store = open_store("gs://outlast-rehearsal-outlast")
    runs = Runs(stack, store)

    # From the bucket.
    run = runs.up()
    first = runs.result(run)
    assert "model.npy" in first and "metrics.json" in first
    bundle = run.outputs["bundleSha256"]

    # From the image: the same bundle, baked in; nothing is taken from the bucket.
    baked = image / "opt/outlast/bundles"
    baked.mkdir(parents=True)
    shutil.copy(stack.folder / f".outlast/bundles/{bundle}.zip", baked)
    for item in store.list("experiments/dev/bundles/"):
        store.delete(item.path, generation=item.generation)
    assert runs.result(runs.up(delivery="image")) == first
    assert list(store.list("experiments/dev/bundles/")) == []

    # A project with its own packages: made on the first VM, offline on the second.
    run = runs.up(delivery="bucket", requirements="code", **{"args.step-ms": "300"})
    until(lambda: run.step, "a commit")
    asked = len(index.asked)
    assert asked > 0
    (vm,) = local.vms()
    local.act(vm["name"], "preempt")
    # How long a step takes is the trainer's flag and part of its config, and of no model.
    without = {"config.json"}
    packaged = runs.result(run)
    assert {k: v for k, v in packaged.items() if k not in without} == {
        k: v for k, v in first.items() if k not in without
    }
    assert run.done().term == 2
    assert len(index.asked) == asked
    kept = [item.path for item in store.list("experiments/dev/environments/")]
    assert len(kept) == 2  # the dependencies, and the project itself

    # A private repository, with the project in a folder of it.
    repository = tmp_path / "hosted/code"
    shutil.copytree(stack.folder / "code", repository / "train")
    shutil.rmtree(repository / "train/__pycache__", ignore_errors=True)
    commit = git_host.commit(repository, {"README": "mine\n"})
    secrets = f"/secretmanager/v1/projects/{clouds.PROJECT}/secrets"
    local.call("POST", f"{secrets}?secretId=deploy", {"replication": {"automatic": {}}})
    payload = {"payload": {"data": base64.b64encode(TOKEN.encode()).decode()}}
    local.call("POST", f"{secrets}/deploy:addVersion", payload)
    with git_host.serving(tmp_path / "hosted", TOKEN) as host:
        run = runs.up(
            delivery="git",
            source="",
            requirements=".",
            gitUrl=f"{host.url}/code",
            gitCommit=commit,
            gitPath="train",
            gitSecret="deploy",
        )
        until(lambda: run.step, "a commit")
        assert environments(TOKEN.encode()) == []
        assert runs.result(run) == packaged
        start = AttemptStart.from_json(store.get(run.layout.attempt_start(1))[0])
        assert start.trainer == "mine" and start.spec["git"]["commit"] == commit
        assert host.users
        # Only Secret Manager has the token, in any form.
        for text in (TOKEN.encode(), base64.b64encode(TOKEN.encode())):
            where = holding(tmp_path, text)
            assert all("secrets" in path.relative_to(tmp_path).parts for path in where), where

        # The branch has moved on: the operator's own git tells where to, and its code is run.
        (repository / "train/mine.py").write_text((repository / "train/mine.py").read_text() + "#")
        newest = git_host.commit(repository, {"README": "newer\n"})
        ask = tmp_path / "askpass"
        ask.write_text(f"#!/bin/sh\necho {TOKEN}\n")
        ask.chmod(0o700)
        stack.set("outlast:gitRef", "main")
        said = stack.outlast("up", "dev", "--latest", GIT_ASKPASS=str(ask))
        assert f"main is at {newest}\n" in said
        moved = Watch(stack, store)
        assert moved.layout.run != run.layout.run
        assert runs.result(moved) == packaged

        # A commit that is not there ends the run, at once, with the reason.
        run = runs.up(gitCommit="0123456789" * 4)
        head = run.wait_until_gone()
        assert head is not None and head.state is State.FAILED
        assert head.end is not None and head.end.reason is Reason.USAGE and head.term == 1
        (item,) = [i for i in store.list(run.layout.attempts) if i.path.endswith("/end.json")]
        assert b"is not in http://127.0.0.1" in store.get(item.path)[0]
    assert len(index.asked) == asked
