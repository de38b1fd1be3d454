"""Service accounts, custom roles, policies, and what a VM may do by them."""

import uuid
from typing import Any

import pytest

from outlast.localcloud.base.access import Target
from outlast.localcloud.base.errors import ApiError
from outlast.localcloud.iam.conditions import holds, parse_condition
from tests.localcloud.local_cloud import PROJECT, LocalCloud, make_bucket

ACCOUNTS = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
ROLES = f"/iam/v1/projects/{PROJECT}/roles"
PROJECTS = f"/cloudresourcemanager/v1/projects/{PROJECT}"
LEAVE = ["compute.instanceGroupManagers.get", "compute.instanceGroupManagers.update"]


def condition(bucket: str, prefix: str) -> str:
    return (
        f"resource.name.startsWith('projects/_/buckets/{bucket}/objects/{prefix}') || "
        f"api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith('{prefix}')"
    )


def make_account(cloud: LocalCloud) -> str:
    body = {"accountId": f"vm-{uuid.uuid4().hex[:10]}", "serviceAccount": {"displayName": "VM"}}
    answer = cloud.call("POST", ACCOUNTS, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["email"]


def make_role(cloud: LocalCloud, permissions: list[str]) -> str:
    role_id = f"role_{uuid.uuid4().hex[:10]}"
    role = {"title": "A role", "includedPermissions": permissions}
    answer = cloud.call("POST", ROLES, json={"roleId": role_id, "role": role})
    assert answer.status_code == 200, answer.text
    return answer.json()["name"]


def grant(cloud: LocalCloud, bucket: str, role: str, member: str, expression: str = "") -> Any:
    """Adds a binding to the bucket's policy as the provider does."""
    path = f"/storage/v1/b/{bucket}/iam"
    policy = cloud.call("GET", path, params={"optionsRequestedPolicyVersion": "3"}).json()
    binding: dict[str, Any] = {"role": role, "members": [member]}
    if expression:
        binding["condition"] = {"title": "prefix", "expression": expression}
    body = {"etag": policy["etag"], "version": 3, "bindings": [*policy["bindings"], binding]}
    return cloud.call("PUT", path, json=body)


def grant_on_project(cloud: LocalCloud, role: str, member: str) -> Any:
    policy = cloud.call("POST", f"{PROJECTS}:getIamPolicy", json={}).json()
    policy["bindings"] = [*policy["bindings"], {"role": role, "members": [member]}]
    return cloud.call("POST", f"{PROJECTS}:setIamPolicy", json={"policy": policy})


# Conditions


def test_a_condition_covers_only_its_prefix() -> None:
    expression = condition("b", "experiments/e/")
    inside = Target("projects/_/buckets/b/objects/experiments/e/HEAD")
    assert holds({"expression": expression}, inside)
    assert holds({"expression": expression}, Target("projects/_/buckets/b", "experiments/e/x"))
    for outside in (
        Target("projects/_/buckets/b/objects/experiments/e2/HEAD"),
        Target("projects/_/buckets/b2/objects/experiments/e/HEAD"),
        Target("projects/_/buckets/b", "experiments/"),
        Target("projects/_/buckets/b"),
    ):
        assert not holds({"expression": expression}, outside)


def test_a_condition_may_name_one_object() -> None:
    whole = "projects/_/buckets/b/objects/data/digits"
    expression = f"{condition('b', 'data/digits/')} || resource.name == '{whole}'"
    for inside in (Target(whole), Target(f"{whole}/train"), Target("", "data/digits/")):
        assert holds({"expression": expression}, inside)
    for outside in (Target(f"{whole}-2"), Target(f"{whole}.csv"), Target("", "data/digits")):
        assert not holds({"expression": expression}, outside)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true",
        "resource.name.startsWith('a') && true",
        "resource.name != 'a'",
        "resource.name.startsWith('a') ||",
        "request.time < timestamp('2099-01-01T00:00:00Z')",
    ],
)
def test_other_conditions_are_refused_by_name(expression: str) -> None:
    with pytest.raises(ApiError, match="condition") as refused:
        parse_condition(expression)
    assert refused.value.status == 400
    assert repr(expression) in refused.value.message


# What a VM may do


