"""A bake on a QEMU machine, from the real indexes of Debian and Python, interrupted once; and a
VM of the image, which installs nothing."""

import signal

import pytest

from tests.baking import begin_bake, finish_bake
from tests.guest.guest_cloud import REPO, Count, GuestCloud, wait
from tests.localcloud.compute.test_compute import VMS
from tests.localcloud.local_cloud import PROJECT

pytestmark = [pytest.mark.guest, pytest.mark.timeout(3600)]

LONGEST_BAKE_SEC = 1800
MOST_RECEIVED = 2 << 20
"""Bytes that a VM receives without an installation: its metadata, and the objects of its run. The
list of Debian's packages alone has more."""
LOOK = """
{
  for each in tree-version six-version; do
    echo "$each: $(head -n 1 /opt/outlast/$each)"
  done
  find /opt/outlast -perm /222 ! -type l -printf 'writable %p\\n'
  echo looked
} >/dev/ttyS0
"""


@pytest.mark.parametrize(
    ("release", "python", "step", "cut", "then"),
    [
        ("13", "3.13", "environment", False, "already at work"),
        ("12", "3.11", "packages", True, "left by an earlier bake, deleted"),
    ],
)
def test_an_interrupted_bake_is_completed_and_its_image_installs_nothing(
    release: str,
    python: str,
    step: str,
    cut: bool,
    then: str,
    cloud: GuestCloud,
    images: dict[str, str],
) -> None:
    """The process that bakes is killed in a step, and the builder keeps working or is `cut` too."""
    if f"debian-cloud/debian-{release}" not in images:
        pytest.skip(f"no guest image of Debian {release}; run make guest-image DEBIAN={release}")
    count = Count(cloud)
    recipe = {
        "base": f"projects/debian-cloud/global/images/family/debian-{release}",
        "family": "baked",
        "packages": ["tree"],
        "requirements": "tests/guest/recipe/image.txt",
        "script": "tests/guest/recipe/install.sh",
        "trainers": True,
        "machineType": "e2-standard-2",
        "diskGb": 12,
    }
    bundle = {"bundle": f"gs://{count.bucket}/bundle.zip", "bundle_sha256": count.sha256}

    def bake(stop_at: str = "") -> tuple[int, str]:
        begun = begin_bake(cloud.url, REPO, recipe, stop_at, **bundle)
        return finish_bake(begun, LONGEST_BAKE_SEC)

    code, said = bake(stop_at=f"baking {step}")
    assert code == -signal.SIGKILL, said
    (builder,) = cloud.ok("GET", "/_local/vms")
    if cut:
        cloud.ok("POST", f"/_local/vms/{builder['name']}/kill")
        wait(lambda: cloud.ok("GET", f"{VMS}/{builder['name']}")["status"] == "TERMINATED")
    code, said = bake()
    assert code == 0, said
    assert then in said
    audit = cloud.ok("GET", "/_local/audit")
    assert (audit["vms"], audit["disks"], audit["pids"]) == ([], [], [])

    # A run whose bundle is in the image alone.
    assert cloud.object("DELETE", count.bucket, "bundle.zip").status_code == 204
    count.start(f"projects/{PROJECT}/global/images/family/baked", before=LOOK, delivery="image")
    boot = count.written("boot-1")
    assert boot["prefix"] == "/opt/outlast/venv"
    assert boot["python"] == python
    assert boot["installed"] == [] and boot["received"] < MOST_RECEIVED
    serial = cloud.serial(count.member()["name"], 1)
    assert "tree-version: tree v" in serial and "six-version: 1.17.0" in serial
    assert "looked" in serial and "writable /opt" not in serial
