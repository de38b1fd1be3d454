"""A local cloud whose VMs are machines of QEMU, and a group of one VM on it, without the engine."""

import hashlib
import io
import json
import re
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outlast.spec import startup_script
from tests.baking import BAKER
from tests.localcloud.compute.test_compute import (
    BASE,
    GROUPS,
    SCOPE,
    group_body,
    template_body,
)
from tests.localcloud.local_cloud import PROJECT, LocalCloud, make_bucket

LONGEST_WAIT_SEC = 1200.0
STOCK = "projects/debian-cloud/global/images/family/debian-13"
PORT, LIMIT_SEC = 8099, 15
"""Of the health process."""
REPO = Path(__file__).parents[2]
SYSTEM_PYTHON = (
    "mkdir -p /opt/outlast/venv/bin && ln -sf /usr/bin/python3 /opt/outlast/venv/bin/python\n"
)
"""Spares a stock image the packages of the supervisor, which the counter does not need."""

BUSY_APT = (
    "systemd-run --quiet --unit=busy-apt systemd-inhibit --what=shutdown --mode=block --who=apt"
    " sleep infinity || true\n"
)
"""Inhibits a shutdown, as apt does while it installs."""


class GuestCloud(LocalCloud):
    """The local cloud as people start it with `--guest vm`, but for the engine's provider."""

    def __init__(self, state: Path, images: Mapping[str, str], grace_sec: float) -> None:
        command = ["-m", "outlast.localcloud", "serve", "--state", str(state), "--no-provider"]
        command += ["--guest", "vm", "--grace-sec", str(grace_sec)]
        for family, folder in images.items():
            command += ["--image", f"{family}={folder}"]
        super().__init__(state, *command)

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of a call that must succeed."""
        answer = self.call(method, path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def factor(self) -> float:
        """How much slower than a VM of Compute Engine its first VM was."""
        notes = " ".join(self.ok("GET", "/_local/notes"))
        found = re.search(r"([0-9.]+) times a VM of Compute Engine", notes)
        assert found, notes
        return float(found[1])

    def machines(self) -> list[int]:
        """The pids of QEMU and its parents."""
        return machines(str(self.state))

    def serial(self, vm: str, boot: int) -> str:
        """The serial output of a boot."""
        return (self.state / f"serial/{vm}-{boot}.log").read_text(errors="replace")


def machines(word: str) -> list[int]:
    """The pids of QEMU and its parents whose command line has this word in it."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if folder.name.isdigit() and word.encode() in command and b"qemu" in command:
            found.append(int(folder.name))
    return found


