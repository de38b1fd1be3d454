"""A new setting that reaches the VM: three files of a checkout are edited, the rest is made."""

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from outlast.base.folders import PACKAGE

ROOT = PACKAGE.parent

EDITS = {
    "outlast/settings/keys.py": (
        "    processes: int = Field(",
        "    nice_level: int = Field(\n"
        "        RunSpec.nice_level, ge=0, le=19, description='How far the trainer gives way'\n"
        "    )\n",
    ),
    "outlast/spec/run_spec.py": ("    processes: int = 1\n", "    nice_level: int = 0\n"),
    "outlast/supervisor/on_vm.py": (
        "    python = spec.trainer_python or",
        "    if spec.nice_level:\n"
        "        plain = argv_of(replace(spec, nice_level=0), code)\n"
        "        return ['nice', '-n', str(spec.nice_level), *plain]\n",
    ),
}
"""Each file with a place in it, and what is put in front of that."""
MADE = ("Pulumi.yaml", "docs/configuration.md", "outlast/settings/experiment_args.py")

PROGRAM = """
import json, runpy, sys
from pathlib import Path
import pulumi
from outlast.settings import FoundBucket, SettingsError, errors, lookups
from outlast.spec.run_spec import RunSpec
from outlast.supervisor import on_vm
from outlast.supervisor.code import Code
from tests.components import inventory
from tests.program import stack

lookups.find_bucket = lambda config: FoundBucket("europe-west4")

def run(**changes):
    pulumi.runtime.set_all_config({**stack.of_file("dev"), **changes})
    recorder = inventory.record(lambda: runpy.run_path("__main__.py") and None)
    found = recorder.declared.values()
    (template,) = [one for one in found if one.type.endswith(":InstanceTemplate")]
    return template.inputs["metadata"]

metadata = run(**{"outlast:niceLevel": "7"})
spec = RunSpec.from_metadata(metadata)
try:
    run(**{"outlast:niceLevel": "20"})
except SettingsError as error:
    refused = str(error)
print(json.dumps({
    "metadata": metadata["outlast-nice-level"],
    "default": run().get("outlast-nice-level"),
    "spec": spec.nice_level,
    "record": spec.to_json()["nice_level"],
    "argv": on_vm.argv_of(spec, Code()),
    "refused": refused,
}))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what git keeps."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if os.path.lexists(ROOT / name):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name, follow_symlinks=False)
    return tmp_path


def changed(copy: Path) -> set[str]:
    """The files that differ from this checkout's."""
    return {
        name
        for path in copy.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        for name in [path.relative_to(copy).as_posix()]
        if not (ROOT / name).exists() or not filecmp.cmp(path, ROOT / name, shallow=False)
    }


def python(copy: Path, *argv: str) -> str:
    """What an interpreter prints that imports the copy."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "GOOGLE_COMPUTE_CUSTOM_ENDPOINT": "http://127.0.0.1:1/compute/beta/",
        "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1",
    }
    done = subprocess.run(
        [sys.executable, *argv], cwd=copy, env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_key_that_reaches_the_vm_takes_three_files(checkout: Path):
    for name, (place, text) in EDITS.items():
        before = (checkout / name).read_text()
        assert before.count(place) == 1, name
        (checkout / name).write_text(before.replace(place, text + place))
    assert changed(checkout) == set(EDITS) and len(EDITS) <= 3

    assert set(python(checkout, "tools/tables.py").split()) == set(MADE)
    assert changed(checkout) == {*EDITS, *MADE}
    declared = yaml.safe_load((checkout / "Pulumi.yaml").read_text())["config"]
    about = "How far the trainer gives way"
    assert declared["niceLevel"] == {"description": about, "default": 0}
    page = (checkout / "docs/configuration.md").read_text()
    assert f"| `niceLevel` | integer | `0` | {about}; from 0 to 19 |" in page
    assert "    nice_level: int\n" in (checkout / "outlast/settings/experiment_args.py").read_text()

    found = json.loads(python(checkout, "-c", PROGRAM).splitlines()[-1])
    assert (found["metadata"], found["default"]) == ("7", None)
    assert (found["spec"], found["record"]) == (7, 7)
    assert found["argv"][:3] == ["nice", "-n", "7"]
    assert found["refused"] == (
        "outlast:niceLevel '20': must be a whole number from 0 to 19; set outlast:niceLevel"
    )
