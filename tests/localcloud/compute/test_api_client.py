"""Compute, IAM, Resource Manager and Secret Manager by google-api-python-client, and by gcloud."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import googleapiclient.discovery
import httplib2
import pytest
from googleapiclient.errors import HttpError

from tests.localcloud.compute.test_compute import group_body, template_body
from tests.localcloud.local_cloud import PROJECT, FullCloud

ZONE = "europe-west4-a"
REGION = "europe-west4"
WHERE = {"project": PROJECT, "zone": ZONE}
BASES = {
    "compute": "compute/{version}/",
    "iam": "iam/",
    "cloudresourcemanager": "cloudresourcemanager/",
    "secretmanager": "secretmanager/",
}
GCLOUD_SEC = 120


@pytest.fixture
def cloud(full_cloud: FullCloud) -> FullCloud:
    return full_cloud


@pytest.fixture
def build(cloud: FullCloud) -> Iterator[Callable[..., Any]]:
    """Makes Google's own client of an API and a version."""
    http = httplib2.Http()

    def make(api: str, version: str) -> Any:
        base = BASES[api].format(version=version)
        return googleapiclient.discovery.build(
            api,
            version,
            http=http,
            static_discovery=True,
            client_options={"api_endpoint": f"{cloud.url}/{base}"},
        )

    yield make
    http.close()


def reason_of(error: HttpError) -> tuple[int, str]:
    (entry,) = json.loads(error.content)["error"]["errors"]
    return error.status_code, entry["reason"]


@pytest.mark.parametrize("version", ["v1", "beta"])
def test_compute_from_insert_to_delete(build: Callable[..., Any], version: str) -> None:
    api = build("compute", version)
    templates, groups = api.instanceTemplates(), api.instanceGroupManagers()
    operation = templates.insert(project=PROJECT, body=template_body()).execute()
    waited = api.globalOperations().wait(project=PROJECT, operation=operation["name"]).execute()
    assert waited["status"] == "DONE"
    with pytest.raises(HttpError) as taken:
        templates.insert(project=PROJECT, body=template_body()).execute()
    assert reason_of(taken.value) == (409, "alreadyExists")
    operation = groups.insert(**WHERE, body=group_body()).execute()
    api.zoneOperations().wait(**WHERE, operation=operation["name"]).execute()
    name = {**WHERE, "instanceGroupManager": "g1"}
    live = groups.get(**name).execute()
    change = {"fingerprint": live["fingerprint"], "updatePolicy": {"minimalAction": "RESTART"}}
    groups.patch(**name, body=change).execute()
    with pytest.raises(HttpError) as stale:
        groups.patch(**name, body=change).execute()
    assert reason_of(stale.value) == (412, "conditionNotMet")
    with pytest.raises(HttpError) as used:
        templates.delete(project=PROJECT, instanceTemplate="t1").execute()
    assert reason_of(used.value) == (400, "resourceInUseByAnotherResource")
    groups.delete(**name).execute()
    templates.delete(project=PROJECT, instanceTemplate="t1").execute()
    with pytest.raises(HttpError) as gone:
        groups.get(**name).execute()
    assert reason_of(gone.value) == (404, "notFound")


def test_compute_lists_by_page_and_filter(build: Callable[..., Any]) -> None:
    api = build("compute", "v1")
    networks = api.networks()
    for name in ("n1", "n2", "n3"):
        networks.insert(project=PROJECT, body={"name": name}).execute()
    found, request = [], networks.list(project=PROJECT, maxResults=2)
    while request is not None:
        page = request.execute()
        found.append([item["name"] for item in page["items"]])
        request = networks.list_next(request, page)
    assert found == [["default", "n1"], ["n2", "n3"]]
    listed = networks.list(project=PROJECT, filter="name != default").execute()
    assert [item["name"] for item in listed["items"]] == ["n1", "n2", "n3"]


def test_iam_and_the_projects_policy(build: Callable[..., Any]) -> None:
    accounts = build("iam", "v1").projects().serviceAccounts()
    roles = build("iam", "v1").projects().roles()
    projects = build("cloudresourcemanager", "v1").projects()
    parent = f"projects/{PROJECT}"
    account = accounts.create(name=parent, body={"accountId": "the-vm"}).execute()
    assert accounts.get(name=account["name"]).execute() == account
    role = {"title": "Leave", "includedPermissions": ["compute.instanceGroupManagers.update"]}
    role = roles.create(parent=parent, body={"roleId": "leave", "role": role}).execute()
    policy = projects.getIamPolicy(resource=PROJECT, body={}).execute()
    member = f"serviceAccount:{account['email']}"
    policy["bindings"] = [{"role": role["name"], "members": [member]}]
    body = {"policy": policy}
    written = projects.setIamPolicy(resource=PROJECT, body=body).execute()
    assert written["bindings"] == policy["bindings"] and written["etag"] != policy["etag"]
    with pytest.raises(HttpError, match="concurrent policy changes") as stale:
        projects.setIamPolicy(resource=PROJECT, body=body).execute()
    assert reason_of(stale.value) == (409, "aborted")
    with pytest.raises(HttpError, match="Unknown name"):
        accounts.create(name=parent, body={"accountId": "other-vm", "colour": 1}).execute()
    held = {"permissions": ["resourcemanager.projects.get"]}
    assert projects.testIamPermissions(resource=PROJECT, body=held).execute() == held
    roles.delete(name=role["name"]).execute()
    accounts.delete(name=account["name"]).execute()
    with pytest.raises(HttpError) as gone:
        accounts.get(name=account["name"]).execute()
    assert reason_of(gone.value) == (404, "notFound")


