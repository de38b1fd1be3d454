"""What a look-up says of a secret before anything is made, against Secret Manager as it is here."""

import uuid

import pytest

from outlast.cloud import credentials
from outlast.settings import sources
from tests.localcloud.local_cloud import PROJECT, LocalCloud

SECRETS = f"/secretmanager/v1/projects/{PROJECT}/secrets"
PAYLOAD = {"payload": {"data": "czNjcjN0"}}


@pytest.fixture
def name(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a secret that is not there yet; the look-up asks the session's cloud."""
    monkeypatch.setenv(sources.ENDPOINT_VARIABLE, f"{cloud.url}/secretmanager/v1/")
    monkeypatch.setenv(credentials.TOKEN_VARIABLE, "local")
    return f"secret-{uuid.uuid4().hex[:8]}"


def answer_for(name: str, version: str = "latest", project: str = PROJECT) -> sources.Answer:
    full = f"projects/{project}/secrets/{name}/versions/{version}"
    (answer,) = sources.ask(None, {"gitSecret": full})()
    return answer


def test_a_secret_is_followed_from_absent_to_destroyed(cloud: LocalCloud, name: str):
    field = f"outlast:gitSecret 'projects/{PROJECT}/secrets/{name}'"
    file = f"{name} --project {PROJECT}"
    add = f"gcloud secrets versions add {file} --data-file FILE"
    assert answer_for(name).refusal == (
        f"{field}: there is no such secret; create it: gcloud secrets create {file}"
        " --replication-policy automatic --data-file FILE"
    )
    body = {"replication": {"automatic": {}}}
    assert cloud.call("POST", SECRETS, params={"secretId": name}, json=body).status_code == 200
    assert (
        answer_for(name).refusal == f"{field}: has no version, and the VM needs one; add it: {add}"
    )

    cloud.call("POST", f"{SECRETS}/{name}:addVersion", json=PAYLOAD)
    assert answer_for(name) == answer_for(name, "1") == sources.Answer()
    assert answer_for(name, "7").refusal.endswith(
        f"/versions/7': has no version 7; name one that it has: gcloud secrets versions list {file}"
    )

    cloud.call("POST", f"{SECRETS}/{name}/versions/1:disable", json={})
    assert answer_for(name).refusal == (
        f"{field}: its latest version, 1, is disabled, and the VM needs an enabled one; enable it:"
        f" gcloud secrets versions enable 1 --secret {name} --project {PROJECT}"
    )
    cloud.call("POST", f"{SECRETS}/{name}/versions/1:destroy", json={})
    assert "version 1 is destroyed" in answer_for(name, "1").refusal
    assert answer_for(name, "1").refusal.endswith(f"; add one: {add}")
    cloud.call("POST", f"{SECRETS}/{name}:addVersion", json=PAYLOAD)
    assert answer_for(name) == sources.Answer()


def test_a_refused_or_unanswered_request_gives_a_warning(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    found = answer_for(name, project="of-others")
    assert found.refusal == ""
    assert f"secrets/{name}': you may not look it up" in found.warning
    assert "\n" not in found.warning

    monkeypatch.setenv(sources.ENDPOINT_VARIABLE, "http://127.0.0.1:1/")
    found = answer_for(name)
    assert found.refusal == ""
    assert "not looked up" in found.warning and "no answer" in found.warning
