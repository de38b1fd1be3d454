"""A VM that can never succeed leaves its group: what failed, and how many minutes that takes."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outlast.spec import permissions, startup_script
from outlast.spec.run_spec import Timeouts
from tests.localcloud.compute.test_compute import BASE, SPOT, group_body, template_body, wait
from tests.localcloud.local_cloud import PROJECT, FullCloud, make_bucket

pytestmark = pytest.mark.rehearsal

GROUPS = f"{BASE}/zones/us-central1-a/instanceGroupManagers"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
BUNDLE = "experiments/dev/bundles/bundle.zip"
DATA = b"no bundle"
EMAIL = f"leaving@{PROJECT}.iam.gserviceaccount.com"

LIMIT_MINUTES = 20
BOOT_MINUTES = 2
"""From the creation of a VM to the end of its boot, apart from waits."""
SHORT = {"iam_propagation": 2, "silence": 3, "backoff": 0.1}


@dataclass(frozen=True)
class Failure:
    """What is wrong, and the setting that says how long a VM waits for it to pass."""

    waits: str = ""
    bucket: bool = True
    binding: bool = True
    bundle: bytes | None = DATA
    fault: dict[str, Any] | None = None
    values: tuple[tuple[str, str | None], ...] = ()
    """Metadata instead of the right one; None: left out."""


FAILURES = {
    "bucket deleted": Failure("iam_propagation", bucket=False),
    "binding missing": Failure("iam_propagation", binding=False),
    "bundle deleted": Failure("iam_propagation", bundle=None),
    "storage silent": Failure("silence", fault={"reset": True}),
    "storage broken": Failure("silence", fault={"status": 503}),
    "bundle damaged": Failure(bundle=b"other bytes"),
    "bundle without code": Failure(),
    "metadata incomplete": Failure(values=(("outlast-run", None),)),
    "metadata broken": Failure(values=(("outlast-bundle-sha256", "12"),)),
}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullCloud]:
    """Storage and a role with which a VM may leave its group."""
    cloud = FullCloud(tmp_path_factory.mktemp("leaving") / "state")
    account = {"accountId": "leaving", "serviceAccount": {}}
    cloud.ok("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", account)
    role = {"includedPermissions": list(permissions.LEAVE_GROUP)}
    cloud.ok("POST", f"/iam/v1/projects/{PROJECT}/roles", {"roleId": "leaver", "role": role})
    policy = f"/cloudresourcemanager/v1/projects/{PROJECT}"
    now = cloud.ok("POST", f"{policy}:getIamPolicy", {})
    binding = {"role": f"projects/{PROJECT}/roles/leaver", "members": [f"serviceAccount:{EMAIL}"]}
    bindings = [*now.get("bindings", []), binding]
    cloud.ok("POST", f"{policy}:setIamPolicy", {"policy": {**now, "bindings": bindings}})
    yield cloud
    assert cloud.stop() == 0
    cloud.http.close()


def start(cloud: FullCloud, number: int, failure: Failure) -> str:
    """A group whose VM meets the failure; its name."""
    name = f"dev-{number}"
    bucket = make_bucket(cloud) if failure.bucket else f"gone-{number}"
    if failure.bucket:
        role = "roles/storage.objectAdmin" if failure.binding else "roles/storage.objectViewer"
        member = f"serviceAccount:{EMAIL}"
        policy = {"version": 3, "bindings": [{"role": role, "members": [member]}]}
        cloud.ok("PUT", f"/storage/v1/b/{bucket}/iam", policy)
        if failure.bundle is not None:
            assert cloud.put(bucket, BUNDLE, failure.bundle).status_code == 200
    if failure.fault is not None:
        cloud.add_fault("before", failure.fault, path=f"/b/{bucket}/", count=0)
    values = {
        "startup-script": startup_script.read("boot.sh"),
        "outlast-bucket": bucket,
        "outlast-prefix": "experiments/dev",
        "outlast-run": "0123456789",
        "outlast-resume": "0",
        "outlast-placement": "0",
        "outlast-timeouts": json.dumps(SHORT),
        "outlast-bundle": BUNDLE,
        "outlast-bundle-sha256": hashlib.sha256(DATA).hexdigest(),
        **dict(failure.values),
    }
    items = [{"key": key, "value": value} for key, value in values.items() if value is not None]
    template = template_body(
        name=name,
        metadata={"items": items},
        serviceAccounts=[{"email": EMAIL, "scopes": [SCOPE]}],
        scheduling={**SPOT, "preemptionNoticeDuration": {"seconds": "120"}},
    )
    cloud.ok("POST", f"{BASE}/global/instanceTemplates", template)
    body = group_body(1, template=name, baseInstanceName=name)
    cloud.ok("POST", GROUPS, body | {"name": name})
    return name


def lives(cloud: FullCloud, group: str) -> int:
    """How many VMs the group has started."""
    return len(list((cloud.state / "serial").glob(f"{group}-*.log")))


def test_a_vm_that_can_never_succeed_leaves_within_twenty_minutes(cloud: FullCloud) -> None:
    groups = {
        what: start(cloud, number, failure)
        for number, (what, failure) in enumerate(FAILURES.items())
    }

    def sizes() -> dict[str, int]:
        return {
            what: cloud.ok("GET", f"{GROUPS}/{name}")["targetSize"] for what, name in groups.items()
        }

    wait(lambda: not any(sizes().values()))
    wait(lambda: not cloud.ok("GET", "/_local/vms"))
    minutes = {}
    for what, failure in FAILURES.items():
        assert lives(cloud, groups[what]) >= 1
        wait_sec = getattr(Timeouts, failure.waits) if failure.waits else 0.0
        minutes[what] = lives(cloud, groups[what]) * (BOOT_MINUTES + wait_sec / 60)
    assert max(minutes.values()) <= LIMIT_MINUTES, minutes
    assert in_docs() == {what: round(most) for what, most in minutes.items()}


def in_docs() -> dict[str, int]:
    """The table of docs/operating.md: minutes by what failed."""
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    table = page.partition("| what failed |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    return {what: int(cells[1]) for cells in rows for what in cells[0].strip().split(", ")}