def test_secrets(build: Callable[..., Any]) -> None:
    secrets = build("secretmanager", "v1").projects().secrets()
    parent = f"projects/{PROJECT}"
    body = {"replication": {"automatic": {}}}
    secret = secrets.create(parent=parent, secretId="token", body=body).execute()
    payload = {"payload": {"data": base64.b64encode(b"s3cr3t").decode()}}
    for _ in range(2):
        version = secrets.addVersion(parent=secret["name"], body=payload).execute()
    assert version["name"].endswith("/versions/2")
    latest = f"{secret['name']}/versions/latest"
    assert secrets.versions().access(name=latest).execute()["name"] == version["name"]
    wrong = {"payload": {**payload["payload"], "dataCrc32c": "1"}}
    with pytest.raises(HttpError, match="checksum"):
        secrets.addVersion(parent=secret["name"], body=wrong).execute()
    with pytest.raises(HttpError) as twice:
        secrets.create(parent=parent, secretId="token", body=body).execute()
    assert reason_of(twice.value) == (409, "conflict")
    secrets.delete(name=secret["name"]).execute()


@pytest.fixture
def gcloud(cloud: FullCloud, tmp_path: Path) -> Callable[..., Any]:
    """Runs `gcloud` against the local cloud and gives its JSON."""
    program = shutil.which("gcloud")
    if program is None:
        pytest.skip("gcloud is not installed")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path / "config"),
        "CLOUDSDK_CORE_PROJECT": PROJECT,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{cloud.url}/compute/v1/",
    }
    (tmp_path / "token").write_text("anything")

    def run(*arguments: str, fails: bool = False) -> Any:
        ended = subprocess.run(
            [program, "compute", *arguments, "--format=json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=GCLOUD_SEC,
        )
        assert (ended.returncode != 0) == fails, ended.stderr
        return ended.stderr if fails else json.loads(ended.stdout or "null")

    return run


@pytest.mark.rehearsal
def test_gcloud_compute(gcloud: Callable[..., Any]) -> None:
    spot = (
        *("--provisioning-model=SPOT", "--instance-termination-action=DELETE"),
        *("--image-family=outlast", f"--image-project={PROJECT}"),
    )
    gcloud("instance-templates", "create", "t1", "--machine-type=e2-small", *spot)
    (template,) = gcloud("instance-templates", "list", "--filter=name=t1")
    assert template["properties"]["scheduling"]["provisioningModel"] == "SPOT"
    zone = f"--zone={ZONE}"
    gcloud("instance-groups", "managed", "create", "g1", "--template=t1", "--size=0", zone)
    group = gcloud("instance-groups", "managed", "describe", "g1", zone)
    assert group["targetSize"] == 0
    (group,) = gcloud("instance-groups", "managed", "list", "--filter=name=g1")
    assert (group["name"], group["size"]) == ("g1", "0")
    assert gcloud("instance-groups", "managed", "list-instances", "g1", zone) == []
    said = gcloud("instance-templates", "delete", "t1", fails=True)
    assert "is already being used by" in said
    gcloud("instance-templates", "create", "t2", "--machine-type=e2-medium", *spot)
    versions = ("--version=template=t1,name=main", "--canary-version=template=t2,target-size=10%")
    roll = ("instance-groups", "managed", "rolling-action", "start-update", "g1", zone)
    gcloud(*roll, *versions, "--max-unavailable=1")
    group = gcloud("instance-groups", "managed", "describe", "g1", zone)
    assert [one["instanceTemplate"][-2:] for one in group["versions"]] == ["t1", "t2"]
    assert group["versions"][1]["targetSize"] == {"percent": 10, "calculated": 0}
    gcloud("instance-groups", "managed", "delete", "g1", zone)
    gcloud("instance-templates", "delete", "t1")
    assert "was not found" in gcloud("instance-templates", "describe", "t1", fails=True)
