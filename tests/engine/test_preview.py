"""What the review says of five typical changes, under the real engine; no VM has a process here."""

import itertools
import json
import os
import re
import subprocess
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from outlast.base import numbers
from outlast.base.exits import State
from outlast.bucket.head import Checkpoint, Head
from outlast.bucket.layout import Layout
from outlast.bucket.store import open_store
from outlast.cli import cloud as clouds
from outlast.cli import engine as engines
from outlast.cli.errors import EngineError
from outlast.cli.review import preview
from outlast.cli.review.outcomes import Then
from tests.cli.test_review_page import commands
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
        definition = yaml.safe_load((engines.project() / "Pulumi.yaml").read_text())
        definition["main"] = "checkout"
        definition["runtime"]["options"]["virtualenv"] = str(Path(parts.python).parents[1])
        settings = yaml.safe_load((engines.project() / "Pulumi.dev.yaml").read_text())
        settings["config"]["outlast:trainer"] = "dummy"
        (folder / "checkout").symlink_to(engines.project(), target_is_directory=True)
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
        placement=0,
        term=1,
        state=State.OPEN,
        end=None,
        started=now,
        deadline=now + timedelta(hours=24),
        chain=(
            Checkpoint(
                f"{layout.root}t000001/s{step:012d}-0123456789abcdef/", 1, "0" * 64, 1, step, ()
            ),
        ),
        lineage=(),
        failures=0,
        no_progress=0,
        data=None,
        nonce="0" * 32,
    )
    store.put(head.chain[0].path + "model.bin", bytes(3 * 2**20))
    store.put(layout.head, head.to_json())


def test_preview_describes_five_changes(stack: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stack.cloud.url)  # HEAD is read from here

    def review() -> preview.Review:
        return preview.review("dev", env=stack.env, cwd=stack.folder)

    first = review()
    assert [line.then for line in first.runs] == [Then.FROM_SCRATCH]
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

    # A label: the VM keeps running.
    stack.set("outlast:labels.team", "blue")
    found = review()
    (line,) = found.runs
    assert line.said == "stays untouched"
    assert "the new template (disks, labels) applies when the VM is next recreated" in line.why
    assert f"by now step {STEP}" in line.why
    assert list(found.changes) == ["updated", "replaced"]
    stack.pulumi("config", "rm", "-s", "dev", "outlast:labels")

    # A machine type: the same, at another price.
    stack.set("outlast:machineType", "n2-standard-4")
    found = review()
    assert [line.said for line in found.runs] == ["stays untouched"]
    assert "(machineType)" in found.runs[0].why
    assert found.after.sum.hour > found.before.sum.hour == cost
    left = found.before.hours
    assert 23 < left <= 24 and found.after.hours == pytest.approx(left, abs=0.01)
    limit = numbers.duration(found.after.hours * 3600)
    assert found.after.at_the_limit == (
        f"${found.after.sum.hour * left:.2f} ({limit}, {found.before.until})"
    )
    stack.set("outlast:machineType", "n2-standard-2")

    # A change of what the startup scripts and the supervisor get is like a label.
    stack.set("outlast:driverInstallSec", "7")
    (line,) = review().runs
    assert line.said == "stays untouched" and "the new template (timeouts)" in line.why
    stack.set("outlast:driverInstallSec", "2")

    # An image: it counts at the next resume; the run keeps the one that it began with.
    stack.set("outlast:image", "projects/debian-cloud/global/images/family/debian-13")
    (line,) = review().runs
    assert line.said == "stays untouched"
    assert line.why == "nothing of its VM changes; the image will change at its next resume"

    # A zone: the group is recreated there, and the run resumes.
    stack.set("outlast:zone", "europe-west4-b")
    found = review()
    (line,) = found.runs
    assert line.said == f"resumes from step {STEP}"
    assert "in europe-west4-b instead of europe-west4-a" in line.why
    assert (found.after.sum.hour, found.before.sum.hour) == (cost, cost)

    # Zonal to regional: a new placement too, at the same price.
    stack.pulumi("config", "rm", "-s", "dev", "outlast:zone")
    stack.set("outlast:region", "europe-west4")
    found = review()
    (line,) = found.runs
    assert line.said == f"resumes from step {STEP}"
    assert "in europe-west4 instead of europe-west4-a" in line.why
    assert (found.after.sum.hour, found.before.sum.hour) == (cost, cost)
    stack.pulumi("config", "rm", "-s", "dev", "outlast:region")
    stack.set("outlast:zone", "europe-west4-a")

    # A learning rate: another run, which the open one refuses to make room for.
    stack.set("outlast:args.learning-rate", "0.2")
    with pytest.raises(EngineError, match=f"run {run} is open at step {STEP}"):
        review()
    stack.set("outlast:onNewRun", "replace")
    found = review()
    assert [line.said for line in found.runs] == ["starts from scratch", "stops"]
    assert found.runs[1].run == run and f"at step {STEP}" in found.runs[1].why
    assert found.before.hours < 24 == found.after.hours  # another run has its own limit

    # The last run's checkpoint says what those of the next may cost to keep.
    kept = f"checkpoints: run {run} keeps 1, 3.0 MiB together, $0.0000586 a month"
    assert kept in found.storage


def test_the_engine_has_every_flag_that_the_page_names(parts: engines.Parts):
    for name, *words in commands("pulumi"):
        below = itertools.takewhile(lambda word: not word.startswith("-"), words)
        asked = [parts.engine, name, *below, "--help"]
        known = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        for flag in (word for word in words if word.startswith("--")):
            assert re.search(rf"\s{flag}\b", known), (name, flag)


def test_the_policy_pack_refuses_a_public_bucket_and_an_expensive_machine(throwaway: Project):
    program = """
        from pulumi_gcp import compute, storage

        labels = dict.fromkeys(["managed-by", "project", "stack", "component", "experiment"], "a")
        storage.Bucket("open", location="europe-west4", uniform_bucket_level_access=True,
                       labels=labels)
        compute.InstanceTemplate(
            "dear", region="europe-west4", machine_type="n2-standard-80",
            disks=[{"boot": True, "source_image": "debian-cloud/debian-13"}],
            scheduling={"max_run_duration": {"seconds": 3600}}, labels=labels)
    """
    (throwaway.folder / "__main__.py").write_text(textwrap.dedent(program))
    limits = throwaway.folder / "limits.json"
    limits.write_text(json.dumps({"hour-ceiling": {"dollars": 4}}))
    pack = ["--policy-pack", str(engines.project() / "policy"), "--policy-pack-config", str(limits)]
    said = throwaway.pulumi("preview", "-s", "dev", *pack, fails=True)
    assert "[mandatory]  public-access  (gcp:storage:Bucket: open)" in said
    assert "open: publicAccessPrevention is not enforced" in said
    assert "[mandatory]  hour-ceiling" in said
    assert "its VMs cost $4.28 an hour at least, and $4.00 are allowed" in said
    assert said.count("[mandatory]") == 2
