"""What a damaged state has forgotten is found and deleted, and nothing of another stack."""

from collections.abc import Iterator
from typing import Any

import pytest

from outlast.cli import leftovers
from outlast.cli.errors import OperateError
from outlast.cli.leftovers import Place
from outlast.spec import labels
from tests.localcloud.local_cloud import PROJECT, FullCloud, make_bucket
from tests.log_lines import log_lines

COMPUTE = f"/compute/v1/projects/{PROJECT}"
OWN = labels.of_stack("outlast", "two", "two", {})
OTHERS = {
    "stack": labels.of_stack("outlast", "one", "one", {}),
    "project": labels.of_stack("lasting", "two", "two", {}),
    "longer": labels.of_stack("my-outlast", "two", "two", {}),
}


@pytest.fixture(scope="module")
def of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullCloud]:
    cloud = FullCloud(tmp_path_factory.mktemp("leftovers") / "state")
    yield cloud
    assert cloud.stop() == 0
    cloud.http.close()


@pytest.fixture
def cloud(of_module: FullCloud, monkeypatch: pytest.MonkeyPatch) -> FullCloud:
    of_module.ok("POST", "/_local/reset")
    of_module.call("DELETE", "/_local/faults")
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "local")
    for variable, address in of_module.endpoints().items():
        monkeypatch.setenv(variable, address)
    return of_module


def make(cloud: FullCloud, bucket: str, name: str, of: dict[str, str]) -> list[str]:
    """Everything that a stack has and that has no labels; returns what a finder says of it."""
    said = f"Outlast: something {labels.mark(of)}"
    region = f"{COMPUTE}/regions/us-central1"
    network = f"{COMPUTE}/global/networks/{name}-vpc"

    def insert(path: str, **body: Any) -> None:
        done = cloud.ok("POST", path, {"description": said, **body})
        operation = done["selfLink"].partition(f"/projects/{PROJECT}")[2]
        cloud.ok("POST", f"{COMPUTE}{operation}/wait")

    insert(f"{COMPUTE}/global/networks", name=f"{name}-vpc", autoCreateSubnetworks=False)
    insert(
        f"{region}/subnetworks",
        **{"name": f"{name}-sub", "network": network, "ipCidrRange": "10.128.0.0/20"},
    )
    insert(f"{region}/routers", name=f"{name}-router", network=network)
    allowed = [{"IPProtocol": "tcp", "ports": ["22"]}]
    insert(
        f"{COMPUTE}/global/firewalls",
        **{"name": f"{name}-ssh", "network": network, "allowed": allowed},
        sourceRanges=["35.235.240.0/20"],
    )
    insert(
        f"{COMPUTE}/global/healthChecks",
        **{"name": f"{name}-check", "type": "HTTP", "httpHealthCheck": {"port": 8099}},
    )
    account = cloud.ok(
        "POST",
        f"/iam/v1/projects/{PROJECT}/serviceAccounts",
        {"accountId": f"outlast-{name}", "serviceAccount": {"description": said}},
    )["email"]
    role = cloud.ok(
        "POST",
        f"/iam/v1/projects/{PROJECT}/roles",
        {
            "roleId": f"outlast_{name}_2026w49",
            "role": {"description": said, "includedPermissions": ["compute.instances.get"]},
        },
    )["name"]
    projects = f"/cloudresourcemanager/v1/projects/{PROJECT}"
    policy = cloud.ok("POST", f"{projects}:getIamPolicy", {})
    bindings = [*policy["bindings"], {"role": role, "members": [f"serviceAccount:{account}"]}]
    cloud.ok("POST", f"{projects}:setIamPolicy", {"policy": {**policy, "bindings": bindings}})
    policy = cloud.ok("GET", f"/storage/v1/b/{bucket}/iam?optionsRequestedPolicyVersion=3")
    binding = {"role": "roles/storage.objectUser", "members": [f"serviceAccount:{account}"]}
    # One binding of several members, as long as they have the same condition.
    same = [one for one in policy["bindings"] if one["role"] == binding["role"]]
    for one in same:
        binding["members"] = [*one["members"], *binding["members"]]
    rest = [one for one in policy["bindings"] if one not in same]
    cloud.ok("PUT", f"/storage/v1/b/{bucket}/iam", {**policy, "bindings": [*rest, binding]})
    return [
        f"health check {name}-check",
        f"firewall rule {name}-ssh",
        f"router {name}-router",
        f"subnetwork {name}-sub",
        f"network {name}-vpc",
        f"bindings in the project: {role} of {account}",
        f"bindings in gs://{bucket}: roles/storage.objectUser of {account}",
        f"service account {account}",
        f"role outlast_{name}_2026w49",
    ]


def found(place: Place) -> list[str]:
    all_of_them = [*leftovers.billed(place), *leftovers.identities(place)]
    return [f"{one.kind} {one.name}" for one in all_of_them]


@pytest.mark.parametrize("other", OTHERS)
def test_what_ends_in_the_stacks_mark_is_deleted_and_nothing_else(
    other: str, cloud: FullCloud
) -> None:
    bucket = make_bucket(cloud)
    place = Place(PROJECT, OWN, bucket)
    assert found(place) == []
    theirs = make(cloud, bucket, "other", OTHERS[other])
    assert found(place) == []
    own = make(cloud, bucket, "own", OWN)
    assert found(place) == own
    words = log_lines()
    leftovers.delete(place)
    assert words == [f"{one}: was missing from the state; deleted" for one in own]
    assert found(place) == []
    assert found(Place(PROJECT, OTHERS[other], bucket)) == theirs
    policy = cloud.ok("GET", f"/storage/v1/b/{bucket}/iam")
    members = [one for binding in policy["bindings"] for one in binding["members"]]
    assert [one for one in members if one.startswith("serviceAccount:")] == [
        f"serviceAccount:outlast-other@{PROJECT}.iam.gserviceaccount.com"
    ]


def test_what_may_be_billed_must_be_looked_for_and_what_costs_nothing_is_named(
    cloud: FullCloud,
) -> None:
    bucket = make_bucket(cloud)
    place = Place(PROJECT, OWN, bucket)
    own = make(cloud, bucket, "own", OWN)
    rule = cloud.add_fault("before", {"status": 403}, path="/iam/v1/projects/.*/roles")
    words = log_lines()
    leftovers.delete(place)
    assert words[-1].startswith("service accounts, roles and bindings that the stack's state may")
    assert "[outlast/two/two]: gcloud iam service-accounts list" in words[-1]
    cloud.call("DELETE", f"/_local/faults/{rule}")
    assert found(place) == own[-4:]
    cloud.add_fault("before", {"status": 403}, path="/compute/.*/firewalls")
    with pytest.raises(OperateError, match="could not be looked for or deleted .* may be billed"):
        leftovers.delete(place)
