"""Programs under the real engine, with the stand-in hosts and the provider of the local cloud."""

import base64
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from outlast.cli import engine as engines
from tests.engine.conftest import Project
from tests.fake_plugin import fake_plugin

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

END_TIMEOUT_SEC = 60


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_up_again_refresh_and_destroy(throwaway: Project):
    (throwaway.folder / "__main__.py").write_text(
        """
import pulumi
from pulumi_gcp import storage

bucket = storage.Bucket("data", location="EU", labels={"team": "a"})
text = storage.BucketObject(
    "text", bucket=bucket.name, name="a/text", content=pulumi.Output.secret("hidden words")
)
pulumi.export("url", bucket.url)
pulumi.export("size", len(pulumi.get_stack()))
print("printed by the program")
"""
    )
    said = throwaway.up()
    assert "printed by the program" in said
    assert "3 created" in said.replace("+ ", "")
    outputs = throwaway.outputs()
    assert outputs["url"].startswith("gs://data-") and outputs["size"] == 3
    assert "3 unchanged" in throwaway.up()
    assert "3 unchanged" in throwaway.up("--refresh")
    assert throwaway.steps() == {}
    exported = throwaway.pulumi("stack", "export", "-s", "dev")
    assert "ciphertext" in exported
    logged = [file.read_text() for file in throwaway.cloud.state.glob("*.jsonl")]
    logged += [file.read_text() for file in throwaway.cloud.state.glob("*.log")]
    assert any("started" in text for text in logged)
    coded = base64.b64encode(b"hidden words").decode()
    for text in (exported, said, *logged):
        assert "hidden words" not in text and coded not in text
    throwaway.pulumi("destroy", "--yes", "--skip-preview", "-s", "dev")
    assert not json.loads(throwaway.pulumi("stack", "export", "-s", "dev"))["deployment"].get(
        "resources"
    )


def test_an_installed_plugin_takes_the_place_of_the_stand_in(
    throwaway: Project, parts: engines.Parts, tmp_path: Path
):
    """The plugin here is the stand-in's code, started by the engine as it starts Google's."""
    started = fake_plugin(tmp_path / ".pulumi" / "plugins" / "resource-gcp-v9.35.0")
    found = engines.find_plugin(os.defpath, {"HOME": str(tmp_path)})
    cloud = throwaway.cloud
    variables = cloud.variables(parts, tmp_path / "pulumi", os.environ["PATH"], found)
    # A shell in which an earlier `outlast cloud start` chose the stand-in unsets its variable.
    assert "PULUMI_DEBUG_PROVIDERS" in engines.foreign(throwaway.env, variables)
    throwaway.env = {**engines.scrubbed(), **variables}
    (throwaway.folder / "__main__.py").write_text(
        "from pulumi_gcp import storage; storage.Bucket('made', location='EU')"
    )
    assert f"using pulumi-resource-gcp from $PATH at {found}" in throwaway.up()
    seen = dict(line.split("=", 1) for line in started.read_text().splitlines() if "=" in line)
    assert seen["GOOGLE_STORAGE_CUSTOM_ENDPOINT"] == f"{cloud.url}/storage/v1/"
    assert seen["GOOGLE_IAM_BETA_CUSTOM_ENDPOINT"] == f"{cloud.url}/iam/v1/"
    assert seen["GOOGLE_OAUTH_ACCESS_TOKEN"] == "local"
    assert seen["PULUMI_GCP_SKIP_REGION_VALIDATION"] == "true"
    throwaway.destroy()