def test_vm_writes_its_prefix_and_nothing_else(cloud: LocalCloud, bucket: str) -> None:
    email = make_account(cloud)
    vm = ("vm-1", email)
    member = f"serviceAccount:{email}"
    assert cloud.put(bucket, "e/own", vm=vm).status_code == 403
    for name in ("e/own", "other/theirs"):
        cloud.put(bucket, name)
    granted = grant(cloud, bucket, "roles/storage.objectUser", member, condition(bucket, "e/"))
    assert granted.status_code == 200
    assert cloud.put(bucket, "e/new", vm=vm).status_code == 200
    assert cloud.put(bucket, "other/new", vm=vm).status_code == 403
    assert cloud.object("GET", bucket, "e/own", vm=vm).status_code == 200
    assert cloud.object("GET", bucket, "e/absent", vm=vm).status_code == 404
    assert cloud.object("GET", bucket, "other/theirs", vm=vm).status_code == 403
    assert cloud.object("GET", bucket, "other/absent", vm=vm).status_code == 403
    assert cloud.object("DELETE", bucket, "other/theirs", vm=vm).status_code == 403
    assert cloud.object("DELETE", bucket, "e/own", vm=vm).status_code == 204
    listing = f"/storage/v1/b/{bucket}/o"
    assert cloud.call("GET", listing, params={"prefix": "e/"}, vm=vm).status_code == 200
    assert cloud.call("GET", listing, params={"prefix": "other/"}, vm=vm).status_code == 403
    assert cloud.call("GET", listing, vm=vm).status_code == 403
    assert cloud.call("GET", f"/storage/v1/b/{bucket}", vm=vm).status_code == 403


def test_condition_on_a_group_is_never_true(cloud: LocalCloud) -> None:
    email = make_account(cloud)
    ask = {"permissions": LEAVE}
    policy = cloud.call("POST", f"{PROJECTS}:getIamPolicy", json={}).json()
    binding = {
        "role": make_role(cloud, LEAVE),
        "members": [f"serviceAccount:{email}"],
        "condition": {"title": "t", "expression": "resource.name.startsWith('projects/')"},
    }
    policy |= {"version": 3, "bindings": [*policy["bindings"], binding]}
    answer = cloud.call("POST", f"{PROJECTS}:setIamPolicy", json={"policy": policy})
    assert answer.status_code == 200
    held = cloud.call("POST", f"{PROJECTS}:testIamPermissions", json=ask, vm=("v", email))
    without = {"policy": {"bindings": policy["bindings"][:-1]}}  # others use the project too
    assert cloud.call("POST", f"{PROJECTS}:setIamPolicy", json=without).status_code == 200
    assert held.json().get("permissions", []) == []


def test_conditional_bindings_have_a_limit(cloud: LocalCloud, bucket: str) -> None:
    member = f"serviceAccount:{make_account(cloud)}"
    for number in range(20):
        expression = condition(bucket, f"e{number}/")
        granted = grant(cloud, bucket, "roles/storage.objectUser", member, expression)
        assert granted.status_code == 200
    over = grant(cloud, bucket, "roles/storage.objectUser", member, condition(bucket, "one/"))
    assert over.status_code == 400
    assert "20" in over.json()["error"]["message"]


def test_moves_copies_and_batches_need_the_same_permissions(cloud: LocalCloud) -> None:
    """Restoring, moving, copying and batches go by the same names and prefixes."""
    bucket = make_bucket(cloud)
    email = make_account(cloud)
    vm, member = ("vm-1", email), f"serviceAccount:{email}"
    grant(cloud, bucket, "roles/storage.objectUser", member, condition(bucket, "e/"))
    for name in ("e/own", "other/theirs"):
        cloud.put(bucket, name, b"data")
    path = f"/storage/v1/b/{bucket}/o"
    for call in (
        "/other%2Ftheirs/moveTo/o/e%2Fstolen",
        f"/other%2Ftheirs/rewriteTo/b/{bucket}/o/e%2Fstolen",
        "/e%2Fown/moveTo/o/other%2Flost",
        f"/e%2Fown/copyTo/b/{bucket}/o/other%2Ftheirs",
        "/other%2Ftheirs/restore?generation=1",
    ):
        assert cloud.call("POST", path + call, vm=vm).status_code == 403
    stolen = {"sourceObjects": [{"name": "e/own"}, {"name": "other/theirs"}]}
    composed = cloud.call("POST", f"{path}/e%2Fall/compose", json=stolen, vm=vm)
    assert composed.status_code == 403
    calls = "".join(
        f"--b\r\nContent-Type: application/http\r\n\r\nDELETE {path}/{name} HTTP/1.1\r\n\r\n\r\n"
        for name in ("e%2Fown", "other%2Ftheirs")
    )
    kind = {"Content-Type": "multipart/mixed; boundary=b"}
    batch = cloud.call("POST", "/batch/storage/v1", data=f"{calls}--b--", headers=kind, vm=vm)
    answers = [line for line in batch.text.splitlines() if line.startswith("HTTP/1.1")]
    assert answers == ["HTTP/1.1 204 No Content", "HTTP/1.1 403 Forbidden"]
    assert cloud.object("GET", bucket, "other/theirs").status_code == 200


