"""A local cloud, and the real engine set up for it."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.operate import cloud as clouds
from outlast.operate import engine as engines
from tests.checkout import copy_checkout

COMMAND_TIMEOUT_SEC = 300


@dataclass
class Project:
    """A folder with a program, and the engine's command line for its one stack, `dev`."""

    folder: Path
    env: dict[str, str]
    cloud: clouds.LocalCloud

    def pulumi(self, *args: str, fails: bool = False) -> str:
        """What the command printed. `fails`: it must end with an error."""
        done = subprocess.run(
            ["pulumi", *args, "--non-interactive", "--color=never"],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_SEC,
        )
        assert bool(done.returncode) is fails, done.stdout
        return done.stdout

    def up(self, *args: str, fails: bool = False) -> str:
        return self.pulumi("up", "--yes", "--skip-preview", "-s", "dev", *args, fails=fails)

    def steps(self) -> dict[str, tuple[str, list[str]]]:
        """What a preview would do, by logical name: (operation, properties that differ)."""
        text = self.pulumi("preview", "--json", "-s", "dev")
        found = json.loads(text[text.index("\n{") if not text.startswith("{") else 0 :])
        return {
            step["urn"].rpartition("::")[2]: (step["op"], sorted(step.get("diffReasons") or []))
            for step in found["steps"]
            if step["op"] not in ("same", "create-replacement", "delete-replaced")
        }

    def outputs(self) -> dict[str, Any]:
        return json.loads(self.pulumi("stack", "output", "--json", "-s", "dev"))

    def set(self, path: str, value: str) -> None:
        self.pulumi("config", "set", "-s", "dev", "--path", path, value)


@contextlib.contextmanager
def checkout_on_a_cloud_of_its_own(
    parts: engines.Parts, folder: Path, *, guests: bool = True
) -> Iterator[Project]:
    """A copy of the checkout, whose stack has no settings yet, in a cloud that nobody shares."""
    cloud = clouds.start(folder / "cloud", parts, guests=guests, dies_with_us=True)
    try:
        variables = cloud.variables(parts, folder / "pulumi", os.environ["PATH"])
        checkout = folder / "checkout"
        checkout.mkdir()
        copy_checkout(checkout)
        made = Project(checkout, {**engines.scrubbed(), **variables}, cloud)
        made.pulumi("stack", "init", "dev", "--no-select")
        yield made
    finally:
        cloud.stop()


@pytest.fixture(scope="session")
def parts() -> engines.Parts:
    return engines.find_parts()


@pytest.fixture(scope="session")
def cloud(
    parts: engines.Parts, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[clouds.LocalCloud]:
    started = clouds.start(tmp_path_factory.mktemp("cloud"), parts, dies_with_us=True)
    yield started
    started.stop()


@pytest.fixture
def project(cloud: clouds.LocalCloud, parts: engines.Parts, tmp_path: Path) -> Project:
    """An empty project; `write_program` fills it."""
    variables = cloud.variables(parts, tmp_path / "pulumi", os.environ["PATH"])
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, {**engines.scrubbed(), **variables}, cloud)


@pytest.fixture
def throwaway(project: Project, parts: engines.Parts) -> Project:
    """A project whose program is a test's own `__main__.py`."""
    definition = {
        "name": "throwaway",
        "runtime": {
            "name": "python",
            "options": {"virtualenv": str(Path(parts.python).parents[1])},
        },
        "config": {"gcp:project": clouds.PROJECT, "gcp:zone": "europe-west4-a"},
    }
    (project.folder / "Pulumi.yaml").write_text(yaml.safe_dump(definition))
    (project.folder / "__main__.py").write_text("")
    project.pulumi("stack", "init", "dev")
    return project