def test_an_object_of_another_name_is_created_before_the_old_one_is_deleted(throwaway: Project):
    """What depends on it only gets the new one; deleting first would take a template that is in
    use."""
    program = """
from pulumi_gcp import compute, storage

bucket = storage.Bucket("data", location="EU", force_destroy=True)
code = storage.BucketObject("code", bucket=bucket.name, name="code/VERSION", content="VERSION")
template = compute.InstanceTemplate(
    "small",
    machine_type="e2-small",
    disks=[{"boot": True, "source_image": "projects/debian-cloud/global/images/family/debian-13"}],
    network_interfaces=[{"network": "default"}],
    metadata={"code": code.name},
)
compute.InstanceGroupManager(
    "none",
    name="none",
    base_instance_name="none",
    target_size=0,
    versions=[{"instance_template": template.self_link_unique}],
)
"""
    main = throwaway.folder / "__main__.py"
    main.write_text(program.replace("VERSION", "1"))
    throwaway.up()
    main.write_text(program.replace("VERSION", "2"))
    assert throwaway.steps() == {
        "code": ("replace", ["content", "name"]),
        "small": ("replace", ["metadata"]),
        "none": ("update", ["versions"]),
    }
    said = throwaway.up()
    order = ("small created replacement", "none updated", "small deleted", "code deleted")
    assert [said.index(each) for each in order] == sorted(said.index(each) for each in order)
    throwaway.pulumi("destroy", "--yes", "--skip-preview", "-s", "dev")


def test_configuration_and_dynamic_resources_reach_the_program(throwaway: Project):
    (throwaway.folder / "made.py").write_text(
        """
from pulumi.dynamic import CreateResult, Resource, ResourceProvider

class Doubled(ResourceProvider):
    def create(self, props):
        return CreateResult("id", {**props, "twice": 2 * props["value"]})

class Double(Resource):
    def __init__(self, name, value):
        super().__init__(Doubled(), name, {"value": value, "twice": None})
"""
    )
    (throwaway.folder / "__main__.py").write_text(
        """
import pulumi
from made import Double

config = pulumi.Config()
pulumi.export("twice", Double("d", config.require_int("value")).twice)
pulumi.export("nested", config.require_object("nested"))
"""
    )
    throwaway.set("value", "21")
    throwaway.set("nested.deep", "true")
    throwaway.up()
    assert throwaway.outputs() == {"twice": 42, "nested": {"deep": True}}


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("raise ValueError('no such trainer')", "ValueError: no such trainer"),
        ("import sys; sys.exit(3)", "the program ended with exit 3"),
        (
            "from pulumi_gcp import compute; compute.Address('a')",
            "gcp:compute/address:Address: no type of resource that the local cloud's provider",
        ),
        (
            "from pulumi_gcp import storage; storage.get_bucket(name='b')",
            "gcp:storage/getBucket:getBucket: the local cloud's provider answers no look-ups",
        ),
        (
            "from pulumi_gcp import storage; storage.Bucket('b', location='EU', name='Capitals')",
            "Capitals",
        ),
    ],
    ids=["raises", "exits", "type", "look-up", "refused"],
)
def test_a_failure_is_reported_once_with_its_cause(throwaway: Project, program, sentence):
    (throwaway.folder / "__main__.py").write_text(program)
    said = throwaway.up(fails=True)
    assert sentence in said
    assert "Resource monitor has terminated" not in said
    assert "Fatal Python error" not in said
    assert "unhandled error" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_engine_that_ends_ends_all_its_processes(throwaway: Project, number):
    flag = throwaway.folder / "running"
    (throwaway.folder / "__main__.py").write_text(
        f"import pathlib, time\npathlib.Path({str(flag)!r}).touch()\ntime.sleep(200)\n"
    )
    process = subprocess.Popen(
        ["pulumi", "preview", "--non-interactive", "-s", "dev"],
        cwd=throwaway.folder,
        env=throwaway.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not flag.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        family = descendants(process.pid)
        assert len(family) >= 2, "a host and a program"
        process.send_signal(number)
        process.wait(END_TIMEOUT_SEC)
        deadline = time.monotonic() + END_TIMEOUT_SEC
        while left := [pid for pid in family if is_alive(pid)]:
            assert time.monotonic() < deadline, f"left over: {left}"
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def test_a_missing_virtual_environment_is_named(throwaway: Project):
    definition = (throwaway.folder / "Pulumi.yaml").read_text()
    broken = definition.replace(os.path.dirname(os.path.dirname(_python(definition))), "nowhere")
    (throwaway.folder / "Pulumi.yaml").write_text(broken)
    assert "runtime.options.virtualenv 'nowhere'" in throwaway.up(fails=True)


def _python(definition: str) -> str:
    for line in definition.splitlines():
        if "virtualenv:" in line:
            return line.partition(":")[2].strip() + "/bin/python"
    raise AssertionError(definition)
