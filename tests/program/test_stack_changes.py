"""The example stack on the real engine and a local cloud: what each change does to it."""

import json
import os
import subprocess
import time
from datetime import UTC, datetime, timedelta

import pytest

from outlast.exits import Reason, State
from outlast.layout import Layout
from outlast.run.head import End, Head
from outlast.run.store import open_store
from tests.checkout import copy_checkout
from tests.program import stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


class Pulumi:
    """The engine on one work folder, in an environment of its own."""

    def __init__(self, folder, env):
        self.folder, self.env = folder, env

    def __call__(self, *args, fails=False):
        done = subprocess.run(
            ["pulumi", *args, "--non-interactive", "-s", "dev"],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr if fails else done.stdout

    def up(self):
        return self("up", "--yes", "--skip-preview")

    def changes(self):
        """What a preview would do: operations by type, the unchanged left out."""
        steps = json.loads(self("preview", "--json"))["steps"]
        return {
            (step["urn"].split("::")[2].rpartition("$")[2].rpartition(":")[2], step["op"])
            for step in steps
            if step["op"] != "same"
        }

    def outputs(self):
        return json.loads(self("stack", "output", "--json"))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    from outlast.operate import cloud as local_cloud
    from outlast.operate import engine

    parts = engine.find_parts()
    started = local_cloud.start(tmp_path_factory.mktemp("cloud"), parts, dies_with_us=True)
    try:
        home = tmp_path_factory.mktemp("home")
        variables = started.variables(parts, home, os.environ["PATH"])
        yield started, {**engine.scrubbed(), **variables}
    finally:
        started.stop()


@pytest.fixture(scope="module")
def pulumi(cloud, tmp_path_factory):
    """The example stack in a copy of the checkout, which nobody edits meanwhile."""
    _, env = cloud
    folder = tmp_path_factory.mktemp("checkout")
    copy_checkout(folder)
    made = Pulumi(folder, env)
    made("stack", "init", "--no-select")
    assert (folder / "Pulumi.dev.yaml").read_text() == example()
    return made


def example():
    return (stack.ROOT / "Pulumi.dev.yaml").read_text()


def restore(folder):
    (folder / "Pulumi.dev.yaml").write_text(example())


@pytest.fixture(scope="module")
def deployed(pulumi):
    pulumi.up()
    return pulumi


@pytest.fixture
def changed(deployed):
    """Sets one value of the deployed stack, for one test."""

    def change(key, value, *options):
        deployed("config", "set", *options, key, value)
        return deployed

    yield change
    restore(deployed.folder)


def test_without_a_local_cloud_it_is_refused_in_one_sentence(pulumi):
    env = {key: value for key, value in pulumi.env.items() if key != "STORAGE_EMULATOR_HOST"}
    said = Pulumi(pulumi.folder, env)("preview", fails=True)
    assert "no local cloud is set in this shell; run outlast cloud start" in said
    assert "Traceback" not in said and "settings.py" not in said


def test_a_second_up_changes_nothing(deployed):
    assert deployed.changes() == set()


def test_a_label_replaces_the_template_and_touches_no_vm(changed):
    found = changed("outlast:labels.team", "vision", "--path").changes()
    assert found == {("InstanceTemplate", "replace"), ("InstanceGroupManager", "update")}


def test_another_image_does_the_same(changed):
    found = changed("outlast:image", "projects/outlast-rehearsal/global/images/family/x").changes()
    assert found == {("InstanceTemplate", "replace"), ("InstanceGroupManager", "update")}


def test_a_hyperparameter_replaces_group_and_pin(changed):
    found = changed("outlast:args.epochs", "3", "--path").changes()
    assert found == {
        ("InstanceTemplate", "replace"),
        ("InstanceGroupManager", "replace"),
        ("RunPin", "replace"),
    }


def test_another_zone_updates_the_pin_and_replaces_the_group(changed):
    found = changed("outlast:zone", "europe-west4-b").changes()
    assert found == {
        ("InstanceTemplate", "replace"),
        ("InstanceGroupManager", "replace"),
        ("RunPin", "update"),
    }


def test_a_higher_limit_alone_is_no_change(changed):
    assert changed("outlast:limitRunMinutes", "2000").changes() == set()


def test_up_with_changed_code_and_label_makes_no_new_vm_and_leaves_one_template(changed, cloud):
    """The bundle's new object must not drag the template, still in use, into a deletion first."""
    started, _ = cloud
    before = {(vm["name"], vm["id"]) for vm in started.vms()}
    pulumi = changed("outlast:labels.team", "vision", "--path")
    source = pulumi.folder / "outlast" / "__init__.py"
    code = source.read_text()
    source.write_text(code + "\n# another bundle, the same trainer\n")
    try:
        group, template = pulumi.outputs()["group"], pulumi.outputs()["template"]
        pulumi.up()
        assert pulumi.outputs()["group"] == group
        assert pulumi.outputs()["template"] != template
        assert len(started.audit()["templates"]) == 1
        assert {(vm["name"], vm["id"]) for vm in started.vms()} <= before
    finally:
        source.write_text(code)
        restore(pulumi.folder)
        pulumi.up()


def test_up_with_another_hyperparameter_starts_a_new_run_and_ends_the_old_group(changed, cloud):
    started, _ = cloud
    pulumi = changed("outlast:args.epochs", "149", "--path")
    old = pulumi.outputs()["group"]
    try:
        pulumi.up()
        new = pulumi.outputs()["group"]
        assert new != old
        assert started.group_size(old, "europe-west4-a") is None
        assert started.group_size(new, "europe-west4-a") == 1
        assert {vm["group"] for vm in started.vms()} <= {new}
    finally:
        restore(pulumi.folder)
        pulumi.up()


def test_a_typo_is_refused_in_one_sentence(changed):
    said = changed("outlast:machinetype", "x")("preview", fails=True)
    assert "outlast:machinetype: is no setting of Outlast; did you mean machineType?" in said
    assert "Traceback" not in said


def test_destroy_keeps_the_bucket_and_up_goes_on_or_starts_nothing(deployed, cloud, monkeypatch):
    """The last of the file: it takes the stack down, up again on a run that is done, and from
    there to another run."""
    started, env = cloud
    outputs = deployed.outputs()
    deployed("destroy", "--yes", "--skip-preview")
    assert started.group_size(outputs["group"], outputs["groupZone"]) is None

    now = datetime.now(UTC).replace(microsecond=0)
    head = Head(
        owner="organization/outlast/dev", resume=0, place=0, term=1, state=State.OPEN, end=None,
        started=now, deadline=now + timedelta(hours=3), chain=(), lineage=(), failures=0,
        barren=0, data=None, nonce="0" * 16,
    )  # fmt: skip
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", env["STORAGE_EMULATOR_HOST"])
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    store = open_store(f"gs://{outputs['bucket']}")
    path = Layout(outputs["prefix"], outputs["run"]).head

    time.sleep(1.1)  # HEAD takes a write a second, and the VM may have made one just now
    store.put(path, head.to_json())
    said = deployed.up()
    assert "1 imported" in said  # the bucket, by its label
    again = deployed.outputs()
    assert (again["deadline"], again["place"]) == (f"{head.deadline:%Y-%m-%dT%H:%M:%SZ}", 1)
    assert started.group_size(again["group"], again["groupZone"]) == 1
    deployed("destroy", "--yes", "--skip-preview")

    done = head.ended(State.DONE, End(Reason.DONE, 0, 5, None))
    time.sleep(1.1)
    store.put(path, done.to_json())
    said = deployed.up()
    assert f"run {outputs['run']} is done, nothing is started" in said
    assert started.group_size(again["group"], again["groupZone"]) == 0
    assert deployed.changes() == set()

    deployed("config", "set", "--path", "outlast:args.epochs", "149")
    deployed.up()
    other = deployed.outputs()
    assert other["group"] != again["group"]
    assert started.group_size(again["group"], again["groupZone"]) is None
    assert started.group_size(other["group"], other["groupZone"]) == 1
