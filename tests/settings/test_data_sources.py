"""Data in buckets that anyone may read, and in those that let the requester pay: what a preview
says, and what a VM's account reads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.base.retry import Patience
from outlast.bucket.boot import Claim
from outlast.bucket.commit import Committer
from outlast.bucket.data import Cache, DataError
from outlast.bucket.headfile import HeadFile
from outlast.bucket.layout import Layout
from outlast.bucket.store import MemoryStore, PayerMissing, Store, open_store
from outlast.cloud import credentials
from outlast.settings import data_sources
from outlast.settings.asked import Answer
from outlast.settings.errors import SettingsError
from outlast.supervisor.initial import InitError, take_over
from tests.localcloud.conftest import cloud as cloud
from tests.localcloud.conftest import shared_cloud as shared_cloud
from tests.localcloud.iam.test_iam import grant, grant_on_project, make_account
from tests.localcloud.local_cloud import PROJECT, LocalCloud, make_bucket
from tests.settings.test_settings import HERE, check
from tests.stores import claim as claim

NO_PAYER = "Bucket is a requester pays bucket but no user project provided."
READ = "roles/storage.objectViewer"


@pytest.fixture
def member(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An account without a role, as which this process asks."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    monkeypatch.setenv("GOOGLE_STORAGE_CUSTOM_ENDPOINT", f"{cloud.url}/storage/v1/")
    monkeypatch.setenv(credentials.ENDPOINT_VARIABLE, f"{cloud.url}/iamcredentials/v1/")
    monkeypatch.setenv(credentials.TOKEN_VARIABLE, "owner")
    email = make_account(cloud)
    credentials.use_settings({"gcp:impersonateServiceAccount": email})
    yield f"serviceAccount:{email}"
    credentials.use_settings({})


def bucket_with(cloud: LocalCloud, *readers: str, pays: bool = False) -> str:
    bucket = make_bucket(cloud, billing={"requesterPays": pays})
    assert cloud.put(bucket, "d/a.csv", b"1,2\n").status_code == 200
    for reader in readers:
        assert grant(cloud, bucket, READ, reader).status_code == 200
    return bucket


def said(bucket: str, **values: str) -> Answer:
    path = f"gs://{bucket}/d"
    given = {f"outlast:{key}": value for key, value in values.items()}
    given["outlast:dataPaths"] = f'["{path}"]'
    if "publicData" in values:
        given["outlast:publicData"] = given["outlast:dataPaths"]
    (answer,) = data_sources.ask(check({**HERE, **given}))()
    return answer


def test_the_local_cloud_refuses_requests_without_a_payer(cloud: LocalCloud, member: str) -> None:
    bucket = bucket_with(cloud, member, pays=True)
    path = f"/storage/v1/b/{bucket}/o/d%2Fa.csv"
    as_account: dict[str, Any] = {"vm": ("vm", member.removeprefix("serviceAccount:"))}

    def answer(**params: str) -> tuple[int, str]:
        found = cloud.call("GET", path, params=params, **as_account)
        return found.status_code, found.json().get("error", {}).get("message", "")

    assert answer() == (400, NO_PAYER)
    code, message = answer(userProject=PROJECT)
    assert code == 403 and "does not have serviceusage.services.use access" in message
    grant_on_project(cloud, "roles/serviceusage.serviceUsageConsumer", member)
    assert answer(userProject=PROJECT) == (200, "")
    assert answer(userProject="another-project")[0] == 403
    assert answer() == (400, NO_PAYER)
    assert cloud.call("GET", path).status_code == 200, "the bucket's owner pays"
    headers = {"x-goog-user-project": PROJECT}
    assert cloud.call("GET", path, headers=headers, **as_account).status_code == 200
    assert cloud.put(bucket, "d/b", **as_account).status_code == 400


def test_a_vm_reads_at_the_payers_expense_and_only_where_it_must(
    cloud: LocalCloud, member: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, paid = bucket_with(cloud, member), bucket_with(cloud, member, pays=True)
    with pytest.raises(PayerMissing, match="requester pays"):
        open_store(f"gs://{paid}").stat("d/a.csv")
    with pytest.raises(DataError, match="lets the requester pay; set outlast:dataPayer"):
        Cache(tmp_path / "none").stage(f"gs://{paid}/d")
    cache = Cache(tmp_path / "cache", payer=PROJECT)
    # The account may not use the payer's project: what needs no payer is read all the same.
    assert (cache.stage(f"gs://{free}/d").path / "a.csv").read_bytes() == b"1,2\n"
    with pytest.raises(DataError, match=f"at the expense of project {PROJECT}, which needs"):
        cache.stage(f"gs://{paid}/d")
    grant_on_project(cloud, "roles/serviceusage.serviceUsageConsumer", member)
    assert (cache.stage(f"gs://{paid}/d").path / "a.csv").read_bytes() == b"1,2\n"
    monkeypatch.setenv("OUTLAST_DATA_PAYER", PROJECT)
    assert Cache(tmp_path / "laptop").stage(f"gs://{paid}/d/a.csv").path.read_bytes() == b"1,2\n"


def test_a_preview_names_the_setting_that_pays(cloud: LocalCloud, member: str) -> None:
    bucket = bucket_with(cloud, member, pays=True)
    assert said(bucket).refusal == (
        f"outlast:dataPaths 'gs://{bucket}/d': bucket {bucket} lets the requester pay; set"
        " outlast:dataPayer to the project that pays for reading it"
    )
    warning = said(bucket, dataPayer=PROJECT).warning
    assert f"paying needs roles/serviceusage.serviceUsageConsumer on project {PROJECT}" in warning
    grant_on_project(cloud, "roles/serviceusage.serviceUsageConsumer", member)
    grant(cloud, bucket, "roles/storage.admin", member)
    assert said(bucket, dataPayer=PROJECT) == Answer()


def test_a_preview_names_the_setting_that_pays_for_init_and_the_recipes_data(
    cloud: LocalCloud, member: str
) -> None:
    bucket = bucket_with(cloud, member, pays=True)
    pin = f"gs://{bucket}/experiments/x/0123456789/t000001/s000000000010-0a1b/"
    data = {"url": f"gs://{bucket}/d/a.csv", "sha256": "0" * 64}
    given = {
        "outlast:init": f"{pin}#{'0' * 64}",
        "outlast:imageRecipe": json.dumps({"data": [data]}),
    }
    says = f"bucket {bucket} lets the requester pay; set outlast:dataPayer to the project that pays"
    warnings = [answer.warning for answer in data_sources.ask(check({**HERE, **given}))()]
    assert warnings == [
        f"outlast:imageRecipe {data['url']!r}: {says} for reading it",
        f"outlast:init {pin!r}: {says} for reading it",
    ]
    paid = check({**HERE, **given, "outlast:dataPayer": PROJECT})
    assert data_sources.ask(paid)() == []


def test_a_checkpoint_to_start_from_is_read_at_the_payers_expense(
    cloud: LocalCloud, member: str, claim: Claim, tmp_path: Path
) -> None:
    bucket = bucket_with(cloud)
    assert grant(cloud, bucket, "roles/storage.objectAdmin", member).status_code == 200

    def committer(store: Store, experiment: str) -> Committer:
        head_file = HeadFile(store, Layout(f"experiments/{experiment}", "0123456789"))
        head_file.take_term(claim)
        made = Committer(head_file)
        made.restore(tmp_path / experiment)
        return made

    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "state").write_text("of another run")
    other = committer(open_store(f"gs://{bucket}"), "other").commit(snapshot, step=10)
    pin = f"gs://{bucket}/{other.path}#{other.blake3}"
    billing = {"billing": {"requesterPays": True}}
    assert cloud.call("PATCH", f"/storage/v1/b/{bucket}", json=billing).status_code == 200

    mine = committer(MemoryStore(), "mine")
    into = tmp_path / "into"
    with pytest.raises(InitError, match="lets the requester pay; set outlast:dataPayer"):
        take_over(mine, pin, into, patience=Patience())
    with pytest.raises(InitError, match="may not be read by this VM"):
        take_over(mine, pin, into, patience=Patience(), payer=PROJECT)
    grant_on_project(cloud, "roles/serviceusage.serviceUsageConsumer", member)
    taken = take_over(mine, pin, into, patience=Patience(), payer=PROJECT)
    assert (taken.path / "state").read_text() == "of another run"


def test_a_preview_names_the_setting_for_data_that_anyone_may_read(
    cloud: LocalCloud, member: str
) -> None:
    bucket = bucket_with(cloud, "allUsers")
    warning = said(bucket).warning
    assert "you may not change the policy of bucket" in warning
    assert "if anyone may read it, name it in outlast:publicData" in warning
    assert said(bucket, publicData="") == Answer()
    private = bucket_with(cloud)
    assert "not looked up" in said(private, publicData="").warning
    grant(cloud, bucket, "roles/storage.admin", member)
    assert said(bucket) == Answer()


def test_a_preview_names_what_is_not_there(cloud: LocalCloud, member: str) -> None:
    assert "there is no bucket none-at-all; check the name" in said("none-at-all").refusal
    bucket = make_bucket(cloud)
    grant(cloud, bucket, "roles/storage.admin", member)
    assert said(bucket).warning.endswith("there is no such object, and none below it")


def test_public_data_gets_no_binding_and_must_be_named_as_data() -> None:
    paths = {"outlast:dataPaths": '["gs://one/d", "gs://two/d"]'}
    found = check({**HERE, **paths, "outlast:publicData": '["gs://two/d"]'})
    assert found.reads == ("gs://one/d",)
    assert found.run == check({**HERE, **paths}).run, "it names no other run"
    with pytest.raises(SettingsError, match="publicData 'gs://three/d': must be one of outlast:"):
        check({**HERE, **paths, "outlast:publicData": '["gs://three/d"]'})
    with pytest.raises(SettingsError, match="dataPayer 'My Project': must be a project's id"):
        check({**HERE, "outlast:dataPayer": "My Project"})
