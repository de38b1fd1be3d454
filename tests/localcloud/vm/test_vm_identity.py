"""What the declared identity lets a VM do, tried by real VMs with their own tokens: all that a run
needs, nothing of anybody else's, and of what it may do nothing that it does not need."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from outlast.localcloud.iam.predefined import PREDEFINED_ROLES
from tests.components import inventory
from tests.components.conftest import pulumi_state
from tests.localcloud.compute.test_compute import (
    BASE,
    GROUPS,
    VMS,
    group_body,
    script,
    template_body,
)
from tests.localcloud.iam.test_iam import (
    grant,
    grant_on_project,
    make_account,
    make_role,
)
from tests.localcloud.local_cloud import PROJECT, FullCloud, make_bucket

__all__ = ["pulumi_state"]  # a fixture; its module loads the SDK without its warnings
pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(400)]

LONGEST_WAIT_SEC = 90.0
WRITE, READ = "roles/storage.objectUser", "roles/storage.objectViewer"
SECRET = "roles/secretmanager.secretAccessor"
SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"
OWN = "experiments/dev"
SWEEP = "sweeps/lr/rungs/, sweeps/lr/decisions/"
LENT = "rows"
"""A folder that `dataPaths` names, in another team's bucket."""
INIT = "experiments/theirs/0123456789/t000001/s000000000100-01234567/"
"""A checkpoint that `init` names, in the same bucket."""

# Each prints `probe NAME STATUS`; `api` is a call with the VM's own token.
BOOT = """#!/bin/bash
token="$(curl -s -H 'Metadata-Flavor: Google' \
  "$METADATA_BASE/instance/service-accounts/default/token")"
token="${token#*\\"access_token\\": \\"}"
token="${token#*\\"access_token\\":\\"}"
token="${token%%\\"*}"
api() {
  local name="$1" method="$2" url="$3"
  shift 3
  printf 'probe %s %s\\n' "$name" "$(curl -s -o /dev/null -w '%{http_code}' -X "$method" \
    -H "Authorization: Bearer $token" -H 'Content-Type: application/json' "$@" "$url")"
}
store="$STORAGE_EMULATOR_HOST/storage/v1/b/BUCKET"
upload="$STORAGE_EMULATOR_HOST/upload/storage/v1/b/BUCKET/o?uploadType=media&name"
lent="$STORAGE_EMULATOR_HOST/storage/v1/b/LENDER"
give="$STORAGE_EMULATOR_HOST/upload/storage/v1/b/LENDER/o?uploadType=media&name"
init="$lent/o/experiments%2Ftheirs%2F0123456789%2Ft000001%2Fs000000000100-01234567"
compute="${OUTLAST_COMPUTE_ENDPOINT}projects/PROJECT"
secrets="${OUTLAST_SECRET_MANAGER_ENDPOINT}v1/projects/PROJECT/secrets"
groups="$compute/zones/europe-west4-a/instanceGroupManagers"
name="$(curl -s -H 'Metadata-Flavor: Google' "$METADATA_BASE/instance/name")"
PROBES
printf 'probes done\\n'
sleep 1000
"""

NEEDED = """
api own-create POST "$upload=experiments/dev/$name" -d new
api own-overwrite POST "$upload=experiments/dev/HEAD-$name" -d head
api own-read GET "$store/o/experiments%2Fdev%2FHEAD-$name?alt=media"
api own-absent GET "$store/o/experiments%2Fdev%2Fabsent"
api own-list GET "$store/o?prefix=experiments/dev/"
api own-delete DELETE "$store/o/experiments%2Fdev%2Fold-$name"
api data-read GET "$store/o/data%2Fdigits?alt=media"
api data-absent GET "$store/o/data%2Fabsent"
api data-list GET "$store/o?prefix=data/"
api lent-read GET "$lent/o/rows%2Fa.csv?alt=media"
api lent-alone GET "$lent/o/rows?alt=media"
api lent-absent GET "$lent/o/rows%2Fabsent"
api lent-list GET "$lent/o?prefix=rows/"
api init-read GET "$init%2FMANIFEST.json?alt=media"
api init-absent GET "$init%2Fabsent"
api sweep-create POST "$upload=sweeps/lr/rungs/10/$name" -d new
api sweep-read GET "$store/o/sweeps%2Flr%2Frungs%2F10%2Ftheirs?alt=media"
api sweep-absent GET "$store/o/sweeps%2Flr%2Frungs%2F10%2Fabsent"
api sweep-list GET "$store/o?prefix=sweeps/lr/rungs/10/"
api secret-read GET "$secrets/own/versions/latest:access"
api group-find POST "$groups/g1/listManagedInstances"
api group-leave POST "$groups/g1/deleteInstances" \
  -d '{"instances": ["zones/europe-west4-a/instances/x"]}'
"""
"""What the startup scripts and the supervisor do, call by call."""

