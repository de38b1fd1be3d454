"""A stack that is renamed, or gets another bucket, while its run is open, under the real engine."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.head import read_head
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.store import open_store
from outlast.cli.errors import OperateError
from outlast.cli.review import preview
from tests.engine.conftest import Project
from tests.engine.test_preview import stack as stack  # a fixture
from tests.engine.test_preview import train_to

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def test_a_renamed_stack_is_reported_as_renamed(
    stack: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", stack.cloud.url)  # HEAD is read from here

    def refusal(name: str) -> str:
        with pytest.raises(OperateError) as refused:
            preview.review(name, env=stack.env, cwd=stack.folder)
        return str(refused.value)

    stack.up()
    outputs = stack.outputs()
    run, bucket = outputs["run"], outputs["bucket"]
    train_to(400, outputs)

    # Its experiment has a name by hand, so that the run's folder stays the same.
    stack.pulumi("stack", "rename", "second")
    assert (
        f"run {run} in gs://{bucket}/experiments/dev: belongs to organization/outlast/dev, as this"
        " stack was called before it was renamed from dev to second; rename it back: pulumi stack"
        " rename dev, or hand the run over: outlast handover"
        f" gs://{bucket}/experiments/dev/{run} organization/outlast/second"
    ) in refusal("second")

    # The experiment follows the stack's name.
    stack.pulumi("config", "rm", "outlast:experiment")
    assert (
        f"run {run} is open at step 400 in gs://{bucket}/experiments/dev, and would start from"
        f" scratch in gs://{bucket}/experiments/second (it was renamed from dev to second, and"
        " outlast:experiment follows the stack's name); undo that (rename it back: pulumi"
        " stack rename dev), or set outlast:onNewRun to replace to give up the open run"
    ) in refusal("second")

    stack.pulumi("stack", "rename", "dev")
    (line,) = preview.review("dev", env=stack.env, cwd=stack.folder).runs
    assert (line.run, line.said) == (run, "stays untouched")

    # Or the run is handed over.
    stack.pulumi("stack", "rename", "second")
    stack.pulumi("config", "set", "outlast:experiment", "dev")
    url = f"gs://{bucket}/experiments/dev/{run}"
    said = stack.outlast("handover", url, "organization/outlast/second")
    assert "at step 400, belongs to organization/outlast/second now" in said
    (line,) = preview.review("second", env=stack.env, cwd=stack.folder).runs
    assert (line.run, line.step) == (run, 400), line
    stack.pulumi("up", "--yes", "--skip-preview", "-s", "second")
    outputs = stack.pulumi("stack", "output", "owner", "-s", "second")
    assert outputs.strip() == "organization/outlast/second"

    # It follows its stack into another bucket.
    new = f"{bucket}-2"
    commit(bucket, Layout("experiments/dev", run), "organization/outlast/second", tmp_path)
    labelled = {"name": new, "location": "us-central1", "labels": {"managed-by": "outlast"}}
    access = {"uniformBucketLevelAccess": {"enabled": True}}
    stack.cloud.call("POST", "/storage/v1/b", {**labelled, "iamConfiguration": access})
    stack.pulumi("config", "set", "outlast:bucket", new)
    command = f"outlast handover {url} organization/outlast/second --to gs://{new}"
    assert f"hand the run over: {command}, or set outlast:onNewRun" in refusal("second")
    said = stack.outlast(*command.split()[1:])
    assert f"was copied to gs://{new}/experiments/dev/{run}, where it is at step 500" in said
    (line,) = preview.review("second", env=stack.env, cwd=stack.folder).runs
    assert (line.run, line.step) == (run, 500), line
    stack.pulumi("up", "--yes", "--skip-preview", "-s", "second")
    assert stack.pulumi("stack", "output", "bucket", "-s", "second").strip() == new
    handed = f"the run was handed over to gs://{new}/experiments/dev/{run}"
    assert handed in stack.outlast("status", url, fails=True)
    stack.pulumi("config", "set", "outlast:bucket", bucket)
    assert handed in refusal("second")


def commit(bucket: str, layout: Layout, owner: str, folder: Path) -> None:
    """Leaves a checkpoint of step 500 as the run's only one."""
    store = open_store(f"gs://{bucket}")
    store.put(layout.head, replace(read_head(store, layout).head, chain=()).to_json())
    head_file = HeadFile(store, layout)
    head_file.take_term(Claim(owner, 0, 9, store.now() + timedelta(hours=9)))
    committer = Committer(head_file)
    committer.restore(folder / "restored")
    (folder / "snapshot").mkdir()
    (folder / "snapshot" / "state").write_bytes(b"state")
    committer.commit(folder / "snapshot", step=500)
