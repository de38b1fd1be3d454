"""Fixtures: local clouds without VMs, each a process of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rehearsal.local_cloud import LocalCloud, make_bucket


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


@pytest.fixture
def bucket(cloud: LocalCloud) -> str:
    """A new empty bucket of the session's cloud."""
    return make_bucket(cloud)
