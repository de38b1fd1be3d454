"""Baking an image in a local cloud: a builder that really installs, and a VM that boots from it.

The bake runs in a separate process, which dies where a test wants it to.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.cli import cloud as clouds
from outlast.cli.cloud import LocalCloud
from tests.baking import BAKER, begin_bake, finish_bake, https_host, make_wheel, quick_python

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(900)]

REPO = Path(__file__).parents[3]
LONGEST_SEC = 240
ZONE = "europe-west4-a"
API = f"/compute/v1/projects/{clouds.PROJECT}"
BUCKET = "outlast-rehearsal-data"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    from outlast.cli.engine import Parts

    folder = tmp_path_factory.mktemp("bake")
    image = folder / "image"
    image.mkdir()
    parts = Parts("", None, str(image), "", sys.executable)
    env = {
        **quick_python(folder / "bin"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder / "wheels"),
        "CURL_CA_BUNDLE": str(folder / "authority.pem"),
    }
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
mkdir "$OUTLAST_IMAGE/.git" "$OUTLAST_ROOT/home/someone"
touch "$OUTLAST_IMAGE/.env" "$OUTLAST_ROOT/root/.bash_history"
{then}
"""
    (root / "install.sh").write_text(text)
    (root / "install.sh").chmod(0o755)


def bake(cloud: LocalCloud, root: Path, stop_at: str = "", **parts: Any) -> tuple[int, str]:
    """One bake in a process: (exit code, what it said)."""
    return finish(begin(cloud, root, stop_at, **parts))


def begin(
    cloud: LocalCloud, root: Path, stop_at: str = "", **parts: Any
) -> "subprocess.Popen[str]":
    """One bake in a process, which is to kill itself when it says `stop_at`."""
    given = {"script": "install.sh", "family": "outlast-test", **parts}
    return begin_bake(cloud.url, root, given, stop_at)


def finish(baking: "subprocess.Popen[str]") -> tuple[int, str]:
    return finish_bake(baking, LONGEST_SEC)


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


