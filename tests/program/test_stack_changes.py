"""The example stack on the real engine and a local cloud: what each change does to it.

Nothing runs on the VMs: what a run has come to is put into the bucket.
"""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from outlast.base.exits import Reason, State
from outlast.bucket.head import Checkpoint, End, Head
from outlast.bucket.layout import Layout
from outlast.bucket.store import open_store
from outlast.cli.review import preview
from tests import git_host
from tests.checkout import copy_checkout
from tests.cli.records import start_record
from tests.program import stack

ZONE = "europe-west4-a"
IMAGES = "/compute/v1/projects/outlast-rehearsal/global/images"

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


class Pulumi:
    """The engine on one work folder, in its own environment."""

    def __init__(self, folder, env):
        self.folder, self.env, self.name = folder, env, "dev"

    def __call__(self, *args, fails=False):
        done = subprocess.run(
            ["pulumi", *args, "--non-interactive", "-s", self.name],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr if fails else done.stdout

    def up(self, *options):
        return self("up", "--yes", "--skip-preview", *options)

    def outlast(self, *args, fails=False):
        """The command of the checkout's copy."""
        done = subprocess.run(
            [sys.executable, "-m", "outlast.cli.app", *args],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def pinned(self):
        """The inputs of the run's pin."""
        resources = json.loads(self("stack", "export"))["deployment"]["resources"]
        (pin,) = [one for one in resources if one["type"].endswith(":RunPin")]
        return pin["inputs"]

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
    from outlast.cli import cloud as local_cloud
    from outlast.cli import engine

    parts = engine.find_parts()
    folder = tmp_path_factory.mktemp("cloud")
    started = local_cloud.start(folder, parts, guests=False, dies_with_us=True)
    try:
        home = tmp_path_factory.mktemp("home")
        variables = started.variables(parts, home, os.environ["PATH"])
        yield started, {**engine.scrubbed(), **variables}
    finally:
        started.stop()


@pytest.fixture(scope="module")
def pulumi(cloud, tmp_path_factory):
    """The example stack in a copy of the checkout, which only the test changes."""
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


@pytest.fixture
def bucket(deployed, cloud, monkeypatch):
    """The stack's bucket."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud[1]["STORAGE_EMULATOR_HOST"])
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    return open_store(f"gs://{deployed.outputs()['bucket']}")


def put_run(bucket, outputs, pinned):
    """What a VM of the stack would have left: an open run with a checkpoint. Returns its HEAD."""
    layout = Layout(outputs["prefix"], outputs["run"])
    now = datetime.now(UTC).replace(microsecond=0)
    checkpoint = Checkpoint(layout.snapshot(1, 320, "0a1b"), 1, "a" * 64, 1, 320, ())
    head = Head(
        owner=outputs["owner"], resume=int(outputs["resume"]), placement=int(outputs["placement"]),
        term=1, state=State.OPEN, end=None, started=now, deadline=now + timedelta(hours=3),
        chain=(checkpoint,), lineage=(), failures=0, no_progress=0, data=None, nonce="0" * 16,
    )  # fmt: skip
    start = start_record(1, 0, now)
    start = dataclasses.replace(start, spec={"content": pinned["content"]})
    bucket.put(layout.attempt_start(1), start.to_json())
    time.sleep(1.1)  # HEAD takes a write a second
    bucket.put(layout.head, head.to_json())
    return head


def wipe(bucket, outputs):
    """As if nothing of the run had been."""
    for item in list(bucket.list(Layout(outputs["prefix"], outputs["run"]).root)):
        bucket.delete(item.path, generation=item.generation)


def metadata_of(started, vm):
    path = f"/compute/v1/projects/outlast-rehearsal/zones/{vm['zone']}/instances/{vm['name']}"
    return {item["key"]: item["value"] for item in started.call("GET", path)["metadata"]["items"]}


def wait_until(true):
    deadline = time.monotonic() + 200
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


def test_machine_and_startup_script_together_do_the_same(changed):
    pulumi = changed("outlast:machineType", "n2-standard-8")
    script = pulumi.folder / "startup" / "boot.sh"
    text = script.read_text()
    script.write_text(text + "# changed\n")
    try:
        found = pulumi.changes()
    finally:
        script.write_text(text)
    assert found == {("InstanceTemplate", "replace"), ("InstanceGroupManager", "update")}


def test_an_update_that_is_wanted_now_is_the_groups_alone(changed):
    assert changed("outlast:update", "now").changes() == {("InstanceGroupManager", "update")}


def test_an_image_that_is_gone_is_refused_with_its_successor(changed):
    family = "projects/deeplearning-platform-release/global/images/family/common-cu110"
    pulumi = changed("outlast:image", family)
    said = pulumi("preview", fails=True)
    assert "has not existed since 13 April 2026; its successor is projects/deeplearning-" in said
    assert "Traceback" not in said


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


def test_a_higher_limit_alone_changes_nothing(changed):
    assert changed("outlast:maxRunMinutes", "2000").changes() == set()


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


def test_a_run_with_commits_survives_changes_and_is_never_abandoned_by_accident(
    changed, cloud, bucket
):
    """A walk over one stack: guarded, moved on with other code, arguments, machine and image,
    and given up on purpose."""
    started, _ = cloud
    pulumi = changed("outlast:args.epochs", "200", "--path")
    first = pulumi.outputs()
    put_run(bucket, first, pulumi.pinned())

    # Another hyperparameter would be another run.
    refused = pulumi("preview", fails=True)
    run = first["run"]
    assert f"run {run} is open at step 320, and run " in refused
    assert "(args.epochs 150 → 200); undo the change, or continue with the change by" in refused
    assert started.group_size(first["group"], ZONE) == 1

    # What the trainer cannot take is refused by name, and the settings stay as they are.
    settings = (pulumi.folder / "Pulumi.dev.yaml").read_bytes()
    pulumi("config", "set", "--path", "outlast:args.hidden", "8")
    before = (pulumi.folder / "Pulumi.dev.yaml").read_bytes()
    said = pulumi.outlast("resume", "dev", fails=True)
    assert "args.hidden [512, 256] → [8]: cannot change in the middle of a run" in said
    assert (pulumi.folder / "Pulumi.dev.yaml").read_bytes() == before
    (pulumi.folder / "Pulumi.dev.yaml").write_bytes(settings)

    # More epochs, corrected code, a larger machine, and meanwhile a newer image of the family.
    source = pulumi.folder / "trainers" / "digits.py"
    code = source.read_text()
    newer = {"name": "newer", "family": "outlast", "sourceImage": first["image"]}
    started.call("POST", IMAGES, newer)
    try:
        source.write_text(code + "\nCORRECTED = True\n")
        pulumi("config", "set", "outlast:machineType", "n2-standard-8")
        said = pulumi.outlast("resume", "dev")
        assert "outlast:run keeps the run's name; changed: args.epochs 150 → 200, the code" in said
        assert "outlast:resume is now 1; pulumi up resumes from step 320" in said
        said = pulumi.up()
        moved = pulumi.outputs()
        assert (moved["run"], moved["resume"], moved["group"]) == (run, 1, f"{first['group']}-r1")
        assert (first["image"].rpartition("/")[2], moved["image"].rpartition("/")[2]) == (
            "outlast-local",
            "newer",
        )
        assert f"boots from image {moved['image']} at resume 1; before: {first['image']}" in said
        assert started.group_size(first["group"], ZONE) is None
        (vm,) = started.vms()
        assert vm["group"] == moved["group"]
        content = metadata_of(started, vm)["outlast-content"]
        assert json.loads(content)["arguments"]["epochs"] == 200

        # The next new image waits for the next resume.
        started.call("POST", IMAGES, {**newer, "name": "newest"})
        assert pulumi.changes() == set()
    finally:
        source.write_text(code)

    # Given up on purpose.
    put_run(bucket, moved, pulumi.pinned())
    restore(pulumi.folder)
    pulumi("config", "set", "--path", "outlast:args.epochs", "149")
    pulumi("config", "set", "outlast:onNewRun", "replace")
    pulumi.up()
    other = pulumi.outputs()
    assert other["run"] != run and started.group_size(moved["group"], ZONE) is None

    # A run that has ended is not guarded.
    head = put_run(bucket, other, pulumi.pinned())
    time.sleep(1.1)
    failed = head.ended(State.FAILED, End(Reason.USER_FAILED, 1, 320, None))
    bucket.put(Layout(other["prefix"], other["run"]).head, failed.to_json())
    restore(pulumi.folder)
    wipe(bucket, first)
    pulumi.up()
    assert pulumi.outputs()["run"] == run


def test_another_stack_is_destroyed_and_this_one_boots_on(deployed, cloud, bucket):
    started, _ = cloud
    own = deployed.outputs()
    other = Pulumi(deployed.folder, deployed.env)
    other.name = "other"
    text = example().replace("outlast:experiment: dev", "outlast:experiment: other")
    (deployed.folder / "Pulumi.other.yaml").write_text(text)
    other("stack", "init", "--no-select")
    other.up()
    theirs = other.outputs()
    assert theirs["bundleSha256"] == own["bundleSha256"]
    other("destroy", "--yes", "--skip-preview")
    (vm,) = started.vms()
    started.act(vm["name"], "kill")
    wait_until(lambda: [one["id"] for one in started.vms() if one["status"] == "RUNNING"])
    (again,) = started.vms()
    assert again["id"] != vm["id"] and again["group"] == own["group"]
    assert bucket.stat(metadata_of(started, again)["outlast-bundle"]).size > 0


def test_without_capacity_up_returns_at_once_and_destroy_ends_the_wait(deployed, cloud, bucket):
    """The group of a VM that was lost is recreating it and never finishes. The run's
    checkpoints outlive that, and the next `up` resumes from them; another run waits as well."""
    started, _ = cloud
    outputs = deployed.outputs()
    wipe(bucket, outputs)
    head = put_run(bucket, outputs, deployed.pinned())
    started.call("POST", "/_local/switches", {"no_capacity": True})
    try:
        (vm,) = started.vms()
        started.act(vm["name"], "kill")
        wait_until(lambda: started.group_errors(outputs["group"], ZONE))
        deployed("destroy", "--yes", "--skip-preview")
        left = started.audit()
        assert not any(left[kind] for kind in ("groups", "vms", "disks", "templates", "roles"))
        deployed.up()
        again = deployed.outputs()
        assert (again["run"], again["placement"]) == (outputs["run"], head.placement + 1)
        assert again["deadline"] == f"{head.deadline:%Y-%m-%dT%H:%M:%SZ}"
        wait_until(lambda: started.group_errors(again["group"], ZONE))
        wipe(bucket, outputs)
        deployed("config", "set", "--path", "outlast:args.epochs", "33")
        deployed.up()
        waiting = deployed.outputs()
        wait_until(lambda: started.group_errors(waiting["group"], ZONE))
        said = deployed.outlast("status", "dev")
        assert re.search("is waiting since .*: its group cannot create a VM: ZONE_RESOURCE", said)
    finally:
        started.call("POST", "/_local/switches", {"no_capacity": False})
        restore(deployed.folder)
        deployed.up()
    wait_until(lambda: [vm for vm in started.vms() if vm["status"] == "RUNNING"])


@pytest.mark.parametrize(
    "asked_for",
    [
        pytest.param("serviceAccounts", marks=pytest.mark.long),
        pytest.param("/roles", marks=pytest.mark.long),
        "instanceGroupManagers",
    ],
)
def test_up_recovers_after_a_kill(deployed, cloud, asked_for):
    """Killed after the cloud has made something and before the engine has heard of it."""
    started, _ = cloud
    deployed("destroy", "--yes", "--skip-preview")
    match = {"method": "POST", "path": asked_for}
    started.call("POST", "/_local/faults", {"match": match, "when": "after", "do": {"stall": True}})
    killed = subprocess.Popen(
        ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive", "-s", "dev"],
        cwd=deployed.folder,
        env=deployed.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: [rule for rule in started.faults() if rule["fired"]])
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        started.call("DELETE", "/_local/faults")
    said = deployed.outlast("up", "dev")
    assert "was being created when pulumi was killed; added to the state if it exists" in said
    assert deployed.changes() == set()
    left = started.audit()
    assert [len(left[kind]) for kind in ("groups", "templates", "roles", "vms")] == [1, 1, 1, 1]
    assert "nothing to recover" in deployed.outlast("recover", "dev")


def test_a_typo_is_refused_in_one_sentence(changed):
    said = changed("outlast:machinetype", "x")("preview", fails=True)
    assert "outlast:machinetype: is not a setting of Outlast; did you mean machineType?" in said
    assert "Traceback" not in said


def test_a_bake_is_priced_before_it_is_ordered_and_advice_shown(changed, bucket):
    changed("outlast:imageRecipe.packages[0]", "gcc", "--path")
    stack = changed("outlast:machineType", "c9-standard-4")
    found = preview.review("dev", env=stack.env, cwd=stack.folder)
    assert "ImageBake image-bake" in found.changes["created"]
    assert found.advice[0].startswith("outlast:machineType c9-standard-4: family c9 is not in")
    (said,) = found.bakes
    assert re.fullmatch(
        r"image outlast-[0-9a-f]{10} is baked once: its builder \(e2-standard-4 on demand, 50 GiB"
        r" pd-balanced, external address\) costs at most \$0\.[0-9]+, by its limit of 120 minutes;"
        r" the price of keeping it is unknown",
        said,
    )


def test_code_that_cannot_be_had_is_refused_before_anything_is_made(changed, tmp_path):
    git_host.commit(tmp_path / "hosted/code", {"mine.py": ""})
    with git_host.serving(tmp_path / "hosted", "a-token") as host:
        url = f"{host.url}/code"
        stack = changed("outlast:delivery", "git")
        file = stack.folder / "Pulumi.dev.yaml"
        own = {"trainer": "mine", "args": {}, "gitUrl": url, "gitCommit": "a" * 40}
        document = yaml.safe_load(file.read_text())
        document["config"].update({f"outlast:{key}": value for key, value in own.items()})
        file.write_text(yaml.safe_dump(document))
        assert stack.outlast("preview", "dev", fails=True) == (
            f"outlast: outlast:gitUrl {url}: may not be read without a secret; give"
            " outlast:gitSecret a token or key that may read it\n"
        )
    secret = "projects/outlast-rehearsal/secrets/deploy"
    assert (
        f"error: outlast:gitSecret '{secret}': there is no such secret; create it: gcloud secrets"
        " create deploy --project outlast-rehearsal --replication-policy automatic --data-file FILE"
    ) in changed("outlast:gitSecret", "deploy")("preview", fails=True)


def test_destroy_keeps_the_bucket_and_up_resumes_or_starts_nothing(deployed, cloud, bucket):
    """The last of the file: it takes the stack down, up again on a run that is done, and from
    there to another run."""
    started, _ = cloud
    outputs = deployed.outputs()
    pinned = deployed.pinned()
    wipe(bucket, outputs)
    put_run(bucket, outputs, pinned)
    said = deployed.outlast("destroy", "dev")
    assert f"dev: run {outputs['run']} stays open at step 320 in gs://{outputs['bucket']}/" in said
    assert started.group_size(outputs["group"], outputs["groupZone"]) is None

    # Open in the bucket, it is guarded though no stack has it.
    deployed("config", "set", "--path", "outlast:args.epochs", "200")
    said = deployed("preview", fails=True)
    assert f"run {outputs['run']} is open at step 320, and run " in said
    assert "would start from scratch beside it (args.epochs 150 → 200); undo the change, or" in said
    restore(deployed.folder)

    now = datetime.now(UTC).replace(microsecond=0)
    head = Head(
        owner="organization/outlast/dev", resume=0, placement=0, term=1, state=State.OPEN, end=None,
        started=now, deadline=now + timedelta(hours=3), chain=(), lineage=(), failures=0,
        no_progress=0, data=None, nonce="0" * 16,
    )  # fmt: skip
    path = Layout(outputs["prefix"], outputs["run"]).head

    time.sleep(1.1)  # HEAD takes a write a second
    bucket.put(path, head.to_json())
    said = deployed.up()
    assert "1 imported" in said  # the bucket, by its label
    again = deployed.outputs()
    assert (again["deadline"], again["placement"]) == (f"{head.deadline:%Y-%m-%dT%H:%M:%SZ}", 1)
    assert started.group_size(again["group"], again["groupZone"]) == 1
    deployed("destroy", "--yes", "--skip-preview")

    done = head.ended(State.DONE, End(Reason.DONE, 0, 5, None))
    time.sleep(1.1)
    bucket.put(path, done.to_json())
    said = deployed.up()
    assert f"run {outputs['run']} is done, nothing is started" in said
    assert started.group_size(again["group"], again["groupZone"]) == 0
    deployed.up("--refresh")
    assert started.group_size(again["group"], again["groupZone"]) == 0
    assert deployed.changes() == set()

    deployed("config", "set", "--path", "outlast:args.epochs", "143")
    deployed.up()
    other = deployed.outputs()
    assert other["group"] != again["group"]
    assert started.group_size(again["group"], again["groupZone"]) is None
    assert started.group_size(other["group"], other["groupZone"]) == 1