REFUSED = """
api data-write POST "$upload=data/mine" -d x
api neighbour-read GET "$store/o/experiments%2Fother%2FHEAD?alt=media"
api neighbour-absent GET "$store/o/experiments%2Fother%2Fabsent"
api neighbour-write POST "$upload=experiments/other/new" -d x
api neighbour-overwrite POST "$upload=experiments/other/HEAD" -d x
api neighbour-delete DELETE "$store/o/experiments%2Fother%2FHEAD"
api neighbour-list GET "$store/o?prefix=experiments/other/"
api alike-read GET "$store/o/experiments%2Fdev-2%2FHEAD?alt=media"
api alike-list GET "$store/o?prefix=experiments/dev-2/"
api experiments-list GET "$store/o?prefix=experiments/"
api bucket-list GET "$store/o"
api sweep-overwrite POST "$upload=sweeps/lr/rungs/10/theirs" -d x
api sweep-lock-create POST "$upload=sweeps/lr/LOCK" -d x
api sweep-delete DELETE "$store/o/sweeps%2Flr%2Frungs%2F10%2Ftheirs"
api sweep-alike-write POST "$upload=sweeps/lr-2/rungs/10/mine" -d x
api sweep-alike-read GET "$store/o/sweeps%2Flr-2%2Frungs%2F10%2Ftheirs?alt=media"
api sweep-alike-list GET "$store/o?prefix=sweeps/lr-2/"
api sweeps-list GET "$store/o?prefix=sweeps/"
api note-write POST "$upload=foundations/outlast-base/dev" -d x
api lent-write POST "$give=rows/b" -d x
api lent-delete DELETE "$lent/o/rows%2Fa.csv"
api lent-alike-read GET "$lent/o/rows-2%2Fa.csv?alt=media"
api lent-alike-list GET "$lent/o?prefix=rows-2/"
api lent-bucket-list GET "$lent/o"
api lent-bucket-get GET "$lent"
api init-write POST "$give=INITmine" -d x
api init-delete DELETE "$init%2FMANIFEST.json"
api init-run-read GET "$lent/o/experiments%2Ftheirs%2F0123456789%2FHEAD?alt=media"
api init-run-list GET "$lent/o?prefix=experiments/theirs/0123456789/"
api bucket-get GET "$store"
api bucket-change PATCH "$store" -d '{"labels": {"a": "b"}}'
api bucket-delete DELETE "$store"
api bucket-policy GET "$store/iam"
api bucket-policy-set PUT "$store/iam" -d '{"bindings": []}'
api secret-read-other GET "$secrets/theirs/versions/latest:access"
api secret-get GET "$secrets/own"
api secret-add POST "$secrets/own:addVersion" -d '{"payload": {"data": "eA=="}}'
api group-delete DELETE "$groups/g1"
api group-create POST "$groups" -d '{"name": "mine"}'
api vm-delete DELETE "$compute/zones/europe-west4-a/instances/$name"
api vm-metadata POST "$compute/zones/europe-west4-a/instances/$name/setMetadata" -d '{}'
api vm-create POST "$compute/zones/europe-west4-a/instances" -d '{"name": "mine"}'
api template-delete DELETE "$compute/global/instanceTemplates/t1"
api firewall-create POST "$compute/global/firewalls" -d '{"name": "mine"}'
api accounts-list GET "$STORAGE_EMULATOR_HOST/iam/v1/projects/PROJECT/serviceAccounts"
api role-create POST "$STORAGE_EMULATOR_HOST/iam/v1/projects/PROJECT/roles" -d '{"roleId": "mine"}'
api project-policy POST "${OUTLAST_RESOURCE_MANAGER_ENDPOINT}projects/PROJECT:setIamPolicy" \
  -d '{"policy": {}}'
"""

ALL_WELL = {
    "own-create": 200,
    "own-overwrite": 200,
    "own-read": 200,
    "own-absent": 404,
    "own-list": 200,
    "own-delete": 204,
    "data-read": 200,
    "data-absent": 404,
    "data-list": 200,
    "lent-read": 200,
    "lent-alone": 200,
    "lent-absent": 404,
    "lent-list": 200,
    "init-read": 200,
    "init-absent": 404,
    "sweep-create": 200,
    "sweep-read": 200,
    "sweep-absent": 404,
    "sweep-list": 200,
    "secret-read": 200,
    "group-find": 200,
    "group-leave": 400,  # allowed; there is no VM of that name in it
}

