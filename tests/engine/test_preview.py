"""What the review says of five typical changes, under the real engine; no VM has a process here."""

import os
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from outlast.exits import State
from outlast.layout import Layout
from outlast.operate import cloud as clouds
from outlast.operate import engine as engines
from outlast.operate import preview
from outlast.operate.errors import EngineError
from outlast.run.head import Checkpoint, Head
from outlast.run.store import open_store
from tests.engine.conftest import Project

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

STEP = 400


@pytest.fixture
def stack(parts: engines.Parts, tmp_path: Path) -> Iterator[Project]:
    """The checkout's program with its `dev` settings, in a cloud whose VMs do nothing."""
    cloud = clouds.start(tmp_path / "cloud", parts, guests=False, dies_with_us=True)
    try:
        variables = cloud.variables(parts, tmp_path / "pulumi", os.environ["PATH"])
        folder = tmp_path / "project"
        folder.mkdir()
        definition = yaml.safe_load((engines.ROOT / "Pulumi.yaml").read_text())
        definition["main"] = "checkout"
        definition["runtime"]["options"]["virtualenv"] = str(Path(parts.python).parents[1])
        settings = yaml.safe_load((engines.ROOT / "Pulumi.dev.yaml").read_text())
        settings["config"]["outlast:trainer"] = "dummy"
        (folder / "checkout").symlink_to(engines.ROOT, target_is_directory=True)
        (folder / "Pulumi.yaml").write_text(yaml.safe_dump(definition))
        (folder / "Pulumi.dev.yaml").write_text(yaml.safe_dump(settings))
        made = Project(folder, {**engines.scrubbed(), **variables}, cloud)
        made.pulumi("stack", "init", "dev")
        yield made
    finally:
        cloud.stop()


def train_to(step: int, outputs: dict) -> None:
    """Leaves in the bucket what a VM that has come so far would."""
    store = open_store(f"gs://{outputs['bucket']}")
    layout = Layout(outputs["prefix"], outputs["run"])
    now = store.now()
    head = Head(
        owner=outputs["owner"],
        resume=0,
        place=0,
        term=1,
        state=State.OPEN,
        end=None,
        started=now,
        deadline=now + timedelta(hours=24),
        chain=(
            Checkpoint(
                f"{layout.root}t000001/s{step:012d}-0123456789abcdef/", 1, "00", 1, step, ()
            ),
        ),
        lineage=(),
        failures=0,
        barren=0,
        data=None,
        nonce="n",
    )
    store.put(layout.head, head.to_json())


def test_five_changes_in_words(stack: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stack.cloud.url)  # HEAD is read from here

    def review() -> preview.Review:
        return preview.review("dev", env=stack.env, cwd=stack.folder)

    first = review()
    assert [line.then for line in first.runs] == [preview.Then.STARTS_ANEW]
    assert first.exit_code == 0, first.broken
    assert first.before.an_hour == "nothing" and first.after.hours == 24
    assert "CheckpointBucket" not in str(first.changes) and "created" in first.changes

    stack.up()
    outputs = stack.outputs()
    run = outputs["run"]
    train_to(STEP, outputs)
    found = review()
    (line,) = found.runs
    assert (line.run, line.said) == (run, "stays untouched")
    assert found.changes == {}
    cost = found.after.sum.hour
    assert cost > 0 and found.before.sum.hour == cost

    # A label: the VM lives on.
    stack.set("outlast:labels.team", "blue")
    found = review()
    (line,) = found.runs
    assert line.said == "stays untouched"
    assert "when it is next made anew it is of the new template (disks, labels)" in line.why
    assert f"by now step {STEP}" in line.why
    assert list(found.changes) == ["updated", "replaced"]
    stack.pulumi("config", "rm", "-s", "dev", "outlast:labels")

    # A machine type: the same, at another price.
    stack.set("outlast:machineType", "n2-standard-4")
    found = review()
    assert [line.said for line in found.runs] == ["stays untouched"]
    assert "(machineType)" in found.runs[0].why
    assert found.after.sum.hour > found.before.sum.hour == cost
    stack.set("outlast:machineType", "n2-standard-2")

    # An image: it counts at the next resume; the run keeps the one that it began with.
    stack.set("outlast:image", "projects/debian-cloud/global/images/family/debian-13")
    (line,) = review().runs
    assert line.said == "stays untouched"
    assert line.why == "nothing of its VM changes; the image of now counts at its next resume"

    # A zone: the group is made anew there, and the run resumes.
    stack.set("outlast:zone", "europe-west4-b")
    found = review()
    (line,) = found.runs
    assert line.said == f"resumes from step {STEP}"
    assert "in europe-west4-b instead of europe-west4-a" in line.why
    stack.set("outlast:zone", "europe-west4-a")

    # A learning rate: another run, which the open one refuses to make room for.
    stack.set("outlast:args.learning-rate", "0.2")
    with pytest.raises(EngineError, match=f"run {run} is open at step {STEP}"):
        review()
    stack.set("outlast:onNewRun", "replace")
    found = review()
    assert [line.said for line in found.runs] == ["starts anew", "stops"]
    assert found.runs[1].run == run and f"at step {STEP}" in found.runs[1].why


def test_the_policy_pack_refuses_a_public_bucket(throwaway: Project):
    program = """
        from pulumi_gcp import storage

        storage.Bucket("open", location="europe-west4", uniform_bucket_level_access=True,
                       labels={"managed-by": "a", "component": "b"})
    """
    (throwaway.folder / "__main__.py").write_text(textwrap.dedent(program))
    pack = str(engines.ROOT / "policy")
    said = throwaway.pulumi("preview", "-s", "dev", "--policy-pack", pack, fails=True)
    assert "[mandatory]  public-bucket  (gcp:storage:Bucket: open)" in said
    assert "open: publicAccessPrevention is not enforced" in said
    assert said.count("[mandatory]") == 1