def test_overwriting_needs_delete_and_hides_absence(cloud: LocalCloud, bucket: str) -> None:
    email = make_account(cloud)
    vm = ("vm-1", email)
    grant(cloud, bucket, "roles/storage.objectCreator", f"serviceAccount:{email}")
    cloud.put(bucket, "kept", b"kept")
    assert cloud.put(bucket, "new", vm=vm).status_code == 200
    refused = cloud.put(bucket, "kept", b"bad", vm=vm)
    assert refused.status_code == 403
    assert "storage.objects.delete" in refused.json()["error"]["message"]
    reader = make_account(cloud)
    role = make_role(cloud, ["storage.objects.get"])
    grant(cloud, bucket, role, f"serviceAccount:{reader}")
    assert cloud.object("GET", bucket, "kept", vm=("vm-2", reader)).status_code == 200
    assert cloud.object("GET", bucket, "absent", vm=("vm-2", reader)).status_code == 403


def test_a_resumable_upload_belongs_to_its_opener(cloud: LocalCloud, bucket: str) -> None:
    email = make_account(cloud)
    path = f"/upload/storage/v1/b/{bucket}/o"
    params = {"uploadType": "resumable", "name": "e/big"}
    assert cloud.call("POST", path, params=params, vm=("vm-1", email)).status_code == 403
    grant(cloud, bucket, "roles/storage.objectUser", f"serviceAccount:{email}")
    opened = cloud.call("POST", path, params=params, vm=("vm-1", email))
    sent = cloud.http.put(opened.headers["location"], data=b"bytes", timeout=60)
    assert sent.status_code == 200


def test_test_permissions_shows_a_custom_role(cloud: LocalCloud) -> None:
    email = make_account(cloud)
    ask = {"permissions": [*LEAVE, "compute.instances.delete"]}

    def held() -> list[str]:
        answer = cloud.call("POST", f"{PROJECTS}:testIamPermissions", json=ask, vm=("v", email))
        return answer.json().get("permissions", [])

    assert held() == []
    role = make_role(cloud, LEAVE)
    assert grant_on_project(cloud, role, f"serviceAccount:{email}").status_code == 200
    assert held() == LEAVE
    owner = cloud.call("POST", f"{PROJECTS}:testIamPermissions", json=ask)
    assert owner.json()["permissions"] == ask["permissions"]
    role_path = f"{ROLES}/{role.rpartition('/')[2]}"
    narrower = {"includedPermissions": LEAVE[:1]}
    cloud.call("PATCH", role_path, json=narrower, params={"updateMask": "includedPermissions"})
    assert held() == LEAVE[:1]
    cloud.call("DELETE", role_path)
    assert held() == []


def test_the_token_of_a_deleted_vm_is_refused(cloud: LocalCloud, bucket: str) -> None:
    path = f"/storage/v1/b/{bucket}"
    gone = cloud.call("GET", path, headers={"Authorization": "Bearer vm-token-gone"})
    assert gone.status_code == 401
    other = cloud.call("GET", path, headers={"Authorization": "Bearer an-operator"})
    assert other.status_code == 200


# Policies


def test_stale_policy_is_refused(cloud: LocalCloud, bucket: str) -> None:
    member = f"serviceAccount:{make_account(cloud)}"
    path = f"/storage/v1/b/{bucket}/iam"
    before = cloud.call("GET", path).json()
    assert grant(cloud, bucket, "roles/storage.objectViewer", member).status_code == 200
    stale = cloud.call("PUT", path, json=before)
    assert (stale.status_code, stale.json()["error"]["status"]) == (409, "ABORTED")


