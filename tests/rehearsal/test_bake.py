"""Baking an image in a local cloud: a builder that really installs, and a VM that boots from it.

The bake runs in a process of its own, which dies where a test wants it to.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.operate import cloud as clouds
from outlast.operate import compute
from outlast.operate.cloud import LocalCloud

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(400)]

REPO = Path(__file__).parents[2]
LONGEST_SEC = 120
ZONE = "europe-west4-a"
LABELS = {"managed-by": "outlast", "project": "outlast", "stack": "dev"}
DRIVER = """
import json, os, signal, sys
from pathlib import Path
from outlast.operate import bake, recipe
from outlast.operate.compute import Compute

given, root, stop_at = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def say(sentence):
    print(sentence, flush=True)
    if stop_at and stop_at in sentence:
        os.kill(os.getpid(), signal.SIGKILL)

checked = recipe.check(given, base="debian-cloud/debian-13", project="outlast-rehearsal",
                       zone="europe-west4-a")
baked = recipe.read(checked, root)
labels = {"managed-by": "outlast", "project": "outlast", "stack": "dev"}
order = bake.Order(root, labels, linger_sec=1)
try:
    print("link", bake.bake(baked, order, say))
except bake.BakeError as error:
    print("error", error)
    sys.exit(1)
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    from outlast.operate.engine import Parts

    folder = tmp_path_factory.mktemp("bake")
    image = folder / "image"
    image.mkdir()
    parts = Parts("", None, str(image), "", sys.executable)
    env = {"PIP_NO_INDEX": "1"}
    started = clouds.start(folder / "cloud", parts, guest_env=env, dies_with_us=True)
    yield started
    started.stop()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with the scripts, and requirements that install nothing but themselves."""
    folder = tmp_path / "checkout"
    (folder / "startup").mkdir(parents=True)
    for script in (REPO / "startup").glob("*.sh"):
        (folder / "startup" / script.name).write_bytes(script.read_bytes())
    (folder / "requirements").mkdir()
    (folder / "requirements/vm.txt").write_text("# nothing\n")
    write_script(folder, "mark 1")
    return folder


def write_script(root: Path, mark: str, then: str = "") -> None:
    text = f"""#!/bin/bash
set -eu
printf '%s' '{mark}' >"$OUTLAST_IMAGE/mark"
mkdir "$OUTLAST_IMAGE/.git" "$OUTLAST_ROOT/home/somebody"
touch "$OUTLAST_IMAGE/.env" "$OUTLAST_ROOT/root/.bash_history"
{then}
"""
    (root / "install.sh").write_text(text)
    (root / "install.sh").chmod(0o755)


def bake(cloud: LocalCloud, root: Path, stop_at: str = "", **parts: Any) -> tuple[int, str]:
    """One bake in a process: (exit code, what it said)."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            DRIVER,
            json.dumps({"script": "install.sh", **parts}),
            root,
            stop_at,
        ],
        cwd=REPO,
        env={
            **{key: text for key, text in os.environ.items() if not key.startswith("GOOGLE_")},
            compute.ENDPOINT_VARIABLE: f"{cloud.url}/compute/beta/",
            compute.TOKEN_VARIABLE: "local",
        },
        capture_output=True,
        text=True,
        timeout=LONGEST_SEC,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def images(cloud: LocalCloud) -> dict[str, dict[str, Any]]:
    listed = cloud.call("GET", f"/compute/v1/projects/{clouds.PROJECT}/global/images")
    return {one["name"]: one for one in listed["items"] if one.get("family") == "outlast-test"}


def newest(cloud: LocalCloud) -> str | None:
    path = f"/compute/v1/projects/{clouds.PROJECT}/global/images/family/outlast-test"
    try:
        return cloud.call("GET", path)["name"]
    except clouds.CloudError:
        return None


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_SEC
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def nothing_bills(cloud: LocalCloud) -> None:
    """No VM, no disk, no process."""
    audit = cloud.audit()
    assert (audit["vms"], audit["disks"], audit["pids"]) == ([], [], [])


