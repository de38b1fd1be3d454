"""The deployer's role of docs/teams.md: with it, each step of an `up` or `destroy` works; without
one of its permissions a named step is refused."""

import hashlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from outlast.bucket.store import StoreError, open_store
from outlast.cli import leftovers
from outlast.cli.audit import finder
from outlast.cloud import credentials
from outlast.cloud.compute import Compute, ComputeError
from outlast.cloud.project import Project
from outlast.localcloud.provider.values import Asset
from outlast.spec import labels
from tests.localcloud.local_cloud import PROJECT, LocalCloud
from tests.localcloud.provider import test_provider as provider
from tests.localcloud.provider.test_provider import Engine, unique
from tests.localcloud.provider.test_provider import stub as stub
from tests.localcloud.provider.test_provider import whole_cloud as whole_cloud

ROLE_FILE = Path(__file__).parents[2] / "examples" / "roles" / "deployer.yaml"
STEP_OF = dict(re.findall(r"^- (\S+)  # (.+)$", ROLE_FILE.read_text(), re.MULTILINE))
"""Each permission of the role, with the step that it is for."""
REGION = "europe-west4"


@dataclass
class World:
    """The cloud, with what each step finds there, and the two who act in it."""

    cloud: LocalCloud
    owner: Engine
    mine: Engine
    """The engine, as the deployer."""
    role: str
    account: str
    """A VM's account."""
    bucket: str
    network: str
    template: str
    secret: str
    file: Path

    def permit(self, permissions: tuple[str, ...]) -> None:
        body = {"includedPermissions": list(permissions)}
        answer = self.cloud.call(
            "PATCH", f"/iam/v1/{self.role}", params={"updateMask": "includedPermissions"}, json=body
        )
        assert answer.status_code == 200, answer.text

    def life(
        self, token: str, inputs: dict[str, Any], change: dict[str, Any] | None = None
    ) -> None:
        """A resource that the deployer creates, changes and deletes; the owner removes what is
        left of it."""
        id, checked, state = self.mine.create(token, inputs)
        try:
            if change:
                self.mine.update(token, id, checked, state, {**inputs, **change})
            self.mine.delete(token, id, state)
        except grpc.RpcError:
            self.owner.delete(token, id, state)
            raise


