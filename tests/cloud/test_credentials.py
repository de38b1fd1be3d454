"""The one identity: which source wins, and that every client of ours uses it."""

import json
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError

from outlast.bucket.store import Forbidden, open_store
from outlast.cloud import credentials
from outlast.cloud.compute import CannotAsk, Compute, Missing
from tests.localcloud.conftest import bucket as bucket
from tests.localcloud.conftest import cloud as cloud
from tests.localcloud.conftest import shared_cloud as shared_cloud
from tests.localcloud.iam.test_iam import grant, grant_on_project, make_account
from tests.localcloud.local_cloud import PROJECT, LocalCloud

VARIABLES = (
    credentials.TOKEN_VARIABLE,
    *credentials.KEY_VARIABLES,
    credentials.IMPERSONATE_VARIABLE,
    credentials.ENDPOINT_VARIABLE,
    "STORAGE_EMULATOR_HOST",
    "GCE_METADATA_HOST",
)


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    credentials.use_settings({})
    credentials._made.cache_clear()
    yield
    credentials.use_settings({})
    credentials._made.cache_clear()


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service account's key file, of a key that opens nothing."""
    made = subprocess.run(["openssl", "genrsa", "2048"], capture_output=True, text=True, check=True)
    path = tmp_path_factory.mktemp("key") / "key.json"
    fields = {
        "type": "service_account",
        "client_email": "deployer@acme.iam.gserviceaccount.com",
        "token_uri": "http://127.0.0.1:1/token",
        "private_key": made.stdout,
    }
    path.write_text(json.dumps(fields))
    return path


@pytest.mark.parametrize(
    ("settings", "variables", "token", "named"),
    [
        ({}, {"GOOGLE_OAUTH_ACCESS_TOKEN": "v", "GOOGLE_CREDENTIALS": "{}"}, "v", "GOOGLE_OAUTH"),
        ({"gcp:accessToken": "s"}, {"GOOGLE_OAUTH_ACCESS_TOKEN": "v"}, "s", "gcp:accessToken"),
        ({"gcp:accessToken": "s", "gcp:credentials": "{}"}, {}, "s", "gcp:accessToken"),
        ({"gcp:credentials": "{}"}, {"GOOGLE_OAUTH_ACCESS_TOKEN": "v"}, "", "gcp:credentials"),
        ({}, {"GCLOUD_KEYFILE_JSON": "{}"}, "", "GCLOUD_KEYFILE_JSON"),
        (
            {"gcp:impersonateServiceAccount": "a@b"},
            {"GOOGLE_CREDENTIALS": "{}"},
            "",
            "GOOGLE_CREDENTIALS",
        ),
        ({}, {}, "", ""),
    ],
)
def test_the_source_is_found_in_the_providers_order(
    settings: dict[str, str],
    variables: dict[str, str],
    token: str,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    credentials.use_settings(settings)
    found = credentials.source()
    assert found.token == token
    assert found.named.startswith(named) and bool(found.named) == bool(named)
    assert found.account == settings.get("gcp:impersonateServiceAccount", "")


def test_a_key_is_given_as_text_or_as_a_file(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (str(key), key.read_text()):
        monkeypatch.setenv("GOOGLE_CREDENTIALS", value)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = credentials.find()
        assert getattr(found, "service_account_email", None) == (
            "deployer@acme.iam.gserviceaccount.com"
        )


def test_a_token_may_lie_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("ya29.file\n")
    credentials.use_settings({"gcp:accessToken": str(tmp_path / "token")})
    assert credentials.token() == "ya29.file"


@pytest.mark.parametrize("value", ["{", "[]", '{"type": "service_account"}', "/nowhere/key.json"])
def test_a_key_that_is_none_is_named_in_one_sentence(value: str) -> None:
    credentials.use_settings({"gcp:credentials": value})
    with pytest.raises(GoogleAuthError, match=r"^gcp:credentials: no credentials \(.+\)$"):
        credentials.find()
    with pytest.raises(Forbidden, match=r"^gs://b: .*gcp:credentials"):
        open_store("gs://b")
    with pytest.raises(CannotAsk, match="gcp:credentials"):
        Compute("acme").call("GET", "zones")


def test_delegates_must_be_a_list() -> None:
    credentials.use_settings({"gcp:impersonateServiceAccountDelegates": "{}"})
    with pytest.raises(GoogleAuthError, match="gcp:impersonateServiceAccountDelegates: must be"):
        credentials.find()


def test_a_token_that_is_refused_says_so_and_cannot_be_renewed() -> None:
    credentials.use_settings({"gcp:accessToken": "old"})
    with pytest.raises(GoogleAuthError, match="the token in gcp:accessToken is refused"):
        credentials.find().refresh(None)  # type: ignore[arg-type]


def test_an_emulator_gets_the_given_identity_and_else_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    assert isinstance(credentials.for_storage(), AnonymousCredentials)
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "t")
    assert credentials.for_storage().token == "t"


# Impersonation, played by the local cloud


@pytest.fixture
def endpoints(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    monkeypatch.setenv(credentials.ENDPOINT_VARIABLE, f"{cloud.url}/iamcredentials/v1/")
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "owner")


def test_an_impersonated_account_is_the_caller_of_every_client(
    cloud: LocalCloud, bucket: str, endpoints: None
) -> None:
    email = make_account(cloud)
    credentials.use_settings({"gcp:impersonateServiceAccount": email})
    with pytest.raises(Forbidden):
        open_store(f"gs://{bucket}").put("mine", b"x")
    api = Compute(PROJECT, endpoint=f"{cloud.url}/secretmanager/v1/")
    with pytest.raises(CannotAsk, match="secrets.get. denied"):
        api.call("GET", "secrets/none")
    grant(cloud, bucket, "roles/storage.objectUser", f"serviceAccount:{email}")
    grant_on_project(cloud, "roles/secretmanager.viewer", f"serviceAccount:{email}")
    assert open_store(f"gs://{bucket}").put("mine", b"x").path == "mine"
    with pytest.raises(Missing):
        api.call("GET", "secrets/none")


def test_an_account_that_may_not_impersonate_is_refused_by_name(
    cloud: LocalCloud, bucket: str, endpoints: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_account(cloud), make_account(cloud)
    credentials.use_settings({"gcp:impersonateServiceAccount": first})
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", credentials.token())
    credentials.use_settings({"gcp:impersonateServiceAccount": second})
    said = rf"service account {second} cannot be impersonated \(.+getAccessToken.+TokenCreator"
    with pytest.raises(CannotAsk, match=said):
        Compute(PROJECT).call("GET", "zones/europe-west4-a/instances")
    grant_on_project(cloud, "roles/iam.serviceAccountTokenCreator", f"serviceAccount:{first}")
    assert credentials.token().startswith("account-token-")
