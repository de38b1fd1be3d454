"""An `up` that bakes and is killed, or interrupted once, at any stage: the next one recovers it."""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.base import process_tree
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from outlast.cli import recover
from tests.baking import quick_python
from tests.engine.conftest import Project, checkout_on_a_separate_cloud

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

WAIT_SEC = 500
API = f"/compute/v1/projects/{clouds.PROJECT}"
MARK = "OUTLAST_TEST_UP"
OLD = "own-old"
BASE = "projects/debian-cloud/global/images/family/debian-13"


class Bakery:
    """A stack that bakes and does nothing else; its recipe's script waits to be let on."""

    def __init__(self, project: Project, scratch: Path) -> None:
        self.cloud, self.project = project.cloud, project
        self._scratch = scratch
        script = project.folder / "install.sh"
        script.write_text(
            f"#!/bin/bash\ntouch {scratch}/at\nuntil [[ -e {scratch}/on ]]; do sleep 0.1; done\n"
        )

    def let_on(self) -> None:
        (self._scratch / "on").touch()

    @contextlib.contextmanager
    def stalls(self, method: str, path: str) -> Iterator[Callable[[], bool]]:
        """Meanwhile the first such call has no effect and no answer; tells whether it has come."""
        match = {"method": method, "path": path}
        rule = {"match": match, "when": "before", "do": {"stall": True}}
        self.cloud.call("POST", "/_local/faults", rule)
        yield lambda: bool(self.cloud.faults()[0]["fired"])
        self.cloud.call("DELETE", "/_local/faults")

    def installs(self) -> bool:
        return (self._scratch / "at").exists()

    @contextlib.contextmanager
    def up(self) -> Iterator["Up"]:
        up = Up(self.project, self._scratch / f"{uuid.uuid4()}.log")
        try:
            yield up
        finally:
            up.kill()

    def recover(self) -> None:
        recover.recover("dev", env=self.project.env, cwd=self.project.folder)

    def next_up(self) -> None:
        """It makes the image, and nothing bills but that and the old one, the way back."""
        self.let_on()
        with self.up() as up:
            assert up.wait() == 0, up.said
        assert self.newest() not in (OLD, None)
        assert set(self.family()) == {OLD, self.newest()}
        assert self.family()[OLD]["deprecated"]["state"] == "DEPRECATED"
        self.check_that_nothing_bills()

    def family(self) -> dict[str, dict[str, Any]]:
        listed = self.cloud.call("GET", f"{API}/global/images")["items"]
        return {one["name"]: one for one in listed if one.get("family") == "own"}

    def newest(self) -> str | None:
        try:
            return self.cloud.call("GET", f"{API}/global/images/family/own")["name"]
        except clouds.CloudError:
            return None

    def builders(self) -> list[dict[str, Any]]:
        return [vm for vm in self.cloud.vms() if vm["name"].startswith("bake-own-")]

    def check_that_nothing_bills(self) -> None:
        left = self.cloud.audit()
        assert (left["vms"], left["disks"], left["pids"]) == ([], [], [])


