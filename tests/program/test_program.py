"""The whole program against mocks: what the example stack declares, and what it exports."""

import re
import runpy
import subprocess
import sys

import pulumi
import pytest

from outlast import settings
from outlast.settings import lookups
from tests.components import inventory
from tests.program import stack

OUTPUTS = {
    "owner", "project",
    "bucket", "experiment", "run", "resume", "placement", "deadline", "prefix", "runPath", "group",
    "groupZone", "zones", "mode", "template", "serviceAccount", "image", "bundle", "bundleSha256",
    "region", "network", "bucketLocation",
}  # fmt: skip


FOUND = settings.FoundBucket("europe-west4")


@pytest.fixture
def program(monkeypatch):
    """Runs the program of the example stack with changed values; returns the recorder."""
    for key, value in stack.LOCAL_CLOUD.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(lookups, "find_bucket", lambda config: FOUND)

    def run(**changes):
        pulumi.runtime.set_all_config({**stack.of_file("dev"), **changes})
        exports = {}

        def export(key, value):
            pulumi.Output.from_input(value).apply(lambda found: exports.update({key: found}))

        monkeypatch.setattr(pulumi, "export", export)
        recorder = inventory.record(
            lambda: runpy.run_path(str(stack.ROOT / "__main__.py")) and None
        )
        recorder.exports = exports
        return recorder

    return run


def only(recorder, kind):
    (found,) = [one for one in recorder.declared.values() if one.type.endswith(f":{kind}")]
    return found


def test_the_example_stack(program, monkeypatch):
    """With a fixed run and bundle: their names are other tests' business."""
    code = settings.Code("bundle.zip", "experiments/dev/bundles/00.zip", "00")
    monkeypatch.setattr(settings, "bundle", lambda config: code)
    monkeypatch.setattr(settings, "week", lambda: "2026w49")
    monkeypatch.setattr(settings, "now", lambda: "2026-11-27T00:00:00Z")
    inventory.check(program(**{"outlast:run": "0123456789"}), "program_dev")


def test_the_program_exports_the_outputs_that_commands_read(program):
    exports = program().exports
    assert set(exports) == OUTPUTS
    assert exports["runPath"] == f"experiments/dev/{exports['run']}"
    assert exports["group"] == f"dev-{exports['run']}"
    assert exports["bundle"] == f"experiments/dev/bundles/{exports['bundleSha256']}.zip"
    assert exports["deadline"] == inventory.PINNED["deadline"]
    assert exports["region"] == "europe-west4"


def test_all_resources_belong_to_a_component(program):
    recorder = program()
    for one in recorder.declared.values():
        if one.type.startswith("gcp:"):
            assert recorder.declared[one.parent].type.startswith("outlast:index:")


def test_the_group_waits_for_permissions_and_code(program):
    group = only(program(), "InstanceGroupManager")
    waited = {urn.rpartition("::")[2] for urn in group.dependencies}
    assert {"identity-leave", "identity-write", "identity-read", "bundle-object"} <= waited


def test_the_pin_waits_for_nothing(program):
    """Its inputs are plain, so that a preview of a new stack can read HEAD."""
    recorder = program()
    assert only(recorder, "RunPin").dependencies == []
    assert only(recorder, "RunPin").inputs["bucket"] == "outlast-rehearsal-outlast"


def test_a_label_changes_only_the_template(program):
    one, other = program(), program(**{"outlast:labels": '{"team":"vision"}'})
    changed = {
        found.type.rpartition(":")[2]
        for found in other.declared.values()
        if found.inputs != one.declared[found.urn].inputs
    }
    assert changed == {"InstanceTemplate"}


def test_a_hyperparameter_changes_run_group_and_template(program):
    one, other = program(), program(**{"outlast:args": '{"epochs":3}'})
    changed = {
        found.type.rpartition(":")[2]
        for found in other.declared.values()
        if found.inputs != one.declared[found.urn].inputs
    }
    assert changed == {"InstanceTemplate", "InstanceGroupManager", "RunPin"}
    assert only(other, "InstanceTemplate").inputs["metadata"]["outlast-arg-epochs"] == "3"


def test_a_resume_creates_another_group_for_the_same_run(program):
    recorder = program(**{"outlast:resume": "2"})
    group = only(recorder, "InstanceGroupManager").inputs
    assert group["name"] == group["baseInstanceName"] == f"dev-{recorder.exports['run']}-r2"


def test_metadata_fits_the_platforms_limits(program):
    metadata = only(program(), "InstanceTemplate").inputs["metadata"]
    assert sum(len(key) + len(value.encode()) for key, value in metadata.items()) < 512 * 1024
    assert all(re.fullmatch("[a-zA-Z0-9-_]{1,127}", key) for key in metadata)


def test_the_program_only_wires():
    assert len((stack.ROOT / "__main__.py").read_text().splitlines()) <= 60


def test_the_program_loads_no_framework():
    heavy = "{'numpy', 'sklearn', 'torch', 'packaging.requirements'}"
    code = f"import sys, outlast.settings; print(sorted(set(sys.modules) & {heavy}))"
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=stack.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.strip() == "[]"