@pytest.mark.parametrize(
    ("role", "member", "expression", "says"),
    [
        ("roles/storage.nonsense", "allUsers", "", "roles/storage.nonsense"),
        ("roles/storage.objectViewer", "someone", "", "someone"),
        (
            "roles/storage.objectViewer",
            f"serviceAccount:nobody@{PROJECT}.iam.gserviceaccount.com",
            "",
            "does not exist",
        ),
        ("roles/storage.objectViewer", "allUsers", "true", "condition 'true'"),
    ],
)
def test_bad_binding(
    cloud: LocalCloud, bucket: str, role: str, member: str, expression: str, says: str
) -> None:
    answer = grant(cloud, bucket, role, member, expression)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_conditional_binding_needs_version_3(cloud: LocalCloud, bucket: str) -> None:
    member = f"serviceAccount:{make_account(cloud)}"
    expression = condition(bucket, "e/")
    grant(cloud, bucket, "roles/storage.objectUser", member, expression)
    path = f"/storage/v1/b/{bucket}/iam"
    full = cloud.call("GET", path, params={"optionsRequestedPolicyVersion": "3"}).json()
    assert (full["version"], full["bindings"][-1]["condition"]["title"]) == (3, "prefix")
    old = cloud.call("GET", path).json()
    assert old["version"] == 1
    assert "_withcond_" in old["bindings"][-1]["role"]
    assert cloud.call("PUT", path, json={**full, "version": 1}).status_code == 400


def test_deleted_account_stays_in_policies_as_deleted(cloud: LocalCloud, bucket: str) -> None:
    email = make_account(cloud)
    grant(cloud, bucket, "roles/storage.objectViewer", f"serviceAccount:{email}")
    assert cloud.call("DELETE", f"{ACCOUNTS}/{email}").status_code == 200
    assert cloud.call("GET", f"{ACCOUNTS}/{email}").status_code == 404
    assert cloud.put(bucket, "a", vm=("v", email)).status_code == 403
    policy = cloud.call("GET", f"/storage/v1/b/{bucket}/iam").json()
    assert policy["bindings"][-1]["members"][0].startswith(f"deleted:serviceAccount:{email}?uid=")


# Service accounts and roles


@pytest.mark.parametrize("account_id", ["", "short", "Capitals", "a" * 31, "ends-in-dash-"])
def test_bad_account_id(cloud: LocalCloud, account_id: str) -> None:
    answer = cloud.call("POST", ACCOUNTS, json={"accountId": account_id})
    assert answer.status_code == 400
    assert repr(account_id) in answer.json()["error"]["message"]


def test_account_lifecycle(cloud: LocalCloud) -> None:
    email = make_account(cloud)
    path = f"{ACCOUNTS}/{email}"
    shown = cloud.call("GET", path).json()
    assert shown["name"] == f"projects/{PROJECT}/serviceAccounts/{email}"
    assert cloud.call("GET", f"{ACCOUNTS}/{shown['uniqueId']}").json() == shown
    again = cloud.call("POST", ACCOUNTS, json={"accountId": email.partition("@")[0]})
    assert again.status_code == 409
    change = {"serviceAccount": {"displayName": "Other"}, "updateMask": "display_name"}
    assert cloud.call("PATCH", path, json=change).json()["displayName"] == "Other"
    listed = cloud.call("GET", ACCOUNTS).json()["accounts"]
    assert email in {account["email"] for account in listed}
    elsewhere = cloud.call("GET", path.replace(PROJECT, "someone-elses"))
    assert elsewhere.status_code == 403


def test_deleted_role_is_reserved_until_undeleted(cloud: LocalCloud) -> None:
    name = make_role(cloud, LEAVE)
    role_id = name.rpartition("/")[2]
    path = f"{ROLES}/{role_id}"
    assert cloud.call("DELETE", path).json()["deleted"] is True
    assert cloud.call("GET", path).json()["deleted"] is True
    created = cloud.call("POST", ROLES, json={"roleId": role_id, "role": {}})
    assert created.json()["error"]["status"] == "FAILED_PRECONDITION"
    listed = cloud.call("GET", ROLES).json().get("roles", [])
    assert name not in {role["name"] for role in listed}
    assert "deleted" not in cloud.call("POST", f"{path}:undelete", json={}).json()
    assert cloud.call("POST", ROLES, json={"roleId": role_id, "role": {}}).status_code == 409