class Up:
    """A `pulumi up` under way, whose tree can be killed."""

    def __init__(self, project: Project, log: Path) -> None:
        self._log = log
        self._mark = uuid.uuid4().hex
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                ["pulumi", "up", "--yes", "--skip-preview", "-s", "dev", "--non-interactive"]
                + ["--color=never"],
                cwd=project.folder,
                env={**project.env, MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SEC
        while not condition():
            assert self._process.poll() is None, self.said
            assert time.monotonic() < deadline, f"{what}: {self.said}"
            time.sleep(0.02)

    def kill(self) -> None:
        process_tree.kill_tree(self._process.pid, f"{MARK}={self._mark}")
        self._process.wait(WAIT_SEC)

    def interrupt(self) -> int:
        """Ctrl-C, once; the exit code."""
        os.kill(self._process.pid, signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        return self._process.wait(WAIT_SEC)


@pytest.fixture
def bakery(parts: engines.Parts, tmp_path: Path) -> Iterator[Bakery]:
    """With an image in its family, as an earlier bake has left it."""
    env = {**quick_python(tmp_path / "bin"), "PIP_NO_INDEX": "1"}
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with checkout_on_a_separate_cloud(parts, tmp_path, guest_env=env) as project:
        folder = project.folder
        (folder / "requirements/vm.txt").write_text("# nothing\n")
        settings = yaml.safe_load((folder / "Pulumi.dev.yaml").read_text())
        settings["config"] |= {
            "outlast:part": "foundation",
            "outlast:image": BASE,
            "outlast:imageRecipe": {"family": "own", "script": "install.sh"},
        }
        (folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump(settings))
        labels = {"component": "image-family", "project": "outlast", "stack": "dev"}
        image = {"name": OLD, "family": "own", "sourceImage": BASE, "labels": labels}
        project.cloud.call("POST", f"{API}/global/images", image)
        yield Bakery(project, scratch)


@pytest.mark.parametrize("stage", ["inserted", "installing", "stopping", "imaging", "deleting"])
def test_the_next_up_continues_a_bake_that_was_killed_at_any_stage(bakery: Bakery, stage: str):
    with bakery.up() as up:
        reached: Callable[[], bool] = {
            "inserted": lambda: bool(bakery.builders()),
            "installing": bakery.installs,
            "stopping": lambda: "done, stopping" in up.said,
            "imaging": lambda: len(bakery.family()) == 2,
            "deleting": lambda: ": made, the newest" in up.said,
        }[stage]
        if stage not in ("inserted", "installing"):
            bakery.let_on()
        up.wait_until(reached, stage)
        up.kill()
    if stage in ("inserted", "installing", "stopping"):
        assert bakery.newest() == OLD
    whole = [name for name, one in bakery.family().items() if one["status"] == "READY"]
    assert bakery.newest() in whole
    bakery.recover()
    bakery.next_up()


@pytest.mark.parametrize("stage", ["installing", "off"])
def test_a_first_bake_that_is_killed_goes_with_its_stack(bakery: Bakery, stage: str):
    with bakery.up() as up:
        if stage == "off":  # only its disk bills, and no limit of the platform counts for that
            bakery.let_on()
            with bakery.stalls("POST", r"/global/images(\?|$)") as stalled:
                up.wait_until(stalled, "the builder is off")
                up.kill()
        else:
            up.wait_until(bakery.installs, "the builder installs")
            up.kill()
    (vm,) = bakery.builders()
    builder = bakery.cloud.call("GET", f"{API}/zones/{vm['zone']}/instances/{vm['name']}")
    assert builder["scheduling"]["instanceTerminationAction"] == "DELETE"
    said = bakery.project.outlast("destroy", "dev")
    assert "bake: was being created when pulumi was killed; added to the state" in said
    assert f"builder {vm['name']}: left by an earlier bake, deleted" in said
    assert bakery.family() == {}
    bakery.check_that_nothing_bills()


@pytest.mark.parametrize("recovered", [True, False])
def test_an_earlier_recipe_is_used_again_after_a_later_bake_was_killed(
    bakery: Bakery, recovered: bool
):
    """Nothing of the recipe has changed for the stack by then; the family has, in the cloud."""
    bakery.next_up()
    first = bakery.newest()
    script = bakery.project.folder / "install.sh"
    text = script.read_text()
    script.write_text(f"{text}# another\n")
    with bakery.up() as up, bakery.stalls("DELETE", "/instances/bake-") as stalled:
        up.wait_until(stalled, "the image is made")
        up.kill()
    assert bakery.newest() != first
    script.write_text(text)
    if recovered:
        said = bakery.project.outlast("recover", "dev")
        assert "bake: was being created when pulumi was killed; added to the state" in said
    else:
        bakery.project.pulumi("cancel", "--yes", "dev")  # its lock only
        changed = {name: op for name, (op, _) in bakery.project.steps().items() if op != "same"}
        assert set(changed.values()) == {"update"}, changed
    with bakery.up() as up:
        assert up.wait() == 0, up.said
    assert f"image {first}: exists already" in up.said
    assert bakery.newest() == first
    bakery.check_that_nothing_bills()


def test_a_bake_that_is_interrupted_once_ends_by_itself(bakery: Bakery):
    with bakery.up() as up:
        up.wait_until(bakery.installs, "the builder installs")
        assert up.interrupt() != 0
        assert "bake: was cancelled" in up.said and "Traceback" not in up.said
    bakery.check_that_nothing_bills()
    assert set(bakery.family()) == {OLD} and bakery.newest() == OLD
    bakery.next_up()
