"""The components as a Pulumi package: their schema, and programs in YAML and for Node.js that use
them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from outlast.base.folders import PACKAGE
from outlast.cli import cloud as clouds
from outlast.settings import keys
from tests.engine.conftest import Project

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PLUGIN = PACKAGE.parent / "components"
YAML_HOST = "pulumi-language-yaml"


def schema(project: Project) -> dict:
    text = project.pulumi("package", "get-schema", str(PLUGIN))
    return json.loads(text[text.index("{") :])


def test_the_schema_lists_every_setting_with_its_description(throwaway: Project) -> None:
    found = schema(throwaway)
    assert found["name"] == "outlast"
    assert set(found["resources"]) == {"outlast:index:Experiment", "outlast:index:Foundation"}
    for name, resource in found["resources"].items():
        assert resource["description"], name
        assert all(one["description"] for one in resource["properties"].values()), name
        inputs = resource["inputProperties"]
        assert set(inputs) == set(keys.declared())
        for key, entry in keys.declared().items():
            said = " ".join(inputs[key]["description"].split())
            assert said.startswith(" ".join(entry["description"].split())), key
            assert "plain" in inputs[key], key
        assert not resource.get("requiredInputs")


def of_yaml(project: Project, **experiments: dict) -> None:
    """Makes the project's program one in YAML."""
    program = {
        "name": "throwaway",
        "runtime": "yaml",
        "config": {
            "gcp:project": {"value": clouds.PROJECT},
            "gcp:zone": {"value": "europe-west4-a"},
        },
        "packages": {"outlast": str(PLUGIN)},
        "resources": {
            name: {"type": "outlast:Experiment", "properties": args}
            for name, args in experiments.items()
        },
        "outputs": {"group": "${first.group}", "runPath": "${first.runPath}"},
    }
    (project.folder / "__main__.py").unlink()
    text = yaml.safe_dump(json.loads(json.dumps(program)), sort_keys=False)  # without aliases
    (project.folder / "Pulumi.yaml").write_text(text)


needs_yaml_host = pytest.mark.skipif(
    shutil.which(YAML_HOST) is None,
    reason=f"{YAML_HOST} is not on PATH; docs/start.md says how to build it",
)
ARGS = {
    "experiment": "yaml",
    "trainer": "dummy",
    "args": {"epochs": 1},
    "image": "projects/outlast-rehearsal/global/images/family/outlast",
    "machineType": "n2-standard-2",
    "noticeSec": 3,
    "stopSec": 2,
}


NODE_HOST = "pulumi-language-nodejs"
NODE_PROGRAM = """
const pulumi = require("@pulumi/pulumi");

class Experiment extends pulumi.ComponentResource {
    constructor(name, args, opts) {
        super("outlast:index:Experiment", name, {...args, group: undefined, runPath: undefined},
              opts, true);
    }
}

const first = new Experiment("first", ARGS);
exports.group = first.group;
exports.runPath = first.runPath;
"""
"""As `pulumi package add` writes the class, which is all that a program needs of it."""


def node_modules() -> Path:
    """The folder that has Pulumi's package for Node.js; skips the test without one."""
    if shutil.which(NODE_HOST) is None:
        pytest.skip(f"{NODE_HOST} is not on PATH; it comes with Pulumi's installer")
    found = subprocess.run(
        ["node", "-p", "require.resolve('@pulumi/pulumi/package.json')"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if found.returncode:
        pytest.skip("@pulumi/pulumi is not in NODE_PATH; npm install @pulumi/pulumi")
    return Path(found.stdout.strip()).parents[2]


def of_node(project: Project, args: dict) -> None:
    """Makes the project's program one for Node.js."""
    definition = {
        "name": "throwaway",
        "runtime": "nodejs",
        "config": {"gcp:project": clouds.PROJECT, "gcp:zone": "europe-west4-a"},
        "plugins": {"providers": [{"name": "outlast", "path": str(PLUGIN)}]},
    }
    (project.folder / "__main__.py").unlink()
    (project.folder / "Pulumi.yaml").write_text(yaml.safe_dump(definition))
    (project.folder / "package.json").write_text('{"name": "throwaway", "main": "index.js"}')
    (project.folder / "index.js").write_text(NODE_PROGRAM.replace("ARGS", json.dumps(args)))
    (project.folder / "node_modules").symlink_to(node_modules())


def test_a_program_for_node_creates_an_experiment(throwaway: Project) -> None:
    of_node(throwaway, {**ARGS, "experiment": "node"})
    throwaway.pulumi("up", "--yes")
    outputs = json.loads(throwaway.pulumi("stack", "output", "--json"))
    assert outputs["runPath"].startswith("experiments/node/")
    groups = throwaway.cloud.audit()["groups"]
    assert [name for name in groups if outputs["group"] in name]
    assert "unchanged" in throwaway.pulumi("preview", "--expect-no-changes")
    throwaway.pulumi("destroy", "--yes")


def test_a_wrong_setting_for_node_gives_one_sentence(throwaway: Project) -> None:
    of_node(throwaway, {**ARGS, "processes": 0})
    said = throwaway.pulumi("preview", fails=True)
    assert "outlast:processes '0': must be a whole number from 1" in said
    assert "Traceback" not in said and 'File "' not in said


@needs_yaml_host
def test_a_program_in_yaml_creates_an_experiment(throwaway: Project) -> None:
    of_yaml(throwaway, first=ARGS)
    throwaway.pulumi("up", "--yes")
    outputs = json.loads(throwaway.pulumi("stack", "output", "--json"))
    assert outputs["runPath"].startswith("experiments/yaml/")
    groups = throwaway.cloud.audit()["groups"]
    assert [name for name in groups if outputs["group"] in name]
    throwaway.pulumi("destroy", "--yes")


@needs_yaml_host
def test_two_experiments_in_yaml_are_refused(throwaway: Project) -> None:
    of_yaml(throwaway, first=ARGS, second={**ARGS, "experiment": "other"})
    said = throwaway.pulumi("preview", fails=True)
    assert "is declared already, and a stack has one experiment" in said
    assert "Traceback" not in said and 'File "' not in said


@needs_yaml_host
def test_a_wrong_setting_in_yaml_gives_one_sentence(throwaway: Project) -> None:
    of_yaml(throwaway, first={**ARGS, "processes": 0})
    said = throwaway.pulumi("preview", fails=True)
    assert "outlast:processes '0': must be a whole number from 1" in said
    assert "Traceback" not in said and 'File "' not in said