def processes(folder: str) -> list[int]:
    """The pids of all processes that have this folder as TMPDIR."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if process.name.isdigit() and f"TMPDIR={folder}".encode() in environment:
            found.append(int(process.name))
    return found


def wait(condition: Callable[[], Any], what: str = "") -> Any:
    """Waits until the condition is true; its value."""
    deadline = time.monotonic() + LONGEST_WAIT_SEC
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain {what}"
        time.sleep(0.1)
    return found


class Count:
    """A run that counts (counter.py), started by the startup script of every run."""

    def __init__(self, cloud: GuestCloud) -> None:
        """Makes its bucket and its account."""
        self.cloud = cloud
        self.bucket = make_bucket(cloud, name="counts")
        account = {"accountId": "image-baker", "serviceAccount": {"displayName": "counts"}}
        cloud.ok("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", account)
        role = {"role": "roles/storage.objectAdmin", "members": [f"serviceAccount:{BAKER}"]}
        cloud.ok("PUT", f"/storage/v1/b/{self.bucket}/iam", {"bindings": [role]})
        bundle = self._bundle()
        self.sha256 = hashlib.sha256(bundle).hexdigest()
        assert cloud.put(self.bucket, "bundle.zip", bundle).status_code == 200

    def _bundle(self) -> bytes:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("outlast/__init__.py", "")
            archive.writestr("outlast/supervisor/__init__.py", "")
            health = REPO / "outlast/supervisor/health.py"
            archive.write(health, "outlast/supervisor/health.py")
            archive.write(Path(__file__).with_name("counter.py"), "outlast/supervisor/__main__.py")
        return packed.getvalue()

    def start(self, image: str, *, before: str = "", **attributes: str) -> None:
        """Starts a group of one VM from an image, which is probed. `before`: lines of
        shell that come first at each boot."""
        first, _, rest = startup_script.read("boot.sh").partition("\n")
        values = {
            "startup-script": f"{first}\n{before}{rest}",
            "outlast-bucket": self.bucket,
            "outlast-prefix": "run",
            "outlast-run": "0123456789",
            "outlast-resume": "0",
            "outlast-placement": "0",
            "outlast-bundle": "bundle.zip",
            "outlast-bundle-sha256": self.sha256,
            "outlast-timeouts": json.dumps({"iam_propagation": 60, "backoff": 2}),
            "outlast-health": f"{PORT} {LIMIT_SEC}",
            **{f"outlast-{key}": value for key, value in attributes.items()},
        }
        disk = {"sourceImage": image, "diskSizeGb": "12", "diskType": "pd-balanced"}
        template = template_body(
            machineType="e2-small",
            disks=[{"boot": True, "autoDelete": True, "initializeParams": disk}],
            serviceAccounts=[{"email": BAKER, "scopes": [SCOPE]}],
            tags={"items": ["counts"]},
            metadata={"items": [{"key": key, "value": text} for key, text in values.items()]},
        )
        self.cloud.ok("POST", f"{BASE}/global/instanceTemplates", template)
        rule = {
            "name": "health",
            "network": "global/networks/default",
            "allowed": [{"IPProtocol": "tcp", "ports": [str(PORT)]}],
            "sourceRanges": ["130.211.0.0/22", "35.191.0.0/16"],
            "targetTags": ["counts"],
        }
        self.cloud.ok("POST", f"{BASE}/global/firewalls", rule)
        check = {
            "name": "h1",
            "type": "HTTP",
            "checkIntervalSec": 2,
            "timeoutSec": 2,
            "healthyThreshold": 1,
            "unhealthyThreshold": 2,
            "httpHealthCheck": {"port": PORT, "requestPath": "/"},
        }
        self.cloud.ok("POST", f"{BASE}/global/healthChecks", check)
        healing = [{"healthCheck": "global/healthChecks/h1", "initialDelaySec": 3600}]
        policy = {"forceUpdateOnRepair": "YES", "onFailedHealthCheck": "DO_NOTHING"}
        group = group_body(1, autoHealingPolicies=healing, instanceLifecyclePolicy=policy)
        self.cloud.ok("POST", GROUPS, group)

    def member(self) -> dict[str, Any]:
        """The group's VM: {id, name, health}."""
        listed = self.cloud.ok("POST", f"{GROUPS}/g1/listManagedInstances")
        (found,) = listed["managedInstances"]
        health = found.get("instanceHealth") or [{}]
        return {
            "id": found.get("id"),
            "name": found["instance"].rpartition("/")[2],
            "health": health[0].get("detailedHealthState", "UNKNOWN"),
        }

    def turns(self, health: str) -> None:
        """Waits for what the probes say of the VM."""
        wait(lambda: self.member()["health"] == health, f"for {health}")

    def read(self, name: str) -> Any:
        """The value of one of its objects; None if it does not exist."""
        answer = self.cloud.object("GET", self.bucket, f"run/{name}", params={"alt": "media"})
        return answer.json() if answer.status_code == 200 else None

    def written(self, name: str) -> Any:
        """Waits for an object; its value."""
        return wait(lambda: self.read(name), f"for {name}")

    def order(self, do: str) -> None:
        """Tells the counter to hang or to end; empty: to count on."""
        order = json.dumps({"do": do}).encode()
        assert self.cloud.put(self.bucket, "run/order", order).status_code == 200
