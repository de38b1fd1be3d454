"""A QEMU machine in a local cloud, before its system is up: power, disk, and its end."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.guest.guest_cloud import STOCK, GuestCloud, wait
from tests.localcloud.compute.test_compute import BASE, PROJECT, VMS, ZONE

pytestmark = [pytest.mark.guest, pytest.mark.timeout(600)]


@pytest.fixture
def small_disk(cloud: GuestCloud) -> Iterator[Path]:
    """The folder of the VMs' disks, with less space than a boot writes."""
    folder = cloud.state / "vms"
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def insert(cloud: GuestCloud, name: str, image: str) -> None:
    parameters = {"sourceImage": image, "diskSizeGb": "12"}
    disk = {"boot": True, "autoDelete": True, "initializeParams": parameters}
    body = {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/e2-small",
        "disks": [disk],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "scheduling": {"automaticRestart": False},
    }
    cloud.ok("POST", VMS, body)


def has_status(cloud: GuestCloud, name: str, status: str) -> Callable[[], bool]:
    return lambda: cloud.ok("GET", f"{VMS}/{name}")["status"] == status


@pytest.mark.parametrize("cloud", [2.0], indirect=True)
def test_a_machine_is_frozen_stopped_imaged_and_ends_with_its_cloud(cloud: GuestCloud) -> None:
    (note,) = cloud.ok("GET", "/_local/notes")
    assert note.startswith("VMs are machines of QEMU, ")
    insert(cloud, "one", STOCK)
    wait(has_status(cloud, "one", "RUNNING"))
    port = f"{VMS}/one/serialPort"
    wait(lambda: cloud.ok("GET", port)["contents"])
    cloud.ok("POST", "/_local/vms/one/freeze")
    cloud.ok("POST", "/_local/vms/one/thaw")
    # Its system does not hear the button yet: it is cut off after the grace period.
    cloud.ok("POST", f"{VMS}/one/stop")
    wait(has_status(cloud, "one", "TERMINATED"))
    assert not cloud.machines()
    disk = f"projects/{PROJECT}/zones/{ZONE}/disks/one"
    image = {"name": "copy-1", "family": "copy", "sourceDisk": disk}
    assert "error" not in cloud.ok("POST", f"{BASE}/global/images", image)
    insert(cloud, "two", f"projects/{PROJECT}/global/images/family/copy")
    wait(has_status(cloud, "two", "RUNNING"))
    wait(lambda: cloud.ok("GET", f"{VMS}/two/serialPort")["contents"])
    assert len(cloud.machines()) == 2  # QEMU and its parent
    cloud.ok("DELETE", f"{VMS}/one")  # a stopped disk stays until the next cloud starts
    wait(lambda: len(list((cloud.state / "vms").glob("*/disk.qcow2"))) == 1)
    cloud.stop(signal.SIGKILL)
    wait(lambda: not cloud.machines())
    wait(lambda: not list((cloud.state / "vms").glob("*/disk.qcow2")))


def test_a_machine_whose_disk_is_full_ends_and_says_why(
    cloud: GuestCloud, small_disk: Path
) -> None:
    insert(cloud, "one", STOCK)
    wait(has_status(cloud, "one", "TERMINATED"))
    notes = cloud.ok("GET", "/_local/notes")
    assert notes[-1] == (
        f"one: its disk in {small_disk} cannot be written (No space left on device); the VM has "
        "ended; free some space there"
    )
    assert not cloud.machines()