FAILS_WITHOUT = {
    (f"{OWN}/", "storage.objects.create"): {"own-create", "own-overwrite"},
    (f"{OWN}/", "storage.objects.delete"): {"own-overwrite", "own-delete"},
    (f"{OWN}/", "storage.objects.get"): {"own-read", "own-absent"},
    (f"{OWN}/", "storage.objects.list"): {"own-list", "own-absent"},
    ("data/", "storage.objects.get"): {"data-read", "data-absent"},
    ("data/", "storage.objects.list"): {"data-list", "data-absent"},
    (LENT, "storage.objects.get"): {"lent-read", "lent-alone", "lent-absent"},
    (LENT, "storage.objects.list"): {"lent-list", "lent-absent"},
    (INIT, "storage.objects.get"): {"init-read", "init-absent"},
    (INIT, "storage.objects.list"): {"init-absent"},
    (SWEEP, "storage.objects.create"): {"sweep-create"},
    (SWEEP, "storage.objects.get"): {"sweep-read", "sweep-absent"},
    (SWEEP, "storage.objects.list"): {"sweep-list", "sweep-absent"},
    (SECRET, "secretmanager.versions.access"): {"secret-read"},
    ("leave", "compute.instanceGroupManagers.get"): {"group-find"},
    ("leave", "compute.instanceGroupManagers.update"): {"group-leave"},
}
"""Calls that are refused once a permission is taken out of a binding: one of a bucket goes by the
folder that it is for."""

NAMES = ("whole", *(f"less-{number}" for number in range(len(FAILS_WITHOUT))))
"""Of the VMs."""


@dataclass
class Declared:
    """What the components declare for a VM of the experiment `dev`."""

    buckets: list[tuple[str, str, str, str]]
    """[(bucket, folder, role, condition)]."""
    secret: tuple[str, str]
    """(name, role) on a secret."""
    leave: list[str]
    """Permissions of the custom role."""

    @property
    def bindings(self) -> set[str]:
        """Under the names of FAILS_WITHOUT."""
        return {"leave", self.secret[1], *(folder for _, folder, _, _ in self.buckets)}


@dataclass
class Buckets:
    """The stack's own bucket, and another team's."""

    own: str
    lender: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullCloud]:
    cloud = FullCloud(tmp_path_factory.mktemp("full") / "state")
    yield cloud
    assert cloud.stop() == 0
    cloud.http.close()


def declared(buckets: Buckets) -> Declared:
    """By the components themselves."""
    from outlast.components.leave_role import LeaveRole
    from outlast.components.vm_identity import VmIdentity

    def program() -> None:
        role = LeaveRole("leave", {"project": PROJECT, "stack": "dev", "week": "2026w49"})
        VmIdentity(
            "identity",
            {
                "project": PROJECT,
                "experiment": "dev",
                "bucket": buckets.own,
                "written": f"{OWN}/",
                "leave_role": role.role,
                "secrets": [(PROJECT, "own")],
                "sweep": "lr",
                "reads": [f"gs://{buckets.lender}/{path}" for path in (LENT, INIT)],
            },
        )

    found = list(inventory.record(program).declared.values())
    of = lambda kind: [one.inputs for one in found if one.type.endswith(f":{kind}")]  # noqa: E731
    (role,), (binding,), (secret,) = of("IAMCustomRole"), of("IAMMember"), of("SecretIamMember")
    assert binding["role"].endswith(role["roleId"]) and "condition" not in binding
    return Declared(
        [
            (
                one["bucket"],
                one["condition"]["description"].removeprefix("Only "),
                one["role"],
                one["condition"]["expression"],
            )
            for one in of("BucketIAMMember")
        ],
        (secret["secretId"], secret["role"]),
        role["permissions"],
    )