def boot_and_look(cloud: LocalCloud, image: str, more: str = "") -> str:
    """What a VM of the image finds under /opt/outlast; `more` are further commands."""
    zone = f"{API}/zones/{ZONE}"
    bits = "222" if os.geteuid() == 0 else "022"
    script = (
        '#!/bin/bash\ncd "$OUTLAST_ROOT"\n'
        f"find opt/outlast -perm /{bits} ! -type l -printf 'writable %p\\n'\n"
        'find opt/outlast home root -printf "has %p\\n"\n'
        "opt/outlast/venv/bin/python -c 'import sys; print(\"prefix\", sys.prefix)'\n"
        'printf "mark %s.\\n" "$(<opt/outlast/mark)"\n'
        'printf "id <%s>\\n" "$(<etc/machine-id)"\n'
        f"{more}\necho looked\n"
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
    code, said = bake(cloud, root)
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
    for unwanted in (".git", ".env", ".bash_history", "someone"):
        assert unwanted not in seen

    # The same recipe again: nothing is baked, the image is the same.
    code, said = bake(cloud, root)
    assert code == 0 and "exists already" in said and "bakes from" not in said

    # A changed script: a new image, the old one deprecated; the old recipe again: the old image.
    write_script(root, "mark 2")
    assert bake(cloud, root)[0] == 0
    second = newest(cloud)
    assert second and second != name
    assert images(cloud)[name]["deprecated"]["state"] == "DEPRECATED"
    write_script(root, "mark 1")
    assert bake(cloud, root)[0] == 0
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
        assert bake(cloud, root)[0] == 0
    left = images(cloud)
    assert len(left) == 3 and second in left and name not in left
    nothing_bills(cloud)


def test_a_failed_bake_shows_its_error_and_leaves_nothing(cloud: LocalCloud, root: Path):
    cloud.reset()
    write_script(root, "bad", then="echo 'no such thing'; exit 3")
    code, said = bake(cloud, root)
    assert code == 1
    assert "step script failed" in said and "no such thing" in said and "status 3" in said
    assert not images(cloud) and newest(cloud) is None
    nothing_bills(cloud)


def test_requirements_and_data_are_in_the_image_by_their_hashes(
    cloud: LocalCloud, root: Path, tmp_path: Path
):
    cloud.reset()
    folder = cloud.state.parent
    (root / "image.txt").write_text(make_wheel(folder / "wheels", "baked_thing"))
    served = tmp_path / "served/sets"
    served.mkdir(parents=True)
    (served / "digits.npz").write_bytes(b"over https")
    account = {"accountId": "image-baker", "serviceAccount": {"displayName": "baker"}}
    cloud.call("POST", f"/iam/v1/projects/{clouds.PROJECT}/serviceAccounts", account)
    cloud.make_bucket(BUCKET, "europe-west4")
    name = "data/more.npz"
    cloud.call("POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", "a bucket")
    reader = {"role": "roles/storage.objectViewer", "members": [f"serviceAccount:{BAKER}"]}
    cloud.call("PUT", f"/storage/v1/b/{BUCKET}/iam", {"bindings": [reader]})

    with https_host(tmp_path / "served", folder / "authority.pem") as host:
        parts: dict[str, Any] = {
            "requirements": "image.txt",
            "data": [
                {"url": f"{host}/sets/digits.npz", "sha256": sha256(b"over another")},
                {"url": f"gs://{BUCKET}/{name}", "sha256": sha256(b'"a bucket"'), "path": "b/more"},
            ],
        }
        code, said = bake(cloud, root, **parts)
        assert code == 1 and "step data failed" in said
        assert f"{host}/sets/digits.npz: sha256 is {sha256(b'over https')}, must be" in said
        assert not images(cloud)
        nothing_bills(cloud)

        parts["data"][0]["sha256"] = sha256(b"over https")
        code, said = bake(cloud, root, **parts)
        assert code == 0, said
    seen = boot_and_look(
        cloud,
        str(newest(cloud)),
        "opt/outlast/user-venv/bin/python -c 'import baked_thing as b; print(b.__file__, b.NAME)'\n"
        'printf \'%s and %s\\n\' "$(<opt/outlast/data/digits.npz)" "$(<opt/outlast/data/b/more)"\n'
        'printf "mark %s\\n" "$(<opt/outlast/user-venv/.complete)"\n',
    )
    assert "opt/outlast/user-venv/lib/" in seen and "baked_thing.py baked_thing\n" in seen
    assert 'over https and "a bucket"\n' in seen
    # What a boot compares with the run's own requirements.
    assert f"mark {sha256((root / 'image.txt').read_bytes())}\n" in seen


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_builder_past_its_limit_leaves_only_its_last_lines(cloud: LocalCloud, root: Path):
    cloud.reset()
    write_script(root, "never", then="echo still at it; sleep infinity")
    baking = begin(cloud, root, limitMinutes=30)

    def builder_log() -> str:
        (vm,) = cloud.vms() or [None]
        if vm is None:
            return ""
        path = f"{API}/zones/{ZONE}/instances/{vm['name']}/getGuestAttributes?queryPath=outlast/log"
        try:
            return cloud.call("GET", path)["queryValue"]["items"][0]["value"]
        except clouds.CloudError:
            return ""

    until(lambda: "still at it" in builder_log())
    count = {"path": "getGuestAttributes.queryPath=outlast/$", "nth": 1_000_000}
    rule = {"match": count, "when": "after", "do": {"delay_sec": 0.01}}
    cloud.call("POST", "/_local/faults", rule)
    until(lambda: cloud.faults()[0]["seen"] >= 2)  # so the bake has its answer
    # Half an hour later.
    cloud.play({"name": "later", "about": "Time goes by.", "speed": 10_000}, target="")
    code, said = finish(baking)
    cloud.call("DELETE", "/_local/scenario")
    assert code == 1
    assert said.splitlines()[-2:] == [
        f"error builder bake-{builder_of(said)}: does not exist any more (baking script); it had "
        "30 minutes; set limitMinutes in outlast:imageRecipe if that is too short; its last lines:",
        "still at it",
    ]
    assert not images(cloud)
    nothing_bills(cloud)


def builder_of(said: str) -> str:
    """The image's name, out of what a bake says of its builder."""
    return said.partition("builder bake-")[2].partition(":")[0]


def test_an_abandoned_builder_is_deleted_at_its_limit(cloud: LocalCloud, root: Path):
    """Done or failed, it is not turned off by itself: a disk of a VM that is off stays."""
    cloud.reset()
    code, said = bake(cloud, root, stop_at="done, stopping")
    assert code == -9, said
    (vm,) = cloud.vms()
    assert vm["status"] == "RUNNING"
    found = cloud.call("GET", f"{API}/zones/{ZONE}/instances/{vm['name']}")["scheduling"]
    assert found["instanceTerminationAction"] == "DELETE"
    assert found["maxRunDuration"]["seconds"] == str(120 * 60)
    cloud.play({"name": "later", "about": "Time goes by.", "speed": 10_000}, target="")
    until(lambda: not cloud.audit()["disks"])
    cloud.call("DELETE", "/_local/scenario")
    nothing_bills(cloud)


@pytest.mark.parametrize(
    ("stage", "again"),
    [
        ("bakes from", "already at work"),
        ("baking", "already at work"),
        ("done, stopping", "already at work"),
        (": off", "has already done its work"),
        (": made", "exists already"),
    ],
)
def test_the_next_bake_repairs_a_killed_one(cloud: LocalCloud, root: Path, stage: str, again: str):
    cloud.reset()
    code, said = bake(cloud, root, stop_at=stage)
    assert code == -9, said
    code, said = bake(cloud, root)
    assert code == 0, said
    assert again in said and "bakes from" not in said
    assert list(images(cloud)) == [newest(cloud)]
    nothing_bills(cloud)


def test_a_changed_recipe_deletes_the_old_builder(cloud: LocalCloud, root: Path):
    cloud.reset()
    assert bake(cloud, root, stop_at="baking")[0] == -9
    write_script(root, "mark 2")
    code, said = bake(cloud, root)
    assert code == 0, said
    assert "left by an earlier bake, deleted" in said
    assert len(images(cloud)) == 1
    nothing_bills(cloud)
