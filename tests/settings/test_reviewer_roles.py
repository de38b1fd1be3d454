"""The reviewer's roles of docs/teams.md, each tried by what is refused without it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outlast.bucket.head import read_head
from outlast.bucket.store import Forbidden, open_store
from outlast.cli.review import bucket as reviewed
from outlast.cli.review.outcomes import NotRead
from outlast.cli.review.plan import Pin
from outlast.cloud import credentials
from outlast.cloud.compute import Compute, ComputeError
from outlast.settings import sources
from tests.cli.test_resume import COMMITTED, LAYOUT
from tests.localcloud.conftest import bucket as bucket
from tests.localcloud.conftest import cloud as cloud
from tests.localcloud.conftest import shared_cloud as shared_cloud
from tests.localcloud.iam.test_iam import grant, grant_on_project, make_account
from tests.localcloud.local_cloud import PROJECT, LocalCloud
from tests.localcloud.provider.test_provider import stub as stub
from tests.localcloud.provider.test_provider import whole_cloud as whole_cloud
from tests.settings.test_deployer_role import World
from tests.settings.test_deployer_role import holding as holding
from tests.settings.test_deployer_role import world as world


@pytest.fixture
def email(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An account without a role, which this process impersonates when it asks."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.url)
    monkeypatch.setenv(credentials.ENDPOINT_VARIABLE, f"{cloud.url}/iamcredentials/v1/")
    monkeypatch.setenv(sources.ENDPOINT_VARIABLE, f"{cloud.url}/secretmanager/v1/")
    monkeypatch.setenv(credentials.TOKEN_VARIABLE, "owner")
    made = make_account(cloud)
    credentials.use_settings({"gcp:impersonateServiceAccount": made})
    yield made
    credentials.use_settings({})


def test_finding_the_bucket(cloud: LocalCloud, bucket: str, email: str) -> None:
    from google.api_core.exceptions import Forbidden as ApiForbidden
    from google.cloud import storage

    def look_up() -> Any:
        client = storage.Client(project=PROJECT, credentials=credentials.for_storage())
        found = client.lookup_bucket(bucket)
        return found and [one.name for one in client.list_buckets(prefix=bucket)]

    with pytest.raises(ApiForbidden):
        look_up()
    grant_on_project(cloud, "roles/storage.bucketViewer", f"serviceAccount:{email}")
    assert look_up() == [bucket]


def test_reading_the_runs(cloud: LocalCloud, bucket: str, email: str) -> None:
    credentials.use_settings({})
    open_store(f"gs://{bucket}").put(LAYOUT.head, COMMITTED.to_json())
    credentials.use_settings({"gcp:impersonateServiceAccount": email})
    pin = Pin(LAYOUT.run, 0, bucket, "experiments/dev", "europe-west4-a", 60, None)
    assert reviewed.looking()(pin) is NotRead.UNKNOWN
    grant(cloud, bucket, "roles/storage.objectViewer", f"serviceAccount:{email}")
    assert reviewed.looking()(pin) == read_head(open_store(f"gs://{bucket}"), LAYOUT).head
    with pytest.raises(Forbidden):
        open_store(f"gs://{bucket}").put(LAYOUT.head, b"theirs")


def test_looking_up_a_secret(cloud: LocalCloud, email: str) -> None:
    name = f"projects/{PROJECT}/secrets/none/versions/latest"
    assert "you may not look it up" in sources.secret("secretEnv.KEY", name).warning
    grant_on_project(cloud, "roles/secretmanager.viewer", f"serviceAccount:{email}")
    assert "there is no such secret" in sources.secret("secretEnv.KEY", name).refusal


def test_looking_up_network_image_and_quotas(
    world: World, holding: Callable[[set[str]], None]
) -> None:
    network = f"global/networks/{world.network.rpartition('/')[2]}"
    paths = (network, "regions/us-central1", "global/images/family/outlast")

    def refused() -> list[str]:
        found = []
        for path in paths:
            try:
                assert Compute(PROJECT).find(path) is not None, path
            except ComputeError as error:
                assert error.status == 403
                found.append(path)
        return found

    holding(set())
    assert refused() == list(paths)
    holding({"roles/compute.viewer"})
    assert refused() == []
    with pytest.raises(ComputeError, match=r"compute\.networks\.delete"):
        Compute(PROJECT).delete(network, limit_sec=10.0)
