"""A stack that is renamed while its run is open, under the real engine."""

import pytest

from outlast.cli.errors import OperateError
from outlast.cli.review import preview
from tests.engine.conftest import Project
from tests.engine.test_preview import stack as stack  # a fixture
from tests.engine.test_preview import train_to

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def test_a_renamed_stack_is_reported_as_renamed(stack: Project, monkeypatch: pytest.MonkeyPatch):
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