def test_a_role_deleted_long_ago_is_lost_and_its_id_stays_reserved_for_a_month(
    own_cloud: LocalCloud,
) -> None:
    def switch(**switches: float) -> None:
        assert own_cloud.call("POST", "/_local/switches", json=switches).status_code == 200

    role_id = make_role(own_cloud, LEAVE).rpartition("/")[2]
    path, body = f"{ROLES}/{role_id}", {"roleId": role_id, "role": {}}
    own_cloud.call("DELETE", path)
    switch(role_restorable_sec=0)
    assert own_cloud.call("GET", path).json()["deleted"] is True
    for call in (("POST", f"{path}:undelete", {}), ("POST", ROLES, body), ("PATCH", path, {})):
        answer = own_cloud.call(*call[:2], json=call[2])
        assert answer.json()["error"]["status"] == "FAILED_PRECONDITION", call
    listed = own_cloud.call("GET", ROLES, params={"showDeleted": "true"}).json()
    assert "roles" not in listed
    switch(role_id_taken_sec=0)
    assert own_cloud.call("GET", path).status_code == 404
    assert own_cloud.call("POST", ROLES, json=body).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"roleId": "no spaces"},
        {"roleId": "good_id", "role": {"includedPermissions": ["storage.objects"]}},
        {"roleId": "good_id", "role": {"colour": "red"}},
    ],
)
def test_bad_role(cloud: LocalCloud, body: dict[str, Any]) -> None:
    assert cloud.call("POST", ROLES, json=body).status_code == 400


def test_project(cloud: LocalCloud) -> None:
    project = cloud.call("GET", PROJECTS).json()
    assert project["projectId"] == PROJECT
    by_number = f"/cloudresourcemanager/v1/projects/{project['projectNumber']}"
    assert cloud.call("GET", by_number).json() == project
    assert cloud.call("GET", "/cloudresourcemanager/v1/projects/other").status_code == 403


# Secrets


def test_a_vm_reads_the_secret_that_it_was_granted_and_no_other(cloud: LocalCloud) -> None:
    email = make_account(cloud)
    vm = ("vm-1", email)
    secrets = f"/secretmanager/v1/projects/{PROJECT}/secrets"
    names = [f"secret-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        body = {"replication": {"automatic": {}}}
        made = cloud.call("POST", secrets, params={"secretId": name}, json=body)
        assert made.status_code == 200, made.text
        payload = {"payload": {"data": "czNjcjN0"}}
        cloud.call("POST", f"{secrets}/{name}:addVersion", json=payload)
    own, other = names

    def read(name: str) -> int:
        path = f"{secrets}/{name}/versions/latest:access"
        return cloud.call("GET", path, vm=vm).status_code

    assert read(own) == 403
    role, member = "roles/secretmanager.secretAccessor", f"serviceAccount:{email}"
    policy = cloud.call("GET", f"{secrets}/{own}:getIamPolicy").json()
    policy["bindings"] = [{"role": role, "members": [member]}]
    granted = cloud.call("POST", f"{secrets}/{own}:setIamPolicy", json={"policy": policy})
    assert granted.status_code == 200
    assert (read(own), read(other), read("absent")) == (200, 403, 403)
    assert cloud.call("GET", f"{secrets}/{own}", vm=vm).status_code == 403
    assert cloud.call("POST", f"{secrets}/{own}:addVersion", json={}, vm=vm).status_code == 403


@pytest.mark.parametrize(
    ("path", "body", "query", "says"),
    [
        (ACCOUNTS, {"acountId": "the-vm"}, {}, 'Unknown name "acountId"'),
        (ACCOUNTS, {"accountId": "the-vm"}, {"dryRun": "1"}, "Cannot bind query parameter"),
        (f"{PROJECTS}:setIamPolicy", {"policy": {"bindings": {"a": 1}}}, {}, "policy.bindings"),
        (f"{PROJECTS}:testIamPermissions", {"permissions": "x"}, {}, "permissions"),
    ],
)
def test_bodies_and_queries_are_checked_against_the_schema(
    cloud: LocalCloud, path: str, body: dict[str, Any], query: dict[str, str], says: str
) -> None:
    answer = cloud.call("POST", path, json=body, params=query)
    error = answer.json()["error"]
    assert (answer.status_code, error["status"]) == (400, "INVALID_ARGUMENT")
    assert says in error["message"]
    assert error["details"][0]["fieldViolations"]
