"""A local cloud, the real engine set up for it, and a run watched from outside."""

import contextlib
import fnmatch
import gzip
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.base.exits import State
from outlast.bucket.head import Head, HeadLost, read_head
from outlast.bucket.layout import Layout
from outlast.bucket.rows import read_rows
from outlast.bucket.store import Store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from tests.checkout import copy_checkout

LIMIT_SEC = 300
"""For whatever is waited for: a busy machine's, not a quiet one's."""


LABEL_OUTPUTS = {"effectiveLabels", "pulumiLabels"}
"""Outputs that follow the labels: Google's plugin may name them beside the input."""


def until(condition: Callable[[], Any], what: str, *, limit_sec: float = LIMIT_SEC) -> Any:
    """Returns a condition's value once it is true. `what`: the error if it never is."""
    deadline = time.monotonic() + limit_sec
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not in {limit_sec:.0f} s"
        time.sleep(0.1)
    return found


@dataclass
class Project:
    """A folder with a program, and the engine's command line for its one stack, `dev`."""

    folder: Path
    env: dict[str, str]
    cloud: clouds.LocalCloud

    def pulumi(self, *args: str, fails: bool = False) -> str:
        """What the command printed. `fails`: it must end with an error."""
        return self._said(["pulumi", *args, "--non-interactive", "--color=never"], fails=fails)

    def outlast(self, *words: str, fails: bool | None = False, **variables: str) -> str:
        """What the command of the folder's checkout printed. `fails`: None if it may; `variables`:
        of its environment."""
        argv = [sys.executable, "-m", "outlast.cli", *words]
        return self._said(argv, fails=fails, variables=variables)

    def up(self, *args: str, fails: bool = False) -> str:
        return self.pulumi("up", "--yes", "--skip-preview", "-s", "dev", *args, fails=fails)

    def destroy(self) -> str:
        return self.pulumi("destroy", "--yes", "--skip-preview", "-s", "dev")

    def steps(self) -> dict[str, tuple[str, list[str]]]:
        """What a preview would do, by logical name: (operation, properties that differ)."""
        text = self.pulumi("preview", "--json", "-s", "dev")
        found = json.loads(text[text.index("\n{") if not text.startswith("{") else 0 :])
        return {
            step["urn"].rpartition("::")[2]: (
                step["op"],
                sorted(set(step.get("diffReasons") or []) - LABEL_OUTPUTS),
            )
            for step in found["steps"]
            if step["op"] not in ("same", "create-replacement", "delete-replaced")
        }

    def outputs(self) -> dict[str, Any]:
        return json.loads(self.pulumi("stack", "output", "--json", "-s", "dev"))

    def set(self, path: str, value: str) -> None:
        self.pulumi("config", "set", "-s", "dev", "--path", path, value)

    def configure(self, **values: Any) -> None:
        """Sets Outlast's own keys, without a process for each."""
        path = self.folder / "Pulumi.dev.yaml"
        document = yaml.safe_load(path.read_text())
        document["config"] |= {f"outlast:{key}": value for key, value in values.items()}
        path.write_text(yaml.safe_dump(document))

    def _said(
        self, argv: list[str], *, fails: bool | None, variables: Mapping[str, str] | None = None
    ) -> str:
        done = subprocess.run(
            argv,
            cwd=self.folder,
            env={**self.env, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SEC,
        )
        assert fails is None or bool(done.returncode) is fails, done.stdout
        return done.stdout


class Watch:
    """The run that a stack is up with, from outside."""

    def __init__(self, stack: Project, store: Store) -> None:
        self.stack, self.store = stack, store
        self.outputs = stack.outputs()
        self.layout = Layout(self.outputs["prefix"], self.outputs["run"])

    @property
    def head(self) -> Head | None:
        """None if there is none yet."""
        try:
            return read_head(self.store, self.layout).head
        except HeadLost:
            return None

    @property
    def step(self) -> int:
        """Of the newest checkpoint; 0 without one."""
        return self.head.step if self.head else 0

    def wait(
        self, condition: Callable[[Head], object], what: str, *, limit_sec: float = LIMIT_SEC
    ) -> Head:
        """HEAD, once it meets a condition."""
        return until(
            lambda: (head := self.head) and condition(head) and head, what, limit_sec=limit_sec
        )

    def wait_until_gone(self, *, limit_sec: float = LIMIT_SEC) -> Head | None:
        """HEAD, once the run's VM has left its group."""
        group, zone = self.outputs["group"], self.outputs["groupZone"]
        until(
            lambda: self.stack.cloud.group_size(group, zone) == 0,
            "the run's VM has left its group",
            limit_sec=limit_sec,
        )
        return self.head

    def done(self, *, limit_sec: float = LIMIT_SEC) -> Head:
        """HEAD of the run that has ended as it should."""
        head = self.wait(lambda head: head.state.ended, "the end", limit_sec=limit_sec)
        assert head.state is State.DONE and head.end is not None
        return head

    def steps(self, head: Head) -> list[int]:
        """The steps of the rows that count, in their order."""
        return [row["step"] for row in read_rows(self.store, self.layout, head)]


@contextlib.contextmanager
def checkout_on_a_separate_cloud(
    parts: engines.Parts,
    folder: Path,
    *,
    guests: bool = True,
    guest_env: Mapping[str, str] | None = None,
) -> Iterator[Project]:
    """A copy of the checkout, whose stack has no settings yet, in a cloud of this test only."""
    cloud = clouds.start(
        folder / "cloud", parts, guests=guests, guest_env=guest_env, dies_with_us=True
    )
    try:
        yield checkout_on(cloud, parts, folder)
    finally:
        cloud.stop()


def checkout_on(cloud: clouds.LocalCloud, parts: engines.Parts, folder: Path) -> Project:
    """A copy of the checkout with its stack on a cloud that is there."""
    variables = cloud.variables(parts, folder / "pulumi", os.environ["PATH"])
    checkout = folder / "checkout"
    checkout.mkdir()
    copy_checkout(checkout)
    made = Project(checkout, {**engines.scrubbed(), **variables}, cloud)
    made.pulumi("stack", "init", "dev", "--no-select")
    return made


def disk_files(cloud: Path, pattern: str) -> list[Path]:
    """The files of a local cloud's VMs by their names' pattern."""
    # A disk with a long name is a link, which a pattern from above does not follow.
    roots = [root.resolve() for root in cloud.glob("vms/*/root")]
    return [
        Path(folder, name)
        for root in roots
        # A VM changes its disk meanwhile. `os.walk` passes over a folder that has gone.
        for folder, folders, files in os.walk(root)
        for name in fnmatch.filter([*folders, *files], pattern)
    ]


def holding(folder: Path, *texts: bytes) -> list[Path]:
    """The files below a folder, and on the disks of the local cloud in it, that hold one of the
    texts, also compressed."""
    found = []
    for path in [*folder.rglob("*"), *disk_files(folder / "cloud", "*")]:
        if path.is_file() and not path.is_symlink():
            try:
                contents = [data := path.read_bytes(), *_unpacked(path, data)]
            except OSError:  # a VM's file that has gone meanwhile
                continue
            if any(text in content for content in contents for text in texts):
                found.append(path)
    return found


def _unpacked(path: Path, data: bytes) -> Iterator[bytes]:
    """What an archive holds; nothing of packages, which others made."""
    if data.startswith(b"\x1f\x8b"):
        yield gzip.decompress(data)
    if data.startswith(b"PK\x03\x04") and path.suffix not in (".whl", ".npz"):
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield b"" if name.endswith(".whl") else archive.read(name)


def environments(text: bytes) -> list[str]:
    """The processes that have a text in their environment or their words."""
    found = []
    for process in Path("/proc").iterdir():
        for part in ("environ", "cmdline"):
            try:
                if process.name.isdigit() and text in (process / part).read_bytes():
                    found.append(process.name)
            except OSError:
                continue
    return found


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
def plugin() -> Path | None:
    """Google's provider plugin; None: the stand-in."""
    return None


@pytest.fixture
def project(
    cloud: clouds.LocalCloud, parts: engines.Parts, tmp_path: Path, plugin: Path | None
) -> Project:
    """An empty project; `write_program` fills it."""
    variables = cloud.variables(parts, tmp_path / "pulumi", os.environ["PATH"], plugin)
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
