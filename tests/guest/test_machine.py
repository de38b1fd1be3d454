"""A machine of QEMU in a local cloud, before its system is up: power, disk, and its end."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.localcloud.compute.test_compute import BASE, PROJECT, VMS, ZONE
from tests.localcloud.local_cloud import LocalCloud

pytestmark = [pytest.mark.guest, pytest.mark.timeout(600)]

LONGEST_WAIT_SEC = 300.0
STOCK = "projects/debian-cloud/global/images/family/debian-13"


@pytest.fixture
def cloud(tmp_path: Path, images: dict[str, str]) -> Iterator[LocalCloud]:
    """A cloud whose VMs are machines of QEMU."""
    state = tmp_path / "state"
    command = ["-m", "outlast.localcloud", "serve", "--state", str(state), "--no-provider"]
    command += ["--guest", "vm", "--grace-sec", "2"]
    for family, folder in images.items():
        command += ["--image", f"{family}={folder}"]
    cloud = LocalCloud(state, *command)
    yield cloud
    cloud.stop()
    cloud.http.close()
    assert not machines(state)


def machines(state: Path) -> list[int]:
    """The pids of QEMU and its parents that belong to a state folder."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if folder.name.isdigit() and str(state).encode() in command and b"qemu" in command:
            found.append(int(folder.name))
    return found


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_SEC
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def ok(cloud: LocalCloud, method: str, path: str, body: Any = None) -> Any:
    answer = cloud.call(method, path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def insert(cloud: LocalCloud, name: str, image: str) -> None:
    parameters = {"sourceImage": image, "diskSizeGb": "12"}
    disk = {"boot": True, "autoDelete": True, "initializeParams": parameters}
    body = {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/e2-small",
        "disks": [disk],
        "networkInterfaces": [{"network": "global/networks/default"}],
    }
    ok(cloud, "POST", VMS, body)


def has_status(cloud: LocalCloud, name: str, status: str) -> Callable[[], bool]:
    return lambda: ok(cloud, "GET", f"{VMS}/{name}")["status"] == status


def test_a_machine_is_frozen_stopped_imaged_and_ends_with_its_cloud(cloud: LocalCloud) -> None:
    (note,) = ok(cloud, "GET", "/_local/notes")
    assert note.startswith("VMs are machines of QEMU, ")
    insert(cloud, "one", STOCK)
    wait(has_status(cloud, "one", "RUNNING"))
    port = f"{VMS}/one/serialPort"
    wait(lambda: ok(cloud, "GET", port)["contents"])
    ok(cloud, "POST", "/_local/vms/one/freeze")
    ok(cloud, "POST", "/_local/vms/one/thaw")
    # Its system does not hear the button yet: it is cut off after the grace period.
    ok(cloud, "POST", f"{VMS}/one/stop")
    wait(has_status(cloud, "one", "TERMINATED"))
    assert not machines(cloud.state)
    disk = f"projects/{PROJECT}/zones/{ZONE}/disks/one"
    image = {"name": "copy-1", "family": "copy", "sourceDisk": disk}
    assert "error" not in ok(cloud, "POST", f"{BASE}/global/images", image)
    insert(cloud, "two", f"projects/{PROJECT}/global/images/family/copy")
    wait(has_status(cloud, "two", "RUNNING"))
    wait(lambda: ok(cloud, "GET", f"{VMS}/two/serialPort")["contents"])
    assert len(machines(cloud.state)) == 2  # QEMU and its parent
    ok(cloud, "DELETE", f"{VMS}/one")  # a stopped disk stays until the next cloud starts
    wait(lambda: len(list((cloud.state / "vms").glob("*/disk.qcow2"))) == 1)
    cloud.stop(signal.SIGKILL)
    wait(lambda: not machines(cloud.state))
    wait(lambda: not list((cloud.state / "vms").glob("*/disk.qcow2")))