def boot_and_look(cloud: LocalCloud, image: str) -> str:
    """What a VM of the image finds under /opt/outlast."""
    zone = f"/compute/v1/projects/{clouds.PROJECT}/zones/{ZONE}"
    bits = "222" if os.geteuid() == 0 else "022"
    script = (
        '#!/bin/bash\ncd "$OUTLAST_ROOT"\n'
        f"find opt/outlast -perm /{bits} ! -type l -printf 'writable %p\\n'\n"
        'find opt/outlast home root -printf "has %p\\n"\n'
        "opt/outlast/venv/bin/python -c 'import sys; print(\"prefix\", sys.prefix)'\n"
        'printf "mark %s.\\n" "$(<opt/outlast/mark)"\n'
        'printf "id <%s>\\n" "$(<etc/machine-id)"\n'
        "echo looked\n"
    )
    body = {
        "name": "looker",
        "machineType": f"zones/{ZONE}/machineTypes/e2-standard-2",
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {"sourceImage": f"global/images/{image}", "diskSizeGb": "50"},
            }
        ],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "metadata": {"items": [{"key": "startup-script", "value": script}]},
    }
    cloud.call("POST", f"{zone}/instances", body)
    said = ""

    def looked() -> bool:
        nonlocal said
        said = cloud.call("GET", f"{zone}/instances/looker/serialPort")["contents"]
        return "looked\n" in said

    until(looked)
    cloud.call("DELETE", f"{zone}/instances/looker")
    until(lambda: not cloud.audit()["disks"])
    return said


def test_a_recipe_becomes_an_image_that_vms_boot_from(cloud: LocalCloud, root: Path):
    cloud.reset()
    code, said = bake(cloud, root, family="outlast-test")
    assert code == 0, said
    (name,) = images(cloud)
    assert said.splitlines()[-1].endswith(f"/projects/{clouds.PROJECT}/global/images/{name}")
    labels = images(cloud)[name]["labels"]
    assert labels["base-image"].startswith("debian-13-")
    assert name == f"outlast-test-{labels['recipe'][:10]}"
    nothing_bills(cloud)

    seen = boot_and_look(cloud, name)
    assert "mark mark 1." in seen and "id <>" in seen
    assert "writable" not in seen
    for unwanted in (".git", ".env", ".bash_history", "somebody"):
        assert unwanted not in seen

    # The same recipe again: nothing is baked, the image is the same.
    code, said = bake(cloud, root, family="outlast-test")
    assert code == 0 and "is there already" in said and "bakes from" not in said

    # A changed script: a new image, the old one deprecated; the old recipe again: the old image.
    write_script(root, "mark 2")
    assert bake(cloud, root, family="outlast-test")[0] == 0
    second = newest(cloud)
    assert second and second != name
    assert images(cloud)[name]["deprecated"]["state"] == "DEPRECATED"
    write_script(root, "mark 1")
    assert bake(cloud, root, family="outlast-test")[0] == 0
    assert newest(cloud) == name
    assert images(cloud)[second]["deprecated"]["state"] == "DEPRECATED"

    # Of old ones one stays, and those that a template names.
    template = {
        "name": "holds",
        "properties": {
            "machineType": "e2-standard-2",
            "disks": [
                {"boot": True, "initializeParams": {"sourceImage": f"global/images/{second}"}}
            ],
            "networkInterfaces": [{"network": "global/networks/default"}],
        },
    }
    templates = f"/compute/v1/projects/{clouds.PROJECT}/global/instanceTemplates"
    cloud.call("POST", templates, template)
    for mark in ("mark 3", "mark 4"):
        write_script(root, mark)
        assert bake(cloud, root, family="outlast-test")[0] == 0
    left = images(cloud)
    assert len(left) == 3 and second in left and name not in left
    nothing_bills(cloud)


def test_a_bake_that_fails_shows_why_and_leaves_nothing(cloud: LocalCloud, root: Path):
    cloud.reset()
    write_script(root, "bad", then="echo 'no such thing'; exit 3")
    code, said = bake(cloud, root, family="outlast-test")
    assert code == 1
    assert "step script failed" in said and "no such thing" in said and "status 3" in said
    assert not images(cloud) and newest(cloud) is None
    nothing_bills(cloud)


@pytest.mark.parametrize(
    ("stage", "again"),
    [
        ("bakes from", "at work already"),
        ("baking", "at work already"),
        (": off", "at work already"),
        (": made", "is there already"),
    ],
)
def test_a_bake_that_was_killed_is_mended_by_the_next(
    cloud: LocalCloud, root: Path, stage: str, again: str
):
    cloud.reset()
    code, said = bake(cloud, root, stop_at=stage, family="outlast-test")
    assert code == -9, said
    code, said = bake(cloud, root, family="outlast-test")
    assert code == 0, said
    assert again in said and "bakes from" not in said
    assert list(images(cloud)) == [newest(cloud)]
    nothing_bills(cloud)


def test_a_changed_recipe_clears_the_builder_that_was_left(cloud: LocalCloud, root: Path):
    cloud.reset()
    assert bake(cloud, root, stop_at="baking", family="outlast-test")[0] == -9
    write_script(root, "mark 2")
    code, said = bake(cloud, root, family="outlast-test")
    assert code == 0, said
    assert "left by an earlier bake, deleted" in said
    assert len(images(cloud)) == 1
    nothing_bills(cloud)