@pytest.fixture(scope="module")
def world(
    whole_cloud: LocalCloud, stub: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    owner, mine = Engine(stub, "owner"), Engine(stub, "mine")
    owner.configure()
    deployer = owner.create(provider.ACCOUNT, {"accountId": unique("deployer")})[2]["email"]
    role = {"roleId": f"deployer_{uuid.uuid4().hex[:8]}", "title": "x", "permissions": []}
    role_name = owner.create(provider.ROLE, role)[0]
    owner.create(provider.MEMBER, {"role": role_name, "member": f"serviceAccount:{deployer}"})
    account = owner.create(provider.ACCOUNT, {"accountId": unique("vm")})[2]["email"]
    uniform = {"location": "EU", "uniformBucketLevelAccess": True, "forceDestroy": True}
    bucket = owner.create(provider.BUCKET, {"name": unique("bucket"), **uniform})[0]
    network = {"name": unique("net"), "autoCreateSubnetworks": False}
    link = owner.create(provider.NETWORK, network)[2]["selfLink"]
    assert whole_cloud.put(bucket, "HEAD", b"head").status_code == 200
    sub = {"name": unique("sub"), "network": link, "ipCidrRange": "10.100.0.0/20"}
    owner.create(provider.SUBNETWORK, sub)
    template = owner.create(provider.TEMPLATE, provider.template_inputs())[2]["selfLinkUnique"]
    owner.create(provider.GROUP, provider.group_inputs(unique("group"), template))
    secret = unique("secret")
    made = whole_cloud.call(
        *("POST", f"/secretmanager/v1/projects/{PROJECT}/secrets"),
        params={"secretId": secret},
        json={"replication": {"automatic": {}}},
    )
    assert made.status_code == 200, made.text
    file = tmp_path_factory.mktemp("files") / "bundle.zip"
    file.write_bytes(b"code")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(credentials.ENDPOINT_VARIABLE, f"{whole_cloud.url}/iamcredentials/v1/")
        patch.setenv(credentials.TOKEN_VARIABLE, "owner")
        patch.setenv("STORAGE_EMULATOR_HOST", whole_cloud.url)
        for variable, address in whole_cloud.endpoints().items():
            patch.setenv(variable, address)
        credentials.use_settings({"gcp:impersonateServiceAccount": deployer})
        mine.configure(impersonateServiceAccount=deployer)
        yield World(
            *(whole_cloud, owner, mine, role_name, account, bucket, link, template, secret, file)
        )
        credentials.use_settings({})


def find_the_bucket(w: World) -> None:
    assert Project(PROJECT).bucket(w.bucket) is not None
    assert Project(PROJECT).any_bucket(w.bucket) is not None


def declare_the_bucket(w: World) -> None:
    inputs = {"name": unique("made"), "location": "EU", "labels": {"managed-by": "outlast"}}
    id, checked, state = w.mine.create(provider.BUCKET, inputs)
    w.mine.update(provider.BUCKET, id, checked, state, {**inputs, "labels": {"team": "b"}})


def let_the_vm_use_the_bucket(w: World) -> None:
    binding = {"role": "roles/storage.objectUser", "member": f"serviceAccount:{w.account}"}
    w.life(provider.BUCKET_MEMBER, {"bucket": w.bucket, **binding})


def upload_the_code(w: World) -> None:
    digest = hashlib.sha256(w.file.read_bytes()).hexdigest()
    name = unique("bundle")
    source = Asset(digest, path=str(w.file))
    inputs = {"bucket": w.bucket, "name": name, "source": source}
    w.life(provider.OBJECT, inputs)


def read_the_runs(w: World) -> None:
    store = open_store(f"gs://{w.bucket}")
    assert store.get("HEAD")[0] == b"head"
    assert [one.path for one in store.list("HEAD")] == ["HEAD"]


def wait_until_it_is_done(w: World) -> None:
    for place in ("global", f"zones/{provider.ZONE}", f"regions/{REGION}"):
        path = f"{place}/operations"
        listed = w.cloud.call("GET", f"/compute/v1/projects/{PROJECT}/{path}").json()["items"]
        assert Compute(PROJECT).call("POST", f"{path}/{listed[-1]['name']}/wait")


def declare_a_network(w: World) -> None:
    w.life(provider.NETWORK, {"name": unique("net"), "autoCreateSubnetworks": False})


def declare_a_subnetwork(w: World) -> None:
    inputs = {"name": unique("sub"), "network": w.network, "ipCidrRange": "10.200.0.0/20"}
    w.life(provider.SUBNETWORK, {**inputs, "privateIpGoogleAccess": True})


def declare_a_nat(w: World) -> None:
    router = {"name": unique("router"), "network": w.network}
    id, _, state = w.mine.create(provider.ROUTER, router)
    try:
        nat = {"name": "nat", "router": router["name"], "natIpAllocateOption": "AUTO_ONLY"}
        every = {"sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES"}
        w.life(provider.NAT, {**nat, **every})
    except grpc.RpcError:
        w.owner.delete(provider.ROUTER, id, state)
        raise
    w.mine.delete(provider.ROUTER, id, state)


def declare_a_firewall_rule(w: World) -> None:
    rule = {"name": unique("rule"), "network": w.network, "sourceRanges": ["35.235.240.0/20"]}
    rule["allows"] = [{"protocol": "tcp", "ports": ["22"]}]
    w.life(provider.FIREWALL, rule, {"sourceRanges": ["10.0.0.0/8"]})


def declare_a_health_check(w: World) -> None:
    check = {"name": unique("check"), "httpHealthCheck": {"port": 8099, "requestPath": "/"}}
    w.life(provider.HEALTH_CHECK, check, {"unhealthyThreshold": 9})


def declare_the_role(w: World) -> None:
    role = {"roleId": f"role_{uuid.uuid4().hex[:8]}", "title": "Leave"}
    role["permissions"] = ["compute.instanceGroupManagers.get"]  # type: ignore[assignment]
    w.life(provider.ROLE, role, {"title": "Go"})


def restore_the_role(w: World) -> None:
    role = {"roleId": f"role_{uuid.uuid4().hex[:8]}", "title": "Leave", "permissions": []}
    id, _, state = w.owner.create(provider.ROLE, role)
    w.owner.delete(provider.ROLE, id, state)
    w.mine.create(provider.ROLE, role)
    w.owner.delete(provider.ROLE, id, state)


def declare_the_account(w: World) -> None:
    w.life(provider.ACCOUNT, {"accountId": unique("vm"), "displayName": "a"}, {"displayName": "b"})


def let_the_vm_leave(w: World) -> None:
    member = {"role": "roles/compute.viewer", "member": f"serviceAccount:{w.account}"}
    w.life(provider.MEMBER, member)


def let_the_vm_read_a_secret(w: World) -> None:
    member = {"role": "roles/secretmanager.secretAccessor", "member": f"serviceAccount:{w.account}"}
    w.life(provider.SECRET_MEMBER, {"secretId": w.secret, **member})


def declare_the_template(w: World) -> None:
    account = {"email": w.account, "scopes": ["cloud-platform"]}
    w.life(provider.TEMPLATE, provider.template_inputs(serviceAccount=account))


def declare_the_group(w: World) -> None:
    inputs = provider.group_inputs(unique("group"), w.template)
    policy = {**inputs["updatePolicy"], "minimalAction": "RESTART"}
    w.life(provider.GROUP, inputs, {"updatePolicy": policy})


def look_up_network_and_quotas(w: World) -> None:
    compute = Compute(PROJECT)
    for path in (
        "",
        f"regions/{REGION}",
        f"global/networks/{w.network.rpartition('/')[2]}",
    ):
        assert compute.find(path) is not None, path
    assert compute.find(f"regions/{REGION}/subnetworks/none-at-all") is None


def find_what_a_state_has_lost(w: World) -> None:
    place = leftovers.Place(PROJECT, labels.of_stack("outlast", "none", "none", {}), w.bucket)
    assert list(leftovers.billed(place)) == []
    assert list(leftovers.identities(place)) == []
    lost = finder.Resource("service account", "lost@example.com", place.mark, lambda: None)
    assert list(finder.bindings(PROJECT, (), (lost,))) == []  # policies are read if one is found


STEPS: Mapping[str, Callable[[World], None]] = {
    one.__name__.replace("_", " "): one
    for one in (
        *(find_the_bucket, declare_the_bucket, let_the_vm_use_the_bucket, upload_the_code),
        *(read_the_runs, declare_a_network, declare_a_subnetwork, declare_a_nat),
        *(declare_a_firewall_rule, declare_a_health_check, declare_the_role, restore_the_role),
        *(declare_the_account, let_the_vm_leave, let_the_vm_read_a_secret, declare_the_template),
        *(declare_the_group, wait_until_it_is_done, look_up_network_and_quotas),
        find_what_a_state_has_lost,
    )
}


def tried(step: Callable[[], None]) -> str:
    """Why the step was refused; empty if it was not."""
    try:
        step()
    except (grpc.RpcError, ComputeError, StoreError) as refused:
        return str(refused)
    return ""


@pytest.fixture
def refusal(world: World) -> Iterator[Callable[[str, str], str]]:
    """Why a step is refused without a permission."""

    def without(permission: str, step: str) -> str:
        world.permit(tuple(one for one in STEP_OF if one != permission))
        return tried(partial(STEPS[step], world))

    yield without


@pytest.mark.parametrize("step", STEPS)
def test_with_the_role_each_step_works(step: str, refusal: Callable[[str, str], str]) -> None:
    assert refusal("", step) == ""


@pytest.mark.parametrize("permission", STEP_OF)
def test_without_a_permission_its_step_is_refused_by_name(
    permission: str, refusal: Callable[[str, str], str]
) -> None:
    assert permission in refusal(permission, STEP_OF[permission])


def test_the_role_is_the_one_that_gcloud_reads_and_the_page_names() -> None:
    role = yaml.safe_load(ROLE_FILE.read_text())
    assert role["includedPermissions"] == list(STEP_OF)
    assert set(STEP_OF.values()) == set(STEPS), "each step is one that a permission is for"
    page = (ROLE_FILE.parents[2] / "docs" / "teams.md").read_text()
    assert "--file examples/roles/deployer.yaml" in page


# -- the predefined roles of the page --------------------------------------------------------------

LOST = "find what a state has lost"
OF_PREDEFINED = {
    "roles/storage.admin": {
        *("find the bucket", "declare the bucket", "let the vm use the bucket"),
        *("upload the code", "read the runs"),
    },
    "roles/compute.instanceAdmin.v1": {"declare the template", "declare the group"},
    "roles/iam.serviceAccountUser": {"declare the template"},
    "roles/iam.serviceAccountAdmin": {"declare the account", LOST},
    "roles/resourcemanager.projectIamAdmin": {"let the vm leave", LOST},
    "roles/iam.roleAdmin": {"declare the role", "restore the role", LOST},
    "roles/compute.networkAdmin": {
        *("declare a network", "declare a subnetwork", "declare a nat", "declare a health check"),
    },
    "roles/compute.securityAdmin": {"declare a firewall rule"},
    "roles/secretmanager.admin": {"let the vm read a secret"},
}
"""Each predefined role of a deployer, with the steps that are refused without it."""


@pytest.fixture
def holding(world: World) -> Iterator[Callable[[set[str]], None]]:
    """Gives the deployer these predefined roles instead of the custom one."""
    resource = f"/cloudresourcemanager/v1/projects/{PROJECT}"
    before = world.cloud.call("POST", f"{resource}:getIamPolicy", json={}).json()
    member = next(
        binding["members"] for binding in before["bindings"] if binding["role"] == world.role
    )

    def give(roles: set[str]) -> None:
        world.permit(())
        now = world.cloud.call("POST", f"{resource}:getIamPolicy", json={}).json()
        others = [
            one
            for one in now["bindings"]
            if one["members"] != member or not one["role"].startswith("roles/")
        ]
        bindings = [*others, *({"role": role, "members": member} for role in sorted(roles))]
        body = {"policy": {**now, "bindings": bindings}}
        answer = world.cloud.call("POST", f"{resource}:setIamPolicy", json=body)
        assert answer.status_code == 200, answer.text

    yield give
    give(set())


@pytest.mark.parametrize("left_out", ["", *OF_PREDEFINED])
def test_each_predefined_role_is_for_the_steps_that_are_refused_without_it(
    world: World, holding: Callable[[set[str]], None], left_out: str
) -> None:
    holding(set(OF_PREDEFINED) - {left_out})
    refused = {name for name, step in STEPS.items() if tried(partial(step, world))}
    assert refused == OF_PREDEFINED.get(left_out, set())


def test_the_page_names_these_predefined_roles() -> None:
    page = (ROLE_FILE.parents[2] / "docs" / "teams.md").read_text()
    table = page.partition("| deployer |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(roles/[a-zA-Z0-9.]+)`", table)) == set(OF_PREDEFINED)