def give(cloud: FullCloud, identity: Declared, without: tuple[str, str]) -> str:
    """A service account with the declared bindings, but for one permission of one of them."""
    email = make_account(cloud)
    member = f"serviceAccount:{email}"

    def of(binding: str, role: str) -> str:
        left = sorted(PREDEFINED_ROLES[role] - {without[1]})
        return make_role(cloud, left) if binding == without[0] else role

    for bucket, folder, role, expression in identity.buckets:
        assert grant(cloud, bucket, of(folder, role), member, expression).status_code == 200
    name, role = identity.secret
    secret, role = f"{SECRETS}/{name}", of(role, role)
    policy = cloud.ok("GET", f"{secret}:getIamPolicy")
    bindings = [*policy.get("bindings", []), {"role": role, "members": [member]}]
    cloud.ok("POST", f"{secret}:setIamPolicy", {"policy": {**policy, "bindings": bindings}})
    leave = [p for p in identity.leave if without != ("leave", p)]
    assert grant_on_project(cloud, make_role(cloud, leave), member).status_code == 200
    return email


def boot(cloud: FullCloud, buckets: Buckets, name: str, email: str, probes: str) -> None:
    """A VM with that account which makes the calls."""
    text = BOOT.replace("PROBES", probes)
    names = {"BUCKET": buckets.own, "LENDER": buckets.lender, "INIT": INIT, "PROJECT": PROJECT}
    for word, value in names.items():
        text = text.replace(word, value)
    properties = template_body(**script(text))["properties"]
    properties["machineType"] = f"zones/europe-west4-a/machineTypes/{properties['machineType']}"
    properties["serviceAccounts"][0]["email"] = email
    cloud.ok("POST", VMS, {"name": name, **properties})


def answers(cloud: FullCloud, name: str) -> dict[str, int]:
    """Status by call, once the VM has made them all."""
    serial = cloud.state / "serial" / f"{name}-1.log"
    deadline = time.monotonic() + LONGEST_WAIT_SEC
    while "probes done" not in (text := serial.read_text() if serial.exists() else ""):
        assert time.monotonic() < deadline, f"{name}: {text}"
        time.sleep(0.05)
    lines = [line.split("probe ", 1)[1].split() for line in text.splitlines() if "probe " in line]
    return {name: int(status) for name, status in lines}


@pytest.fixture(scope="module")
def buckets(world: FullCloud) -> Buckets:
    # Who may write is asked here, not how often: a VM overwrites what was made a moment ago.
    switched = world.call("POST", "/_local/switches", json={"write_interval_sec": 0})
    assert switched.status_code == 200
    made = Buckets(make_bucket(world), make_bucket(world))
    own = [f"{OWN}/{kind}-{name}" for kind in ("HEAD", "old") for name in NAMES]
    others = ("experiments/other/HEAD", "experiments/dev-2/HEAD", "data/digits")
    sweeps = [f"sweeps/{sweep}/rungs/10/theirs" for sweep in ("lr", "lr-2")]
    for name in (*own, *others, *sweeps):
        world.put(made.own, name)
    for name in (LENT, f"{LENT}/a.csv", f"{LENT}-2/a.csv", f"{INIT}MANIFEST.json"):
        world.put(made.lender, name)
    for name in ("own", "theirs"):
        secret = {"replication": {"automatic": {}}}
        world.ok("POST", SECRETS, secret, params={"secretId": name})
        world.ok("POST", f"{SECRETS}/{name}:addVersion", {"payload": {"data": "eA=="}})
    world.ok("POST", f"{BASE}/global/instanceTemplates", template_body())
    world.ok("POST", GROUPS, group_body())
    return made


def test_a_vm_has_only_the_permissions_that_its_run_needs(
    world: FullCloud, buckets: Buckets
) -> None:
    email = give(world, declared(buckets), ("", ""))
    boot(world, buckets, "whole", email, NEEDED + REFUSED)
    found = answers(world, "whole")
    refused = {name: found.pop(name) for name in list(found) if name not in ALL_WELL}
    assert found == ALL_WELL
    assert len(refused) == REFUSED.count("\napi ")
    assert {name: status for name, status in refused.items() if status != 403} == {}
    assert world.object("GET", buckets.own, "experiments/other/HEAD").status_code == 200


def test_each_permission_is_needed(world: FullCloud, buckets: Buckets) -> None:
    identity = declared(buckets)
    assert {p for binding, p in FAILS_WITHOUT if binding == "leave"} == set(identity.leave)
    assert {binding for binding, _ in FAILS_WITHOUT} == identity.bindings
    names = dict(zip(FAILS_WITHOUT, NAMES[1:], strict=True))
    for without in FAILS_WITHOUT:
        email = give(world, identity, without)
        boot(world, buckets, names[without], email, NEEDED)
    for without, fails in FAILS_WITHOUT.items():
        found = answers(world, names[without])
        assert found == {**ALL_WELL, **dict.fromkeys(fails, 403)}, without
