"""Fixtures: local clouds, each a separate process; all but the full ones without VMs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.localcloud.local_cloud import FullCloud, LocalCloud, make_bucket


@pytest.fixture(scope="session")
def shared_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    cloud = LocalCloud(tmp_path_factory.mktemp("cloud"))
    yield cloud
    cloud.stop()
    cloud.http.close()


@pytest.fixture
def cloud(shared_cloud: LocalCloud) -> Iterator[LocalCloud]:
    """The session's cloud, without fault rules."""
    yield shared_cloud
    shared_cloud.call("DELETE", "/_local/faults")


@pytest.fixture
def own_cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    """A cloud that the test may stop and start."""
    cloud = LocalCloud(tmp_path / "state")
    yield cloud
    cloud.stop()
    cloud.http.close()


@pytest.fixture(scope="module")
def full_cloud_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullCloud]:
    cloud = FullCloud(tmp_path_factory.mktemp("full") / "state")
    yield cloud
    assert cloud.stop() == 0
    cloud.http.close()


@pytest.fixture
def full_cloud(full_cloud_of_module: FullCloud) -> FullCloud:
    """The file's own cloud with VMs, in which nothing exists and nothing is played."""
    full_cloud_of_module.ok("POST", "/_local/reset")
    return full_cloud_of_module


@pytest.fixture
def bucket(cloud: LocalCloud) -> str:
    """A new empty bucket of the session's cloud."""
    return make_bucket(cloud)
